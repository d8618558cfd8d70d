//! The stored text of a lock, and its conversion to the state of its machine.
//!
//! ```text
//! tenure 1 KIND LAST          the version, the kind's letter, the last number that was given
//! SESSION:TTL SESSION:TTL:d   the sessions, with the ttls of holds in milliseconds; `d`: of a detached hold
//! 5=0 6=0 9=1                 which hold or place is bound to which of them
//! ...                         what the machine keeps, as `protocol::codec` writes it
//! ```
//!
//! LAST is followed by the parts of a long queue: see `parts`.
//!
//! Numbers are relative to the creation of the key, whose revision is not known before it is written. Clients
//! add that revision, so tokens increase even if the key was deleted in between. Deadlines are not stored: a
//! hold ends when its session does, or when its own client removes it.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::backend::{Session, Stamp, Stored};
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::codec::{self, number, word};
use crate::protocol::queue::{Queue, Ticket};
use crate::protocol::{Data, ExpiringValue, Kind, State, parse_value};

/// The letter of each kind.
const KINDS: [(Kind, &str); 5] = [
    (Kind::Mutex, "m"),
    (Kind::Reentrant, "r"),
    (Kind::Fair, "f"),
    (Kind::RwLock, "w"),
    (Kind::Semaphore, "s"),
];

/// Fields of a reentrant mutex besides its owner and holds.
const FENCE: &str = "#fence";
const DETACHED: &str = "#0";

/// The session that a hold or place is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Binding {
    pub(super) session: Session,
    /// How long it lasts without a renewal.
    pub(super) ttl_ms: u64,
    /// The hold is detached: it has a session of its own, which no process keeps alive.
    pub(super) is_detached: bool,
}

/// One lock as stored, without parts of its queue that were not read. Its deadlines are meaningless.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LockSnapshot {
    pub(super) data: Option<Data>,
    /// Keyed by the number of the hold or place.
    pub(super) bindings: BTreeMap<u64, Binding>,
    /// The last number assigned.
    pub(super) last: u64,
    /// The parts of a long queue that are not in the lock's own value.
    pub(super) parts: Vec<QueuePart>,
}

/// A part of a queue, as listed in the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuePart {
    /// The lowest number in it; its places range up to the next part.
    pub(super) first: u64,
    pub(super) serial: u64,
    /// Number of places in it.
    pub(super) count: u64,
    /// Its places are included in the snapshot.
    pub(super) is_read: bool,
    /// The lock lists it but it does not exist, because it was deleted by hand.
    pub(super) is_missing: bool,
}

impl QueuePart {
    pub(super) fn read(text: &str, base: u64) -> Option<Self> {
        let (first, rest) = text.split_once(':')?;
        let (serial, count) = rest.split_once(':')?;
        let first = number::<u64>(first)?.checked_add(base)?;
        let (serial, count) = (number(serial)?, number(count)?);
        Some(Self { first, serial, count, is_read: false, is_missing: false })
    }

    /// The entry in the lock's first line.
    pub(super) fn word(&self, base: u64) -> String {
        format!("{}:{}:{}", self.first.saturating_sub(base), self.serial, self.count)
    }

    /// Its number on the server.
    pub(super) fn id(&self, base: u64) -> u64 {
        self.first.saturating_sub(base)
    }
}

/// The content of a lock, or of a part of its queue, after the first line.
pub(super) struct Body {
    pub(super) data: Data,
    pub(super) bindings: BTreeMap<u64, Binding>,
}

impl Body {
    /// Parses a text. Returns the rest of the first line after the kind, and the content. `decode` is a
    /// function of the codec.
    pub(super) fn read(
        text: &str,
        base: u64,
        decode: impl Fn(Kind, &str) -> Option<Data>,
    ) -> Option<(&str, Self)> {
        let (mut head, rest) = text.split_once('\n')?;
        let (sessions, rest) = rest.split_once('\n')?;
        let (bound, text) = rest.split_once('\n')?;
        (word(&mut head)? == "tenure" && word(&mut head)? == codec::VERSION).then_some(())?;
        let letter = word(&mut head)?;
        let kind = KINDS.iter().find(|(_, known)| *known == letter)?.0;
        let sessions: Option<Vec<Binding>> = words(sessions).map(binding).collect();
        let sessions = sessions?;
        let data = shifted(decode(kind, text)?, |number| number.checked_add(base))?;
        let mut bindings = BTreeMap::new();
        for pair in words(bound) {
            let (bound, at) = pair.split_once('=')?;
            let bound: u64 = number(bound)?;
            let bound = if kind == Kind::Reentrant { bound } else { bound.checked_add(base)? };
            bindings.insert(bound, *sessions.get(number::<usize>(at)?)?);
        }
        let entries = entries(&data);
        let is_bound = |(bound, _, _): &(u64, Owner, u64)| bindings.contains_key(bound);
        let is_exact = entries.iter().all(is_bound) && entries.len() == bindings.len();
        is_exact.then_some((head, Self { data, bindings }))
    }

    /// Formats the text with numbers relative to `base`; `head` completes the first line.
    pub(super) fn text(self, base: u64, head: &str) -> Option<String> {
        let Self { data, bindings } = self;
        let kind = codec::kind(&data);
        let letter = KINDS.iter().find(|(known, _)| *known == kind)?.1;
        let data = shifted(data, |number| Some(number.saturating_sub(base)))?;
        let mut sessions: Vec<Binding> = Vec::new();
        let mut at = BTreeMap::new();
        let mut bound = String::new();
        for (number, binding) in &bindings {
            let at = *at.entry(binding.session).or_insert_with(|| {
                sessions.push(*binding);
                sessions.len() - 1
            });
            let number = if kind == Kind::Reentrant { *number } else { number.saturating_sub(base) };
            let _ = write!(bound, "{}{number}={at}", if bound.is_empty() { "" } else { " " });
        }
        let session = |binding: &Binding| {
            let mark = if binding.is_detached { ":d" } else { "" };
            format!("{:x}:{}{mark}", binding.session, binding.ttl_ms)
        };
        let sessions: Vec<String> = sessions.iter().map(session).collect();
        let head = format!("tenure {} {letter} {head}", codec::VERSION);
        Some(format!("{head}\n{}\n{bound}\n{}", sessions.join(" "), codec::encode(&data)))
    }
}

impl LockSnapshot {
    /// Parses the stored value; `None` if it is not a lock of this version.
    pub(super) fn read(stored: Option<&Stored>) -> Option<Self> {
        let Some(stored) = stored else { return Some(Self::default()) };
        let base = stored.stamp.base;
        let (head, Body { data, bindings }) = Body::read(&stored.text, base, codec::decode_part)?;
        let mut head = words(head);
        let last = number::<u64>(head.next()?)?.checked_add(base)?;
        let parts: Option<Vec<QueuePart>> = head.map(|part| QueuePart::read(part, base)).collect();
        let parts = parts?;
        let is_queue = matches!(data, Data::Queue(_)) || parts.is_empty();
        let is_sorted = parts.is_sorted_by(|a, b| a.first < b.first);
        let only_counts = matches!(&data, Data::Queue(queue) if !queue.is_set && bindings.is_empty());
        let is_whole = is_queue && is_sorted && (parts.is_empty() || !only_counts);
        let data = Some(data).filter(|_| !only_counts);
        is_whole.then_some(Self { data, bindings, last, parts })
    }

    /// A free lock keeps its key, as an empty queue, while its numbers are ahead of its versions, because one
    /// change numbered several owners. The tokens of a new key, which count from its creation, would be smaller.
    pub(super) fn keeping_count(mut self, stamp: Stamp) -> Self {
        if self.data.is_none() && self.last > stamp.version + 1 && !planted(Bug::CasCountForgotten) {
            self.data = Some(Data::Queue(Queue::new(Kind::Fair, 1)));
        }
        self
    }

    /// Each hold and place: its number, its owner, and the hold number in its client's table.
    pub(super) fn entries(&self) -> Vec<(u64, Owner, u64)> {
        self.data.as_ref().map(entries).unwrap_or_default()
    }

    /// Whether this is the number of a place that waits.
    pub(super) fn waits(&self, number: u64) -> bool {
        matches!(&self.data, Some(Data::Queue(queue)) if number > queue.mark)
    }

    /// Whether the place with this number waits, or is in a part that was not read.
    pub(super) fn may_wait(&self, number: u64) -> bool {
        let Some(Data::Queue(queue)) = &self.data else { return false };
        let is_unread = || self.part_of(number).is_some_and(|at| !self.parts[at].is_read);
        number > queue.mark && (queue.ticket(number).is_some() || is_unread())
    }

    /// The state for the machine. `ends` has the end of each hold and place that has not expired.
    pub(super) fn state(&self, ends: &BTreeMap<u64, u64>) -> State {
        let end = |number: u64| ends.get(&number).copied();
        let lock = match self.data.clone() {
            None => None,
            Some(Data::Text(value)) => {
                let number = parse_value(&value).map(|(_, token)| token);
                number
                    .and_then(end)
                    .map(|end| ExpiringValue { value: Data::Text(value), expires_ms: Some(end) })
            }
            Some(Data::Hash(mut hash)) => {
                let mut last = None;
                for (hold, owner, _) in self.entries() {
                    match end(hold) {
                        Some(end) => last = last.max(Some(end)),
                        None => end_hold(&mut hash, &owner, hold),
                    }
                }
                last.map(|last| ExpiringValue { value: Data::Hash(hash), expires_ms: Some(last) })
            }
            Some(Data::Queue(queue)) => {
                // All that have expired go at once: the machine sweeps only some for each request.
                let tickets = queue.tickets().filter_map(|(number, ticket)| {
                    Some((number, Ticket { deadline_ms: end(number)?, ..ticket.clone() }))
                });
                let queue = rebuilt(&queue, queue.mark, tickets);
                // A capacity that was set explicitly is kept until it is set again.
                let last = if queue.is_set { Some(u64::MAX) } else { ends.values().max().copied() };
                last.map(|last| ExpiringValue { value: Data::Queue(queue), expires_ms: Some(last) })
            }
        };
        State { lock, ballot: None }
    }

    /// The snapshot after a request.
    pub(super) fn after(&self, state: State, last: u64, bind: &BTreeMap<u64, Binding>) -> Self {
        let data = state.lock.map(|lock| lock.value);
        let mut after = Self { data, bindings: BTreeMap::new(), last, parts: self.parts.clone() };
        for (number, _, _) in after.entries() {
            let before = self.bindings.get(&number).copied();
            let bound = bind.get(&number).copied();
            let bound = bound.filter(|bound| before.is_none_or(|before| before.session != bound.session));
            if let Some(binding) = bound.or(before) {
                after.bindings.insert(number, binding);
            }
        }
        after
    }
}

/// A hold or place of a lock.
#[cfg(tenure_planted)]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BoundEntry {
    /// The number of the hold or place; for a reentrant mutex, the number of the hold.
    pub number: u64,
    /// Its owner.
    pub owner: Owner,
    /// The session that it is bound to.
    pub session: Session,
}

/// The holds and places of a lock, and its state, for the oracle of the simulation. `part` reads parts of its
/// queue; `end` returns the end of a session in milliseconds.
#[cfg(tenure_planted)]
pub fn whole_lock<'a>(
    stored: &Stored,
    part: impl Fn(u64) -> Option<&'a str>,
    end: impl Fn(Session) -> Option<u64>,
) -> Option<(Vec<BoundEntry>, Option<ExpiringValue<Data>>)> {
    let (mut snapshot, base) = (LockSnapshot::read(Some(stored))?, stored.stamp.base);
    for at in 0..snapshot.parts.len() {
        let text = part(snapshot.parts[at].id(base));
        if !snapshot.add(at, text, base) {
            snapshot.miss(at, text.is_some());
        }
    }
    let ends: BTreeMap<u64, u64> = snapshot
        .bindings
        .iter()
        .filter_map(|(number, binding)| Some((*number, end(binding.session)?)))
        .collect();
    let bound = snapshot.entries().into_iter().filter_map(|(number, owner, _)| {
        let session = snapshot.bindings.get(&number)?.session;
        Some(BoundEntry { number, owner, session })
    });
    let bound = bound.collect();
    Some((bound, snapshot.state(&ends).lock))
}

/// Each hold and place: its number, its owner, and the hold number in its client's table.
fn entries(data: &Data) -> Vec<(u64, Owner, u64)> {
    match data {
        Data::Text(value) => parse_value(value).into_iter().map(|(owner, token)| (token, owner, 0)).collect(),
        Data::Hash(hash) => {
            let owner = hash.keys().find(|field| !field.starts_with('#'));
            let Some(owner) = owner.and_then(|owner| owner.parse::<Owner>().ok()) else {
                return Vec::new();
            };
            let holds = hash.keys().filter(|field| *field != FENCE);
            let holds = holds.filter_map(|field| u64::from_str_radix(field.strip_prefix('#')?, 16).ok());
            holds.map(|hold| (hold, owner.clone(), hold)).collect()
        }
        Data::Queue(queue) => {
            queue.tickets().map(|(number, ticket)| (number, ticket.owner.clone(), 0)).collect()
        }
    }
}

/// Ends one hold of a reentrant mutex. Detached holds all end together.
fn end_hold(hash: &mut BTreeMap<String, String>, owner: &Owner, hold: u64) {
    let field = format!("#{hold:x}");
    let held: u64 = hash.remove(&field).and_then(|count| count.parse().ok()).unwrap_or(0);
    if let Some(count) = hash.get_mut(owner.as_str()) {
        let left = count.parse::<u64>().unwrap_or(0).saturating_sub(held);
        *count = left.to_string();
    }
    debug_assert!(field != DETACHED || held > 0, "a detached hold is counted");
}

/// The words of a line; none if it is empty.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(' ').filter(|_| !line.is_empty())
}

fn binding(text: &str) -> Option<Binding> {
    let (text, is_detached) = match text.strip_suffix(":d") {
        Some(text) => (text, true),
        None => (text, false),
    };
    let (session, ttl_ms) = text.split_once(':')?;
    let parsed = u64::from_str_radix(session, 16).ok()?;
    (format!("{parsed:x}") == session).then_some(())?;
    Some(Binding { session: parsed, ttl_ms: number(ttl_ms)?, is_detached })
}

/// Maps the numbers of a value.
fn shifted(data: Data, to: impl Fn(u64) -> Option<u64>) -> Option<Data> {
    Some(match data {
        Data::Text(value) => {
            let (owner, token) = parse_value(&value)?;
            Data::Text(format!("{owner}#{}", to(token)?))
        }
        Data::Hash(mut hash) => {
            let fence = hash.get_mut(FENCE)?;
            *fence = to(number(fence)?)?.to_string();
            Data::Hash(hash)
        }
        Data::Queue(queue) => {
            let mut tickets = Vec::new();
            for (number, ticket) in queue.tickets() {
                tickets.push((to(number)?, Ticket { deadline_ms: 0, ..ticket.clone() }));
            }
            Data::Queue(rebuilt(&queue, to(queue.mark)?, tickets.into_iter()))
        }
    })
}

fn rebuilt(queue: &Queue, mark: u64, tickets: impl Iterator<Item = (u64, Ticket)>) -> Queue {
    let mut rebuilt = queue.without_tickets();
    rebuilt.mark = mark;
    for (number, ticket) in tickets {
        rebuilt.insert(number, ticket);
    }
    rebuilt
}
