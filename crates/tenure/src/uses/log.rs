//! The log of an election: the latest changes of leadership, stored in its record.

use std::sync::Arc;

use super::RecordHandle;
use crate::error::{Error, Result};
use crate::owner::Owner;
use crate::protocol::record::Record;

/// The leader of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The leader's payload.
    pub payload: String,
    /// The term's fencing token: see [`Term::fence`](crate::Term::fence).
    pub fence: u64,
    /// The leader's owner, which names its host and process.
    pub owner: Owner,
}

const PAYLOAD_MAX: usize = 4 << 10;
/// Maximum number of changes kept, and their maximum size in bytes; the latest change is always kept.
const KEPT: usize = 256;
const KEPT_BYTES: usize = 32 << 10;
const FORMAT: &str = "1";

pub(super) fn checked_payload(payload: String) -> Result<Arc<str>> {
    if payload.len() > PAYLOAD_MAX {
        return Err(Error::invalid(format!(
            "the payload of an election must have at most {PAYLOAD_MAX} bytes, got {}",
            payload.len()
        )));
    }
    Ok(payload.into())
}

/// The error for a record that contains no readable log.
pub(super) fn unreadable(record: &RecordHandle) -> Error {
    let what = "cannot read its log, perhaps because another version wrote it";
    Error::refused(&record.lock.name, record.engine().store.url(), what)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Elected,
    Updated,
    Resigned,
}

const WORDS: [(Word, &str); 3] =
    [(Word::Elected, "elected"), (Word::Updated, "updated"), (Word::Resigned, "resigned")];

/// One change. Numbers are consecutive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogEntry {
    pub(super) number: u64,
    pub(super) word: Word,
    pub(super) leader: Leader,
}

/// The latest changes, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Log {
    pub(super) entries: Vec<LogEntry>,
}

impl Log {
    /// Who was last elected and has not resigned.
    pub(super) fn leader(&self) -> Option<&Leader> {
        let last = self.entries.last().filter(|last| last.word != Word::Resigned)?;
        Some(&last.leader)
    }

    fn encode(&self) -> Vec<u8> {
        let mut text = format!("{FORMAT}\n");
        for LogEntry { number, word, leader: Leader { payload, fence, owner } } in &self.entries {
            let word = WORDS.iter().find(|(known, _)| known == word).expect("every word has a name").1;
            text += &format!("{number} {word} {fence} {owner} {}\n{payload}\n", payload.len());
        }
        text.into_bytes()
    }

    /// Decodes a record; `None` if it is not readable.
    pub(super) fn decode(record: Option<&Record>) -> Option<Self> {
        let Some(record) = record else { return Some(Self::default()) };
        let (format, mut rest) = std::str::from_utf8(&record.value).ok()?.split_once('\n')?;
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let (line, after) = rest.split_once('\n')?;
            let words: Vec<_> = line.split(' ').collect();
            let [number, word, fence, owner, length] = words[..] else { return None };
            let word = WORDS.iter().find(|(_, name)| *name == word)?.0;
            let (payload, after) = after.split_at_checked(length.parse().ok()?)?;
            let (payload, fence, owner) = (payload.to_owned(), fence.parse().ok()?, owner.parse().ok()?);
            let leader = Leader { payload, fence, owner };
            entries.push(LogEntry { number: number.parse().ok()?, word, leader });
            rest = after.strip_prefix('\n')?;
        }
        (format == FORMAT).then_some(Self { entries })
    }
}

/// Appends a change to the log and drops the oldest ones beyond the limits; `None` if the log is not
/// readable.
pub(super) fn append(
    record: Option<&Record>,
    word: Word,
    fence: u64,
    owner: &Owner,
    payload: &str,
) -> Option<Vec<u8>> {
    let mut log = Log::decode(record)?;
    let number = log.entries.last().map_or(1, |last| last.number + 1);
    let leader = Leader { payload: payload.to_owned(), fence, owner: owner.clone() };
    log.entries.push(LogEntry { number, word, leader });
    let size = |entry: &LogEntry| entry.leader.payload.len() + entry.leader.owner.as_str().len() + 64;
    let mut bytes: usize = log.entries.iter().map(size).sum();
    let mut dropped = 0;
    while log.entries.len() - dropped > KEPT || bytes > KEPT_BYTES && log.entries.len() - dropped > 1 {
        bytes -= size(&log.entries[dropped]);
        dropped += 1;
    }
    log.entries.drain(..dropped);
    Some(log.encode())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_keeps_the_last_changes_and_counts_on() {
        let owner = Owner::new("x").expect("an owner");
        let mut record = None::<Record>;
        for term in 1..=300 {
            let payload = if term < 290 { "a\nb " } else { &"x".repeat(PAYLOAD_MAX) };
            let log = append(record.as_ref(), Word::Elected, term, &owner, payload).expect("a log");
            record = Some(Record { at_us: 0, value: log.into() });
            let log = Log::decode(record.as_ref()).expect("a log");
            assert_eq!(log.entries.last().expect("an entry").number, term);
            assert!(log.entries.len() <= KEPT);
            assert!(log.entries.windows(2).all(|two| two[0].number + 1 == two[1].number));
        }
        let record = record.expect("a record");
        assert!(record.value.len() < KEPT_BYTES + PAYLOAD_MAX);
        let cut = Record { value: record.value[..record.value.len() - 1].into(), ..record };
        assert_eq!(Log::decode(Some(&cut)), None);
    }
}
