//! The rooms in which the tasks of one process wait, by what they wait for. A room is opened by the first who comes, with a task
//! that serves it, and closed by that task when nobody has been there for a while.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// What is known in a room: who waits there, and for what.
pub(super) trait Queue: Default {
    type Waiters;

    fn is_empty(&self) -> bool;
    /// Nobody serves it: who waits hears so when it is dropped.
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

    /// Goes into a room, which is opened if there is none. `take_place` is done before anybody can close it, and `serve` makes the task
    /// of one that was opened; whoever came in has it run.
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

    /// Nobody serves this room any more: who waits there hears so, and who comes next opens another.
    pub(super) fn abandon(&self, room: &Arc<Room<K, Q>>) {
        self.remove(room, |_| true);
        let waiters = room.queue().clear();
        drop(waiters);
    }

    /// Closes a room that nobody waits in; whether it did.
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
