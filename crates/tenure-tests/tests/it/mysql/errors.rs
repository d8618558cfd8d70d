//! What goes wrong with a server's set-up: one line that says what, and what to do.

use std::time::Duration;

use tenure::Locks;
use tenure_testkit::servers::{Authority, MariaDb, with_query};

use super::{SERVER, database, locks};
use crate::common::said;
use crate::postgres::errors::{refusal, says};

/// Without TLS, MySQL needs it for a password.
const WITH_KEY: &str = "allowPublicKeyRetrieval=true";

fn works(url: &str) {
    let locks = locks(url, Duration::from_secs(15));
    tenure::block_on(async {
        for guard in [
            locks.mutex("x").expect("a name").lock().await,
            locks.fair_mutex("y").expect("a name").lock().await,
        ] {
            guard.expect("a guard").release().await.expect("a release");
        }
    });
}

#[test]
fn problems_of_the_setup_are_named_in_one_line() {
    let (name, url) = database();
    SERVER.run("CREATE USER IF NOT EXISTS secret IDENTIFIED BY 'wörd'; CREATE USER IF NOT EXISTS locked ACCOUNT LOCK");
    SERVER.run(&format!("GRANT ALL ON {name}.* TO secret"));
    says(&url.replace(&name, "nothing"), "Unknown database 'nothing' (1049); create it");
    for login in ["stranger", "secret", "secret:word"] {
        let url = with_query(&SERVER.url_as(login, &name), WITH_KEY);
        says(&url, "check the user and password in the store's URL");
    }
    says(&SERVER.url_as("locked", &name), "locked");
    works(&with_query(&SERVER.url_as("secret:w%C3%B6rd", &name), WITH_KEY));
    says("mysql://me@%2Fnowhere/app", "No such file");
    says("mysql://me@127.0.0.1:1/app", "refused");
    let socket = SERVER.socket().display().to_string().replace('/', "%2F");
    works(&format!("mariadb://root@{socket}/{name}"));
}

#[test]
fn a_url_is_shown_without_its_password_also_when_it_is_wrong() {
    let shown = |url: &str| tenure::internals::store::mysql::shown(url).expect("a URL");
    assert_eq!(shown("mariadb://me:p%40ss@a,[::1]:6000/my%20app"), "mysql://a:3306,[::1]:6000/my app");
    let socket = shown("mysql://me@%2Frun%2Fmy.sock/app");
    assert_eq!(shown(&socket.replace("//", "//me@")), socket);
    for url in [
        "mysql://me:secret@host",
        "mysql://me:secret@host/a%2Fb",
        "mysql://host/app",
        "mysql:host",
        "mysql://me:secret@host/app?sslmode=on",
        "mysql://me:secret@host/app?ca=x",
        "mysql://me:secret@host/app?other=1",
    ] {
        let error = Locks::open(url).expect_err(url).to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}

#[test]
fn a_user_who_may_not_make_the_table_is_told_its_sql_and_needs_four_rights() {
    let (name, _) = database();
    let user = format!("{name}_user");
    SERVER.run(&format!(
        "CREATE USER {user}; CREATE TABLE {name}.other (n int); GRANT SELECT ON {name}.other TO {user}"
    ));
    let url = SERVER.url_as(&user, &name);
    let (error, text) = refusal(&url);
    assert!(error.is_refused() && text.contains("CREATE TABLE IF NOT EXISTS tenure_lock"), "{text}");
    // What it said, run as one who may.
    SERVER.run(&format!("USE {name}; {}", tenure::mysql::tables_sql()));
    SERVER.run(&format!("GRANT SELECT ON {name}.tenure_lock TO {user}"));
    let (error, text) = refusal(&url);
    assert!(error.is_refused() && text.contains("SELECT, INSERT, UPDATE and DELETE"), "{text}");
    SERVER.run(&format!("GRANT INSERT, UPDATE, DELETE ON {name}.tenure_lock TO {user}"));
    works(&url);
}

#[test]
fn a_server_that_becomes_read_only_is_named_and_left() {
    let mut server = MariaDb::start_with(&["--read-only=1"]);
    says(&server.url_as("root", "app"), "it takes no writes: read_only is on");
    server.run("SET GLOBAL read_only = 0; CREATE USER app; GRANT ALL ON app.* TO app");
    let url = server.url_as("app", "app");
    let locks = locks(&url, Duration::from_secs(15));
    let locks = locks.with(|options| options.op_timeout(Duration::from_secs(2))).expect("options");
    tenure::block_on(async {
        let mutex = locks.mutex("x").expect("a name");
        mutex.lock().await.expect("a guard").release().await.expect("a release");
        server.run("SET GLOBAL read_only = 1");
        let error = mutex.try_lock().await.expect_err("no lock");
        assert!(said(&error).contains("read_only") || said(&error).contains("read-only"), "{}", said(&error));
        assert!(error.is_unreachable(), "{error}");
        server.run("SET GLOBAL read_only = 0");
        mutex.lock().await.expect("a guard").release().await.expect("a release");
    });
    server.crash();
}

#[test]
fn locks_are_kept_over_tls_and_wrong_certificates_are_named() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = MariaDb::with_tls(&authority.certify("127.0.0.1"));
    server.run("CREATE USER secret IDENTIFIED BY 'word' REQUIRE SSL; GRANT ALL ON app.* TO secret");
    let trusting = |authority: &Authority| format!("sslmode=verify-full&ca={}", authority.ca().display());
    let url = |terms: &str| with_query(&server.url_as("secret:word", "app"), terms);
    works(&url(&trusting(&authority)));
    says(&url(WITH_KEY), "check the user and password");
    says(&url(&trusting(&stranger)), "ca=FILE");
    says(&url(&trusting(&authority)).replace("127.0.0.1", "localhost"), "localhost");
    says(&url("sslmode=verify-full&ca=/nowhere"), "/nowhere");
    let plain = with_query(&SERVER.url_as("root", "app"), &trusting(&authority));
    says(&plain, "it does not use TLS; without TLS, use sslmode=disable");
}

#[test]
fn settings_of_the_session_change_no_result() {
    let settings = "SET SESSION sql_select_limit = 1, sql_safe_updates = 1, sql_big_selects = 0, completion_type = 2, \
                    max_join_size = 1; SET NAMES latin1; SET SESSION TRANSACTION READ ONLY";
    let server = MariaDb::start_with(&[&format!("--init-connect={settings}")]);
    // A superuser is exempt.
    server.run("CREATE USER app IDENTIFIED BY 'word'; GRANT ALL ON app.* TO app");
    let url = with_query(&server.url_as("app:word", "app"), WITH_KEY);
    works(&url);
    let [ours, theirs] = [(); 2].map(|()| locks(&url, Duration::from_secs(15)));
    tenure::block_on(async {
        let fair = ours.fair_mutex("ä").expect("a name").lock().await.expect("a guard");
        let status = ours.inspect("ä").await.expect("an answer").expect("it is held");
        assert_eq!(status.holders[0].fence, fair.fence());
        let other = theirs.fair_mutex("other").expect("a name").lock().await.expect("a guard");
        let (mut listing, mut names) = (ours.list("").expect("a prefix"), Vec::new());
        while let Some(status) = listing.next().await.expect("an answer") {
            names.push(status.name.to_string());
        }
        names.sort();
        assert_eq!(names.len(), 2, "{names:?}");
        fair.release().await.expect("it is held");
        other.release().await.expect("it is held");
    });
}

#[test]
fn a_record_above_max_allowed_packet_is_refused_and_the_connection_stays() {
    let (_, url) = database();
    let locks = locks(&url, Duration::from_secs(15));
    tenure::block_on(async {
        let long = "n".repeat(60_000);
        let guard = locks.mutex(&*long).expect("a name").lock().await.expect("a guard");
        guard.release().await.expect("a release");
    });
    let mut server = MariaDb::start_with(&["--max-allowed-packet=65536"]);
    let (error, text) = {
        let locks = locks_on(&server);
        let error = tenure::block_on(locks.mutex("n".repeat(60_000)).expect("a name").try_lock())
            .expect_err("too long");
        let text = said(&error);
        works(&server.url_as("root", "app"));
        (error, text)
    };
    assert!(error.is_refused() && text.contains("expected less than 65536 (max_allowed_packet)"), "{text}");
    server.crash();
}

fn locks_on(server: &MariaDb) -> Locks {
    locks(&server.url_as("root", "app"), Duration::from_secs(15))
}
