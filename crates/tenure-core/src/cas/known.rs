//! State shared by the tasks of a client that use one lock: the last known value, and the acquisitions
//! waiting for the next batch.

use std::time::Duration;

use tokio::sync::oneshot;

use super::WriteState;
use super::backend::{Stamp, Stored};
use super::leases::life;
use super::parts::Written;
use crate::protocol::{Answer, Liveness, Op, Verb};
use crate::store::Failure;

/// The last known value of a lock.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) stored: Option<Stored>,
    /// The last part of its queue: the creation of the lock, the part's number, and its text.
    tail: Option<(u64, u64, String)>,
}

impl Known {
    /// The cached text of a part of its queue. It may be outdated.
    pub(super) fn part(&self, base: u64, id: u64) -> Option<&str> {
        self.tail.as_ref().filter(|tail| (tail.0, tail.1) == (base, id)).map(|tail| tail.2.as_str())
    }

    /// Replaces the cached value after a conflict, and drops the cached part.
    pub(super) fn found(&mut self, stored: &Option<Stored>) {
        self.stored.clone_from(stored);
        self.tail = None;
    }

    /// Caches what was written.
    pub(super) fn wrote(&mut self, written: Written, stamp: Stamp) {
        let last = written.parts.into_iter().filter_map(|part| Some((part.id, part.text?))).max();
        if let Some((id, text)) = last {
            self.tail = Some((stamp.base, id, text));
        }
        self.stored = written.text.map(|text| Stored { text, stamp });
    }
}

/// An acquisition that waits for the next batch.
pub(super) struct QueuedAcquire {
    pub(super) op: Op,
    pub(super) sent: WriteState,
    pub(super) reply: oneshot::Sender<Result<Answer, Failure>>,
}

impl QueuedAcquire {
    /// The lifetime in seconds of the session that it can share; `None` if it needs its own.
    pub(super) fn bound_to(&self) -> Option<u64> {
        match self.op.verb {
            Verb::Acquire { ttl_ms, bind: Liveness::Process | Liveness::Work, .. } => {
                Some(life(Duration::from_millis(ttl_ms)).as_secs())
            }
            _ => None,
        }
    }
}
