//! The state of this process. A forked child starts anew, because threads do not survive a fork, and their
//! mutexes may be locked forever.

use std::collections::BTreeMap;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};

use crate::error;
use crate::guard::Slot;
use crate::locks::Root;
use crate::op::Cancel;
use crate::reactor::Entries;

/// The state of one process.
#[derive(Default)]
pub struct Process {
    id: u32,
    /// The state of a child, after a fork. A list rather than a cell: a child must not wait for a lock that a
    /// thread of its parent held at the fork.
    child: OnceLock<Box<Self>>,
    runtime: OnceLock<Runtime>,
    next: AtomicU64,
    /// Unreleased guards.
    holds: Mutex<BTreeMap<u64, Weak<Slot>>>,
    /// Calls that block a thread.
    waits: Mutex<BTreeMap<u64, Arc<Cancel>>>,
    reactors: Mutex<Vec<Weak<Entries>>>,
    roots: Mutex<Vec<Weak<Root>>>,
    is_closing: AtomicBool,
}

static FIRST: OnceLock<Process> = OnceLock::new();
/// The id of this process, because a system call for each use would cost more than all else.
static ID: AtomicU32 = AtomicU32::new(0);

fn id() -> u32 {
    match ID.load(Ordering::Relaxed) {
        0 => forked(),
        id => id,
    }
}

/// Reads the id of this process again. The package calls this in each child of a fork.
#[pyfunction]
pub fn forked() -> u32 {
    let id = process::id();
    ID.store(id, Ordering::Relaxed);
    id
}

/// Locks a mutex whose content is consistent at all times.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    fn new(id: u32) -> Self {
        Self { id, ..Self::default() }
    }

    pub fn current() -> &'static Self {
        let id = id();
        let mut process = FIRST.get_or_init(|| Self::new(id));
        while process.id != id {
            process = process.child.get_or_init(|| Box::new(Self::new(id)));
        }
        process
    }

    /// Runs the requests of blocked threads, on one of these threads. A separate thread would cost two
    /// context switches per request.
    pub fn runtime(&self) -> &Runtime {
        self.runtime.get_or_init(|| {
            Builder::new_current_thread().enable_all().build().expect("the system has a file descriptor left")
        })
    }

    pub fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub fn add_hold(&self, slot: &Arc<Slot>) -> u64 {
        let id = self.next_id();
        lock(&self.holds).insert(id, Arc::downgrade(slot));
        id
    }

    pub fn remove_hold(&self, id: u64) {
        lock(&self.holds).remove(&id);
    }

    pub fn add_root(&self, root: &Arc<Root>) {
        let mut roots = lock(&self.roots);
        roots.retain(|root| root.strong_count() > 0);
        roots.push(Arc::downgrade(root));
    }

    pub fn add_reactor(&self, entries: &Arc<Entries>) {
        let mut reactors = lock(&self.reactors);
        reactors.retain(|entries| entries.strong_count() > 0);
        reactors.push(Arc::downgrade(entries));
    }

    /// Registers a call that blocks this thread, so that the shutdown of the interpreter can cancel it.
    pub fn waiting(&'static self, cancel: &Arc<Cancel>) -> Waiting {
        let id = self.next_id();
        lock(&self.waits).insert(id, Arc::clone(cancel));
        if self.is_closing() {
            cancel.set();
        }
        Waiting { process: self, id }
    }

    /// Cancels all waits, releases all guards, and waits for the releases.
    fn close(&self, most: Duration) {
        self.is_closing.store(true, Ordering::Release);
        for cancel in lock(&self.waits).values() {
            cancel.set();
        }
        for entries in lock(&self.reactors).iter().filter_map(Weak::upgrade) {
            entries.end();
        }
        // Waiters first: a release would grant its lock to one of them.
        self.runtime().block_on(async {
            let gone = async {
                while !lock(&self.waits).is_empty() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let _ = tokio::time::timeout(most / 2, gone).await;
        });
        let holds = std::mem::take(&mut *lock(&self.holds));
        for slot in holds.values().filter_map(Weak::upgrade) {
            slot.clear();
        }
        let roots: Vec<_> = lock(&self.roots).iter().filter_map(Weak::upgrade).collect();
        self.runtime().block_on(async {
            let all = async {
                for root in &roots {
                    // If the store is unreachable, the leases expire.
                    let _ = root.locks().flush().await;
                }
            };
            let _ = tokio::time::timeout(most / 2, all).await;
        });
    }
}

/// A registered call, until it is dropped.
pub struct Waiting {
    process: &'static Process,
    id: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        lock(&self.process.waits).remove(&self.id);
    }
}

/// A value that only its process may use or drop.
pub struct Owned<T> {
    process: u32,
    value: Option<T>,
}

impl<T> Owned<T> {
    pub fn new(value: T) -> Self {
        Self { process: id(), value: Some(value) }
    }

    pub fn is_foreign(&self) -> bool {
        self.process != id()
    }

    /// The value, or `ForkedError` in a child of its process.
    pub fn get(&self) -> PyResult<&T> {
        match &self.value {
            Some(value) if !self.is_foreign() => Ok(value),
            _ => Err(error::forked()),
        }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // A drop would take locks that a thread of the parent may have held at the fork.
        if self.is_foreign() {
            std::mem::forget(self.value.take());
        }
    }
}

/// The descriptors of `file:` stores that a child of a fork has to close. Empties their list.
#[pyfunction]
pub fn take_inherited_files() -> Vec<i32> {
    tenure::bindings::take_inherited_files()
}

/// Cancels all waits and releases all holds, within `seconds`. For `atexit`.
#[pyfunction]
pub fn close(py: Python<'_>, seconds: f64) {
    py.detach(|| Process::current().close(Duration::from_secs_f64(seconds)));
}
