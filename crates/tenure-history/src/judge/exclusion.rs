//! Exclusion: concurrent holds never exceed the capacity.

use super::{Hold, Judge, Length};
use crate::line::Lock;

pub(super) const EXCLUSION: &str = "exclusion";

impl Judge {
    /// A hold begins: together with those that have not ended, it must fit the capacity.
    pub(super) fn check_room(&mut self, lock: Lock, hold: &Hold) {
        let book = self.book(lock);
        let others = book.holding.iter().filter_map(|id| book.closed.get(id));
        if book.used > u64::from(lock.capacity)
            && let Some(other) = others.max_by_key(|other| other.until).cloned()
        {
            let overlap = Length(hold.until.min(other.until) - hold.from);
            self.accuse_both(EXCLUSION, &format!("{lock} was held by both for {overlap}"), &other, hold);
        }
    }
}
