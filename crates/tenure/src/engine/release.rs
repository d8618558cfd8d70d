//! Releases: compare and delete, then wake. Retried until answered or until nothing is left to release, in
//! the background if necessary.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::call::Call;
use super::grant::Lease;
use super::pending_releases::PendingRelease;
use super::{Engine, backoff};
use crate::events::{event, millis, text};
use crate::metrics::Meter;
use crate::moment::Moment;
use crate::name::LockName;
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Fence, Liveness, LockSpec, ReleaseScope, Verb};
use crate::store::Failure;
use futures_util::future::FutureExt;

/// Minimum time for which a release is retried, even past the end of its lease: another hold of the owner may
/// still be renewed, or a stalled store may execute an earlier request late.
const SILENCE: Duration = Duration::from_secs(60);

/// A release in progress. If dropped before the answer, it continues in the background.
#[must_use = "it releases when it is dropped"]
pub(super) struct Release {
    engine: Arc<Engine>,
    name: LockName,
    spec: LockSpec,
    owner: Owner,
    hold: u64,
    /// When nothing is left to release.
    over_at: Moment,
    /// The counters of a hold that the caller had, and how long it was held.
    held: Option<(Meter, Duration)>,
    pub(super) attempts: u32,
    /// The hold may have been detached. It is bound again first, because only a bound hold can be released.
    rebinds: bool,
    /// Detaches a hold that a resume may have taken over.
    detaches: bool,
    /// An attempt was sent whose outcome is unknown.
    unknown: bool,
    done: bool,
}

impl Release {
    /// The release of this hold.
    pub(super) fn to(engine: &Arc<Engine>, lease: &Lease, now: Moment) -> Self {
        let over_at = lease.over_at();
        let mut pending = Self::new(engine, &lease.name, lease.spec, &lease.owner, lease.hold, over_at, now);
        pending.held = lease.held_for(now).map(|held| (lease.meter, held));
        pending.rebinds = lease.may_be_detached() && !planted(Bug::DetachLeaves);
        if planted(Bug::WakeBeforeWrite) {
            pending.ask_soon();
        }
        pending
    }

    pub(super) fn new(
        engine: &Arc<Engine>,
        name: &LockName,
        spec: LockSpec,
        owner: &Owner,
        hold: u64,
        over_at: Moment,
        now: Moment,
    ) -> Self {
        let (engine, name, owner) = (Arc::clone(engine), name.clone(), owner.clone());
        let silence = if planted(Bug::ReleaseGivenUp) { Duration::ZERO } else { SILENCE };
        let over_at = over_at.max(now + silence);
        let (attempts, rebinds, detaches, unknown, done) = (0, false, false, false, false);
        let held = None;
        Self { engine, name, spec, owner, hold, over_at, held, attempts, rebinds, detaches, unknown, done }
    }

    /// Detaches the hold of a failed resume again, unless [cancelled](Self::cancel).
    pub(super) fn of_resumed(
        engine: &Arc<Engine>,
        name: &LockName,
        spec: LockSpec,
        owner: &Owner,
        hold: u64,
    ) -> Self {
        let now = engine.now();
        let mut pending = Self::new(engine, name, spec, owner, hold, now, now);
        pending.detaches = true;
        pending
    }

    /// Nothing is left to release.
    pub(super) fn cancel(mut self) {
        self.done = true;
    }

    /// Wakes the first waiter of this process, which then ignores the store's message about this release, except
    /// of a reentrant mutex: the same message may announce the end of another hold of its owner.
    fn ask_soon(&self) {
        let is_only = self.spec != LockSpec::Reentrant || planted(Bug::EndOfAnotherForgotten);
        let by = is_only.then_some(&self.owner);
        self.engine.ask_soon(&self.name, by);
    }

    fn kind(&self) -> &'static str {
        self.held.map_or_else(|| self.spec.kind().as_str(), |(meter, _)| meter.kind())
    }

    pub(super) fn was_repeated(&self) -> bool {
        self.unknown
    }

    /// Sends it once. The next local waiter's request follows in the same round trip.
    pub(super) async fn attempt(&mut self, now: Moment, within: Duration) -> Result<Answer, Failure> {
        // A reentrant hold that may have been detached is bound again before it is released. One that a resume may
        // have taken over is only detached.
        if self.rebinds || self.detaches {
            let bind = if self.detaches { Liveness::Lease } else { Liveness::Process };
            let verb = Verb::Renew { ttl_ms: 1, hold: self.hold, bind: Some(bind), weight: None };
            let answer = self.engine.call(&self.call(verb), now, within).await;
            self.attempts += u32::from(answer.is_err());
            self.rebinds &= answer.is_err();
            // Once detached, it ends with its lease. Without an answer, a release might not find it.
            if answer.is_err() || self.detaches {
                return answer;
            }
        }
        let verb = Verb::Release { hold: self.hold, fence: Fence::Assign, whose: ReleaseScope::Own };
        let unknown_before = std::mem::replace(&mut self.unknown, true);
        let answer = {
            let call = self.call(verb);
            let mut call = pin!(self.engine.call(&call, now, within));
            let sent = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
            if !planted(Bug::WakeBeforeWrite) {
                self.ask_soon();
            }
            match sent {
                Poll::Ready(answer) => answer,
                // The usual case: the store is on the network.
                Poll::Pending => call.await,
            }
        };
        self.attempts += 1;
        match &answer {
            // Released, or no longer there.
            Ok(answer) => {
                self.unknown = unknown_before;
                self.done = true;
                let left = match answer {
                    Answer::Released { left } => Some(*left),
                    _ => None,
                };
                told(
                    &self.engine,
                    &self.name,
                    &self.owner,
                    self.kind(),
                    left,
                    self.held.map(|(_, held)| held),
                );
            }
            // It may have been carried out, so the next attempt may find nothing.
            Err(Failure::Unknown(_)) => {}
            Err(Failure::NotSent(_) | Failure::Refused(_)) => self.unknown = unknown_before,
        }
        answer
    }

    fn call(&self, verb: Verb) -> Call<'_> {
        Call::new(&self.name, self.spec, &self.owner, verb)
    }

    async fn persist(mut self, _pending: PendingRelease) {
        loop {
            let now = self.engine.now();
            let within = self.over_at.since(now).clamp(Duration::from_millis(1), Duration::from_secs(1));
            match self.attempt(now, within).await {
                Ok(_) => return,
                // The server rejects it, for example without rights: the lease has to end.
                Err(Failure::Refused(cause)) => {
                    self.done = true;
                    event!(
                        WARN,
                        target: "tenure",
                        "release_refused",
                        "release refused",
                        lock = text(&self.name),
                        kind = self.kind(),
                        store = text(self.engine.store.url()),
                        owner = text(&self.owner),
                        failure = text(&cause),
                    );
                    return;
                }
                // The lease is over: nothing is left to release.
                Err(_) if self.engine.now() >= self.over_at => break,
                Err(_) => {}
            }
            let pause = self.engine.jittered(backoff(self.attempts));
            self.engine.runtime.sleep_until(self.engine.now() + pause).await;
        }
        self.done = true;
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let (engine, now) = (&self.engine, self.engine.now());
        let mut rest = Self::new(engine, &self.name, self.spec, &self.owner, self.hold, self.over_at, now);
        // Marked as done: a runtime that has ended drops the task immediately, and a task that respawned
        // itself would recurse until the stack overflows.
        (rest.attempts, rest.rebinds, rest.detaches, rest.done) =
            (self.attempts, self.rebinds, self.detaches, true);
        rest.held = self.held;
        let resumed = self.detaches.then(|| (self.name.clone(), self.owner.clone()));
        let pending = self.engine.pending_releases.add(resumed);
        self.engine.runtime.spawn(rest.persist(pending).boxed());
    }
}

/// Logs a release that sends nothing, because `left` other holds share the grant.
pub(super) fn announce(engine: &Engine, lease: &Lease, left: usize) {
    let held = lease.held_for(engine.now());
    told(engine, &lease.name, &lease.owner, lease.meter.kind(), u32::try_from(left).ok(), held);
}

fn told(
    engine: &Engine,
    name: &LockName,
    owner: &Owner,
    kind: &'static str,
    left: Option<u32>,
    held: Option<Duration>,
) {
    event!(
        DEBUG,
        target: "tenure",
        "lock_released",
        "released",
        lock = text(name),
        kind = kind,
        store = text(engine.store.url()),
        owner = text(owner),
        left = left,
        held_ms = held.map(millis),
    );
}
