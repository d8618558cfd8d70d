//! Bugs that schedules have found, each with a schedule that shows it.

use tenure::internals::planted::Bug;

use super::regime::Regime;

/// The regime and the seed of a schedule that showed a bug, and the planted bug that reintroduces it, if any.
/// The comment above it says what went wrong.
pub type Regression = (Regime, u64, Option<Bug>);

/// Found with one server.
pub const ONE_SERVER: &[Regression] = &[
    // A re-entry stood in line behind a client who waited for its owner.
    (Regime::Slow, 20_000_000, Some(Bug::ReentryInLine)),
    // The only waiter asked for itself while a request for it was under way.
    (Regime::Rush, 80, Some(Bug::SoleAskedTwice)),
    // A second hold was not asked for when its owner had just been let in.
    (Regime::Quiet, 20_015_483, Some(Bug::SecondHoldForgotten)),
    // The end of a hold in another process was taken for one that was known.
    (Regime::Quiet, 20_000_029, Some(Bug::EndOfAnotherForgotten)),
    // The release of one of several holds was given up when its own lease was over.
    (Regime::Pausing, 20_026_262, Some(Bug::ReleaseGivenUp)),
    // A detach that was dropped left its hold counted for no client.
    (Regime::LateMessages, 83, Some(Bug::DetachLeaves)),
    // A grant from the queue had less left than its grace.
    (Regime::Brink, 20_000_015, Some(Bug::CalledWithTooLittle)),
    // `max_hold` counted from the wait in a queue and not from the grant.
    (Regime::Brink, 71, Some(Bug::MaxHoldFromWait)),
    // A grant that arrived too late was requested again under the owner that was being released.
    (Regime::Evicting, 20_000_050, Some(Bug::AskedForAsReleased)),
    // A refresh that was answered late returned the little that was left of the lease.
    (Regime::Tiny, 20_000_020, Some(Bug::RefreshedWithTooLittle)),
    // A place granted before its client subscribed missed its notification until its next poll.
    (Regime::Quiet, 1_174_138, Some(Bug::CallMissed)),
    // A notification from before a server was rewound was taken for that of a later place of that number.
    (Regime::Relapsing, 20_010_689, Some(Bug::OldCallBelieved)),
    // A cancelled acquisition was carried out after its undo had been given up.
    (Regime::Lossy, 20_000_021, Some(Bug::ReleaseGivenUp)),
    // A wait without a limit gave up one pause before its patience was over.
    (Regime::Outage, 20_000_024, Some(Bug::PatienceCutShort)),
    // `verify` took an older hold of the same owner, on a server that had gone back, for the guard's.
    (Regime::Relapsing, 24_103, Some(Bug::TokenUnverified)),
    // A grant that arrived just when its request timed out was not requested again, although the wait had
    // no limit.
    (Regime::Brink, 84_665_601, Some(Bug::LateGrantKept)),
    // The end of a hold was not reported to a waiter whose request was older than the release.
    (Regime::Unscripted, 311, Some(Bug::EndTakenForTold)),
    // A waiter whose grant got lost with its reply kept all others out for a lease.
    (Regime::LateMessages, 304, Some(Bug::LostGrantInLine)),
    // The time of the next waiter's request was forgotten while the one before it had a request in flight.
    (Regime::Fleeting, 72_661, Some(Bug::RetryForgotten)),
    // A newcomer whose request was lost waited for a pause that was meant for other processes.
    (Regime::Rush, 608_308_433, None),
    // The oracle counted a hold as ended that a rewound server had again.
    (Regime::Relapsing, 608_867_840, None),
    (Regime::Relapsing, 609_250_077, None),
    // The oracle expected news for an owner that had its guard, or had left, before the server went back.
    (Regime::Relapsing, 636_027_091, None),
    (Regime::Relapsing, 636_602_252, None),
    (Regime::Relapsing, 646_734_695, None),
    // A waiter that had left was passed, and the oracle took a later one of its process for it.
    (Regime::Outage, 641_344_370, None),
];

/// Found with a quorum.
pub const QUORUM: &[Regression] = &[
    // The undo of an earlier attempt was sent after a later one had been granted.
    (Regime::Lossy, 20_000_004, Some(Bug::UndoOutlivesRetry)),
    // A ballot was raised to the old clock of a member that had no ballot.
    (Regime::Quiet, 3, Some(Bug::RaisedTooLittle)),
    // Two clients held the lock after the undo of one.
    (Regime::Parted, 20_000_038, Some(Bug::UndoOutlivesRetry)),
    // `verify` confirmed a hold that no majority had, because the other members were silent.
    (Regime::Rewinding, 20_004_023, Some(Bug::MaybeTakenForHeld)),
    // `try_lock` reported a free lock as busy after a lost reply and refused ballots.
    (Regime::Parted, 20_092_026, Some(Bug::BallotsTakenForHolder)),
    // A hold that was taken over had a lower token than before.
    (Regime::Drifting, 20_011_657, Some(Bug::LowestTokenTaken)),
    // A hold that two processes had renewed at a member, one after the other, stayed there after its release.
    (Regime::Unscripted, 164_414, None),
    // A hold that had been passed on and back was released with the ballots from before that.
    (Regime::Rewinding, 1_106_350, None),
    // A late renewal by the client that had passed a hold on stayed at one member after its release.
    (Regime::Quiet, 2_223_615, None),
    // A member that was silent at a resume got the release only once.
    (Regime::Lossy, 2_071_651, None),
    // Members that had restarted voted too soon for a process whose own leases `max_hold` had clipped.
    (Regime::Rewinding, 14_214, None),
    // The same, after two members had lost everything.
    (Regime::Forgetting, 1_210_043, None),
    // An acquisition in flight while its process passed the hold on and took it back outlived its release.
    (Regime::Lossy, 3_148_411, None),
    // The same at a server that had restarted.
    (Regime::Forgetting, 3_207_518, None),
    // The same after another process had taken it over and released it.
    (Regime::Forgetting, 7_095_908, None),
    // Members that had not answered a request with no time left counted as silent.
    (Regime::Unscripted, 7_132_820, None),
    // A hold that was lost during a resume stayed at the members where the resume had renewed it.
    (Regime::Fleeting, 81_671, Some(Bug::FailedResumeLeaves)),
    // The same, after its caller had dropped the future.
    (Regime::Fleeting, 8_309_940, None),
];

/// Found with a directory.
pub const DIRECTORY: &[Regression] = &[
    // A request that a paused process kept out was refused up to a pause after its time.
    (Regime::Drifting, 20_001_335, Some(Bug::LateRefusal)),
];

/// On etcd and ZooKeeper.
pub const CAS: &[Regression] = &[
    // A re-entry of a process whose lease an operator had ended had an old token.
    (Regime::Forgetting, 854, None),
    // A renewal was answered from a keep-alive that was older than a forced release.
    (Regime::Forgetting, 1_286, None),
    // A lost answer never came to its end in the simulated world.
    (Regime::Tiny, 1_752, None),
    // A renewal waited for the keep-alive of another task, whose answer was lost.
    (Regime::Hiccup, 2_460, None),
    // A renewal waited for a fence of another task, whose answer was lost.
    (Regime::Hiccup, 4_259, Some(Bug::CasKeepAwaited)),
    // The lease of an owner whose longest hold had lapsed was not looked at again.
    (Regime::Hiccup, 3_648, None),
    // The request for a hold that had lapsed took over another hold of its owner.
    (Regime::OnTheDot, 2_085, None),
    // Places that asked for different times were refreshed for the longest, and outlived their session.
    (Regime::Drifting, 29, Some(Bug::CasPlacesExtended)),
    // A place whose number was unknown stayed in its part of the queue when it had lapsed.
    (Regime::Lossy, 6_241, Some(Bug::CasLostPlaceUnread)),
    // A granted place was believed in although its session had ended before.
    (Regime::Drifting, 1_787, None),
    // A hold counted as removed while it moved from the short handle of its place.
    (Regime::Rush, 319, Some(Bug::CasMovingHoldRemoved)),
    // Events of a watch came out of order in the simulated world.
    (Regime::LateMessages, 101_623, None),
    // A detached hold that had lapsed counted beside the next.
    (Regime::Quiet, 100_523, None),
    // A late answer revived a hold that had lapsed, while another request of its client removed it.
    (Regime::Storm, 11_656, None),
    // A place that had lapsed was refreshed without a request, granted by a message, and removed.
    (Regime::Tiny, 14_280, None),
    (Regime::Parted, 30_897, None),
    // An older answer hid that the lease of a holder had ended, and a waiter slept on.
    (Regime::Lossy, 704_405, None),
    // A verification whose answer was lost kept the renewals of its hold waiting until its lease was over.
    (Regime::Hiccup, 500_086, None),
    // A hold was taken over just after its lease had ended.
    (Regime::Fleeting, 24_401, None),
    (Regime::Fleeting, 17_530, None),
    // The same by its own client.
    (Regime::Outage, 701_035, None),
    // A place was bound to a handle that was closed as idle meanwhile.
    (Regime::Rush, 800_978, None),
    // A holder that had died just before a watch opened was waited for.
    (Regime::Slow, 801_553, None),
    // A place that expired in an unread part of its queue was reported gone too early.
    (Regime::Storm, 800_687, None),
    // A re-entry had no time for the conflicts of its writes.
    (Regime::Quiet, 801_499, None),
    // A re-entry lost ten writes in a row to another process of its owner, which has 14 holds.
    (Regime::Rush, 9_100_741, None),
    // A hold whose detach got no answer was kept for as long as a place.
    (Regime::LateMessages, 703_649, None),
    (Regime::Drifting, 700_147, None),
    (Regime::Outage, 704_828, None),
    // A place counted as changed by another request of the same write.
    (Regime::Drifting, 11_201, None),
    (Regime::Lossy, 500_334, None),
    (Regime::Lossy, 503_984, None),
    (Regime::Flapping, 704_153, None),
    // A lease counted as shortened when its hold moved to a session that ends earlier, but not too early.
    (Regime::Quiet, 702_543, None),
    (Regime::Outage, 703_104, None),
    // The same when a place moved.
    (Regime::Forgetting, 22_868, None),
    // A re-entry counted as a second grant of its token, beside a hold of its owner that had just died.
    (Regime::Killing, 910_389, None),
    // A refusal counted as wrong just after the holder had died.
    (Regime::Killing, 925_153, None),
    // A client that had stood still granted a lock to its own waiter, whose place had expired.
    (Regime::Drifting, 1_378, Some(Bug::CasOwnSessionTrusted)),
    // A waiter slept although its owner, in another process, had got the lock from a dead one.
    (Regime::Rush, 14_363, None),
    // Two batches of grants, a free lock, and another grant with the token of the last one.
    (Regime::Slow, 806_886, Some(Bug::CasCountForgotten)),
];

/// On PostgreSQL.
pub const ROWS: &[Regression] = &[
    // A waiter stood behind a grant that was over when its row was written.
    (Regime::Slow, 182, Some(Bug::RowsDeadGrantWritten)),
    // The oracle missed a grant at a step of the clock.
    (Regime::Stepping, 1_000_411, None),
    // A stalled connection for messages had to be noticed before it was probed.
    (Regime::Drifting, 7_770_825, None),
];
