//! Applies a request to the files.

use super::called;
use super::directory::Inside;
use super::holders::{HolderFiles, MyPlace};
use super::line::Standing;
use super::lock::{Lock, store};
use super::look::{ahead_of_mine, front};
use super::names::{HolderId, RecordId};
use super::record::FileRecord;
use super::run::{DEAD, Ran, RequestRun};
use super::seen::{Living, asked, further_back, keep, seen};
use tenure_core::owner::Owner;
use tenure_core::protocol::{
    Answer, Data, ExpiringValue, Liveness, LockSpec, Notification, Now, Op, ReleaseScope, State, Verb,
};
use tenure_core::runtime::Runtime;
use tenure_core::store::Failure;

/// Both clocks. The directory uses the machine's boot clock, which is ahead of this process's clock by a
/// negative offset.
pub(super) fn now(runtime: &dyn Runtime, offset_ms: i64) -> Now {
    Now {
        ms: runtime.now().millis().saturating_add_signed(offset_ms.saturating_neg()),
        unix_us: runtime.unix_micros(),
    }
}

/// The effects of a request.
pub(super) struct Applied {
    pub(super) answer: Answer,
    pub(super) wake: Option<Notification>,
    /// Holders of other processes to wake: their tickets were granted or moved to the front of the queue, or
    /// their holds were ended.
    pub(super) calls: Vec<HolderId>,
    /// The request ended another client's hold.
    pub(super) is_forced: bool,
    /// A ticket of this process is at the front of the queue, so this process must watch the ones ahead of
    /// it.
    pub(super) is_near: bool,
}

impl Applied {
    /// Only the data that this owner keeps beside its lock has changed.
    pub(super) fn told(by: &Owner) -> Self {
        let wake = Some(Notification::Free { by: Some(by.clone()) });
        Self { answer: Answer::Free, wake, calls: Vec::new(), is_forced: false, is_near: false }
    }
}

/// Runs one request against its record. Either all of its changes are written or none, except for a used-up
/// token, refreshed places and one abandoned place.
pub(super) fn apply(
    inside: &mut Inside<'_>,
    holders: &mut HolderFiles,
    now: Now,
    runtime: &dyn Runtime,
    op: &Op,
) -> Result<Applied, Failure> {
    let id = RecordId::of(&op.name);
    let mut before = Lock::load(inside, id)?;
    if let Some(lock) = before.as_ref().filter(|lock| lock.record.name != op.name) {
        return Err(inside.misplaced(id, &lock.record));
    }
    let mut budget = DEAD;
    let mut living = match &mut before {
        Some(lock) => seen(inside, holders, lock, id, now, op, &mut budget)?,
        None => Living::default(),
    };
    let (asked, later) = (asked(op), std::mem::take(&mut living.later));
    let later = match &before {
        Some(lock) => keep(inside, id, lock, now, op, later, &mut living.span)?,
        None => later,
    };
    let mut counter = inside.fence();
    let Living { lock, mut bindings, span, .. } = living;
    let releases = matches!(op.verb, Verb::Release { .. });
    let bound: Vec<_> = bindings.iter().filter(|_| releases).collect();
    let mut state = State { lock, ballot: None };
    let mut run = RequestRun {
        inside,
        holders,
        id,
        now,
        state: &mut state,
        bindings: &mut bindings,
        counter: &mut counter,
    };
    let line = before.as_mut().filter(|_| span.count > 0 || !span.is_empty());
    let Ran { answer, wake, is_bounded } = run.all(op, asked, line, &mut budget)?;
    let answer = further_back(op, answer, &later, &state);
    let answer = match answer {
        Answer::More(_) => answer,
        answer if is_bounded || budget == 0 => answer.and_more(),
        answer => answer,
    };

    if let Some(binding) = binding(op, &answer) {
        let holder = holders.bind(inside, runtime, &op.name, binding, &mut bindings)?;
        // A waiting ticket needs a socket to be woken on.
        if let Some(holder) = holder.filter(|_| !matches!(answer, Answer::Held { .. })) {
            holders.listen(inside, holder);
        }
    }
    // A reader that waits to become the writer needs one too.
    let told = answer.plain();
    if let Answer::Growing { fence, .. } = told
        && let Some(holder) = bindings.holder_of(*fence)
    {
        holders.listen(inside, holder);
    }
    let mut after = state.lock.map(|lock| {
        bindings.retain(|number| lock.value.has(number));
        FileRecord { name: op.name.clone(), boot: inside.boot().to_owned(), bindings, lock, span }
    });
    // Write the counter first, so that no token is issued twice.
    let may_grow = matches!(op.verb, Verb::Acquire { .. });
    let written = match counter == inside.fence() {
        true => Ok(()),
        false => inside.set_fence(counter),
    };
    let written = written.and_then(|()| store(inside, id, before.as_ref(), after.as_mut(), may_grow));
    let removed = before.is_some() && after.is_none();
    let wake = wake.or(removed.then_some(Notification::Free { by: None }));
    #[cfg(tenure_planted)]
    if written.is_ok() {
        super::observe::applied(op, &answer, wake.as_ref(), || {
            Lock::peek_whole(inside, id).ok().flatten().map(|record| record.lock)
        });
    }
    let is_bound = |(number, _): &(u64, HolderId)| {
        after.as_ref().is_some_and(|record| record.bindings.holder_of(*number).is_some())
    };
    let ended = bound.into_iter().filter(|bound| !is_bound(bound)).map(|(_, holder)| holder);
    let mut calls: Vec<_> = ended.filter(|holder| !holders.is_mine(*holder)).collect();
    let is_forced = matches!(op.verb, Verb::Release { whose, .. } if whose != ReleaseScope::Own);
    let mut is_near = false;
    if written.is_ok() && !matches!(op.spec, LockSpec::Queue(_)) {
        let is_free = removed || matches!(wake, Some(Notification::Free { .. }));
        let (called, near) = called::after(inside, holders, now, runtime, op, &answer, is_free);
        calls.extend(called);
        is_near = near;
    }
    if let Some(record) = after.as_ref().filter(|_| matches!(op.spec, LockSpec::Queue(_))) {
        let granted = match &wake {
            Some(Notification::Granted { tickets }) => tickets.as_slice(),
            _ => &[],
        };
        let front = front(&record.lock.value);
        let front_before = before.as_ref().map_or([None; 2], Lock::first_two);
        let moved = front.iter().zip(front_before).filter(|(now, before)| *now != before);
        let numbers = granted.iter().copied().chain(moved.filter_map(|(now, _)| *now));
        calls.extend(numbers.filter_map(|number| record.bindings.holder_of(number)));
        calls.retain(|holder| !holders.is_mine(*holder));
        is_near = ahead_of_mine(record, holders).is_some();
    }
    note_places(
        holders,
        id,
        op,
        told,
        before.as_ref(),
        &later,
        written.as_ref().ok().copied().flatten(),
        after.as_ref(),
    );
    // If the write failed, the old record is still in place. An unreadable record may name any holder.
    let kept = match &written {
        Ok(_) => Some(after.map(|record| record.bindings).unwrap_or_default()),
        Err(_) => Lock::peek_whole(inside, id)
            .ok()
            .map(|record| record.map(|record| record.bindings).unwrap_or_default()),
    };
    if let Some(kept) = kept {
        holders.settle(inside, &op.name, id, &kept);
    }
    written?;
    Ok(Applied { answer, wake, calls, is_forced, is_near })
}

/// Remembers where this store's own tickets are in the line file.
#[expect(clippy::too_many_arguments, reason = "all that is known of a request that was carried out")]
fn note_places(
    holders: &mut HolderFiles,
    id: RecordId,
    op: &Op,
    answer: &Answer,
    before: Option<&Lock>,
    later: &[Standing],
    new: Option<u64>,
    after: Option<&FileRecord>,
) {
    let Some(FileRecord { lock: ExpiringValue { value: Data::Queue(queue), .. }, .. }) = after else {
        return holders.forget_places(id);
    };
    if let Answer::Released { .. } | Answer::Free = answer {
        return holders.forget_place(id, &op.owner);
    }
    for owner in asked(op) {
        match queue.number(owner) {
            Some(number) if number > queue.mark => {
                let at = before.and_then(|lock| lock.place_of(number)).or(new);
                let holder = after.and_then(|record| record.bindings.holder_of(number));
                if let Some(at) = at {
                    holders.note_place(id, owner, MyPlace { number, at, holder });
                }
            }
            Some(_) => holders.forget_place(id, owner),
            None if later.iter().any(|standing| standing.ticket.owner == *owner) => {}
            None => holders.forget_place(id, owner),
        }
    }
}

/// The hold or ticket in this answer and what to bind it to.
fn binding(op: &Op, answer: &Answer) -> Option<(u64, Liveness)> {
    let (hold, bind) = match op.verb {
        Verb::Acquire { hold, bind, .. } => (hold, bind),
        Verb::Renew { hold, bind, .. } => (hold, bind?),
        _ => return None,
    };
    match *answer.plain() {
        Answer::Held { .. } if op.spec == LockSpec::Reentrant => Some((hold, bind)),
        Answer::Held { fence: number } | Answer::Waiting { ticket: number, .. } => Some((number, bind)),
        _ => None,
    }
}
