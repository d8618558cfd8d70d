//! Hands requests to the worker.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::oneshot::error::RecvError;
use tokio::sync::{Notify, oneshot};

use super::names::LockKey;
use super::server::{Row, Server};
use crate::moment::Moment;
use crate::protocol::record::{RecordAnswer, RecordOp};
use crate::protocol::{Answer, Op};
use crate::runtime::{Runtime, SharedTask};
use crate::store::{Failure, FirstConnection, Signals};
use crate::sync::Locked;

/// Sends the answer to a caller.
pub(super) type ReplySender<T> = oneshot::Sender<Result<T, Failure>>;

/// A request and the sender of its answer.
pub(super) enum QueuedOp {
    Lock(Op, ReplySender<Answer>),
    Record(RecordOp, ReplySender<RecordAnswer>),
    /// A statement that is not about one lock. With `at_once` it fails as soon as a connection attempt fails.
    Plain {
        plain: PlainStatement,
        at_once: bool,
        reply: ReplySender<Vec<Row>>,
    },
}

/// A statement that is not about one lock.
#[derive(Clone)]
pub(super) enum PlainStatement {
    /// A page of the listing.
    List { prefix: String, after: String },
    /// A page of the rows with records.
    Records { prefix: String, after: String },
    /// The rows of these locks.
    Read { names: Vec<String> },
    /// Deletes the rows of clients that name these sessions.
    ForgetSessions { keys: Vec<LockKey> },
    /// A no-op that shows that the server answers.
    Ping,
}

impl QueuedOp {
    /// Answers with a failure.
    pub(super) fn fail(self, failure: Failure) {
        match self {
            Self::Lock(_, reply) => drop(reply.send(Err(failure))),
            Self::Record(_, reply) => drop(reply.send(Err(failure))),
            Self::Plain { reply, .. } => drop(reply.send(Err(failure))),
        }
    }

    /// Whether the caller no longer waits for the answer.
    pub(super) fn is_left(&self) -> bool {
        match self {
            Self::Lock(_, reply) => reply.is_closed(),
            Self::Record(_, reply) => reply.is_closed(),
            Self::Plain { reply, .. } => reply.is_closed(),
        }
    }
}

/// A queued request with its deadline. Numbers are in request order.
pub(super) struct QueuedRequest {
    pub(super) ask: QueuedOp,
    pub(super) due: Moment,
    pub(super) number: u64,
}

/// Hands requests to the worker. The worker ends when the store is dropped.
pub(super) struct Inbox {
    pub(super) server: Arc<dyn Server>,
    pub(super) runtime: Arc<dyn Runtime>,
    /// Constructs the worker's future.
    worker: fn(Arc<Self>) -> BoxFuture<'static, ()>,
    task: OnceLock<Weak<SharedTask>>,
    state: Locked<InboxState>,
    // Relaxed: they only decide which thread sends a request.
    is_idle: AtomicBool,
    has_listeners: AtomicBool,
    pub(super) first: Arc<FirstConnection>,
    /// Wakes the worker.
    pub(super) work: Notify,
    /// Interrupted when the connection was lost and re-established.
    pub(super) signals: Signals,
}

#[derive(Default)]
struct InboxState {
    asked: VecDeque<QueuedRequest>,
    next: u64,
    runs: bool,
    closed: bool,
}

impl Inbox {
    pub(super) fn new(
        server: Arc<dyn Server>,
        runtime: Arc<dyn Runtime>,
        worker: fn(Arc<Self>) -> BoxFuture<'static, ()>,
    ) -> Arc<Self> {
        Arc::new(Self {
            server,
            runtime,
            worker,
            task: OnceLock::new(),
            state: Locked::default(),
            is_idle: AtomicBool::new(false),
            has_listeners: AtomicBool::new(false),
            first: Arc::default(),
            work: Notify::new(),
            signals: Signals::default(),
        })
    }

    /// Submits a request and waits for its answer. The worker answers within the timeout; a closed inbox at once.
    pub(super) async fn ask<T>(
        self: &Arc<Self>,
        within: Duration,
        ask: impl FnOnce(ReplySender<T>) -> QueuedOp,
    ) -> Result<T, Failure> {
        let due = self.runtime.now() + within;
        let (reply, answer) = oneshot::channel();
        let starts = {
            let mut state = self.state.lock();
            if state.closed {
                return Err(closed());
            }
            let number = state.next;
            state.next += 1;
            state.asked.push_back(QueuedRequest { ask: ask(reply), due, number });
            !std::mem::replace(&mut state.runs, true)
        };
        if starts {
            let (worker, end) = ((self.worker)(Arc::clone(self)), WorkerEnd(Arc::clone(self)));
            let runs = async move {
                let _end = end;
                worker.await;
            };
            let task = SharedTask::spawn(Arc::clone(&self.runtime), runs.boxed());
            self.task.get_or_init(|| task);
        } else if let Some(task) = self.idle_task() {
            return received(task.wake_here(|| self.work.notify_one(), answer).await);
        } else {
            self.notify();
        }
        received(answer.await)
    }

    /// Wakes the worker on the runtime's thread.
    fn notify(&self) {
        if let Some(task) = self.task.get().and_then(Weak::upgrade) {
            task.call_home();
        }
        self.work.notify_one();
    }

    /// The worker, if a request would leave alone: the caller's thread then sends it. While tasks of this process
    /// wait for a lock, its release has to meet the acquire of the next one.
    fn idle_task(&self) -> Option<Arc<SharedTask>> {
        let is_alone =
            self.is_idle.swap(false, Ordering::Relaxed) && !self.has_listeners.load(Ordering::Relaxed);
        self.task.get().filter(|_| is_alone)?.upgrade()
    }

    /// Whether nothing is under way, and requests do not come in groups.
    pub(super) fn set_idle(&self, is_idle: bool) {
        self.is_idle.store(is_idle, Ordering::Relaxed);
    }

    pub(super) fn set_listeners(&self, has_listeners: bool) {
        self.has_listeners.store(has_listeners, Ordering::Relaxed);
    }

    /// The requests since the last call, in order.
    pub(super) fn take(&self) -> VecDeque<QueuedRequest> {
        std::mem::take(&mut self.state.lock().asked)
    }

    pub(super) fn close(&self) {
        self.end().into_iter().for_each(|request| request.ask.fail(closed()));
        self.notify();
    }

    /// Refuses further requests, and returns those that nobody has taken.
    fn end(&self) -> VecDeque<QueuedRequest> {
        let mut state = self.state.lock();
        state.closed = true;
        std::mem::take(&mut state.asked)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }
}

/// The end of the worker, also by a panic: nobody answers what is asked, or will be.
struct WorkerEnd(Arc<Inbox>);

impl Drop for WorkerEnd {
    fn drop(&mut self) {
        drop(self.0.end());
    }
}

fn received<T>(answer: Result<Result<T, Failure>, RecvError>) -> Result<T, Failure> {
    answer.unwrap_or_else(|_| Err(Failure::Unknown(Failure::cause("the store's thread has ended"))))
}

fn closed() -> Failure {
    Failure::NotSent(Failure::cause("the store was dropped, or its thread has ended"))
}

#[cfg(test)]
mod tests {
    use futures_util::future::pending;

    use super::super::server::ServerConnection;
    use super::*;
    use crate::runtime::{Driver, block_on};

    #[derive(Debug)]
    struct Unreached;

    impl Server for Unreached {
        fn connect<'a>(&'a self, _: Option<&'a str>) -> BoxFuture<'a, Result<ServerConnection, Failure>> {
            pending().boxed()
        }

        fn no_connection(&self) -> Failure {
            Failure::NotSent(Failure::cause("not reached"))
        }

        fn has_notifications(&self) -> bool {
            false
        }

        fn has_soft_releases(&self) -> bool {
            false
        }

        fn shown(&self) -> Arc<str> {
            "test:".into()
        }
    }

    #[test]
    fn nobody_waits_for_a_worker_that_has_panicked() {
        let driver = Driver::start().expect("a thread");
        let worker = |_| async { panic!("a worker that panics, on purpose") }.boxed();
        let inbox = Inbox::new(Arc::new(Unreached), Arc::clone(&driver) as _, worker);
        let ask = async || {
            let ping = |reply| QueuedOp::Plain { plain: PlainStatement::Ping, at_once: false, reply };
            inbox.ask(Duration::from_secs(20), ping).await
        };
        for _ in 0..3 {
            let failure = block_on(ask()).expect_err("nobody answers");
            assert!(failure.to_string().contains("thread has ended"), "{failure}");
        }
        driver.stop();
    }
}
