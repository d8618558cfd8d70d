//! The record machine: bytes beside a lock, which only the lock's holder writes.
//!
//! Caches, jobs that run once in a window, and elections keep what they know in a record. A late
//! writer is refused by the store, because the put compares the lock's holder in the same step.
//! Twin of `record.lua`.

use std::ops::Range;
use std::sync::Arc;

use super::{Data, Entry, Fence, LockSpec, Notification, Now, Op, ReleaseScope, State, Verb};
use crate::name::{LockName, USE};
use crate::owner::Owner;
use crate::planted::{Bug, planted};

/// A request about the record beside a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordOp {
    /// The lock, by its [name in the store](lock_name).
    pub lock: LockName,
    /// What is asked.
    pub verb: RecordVerb,
}

/// What can be asked of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordVerb {
    /// Read it. Anyone may.
    Read,
    /// Replace it. Only a holder of the lock may.
    Put(Put),
    /// Delete it and end the lock, with any holder: what its holder is about to write is refused.
    Void,
}

/// What the lock's holder writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// The holder.
    pub owner: Owner,
    /// The store's clock, in microseconds since 1970, must be within this for the write.
    pub window: Option<Range<u64>>,
    /// How long the record is kept, in milliseconds: at least 1.
    pub keep_ms: u64,
    /// What else happens in the same step.
    pub then: Then,
    /// The bytes.
    pub value: Arc<[u8]>,
}

/// What a write does beside writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Then {
    /// Nothing.
    #[default]
    Nothing,
    /// It ends the hold. For mutexes only.
    Release,
    /// It tells all who listen at the lock.
    Tell,
}

/// A record, as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// When it was written, by the store's clock: microseconds since 1970.
    pub at_us: u64,
    /// The bytes.
    pub value: Arc<[u8]>,
}

/// What the store says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordAnswer {
    /// The answer to a read.
    Read {
        /// The record, if there is one.
        record: Option<Record>,
        /// The store's clock at the read. Where it takes a message to ask for it, it is counted on
        /// from an earlier answer.
        now_us: u64,
    },
    /// It is written.
    Stored {
        /// When, by the store's clock.
        at_us: u64,
    },
    /// Refused: the owner does not hold the lock.
    NotHeld,
    /// Refused: the store's clock is outside the window.
    OutsideWindow {
        /// The store's clock.
        now_us: u64,
    },
    /// It is deleted, and the lock free.
    Voided,
}

/// The lock beside which a record of this kind stands, by the lock's full name.
pub fn lock_name(kind: &str, full: &LockName) -> LockName {
    LockName::in_store(beside(&format!("{USE}{kind}:"), full.as_str()))
}

/// The key of the record beside a lock.
pub fn key(lock: &LockName) -> String {
    let name = lock.as_str();
    ["tenure:rec:", name.strip_prefix(USE).unwrap_or(name)].concat()
}

/// The name of what is kept beside a key. Two keys never share one; on a cluster it shares the
/// key's slot, unless nothing can.
pub fn beside(prefix: &str, key: &str) -> String {
    let (before, after) = marks(key);
    [prefix, before, key, after].concat()
}

/// What stands around a key in the names of what is kept beside it.
pub fn marks(key: &str) -> (&'static str, &'static str) {
    if tag(key).is_some() {
        // The first tag of the whole is the tag of the key.
        ("=", "")
    } else if !key.contains('}') {
        ("{", "}")
    } else {
        // Nothing can be made to share its slot; a single server has none, and a cluster keeps no
        // such lock.
        ("~", "")
    }
}

/// What a cluster hashes of a key, if not the whole: what stands between its first `{` and the next
/// `}`, unless empty.
pub fn tag(key: &str) -> Option<&str> {
    let (tag, _) = key.split_once('{')?.1.split_once('}')?;
    Some(tag).filter(|tag| !tag.is_empty())
}

/// Runs one request against one lock and its record. Returns the answer and, where the lock became
/// free, the message to those who wait.
pub fn apply(
    state: &mut State,
    record: &mut Option<Entry<Record>>,
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
            *record = Some(Entry { value, expires_ms: Some(now.ms.saturating_add(put.keep_ms)) });
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

/// Why a put is refused, if it is.
pub fn refusal(lock: Option<&Entry<Data>>, now: Now, put: &Put) -> Option<RecordAnswer> {
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

/// The request that ends the hold of a put.
pub fn release(lock: &LockName, owner: &Owner) -> Op {
    let verb = Verb::Release { hold: 0, fence: Fence::Assign, whose: ReleaseScope::Own };
    Op { name: lock.clone(), rule: LockSpec::Mutex, owner: owner.clone(), request: 0, verb }
}

fn end(state: &mut State, now: Now, op: &RecordOp, owner: &Owner) -> Option<Notification> {
    super::apply(state, &mut 0, now, &release(&op.lock, owner)).1
}
