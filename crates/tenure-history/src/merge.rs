//! Merges histories that are each in order of time. An event can be judged once every other worker has
//! reported a later one, because nothing earlier can arrive then; workers therefore write heartbeats.

use std::collections::BTreeMap;

use crate::line::{Line, What};

/// An event of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// One of its tasks wrote a line.
    Said(Line),
    /// The process has ended.
    Gone,
}

/// Merges histories.
#[derive(Debug, Default)]
pub struct Merge {
    /// Time of the last line of each living worker.
    heard: BTreeMap<u32, u64>,
    /// By time, worker and order of arrival.
    waiting: BTreeMap<(u64, u32, u64), Event>,
    arrived: u64,
}

impl Merge {
    /// Registers a worker that was started.
    pub fn open(&mut self, worker: u32, time: u64) {
        self.heard.insert(worker, time);
    }

    /// Adds a worker's line. Its times never decrease.
    pub fn say(&mut self, worker: u32, line: Line) {
        let heard = self.heard.entry(worker).or_default();
        *heard = (*heard).max(line.time);
        if line.what != What::Lives {
            self.put(line.time, worker, Event::Said(line));
        }
    }

    /// A worker has ended: it lived at least until `time`, and until its last line.
    pub fn close(&mut self, worker: u32, time: u64) {
        let heard = self.heard.remove(&worker).unwrap_or_default();
        self.put(heard.max(time), worker, Event::Gone);
    }

    fn put(&mut self, time: u64, worker: u32, event: Event) {
        self.arrived += 1;
        self.waiting.insert((time, worker, self.arrived), event);
    }
}

/// The next event that is certain: its time, worker and content. More events may follow a `None`.
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
