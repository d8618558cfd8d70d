//! Removes what crashed processes left behind, and some expired entries, in pieces.
//!
//! Pieces are short because every other process waits for the directory's guard meanwhile.

use rustix::fs::Dir;

use super::beside;
use super::directory::{HolderState, Inside};
use super::lock::{Lock, store};
use super::names::{HolderId, RecordId};
use super::waits::Waits;
use tenure_core::protocol::Now;
use tenure_core::store::Failure;

/// Names read per piece.
const NAMES: usize = 1_024;
/// Files examined per piece.
const FILES: usize = 64;
/// Maximum holders, lines, lists and files beside locks examined per sweep. As many records are, unless one
/// of those holders is dead; then all records are.
const SAMPLE: usize = 64;

/// A sweep in progress.
#[derive(Debug)]
pub(super) struct Sweep {
    random: u64,
    /// The directory, until all names are read.
    names: Option<Dir>,
    holders: Vec<HolderId>,
    records: Vec<RecordId>,
    /// Files of records beside locks.
    beside: Vec<RecordId>,
    /// Spare files of records.
    spares: Vec<RecordId>,
    /// Lists of processes that wait for locks without a queue.
    waits: Vec<RecordId>,
    /// Crashed holders, sorted. Their files are removed last, because a record whose holder file is gone
    /// stays valid until its lease ends.
    dead: Vec<HolderId>,
}

impl Sweep {
    pub(super) fn new(inside: &Inside<'_>, random: u64) -> Result<Self, Failure> {
        let (holders, records, beside) = (Vec::new(), Vec::new(), Vec::new());
        let (spares, waits, dead) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { random, names: Some(inside.names()?), holders, records, beside, spares, waits, dead })
    }

    /// Does one piece; true if nothing is left to do.
    pub(super) fn piece(
        &mut self,
        inside: &Inside<'_>,
        now: Now,
        is_mine: impl Fn(HolderId) -> bool,
    ) -> Result<bool, Failure> {
        let mut left = FILES;
        while left > 0 {
            if self.names.is_some() && !self.read_names() {
                return Ok(false);
            }
            left -= 1;
            if let Some(holder) = self.holders.pop() {
                if !is_mine(holder) && inside.life(holder) == HolderState::Dead {
                    self.dead.push(holder);
                }
                if self.holders.is_empty() {
                    self.draw_records(inside)?;
                }
            } else if let Some(record) = self.records.pop() {
                self.clear(inside, now, record)?;
            } else if let Some(id) = self.beside.pop() {
                let file = id.beside();
                if matches!(inside.read_file(&file), Ok(Some(bytes)) if beside::is_over(&bytes, now)) {
                    inside.remove_file(&file)?;
                }
            } else if let Some(id) = self.spares.pop() {
                // The process that removed its lock was killed before it removed the spare file.
                if !inside.has(id) {
                    inside.remove_file(&id.spare())?;
                }
            } else if let Some(id) = self.waits.pop() {
                let has_ended = |holder| {
                    !is_mine(holder) && matches!(inside.life(holder), HolderState::Dead | HolderState::Gone)
                };
                if !inside.has(id) && Waits::peek(inside, id).holders().all(has_ended) {
                    inside.remove_file(&id.waits())?;
                }
            } else {
                self.dead.drain(..).for_each(|holder| inside.remove_holder(holder));
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads some names; true once all are read.
    fn read_names(&mut self) -> bool {
        let Some(names) = &mut self.names else { return true };
        let (mut read, is_again) = (0, !self.dead.is_empty());
        // A name that cannot be read is left to the next sweep.
        for entry in names.by_ref().take(NAMES).map_while(Result::ok) {
            read += 1;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if let Ok(record) = name.parse() {
                self.records.push(record);
            } else if is_again {
                // The rest is known.
            } else if let Ok(holder) = name.parse() {
                self.holders.push(holder);
            } else if let Some(id) = RecordId::of_beside(name) {
                self.beside.push(id);
            } else {
                self.spares.extend(RecordId::of_spare(name));
                self.waits.extend(RecordId::of_waits(name));
            }
        }
        let is_over = read < NAMES;
        if is_over {
            self.names = None;
            self.records.sort_unstable();
            if is_again {
                return true;
            }
            self.holders.sort_unstable();
            sample(&mut self.beside, self.random);
            sample(&mut self.spares, self.random);
            sample(&mut self.waits, self.random);
            sample(&mut self.holders, self.random);
            if self.holders.is_empty() {
                sample(&mut self.records, self.random);
            }
        }
        is_over
    }

    /// If a sampled holder is dead, any record may name it, so all are examined, also those that were written after
    /// the names were read; otherwise a sample is enough.
    fn draw_records(&mut self, inside: &Inside<'_>) -> Result<(), Failure> {
        self.dead.sort_unstable();
        if self.dead.is_empty() {
            sample(&mut self.records, self.random);
        } else {
            (self.names, self.records) = (Some(inside.names()?), Vec::new());
        }
        Ok(())
    }

    fn clear(&self, inside: &Inside<'_>, now: Now, id: RecordId) -> Result<(), Failure> {
        // An unreadable record is reported to the process that requests the lock.
        let Ok(Some(lock)) = Lock::load(inside, id) else { return Ok(()) };
        let is_ours = lock.record.boot == inside.boot();
        let is_over = is_ours && lock.record.lock.is_over(now);
        let dead = lock.record.bound_to(|holder| self.dead.binary_search(&holder).is_ok());
        if !is_over && dead.is_empty() {
            return Ok(());
        }
        let rest = lock.record.without_numbers(&dead).filter(|_| !is_over);
        store(inside, id, Some(&lock.text), rest.as_ref(), false)
    }
}

/// Keeps a sample, starting at a random position.
fn sample<T>(all: &mut Vec<T>, random: u64) {
    if all.len() > SAMPLE {
        let start = random as usize % all.len();
        all.rotate_left(start);
        all.truncate(SAMPLE);
    }
}
