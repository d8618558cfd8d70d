//! A client that asks for a place in a queue whose messages are heard here already.

use std::sync::{Mutex, PoisonError};

use crate::planted::{Bug, planted};
use crate::protocol::Listening;
use crate::store::Station;

/// Until it is dropped the messages are heard.
pub(in crate::engine) struct Newcomer {
    station: Option<Station>,
    leaves: Option<Box<dyn FnOnce() + Send>>,
}

impl Newcomer {
    pub(super) fn new(station: Option<Station>, leaves: impl FnOnce() + Send + 'static) -> Self {
        Self { station, leaves: Some(Box::new(leaves)) }
    }

    /// Where they are.
    pub(in crate::engine) fn listens(&self) -> Option<Listening> {
        match &self.station {
            _ if planted(Bug::ListensTooSoon) => Listening::new(1),
            Some(station) => station.listens(),
            None => None,
        }
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        if let Some(leaves) = self.leaves.take() {
            leaves();
        }
    }
}

/// That of an acquisition, from its question until it waits in line. A question without an answer
/// may still be carried out, so messages are heard until the next.
#[derive(Default)]
pub(in crate::engine) struct NewcomerSlot(Mutex<Option<Newcomer>>);

impl NewcomerSlot {
    /// Replaces the one before.
    pub(in crate::engine) fn set(&self, newcomer: Option<Newcomer>) {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *slot, newcomer);
        drop(slot);
        drop(before);
    }
}
