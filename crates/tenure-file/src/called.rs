//! Wake-ups of a lock without a queue: how a request changes the list of waiting processes, and what one of
//! them finds there.

use super::directory::{Directory, HolderState, Inside};
use super::holders::HolderFiles;
use super::names::{HolderId, RecordId};
use super::record::FileRecord;
use super::waits::{NEAR, Waits};
use tenure_core::planted::{Bug, planted};
use tenure_core::protocol::{Answer, Now, Op, Verb};
use tenure_core::runtime::Runtime;

/// Maximum processes ahead of this one whose flock is tested in one look.
const IN_FRONT: usize = 8;

/// Updates the list of waiting processes after a request. Returns the processes to wake, and whether this
/// process is now at the front and has to watch others.
///
/// Errors are ignored: they cost a wake-up, and waiting processes also look periodically.
pub(super) fn after(
    inside: &Inside<'_>,
    holders: &mut HolderFiles,
    now: Now,
    runtime: &dyn Runtime,
    op: &Op,
    answer: &Answer,
    is_free: bool,
) -> (Vec<HolderId>, bool) {
    let id = RecordId::of(&op.name);
    let asks = matches!(op.verb, Verb::Acquire { .. });
    match answer {
        Answer::Held { .. } if asks => held(inside, holders, id),
        Answer::Busy { .. } if asks && holders.asks(id) => busy(inside, holders, runtime, id),
        _ if is_free => (freed(inside, holders, now, id).into_iter().collect(), false),
        _ => (Vec::new(), false),
    }
}

/// This process got the lock and no longer waits.
fn held(inside: &Inside<'_>, holders: &mut HolderFiles, id: RecordId) -> (Vec<HolderId>, bool) {
    let Some(before) = Waits::load(inside, id) else { return (Vec::new(), false) };
    let mut waits = before.clone();
    if let Some(mine) = holders.of_process() {
        waits.leave(mine);
    }
    holders.note_come_in(id, false);
    let near = near(holders, &mut waits);
    if waits != before {
        waits.store(inside, id);
    }
    near
}

/// The lock is busy, so this process joins the list, or rejoins it. If the list cannot be written, the
/// process does not count as being at the front; otherwise it would find itself missing and retry without a
/// pause.
fn busy(
    inside: &Inside<'_>,
    holders: &mut HolderFiles,
    runtime: &dyn Runtime,
    id: RecordId,
) -> (Vec<HolderId>, bool) {
    let Ok(Some(mine)) = holders.callee(inside, runtime) else { return (Vec::new(), false) };
    let before = Waits::load(inside, id).unwrap_or_default();
    let mut waits = before.clone();
    let again = holders.has_come_in(id);
    if !again || !planted(Bug::CalledInVainLeft) {
        waits.join(mine, again);
    }
    holders.note_come_in(id, true);
    let (calls, _) = near(holders, &mut waits);
    if waits != before && !waits.store(inside, id) {
        return (Vec::new(), false);
    }
    let is_near = !planted(Bug::NearUntold) && waits.before(mine).is_some_and(|before| before.count() < NEAR);
    (calls, is_near)
}

/// The lock is free: wakes one process.
fn freed(inside: &Inside<'_>, holders: &HolderFiles, now: Now, id: RecordId) -> Option<HolderId> {
    let mut waits = Waits::load(inside, id)?;
    if waits.is_empty() {
        let _ = inside.remove_file(&id.waits());
        return None;
    }
    let called = waits.call(now.ms, |holder| cannot_ask(inside, holders, holder));
    waits.store(inside, id);
    called.filter(|holder| !holders.is_mine(*holder))
}

/// This process stops waiting; pass its wake-up on.
pub(super) fn rest(inside: &Inside<'_>, holders: &mut HolderFiles, now: Now, id: RecordId) -> Vec<HolderId> {
    holders.note_come_in(id, false);
    let (Some(mine), Some(before)) = (holders.of_process(), Waits::load(inside, id)) else {
        return Vec::new();
    };
    let mut waits = before.clone();
    waits.leave(mine);
    if inside.has(id) {
        let (calls, _) = near(holders, &mut waits);
        if waits != before {
            waits.store(inside, id);
        }
        return calls;
    }
    if waits != before {
        waits.store(inside, id);
    }
    freed(inside, holders, now, id).into_iter().collect()
}

/// The processes that moved to the front and have to be told, and whether this process is one of them.
fn near(holders: &HolderFiles, waits: &mut Waits) -> (Vec<HolderId>, bool) {
    let mut calls = waits.newly_near();
    let all = calls.len();
    calls.retain(|holder| !holders.is_mine(*holder));
    let is_near = calls.len() < all;
    if planted(Bug::NearUntold) { (Vec::new(), false) } else { (calls, is_near) }
}

/// Whether the holder is dead, or its file is gone because it has left.
fn cannot_ask(directory: &Directory, holders: &HolderFiles, holder: HolderId) -> bool {
    let has_ended = || matches!(directory.life(holder), HolderState::Dead | HolderState::Gone);
    !holders.is_mine(holder) && has_ended() && !planted(Bug::DeathIgnored)
}

/// What a process that waits for a lock without a queue finds in the list.
pub(super) enum CallState {
    /// It is not listed: it was woken or never joined, and has to retry.
    NotThere,
    /// The live processes ahead of it, two at most.
    InLine(Vec<HolderId>),
}

/// Finds this process in the list, and the processes ahead of it.
pub(super) fn seen(directory: &Directory, holders: &HolderFiles, id: RecordId) -> CallState {
    let waits = Waits::peek(directory, id);
    let Some(before) = holders.of_process().and_then(|mine| waits.before(mine)) else {
        return CallState::NotThere;
    };
    let mut others = Vec::new();
    for (place, holder) in before.enumerate() {
        // Behind two live processes there is nothing to watch.
        if others.len() >= NEAR {
            break;
        }
        if place >= IN_FRONT || !cannot_ask(directory, holders, holder) {
            others.push(holder);
        }
    }
    CallState::InLine(others)
}

/// The holders this process watches, given the processes ahead of it: the first watches the holders of the
/// lock, the second watches the first.
pub(super) fn ahead(
    record: &FileRecord,
    holders: &HolderFiles,
    before: &[HolderId],
) -> Option<Vec<HolderId>> {
    let mut ahead = match before {
        [] => record.bindings.iter().map(|(_, holder)| holder).collect(),
        [first] => vec![*first],
        _ => return None,
    };
    ahead.retain(|holder| !holders.is_mine(*holder));
    ahead.sort_unstable();
    ahead.dedup();
    Some(ahead)
}
