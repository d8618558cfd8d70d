//! Known bugs that a test can switch on, one at a time, to show that the suite catches them; and
//! places at which a test can abort the process.
//!
//! They exist only in builds with `RUSTFLAGS="--cfg tenure_planted"`, which `scripts/test` sets.
//! In every other build each question below is the constant `false`, and the compiler removes it.

/// The mistakes that locks are known to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bug {
    /// The lease is counted from the reply instead of from before the request.
    DeadlineFromReply,
    /// A grant is reported however long its answer took.
    ElapsedIgnored,
    /// No allowance for clocks that run at different speeds.
    NoMargin,
    /// A release deletes what it finds.
    ReleaseWithoutCompare,
    /// A renewal takes a lock that has lapsed.
    RenewalRecreates,
    /// A waiter listens only after it has asked for the last time.
    ListenAfterAsking,
    /// A process that has left a turn to others asks as soon as they do.
    NeverYields,
    /// A renewal that failed moves the deadline all the same.
    FailedRenewalExtends,
    /// A waiter that leaves takes the wake-up with it that was meant for the next.
    WakeSwallowed,
    /// A dropped acquisition leaves behind what it may have been granted.
    DropLeaves,
    /// The first hold of an owner that is released releases what others of its holds share.
    OneEndsAll,
    /// A loss is told to one of the holds that share it.
    LossToldToOne,
    /// A hold is detached although others share it.
    SharedDetached,
    /// A lease whose time is over is reported lost only when the store says so.
    LossUnannounced,
    /// A re-entry gets its own token.
    ReentryBumpsToken,
    /// A repeated re-entry is counted again.
    RepeatCountsTwice,
    /// A re-entry sets the lease again even if that shortens it.
    ReentryShortens,
    /// The first that waits is taken for one that holds.
    RankOffByOne,
    /// A release that does not find its hold removes another's.
    ReleaseOfAnother,
    /// A refresh revives a place that has lapsed.
    LapsedWaiterRevived,
    /// A waiter whose client has not said that it listens is removed when it is called and not
    /// heard.
    ListeningIgnored,
    /// A waiter is let in whether a client hears that it is called or not.
    NobodyCalled,
    /// A waiter says that it listens from its first request on, before it does.
    ListensTooSoon,
    /// A client stops listening for a place that it asked for, when no answer comes in time.
    NewcomerLeaves,
    /// A waiter that leaves lets no client in.
    LeaverPromotesNobody,
    /// Promotion counts tickets instead of weight.
    WeightIgnored,
    /// A downgrade lets no client in.
    DowngradeWakesNobody,
    /// A reader becomes a writer while others read.
    UpgradeBesideReaders,
    /// What fits once more may hold is not let in.
    ResizeWakesNobody,
    /// A pushed grant counts from when it was received.
    PushFromReceipt,
    /// A pushed grant is believed by the client that waits, regardless of its number.
    PushOfAnotherLife,
    /// Those who wait are told before the lock is free: when its release is queued, and not when it
    /// is sent. And
    /// [`EndTakenForTold`](Self::EndTakenForTold), without which that costs no more than a
    /// question.
    WakeBeforeWrite,
    /// A hold that was found by a question before its release is not expected to end any more.
    EndTakenForTold,
    /// A release that finds nothing to release says that it has released.
    LossTakenForRelease,
    /// Half of the members of a quorum are taken for a majority.
    MinorityRules,
    /// What got no majority is given back only where it is known to have been granted.
    UndoOfGrantsOnly,
    /// What an earlier try may have left on a quorum is given back also when it was asked for again
    /// since, regardless of its ballot.
    UndoOutlivesRetry,
    /// A member of a quorum votes that has just started, and may have forgotten a lease.
    NewcomersVote,
    /// Each member of a quorum draws a token, and the highest counts.
    TokensByCounter,
    /// What got no majority is given back once, and where that is not answered, no more.
    UndoneOnce,
    /// A node of a quorum keeps a ballot for no time at all.
    BallotForgotten,
    /// A counter of tokens is kept for no time at all.
    CounterForgotten,
    /// A pair of plain commands takes a number for a token that is not above all that were known.
    PairUncounted,
    /// It does not read the holder.
    PairUnread,
    /// It comes before a script has raised the counter.
    PairUnraised,
    /// What the script refuses after it is not given back.
    PairLeftBehind,
    /// The answer for the first of many renewals is taken for that of all.
    OneRenewedForAll,
    /// One lock of many that is gone is taken for all of them.
    PartTakenForAll,
    /// Whether a hold is still there that is not renewed is asked once, also where no answer came.
    QuestionGivenUp,
    /// That a request has stopped at its bound is taken for its answer, where it was one of many.
    BoundTakenForAnswer,
    /// A write of unknown outcome is followed by others with no fence between them.
    CasUnfenced,
    /// What is bound to a handle that is gone counts as living.
    CasDeathIgnored,
    /// A conflict of two writes is answered as a busy lock.
    CasConflictIsBusy,
    /// A watch of a lock begins after the look at it.
    CasWatchAfterLook,
    /// A write compares no version.
    CasUncompared,
    /// What was read of a line is taken for all of it.
    CasFrontIsAll,
    /// The handle of another hold is asked for whether it lives.
    CasHandleOfAnother,
    /// A hold whose time is over is taken out beside a request of its owner, which may have made it
    /// longer.
    CasTakenOutBeside,
    /// A new connection to PostgreSQL is used without ending the one before it on the server.
    PostgresBeforeNotEnded,
    /// A row that another client has changed is answered as a busy lock.
    PostgresConflictIsBusy,
    /// A subscription is confirmed before its row says that a client listens.
    PostgresHeardTooSoon,
    /// A row is told once that a client listens, and not again when that is over.
    PostgresListensOnce,
    /// What was said while the connection that listens was cut is not asked about.
    PostgresMissedUnsaid,
    /// A hold has lapsed and is kept, because a transaction has checked in another of its lock. Its
    /// owner is told that it is extended, and the row does not say so.
    PostgresExtendedUnwritten,
    /// A request that stands behind another shows nothing of a connection that is silent.
    PostgresSilenceUnseen,
    /// A hold that a transaction may have checked in is taken for any other.
    PostgresCheckInForgotten,
    /// The same where its own release lets in the next.
    PostgresHandOverUnseen,
    /// No allowance for stores that count whole milliseconds.
    NoRounding,
    /// The loss of a lease is not announced early.
    NoGrace,
    /// A waiter called from a queue begins with what its place has left.
    CalledWithTooLittle,
    /// No pause between an attempt to renew that failed and the next.
    NoRetryPause,
    /// A renewal that finds the hold gone is taken for one that was not answered.
    RefusalIgnored,
    /// A re-entry stands in line behind those who wait for its owner to let go.
    ReentryInLine,
    /// Who may come in again is not asked for when its owner has just been let in.
    SecondHoldForgotten,
    /// The end of an owner's hold is taken for told when another of its holds has ended here. And
    /// [`EndTakenForTold`](Self::EndTakenForTold), without which that costs no more than a
    /// question.
    EndOfAnotherForgotten,
    /// A release is given up when the lease that it is for is over.
    ReleaseGivenUp,
    /// A detach that is dropped leaves its hold counted for no client.
    DetachLeaves,
    /// `max_hold` counts from before a waiter's turn in a queue.
    MaxHoldFromWait,
    /// What is being released is asked for again under the same owner.
    AskedForAsReleased,
    /// A waiter that learns of its turn by a refresh begins with what that has left.
    RefreshedWithTooLittle,
    /// A place that may have been called before messages were heard is asked about only when it is
    /// due.
    CallMissed,
    /// A call is believed of a place that is younger than it.
    OldCallBelieved,
    /// Who comes into a line and got no answer lets all in it say that the store is silent.
    SilenceOfOne,
    /// A wait in a queue gives up before its patience is over, by one pause.
    PatienceCutShort,
    /// A reentrant guard is verified by its owner alone.
    TokenUnverified,
    /// A grant that is answered when its question is over is handed out, however little of it is
    /// left.
    LateGrantKept,
    /// An allowance for rounding alone.
    NoDrift,
    /// No pause between questions that are not answered.
    NoBackoff,
    /// A place is refreshed when its time is over.
    RefreshedTooLate,
    /// A lease is renewed when it is over.
    RenewedTooLate,
    /// A first lease that is shorter than it should be is not renewed soon.
    NeverWhole,
    /// A call that is heard before its waiter is there is forgotten.
    EarlyCallForgotten,
    /// A waiter in line, and was granted it in an answer that got lost, is asked for when it is
    /// its turn.
    LostGrantInLine,
    /// Messages that were missed are not asked about when they are heard again.
    ReconnectIgnored,
    /// What was said before a subscription was there is not asked about.
    OpenIgnored,
    /// Who could not subscribe does not try again.
    NeverListensAgain,
    /// Who is to be told sleeps beyond the end of the holder's lease.
    EndNotAwaited,
    /// Who is to be told sleeps to the end of the holder's lease, however long that is.
    NoCap,
    /// Members of a quorum that do not answer are taken to show that the client that asks holds.
    MaybeTakenForHeld,
    /// Ballots that stood in the way on a quorum are taken for a holder.
    BallotsTakenForHolder,
    /// What a minority of a quorum says of the end of a hold is not passed on.
    MinorityUnheard,
    /// A node of a quorum without a ballot answers as if it had seen one at its clock.
    NoBallotBehind,
    /// A node of a quorum refuses every ballot above its clock.
    NoBallotAhead,
    /// A hold that is taken over on a quorum gets the lowest token that a member shows.
    LowestTokenTaken,
    /// A ballot is raised just above what stood in its way on a quorum, also where that is a clock.
    RaisedTooLittle,
    /// A hold of a quorum that is lost when it is to be taken over stays where that has renewed it.
    FailedResumeLeaves,
    /// What a process had that died counts in a directory until its lease is over.
    DeathIgnored,
    /// That a process has ended is not heard of in a directory.
    DeathUnheard,
    /// What another process has changed in a directory is not heard of.
    ChangeUnheard,
    /// A process that was called because a mutex in a directory is free, and finds it taken, is not
    /// called again.
    CalledInVainLeft,
    /// Who comes to the front of those who wait for a mutex in a directory does not watch those
    /// ahead of it.
    NearUntold,
    /// Who is kept out of a directory is told so at the end of a pause, and not at that of its
    /// time.
    LateRefusal,
    /// A queue is kept until the first of its places lapses, and not until the last.
    KeyEndsFirst,
    /// The first in a queue does not ask when a client's lease is over.
    FirstDoesNotAsk,
    /// An attempt to renew takes as long as any question may.
    LongAttempts,
    /// When the next in a queue is to ask is forgotten if that time comes while the first is being
    /// asked about.
    RetryForgotten,
    /// A grant that is handed out after a break in the connection that came after its request is
    /// not asked about.
    GrantUnverified,
    /// A renewal that failed is repeated after a share of the `ttl`, however little is left of the
    /// lease.
    RetriesByTtl,
    /// A renewal beside the request that detaches a hold takes it for lost.
    DetachedTakenForLost,
    /// A request that has swept as many dead places as it may does not say so.
    SweepStops,
    /// A request that has let in as many waiters as it may does not say so.
    LettingInStops,
    /// A record is written by a client that does not hold its lock.
    RecordOfAnyone,
    /// The window of a job is told by the clock of the host that asks.
    WindowFromClient,
    /// An observer is told of the newest change only.
    TermSkipped,
    /// A leader is told that it leads until it resigns, also when its lease is over.
    LeaderToldLate,
    /// A holder does not hear that its hold is ended by force.
    ForcedUnheard,
    /// A message that a hold may have ended ends it, and the store is not asked.
    MessageEndsHold,
    /// The store is asked about a hold at each message that it may have ended.
    EachMessageAsks,
    /// A request that its caller gave up is taken for one that will never be carried out.
    GivenUpForgotten,
    /// The reply to a request whose caller has left is taken for that to the next one.
    ReplyOfAnother,
    /// The slot of a request whose caller has left is reused under the same generation.
    SlotReusedEarly,
    /// Requests are written although the connection was closed.
    WriteAfterHangUp,
    /// A request of a connection that has ended counts as never sent, and is repeated.
    EndTakenForUnsent,
    /// A connection that answers nothing any more is kept.
    SilenceUnnoticed,
    /// A push is taken for the reply to a request.
    PushTakenForReply,
}

impl Bug {
    /// All of them, but those of stores by compare-and-swap and of PostgreSQL, which have schedules
    /// of their own, and those of connections to Redis, which `tests/sim/callers.rs`,
    /// `tests/sim/redis_bytes.rs` and the tests of the multiplexer find.
    pub const ALL: [Self; 111] = [
        Self::DeadlineFromReply,
        Self::ElapsedIgnored,
        Self::NoMargin,
        Self::ReleaseWithoutCompare,
        Self::RenewalRecreates,
        Self::ListenAfterAsking,
        Self::NeverYields,
        Self::FailedRenewalExtends,
        Self::WakeSwallowed,
        Self::DropLeaves,
        Self::OneEndsAll,
        Self::LossToldToOne,
        Self::SharedDetached,
        Self::LossUnannounced,
        Self::ReentryBumpsToken,
        Self::RepeatCountsTwice,
        Self::ReentryShortens,
        Self::RankOffByOne,
        Self::ReleaseOfAnother,
        Self::LapsedWaiterRevived,
        Self::LeaverPromotesNobody,
        Self::ListeningIgnored,
        Self::NobodyCalled,
        Self::ListensTooSoon,
        Self::NewcomerLeaves,
        Self::WeightIgnored,
        Self::DowngradeWakesNobody,
        Self::UpgradeBesideReaders,
        Self::ResizeWakesNobody,
        Self::PushFromReceipt,
        Self::PushOfAnotherLife,
        Self::WakeBeforeWrite,
        Self::EndTakenForTold,
        Self::LossTakenForRelease,
        Self::MinorityRules,
        Self::UndoOfGrantsOnly,
        Self::UndoOutlivesRetry,
        Self::NewcomersVote,
        Self::TokensByCounter,
        Self::UndoneOnce,
        Self::BallotForgotten,
        Self::CounterForgotten,
        Self::PairUncounted,
        Self::PairUnread,
        Self::PairUnraised,
        Self::PairLeftBehind,
        Self::OneRenewedForAll,
        Self::PartTakenForAll,
        Self::BoundTakenForAnswer,
        Self::QuestionGivenUp,
        Self::NoRounding,
        Self::NoGrace,
        Self::CalledWithTooLittle,
        Self::NoRetryPause,
        Self::RefusalIgnored,
        Self::ReentryInLine,
        Self::SecondHoldForgotten,
        Self::EndOfAnotherForgotten,
        Self::ReleaseGivenUp,
        Self::DetachLeaves,
        Self::MaxHoldFromWait,
        Self::AskedForAsReleased,
        Self::RefreshedWithTooLittle,
        Self::CallMissed,
        Self::OldCallBelieved,
        Self::SilenceOfOne,
        Self::PatienceCutShort,
        Self::TokenUnverified,
        Self::LateGrantKept,
        Self::NoDrift,
        Self::NoBackoff,
        Self::RefreshedTooLate,
        Self::RenewedTooLate,
        Self::NeverWhole,
        Self::EarlyCallForgotten,
        Self::LostGrantInLine,
        Self::ReconnectIgnored,
        Self::OpenIgnored,
        Self::NeverListensAgain,
        Self::EndNotAwaited,
        Self::NoCap,
        Self::MaybeTakenForHeld,
        Self::BallotsTakenForHolder,
        Self::MinorityUnheard,
        Self::NoBallotBehind,
        Self::NoBallotAhead,
        Self::LowestTokenTaken,
        Self::RaisedTooLittle,
        Self::FailedResumeLeaves,
        Self::DeathIgnored,
        Self::DeathUnheard,
        Self::ChangeUnheard,
        Self::CalledInVainLeft,
        Self::NearUntold,
        Self::LateRefusal,
        Self::KeyEndsFirst,
        Self::FirstDoesNotAsk,
        Self::LongAttempts,
        Self::RetryForgotten,
        Self::GrantUnverified,
        Self::RetriesByTtl,
        Self::DetachedTakenForLost,
        Self::SweepStops,
        Self::LettingInStops,
        Self::RecordOfAnyone,
        Self::WindowFromClient,
        Self::TermSkipped,
        Self::LeaderToldLate,
        Self::ForcedUnheard,
        Self::MessageEndsHold,
        Self::EachMessageAsks,
    ];
}

#[cfg(tenure_planted)]
mod switch {
    use std::cell::Cell;
    use std::process::abort;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::Bug;

    thread_local! {
        static ON: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Whether this bug is switched on for this thread.
    pub fn planted(bug: Bug) -> bool {
        ON.get().is_some_and(|on| on == bug || on.includes() == Some(bug))
    }

    impl Bug {
        /// A second bug that is on with this one, because this one alone costs only a request.
        fn includes(self) -> Option<Self> {
            matches!(self, Self::WakeBeforeWrite | Self::EndOfAnotherForgotten)
                .then_some(Self::EndTakenForTold)
        }
    }

    /// Switches one bug on, or all off, for what runs on this thread.
    pub fn plant(bug: Option<Bug>) {
        ON.set(bug);
    }

    /// How many crash points this process still passes, and one more.
    static LEFT: AtomicU64 = AtomicU64::new(u64::MAX);

    /// A place at which the process may be aborted: see [`crash_after`].
    pub fn crash_point() {
        if LEFT.load(Ordering::Relaxed) < u64::MAX && LEFT.fetch_sub(1, Ordering::Relaxed) == 0 {
            abort();
        }
    }

    /// Ends this process at one of the places at which the system may end it: after it has passed
    /// so many.
    pub fn crash_after(points: u64) {
        LEFT.store(points, Ordering::Relaxed);
    }
}

#[cfg(tenure_planted)]
pub use switch::{crash_after, plant};
#[cfg(tenure_planted)]
pub use switch::{crash_point, planted};

/// Whether this bug is switched on: never in this build.
#[cfg(not(tenure_planted))]
pub const fn planted(_: Bug) -> bool {
    false
}

/// Between two things that others can see of this process: here it may be killed.
#[cfg(not(tenure_planted))]
pub const fn crash_point() {}
