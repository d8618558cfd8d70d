//! The record machine: a value beside a lock that only the lock's holder may write.
//!
//! Caches, elections, and jobs that run once per window keep their state in a record. The store rejects a
//! late writer, because a put checks the lock's holder in the same step. `record.lua` is the equivalent on
//! Redis.

use std::ops::Range;
use std::sync::Arc;

use super::{Data, ExpiringValue, Fence, LockSpec, Notification, Now, Op, ReleaseScope, State, Verb};
use crate::name::{LockName, USE};
use crate::owner::Owner;
use crate::planted::{Bug, planted};

/// Maximum size of a cached value in bytes. Every store that caches must accept replies of this size.
pub const VALUE_MAX: usize = 8 << 20;

/// A request about the record beside a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordOp {
    /// The lock, by its [name in the store](lock_name).
    pub lock: LockName,
    /// For the first read of an owner that was granted the lock: the store may answer with the record as it
    /// was at the grant.
    pub granted: Option<Owner>,
    /// The operation.
    pub verb: RecordVerb,
}

/// The operations on a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordVerb {
    /// Read the record. Allowed for everyone.
    Read,
    /// Replace the record. Allowed only for a holder of the lock.
    Put(Put),
    /// Delete the record and release the lock, whoever holds it, so that a pending put of the holder is
    /// rejected.
    Void,
}

/// A write by the lock's holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// The holder.
    pub owner: Owner,
    /// The write is accepted only while the store's clock, in microseconds since 1970, is within this range.
    pub window: Option<Range<u64>>,
    /// How long to keep the record, in milliseconds; at least 1.
    pub keep_ms: u64,
    /// An additional action in the same step.
    pub then: Then,
    /// The bytes.
    pub value: Arc<[u8]>,
}

/// An additional action of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Then {
    /// No action.
    #[default]
    Nothing,
    /// Releases the lock. Locks with a queue only where the client decides: see
    /// [`Capabilities::client_decides`](crate::store::Capabilities::client_decides).
    Release,
    /// Notifies all subscribers of the lock.
    Tell,
}

/// A stored record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Time of the write in microseconds since 1970, by the store's clock.
    pub at_us: u64,
    /// The bytes.
    pub value: Arc<[u8]>,
}

/// The answer to a record request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordAnswer {
    /// The answer to a read.
    Read {
        /// The record, if there is one.
        record: Option<Record>,
        /// The store's clock at the read. If reading the clock takes a round trip, it is extrapolated from an
        /// earlier answer.
        now_us: u64,
    },
    /// The record was written.
    Stored {
        /// Time of the write, by the store's clock.
        at_us: u64,
    },
    /// Refused: the owner does not hold the lock.
    NotHeld,
    /// Refused: the store's clock is outside the window.
    OutsideWindow {
        /// The store's clock.
        now_us: u64,
    },
    /// The record was deleted, and the lock is free.
    Voided,
}

/// The name of the lock whose record has this kind, from the full name given by the user.
pub fn lock_name(kind: &str, full: &LockName) -> LockName {
    LockName::in_store(beside(&names_of(kind), full.as_str()))
}

/// The common beginning of the names of all locks of this kind.
pub fn names_of(kind: &str) -> String {
    format!("{USE}{kind}:")
}

/// The full name given by the user, from the [name of the lock](lock_name) of this kind.
pub fn user_name<'a>(kind: &str, name: &'a LockName) -> Option<&'a str> {
    let marked = name.as_str().strip_prefix(USE)?.strip_prefix(kind)?.strip_prefix(':')?;
    match marked.split_at_checked(1)? {
        ("{", rest) => rest.strip_suffix('}'),
        ("=" | "~", rest) => Some(rest),
        _ => None,
    }
}

/// The key of the record beside a lock, in parts.
pub fn key<'a>(namespace: &'a str, name: &'a str) -> [&'a str; 3] {
    [namespace, "tenure:rec:", name.strip_prefix(USE).unwrap_or(name)]
}

/// The name of a side key. Two keys never share one. On a cluster it is in the same slot as the key, where
/// that is possible.
pub fn beside(prefix: &str, key: &str) -> String {
    let (before, after) = marks(key);
    [prefix, before, key, after].concat()
}

/// The marks around a key within the names of its side keys.
pub fn marks(key: &str) -> (&'static str, &'static str) {
    if tag(key).is_some() {
        // The first hash tag of the whole name is that of the key.
        ("=", "")
    } else if !key.contains('}') {
        ("{", "}")
    } else {
        // No name can be forced into its slot. A single server has no slots, and a cluster rejects such
        // locks.
        ("~", "")
    }
}

/// The hash tag of a key, which a cluster hashes instead of the whole key: the text between its first `{` and
/// the next `}`, unless empty.
pub fn tag(key: &str) -> Option<&str> {
    let (tag, _) = key.split_once('{')?.1.split_once('}')?;
    Some(tag).filter(|tag| !tag.is_empty())
}

/// Runs one request against one lock and its record. Returns the answer and, if the lock became free, the
/// notification for the waiters.
pub fn apply(
    state: &mut State,
    record: &mut Option<ExpiringValue<Record>>,
    now: Now,
    op: &RecordOp,
) -> (RecordAnswer, Option<Notification>) {
    record.take_if(|record| record.is_over(now));
    match &op.verb {
        RecordVerb::Read => {
            let record = record.as_ref().map(|record| record.value.clone());
            (RecordAnswer::Read { record, now_us: now.unix_us }, None)
        }
        RecordVerb::Put(put) => {
            if let Some(refusal) = refusal(state.lock.as_ref(), now, put) {
                return (refusal, None);
            }
            let value = Record { at_us: now.unix_us, value: Arc::clone(&put.value) };
            *record = Some(ExpiringValue { value, expires_ms: Some(now.ms.saturating_add(put.keep_ms)) });
            let wake = match put.then {
                Then::Nothing => None,
                Then::Release => end(state, now, op, &put.owner),
                Then::Tell => Some(Notification::Free { by: Some(put.owner.clone()) }),
            };
            (RecordAnswer::Stored { at_us: now.unix_us }, wake)
        }
        RecordVerb::Void => {
            *record = None;
            state.lock = None;
            (RecordAnswer::Voided, Some(Notification::Free { by: None }))
        }
    }
}

/// The refusal of a put, or `None` if it is allowed.
pub fn refusal(lock: Option<&ExpiringValue<Data>>, now: Now, put: &Put) -> Option<RecordAnswer> {
    let lock = lock.filter(|lock| !lock.is_over(now));
    if !lock.is_some_and(|lock| holds(&lock.value, now, &put.owner)) && !planted(Bug::RecordOfAnyone) {
        return Some(RecordAnswer::NotHeld);
    }
    let is_within = put.window.as_ref().is_none_or(|window| window.contains(&now.unix_us));
    (!is_within).then_some(RecordAnswer::OutsideWindow { now_us: now.unix_us })
}

fn holds(lock: &Data, now: Now, owner: &Owner) -> bool {
    match lock {
        Data::Text(value) => {
            value.strip_prefix(owner.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
        }
        Data::Queue(queue) => queue.is_held_by(owner, now),
        Data::Hash(_) => false,
    }
}

/// The request that releases the hold after a put.
pub fn release(lock: &LockName, owner: &Owner) -> Op {
    let verb = Verb::Release { hold: 0, fence: Fence::Assign, whose: ReleaseScope::Own };
    Op { name: lock.clone(), spec: LockSpec::Mutex, owner: owner.clone(), request: 0, verb }
}

fn end(state: &mut State, now: Now, op: &RecordOp, owner: &Owner) -> Option<Notification> {
    let spec = match state.lock.as_ref().map(|lock| &lock.value) {
        Some(Data::Queue(queue)) => LockSpec::of(queue.kind, Some(queue.capacity)),
        _ => LockSpec::Mutex,
    };
    super::apply(state, &mut 0, now, &Op { spec, ..release(&op.lock, owner) }).1
}
