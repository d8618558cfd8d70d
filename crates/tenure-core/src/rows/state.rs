//! Converts between a lock's row and its machine's state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::names::LockKey;
use super::server::Row;
use super::sessions::{EndedSessions, mark};
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::codec::{self, VERSION};
use crate::protocol::queue::{Queue, Ticket};
use crate::protocol::record::Record;
use crate::protocol::{Data, ExpiringValue, Found, Kind, Notification, Now, State, found};
use crate::store::Failure;

/// Maximum time between the read and the write of a row; a later write is rejected and the row read again.
/// The machine does not depend on this limit. It is generous, so that an overloaded server gets no additional
/// load from rejected writes.
const LATE_MS: u64 = 10_000;
/// Delay before a request is repeated that found an expired hold checked in by an open transaction.
pub(super) const CHECKED_IN_MS: u64 = 100;
/// Maximum tickets in one message.
const TICKETS: usize = 200;

/// A row as it was read.
#[derive(Clone, Debug)]
pub(super) struct SeenRow {
    pub(super) state: State,
    pub(super) record: Option<ExpiringValue<Record>>,
    /// The lock's last token.
    pub(super) counter: u64,
    /// `None` without a row.
    pub(super) serial: Option<i64>,
    pub(super) now: Now,
    /// The owners of waiting tickets that were removed because their session has ended.
    pub(super) passed: Vec<Owner>,
}

impl SeenRow {
    /// Decodes a row. Marks the waiters whose session has ended.
    pub(super) fn of(row: &Row, ended: &EndedSessions) -> Result<Self, Failure> {
        let record = record(row);
        let (lock, counter, now) = (lock(row)?, unsigned(row.fence), now(row.clock_us));
        let mut state = State { lock, ballot: None };
        let passed = mark(&mut state, ended);
        Ok(Self { state, record, counter, serial: row.serial, now, passed })
    }

    /// Until when the machine would decide the same: until something live expires, before or after the
    /// decision.
    pub(super) fn is_steady_until(&self, after: &State) -> u64 {
        let ends =
            [&self.state, after].into_iter().flat_map(|state| &state.lock).flat_map(|lock| {
                match &lock.value {
                    Data::Queue(queue) => queue.tickets().map(|(_, ticket)| ticket.deadline_ms).collect(),
                    _ => Vec::from_iter(lock.expires_ms),
                }
            });
        let ends = ends.chain(self.record.as_ref().and_then(|record| record.expires_ms));
        let last = self.now.ms.saturating_add(LATE_MS);
        ends.filter(|end| *end >= self.now.ms).fold(last, u64::min)
    }

    /// Whether the new state has a hold that did not exist.
    pub(super) fn grants(&self, after: &State) -> bool {
        !holds(after).is_subset(&holds(&self.state))
    }

    /// Whether the new state ends a hold that may be checked in: another client's, or the last of those that
    /// existed, even if the next ones are granted. Or it lets others in beside the only one.
    pub(super) fn ends_hold(&self, after: &State, asking: &BTreeSet<&Owner>) -> bool {
        let (weights, left) = (weights(&self.state), weights(after));
        let is_less = |(number, weight)| left.get(number).is_some_and(|left| left < weight);
        if weights.len() == 1 && weights.iter().any(is_less) {
            return true;
        }
        let (before, after) = (holds(&self.state), holds(after));
        let mut ended = before.difference(&after).peekable();
        if ended.peek().is_none() {
            return false;
        }
        let is_last = match planted(Bug::RowsHandOverUnseen) {
            true => after.is_empty(),
            false => before.is_disjoint(&after),
        };
        is_last || ended.any(|(owner, _)| !asking.iter().any(|asks| asks.as_str() == *owner))
    }

    /// The state with the expired holds extended a little, because an open transaction has checked them in.
    pub(super) fn spared(&self) -> State {
        let mut state = self.state.clone();
        let (now, until) = (self.now.ms, self.now.ms.saturating_add(CHECKED_IN_MS));
        let Some(lock) = &mut state.lock else { return state };
        if let Data::Queue(queue) = &lock.value {
            let spare = |number, end| if number <= queue.mark && end < now { until } else { end };
            lock.value = Data::Queue(with_ends(queue, spare));
        }
        lock.expires_ms = lock.expires_ms.map(|end| if end < now { until } else { end });
        state
    }

    /// Undoes [`spared`](Self::spared) for all but the requesting owners, whose answers must match what is
    /// written.
    pub(super) fn unspared(&self, mut after: State, extending: &BTreeSet<&str>) -> State {
        if let (Some(before), Some(lock)) = (&self.state.lock, &mut after.lock) {
            match (&before.value, &lock.value) {
                (Data::Queue(old), Data::Queue(new)) => {
                    let lapsed = old.tickets().filter(|(_, ticket)| {
                        ticket.deadline_ms < self.now.ms && !extending.contains(ticket.owner.as_str())
                    });
                    let lapsed: BTreeMap<u64, u64> =
                        lapsed.map(|(number, ticket)| (number, ticket.deadline_ms)).collect();
                    let unspare = |number, end| lapsed.get(&number).copied().unwrap_or(end);
                    lock.value = Data::Queue(with_ends(new, unspare));
                }
                (old, new)
                    if old == new
                        && !holds(&self.state).iter().any(|(owner, _)| extending.contains(owner)) =>
                {
                    lock.expires_ms = before.expires_ms;
                }
                _ => {}
            }
        }
        after
    }
}

fn with_ends(queue: &Queue, end: impl Fn(u64, u64) -> u64) -> Queue {
    let mut changed = queue.without_tickets();
    for (number, ticket) in queue.tickets() {
        let deadline_ms = end(number, ticket.deadline_ms);
        changed.insert(number, Ticket { deadline_ms, ..ticket.clone() });
    }
    changed
}

/// The weight of each hold of a queue, by its number.
fn weights(state: &State) -> BTreeMap<u64, u32> {
    match state.lock.as_ref().map(|lock| &lock.value) {
        Some(Data::Queue(queue)) => {
            queue.admitted().map(|(number, ticket)| (number, ticket.weight)).collect()
        }
        _ => BTreeMap::new(),
    }
}

/// Each hold: its owner, and its number if it has one.
fn holds(state: &State) -> BTreeSet<(&str, u64)> {
    match state.lock.as_ref().map(|lock| &lock.value) {
        None => BTreeSet::new(),
        Some(Data::Text(value)) => {
            let (owner, fence) = value.rsplit_once('#').unwrap_or((value, ""));
            BTreeSet::from([(owner, fence.parse().unwrap_or(0))])
        }
        // All holds of one owner count as one.
        Some(Data::Hash(hash)) => {
            hash.keys().filter(|field| !field.starts_with('#')).map(|owner| (owner.as_str(), 0)).collect()
        }
        Some(Data::Queue(queue)) => {
            queue.admitted().map(|(number, ticket)| (ticket.owner.as_str(), number)).collect()
        }
    }
}

/// Decodes a lock's columns.
fn lock(row: &Row) -> Result<Option<ExpiringValue<Data>>, Failure> {
    let Some(version) = &row.version else { return Ok(None) };
    if version != VERSION {
        let text =
            format!("its row was written in version {version}, and this program reads version {VERSION}");
        return Err(Failure::Refused(Failure::cause(text)));
    }
    let (Some(kind), Some(value)) = (&row.kind, &row.value) else { return Ok(None) };
    let data = kind.parse::<Kind>().ok().and_then(|kind| codec::decode(kind, value));
    let data = data.ok_or_else(|| {
        Failure::Refused(Failure::cause(format!("cannot read its row as a {kind}: another program wrote it")))
    })?;
    Ok(Some(ExpiringValue { value: data, expires_ms: Some(unsigned(row.ends_ms.unwrap_or(0))) }))
}

/// Decodes a record's columns.
pub(super) fn record(row: &Row) -> Option<ExpiringValue<Record>> {
    let columns = row.record.as_ref()?;
    let value = Record { at_us: unsigned(columns.at_us), value: Arc::from(&*columns.bytes) };
    Some(ExpiringValue { value, expires_ms: columns.ends_ms.map(unsigned) })
}

/// What a waiter has to know of a row.
#[derive(PartialEq, Eq)]
pub(super) enum RowSight {
    /// The value, if there is a lock, and the last token.
    Value(Option<String>, i64),
    /// The holders of a queue: their tickets and weights.
    Holders(Vec<(u64, u32)>),
}

impl RowSight {
    pub(super) fn of(row: &Row) -> Self {
        match lock(row).ok().flatten().map(|lock| lock.value) {
            Some(Data::Queue(queue)) => {
                let holders = queue.admitted();
                Self::Holders(holders.map(|(number, ticket)| (number, ticket.weight)).collect())
            }
            _ => Self::Value(row.value.clone(), row.fence),
        }
    }

    /// What to tell waiters of a change.
    pub(super) fn wake(&self) -> Notification {
        match self {
            Self::Value(..) => Notification::Reconnected,
            Self::Holders(holders) => {
                Notification::Granted { tickets: holders.iter().map(|(number, _)| *number).collect() }
            }
        }
    }
}

/// A row as shown in a listing.
pub(super) fn listed(row: &Row) -> Option<Found> {
    found(&State { lock: lock(row).ok()?, ballot: None }, now(row.clock_us))
}

fn now(us: i64) -> Now {
    Now { ms: unsigned(us) / 1_000, unix_us: unsigned(us) }
}

/// A number of a column; negative ones read as zero.
#[must_use]
pub fn unsigned(number: i64) -> u64 {
    number.try_into().unwrap_or(0)
}

/// A number for a column.
#[must_use]
pub fn signed(number: u64) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// A notification as messages without newlines. The prefix `!` marks those that are sent even if the row is
/// not marked as having listeners.
pub(super) fn messages(key: &LockKey, wake: &Notification) -> Vec<String> {
    let name = &key.name;
    let with = |mark: char, text: &str| format!("{mark}{} {} {text}", name.len(), name.replace('\n', "\\n"));
    match wake {
        Notification::Granted { tickets } => {
            let parts = tickets.chunks(TICKETS).map(|part| {
                let numbers: Vec<_> = part.iter().map(u64::to_string).collect();
                with('!', &numbers.join(","))
            });
            parts.collect()
        }
        Notification::First { ticket } => vec![with('?', &ticket.to_string())],
        Notification::Free { by } => vec![with('.', by.as_ref().map_or("", Owner::as_str))],
        Notification::Reconnected => Vec::new(),
    }
}

/// Parses a message: the lock and the notification.
pub(super) fn heard(message: &str) -> Option<(String, Notification)> {
    let (len, rest) = message.get(1..)?.split_once(' ')?;
    let len: usize = len.parse().ok()?;
    let mut name = String::with_capacity(len);
    let mut rest = rest;
    while name.len() < len {
        match rest.strip_prefix("\\n") {
            // Backslashes in names are doubled, so this is an escaped newline.
            Some(after) => {
                name.push('\n');
                rest = after;
            }
            None => {
                let taken = if rest.starts_with("\\\\") { 2 } else { rest.chars().next()?.len_utf8() };
                name.push_str(rest.get(..taken)?);
                rest = &rest[taken..];
            }
        }
    }
    let text = rest.strip_prefix(' ')?;
    let wake = match message.as_bytes()[0] {
        b'!' => Notification::Granted { tickets: text.split(',').map(codec::number).collect::<Option<_>>()? },
        b'?' => Notification::First { ticket: codec::number(text)? },
        _ => Notification::Free { by: text.parse().ok() },
    };
    Some((name, wake))
}
