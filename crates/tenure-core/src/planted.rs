//! Known bugs that a test can enable, one at a time, to prove that the test suite catches them; and crash
//! points at which a test can abort the process.
//!
//! They exist only in builds with `RUSTFLAGS="--cfg tenure_planted"`, which `scripts/test` sets. In every
//! other build [`planted`] is the constant `false`, and the compiler removes the code.

/// Defines the bugs, and the list of them all.
macro_rules! bugs {
    ($($(#[$doc:meta])* $bug:ident,)*) => {
        /// Known mistakes of lock implementations. Each variant describes the faulty behaviour.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Bug {
            $($(#[$doc])* $bug,)*
        }

        impl Bug {
            /// All bugs. A test of the simulation fails for one that no test catches.
            pub const ALL: &'static [Self] = &[$(Self::$bug),*];
        }
    };
}

bugs! {
    /// The lease is counted from the reply instead of from before the request.
    DeadlineFromReply,
    /// A grant is reported no matter how long its answer took.
    ElapsedIgnored,
    /// The safety margin for clock drift and rounding is zero.
    NoMargin,
    /// A release deletes the key without comparing the owner.
    ReleaseWithoutCompare,
    /// A renewal recreates an expired lock.
    RenewalRecreates,
    /// A waiter subscribes only after its last request.
    ListenAfterAsking,
    /// A process that should yield to other processes retries as soon as they do.
    NeverYields,
    /// A failed renewal still extends the local deadline.
    FailedRenewalExtends,
    /// A waiter that leaves swallows the wake-up meant for the next one.
    WakeSwallowed,
    /// The only waiter asks for itself while a request for it is under way.
    SoleAskedTwice,
    /// A dropped acquisition does not release what it may have been granted.
    DropLeaves,
    /// Releasing one of an owner's holds releases the lease that its other holds share.
    OneEndsAll,
    /// Only one of the holds that share a lease learns of its loss.
    LossToldToOne,
    /// A hold is detached although others share its lease.
    SharedDetached,
    /// An expired lease is reported lost only once the store says so.
    LossUnannounced,
    /// A re-entry gets a new token.
    ReentryBumpsToken,
    /// A repeated re-entry is counted twice.
    RepeatCountsTwice,
    /// A re-entry may shorten the lease.
    ReentryShortens,
    /// The head of the queue is treated as a holder.
    RankOffByOne,
    /// A release that does not find its hold removes another owner's.
    ReleaseOfAnother,
    /// A refresh revives an expired place.
    LapsedWaiterRevived,
    /// A waiter that is not marked as listening is removed when its wake-up reaches no subscriber.
    ListeningIgnored,
    /// A waiter is admitted even if its wake-up reaches no subscriber.
    NobodyCalled,
    /// A place that is kept for long because its client listens is kept so when it is granted.
    GrantedForLong,
    /// A place that was kept for long is kept so although its client no longer listens.
    PlaceKeptUnheard,
    /// A waiter claims to listen from its first request on, before it has subscribed.
    ListensTooSoon,
    /// A waiter that leaves promotes nobody.
    LeaverPromotesNobody,
    /// Promotion counts tickets instead of weight.
    WeightIgnored,
    /// A downgrade promotes nobody.
    DowngradeWakesNobody,
    /// An upgrade succeeds while other readers hold.
    UpgradeBesideReaders,
    /// Raising the capacity promotes nobody.
    ResizeWakesNobody,
    /// A pushed grant is counted from its receipt.
    PushFromReceipt,
    /// A waiter accepts any pushed grant, regardless of its number.
    PushOfAnotherLife,
    /// Waiters of the same process are woken when a release is queued rather than when it is sent. Includes
    /// [`EndTakenForTold`](Self::EndTakenForTold), without which it costs only a request.
    WakeBeforeWrite,
    /// A waiter that saw a hold before its release no longer expects it to end.
    EndTakenForTold,
    /// A release that finds no hold reports success.
    LossTakenForRelease,
    /// Half of a quorum's members count as a majority.
    MinorityRules,
    /// An acquisition without a majority is undone only on members known to have granted it.
    UndoOfGrantsOnly,
    /// The undo of an earlier attempt on a quorum also undoes a newer attempt, regardless of its ballot.
    UndoOutlivesRetry,
    /// A quorum member votes right after a restart, although it may have forgotten a lease.
    NewcomersVote,
    /// Each quorum member assigns its own token, and the highest one counts.
    TokensByCounter,
    /// The undo of an acquisition without a majority is not retried.
    UndoneOnce,
    /// A quorum node forgets its ballot at once.
    BallotForgotten,
    /// A token counter is forgotten at once.
    CounterForgotten,
    /// A grant by a pair of plain commands uses a token that is not above all known ones.
    PairUncounted,
    /// The pair does not check the holder.
    PairUnread,
    /// The pair is used before a script has raised the counter.
    PairUnraised,
    /// The pair's grant is not undone when the script that follows rejects it.
    PairLeftBehind,
    /// A release by plain commands deletes a hold that has become a queue since.
    PairQueueDeleted,
    /// The number of a bare hold, and those of the waiters behind it, are drawn from the clock alone.
    NumberBelowToken,
    /// A bare hold that gets a number keeps no lease.
    LeaseOfBareForgotten,
    /// The answer to the first of several batched renewals is used for all.
    OneRenewedForAll,
    /// One lost lock of a batch counts as the loss of all.
    PartTakenForAll,
    /// A hold that is not renewed is checked once, with no retry if no answer arrives.
    QuestionGivenUp,
    /// In a batch, the marker that a request reached its work limit is taken for its answer.
    BoundTakenForAnswer,
    /// A write of unknown outcome is followed by others without a write barrier.
    CasNoBarrier,
    /// A marker that was written again counts as unchanged.
    CasOneKeyRenewalUnseen,
    /// Holds bound to a session that no longer exists count as alive.
    CasDeathIgnored,
    /// A write conflict is answered as a busy lock.
    CasConflictIsBusy,
    /// A watch of a lock starts only after the read.
    CasWatchAfterLook,
    /// A write does not compare the version.
    CasUncompared,
    /// The part of the queue that was read is treated as the whole queue.
    CasFrontIsAll,
    /// The liveness check asks about a different session.
    CasSessionOfAnother,
    /// An answer extends an expired hold, which another request of this client may be removing.
    CasLapsedConfirmed,
    /// The acquisition of a hold that has expired, and not been removed yet, is confirmed by no write.
    TxnLapsedUnwritten,
    /// An expired place with an unknown number is removed without reading the parts of its queue.
    CasLostPlaceUnread,
    /// The request for an expired hold takes over a detached hold of the same owner.
    CasExpiredTakesDetached,
    /// Places that asked for different times are refreshed together for the longest.
    CasPlacesExtended,
    /// A hold is moved from a session that is gone, though it has expired.
    CasExpiredMoved,
    /// A hold whose detach got no answer is kept for no longer than a place.
    CasDetachedIsPlace,
    /// A holder that died just before a watch opened counts as alive, because it was when last seen.
    CasDeathBeforeWatch,
    /// An answer from before the end of a session hides that it is gone.
    CasGoneRevived,
    /// A client's own session counts as alive although the client did not keep it alive in time.
    CasOwnSessionTrusted,
    /// Waiters do not learn that a reentrant mutex went from a dead owner to another in one write.
    CasNewOwnerUntold,
    /// A renewal waits for a request of another task, whose answer may be lost.
    CasKeepAwaited,
    /// A free lock loses its key although its numbers are ahead of its versions.
    CasCountForgotten,
    /// A place is taken for kept although its session was not.
    CasPlaceUnproven,
    /// Places of other clients count as expired.
    CasLivingPassed,
    /// A hold that was granted to a waiter is renewed by the short session of its place.
    CasShortLeaseUnderHold,
    /// A granted place counts as removed while its hold moves to another session.
    CasMovingHoldRemoved,
    /// A new PostgreSQL connection is used without first terminating the previous one on the server.
    RowsBeforeNotEnded,
    /// A row changed by another client is answered as a busy lock.
    RowsConflictIsBusy,
    /// A subscription is confirmed before the row says that a client listens.
    RowsHeardTooSoon,
    /// A row records once that a client listens, and this is not refreshed when it expires.
    RowsListensOnce,
    /// Notifications missed while the listening connection was down are not made up for by a request.
    RowsMissedUnsaid,
    /// An expired hold is kept because a transaction has checked in another hold of its lock; its owner is
    /// told that it was extended, but the row is not updated.
    RowsExtendedUnwritten,
    /// A queued request does not reveal that the connection is silent.
    RowsSilenceUnseen,
    /// A hold that a transaction may have checked in is treated like any other.
    RowsCheckInForgotten,
    /// The same when its own release admits the next waiter.
    RowsHandOverUnseen,
    /// A waiter is admitted although its session has ended.
    RowsSessionUnseen,
    /// A waiter is passed although its client has a new session since its old one was found ended.
    RowsSessionReplaced,
    /// A place that is kept for long because its client has a session keeps that lease when it is granted.
    PlaceGrantedForLong,
    /// Requests of a batch whose reply was lost count as not carried out.
    RowsBatchLossRefused,
    /// A write that grants a lock need not reach the disk.
    RowsGrantNotDurable,
    /// A statement of a batch makes rows in any order.
    RowsOutOfOrder,
    /// A renewal that changes nothing is answered from memory.
    TxnMemoryAnswers,
    /// Only the first waiter is told when to ask.
    RowsHeadAloneAsks,
    /// The first waiter is not told that it is that now.
    RowsFirstUntold,
    /// A place that was kept for long is kept so although its client has no session any more.
    PlaceKeptUntold,
    /// A waiter takes the time for which its place is kept for the lease of a grant.
    KeptPlaceBelieved,
    /// A waiter whose messages have ended refreshes a place that is kept for long as if they went on.
    PlaceRefreshedLateUnheard,
    /// The row that names a session is kept when the session is no longer needed.
    RowsSessionKept,
    /// A write that was late is taken for one that an open transaction kept out.
    RowsLateTakenForCheckIn,
    /// A row is written although the lease that it grants is over by then.
    RowsDeadGrantWritten,
    /// No margin for stores that count whole milliseconds.
    NoRounding,
    /// The loss of a lease is not announced ahead of its end.
    NoGrace,
    /// A waiter woken from a queue starts with the remaining lease of its place, however short.
    CalledWithTooLittle,
    /// A failed renewal is retried without a pause.
    NoRetryPause,
    /// A renewal that finds the hold gone is treated as unanswered.
    RefusalIgnored,
    /// A re-entry queues behind waiters that wait for its owner to release.
    ReentryInLine,
    /// When an owner has just been admitted, its other waiting holds are not requested.
    SecondHoldForgotten,
    /// The end of an owner's hold counts as known when another of its holds has ended in this process.
    /// Includes [`EndTakenForTold`](Self::EndTakenForTold), without which it costs only a request.
    EndOfAnotherForgotten,
    /// A release is abandoned when its lease expires.
    ReleaseGivenUp,
    /// A dropped detach leaves its hold counted but owned by no client.
    DetachLeaves,
    /// `max_hold` counts from before the waiter was admitted.
    MaxHoldFromWait,
    /// A lock is requested again under the owner whose release is still in flight.
    AskedForAsReleased,
    /// A waiter granted by a refresh starts with the remaining lease, however short.
    RefreshedWithTooLittle,
    /// A place that may have been woken before the subscription was open is not checked until its next
    /// refresh.
    CallMissed,
    /// A wake-up is accepted for a place that is newer than the wake-up.
    OldCallBelieved,
    /// One unanswered newcomer makes the whole local queue report that the store is silent.
    SilenceOfOne,
    /// A queued wait gives up one pause before its time limit.
    PatienceCutShort,
    /// A reentrant guard is verified by owner alone, without its token.
    TokenUnverified,
    /// A grant whose answer arrives at the timeout of its request is handed out, however little of it is
    /// left.
    LateGrantKept,
    /// A limit shorter than a round trip also limits the first request, which then gets no answer.
    FirstTryCutShort,
    /// The safety margin covers rounding but not clock drift.
    NoDrift,
    /// Unanswered requests are retried without backoff.
    NoBackoff,
    /// A place is refreshed only when it has expired.
    RefreshedTooLate,
    /// A lease is renewed only when it has expired.
    RenewedTooLate,
    /// A first lease that is shorter than its ttl is not renewed soon.
    NeverWhole,
    /// A wake-up that arrives before its waiter is registered is dropped.
    EarlyCallForgotten,
    /// A waiter whose grant was lost with its answer is retried only when it reaches the head of the local
    /// queue.
    LostGrantInLine,
    /// No request makes up for messages missed while the subscription was interrupted.
    ReconnectIgnored,
    /// No request makes up for messages sent before the subscription was open.
    OpenIgnored,
    /// A failed subscription is not retried.
    NeverListensAgain,
    /// A subscribed waiter sleeps past the end of the holder's lease.
    EndNotAwaited,
    /// A waiter sleeps until the end of the holder's lease, without a cap.
    NoCap,
    /// Unanswered quorum members count as evidence that the requesting client holds.
    MaybeTakenForHeld,
    /// Competing ballots on a quorum count as a holder.
    BallotsTakenForHolder,
    /// A notification from a minority of a quorum that a hold has ended is not passed on.
    MinorityUnheard,
    /// A quorum node without a ballot assumes one equal to its clock.
    NoBallotBehind,
    /// A quorum node rejects every ballot above its clock.
    NoBallotAhead,
    /// A hold resumed on a quorum gets the lowest token that a member reports.
    LowestTokenTaken,
    /// A ballot is raised only just above its competitor on a quorum, even where that is a clock.
    RaisedTooLittle,
    /// A hold on a quorum that turns out lost while being resumed stays on the members where the resume
    /// renewed it.
    FailedResumeLeaves,
    /// Holds of a dead process count in a directory until their leases expire.
    DeathIgnored,
    /// The end of a process goes unnoticed in a directory.
    DeathUnheard,
    /// A change by another process goes unnoticed in a directory.
    ChangeUnheard,
    /// A process that was woken for a free mutex in a directory, but finds it taken, is not woken again.
    CalledInVainLeft,
    /// A waiter that gets near the head for a mutex in a directory does not watch the waiters ahead of it.
    NearUntold,
    /// A request that cannot get access to a directory fails at the end of a pause instead of at its timeout.
    LateRefusal,
    /// The key of a queue expires with its first place instead of its last.
    KeyEndsFirst,
    /// The head of a queue does not retry when a lease expires.
    FirstDoesNotAsk,
    /// A renewal attempt has the timeout of an ordinary request.
    LongAttempts,
    /// The retry time of a queue is lost if it falls due while the head is being checked.
    RetryForgotten,
    /// A grant is not verified if the connection broke between its request and its delivery.
    GrantUnverified,
    /// A failed renewal is retried after a share of the `ttl`, however little is left of the lease.
    RetriesByTtl,
    /// A renewal concurrent with the detach of its hold reports the hold lost.
    DetachedTakenForLost,
    /// A request that reaches its sweep limit does not say so.
    SweepStops,
    /// A request that reaches its promotion limit does not say so.
    LettingInStops,
    /// A client that does not hold the lock writes its record.
    RecordOfAnyone,
    /// The window of a job is determined by the client's clock.
    WindowFromClient,
    /// A job may run again in the window of its last run.
    WindowRepeats,
    /// The record of a run is written only when it ends.
    RecordedAfterRun,
    /// A run by hand that fails reopens a window that was closed.
    AgainReopens,
    /// An observer receives only the newest change.
    TermSkipped,
    /// A leader reports that it leads until it resigns, even after its lease has expired.
    LeaderToldLate,
    /// A holder does not learn that its hold was ended by force.
    ForcedUnheard,
    /// A message that a hold may have ended ends it without a check of the store.
    MessageEndsHold,
    /// Each message that a hold may have ended causes a check, without a rate limit.
    EachMessageAsks,
    /// A request abandoned by its caller is treated as never carried out.
    GivenUpForgotten,
    /// The reply to a request whose caller has left is delivered to the next request.
    ReplyOfAnother,
    /// The slot of a request whose caller has left is reused without a new generation.
    SlotReusedEarly,
    /// Requests are written to a closed connection.
    WriteAfterHangUp,
    /// A request in flight on a dropped connection counts as never sent, and is retried.
    EndTakenForUnsent,
    /// A connection that no longer answers is kept.
    SilenceUnnoticed,
    /// A push message is taken for the reply to a request.
    PushTakenForReply,
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

    /// Whether this bug is enabled on this thread.
    pub fn planted(bug: Bug) -> bool {
        ON.get().is_some_and(|on| on == bug || on.includes() == Some(bug))
    }

    impl Bug {
        /// A second bug that this one includes, because alone it costs only a request.
        fn includes(self) -> Option<Self> {
            matches!(self, Self::WakeBeforeWrite | Self::EndOfAnotherForgotten)
                .then_some(Self::EndTakenForTold)
        }
    }

    /// Enables one bug, or none, on this thread.
    pub fn plant(bug: Option<Bug>) {
        ON.set(bug);
    }

    /// Crash points left before the process aborts.
    static LEFT: AtomicU64 = AtomicU64::new(u64::MAX);

    /// A point at which the process may be aborted: see [`crash_after`].
    pub fn crash_point() {
        if LEFT.load(Ordering::Relaxed) < u64::MAX && LEFT.fetch_sub(1, Ordering::Relaxed) == 0 {
            abort();
        }
    }

    /// Makes this process abort at a crash point, after it has passed `points` others.
    pub fn crash_after(points: u64) {
        LEFT.store(points, Ordering::Relaxed);
    }
}

#[cfg(tenure_planted)]
pub use switch::{crash_after, plant};
#[cfg(tenure_planted)]
pub use switch::{crash_point, planted};

/// Whether this bug is enabled: never in this build.
#[cfg(not(tenure_planted))]
pub const fn planted(_: Bug) -> bool {
    false
}

/// A point between two externally visible steps at which a test may kill the process. Does nothing in this
/// build.
#[cfg(not(tenure_planted))]
pub const fn crash_point() {}
