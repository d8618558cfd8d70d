//! The reentrant machine: one hash, `owner -> hold count`, with a TTL. This is the format of Redisson's
//! `RLock`, so that locks of Java services and of this library exclude each other.
//!
//! Fields that start with `#` belong to tenure: `#fence` is the token, `#<hold>` marks a counted hold. *Holds
//! are recorded, not requests*: a repeated acquire finds its hold and counts nothing, a repeated release
//! finds none and subtracts nothing, in whatever order the requests of an owner's tasks arrive.

use std::collections::BTreeMap;

use super::mutex::assign;
use super::{
    Answer, Data, ExpiringValue, Found, Holding, Kind, Liveness, Notification, Now, Op, ReleaseScope, State,
    Verb, force, inspect, is_digits, mutex, other_kind, shown,
};
use crate::owner::Owner;
use crate::planted::{Bug, planted};

/// The hash of one lock.
pub type Hash = BTreeMap<String, String>;

/// The field of the token.
pub(super) const FENCE: &str = "#fence";
/// The field that counts detached holds that wait to be resumed.
const DETACHED: &str = "#0";

/// Runs one request.
pub fn apply(state: &mut State, counter: &mut u64, now: Now, op: &Op) -> (Answer, Option<Notification>) {
    match &op.verb {
        Verb::Acquire { ttl_ms, hold, .. } => (acquire(state, counter, now, &op.owner, *ttl_ms, *hold), None),
        Verb::Renew { ttl_ms, hold, bind, .. } => (renew(state, now, &op.owner, *ttl_ms, *hold, *bind), None),
        Verb::Release { hold, whose, .. } => release(state, now, &op.owner, *hold, *whose),
        Verb::Refresh { .. } | Verb::Resize | Verb::Inspect => (inspect(state, now, is_own), None),
    }
}

/// The lock from the requester's point of view.
enum ReentrantOwnership {
    Free,
    Own,
    Foreign(Answer),
}

fn ownership(state: &State, now: Now, owner: &Owner) -> ReentrantOwnership {
    match &state.lock {
        None => ReentrantOwnership::Free,
        Some(ExpiringValue { value: Data::Hash(hash), .. }) if hash.contains_key(owner.as_str()) => {
            ReentrantOwnership::Own
        }
        Some(lock @ ExpiringValue { value: Data::Hash(hash), .. }) => {
            ReentrantOwnership::Foreign(Answer::Busy { holder: holder(hash), left_ms: lock.left_ms(now) })
        }
        Some(lock) => ReentrantOwnership::Foreign(other_kind(lock, now)),
    }
}

fn acquire(state: &mut State, counter: &mut u64, now: Now, owner: &Owner, ttl_ms: u64, hold: u64) -> Answer {
    match ownership(state, now, owner) {
        ReentrantOwnership::Foreign(answer) => return answer,
        ReentrantOwnership::Own => {}
        ReentrantOwnership::Free => {
            let fence = assign(counter, now);
            let hash = Hash::from([(owner.to_string(), "0".into()), (FENCE.into(), fence.to_string())]);
            state.lock = Some(ExpiringValue {
                value: Data::Hash(hash),
                expires_ms: Some(now.ms.saturating_add(ttl_ms)),
            });
        }
    }
    if planted(Bug::ReentryBumpsToken) {
        let fence = assign(counter, now);
        if let Some(hash) = hash_of(state) {
            hash.insert(FENCE.into(), fence.to_string());
        }
    }
    let Some(hash) = hash_of(state) else { return Answer::Free };
    let is_new = hash.insert(field(hold), "1".into()).is_none();
    if is_new || planted(Bug::RepeatCountsTwice) {
        count(hash, owner, 1);
    }
    let fence = fence_of(hash);
    extend(state, now, ttl_ms);
    Answer::Held { fence }
}

fn renew(
    state: &mut State,
    now: Now,
    owner: &Owner,
    ttl_ms: u64,
    hold: u64,
    bind: Option<Liveness>,
) -> Answer {
    match ownership(state, now, owner) {
        ReentrantOwnership::Free => return Answer::Free,
        ReentrantOwnership::Foreign(answer) => return answer,
        ReentrantOwnership::Own => {}
    }
    let Some(hash) = hash_of(state) else { return Answer::Free };
    let held = match bind {
        // A detached hold loses its number, because the client that resumes it uses another.
        Some(Liveness::Lease) if hash.remove(&field(hold)).is_some() => {
            add(hash, DETACHED, 1);
            true
        }
        Some(Liveness::Lease) => hash.contains_key(DETACHED),
        Some(_) if !hash.contains_key(&field(hold)) && hash.contains_key(DETACHED) => {
            if add(hash, DETACHED, -1) == 0 {
                hash.remove(DETACHED);
            }
            hash.insert(field(hold), "1".into());
            true
        }
        _ => hash.contains_key(&field(hold)),
    };
    if !held {
        return Answer::Free;
    }
    let fence = fence_of(hash);
    extend(state, now, ttl_ms);
    Answer::Held { fence }
}

fn release(
    state: &mut State,
    now: Now,
    owner: &Owner,
    hold: u64,
    whose: ReleaseScope,
) -> (Answer, Option<Notification>) {
    if whose.is_forced() {
        let is_meant = |hash: &Hash| is_lock(hash) && (hold == 0 || hold == fence_of(hash));
        return force(state, now, is_own, |data| matches!(data, Data::Hash(hash) if is_meant(hash)));
    }
    match ownership(state, now, owner) {
        ReentrantOwnership::Free => return (Answer::Free, None),
        ReentrantOwnership::Foreign(answer) => return (answer, None),
        ReentrantOwnership::Own => {}
    }
    let Some(hash) = hash_of(state) else { return (Answer::Free, None) };
    if hash.remove(&field(hold)).is_none() {
        return (Answer::Free, None);
    }
    let left = count(hash, owner, -1);
    if left > 0 {
        return (Answer::Released { left }, None);
    }
    // Never leave a hash with only our fields: to Redisson that is a lock without a holder.
    state.lock = None;
    (Answer::Released { left: 0 }, Some(Notification::Free { by: Some(owner.clone()) }))
}

fn is_own(data: &Data) -> bool {
    matches!(data, Data::Hash(_))
}

/// Whether the hash is a reentrant mutex of this library: a token, and one owner with a count.
fn is_lock(hash: &Hash) -> bool {
    let mut owners = hash.iter().filter(|(field, _)| !field.starts_with('#'));
    let (owner, others) = (owners.next(), owners.next());
    let is_owner = |(owner, count): (&String, &String)| owner.parse::<Owner>().is_ok() && is_digits(count);
    fence_of(hash) > 0 && owner.is_some_and(is_owner) && others.is_none()
}

/// Whether this hold is counted.
pub(super) fn has(hash: &Hash, hold: u64) -> bool {
    field(hold) != DETACHED && hash.contains_key(&field(hold))
}

/// Ends one hold; returns whether it was the last one.
pub(super) fn end(hash: &mut Hash, hold: u64) -> bool {
    let owner = hash.keys().find(|field| !field.starts_with('#')).cloned();
    match owner {
        Some(owner) if has(hash, hold) => {
            hash.remove(&field(hold));
            add(hash, &owner, -1) == 0
        }
        _ => false,
    }
}

/// Extends the lease. No request ever shortens one, because the owner's other holds rely on it.
fn extend(state: &mut State, now: Now, ttl_ms: u64) {
    if planted(Bug::ReentryShortens) {
        if let Some(lock) = &mut state.lock {
            lock.expires_ms = Some(now.ms.saturating_add(ttl_ms));
        }
        return;
    }
    mutex::extend(state, now, ttl_ms);
}

/// Owner, count and token for a listing. A foreign hash with more than one field is not a Redisson lock, so
/// only its type is shown.
pub(super) fn found(hash: &Hash, left_ms: Option<u64>) -> Found {
    let fence = fence_of(hash);
    let known = fence > 0 || hash.len() == 1;
    let holder = hash.iter().find(|(field, _)| known && !field.starts_with('#'));
    let (name, count) = holder.map_or(("(hash)", "1"), |(owner, count)| (owner, count));
    let value = if fence > 0 { format!("{name}#{fence}") } else { name.to_owned() };
    let value = value.into_bytes();
    let holders = vec![Holding { value, left_ms, weight: count.parse().unwrap_or(1) }];
    Found { kind: Kind::Reentrant, capacity: None, holders, waiters: Vec::new(), unlisted: 0 }
}

/// The holder in the format of a mutex's value.
pub(super) fn holder(hash: &Hash) -> String {
    shown(&found(hash, None).holders.swap_remove(0).value)
}

fn hash_of(state: &mut State) -> Option<&mut Hash> {
    match &mut state.lock {
        Some(ExpiringValue { value: Data::Hash(hash), .. }) => Some(hash),
        _ => None,
    }
}

pub(super) fn field(hold: u64) -> String {
    format!("#{hold:x}")
}

pub(super) fn fence_of(hash: &Hash) -> u64 {
    hash.get(FENCE).filter(|text| is_digits(text)).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn count(hash: &mut Hash, owner: &Owner, by: i64) -> u32 {
    add(hash, owner.as_str(), by).try_into().unwrap_or(0)
}

fn add(hash: &mut Hash, field: &str, by: i64) -> i64 {
    let value = hash.get(field).and_then(|text| text.parse().ok()).unwrap_or(0_i64).saturating_add(by).max(0);
    hash.insert(field.into(), value.to_string());
    value
}
