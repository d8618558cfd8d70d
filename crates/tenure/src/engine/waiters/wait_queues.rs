//! Wait queues for the tasks of one process, one per lock, each with a task that sends requests to the store
//! while there are waiters. The first waiter opens a queue, and its task closes it after it has been empty
//! for a while. A [`Strategy`] defines the requests and the meaning of answers and messages.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::{Notify, oneshot};

use super::subscription::{Heard, Subscription};
use crate::engine::acquisition::Acquisition;
use crate::engine::hold::Hold;
use crate::engine::{Engine, backoff};
use crate::error::Result;
use crate::events::{event, text};
use crate::moment::Moment;
use crate::name::LockName;
use crate::store::Failure;
use crate::sync::Locked;

/// The waiters of one lock.
pub(in crate::engine) struct WaitQueue<S: Strategy> {
    pub(super) key: S::Key,
    queue: Locked<Waiters<S>>,
    /// Wakes the task that serves the queue.
    pub(super) notify: Notify,
}

pub(in crate::engine) struct Waiters<S: Strategy> {
    /// By number: the ticket's, or the order of arrival.
    pub(super) waiters: BTreeMap<u64, QueuedWaiter<S>>,
    /// Since when the store has not answered, and the failure.
    pub(super) silence: Option<(Moment, Failure)>,
    /// No handle is left, so the serving task must end.
    pub(super) is_closed: bool,
    pub(super) known: S::Known,
}

pub(in crate::engine) struct QueuedWaiter<S: Strategy> {
    pub(super) ask: Arc<Acquisition>,
    pub(super) note: S::Note,
    outcome: oneshot::Sender<Result<WaitOutcome>>,
}

/// What ends a wait.
#[derive(Debug)]
pub(in crate::engine) enum WaitOutcome {
    Held(Hold),
    /// The lock may be free, and nobody is behind: the waiter asks for it itself. Newcomers wait behind it while this
    /// lives.
    Free(Arc<()>),
    /// The ticket has expired, or the store has forgotten it.
    Gone,
}

impl<S: Strategy> Waiters<S> {
    fn join(&mut self, number: u64, waiter: QueuedWaiter<S>) {
        S::joined(&mut self.known, number, &waiter.ask);
        self.waiters.insert(number, waiter);
    }

    pub(super) fn leave(&mut self, number: u64) -> Option<QueuedWaiter<S>> {
        let waiter = self.waiters.remove(&number)?;
        S::left(&mut self.known, number, &waiter.ask);
        Some(waiter)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty() && !S::is_needed(&self.known)
    }
}

impl<S: Strategy> QueuedWaiter<S> {
    /// Ends the wait. False if the waiter has left; the grant is then dropped, which releases it.
    pub(super) fn answer(self, outcome: Result<WaitOutcome>) -> bool {
        self.outcome.send(outcome).is_ok()
    }
}

impl<S: Strategy> WaitQueue<S> {
    pub(super) fn queue(&self) -> MutexGuard<'_, Waiters<S>> {
        self.queue.lock()
    }

    /// Ends the wait of this number; false if the waiter has left.
    pub(super) fn answer(&self, number: u64, outcome: Result<WaitOutcome>) -> bool {
        let waiter = self.queue().leave(number);
        waiter.is_some_and(|waiter| waiter.answer(outcome))
    }

    /// Records that the store did not answer. Fails the waiters whose patience is exhausted, and returns how
    /// many. A full server exhausts nobody's patience, because it is not silent.
    pub(super) fn silent(&self, engine: &Engine, failure: &Failure) -> usize {
        let now = engine.now();
        let out: Vec<QueuedWaiter<S>> = {
            let mut queue = self.queue();
            if failure.is_full() {
                queue.silence = Some((now, failure.clone()));
            }
            let since = queue.silence.get_or_insert((now, failure.clone())).0;
            let is_out = |ask: &Acquisition| now.since(since.max(ask.since)) >= ask.options.patience;
            let out = queue.waiters.iter().filter(|(_, waiter)| is_out(&waiter.ask));
            let out: Vec<u64> = out.map(|(number, _)| *number).collect();
            out.into_iter().filter_map(|number| queue.leave(number)).collect()
        };
        let given_up = out.len();
        for waiter in out {
            let error = waiter.ask.silent(failure.clone());
            waiter.answer(Err(error));
        }
        given_up
    }
}

pub(in crate::engine) struct WaitQueues<S: Strategy>(Locked<BTreeMap<S::Key, Arc<WaitQueue<S>>>>);

impl<S: Strategy> Default for WaitQueues<S> {
    fn default() -> Self {
        Self(Locked::default())
    }
}

impl<S: Strategy> WaitQueues<S> {
    pub(super) fn all(&self) -> MutexGuard<'_, BTreeMap<S::Key, Arc<WaitQueue<S>>>> {
        self.0.lock()
    }

    /// Joins a wait queue, opening it if necessary. `enter` chooses the number, before the queue can be
    /// closed or another waiter can join.
    pub(super) fn place(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        key: S::Key,
        ask: &Arc<Acquisition>,
        enter: impl FnOnce(&mut Waiters<S>) -> (u64, S::Note),
    ) -> WaitHandle<S> {
        let (outcome, receiver) = oneshot::channel();
        let mut server = None;
        let (wait_queue, number) = {
            let mut wait_queues = self.all();
            let wait_queue = Arc::clone(wait_queues.entry(key.clone()).or_insert_with(|| {
                let wait_queue = WaitQueue::new(key);
                server = Some(QueueServer::<S>::new(engine, self, &wait_queue));
                wait_queue
            }));
            let mut queue = wait_queue.queue();
            let (number, note) = enter(&mut queue);
            queue.join(number, QueuedWaiter { ask: Arc::clone(ask), note, outcome });
            drop(queue);
            (wait_queue, number)
        };
        // A runtime that has ended drops it immediately, which abandons the queue.
        if let Some(server) = server {
            engine.runtime.spawn(server.run().boxed());
        }
        WaitHandle { wait_queue, number, receiver }
    }

    /// Closes all queues and returns whether there were any.
    pub(in crate::engine) fn close(&self) -> bool {
        let wait_queues = std::mem::take(&mut *self.all());
        for wait_queue in wait_queues.values() {
            wait_queue.queue().is_closed = true;
            wait_queue.notify.notify_one();
        }
        !wait_queues.is_empty()
    }

    /// The task of this queue has ended: drops its waiters' senders, which they notice. The next waiter opens
    /// another queue.
    pub(super) fn abandon(&self, wait_queue: &Arc<WaitQueue<S>>) {
        self.remove(wait_queue, |_| true);
        let abandoned: Vec<QueuedWaiter<S>> = {
            let mut queue = wait_queue.queue();
            let numbers: Vec<u64> = queue.waiters.keys().copied().collect();
            numbers.into_iter().filter_map(|number| queue.leave(number)).collect()
        };
        drop(abandoned);
    }

    /// Closes a queue if it has no waiters; returns whether it did.
    pub(super) fn retire(&self, wait_queue: &Arc<WaitQueue<S>>) -> bool {
        self.remove(wait_queue, Waiters::is_empty)
    }

    /// Unless another queue has taken its place.
    fn remove(&self, wait_queue: &Arc<WaitQueue<S>>, if_so: impl FnOnce(&Waiters<S>) -> bool) -> bool {
        let mut wait_queues = self.all();
        let goes = if_so(&wait_queue.queue());
        if goes && wait_queues.get(&wait_queue.key).is_some_and(|known| Arc::ptr_eq(known, wait_queue)) {
            wait_queues.remove(&wait_queue.key);
        }
        goes
    }
}

impl<S: Strategy> WaitQueue<S> {
    pub(super) fn new(key: S::Key) -> Arc<Self> {
        let queue =
            Waiters { waiters: BTreeMap::new(), silence: None, is_closed: false, known: S::Known::default() };
        Arc::new(Self { key, queue: Locked::new(queue), notify: Notify::new() })
    }
}

/// A waiter's place in a queue, left on drop. The [`Acquisition`] informs the store.
pub(in crate::engine) struct WaitHandle<S: Strategy> {
    pub(super) wait_queue: Arc<WaitQueue<S>>,
    pub(super) number: u64,
    receiver: oneshot::Receiver<Result<WaitOutcome>>,
}

impl<S: Strategy> WaitHandle<S> {
    /// The outcome, or the error that ended the wait; `None` when the queue's task has ended.
    pub(in crate::engine) async fn outcome(&mut self) -> Option<Result<WaitOutcome>> {
        (&mut self.receiver).await.ok()
    }

    /// Why the store has not answered, if it has not.
    pub(in crate::engine) fn silence(&self) -> Option<Failure> {
        let queue = self.wait_queue.queue();
        let silence = queue.silence.as_ref().map(|(_, failure)| failure);
        let own =
            || queue.waiters.get(&self.number).and_then(|waiter| S::silence(&queue.known, &waiter.note));
        silence.or_else(own).cloned()
    }
}

impl<S: Strategy> Drop for WaitHandle<S> {
    fn drop(&mut self) {
        let (left, is_empty) = {
            let mut queue = self.wait_queue.queue();
            (queue.leave(self.number), queue.waiters.is_empty())
        };
        if left.is_some() && is_empty && S::ENDS_SLEEP {
            self.wait_queue.notify.notify_one();
        }
    }
}

/// How long a queue and its subscription are kept after the last waiter has left.
const LINGER: Duration = Duration::from_secs(5);

/// How the waiters of a queue get their locks.
pub(in crate::engine) trait Strategy: Default + Send + 'static {
    /// Identifies a queue.
    type Key: Clone + Ord + Send + Sync + 'static;
    /// State of the lock and of all its waiters.
    type Known: Default + Send + 'static;
    /// State of one waiter.
    type Note: Send + 'static;
    /// The answer to a request that is in flight while the task sleeps.
    type Answer;

    /// Whether the departure of the last waiter ends the task's sleep.
    const ENDS_SLEEP: bool;

    /// The lock that a queue is for.
    fn lock(key: &Self::Key) -> &LockName;

    /// A waiter has joined.
    fn joined(_known: &mut Self::Known, _number: u64, _ask: &Acquisition) {}

    /// A waiter has left.
    fn left(_known: &mut Self::Known, _number: u64, _ask: &Acquisition) {}

    /// Whether the queue stays open without waiters.
    fn is_needed(_known: &Self::Known) -> bool {
        false
    }

    /// The failure of the waiter's own request, until a later answer arrives.
    fn silence<'a>(_known: &Self::Known, _note: &'a Self::Note) -> Option<&'a Failure> {
        None
    }

    /// Called while there are waiters: sends what is due, and sleeps until there is news.
    fn serve(server: &mut QueueServer<Self>) -> impl Future<Output = ()> + Send;

    /// Called when the last waiter has left.
    fn rest(server: &mut QueueServer<Self>);

    /// Handles an event while there are no waiters.
    fn hear(server: &mut QueueServer<Self>, event: QueueEvent<Self::Answer>);

    /// Polls for an answer to a request in flight.
    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Self::Answer>;
}

/// Serves one queue.
pub(in crate::engine) struct QueueServer<S: Strategy> {
    pub(super) engine: Arc<Engine>,
    queues: Arc<WaitQueues<S>>,
    pub(super) wait_queue: Arc<WaitQueue<S>>,
    pub(super) subscription: Subscription,
    /// Requests since the last news or answer, for the backoff.
    pub(super) attempt: u32,
    pub(super) strategy: S,
}

/// What ends a sleep.
pub(in crate::engine) enum QueueEvent<A> {
    /// The queue has changed.
    Notified,
    /// The subscription has news.
    Heard(Heard),
    /// An answer to a request in flight.
    Answered(A),
    /// The timer expired.
    Time,
}

impl<S: Strategy> Drop for QueueServer<S> {
    /// However the task ends, even by a panic of a task that it wakes.
    fn drop(&mut self) {
        self.queues.abandon(&self.wait_queue);
    }
}

impl<S: Strategy> QueueServer<S> {
    pub(super) fn new(
        engine: &Arc<Engine>,
        queues: &Arc<WaitQueues<S>>,
        wait_queue: &Arc<WaitQueue<S>>,
    ) -> Self {
        Self {
            engine: Arc::clone(engine),
            queues: Arc::clone(queues),
            wait_queue: Arc::clone(wait_queue),
            subscription: Subscription::Idle,
            attempt: 0,
            strategy: S::default(),
        }
    }

    /// Serves the queue until it is closed.
    pub(super) async fn run(mut self) {
        loop {
            if self.has_waiters() {
                S::serve(&mut self).await;
            } else if !self.lingers().await {
                return;
            }
        }
    }

    pub(super) fn has_waiters(&self) -> bool {
        !self.wait_queue.queue().is_empty()
    }

    /// Whether a waiter joined while the queue was empty. If not, the queue is closed.
    async fn lingers(&mut self) -> bool {
        S::rest(self);
        let mut timer = self.engine.runtime.sleep_until(self.engine.now() + LINGER);
        loop {
            if self.wait_queue.queue().is_closed {
                return false;
            }
            if self.has_waiters() {
                return true;
            }
            match self.event(&mut timer).await {
                QueueEvent::Time if self.queues.retire(&self.wait_queue) => return false,
                QueueEvent::Time => {}
                event => S::hear(self, event),
            }
        }
    }

    /// The first event. Polls in a fixed order, so that a seed replays.
    pub(super) async fn event(&mut self, timer: &mut BoxFuture<'static, ()>) -> QueueEvent<S::Answer> {
        let Self { wait_queue, subscription, strategy, .. } = self;
        let mut notify = pin!(wait_queue.notify.notified());
        poll_fn(|context| {
            if notify.as_mut().poll(context).is_ready() {
                return Poll::Ready(QueueEvent::Notified);
            }
            if let Poll::Ready(heard) = subscription.poll(context) {
                return Poll::Ready(QueueEvent::Heard(heard));
            }
            if let Poll::Ready(answer) = strategy.poll_answer(context) {
                return Poll::Ready(QueueEvent::Answered(answer));
            }
            timer.poll_unpin(context).map(|()| QueueEvent::Time)
        })
        .await
    }

    /// The delay before the next request when there is nothing better to wait for.
    pub(super) fn next_backoff(&mut self) -> Duration {
        let pause = self.engine.jittered(backoff(self.attempt));
        self.attempt += 1;
        pause
    }

    /// Logs why there is no subscription. Repeated requests take its place.
    pub(super) fn log_subscribe_error(&self, failure: &Failure) {
        event!(
            DEBUG,
            target: "tenure",
            "lock_not_subscribed",
            "not subscribed",
            lock = text(S::lock(&self.wait_queue.key)),
            store = text(self.engine.store.url()),
            failure = text(failure),
        );
    }

    /// Records that the store did not answer, and fails the waiters whose patience is exhausted.
    pub(super) fn note_silence(&self, failure: &Failure) {
        let given_up = self.wait_queue.silent(&self.engine, failure);
        event!(
            DEBUG,
            target: "tenure",
            "store_unanswered",
            "no answer",
            lock = text(S::lock(&self.wait_queue.key)),
            store = text(self.engine.store.url()),
            failure = text(failure),
            given_up = given_up,
        );
    }
}

/// The earlier of two optional times.
pub(super) fn earlier(a: Option<Moment>, b: Option<Moment>) -> Option<Moment> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
