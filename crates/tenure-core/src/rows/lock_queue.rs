//! The queued and running requests of one lock.

use std::collections::VecDeque;

use super::execute::PendingAnswer;
use super::inbox::QueuedRequest;
use super::names::LockKey;
use super::sessions::KnownSessions;
use crate::moment::Moment;
use crate::store::Failure;
use crate::txn::Txn;

pub(super) struct LockQueue {
    pub(super) key: LockKey,
    pub(super) queue: VecDeque<QueuedRequest>,
    /// Requests being executed.
    pub(super) running: Vec<QueuedRequest>,
    pub(super) step: QueueStep,
    /// Of the running requests.
    pub(super) txn: Txn,
    /// Consecutive writes that failed to apply.
    pub(super) tries: u32,
    /// The row's serial at the last failed write.
    pub(super) met: Option<i64>,
    pub(super) sessions: KnownSessions,
}

pub(super) enum QueueStep {
    Idle,
    /// A single statement that may complete the request.
    Fast {
        sent: Moment,
    },
    Reading {
        sent: Moment,
    },
    Writing {
        /// The answers of the running requests, once the row is written.
        said: Vec<Result<PendingAnswer, Failure>>,
        /// If the answer arrives before this time, the lease that the write grants had not expired.
        until: Moment,
    },
}

impl LockQueue {
    pub(super) fn new(key: LockKey) -> Self {
        Self {
            key,
            queue: VecDeque::new(),
            running: Vec::new(),
            step: QueueStep::Idle,
            txn: Txn::default(),
            tries: 0,
            met: None,
            sessions: KnownSessions::default(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.step, QueueStep::Idle) && self.running.is_empty()
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_idle() && self.queue.is_empty()
    }
}
