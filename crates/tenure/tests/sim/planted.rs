//! The simulation can fail: it catches each planted bug within a number of schedules, by the check that
//! should catch it. `scripts/test` builds with these bugs.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, panic, thread};

use tenure::internals::planted::Bug;
use tenure_testkit::sim::cas::Versions;
use tenure_testkit::sim::oracle::members::ONE_TRIP;
use tenure_testkit::sim::regime::Regime;
use tenure_testkit::sim::regressions::{CAS, ONE_SERVER, ROWS};
use tenure_testkit::sim::report::Report;
use tenure_testkit::sim::{cas, files, quorum, rows, scenarios, world};
use tenure_testkit::{plant, setting};

use super::{cas_scenarios, rows_scenarios};

/// The invariant that catches each bug, and the maximum number of schedules.
const CAUGHT: &[(Bug, &str, u64)] = &[
    (Bug::DeadlineFromReply, "exclusion within validity", 1_000),
    (Bug::ElapsedIgnored, "reporting", 1_000),
    (Bug::NoMargin, "exclusion within validity", 1_000),
    (Bug::ReleaseWithoutCompare, "no stale release, no revival", 1_000),
    (Bug::RenewalRecreates, "no stale release, no revival", 1_000),
    (Bug::ListenAfterAsking, "progress", 20_000),
    (Bug::FailedRenewalExtends, "exclusion within validity", 2_000),
    (Bug::WakeSwallowed, "progress", 5_000),
    (Bug::DropLeaves, "nothing is left behind", 1_000),
    (Bug::OneEndsAll, "each hold counts once", 1_000),
    (Bug::LossToldToOne, "the API's word", 5_000),
    (Bug::SharedDetached, "reporting", 5_000),
    (Bug::LossUnannounced, "reporting", 1_000),
    (Bug::ReentryBumpsToken, "token order", 1_000),
    (Bug::RepeatCountsTwice, "each hold counts once", 1_000),
    (Bug::ReentryShortens, "no stale release, no revival", 1_000),
    (Bug::RankOffByOne, "exclusion within validity", 1_000),
    (Bug::ReleaseOfAnother, "no stale release, no revival", 1_000),
    (Bug::LapsedWaiterRevived, "no stale release, no revival", 1_000),
    (Bug::LeaverPromotesNobody, "a waiter that fits is let in", 1_000),
    (Bug::WeightIgnored, "exclusion within validity", 1_000),
    (Bug::DowngradeWakesNobody, "a waiter that fits is let in", 1_000),
    (Bug::UpgradeBesideReaders, "exclusion within validity", 1_000),
    (Bug::ResizeWakesNobody, "a waiter that fits is let in", 20_000),
    (Bug::PushFromReceipt, "exclusion within validity", 1_000),
    (Bug::PushOfAnotherLife, "exclusion within validity", 1_000),
    (Bug::WakeBeforeWrite, "progress", 1_000),
    (Bug::EndTakenForTold, "progress", 20_000),
    (Bug::LossTakenForRelease, "reporting", 20_000),
    (Bug::MinorityRules, "token order", 1_000),
    (Bug::UndoOfGrantsOnly, quorum::LEFTOVERS, 5_000),
    (Bug::UndoOutlivesRetry, "exclusion within validity", 1_000),
    (Bug::NewcomersVote, "exclusion within validity", 5_000),
    (Bug::TokensByCounter, "token order", 1_000),
    (Bug::UndoneOnce, quorum::LEFTOVERS, 5_000),
    (Bug::BallotForgotten, "token order", 1_000),
    (Bug::CounterForgotten, "token order", 1_000),
    (Bug::NoRounding, "exclusion within validity", 20_000),
    (Bug::NoGrace, "exclusion within validity", 1_000),
    (Bug::CalledWithTooLittle, "reporting", 1_000),
    (Bug::NoRetryPause, "everything ends", 1_000),
    (Bug::RefusalIgnored, "reporting", 1_000),
    (Bug::ReentryInLine, "progress", 1_000),
    (Bug::SecondHoldForgotten, "the API's word", 20_000),
    (Bug::EndOfAnotherForgotten, "progress", 1_000),
    (Bug::ReleaseGivenUp, "nothing is left behind", 50_000),
    (Bug::DetachLeaves, "nothing is left behind", 5_000),
    (Bug::MaxHoldFromWait, "reporting", 5_000),
    (Bug::AskedForAsReleased, "reporting", 1_000),
    (Bug::RefreshedWithTooLittle, "reporting", 1_000),
    (Bug::NoDrift, "exclusion within validity", 1_000),
    (Bug::NoBackoff, "everything ends", 1_000),
    (Bug::RefreshedTooLate, "nothing is left behind", 1_000),
    (Bug::RenewedTooLate, "reporting", 1_000),
    (Bug::NeverWhole, "reporting", 5_000),
    (Bug::EarlyCallForgotten, "progress", 5_000),
    (Bug::LostGrantInLine, "nothing is left behind", 20_000),
    (Bug::ReconnectIgnored, "progress", 20_000),
    (Bug::OpenIgnored, "progress", 5_000),
    (Bug::NeverListensAgain, "progress", 5_000),
    (Bug::EndNotAwaited, "progress", 1_000),
    (Bug::NoCap, "progress", 20_000),
    (Bug::MaybeTakenForHeld, "reporting", 5_000),
    (Bug::MinorityUnheard, "progress", 20_000),
    (Bug::NoBallotBehind, ONE_TRIP, 1_000),
    (Bug::NoBallotAhead, "the API's word", 1_000),
    (Bug::RaisedTooLittle, "the API's word", 5_000),
    (Bug::DeathIgnored, "a waiter that fits is let in", 1_000),
    (Bug::DeathUnheard, "progress", 5_000),
    (Bug::ChangeUnheard, "progress", 1_000),
    (Bug::CalledInVainLeft, "progress", 5_000),
    (Bug::NearUntold, "progress", 5_000),
    (Bug::KeyEndsFirst, "no stale release, no revival", 1_000),
    (Bug::FirstDoesNotAsk, "progress", 1_000),
    (Bug::LongAttempts, "reporting", 5_000),
    (Bug::CallMissed, "progress", 20_000),
    (Bug::OldCallBelieved, "exclusion within validity", 20_000),
    (Bug::PatienceCutShort, "the API's word", 20_000),
    (Bug::TokenUnverified, "reporting", 20_000),
    (Bug::LateGrantKept, "reporting", 20_000),
    (Bug::FirstTryCutShort, "the API's word", 1_000),
    (Bug::BallotsTakenForHolder, "reporting", 20_000),
    (Bug::LowestTokenTaken, "token order", 20_000),
    (Bug::FailedResumeLeaves, "progress", 100_000),
    (Bug::LateRefusal, "the API's word", 20_000),
    (Bug::RetryForgotten, "progress", 100_000),
    (Bug::ListeningIgnored, "first come, first served", 1_000),
    (Bug::NobodyCalled, "first come, first served", 1_000),
    (Bug::ListensTooSoon, "first come, first served", 1_000),
    (Bug::GrantedForLong, "every hold has an end", 1_000),
];

/// A seed shortly before one that catches a rare bug, so that the test need not run thousands of schedules
/// for it. After a change of the simulation another seed may catch it: the search starts here and runs up to
/// the number of schedules in [`CAUGHT`]. `TENURE_SEED=0` starts with the first seed.
const STARTS: &[(Bug, u64)] = &[
    (Bug::EndTakenForTold, 1_600),
    (Bug::LossTakenForRelease, 1_650),
    (Bug::UndoOfGrantsOnly, 1_700),
    (Bug::SecondHoldForgotten, 20_015_400),
    (Bug::ReleaseGivenUp, 23_200),
    (Bug::TokenUnverified, 24_000),
    (Bug::EarlyCallForgotten, 2_400),
    (Bug::LostGrantInLine, 4_200),
    (Bug::ReconnectIgnored, 7_800),
    (Bug::NoCap, 5_600),
    (Bug::LongAttempts, 1_100),
    (Bug::CallMissed, 1_174_100),
    (Bug::BallotsTakenForHolder, 2_700),
    (Bug::LowestTokenTaken, 8_800),
    (Bug::ResizeWakesNobody, 1_200),
    (Bug::MaybeTakenForHeld, 700),
    (Bug::CalledInVainLeft, 650),
    (Bug::OldCallBelieved, 20_010_600),
    (Bug::RetryForgotten, 72_600),
];

/// Bugs of the engine that show on a quorum.
const CAUGHT_ON_A_QUORUM: &[(Bug, &str, u64)] = &[
    (Bug::DeadlineFromReply, "exclusion within validity", 5_000),
    (Bug::ElapsedIgnored, "reporting", 5_000),
    (Bug::NoMargin, "exclusion within validity", 5_000),
    (Bug::ReleaseWithoutCompare, "no stale release, no revival", 5_000),
    (Bug::FailedRenewalExtends, "exclusion within validity", 5_000),
    (Bug::WakeSwallowed, "progress", 5_000),
    (Bug::DropLeaves, quorum::LEFTOVERS, 5_000),
    (Bug::LossUnannounced, "reporting", 5_000),
    (Bug::LossTakenForRelease, "reporting", 20_000),
    (Bug::NoGrace, "exclusion within validity", 5_000),
];

/// Bugs that show in a directory.
const CAUGHT_IN_A_DIRECTORY: &[(Bug, &str, u64)] = &[
    (Bug::DeadlineFromReply, "exclusion within validity", 200),
    (Bug::NoMargin, "exclusion within validity", 200),
    (Bug::RenewalRecreates, "no stale release, no revival", 200),
    (Bug::LossUnannounced, "reporting", 200),
    (Bug::NoGrace, "exclusion within validity", 200),
    (Bug::ReentryBumpsToken, "token order", 200),
    (Bug::RankOffByOne, "exclusion within validity", 200),
    (Bug::WeightIgnored, "exclusion within validity", 200),
    (Bug::LeaverPromotesNobody, "a waiter that fits is let in", 1_000),
    (Bug::ReentryInLine, "progress", 200),
    (Bug::RefreshedTooLate, "nothing is left behind", 500),
];

/// Bugs of compare-and-swap stores.
const CAUGHT_BY_COMPARE_AND_SWAP: &[(Bug, &str, u64)] = &[
    (Bug::CasNoBarrier, "nothing is left behind", 5_000),
    (Bug::CasDeathIgnored, "progress", 5_000),
    (Bug::CasConflictIsBusy, "progress", 5_000),
    (Bug::CasWatchAfterLook, "progress", 5_000),
    (Bug::CasUncompared, "token order", 5_000),
    (Bug::CasFrontIsAll, "a waiter that fits is let in", 5_000),
    (Bug::CasSessionOfAnother, "no stale release, no revival", 5_000),
    (Bug::CasPlaceUnproven, "exclusion within validity", 5_000),
    (Bug::CasLivingPassed, "no stale release, no revival", 5_000),
    (Bug::CasShortLeaseUnderHold, "exclusion within validity", 5_000),
    (Bug::CasMovingHoldRemoved, "exclusion within validity", 5_000),
];

/// Bugs of compare-and-swap stores of a single key.
const CAUGHT_BY_ONE_KEY: &[(Bug, &str, u64)] =
    &[(Bug::CasOneKeyRenewalUnseen, "exclusion within validity", 5_000)];

/// Rare bugs of compare-and-swap stores, with a regime that shows them and a seed shortly before.
const RARE_BY_COMPARE_AND_SWAP: [(Bug, Regime, u64); 3] = [
    (Bug::CasKeepAwaited, Regime::Hiccup, 4_200),
    (Bug::CasLostPlaceUnread, Regime::Lossy, 6_200),
    (Bug::CasPlacesExtended, Regime::Drifting, 0),
];

/// Bugs of the store on PostgreSQL. `rows_scenarios` has a schedule for each of the others, which are rare here.
const CAUGHT_ON_POSTGRESQL: &[(Bug, &str, u64)] = &[
    (Bug::RowsConflictIsBusy, "reporting", 1_000),
    (Bug::RowsDeadGrantWritten, "a waiter that fits is let in", 1_000),
];

/// Bugs of the engine and of the machines that also show on PostgreSQL.
const CAUGHT_ON_POSTGRESQL_TOO: &[(Bug, &str, u64)] = &[
    (Bug::DeadlineFromReply, "exclusion within validity", 1_000),
    (Bug::NoMargin, "exclusion within validity", 1_000),
    (Bug::RenewalRecreates, "no stale release, no revival", 1_000),
    (Bug::LossUnannounced, "reporting", 1_000),
    (Bug::DropLeaves, "nothing is left behind", 1_000),
    (Bug::OneEndsAll, "each hold counts once", 1_000),
    (Bug::ReentryBumpsToken, "token order", 1_000),
    (Bug::LeaverPromotesNobody, "a waiter that fits is let in", 1_000),
];

/// Runs a schedule of the simulation that suits this bug.
fn run(bug: Bug, seed: u64) -> Report {
    let regimes = regimes(bug);
    run_in(regimes[(seed % regimes.len() as u64) as usize], bug, seed)
}

fn run_in(regime: Regime, bug: Bug, seed: u64) -> Report {
    match bug {
        Bug::MinorityRules
        | Bug::UndoOfGrantsOnly
        | Bug::UndoOutlivesRetry
        | Bug::NewcomersVote
        | Bug::TokensByCounter
        | Bug::UndoneOnce
        | Bug::BallotForgotten
        | Bug::FailedResumeLeaves
        | Bug::BallotsTakenForHolder
        | Bug::LowestTokenTaken
        | Bug::MaybeTakenForHeld
        | Bug::MinorityUnheard
        | Bug::NoBallotBehind
        | Bug::NoBallotAhead
        | Bug::RaisedTooLittle => quorum::run_in(regime, seed, false),
        Bug::DeathIgnored
        | Bug::DeathUnheard
        | Bug::ChangeUnheard
        | Bug::CalledInVainLeft
        | Bug::NearUntold
        | Bug::LateRefusal => files::run_in(regime, seed, false),
        _ if is_in(CAUGHT_BY_COMPARE_AND_SWAP, bug) => cas::run_in(regime, seed, false),
        _ if is_in(CAUGHT_BY_ONE_KEY, bug) => cas::run_one_key(regime, seed, false),
        _ if is_in(CAUGHT_ON_POSTGRESQL, bug) => rows::run_in(regime, seed, false),
        _ => world::run_in(regime, seed, false),
    }
}

fn is_in(bugs: &[(Bug, &str, u64)], bug: Bug) -> bool {
    bugs.iter().any(|(known, ..)| *known == bug)
}

/// The regimes in which a bug is searched, alternately: a dedicated one if it is rare in all others.
fn regimes(bug: Bug) -> &'static [Regime] {
    match bug {
        Bug::CallMissed | Bug::SecondHoldForgotten => &[Regime::Quiet],
        Bug::RetryForgotten => &[Regime::Fleeting],
        Bug::OldCallBelieved | Bug::TokenUnverified => &[Regime::Relapsing],
        Bug::PatienceCutShort | Bug::LateRefusal => &[Regime::Outage],
        Bug::LateGrantKept => &[Regime::OnTheDot],
        Bug::LowestTokenTaken => &[Regime::Drifting],
        Bug::FailedResumeLeaves => &[Regime::Fleeting],
        Bug::BallotsTakenForHolder => &[Regime::Lossy],
        Bug::DeathIgnored
        | Bug::DeathUnheard
        | Bug::ChangeUnheard
        | Bug::CalledInVainLeft
        | Bug::NearUntold => files::REGIMES,
        _ if is_in(CAUGHT_BY_COMPARE_AND_SWAP, bug) || is_in(CAUGHT_BY_ONE_KEY, bug) => cas::REGIMES,
        _ if is_in(CAUGHT_ON_POSTGRESQL, bug) => rows::REGIMES,
        _ => &Regime::ALL,
    }
}

/// Number of schedules until a bug is caught by its check, from this seed on, and the regime.
fn caught(
    run: impl Fn(u64) -> Report,
    bug: Bug,
    invariant: &str,
    first: u64,
    within: u64,
) -> Option<(u64, Regime)> {
    plant(Some(bug));
    let caught = (first..first + within).find_map(|seed| {
        let report = run(seed);
        report.violates(invariant).then_some((seed + 1 - first, report.plan.regime))
    });
    plant(None);
    caught
}

/// Checks that each of these bugs is caught in as many schedules as stated, from its start on.
fn all_are_caught(bugs: &[(Bug, &str, u64)], starts: &[(Bug, u64)], run: impl Fn(Bug, u64) -> Report) {
    let start = |bug: Bug| starts.iter().find(|(known, _)| *known == bug).map_or(0, |(_, start)| *start);
    // One of them may show as many panics.
    panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for (bug, invariant, within) in bugs {
        let first = setting("TENURE_SEED").unwrap_or_else(|| start(*bug));
        match caught(|seed| run(*bug, seed), *bug, invariant, first, *within) {
            Some((schedules, regime)) => {
                println!("{bug:?}: {schedules} schedules from {first} ({regime:?}), {invariant}");
            }
            None => {
                missed.push(format!("{bug:?}: {within} schedules from {first} are not caught by {invariant}"))
            }
        }
    }
    drop(panic::take_hook());
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn every_planted_bug_is_caught_by_its_check() {
    all_are_caught(CAUGHT, STARTS, run);
}

#[test]
fn what_is_judged_on_a_quorum_can_fail_there() {
    all_are_caught(CAUGHT_ON_A_QUORUM, &[], |_, seed| quorum::run(seed));
}

#[test]
fn what_is_judged_in_a_directory_can_fail_there() {
    all_are_caught(CAUGHT_IN_A_DIRECTORY, &[], |_, seed| files::run(seed));
}

#[test]
fn bugs_of_stores_by_compare_and_swap_are_caught() {
    all_are_caught(CAUGHT_BY_COMPARE_AND_SWAP, &[], run);
    all_are_caught(CAUGHT_BY_ONE_KEY, &[], run);
}

#[test]
fn bugs_on_postgresql_are_caught() {
    all_are_caught(CAUGHT_ON_POSTGRESQL, &[], run);
    all_are_caught(CAUGHT_ON_POSTGRESQL_TOO, &[], |_, seed| rows::run(seed));
}

/// By any check, because without their bugs these schedules have no violation.
#[test]
fn rare_bugs_of_stores_by_compare_and_swap_are_caught() {
    for (bug, regime, first) in RARE_BY_COMPARE_AND_SWAP {
        plant(Some(bug));
        let report = |seed| Some((seed, cas::run_in(regime, seed, false).violation?));
        let caught = (first..first + 20_000).find_map(report);
        plant(None);
        println!("{bug:?}: {caught:?}");
        assert!(caught.is_some(), "{bug:?}");
    }
}

/// A version number that restarts at the same value is not the same version.
#[test]
fn a_server_that_does_not_compare_creations_is_caught() {
    let is_caught = (0..500).any(|seed| cas::run_with(Versions::Alone, seed).violation.is_some());
    assert!(is_caught);
}

/// Bugs that callers can observe, and the check of the judge of `tenure stress` that finds each within twenty
/// thousand schedules.
const SEEN: [(Bug, &str); 13] = [
    (Bug::DeadlineFromReply, "exclusion"),
    (Bug::NoMargin, "exclusion"),
    (Bug::ReleaseWithoutCompare, "exclusion"),
    (Bug::WakeSwallowed, "progress"),
    (Bug::LossUnannounced, "tokens"),
    (Bug::ReentryShortens, "exclusion"),
    (Bug::RankOffByOne, "exclusion"),
    (Bug::ReleaseOfAnother, "exclusion"),
    (Bug::WeightIgnored, "exclusion"),
    (Bug::PushFromReceipt, "exclusion"),
    (Bug::PushOfAnotherLife, "exclusion"),
    (Bug::MinorityRules, "exclusion"),
    (Bug::TokensByCounter, "tokens"),
];

/// The judge knows nothing of servers, and also judges histories of real ones.
#[test]
fn what_callers_can_see_of_a_planted_bug_is_seen_in_their_history_alone() {
    for (bug, check) in SEEN {
        plant(Some(bug));
        let seen = (0..20_000).map(|seed| run(bug, seed).seen_by_callers);
        let seen = seen.flatten().find(|seen| seen.starts_with(check));
        plant(None);
        assert!(seen.is_some(), "{bug:?} is not seen by {check}");
    }
}

#[test]
fn each_scenario_goes_well_and_fails_with_its_bug() {
    for (bug, scenario) in scenarios::ALL {
        assert_eq!(scenario(), Ok(()));
        plant(Some(bug));
        let outcome = scenario();
        plant(None);
        assert!(outcome.is_err(), "{bug:?} is not seen in its scenario");
    }
}

#[test]
fn a_process_alone_leaves_few_turns_to_others() {
    assert_eq!(scenarios::a_process_alone_leaves_few_turns(), Ok(()));
}

/// Bugs with a test of their own, and its file.
const ELSEWHERE: [(Bug, &str); 15] = [
    (Bug::TxnMemoryAnswers, "tenure-core/src/txn.rs"),
    (Bug::TxnLapsedUnwritten, "tenure-core/src/txn.rs"),
    (Bug::PlaceKeptUnheard, "tenure-core/src/protocol/queue.rs"),
    (Bug::NumberBelowToken, "tenure-testkit/tests/exhaustive/solo.rs"),
    (Bug::LeaseOfBareForgotten, "tenure-testkit/tests/exhaustive/solo.rs"),
    (Bug::CasGoneRevived, "tenure-core/src/cas/leases.rs"),
    (Bug::CasNewOwnerUntold, "tenure-core/src/cas/watch.rs"),
    (Bug::RowsOutOfOrder, "tenure-tests/tests/it/postgres/rows.rs"),
    (Bug::GivenUpForgotten, "tenure/tests/sim/callers.rs"),
    (Bug::EndTakenForUnsent, "tenure/tests/sim/redis_bytes.rs"),
    (Bug::SilenceUnnoticed, "tenure/tests/sim/redis_bytes.rs"),
    (Bug::ReplyOfAnother, "tenure-redis/src/connection/multiplexer.rs"),
    (Bug::SlotReusedEarly, "tenure-redis/src/connection/multiplexer.rs"),
    (Bug::WriteAfterHangUp, "tenure-redis/src/connection/multiplexer.rs"),
    (Bug::PushTakenForReply, "tenure-redis/src/connection/multiplexer.rs"),
];

#[test]
fn every_planted_bug_has_a_test() {
    let caught =
        [CAUGHT, CAUGHT_BY_COMPARE_AND_SWAP, CAUGHT_BY_ONE_KEY, CAUGHT_ON_POSTGRESQL].into_iter().flatten();
    let mut looked_for: Vec<Bug> = caught.map(|(bug, ..)| *bug).collect();
    looked_for.extend(RARE_BY_COMPARE_AND_SWAP.map(|(bug, ..)| bug));
    looked_for.extend(scenarios::ALL.iter().map(|(bug, _)| *bug));
    looked_for.extend(cas_scenarios::SCENARIOS.map(|(bug, _)| bug));
    looked_for.extend(rows_scenarios::OF_CODE.map(|(bug, _)| bug));
    looked_for.extend([ONE_SERVER, CAS, ROWS].into_iter().flatten().filter_map(|(.., bug)| *bug));
    for (bug, file) in ELSEWHERE {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
        let text = fs::read_to_string(&path).expect("a source");
        let tests = text.rsplit_once("mod tests").map_or(&*text, |(_, tests)| tests);
        assert!(tests.contains(&format!("Bug::{bug:?}")), "{file} does not plant {bug:?}");
        looked_for.push(bug);
    }
    let missed: Vec<&Bug> = Bug::ALL.iter().filter(|bug| !looked_for.contains(bug)).collect();
    assert!(missed.is_empty(), "no test catches {missed:?}");
}

/// The number of schedules until each bug is caught (`TENURE_BUG` and `TENURE_REGIME` select), from
/// `TENURE_MEDIANS` different seeds on, for the table in `book/archive/planted-bugs.md`.
#[test]
#[ignore = "a tool: needs TENURE_MEDIANS"]
fn medians() {
    const MOST: u64 = 2_000_000;
    let starts = env::var("TENURE_MEDIANS").expect("TENURE_MEDIANS says how many");
    let starts: u64 = starts.parse().expect("TENURE_MEDIANS is a number");
    let only = env::var("TENURE_BUG").ok();
    let regime = env::var("TENURE_REGIME").ok();
    let regime = regime.map(|name| Regime::named(&name).expect("TENURE_REGIME is the name of a regime"));
    let run = |bug, seed| regime.map_or_else(|| run(bug, seed), |regime| run_in(regime, bug, seed));
    let is_meant = |bug: Bug| only.as_ref().is_none_or(|only| *only == format!("{bug:?}"));
    panic::set_hook(Box::new(|_| {}));
    let all: Vec<_> = CAUGHT.iter().chain(CAUGHT_BY_COMPARE_AND_SWAP).chain(CAUGHT_ON_POSTGRESQL).collect();
    let next = AtomicUsize::new(0);
    let rows: Mutex<Vec<(usize, String)>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, |cores| cores.get()) {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some((bug, invariant, _)) = all.get(place) else { break };
                    if !is_meant(*bug) {
                        continue;
                    }
                    let from = |start: u64| {
                        let found = caught(|seed| run(*bug, seed), *bug, invariant, start * 10 * MOST, MOST);
                        if only.is_some() {
                            println!("from {}: {found:?}", start * 10 * MOST);
                        }
                        found.map(|(count, _)| count)
                    };
                    let mut counts: Vec<Option<u64>> = (1..=starts).map(from).collect();
                    counts.sort_unstable_by_key(|count| count.unwrap_or(u64::MAX));
                    let shown = |count: Option<u64>| {
                        count.map_or_else(|| format!("more than {MOST}"), |count| count.to_string())
                    };
                    let (median, largest) =
                        (shown(counts[counts.len() / 2]), shown(counts[counts.len() - 1]));
                    let row = format!("| `{bug:?}` | {invariant} | {median} | {largest} |");
                    println!("{row}");
                    rows.lock().expect("no panic").push((place, row));
                }
            });
        }
    });
    drop(panic::take_hook());
    let mut rows = rows.into_inner().expect("no panic");
    rows.sort_unstable();
    println!("| bug | caught by | median | most |\n|---|---|---|---|");
    rows.iter().for_each(|(_, row)| println!("{row}"));
}

/// Prints the first seed from `TENURE_SEED` on that shows `TENURE_BUG` in `TENURE_REGIME`, and nothing without it, for
/// `regressions.rs`. `TENURE_WORLD` is `cas`, `rows`, `files` or `quorum`, by default one server.
#[test]
#[ignore = "a tool: needs TENURE_BUG and TENURE_REGIME"]
fn seed() {
    let named = |name| env::var(name).unwrap_or_else(|_| panic!("{name} is needed"));
    let (bug, regime) = (named("TENURE_BUG"), named("TENURE_REGIME"));
    let bug = *Bug::ALL.iter().find(|known| format!("{known:?}") == bug).expect("TENURE_BUG is a bug");
    let regime = Regime::named(&regime).expect("TENURE_REGIME is the name of a regime");
    let run: fn(Regime, u64, bool) -> Report = match env::var("TENURE_WORLD").as_deref() {
        Ok("cas") => cas::run_in,
        Ok("rows") => rows::run_in,
        Ok("files") => files::run_in,
        Ok("quorum") => quorum::run_in,
        _ => world::run_in,
    };
    panic::set_hook(Box::new(|_| {}));
    let shows = |seed: &u64| {
        plant(Some(bug));
        let is_seen = run(regime, *seed, false).violation.is_some();
        plant(None);
        is_seen && run(regime, *seed, false).violation.is_none()
    };
    println!("{bug:?} in {regime:?}: {:?}", (setting("TENURE_SEED").unwrap_or(0)..).find(shows));
    drop(panic::take_hook());
}

/// A machine that differs from its script is caught too.
#[test]
fn a_machine_that_differs_from_its_script_is_caught() {
    for bug in [Bug::ReleaseWithoutCompare, Bug::ReentryBumpsToken, Bug::DowngradeWakesNobody] {
        plant(Some(bug));
        let mut reports = (0..1_000).map(|seed| world::run_scripts(Regime::of(seed), seed, false));
        let is_caught = reports.any(|report| report.violates("the scripts are the machines"));
        plant(None);
        assert!(is_caught, "{bug:?}");
    }
}
