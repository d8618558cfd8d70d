//! What the threads of the callers and the worker share, and the requests that a caller's thread
//! carries out at once.
//!
//! A request is carried out where it was asked if that waits for nothing: the directory is open,
//! its guard is free, no earlier request is with the worker, and changes have been quick of late.
//! Otherwise the worker has it. So a disk that stands still costs a caller's thread one change.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use super::apply::{Applied, apply, now};
use super::beside::apply_to_record;
use super::directory::{Directory, Entered};
use super::holders::Holders;
use super::names::RecordId;
use tenure_core::moment::Moment;
use tenure_core::protocol::record::{RecordAnswer, RecordOp};
use tenure_core::protocol::{Answer, LockSpec, Op, Verb};
use tenure_core::runtime::Runtime;
use tenure_core::store::Failure;

/// A change that takes longer is not made on a caller's thread, nor is the next one.
const QUICK: Duration = Duration::from_micros(100);
/// How often what lapsed or crashed is cleared away.
pub(super) const SWEEP: Duration = Duration::from_secs(60);

/// The directory and what this process has there. Who has it may have the directory's guard.
#[derive(Debug, Default)]
pub(super) struct Core {
    pub(super) directory: Option<Directory>,
    pub(super) holders: Holders,
    pub(super) swept: Option<Moment>,
}

#[derive(Debug)]
pub(super) struct Shared {
    core: Mutex<Core>,
    /// See [`boot_clock_offset_ms`](super::system::boot_clock_offset_ms).
    pub(super) offset_ms: i64,
    /// How many requests the worker has.
    handed: AtomicUsize,
    is_slow: AtomicBool,
    /// Whether any task listens, so that the worker has to be told of changes.
    pub(super) listens: AtomicBool,
}

/// A request that the worker has. Dropped, it has it no more.
#[derive(Debug)]
pub(super) struct Handed(Arc<Shared>);

/// What became of a request on a caller's thread.
pub(super) enum Tried<T> {
    /// It was carried out, and what to tell those who listen.
    Done(Result<T, Failure>, Option<(RecordId, Applied)>),
    /// It is for the worker.
    NotHere,
}

impl Drop for Handed {
    fn drop(&mut self) {
        self.0.handed.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Shared {
    pub(super) fn new(offset_ms: i64) -> Arc<Self> {
        let (core, handed, is_slow, listens) =
            (Mutex::default(), AtomicUsize::new(0), AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { core, offset_ms, handed, is_slow, listens })
    }

    /// # Panics
    /// After a panic of another thread in the midst of a change, as the worker would have in it.
    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("no change of the directory panics")
    }

    /// The same at the end, and whether no thread panicked in the midst of a change.
    pub(super) fn last(&self) -> (MutexGuard<'_, Core>, bool) {
        match self.core.lock() {
            Ok(core) => (core, true),
            Err(poisoned) => (poisoned.into_inner(), false),
        }
    }

    /// Notes that the worker gets a request: those that come later do not pass it.
    pub(super) fn hand_over(self: &Arc<Self>) -> Handed {
        self.handed.fetch_add(1, Ordering::AcqRel);
        Handed(Arc::clone(self))
    }

    /// Notes how long so many changes took.
    pub(super) fn took(&self, time: Duration, changes: usize) {
        self.is_slow.store(time > QUICK * changes.max(1) as u32, Ordering::Relaxed);
    }

    /// Carries out a request about a lock at once, if that waits for nothing.
    pub(super) fn call(&self, runtime: &dyn Runtime, op: &Op) -> Tried<Answer> {
        let queues = matches!(op.rule, LockSpec::Queue(_));
        // A socket is opened for what waits, and that takes the worker's reactor.
        let may_wait = match op.verb {
            Verb::Acquire { wait_ms, .. } => queues && wait_ms.is_some(),
            Verb::Renew { bind, weight, .. } => queues && (bind.is_some() || weight.is_some()),
            _ => false,
        };
        if may_wait && matches!(op.verb, Verb::Renew { .. }) {
            return Tried::NotHere;
        }
        self.at_once(runtime, |directory, holders| {
            let mut inside = match directory.enter(None) {
                Ok(Entered::Inside(inside)) => inside,
                Ok(Entered::Locked | Entered::Replaced) => return Tried::NotHere,
                Err(failure) => return Tried::Done(Err(failure), None),
            };
            let id = RecordId::of(&op.name);
            let may_come_in = holders.asks(id) && !holders.has_socket();
            if (may_wait || may_come_in) && inside.has(id) {
                return Tried::NotHere;
            }
            let now = now(runtime, self.offset_ms);
            let applied = apply(&mut inside, holders, now, runtime, op);
            drop(inside);
            match applied {
                Ok(applied) => {
                    applied.calls.iter().for_each(|holder| directory.call(*holder, id));
                    Tried::Done(Ok(applied.answer.clone()), Some((id, applied)))
                }
                Err(failure) => Tried::Done(Err(failure), None),
            }
        })
    }

    /// The same for a request about the record beside a lock.
    pub(super) fn record(&self, runtime: &dyn Runtime, op: &RecordOp) -> Tried<RecordAnswer> {
        self.at_once(runtime, |directory, holders| {
            let mut inside = match directory.enter(None) {
                Ok(Entered::Inside(inside)) => inside,
                Ok(Entered::Locked | Entered::Replaced) => return Tried::NotHere,
                Err(failure) => return Tried::Done(Err(failure), None),
            };
            let now = now(runtime, self.offset_ms);
            let answer = apply_to_record(&mut inside, holders, now, runtime, op);
            drop(inside);
            match answer {
                Ok((answer, applied)) => {
                    let id = RecordId::of(&op.lock);
                    let calls = applied.iter().flat_map(|applied| &applied.calls);
                    calls.for_each(|holder| directory.call(*holder, id));
                    Tried::Done(Ok(answer), applied.map(|applied| (id, applied)))
                }
                Err(failure) => Tried::Done(Err(failure), None),
            }
        })
    }

    /// Says that the store answers, where that was shown before.
    pub(super) fn ready(&self, runtime: &dyn Runtime) -> Tried<()> {
        self.at_once(runtime, |directory, _| match directory.enter(None) {
            Ok(Entered::Inside(inside)) if inside.is_proven() => Tried::Done(Ok(()), None),
            Ok(_) => Tried::NotHere,
            Err(failure) => Tried::Done(Err(failure), None),
        })
    }

    fn at_once<T>(
        &self,
        runtime: &dyn Runtime,
        change: impl FnOnce(&Directory, &mut Holders) -> Tried<T>,
    ) -> Tried<T> {
        if self.is_slow.load(Ordering::Relaxed) {
            return Tried::NotHere;
        }
        let mut core = match self.core.try_lock() {
            Ok(core) => core,
            // The worker says of a thread that panicked that it ends.
            Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => return Tried::NotHere,
        };
        // Asked with the lock: no request is handed over between this and the change and is
        // carried out before.
        if self.handed.load(Ordering::Acquire) > 0 {
            return Tried::NotHere;
        }
        let begun = runtime.now();
        let Core { directory, holders, swept } = &mut *core;
        let is_swept = swept.is_some_and(|swept| begun.since(swept) < SWEEP);
        let Some(directory) = directory.as_ref().filter(|_| is_swept) else { return Tried::NotHere };
        let tried = change(directory, holders);
        if let Tried::Done(..) = tried {
            self.took(runtime.now().since(begun), 1);
        }
        tried
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::name::LockName;
    use tenure_core::owner::Owner;
    use tenure_core::runtime::Driver;

    #[test]
    fn a_request_is_for_the_worker_after_a_slow_change_and_behind_another_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let runtime = Driver::start().expect("a thread");
        let shared = Shared::new(0);
        let name = LockName::new("x").expect("a name");
        let owner = Owner::fresh("", &*runtime);
        let op = Op { name, rule: LockSpec::Mutex, owner, request: 0, verb: Verb::Inspect };
        let is_here = || {
            shared.took(Duration::ZERO, 1);
            matches!(shared.call(&*runtime, &op), Tried::Done(Ok(Answer::Free), _))
        };
        assert!(!is_here(), "the directory is not open");
        {
            let mut core = shared.core();
            core.directory = Some(Directory::open(dir.path()).expect("a directory"));
            assert!(!is_here(), "the worker is inside");
        }
        assert!(!is_here(), "what crashed was not cleared away yet");
        shared.core().swept = Some(runtime.now());
        assert!(is_here());
        shared.took(10 * QUICK, 20);
        assert!(matches!(shared.call(&*runtime, &op), Tried::Done(..)), "half of what is slow");
        shared.took(10 * QUICK, 9);
        assert!(matches!(shared.call(&*runtime, &op), Tried::NotHere));
        let handed = shared.hand_over();
        assert!(!is_here());
        drop(handed);
        assert!(is_here());
        runtime.stop();
    }
}
