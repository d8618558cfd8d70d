//! A primary that is killed, and the standby that takes its place.

use std::time::{Duration, Instant};

use tenure_testkit::servers::{Postgres, eventually};

use super::faults::crowds;
use super::{locks, on, said, schema};
use crate::crowd::Crowd;
use crate::schedulers::Schedulers;

/// Number of failovers; `TENURE_FAILOVERS` raises it for a soak.
fn failovers() -> u64 {
    tenure_testkit::setting("TENURE_FAILOVERS").unwrap_or(2)
}

/// A URL of both servers: clients find the primary.
fn of_both(one: &Postgres, other: &Postgres, schema: &str) -> String {
    format!("postgres://postgres@{},{}/postgres?schema={schema}", one.place(), other.place())
}

/// Two servers that replace each other repeatedly.
struct Places {
    primary: Postgres,
    standby: Postgres,
}

impl Places {
    fn start() -> Self {
        let primary = Postgres::start();
        let standby = primary.standby();
        primary.wait_for_standby();
        Self { primary, standby }
    }

    /// The primary dies, the standby is promoted, and gets a standby in the primary's place.
    fn fail_over(&mut self) {
        self.primary.crash();
        self.standby.promote();
        std::mem::swap(&mut self.primary, &mut self.standby);
        self.standby.follow(&self.primary);
        self.primary.wait_for_standby();
    }
}

#[test]
fn a_failover_to_a_synchronous_standby_costs_no_overlap_no_token_no_waiter_and_no_second_run() {
    let mut places = Places::start();
    let (url, ttl) = (of_both(&places.primary, &places.standby, &schema()), Duration::from_secs(5));
    let (crowds, schedulers) = (crowds(&url, ttl), Schedulers::start([(); 3].map(|()| locks(&url, ttl))));
    let go_on = || {
        crowds.iter().for_each(Crowd::goes_on);
        schedulers.goes_on();
    };
    for _ in 0..failovers() {
        go_on();
        places.fail_over();
    }
    go_on();
    crowds.into_iter().for_each(Crowd::end);
    schedulers.end();
}

/// The cost of an asynchronous standby: it lacks the last grant.
#[test]
fn an_asynchronous_standby_forgets_a_grant_and_its_holder_hears_of_it() {
    on(async {
        let mut primary = Postgres::start();
        let standby = primary.standby();
        let url = of_both(&primary, &standby, &schema());
        let (ours, theirs) = (locks(&url, Duration::from_secs(30)), locks(&url, Duration::from_secs(30)));
        for locks in [&ours, &theirs] {
            let guard = locks.mutex("warm").expect("a name").lock().await.expect("a guard");
            guard.release().await.expect("a release");
        }
        eventually("the standby has what was released", Duration::from_secs(30), || {
            primary.run("SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()")
                == "1"
        });
        primary.hold_back_changes();
        let guard = ours.mutex("x").expect("a name").lock().await.expect("a guard");
        primary.crash();
        standby.promote();
        let asked = Instant::now();
        let other = theirs.mutex("x").expect("a name").lock().await.expect("it is forgotten");
        assert!(other.fence() > guard.fence(), "a token twice: {} {}", other.fence(), guard.fence());
        // Once connected to the new primary, its client verifies all its holds.
        tokio::time::timeout(Duration::from_secs(20), guard.lost()).await.expect("it is told of its loss");
        println!("two clients held for {} ms at most", asked.elapsed().as_millis());
        other.release().await.expect("a release");
    });
}

#[test]
fn a_standby_is_named_with_what_to_do() {
    on(async {
        let primary = Postgres::start();
        let standby = primary.standby();
        let schema = schema();
        let only = locks(&standby.url(&schema), Duration::from_secs(5));
        let only = only.with(|options| options.op_timeout(Duration::from_secs(2))).expect("options");
        let error = only.mutex("x").expect("a name").try_lock().await.expect_err("a standby");
        let text = said(&error);
        assert!(text.contains("it is a standby") && text.contains("postgres://h1,h2/"), "{text}");
        assert!(!text.contains('\n'), "{text}");
        // With both in the URL, in either order, the primary is found.
        let both = locks(&of_both(&standby, &primary, &schema), Duration::from_secs(5));
        let guard = both.mutex("x").expect("a name").lock().await.expect("a guard");
        guard.release().await.expect("a release");

        primary.run("ALTER DATABASE postgres SET default_transaction_read_only = on");
        let only = locks(&primary.url(&schema), Duration::from_secs(5));
        let only = only.with(|options| options.op_timeout(Duration::from_secs(2))).expect("options");
        let error = only.mutex("x").expect("a name").try_lock().await.expect_err("it takes no writes");
        let text = said(&error);
        assert!(text.contains("default_transaction_read_only is on"), "{text}");
    });
}
