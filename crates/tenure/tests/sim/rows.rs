//! The stores on PostgreSQL and MySQL under schedules of faults in virtual time, and not one violation. And the
//! mistakes in statements that these schedules show.

use tenure_testkit::sim::hunt::Hunt;
use tenure_testkit::sim::regressions::ROWS;
use tenure_testkit::sim::rows::{self, Database, Mistake};

const HUNT: Hunt = Hunt { run: rows::run_in, regimes: rows::REGIMES, again: "rows::replay" };

const MYSQL: Hunt = Hunt { run: rows::run_in_mysql, again: "rows::replay_mysql", ..HUNT };

#[test]
fn no_schedule_violates_a_promise() {
    HUNT.no_violation_in(500);
}

#[test]
fn no_schedule_on_mysql_violates_a_promise() {
    MYSQL.no_violation_in(500);
}

#[test]
fn the_same_seed_gives_the_same_schedule() {
    [HUNT, MYSQL].iter().for_each(|hunt| hunt.replays(60));
}

#[test]
fn what_once_went_wrong_does_not_again() {
    HUNT.stays_right(ROWS);
}

#[test]
fn mistakes_in_statements_are_caught() {
    let of_all = [
        (Mistake::SerialUncompared, "no stale release, no revival"),
        (Mistake::LateWriteTaken, "no stale release, no revival"),
        (Mistake::OwnerUncompared, "every hold has an end"),
        (Mistake::TokenOfClock, "token order"),
    ];
    let of_all = [Database::Postgres, Database::Mysql].map(|database| of_all.map(|of| (database, of)));
    let of_one = [
        (Database::Postgres, (Mistake::NothingSaid, "progress")),
        (Database::Postgres, (Mistake::SessionsEnded, "first come, first served")),
        (Database::Mysql, (Mistake::LockedReported, "reporting")),
    ];
    for (database, (mistake, invariant)) in of_all.into_iter().flatten().chain(of_one) {
        let mut seeds = 0..5_000;
        let caught = seeds.find(|seed| rows::run_with(mistake, database, *seed).violates(invariant));
        println!("{database:?}: {mistake:?}: {caught:?}, {invariant}");
        assert!(caught.is_some(), "{database:?}: {mistake:?}");
    }
}

#[test]
#[ignore = "a tool: needs TENURE_SEED"]
fn replay() {
    HUNT.replay();
}

#[test]
#[ignore = "a tool: needs TENURE_SEED"]
fn replay_mysql() {
    MYSQL.replay();
}
