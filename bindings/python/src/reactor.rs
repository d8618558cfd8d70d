//! Runs calls in an event loop. A wake-up writes to a descriptor that the loop watches, so that no thread of
//! the library ever waits for the GIL, and one wake-up serves all calls that are ready by then.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use pyo3::intern;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::op::Op;
use crate::process::{Owned, Process, lock};

/// The calls to poll.
struct Ready {
    queue: Mutex<Vec<u64>>,
    fd: OwnedFd,
}

/// A call in progress.
pub struct Task {
    ready: Arc<Ready>,
    id: u64,
    is_queued: AtomicBool,
}

impl Task {
    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn waker(self: &Arc<Self>) -> Waker {
        Arc::clone(self).into()
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut queue = lock(&self.ready.queue);
        queue.push(self.id);
        if queue.len() == 1 {
            // The write never blocks: an eventfd is a counter, which will not overflow.
            let _ = rustix::io::write(&self.ready.fd, &1_u64.to_ne_bytes());
        }
    }
}

struct Entry {
    op: Py<Op>,
    task: Arc<Task>,
    sink: Py<PyAny>,
}

/// The calls in progress in one event loop, by id.
#[derive(Default)]
pub struct Entries(Mutex<BTreeMap<u64, Entry>>);

impl Entries {
    /// Drops the futures of the calls; their Python objects stay.
    pub fn end(&self) {
        let ended: Vec<_> = lock(&self.0).values().map(|entry| entry.op.get().end()).collect();
        drop(ended);
    }
}

/// The calls of one event loop.
#[pyclass(frozen, module = "tenure._native")]
pub struct Reactor {
    ready: Owned<Arc<Ready>>,
    entries: Owned<Arc<Entries>>,
    next: AtomicU64,
}

impl Reactor {
    pub fn add(&self, op: Py<Op>, sink: Py<PyAny>) -> PyResult<Arc<Task>> {
        let (ready, id) = (Arc::clone(self.ready.get()?), self.next.fetch_add(1, Ordering::Relaxed));
        let task = Arc::new(Task { ready, id, is_queued: AtomicBool::new(false) });
        lock(&self.entries.get()?.0).insert(id, Entry { op, task: Arc::clone(&task), sink });
        Ok(task)
    }
}

#[pymethods]
impl Reactor {
    #[new]
    fn new() -> PyResult<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(std::io::Error::from)?;
        let ready = Owned::new(Arc::new(Ready { queue: Mutex::default(), fd }));
        let entries = Arc::default();
        Process::current().add_reactor(&entries);
        Ok(Self { ready, entries: Owned::new(entries), next: AtomicU64::new(0) })
    }

    /// The descriptor that is readable while calls are ready.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.ready.get()?.fd.as_raw_fd())
    }

    /// Polls the calls that are ready, and notifies the sinks of those that are done.
    fn turn(&self, py: Python<'_>) -> PyResult<()> {
        let (ready, all) = (self.ready.get()?, &self.entries.get()?.0);
        let ids = {
            let mut queue = lock(&ready.queue);
            let _ = rustix::io::read(&ready.fd, &mut [0_u8; 8]);
            std::mem::take(&mut *queue)
        };
        for id in ids {
            let found = {
                let entries = lock(all);
                entries.get(&id).map(|entry| (entry.op.clone_ref(py), Arc::clone(&entry.task)))
            };
            let Some((op, task)) = found else { continue };
            // Before the poll, so that a wake-up during the poll counts. A swap, and not a store: the poll sees what
            // was done before a wake-up that still found `true`.
            task.is_queued.swap(false, Ordering::AcqRel);
            if op.get().poll(&mut Context::from_waker(&task.waker()))?.is_ready() {
                let entry = lock(all).remove(&id);
                let Some(entry) = entry else { continue };
                // The future of a cancelled task refuses the result.
                let told = entry.sink.call_method1(py, intern!(py, "set_result"), (py.None(),));
                drop(told);
            }
        }
        Ok(())
    }

    /// Removes a cancelled call.
    pub fn forget(&self, id: u64) -> PyResult<()> {
        let entry = lock(&self.entries.get()?.0).remove(&id);
        drop(entry);
        Ok(())
    }

    /// Blocks until calls are ready. For a thread without an event loop.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        let ready = self.ready.get()?;
        py.detach(|| {
            let _ = poll(&mut [PollFd::new(&ready.fd, PollFlags::IN)], None);
        });
        Ok(())
    }

    /// Ends a `wait`.
    fn wake(&self) -> PyResult<()> {
        let _ = rustix::io::write(&self.ready.get()?.fd, &1_u64.to_ne_bytes());
        Ok(())
    }

    /// The number of calls in progress.
    fn __len__(&self) -> PyResult<usize> {
        Ok(lock(&self.entries.get()?.0).len())
    }
}
