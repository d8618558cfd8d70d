//! Reads the state of locks without a request: looks and listings.

use super::directory::Directory;
use super::holders::HolderFiles;
use super::lock::Lock;
use super::names::{HolderId, RecordId};
use super::record::FileRecord;
use super::waits;
use tenure_core::events::{event, text};
use tenure_core::protocol::{self, Data, Notification, Now, State, parse_value};
use tenure_core::store::{Cursor, Failure, Page, SETUP};

/// Records per page of a listing.
const PAGE: usize = 1_000;

/// The first two tickets in the queue. Their processes watch for crashes: the first watches the holders, the
/// second the first.
pub(super) fn front(data: &Data) -> [Option<u64>; 2] {
    let Data::Queue(queue) = data else { return [None; 2] };
    let mut waiting = queue.waiting().map(|(number, _)| number);
    [waiting.next(), waiting.next()]
}

/// The holders this process must watch, if its own ticket is one of the first two.
pub(super) fn ahead_of_mine(record: &FileRecord, holders: &HolderFiles) -> Option<Vec<HolderId>> {
    let holder_of = |number: Option<u64>| number.and_then(|number| record.bindings.holder_of(number));
    let [first, second] = front(&record.lock.value).map(holder_of);
    let is_mine = |holder: Option<HolderId>| holder.is_some_and(|holder| holders.is_mine(holder));
    let mut ahead: Vec<HolderId> = match &record.lock.value {
        Data::Queue(queue) if is_mine(first) => {
            queue.holding().filter_map(|number| record.bindings.holder_of(number)).collect()
        }
        Data::Queue(_) if is_mine(second) => first.into_iter().collect(),
        _ => return None,
    };
    ahead.sort_unstable();
    ahead.dedup();
    Some(ahead)
}

/// The notification for the listeners of a lock whose record was changed, by any process.
pub(super) fn changed(directory: &Directory, now: Now, id: RecordId) -> Option<Notification> {
    match Lock::peek(directory, id) {
        Ok(record) => news(record.as_ref(), now),
        // The file may have been reused during the read; the next look decides.
        Err(_) => None,
    }
}

/// Whether no holder of this process has the lock any more. A hold bound only to its lease gives no
/// information.
pub(super) fn holds_no_more(directory: &Directory, holders: &HolderFiles, id: RecordId) -> bool {
    match Lock::peek(directory, id) {
        Ok(Some(record)) => {
            let mut bound = record.bindings.iter().map(|(_, holder)| holder).peekable();
            bound.peek().is_some() && !bound.any(|holder| holders.is_mine(holder))
        }
        Ok(None) => true,
        Err(_) => false,
    }
}

/// Result of a look at a lock.
pub(super) struct Looked {
    /// The notification for its listeners.
    pub(super) wake: Option<Notification>,
    /// The holders ahead of this process's ticket, if it is one of the first two; this process must detect
    /// their crashes itself.
    pub(super) ahead: Option<Vec<HolderId>>,
}

/// Looks at a lock. If processes wait for it, only those ahead of this process's ticket are tested, and only
/// if it is one of the first two; the other waiters are told when they get there.
pub(super) fn looked(directory: &Directory, holders: &HolderFiles, now: Now, id: RecordId) -> Looked {
    let (mut before, mut is_out) = (None, false);
    if holders.asks(id) {
        match waits::seen(directory, holders, id) {
            // It was woken. If the lock is busy again, it has to rejoin the list.
            waits::CallState::NotThere if holders.has_come_in(id) => {
                return Looked { wake: Some(Notification::Free { by: None }), ahead: None };
            }
            waits::CallState::NotThere => {
                is_out = holders.of_process().is_some() && !holders.cannot_be_called()
            }
            waits::CallState::InLine(others) => before = Some(others),
        }
    }
    let Ok(Some(record)) = Lock::peek(directory, id) else {
        // The record is gone, or unreadable, which the next request reports.
        return Looked { wake: Some(Notification::Free { by: None }), ahead: None };
    };
    let by = match &record.lock.value {
        Data::Text(value) => parse_value(value).map(|(owner, _)| owner),
        _ => None,
    };
    if front(&record.lock.value)[0].is_some() {
        let ahead = ahead_of_mine(&record, holders);
        let crashed = |ahead: &Vec<HolderId>| ahead.iter().any(|holder| holders.is_dead(directory, *holder));
        let wake = match ahead.as_ref().is_some_and(crashed) {
            true => Some(Notification::Reconnected),
            false => news(Some(&record), now),
        };
        return Looked { wake, ahead };
    }
    // Another task of this process had the lock, and the waiting task joins the list when it retries.
    if is_out && !record.bindings.iter().any(|(_, holder)| holders.is_mine(holder)) {
        return Looked { wake: Some(Notification::Free { by: None }), ahead: None };
    }
    let ahead = before.and_then(|before| waits::ahead(&record, holders, &before));
    let wake = match news(holders.living(directory, record).unwrap_or(None).as_ref(), now) {
        Some(Notification::Free { .. }) => Some(Notification::Free { by }),
        wake => wake,
    };
    Looked { wake, ahead }
}

/// The notification that a record amounts to.
fn news(record: Option<&FileRecord>, now: Now) -> Option<Notification> {
    match record.filter(|record| !record.is_over(now)).map(|record| &record.lock.value) {
        None => Some(Notification::Free { by: None }),
        // A ticket was removed; the first process to send a request grants the next.
        Some(Data::Queue(queue)) if queue.is_due() => Some(Notification::Reconnected),
        Some(Data::Queue(queue)) => Some(Notification::Granted { tickets: queue.holding().collect() }),
        Some(_) => None,
    }
}

/// A page of the listing, in file order.
pub(super) fn page(directory: &Directory, now: Now, prefix: &str, from: &Cursor) -> Result<Page, Failure> {
    let records = directory.entries()?.records;
    let start = match from.0.parse::<RecordId>() {
        Ok(from) => records.partition_point(|id| *id <= from),
        Err(()) => 0,
    };
    let part = &records[start..records.len().min(start + PAGE)];
    let mut page = Page::default();
    for id in part {
        let record = match Lock::peek(directory, *id) {
            Ok(Some(record)) => record,
            // Removed since the directory was read.
            Ok(None) => continue,
            Err(failure) => {
                // List the other locks anyway.
                event!(WARN, target: SETUP, "lock_not_listed", "lock not listed", failure = text(failure));
                continue;
            }
        };
        if !record.name.as_str().starts_with(prefix) {
            continue;
        }
        let Some(record) = HolderFiles::default().living(directory, record)? else { continue };
        let state = State { lock: Some(record.lock), ballot: None };
        page.locks.extend(protocol::found(&state, now).map(|found| (record.name, found)));
    }
    if start + PAGE < records.len() {
        page.next = part.last().map(|id| Cursor(id.to_string()));
    }
    Ok(page)
}
