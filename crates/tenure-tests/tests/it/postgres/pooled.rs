//! Locks behind PgBouncer in transaction mode.

use std::time::Duration;

use tenure::{Locks, Options};
use tenure_testkit::servers::PgBouncer;

use super::{SERVER, locks, on, said, schema};

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
