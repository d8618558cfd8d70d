//! The simulation can fail: each known bug, switched on, is caught within so many schedules.

use tenure::internals::planted::{Bug, plant};
use tenure_testkit::sim::world::run;

/// Within how many schedules each bug is caught.
const WITHIN: [(Bug, u64); 10] = [
    (Bug::DeadlineFromReply, 2_000),
    (Bug::ElapsedIgnored, 2_000),
    (Bug::NoMargin, 2_000),
    (Bug::ReleaseWithoutCompare, 2_000),
    (Bug::RenewalRecreates, 2_000),
    (Bug::ListenAfterAsking, 2_000),
    (Bug::FailedRenewalExtends, 2_000),
    (Bug::WakeSwallowed, 2_000),
    (Bug::DropLeaves, 2_000),
    (Bug::LossUnannounced, 2_000),
];

#[test]
fn every_planted_bug_is_caught() {
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
