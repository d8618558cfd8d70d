//! A transaction that commits only while a lock is held.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tenure::{Guard, Locks, Options, Renewal};
use tenure_testkit::servers::Postgres;
use tokio::sync::Semaphore;

use super::{SERVER, connect, locks, on, said, schema, work_in};

const TTL: Duration = Duration::from_millis(400);
/// Longer than the lease, so the hold must be renewed.
const LONGER: Duration = Duration::from_secs(2);

fn unrenewed(locks: &Locks) -> Locks {
    locks.with(|_| Options::new().ttl(TTL).renewal(Renewal::Off)).expect("options")
}

#[test]
fn a_transaction_commits_while_its_lock_of_any_kind_is_held() {
    on(async {
        let schema = schema();
        let locks = locks(&SERVER.url(&schema), Duration::from_secs(15));
        let owner = tenure::Owner::new("check").expect("an owner");
        let guards: Vec<Guard> = vec![
            locks.mutex("a\\0b").expect("a name").lock().await.expect("a guard"),
            locks.fair_mutex("fair").expect("a name").lock().await.expect("a guard"),
            locks.reentrant_mutex("re", &owner).expect("a name").lock().await.expect("a guard"),
            locks.semaphore("permits", 3).expect("a name").acquire_many(2).await.expect("a guard"),
            locks.semaphore("permits", 3).expect("a name").acquire().await.expect("a guard"),
        ];
        let mut client = connect(&SERVER).await;
        work_in(&schema, "n int");
        for guard in &guards {
            let transaction = client.transaction().await.expect("a transaction");
            guard.check_in(&transaction).await.unwrap_or_else(|error| panic!("{}: {error}", guard.name()));
            transaction.execute(&format!("INSERT INTO {schema}.work VALUES (1)"), &[]).await.expect("work");
            transaction.commit().await.expect("a commit");
        }
        let count: i64 =
            client.query_one(&format!("SELECT count(*) FROM {schema}.work"), &[]).await.expect("rows").get(0);
        assert_eq!(count, guards.len() as i64);
        for guard in guards {
            let (name, owner, fence) = (guard.name().to_string(), guard.owner().to_string(), guard.fence());
            guard.release().await.expect("a release");
            // The check of another driver, after the lock was lost.
            let transaction = client.transaction().await.expect("a transaction");
            let sql = tenure::postgres::check_sql(Some(&schema));
            let name = name.replace('\\', "\\\\");
            let refused = transaction.query(&sql, &[&name, &owner, &(fence as i64)]).await;
            let code = refused.expect_err("it is not held").code().map(|code| code.code().to_owned());
            assert_eq!(code.as_deref(), Some("22012"));
        }
    });
}

/// A pool of sqlx whose connections use this schema.
async fn pool(schema: &str) -> PgPool {
    let options: PgConnectOptions =
        format!("postgres://postgres@{}/postgres", SERVER.place()).parse().expect("a URL");
    PgPool::connect_with(options.options([("search_path", schema)])).await.expect("a pool")
}

#[test]
fn sqlx_commits_while_its_lock_is_held() {
    on(async {
        let schema = schema();
        let locks = locks(&SERVER.url(&schema), Duration::from_secs(15));
        let guards: Vec<Guard> = vec![
            locks.mutex("a\\0b").expect("a name").lock().await.expect("a guard"),
            locks.mutex("long".repeat(500)).expect("a name").lock().await.expect("a guard"),
            locks.semaphore("permits", 3).expect("a name").acquire().await.expect("a guard"),
        ];
        work_in(&schema, "n int");
        let pool = pool(&schema).await;
        for guard in &guards {
            let mut transaction = pool.begin().await.expect("a transaction");
            guard
                .check_in(&mut transaction)
                .await
                .unwrap_or_else(|error| panic!("{}: {error}", guard.name()));
            sqlx::query("INSERT INTO work VALUES (1)").execute(&mut *transaction).await.expect("work");
            transaction.commit().await.expect("a commit");
        }
        let count: i64 =
            sqlx::query_scalar("SELECT count(*) FROM work").fetch_one(&pool).await.expect("rows");
        assert_eq!(count, guards.len() as i64);
    });
}

#[test]
fn a_connection_of_sqlx_is_taken_only_inside_a_transaction() {
    on(async {
        let schema = schema();
        let guard =
            locks(&SERVER.url(&schema), TTL).mutex("x").expect("a name").lock().await.expect("a guard");
        work_in(&schema, "n int");
        let pool = pool(&schema).await;
        let mut transaction = pool.begin().await.expect("a transaction");
        guard.check_in(&mut *transaction).await.expect("it is held");
        let mut savepoint = sqlx::Connection::begin(&mut *transaction).await.expect("a savepoint");
        guard.check_in(&mut *savepoint).await.expect("it is held");
        savepoint.commit().await.expect("a commit");
        transaction.commit().await.expect("a commit");

        let mut connection = pool.acquire().await.expect("a connection");
        let error = guard.check_in(&mut *connection).await.expect_err("no transaction");
        assert!(error.is_unsupported() && said(&error).contains("sqlx's `begin`"), "{}", said(&error));
    });
}

/// The database knows of the loss before the holder does.
#[test]
fn neither_driver_commits_once_the_database_has_another_holder() {
    on(async {
        let schema = schema();
        let locks = locks(&SERVER.url(&schema), Duration::from_secs(60));
        let [guard, other, held] = ["x", "y", "held"].map(|name| locks.mutex(name).expect("a name"));
        let [guard, other, held] = [guard.lock().await, other.lock().await, held.lock().await];
        let [guard, other, held] = [guard, other, held].map(|guard| guard.expect("a guard"));
        work_in(&schema, "n int");
        let taken = "SET value = 'other#1' WHERE name IN ('x', 'y')";
        SERVER.run(&format!("UPDATE {schema}.tenure_lock {taken}"));

        let mut client = connect(&SERVER).await;
        let transaction = client.transaction().await.expect("a transaction");
        transaction.execute(&format!("INSERT INTO {schema}.work VALUES (1)"), &[]).await.expect("work");
        assert!(guard.check_in(&transaction).await.expect_err("it is lost").is_lost());
        let _ = transaction.commit().await; // succeeds, but rolls back

        let pool = pool(&schema).await;
        let mut transaction = pool.begin().await.expect("a transaction");
        sqlx::query("INSERT INTO work VALUES (1)").execute(&mut *transaction).await.expect("work");
        assert!(other.check_in(&mut transaction).await.expect_err("it is lost").is_lost());
        let error = held.check_in(&mut transaction).await.expect_err("a failed transaction");
        assert!(error.is_refused() && said(&error).contains("25P02"), "{}", said(&error));
        let _ = transaction.commit().await;

        assert_eq!(SERVER.run(&format!("SELECT count(*) FROM {schema}.work")), "0");
    });
}

/// Readers would see what was before the commit.
#[test]
fn a_writer_whose_transaction_is_open_lets_no_readers_in() {
    on(async {
        let schema = schema();
        let locks = locks(&SERVER.url(&schema), Duration::from_secs(60));
        let lock = locks.rwlock("x").expect("a name");
        let writer = lock.write().await.expect("a guard");
        let mut client = connect(&SERVER).await;
        let transaction = client.transaction().await.expect("a transaction");
        writer.check_in(&transaction).await.expect("it is held");
        let refused = writer.downgrade().await.expect_err("its transaction is open");
        assert!(refused.error.is_unreachable(), "{refused}");
        assert!(!lock.try_read().await.is_ok_and(|reader| reader.is_some()), "a reader is let in");
        transaction.commit().await.expect("a commit");
        let _reader = refused.guard.downgrade().await.expect("a reader");
        assert!(lock.try_read().await.expect("an answer").is_some());
    });
}

#[test]
fn a_paused_holder_whose_lease_is_over_cannot_commit() {
    on(async {
        let schema = schema();
        let locks = unrenewed(&locks(&SERVER.url(&schema), TTL));
        let mut client = connect(&SERVER).await;
        work_in(&schema, "n int");
        let guard = locks.mutex("x").expect("a name").lock().await.expect("a guard");
        let transaction = client.transaction().await.expect("a transaction");
        transaction.execute(&format!("INSERT INTO {schema}.work VALUES (1)"), &[]).await.expect("work");
        let (owner, fence) = (guard.owner().to_string(), guard.fence() as i64);
        tokio::time::sleep(TTL + Duration::from_millis(100)).await;
        // Like a process that does not know that it was stopped.
        let sql = tenure::postgres::check_sql(Some(&schema));
        transaction.query(&sql, &[&"x", &owner, &fence]).await.expect_err("its lease is over");
        assert!(guard.check_in(&transaction).await.expect_err("it is lost").is_lost());
        let _ = transaction.commit().await; // succeeds, but rolls back
        let count: i64 =
            client.query_one(&format!("SELECT count(*) FROM {schema}.work"), &[]).await.expect("rows").get(0);
        assert_eq!(count, 0);
    });
}

/// Holders are stopped anywhere in their transaction, for longer than their lease.
#[test]
fn a_thousand_paused_holders_commit_nothing_late() {
    const HOLDERS: usize = 1_000;
    const LOCKS: usize = 100;
    /// The server allows 300.
    const CONNECTIONS: usize = 200;
    on(async {
        let server = Arc::new(Postgres::start());
        let schema = schema();
        let url = server.url(&schema);
        // In the order of the inserts, because the next holder is admitted when this transaction has ended.
        server.run(&format!("CREATE SCHEMA {schema}"));
        server.run(&format!("CREATE TABLE {schema}.work (id bigserial, lock text, token bigint)"));
        let connections = Arc::new(Semaphore::new(CONNECTIONS));
        let ttl = Duration::from_secs(1);
        let locks = unrenewed(&locks(&url, ttl)).with(|options| options.ttl(ttl)).expect("options");
        let mut tasks = Vec::new();
        for at in 0..HOLDERS {
            let (locks, schema, server) = (locks.clone(), schema.clone(), Arc::clone(&server));
            let connections = Arc::clone(&connections);
            tasks.push(tokio::spawn(async move {
                let _permit = connections.acquire().await.expect("it is not closed");
                let name = format!("lock{}", at % LOCKS);
                let mut client = connect(&server).await;
                let guard = locks.mutex(&*name).expect("a name").lock().await.expect("a guard");
                let (owner, token) = (guard.owner().to_string(), guard.fence() as i64);
                let transaction = client.transaction().await.expect("a transaction");
                let check = tenure::postgres::check_sql(Some(&schema));
                let pause = || tokio::time::sleep(ttl * (at as u32 % 7) / 4);
                let insert = format!("INSERT INTO {schema}.work (lock, token) VALUES ($1, $2)");
                if at % 2 == 0 {
                    pause().await;
                }
                let _ = transaction.query(&check, &[&name, &owner, &token]).await;
                if at % 2 == 1 {
                    pause().await;
                }
                let _ = transaction.execute(&insert, &[&name, &token]).await;
                let _ = transaction.commit().await;
                drop(guard);
            }));
        }
        for task in tasks {
            task.await.expect("a holder");
        }
        let late = server.run(&format!(
            "SELECT count(*) FROM {schema}.work AS one JOIN {schema}.work AS other USING (lock)
             WHERE one.id > other.id AND one.token < other.token"
        ));
        let all = server.run(&format!("SELECT count(*) FROM {schema}.work"));
        assert_eq!(late, "0", "of {all}");
        assert!(all.parse::<usize>().expect("a number") > HOLDERS / 20, "{all} commit");
    });
}

#[test]
fn an_open_transaction_keeps_others_out_and_lets_renewals_through() {
    on(async {
        let schema = schema();
        let locks = locks(&SERVER.url(&schema), LONGER);
        let other = super::locks(&SERVER.url(&schema), LONGER);
        let mut client = connect(&SERVER).await;
        let guard = locks.mutex("x").expect("a name").lock().await.expect("a guard");
        let transaction = client.transaction().await.expect("a transaction");
        guard.check_in(&transaction).await.expect("it is held");
        // Without renewals it would be lost by now.
        tokio::time::sleep(LONGER + TTL).await;
        guard.verify().await.expect("it is held");
        drop(guard); // the release has to wait
        tokio::time::sleep(LONGER + TTL).await;
        assert!(other.mutex("x").expect("a name").try_lock().await.expect("an answer").is_none());
        let waits = other.mutex("x").expect("a name");
        let waiter = tokio::spawn(async move { waits.lock().await });
        tokio::time::sleep(TTL).await;
        assert!(!waiter.is_finished());
        transaction.commit().await.expect("it was held until here");
        let granted = tokio::time::timeout(Duration::from_secs(10), waiter).await.expect("it is let in");
        granted.expect("no panic").expect("a guard").release().await.expect("a release");
    });
}

/// A release waits for the transaction, even if another client is queued.
#[test]
fn a_hold_that_is_checked_in_is_not_handed_on() {
    on(async {
        let schema = schema();
        let locks = locks(&SERVER.url(&schema), Duration::from_secs(15));
        let other = super::locks(&SERVER.url(&schema), Duration::from_secs(15));
        let mut client = connect(&SERVER).await;
        let guard = locks.fair_mutex("x").expect("a name").lock().await.expect("a guard");
        let waits = other.fair_mutex("x").expect("a name");
        let mut waiter = tokio::spawn(async move { waits.lock().await });
        while locks.inspect("x").await.expect("an answer").expect("a holder").waiters.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let transaction = client.transaction().await.expect("a transaction");
        guard.check_in(&transaction).await.expect("it is held");
        drop(guard);
        let early = tokio::time::timeout(Duration::from_secs(1), &mut waiter).await;
        assert!(early.is_err(), "the next holds while a transaction is open");
        transaction.commit().await.expect("it was held until here");
        let granted = tokio::time::timeout(Duration::from_secs(10), waiter).await.expect("it is let in");
        granted.expect("no panic").expect("a guard").release().await.expect("a release");
    });
}

#[test]
fn a_lock_elsewhere_cannot_be_checked_in() {
    on(async {
        let mut client = connect(&SERVER).await;
        let transaction = client.transaction().await.expect("a transaction");
        let guard = Locks::memory().mutex("x").expect("a name").lock().await.expect("a guard");
        let error = guard.check_in(&transaction).await.expect_err("another store");
        assert!(error.is_unsupported(), "{error}");
        let mut transaction = pool("public").await.begin().await.expect("a transaction");
        let error = guard.check_in(&mut transaction).await.expect_err("another store");
        assert!(error.is_unsupported(), "{error}");
    });
}
