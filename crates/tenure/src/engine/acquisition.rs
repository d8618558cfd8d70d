//! One acquisition: its requests and their answers. Dropping it releases whatever the store may have granted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Engine;
use super::call::Call;
use super::grant::{GONE, Grant, Granting, Lease, Loss};
use super::hold::Hold;
use super::kept_subscription::{KeptSubscription, KeptSubscriptionSlot};
use super::release::Release;
use crate::error::{Error, Result};
use crate::metrics::{LossReason, Meter};
use crate::moment::Moment;
use crate::name::LockName;
use crate::options::{HoldOptions, Options};
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Fence, Kind, Liveness, LockSpec, Verb, lease};
use crate::store::Failure;

/// How long an acquisition waits for a holder.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// Does not wait.
    Once,
    /// Does not wait for a holder, but for the end of a restart grace, for up to `op_timeout`.
    OnceGranting,
    /// Waits for at most this long.
    For(Duration),
    /// Waits until granted.
    Forever,
}

impl Wait {
    pub(super) fn is_once(self) -> bool {
        matches!(self, Self::Once | Self::OnceGranting | Self::For(Duration::ZERO))
    }

    pub(super) fn until(self, since: Moment) -> Option<Moment> {
        match self {
            Self::Once | Self::OnceGranting => Some(since),
            Self::For(limit) => Some(since + limit),
            Self::Forever => None,
        }
    }
}

/// A lock as requested by a caller.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) engine: &'a Arc<Engine>,
    /// The full name.
    pub(crate) name: &'a LockName,
    pub(crate) spec: LockSpec,
    /// The caller's choice; a fresh one is generated if `None`.
    pub(crate) owner: Option<&'a Owner>,
    pub(crate) options: &'a Arc<Options>,
    /// The lock's counters.
    pub(crate) meter: Meter,
    pub(crate) wait: Wait,
}

/// A Redis key type as shown in messages.
pub(crate) fn of_type(name: &str) -> String {
    match name {
        "zset" => "a sorted set".to_owned(),
        "hash" | "list" | "set" | "stream" | "string" => format!("a {name}"),
        // A module's type, such as `ReJSON-RL`.
        name => format!("a key of type {name}"),
    }
}

/// One acquisition.
///
/// If dropped while the outcome of a request is unknown or while it has a ticket, it releases whatever it may
/// have. Only a [`Hold`] outlives it.
pub(crate) struct Acquisition {
    pub(super) engine: Arc<Engine>,
    pub(super) name: LockName,
    pub(super) spec: LockSpec,
    pub(super) owner: Owner,
    pub(super) hold: u64,
    pub(super) options: Arc<Options>,
    /// The lock's counters.
    pub(super) meter: Meter,
    pub(super) since: Moment,
    /// The store's count of interruptions before the first request.
    interruptions: u64,
    /// Whether the owner was generated for this acquisition.
    is_fresh: bool,
    /// The store may have a grant or ticket of this owner that is not represented by a [`Hold`].
    maybe: AtomicBool,
    subscription: KeptSubscriptionSlot,
}

/// The result of a request.
pub(super) enum AcquireOutcome {
    /// Granted, and known to be held at this time.
    Held(Hold, Moment),
    /// A grant whose answer took longer than its lease.
    Lapsed(Hold),
    Busy {
        holder: String,
        left_ms: Option<u64>,
    },
    Waiting(Waiting),
    /// A permanent failure.
    Refused(Error),
    /// No answer.
    Silent(Failure),
}

/// The result of resuming or renewing a detached hold.
pub(crate) enum Resumed<T> {
    Held(T),
    Over,
    /// The name is locked as another kind.
    Other(LockSpec),
}

impl<T> Resumed<T> {
    fn and_then<U>(self, then: impl FnOnce(T) -> Resumed<U>) -> Resumed<U> {
        match self {
            Self::Held(held) => then(held),
            Self::Over => Resumed::Over,
            Self::Other(spec) => Resumed::Other(spec),
        }
    }
}

impl Acquisition {
    pub(crate) fn new(wanted: Wanted<'_>) -> Self {
        let Wanted { engine, name, spec, owner, options, meter, .. } = wanted;
        let is_fresh = owner.is_none();
        let owner = owner.cloned().unwrap_or_else(|| engine.owner(&options.label));
        let (hold, since) = (engine.id(), engine.now());
        engine.store.signals().declare_ttl(options.ttl);
        let interruptions = engine.store.signals().interruptions();
        Self {
            engine: Arc::clone(engine),
            name: name.clone(),
            spec,
            owner,
            hold,
            options: Arc::clone(options),
            meter,
            since,
            interruptions,
            is_fresh,
            maybe: AtomicBool::new(false),
            subscription: KeptSubscriptionSlot::default(),
        }
    }

    /// The same acquisition with a new hold id, and a new owner unless the caller chose one. An expired hold
    /// is being released, and its release would also end a new grant with the same ids.
    pub(super) fn anew(&self) -> Self {
        let is_kept = !self.is_fresh || planted(Bug::AskedForAsReleased);
        let Self { engine, name, spec, owner, options, meter, since, .. } = self;
        let owner = is_kept.then_some(owner);
        let wanted = Wanted { engine, name, spec: *spec, owner, options, meter: *meter, wait: Wait::Once };
        let mut anew = Self::new(wanted);
        anew.since = *since;
        anew
    }

    /// Re-enters without a request, if an existing lease of the owner covers this acquisition.
    pub(super) fn reenter(&self) -> Option<Hold> {
        let Self { engine, name, owner, meter, options, .. } = self;
        if self.spec != LockSpec::Reentrant {
            return None;
        }
        let lease = engine.reentries.enter(engine, name, owner, *meter, options)?;
        Hold::reentered(engine, lease)
    }

    /// Sends a request at `sent`. Repeats it only if the answer took so long that too little of the lease is
    /// left, and if another equally slow answer would still arrive within the limit. With `wait`, takes a
    /// ticket if the kind has a queue.
    #[expect(clippy::manual_async_fn, reason = "an async fn stores its arguments twice")]
    pub(super) fn request(
        &self,
        wait: bool,
        limit: Option<Moment>,
        mut sent: Moment,
    ) -> impl Future<Output = AcquireOutcome> {
        async move {
            const ROUNDS: u32 = 3;
            let call = self.question(wait);
            for round in 1.. {
                let before = self.maybe.swap(true, Ordering::AcqRel);
                let answer = self.engine.call_from(&call, sent, self.within(sent, limit)).await;
                let answer = answer.map(|(answer, began)| {
                    sent = began;
                    answer
                });
                // After the request, so that its future does not contain them.
                let (engine, ttl) = (&self.engine, self.options.lease());
                let answered = engine.now();
                let has_time = limit.is_none_or(|limit| answered + answered.since(sent) < limit)
                    && !(planted(Bug::LateGrantKept) && answered.since(sent) >= self.within(sent, limit));
                let asks_again = round < ROUNDS && has_time && lease::is_stale(sent, answered, ttl);
                // An answer reveals everything the store has for this owner; a failure adds nothing to what
                // is known.
                let (asked, maybe) = match answer {
                    Ok(Answer::Held { .. }) if asks_again => {
                        sent = answered;
                        continue;
                    }
                    Ok(Answer::Held { fence }) => {
                        let request = Granting { sent, answered, first: ttl, whole: ttl };
                        let held = self.granted(fence, sent, request);
                        return match answered < held.lease.lost_at() {
                            true => AcquireOutcome::Held(held, answered),
                            false => AcquireOutcome::Lapsed(held),
                        };
                    }
                    // During its restart grace the server answers *busy* even to the holder.
                    Ok(Answer::Busy { holder, left_ms }) => (
                        AcquireOutcome::Busy { holder, left_ms },
                        before && engine.store.capabilities().restart_grace.is_some(),
                    ),
                    Ok(Answer::Waiting { ticket, retry_in_ms }) => {
                        let retry_at =
                            retry_in_ms.map(|retry_in_ms| sent + Duration::from_millis(retry_in_ms));
                        (AcquireOutcome::Waiting(Waiting { ticket, sent, retry_at }), true)
                    }
                    Ok(Answer::Mismatch { kind, capacity }) => {
                        (AcquireOutcome::Refused(self.mismatch(kind, capacity)), false)
                    }
                    Ok(Answer::NoLock { type_name }) => {
                        let error = Error::no_lock(&self.name, engine.store.url(), &of_type(&type_name));
                        (AcquireOutcome::Refused(error), false)
                    }
                    Ok(answer) => {
                        (AcquireOutcome::Refused(self.engine.unexpected_answer(&self.name, &answer)), true)
                    }
                    Err(failure @ Failure::Unknown(_)) => (AcquireOutcome::Silent(failure), true),
                    Err(failure @ Failure::NotSent(_)) => (AcquireOutcome::Silent(failure), before),
                    Err(failure @ Failure::Refused(_)) => {
                        (AcquireOutcome::Refused(self.silent(failure)), before)
                    }
                };
                self.maybe.store(maybe, Ordering::Release);
                // The ticket queue does not have its ticket yet.
                if !matches!(asked, AcquireOutcome::Waiting(_)) {
                    self.settle();
                }
                return asked;
            }
            unreachable!("the last round returns what it was told")
        }
    }

    /// The request for the lock. If it takes a ticket, the ticket queue keeps its subscription.
    fn question(&self, wait: bool) -> Call<'_> {
        let ttl = self.options.lease();
        let place = || lease::millis(self.engine.store.capabilities().wait(ttl));
        let wait_ms = (wait && matches!(self.spec, LockSpec::Queue(_))).then(place);
        let (ttl_ms, hold, bind) = (lease::millis(ttl), self.hold, HoldOptions::of(&self.options).bind);
        let fence = if self.options.unfenced { Fence::Optional } else { Fence::Assign };
        let subscription = wait_ms.and_then(|_| self.engine.subscribed(&self.name));
        let listens = subscription.as_ref().and_then(KeptSubscription::listens);
        self.subscription.set(subscription);
        self.call(Verb::Acquire { ttl_ms, hold, fence, wait_ms, listens, bind })
    }

    fn call(&self, verb: Verb) -> Call<'_> {
        Call::new(&self.name, self.spec, &self.owner, verb)
    }

    /// Timeout of a request: slightly less than what is left, so that the store can report why it is
    /// unreachable.
    fn within(&self, now: Moment, limit: Option<Moment>) -> Duration {
        let most = self.options.op_timeout;
        limit.map_or(most, |limit| {
            let left = limit.since(now);
            most.min(left - left / 16).max(Duration::from_millis(1))
        })
    }

    /// Takes over a detached hold by renewing it; never creates one.
    pub(crate) async fn resume(&self) -> Result<Resumed<Hold>> {
        let (engine, ttl) = (&self.engine, self.options.lease());
        let sent = engine.now();
        let (ttl_ms, hold, bind) = (lease::millis(ttl), self.hold, Some(HoldOptions::of(&self.options).bind));
        let verb = Verb::Renew { ttl_ms, hold, bind, weight: None };
        let within = self.options.op_timeout;
        // If the answer is lost, the store has bound the detached hold to this id and nobody else can release
        // it.
        let back = || Release::of_resumed(engine, &self.name, self.spec, &self.owner, hold);
        let back = (self.spec == LockSpec::Reentrant).then(back);
        let answer = engine.call(&self.call(verb), sent, within).await;
        if let (Some(back), Ok(_) | Err(Failure::NotSent(_) | Failure::Refused(_))) = (back, &answer) {
            back.cancel();
        }
        let granted = self.resumed(answer)?;
        Ok(granted.and_then(|fence| {
            let answered = engine.now();
            let held = self.granted(fence, sent, Granting { sent, answered, first: ttl, whole: ttl });
            // If the answer took longer than the lease, no guard is returned.
            if answered < held.lease.lost_at() {
                engine.metrics.resumed(self.meter);
                held.keep(answered);
                Resumed::Held(held)
            } else {
                Resumed::Over
            }
        }))
    }

    /// Renews a detached hold and returns how much of its lease is certainly left.
    pub(crate) async fn renew_detached(&self) -> Result<Resumed<Duration>> {
        let (engine, ttl) = (&self.engine, self.options.lease());
        let sent = engine.now();
        let (ttl_ms, hold, bind) = (lease::millis(ttl), self.hold, Some(Liveness::Lease));
        let verb = Verb::Renew { ttl_ms, hold, bind, weight: None };
        let within = self.options.op_timeout;
        let answer = engine.call(&self.call(verb).idempotent(), sent, within).await;
        let answered = engine.now();
        let left = lease::deadline(sent, answered, ttl).since(answered);
        Ok(self.resumed(answer)?.and_then(|_| match left {
            Duration::ZERO => Resumed::Over,
            left => Resumed::Held(left),
        }))
    }

    /// The token from an answer about a hold that may have ended.
    fn resumed(&self, answer: Result<Answer, Failure>) -> Result<Resumed<u64>> {
        match answer {
            Ok(Answer::Held { fence }) => Ok(Resumed::Held(fence)),
            Ok(Answer::Free | Answer::Busy { .. } | Answer::Waiting { .. }) => Ok(Resumed::Over),
            Ok(Answer::Mismatch { kind, capacity }) => Ok(Resumed::Other(LockSpec::of(kind, capacity))),
            Ok(answer) => Err(self.engine.unexpected_answer(&self.name, &answer)),
            Err(failure) => Err(self.engine.failed(&self.name, failure)),
        }
    }

    /// The hold granted by the store. `max_hold` counts from `begun`.
    pub(super) fn granted(&self, fence: u64, begun: Moment, request: Granting) -> Hold {
        let options = HoldOptions::of(&self.options);
        let grant = Grant {
            name: self.name.clone(),
            spec: self.spec,
            owner: self.owner.clone(),
            fence,
            hold: self.hold,
            meter: self.meter,
            options,
            end: options.max_hold.map(|hold| begun + hold),
            interruptions: self.interruptions,
        };
        let held = Hold::granted(&self.engine, grant, request);
        self.maybe.store(false, Ordering::Release);
        held
    }

    /// Messages about its last request reach another receiver, or are no longer needed.
    pub(super) fn settle(&self) {
        self.subscription.set(None);
    }

    fn mismatch(&self, kind: Kind, capacity: Option<u32>) -> Error {
        self.engine.mismatch(&self.name, self.spec, kind, capacity)
    }

    pub(super) fn silent(&self, failure: Failure) -> Error {
        self.engine.silent(&self.name, failure)
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        if self.maybe.load(Ordering::Acquire) && !planted(Bug::DropLeaves) {
            let (engine, now) = (&self.engine, self.engine.now());
            let over_at = now + self.options.lease();
            drop(Release::new(engine, &self.name, self.spec, &self.owner, self.hold, over_at, now));
        }
    }
}

/// Why a server that answers grants nothing.
pub(super) const IN_GRACE: &str =
    "the server restarted or was promoted, and grants nothing during its restart-grace";

/// A hold of its own for a guard that shares this one with others of its owner.
pub(crate) async fn part(engine: &Arc<Engine>, lease: &Lease) -> Result<Hold> {
    let options = &Arc::new(lease.options.and(Options::default()));
    let (name, spec, owner, meter) = (&lease.name, lease.spec, Some(&lease.owner), lease.meter);
    let ask = Acquisition::new(Wanted { engine, name, spec, owner, options, meter, wait: Wait::Once });
    let in_grace = engine.store.capabilities().restart_grace.is_some();
    match ask.request(false, None, ask.since).await {
        // A different token means that the lock was lost and acquired again.
        AcquireOutcome::Held(part, _) | AcquireOutcome::Lapsed(part) if part.lease.fence == lease.fence => {
            part.lease.is_alone();
            Ok(part)
        }
        // During its restart grace the server answers *busy* even to the holder.
        AcquireOutcome::Busy { .. } if in_grace => {
            Err(engine.failed(&lease.name, Failure::NotSent(Failure::cause(IN_GRACE))))
        }
        AcquireOutcome::Held(..)
        | AcquireOutcome::Lapsed(_)
        | AcquireOutcome::Busy { .. }
        | AcquireOutcome::Waiting(_) => {
            let loss = Loss::new(LossReason::Gone, GONE);
            lease.lose(engine, &loss);
            Err(Error::lost(&lease.name, engine.store.url(), GONE))
        }
        AcquireOutcome::Refused(error) => Err(error),
        AcquireOutcome::Silent(failure) => Err(engine.failed(&lease.name, failure)),
    }
}

/// A ticket in the store's queue.
pub(super) struct Waiting {
    pub(super) ticket: u64,
    pub(super) sent: Moment,
    pub(super) retry_at: Option<Moment>,
}
