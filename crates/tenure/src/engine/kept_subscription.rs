//! The open subscription of an acquisition that requests a ticket in a queue.

use crate::planted::{Bug, planted};
use crate::protocol::Listening;
use crate::store::Station;
use crate::sync::Locked;

/// Keeps the subscription open until dropped.
pub(super) struct KeptSubscription {
    station: Option<Station>,
    leaves: Option<Box<dyn FnOnce() + Send>>,
}

impl KeptSubscription {
    pub(super) fn new(station: Option<Station>, leaves: impl FnOnce() + Send + 'static) -> Self {
        Self { station, leaves: Some(Box::new(leaves)) }
    }

    /// Where the subscription listens.
    pub(super) fn listens(&self) -> Option<Listening> {
        match &self.station {
            _ if planted(Bug::ListensTooSoon) => Listening::new(1),
            Some(station) => station.listens(),
            None => None,
        }
    }
}

impl Drop for KeptSubscription {
    fn drop(&mut self) {
        if let Some(leaves) = self.leaves.take() {
            leaves();
        }
    }
}

/// The subscription of an acquisition, from its request until it waits in the queue. After a request without an answer
/// the subscription stays open for longer than the pause before the next request. Boxed, because most acquisitions
/// have none.
#[derive(Default)]
pub(super) struct KeptSubscriptionSlot(Locked<Option<Box<KeptSubscription>>>);

impl KeptSubscriptionSlot {
    /// Replaces the previous one.
    pub(super) fn set(&self, subscription: Option<KeptSubscription>) {
        let mut slot = self.0.lock();
        let before = std::mem::replace(&mut *slot, subscription.map(Box::new));
        drop(slot);
        drop(before);
    }
}
