//! The task that serves a wait queue: it asks the store while there are waiters, and ends when
//! there have been none for a while. A [`Strategy`] defines the requests, and what the answers and
//! messages mean.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};

use super::subscription::{Heard, Subscription};
use super::wait_queues::{WaitQueue, WaitQueues};
use crate::engine::acquisition::Acquisition;
use crate::engine::{Engine, backoff};
use crate::events::{event, text};
use crate::moment::Moment;
use crate::name::LockName;
use crate::store::Failure;

/// How long a queue, and its subscription, is kept after the last waiter.
const LINGER: Duration = Duration::from_secs(5);

/// How the waiters of a queue get their locks.
pub(in crate::engine) trait Strategy: Default + Send + 'static {
    /// Names a queue.
    type Key: Clone + Ord + Send + Sync + 'static;
    /// What is known of the lock and of its waiters together.
    type Known: Default + Send + 'static;
    /// What is known of one waiter.
    type Note: Send + 'static;
    /// The answer to a request that goes on while the task waits for news.
    type Answer;

    /// Whether the task's sleep ends when the last waiter leaves.
    const ENDS_SLEEP: bool;

    /// The queues of an engine.
    fn queues(engine: &Engine) -> &WaitQueues<Self>;

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

    /// Why the waiter's own request was not answered, while it has heard of no other answer.
    fn silence<'a>(_known: &Self::Known, _note: &'a Self::Note) -> Option<&'a Failure> {
        None
    }

    /// There are waiters: asks what is due, and sleeps until there is news.
    fn serve(server: &mut Server<Self>) -> impl Future<Output = ()> + Send;

    /// There are no waiters any more.
    fn rest(server: &mut Server<Self>);

    /// What was heard while there were no waiters.
    fn hear(server: &mut Server<Self>, event: Event<Self::Answer>);

    /// An answer to a request that is under way.
    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Self::Answer>;
}

/// Serves one queue.
pub(in crate::engine) struct Server<S: Strategy> {
    pub(super) engine: Arc<Engine>,
    pub(super) wait_queue: Arc<WaitQueue<S>>,
    pub(super) subscription: Subscription,
    /// Requests since the last news or answer, which the backoff grows with.
    pub(super) attempt: u32,
    pub(super) strategy: S,
}

/// What ends a sleep.
pub(in crate::engine) enum Event<A> {
    /// The queue has changed.
    Notified,
    /// A message of the store.
    Heard(Heard),
    /// An answer to a request that is under way.
    Answered(A),
    /// The timer is over.
    Time,
}

impl<S: Strategy> Drop for Server<S> {
    /// However it ends, also by a panic of a task that it wakes.
    fn drop(&mut self) {
        S::queues(&self.engine).abandon(&self.wait_queue);
    }
}

impl<S: Strategy> Server<S> {
    pub(super) fn new(engine: &Arc<Engine>, wait_queue: &Arc<WaitQueue<S>>) -> Self {
        Self {
            engine: Arc::clone(engine),
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

    /// Whether a waiter came while there were none. If not, the queue is closed.
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
                Event::Time if S::queues(&self.engine).retire(&self.wait_queue) => return false,
                Event::Time => {}
                event => S::hear(self, event),
            }
        }
    }

    /// The first event, polled in a fixed order, so that a seed replays.
    pub(super) async fn event(&mut self, timer: &mut BoxFuture<'static, ()>) -> Event<S::Answer> {
        let Self { wait_queue, subscription, strategy, .. } = self;
        let mut notify = pin!(wait_queue.notify.notified());
        poll_fn(|context| {
            if notify.as_mut().poll(context).is_ready() {
                return Poll::Ready(Event::Notified);
            }
            if let Poll::Ready(heard) = subscription.poll(context) {
                return Poll::Ready(Event::Heard(heard));
            }
            if let Poll::Ready(answer) = strategy.poll_answer(context) {
                return Poll::Ready(Event::Answered(answer));
            }
            timer.poll_unpin(context).map(|()| Event::Time)
        })
        .await
    }

    /// The pause before the next request where there is nothing better to wait for.
    pub(super) fn next_backoff(&mut self) -> Duration {
        let pause = self.engine.jittered(backoff(self.attempt));
        self.attempt += 1;
        pause
    }

    /// Logs why there is no subscription, which repeated requests replace.
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

    /// Takes note that the store has not answered, and gives up the waiters whose patience is over.
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

/// The earlier of two times, where there are two.
pub(super) fn earlier(a: Option<Moment>, b: Option<Moment>) -> Option<Moment> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
