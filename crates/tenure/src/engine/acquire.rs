//! Acquires a lock: asks once, or waits.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, pending, select};
use tracing::{Instrument, Span, field};

use super::acquisition::{Acquisition, Outcome};
use super::hold::Hold;
use super::lease::announce;
use super::waiters::ticket_queue::Turn;
use super::{Engine, backoff};
use crate::error::{Error, Result};
use crate::events::{self, event, millis, text};
use crate::metrics::{Meter, Ungranted};
use crate::moment::Moment;
use crate::name::LockName;
use crate::planted::{Bug, planted};
use crate::protocol::{LockSpec, quorum};
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

/// Acquires a lock: `None` when it is busy and the wait is over.
pub(crate) async fn acquire(ask: Acquisition, wait: Wait) -> Result<Option<Hold>> {
    let watch = Watch::new(&ask);
    if let Some(held) = ask.reenter() {
        watch.granted(&held, false);
        return Ok(Some(held));
    }
    let asked = ask_for(ask, wait).instrument(watch.span.clone()).await;
    match asked {
        Ok(Some(Granted { held, handed_over })) => {
            watch.granted(&held, handed_over);
            Ok(Some(held))
        }
        Ok(None) => {
            watch.ended(if wait.is_once() { Ungranted::Busy } else { Ungranted::TimedOut }, None);
            Ok(None)
        }
        Err(error) => {
            watch.ended(Ungranted::Failed, Some(&error));
            Err(error)
        }
    }
}

async fn ask_for(ask: Acquisition, wait: Wait) -> Result<Option<Granted>> {
    let engine = Arc::clone(&ask.engine);
    let until = wait.until(ask.since);
    match ask.rule {
        _ if wait.is_once() => at_once(&engine, ask).await,
        LockSpec::Mutex | LockSpec::Reentrant => in_line(&engine, ask, until).await,
        LockSpec::Queue(_) => in_queue(&engine, ask, until).await,
    }
}

/// A lock that was granted.
struct Granted {
    held: Hold,
    /// After it was waited for in a queue.
    handed_over: bool,
}

impl Granted {
    fn at_once(held: Hold) -> Self {
        Self { held, handed_over: false }
    }

    fn in_turn(held: Hold) -> Self {
        Self { held, handed_over: true }
    }
}

/// Counts an acquisition and tells how it ended. Dropped before, it was cancelled.
struct Watch {
    engine: Arc<Engine>,
    name: LockName,
    meter: Meter,
    since: Moment,
    span: Span,
    is_over: bool,
}

impl Watch {
    fn new(ask: &Acquisition) -> Self {
        let (engine, name, meter, since) = (Arc::clone(&ask.engine), ask.name.clone(), ask.meter, ask.since);
        engine.metrics.begun(meter);
        let span = events::span(|| {
            tracing::debug_span!(
                target: "tenure",
                "acquire",
                lock = %name,
                kind = meter.kind(),
                store = %engine.store.url(),
                result = field::Empty,
            )
        });
        Self { engine, name, meter, since, span, is_over: false }
    }

    fn waited(&self) -> Duration {
        self.engine.now().since(self.since)
    }

    fn granted(mut self, held: &Hold, handed_over: bool) {
        self.is_over = true;
        let waited = self.waited();
        self.engine.metrics.granted(self.meter, waited, handed_over);
        held.keep();
        self.span.record("result", "acquired");
        self.span.in_scope(|| announce(&self.engine, &held.lease, waited));
    }

    fn ended(mut self, how: Ungranted, error: Option<&Error>) {
        self.tell(how, error);
    }

    fn tell(&mut self, how: Ungranted, error: Option<&Error>) {
        self.is_over = true;
        self.engine.metrics.ungranted(self.meter, how);
        self.span.record("result", how.as_str());
        let _inside = self.span.enter();
        let (lock, store) = (|| text(&self.name), || text(self.engine.store.url()));
        let (kind, waited_ms) = (self.meter.kind(), || millis(self.waited()));
        match how {
            Ungranted::Busy => event!(
                DEBUG,
                target: "tenure",
                "lock_busy",
                "busy",
                lock = lock(),
                kind = kind,
                store = store(),
            ),
            Ungranted::TimedOut => event!(
                DEBUG,
                target: "tenure",
                "lock_timed_out",
                "the limit of the wait is over",
                lock = lock(),
                kind = kind,
                store = store(),
                waited_ms = waited_ms(),
            ),
            Ungranted::Cancelled => event!(
                DEBUG,
                target: "tenure",
                "lock_cancelled",
                "the wait was cancelled",
                lock = lock(),
                kind = kind,
                store = store(),
                waited_ms = waited_ms(),
            ),
            Ungranted::Failed => event!(
                DEBUG,
                target: "tenure",
                "lock_failed",
                "the acquisition failed",
                lock = lock(),
                kind = kind,
                store = store(),
                waited_ms = waited_ms(),
                error = error.map(|error| error.kind().as_str()),
                failure = error.map(text),
            ),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.is_over {
            self.tell(Ungranted::Cancelled, None);
        }
    }
}

impl Wait {
    fn is_once(self) -> bool {
        matches!(self, Self::Once | Self::For(Duration::ZERO))
    }

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
async fn at_once(engine: &Arc<Engine>, ask: Acquisition) -> Result<Option<Granted>> {
    let until = engine.now() + ask.options.op_timeout;
    let mut earlier = None;
    for attempt in 0.. {
        let (failure, pause) = match ask.once(false, Some(until)).await {
            Outcome::Held(held) if held.is_live() => return Ok(Some(Granted::at_once(held))),
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
            let failure = match (failure, earlier) {
                // It had what was left of the time, and what went wrong before says more.
                (Failure::NotSent(_), Some(earlier @ Failure::NotSent(_))) if engine.now() >= until => {
                    earlier
                }
                (failure, _) => failure,
            };
            return Err(ask.silent(failure));
        }
        earlier = Some(failure);
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
async fn in_line(engine: &Arc<Engine>, ask: Acquisition, limit: Option<Moment>) -> Result<Option<Granted>> {
    let mut ask = Arc::new(ask);
    loop {
        let mut silence = None;
        if engine.local_queues.may_ask(&ask) {
            let asked = before(engine, limit, pin!(ask.once(true, limit))).await;
            match asked {
                Some(Outcome::Held(held)) if held.is_live() => return Ok(Some(Granted::at_once(held))),
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
            Some(Some(Ok(held))) if held.is_live() => return Ok(Some(Granted::in_turn(held))),
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
async fn in_queue(engine: &Arc<Engine>, ask: Acquisition, limit: Option<Moment>) -> Result<Option<Granted>> {
    let mut ask = Arc::new(ask);
    let (mut heard_at, mut attempt) = (engine.now(), 0);
    // When the last answer came, if it was no. It is one for as long as the next may take.
    let (mut busy_at, op_timeout) = (None::<Moment>, ask.options.op_timeout);
    let is_busy = |busy_at: Option<Moment>| busy_at.is_some_and(|at| engine.now().since(at) < op_timeout);
    loop {
        let asked = before(engine, limit, pin!(ask.once(true, limit))).await;
        let place = match asked {
            Some(Outcome::Held(held)) if held.is_live() => return Ok(Some(Granted::at_once(held))),
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
            Some(Some(Ok(Turn::Held(held)))) if held.is_live() => return Ok(Some(Granted::in_turn(held))),
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
