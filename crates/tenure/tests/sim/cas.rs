//! Compare-and-swap stores, like etcd and ZooKeeper, under schedules of faults in virtual time, without a
//! violation; and the planted bugs that these schedules catch.

use tenure_testkit::sim::cas;
use tenure_testkit::sim::hunt::Hunt;
use tenure_testkit::sim::regressions::CAS;

const HUNT: Hunt = Hunt { run: cas::run_in, regimes: cas::REGIMES, again: "cas::replay" };

#[test]
fn no_schedule_violates_a_promise() {
    HUNT.no_violation_in(800);
}

#[test]
fn the_same_seed_gives_the_same_schedule() {
    HUNT.replays(100);
}

#[test]
fn what_once_went_wrong_does_not_again() {
    HUNT.stays_right(CAS);
}

#[test]
#[ignore = "a tool: needs TENURE_SEED"]
fn replay() {
    HUNT.replay();
}
