//! State shared by the callers' threads and the worker, and the requests that are executed on a caller's
//! thread.
//!
//! A caller's thread executes a request itself if that does not block: the directory is open, its guard is
//! free, the worker has no earlier request, and recent changes were fast. Otherwise the request goes to the
//! worker. A stalled disk therefore blocks a caller's thread for at most one change.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use super::apply::{Applied, apply, now};
use super::beside::apply_to_record;
use super::directory::{Directory, Entered, Inside};
use super::holders::HolderFiles;
use super::names::RecordId;
use tenure_core::moment::Moment;
use tenure_core::protocol::record::{RecordAnswer, RecordOp};
use tenure_core::protocol::{Answer, LockSpec, Op, Verb};
use tenure_core::runtime::Runtime;
use tenure_core::store::Failure;

/// Duration of a change above which the next one is left to the worker.
const QUICK: Duration = Duration::from_micros(100);
/// Interval between sweeps of expired and crashed entries.
pub(super) const SWEEP: Duration = Duration::from_secs(60);

/// The directory and what this process has there. Whoever locks this may take the directory's guard.
#[derive(Debug, Default)]
pub(super) struct Core {
    pub(super) directory: Option<Directory>,
    pub(super) holders: HolderFiles,
    pub(super) swept: Option<Moment>,
}

#[derive(Debug)]
pub(super) struct SharedDirectory {
    core: Mutex<Core>,
    /// See [`boot_clock_offset_ms`](super::system::boot_clock_offset_ms).
    pub(super) offset_ms: i64,
    /// Number of requests with the worker.
    handed: AtomicUsize,
    is_slow: AtomicBool,
    /// Whether there are listeners, so that the worker must be told of changes.
    pub(super) listens: AtomicBool,
}

/// Counts a request as being with the worker until dropped.
#[derive(Debug)]
pub(super) struct Handed(Arc<SharedDirectory>);

/// Outcome of a request on a caller's thread.
pub(super) enum CallerOutcome<T> {
    /// Executed. Includes the changes, for the listeners.
    Done(Result<T, Failure>, Option<(RecordId, Applied)>),
    /// Left to the worker.
    NotHere,
}

impl Drop for Handed {
    fn drop(&mut self) {
        self.0.handed.fetch_sub(1, Ordering::AcqRel);
    }
}

impl SharedDirectory {
    pub(super) fn new(offset_ms: i64) -> Arc<Self> {
        let (core, handed, is_slow, listens) =
            (Mutex::default(), AtomicUsize::new(0), AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { core, offset_ms, handed, is_slow, listens })
    }

    /// Locks the core.
    ///
    /// # Panics
    /// If another thread panicked during a change.
    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("no change of the directory panics")
    }

    /// The core for shutdown, and whether no thread panicked during a change.
    pub(super) fn last(&self) -> (MutexGuard<'_, Core>, bool) {
        match self.core.lock() {
            Ok(core) => (core, true),
            Err(poisoned) => (poisoned.into_inner(), false),
        }
    }

    /// Registers a request that goes to the worker, so that later ones do not overtake it.
    pub(super) fn hand_over(self: &Arc<Self>) -> Handed {
        self.handed.fetch_add(1, Ordering::AcqRel);
        Handed(Arc::clone(self))
    }

    /// Records how long this many changes took.
    pub(super) fn took(&self, time: Duration, changes: usize) {
        self.is_slow.store(time > QUICK * changes.max(1) as u32, Ordering::Relaxed);
    }

    /// Executes a request about a lock if that does not block.
    pub(super) fn call(&self, runtime: &dyn Runtime, op: &Op) -> CallerOutcome<Answer> {
        let queues = matches!(op.spec, LockSpec::Queue(_));
        // A waiter needs a socket, and opening one requires the worker's reactor.
        let may_wait = match op.verb {
            Verb::Acquire { wait_ms, .. } => queues && wait_ms.is_some(),
            Verb::Renew { bind, weight, .. } => queues && (bind.is_some() || weight.is_some()),
            _ => false,
        };
        if may_wait && matches!(op.verb, Verb::Renew { .. }) {
            return CallerOutcome::NotHere;
        }
        let id = RecordId::of(&op.name);
        self.inside(runtime, id, |inside, holders| {
            let may_come_in = holders.asks(id) && !holders.has_socket();
            if (may_wait || may_come_in) && inside.has(id) {
                return None;
            }
            let applied = apply(inside, holders, now(runtime, self.offset_ms), runtime, op);
            Some(applied.map(|applied| (applied.answer.clone(), Some(applied))))
        })
    }

    /// Executes a request about the record beside a lock if that does not block.
    pub(super) fn record(&self, runtime: &dyn Runtime, op: &RecordOp) -> CallerOutcome<RecordAnswer> {
        self.inside(runtime, RecordId::of(&op.lock), |inside, holders| {
            Some(apply_to_record(inside, holders, now(runtime, self.offset_ms), runtime, op))
        })
    }

    /// Executes a request about one lock. `run` returns `None` if it would block.
    fn inside<T>(
        &self,
        runtime: &dyn Runtime,
        id: RecordId,
        run: impl FnOnce(&mut Inside<'_>, &mut HolderFiles) -> Option<Result<(T, Option<Applied>), Failure>>,
    ) -> CallerOutcome<T> {
        self.at_once(runtime, |directory, holders| {
            let mut inside = match directory.enter(None) {
                Ok(Entered::Inside(inside)) => inside,
                Ok(Entered::Locked | Entered::Replaced) => return CallerOutcome::NotHere,
                Err(failure) => return CallerOutcome::Done(Err(failure), None),
            };
            let Some(ran) = run(&mut inside, holders) else { return CallerOutcome::NotHere };
            drop(inside);
            match ran {
                Ok((answer, applied)) => {
                    let calls = applied.iter().flat_map(|applied| &applied.calls);
                    calls.for_each(|holder| directory.call(*holder, id));
                    CallerOutcome::Done(Ok(answer), applied.map(|applied| (id, applied)))
                }
                Err(failure) => CallerOutcome::Done(Err(failure), None),
            }
        })
    }

    /// Confirms that the store answers, if it was proven writable before.
    pub(super) fn ready(&self, runtime: &dyn Runtime) -> CallerOutcome<()> {
        self.at_once(runtime, |directory, _| match directory.enter(None) {
            Ok(Entered::Inside(inside)) if inside.is_proven() => CallerOutcome::Done(Ok(()), None),
            Ok(_) => CallerOutcome::NotHere,
            Err(failure) => CallerOutcome::Done(Err(failure), None),
        })
    }

    fn at_once<T>(
        &self,
        runtime: &dyn Runtime,
        change: impl FnOnce(&Directory, &mut HolderFiles) -> CallerOutcome<T>,
    ) -> CallerOutcome<T> {
        if self.is_slow.load(Ordering::Relaxed) {
            return CallerOutcome::NotHere;
        }
        let mut core = match self.core.try_lock() {
            Ok(core) => core,
            // After a panic of another thread the worker reports that the store has ended.
            Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => return CallerOutcome::NotHere,
        };
        // Checked under the lock, so that no request handed over before this change is overtaken.
        if self.handed.load(Ordering::Acquire) > 0 {
            return CallerOutcome::NotHere;
        }
        let begun = runtime.now();
        let Core { directory, holders, swept } = &mut *core;
        let is_swept = swept.is_some_and(|swept| begun.since(swept) < SWEEP);
        let Some(directory) = directory.as_ref().filter(|_| is_swept) else { return CallerOutcome::NotHere };
        let tried = change(directory, holders);
        if let CallerOutcome::Done(..) = tried {
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
        let shared = SharedDirectory::new(0);
        let name = LockName::new("x").expect("a name");
        let owner = Owner::fresh("", &*runtime);
        let op = Op { name, spec: LockSpec::Mutex, owner, request: 0, verb: Verb::Inspect };
        let is_here = || {
            shared.took(Duration::ZERO, 1);
            matches!(shared.call(&*runtime, &op), CallerOutcome::Done(Ok(Answer::Free), _))
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
        assert!(matches!(shared.call(&*runtime, &op), CallerOutcome::Done(..)), "half of what is slow");
        shared.took(10 * QUICK, 9);
        assert!(matches!(shared.call(&*runtime, &op), CallerOutcome::NotHere));
        let handed = shared.hand_over();
        assert!(!is_here());
        drop(handed);
        assert!(is_here());
        runtime.stop();
    }
}
