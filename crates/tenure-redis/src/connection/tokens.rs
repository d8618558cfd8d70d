//! The server's token counters, as last observed by a connection.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tenure_core::moment::Moment;
use tenure_core::planted::{Bug, planted};
use tenure_core::sync::Locked;

/// How long after a reply the server is assumed to be unchanged. A server that was demoted and promoted again
/// keeps its connections, and may lack tokens that another master issued meanwhile.
const KEPT: Duration = Duration::from_secs(1);
/// Maximum plausible jump of the counter: a year, in microseconds.
const AHEAD_US: u64 = 365 * 24 * 60 * 60 * 1_000_000;

/// From this number of counters on, old ones are forgotten each time that their number has doubled.
const FEW: usize = 1_024;

/// The newest token of each counter observed on a connection, and when. A single server has one counter, a
/// cluster one for each slot. Only a script raises a counter to the server's clock, so its first grant on a
/// connection must use a script.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    counters: Locked<BTreeMap<u16, (u64, Moment)>>,
    /// The number of counters that were left when old ones were last forgotten.
    // Relaxed: used only while `counters` is locked.
    left: AtomicUsize,
    /// The user may not run the plain commands.
    // Relaxed: never unset; who reads it late has one more command refused.
    is_refused: AtomicBool,
}

impl Tokens {
    /// The newest token of a slot's counter, if plain commands may follow it.
    pub(crate) fn newest(&self, slot: u16, now: Moment) -> Option<u64> {
        let known = self.counters.lock().get(&slot).copied().filter(|(_, at)| now.since(*at) < KEPT);
        known.map(|(newest, _)| newest).filter(|_| !self.is_refused.load(Ordering::Relaxed))
    }

    /// A script has raised a slot's counter to the server's clock and issued this token.
    pub(crate) fn raised(&self, slot: u16, token: u64, now: Moment) {
        let mut counters = self.counters.lock();
        if counters.len() >= FEW.max(2 * self.left.load(Ordering::Relaxed)) {
            counters.retain(|_, (_, at)| now.since(*at) < KEPT);
            self.left.store(counters.len(), Ordering::Relaxed);
        }
        let (newest, at) = counters.entry(slot).or_default();
        (*newest, *at) = (token.max(*newest), now.max(*at));
    }

    /// Whether the counter's new value is a valid token. A value not above the newest one means that the
    /// counter was lost, and the next grant uses a script.
    pub(crate) fn accepts(&self, slot: u16, token: u64, newest: u64, now: Moment) -> bool {
        let is_good = token > newest && token < newest.saturating_add(AHEAD_US);
        let is_raised = self.counters.lock().contains_key(&slot) || planted(Bug::PairUnraised);
        if is_good && is_raised {
            self.raised(slot, token, now);
            return true;
        }
        self.forget();
        false
    }

    /// Makes the next grants use a script.
    pub(crate) fn forget(&self) {
        self.counters.lock().clear();
    }

    /// Makes all further grants on this connection use scripts.
    pub(crate) fn refuse(&self) {
        self.is_refused.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_token_only_above_all_that_were_known() {
        let (tokens, now) = (Tokens::default(), Moment(0) + Duration::from_secs(100));
        assert_eq!(tokens.newest(7, now), None, "no script has raised the counter");
        tokens.raised(7, 1_000, now);
        assert_eq!(tokens.newest(7, now), Some(1_000));
        assert!(tokens.accepts(7, 1_001, 1_000, now));
        assert_eq!(tokens.newest(7, now + KEPT), None, "another server may be there by now");
        assert_eq!(tokens.newest(8, now), None, "the counter of another slot");
        assert!(!tokens.accepts(7, 1_001, 1_001, now));
        assert_eq!(tokens.newest(7, now), None, "the counter was lost");
        tokens.raised(7, 1_002, now);
        assert!(!tokens.accepts(7, 1_003 + AHEAD_US, 1_002, now));
        tokens.raised(7, 1_003, now);
        tokens.refuse();
        assert_eq!(tokens.newest(7, now), None);
    }

    #[test]
    fn only_counters_of_the_last_second_are_kept_beside_many() {
        let (tokens, now) = (Tokens::default(), Moment(0) + Duration::from_secs(100));
        for slot in 0..3 * FEW as u16 {
            tokens.raised(slot, 1, now + KEPT * u32::from(slot / FEW as u16));
        }
        assert_eq!(tokens.counters.lock().len(), FEW);
    }
}
