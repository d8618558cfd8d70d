//! Holders in one process that subscribe to the end of their holds. The holders of one lock share a watch.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};

use tokio::sync::{Notify, OnceCell};

use super::lock_snapshot::LockSnapshot;
use crate::name::LockName;
use crate::owner::Owner;
use crate::store::Publisher;
use crate::sync::Locked;

/// The holders of one lock.
#[derive(Default)]
pub(super) struct Holders {
    table: Locked<HoldSubscribers>,
    pub(super) watched: OnceCell<()>,
    /// Notified when the last subscriber has left.
    pub(super) over: Notify,
}

#[derive(Default)]
pub(super) struct HoldSubscribers {
    pub(super) listeners: BTreeMap<u64, (Owner, Publisher)>,
    /// The snapshot seen last. It may be older than the hold of a new subscriber.
    pub(super) snapshot: Option<LockSnapshot>,
}

impl Holders {
    pub(super) fn table(&self) -> MutexGuard<'_, HoldSubscribers> {
        self.table.lock()
    }
}

/// The holders of every lock.
#[derive(Default)]
pub(super) struct AllHolders(Locked<All>);

#[derive(Default)]
struct All {
    last_id: u64,
    /// Each with the number of its subscribers, including those about to subscribe.
    locks: BTreeMap<LockName, (usize, Arc<Holders>)>,
}

impl AllHolders {
    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock()
    }
}

/// One subscriber, which leaves when it is dropped.
pub(super) struct HoldSubscriber {
    of: Arc<AllHolders>,
    name: LockName,
    pub(super) holders: Arc<Holders>,
    pub(super) id: u64,
}

impl HoldSubscriber {
    pub(super) fn new(of: &Arc<AllHolders>, name: &LockName) -> Self {
        let mut all = of.all();
        all.last_id += 1;
        let id = all.last_id;
        let (count, holders) = all.locks.entry(name.clone()).or_default();
        *count += 1;
        Self { of: Arc::clone(of), name: name.clone(), holders: Arc::clone(holders), id }
    }
}

impl Drop for HoldSubscriber {
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
