//! Stores with compare-and-swap of a single key, such as NATS KV, under schedules of faults in virtual time: with
//! markers that the server expires, and with such that clients remove by their own clocks.

use tenure_testkit::sim::cas;
use tenure_testkit::sim::hunt::Hunt;

const HUNT: Hunt = Hunt { run: cas::run_one_key, regimes: cas::REGIMES, again: "cas_one_key::replay" };

#[test]
fn no_schedule_violates_a_promise() {
    HUNT.no_violation_in(400);
}

#[test]
fn the_same_seed_gives_the_same_schedule() {
    HUNT.replays(40);
}

#[test]
#[ignore = "a tool: needs TENURE_SEED"]
fn replay() {
    HUNT.replay();
}
