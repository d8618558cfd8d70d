//! The simulation can fail: each known bug, switched on, is caught within so many schedules.

use tenure::internals::planted::{Bug, plant};
use tenure_testkit::sim::world::run;

/// Within how many schedules each bug is caught.
const WITHIN: [(Bug, u64); Bug::ALL.len()] = [
    (Bug::DeadlineFromReply, 20_000),
    (Bug::ElapsedIgnored, 20_000),
    (Bug::NoMargin, 20_000),
    (Bug::ReleaseWithoutCompare, 20_000),
    (Bug::RenewalRecreates, 20_000),
    (Bug::ListenAfterAsking, 20_000),
    (Bug::FailedRenewalExtends, 20_000),
    (Bug::WakeSwallowed, 20_000),
    (Bug::DropLeaves, 20_000),
    (Bug::LossUnannounced, 20_000),
    (Bug::ReentryBumpsToken, 20_000),
    (Bug::RepeatCountsTwice, 20_000),
    (Bug::ReentryShortens, 20_000),
    (Bug::RankOffByOne, 20_000),
    (Bug::ReleaseOfAnother, 20_000),
    (Bug::LapsedWaiterRevived, 20_000),
    (Bug::LeaverPromotesNobody, 20_000),
    (Bug::WeightIgnored, 20_000),
    (Bug::DowngradeWakesNobody, 20_000),
    (Bug::PushFromReceipt, 20_000),
    (Bug::PushOfAnotherLife, 20_000),
    (Bug::WakeBeforeWrite, 20_000),
];

#[test]
fn every_planted_bug_is_caught() {
    assert_eq!(WITHIN.map(|(bug, _)| bug), Bug::ALL);
    let mut missed = Vec::new();
    for (bug, within) in WITHIN {
        plant(Some(bug));
        let caught = (0..within).map(run).find_map(|report| {
            report.violation.map(|violation| (report.seed, report.plan.regime, violation))
        });
        plant(None);
        match caught {
            Some((seed, regime, violation)) => {
                println!("{bug:?}: {} schedules ({regime:?}): {}", seed + 1, violation.invariant);
            }
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
