//! One lock as a request reads and writes it: its record and as much of its line file as the request needs.
//!
//! The record is written last and states which bytes of the line are valid. Changes made to the line before
//! that are correct on their own: a refreshed or an abandoned ticket.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, pread, pwrite};

use super::bindings::Bindings;
use super::directory::{Directory, Inside, Replaced};
use super::error::{failed, unusable};
use super::line::{LEFT, Span, Standing, name};
use super::names::RecordId;
use super::record::{FULL_BYTES, FileRecord};
use super::system::punch_hole;
use tenure_core::owner::Owner;
use tenure_core::planted::crash_point;
use tenure_core::protocol::queue::Queue;
use tenure_core::protocol::{Data, ExpiringValue};
use tenure_core::store::Failure;

/// Minimum bytes per read of the first waiters, and bytes per read of a whole line.
const FIRST_BYTES: usize = 512;
const MORE_BYTES: usize = 16 << 10;
/// Upper bound on the length of one line.
const PLACE_BYTES: usize = 1 << 10;
/// Above this size, a line file that is mostly abandoned tickets is rewritten. Also the granularity in which
/// space is returned to the file system.
const WASTE_BYTES: u64 = 64 << 10;

/// A lock that was read.
#[derive(Debug)]
pub(super) struct Lock {
    /// Includes the waiters read so far.
    pub(super) record: FileRecord,
    /// The record's encoded bytes.
    text: Vec<u8>,
    line: Option<QueueLine>,
}

/// The line of a queue.
#[derive(Debug)]
struct QueueLine {
    file: Arc<OwnedFd>,
    /// The tickets read so far, in order, without abandoned ones.
    read: Vec<Standing>,
    /// Next byte to read, and the end of the line.
    next: u64,
    end: u64,
}

impl Lock {
    /// Reads the record and none of its line.
    pub(super) fn load(inside: &Inside<'_>, id: RecordId) -> Result<Option<Self>, Failure> {
        Self::open(inside, id, || inside.open_line(id, false))
    }

    fn open(
        directory: &Directory,
        id: RecordId,
        line: impl Fn() -> Result<Arc<OwnedFd>, Errno>,
    ) -> Result<Option<Self>, Failure> {
        let file = id.to_string();
        let Some(text) = directory.read_file(&file)? else { return Ok(None) };
        let record = FileRecord::decode(&text)
            .map_err(|damage| unusable(&directory.path_of(&file), &damage.of_record()))?;
        if RecordId::of(&record.name) != id {
            return Err(directory.misplaced(id, &record));
        }
        let line = match record.span {
            span if span.is_empty() => None,
            Span { from, to, .. } => {
                let file = line().map_err(|errno| match errno {
                    Errno::NOENT => directory.line_damaged(id),
                    errno => failed("open the line", &directory.path_of(&id.line()), errno),
                })?;
                Some(QueueLine { file, read: Vec::new(), next: from, end: to })
            }
        };
        Ok(Some(Self { record, text, line }))
    }

    /// A snapshot of a lock with its whole line, read without the guard.
    pub(super) fn peek_whole(directory: &Directory, id: RecordId) -> Result<Option<FileRecord>, Failure> {
        peeked(|is_last| Self::peek_at(directory, id, is_last, Self::read_all))
    }

    /// A lock with its first two waiters, read without the guard.
    pub(super) fn peek(directory: &Directory, id: RecordId) -> Result<Option<FileRecord>, Failure> {
        let two = |lock: &mut Self, directory: &Directory, id| lock.fill(directory, id, 2, |_| false);
        peeked(|is_last| Self::peek_at(directory, id, is_last, two))
    }

    fn peek_at(
        directory: &Directory,
        id: RecordId,
        is_last: bool,
        read: impl Fn(&mut Self, &Directory, RecordId) -> Result<(), Failure>,
    ) -> Result<Option<FileRecord>, Failure> {
        let line = || directory.open_file(&id.line(), false).map(Arc::new);
        let Some(mut lock) = Self::open(directory, id, line)? else { return Ok(None) };
        if lock.line.is_some() {
            read(&mut lock, directory, id)?;
            // Another process may have written only one of the two files so far. The last attempt accepts
            // what it read.
            if !is_last && directory.read_file(&id.to_string())?.as_ref() != Some(&lock.text) {
                return Err(directory.line_damaged(id));
            }
        }
        Ok(Some(lock.record))
    }

    /// Moves the record out if there is no line, leaving only its span; clones it otherwise.
    pub(super) fn take_or_clone(&mut self) -> FileRecord {
        if self.line.is_some() {
            return self.record.clone();
        }
        let FileRecord { name, boot, bindings, lock, span } = &mut self.record;
        let lock =
            std::mem::replace(lock, ExpiringValue { value: Data::Text(String::new()), expires_ms: None });
        let (boot, bindings) = (std::mem::take(boot), std::mem::take(bindings));
        FileRecord { name: name.clone(), boot, bindings, lock, span: *span }
    }

    /// Whether all waiters were read.
    pub(super) fn is_whole(&self) -> bool {
        self.line.as_ref().is_none_or(|line| line.next == line.end)
    }

    /// Reads on until `least` waiters are known or the line ends. Drops the tickets at the front that
    /// `is_over` rejects.
    pub(super) fn fill(
        &mut self,
        directory: &Directory,
        id: RecordId,
        least: usize,
        mut is_over: impl FnMut(&Standing) -> bool,
    ) -> Result<(), Failure> {
        while !self.is_whole() && self.waiting(least) < least {
            self.read_on(directory, id, FIRST_BYTES.max(least.min(64) * 256), &mut is_over)?;
        }
        Ok(())
    }

    pub(super) fn read_all(&mut self, directory: &Directory, id: RecordId) -> Result<(), Failure> {
        while !self.is_whole() {
            self.read_on(directory, id, MORE_BYTES, &mut |_| false)?;
        }
        Ok(())
    }

    fn waiting(&self, most: usize) -> usize {
        self.queue().map_or(0, |queue| queue.waiting().take(most).count())
    }

    pub(super) fn queue(&self) -> Option<&Queue> {
        match &self.record.lock.value {
            Data::Queue(queue) => Some(queue),
            _ => None,
        }
    }

    fn read_on(
        &mut self,
        directory: &Directory,
        id: RecordId,
        bytes: usize,
        is_over: &mut impl FnMut(&Standing) -> bool,
    ) -> Result<(), Failure> {
        let damaged = || directory.line_damaged(id);
        let Some(line) = &mut self.line else { return Ok(()) };
        let bytes = (bytes as u64).min(line.end - line.next) as usize;
        let read = read_at(&line.file, line.next, bytes)
            .map_err(|errno| failed("read the line", &directory.path_of(&id.line()), errno))?;
        let end = read.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let text = std::str::from_utf8(&read[..end]).ok().filter(|text| !text.is_empty());
        let Some(text) = text else {
            return match bytes < PLACE_BYTES && line.next + (bytes as u64) < line.end {
                true => self.read_on(directory, id, PLACE_BYTES, is_over),
                false => Err(damaged()),
            };
        };
        let Data::Queue(queue) = &mut self.record.lock.value else { return Err(damaged()) };
        for text in text.split_inclusive('\n') {
            let standing = Standing::decode(text, line.next).ok_or_else(damaged)?;
            line.next += text.len() as u64;
            let Some(standing) = standing else { continue };
            let last = queue.tickets().next_back().map_or(queue.mark, |(last, _)| last.max(queue.mark));
            if standing.number <= last || queue.number(&standing.ticket.owner).is_some() {
                return Err(damaged());
            }
            if queue.waiting().next().is_some() || !is_over(&standing) {
                queue.insert(standing.number, standing.ticket.clone());
                self.record.bindings.bind(standing.number, standing.holder);
                let ends = &mut self.record.lock.expires_ms;
                *ends = ends.map(|end| end.max(standing.ticket.deadline_ms));
            }
            line.read.push(standing);
        }
        Ok(())
    }

    /// The ticket at this position, if it belongs to this owner and lies behind the part that was read.
    pub(super) fn standing_at(&self, at: u64, owner: &Owner) -> Option<Standing> {
        let line = self.line.as_ref().filter(|line| (line.next..line.end).contains(&at))?;
        let read = read_at(&line.file, at, PLACE_BYTES.min((line.end - at) as usize)).ok()?;
        let end = read.iter().position(|byte| *byte == b'\n')? + 1;
        let standing = Standing::decode(std::str::from_utf8(&read[..end]).ok()?, at)??;
        (standing.ticket.owner == *owner).then_some(standing)
    }

    /// The first two tickets that were read, including those passed over.
    pub(super) fn first_two(&self) -> [Option<u64>; 2] {
        let mut read = self.line.iter().flat_map(|line| &line.read).map(|standing| standing.number);
        [read.next(), read.next()]
    }

    /// The number of the last ticket in the line, waiting or abandoned, unless it was already read.
    pub(super) fn last_number(&self) -> Option<u64> {
        let line = self.line.as_ref().filter(|line| line.next < line.end)?;
        let bytes = (PLACE_BYTES as u64).min(line.end - line.next);
        let read = read_at(&line.file, line.end - bytes, bytes as usize).ok()?;
        let text = std::str::from_utf8(read.strip_suffix(b"\n")?).ok()?;
        let last = text.rsplit('\n').next()?;
        last.split(' ').nth(1)?.parse().ok()
    }

    /// The lock without its tickets.
    pub(super) fn shell(&self) -> Option<ExpiringValue<Data>> {
        let queue = self.queue()?.without_tickets();
        Some(ExpiringValue { value: Data::Queue(queue), expires_ms: self.record.lock.expires_ms })
    }

    /// The position of this ticket in the file.
    pub(super) fn place_of(&self, number: u64) -> Option<u64> {
        let line = self.line.as_ref()?;
        line.read.iter().find(|standing| standing.number == number).map(|standing| standing.at)
    }

    /// Marks a ticket as abandoned.
    pub(super) fn leave(&self, inside: &Inside<'_>, id: RecordId, place: &Standing) -> Result<(), Failure> {
        self.over(inside, id, place.at, LEFT)
    }

    /// Overwrites a ticket in place.
    pub(super) fn refresh(&self, inside: &Inside<'_>, id: RecordId, place: &Standing) -> Result<(), Failure> {
        self.over(inside, id, place.at, place.encode().as_bytes())
    }

    fn over(&self, inside: &Inside<'_>, id: RecordId, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        let Some(line) = &self.line else { return Ok(()) };
        write_at(&line.file, at, bytes)
            .map_err(|errno| failed("write the line", &inside.path_of(&id.line()), errno))
    }

    /// Whether the unread part of the line names this owner.
    pub(super) fn names_further_back(&self, owner: &Owner) -> bool {
        let Some(line) = self.line.as_ref().filter(|line| line.next < line.end) else { return false };
        // A read error counts as a match; reading the line reports it.
        read_at(&line.file, line.next, (line.end - line.next) as usize)
            .map_or(true, |read| name(&read, owner))
    }
}

/// A read that races with a write can look damaged, but not three times in a row.
fn peeked(look: impl Fn(bool) -> Result<Option<FileRecord>, Failure>) -> Result<Option<FileRecord>, Failure> {
    look(false).or_else(|_| look(false)).or_else(|_| look(true))
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

/// One write, within a page or two, so a killed process leaves the old or the new bytes.
fn write_at(file: &OwnedFd, at: u64, bytes: &[u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes.len() {
        done += pwrite(file, &bytes[done..], at + done as u64)?;
    }
    crash_point();
    Ok(())
}

/// Writes only what a request changed of a lock. Returns the position of a new ticket.
///
/// `may_grow`: the request may enlarge the record, so the size limit applies.
pub(super) fn store(
    inside: &Inside<'_>,
    id: RecordId,
    before: Option<&Lock>,
    mut after: Option<&mut FileRecord>,
    may_grow: bool,
) -> Result<Option<u64>, Failure> {
    let span = before.map_or(Span::default(), |lock| lock.record.span);
    let new = after.as_mut().map(|after| write_line(inside, id, before, after)).transpose()?.flatten();
    let text = after.as_ref().map(|after| after.encode());
    if may_grow && text.as_ref().is_some_and(|text| text.len() > FULL_BYTES) {
        return Err(inside.full(id));
    }
    match (before, &text) {
        (None, None) => {}
        (Some(before), Some(text)) if text.as_bytes() == before.text => {}
        (Some(_), Some(text)) => inside.write(id, text, Replaced::Record)?,
        (None, Some(text)) => inside.write(id, text, Replaced::Nothing)?,
        (Some(_), None) => {
            inside.remove(id)?;
            if span.has_file() {
                inside.remove_file(&id.line())?;
            }
        }
    }
    if let Some(after) = after {
        give_back(inside, id, span.from, after.span);
    }
    Ok(new)
}

/// Updates the line file to match the record, and sets the record's span.
fn write_line(
    inside: &Inside<'_>,
    id: RecordId,
    before: Option<&Lock>,
    after: &mut FileRecord,
) -> Result<Option<u64>, Failure> {
    let FileRecord { lock: ExpiringValue { value: Data::Queue(queue), .. }, bindings, span, .. } = after
    else {
        return Ok(None);
    };
    if let Some(lock) = before {
        write_read(inside, id, lock, queue, bindings, span)?;
    }
    let read = before.and_then(|lock| lock.line.as_ref()).map_or(&[][..], |line| &line.read);
    let last = read.last().map_or(queue.mark, |standing| standing.number.max(queue.mark));
    let Some((number, ticket)) = queue.tickets().next_back().filter(|(number, _)| *number > last) else {
        return Ok(None);
    };
    if span.is_empty() {
        (span.from, span.to, span.count) = (0, 0, 0);
    }
    let new = Standing { at: span.to, number, ticket: ticket.clone(), holder: bindings.holder_of(number) };
    append(inside, id, span, new).map(Some)
}

/// Writes the changes of the tickets that were read.
fn write_read(
    inside: &Inside<'_>,
    id: RecordId,
    lock: &Lock,
    queue: &Queue,
    bindings: &Bindings,
    span: &mut Span,
) -> Result<(), Failure> {
    let Some(line) = &lock.line else { return Ok(()) };
    let mut first = line.next;
    for standing in line.read.iter().rev() {
        let number = standing.number;
        let Some(ticket) = queue.ticket(number).filter(|_| number > queue.mark) else {
            span.count = span.count.saturating_sub(1);
            continue;
        };
        first = standing.at;
        let now = Standing { ticket: ticket.clone(), holder: bindings.holder_of(number), ..standing.clone() };
        if now != *standing {
            lock.refresh(inside, id, &now)?;
        }
    }
    // Tickets before the first one hold by now or are gone, and the span excludes them. Those behind it are
    // marked one by one.
    span.from = first;
    if span.is_empty() {
        // The count was off: a process marked a ticket and was killed before it updated the record.
        span.count = 0;
    }
    let is_gone = |standing: &&Standing| standing.at > first && queue.ticket(standing.number).is_none();
    line.read.iter().filter(is_gone).try_for_each(|standing| lock.leave(inside, id, standing))
}

/// Appends a ticket and returns its position. The record does not cover it yet.
fn append(inside: &Inside<'_>, id: RecordId, span: &mut Span, mut new: Standing) -> Result<u64, Failure> {
    let path = || inside.path_of(&id.line());
    let broken = |errno| failed("write the line", &path(), errno);
    let file = inside.open_line(id, true).map_err(broken)?;
    if fstat(&file).is_ok_and(|stat| !FileType::from_raw_mode(stat.st_mode).is_file()) {
        return Err(unusable(&path(), "is not a regular file: remove it"));
    }
    let text = new.encode();
    let is_wasted = (span.count + 1) * text.len() as u64 * 2 < span.bytes();
    if span.bytes() > WASTE_BYTES && is_wasted {
        // Rewrite the waiting tickets behind the current end, so that the switch to them is atomic.
        let old = read_at(&file, span.from, span.bytes() as usize).map_err(broken)?;
        let waits = |line: &&[u8]| !line.starts_with(LEFT);
        let kept: Vec<&[u8]> = old.split_inclusive(|byte| *byte == b'\n').filter(waits).collect();
        let (count, kept) = (kept.len() as u64, kept.concat());
        write_at(&file, span.to, &kept).map_err(broken)?;
        *span = Span { from: span.to, to: span.to + kept.len() as u64, count };
        new.at = span.to;
    }
    if span.bytes() + text.len() as u64 > FULL_BYTES as u64 {
        return Err(inside.full(id));
    }
    write_at(&file, span.to, text.as_bytes()).map_err(broken)?;
    (span.to, span.count) = (span.to + text.len() as u64, span.count + 1);
    Ok(new.at)
}

/// Punches a hole over bytes that are no longer valid, where the file system supports it.
fn give_back(inside: &Inside<'_>, id: RecordId, before: u64, span: Span) {
    let unused = span.from / WASTE_BYTES * WASTE_BYTES;
    if unused > 0 && before / WASTE_BYTES != span.from / WASTE_BYTES {
        let _ = inside.open_line(id, false).map(|file| punch_hole(&file, unused));
    }
}
