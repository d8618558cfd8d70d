//! The last run of a job, and the record of it.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use crate::owner::Owner;
use crate::protocol::record::Record;

const FORMAT: &str = "1";
/// Begins the last line of a record, with the time of the last success.
const SUCCEEDED: &str = "\nsucceeded ";

/// The most recent run of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastRun {
    /// The window of the run.
    pub window: Range<SystemTime>,
    /// When the run began, by the store's clock.
    pub begun: SystemTime,
    /// The owner that ran it.
    pub owner: Owner,
    /// The fencing token of the run.
    pub fence: u64,
    /// The outcome of the run.
    pub outcome: Outcome,
    /// While it runs: the time left of its lease, at the end of which a dead runner is known to be
    /// [lost](Outcome::Lost). `None` otherwise.
    pub remaining: Option<Duration>,
    /// When the job last succeeded, by the store's clock: the end of this run or of an earlier one. `None` if
    /// no success is recorded.
    pub succeeded: Option<SystemTime>,
    /// Whether its failure has opened the window again, so that the next to ask runs the job.
    pub is_open: bool,
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Still running.
    Running,
    /// Succeeded.
    Done,
    /// Failed, with the reason, cut to 1,000 bytes.
    Failed(String),
    /// The runner died or lost its lock. It may have done all of its work, or part of it.
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunState {
    Begun,
    Done,
    Failed,
    /// Failed, with the window open again.
    Freed,
}

const STATES: [(RunState, &str); 4] = [
    (RunState::Begun, "begun"),
    (RunState::Done, "done"),
    (RunState::Failed, "failed"),
    (RunState::Freed, "freed"),
];

/// The record of a run: one line, followed by the reason if it failed, and the time of the last success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunRecord {
    pub(super) state: RunState,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) fence: u64,
    /// 0 in the record that marks the beginning, whose own time counts instead.
    pub(super) begun: u64,
    pub(super) owner: Owner,
    /// When the job last succeeded, or 0.
    pub(super) succeeded: u64,
    pub(super) why: String,
}

impl RunRecord {
    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { state, from, to, fence, begun, owner, succeeded, why } = self;
        let state = STATES.iter().find(|(known, _)| known == state).expect("every state has a name").1;
        let mut text = format!("{FORMAT} {state} {from} {to} {fence} {begun} {owner}\n{why}");
        if *succeeded > 0 || why.contains(SUCCEEDED) {
            text.push_str(&format!("{SUCCEEDED}{succeeded}"));
        }
        text.into_bytes()
    }

    /// `None` if the record cannot be read.
    pub(super) fn of(record: &Record) -> Option<Self> {
        let (line, why) = std::str::from_utf8(&record.value).ok()?.split_once('\n')?;
        let words: Vec<_> = line.split(' ').collect();
        let [FORMAT, state, from, to, fence, begun, owner] = words[..] else { return None };
        let state = STATES.iter().find(|(_, name)| *name == state)?.0;
        let (from, to, fence, begun) =
            (from.parse().ok()?, to.parse().ok()?, fence.parse().ok()?, begun.parse().ok()?);
        let begun = if begun == 0 { record.at_us } else { begun };
        let earlier = why.rsplit_once(SUCCEEDED).and_then(|(why, at)| Some((why, at.parse().ok()?)));
        let (why, succeeded) = match (state, earlier) {
            (RunState::Done, _) => ("", record.at_us),
            (_, Some(earlier)) => earlier,
            (_, None) => (why, 0),
        };
        let (owner, why) = (owner.parse().ok()?, why.to_owned());
        Some(Self { state, from, to, fence, begun, owner, succeeded, why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_reads_back_and_noise_does_not() {
        let read = |at_us, text: Vec<u8>| RunRecord::of(&Record { at_us, value: text.into() });
        let run = RunRecord {
            state: RunState::Freed,
            from: 5,
            to: 9,
            fence: 7,
            begun: 6,
            owner: Owner::new("x").expect("an owner"),
            succeeded: 0,
            why: "two\nlines".to_owned(),
        };
        assert_eq!(read(1, run.encode()), Some(run.clone()));
        let later = RunRecord { succeeded: 3, ..run.clone() };
        assert_eq!(read(1, later.encode()), Some(later.clone()));
        let begun = RunRecord { begun: 0, ..run };
        assert_eq!(read(11, begun.encode()).expect("a run").begun, 11);
        let done = RunRecord { state: RunState::Done, ..later };
        assert_eq!(read(11, done.encode()).expect("a run").succeeded, 11);
        for text in ["", "1 begun\n", "1 x 5 9 7 6 o\n", "2 done 5 9 7 6 a@h:1/0\n"] {
            assert_eq!(read(1, text.into()), None, "{text:?}");
        }
    }
}
