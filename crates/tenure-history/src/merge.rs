//! Many histories, each in the order of its times, become one.
//!
//! A line can be judged when every other worker has said something later: nothing earlier can come
//! any more. So each worker says now and then that it lives.

use std::collections::BTreeMap;

use crate::line::{Line, What};

/// What happened next, to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// One of its tasks was told something.
    Said(Line),
    /// The process is no more.
    Gone,
}

/// Puts histories in one order.
#[derive(Debug, Default)]
pub struct Merge {
    /// When each living worker last said something.
    heard: BTreeMap<u32, u64>,
    /// By time, worker and order of arrival.
    waiting: BTreeMap<(u64, u32, u64), Event>,
    arrived: u64,
}

impl Merge {
    /// A worker was started.
    pub fn open(&mut self, worker: u32, time: u64) {
        self.heard.insert(worker, time);
    }

    /// A worker said something. Its times never go back.
    pub fn say(&mut self, worker: u32, line: Line) {
        let heard = self.heard.entry(worker).or_default();
        *heard = (*heard).max(line.time);
        if line.what != What::Lives {
            self.put(line.time, worker, Event::Said(line));
        }
    }

    /// A worker has said its last: it lived at `time` at least, and when it last spoke.
    pub fn close(&mut self, worker: u32, time: u64) {
        let heard = self.heard.remove(&worker).unwrap_or_default();
        self.put(heard.max(time), worker, Event::Gone);
    }

    fn put(&mut self, time: u64, worker: u32, event: Event) {
        self.arrived += 1;
        self.waiting.insert((time, worker, self.arrived), event);
    }
}

/// What happened next, once that is certain: when, to which worker, and what. After a `None` there
/// may be more.
impl Iterator for Merge {
    type Item = (u64, u32, Event);

    fn next(&mut self) -> Option<Self::Item> {
        let certain = self.heard.values().min();
        let entry = self.waiting.first_entry()?;
        if certain.is_some_and(|certain| entry.key().0 >= *certain) {
            return None;
        }
        let ((time, worker, _), event) = entry.remove_entry();
        Some((time, worker, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(time: u64) -> Line {
        Line { time, task: 0, what: What::Leaves }
    }

    fn times(merge: &mut Merge) -> Vec<(u64, u32)> {
        merge.map(|(time, worker, _)| (time, worker)).collect()
    }

    #[test]
    fn nothing_is_told_before_something_earlier_can_no_longer_come() {
        let mut merge = Merge::default();
        merge.open(1, 0);
        merge.open(2, 0);
        merge.say(1, leaves(5));
        merge.say(1, leaves(9));
        assert_eq!(times(&mut merge), []);
        merge.say(2, leaves(7));
        assert_eq!(times(&mut merge), [(5, 1)]);
        merge.say(2, Line { time: 20, task: 0, what: What::Lives });
        assert_eq!(times(&mut merge), [(7, 2)]);
        merge.say(1, leaves(30));
        assert_eq!(times(&mut merge), [(9, 1)]);
    }

    #[test]
    fn a_worker_that_is_gone_is_not_waited_for() {
        let mut merge = Merge::default();
        merge.open(1, 0);
        merge.open(2, 0);
        merge.say(1, leaves(5));
        merge.say(2, leaves(3));
        merge.close(2, 4);
        merge.say(1, leaves(6));
        assert_eq!(times(&mut merge), [(3, 2), (4, 2), (5, 1)]);
        merge.close(1, 1);
        assert_eq!(times(&mut merge), [(6, 1), (6, 1)], "it lived when it spoke");
    }
}
