//! Locks behind PgBouncer in transaction mode.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use tenure::internals::Driver;
use tenure::internals::store::Failure;
use tenure::internals::store::postgres::server;
use tenure::internals::store::rows::SoleVerb;
use tenure::{Locks, Options};
use tenure_testkit::servers::{PgBouncer, Postgres};

use super::{SERVER, locks, on, said, schema};
use crate::common::{change_of, session_of};

#[test]
fn all_kinds_work_behind_a_pooler_that_is_told() {
    on(async {
        let pooler = PgBouncer::start(&SERVER);
        let url = pooler.url(&schema());
        let ttl = Duration::from_secs(3);
        let (ours, theirs) = (locks(&url, ttl), locks(&url, ttl));
        for kind in ["mutex", "fair"] {
            let lock = async |locks: &Locks| match kind {
                "mutex" => locks.mutex("x").expect("a name").lock().await.expect("a guard"),
                _ => locks.fair_mutex("y").expect("a name").lock().await.expect("a guard"),
            };
            let guard = lock(&ours).await;
            tokio::time::sleep(ttl * 3 / 2).await;
            guard.verify().await.expect("it is renewed");
            let fence = guard.fence();
            let (next, released) = futures_util::future::join(
                tokio::time::timeout(Duration::from_secs(30), lock(&theirs)),
                async {
                    tokio::time::sleep(ttl / 3).await;
                    guard.release().await
                },
            )
            .await;
            released.expect("a release");
            let next = next.expect("a waiter asks again");
            assert!(next.fence() > fence);
            next.release().await.expect("a release");
        }
    });
}

#[test]
fn a_pooler_that_is_not_told_is_refused_with_the_part_of_the_url() {
    let pooler = PgBouncer::start(&SERVER);
    let url = pooler.url(&schema()).replace("&pgbouncer=1", "");
    let locks = Locks::open(&url).expect("a URL");
    let locks = locks.with(|_| Options::new().op_timeout(Duration::from_secs(5))).expect("options");
    let error = tenure::block_on(locks.mutex("x").expect("a name").try_lock()).expect_err("no lock");
    assert!(said(&error).contains("?pgbouncer=1"), "{}", said(&error));
}

/// The pooler says that the connection has failed, and the server may have committed.
#[test]
fn a_server_that_a_pooler_loses_in_the_middle_of_a_change_may_have_carried_it_out() {
    on(async {
        let mut postgres = Postgres::start();
        let pooler = PgBouncer::start(&postgres);
        let driver = Driver::start().expect("a thread");
        let server = server(&pooler.url("lost"), Arc::clone(&driver) as _).expect("a URL");
        let (session, _) = session_of(&*server).await.expect("a connection");
        postgres.run("ALTER TABLE lost.tenure_lock ADD CHECK (pg_sleep(60) IS NOT NULL) NOT VALID");
        let changes = ["x", "y"].map(|name| change_of(SoleVerb::Acquire, name));
        let changed = session.change(&changes);
        let sleeps = async {
            while postgres.run("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "0" {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let changed = match select(changed, Box::pin(sleeps)).await {
            Either::Left((changed, _)) => panic!("it is carried out: {changed:?}"),
            Either::Right(((), changed)) => changed,
        };
        postgres.kill();
        let error = changed.await.expect_err("the server is gone");
        assert!(matches!(error.failure, Failure::Unknown(_)) && error.ends_connection, "{error:?}");
        driver.stop();
    });
}

/// A role or a database may have set so, and a pooler passes no other setting on.
#[test]
fn transactions_that_are_serializable_by_default_lock_as_others() {
    on(async {
        let postgres = Postgres::start();
        postgres.run("ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'");
        let pooler = PgBouncer::start(&postgres);
        for url in [postgres.url("direct"), pooler.url("pooled")] {
            let turn = AtomicU64::new(0);
            let stores = [(); 2].map(|()| locks(&url, Duration::from_secs(15)));
            let tasks = (0..16).map(|task| {
                let mutex = stores[task % 2].mutex("x").expect("a name");
                let own = stores[task % 2].fair_mutex(format!("own{task}")).expect("a name");
                let turn = &turn;
                async move {
                    for _ in 0..5 {
                        own.lock().await.expect("a guard").release().await.expect("a release");
                        let guard = mutex.lock().await.expect("a guard");
                        let before = turn.swap(guard.fence(), Ordering::SeqCst);
                        assert!(before < guard.fence(), "token {} after {before}", guard.fence());
                        tokio::task::yield_now().await;
                        assert_eq!(turn.load(Ordering::SeqCst), guard.fence(), "nobody else holds");
                        guard.release().await.expect("a release");
                    }
                }
            });
            let all = tokio::time::timeout(Duration::from_secs(60), join_all(tasks)).await;
            assert_eq!(all.expect("they go on").len(), 16);
        }
        let level = postgres.run("SHOW default_transaction_isolation");
        assert_eq!(level, "serializable", "the default applies");
    });
}
