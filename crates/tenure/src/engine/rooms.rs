//! Wait queues for the tasks of one process, one for each lock. The first waiter opens one, with
//! the task that serves it. That task closes it when it has been empty for a while.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The waiters of a room, and what is known of their lock.
pub(super) trait Queue: Default {
    type Waiters;

    fn is_empty(&self) -> bool;
    /// The task that serves it has ended: the waiters hear so when they are dropped.
    fn clear(&mut self) -> Self::Waiters;
    /// No handle is left: the task that serves it is to end.
    fn close(&mut self);
}

pub(super) struct Room<K, Q> {
    pub(super) key: K,
    queue: Mutex<Q>,
    /// Rung for the task that serves it.
    pub(super) bell: Notify,
}

impl<K, Q> Room<K, Q> {
    pub(super) fn queue(&self) -> MutexGuard<'_, Q> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Rooms<K, Q>(Mutex<BTreeMap<K, Arc<Room<K, Q>>>>);

impl<K, Q> Default for Rooms<K, Q> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Clone + Ord, Q: Queue> Rooms<K, Q> {
    pub(super) fn all(&self) -> MutexGuard<'_, BTreeMap<K, Arc<Room<K, Q>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a room, and opens one if there is none. `take_place` runs before the room can be
    /// closed. `serve` makes the task of a room that was opened; the caller spawns it.
    pub(super) fn enter<S>(
        &self,
        key: K,
        serve: impl FnOnce(&Arc<Room<K, Q>>) -> S,
        take_place: impl FnOnce(&Room<K, Q>),
    ) -> (Arc<Room<K, Q>>, Option<S>) {
        let mut rooms = self.all();
        let mut server = None;
        let room = Arc::clone(rooms.entry(key.clone()).or_insert_with(|| {
            let room = Arc::new(Room { key, queue: Mutex::default(), bell: Notify::new() });
            server = Some(serve(&room));
            room
        }));
        take_place(&room);
        (room, server)
    }

    pub(super) fn close(&self) {
        for room in std::mem::take(&mut *self.all()).into_values() {
            room.queue().close();
            room.bell.notify_one();
        }
    }

    /// The task of this room has ended: its waiters hear so, and the next waiter opens another.
    pub(super) fn abandon(&self, room: &Arc<Room<K, Q>>) {
        self.remove(room, |_| true);
        let waiters = room.queue().clear();
        drop(waiters);
    }

    /// Closes a room without waiters; returns whether it did.
    pub(super) fn retire(&self, room: &Arc<Room<K, Q>>) -> bool {
        self.remove(room, Q::is_empty)
    }

    /// Unless it is another room by now.
    fn remove(&self, room: &Arc<Room<K, Q>>, if_so: impl FnOnce(&Q) -> bool) -> bool {
        let mut rooms = self.all();
        let goes = if_so(&room.queue());
        if goes && rooms.get(&room.key).is_some_and(|known| Arc::ptr_eq(known, room)) {
            rooms.remove(&room.key);
        }
        goes
    }
}
