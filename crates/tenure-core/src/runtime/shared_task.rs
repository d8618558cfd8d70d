//! A task of a runtime that callers may poll as well.

use std::future::poll_fn;
use std::sync::{Arc, MutexGuard, Weak};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::future::{BoxFuture, FutureExt};

use super::Runtime;
use crate::sync::Locked;

/// How often a caller polls the task that it keeps waking before it leaves it to the runtime.
const ROUNDS: u32 = 8;

/// A task of a runtime. A caller that has something for it may poll it at once, on its own thread, so that the
/// task need not wait until the runtime's thread has woken up.
pub struct SharedTask {
    runtime: Arc<dyn Runtime>,
    state: Locked<SharedTaskState>,
}

struct SharedTaskState {
    /// `None` while it is polled, and once it is over.
    future: Option<BoxFuture<'static, ()>>,
    is_polled: bool,
    /// The runtime has dropped the task.
    is_dropped: bool,
    /// Woken since it was last polled, by what it calls or by another thread.
    is_woken: bool,
    /// Wakes the runtime.
    home: Option<Waker>,
}

impl SharedTask {
    /// Spawns a task on this runtime, which drops it as any other.
    pub fn spawn(runtime: Arc<dyn Runtime>, future: BoxFuture<'static, ()>) -> Weak<Self> {
        let state = SharedTaskState {
            future: Some(future),
            is_polled: false,
            is_dropped: false,
            is_woken: false,
            home: None,
        };
        let task = Arc::new(Self { runtime, state: Locked::new(state) });
        let (weak, home) = (Arc::downgrade(&task), AtHome(Arc::clone(&task)));
        task.runtime.spawn(poll_fn(move |context| home.0.poll_at_home(context)).boxed());
        weak
    }

    /// Calls `wake`, which wakes the task, and has this thread poll it. That takes no longer than the task runs
    /// without waiting. On the runtime's own thread, or while another thread polls the task, this only calls `wake`.
    pub fn wake_here(self: &Arc<Self>, wake: impl FnOnce()) {
        let mut wake = Some(wake);
        self.runtime.run_here(&mut || {
            let future = self.begin();
            if let Some(wake) = wake.take() {
                wake();
            }
            if let Some(future) = future {
                self.poll(future, ROUNDS);
            }
        });
        if let Some(wake) = wake {
            wake();
        }
    }

    fn state(&self) -> MutexGuard<'_, SharedTaskState> {
        self.state.lock()
    }

    fn poll_at_home(self: &Arc<Self>, context: &Context<'_>) -> Poll<()> {
        self.state().home = Some(context.waker().clone());
        if let Some(future) = self.begin() {
            // Other tasks of the runtime run before a second round.
            self.poll(future, 1);
        }
        let state = self.state();
        match state.future.is_none() && !state.is_polled {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// The future, to be polled by this thread alone. If another one does, that will poll it again.
    fn begin(&self) -> Option<BoxFuture<'static, ()>> {
        let mut state = self.state();
        if state.is_polled {
            state.is_woken = true;
            return None;
        }
        let future = state.future.take()?;
        (state.is_polled, state.is_woken) = (true, false);
        Some(future)
    }

    fn poll(self: &Arc<Self>, mut future: BoxFuture<'static, ()>, rounds: u32) {
        let end = PollEnd(self);
        let waker = Waker::from(Arc::clone(self));
        let mut context = Context::from_waker(&waker);
        for round in 1.. {
            self.state().is_woken = false;
            if future.poll_unpin(&mut context).is_ready() {
                break;
            }
            let mut state = self.state();
            if state.is_dropped {
                break;
            }
            if !state.is_woken || round >= rounds {
                state.future = Some(future);
                break;
            }
        }
        drop(end);
    }
}

impl Wake for SharedTask {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let home = {
            let mut state = self.state();
            state.is_woken = true;
            if state.is_polled { None } else { state.home.clone() }
        };
        if let Some(home) = home {
            home.wake();
        }
    }
}

/// The task as its runtime has it. The future holds wakers of the task, so it would not be dropped with it.
struct AtHome(Arc<SharedTask>);

impl Drop for AtHome {
    fn drop(&mut self) {
        let future = {
            let mut state = self.0.state();
            state.is_dropped = true;
            (state.home.take(), state.future.take())
        };
        drop(future);
    }
}

/// The end of a poll, also by a panic, which drops the future: the runtime then ends its task.
struct PollEnd<'a>(&'a SharedTask);

impl Drop for PollEnd<'_> {
    fn drop(&mut self) {
        let home = {
            let mut state = self.0.state();
            state.is_polled = false;
            let is_due = state.is_woken || state.future.is_none();
            if is_due { state.home.clone() } else { None }
        };
        if let Some(home) = home {
            home.wake();
        }
    }
}

impl std::fmt::Debug for SharedTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedTask").field("runtime", &self.runtime).finish_non_exhaustive()
    }
}
