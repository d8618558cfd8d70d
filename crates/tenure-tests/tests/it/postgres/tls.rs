//! Locks over TLS, and the errors when client and server disagree.

use std::time::Duration;

use tenure_testkit::servers::{Authority, Postgres};

use super::errors::says;
use super::{locks, on};

/// A URL of a server's port with these parameters.
fn url(server: &Postgres, terms: &str) -> String {
    format!("postgres://postgres@{}/postgres{terms}", server.address())
}

#[test]
fn locks_of_all_kinds_are_kept_over_tls() {
    on(async {
        let authority = Authority::new();
        let server = Postgres::with_tls(&authority.certify("127.0.0.1"));
        let url = url(&server, &format!("?sslmode=verify-full&ca={}", authority.ca().display()));
        let (ours, theirs) = (locks(&url, Duration::from_secs(15)), locks(&url, Duration::from_secs(15)));
        let guard = ours.mutex("x").expect("a name").lock().await.expect("a guard");
        let waits = theirs.mutex("x").expect("a name");
        let waiter = tokio::spawn(async move { waits.lock().await });
        for guard in [
            ours.fair_mutex("fair").expect("a name").lock().await.expect("a guard"),
            ours.semaphore("permits", 2).expect("a name").acquire().await.expect("a guard"),
        ] {
            guard.release().await.expect("a release");
        }
        // All connections, those of listeners too, were encrypted.
        let plain = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
            WHERE application_name LIKE 'tenure-%' AND NOT ssl";
        assert_eq!(server.run(plain), "0");
        guard.release().await.expect("a release");
        let granted = tokio::time::timeout(Duration::from_secs(10), waiter).await.expect("it is told");
        granted.expect("no panic").expect("a guard").release().await.expect("a release");
    });
}

#[test]
fn what_is_wrong_with_certificates_is_said_in_one_line() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = Postgres::with_tls(&authority.certify("127.0.0.1"));
    let trusting = |authority: &Authority| format!("?sslmode=verify-full&ca={}", authority.ca().display());
    says(&url(&server, &trusting(&stranger)), "ca=FILE");
    says(&url(&server, "?sslmode=verify-full"), "ca=FILE");
    // The certificate is for 127.0.0.1 only.
    let elsewhere = url(&server, &trusting(&authority)).replace("127.0.0.1", "localhost");
    says(&elsewhere, "localhost");
    says(&url(&server, ""), "for TLS, add ?sslmode=require to the URL, or verify-full");
    says(&url(&server, "?sslmode=verify-full&ca=/nowhere"), "/nowhere");
}

#[test]
fn a_password_that_is_missing_or_wrong_is_named() {
    let authority = Authority::new();
    let server = Postgres::with_tls(&authority.certify("127.0.0.1"));
    server.run("CREATE ROLE secret LOGIN PASSWORD 'word'");
    server.run("CREATE SCHEMA AUTHORIZATION secret");
    let terms = format!("?schema=secret&sslmode=verify-full&ca={}", authority.ca().display());
    let with = |login: &str| url(&server, &terms).replace("postgres@", login);
    says(&with("secret@"), "it requires a password, and there is none");
    says(&with("secret:sword@"), "password authentication failed");
    let locks = locks(&with("secret:word@"), Duration::from_secs(15));
    tenure::block_on(async {
        let guard = locks.mutex("x").expect("a name").lock().await.expect("a guard");
        guard.release().await.expect("a release");
    });
}

#[test]
fn a_server_that_does_not_encrypt_is_named() {
    let server = Postgres::with_port();
    says(&url(&server, "?sslmode=verify-full"), "it does not use TLS; without TLS, use sslmode=disable");
}
