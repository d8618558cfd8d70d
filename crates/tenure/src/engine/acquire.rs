//! Acquiring: one question, or a wait. Whatever a dropped future may have been granted is given back.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{Either, pending, select};

use super::held::{Grant, Held, Lease, announce, bind};
use super::release::Farewell;
use super::{Engine, backoff};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::options::Options;
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Fence, Kind, Rule, Verb, lease};
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
/// Dropped while the outcome of one of its requests is unknown, it gives back what may have been granted. So no
/// acquisition, however it ends, leaves anything behind but a [`Held`].
pub(crate) struct Ask {
    engine: Arc<Engine>,
    pub(super) name: LockName,
    rule: Rule,
    owner: Owner,
    hold: u64,
    pub(super) options: Arc<Options>,
    pub(super) since: Moment,
    /// A request was sent and its outcome is not known.
    maybe: AtomicBool,
}

/// What became of one question.
pub(super) enum Asked {
    Held(Held),
    Busy { holder: String, left_ms: Option<u64> },
    Mismatch(Kind),
    Failed(Failure),
}

impl Ask {
    pub(crate) fn new(engine: &Arc<Engine>, name: LockName, rule: Rule, options: &Arc<Options>) -> Self {
        let owner = Owner::fresh(&options.label, &*engine.runtime);
        Self::of(engine, name, rule, owner, options)
    }

    /// For an owner that exists already.
    pub(crate) fn of(
        engine: &Arc<Engine>,
        name: LockName,
        rule: Rule,
        owner: Owner,
        options: &Arc<Options>,
    ) -> Self {
        let (hold, since) = (engine.id(), engine.now());
        let (engine, options) = (Arc::clone(engine), Arc::clone(options));
        Self { engine, name, rule, owner, hold, options, since, maybe: AtomicBool::new(false) }
    }

    /// The same wish under another owner. One whose hold has lapsed, and is being released, must not be asked for again:
    /// the release would find the new hold.
    fn anew(&self) -> Self {
        let mut anew = Self::new(&self.engine, self.name.clone(), self.rule, &self.options);
        anew.since = self.since;
        anew
    }

    /// Asks once; again only when the grant took so long to arrive that too little of it is left. `within` is for all of it.
    pub(super) async fn once(&self, within: Duration) -> Asked {
        const ROUNDS: u32 = 3;
        let until = self.engine.now() + within;
        let ttl = self.options.lease();
        let verb = Verb::Acquire {
            ttl_ms: lease::millis(ttl),
            hold: self.hold,
            fence: Fence::Assign,
            wait_ms: None,
            bind: bind(&self.options),
        };
        let mut round = 0;
        loop {
            let sent = self.engine.now();
            let before = self.maybe.swap(true, Ordering::AcqRel);
            let left = until.since(sent);
            let answer = self.engine.call(&self.name, self.rule, &self.owner, verb, left).await;
            let answered = self.engine.now();
            round += 1;
            let is_last = round == ROUNDS || answered >= until;
            return match answer {
                Ok(Answer::Held { .. }) if !is_last && lease::is_stale(sent, answered, ttl) => continue,
                Ok(Answer::Held { fence }) => {
                    let held = self.held(fence, sent);
                    self.maybe.store(false, Ordering::Release);
                    Asked::Held(held)
                }
                Ok(Answer::Busy { holder, left_ms }) => {
                    self.maybe.store(false, Ordering::Release);
                    Asked::Busy { holder, left_ms }
                }
                Ok(Answer::Mismatch { kind }) => {
                    self.maybe.store(false, Ordering::Release);
                    Asked::Mismatch(kind)
                }
                Ok(other) => Asked::Failed(Failure::Refused(Failure::cause(format!(
                    "not an answer to acquire: {other:?}"
                )))),
                Err(failure @ Failure::Unknown(_)) => Asked::Failed(failure),
                Err(failure) => {
                    self.maybe.store(before, Ordering::Release);
                    Asked::Failed(failure)
                }
            };
        }
    }

    /// Takes over a hold that its owner has detached: `None` when it is over. Renews it, and never creates one.
    pub(crate) async fn resume(&self) -> Result<Option<Held>> {
        let (engine, ttl) = (&self.engine, self.options.lease());
        let sent = engine.now();
        let verb = Verb::Renew { ttl_ms: lease::millis(ttl), bind: Some(bind(&self.options)) };
        let within = self.options.op_timeout;
        match engine.call(&self.name, self.rule, &self.owner, verb, within).await {
            Ok(Answer::Held { fence }) => {
                let held = self.held(fence, sent);
                if !held.is_live() {
                    // The answer was on its way for longer than the lease: nobody gets a guard that is lost already.
                    return Ok(None);
                }
                held.keep();
                Ok(Some(held))
            }
            Ok(Answer::Free | Answer::Busy { .. }) => Ok(None),
            Ok(Answer::Mismatch { kind }) => Err(self.mismatch(kind)),
            Ok(answer) => Err(engine.nonsense(&self.name, &answer)),
            Err(failure) => Err(engine.failed(&self.name, failure)),
        }
    }

    /// What was granted by a request that was sent at `sent` and answered now.
    fn held(&self, fence: u64, sent: Moment) -> Held {
        let Self { engine, name, rule, owner, hold, options, .. } = self;
        let grant = Grant { name, rule: *rule, owner, fence, hold: *hold, options };
        Held::new(Arc::clone(engine), Arc::new(Lease::granted(grant, sent, engine.now())))
    }

    pub(super) fn mismatch(&self, found: Kind) -> Error {
        self.engine.mismatch(&self.name, self.rule.kind(), found)
    }

    pub(super) fn silent(&self, failure: Failure) -> Error {
        self.engine.silent(&self.name, failure)
    }
}

impl Drop for Ask {
    fn drop(&mut self) {
        if self.maybe.load(Ordering::Acquire) && !planted(Bug::DropLeaves) {
            let over_at = self.engine.now() + self.options.lease();
            drop(Farewell::new(&self.engine, &self.name, self.rule, &self.owner, self.hold, over_at));
        }
    }
}

/// Acquires a lock: `None` when it is busy and the wait is over.
pub(crate) async fn acquire(ask: Ask, wait: Wait) -> Result<Option<Held>> {
    let engine = Arc::clone(&ask.engine);
    let since = ask.since;
    let held = match wait {
        Wait::Once | Wait::For(Duration::ZERO) => at_once(&engine, ask).await?,
        Wait::For(limit) => in_time(&engine, ask, Some(since + limit)).await?,
        Wait::Forever => in_time(&engine, ask, None).await?,
    };
    if let Some(held) = &held {
        announce(&held.lease, engine.now().since(since));
        held.keep();
    }
    Ok(held)
}

/// Asks whoever else waits, and takes no for an answer. Only silence is asked again, for `op_timeout` in all.
async fn at_once(engine: &Arc<Engine>, ask: Ask) -> Result<Option<Held>> {
    let until = engine.now() + ask.options.op_timeout;
    let mut attempt = 0;
    loop {
        let left = until.since(engine.now()).max(Duration::from_millis(1));
        match ask.once(left).await {
            Asked::Held(held) if held.is_live() => return Ok(Some(held)),
            Asked::Held(held) => {
                drop(held);
                return Err(ask.silent(too_slow()));
            }
            Asked::Busy { .. } => return Ok(None),
            Asked::Mismatch(kind) => return Err(ask.mismatch(kind)),
            Asked::Failed(failure @ Failure::Refused(_)) => return Err(ask.silent(failure)),
            Asked::Failed(failure) => {
                let pause = engine.jittered(backoff(attempt));
                attempt += 1;
                if engine.now() + pause >= until {
                    return Err(ask.silent(failure));
                }
                engine.runtime.sleep_until(engine.now() + pause).await;
            }
        }
    }
}

fn too_slow() -> Failure {
    Failure::NotSent(Failure::cause("its answers take longer than the lease that is asked for"))
}

/// Asks at once if nobody of this process waits; else, and if the answer is no, waits in line.
async fn in_time(engine: &Arc<Engine>, ask: Ask, limit: Option<Moment>) -> Result<Option<Held>> {
    let mut ask = Arc::new(ask);
    loop {
        let mut silence = None;
        if !engine.lines.has_waiters(&ask.name) {
            let within = ask.options.op_timeout;
            match before(engine, limit, ask.once(within)).await {
                Some(Asked::Held(held)) if held.is_live() => return Ok(Some(held)),
                Some(Asked::Held(held)) => {
                    drop(held);
                    ask = Arc::new(ask.anew());
                    silence = Some(too_slow());
                }
                Some(Asked::Busy { .. }) => {}
                Some(Asked::Mismatch(kind)) => return Err(ask.mismatch(kind)),
                Some(Asked::Failed(failure @ Failure::Refused(_))) => return Err(ask.silent(failure)),
                Some(Asked::Failed(failure)) => silence = Some(failure),
                None => {
                    return Err(ask
                        .silent(Failure::NotSent(Failure::cause("no answer within the limit of the wait"))));
                }
            }
        }
        let mut place = engine.lines.join(engine, &ask, silence);
        match before(engine, limit, place.granted()).await {
            Some(Some(Ok(held))) if held.is_live() => return Ok(Some(held)),
            // It was granted, and this future was not polled until the lease had passed: the turn is gone.
            Some(Some(Ok(held))) => drop(held),
            Some(Some(Err(error))) => return Err(error),
            Some(None) => {
                return Err(
                    ask.silent(Failure::NotSent(Failure::cause("the thread that asks for it has ended")))
                );
            }
            None => return place.silence().map_or(Ok(None), |failure| Err(ask.silent(failure))),
        }
        drop(place);
        ask = Arc::new(ask.anew());
    }
}

/// The future's output, unless the limit comes first. The future is looked at first, also when both are there.
async fn before<F: Future>(engine: &Engine, limit: Option<Moment>, future: F) -> Option<F::Output> {
    let timer = match limit {
        Some(limit) => engine.runtime.sleep_until(limit),
        None => Box::pin(pending()),
    };
    match select(pin!(future), timer).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(_) => None,
    }
}
