//! Progress: nobody waits for a lock that nobody holds.

use std::mem;

use super::{Judge, Length};
use crate::line::Lock;

/// The longest time for which a lock was awaited but not held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The lock.
    pub lock: Lock,
    /// The length, in nanoseconds.
    pub length: u64,
    /// When it ended.
    pub time: u64,
}

impl Judge {
    /// Adds to the time for which a lock was awaited but not held.
    pub(super) fn look(&mut self, time: u64, lock: Lock) {
        let limit = self.stall_limit;
        let book = self.locks.entry(lock).or_default();
        // A client that has gone silent holds until its lease ends.
        let held_until = book.open.values().map(|hold| hold.until).max().unwrap_or(0);
        let since = mem::replace(&mut book.looked, time).max(held_until);
        if book.waiting == 0 || time <= since {
            return;
        }
        let before = book.stall;
        book.stall += time - since;
        let length = book.stall;
        if self.stall.is_none_or(|longest| longest.length < length) {
            self.stall = Some(Stall { lock, length, time });
        }
        if before <= limit && limit < length {
            let waiting = self.book(lock).waiting;
            let text = format!(
                "{lock} was held by no client for {}, until {}, while {waiting} task{} waited",
                Length(length),
                self.at(time),
                if waiting == 1 { "" } else { "s" },
            );
            self.accuse("progress", text);
        }
    }
}
