//! The number of holds with a subscription to messages about their ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum holds with a subscription, because each costs the server one. Further holds learn of a forced
/// release at their next renewal.
pub(super) const MOST: usize = 1_024;

/// Number of holds of one `Locks` with a subscription.
#[derive(Default)]
pub(super) struct ListenerCount(Arc<AtomicUsize>);

/// Counts one hold with a subscription.
pub(super) struct CountedListener(Arc<AtomicUsize>);

impl ListenerCount {
    pub(super) fn is_full(&self) -> bool {
        self.0.load(Ordering::Acquire) >= MOST
    }

    /// Counts one more, unless the maximum is reached.
    pub(super) fn enter(&self) -> Option<CountedListener> {
        let counted = CountedListener(Arc::clone(&self.0));
        (self.0.fetch_add(1, Ordering::AcqRel) < MOST).then_some(counted)
    }
}

impl Drop for CountedListener {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
