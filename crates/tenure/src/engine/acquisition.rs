//! One acquisition: what it asks, and what it was told. What it may have been granted when it is
//! dropped is released.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Engine;
use super::call::Call;
use super::hold::Hold;
use super::lease::{GONE, Granting, Lease, LeaseTerms, Loss, bind};
use super::release::Release;
use super::waiters::newcomer::{Newcomer, NewcomerSlot};
use crate::error::{Error, Result};
use crate::metrics::{LossReason, Meter};
use crate::moment::Moment;
use crate::name::LockName;
use crate::options::Options;
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Fence, Kind, Liveness, LockSpec, Verb, lease};
use crate::status::of_type;
use crate::store::Failure;

/// Who wants what: one acquisition.
///
/// Dropped while the outcome of one of its requests is unknown, or while it has a place in a queue,
/// it gives back what it may have. So no acquisition, however it ends, leaves anything behind but a
/// [`Hold`].
pub(crate) struct Acquisition {
    pub(super) engine: Arc<Engine>,
    pub(super) name: LockName,
    pub(super) rule: LockSpec,
    pub(super) owner: Owner,
    pub(super) hold: u64,
    pub(super) options: Arc<Options>,
    /// What it is counted in.
    pub(super) meter: Meter,
    pub(super) since: Moment,
    /// How often the store had been interrupted before anything was asked.
    interruptions: u64,
    /// Whether the owner is this acquisition's alone, or was chosen by the caller.
    is_fresh: bool,
    /// The store may have something for this owner that no [`Hold`] stands for.
    maybe: AtomicBool,
    newcomer: NewcomerSlot,
}

/// What became of one question.
pub(super) enum Outcome {
    Held(Hold),
    Busy {
        holder: String,
        left_ms: Option<u64>,
    },
    Waiting(Waiting),
    /// No, and asking again does not help.
    Refused(Error),
    /// No answer.
    Silent(Failure),
}

/// What became of an attempt to take over a hold, or to renew one that stays detached.
pub(crate) enum Resumed<T> {
    Held(T),
    Over,
    /// It is another kind of lock.
    Other(LockSpec),
}

impl<T> Resumed<T> {
    fn and_then<U>(self, then: impl FnOnce(T) -> Resumed<U>) -> Resumed<U> {
        match self {
            Self::Held(held) => then(held),
            Self::Over => Resumed::Over,
            Self::Other(rule) => Resumed::Other(rule),
        }
    }
}

impl Acquisition {
    /// For a fresh owner, unless the caller has chosen one.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        name: LockName,
        rule: LockSpec,
        owner: Option<Owner>,
        options: &Arc<Options>,
        meter: Meter,
    ) -> Self {
        let is_fresh = owner.is_none();
        let owner = owner.unwrap_or_else(|| engine.owner(&options.label));
        let (hold, since) = (engine.id(), engine.now());
        engine.store.declare_ttl(options.ttl);
        let interruptions = engine.store.interruptions();
        Self {
            engine: Arc::clone(engine),
            name,
            rule,
            owner,
            hold,
            options: Arc::clone(options),
            meter,
            since,
            interruptions,
            is_fresh,
            maybe: AtomicBool::new(false),
            newcomer: NewcomerSlot::default(),
        }
    }

    /// The same acquisition under another owner, or at least another hold. One whose hold has
    /// lapsed, and is being released, must not be asked for again: the release would find the new
    /// hold.
    pub(super) fn anew(&self) -> Self {
        let is_kept = !self.is_fresh || planted(Bug::AskedForAsReleased);
        let owner = is_kept.then(|| self.owner.clone());
        let (name, meter) = (self.name.clone(), self.meter);
        let mut anew = Self::new(&self.engine, name, self.rule, owner, &self.options, meter);
        anew.since = self.since;
        anew
    }

    /// A re-entry without a request, if what the owner has already will do.
    pub(super) fn reenter(&self) -> Option<Hold> {
        let Self { engine, name, owner, meter, options, .. } = self;
        if self.rule != LockSpec::Reentrant {
            return None;
        }
        let lease = engine.reentries.enter(engine, name, owner, *meter, options)?;
        Hold::reentered(engine, lease)
    }

    /// Asks once; again only when the grant took so long to arrive that too little of it is left,
    /// and another answer that takes as long would come within the limit. `wait` keeps a place,
    /// where the kind has a queue.
    pub(super) async fn once(&self, wait: bool, limit: Option<Moment>) -> Outcome {
        const ROUNDS: u32 = 3;
        let ttl = self.options.lease();
        let wait_ms =
            (wait && matches!(self.rule, LockSpec::Queue(_))).then(|| lease::millis(lease::wait(ttl)));
        let (ttl_ms, hold, bind) = (lease::millis(ttl), self.hold, bind(&self.options));
        let fence = if self.options.unfenced { Fence::Optional } else { Fence::Assign };
        let newcomer = wait_ms.and_then(|_| self.engine.ticket_queues.newcomer(&self.name));
        let listens = newcomer.as_ref().and_then(Newcomer::listens);
        self.newcomer.set(newcomer);
        let verb = Verb::Acquire { ttl_ms, hold, fence, wait_ms, listens, bind };
        for round in 1.. {
            let engine = &self.engine;
            let sent = engine.now();
            let before = self.maybe.swap(true, Ordering::AcqRel);
            let within = self.within(sent, limit);
            let answer = engine.call(self.call(verb.clone()), sent, within).await;
            let answered = engine.now();
            let has_time = limit.is_none_or(|limit| answered + answered.since(sent) < limit)
                && !(planted(Bug::LateGrantKept) && answered.since(sent) >= within);
            let asks_again = round < ROUNDS && has_time && lease::is_stale(sent, answered, ttl);
            // What is known now: with an answer, that there is nothing but what it says; without,
            // no more than before.
            let (asked, maybe) = match answer {
                Ok(Answer::Held { .. }) if asks_again => continue,
                Ok(Answer::Held { fence }) => return Outcome::Held(self.granted(fence, sent, sent, ttl)),
                // In a server's grace everything is busy, also what is one's own.
                Ok(Answer::Busy { holder, left_ms }) => (
                    Outcome::Busy { holder, left_ms },
                    before && engine.store.capabilities().restart_grace.is_some(),
                ),
                Ok(Answer::Waiting { ticket, retry_in_ms }) => {
                    let retry_at = retry_in_ms.map(|retry_in_ms| sent + Duration::from_millis(retry_in_ms));
                    (Outcome::Waiting(Waiting { ticket, sent, retry_at }), true)
                }
                Ok(Answer::Mismatch { kind, capacity }) => {
                    (Outcome::Refused(self.mismatch(kind, capacity)), false)
                }
                Ok(Answer::NoLock { type_name }) => {
                    let error = Error::no_lock(&self.name, engine.store.url(), &of_type(&type_name));
                    (Outcome::Refused(error), false)
                }
                Ok(answer) => (Outcome::Refused(self.engine.nonsense(&self.name, &answer)), true),
                Err(failure @ Failure::Unknown(_)) => (Outcome::Silent(failure), true),
                Err(failure @ Failure::NotSent(_)) => (Outcome::Silent(failure), before),
                Err(failure @ Failure::Refused(_)) => (Outcome::Refused(self.silent(failure)), before),
            };
            self.maybe.store(maybe, Ordering::Release);
            match asked {
                // Its place is not in line yet.
                Outcome::Waiting(_) => {}
                // It may be carried out later.
                Outcome::Silent(_) if !planted(Bug::NewcomerLeaves) => {}
                _ => self.settle(),
            }
            return asked;
        }
        unreachable!("the last round returns what it was told")
    }

    fn call(&self, verb: Verb) -> Call<'_> {
        Call::new(&self.name, self.rule, &self.owner, verb)
    }

    /// How long a question may take: a little less than is left, so that a store that cannot be
    /// asked has the time to say why.
    fn within(&self, now: Moment, limit: Option<Moment>) -> Duration {
        let most = self.options.op_timeout;
        limit.map_or(most, |limit| {
            let left = limit.since(now);
            most.min(left - left / 16).max(Duration::from_millis(1))
        })
    }

    /// Takes over a hold that its owner has detached. Renews it, and never creates one.
    pub(crate) async fn resume(&self) -> Result<Resumed<Hold>> {
        let (engine, ttl) = (&self.engine, self.options.lease());
        let sent = engine.now();
        let (ttl_ms, hold, bind) = (lease::millis(ttl), self.hold, Some(bind(&self.options)));
        let verb = Verb::Renew { ttl_ms, hold, bind, weight: None };
        let within = self.options.op_timeout;
        // The resumed hold gets this hold's name, which is unknown to others if the answer is lost.
        let back = || Release::of_resumed(engine, &self.name, self.rule, &self.owner, hold);
        let back = (self.rule == LockSpec::Reentrant).then(back);
        let answer = engine.call(self.call(verb), sent, within).await;
        if let (Some(back), Ok(_) | Err(Failure::NotSent(_) | Failure::Refused(_))) = (back, &answer) {
            back.cancel();
        }
        let granted = self.resumed(answer)?;
        Ok(granted.and_then(|fence| {
            let held = self.granted(fence, sent, sent, ttl);
            // The answer took longer than the lease: a guard that is already lost is not returned.
            if held.is_live() {
                engine.metrics.resumed(self.meter);
                held.keep();
                Resumed::Held(held)
            } else {
                Resumed::Over
            }
        }))
    }

    /// Renews a hold that its owner has detached, and leaves it so: how much of its lease is left
    /// for certain.
    pub(crate) async fn renew_detached(&self) -> Result<Resumed<Duration>> {
        let (engine, ttl) = (&self.engine, self.options.lease());
        let sent = engine.now();
        let (ttl_ms, hold, bind) = (lease::millis(ttl), self.hold, Some(Liveness::Lease));
        let verb = Verb::Renew { ttl_ms, hold, bind, weight: None };
        let within = self.options.op_timeout;
        let answer = engine.call(self.call(verb).idempotent(), sent, within).await;
        let answered = engine.now();
        let left = lease::deadline(sent, answered, ttl).since(answered);
        Ok(self.resumed(answer)?.and_then(|_| match left {
            Duration::ZERO => Resumed::Over,
            left => Resumed::Held(left),
        }))
    }

    /// What a store says of a hold that may be over: its token, if it is not.
    fn resumed(&self, answer: Result<Answer, Failure>) -> Result<Resumed<u64>> {
        match answer {
            Ok(Answer::Held { fence }) => Ok(Resumed::Held(fence)),
            Ok(Answer::Free | Answer::Busy { .. } | Answer::Waiting { .. }) => Ok(Resumed::Over),
            Ok(Answer::Mismatch { kind, capacity }) => Ok(Resumed::Other(LockSpec::of(kind, capacity))),
            Ok(answer) => Err(self.engine.nonsense(&self.name, &answer)),
            Err(failure) => Err(self.engine.failed(&self.name, failure)),
        }
    }

    /// The hold that the store has granted, whose lease was set to `first` by a request that was
    /// sent at `sent` and answered now. `max_hold` counts from `begun`.
    pub(super) fn granted(&self, fence: u64, begun: Moment, sent: Moment, first: Duration) -> Hold {
        let options = &*self.options;
        let terms = LeaseTerms {
            name: self.name.clone(),
            rule: self.rule,
            owner: self.owner.clone(),
            fence,
            hold: self.hold,
            meter: self.meter,
            op_timeout: options.op_timeout,
            ttl: options.ttl,
            grace: options.grace,
            bind: bind(options),
            end: options.max_hold.map(|hold| begun + hold),
            renewal: options.renewal,
            interruptions: self.interruptions,
        };
        let request = Granting { sent, answered: self.engine.now(), first, whole: options.lease() };
        let held = Hold::granted(&self.engine, terms, request);
        self.maybe.store(false, Ordering::Release);
        held
    }

    /// Messages about its last question are heard elsewhere, or are of no use.
    pub(super) fn settle(&self) {
        self.newcomer.set(None);
    }

    fn mismatch(&self, kind: Kind, capacity: Option<u32>) -> Error {
        self.engine.mismatch(&self.name, self.rule, kind, capacity)
    }

    pub(super) fn silent(&self, failure: Failure) -> Error {
        self.engine.silent(&self.name, failure)
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        if self.maybe.load(Ordering::Acquire) && !planted(Bug::DropLeaves) {
            let over_at = self.engine.now() + self.options.lease();
            drop(Release::new(&self.engine, &self.name, self.rule, &self.owner, self.hold, over_at));
        }
    }
}

/// Why a hold that others share cannot be had alone now.
const IN_GRACE: &str = "a server that restarted or was promoted may be in its grace, and grants nothing";

/// A hold for the guard alone that shares this one with others of its owner.
pub(crate) async fn part(engine: &Arc<Engine>, lease: &Lease) -> Result<Hold> {
    let (name, owner) = (lease.name.clone(), lease.owner.clone());
    let options = Arc::new(lease.options());
    let ask = Acquisition::new(engine, name, lease.rule, Some(owner), &options, lease.meter);
    let in_grace = engine.store.capabilities().restart_grace.is_some();
    match ask.once(false, None).await {
        // Else the lock was lost, and has been acquired again.
        Outcome::Held(part) if part.lease.fence == lease.fence => {
            part.lease.is_alone();
            Ok(part)
        }
        // In a server's grace everything is busy, also what is one's own.
        Outcome::Busy { .. } if in_grace => {
            Err(engine.failed(&lease.name, Failure::NotSent(Failure::cause(IN_GRACE))))
        }
        Outcome::Held(_) | Outcome::Busy { .. } | Outcome::Waiting(_) => {
            let loss = Loss::new(LossReason::Gone, GONE);
            lease.lose(engine, &loss);
            Err(Error::lost(&lease.name, engine.store.url(), GONE))
        }
        Outcome::Refused(error) => Err(error),
        Outcome::Silent(failure) => Err(engine.failed(&lease.name, failure)),
    }
}

/// A place as an acquire was told of it.
pub(super) struct Waiting {
    pub(super) ticket: u64,
    pub(super) sent: Moment,
    pub(super) retry_at: Option<Moment>,
}
