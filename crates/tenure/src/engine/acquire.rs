//! Acquires a lock, with a single try or by waiting.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, FutureExt, select};
use tracing::{Instrument, Span, field};

pub(crate) use super::acquisition::Wait;
use super::acquisition::{AcquireOutcome, Acquisition, IN_GRACE, Waiting, Wanted};
use super::grant::Lease;
use super::hold::Hold;
use super::waiters::process_queues::ProcessQueues;
use super::waiters::wait_queues::Strategy;
use super::waiters::wait_queues::{WaitHandle, WaitOutcome};
use super::{Engine, backoff};
use crate::error::{Error, Result};
use crate::events::{self, event, millis, text};
use crate::metrics::Ungranted;
use crate::moment::Moment;
use crate::planted::{Bug, planted};
use crate::protocol::{LockSpec, RESTART, quorum};
use crate::store::Failure;

/// Minimum time of the first request of a wait, unless `op_timeout` is shorter.
const FIRST: Duration = Duration::from_secs(1);

/// Acquires a lock; `None` if it is busy and the wait is over.
#[expect(clippy::manual_async_fn, reason = "an async fn stores its arguments twice")]
pub(crate) fn acquire(
    queues: &ProcessQueues,
    wanted: &Wanted<'_>,
) -> impl Future<Output = Result<Option<Hold>>> {
    async move {
        let ask = Acquisition::new(*wanted);
        let watch = AcquireSpan::new(wanted, ask.since);
        if let Some(held) = ask.reenter() {
            watch.granted(&held, false, ask.since);
            return Ok(Some(held));
        }
        let policy = Policy::of(ask.spec, wanted.wait);
        let asked = if policy.is_behind(queues, &ask) {
            RequestOutcome::Behind
        } else {
            let mut asked = pin!(request(&ask, policy, policy.first(&ask, wanted.wait), ask.since));
            poll_fn(|context| watch.span.in_scope(|| asked.as_mut().poll(context))).await
        };
        let granted = match asked {
            RequestOutcome::Answered(AcquireOutcome::Held(held, at)) => {
                Ok(Some(Granted { held, handed_over: false, at }))
            }
            // Boxed, because few acquisitions get here, and otherwise the future of each would be as large.
            asked => {
                let course = Course::new(queues, ask, policy, wanted.wait).run(asked);
                course.instrument(watch.span.clone()).boxed().await
            }
        };
        match granted {
            Ok(Some(Granted { held, handed_over, at })) => {
                watch.granted(&held, handed_over, at);
                Ok(Some(held))
            }
            Ok(None) => {
                watch.ended(if wanted.wait.is_once() { Ungranted::Busy } else { Ungranted::TimedOut }, None);
                Ok(None)
            }
            Err(error) => {
                watch.ended(Ungranted::Failed, Some(&error));
                Err(error)
            }
        }
    }
}

/// A granted lock.
struct Granted {
    held: Hold,
    /// Whether it was granted after waiting in a queue of this process.
    handed_over: bool,
    at: Moment,
}

/// How an acquisition continues if it is not granted immediately.
#[derive(Clone, Copy)]
enum Policy {
    /// Does not wait for a holder. Retries for up to `op_timeout`, and only if the store did not answer or a
    /// split vote kept it from a free lock.
    Once,
    /// For kinds without a queue in the store: waits in this process's queue, behind its other waiters even
    /// before the first request.
    Local,
    /// For kinds with a queue: takes a ticket in the store and waits for its grant.
    Tickets,
}

impl Policy {
    /// Whether a request would overtake a waiter of this process.
    fn is_behind(self, queues: &ProcessQueues, ask: &Acquisition) -> bool {
        matches!(self, Self::Local) && !queues.local.may_ask(ask)
    }

    fn of(spec: LockSpec, wait: Wait) -> Self {
        match spec {
            _ if wait.is_once() => Self::Once,
            LockSpec::Mutex | LockSpec::Reentrant => Self::Local,
            LockSpec::Queue(_) => Self::Tickets,
        }
    }

    fn limit(self, ask: &Acquisition, wait: Wait) -> Option<Moment> {
        match self {
            Self::Once => Some(ask.since + ask.options.op_timeout),
            Self::Local | Self::Tickets => wait.until(ask.since),
        }
    }

    /// The limit of the first request: a limit shorter than a round trip is no reason to call the store silent.
    fn first(self, ask: &Acquisition, wait: Wait) -> Option<Moment> {
        let limit = self.limit(ask, wait)?;
        let least = if planted(Bug::FirstTryCutShort) { Duration::ZERO } else { FIRST };
        Some(limit.max(ask.since + least.min(ask.options.op_timeout)))
    }
}

/// The result of a request.
enum RequestOutcome {
    Answered(AcquireOutcome),
    /// Nothing was sent, because other tasks of this process are waiting.
    Behind,
    /// The wait limit was reached first.
    Late,
}

/// Sends one request, within the limit.
#[expect(clippy::manual_async_fn, reason = "an async fn stores its arguments twice")]
fn request(
    ask: &Acquisition,
    policy: Policy,
    limit: Option<Moment>,
    now: Moment,
) -> impl Future<Output = RequestOutcome> {
    async move {
        let engine = &ask.engine;
        let waits = !matches!(policy, Policy::Once);
        let asked = pin!(ask.request(waits, limit, now));
        // Not with `before`, whose future would add to the size of every acquisition.
        match limit.filter(|_| waits) {
            None => RequestOutcome::Answered(asked.await),
            Some(limit) => match select(asked, engine.runtime.sleep_until(limit)).await {
                Either::Left((outcome, _)) => RequestOutcome::Answered(outcome),
                Either::Right(_) => RequestOutcome::Late,
            },
        }
    }
}

/// What to do after a request.
enum NextStep {
    Granted(Granted),
    /// The wait is over.
    Over,
    /// Repeat the request at this time.
    Retry(Moment),
    /// Wait in this process's queue. Contains the failure of an unanswered request.
    Local(Option<Failure>),
    /// Wait for the grant of a ticket in the store.
    Ticket(Waiting),
}

/// An acquisition that its first request did not end: it waits, or with [`Policy::Once`] retries.
struct Course {
    engine: Arc<Engine>,
    queues: ProcessQueues,
    ask: Arc<Acquisition>,
    policy: Policy,
    limit: Option<Moment>,
    /// Requests since it last joined a queue, for the backoff.
    attempt: u32,
    /// Time of the store's last answer, or of the start.
    heard_at: Moment,
    /// Time of the last answer, if it was *busy*.
    busy_at: Option<Moment>,
    /// Failure of the previous request.
    earlier: Option<Failure>,
    /// Whether a restart grace counts as a store that does not answer.
    waits_for_grace: bool,
    /// Its request followed the release of another task.
    handed_over: bool,
}

impl Course {
    fn new(queues: &ProcessQueues, ask: Acquisition, policy: Policy, wait: Wait) -> Self {
        let limit = policy.limit(&ask, wait);
        let waits_for_grace =
            matches!(wait, Wait::OnceGranting) && ask.engine.store.capabilities().restart_grace.is_some();
        let (engine, heard_at, queues) = (Arc::clone(&ask.engine), ask.since, queues.clone());
        let (ask, attempt, busy_at, earlier, handed_over) = (Arc::new(ask), 0, None, None, false);
        Self {
            engine,
            queues,
            ask,
            policy,
            limit,
            attempt,
            heard_at,
            busy_at,
            earlier,
            waits_for_grace,
            handed_over,
        }
    }

    /// Continues after the first request.
    async fn run(mut self, mut asked: RequestOutcome) -> Result<Option<Granted>> {
        loop {
            let outcome = match self.next(asked)? {
                NextStep::Granted(granted) => return Ok(Some(granted)),
                NextStep::Over => return Ok(None),
                NextStep::Retry(at) => {
                    self.engine.runtime.sleep_until(at).await;
                    let is_over = |at| self.limit.is_some_and(|limit| at >= limit);
                    // As after a suspend of the machine. The store answered when it was asked last.
                    if is_over(at) || self.busy_at.is_some() && is_over(self.engine.now()) {
                        return Ok(None);
                    }
                    asked = self.request().await;
                    continue;
                }
                NextStep::Local(silence) => {
                    let place = self.queues.local.join(&self.engine, &self.ask, silence);
                    self.wait_for(place).await?
                }
                NextStep::Ticket(waiting) => {
                    let place = self.queues.ticket.join(&self.engine, &self.ask, waiting);
                    self.wait_for(place).await?
                }
            };
            let at = self.engine.now();
            match outcome {
                None => return Ok(None),
                Some(WaitOutcome::Held(held)) if at < held.lease.lost_at() => {
                    return Ok(Some(Granted { held, handed_over: true, at }));
                }
                Some(WaitOutcome::Free(_ahead)) => {
                    self.handed_over = true;
                    // The limit is no reason to call the store silent, as in the queue.
                    let own = pin!(request(&self.ask, self.policy, None, at));
                    match before(&self.engine, self.limit, own).await {
                        Some(outcome) => asked = outcome,
                        None => return Ok(None),
                    }
                    continue;
                }
                // The lease or the ticket expired before this future was polled: start over at the end of the
                // queue.
                Some(WaitOutcome::Held(_) | WaitOutcome::Gone) => {}
            }
            // As after a suspend of the machine.
            if self.limit.is_some_and(|limit| at >= limit) {
                return Ok(None);
            }
            self.restart();
            (self.attempt, self.heard_at, self.busy_at) = (0, at, None);
            asked = self.request().await;
        }
    }

    async fn request(&self) -> RequestOutcome {
        if self.policy.is_behind(&self.queues, &self.ask) {
            return RequestOutcome::Behind;
        }
        request(&self.ask, self.policy, self.limit, self.engine.now()).await
    }

    /// Waits in the queue; `None` when the wait is over.
    async fn wait_for<S: Strategy>(&self, mut place: WaitHandle<S>) -> Result<Option<WaitOutcome>> {
        let outcome = before(&self.engine, self.limit, pin!(place.outcome())).await;
        match outcome {
            Some(Some(outcome)) => outcome.map(Some),
            Some(None) => Err(self.ask.silent(not_sent("the thread of the locks has ended"))),
            None => place.silence().map_or(Ok(None), |failure| Err(self.ask.silent(failure))),
        }
    }

    /// Continues with a new hold id, because the previous hold has expired and is being released.
    fn restart(&mut self) {
        self.ask = Arc::new(self.ask.anew());
    }

    fn next(&mut self, asked: RequestOutcome) -> Result<NextStep> {
        match (self.policy, asked) {
            (_, RequestOutcome::Answered(AcquireOutcome::Held(held, at))) => {
                Ok(NextStep::Granted(Granted { held, handed_over: self.handed_over, at }))
            }
            (_, RequestOutcome::Answered(AcquireOutcome::Refused(error))) => Err(error),
            (Policy::Once, asked) => self.next_once(asked),
            (Policy::Local, asked) => self.next_local(asked),
            (Policy::Tickets, asked) => self.next_ticket(asked),
        }
    }

    fn next_once(&mut self, asked: RequestOutcome) -> Result<NextStep> {
        let (failure, pause) = match asked {
            RequestOutcome::Answered(AcquireOutcome::Lapsed(_)) => return Err(self.ask.silent(too_slow())),
            RequestOutcome::Answered(AcquireOutcome::Busy { holder, left_ms })
                if holder == quorum::NOBODY && !planted(Bug::BallotsTakenForHolder) =>
            {
                let failure = not_sent("its members had accepted higher ballots each time");
                (failure, Duration::from_millis(left_ms.unwrap_or(0) + 1))
            }
            RequestOutcome::Answered(AcquireOutcome::Busy { holder, left_ms })
                if self.waits_for_grace && holder == RESTART =>
            {
                let left = Duration::from_millis(left_ms.unwrap_or(0) + 1);
                let seconds = left.as_secs() + 1;
                (not_sent(&format!("{IN_GRACE}, for another {seconds}s")), left)
            }
            RequestOutcome::Answered(AcquireOutcome::Silent(failure)) => {
                (failure, self.engine.jittered(backoff(self.attempt)))
            }
            _ => return Ok(NextStep::Over),
        };
        self.attempt += 1;
        let (now, until) = (self.engine.now(), self.limit.unwrap_or(Moment(u64::MAX)));
        if now + pause < until {
            self.earlier = Some(failure);
            return Ok(NextStep::Retry(now + pause));
        }
        let failure = match (failure, self.earlier.take()) {
            // The last request had no time left, so the failure before it is more informative.
            (Failure::NotSent(_), Some(earlier @ Failure::NotSent(_))) if now >= until => earlier,
            (failure, _) => failure,
        };
        Err(self.ask.silent(failure))
    }

    fn next_local(&mut self, asked: RequestOutcome) -> Result<NextStep> {
        match asked {
            RequestOutcome::Late => Err(self.ask.silent(not_in_time())),
            RequestOutcome::Answered(AcquireOutcome::Busy { .. })
                if self.limit.is_some_and(|limit| self.engine.now() >= limit) =>
            {
                Ok(NextStep::Over)
            }
            RequestOutcome::Answered(AcquireOutcome::Silent(failure)) => Ok(NextStep::Local(Some(failure))),
            RequestOutcome::Answered(AcquireOutcome::Lapsed(held)) => {
                drop(held);
                self.restart();
                Ok(NextStep::Local(Some(too_slow())))
            }
            _ => Ok(NextStep::Local(None)),
        }
    }

    fn next_ticket(&mut self, asked: RequestOutcome) -> Result<NextStep> {
        // A busy answer remains valid for one request timeout.
        let (now, op_timeout) = (self.engine.now(), self.ask.options.op_timeout);
        let is_busy = self.busy_at.is_some_and(|at| now.since(at) < op_timeout);
        let failure = match asked {
            RequestOutcome::Answered(AcquireOutcome::Waiting(waiting)) => {
                return Ok(NextStep::Ticket(waiting));
            }
            RequestOutcome::Late if is_busy => return Ok(NextStep::Over),
            RequestOutcome::Late => return Err(self.ask.silent(not_in_time())),
            // The server is in its restart grace, or the name is locked by another program.
            RequestOutcome::Answered(AcquireOutcome::Busy { left_ms, .. }) => {
                let left = left_ms.map_or(Duration::MAX, |left_ms| Duration::from_millis(left_ms + 1));
                let until = now + self.backoff().min(left);
                (self.heard_at, self.busy_at) = (now, Some(now));
                return Ok(NextStep::Retry(self.limit.map_or(until, |limit| until.min(limit))));
            }
            RequestOutcome::Answered(AcquireOutcome::Silent(failure)) => failure,
            _ => {
                self.restart();
                too_slow()
            }
        };
        if failure.is_full() {
            self.heard_at = now;
        }
        let gives_up_at = self.heard_at + self.ask.options.patience;
        let until = (now + self.backoff()).min(gives_up_at);
        let is_over = self.limit.is_some_and(|limit| until >= limit);
        // The limit left the last request no time, and no other failure is known.
        if is_over && matches!(failure, Failure::Unknown(_)) && is_busy {
            return Ok(NextStep::Over);
        }
        let is_out = now >= gives_up_at || until >= gives_up_at && planted(Bug::PatienceCutShort);
        if is_over || is_out {
            return Err(self.ask.silent(failure));
        }
        self.busy_at = None;
        Ok(NextStep::Retry(until))
    }

    fn backoff(&mut self) -> Duration {
        let pause = self.engine.jittered(backoff(self.attempt));
        self.attempt += 1;
        pause
    }
}

fn too_slow() -> Failure {
    not_sent("its replies take longer than the requested lease")
}

fn not_in_time() -> Failure {
    not_sent("no reply before the wait timed out")
}

fn not_sent(why: &str) -> Failure {
    Failure::NotSent(Failure::cause(why))
}

/// The future's output, unless the limit comes first. Polls the future before the timer.
async fn before<F: Future>(engine: &Engine, limit: Option<Moment>, future: Pin<&mut F>) -> Option<F::Output> {
    let Some(limit) = limit else { return Some(future.await) };
    match select(future, engine.runtime.sleep_until(limit)).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(_) => None,
    }
}

/// Counts an acquisition and logs its end, which is its cancellation if this is dropped first.
struct AcquireSpan<'a> {
    wanted: &'a Wanted<'a>,
    since: Moment,
    span: Span,
    is_over: bool,
}

impl<'a> AcquireSpan<'a> {
    fn new(wanted: &'a Wanted<'a>, since: Moment) -> Self {
        let Wanted { engine, name, meter, .. } = *wanted;
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
        Self { wanted, since, span, is_over: false }
    }

    fn waited(&self) -> Duration {
        self.wanted.engine.now().since(self.since)
    }

    fn granted(mut self, held: &Hold, handed_over: bool, at: Moment) {
        self.is_over = true;
        let waited = at.since(self.since);
        let Wanted { engine, meter, .. } = *self.wanted;
        engine.metrics.granted(meter, waited, handed_over);
        held.keep(at);
        self.span.record("result", "acquired");
        self.span.in_scope(|| announce(engine, &held.lease, waited));
    }

    fn ended(mut self, how: Ungranted, error: Option<&Error>) {
        self.tell(how, error);
    }

    fn tell(&mut self, how: Ungranted, error: Option<&Error>) {
        self.is_over = true;
        let Wanted { engine, name, meter, .. } = *self.wanted;
        engine.metrics.ungranted(meter, how);
        self.span.record("result", how.as_str());
        let _inside = self.span.enter();
        let (lock, store) = (|| text(name), || text(engine.store.url()));
        let (kind, waited_ms) = (meter.kind(), || millis(self.waited()));
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
                "the wait timed out",
                lock = lock(),
                kind = kind,
                store = store(),
                waited_ms = waited_ms(),
            ),
            Ungranted::Cancelled => event!(
                DEBUG,
                target: "tenure",
                "lock_cancelled",
                "the acquisition was cancelled",
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

impl Drop for AcquireSpan<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.tell(Ungranted::Cancelled, None);
        }
    }
}

/// Logs a grant.
fn announce(engine: &Engine, lease: &Lease, waited: Duration) {
    event!(
        DEBUG,
        target: "tenure",
        "lock_acquired",
        "acquired",
        lock = text(&lease.name),
        kind = lease.meter.kind(),
        store = text(engine.store.url()),
        owner = text(&lease.owner),
        fence = lease.fence,
        waited_ms = millis(waited),
    );
}
