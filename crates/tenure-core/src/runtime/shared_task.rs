//! A task of a runtime that callers may poll as well.

use std::future::poll_fn;
use std::sync::{Arc, MutexGuard, Weak};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::future::{BoxFuture, FutureExt};
use tokio::task::unconstrained;

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
    /// without waiting, and a panic of the task unwinds from here. On the runtime's own thread, or while another thread
    /// polls the task, this only calls `wake`.
    pub fn wake_here(self: &Arc<Self>, wake: impl FnOnce()) {
        let mut wake = Some(wake);
        self.runtime.run_here(&mut || {
            let future = self.begin();
            if let Some(wake) = wake.take() {
                wake();
            }
            if let Some(future) = future {
                self.poll(future, false);
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
            self.poll(future, true);
        }
        let state = self.state();
        match state.future.is_none() && !state.is_polled {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Takes the future, to be polled by this thread alone. A thread that polls it already will do so again.
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

    fn poll(self: &Arc<Self>, mut future: BoxFuture<'static, ()>, is_home: bool) {
        // At home, other tasks run before a second round.
        let rounds = if is_home { 1 } else { ROUNDS };
        let end = PollEnd(self);
        let waker = Waker::from(Arc::clone(self));
        let mut context = Context::from_waker(&waker);
        for round in 1.. {
            self.state().is_woken = false;
            // What the caller's task has left of its budget is no limit here: tokio would defer the wake-up to the
            // caller's runtime.
            let is_over = match is_home {
                true => future.poll_unpin(&mut context).is_ready(),
                false => unconstrained(&mut future).poll_unpin(&mut context).is_ready(),
            };
            let mut state = self.state();
            if is_over || state.is_dropped {
                drop((state, future));
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

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    use tokio::sync::Notify;
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::runtime::Driver;

    const LIMIT: Duration = Duration::from_secs(20);

    /// A task that tells the thread of each of its rounds, one for each notification.
    fn task(driver: &Arc<Driver>) -> (Arc<SharedTask>, Arc<Notify>, Receiver<ThreadId>) {
        let (told, hears) = channel();
        let notified = Arc::<Notify>::default();
        let work = Arc::clone(&notified);
        let future = async move {
            while told.send(thread::current().id()).is_ok() {
                work.notified().await;
            }
        };
        let task = SharedTask::spawn(Arc::clone(driver) as _, future.boxed());
        (task.upgrade().expect("it runs"), notified, hears)
    }

    #[test]
    fn a_caller_has_its_work_done_on_its_own_thread() {
        let driver = Driver::start().expect("a thread");
        let (task, work, hears) = task(&driver);
        let first = hears.recv_timeout(LIMIT).expect("the first round");
        assert_ne!(first, thread::current().id());
        while task.state().is_polled {
            thread::yield_now();
        }
        task.wake_here(|| work.notify_one());
        assert_eq!(hears.try_recv(), Ok(thread::current().id()));
        // As before, if something else wakes it.
        work.notify_one();
        assert_eq!(hears.recv_timeout(LIMIT), Ok(first));
        driver.stop();
    }

    /// As if it had drained a channel before.
    #[test]
    fn a_caller_that_has_used_up_its_budget_does_the_work_too() {
        let driver = Driver::start().expect("a thread");
        let ((say, mut hears), (told, heard)) = (unbounded_channel(), channel());
        let future = async move {
            while let Some(number) = hears.recv().await {
                let _ = told.send((number, thread::current().id()));
            }
        };
        let task = SharedTask::spawn(Arc::clone(&driver) as _, future.boxed());
        let task = task.upgrade().expect("it runs");
        say.send(0).expect("it hears");
        assert!(heard.recv_timeout(LIMIT).is_ok());
        while task.state().is_polled {
            thread::yield_now();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(poll_fn(|context| {
            while pin!(tokio::task::consume_budget()).poll(context).is_ready() {}
            task.wake_here(|| say.send(1).expect("it hears"));
            Poll::Ready(())
        }));
        assert_eq!(heard.try_recv(), Ok((1, thread::current().id())));
        driver.stop();
    }

    #[test]
    fn no_wake_up_is_lost_between_threads() {
        const EACH: usize = 2_000;
        let driver = Driver::start().expect("a thread");
        let (told, hears) = channel();
        let (count, work) = (Arc::<Locked<usize>>::default(), Arc::<Notify>::default());
        let (counted, notified) = (Arc::clone(&count), Arc::clone(&work));
        let future = async move {
            while *counted.lock() < 3 * EACH {
                notified.notified().await;
            }
            let _ = told.send(());
        };
        let task = SharedTask::spawn(Arc::clone(&driver) as _, future.boxed());
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        *count.lock() += 1;
                        match task.upgrade() {
                            Some(task) => task.wake_here(|| work.notify_one()),
                            None => work.notify_one(),
                        }
                    }
                });
            }
        });
        assert_eq!(hears.recv_timeout(LIMIT), Ok(()));
        driver.stop();
    }

    /// Its future holds wakers of the task, as a connection does.
    #[test]
    fn it_is_dropped_with_its_runtime_and_after_a_panic() {
        let driver = Driver::start().expect("a thread");
        let (task, _work, hears) = task(&driver);
        assert!(hears.recv_timeout(LIMIT).is_ok());
        let weak = Arc::downgrade(&task);
        drop(task);
        driver.stop();
        driver.wait(LIMIT);
        assert!(weak.upgrade().is_none());

        let driver = Driver::start().expect("a thread");
        let work = Arc::<Notify>::default();
        let notified = Arc::clone(&work);
        let future = async move {
            notified.notified().await;
            panic!("a task that panics, on purpose");
        };
        let task = SharedTask::spawn(Arc::clone(&driver) as _, future.boxed());
        let waking = task.upgrade().expect("it runs");
        let wakes = || waking.wake_here(|| work.notify_one());
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(wakes));
        drop(waking);
        driver.stop();
        driver.wait(LIMIT);
        assert!(task.upgrade().is_none());
    }
}
