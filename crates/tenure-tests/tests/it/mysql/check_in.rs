//! A transaction that commits only while a lock is held.

use std::sync::Arc;
use std::time::Duration;

use sqlx::MySqlPool;
use sqlx::mysql::MySqlPoolOptions;
use tenure::{Guard, LockName, Locks, Options, Owner, Renewal};
use tenure_testkit::servers::MariaDb;
use tenure_testkit::setting;

use super::{SERVER, database, locks};
use crate::postgres::on;

const TTL: Duration = Duration::from_millis(400);

/// A pool in this database, which has the table `work`.
async fn pool(server: &MariaDb, database: &str, connections: u32) -> MySqlPool {
    server.run(&format!(
        "CREATE TABLE IF NOT EXISTS {database}.work (id bigint AUTO_INCREMENT PRIMARY KEY, lock_name text, token bigint)"
    ));
    let pool = MySqlPoolOptions::new().max_connections(connections).acquire_timeout(Duration::from_secs(120));
    pool.connect(&server.url_as("root", database)).await.expect("a pool")
}

fn unrenewed(locks: &Locks, ttl: Duration) -> Locks {
    locks.with(|_| Options::new().ttl(ttl).renewal(Renewal::Off)).expect("options")
}

#[test]
fn a_transaction_commits_while_its_lock_of_any_kind_is_held() {
    on(async {
        let (name, url) = database();
        let locks = locks(&url, Duration::from_secs(15));
        let owner = tenure::Owner::new("check").expect("an owner");
        let guards: Vec<Guard> = vec![
            locks.mutex("a\\0b").expect("a name").lock().await.expect("a guard"),
            locks.mutex("long".repeat(500)).expect("a name").lock().await.expect("a guard"),
            locks.fair_mutex("fair").expect("a name").lock().await.expect("a guard"),
            locks.reentrant_mutex("re", &owner).expect("a name").lock().await.expect("a guard"),
            locks.semaphore("permits", 3).expect("a name").acquire_many(2).await.expect("a guard"),
            locks.semaphore("permits", 3).expect("a name").acquire().await.expect("a guard"),
        ];
        let pool = pool(&SERVER, &name, 2).await;
        for guard in &guards {
            let mut transaction = pool.begin().await.expect("a transaction");
            let checked = guard.check_in(&mut transaction).await;
            checked.unwrap_or_else(|error| panic!("{}: {error}", guard.name()));
            sqlx::query("INSERT INTO work (token) VALUES (1)")
                .execute(&mut *transaction)
                .await
                .expect("work");
            transaction.commit().await.expect("a commit");
        }
        assert_eq!(SERVER.run(&format!("SELECT count(*) FROM {name}.work")), guards.len().to_string());
        for guard in guards {
            let (lock, owner, fence) = (guard.name().clone(), guard.owner().clone(), guard.fence());
            // As another driver asks.
            let sql = tenure::mysql::check_sql(&name, &lock, &owner, fence);
            assert_eq!(SERVER.run(&sql), "1", "{lock}");
            let other = tenure::mysql::check_sql(&name, &lock, &owner, fence + 1);
            assert_eq!(SERVER.run(&other), "", "{lock}");
            guard.release().await.expect("a release");
            assert_eq!(SERVER.run(&sql), "", "{lock}");
        }
    });
}

#[test]
fn a_connection_of_sqlx_is_taken_only_inside_a_transaction() {
    on(async {
        let (name, url) = database();
        let guard = locks(&url, TTL).mutex("x").expect("a name").lock().await.expect("a guard");
        let pool = pool(&SERVER, &name, 1).await;
        let mut transaction = pool.begin().await.expect("a transaction");
        guard.check_in(&mut *transaction).await.expect("it is held");
        transaction.commit().await.expect("a commit");
        let is_outside = |error: tenure::Error| {
            assert!(error.is_unsupported() && error.to_string().contains("sqlx's `begin`"), "{error}");
        };
        let mut connection = pool.acquire().await.expect("a connection");
        is_outside(guard.check_in(&mut *connection).await.expect_err("no transaction"));
        drop(connection);
        // A statement that defines data commits, which the driver does not know; a deadlock rolls back.
        let mut transaction = pool.begin().await.expect("a transaction");
        sqlx::query("CREATE TABLE defined (n int)").execute(&mut *transaction).await.expect("a table");
        is_outside(guard.check_in(&mut transaction).await.expect_err("no transaction any more"));
    });
}

#[test]
fn the_name_of_a_database_is_not_taken_for_a_part_of_the_statement() {
    let (lock, owner) = (LockName::new("x").expect("a name"), Owner::new("me").expect("an owner"));
    let sql = tenure::mysql::check_sql("a  {owner}`", &lock, &owner, 1);
    assert!(sql.starts_with("SELECT 1 FROM `a  {owner}```.tenure_lock WHERE name = X'78' AND"), "{sql}");
}

#[test]
fn a_transaction_of_a_former_holder_is_refused() {
    on(async {
        let (name, url) = database();
        let locks = locks(&url, Duration::from_secs(60));
        let guard = locks.mutex("x").expect("a name").lock().await.expect("a guard");
        let pool = pool(&SERVER, &name, 2).await;
        SERVER.run(&format!("UPDATE {name}.tenure_lock SET value = 'other#1' WHERE name = 'x'"));
        let mut transaction = pool.begin().await.expect("a transaction");
        assert!(guard.check_in(&mut transaction).await.expect_err("it is lost").is_lost());
        transaction.rollback().await.expect("an end");
        let elsewhere = Locks::memory().mutex("x").expect("a name").lock().await.expect("a guard");
        let mut transaction = pool.begin().await.expect("a transaction");
        let error = elsewhere.check_in(&mut transaction).await.expect_err("another store");
        assert!(error.is_unsupported(), "{error}");
    });
}

/// The holder cannot renew while its transaction is open, and no other client gets the lock.
#[test]
fn an_open_transaction_keeps_others_out_after_the_lease() {
    on(async {
        let (name, url) = database();
        let ours = unrenewed(&locks(&url, TTL), TTL);
        let theirs = locks(&url, Duration::from_secs(15));
        let pool = pool(&SERVER, &name, 2).await;
        for kind in ["mutex", "fair"] {
            let guard = match kind {
                "mutex" => ours.mutex("x").expect("a name").lock().await,
                _ => ours.fair_mutex("y").expect("a name").lock().await,
            };
            let guard = guard.expect("a guard");
            let mut transaction = pool.begin().await.expect("a transaction");
            guard.check_in(&mut transaction).await.expect("it is held");
            let waits = theirs.clone();
            let mut waiter = tokio::spawn(async move {
                match kind {
                    "mutex" => waits.mutex("x").expect("a name").lock().await,
                    _ => waits.fair_mutex("y").expect("a name").lock().await,
                }
            });
            let early = tokio::time::timeout(4 * TTL, &mut waiter).await;
            assert!(early.is_err(), "{kind}: {early:?}");
            // Other locks of the waiting client go on meanwhile.
            let free = theirs.mutex("other").expect("a name").lock().await.expect("a guard");
            free.release().await.expect("a release");
            transaction.commit().await.expect("no other client had the lock until here");
            let granted = tokio::time::timeout(Duration::from_secs(20), waiter).await.expect("it is let in");
            let next = granted.expect("no panic").expect("a guard");
            assert!(next.fence() > guard.fence());
            next.release().await.expect("a release");
        }
    });
}

/// Holders stop at any point of their transaction, for longer than their lease. With `TENURE_HOLDERS=1000` this is
/// the run that book/trust/evidence.md records.
#[test]
fn paused_holders_commit_nothing_late() {
    let holders = setting("TENURE_HOLDERS").unwrap_or(120) as usize;
    let locks_count = (holders / 10).max(1);
    on(async move {
        let (name, url) = database();
        let ttl = Duration::from_millis(600);
        let locks = unrenewed(&locks(&url, ttl), ttl);
        let pool = Arc::new(pool(&SERVER, &name, 100).await);
        let mut tasks = Vec::new();
        for at in 0..holders {
            let (locks, pool, database) = (locks.clone(), Arc::clone(&pool), name.clone());
            tasks.push(tokio::spawn(async move {
                let lock = format!("lock{}", at % locks_count);
                let mut transaction = pool.begin().await.expect("a transaction");
                let guard = locks.mutex(&*lock).expect("a name").lock().await.expect("a guard");
                let check = tenure::mysql::check_sql(&database, guard.name(), guard.owner(), guard.fence());
                let token = guard.fence() as i64;
                let pause = || tokio::time::sleep(ttl * (at as u32 % 7) / 4);
                if at % 2 == 0 {
                    pause().await;
                }
                // A process that does not know of its pause asks nothing but the database.
                let checked = sqlx::query(&check).fetch_all(&mut *transaction).await;
                if at % 2 == 1 {
                    pause().await;
                }
                if checked.is_ok_and(|rows| !rows.is_empty()) {
                    let insert = sqlx::query("INSERT INTO work (lock_name, token) VALUES (?, ?)");
                    let _ = insert.bind(&lock).bind(token).execute(&mut *transaction).await;
                    let _ = transaction.commit().await;
                }
                drop(guard);
            }));
        }
        for task in tasks {
            task.await.expect("a holder");
        }
        let late = SERVER.run(&format!(
            "SELECT count(*) FROM {name}.work AS one JOIN {name}.work AS other USING (lock_name)
             WHERE one.id > other.id AND one.token < other.token"
        ));
        let all = SERVER.run(&format!("SELECT count(*) FROM {name}.work"));
        println!("{all} of {holders} committed, {late} late");
        assert_eq!(late, "0", "of {all}");
        assert!(all.parse::<usize>().expect("a number") > holders / 20, "{all} commit");
    });
}
