//! What the worker is asked for.

use std::time::Duration;

use tokio::sync::oneshot;

use crate::apply::Applied;
use crate::names::RecordId;
use crate::shared::Handed;
use crate::watch::Hears;
use tenure_core::moment::Moment;
use tenure_core::name::LockName;
use tenure_core::protocol::record::{RecordAnswer, RecordOp};
use tenure_core::protocol::{Answer, Op};
use tenure_core::store::{Cursor, Failure, Listener, Page};

/// A request, and by when it must be answered.
pub(crate) struct Job {
    pub(super) ask: Request,
    pub(super) within: Duration,
    pub(super) until: Moment,
    /// How often it was given its time again because this process had no processor.
    pub(super) starved: u32,
    /// While it is here, no later request is carried out elsewhere.
    pub(super) _handed: Option<Handed>,
}

impl Job {
    pub(crate) fn new(ask: Request, now: Moment, within: Duration, handed: Option<Handed>) -> Self {
        Self { ask, within, until: now + within, starved: 0, _handed: handed }
    }
}

pub(crate) type Promise<T> = oneshot::Sender<Result<T, Failure>>;

pub(crate) enum Request {
    Call(Op, Promise<Answer>),
    Record(RecordOp, Promise<RecordAnswer>),
    Listen {
        name: LockName,
        hears: Hears,
        promise: Promise<Listener>,
    },
    /// For holders of this lock.
    ListenWhileHeld(LockName, Promise<Listener>),
    /// This process asks no more for a lock without a queue.
    Rest(RecordId),
    List {
        prefix: String,
        from: Cursor,
        promise: Promise<Page>,
    },
    Ready(Promise<()>),
    /// A caller's thread has done this: those who listen are to hear of it.
    Heard((RecordId, Applied)),
}

impl Request {
    // The process that asked may be gone: no process is left to tell then.
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
