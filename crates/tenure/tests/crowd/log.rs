//! The log of a process.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

use tenure::diagnosis::boot_clock;

/// A log of lines of equal length, each in a single write: a killed process leaves whole lines, and the
/// file's size gives their number.
pub(crate) struct Log(File);

const LINE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The task held.
    Held,
    /// It still held, and released.
    Released,
    /// It no longer held.
    Lost,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) what: What,
    /// In nanoseconds, on a clock that all processes share.
    pub(crate) time: u64,
    pub(crate) task: usize,
    pub(crate) weight: u32,
    pub(crate) fence: u64,
}

impl Log {
    pub(crate) fn open(path: &Path) -> Self {
        Self(OpenOptions::new().append(true).create(true).open(path).expect("a log"))
    }

    pub(crate) fn note(&self, line: Line) {
        let Line { what, time, task, weight, fence } = line;
        let what = match what {
            What::Held => 'H',
            What::Released => 'R',
            What::Lost => 'L',
        };
        let line = format!("{what} {time} {task} {weight} {fence}");
        writeln!(&self.0, "{line:<width$}", width = LINE - 1).expect("a line in the log");
    }
}

/// Number of lines.
pub(crate) fn count(path: &Path) -> usize {
    fs::metadata(path).map_or(0, |log| log.len() as usize) / LINE
}

pub(crate) fn read(path: &Path) -> Vec<Line> {
    let text = fs::read_to_string(path).expect("a log");
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [what, time, task, weight, fence] = words[..] else { return None };
        let what = match what {
            "H" => What::Held,
            "R" => What::Released,
            "L" => What::Lost,
            _ => return None,
        };
        let (time, task) = (time.parse().ok()?, task.parse().ok()?);
        Some(Line { what, time, task, weight: weight.parse().ok()?, fence: fence.parse().ok()? })
    };
    text.lines().map(|text| line(text).unwrap_or_else(|| panic!("no line of a log: {text}"))).collect()
}

pub(crate) fn now() -> u64 {
    boot_clock().0
}
