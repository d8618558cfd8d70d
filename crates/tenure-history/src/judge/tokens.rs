//! Tokens grow from hold to hold.

use super::exclusion::EXCLUSION;
use super::{Hold, Judge};
use crate::line::Lock;

impl Judge {
    /// A hold begins: its token must be greater than those of all holds that had ended by then, if one of the
    /// two was exclusive.
    pub(super) fn check_token(&mut self, lock: Lock, hold: &Hold) {
        let book = self.book(lock);
        let is_alone = hold.weight == lock.capacity;
        // The grants of shared holds may be reported in another order.
        let before = if is_alone { &book.last } else { &book.last_alone };
        // The order of overlapping holds is unknown.
        let is_behind = |before: &&Hold| before.until <= hold.from && hold.token <= before.token;
        let before = before.as_ref().filter(is_behind).cloned();
        if is_alone {
            book.last_alone = Some(hold.clone());
        }
        if book.last.as_ref().is_none_or(|last| last.token < hold.token) {
            book.last = Some(hold.clone());
        }
        let Some(before) = before else { return };
        if hold.asked < before.from {
            // It has the smaller token because it was granted first.
            let what = format!("{lock} was granted, and told late, while it was held");
            self.accuse_both(EXCLUSION, &what, &before, hold);
        } else {
            let what = format!("{lock} gave {} after {}", hold.token, before.token);
            self.accuse_both("tokens", &what, &before, hold);
        }
    }
}
