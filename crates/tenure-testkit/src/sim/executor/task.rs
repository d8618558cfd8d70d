//! Tasks, and the queue of due events.

use super::*;

pub(super) struct Task {
    pub(super) process: ProcessId,
    /// Taken out while it is polled; `None` for good once it is done.
    pub(super) future: Option<BoxFuture<'static, ()>>,
    pub(super) done: bool,
    pub(super) waker: Arc<TaskWaker>,
}

#[derive(Default)]
pub(super) struct Life {
    pub(super) paused: bool,
    pub(super) dead: bool,
    /// Runnable tasks of a paused process.
    pub(super) parked: Vec<u32>,
    pub(super) resumed_at: TrueTime,
}

pub(super) struct TaskWaker {
    pub(super) id: u32,
    pub(super) queued: AtomicBool,
    pub(super) woken: Arc<Mutex<Vec<u32>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            lock(&self.woken).push(self.id);
        }
    }
}

pub(super) struct Due {
    pub(super) at: TrueTime,
    /// Order among events due at the same time.
    pub(super) number: u64,
    pub(super) what: What,
}

pub(super) enum What {
    Timer(Arc<Mutex<Option<Waker>>>),
    Event(Box<dyn FnOnce() + Send>),
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
