//! Wait queues for the tasks of one process, one for each lock. The first waiter opens one, with
//! the task that serves it. That task closes it when it has been empty for a while.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::future::FutureExt;
use tokio::sync::{Notify, oneshot};

use super::server::{Server, Strategy};
use crate::engine::Engine;
use crate::engine::acquisition::Acquisition;
use crate::engine::hold::Hold;
use crate::engine::lease::lock;
use crate::error::Result;
use crate::moment::Moment;
use crate::store::Failure;

/// The waiters of one lock.
pub(in crate::engine) struct WaitQueue<S: Strategy> {
    pub(super) key: S::Key,
    queue: Mutex<Waiters<S>>,
    /// Wakes the task that serves the queue.
    pub(super) notify: Notify,
}

pub(in crate::engine) struct Waiters<S: Strategy> {
    /// By number: that of the ticket, or in the order of arrival.
    pub(super) waiters: BTreeMap<u64, QueuedWaiter<S>>,
    /// Since when the store has not answered, and why.
    pub(super) silence: Option<(Moment, Failure)>,
    /// No handle is left: the task that serves the queue is to end.
    pub(super) is_closed: bool,
    pub(super) known: S::Known,
}

pub(in crate::engine) struct QueuedWaiter<S: Strategy> {
    pub(super) ask: Arc<Acquisition>,
    pub(super) note: S::Note,
    turn: oneshot::Sender<Result<WaitOutcome>>,
}

/// What ends a wait.
#[derive(Debug)]
pub(in crate::engine) enum WaitOutcome {
    Held(Hold),
    /// The place has lapsed, or the store has forgotten it.
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
    /// Ends the wait. False if the waiter has left: then a grant is dropped, which releases it.
    pub(super) fn answer(self, turn: Result<WaitOutcome>) -> bool {
        self.turn.send(turn).is_ok()
    }
}

impl<S: Strategy> WaitQueue<S> {
    pub(super) fn queue(&self) -> MutexGuard<'_, Waiters<S>> {
        lock(&self.queue)
    }

    /// Ends the wait of this number. False if the waiter has left.
    pub(super) fn answer(&self, number: u64, turn: Result<WaitOutcome>) -> bool {
        let waiter = self.queue().leave(number);
        waiter.is_some_and(|waiter| waiter.answer(turn))
    }

    /// Takes note that the store has not answered. Waiters whose patience is over get the failure;
    /// returns how many.
    pub(super) fn silent(&self, engine: &Engine, failure: &Failure) -> usize {
        let now = engine.now();
        let out: Vec<QueuedWaiter<S>> = {
            let mut queue = self.queue();
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

pub(in crate::engine) struct WaitQueues<S: Strategy>(Mutex<BTreeMap<S::Key, Arc<WaitQueue<S>>>>);

impl<S: Strategy> Default for WaitQueues<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S: Strategy> WaitQueues<S> {
    pub(super) fn all(&self) -> MutexGuard<'_, BTreeMap<S::Key, Arc<WaitQueue<S>>>> {
        lock(&self.0)
    }

    /// Takes a place in a wait queue, and opens the queue if needed. `enter` chooses the number,
    /// before the queue can be closed or another waiter can join.
    pub(super) fn place(
        &self,
        engine: &Arc<Engine>,
        key: S::Key,
        ask: &Arc<Acquisition>,
        enter: impl FnOnce(&mut Waiters<S>) -> (u64, S::Note),
    ) -> WaitHandle<S> {
        let (turn, receiver) = oneshot::channel();
        let mut server = None;
        let (wait_queue, number) = {
            let mut wait_queues = self.all();
            let wait_queue = Arc::clone(wait_queues.entry(key.clone()).or_insert_with(|| {
                let wait_queue = WaitQueue::new(key);
                server = Some(Server::<S>::new(engine, &wait_queue));
                wait_queue
            }));
            let mut queue = wait_queue.queue();
            let (number, note) = enter(&mut queue);
            queue.join(number, QueuedWaiter { ask: Arc::clone(ask), note, turn });
            drop(queue);
            (wait_queue, number)
        };
        // A runtime that has ended drops it at once, which abandons the queue.
        if let Some(server) = server {
            engine.runtime.spawn(server.run().boxed());
        }
        WaitHandle { wait_queue, number, receiver }
    }

    /// Closes all queues, and returns whether there was one.
    pub(in crate::engine) fn close(&self) -> bool {
        let wait_queues = std::mem::take(&mut *self.all());
        for wait_queue in wait_queues.values() {
            wait_queue.queue().is_closed = true;
            wait_queue.notify.notify_one();
        }
        !wait_queues.is_empty()
    }

    /// The task of this queue has ended: its waiters see their senders dropped, and the next waiter
    /// opens another queue.
    pub(super) fn abandon(&self, wait_queue: &Arc<WaitQueue<S>>) {
        self.remove(wait_queue, |_| true);
        let abandoned: Vec<QueuedWaiter<S>> = {
            let mut queue = wait_queue.queue();
            let numbers: Vec<u64> = queue.waiters.keys().copied().collect();
            numbers.into_iter().filter_map(|number| queue.leave(number)).collect()
        };
        drop(abandoned);
    }

    /// Closes a queue without waiters; returns whether it did.
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
        Arc::new(Self { key, queue: Mutex::new(queue), notify: Notify::new() })
    }
}

/// A waiter's place; dropping it leaves the queue. The store is told by the [`Acquisition`].
pub(in crate::engine) struct WaitHandle<S: Strategy> {
    pub(super) wait_queue: Arc<WaitQueue<S>>,
    pub(super) number: u64,
    receiver: oneshot::Receiver<Result<WaitOutcome>>,
}

impl<S: Strategy> WaitHandle<S> {
    /// The turn, or why there will be none; `None` when the task of the queue has ended.
    pub(in crate::engine) async fn turn(&mut self) -> Option<Result<WaitOutcome>> {
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
