//! The real quorum under schedules of faults, without a violation.

use tenure_testkit::sim::hunt::Hunt;
use tenure_testkit::sim::quorum;
use tenure_testkit::sim::regime::Regime;
use tenure_testkit::sim::regressions::QUORUM;

const HUNT: Hunt = Hunt { run: quorum::run_in, regimes: &Regime::ALL, again: "quorum::replay" };

#[test]
fn no_schedule_violates_a_promise() {
    HUNT.no_violation_in(5_000);
}

#[test]
fn the_same_seed_gives_the_same_schedule() {
    HUNT.replays(200);
}

#[test]
fn what_once_went_wrong_does_not_again() {
    HUNT.stays_right(QUORUM);
}

#[test]
#[ignore = "a tool: needs TENURE_SEED"]
fn replay() {
    HUNT.replay();
}
