//! When to look for unused rows.
//!
//! Each process reads the table page by page. A fleet shares the work without a word: who acquires more reads more, so
//! the table is read as often as its rows can become unused, and not by each process anew.

use std::mem;
use std::time::Duration;

use crate::moment::Moment;
use crate::name::LockName;

/// Least time from the beginning of a sweep to that of the next, and after a failure.
pub(super) const SWEEP: Duration = Duration::from_secs(600);
/// A page is read for so many acquisitions. It has 500 rows.
const ACQUIRES: u32 = 100;
/// Least and greatest interval of pages.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(40);

/// The next page.
pub(super) struct TableSweep {
    /// Requests to acquire since the last one.
    acquires: u32,
    /// When it is read, and when at the earliest, after so many of those.
    at: Moment,
    from: Moment,
    /// When its sweep began.
    begun: Option<Moment>,
    /// The name of the last row before it. Once a process has acquired a lock, its first sweep begins there, so that
    /// those of a fleet do not all read the same rows.
    after: Option<String>,
    has_failed: bool,
}

impl TableSweep {
    pub(super) fn new(at: Moment) -> Self {
        Self { acquires: 0, at, from: at, begun: None, after: None, has_failed: false }
    }

    /// A lock is acquired.
    pub(super) fn acquires(&mut self, name: &LockName) {
        self.acquires = self.acquires.saturating_add(1);
        self.after.get_or_insert_with(|| name.as_str().to_owned());
    }

    /// When the next page is read; never while one is.
    pub(super) fn next_at(&self) -> Moment {
        if self.acquires >= ACQUIRES { self.from.min(self.at) } else { self.at }
    }

    /// Begins to read a page, the one after this name.
    pub(super) fn begin(&mut self, now: Moment) -> String {
        (self.acquires, self.at, self.from) = (0, Moment(u64::MAX), Moment(u64::MAX));
        self.begun.get_or_insert(now);
        self.after.get_or_insert_default().clone()
    }

    /// A page was read that ends with this name; `None` at the end of the table.
    pub(super) fn read(&mut self, last: Option<String>, now: Moment) {
        (self.from, self.at) = match last {
            Some(_) => (now + PAUSE_MIN, now + PAUSE_MAX),
            None => {
                let at = now.max(self.begun.take().unwrap_or(now) + SWEEP);
                (at, at)
            }
        };
        (self.after, self.has_failed) = (Some(last.unwrap_or_default()), false);
    }

    /// The page could not be read, or its connection has ended. It is tried again, and then a new sweep begins.
    pub(super) fn failed(&mut self, now: Moment) {
        if self.at < Moment(u64::MAX) {
            return;
        }
        (self.at, self.from) = (now + SWEEP, now + SWEEP);
        if mem::replace(&mut self.has_failed, true) {
            (self.after, self.begun, self.has_failed) = (Some(String::new()), None, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When pages are read within this time, with so many acquisitions a second.
    fn pages(rows: u32, acquires_a_second: u32, within: Duration) -> Vec<Moment> {
        let (start, tick) = (Moment(1_000_000_000), Duration::from_millis(10));
        let (mut sweep, mut now, mut read) = (TableSweep::new(start), start, Vec::new());
        let (mut left, mut acquired, name) = (rows, 0, LockName::in_store(String::new()));
        while now < start + within {
            while acquired < now.since(start).as_millis() as u32 * acquires_a_second / 1_000 {
                sweep.acquires(&name);
                acquired += 1;
            }
            if now >= sweep.next_at() {
                let after = sweep.begin(now);
                left = if after.is_empty() { rows } else { left };
                left = left.saturating_sub(500);
                sweep.read((left > 0).then(|| left.to_string()), now);
                read.push(now);
            }
            now = now + tick;
        }
        read
    }

    #[test]
    fn a_small_table_is_read_once_in_ten_minutes() {
        for acquires in [0, 1_000] {
            assert_eq!(pages(400, acquires, 3 * SWEEP).len(), 3);
        }
    }

    #[test]
    fn who_acquires_nothing_reads_a_page_in_forty_seconds() {
        assert_eq!(pages(1_000_000, 0, SWEEP).len(), 15);
    }

    /// Each acquisition may leave a row, and a page has five times as many as were made meanwhile.
    #[test]
    fn who_acquires_much_reads_as_much_as_may_become_unused() {
        let read = pages(10_000_000, 1_000, SWEEP).len();
        assert!((5_900..=6_000).contains(&read), "{read}");
    }

    #[test]
    fn a_page_that_fails_twice_is_followed_by_a_new_sweep() {
        let mut sweep = TableSweep::new(Moment(0));
        assert_eq!(sweep.begin(Moment(0)), "");
        sweep.read(Some("x".into()), Moment(0));
        sweep.failed(Moment(0));
        assert_eq!(sweep.next_at(), Moment(0) + PAUSE_MAX);
        assert_eq!(sweep.begin(Moment(5)), "x");
        sweep.failed(Moment(5));
        assert_eq!(sweep.next_at(), Moment(5) + SWEEP);
        assert_eq!(sweep.begin(Moment(9)), "x");
        sweep.failed(Moment(9));
        assert_eq!(sweep.begin(Moment(12)), "");
    }

    #[test]
    fn the_first_sweep_begins_at_the_first_lock() {
        let mut sweep = TableSweep::new(Moment(0));
        ["m", "a"].iter().for_each(|name| sweep.acquires(&LockName::in_store((*name).into())));
        assert_eq!(sweep.begin(Moment(0)), "m");
        sweep.read(None, Moment(0));
        sweep.acquires(&LockName::in_store("n".into()));
        assert_eq!(sweep.begin(Moment(0) + SWEEP), "");
    }
}
