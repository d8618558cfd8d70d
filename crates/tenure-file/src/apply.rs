//! Applies a request to the files.

use super::bindings::Bindings;
use super::directory::Inside;
use super::holders::HolderFiles;
use super::lock::{Lock, store};
use super::look::{ahead_of_mine, front};
use super::names::{HolderId, RecordId};
use super::record::FileRecord;
use super::run::RunningLock;
use super::waits;
use tenure_core::owner::Owner;
use tenure_core::protocol::{Answer, Liveness, LockSpec, Notification, Now, Op, ReleaseScope, Verb};
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
/// token.
pub(super) fn apply(
    inside: &mut Inside<'_>,
    holders: &mut HolderFiles,
    now: Now,
    runtime: &dyn Runtime,
    op: &Op,
) -> Result<Applied, Failure> {
    let id = RecordId::of(&op.name);
    let before = Lock::load(inside, id)?;
    if let Some(lock) = before.as_ref().filter(|lock| lock.record.name != op.name) {
        return Err(inside.misplaced(id, &lock.record));
    }
    let mut request = RequestFiles { inside, holders, runtime, op, id };
    let mut running = RunningLock::default();
    let mut before_front = [None; 2];
    let before = match before {
        Some(Lock { record, text }) => {
            before_front = front(&record.lock.value);
            running = RunningLock::of(record, request.inside, request.holders, op)?;
            Some(text)
        }
        None => None,
    };
    let releases = matches!(op.verb, Verb::Release { .. });
    let bound: Vec<_> = running.bindings.iter().filter(|_| releases).collect();
    let mut counter = request.inside.fence();
    let (answer, wake) = running.run(request.inside, request.holders, &mut counter, now, op);
    let RunningLock { state, mut bindings } = running;
    request.bind(&answer, &mut bindings)?;
    let after = state.lock.map(|lock| {
        bindings.retain(|number| lock.value.has(number));
        FileRecord { name: op.name.clone(), boot: request.inside.boot().to_owned(), bindings, lock }
    });
    let written = request.write(counter, before.as_deref(), after.as_ref());
    let removed = before.is_some() && after.is_none();
    let wake = wake.or(removed.then_some(Notification::Free { by: None }));
    #[cfg(tenure_planted)]
    if written.is_ok() {
        super::observe::applied(op, &answer, wake.as_ref(), || {
            Lock::peek(request.inside, id).ok().flatten().map(|record| record.lock)
        });
    }
    let is_bound = |number| after.as_ref().is_some_and(|record| record.bindings.holder_of(number).is_some());
    let mut calls: Vec<_> =
        bound.into_iter().filter(|(number, _)| !is_bound(*number)).map(|(_, holder)| holder).collect();
    let (called, is_near) = match op.spec {
        LockSpec::Queue(_) => request.moved_up(before_front, after.as_ref(), wake.as_ref()),
        _ if written.is_ok() => {
            let is_free = removed || matches!(wake, Some(Notification::Free { .. }));
            waits::after(request.inside, request.holders, now, runtime, op, &answer, is_free)
        }
        _ => (Vec::new(), false),
    };
    calls.extend(called);
    calls.sort_unstable();
    calls.dedup();
    calls.retain(|holder| !request.holders.is_mine(*holder));
    request.settle(written.is_ok(), after);
    written?;
    let is_forced = matches!(op.verb, Verb::Release { whose, .. } if whose != ReleaseScope::Own);
    Ok(Applied { answer, wake, calls, is_forced, is_near })
}

/// A request, and what it reads and changes.
struct RequestFiles<'a, 'b> {
    inside: &'a mut Inside<'b>,
    holders: &'a mut HolderFiles,
    runtime: &'a dyn Runtime,
    op: &'a Op,
    id: RecordId,
}

impl RequestFiles<'_, '_> {
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

    /// Writes what has changed.
    fn write(
        &mut self,
        counter: u64,
        before: Option<&[u8]>,
        after: Option<&FileRecord>,
    ) -> Result<(), Failure> {
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
        before: [Option<u64>; 2],
        after: Option<&FileRecord>,
        wake: Option<&Notification>,
    ) -> (Vec<HolderId>, bool) {
        let Some(record) = after else { return (Vec::new(), false) };
        let granted = match wake {
            Some(Notification::Granted { tickets }) => tickets.as_slice(),
            _ => &[],
        };
        let front = front(&record.lock.value).into_iter().zip(before);
        let moved = front.filter(|(now, before)| now != before).filter_map(|(now, _)| now);
        let numbers = granted.iter().copied().chain(moved);
        let calls = numbers.filter_map(|number| record.bindings.holder_of(number)).collect();
        (calls, ahead_of_mine(record, self.holders).is_some())
    }

    /// Releases the holder files that the lock no longer names.
    fn settle(&mut self, is_written: bool, after: Option<FileRecord>) {
        let bindings = |record: Option<FileRecord>| record.map(|record| record.bindings).unwrap_or_default();
        // If the write failed, the old record is still in place. An unreadable record may name any holder.
        let kept = match is_written {
            true => Some(bindings(after)),
            false => Lock::peek(self.inside, self.id).ok().map(bindings),
        };
        if let Some(kept) = kept {
            self.holders.settle(self.inside, &self.op.name, &kept);
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
