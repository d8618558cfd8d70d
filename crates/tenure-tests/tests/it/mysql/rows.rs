//! The rows of the table, and the statements that change them.

use std::sync::Arc;
use std::time::Duration;

use tenure::internals::Driver;
use tenure::internals::store::mysql::server;
use tenure_testkit::servers::MariaDb;

use super::{SERVER, database, locks};
use crate::postgres::on;

/// The number of statements that a server has run.
fn statements(server: &MariaDb) -> u64 {
    server
        .run("SHOW GLOBAL STATUS LIKE 'Questions'")
        .rsplit_once('\t')
        .expect("a row")
        .1
        .parse()
        .expect("a number")
}

#[test]
fn an_uncontended_mutex_takes_one_statement_each_way() {
    const PAIRS: u64 = 20;
    let server = MariaDb::start();
    let locks = locks(&server.url_as("root", "app"), Duration::from_secs(60));
    let mutex = locks.mutex("x").expect("a name");
    let pair = || {
        tenure::block_on(async { mutex.lock().await.expect("a guard").release().await.expect("a release") })
    };
    pair();
    let idle = { (statements(&server), statements(&server)) };
    let before = statements(&server);
    (0..PAIRS).for_each(|_| pair());
    let all = statements(&server) - before;
    assert_eq!(all - (idle.1 - idle.0), 2 * PAIRS);
}

#[test]
fn unused_rows_are_swept_and_their_tokens_are_never_given_again() {
    on(async {
        let (name, url) = database();
        let locks = locks(&url, Duration::from_secs(60));
        for lock in ["old", "used", "held"] {
            locks
                .mutex(lock)
                .expect("a name")
                .lock()
                .await
                .expect("a guard")
                .release()
                .await
                .expect("a release");
        }
        let guard = locks.mutex("held").expect("a name").lock().await.expect("a guard");
        // Swept rows are old, so that their tokens are smaller than the clock; unless that was set back.
        let table = format!("{name}.tenure_lock");
        SERVER.run(&format!("UPDATE {table} SET fence = 7 WHERE name IN ('old', 'held')"));
        let driver = Driver::start().expect("a thread");
        let server = server(&url, Arc::clone(&driver) as _).expect("a URL");
        let connection = server.connect(None).await.expect("a connection");
        assert_eq!(connection.session.sweep("").await.expect("a page"), Some("used".to_owned()));
        assert_eq!(connection.session.sweep("used").await.expect("a page"), None);
        let left = SERVER.run(&format!("SELECT name, fence > 0 FROM {table} ORDER BY name"));
        assert_eq!(left, "\t1\nheld\t1\nused\t1");
        assert_eq!(SERVER.run(&format!("SELECT fence FROM {table} WHERE name = ''")), "7");
        let far = u64::MAX >> 2;
        SERVER.run(&format!("UPDATE {table} SET fence = {far} WHERE name = ''"));
        let next = locks.mutex("old").expect("a name").lock().await.expect("a guard");
        assert_eq!(next.fence(), far + 1);
        drop(guard);
    });
}

/// What the connection's own statements must not depend on.
#[test]
fn names_of_any_bytes_are_different_locks_whatever_the_settings() {
    on(async {
        let server = MariaDb::start_with(&[
            "--character-set-server=latin1",
            "--sql-mode=ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES",
            "--autocommit=0",
            "--transaction-isolation=SERIALIZABLE",
            "--default-time-zone=+05:30",
            "--innodb-lock-wait-timeout=50",
        ]);
        let locks = locks(&server.url_as("root", "app"), Duration::from_secs(60));
        let long = "ä".repeat(30_000);
        let names = ["a", "A", "a ", "ä", "a\0", "a\\0", "'; --", "x\n", &long, &format!("{long}b")];
        let mut guards = Vec::new();
        for name in names {
            let guard = locks.mutex(name).expect("a name").try_lock().await.expect("an answer");
            guards.push(guard.unwrap_or_else(|| panic!("{name:?} is another lock")));
        }
        let (mut listing, mut listed) = (locks.list("").expect("a listing"), 0);
        while listing.next().await.expect("a page").is_some() {
            listed += 1;
        }
        assert_eq!(listed, names.len());
    });
}
