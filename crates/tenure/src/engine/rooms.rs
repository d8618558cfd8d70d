//! The rooms in which the tasks of one process wait, by what they wait for. A room is opened by the first who comes, with a task
//! that serves it, and closed by that task when nobody has been there for a while.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(super) trait Room: Sized {
    type Key: Clone + Ord;

    fn new(key: Self::Key) -> Self;
    fn key(&self) -> &Self::Key;
    fn is_empty(&self) -> bool;
    /// Nobody serves it: who waits there hears so.
    fn clear(&self);
    /// No handle is left: the task that serves it ends.
    fn close(&self);
}

pub(super) struct Rooms<R: Room>(Mutex<BTreeMap<R::Key, Arc<R>>>);

impl<R: Room> Default for Rooms<R> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<R: Room> Rooms<R> {
    pub(super) fn all(&self) -> MutexGuard<'_, BTreeMap<R::Key, Arc<R>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes into a room, which is opened if there is none. `take_place` is done before anybody can close it, and `serve` makes the task
    /// of one that was opened; whoever came in has it run.
    pub(super) fn enter<S>(
        &self,
        key: R::Key,
        serve: impl FnOnce(&Arc<R>) -> S,
        take_place: impl FnOnce(&R),
    ) -> (Arc<R>, Option<S>) {
        let mut rooms = self.all();
        let mut server = None;
        let room = Arc::clone(rooms.entry(key.clone()).or_insert_with(|| {
            let room = Arc::new(R::new(key));
            server = Some(serve(&room));
            room
        }));
        take_place(&room);
        (room, server)
    }

    pub(super) fn close(&self) {
        for room in std::mem::take(&mut *self.all()).into_values() {
            room.close();
        }
    }

    /// Nobody serves this room any more: who waits there hears so, and who comes next opens another.
    pub(super) fn abandon(&self, room: &Arc<R>) {
        self.remove(room, |_| true);
        room.clear();
    }

    /// Closes a room that nobody waits in; whether it did.
    pub(super) fn retire(&self, room: &Arc<R>) -> bool {
        self.remove(room, R::is_empty)
    }

    /// Unless it is another room by now.
    fn remove(&self, room: &Arc<R>, if_so: impl FnOnce(&R) -> bool) -> bool {
        let mut rooms = self.all();
        let goes = if_so(room);
        if goes && rooms.get(room.key()).is_some_and(|known| Arc::ptr_eq(known, room)) {
            rooms.remove(room.key());
        }
        goes
    }
}
