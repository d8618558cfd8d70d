//! A primary that is killed, the replica that takes its place, and the old primary that comes back.

use std::time::{Duration, Instant};

use tenure_testkit::servers::MariaDb;

use crate::common::locks;
use crate::crowd::Crowd;
use crate::postgres::faults::crowds;
use crate::schedulers::Schedulers;

/// A URL of both servers: clients find the one that takes writes. The user may not write to a replica.
fn of_both(one: &MariaDb, other: &MariaDb) -> String {
    format!("mysql://app@{},{}/app", one.address(), other.address())
}

#[test]
fn a_failover_to_a_semi_synchronous_replica_costs_no_overlap_no_token_no_waiter_and_no_second_run() {
    let (mut primary, mut replica) = MariaDb::with_replica();
    primary.wait_for_replica();
    let (url, ttl) = (of_both(&primary, &replica), Duration::from_secs(5));
    let (crowds, schedulers) = (crowds(&url, ttl), Schedulers::start([(); 3].map(|()| locks(&url, ttl))));
    let go_on = || {
        crowds.iter().for_each(Crowd::goes_on);
        schedulers.goes_on();
    };
    for _ in 0..2 {
        go_on();
        primary.crash();
        replica.promote();
        std::mem::swap(&mut primary, &mut replica);
        // The old primary comes back as it was: clients go past it.
        replica.restart_read_only();
        go_on();
        replica.rebuild(&primary);
        primary.wait_for_replica();
    }
    go_on();
    crowds.into_iter().for_each(Crowd::end);
    schedulers.end();
}

/// The cost of an asynchronous replica: it lacks the last grant.
#[test]
fn an_asynchronous_replica_forgets_a_grant_and_its_holder_hears_of_it() {
    let (mut primary, replica) = MariaDb::with_replica();
    let url = of_both(&primary, &replica);
    let (ours, theirs) = (locks(&url, Duration::from_secs(30)), locks(&url, Duration::from_secs(30)));
    tenure::block_on(async {
        for locks in [&ours, &theirs] {
            let guard = locks.mutex("warm").expect("a name").lock().await.expect("a guard");
            guard.release().await.expect("a release");
        }
        replica.catches_up(&primary);
        replica.hold_back_changes();
        let guard = ours.mutex("x").expect("a name").lock().await.expect("a guard");
        primary.crash();
        replica.promote();
        let asked = Instant::now();
        let other = theirs.mutex("x").expect("a name").lock().await.expect("it is forgotten");
        assert!(other.fence() > guard.fence(), "a token twice: {} {}", other.fence(), guard.fence());
        // Once connected to the new primary, its client verifies all its holds.
        assert!(guard.lost().await.is_lost());
        assert!(asked.elapsed() < Duration::from_secs(20), "it is told of its loss");
        println!("two clients held for {} ms at most", asked.elapsed().as_millis());
        other.release().await.expect("a release");
    });
}
