//! Arithmetic of leases: validity, renewal and loss. Pure functions on moments.

use std::time::Duration;

use crate::moment::Moment;
use crate::planted::{Bug, planted};

/// Minimum ttl. Below it, the margin and a round trip leave nothing.
pub const TTL_MIN: Duration = Duration::from_millis(50);
/// Maximum ttl.
pub const TTL_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// How long a quorum node keeps a ballot.
pub const BALLOT_MS: u64 = 30 * 24 * 60 * 60 * 1_000;
/// How long a capacity that was set explicitly stays in force, even if the lock is not used.
pub const CAPACITY_MS: u64 = 30 * 24 * 60 * 60 * 1_000;
/// A node without a stored ballot assumes one this far below its clock.
pub const BALLOT_BEHIND_US: u64 = 10 * 1_000_000;
/// Ballots further than this above a node's clock are rejected: they come from a broken clock and would use
/// up the numbers for every client.
pub const BALLOT_AHEAD_US: u64 = 365 * 24 * 60 * 60 * 1_000_000;
/// Maximum time that a place in a queue is kept without a refresh.
pub const WAIT_MAX: Duration = Duration::from_secs(5);
/// The same on Redis, for a client that a publisher knows to be subscribed. It is refreshed after a third, so that
/// a waiter whose message was lost asks before the [`WAIT_MAX`] of its grant are over.
pub const PLACE_KEPT: Duration = Duration::from_millis(13_500);
/// Maximum interval between renewals.
const RENEWAL_MAX: Duration = Duration::from_secs(60);

/// Safety margin for clock drift between two machines (1 % of the lease) and for stores that round to
/// milliseconds (2 ms).
pub fn margin(ttl: Duration) -> Duration {
    if planted(Bug::NoMargin) {
        return Duration::ZERO;
    }
    let rounding = if planted(Bug::NoRounding) { Duration::ZERO } else { Duration::from_millis(2) };
    if planted(Bug::NoDrift) { rounding } else { ttl / 100 + rounding }
}

/// How long a place is kept: capped by the ttl, because a waiter that is granted the lock and dies must not
/// cost more than a holder that dies.
pub fn wait(ttl: Duration) -> Duration {
    ttl.min(WAIT_MAX)
}

/// End of a grant's validity, counted from *before* the request was sent, less the margin.
pub fn deadline(sent: Moment, answered: Moment, ttl: Duration) -> Moment {
    let start = if planted(Bug::DeadlineFromReply) { answered } else { sent };
    start + ttl.saturating_sub(margin(ttl))
}

/// When to renew a lease that was last set by a request sent at `sent`: after a third of the ttl, but at most
/// a minute.
pub fn renew_at(sent: Moment, ttl: Duration) -> Moment {
    if planted(Bug::RenewedTooLate) {
        return sent + ttl;
    }
    sent + (ttl / 3).min(RENEWAL_MAX)
}

/// How much earlier to renew a hold, so that leases set together are not renewed together: up to an eighth of
/// the interval.
pub fn spread(ttl: Duration, hold: u64) -> Duration {
    // Holds are numbered consecutively. Multiplication by 2^64 / φ spreads consecutive numbers far apart.
    let share = (hold.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48) as u32;
    (ttl / 3).min(RENEWAL_MAX) / 8 * share / (1 << 16)
}

/// The same for the first renewal after a grant: up to half of the interval.
pub fn first_spread(ttl: Duration, hold: u64) -> Duration {
    4 * spread(ttl, hold)
}

/// When to renew a lease that is shorter than its ttl but not about to be lost. Not at once, because most
/// holds are released by then, and the request would delay the next waiter; but with half of the lease left, for
/// retries.
pub fn whole_at(granted: Moment, ttl: Duration, deadline: Moment) -> Moment {
    const MOST: Duration = Duration::from_millis(500);
    granted + (ttl / 6).min(MOST).min(deadline.since(granted) / 2)
}

/// When a holder subscribes to forced releases: after a second, because most holds end before. `None` if its
/// renewals would notice as soon.
pub fn listen_at(kept: Moment, ttl: Duration) -> Option<Moment> {
    const AFTER: Duration = Duration::from_secs(1);
    (ttl / 3 > AFTER).then_some(kept + AFTER)
}

/// When to check a hold after a notification that it may have ended. Limited to one check per 100 ms, because
/// anyone may send notifications.
pub fn check_at(checked: Moment, now: Moment) -> Moment {
    const PAUSE: Duration = Duration::from_millis(100);
    if planted(Bug::EachMessageAsks) { now } else { now.max(checked + PAUSE) }
}

/// Delay before retrying a failed renewal: a twelfth of the ttl but at most 15 s, or a quarter of the
/// remaining lease if that is less. A hold handed on by a release starts with the lease of its place, which
/// may be much shorter than its `ttl`.
pub fn retry_after(ttl: Duration, left: Duration) -> Duration {
    match () {
        () if planted(Bug::NoRetryPause) => Duration::ZERO,
        () if planted(Bug::RetriesByTtl) => ttl / 12,
        () => (ttl / 12).min(RENEWAL_MAX / 4).min((left / 4).max(LEAST)),
    }
}

/// Timeout of one renewal attempt, short enough for at least two before the lease is lost.
pub fn attempt(ttl: Duration, left: Duration, op_timeout: Duration) -> Duration {
    match () {
        () if planted(Bug::LongAttempts) => op_timeout,
        () => op_timeout.min(ttl / 6).min((left / 2).max(LEAST)),
    }
}

/// Lower bound of the pauses and timeouts that shrink with the remaining lease.
const LEAST: Duration = Duration::from_millis(10);

/// Whether the answer of a grant took so long (a third of the ttl) that the grant must be requested again
/// before it is reported.
pub fn is_stale(sent: Moment, answered: Moment, ttl: Duration) -> bool {
    !planted(Bug::ElapsedIgnored) && answered.since(sent) > ttl / 3
}

/// A lease in milliseconds, the unit of the stores.
pub fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_lease_counts_from_before_the_request_was_sent() {
        let sent = Moment(0) + 10 * SECOND;
        assert_eq!(deadline(sent, sent + SECOND, 15 * SECOND), sent + Duration::from_millis(14_848));
    }

    #[test]
    fn the_margin_never_eats_the_shortest_lease() {
        assert!(margin(TTL_MIN) < TTL_MIN / 3);
    }

    #[test]
    fn two_attempts_fit_between_the_first_renewal_and_the_loss() {
        for ttl in [TTL_MIN, 15 * SECOND, TTL_MAX] {
            let (sent, grace) = (Moment(0), ttl / 3);
            let lost = deadline(sent, sent, ttl) - grace;
            let first = renew_at(sent, ttl);
            let failed = first + attempt(ttl, lost.since(first), SECOND);
            let second = failed + retry_after(ttl, lost.since(failed));
            assert!(second < lost, "{ttl:?}");
        }
    }

    #[test]
    fn leases_that_were_set_together_are_renewed_one_after_the_other() {
        let mut sooner: Vec<Duration> = (77..177).map(|hold| spread(6 * SECOND, hold)).collect();
        sooner.sort_unstable();
        assert!(sooner[99] <= SECOND / 4, "{sooner:?}");
        let farthest = sooner.windows(2).map(|two| two[1] - two[0]).max();
        assert!(farthest < Some(SECOND / 4 / 20), "{farthest:?}");
        assert!((77..177).all(|hold| first_spread(6 * SECOND, hold) <= SECOND));
    }

    #[test]
    fn a_short_lease_that_was_handed_on_is_retried_by_what_is_left_of_it() {
        let (ttl, left) = (60 * SECOND, 2 * SECOND);
        assert_eq!(retry_after(ttl, left), SECOND / 2);
        assert_eq!(attempt(ttl, left, 5 * SECOND), SECOND);
        assert_eq!(retry_after(ttl, Duration::ZERO), LEAST);
        assert_eq!(retry_after(TTL_MIN, Duration::ZERO), TTL_MIN / 12);
    }

    /// A holder learns of a loss within a minute, so it does not wait for a twelfth of a year.
    #[test]
    fn the_renewals_of_a_long_lease_are_retried_as_those_of_one_of_three_minutes() {
        for ttl in [180 * SECOND, TTL_MAX] {
            assert_eq!(retry_after(ttl, ttl / 2), 15 * SECOND);
        }
    }
}
