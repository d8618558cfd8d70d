//! The rows of the table, and the statements that change them.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use sqlx::{Connection, MySqlConnection};
use tenure::internals::Driver;
use tenure::internals::store::mysql::server;
use tenure::internals::store::observe::Notes;
use tenure::internals::store::rows::{
    LockKey, RowChange, SoleChange, SoleVerb, StatementError, StatementSession,
};
use tenure_testkit::proxy::{Direction, Fault, Proxy};
use tenure_testkit::servers::MariaDb;

use super::{SERVER, database, locks};
use crate::common::{change_of, session_of};
use crate::postgres::on;

/// The number of statements of this kind that a server has run.
fn statements(server: &MariaDb, kind: &str) -> u64 {
    server
        .run(&format!("SHOW GLOBAL STATUS LIKE '{kind}'"))
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
    let idle = { (statements(&server, "Questions"), statements(&server, "Questions")) };
    let before = statements(&server, "Questions");
    (0..PAIRS).for_each(|_| pair());
    let all = statements(&server, "Questions") - before;
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
        let (session, _) = session_of(&*server).await.expect("a connection");
        assert_eq!(session.sweep("").await.expect("a page"), Some("used".to_owned()));
        assert_eq!(session.sweep("used").await.expect("a page"), None);
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

/// A session, and the thread of its timers.
async fn connect(url: &str) -> (Arc<dyn StatementSession>, Arc<Driver>) {
    let thread = Driver::start().expect("a thread");
    let server = server(url, Arc::clone(&thread) as _).expect("a URL");
    (session_of(&*server).await.expect("a connection").0, thread)
}

/// Changes a mutex. Returns its token if the change applied.
pub(super) async fn change(
    session: &Arc<dyn StatementSession>,
    verb: SoleVerb,
    name: &str,
) -> Result<Option<i64>, StatementError> {
    Ok(session.change(&[change_of(verb, name)]).await?.tokens.into_values().next())
}

/// A row without a lock, to be written.
pub(super) fn new_row(name: &str) -> (LockKey, RowChange) {
    let change = RowChange {
        serial: None,
        ends_hold: false,
        durable: true,
        until_ms: i64::MAX as u64,
        lock: None,
        ends_ms: 0,
        fence: 1,
        record: None,
        wake: String::new(),
        sessions: Vec::new(),
        notes: Notes::default(),
    };
    (change_of(SoleVerb::Acquire, name).key, change)
}

/// A Unix socket holds few small replies, and a server that cannot write reads no more.
#[test]
fn five_hundred_statements_go_through_a_socket() {
    on(async {
        let server = MariaDb::start();
        let url = format!("{}?socket={}", server.url_as("root", "app"), server.socket().display());
        let (session, _driver) = connect(&url).await;
        let names = (0..500).map(|at| format!("{at:03}{}", "n".repeat(200)));
        let names: Vec<String> = names.collect();
        let rows: Vec<_> = names.iter().map(|name| new_row(name)).collect();
        let written = tokio::time::timeout(Duration::from_secs(60), session.write(&rows)).await;
        assert_eq!(written.expect("it is not stuck").expect("an answer").written.len(), 500);
        for verb in [SoleVerb::Acquire, SoleVerb::Renew, SoleVerb::Release, SoleVerb::Acquire] {
            let changes: Vec<SoleChange> = names.iter().map(|name| change_of(verb, name)).collect();
            let changed = tokio::time::timeout(Duration::from_secs(60), session.change(&changes)).await;
            assert_eq!(changed.expect("it is not stuck").expect("an answer").tokens.len(), 500, "{verb:?}");
        }
    });
}

#[test]
fn changes_of_many_rows_take_one_statement_and_one_commit() {
    on(async {
        let server = MariaDb::start();
        let url = server.url_as("root", "app");
        let (session, _driver) = connect(&url).await;
        let names: Vec<String> = (0..50).map(|at| format!("{at:03}")).collect();
        for verb in [SoleVerb::Acquire, SoleVerb::Renew, SoleVerb::Release] {
            let changes: Vec<SoleChange> = names.iter().map(|name| change_of(verb, name)).collect();
            let count = || ["Com_insert_select", "Com_commit"].map(|kind| statements(&server, kind));
            let (before, changed) = (count(), session.change(&changes).await);
            assert_eq!(changed.expect("an answer").tokens.len(), names.len(), "{verb:?}");
            assert_eq!(count(), before.map(|before| before + 1), "{verb:?}");
        }
    });
}

#[test]
fn a_table_from_before_the_batches_gets_their_column() {
    on(async {
        let server = MariaDb::start();
        let url = server.url_as("root", "app");
        locks(&url, Duration::from_secs(60)).ping().await.expect("an answer");
        server.run("ALTER TABLE app.tenure_lock DROP COLUMN batch");
        server.run("CREATE USER few; GRANT SELECT, INSERT, UPDATE, DELETE ON app.tenure_lock TO few");
        let few = locks(&server.url_as("few", "app"), Duration::from_secs(60));
        let error = few.ping().await.expect_err("it may not add the column");
        assert!(
            format!("{error:?}").contains("its owner can: ALTER TABLE tenure_lock ADD COLUMN"),
            "{error:?}"
        );
        locks(&url, Duration::from_secs(60)).ping().await.expect("an answer");
        // A connection may have been under way before.
        let pings = async {
            while few.ping().await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), pings).await.expect("the column is there");
    });
}

/// MariaDB keeps long texts of a derived table in another way.
#[test]
fn rows_of_a_batch_keep_all_columns_whatever_the_length_of_their_names() {
    on(async {
        let server = MariaDb::start();
        let url = server.url_as("root", "app");
        let (session, _driver) = connect(&url).await;
        for longest in [100, 500, 501, 1_000] {
            let names: Vec<String> =
                (1..20).map(|at| format!("{at:02}{}", "n".repeat(longest - 2))).collect();
            let changes: Vec<SoleChange> =
                names.iter().map(|name| change_of(SoleVerb::Acquire, name)).collect();
            for round in 0..3 {
                let changed = session.change(&changes).await.expect("an answer");
                assert_eq!(changed.tokens.len(), names.len(), "{longest}, {round}");
                for row in session.read(&names, false).await.expect("rows") {
                    assert_eq!(row.kind.as_deref(), Some("mutex"), "{longest}, {round}");
                    assert_eq!(
                        row.value,
                        changes
                            .iter()
                            .find(|change| change.key.name == row.name)
                            .map(|change| { change.value().replace('\u{1}', &row.fence.to_string()) }),
                        "{longest}, {round}"
                    );
                }
                let over: Vec<_> = changes
                    .iter()
                    .map(|change| SoleChange { verb: SoleVerb::Release, ..change.clone() })
                    .collect();
                assert_eq!(session.change(&over).await.expect("an answer").tokens.len(), names.len());
            }
        }
    });
}

/// Its server has got the first statements of a transaction, and waits for the others.
#[test]
fn the_rows_of_a_client_that_stops_in_the_middle_of_a_batch_are_soon_free() {
    on(async {
        let server = MariaDb::start();
        let proxy = Proxy::start(server.address());
        let url = |address| format!("mysql://root@{address}/app");
        let (stalled, _driver) = connect(&url(proxy.address())).await;
        let rows: Vec<_> = (0..500).map(|at| new_row(&format!("{at:03}"))).collect();
        let (session, _thread) = connect(&url(server.address())).await;
        proxy.set(Fault::Hold(Direction::ToClient));
        let next = async {
            let open = "SELECT COUNT(*) FROM information_schema.innodb_trx";
            while server.run(open) == "0" {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let acquired = async || change(&session, SoleVerb::Acquire, "000").await.expect("an answer");
            assert_eq!(acquired().await, None, "the row is locked");
            while acquired().await.is_none() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let all = pin!(tokio::time::timeout(Duration::from_secs(30), next));
        match select(stalled.write(&rows), all).await {
            Either::Right((next, _)) => next.expect("the row is free within 30 s"),
            Either::Left((changed, all)) => {
                assert!(changed.is_err(), "its replies are held back");
                all.await.expect("the row is free within 30 s");
            }
        }
    });
}

/// MySQL would wait for the row for a second, and all other statements of the process with it.
#[test]
fn a_row_that_was_locked_is_not_waited_for_again() {
    on(async {
        let server = MariaDb::start();
        let url = server.url_as("root", "app");
        let (session, _driver) = connect(&url).await;
        let acquire = async || {
            let is_held = change(&session, SoleVerb::Acquire, "x").await.expect("an answer").is_some();
            (is_held, is_held && change(&session, SoleVerb::Release, "x").await.expect("an answer").is_some())
        };
        assert_eq!(acquire().await, (true, true));
        let mut other = MySqlConnection::connect(&url).await.expect("a connection");
        let mut transaction = other.begin().await.expect("a transaction");
        let lock = sqlx::raw_sql("SELECT * FROM tenure_lock WHERE name = 'x' FOR UPDATE");
        lock.execute(&mut *transaction).await.expect("a locked row");
        assert_eq!(acquire().await, (false, false));
        let before = statements(&server, "Com_update");
        assert_eq!(acquire().await, (false, false));
        assert_eq!(statements(&server, "Com_update"), before);
        transaction.rollback().await.expect("an end");
        assert_eq!(acquire().await, (true, true));
        // A row that is gone is not taken for a locked one.
        server.run("DELETE FROM app.tenure_lock WHERE name = 'x'");
        assert_eq!((acquire().await, acquire().await), ((false, false), (true, true)));
    });
}

#[test]
fn a_read_of_many_locks_stays_below_max_allowed_packet() {
    on(async {
        let server = MariaDb::start_with(&["--max-allowed-packet=65536"]);
        let url = server.url_as("root", "app");
        let (session, _driver) = connect(&url).await;
        let names: Vec<String> = (0..3_000).map(|at| format!("{at:0100}")).collect();
        let token = change(&session, SoleVerb::Acquire, &names[1_999]).await.expect("an answer");
        let rows = session.read(&names, false).await.expect("rows");
        let mut read: Vec<&String> = rows.iter().map(|row| &row.name).collect();
        read.sort();
        assert!(read.into_iter().eq(&names));
        let held: Vec<_> = rows.iter().filter(|row| row.value.is_some()).collect();
        assert!(matches!(&held[..], [row] if row.name == names[1_999] && Some(row.fence) == token));
    });
}

#[test]
fn rows_that_are_too_long_together_are_read_one_after_the_other() {
    on(async {
        let (name, url) = database();
        let (session, _driver) = connect(&url).await;
        // 140 MB.
        SERVER.run(&format!(
            "INSERT INTO {name}.tenure_lock (name, record)
             WITH RECURSIVE some AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM some WHERE n < 14)
             SELECT n, REPEAT('x', 10000000) FROM some"
        ));
        let names: Vec<String> = (1..=14).map(|at: u32| at.to_string()).collect();
        let rows = session.read(&names, true).await.expect("rows");
        let lens = rows.iter().map(|row| row.record.as_ref().map_or(0, |record| record.bytes.len()));
        assert_eq!(lens.collect::<Vec<_>>(), [10_000_000; 14]);
        session.ping().await.expect("the connection stays");
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
