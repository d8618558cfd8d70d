//! Applies a request to the record beside a lock, which has a file of its own.
//!
//! It expires by the wall clock, because a job that ran in this time window has still run in it after a
//! reboot.

use super::apply::{Applied, apply};
use super::directory::{Directory, Inside, Replaced};
use super::error::unusable;
use super::holders::HolderFiles;
use super::lock::Lock;
use super::names::RecordId;
use tenure_core::events::{event, text};
use tenure_core::name::LockName;
use tenure_core::protocol::record::{self, Record, RecordAnswer, RecordOp, RecordVerb, Then};
use tenure_core::protocol::{Fence, LockSpec, Now, Op, ReleaseScope, Verb};
use tenure_core::runtime::Runtime;
use tenure_core::store::{Cursor, Failure, RecordPage, SETUP};

const FORMAT: &str = "tenure record 1";

/// Runs one request. Returns the answer, and the changes to the lock if the request ended a hold.
pub(super) fn apply_to_record(
    inside: &mut Inside<'_>,
    holders: &mut HolderFiles,
    now: Now,
    runtime: &dyn Runtime,
    op: &RecordOp,
) -> Result<(RecordAnswer, Option<Applied>), Failure> {
    let id = RecordId::of(&op.lock);
    let ended = match &op.verb {
        RecordVerb::Read => {
            let record = read(inside, id, op, now)?;
            return Ok((RecordAnswer::Read { record, now_us: now.unix_us }, None));
        }
        RecordVerb::Put(put) => {
            let lock = match Lock::peek(inside, id)? {
                Some(lock) => holders.living(inside, lock)?,
                None => None,
            };
            if let Some(refusal) = record::refusal(lock.as_ref().map(|record| &record.lock), now, put) {
                return Ok((refusal, None));
            }
            let ends_us = now.unix_us.saturating_add(put.keep_ms.saturating_mul(1_000));
            let name = op.lock.as_str();
            let lengths = format!("bytes {} {}", name.len(), put.value.len());
            let mut text = format!("{FORMAT}\nat {}\nends {ends_us}\n{lengths}\n{name}\n", now.unix_us);
            text.reserve(put.value.len());
            let mut bytes = text.into_bytes();
            bytes.extend_from_slice(&put.value);
            // Overwrite a damaged record: only the holder writes this file.
            inside.write_file(&id.beside(), &bytes, Replaced::Nothing)?;
            match put.then {
                Then::Nothing => None,
                Then::Release => Some(record::release(&op.lock, &put.owner)),
                Then::Tell => {
                    let told = Applied::told(&put.owner);
                    return Ok((RecordAnswer::Stored { at_us: now.unix_us }, Some(told)));
                }
            }
        }
        RecordVerb::Void => {
            inside.remove_file(&id.beside())?;
            let verb = Verb::Release { hold: 0, fence: Fence::Assign, whose: ReleaseScope::Any };
            let owner = tenure_core::owner::Owner::fresh("", runtime);
            Some(Op { name: op.lock.clone(), spec: LockSpec::Mutex, owner, request: 0, verb })
        }
    };
    let applied = ended.map(|op| apply(inside, holders, now, runtime, &op)).transpose()?;
    let answer = match op.verb {
        RecordVerb::Void => RecordAnswer::Voided,
        _ => RecordAnswer::Stored { at_us: now.unix_us },
    };
    Ok((answer, applied))
}

fn read(directory: &Directory, id: RecordId, op: &RecordOp, now: Now) -> Result<Option<Record>, Failure> {
    let file = id.beside();
    let Some(bytes) = directory.read_file(&file)? else { return Ok(None) };
    let kept = decode(&bytes).ok_or_else(|| {
        unusable(&directory.path_of(&file), "is damaged, or was written by another version: remove it")
    })?;
    if kept.name != op.lock.as_str() {
        return Err(unusable(&directory.path_of(&file), "is the record of another name: remove it"));
    }
    Ok((now.unix_us <= kept.ends_us).then(|| Record { at_us: kept.at_us, value: kept.value.into() }))
}

/// Records per page of a listing.
const PAGE: usize = 1_000;
/// Maximum size of a file that a listing reads. Longer ones are cached values, which may have megabytes; jobs and
/// elections have at most 36 KiB beside their name.
const LISTED: u64 = (36 << 10) + LockName::MAX_BYTES as u64 + 1_024;

/// A page of the records beside locks whose names begin with `prefix`, in file order.
pub(super) fn page(
    directory: &Directory,
    now: Now,
    prefix: &str,
    from: &Cursor,
) -> Result<RecordPage, Failure> {
    let mut all = Vec::new();
    for entry in directory.names()?.flatten() {
        all.extend(entry.file_name().to_str().ok().and_then(RecordId::of_beside));
    }
    all.sort_unstable();
    let start = match RecordId::of_beside(&from.0) {
        Some(from) => all.partition_point(|id| *id <= from),
        None => 0,
    };
    let part = &all[start..all.len().min(start + PAGE)];
    let mut page = RecordPage { now_us: now.unix_us, ..RecordPage::default() };
    for id in part {
        let file = id.beside();
        if directory.length(&file).is_none_or(|length| length > LISTED) {
            continue;
        }
        let Some(bytes) = directory.read_file(&file)? else { continue };
        let Some(kept) = decode(&bytes) else {
            // List the other records anyway.
            let failure = unusable(
                &directory.path_of(&file),
                "is damaged, or was written by another version: remove it",
            );
            event!(WARN, target: SETUP, "lock_not_listed", "lock not listed", failure = text(failure));
            continue;
        };
        if kept.name.starts_with(prefix) && now.unix_us <= kept.ends_us {
            let record = Record { at_us: kept.at_us, value: kept.value.into() };
            page.records.push((LockName::in_store(kept.name.to_owned()), record));
        }
    }
    if start + PAGE < all.len() {
        page.next = part.last().map(|id| Cursor(id.beside()));
    }
    Ok(page)
}

/// Whether a file with this content has expired. An unreadable file has not; the process that requests it
/// reports the damage.
pub(super) fn is_over(bytes: &[u8], now: Now) -> bool {
    decode(bytes).is_some_and(|kept| now.unix_us > kept.ends_us)
}

struct Kept<'a> {
    name: &'a str,
    at_us: u64,
    ends_us: u64,
    value: &'a [u8],
}

fn decode(bytes: &[u8]) -> Option<Kept<'_>> {
    let mut rest = bytes;
    let mut line = || {
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let (line, after) = (&rest[..end], &rest[end + 1..]);
        rest = after;
        std::str::from_utf8(line).ok()
    };
    if line()? != FORMAT {
        return None;
    }
    let at_us = line()?.strip_prefix("at ")?.parse().ok()?;
    let ends_us = line()?.strip_prefix("ends ")?.parse().ok()?;
    let (name, value) = line()?.strip_prefix("bytes ")?.split_once(' ')?;
    let (name, value): (usize, usize) = (name.parse().ok()?, value.parse().ok()?);
    let (name, value_is) = rest.split_at_checked(name)?;
    let value_is = value_is.strip_prefix(b"\n")?;
    let name = std::str::from_utf8(name).ok()?;
    (value_is.len() == value).then_some(Kept { name, at_us, ends_us, value: value_is })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_is_cut_short_is_not_believed() {
        let text = b"tenure record 1\nat 3\nends 7\nbytes 3 2\na\nb\n\xff\n";
        let kept = decode(text).expect("a record");
        assert_eq!((kept.name, kept.at_us, kept.ends_us, kept.value), ("a\nb", 3, 7, &b"\xff\n"[..]));
        for end in 0..text.len() {
            assert!(decode(&text[..end]).is_none(), "{end}");
        }
        let now = |unix_us| Now { ms: 0, unix_us };
        assert!(!is_over(text, now(7)) && is_over(text, now(8)) && !is_over(b"x", now(8)));
    }
}
