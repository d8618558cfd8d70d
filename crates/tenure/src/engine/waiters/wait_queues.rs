//! Wait queues for the tasks of one process, one for each lock. The first waiter opens one, with
//! the task that serves it. That task closes it when it has been empty for a while.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The waiters of a wait queue, and what is known of their lock.
pub(in crate::engine) trait Queue: Default {
    type Waiters;

    fn is_empty(&self) -> bool;
    /// The task that serves it has ended: the waiters hear so when they are dropped.
    fn clear(&mut self) -> Self::Waiters;
    /// No handle is left: the task that serves it is to end.
    fn close(&mut self);
    fn is_closed(&self) -> bool;
}

pub(super) struct WaitQueue<K, Q> {
    pub(super) key: K,
    queue: Mutex<Q>,
    /// Rung for the task that serves it.
    pub(super) notify: Notify,
}

impl<K, Q> WaitQueue<K, Q> {
    pub(super) fn queue(&self) -> MutexGuard<'_, Q> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(in crate::engine) struct WaitQueues<K, Q>(Mutex<BTreeMap<K, Arc<WaitQueue<K, Q>>>>);

impl<K, Q> Default for WaitQueues<K, Q> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Clone + Ord, Q: Queue> WaitQueues<K, Q> {
    pub(super) fn all(&self) -> MutexGuard<'_, BTreeMap<K, Arc<WaitQueue<K, Q>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a wait queue, and opens one if needed. `take_place` runs before the wait queue
    /// can be closed. `serve` makes the task of a wait queue that was opened; the caller spawns it.
    pub(super) fn enter<S>(
        &self,
        key: K,
        serve: impl FnOnce(&Arc<WaitQueue<K, Q>>) -> S,
        take_place: impl FnOnce(&WaitQueue<K, Q>),
    ) -> (Arc<WaitQueue<K, Q>>, Option<S>) {
        let mut wait_queues = self.all();
        let mut server = None;
        let wait_queue = Arc::clone(wait_queues.entry(key.clone()).or_insert_with(|| {
            let wait_queue = Arc::new(WaitQueue { key, queue: Mutex::default(), notify: Notify::new() });
            server = Some(serve(&wait_queue));
            wait_queue
        }));
        take_place(&wait_queue);
        (wait_queue, server)
    }

    /// Closes all, and says whether there was one.
    pub(in crate::engine) fn close(&self) -> bool {
        let wait_queues = std::mem::take(&mut *self.all());
        for wait_queue in wait_queues.values() {
            wait_queue.queue().close();
            wait_queue.notify.notify_one();
        }
        !wait_queues.is_empty()
    }

    /// The task of this wait queue has ended: its waiters hear so, and the next waiter opens
    /// another.
    pub(super) fn abandon(&self, wait_queue: &Arc<WaitQueue<K, Q>>) {
        self.remove(wait_queue, |_| true);
        let waiters = wait_queue.queue().clear();
        drop(waiters);
    }

    /// Closes a wait queue without waiters; returns whether it did.
    pub(super) fn retire(&self, wait_queue: &Arc<WaitQueue<K, Q>>) -> bool {
        self.remove(wait_queue, Q::is_empty)
    }

    /// Unless it is another wait queue by now.
    fn remove(&self, wait_queue: &Arc<WaitQueue<K, Q>>, if_so: impl FnOnce(&Q) -> bool) -> bool {
        let mut wait_queues = self.all();
        let goes = if_so(&wait_queue.queue());
        if goes && wait_queues.get(&wait_queue.key).is_some_and(|known| Arc::ptr_eq(known, wait_queue)) {
            wait_queues.remove(&wait_queue.key);
        }
        goes
    }
}
