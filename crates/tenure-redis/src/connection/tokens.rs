//! The server's token counter, as last observed by a connection.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::moment::Moment;
use tenure_core::planted::{Bug, planted};

/// How long after a reply the server is assumed to be unchanged. A server that was demoted and promoted again
/// keeps its connections, and may lack tokens that another master issued meanwhile.
const KEPT: Duration = Duration::from_secs(1);
/// Maximum plausible jump of the counter: a year, in microseconds.
const AHEAD_US: u64 = 365 * 24 * 60 * 60 * 1_000_000;

/// The newest token observed on a connection, and when. Only a script raises the counter to the server's
/// clock, so the first grant of a connection must use a script.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    /// 0 until a script has raised the counter.
    newest: AtomicU64,
    at: AtomicU64,
    /// The user may not run the plain commands.
    is_refused: AtomicBool,
}

impl Tokens {
    /// The newest token, if plain commands may follow it.
    pub(crate) fn newest(&self, now: Moment) -> Option<u64> {
        let newest = self.newest.load(Ordering::Acquire);
        let is_known = newest > 0 && now.since(Moment(self.at.load(Ordering::Acquire))) < KEPT;
        (is_known && !self.is_refused.load(Ordering::Relaxed)).then_some(newest)
    }

    /// A script has raised the counter to the server's clock and issued this token.
    pub(crate) fn raised(&self, token: u64, now: Moment) {
        self.newest.fetch_max(token, Ordering::AcqRel);
        self.at.fetch_max(now.0, Ordering::AcqRel);
    }

    /// Whether the counter's new value is a valid token. A value not above the newest one means that the
    /// counter was lost, and the next grant uses a script.
    pub(crate) fn accepts(&self, token: u64, newest: u64, now: Moment) -> bool {
        let is_good = token > newest && token < newest.saturating_add(AHEAD_US);
        let is_raised = self.newest.load(Ordering::Acquire) > 0 || planted(Bug::PairUnraised);
        if is_good && is_raised {
            self.raised(token, now);
            return true;
        }
        self.forget();
        false
    }

    /// Makes the next grant use a script.
    pub(crate) fn forget(&self) {
        self.newest.store(0, Ordering::Release);
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
        assert_eq!(tokens.newest(now), None, "no script has raised the counter");
        tokens.raised(1_000, now);
        assert_eq!(tokens.newest(now), Some(1_000));
        assert!(tokens.accepts(1_001, 1_000, now));
        assert_eq!(tokens.newest(now + KEPT), None, "another server may be there by now");
        assert!(!tokens.accepts(1_001, 1_001, now));
        assert_eq!(tokens.newest(now), None, "the counter was lost");
        tokens.raised(1_002, now);
        assert!(!tokens.accepts(1_003 + AHEAD_US, 1_002, now));
        tokens.raised(1_003, now);
        tokens.refuse();
        assert_eq!(tokens.newest(now), None);
    }
}
