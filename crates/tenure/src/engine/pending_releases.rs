//! The background releases, and the tasks that wait for them.

use std::sync::{Arc, Condvar, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;

use crate::name::LockName;
use crate::owner::Owner;
use crate::sync::Locked;

/// The background releases of one engine.
#[derive(Default)]
pub(super) struct PendingReleases(Arc<PendingCount>);

#[derive(Default)]
struct PendingCount {
    pending: Locked<PendingSet>,
    blocking: Condvar,
    waiting: Notify,
}

#[derive(Default)]
struct PendingSet {
    count: usize,
    /// The owners whose holds are given back because a resume of them has failed.
    resumed: Vec<(LockName, Owner)>,
}

/// Counts one background release.
pub(super) struct PendingRelease {
    shared: Arc<PendingCount>,
    resumed: Option<(LockName, Owner)>,
}

impl PendingReleases {
    /// With the owner of a hold that a failed resume gives back.
    pub(super) fn add(&self, resumed: Option<(LockName, Owner)>) -> PendingRelease {
        let mut pending = self.pending();
        pending.count += 1;
        pending.resumed.extend(resumed.clone());
        PendingRelease { shared: Arc::clone(&self.0), resumed }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending().count == 0
    }

    /// Whether a failed resume still gives a hold of this owner back.
    pub(super) fn gives_back(&self, name: &LockName, owner: &Owner) -> bool {
        self.pending().resumed.iter().any(|resumed| (&resumed.0, &resumed.1) == (name, owner))
    }

    /// Blocks the thread until all have ended, at most this long.
    pub(super) fn wait(&self, most: Duration) {
        let pending = self.pending();
        drop(self.0.blocking.wait_timeout_while(pending, most, |pending| pending.count > 0));
    }

    pub(super) async fn flushed(&self) {
        self.until(Self::is_empty).await;
    }

    /// Waits until failed resumes have given back the holds of this owner.
    pub(super) async fn given_back(&self, name: &LockName, owner: &Owner) {
        self.until(|all| !all.gives_back(name, owner)).await;
    }

    async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        loop {
            let change = self.0.waiting.notified();
            if is_so(self) {
                return;
            }
            change.await;
        }
    }

    fn pending(&self) -> MutexGuard<'_, PendingSet> {
        self.0.pending.lock()
    }
}

impl Drop for PendingRelease {
    fn drop(&mut self) {
        let mut pending = self.shared.pending.lock();
        pending.count -= 1;
        if let Some(resumed) = &self.resumed
            && let Some(at) = pending.resumed.iter().position(|one| one == resumed)
        {
            drop(pending.resumed.swap_remove(at));
        }
        if pending.count == 0 || self.resumed.is_some() {
            self.shared.blocking.notify_all();
            self.shared.waiting.notify_waiters();
        }
    }
}
