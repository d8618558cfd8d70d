//! The queued and running requests of one lock.

use std::collections::VecDeque;

use super::group::Group;
use super::inbox::Request;
use super::names::Key;
use tenure_core::moment::Moment;

pub(super) struct LockQueue {
    pub(super) key: Key,
    pub(super) queue: VecDeque<Request>,
    /// Requests being executed.
    pub(super) running: Vec<Request>,
    pub(super) step: Step,
    /// Consecutive writes that failed to apply.
    pub(super) tries: u32,
    /// The row's serial at the last failed write.
    pub(super) met: Option<i64>,
}

pub(super) enum Step {
    Idle,
    /// A single statement that may complete the request.
    Fast {
        sent: Moment,
    },
    Reading,
    Writing {
        group: Group,
    },
}

impl LockQueue {
    pub(super) fn new(key: Key) -> Self {
        let (queue, running) = (VecDeque::new(), Vec::new());
        Self { key, queue, running, step: Step::Idle, tries: 0, met: None }
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.step, Step::Idle) && self.running.is_empty()
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_idle() && self.queue.is_empty()
    }
}
