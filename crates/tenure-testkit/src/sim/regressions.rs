//! Bugs that schedules have found, each with a schedule that shows it.

use tenure::internals::planted::Bug;

use super::regime::Regime;

/// A bug that was found.
#[derive(Clone, Copy, Debug)]
pub struct Regression {
    /// What went wrong.
    pub what: &'static str,
    /// The regime of a schedule that shows it.
    pub regime: Regime,
    /// The seed of that schedule.
    pub seed: u64,
    /// The planted bug that reintroduces it, if there is one.
    pub bug: Option<Bug>,
}

const fn found(what: &'static str, regime: Regime, seed: u64, bug: Option<Bug>) -> Regression {
    Regression { what, regime, seed, bug }
}

/// Found with one server.
pub const ONE_SERVER: &[Regression] = &[
    found(
        "a re-entry stood in line behind a client who waited for its owner",
        Regime::Slow,
        27,
        Some(Bug::ReentryInLine),
    ),
    found(
        "a second hold was not asked for when its owner had just been let in",
        Regime::Quiet,
        7_623,
        Some(Bug::SecondHoldForgotten),
    ),
    found(
        "the end of a hold in another process was taken for one that was known",
        Regime::Quiet,
        67,
        Some(Bug::EndOfAnotherForgotten),
    ),
    found(
        "the release of one of several holds was given up when its own lease was over",
        Regime::Pausing,
        46_171,
        Some(Bug::ReleaseGivenUp),
    ),
    found(
        "a detach that was dropped left its hold counted for no client",
        Regime::LateMessages,
        83,
        Some(Bug::DetachLeaves),
    ),
    found(
        "who was called from a queue began with less than its grace",
        Regime::Brink,
        7,
        Some(Bug::CalledWithTooLittle),
    ),
    found(
        "`max_hold` counted from before the turn of who waited in a queue",
        Regime::Brink,
        20_000_231,
        Some(Bug::MaxHoldFromWait),
    ),
    found(
        "a grant that came too late was asked for again under the owner that was being released",
        Regime::Evicting,
        149,
        Some(Bug::AskedForAsReleased),
    ),
    found(
        "a refresh that was answered late handed out what little was left",
        Regime::Tiny,
        3,
        Some(Bug::RefreshedWithTooLittle),
    ),
    found(
        "a place that was given before messages were heard, and told after, missed its call until it was due",
        Regime::Quiet,
        1_174_138,
        Some(Bug::CallMissed),
    ),
    found(
        "a call that was heard before its server went back was believed of a younger place with that number",
        Regime::Relapsing,
        20_008_749,
        Some(Bug::OldCallBelieved),
    ),
    found(
        "an acquisition that was given up was carried out when its undo had been given up too",
        Regime::Lossy,
        20_000_021,
        Some(Bug::ReleaseGivenUp),
    ),
    found(
        "a re-entry whose limit was shorter than a round trip let another in its line say that the store is silent",
        Regime::Rush,
        4_554,
        Some(Bug::SilenceOfOne),
    ),
    found(
        "a wait without a limit gave up before its patience was over, by one pause",
        Regime::Outage,
        20_000_016,
        Some(Bug::PatienceCutShort),
    ),
    found(
        "`verify` took an older hold of the same owner, on a server that had gone back, for the guard's",
        Regime::Relapsing,
        24_103,
        Some(Bug::TokenUnverified),
    ),
    found(
        "a grant that was answered just when its question was over was not asked for again, though its wait had no limit",
        Regime::Brink,
        84_665_601,
        Some(Bug::LateGrantKept),
    ),
    found(
        "the end of a hold was taken for told by who had asked before it was released",
        Regime::Unscripted,
        311,
        Some(Bug::EndTakenForTold),
    ),
    found(
        "who waited in line, and had been granted it in an answer that got lost, kept all out for a lease",
        Regime::LateMessages,
        101,
        Some(Bug::LostGrantInLine),
    ),
    found(
        "when the next in a queue was to ask was forgotten, as the one before it was being asked about just then",
        Regime::Rush,
        64_946,
        Some(Bug::RetryForgotten),
    ),
    found(
        "the same, as an earlier time had hidden it and was answered by the grant of the one before it",
        Regime::Fleeting,
        20_003_384,
        Some(Bug::RetryForgotten),
    ),
    found(
        "a newcomer whose question was lost stood in line behind a pause for other processes",
        Regime::Rush,
        608_308_433,
        None,
    ),
    found(
        "a place that a stopped server gave late was passed, because its client had stopped listening",
        Regime::Storm,
        608_779_233,
        Some(Bug::NewcomerLeaves),
    ),
    found(
        "a hold that a server had again, after it went back to before its release, counted as ended for the check",
        Regime::Relapsing,
        608_867_840,
        None,
    ),
    found("the same", Regime::Relapsing, 609_250_077, None),
];

/// Found with a quorum.
pub const QUORUM: &[Regression] = &[
    found(
        "what an earlier try may have left was given back after a later one had been granted",
        Regime::Lossy,
        20_000_004,
        Some(Bug::UndoOutlivesRetry),
    ),
    found(
        "a ballot was raised to where the clock of a node without one had been",
        Regime::Quiet,
        3,
        Some(Bug::RaisedTooLittle),
    ),
    found("two held after the undo of one", Regime::Parted, 20_000_038, Some(Bug::UndoOutlivesRetry)),
    found(
        "`verify` said that a lock is held that a majority did not have, because the rest was silent",
        Regime::Rewinding,
        817,
        Some(Bug::MaybeTakenForHeld),
    ),
    found(
        "`try_lock` called busy what no client held, when a reply was lost and ballots stood in the way",
        Regime::Parted,
        20_092_026,
        Some(Bug::BallotsTakenForHolder),
    ),
    found(
        "a hold that was taken over had a lower token than before",
        Regime::Drifting,
        20_011_657,
        Some(Bug::LowestTokenTaken),
    ),
    found(
        "what two processes had taken again at a member, one after the other, stood there after its release",
        Regime::Unscripted,
        164_414,
        None,
    ),
    found(
        "a hold that had been passed on and back was released with the ballots from before that",
        Regime::Rewinding,
        1_106_350,
        None,
    ),
    found(
        "what the client that had passed a hold on had taken again late, at one member, stood there after its release",
        Regime::Quiet,
        2_223_615,
        None,
    ),
    found(
        "a member that a hold which was taken over had not been heard at got its release once, and no more",
        Regime::Lossy,
        2_071_651,
        None,
    ),
    found(
        "members that had restarted voted too soon for a process whose own leases `max_hold` had clipped",
        Regime::Rewinding,
        14_214,
        None,
    ),
    found("the same, after two members had lost everything", Regime::Forgetting, 1_210_043, None),
    found(
        "an acquisition that was on its way when its process passed the hold on, and took it back, stood there after its release",
        Regime::Lossy,
        3_148_411,
        None,
    ),
    found("the same at a server that had restarted", Regime::Forgetting, 3_207_518, None),
    found(
        "the same after another process had taken it over and released it",
        Regime::Forgetting,
        7_095_908,
        None,
    ),
    found(
        "members that had not answered a request without time were taken for silent, and not waited for",
        Regime::Unscripted,
        7_132_820,
        None,
    ),
    found(
        "a hold that was lost when it was to be taken over stayed where that had renewed it",
        Regime::Fleeting,
        81_671,
        Some(Bug::FailedResumeLeaves),
    ),
    found("the same when no client waited for it any more", Regime::Fleeting, 8_309_940, None),
];

/// Found with a directory.
pub const DIRECTORY: &[Regression] = &[found(
    "who was kept out by one that stood still inside was told so up to a pause after its time",
    Regime::Drifting,
    20_520,
    Some(Bug::LateRefusal),
)];

/// On etcd and ZooKeeper.
pub const CAS: &[Regression] = &[
    found(
        "a re-entry of a process whose lease an operator had ended had an old token",
        Regime::Forgetting,
        854,
        None,
    ),
    found(
        "a renewal was answered from a keep-alive that was older than a forced release",
        Regime::Forgetting,
        1_286,
        None,
    ),
    found("a lost answer never came to its end in the simulated world", Regime::Tiny, 1_752, None),
    found(
        "a renewal waited for the keep-alive of another task, whose answer was lost",
        Regime::Hiccup,
        2_460,
        None,
    ),
    found(
        "a renewal waited for a fence of another task, whose answer was lost",
        Regime::Hiccup,
        1_671,
        Some(Bug::CasKeepAwaited),
    ),
    found("the same", Regime::Hiccup, 674, Some(Bug::CasKeepAwaited)),
    found(
        "the lease of an owner whose longest hold had lapsed was not looked at again",
        Regime::Hiccup,
        3_648,
        None,
    ),
    found(
        "the request for a hold that had lapsed took over another hold of its owner",
        Regime::OnTheDot,
        2_085,
        None,
    ),
    found(
        "places that asked for different times were refreshed for the longest, and outlived their session",
        Regime::Drifting,
        5,
        Some(Bug::CasPlacesExtended),
    ),
    found(
        "a place whose number was unknown stayed in its part of the queue when it had lapsed",
        Regime::Lossy,
        6_241,
        Some(Bug::CasLostPlaceUnread),
    ),
    found(
        "a granted place was believed in although its session had ended before",
        Regime::Drifting,
        1_787,
        None,
    ),
    found(
        "a hold counted as removed while it moved from the short handle of its place",
        Regime::Rush,
        319,
        Some(Bug::CasMovingHoldRemoved),
    ),
    found("events of a watch came out of order in the simulated world", Regime::LateMessages, 101_623, None),
    found("a detached hold that had lapsed counted beside the next", Regime::Quiet, 100_523, None),
    found(
        "a late answer revived a hold that had lapsed, while another request of its client removed it",
        Regime::Storm,
        11_656,
        None,
    ),
    found(
        "a place that had lapsed was refreshed without a request, granted by a message, and removed",
        Regime::Tiny,
        14_280,
        None,
    ),
    found("the same", Regime::Parted, 30_897, None),
    found(
        "an older answer hid that the lease of a holder had ended, and a waiter slept on",
        Regime::Lossy,
        704_405,
        None,
    ),
    found(
        "a verification whose answer was lost kept the renewals of its hold waiting until its lease was over",
        Regime::Hiccup,
        500_086,
        None,
    ),
    found("a hold was taken over just after its lease had ended", Regime::Fleeting, 24_401, None),
    found("the same", Regime::Fleeting, 17_530, None),
    found("the same by its own client", Regime::Outage, 701_035, None),
    found("the same of two detached holds", Regime::Outage, 800_416, Some(Bug::CasExpiredMoved)),
    found("a place was bound to a handle that was closed as idle meanwhile", Regime::Rush, 800_978, None),
    found("a holder that had died just before a watch opened was waited for", Regime::Slow, 801_553, None),
    found(
        "a place that had expired in an unread part of its queue was told gone before it went",
        Regime::Storm,
        800_687,
        None,
    ),
    found("a re-entry had no time for the conflicts of its writes", Regime::Quiet, 801_499, None),
    found(
        "a hold whose detach got no answer was kept for as long as a place",
        Regime::LateMessages,
        703_649,
        None,
    ),
    found("the same", Regime::Drifting, 700_147, None),
    found("the same", Regime::Outage, 704_828, None),
    found("a place counted as changed by another request of the same write", Regime::Drifting, 11_201, None),
    found("the same", Regime::Lossy, 500_334, None),
    found("the same", Regime::Lossy, 503_984, None),
    found("the same", Regime::Flapping, 704_153, None),
    found(
        "a lease counted as shortened when its hold moved to a session that ends earlier, but not too early",
        Regime::Quiet,
        702_543,
        None,
    ),
    found("the same", Regime::Outage, 703_104, None),
    found("the same when a place moved", Regime::Forgetting, 22_868, None),
    found(
        "a re-entry counted as a second grant of its token, beside a hold of its owner that had just died",
        Regime::Killing,
        910_389,
        None,
    ),
    found("a refusal counted as wrong just after the holder had died", Regime::Killing, 925_153, None),
    found(
        "an acquisition of a hold that had just expired was read again and again, and written by nobody",
        Regime::Quiet,
        1_501_578,
        Some(Bug::CasLapsedUnwritten),
    ),
    found(
        "a client that had stood still granted a lock to its own waiter, whose place had expired",
        Regime::Drifting,
        1_378,
        Some(Bug::CasOwnHandleTrusted),
    ),
    found(
        "a waiter slept although its owner, in another process, had got the lock from a dead one",
        Regime::Rush,
        14_363,
        Some(Bug::CasNewOwnerUntold),
    ),
];

/// On PostgreSQL.
pub const ROWS: &[Regression] = &[
    found(
        "a waiter stood behind a grant that was over when its row was written",
        Regime::Slow,
        182,
        Some(Bug::RowsDeadGrantWritten),
    ),
    found(
        "late writes were taken for an open transaction, and a free lock was not granted",
        Regime::Slow,
        3_000_082,
        Some(Bug::RowsLateTakenForCheckIn),
    ),
    found(
        "a waiter was let in as the clock was stepped, unseen by the oracle",
        Regime::Stepping,
        1_000_411,
        None,
    ),
];
