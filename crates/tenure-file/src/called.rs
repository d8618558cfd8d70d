//! Who is called about a lock without a queue: what a request means to those who wait for it, and
//! what one of them sees when it looks.

use super::directory::{Directory, HolderState, Inside};
use super::holders::Holders;
use super::names::{HolderId, RecordId};
use super::record::Record;
use super::waits::{NEAR, Waits};
use tenure_core::planted::{Bug, planted};
use tenure_core::protocol::{Answer, Now, Op, Verb};
use tenure_core::runtime::Runtime;

/// So many in front are looked at for whether they are dead.
const IN_FRONT: usize = 8;

/// Notes what a request has meant for those who wait. Returns whom to call, and whether this
/// process is one of the first, so that it has to watch others.
///
/// What fails here costs a call only: those who wait look now and then.
pub(super) fn after(
    inside: &Inside<'_>,
    holders: &mut Holders,
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

/// This process has it, and waits no more.
fn held(inside: &Inside<'_>, holders: &mut Holders, id: RecordId) -> (Vec<HolderId>, bool) {
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

/// It is busy: this process comes in, or comes in again. If that cannot be written, it does
/// not count as one of the first: it would see that it is not there, and ask without a pause.
fn busy(
    inside: &Inside<'_>,
    holders: &mut Holders,
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

/// It is free: one of them is called.
fn freed(inside: &Inside<'_>, holders: &Holders, now: Now, id: RecordId) -> Option<HolderId> {
    let mut waits = Waits::load(inside, id)?;
    if waits.is_empty() {
        let _ = inside.remove_file(&id.waits());
        return None;
    }
    let called = waits.call(now.ms, |holder| cannot_ask(inside, holders, holder));
    waits.store(inside, id);
    called.filter(|holder| !holders.is_mine(*holder))
}

/// This process asks no more. If it was called, another is.
pub(super) fn rest(inside: &Inside<'_>, holders: &mut Holders, now: Now, id: RecordId) -> Vec<HolderId> {
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

/// Those who have come to the front and have to be told; and whether one of them is this process.
fn near(holders: &Holders, waits: &mut Waits) -> (Vec<HolderId>, bool) {
    let mut calls = waits.newly_near();
    let all = calls.len();
    calls.retain(|holder| !holders.is_mine(*holder));
    let is_near = calls.len() < all;
    if planted(Bug::NearUntold) { (Vec::new(), false) } else { (calls, is_near) }
}

/// Its file says that it is dead, or is gone because it has left.
fn cannot_ask(directory: &Directory, holders: &Holders, holder: HolderId) -> bool {
    let has_ended = || matches!(directory.life(holder), HolderState::Dead | HolderState::Gone);
    !holders.is_mine(holder) && has_ended() && !planted(Bug::DeathIgnored)
}

/// What a process sees that waits for a lock without a queue.
pub(super) enum Seen {
    /// It was called, or is not known to wait: it has to ask.
    NotThere,
    /// The first of those in front of it that live, and no more than two.
    InLine(Vec<HolderId>),
}

/// Looks whether this process is among those who wait, and who is in front of it.
pub(super) fn seen(directory: &Directory, holders: &Holders, id: RecordId) -> Seen {
    let waits = Waits::peek(directory, id);
    let Some(before) = holders.of_process().and_then(|mine| waits.before(mine)) else {
        return Seen::NotThere;
    };
    let mut others = Vec::new();
    for (place, holder) in before.enumerate() {
        // Who is behind two that live has nothing to watch.
        if others.len() >= NEAR {
            break;
        }
        if place >= IN_FRONT || !cannot_ask(directory, holders, holder) {
            others.push(holder);
        }
    }
    Seen::InLine(others)
}

/// Whom this process watches, by who is in front of it: the first the holders, the second the
/// first.
pub(super) fn ahead(record: &Record, holders: &Holders, before: &[HolderId]) -> Option<Vec<HolderId>> {
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
