//! The renewer: renews every held grant of one `Locks`, and announces losses in time.
//!
//! One task serves all grants. It sleeps until something is due, and an uncontended acquire and release
//! change the schedule without waking it.
//!
//! Renewals that are due are queued before they are sent, those whose lease ends first at the head. Renewals
//! sent together share a request where the store supports it. A [`RequestWindow`] limits the renewals in flight: a
//! hundred thousand sent at once would delay each other at the store until they time out and are sent again.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, Stream, StreamExt};

use super::Engine;
use super::call::Call;
use super::forced;
use super::grant::{Hearing, Lease, Loss};
use super::listener_count::MOST;
use super::renew_schedule::{RenewSchedule, Renewer};
use super::window::{RequestStamp, RequestWindow};
use crate::events::{event, millis, text};
use crate::metrics::LossReason;
use crate::moment::Moment;
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, lease};
use crate::store::Failure;

/// Renewals due within this time of each other are sent together.
const BATCH: Duration = Duration::from_millis(250);
/// Up to this many holds, renewals that can share requests are sent in a burst. Spread over the interval, each
/// request would find the server's caches cold.
const BURST: usize = 2_048;
/// Number of renewals in one request that cost a store as much as a single one.
const AS_ONE: usize = 16;

impl RenewSchedule {
    /// When a lease needs attention while nothing is in flight for it. If more leases are held than are renewed
    /// in one burst, renewals are due `sooner`, so that leases granted together spread out.
    fn first_due(&self, lease: &Lease, sooner: fn(&Lease) -> Duration, engine: &Engine) -> Moment {
        let state = lease.state();
        let lost = state.lost_at(lease);
        let due = match state.renew_at(lease) {
            Some(renew) if renew <= lost && exceeds_burst(engine, lease, self.due.len()) => {
                renew - sooner(lease)
            }
            Some(renew) => renew.min(lost),
            None => lost,
        };
        state.listen_at(lease).map_or(due, |listen| listen.min(due))
    }
}

impl Renewer {
    pub(super) fn keep(&self, engine: &Arc<Engine>, lease: &Arc<Lease>) {
        let mut schedule = self.schedule();
        if engine.listeners.is_full() || schedule.due.len() >= MOST {
            lease.set_hearing(Hearing::Again);
        }
        let due = schedule.first_due(lease, Lease::first_spread, engine);
        schedule.put(lease, due);
        if schedule.wakes(due) {
            self.notify.notify_one();
        } else if schedule.asleep_until.is_none() {
            schedule.asleep_until = Some(due);
            drop(schedule);
            engine.runtime.spawn(RenewerTask::new(engine).run().boxed());
        }
    }

    /// Verifies a grant whose connection dropped between its request and its hand-over.
    pub(super) fn verify_soon(&self, engine: &Engine, lease: &Arc<Lease>) {
        self.ask_by(lease, engine.now());
    }

    /// Verifies a hold that may have ended according to a message.
    pub(super) fn check(&self, engine: &Engine, lease: &Arc<Lease>) {
        self.ask_by(lease, lease::check_at(lease.checked_at(), engine.now()));
    }

    /// Wakes up for an end of this lease that is now earlier.
    pub(super) fn reschedule(&self, engine: &Engine, lease: &Arc<Lease>) {
        let mut schedule = self.schedule();
        let due = schedule.first_due(lease, Lease::spread, engine);
        if schedule.hasten(lease, due) && schedule.wakes(due) {
            self.notify.notify_one();
        }
    }
}

impl Lease {
    /// Moves the deadline, even back, after a request for a lease of `time` that was sent at `sent`.
    pub(crate) fn set_end(self: &Arc<Self>, engine: &Engine, sent: Moment, time: Duration) {
        let root = self.shared_root().unwrap_or(self);
        root.set_deadline(sent, engine.now(), time);
        engine.renewer.reschedule(engine, root);
    }

    /// Verifies it soon, because something says that it may have ended.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn doubt(self: &Arc<Self>, engine: &Engine) {
        engine.renewer.check(engine, self.shared_root().unwrap_or(self));
    }
}

/// Maximum renewals in one request.
fn together(engine: &Engine) -> usize {
    engine.store.capabilities().renewals
}

/// Whether so many renewals are too many to be sent together with this one before they are due. They spread over
/// time then.
fn exceeds_burst(engine: &Engine, lease: &Lease, count: usize) -> bool {
    count > together(engine) && (count > BURST || renews_with(engine, lease).is_none())
}

/// What leases that can share a request with it have in common.
fn renews_with(engine: &Engine, lease: &Lease) -> Option<u16> {
    engine.store.placement(&lease.name, lease.spec).renews_with
}

struct RenewerTask {
    engine: Arc<Engine>,
    /// Due and not yet sent, by time of loss.
    ready: BTreeMap<(Moment, u64), Arc<Lease>>,
    window: RequestWindow,
    under_way: FuturesUnordered<BoxFuture<'static, Attempt>>,
    interrupted: BoxFuture<'static, ()>,
}

/// One request and its answers: many renewals, one renewal, or one verification.
struct Attempt {
    place: RequestStamp,
    sent: Moment,
    asked: Vec<RenewalRequest>,
    answers: Vec<Result<Answer, Failure>>,
}

/// The part of a request that is about one lease.
struct RenewalRequest {
    lease: Arc<Lease>,
    /// The lease to request; zero for a verification.
    ttl: Duration,
    renews: bool,
    /// Timeout of the attempt.
    within: Duration,
}

impl RenewalRequest {
    fn new(lease: Arc<Lease>, sent: Moment) -> Self {
        let (renews, left) = {
            let mut state = lease.state();
            state.check(sent);
            (state.renew_at(&lease).is_some(), state.lost_at(&lease).since(sent))
        };
        let ttl = if renews { lease.ask(sent) } else { Duration::ZERO };
        let within = lease::attempt(lease.options.ttl, left, lease.options.op_timeout);
        Self { lease, ttl, renews, within }
    }

    fn call(&self) -> Call<'_> {
        let Self { lease, ttl, renews, .. } = self;
        Call::of(lease, if *renews { lease.renewal(*ttl, None, None) } else { lease.question() })
    }
}

enum RenewerEvent {
    Attempt(Attempt),
    Interrupted,
    Look,
}

impl RenewerTask {
    fn new(engine: &Arc<Engine>) -> Self {
        Self {
            engine: Arc::clone(engine),
            ready: BTreeMap::new(),
            window: RequestWindow::default(),
            under_way: FuturesUnordered::new(),
            interrupted: engine.store.signals().interrupted(),
        }
    }

    async fn run(mut self) {
        loop {
            let Some(until) = self.look() else { return };
            match self.next(until).await {
                RenewerEvent::Attempt(attempt) => {
                    self.judge(attempt);
                    // Answers usually arrive together, and one pass handles them all.
                    while let Some(Some(attempt)) = self.under_way.next().now_or_never() {
                        self.judge(attempt);
                    }
                    if !self.ready.is_empty() {
                        // A store may answer without ever blocking, and other tasks share this thread.
                        tokio::task::yield_now().await;
                    }
                }
                RenewerEvent::Interrupted => {
                    self.interrupted = self.engine.store.signals().interrupted();
                    self.ask_all();
                }
                RenewerEvent::Look => {}
            }
        }
    }

    /// Waits for the first event. Polls in a fixed order, so that a seed replays.
    async fn next(&mut self, until: Moment) -> RenewerEvent {
        let mut timer = self.engine.runtime.sleep_until(until);
        let mut notify = std::pin::pin!(self.engine.renewer.notify.notified());
        poll_fn(|context| {
            if let Poll::Ready(Some(attempt)) = Pin::new(&mut self.under_way).poll_next(context) {
                return Poll::Ready(RenewerEvent::Attempt(attempt));
            }
            if self.interrupted.poll_unpin(context).is_ready() {
                return Poll::Ready(RenewerEvent::Interrupted);
            }
            if notify.as_mut().poll(context).is_ready() || timer.poll_unpin(context).is_ready() {
                return Poll::Ready(RenewerEvent::Look);
            }
            Poll::Pending
        })
        .await
    }

    /// Announces losses, sends what is due, and returns when to wake up next; `None` when the engine is
    /// closed.
    fn look(&mut self) -> Option<Moment> {
        let now = self.engine.now();
        let (mut lost, mut due, mut listening) = (Vec::new(), Vec::new(), Vec::new());
        let until = {
            let mut schedule = self.engine.renewer.schedule();
            if schedule.closed {
                return None;
            }
            let is_due = schedule.first().is_some_and(|first| first <= now);
            // With few holds, those that are nearly due leave together even if none is due yet.
            if is_due || schedule.due.len() <= together(&self.engine) {
                let mut early_ones = 0;
                for ((at, _), lease) in schedule.due.range(..=(now + BATCH, u64::MAX)) {
                    early_ones += usize::from(*at > now);
                    if exceeds_burst(&self.engine, lease, early_ones) {
                        break;
                    }
                    // Its time is over; or it is due, or nearly so and joins the others.
                    if now >= lease.lost_at() {
                        lost.push(Arc::clone(lease));
                    } else if *at < lease.lost_at() && *at <= now + early(lease, *at) {
                        due.push(Arc::clone(lease));
                    }
                }
                due.retain(|lease| {
                    schedule.take(lease);
                    let is_doubtful = lease.state().take_doubt(now);
                    let listen_at = lease.state().listen_at(lease);
                    // A subscription that failed is tried again, with or without a renewal.
                    if listen_at.is_some_and(|at| at <= now) {
                        lease.set_hearing(Hearing::Again);
                        listening.push(Arc::clone(lease));
                        let next = schedule.first_due(lease, Lease::first_spread, &self.engine);
                        if !is_doubtful && next > now {
                            schedule.put(lease, next);
                            return false;
                        }
                    }
                    // While its renewal is due or in flight, only its loss is scheduled.
                    schedule.put(lease, lease.lost_at());
                    is_doubtful || lease.state().renew_at(lease).is_some()
                });
                for lease in &lost {
                    schedule.take(lease);
                }
            }
            schedule.sleep(now)
        };
        if !planted(Bug::LossUnannounced) {
            lost.iter().for_each(|lease| lease.expire(&self.engine));
        }
        listening.iter().for_each(|lease| forced::subscribe(&self.engine, lease));
        self.line_up(due);
        Some(self.send().map_or(until, |at| until.min(at)))
    }

    /// Verifies every hold after a connection loss.
    fn ask_all(&mut self) {
        let leases: Vec<_> = self.engine.renewer.schedule().due.values().cloned().collect();
        self.line_up(leases);
    }

    fn line_up(&mut self, leases: Vec<Arc<Lease>>) {
        self.ready.extend(leases.into_iter().map(|lease| ((lease.lost_at(), lease.hold), lease)));
    }

    /// Sends what is ready, within the window. Returns when the window opens, if more is ready.
    fn send(&mut self) -> Option<Moment> {
        if self.ready.is_empty() {
            return None;
        }
        let now = self.engine.now();
        let most = together(&self.engine);
        let mut free = self.window.free(now) * AS_ONE;
        // By number and by the power of two of the timeout, because the shortest timeout of a batch applies to
        // all of it.
        let mut batches: BTreeMap<(u16, u32), Vec<RenewalRequest>> = BTreeMap::new();
        while let Some(first) = self.ready.first_entry() {
            // Released, detached or lost meanwhile.
            if first.get().state().due.is_none() {
                first.remove();
                continue;
            }
            if free == 0 {
                break;
            }
            let asked = RenewalRequest::new(first.remove(), now);
            let number = asked.renews.then(|| renews_with(&self.engine, &asked.lease)).flatten();
            free = free.saturating_sub(if number.is_some() { 1 } else { AS_ONE });
            match number {
                None => self.ask(vec![asked], now),
                Some(number) => {
                    let within = asked.within.as_millis().checked_ilog2().unwrap_or(0);
                    let batch = batches.entry((number, within)).or_default();
                    batch.push(asked);
                    if batch.len() == most {
                        let full = std::mem::take(batch);
                        self.ask(full, now);
                    }
                }
            }
        }
        batches.into_values().filter(|batch| !batch.is_empty()).for_each(|batch| self.ask(batch, now));
        if self.ready.is_empty() { None } else { self.window.opens_at() }
    }

    fn ask(&mut self, asked: Vec<RenewalRequest>, sent: Moment) {
        let place = self.window.enter(sent, asked.len().div_ceil(AS_ONE));
        let engine = Arc::clone(&self.engine);
        let within = asked.iter().map(|asked| asked.within).min().unwrap_or_default();
        self.under_way.push(
            async move {
                let answers = match &asked[..] {
                    [one] => vec![engine.call(&one.call(), sent, within).await],
                    many => engine.renew(many.iter().map(RenewalRequest::call), within).await,
                };
                Attempt { place, sent, asked, answers }
            }
            .boxed(),
        );
    }

    fn judge(&mut self, attempt: Attempt) {
        let Attempt { place, sent, asked, answers } = attempt;
        let now = self.engine.now();
        match answers.iter().any(Result::is_ok) {
            true => {
                let count = asked.len().div_ceil(AS_ONE);
                self.window.answered(place, count, now, !self.ready.is_empty());
            }
            false => self.window.left(place),
        }
        for (asked, answer) in asked.into_iter().zip(answers) {
            self.judge_one(asked, answer, sent, now);
        }
    }

    fn judge_one(&self, asked: RenewalRequest, answer: Result<Answer, Failure>, sent: Moment, now: Moment) {
        let RenewalRequest { lease, ttl, renews, .. } = asked;
        if !self.engine.renewer.schedule().has(&lease) {
            return; // released, detached or lost meanwhile
        }
        if renews {
            self.engine.metrics.renewed(lease.meter, answer.is_ok());
        }
        let next = match &answer {
            Ok(answer) => match lease.refusal(answer) {
                // It was detached or released meanwhile, perhaps; the deadline decides.
                Some(_) if lease.may_have_ended() && !planted(Bug::DetachedTakenForLost) => lease.lost_at(),
                // The store says that somebody else holds the lock, or nobody.
                Some(loss) if !planted(Bug::RefusalIgnored) => return lease.lose(&self.engine, &loss),
                refusal => {
                    if renews && refusal.is_none() {
                        lease.renewed(sent, now, ttl);
                    }
                    if lease.listens_again(now) && !self.engine.listeners.is_full() {
                        forced::subscribe(&self.engine, &lease);
                    }
                    self.engine.renewer.schedule().first_due(&lease, Lease::spread, &self.engine)
                }
            },
            // No answer: the lease may have been extended, but does not count as extended.
            Err(_) => {
                if planted(Bug::FailedRenewalExtends) {
                    lease.renewed(sent, now, ttl);
                }
                let left = lease.lost_at().since(now);
                let retry = now + self.engine.jittered(lease::retry_after(lease.options.ttl, left));
                if !renews && !planted(Bug::QuestionGivenUp) {
                    // It stays in doubt until an answer arrives.
                    lease.state().doubt(retry);
                }
                if renews { retry.min(lease.lost_at()) } else { lease.lost_at() }
            }
        };
        self.engine.renewer.schedule().set(&lease, next);
        if let Err(failure) = answer {
            event!(
                WARN,
                target: "tenure",
                "renewal_failed",
                "renewal failed",
                lock = text(&lease.name),
                kind = lease.meter.kind(),
                store = text(self.engine.store.url()),
                owner = text(&lease.owner),
                failure = text(&failure),
                left_ms = millis(lease.lost_at().since(now)),
            );
        }
    }
}

/// How much earlier than due a renewal may be sent to share a request. Zero for a retry; otherwise a retry
/// would immediately follow an attempt that fails without delay.
fn early(lease: &Lease, due: Moment) -> Duration {
    let sooner = [Duration::ZERO, lease.spread(), lease.first_spread()];
    let is_first =
        lease.state().renew_at(lease).is_some_and(|at| sooner.iter().any(|sooner| at - *sooner == due));
    if is_first { (lease.options.ttl / 12).min(BATCH) } else { Duration::ZERO }
}

impl Drop for RenewerTask {
    /// A hold without a renewer counts as lost, even if this task panics.
    fn drop(&mut self) {
        let orphans = {
            let mut schedule = self.engine.renewer.schedule();
            // Lets the next grant start another task.
            schedule.asleep_until = None;
            std::mem::take(&mut schedule.due).into_values()
        };
        for lease in orphans {
            lease.state().due = None;
            lease.lose(&self.engine, &Loss::new(LossReason::Unrenewed, "its renewal has ended"));
        }
    }
}
