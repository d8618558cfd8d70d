//! The real file store under schedules of faults in virtual time, without a violation.

use tenure_testkit::sim::files;
use tenure_testkit::sim::hunt::Hunt;
use tenure_testkit::sim::regressions::DIRECTORY;

const HUNT: Hunt = Hunt { run: files::run_in, regimes: files::REGIMES, again: "directory::replay" };

#[test]
fn no_schedule_violates_a_promise() {
    HUNT.no_violation_in(1_500);
}

#[test]
fn the_same_seed_gives_the_same_schedule() {
    HUNT.replays(100);
}

#[test]
fn what_once_went_wrong_does_not_again() {
    HUNT.stays_right(DIRECTORY);
}

#[test]
#[ignore = "a tool: needs TENURE_SEED"]
fn replay() {
    HUNT.replay();
}
