//! The store on PostgreSQL under schedules of faults in virtual time, and not one violation. And the
//! mistakes in statements that these schedules show.

use tenure_testkit::sim::hunt::Hunt;
use tenure_testkit::sim::regressions::ROWS;
use tenure_testkit::sim::rows::{self, Mistake};

const HUNT: Hunt =
    Hunt { run: rows::run_in, replay: rows::replay, regimes: rows::REGIMES, again: "rows::replay" };

#[test]
fn no_schedule_violates_a_promise() {
    HUNT.no_violation_in(500);
}

#[test]
fn the_same_seed_gives_the_same_schedule() {
    HUNT.replays(60);
}

#[test]
fn what_once_went_wrong_does_not_again() {
    HUNT.stays_right(ROWS);
}

#[test]
fn mistakes_in_statements_are_caught() {
    for (mistake, invariant) in [
        (Mistake::SerialUncompared, "no stale release, no revival"),
        (Mistake::LateWriteTaken, "no stale release, no revival"),
        (Mistake::OwnerUncompared, "every hold has an end"),
        (Mistake::TokenOfClock, "token order"),
        (Mistake::NothingSaid, "progress"),
        (Mistake::SessionsEnded, "first come, first served"),
    ] {
        let caught = (0..1_000).find(|seed| rows::run_with(mistake, *seed).violates(invariant));
        println!("{mistake:?}: {caught:?}, {invariant}");
        assert!(caught.is_some(), "{mistake:?}");
    }
}

#[test]
#[ignore = "a tool: needs TENURE_SEED"]
fn replay() {
    HUNT.replay();
}
