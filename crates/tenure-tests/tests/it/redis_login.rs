//! Connections that fail, and the logins of those that succeed.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test against a real server measures real time"
)]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::internals::protocol::LockSpec;
use tenure::internals::store::{Failure, Purpose, Topic};
use tenure::{Credentials, LockName, Locks, block_on};
use tenure_testkit::asker::Asker;
use tenure_testkit::servers::{Config, Server, eventually};

use crate::common::ms;

fn locks(url: &str) -> Locks {
    Locks::open(url).expect("a store")
}

#[test]
fn a_ping_to_a_closed_port_fails_at_once_and_says_so() {
    let server = Server::start();
    let url = server.url();
    block_on(locks(&url).ping()).expect("a server");
    drop(server);
    let sentinel = format!("{}/service", url.replace("redis:", "redis-sentinel:"));
    for url in [&url, &sentinel, &url.replace("redis:", "redis-cluster:")] {
        let patient =
            locks(url).with(|options| options.op_timeout(Duration::from_secs(3_600))).expect("options");
        let error = block_on(patient.ping()).expect_err("nothing listens there");
        assert!(error.is_unreachable() && error.to_string().contains("refused"), "{error}");
        let error = block_on(Locks::connect(url)).expect_err("nothing listens there");
        assert!(error.is_unreachable() && error.to_string().contains("refused"), "{error}");
    }
}

/// Holds survive the change.
#[test]
fn the_login_is_asked_for_at_each_dial() {
    let server = Server::start();
    let set = |password: &str| {
        let password = format!(">{password}");
        server.command(&["ACL", "SETUSER", "locks", "on", "resetpass", &password, "~*", "&*", "+@all"]);
    };
    set("old");
    let password = Arc::new(Mutex::new("old"));
    let current = Arc::clone(&password);
    let locks =
        Locks::open_with_credentials(&server.url(), move || match *current.lock().expect("no panic") {
            "none" => Err("the secret is not there yet".into()),
            password => Ok(Credentials::new("locks", password)),
        });
    let locks = locks.expect("a store").with(|options| options.ttl(ms(3_000))).expect("options");
    let guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a free lock");
    set("new");
    // A provider that fails is called again.
    *password.lock().expect("no panic") = "none";
    server.command(&["CLIENT", "KILL", "USER", "locks"]);
    let asker = locks.with(|options| options.op_timeout(ms(200))).expect("options");
    // The first requests may use the connection that is being closed, or fall into the backoff.
    eventually("the provider's error is told", Duration::from_secs(10), || {
        block_on(asker.ping()).is_err_and(|error| error.to_string().contains("not there yet"))
    });
    *password.lock().expect("no panic") = "new";
    eventually("the new login is used", Duration::from_secs(10), || block_on(locks.ping()).is_ok());
    block_on(guard.verify()).expect("still held");
    block_on(guard.release()).expect("a release");
}

/// A changed password needs no restart, and holds survive it.
#[test]
fn a_password_file_is_read_at_each_dial() {
    let (server, file) = (Server::start(), tempfile::NamedTempFile::new().expect("a file"));
    let set = |password: &str| {
        std::fs::write(file.path(), format!("{password}\n")).expect("written");
        let rule = format!(">{password}");
        server.command(&["ACL", "SETUSER", "locks", "on", "resetpass", &rule, "~*", "&*", "+@all"]);
    };
    set("old");
    let at = server.url().replace("redis://", "redis://locks@");
    let locks = Locks::open(&format!("{at}?password-file={}", file.path().display())).expect("a store");
    let locks = locks.with(|options| options.ttl(ms(3_000))).expect("options");
    let guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a free lock");
    set("new");
    server.command(&["CLIENT", "KILL", "USER", "locks"]);
    eventually("the new password is used", Duration::from_secs(10), || block_on(locks.ping()).is_ok());
    block_on(guard.verify()).expect("still held");
    block_on(guard.release()).expect("a release");
    let missing = Locks::open(&format!("{at}?password-file=/no/such/file")).expect("a store");
    let error = block_on(missing.ping()).expect_err("no password").to_string();
    assert!(error.contains("/no/such/file"), "{error}");
}

/// Messages have a connection of their own, which is made when they are needed.
#[test]
fn a_refused_login_for_messages_is_told_at_once() {
    const LONG: Duration = Duration::from_secs(60);
    let server = Server::start_with(Config::new().user("locks on >pw ~* &* +@all"));
    let asker = Asker::new(&server.url().replace("redis://", "redis://locks:pw@"));
    block_on(asker.store.ready(LONG)).expect("a login");
    server.command(&["ACL", "SETUSER", "locks", "resetpass", ">other"]);
    let (name, begun) = (LockName::new("x").expect("a name"), Instant::now());
    let topic = Topic::new(&name, LockSpec::Mutex, Purpose::Watch);
    let refused = block_on(asker.store.subscribe(topic, LONG)).expect_err("no login");
    assert!(matches!(refused, Failure::Refused(_)), "{refused}");
    assert!(begun.elapsed() < LONG / 2);
    // The connection for requests has its login.
    block_on(asker.store.ready(LONG)).expect("an answer");
}

#[test]
fn a_login_comes_from_the_url_or_from_a_provider() {
    let provider = || Ok(Credentials::of_default_user("pw"));
    let error = Locks::open_with_credentials("redis://:pw@h", provider).expect_err("two logins");
    assert!(error.is_invalid(), "{error}");
    for url in ["file:/tmp/x", "memory:"] {
        assert!(Locks::open_with_credentials(url, provider).expect_err("no login").is_unsupported());
    }
    for url in ["redis://h", "redis-sentinel://s/main", "redis-cluster://a,b", "redis-quorum://a,b,c"] {
        let _locks = Locks::open_with_credentials(url, provider).expect("a store");
    }
}
