//! The state of the simulated server.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::LockName;
use tenure::internals::Moment;
use tenure::internals::store::cas::{KeyEntry, Session, Stored, WatchNotice, Watched};
use tokio::sync::{Notify, mpsc};

use crate::sim::executor::ProcessId;
use crate::sim::network::Parting;
use crate::sim::regime::Faults;

#[derive(Default)]
pub(super) struct State {
    pub(super) revision: u64,
    pub(super) locks: BTreeMap<LockName, Stored>,
    pub(super) records: BTreeMap<LockName, String>,
    /// The values of locks' keys, on a server with compare-and-swap of one key.
    pub(super) keys: BTreeMap<LockName, KeyEntry>,
    /// Sessions last until a client removes them.
    pub(super) keeps_markers: bool,
    /// Parts of queues.
    pub(super) parts: BTreeMap<(LockName, u64), String>,
    pub(super) sessions: BTreeMap<Session, Life>,
    pub(super) next: Session,
    pub(super) watches: Vec<Watcher>,
    pub(super) ends: BTreeMap<ProcessId, End>,
    pub(super) faults: Faults,
    /// The server is stalled until then.
    pub(super) stalled_until: Moment,
    /// Answers that are not sent, until the faults stop.
    pub(super) silent: Vec<Box<dyn Any + Send>>,
    /// The next write is executed this much later, and its answer lost.
    pub(super) delayed: Option<Duration>,
    /// Number of requests of each sort.
    pub(super) requests: BTreeMap<&'static str, u32>,
}

/// The lifetime of a session.
pub(super) struct Life {
    pub(super) life: Duration,
    pub(super) end: Moment,
    /// When its client may not rely on it any more.
    pub(super) kept_until: Moment,
    pub(super) marker: u64,
    pub(super) process: ProcessId,
}

pub(super) struct Watcher {
    pub(super) name: LockName,
    pub(super) what: Watched,
    pub(super) process: ProcessId,
    /// When the last event arrives.
    pub(super) last: Moment,
    /// Events in flight.
    pub(super) coming: Arc<Mutex<VecDeque<WatchNotice>>>,
    pub(super) sender: mpsc::UnboundedSender<WatchNotice>,
}

/// A process's end of the network.
#[derive(Default)]
pub(super) struct End {
    /// Tells requests in flight that the connection is cut.
    pub(super) cuts: Arc<Notify>,
    /// Requests that arrive later are not executed.
    pub(super) arrives_until: Option<Moment>,
    /// Events are delivered from then on.
    pub(super) hears_from: Moment,
    /// By the server's clock.
    pub(super) parting: Parting,
    /// It has lost a request or an answer.
    pub(super) has_lost: bool,
}
