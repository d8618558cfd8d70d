//! One lock as a request reads and writes it.

use std::os::fd::OwnedFd;

use rustix::io::{Errno, pread};

use super::directory::{Directory, Inside};
use super::error::unusable;
use super::names::RecordId;
use super::record::{FULL_BYTES, FileRecord};
use tenure_core::store::Failure;

/// A lock that was read.
#[derive(Debug)]
pub(super) struct Lock {
    pub(super) record: FileRecord,
    /// The record's encoded bytes.
    pub(super) text: Vec<u8>,
}

impl Lock {
    pub(super) fn load(directory: &Directory, id: RecordId) -> Result<Option<Self>, Failure> {
        let file = id.to_string();
        let Some(text) = directory.read_file(&file)? else { return Ok(None) };
        let record = FileRecord::decode(&text)
            .map_err(|damage| unusable(&directory.path_of(&file), &damage.of_record()))?;
        if RecordId::of(&record.name) != id {
            return Err(directory.misplaced(id, &record));
        }
        Ok(Some(Self { record, text }))
    }

    /// A snapshot of a lock, read without the guard. A read that races with a write can look damaged, but not
    /// three times in a row.
    pub(super) fn peek(directory: &Directory, id: RecordId) -> Result<Option<FileRecord>, Failure> {
        let look = || Self::load(directory, id);
        look().or_else(|_| look()).or_else(|_| look()).map(|lock| lock.map(|lock| lock.record))
    }
}

pub(super) fn read_at(file: &OwnedFd, at: u64, bytes: usize) -> Result<Vec<u8>, Errno> {
    let mut read = vec![0; bytes];
    let mut done = 0;
    while done < bytes {
        match pread(file, &mut read[done..], at + done as u64)? {
            0 => break,
            length => done += length,
        }
    }
    read.truncate(done);
    Ok(read)
}

/// Writes a lock that a request has changed. `before` is what its file contains.
///
/// `may_grow`: the request may enlarge the record, so the size limit applies.
pub(super) fn store(
    inside: &Inside<'_>,
    id: RecordId,
    before: Option<&[u8]>,
    after: Option<&FileRecord>,
    may_grow: bool,
) -> Result<(), Failure> {
    let text = after.map(FileRecord::encode);
    if may_grow && text.as_ref().is_some_and(|text| text.len() > FULL_BYTES) {
        return Err(inside.full(id));
    }
    match (before, &text) {
        (None, None) => Ok(()),
        (Some(before), Some(text)) if text.as_bytes() == before => Ok(()),
        (_, Some(text)) => inside.write(id, text, before.map(<[u8]>::len)),
        (Some(before), None) => inside.remove(id, before.len()),
    }
}
