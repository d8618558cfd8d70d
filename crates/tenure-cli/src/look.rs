//! One scan of a store: how long it took, when the next one is due, and when it is overdue.

use std::time::Duration;

use crate::clock;
use crate::output::Span;

/// The work of scans takes at most one part in this many of the time, unless a pause would be longer than
/// `LONGEST` intervals.
const IDLE_SHARE: u32 = 50;
const LONGEST: u32 = 10;
/// Upper bound of a server's work for a scan, as a multiple of this program's.
const SERVERS_PART: u32 = 4;

/// A scan that has begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    begun: Duration,
    worked: Duration,
}

impl Look {
    pub(crate) fn begin() -> Self {
        Self { begun: clock::now(), worked: clock::processor() }
    }

    pub(crate) fn took(&self) -> Duration {
        clock::now() - self.begun
    }

    /// The pause after it. Waiting for a reply is not work, and a failed scan says nothing about the cost of one.
    pub(crate) fn pause(&self, every: Duration, is_ok: bool) -> Duration {
        let work = self.took().min((clock::processor() - self.worked) * SERVERS_PART);
        pause(every, if is_ok { work } else { Duration::ZERO })
    }
}

fn pause(every: Duration, work: Duration) -> Duration {
    (work * IDLE_SHARE).clamp(every, every * LONGEST)
}

/// How long a scan may take before it counts as trouble.
pub(crate) fn patience(every: Duration) -> Duration {
    every.max(Duration::from_secs(1))
}

/// The trouble of a scan that has taken too long by now.
pub(crate) fn overdue(took: Duration, every: Duration) -> Option<String> {
    (took > patience(every)).then(|| format!("no answer from the store for {}", Span(took)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_pause_follows_the_work_and_is_at_most_ten_intervals() {
        for (work_ms, expected) in [(0, 5), (100, 5), (200, 10), (8_000, 50)] {
            assert_eq!(pause(5 * SECOND, Duration::from_millis(work_ms)), expected * SECOND, "{work_ms}");
        }
    }

    #[test]
    fn waiting_for_a_reply_is_not_work() {
        let hung = Look { begun: clock::now() - 8 * SECOND, worked: clock::processor() };
        assert_eq!(hung.pause(5 * SECOND, true), 5 * SECOND);
        // A failed scan says nothing about the cost of one.
        let failed = Look { worked: Duration::ZERO, ..hung };
        assert_eq!(failed.pause(Duration::from_millis(1), false), Duration::from_millis(1));
    }

    #[test]
    fn a_scan_is_overdue_after_an_interval_but_not_within_a_second() {
        for (took, every, expected) in [(6, 5, true), (4, 5, false), (2, 0, true), (1, 0, false)] {
            assert_eq!(overdue(took * SECOND, every * SECOND).is_some(), expected, "{took} {every}");
        }
    }
}
