//! Acquires a lock: asks once, or waits. What a dropped future may have been granted is released.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{Either, pending, select};

use super::hold::{Grant, Hold, Lease, announce, bind};
use super::release::Release;
use super::ticket_queue::{Turn, Waiting};
use super::{Engine, backoff};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::options::Options;
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Fence, Kind, Liveness, LockSpec, Verb, lease, quorum};
use crate::runtime::Moment;
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

/// Who wants what: one acquisition.
///
/// Dropped while the outcome of one of its requests is unknown, or while it has a place in a queue,
/// it gives back what it may have. So no acquisition, however it ends, leaves anything behind but a
/// [`Hold`].
pub(crate) struct Acquisition {
    engine: Arc<Engine>,
    pub(super) name: LockName,
    pub(super) rule: LockSpec,
    pub(super) owner: Owner,
    pub(super) hold: u64,
    pub(super) options: Arc<Options>,
    pub(super) since: Moment,
    /// How often the store had been interrupted before anything was asked.
    interruptions: u64,
    /// Whether the owner is this acquisition's alone, or was chosen by the caller.
    is_fresh: bool,
    /// The store may have something for this owner that no [`Hold`] stands for.
    maybe: AtomicBool,
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
    ) -> Self {
        let is_fresh = owner.is_none();
        let owner = owner.unwrap_or_else(|| Owner::fresh(&options.label, &*engine.runtime));
        let (hold, since) = (engine.id(), engine.now());
        engine.store.lends(options.ttl);
        let interruptions = engine.store.interruptions();
        let (engine, options, maybe) = (Arc::clone(engine), Arc::clone(options), AtomicBool::new(false));
        Self { engine, name, rule, owner, hold, options, since, interruptions, is_fresh, maybe }
    }

    /// The same acquisition under another owner, or at least another hold. One whose hold has
    /// lapsed, and is being released, must not be asked for again: the release would find the new
    /// hold.
    fn anew(&self) -> Self {
        let is_kept = !self.is_fresh || planted(Bug::AskedForAsReleased);
        let owner = is_kept.then(|| self.owner.clone());
        let mut anew = Self::new(&self.engine, self.name.clone(), self.rule, owner, &self.options);
        anew.since = self.since;
        anew
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
        let verb = Verb::Acquire { ttl_ms, hold, fence: Fence::Assign, wait_ms, bind };
        for round in 1.. {
            let engine = &self.engine;
            let sent = engine.now();
            let before = self.maybe.swap(true, Ordering::AcqRel);
            let (terms, within) = (self.options.terms(), self.within(sent, limit));
            let answer =
                engine.call_on(terms, &self.name, self.rule, &self.owner, verb.clone(), within).await;
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
                Ok(Answer::Busy { holder, left_ms }) => {
                    (Outcome::Busy { holder, left_ms }, before && terms.restart_grace_ms > 0)
                }
                Ok(Answer::Waiting { ticket, retry_in_ms }) => {
                    let retry_at = retry_in_ms.map(|retry_in_ms| sent + Duration::from_millis(retry_in_ms));
                    (Outcome::Waiting(Waiting { ticket, sent, retry_at }), true)
                }
                Ok(Answer::Mismatch { kind, capacity }) => {
                    (Outcome::Refused(self.mismatch(kind, capacity)), false)
                }
                Ok(answer) => (Outcome::Refused(self.engine.nonsense(&self.name, &answer)), true),
                Err(failure @ Failure::Unknown(_)) => (Outcome::Silent(failure), true),
                Err(failure @ Failure::NotSent(_)) => (Outcome::Silent(failure), before),
                Err(failure @ Failure::Refused(_)) => (Outcome::Refused(self.silent(failure)), before),
            };
            self.maybe.store(maybe, Ordering::Release);
            return asked;
        }
        unreachable!("the last round returns what it was told")
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
        let (terms, within) = (self.options.terms(), self.options.op_timeout);
        // The resumed hold gets this hold's name, which is unknown to others if the answer is lost.
        let back = || Release::of_resumed(engine, &self.name, self.rule, &self.owner, hold);
        let back = (self.rule == LockSpec::Reentrant).then(back);
        let answer = engine.call_on(terms, &self.name, self.rule, &self.owner, verb, within).await;
        if let (Some(back), Ok(_) | Err(Failure::NotSent(_) | Failure::Refused(_))) = (back, &answer) {
            back.cancel();
        }
        let granted = self.resumed(answer)?;
        Ok(granted.and_then(|fence| {
            let held = self.granted(fence, sent, sent, ttl);
            // The answer took longer than the lease: a guard that is already lost is not returned.
            if held.is_live() {
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
        let (terms, within) = (self.options.terms(), self.options.op_timeout);
        let answer = engine.call_on(terms, &self.name, self.rule, &self.owner, verb, within).await;
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

    /// What the store has granted: its lease was set to `first` by a request that was sent at
    /// `sent`, and is known now. It has been of use since `begun`.
    pub(super) fn granted(&self, fence: u64, begun: Moment, sent: Moment, first: Duration) -> Hold {
        let Self { engine, name, rule, owner, hold, options, interruptions, .. } = self;
        let (rule, hold, interruptions) = (*rule, *hold, *interruptions);
        let grant = Grant { name, rule, owner, fence, hold, begun, interruptions, options };
        let held = Hold::new(Arc::clone(engine), Arc::new(Lease::granted(grant, sent, engine.now(), first)));
        self.maybe.store(false, Ordering::Release);
        held
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

/// Acquires a lock: `None` when it is busy and the wait is over.
pub(crate) async fn acquire(ask: Acquisition, wait: Wait) -> Result<Option<Hold>> {
    let engine = Arc::clone(&ask.engine);
    let (since, rule) = (ask.since, ask.rule);
    let held = match (wait, rule) {
        (Wait::Once | Wait::For(Duration::ZERO), _) => at_once(&engine, ask).await?,
        (wait, LockSpec::Mutex | LockSpec::Reentrant) => in_line(&engine, ask, wait.until(since)).await?,
        (wait, LockSpec::Queue(_)) => in_queue(&engine, ask, wait.until(since)).await?,
    };
    if let Some(held) = &held {
        let waited = engine.now().since(since);
        held.keep();
        announce(&held.lease, waited);
    }
    Ok(held)
}

impl Wait {
    fn until(self, since: Moment) -> Option<Moment> {
        match self {
            Self::Once => Some(since),
            Self::For(limit) => Some(since + limit),
            Self::Forever => None,
        }
    }
}

/// Asks even if others wait, and returns `None` if the lock is busy. Asks again, for `op_timeout`
/// in all, only after silence, or where ballots kept a free lock from this acquisition.
async fn at_once(engine: &Arc<Engine>, ask: Acquisition) -> Result<Option<Hold>> {
    let until = engine.now() + ask.options.op_timeout;
    for attempt in 0.. {
        let (failure, pause) = match ask.once(false, Some(until)).await {
            Outcome::Held(held) if held.is_live() => return Ok(Some(held)),
            Outcome::Held(_) => return Err(ask.silent(too_slow())),
            Outcome::Busy { holder, left_ms }
                if holder == quorum::NOBODY && !planted(Bug::BallotsTakenForHolder) =>
            {
                (overtaken(), Duration::from_millis(left_ms.unwrap_or(0) + 1))
            }
            Outcome::Busy { .. } | Outcome::Waiting(_) => return Ok(None),
            Outcome::Refused(error) => return Err(error),
            Outcome::Silent(failure) => (failure, engine.jittered(backoff(attempt))),
        };
        if engine.now() + pause >= until {
            return Err(ask.silent(failure));
        }
        engine.runtime.sleep_until(engine.now() + pause).await;
    }
    unreachable!("time passes")
}

fn too_slow() -> Failure {
    Failure::NotSent(Failure::cause("its answers take longer than the lease that is asked for"))
}

fn overtaken() -> Failure {
    Failure::NotSent(Failure::cause("its members had accepted higher ballots each time"))
}

fn not_in_time() -> Failure {
    Failure::NotSent(Failure::cause("no answer within the limit of the wait"))
}

fn abandoned() -> Failure {
    Failure::NotSent(Failure::cause("the thread that asks for it has ended"))
}

/// For kinds without a queue: asks at once if no task of this process waits; otherwise, and if
/// the lock is busy, waits in line.
async fn in_line(engine: &Arc<Engine>, ask: Acquisition, limit: Option<Moment>) -> Result<Option<Hold>> {
    let mut ask = Arc::new(ask);
    loop {
        let mut silence = None;
        if engine.local_queues.may_ask(&ask) {
            let asked = before(engine, limit, pin!(ask.once(true, limit))).await;
            match asked {
                Some(Outcome::Held(held)) if held.is_live() => return Ok(Some(held)),
                Some(Outcome::Held(held)) => {
                    drop(held);
                    ask = Arc::new(ask.anew());
                    silence = Some(too_slow());
                }
                Some(Outcome::Busy { .. } | Outcome::Waiting(_)) => {}
                Some(Outcome::Refused(error)) => return Err(error),
                Some(Outcome::Silent(failure)) => silence = Some(failure),
                None => return Err(ask.silent(not_in_time())),
            }
        }
        let mut place = engine.local_queues.join(engine, &ask, silence);
        let granted = before(engine, limit, pin!(place.granted())).await;
        match granted {
            Some(Some(Ok(held))) if held.is_live() => return Ok(Some(held)),
            // It was granted, and this future was not polled until the lease had passed: the turn
            // is gone.
            Some(Some(Ok(held))) => drop(held),
            Some(Some(Err(error))) => return Err(error),
            Some(None) => return Err(ask.silent(abandoned())),
            None => return place.silence().map_or(Ok(None), |failure| Err(ask.silent(failure))),
        }
        drop(place);
        ask = Arc::new(ask.anew());
    }
}

/// For kinds with a queue: takes a place in the store, and waits until it is called.
async fn in_queue(engine: &Arc<Engine>, ask: Acquisition, limit: Option<Moment>) -> Result<Option<Hold>> {
    let mut ask = Arc::new(ask);
    let (mut heard_at, mut attempt) = (engine.now(), 0);
    // When the last answer came, if it was no. It is one for as long as the next may take.
    let (mut busy_at, op_timeout) = (None::<Moment>, ask.options.op_timeout);
    let is_busy = |busy_at: Option<Moment>| busy_at.is_some_and(|at| engine.now().since(at) < op_timeout);
    loop {
        let asked = before(engine, limit, pin!(ask.once(true, limit))).await;
        let place = match asked {
            Some(Outcome::Held(held)) if held.is_live() => return Ok(Some(held)),
            Some(Outcome::Waiting(place)) => place,
            Some(Outcome::Refused(error)) => return Err(error),
            None if is_busy(busy_at) => return Ok(None),
            None => return Err(ask.silent(not_in_time())),
            // The server is in grace, or another program's lock is there: no place can be taken.
            Some(Outcome::Busy { left_ms, .. }) => {
                let left = left_ms.map_or(Duration::MAX, |left_ms| Duration::from_millis(left_ms + 1));
                let until = engine.now() + engine.jittered(backoff(attempt)).min(left);
                attempt += 1;
                heard_at = engine.now();
                busy_at = Some(heard_at);
                if let Some(limit) = limit.filter(|limit| until >= *limit) {
                    engine.runtime.sleep_until(limit).await;
                    return Ok(None);
                }
                engine.runtime.sleep_until(until).await;
                continue;
            }
            Some(unheard) => {
                let failure = match unheard {
                    Outcome::Silent(failure) => failure,
                    // A grant that came too late is being released, so it is not asked for again
                    // under the same owner.
                    _ => {
                        ask = Arc::new(ask.anew());
                        too_slow()
                    }
                };
                let gives_up_at = heard_at + ask.options.patience;
                let until = (engine.now() + engine.jittered(backoff(attempt))).min(gives_up_at);
                attempt += 1;
                let is_over = limit.is_some_and(|limit| until >= limit);
                // Nothing went wrong, as far as is known: the limit left the last question no time.
                if is_over && matches!(failure, Failure::Unknown(_)) && is_busy(busy_at) {
                    return Ok(None);
                }
                let is_out =
                    engine.now() >= gives_up_at || until >= gives_up_at && planted(Bug::PatienceCutShort);
                if is_over || is_out {
                    return Err(ask.silent(failure));
                }
                busy_at = None;
                engine.runtime.sleep_until(until).await;
                continue;
            }
        };
        let mut ticket_handle = engine.ticket_queues.join(engine, &ask, place);
        let turn = before(engine, limit, pin!(ticket_handle.turn())).await;
        match turn {
            Some(Some(Ok(Turn::Held(held)))) if held.is_live() => return Ok(Some(held)),
            // Granted to a future that was not polled in time, or a place that lapsed unheard of:
            // back to the end.
            Some(Some(Ok(turn))) => drop(turn),
            Some(Some(Err(error))) => return Err(error),
            Some(None) => return Err(ask.silent(abandoned())),
            None => return ticket_handle.silence().map_or(Ok(None), |failure| Err(ask.silent(failure))),
        }
        drop(ticket_handle);
        ask = Arc::new(ask.anew());
        (heard_at, attempt, busy_at) = (engine.now(), 0, None);
    }
}

/// The future's output, unless the limit comes first. The future is looked at first, also when both
/// are there.
async fn before<F: Future + Unpin>(engine: &Engine, limit: Option<Moment>, future: F) -> Option<F::Output> {
    let timer = match limit {
        Some(limit) => engine.runtime.sleep_until(limit),
        None => Box::pin(pending()),
    };
    match select(future, timer).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(_) => None,
    }
}
