//! Applies a request to the files.

use super::bindings::Bindings;
use super::directory::Inside;
use super::holders::{HolderFiles, MyPlace};
use super::line::Standing;
use super::lock::{Lock, store};
use super::look::{ahead_of_mine, front};
use super::names::{HolderId, RecordId};
use super::record::FileRecord;
use super::run::{DEAD, Ran, RequestRun};
use super::seen::{Living, asked, further_back, keep, seen};
use super::waits;
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
    let mut request = RequestFiles { inside, holders, now, runtime, op, id };
    let mut budget = DEAD;
    let Living { lock, mut bindings, span, later } = request.read(before.as_mut(), &mut budget)?;
    let releases = matches!(op.verb, Verb::Release { .. });
    let bound: Vec<_> = bindings.iter().filter(|_| releases).collect();
    let mut counter = request.inside.fence();
    let mut state = State { lock, ballot: None };
    let mut run = RequestRun {
        inside: request.inside,
        holders: request.holders,
        id,
        now,
        state: &mut state,
        bindings: &mut bindings,
        counter: &mut counter,
    };
    let line = before.as_mut().filter(|_| span.count > 0 || !span.is_empty());
    let Ran { answer, wake, is_bounded } = run.all(op, asked(op), line, &mut budget)?;
    let answer = further_back(op, answer, &later, &state);
    let answer = match answer {
        Answer::More(_) => answer,
        answer if is_bounded || budget == 0 => answer.and_more(),
        answer => answer,
    };
    request.bind(&answer, &mut bindings)?;
    let mut after = state.lock.map(|lock| {
        bindings.retain(|number| lock.value.has(number));
        FileRecord { name: op.name.clone(), boot: request.inside.boot().to_owned(), bindings, lock, span }
    });
    let written = request.write(counter, before.as_ref(), after.as_mut());
    let removed = before.is_some() && after.is_none();
    let wake = wake.or(removed.then_some(Notification::Free { by: None }));
    #[cfg(tenure_planted)]
    if written.is_ok() {
        super::observe::applied(op, &answer, wake.as_ref(), || {
            Lock::peek_whole(request.inside, id).ok().flatten().map(|record| record.lock)
        });
    }
    let is_bound = |number| after.as_ref().is_some_and(|record| record.bindings.holder_of(number).is_some());
    let mut calls: Vec<_> =
        bound.into_iter().filter(|(number, _)| !is_bound(*number)).map(|(_, holder)| holder).collect();
    let (called, is_near) = match op.spec {
        LockSpec::Queue(_) => request.moved_up(before.as_ref(), after.as_ref(), wake.as_ref()),
        _ if written.is_ok() => {
            let is_free = removed || matches!(wake, Some(Notification::Free { .. }));
            waits::after(request.inside, request.holders, now, runtime, op, &answer, is_free)
        }
        _ => (Vec::new(), false),
    };
    calls.extend(called);
    calls.retain(|holder| !request.holders.is_mine(*holder));
    let new = written.as_ref().ok().copied().flatten();
    request.note_places(answer.plain(), before.as_ref(), &later, new, after.as_ref());
    request.settle(written.is_ok(), after);
    written?;
    let is_forced = matches!(op.verb, Verb::Release { whose, .. } if whose != ReleaseScope::Own);
    Ok(Applied { answer, wake, calls, is_forced, is_near })
}

/// A request, and what it reads and changes.
struct RequestFiles<'a, 'b> {
    inside: &'a mut Inside<'b>,
    holders: &'a mut HolderFiles,
    now: Now,
    runtime: &'a dyn Runtime,
    op: &'a Op,
    id: RecordId,
}

impl RequestFiles<'_, '_> {
    /// Reads the valid part of the lock, and refreshes or abandons the requester's tickets further back.
    fn read(&self, before: Option<&mut Lock>, budget: &mut usize) -> Result<Living, Failure> {
        let Some(lock) = before else { return Ok(Living::default()) };
        let (inside, id, now, op) = (&*self.inside, self.id, self.now, self.op);
        let mut living = seen(inside, self.holders, lock, id, now, op, budget)?;
        let later = std::mem::take(&mut living.later);
        living.later = keep(inside, id, lock, now, op, later, &mut living.span)?;
        Ok(living)
    }

    /// Binds a new hold or ticket, and opens a socket for a holder that has to be woken.
    fn bind(&mut self, answer: &Answer, bindings: &mut Bindings) -> Result<(), Failure> {
        if let Some(binding) = binding(self.op, answer) {
            let holder = self.holders.bind(self.inside, self.runtime, &self.op.name, binding, bindings)?;
            // A waiting ticket needs a socket to be woken on.
            if let Some(holder) = holder.filter(|_| !matches!(answer, Answer::Held { .. })) {
                self.holders.listen(self.inside, holder);
            }
        }
        // A reader that waits to become the writer needs one too.
        if let Answer::Growing { fence, .. } = answer.plain()
            && let Some(holder) = bindings.holder_of(*fence)
        {
            self.holders.listen(self.inside, holder);
        }
        Ok(())
    }

    /// Writes what has changed. Returns the position of a new ticket in the line file.
    fn write(
        &mut self,
        counter: u64,
        before: Option<&Lock>,
        after: Option<&mut FileRecord>,
    ) -> Result<Option<u64>, Failure> {
        // Write the counter first, so that no token is issued twice.
        if counter != self.inside.fence() {
            self.inside.set_fence(counter)?;
        }
        let may_grow = matches!(self.op.verb, Verb::Acquire { .. });
        store(self.inside, self.id, before, after, may_grow)
    }

    /// The holders whose tickets were granted or moved to the front of the queue, and whether a ticket of this
    /// process is now at the front.
    fn moved_up(
        &self,
        before: Option<&Lock>,
        after: Option<&FileRecord>,
        wake: Option<&Notification>,
    ) -> (Vec<HolderId>, bool) {
        let Some(record) = after else { return (Vec::new(), false) };
        let granted = match wake {
            Some(Notification::Granted { tickets }) => tickets.as_slice(),
            _ => &[],
        };
        let front_before = before.map_or([None; 2], Lock::first_two);
        let front = front(&record.lock.value).into_iter().zip(front_before);
        let moved = front.filter(|(now, before)| now != before).filter_map(|(now, _)| now);
        let numbers = granted.iter().copied().chain(moved);
        let calls = numbers.filter_map(|number| record.bindings.holder_of(number)).collect();
        (calls, ahead_of_mine(record, self.holders).is_some())
    }

    /// Remembers where this store's own tickets are in the line file.
    fn note_places(
        &mut self,
        answer: &Answer,
        before: Option<&Lock>,
        later: &[Standing],
        new: Option<u64>,
        after: Option<&FileRecord>,
    ) {
        let (holders, op, id) = (&mut *self.holders, self.op, self.id);
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

    /// Releases the holder files that the lock no longer names.
    fn settle(&mut self, is_written: bool, after: Option<FileRecord>) {
        let bindings = |record: Option<FileRecord>| record.map(|record| record.bindings).unwrap_or_default();
        // If the write failed, the old record is still in place. An unreadable record may name any holder.
        let kept = match is_written {
            true => Some(bindings(after)),
            false => Lock::peek_whole(self.inside, self.id).ok().map(bindings),
        };
        if let Some(kept) = kept {
            self.holders.settle(self.inside, &self.op.name, self.id, &kept);
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
