//! What the tasks of one client have in common that take turns at a lock: what it was when last
//! known, and the acquisitions that come next.

use std::time::Duration;

use tokio::sync::oneshot;

use super::Sent;
use super::backend::{Stamp, Stored};
use super::leases::life;
use super::parts::Written;
use crate::protocol::{Answer, Liveness, Op, Verb};
use crate::store::Failure;

/// What a lock was when this client last knew.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) stored: Option<Stored>,
    /// The last part of its line: the creation of the lock, its number, and its text.
    tail: Option<(u64, u64, String)>,
}

impl Known {
    /// A part of its line, if it is known. It may have changed.
    pub(super) fn part(&self, base: u64, id: u64) -> Option<&str> {
        self.tail.as_ref().filter(|tail| (tail.0, tail.1) == (base, id)).map(|tail| tail.2.as_str())
    }

    /// This stands there, and not what was known: of its line neither.
    pub(super) fn found(&mut self, stored: &Option<Stored>) {
        self.stored.clone_from(stored);
        self.tail = None;
    }

    /// This was written.
    pub(super) fn wrote(&mut self, written: Written, stamp: Stamp) {
        let last = written.parts.into_iter().filter_map(|part| Some((part.id, part.text?))).max();
        if let Some((id, text)) = last {
            self.tail = Some((stamp.base, id, text));
        }
        self.stored = written.text.map(|text| Stored { text, stamp });
    }
}

/// An acquisition that waits to be carried out.
pub(super) struct Coming {
    pub(super) op: Op,
    pub(super) sent: Sent,
    pub(super) reply: oneshot::Sender<Result<Answer, Failure>>,
}

impl Coming {
    /// How long a handle lives that serves it, in seconds; `None` for one that has its own.
    pub(super) fn bound_to(&self) -> Option<u64> {
        match self.op.verb {
            Verb::Acquire { ttl_ms, bind: Liveness::Process | Liveness::Work, .. } => {
                Some(life(Duration::from_millis(ttl_ms)).as_secs())
            }
            _ => None,
        }
    }
}
