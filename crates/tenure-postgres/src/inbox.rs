//! Where requests are handed in, and who hears that the connection was made again.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::{Notify, oneshot};

use super::server::{Row, Server};
use tenure_core::moment::Moment;
use tenure_core::protocol::record::{RecordAnswer, RecordOp};
use tenure_core::protocol::{Answer, Op};
use tenure_core::runtime::Runtime;
use tenure_core::store::Failure;

/// The end that waits for an answer.
pub(super) type Reply<T> = oneshot::Sender<Result<T, Failure>>;

/// What is asked, and the end that waits for the answer.
pub(super) enum Ask {
    Lock(Op, Reply<Answer>),
    Record(RecordOp, Reply<RecordAnswer>),
    /// A statement about no lock in particular. With `at_once` it fails as soon as the server
    /// cannot be dialled.
    Plain {
        plain: Plain,
        at_once: bool,
        reply: Reply<Vec<Row>>,
    },
}

/// A statement about no lock in particular.
#[derive(Clone)]
pub(super) enum Plain {
    /// A part of the locks.
    List { prefix: String, after: String },
    /// Nothing.
    Ping,
}

impl Ask {
    /// Ends it without an answer.
    pub(super) fn fail(self, failure: Failure) {
        match self {
            Self::Lock(_, reply) => drop(reply.send(Err(failure))),
            Self::Record(_, reply) => drop(reply.send(Err(failure))),
            Self::Plain { reply, .. } => drop(reply.send(Err(failure))),
        }
    }

    /// Whether no client waits for the answer any more.
    pub(super) fn is_left(&self) -> bool {
        match self {
            Self::Lock(_, reply) => reply.is_closed(),
            Self::Record(_, reply) => reply.is_closed(),
            Self::Plain { reply, .. } => reply.is_closed(),
        }
    }
}

/// A request, in the order in which they are asked.
pub(super) struct Request {
    pub(super) ask: Ask,
    pub(super) due: Moment,
    pub(super) number: u64,
}

/// Takes requests for the worker. Dropping the last of a store's ends the worker.
pub(super) struct Inbox {
    pub(super) server: Arc<dyn Server>,
    pub(super) runtime: Arc<dyn Runtime>,
    /// Makes the worker.
    worker: fn(Arc<Self>) -> BoxFuture<'static, ()>,
    state: Mutex<State>,
    /// Tells the worker that there is something to do.
    pub(super) work: Notify,
    /// Told when the connection was made again.
    again: Notify,
}

#[derive(Default)]
struct State {
    asked: VecDeque<Request>,
    next: u64,
    runs: bool,
    closed: bool,
    /// How often it was connected.
    connects: u64,
}

impl Inbox {
    pub(super) fn new(
        server: Arc<dyn Server>,
        runtime: Arc<dyn Runtime>,
        worker: fn(Arc<Self>) -> BoxFuture<'static, ()>,
    ) -> Arc<Self> {
        let (state, work, again) = (Mutex::default(), Notify::new(), Notify::new());
        Arc::new(Self { server, runtime, worker, state, work, again })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half-way, so a poisoned state is as good as another.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands in a request, and waits for its answer. The worker answers each within its time.
    pub(super) async fn ask<T>(
        self: &Arc<Self>,
        within: Duration,
        ask: impl FnOnce(Reply<T>) -> Ask,
    ) -> Result<T, Failure> {
        let due = self.runtime.now() + within;
        let (reply, answer) = oneshot::channel();
        let starts = {
            let mut state = self.state();
            let number = state.next;
            state.next += 1;
            state.asked.push_back(Request { ask: ask(reply), due, number });
            !std::mem::replace(&mut state.runs, true)
        };
        if starts {
            self.runtime.spawn((self.worker)(Arc::clone(self)));
        } else {
            self.work.notify_one();
        }
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::Unknown(Failure::cause("the thread that asks has ended"))),
        }
    }

    /// What was asked since the last time, in order.
    pub(super) fn take(&self) -> VecDeque<Request> {
        std::mem::take(&mut self.state().asked)
    }

    pub(super) fn close(&self) {
        self.state().closed = true;
        self.work.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// A connection was made.
    pub(super) fn connected(&self) {
        self.state().connects += 1;
        self.again.notify_waiters();
    }

    /// How often the connection was lost and made again. The first connection interrupts nothing.
    pub(super) fn interruptions(&self) -> u64 {
        self.state().connects.saturating_sub(1)
    }

    /// Completes when the connection has been lost and made again.
    pub(super) fn reconnected(self: &Arc<Self>) -> BoxFuture<'static, ()> {
        let inbox = Arc::clone(self);
        let before = inbox.interruptions();
        async move {
            loop {
                let mut again = pin!(inbox.again.notified());
                again.as_mut().enable();
                if inbox.interruptions() > before {
                    return;
                }
                again.await;
            }
        }
        .boxed()
    }
}
