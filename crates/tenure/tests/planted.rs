//! The simulation can fail: each known bug, switched on, is caught within so many schedules, and by the check that it should be
//! caught by.

use std::panic;

use tenure::internals::planted::{Bug, plant};
use tenure_testkit::sim::world::run_scripts;
use tenure_testkit::sim::{quorum, world};

/// By which invariant each bug is caught, and within how many schedules.
const CAUGHT: [(Bug, &str, u64); Bug::ALL.len()] = [
    (Bug::DeadlineFromReply, "exclusion within validity", 1_000),
    (Bug::ElapsedIgnored, "honesty", 1_000),
    (Bug::NoMargin, "exclusion within validity", 1_000),
    (Bug::ReleaseWithoutCompare, "no stale release, no revival", 1_000),
    (Bug::RenewalRecreates, "no stale release, no revival", 1_000),
    (Bug::ListenAfterAsking, "progress", 20_000),
    (Bug::FailedRenewalExtends, "exclusion within validity", 2_000),
    (Bug::WakeSwallowed, "progress", 5_000),
    (Bug::DropLeaves, "nothing is left behind", 1_000),
    (Bug::LossUnannounced, "honesty", 1_000),
    (Bug::ReentryBumpsToken, "token order", 1_000),
    (Bug::RepeatCountsTwice, "each hold counts once", 1_000),
    (Bug::ReentryShortens, "no stale release, no revival", 1_000),
    (Bug::RankOffByOne, "exclusion within validity", 1_000),
    (Bug::ReleaseOfAnother, "no stale release, no revival", 1_000),
    (Bug::LapsedWaiterRevived, "no stale release, no revival", 1_000),
    (Bug::LeaverPromotesNobody, "whoever fits is let in", 1_000),
    (Bug::WeightIgnored, "exclusion within validity", 1_000),
    (Bug::DowngradeWakesNobody, "whoever fits is let in", 1_000),
    (Bug::PushFromReceipt, "exclusion within validity", 1_000),
    (Bug::PushOfAnotherLife, "exclusion within validity", 1_000),
    (Bug::WakeBeforeWrite, "progress", 1_000),
    (Bug::MinorityRules, quorum::EXCLUSION, 1_000),
    (Bug::UndoOfGrantsOnly, quorum::LEFTOVERS, 1_000),
    (Bug::UndoOutlivesRetry, quorum::EXCLUSION, 1_000),
    (Bug::NewcomersVote, quorum::EXCLUSION, 1_000),
    (Bug::TokensByCounter, quorum::TOKENS, 1_000),
];

#[test]
fn every_planted_bug_is_caught_by_its_check() {
    assert_eq!(CAUGHT.map(|(bug, ..)| bug), Bug::ALL);
    // One of them may show as a panic, many times.
    panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for (bug, invariant, within) in CAUGHT {
        plant(Some(bug));
        let caught = (0..within).find_map(|seed| {
            let (violation, regime) = match bug {
                Bug::MinorityRules
                | Bug::UndoOfGrantsOnly
                | Bug::UndoOutlivesRetry
                | Bug::NewcomersVote
                | Bug::TokensByCounter => {
                    let report = quorum::run(seed);
                    (report.violation, report.regime)
                }
                _ => {
                    let report = world::run(seed);
                    (report.violation, report.plan.regime)
                }
            };
            violation.is_some_and(|violation| violation.invariant == invariant).then_some((seed, regime))
        });
        plant(None);
        match caught {
            Some((seed, regime)) => println!("{bug:?}: {} schedules ({regime:?}), {invariant}", seed + 1),
            None => missed.push(format!("{bug:?} is not caught within {within} schedules by {invariant}")),
        }
    }
    drop(panic::take_hook());
    assert!(missed.is_empty(), "{missed:#?}");
}

/// So is a machine that is not what its script is.
#[test]
fn a_machine_that_differs_from_its_script_is_caught() {
    for bug in [Bug::ReleaseWithoutCompare, Bug::ReentryBumpsToken, Bug::DowngradeWakesNobody] {
        plant(Some(bug));
        let caught = (0..1_000).map(run_scripts).find(|report| {
            let violation = report.violation.as_ref();
            violation.is_some_and(|violation| violation.invariant == "the scripts are the machines")
        });
        plant(None);
        assert!(caught.is_some(), "{bug:?}");
    }
}
