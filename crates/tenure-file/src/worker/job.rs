//! Requests to the worker.

use std::time::Duration;

use tokio::sync::oneshot;

use crate::apply::Applied;
use crate::names::RecordId;
use crate::shared::Handed;
use crate::watch::WatchMode;
use tenure_core::moment::Moment;
use tenure_core::name::LockName;
use tenure_core::protocol::record::{RecordAnswer, RecordOp};
use tenure_core::protocol::{Answer, Op};
use tenure_core::store::{Cursor, Failure, Listener, Page};

/// A request and its deadline.
pub(crate) struct Job {
    pub(super) ask: JobRequest,
    pub(super) sent: Moment,
    pub(super) within: Duration,
    pub(super) until: Moment,
    /// How many times its timeout was restarted because of CPU starvation.
    pub(super) starved: u32,
    /// Keeps later requests from being executed on callers' threads.
    pub(super) _handed: Option<Handed>,
}

impl Job {
    pub(crate) fn new(ask: JobRequest, now: Moment, within: Duration, handed: Option<Handed>) -> Self {
        Self { ask, sent: now, within, until: now + within, starved: 0, _handed: handed }
    }
}

pub(crate) type Promise<T> = oneshot::Sender<Result<T, Failure>>;

pub(crate) enum JobRequest {
    Call(Op, Promise<Answer>),
    Record(RecordOp, Promise<RecordAnswer>),
    Listen {
        name: LockName,
        hears: WatchMode,
        promise: Promise<Listener>,
    },
    /// For holders of this lock.
    ListenWhileHeld(LockName, Promise<Listener>),
    /// This process stops waiting for a lock without a queue.
    Rest(RecordId),
    List {
        prefix: String,
        from: Cursor,
        promise: Promise<Page>,
    },
    Ready(Promise<()>),
    /// A change made on a caller's thread, to be published to the listeners.
    Heard((RecordId, Applied)),
}

impl JobRequest {
    // The caller may have dropped its future, so a failed send is ignored.
    pub(super) fn fail(self, failure: Failure) {
        match self {
            Self::Call(_, promise) => drop(promise.send(Err(failure))),
            Self::Record(_, promise) => drop(promise.send(Err(failure))),
            Self::Listen { promise, .. } | Self::ListenWhileHeld(_, promise) => {
                drop(promise.send(Err(failure)))
            }
            Self::List { promise, .. } => drop(promise.send(Err(failure))),
            Self::Ready(promise) => drop(promise.send(Err(failure))),
            Self::Heard(_) | Self::Rest(_) => {}
        }
    }
}
