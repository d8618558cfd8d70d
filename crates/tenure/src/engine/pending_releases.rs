//! The number of background releases, and the tasks that wait for them.

use std::sync::{Arc, Condvar, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;

use crate::sync::Locked;

/// The background releases of one engine.
#[derive(Default)]
pub(super) struct PendingReleases(Arc<PendingCount>);

#[derive(Default)]
struct PendingCount {
    pending: Locked<usize>,
    blocking: Condvar,
    waiting: Notify,
}

/// Counts one background release.
pub(super) struct PendingRelease(Arc<PendingCount>);

impl PendingReleases {
    pub(super) fn add(&self) -> PendingRelease {
        *self.pending() += 1;
        PendingRelease(Arc::clone(&self.0))
    }

    pub(super) fn is_empty(&self) -> bool {
        *self.pending() == 0
    }

    /// Blocks the thread until all have ended, at most this long.
    pub(super) fn wait(&self, most: Duration) {
        let pending = self.pending();
        drop(self.0.blocking.wait_timeout_while(pending, most, |pending| *pending > 0));
    }

    pub(super) async fn flushed(&self) {
        loop {
            let change = self.0.waiting.notified();
            if self.is_empty() {
                return;
            }
            change.await;
        }
    }

    fn pending(&self) -> MutexGuard<'_, usize> {
        self.0.pending.lock()
    }
}

impl Drop for PendingRelease {
    fn drop(&mut self) {
        let mut pending = self.0.pending.lock();
        *pending -= 1;
        if *pending == 0 {
            self.0.blocking.notify_all();
            self.0.waiting.notify_waiters();
        }
    }
}
