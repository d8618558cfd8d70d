//! Holders in one process that subscribe to the end of their holds. The holders of one lock share a watch.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OnceCell};

use super::view::View;
use crate::name::LockName;
use crate::owner::Owner;
use crate::store::Publisher;

/// The holders of one lock.
#[derive(Default)]
pub(super) struct Holders {
    table: Mutex<Listeners>,
    pub(super) watched: OnceCell<()>,
    /// Notified when the last subscriber has left.
    pub(super) over: Notify,
}

#[derive(Default)]
pub(super) struct Listeners {
    pub(super) listeners: BTreeMap<u64, (Owner, Publisher)>,
    /// The view seen last. It may be older than the hold of a new subscriber.
    pub(super) view: Option<View>,
}

impl Holders {
    pub(super) fn table(&self) -> MutexGuard<'_, Listeners> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The holders of every lock.
#[derive(Default)]
pub(super) struct AllHolders(Mutex<All>);

#[derive(Default)]
struct All {
    last_id: u64,
    /// Each with the number of its subscribers, including those about to subscribe.
    locks: BTreeMap<LockName, (usize, Arc<Holders>)>,
}

impl AllHolders {
    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One subscriber, which leaves when it is dropped.
pub(super) struct Member {
    of: Arc<AllHolders>,
    name: LockName,
    pub(super) holders: Arc<Holders>,
    pub(super) id: u64,
}

impl Member {
    pub(super) fn new(of: &Arc<AllHolders>, name: &LockName) -> Self {
        let mut all = of.all();
        all.last_id += 1;
        let id = all.last_id;
        let (count, holders) = all.locks.entry(name.clone()).or_default();
        *count += 1;
        Self { of: Arc::clone(of), name: name.clone(), holders: Arc::clone(holders), id }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.holders.table().listeners.remove(&self.id);
        let mut all = self.of.all();
        if let Some((count, _)) = all.locks.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                all.locks.remove(&self.name);
                self.holders.over.notify_one();
            }
        }
    }
}
