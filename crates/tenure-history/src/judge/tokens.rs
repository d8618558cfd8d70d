//! Tokens grow from turn to turn.

use super::exclusion::EXCLUSION;
use super::{Hold, Judge};
use crate::line::Lock;

impl Judge {
    /// A turn begins: its token is above that of each that was over by then, where one of the two
    /// had the lock alone.
    pub(super) fn check_token(&mut self, lock: Lock, hold: &Hold) {
        let book = self.book(lock);
        let is_alone = hold.weight == lock.capacity;
        // Those who share may be told in another order than they were let in.
        let before = if is_alone { &book.last } else { &book.last_alone };
        // Of two who met, no client can say who was first.
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
            // It has the older token because it was let in first.
            let what = format!("{lock} was granted, and told late, while it was held");
            self.accuse_both(EXCLUSION, &what, &before, hold);
        } else {
            let what = format!("{lock} gave {} after {}", hold.token, before.token);
            self.accuse_both("tokens", &what, &before, hold);
        }
    }
}
