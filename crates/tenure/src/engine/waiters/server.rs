//! The task that serves a wait queue: it asks the store while there are waiters, and ends when
//! there have been none for a while. A strategy says what is asked, and what the answers and
//! messages mean.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};

use super::subscription::{Heard, Subscription};
use super::wait_queues::{Queue, WaitQueue, WaitQueues};
use crate::engine::{Engine, backoff};
use crate::events::{event, text};
use crate::moment::Moment;
use crate::name::LockName;
use crate::store::Failure;

/// How long a queue, and its subscription, is kept after the last waiter.
const LINGER: Duration = Duration::from_secs(5);

/// How waiters of a queue get what they wait for.
pub(super) trait Strategy: Default + Send + 'static {
    /// Names a queue.
    type Key: Clone + Ord + Send + Sync + 'static;
    /// The waiters, and what is known of their lock.
    type Queue: Queue + Send + 'static;
    /// The answer to a request that goes on while the task waits for news.
    type Answer;

    /// Where the queues of an engine are.
    fn queues(engine: &Engine) -> &WaitQueues<Self::Key, Self::Queue>;

    /// The lock that a queue is for.
    fn lock(key: &Self::Key) -> &LockName;

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
pub(super) struct Server<S: Strategy> {
    pub(super) engine: Arc<Engine>,
    pub(super) wait_queue: Arc<WaitQueue<S::Key, S::Queue>>,
    pub(super) subscription: Subscription,
    /// Questions since the last news or answer: the next pause grows with it.
    pub(super) attempt: u32,
    pub(super) strategy: S,
}

/// What ends a sleep.
pub(super) enum Event<A> {
    /// A task of this process has something to say: what, stands in the queue.
    Notified,
    /// The store has.
    Heard(Heard),
    /// A request that is under way was answered.
    Answered(A),
    /// It is time.
    Time,
}

impl<S: Strategy> Drop for Server<S> {
    /// However it ends, by a panic in what it woke too.
    fn drop(&mut self) {
        S::queues(&self.engine).abandon(&self.wait_queue);
    }
}

impl<S: Strategy> Server<S> {
    pub(super) fn new(engine: &Arc<Engine>, wait_queue: &Arc<WaitQueue<S::Key, S::Queue>>) -> Self {
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
            if self.wait_queue.queue().is_closed() {
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

    /// The pause before the next question when there is nothing better to wait for.
    pub(super) fn next_backoff(&mut self) -> Duration {
        let pause = self.engine.jittered(backoff(self.attempt));
        self.attempt += 1;
        pause
    }

    /// There is no subscription, and why: repeated questions replace it.
    pub(super) fn note_deafness(&self, failure: &Failure) {
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

    /// The store has not answered, and so many waiters have given up.
    pub(super) fn note_silence(&self, failure: &Failure, given_up: usize) {
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
