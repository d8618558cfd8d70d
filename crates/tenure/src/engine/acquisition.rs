//! One acquisition: its requests and their answers. Dropping it releases what it may have been
//! granted.

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
use crate::store::Failure;

/// How long an acquisition waits for a holder.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// Not at all.
    Once,
    /// As long as this.
    For(Duration),
    /// Until it is granted.
    Forever,
}

impl Wait {
    pub(super) fn is_once(self) -> bool {
        matches!(self, Self::Once | Self::For(Duration::ZERO))
    }

    pub(super) fn until(self, since: Moment) -> Option<Moment> {
        match self {
            Self::Once => Some(since),
            Self::For(limit) => Some(since + limit),
            Self::Forever => None,
        }
    }
}

/// A lock as a caller wants it.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) engine: &'a Arc<Engine>,
    /// The full name.
    pub(crate) name: &'a LockName,
    pub(crate) rule: LockSpec,
    /// Chosen by the caller; else a fresh one is made.
    pub(crate) owner: Option<&'a Owner>,
    pub(crate) options: &'a Arc<Options>,
    /// The counters of the lock.
    pub(crate) meter: Meter,
    pub(crate) wait: Wait,
}

/// A key of this type, as Redis names it.
pub(crate) fn of_type(name: &str) -> String {
    match name {
        "zset" => "a sorted set".to_owned(),
        "hash" | "list" | "set" | "stream" | "string" => format!("a {name}"),
        // Of a module, as `ReJSON-RL`.
        name => format!("a key of type {name}"),
    }
}

/// One acquisition.
///
/// Dropped while the outcome of a request is unknown, or while it has a place in a queue, it
/// releases what it may have, so that it leaves nothing behind but a [`Hold`].
pub(crate) struct Acquisition {
    pub(super) engine: Arc<Engine>,
    pub(super) name: LockName,
    pub(super) rule: LockSpec,
    pub(super) owner: Owner,
    pub(super) hold: u64,
    pub(super) options: Arc<Options>,
    /// The counters of the lock.
    pub(super) meter: Meter,
    pub(super) since: Moment,
    /// The store's count of interruptions before the first request.
    interruptions: u64,
    /// Whether the owner was made for this acquisition.
    is_fresh: bool,
    /// The store may have a grant or a place for this owner that no [`Hold`] stands for.
    maybe: AtomicBool,
    newcomer: NewcomerSlot,
}

/// What a request came to.
pub(super) enum Outcome {
    /// Granted, and known to be at this moment.
    Held(Hold, Moment),
    /// A grant whose answer took longer than its lease.
    Lapsed(Hold),
    Busy {
        holder: String,
        left_ms: Option<u64>,
    },
    Waiting(Waiting),
    /// A retry does not help.
    Refused(Error),
    /// No answer.
    Silent(Failure),
}

/// The outcome of a resume, or of a renewal of a detached hold.
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
    pub(crate) fn new(wanted: Wanted<'_>) -> Self {
        let Wanted { engine, name, rule, owner, options, meter, .. } = wanted;
        let is_fresh = owner.is_none();
        let owner = owner.cloned().unwrap_or_else(|| engine.owner(&options.label));
        let (hold, since) = (engine.id(), engine.now());
        engine.store.declare_ttl(options.ttl);
        let interruptions = engine.store.interruptions();
        Self {
            engine: Arc::clone(engine),
            name: name.clone(),
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

    /// The same acquisition with another hold, and another owner if the caller has chosen none. A
    /// hold that has lapsed is being released, and that release would find a new grant of it.
    pub(super) fn anew(&self) -> Self {
        let is_kept = !self.is_fresh || planted(Bug::AskedForAsReleased);
        let Self { engine, name, rule, owner, options, meter, since, .. } = self;
        let owner = is_kept.then_some(owner);
        let wanted = Wanted { engine, name, rule: *rule, owner, options, meter: *meter, wait: Wait::Once };
        let mut anew = Self::new(wanted);
        anew.since = *since;
        anew
    }

    /// A re-entry without a request, if a lease of the owner covers it.
    pub(super) fn reenter(&self) -> Option<Hold> {
        let Self { engine, name, owner, meter, options, .. } = self;
        if self.rule != LockSpec::Reentrant {
            return None;
        }
        let lease = engine.reentries.enter(engine, name, owner, *meter, options)?;
        Hold::reentered(engine, lease)
    }

    /// Asks once, at `sent`. Asks again only if the answer took so long that too little of the lease
    /// is left, and another as slow would come within the limit. `wait` keeps a place, where the
    /// kind has a queue.
    #[expect(clippy::manual_async_fn, reason = "an async fn stores its arguments twice")]
    pub(super) fn once(
        &self,
        wait: bool,
        limit: Option<Moment>,
        mut sent: Moment,
    ) -> impl Future<Output = Outcome> {
        async move {
            const ROUNDS: u32 = 3;
            let call = self.question(wait);
            for round in 1.. {
                let before = self.maybe.swap(true, Ordering::AcqRel);
                let answer = self.engine.call(&call, sent, self.within(sent, limit)).await;
                // After the request, whose future would hold them.
                let (engine, ttl) = (&self.engine, self.options.lease());
                let answered = engine.now();
                let has_time = limit.is_none_or(|limit| answered + answered.since(sent) < limit)
                    && !(planted(Bug::LateGrantKept) && answered.since(sent) >= self.within(sent, limit));
                let asks_again = round < ROUNDS && has_time && lease::is_stale(sent, answered, ttl);
                // An answer tells all that the store has for this owner, and a failure nothing new.
                let (asked, maybe) = match answer {
                    Ok(Answer::Held { .. }) if asks_again => {
                        sent = answered;
                        continue;
                    }
                    Ok(Answer::Held { fence }) => {
                        let request = Granting { sent, answered, first: ttl, whole: ttl };
                        let held = self.granted(fence, sent, request);
                        return match answered < held.lease.lost_at() {
                            true => Outcome::Held(held, answered),
                            false => Outcome::Lapsed(held),
                        };
                    }
                    // In a server's grace everything is busy, also what is one's own.
                    Ok(Answer::Busy { holder, left_ms }) => (
                        Outcome::Busy { holder, left_ms },
                        before && engine.store.capabilities().restart_grace.is_some(),
                    ),
                    Ok(Answer::Waiting { ticket, retry_in_ms }) => {
                        let retry_at =
                            retry_in_ms.map(|retry_in_ms| sent + Duration::from_millis(retry_in_ms));
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
    }

    /// The request for the lock. One that asks for a place keeps the subscription to its queue.
    fn question(&self, wait: bool) -> Call<'_> {
        let ttl = self.options.lease();
        let wait_ms =
            (wait && matches!(self.rule, LockSpec::Queue(_))).then(|| lease::millis(lease::wait(ttl)));
        let (ttl_ms, hold, bind) = (lease::millis(ttl), self.hold, bind(&self.options));
        let fence = if self.options.unfenced { Fence::Optional } else { Fence::Assign };
        let newcomer = wait_ms.and_then(|_| self.engine.ticket_queues.newcomer(&self.name));
        let listens = newcomer.as_ref().and_then(Newcomer::listens);
        self.newcomer.set(newcomer);
        self.call(Verb::Acquire { ttl_ms, hold, fence, wait_ms, listens, bind })
    }

    fn call(&self, verb: Verb) -> Call<'_> {
        Call::new(&self.name, self.rule, &self.owner, verb)
    }

    /// Timeout of a request: a little less than is left, so that a store that cannot be reached has
    /// the time to say why.
    fn within(&self, now: Moment, limit: Option<Moment>) -> Duration {
        let most = self.options.op_timeout;
        limit.map_or(most, |limit| {
            let left = limit.since(now);
            most.min(left - left / 16).max(Duration::from_millis(1))
        })
    }

    /// Takes over a detached hold. Renews it, and never creates one.
    pub(crate) async fn resume(&self) -> Result<Resumed<Hold>> {
        let (engine, ttl) = (&self.engine, self.options.lease());
        let sent = engine.now();
        let (ttl_ms, hold, bind) = (lease::millis(ttl), self.hold, Some(bind(&self.options)));
        let verb = Verb::Renew { ttl_ms, hold, bind, weight: None };
        let within = self.options.op_timeout;
        // The store binds it to this hold, which nobody else can release if the answer is lost.
        let back = || Release::of_resumed(engine, &self.name, self.rule, &self.owner, hold);
        let back = (self.rule == LockSpec::Reentrant).then(back);
        let answer = engine.call(&self.call(verb), sent, within).await;
        if let (Some(back), Ok(_) | Err(Failure::NotSent(_) | Failure::Refused(_))) = (back, &answer) {
            back.cancel();
        }
        let granted = self.resumed(answer)?;
        Ok(granted.and_then(|fence| {
            let answered = engine.now();
            let held = self.granted(fence, sent, Granting { sent, answered, first: ttl, whole: ttl });
            // A guard whose answer took longer than its lease is not returned.
            if answered < held.lease.lost_at() {
                engine.metrics.resumed(self.meter);
                held.keep(answered);
                Resumed::Held(held)
            } else {
                Resumed::Over
            }
        }))
    }

    /// Renews a detached hold, and returns how much of its lease is certainly left.
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

    /// The token of a hold that may be over, as the store answers.
    fn resumed(&self, answer: Result<Answer, Failure>) -> Result<Resumed<u64>> {
        match answer {
            Ok(Answer::Held { fence }) => Ok(Resumed::Held(fence)),
            Ok(Answer::Free | Answer::Busy { .. } | Answer::Waiting { .. }) => Ok(Resumed::Over),
            Ok(Answer::Mismatch { kind, capacity }) => Ok(Resumed::Other(LockSpec::of(kind, capacity))),
            Ok(answer) => Err(self.engine.nonsense(&self.name, &answer)),
            Err(failure) => Err(self.engine.failed(&self.name, failure)),
        }
    }

    /// The hold that the store has granted. `max_hold` counts from `begun`.
    pub(super) fn granted(&self, fence: u64, begun: Moment, request: Granting) -> Hold {
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
        let held = Hold::granted(&self.engine, terms, request);
        self.maybe.store(false, Ordering::Release);
        held
    }

    /// Messages about its last request have another receiver, or are of no use.
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
            let (engine, now) = (&self.engine, self.engine.now());
            let over_at = now + self.options.lease();
            drop(Release::new(engine, &self.name, self.rule, &self.owner, self.hold, over_at, now));
        }
    }
}

/// Why a hold that others share cannot be had alone now.
const IN_GRACE: &str = "a server that restarted or was promoted may be in its grace, and grants nothing";

/// A hold for the guard alone that shares this one with others of its owner.
pub(crate) async fn part(engine: &Arc<Engine>, lease: &Lease) -> Result<Hold> {
    let options = &Arc::new(lease.options());
    let (name, rule, owner, meter) = (&lease.name, lease.rule, Some(&lease.owner), lease.meter);
    let ask = Acquisition::new(Wanted { engine, name, rule, owner, options, meter, wait: Wait::Once });
    let in_grace = engine.store.capabilities().restart_grace.is_some();
    match ask.once(false, None, ask.since).await {
        // Else the lock was lost, and has been acquired again.
        Outcome::Held(part, _) | Outcome::Lapsed(part) if part.lease.fence == lease.fence => {
            part.lease.is_alone();
            Ok(part)
        }
        // In a server's grace everything is busy, also what is one's own.
        Outcome::Busy { .. } if in_grace => {
            Err(engine.failed(&lease.name, Failure::NotSent(Failure::cause(IN_GRACE))))
        }
        Outcome::Held(..) | Outcome::Lapsed(_) | Outcome::Busy { .. } | Outcome::Waiting(_) => {
            let loss = Loss::new(LossReason::Gone, GONE);
            lease.lose(engine, &loss);
            Err(Error::lost(&lease.name, engine.store.url(), GONE))
        }
        Outcome::Refused(error) => Err(error),
        Outcome::Silent(failure) => Err(engine.failed(&lease.name, failure)),
    }
}

/// A place in the store's queue.
pub(super) struct Waiting {
    pub(super) ticket: u64,
    pub(super) sent: Moment,
    pub(super) retry_at: Option<Moment>,
}
