//! The record of a job: its last run, and those before.

use std::fmt::Write;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use super::period::{moment, unix_us};
use crate::owner::Owner;
use crate::protocol::record::Record;

const FORMAT: &str = "1";
/// Begins the last line of a record, with the time of the last success.
const SUCCEEDED: &str = "\nsucceeded ";
/// Begins the line before it: the number of earlier runs, the exit code or `-`, and the schedule.
const EARLIER: &str = "earlier ";
/// Begins the line of an earlier run.
const RAN: &str = "ran ";
/// Number of earlier runs that are kept.
const KEPT: usize = 9;
/// Maximum size of a record.
const RECORD_BYTES: usize = 4 << 10;
/// Maximum length of an earlier run's reason, and the same where the record would become too large.
const REASONS: [usize; 2] = [200, 60];
/// Maximum length of a schedule.
const SCHEDULE: usize = 200;

/// The most recent run of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastRun {
    /// The window of the run.
    pub window: Range<SystemTime>,
    /// When the run began, by the store's clock.
    pub begun: SystemTime,
    /// When it ended, by the store's clock. `None` while it runs, and if it was lost.
    pub ended: Option<SystemTime>,
    /// The owner that ran it.
    pub owner: Owner,
    /// The fencing token of the run.
    pub fence: u64,
    /// The outcome of the run.
    pub outcome: Outcome,
    /// The exit code of its command, if it [had one](crate::Turn::exit_code).
    pub code: Option<i32>,
    /// While it runs: the time left of its lease, at the end of which a dead runner is known to be
    /// [lost](Outcome::Lost). `None` otherwise.
    pub remaining: Option<Duration>,
    /// When the job last succeeded, by the store's clock: the end of this run or of an earlier one. `None` if
    /// no success is recorded.
    pub succeeded: Option<SystemTime>,
    /// Whether its failure has opened the window again, so that the next to ask runs the job.
    pub is_open: bool,
}

/// One of the last runs of a job: see [`JobStatus::runs`](crate::JobStatus::runs).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PastRun {
    /// When the run began, by the store's clock.
    pub begun: SystemTime,
    /// When it ended, by the store's clock. `None` while it runs, and if it was lost.
    pub ended: Option<SystemTime>,
    /// The host that ran it.
    pub host: String,
    /// The fencing token of the run.
    pub fence: u64,
    /// The outcome of the run; of an earlier one, with the first line of the reason, cut to 200 bytes.
    pub outcome: Outcome,
    /// The exit code of its command, if it [had one](crate::Turn::exit_code).
    pub code: Option<i32>,
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

/// The record of a job: a line for the last run, followed by the reason if it failed, a line for each earlier
/// run, oldest first, and two more lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunRecord {
    pub(super) state: RunState,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) fence: u64,
    /// 0 in the record that marks the beginning, whose own time counts instead.
    pub(super) begun: u64,
    /// The time of the record, if it tells the end; 0 otherwise. Not written.
    pub(super) ended: u64,
    pub(super) owner: Owner,
    pub(super) code: Option<i32>,
    /// When the job last succeeded, or 0.
    pub(super) succeeded: u64,
    pub(super) why: String,
    /// The schedule as text, or empty if it is not known.
    pub(super) schedule: String,
    /// Newest first.
    pub(super) earlier: Vec<PastRun>,
}

impl RunRecord {
    pub(super) fn encode(&self) -> Vec<u8> {
        let texts = REASONS.map(|reason| self.text(reason));
        let [long, short] = texts;
        if long.len() <= RECORD_BYTES { long } else { short }.into_bytes()
    }

    fn text(&self, reason: usize) -> String {
        let Self { state, from, to, fence, begun, owner, code, succeeded, why, schedule, earlier, .. } = self;
        let state = STATES.iter().find(|(known, _)| known == state).expect("every state has a name").1;
        let mut text = format!("{FORMAT} {state} {from} {to} {fence} {begun} {owner}\n{why}");
        let earlier = &earlier[..earlier.len().min(KEPT)];
        for PastRun { begun, ended, host, fence, outcome, code } in earlier.iter().rev() {
            let (state, why) = match outcome {
                Outcome::Done => ("done", ""),
                Outcome::Failed(why) => ("failed", cut(why.lines().next().unwrap_or_default(), reason)),
                _ => ("lost", ""),
            };
            let (begun, ended) = (unix_us(*begun), ended.map_or(0, unix_us));
            let _ = write!(text, "\n{RAN}{state} {begun} {ended} {fence} {} {host} {why}", shown(*code));
        }
        let (count, code, schedule) = (earlier.len(), shown(*code), cut(schedule, SCHEDULE));
        let _ = write!(text, "\n{EARLIER}{count} {code} {schedule}{SUCCEEDED}{succeeded}");
        text
    }

    /// `None` if the record cannot be read.
    pub(super) fn of(record: &Record) -> Option<Self> {
        let (line, rest) = std::str::from_utf8(&record.value).ok()?.split_once('\n')?;
        let words: Vec<_> = line.split(' ').collect();
        let [FORMAT, state, from, to, fence, begun, owner] = words[..] else { return None };
        let state = STATES.iter().find(|(_, name)| *name == state)?.0;
        let (from, to, fence, begun) =
            (from.parse().ok()?, to.parse().ok()?, fence.parse().ok()?, begun.parse().ok()?);
        let begun = if begun == 0 { record.at_us } else { begun };
        let ended = if state == RunState::Begun { 0 } else { record.at_us };
        let succeeded = rest.rsplit_once(SUCCEEDED).and_then(|(rest, at)| Some((rest, at.parse().ok()?)));
        let (rest, succeeded) = succeeded.unwrap_or((rest, 0));
        let (why, earlier, code, schedule) = tail(rest).unwrap_or((rest, Vec::new(), None, ""));
        let (why, succeeded) = if state == RunState::Done { ("", record.at_us) } else { (why, succeeded) };
        let (owner, why, schedule) = (owner.parse().ok()?, why.to_owned(), schedule.to_owned());
        Some(Self { state, from, to, fence, begun, ended, owner, code, succeeded, why, schedule, earlier })
    }

    /// The run; `is_running` if its lock is held.
    pub(super) fn last(&self, is_running: bool) -> PastRun {
        let outcome = match self.state {
            RunState::Done => Outcome::Done,
            RunState::Failed | RunState::Freed => Outcome::Failed(self.why.clone()),
            RunState::Begun if is_running => Outcome::Running,
            RunState::Begun => Outcome::Lost,
        };
        PastRun {
            begun: moment(self.begun),
            ended: (self.ended > 0).then(|| moment(self.ended)),
            host: self.owner.host().to_owned(),
            fence: self.fence,
            outcome,
            code: self.code,
        }
    }

    /// The runs before the next one.
    pub(super) fn history(self) -> Vec<PastRun> {
        let last = self.last(false);
        std::iter::once(last).chain(self.earlier).take(KEPT).collect()
    }
}

/// Splits what follows the first line: the reason, the earlier runs, the exit code and the schedule. `None` if
/// an older version wrote the record.
fn tail(rest: &str) -> Option<(&str, Vec<PastRun>, Option<i32>, &str)> {
    let (mut rest, line) = rest.rsplit_once('\n')?;
    let mut words = line.strip_prefix(EARLIER)?.splitn(3, ' ');
    let [count, code, schedule] = [words.next()?, words.next()?, words.next()?];
    let (count, mut earlier): (usize, _) = (count.parse().ok()?, Vec::new());
    for _ in 0..count {
        let (before, line) = rest.rsplit_once('\n')?;
        earlier.push(past(line)?);
        rest = before;
    }
    Some((rest, earlier, code.parse().ok(), schedule))
}

/// Reads the line of an earlier run.
fn past(line: &str) -> Option<PastRun> {
    let words: Vec<_> = line.strip_prefix(RAN)?.splitn(7, ' ').collect();
    let [state, begun, ended, fence, code, host, why] = words[..] else { return None };
    let outcome = match state {
        "done" => Outcome::Done,
        "failed" => Outcome::Failed(why.to_owned()),
        "lost" => Outcome::Lost,
        _ => return None,
    };
    let ended: u64 = ended.parse().ok()?;
    Some(PastRun {
        begun: moment(begun.parse().ok()?),
        ended: (ended > 0).then(|| moment(ended)),
        host: host.to_owned(),
        fence: fence.parse().ok()?,
        outcome,
        code: code.parse().ok(),
    })
}

fn shown(code: Option<i32>) -> String {
    code.map_or_else(|| "-".to_owned(), |code| code.to_string())
}

/// The beginning of a text, of at most this many bytes.
pub(super) fn cut(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        Owner::new("x").expect("an owner")
    }

    fn read(at_us: u64, text: Vec<u8>) -> Option<RunRecord> {
        RunRecord::of(&Record { at_us, value: text.into() })
    }

    fn run() -> RunRecord {
        RunRecord {
            state: RunState::Freed,
            from: 5,
            to: 9,
            fence: 7,
            begun: 6,
            ended: 1,
            owner: owner(),
            code: Some(-3),
            succeeded: 0,
            why: "two\nlines".to_owned(),
            schedule: "0 2 * * * Europe/Berlin".to_owned(),
            earlier: Vec::new(),
        }
    }

    #[test]
    fn a_run_reads_back_and_noise_does_not() {
        let run = run();
        assert_eq!(read(1, run.encode()), Some(run.clone()));
        let later = RunRecord { succeeded: 3, code: None, schedule: String::new(), ..run.clone() };
        assert_eq!(read(1, later.encode()), Some(later.clone()));
        let begun = RunRecord { state: RunState::Begun, begun: 0, ..run };
        let read_begun = read(11, begun.encode()).expect("a run");
        assert_eq!((read_begun.begun, read_begun.ended), (11, 0));
        let done = RunRecord { state: RunState::Done, ..later };
        assert_eq!(read(11, done.encode()).expect("a run").succeeded, 11);
        for text in ["", "1 begun\n", "1 x 5 9 7 6 o\n", "2 done 5 9 7 6 a@h:1/0\n"] {
            assert_eq!(read(1, text.into()), None, "{text:?}");
        }
    }

    #[test]
    fn a_record_without_earlier_runs_is_read() {
        let owner = owner();
        for (text, why, succeeded) in [
            (format!("1 freed 5 9 7 6 {owner}\nno disk"), "no disk", 0),
            (format!("1 failed 5 9 7 6 {owner}\nno\ndisk\nsucceeded 3"), "no\ndisk", 3),
            (format!("1 begun 5 9 7 0 {owner}\n"), "", 0),
        ] {
            let run = read(8, text.into_bytes()).expect("a run");
            assert_eq!((run.why.as_str(), run.succeeded, run.earlier.len()), (why, succeeded, 0));
        }
    }

    #[test]
    fn ten_runs_fit_into_a_record_and_no_more_are_kept() {
        let longest = Owner::new(&"%".repeat(256)).expect("an owner");
        let mut last = RunRecord { owner: longest, schedule: "s".repeat(300), ..run() };
        for number in 1..=30_u64 {
            let (why, code) = (format!("{}\nand more", "\u{e4}".repeat(480)), Some(i32::MIN));
            let (begun, ended) = (1_764_307_200_000_000 + number, 1_764_307_200_000_000 + 2 * number);
            let fence = u64::MAX - 100 + number;
            let earlier = if number == 1 { Vec::new() } else { last.clone().history() };
            let next = RunRecord { why, code, begun, fence, from: begun, to: ended, earlier, ..last };
            let text = next.encode();
            assert!(text.len() <= RECORD_BYTES, "{}", text.len());
            last = read(ended, text).expect("a run");
            let fences: Vec<u64> = last.earlier.iter().map(|run| run.fence).collect();
            let expected: Vec<u64> = (1..number).rev().take(KEPT).map(|n| u64::MAX - 100 + n).collect();
            assert_eq!(fences, expected);
            assert!(last.earlier.iter().all(|run| run.code == code && run.ended > Some(run.begun)));
        }
        let Outcome::Failed(line) = &last.earlier[8].outcome else { panic!("it failed") };
        assert!(line.starts_with("\u{e4}") && !line.contains("more"));
        // A run that was lost has no end.
        let begun = RunRecord { state: RunState::Begun, ..last };
        let history = read(9, begun.encode()).expect("a run").history();
        assert_eq!((&history[0].outcome, history[0].ended), (&Outcome::Lost, None));
    }

    #[test]
    fn a_reason_is_not_read_as_a_run() {
        let why = "no\nran done 1 2 3 - h \nearlier 1 - x\nsucceeded 9".to_owned();
        let tricky = RunRecord { why, ..run() };
        assert_eq!(read(1, tricky.encode()), Some(tricky));
    }
}
