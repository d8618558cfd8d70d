//! What a connection knows of its server's counter of tokens.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::moment::Moment;
use tenure_core::planted::{Bug, planted};

/// For so long after an answer the server is taken to be the one that gave it. A server that was
/// demoted and promoted keeps its connections, and may have lost tokens that another has given.
const KEPT: Duration = Duration::from_secs(1);
/// A counter this far above what was known is not trusted: a year, in microseconds.
const AHEAD_US: u64 = 365 * 24 * 60 * 60 * 1_000_000;

/// The newest token that came over a connection, and when. Only a script raises the counter to the
/// server's clock, so the first grant of a connection is by script.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    /// 0 until a script has raised the counter.
    newest: AtomicU64,
    at: AtomicU64,
    /// The user may not use the commands in place of the script.
    is_refused: AtomicBool,
}

impl Tokens {
    /// The newest token, if plain commands may follow it.
    pub(crate) fn newest(&self, now: Moment) -> Option<u64> {
        let newest = self.newest.load(Ordering::Acquire);
        let is_known = newest > 0 && now.since(Moment(self.at.load(Ordering::Acquire))) < KEPT;
        (is_known && !self.is_refused.load(Ordering::Relaxed)).then_some(newest)
    }

    /// A script has raised the counter to the server's clock, and given this token.
    pub(crate) fn raised(&self, token: u64, now: Moment) {
        self.newest.fetch_max(token, Ordering::AcqRel);
        self.at.fetch_max(now.0, Ordering::AcqRel);
    }

    /// The counter was incremented to this. Whether it is a token: a number that is not above the
    /// newest says that the counter was lost.
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

    /// The next grant is by script again.
    pub(crate) fn forget(&self) {
        self.newest.store(0, Ordering::Release);
    }

    /// And so are all others over this connection.
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
