//! The rows of the table, and the number of statements.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use tenure::Owner;
use tenure::internals::Driver;
#[cfg(tenure_planted)]
use tenure::internals::planted::{Bug, plant};
use tenure::internals::store::postgres::server;
use tenure::internals::store::rows::{SoleChange, SoleVerb, StatementError};
use tenure_testkit::servers::{Postgres, eventually};

use super::{SERVER, connect, locks, on, said, schema};
use crate::common::{change_of, session_of};

#[test]
fn an_uncontended_mutex_takes_one_statement_each_way() {
    on(async {
        let server = Postgres::start();
        let schema = schema();
        let locks = locks(&server.url(&schema), Duration::from_secs(15));
        let mutex = locks.mutex("x").expect("a name");
        mutex.lock().await.expect("a guard").release().await.expect("a release");
        let client = connect(&server).await;
        let transactions = async || {
            // A backend reports its statistics once a second, or when it ends.
            let sql = "SELECT sum(xact_commit)::bigint FROM pg_stat_database WHERE datname = 'postgres'";
            client.query_one(sql, &[]).await.expect("a row").get::<_, i64>(0)
        };
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        mutex.lock().await.expect("a guard").release().await.expect("a release");
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let before = transactions().await;
        const PAIRS: i64 = 500;
        for _ in 0..PAIRS {
            mutex.lock().await.expect("a guard").release().await.expect("a release");
        }
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        mutex.lock().await.expect("a guard").release().await.expect("a release");
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let count = transactions().await - before;
        assert!((2 * PAIRS..2 * PAIRS + 60).contains(&count), "{count} transactions for {PAIRS} pairs");
    });
}

/// The table grows, and the server does not analyse it.
#[test]
fn plans_are_kept_for_a_second_and_suit_the_table_then() {
    on(async {
        let server = Postgres::start();
        let schema = schema();
        let locks = locks(&server.url(&schema), Duration::from_secs(15));
        let pairs = async |count| {
            for _ in 0..count {
                locks
                    .mutex("x")
                    .expect("a name")
                    .lock()
                    .await
                    .expect("a guard")
                    .release()
                    .await
                    .expect("it was held");
                locks
                    .fair_mutex("y")
                    .expect("a name")
                    .lock()
                    .await
                    .expect("a guard")
                    .release()
                    .await
                    .expect("it was held");
            }
        };
        pairs(20).await;
        let small = format!(
            "ALTER TABLE {schema}.tenure_lock SET (autovacuum_enabled = off); ANALYZE {schema}.tenure_lock"
        );
        server.run(&small);
        pairs(20).await;
        let grows = "INSERT INTO SCHEMA.tenure_lock (name) SELECT 'other' || number FROM generate_series(1, 20000) AS number";
        server.run(&grows.replace("SCHEMA", &schema));
        server.run("ALTER SYSTEM SET log_planner_stats = on");
        server.run("SELECT pg_reload_conf()");
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        pairs(100).await;
        locks.list("y").expect("a prefix").next().await.expect("a list");
        drop(locks);
        // A connection reports its statistics when it ends.
        let mut seen = String::new();
        eventually("statistics", Duration::from_secs(30), || {
            seen = server
                .run("SELECT idx_scan + seq_scan, seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'tenure_lock'");
            seen.split('|')
                .next()
                .and_then(|count| count.trim().parse::<u64>().ok())
                .is_some_and(|count| count >= 400)
        });
        let read: u64 = seen.split('|').nth(1).and_then(|count| count.trim().parse().ok()).expect("a number");
        assert!(read < 40_000, "rows were looked up by reading the whole table: {seen}");
        let planned = server.log().matches("PLANNER STATISTICS").count();
        assert!(planned < 200, "{planned} plans for 400 statements");
    });
}

#[test]
fn tokens_rise_whichever_way_a_lock_is_taken_and_over_clocks_that_step_back() {
    on(async {
        let schema = schema();
        let url = SERVER.url(&schema);
        let locks = locks(&url, Duration::from_secs(15));
        let client = connect(&SERVER).await;
        let mut last = 0;
        for turn in 0..12_u64 {
            let guard = if turn % 3 == 2 {
                locks.fair_mutex("x").expect("a name").lock().await.expect("a guard")
            } else {
                locks.mutex("x").expect("a name").lock().await.expect("a guard")
            };
            assert!(guard.fence() > last, "{} after {last}", guard.fence());
            last = guard.fence();
            guard.release().await.expect("a release");
            if turn == 3 {
                // As if the server's clock had been a day ahead until now.
                last += 86_400_000_000;
                let sql = format!("UPDATE {schema}.tenure_lock SET fence = {last} WHERE name = 'x'");
                client.batch_execute(&sql).await.expect("an update");
            }
            if turn == 6 {
                // As if the row had been deleted since: the row without a name keeps its token.
                let sql = format!(
                    "UPDATE {schema}.tenure_lock SET fence = (SELECT max(fence) FROM {schema}.tenure_lock) WHERE name = '';
                     DELETE FROM {schema}.tenure_lock WHERE name = 'x'"
                );
                client.batch_execute(&sql).await.expect("an update");
            }
        }
    });
}

#[test]
fn a_hundred_clients_that_use_a_name_first_at_once_hold_it_one_after_the_other() {
    on(async {
        let schema = schema();
        let url = SERVER.url(&schema);
        let clients: Vec<_> = (0..10).map(|_| locks(&url, Duration::from_secs(5))).collect();
        let mut tasks = Vec::new();
        for at in 0..100 {
            let locks = clients[at % clients.len()].clone();
            tasks.push(tokio::spawn(async move {
                let guard = locks.mutex("first").expect("a name").lock().await.expect("a guard");
                let fence = guard.fence();
                guard.release().await.expect("it was held to the end");
                fence
            }));
        }
        let mut fences = BTreeSet::new();
        for task in tasks {
            assert!(fences.insert(task.await.expect("no panic")), "a token twice");
        }
    });
}

#[test]
fn a_row_of_another_version_is_neither_free_nor_held() {
    on(async {
        let schema = schema();
        let locks = locks(&SERVER.url(&schema), Duration::from_secs(15));
        let guard = locks.mutex("x").expect("a name").lock().await.expect("a guard");
        SERVER.run(&format!("UPDATE {schema}.tenure_lock SET version = '9' WHERE name = 'x'"));
        let error = locks.mutex("x").expect("a name").try_lock().await.expect_err("no answer");
        assert!(error.is_refused() && said(&error).contains("version 9"), "{error}");
        let error = guard.release().await.expect_err("no answer");
        assert!(error.is_refused(), "{error}");
    });
}

#[test]
fn a_release_that_no_client_waits_for_sends_no_message() {
    on(async {
        let schema = schema();
        let url = SERVER.url(&schema);
        let locks = locks(&url, Duration::from_secs(15));
        locks.mutex("x").expect("a name").lock().await.expect("a guard").release().await.expect("a release");
        let awaited =
            || SERVER.run(&format!("SELECT awaited > 0 FROM {schema}.tenure_lock WHERE name = 'x'"));
        assert_eq!(awaited(), "f");
        let guard = locks.mutex("x").expect("a name").lock().await.expect("a guard");
        let waits = super::locks(&url, Duration::from_secs(15)).mutex("x").expect("a name");
        let waiter = tokio::spawn(async move { waits.lock().await });
        tenure_testkit::servers::eventually("a client listens", Duration::from_secs(10), || awaited() == "t");
        guard.release().await.expect("a release");
        let granted = tokio::time::timeout(Duration::from_secs(5), waiter).await.expect("it is told");
        granted.expect("no panic").expect("a guard").release().await.expect("a release");
    });
}

#[test]
fn batches_of_new_names_never_deadlock() {
    on(async {
        take_in_opposite_orders().await.expect("no deadlock");
        #[cfg(tenure_planted)]
        {
            plant(Some(Bug::RowsOutOfOrder));
            let taken = take_in_opposite_orders().await;
            plant(None);
            let failure = taken.expect_err("a deadlock").failure.to_string();
            assert!(failure.contains("40P01"), "{failure}");
        }
    });
}

/// Two sessions make the rows of the same new names.
async fn take_in_opposite_orders() -> Result<(), StatementError> {
    let schema = schema();
    let driver = Driver::start().expect("a thread");
    let server = server(&SERVER.url(&schema), Arc::clone(&driver) as _).expect("a URL");
    let [first, second] = [session_of(&*server).await, session_of(&*server).await];
    let ((first, _), (second, _)) = (first.expect("a connection"), second.expect("a connection"));
    for round in 0..20_u128 {
        let batch = |session: u128| {
            let owner: Owner = format!("me@host:1/{:032x}", 2 * round + session).parse().expect("an owner");
            let change = |at| {
                let change = change_of(SoleVerb::Acquire, &format!("{round}-{at:03}"));
                SoleChange { owner: owner.clone(), ..change }
            };
            (0..400).map(change).collect::<Vec<_>>()
        };
        let (one, mut other) = (batch(0), batch(1));
        other.reverse();
        let (one, other) = join(first.change(&one), second.change(&other)).await;
        let counts = [one?, other?].map(|taken| taken.tokens.len());
        assert_eq!(counts[0] + counts[1], 400, "each lock is granted once: {counts:?}");
    }
    driver.stop();
    Ok(())
}

/// A check constraint refuses one lock of a batch.
#[test]
fn an_error_of_one_row_fails_its_request_alone() {
    on(async {
        let schema = schema();
        let locks = locks(&SERVER.url(&schema), Duration::from_secs(15));
        locks.ping().await.expect("an answer");
        SERVER.run(&format!("ALTER TABLE {schema}.tenure_lock ADD CHECK (name <> 'x07' OR value IS NULL)"));
        let taken = (0..64).map(|at| {
            let mutex = locks.mutex(format!("x{at:02}")).expect("a name");
            async move { (at, mutex.try_lock().await) }
        });
        for (at, taken) in join_all(taken).await {
            match (at, taken) {
                (7, taken) => assert!(taken.expect_err("a refusal").is_refused()),
                (_, taken) => drop(taken.expect("an answer").expect("a free lock")),
            }
        }
    });
}

/// Its messages come on another channel then.
#[test]
fn who_listens_is_woken_after_the_table_was_created_again() {
    on(async {
        let schema = schema();
        let open = || locks(&SERVER.url(&schema), Duration::from_secs(15));
        let (one, other) = (open(), open());
        let _held = one.mutex("a").expect("a name").lock().await.expect("a guard");
        let waits = async {
            let mutex = other.mutex("a").expect("a name");
            drop(mutex.try_lock_for(Duration::from_secs(2)).await.expect("an answer"));
        };
        let again = async {
            tokio::time::sleep(Duration::from_secs(1)).await; // it listens
            let table = format!("{schema}.tenure_lock");
            SERVER.run(&format!(
                "CREATE TABLE {schema}.copy (LIKE {table} INCLUDING ALL); INSERT INTO {schema}.copy (name) VALUES (''); \
                 DROP TABLE {table}; ALTER TABLE {schema}.copy RENAME TO tenure_lock"
            ));
        };
        join(waits, again).await;
        let fresh = open();
        let turn = fresh.fair_mutex("b").expect("a name").lock().await.expect("a guard");
        let next = async {
            let guard = other.fair_mutex("b").expect("a name").lock().await.expect("a guard");
            (guard, Instant::now())
        };
        let releases = async {
            let waits =
                async || Ok(fresh.inspect("b").await?.is_some_and(|status| status.waiters.len() == 1));
            while !waits().await.unwrap_or_else(|error: tenure::Error| panic!("{error}")) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            tokio::time::sleep(Duration::from_secs(1)).await; // it listens anew
            let released = Instant::now();
            turn.release().await.expect("a release");
            released
        };
        let ((_guard, held), released) = join(next, releases).await;
        assert!(held - released < Duration::from_secs(3), "{:?}", held - released);
    });
}
