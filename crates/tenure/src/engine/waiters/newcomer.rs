//! A client that asks for a place in a queue whose messages are heard here already.

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
