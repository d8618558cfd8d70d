//! How requests are sent: the scripts with their keys and arguments, which the scripts' headers document, and
//! the plain-command paths.
//!
//! | module | what it holds |
//! |---|---|
//! | `ack_channel` | requests that replicas must confirm |
//! | `keys` | names of side keys and channels; hash slots |
//! | `node` | one server: runs requests, lists locks |
//! | `pair` | uncontended mutexes by plain commands |
//! | `record` | records beside locks |
//! | `renewals` | batched renewals |
//! | `script` | the scripts, their SHA-1, and the requests that the machines carry out |
//! | `scripted` | a request as its script sees it, for simulations |
//! | `scriptless` | mutexes on servers that forbid scripts |
//! | `waiting` | the number of processes that wait for a lock without a queue |

pub(crate) mod ack_channel;
pub(crate) mod keys;
pub(crate) mod node;
pub(crate) mod pair;
pub(crate) mod record;
pub(crate) mod renewals;
pub(crate) mod script;
pub mod scripted;
pub(crate) mod scriptless;
pub(crate) mod waiting;

use std::sync::Arc;

use crate::connection::pipeline::Pipeline;
use crate::replies::{Reading, ScriptReply, failure};
use crate::resp::{ServerError, Value};
use crate::topology::Guarantees;
use tenure_core::events::{event, text};
use tenure_core::moment::Moment;
use tenure_core::protocol::Op;
use tenure_core::store::{Failure, SETUP};

/// How messages are published. All clients of a lock must agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publish {
    /// To all subscribers of the server, or of the whole cluster.
    Plain,
    /// To subscribers on the node that serves the lock's slot.
    Sharded,
}

impl Publish {
    pub(crate) fn command(self) -> &'static str {
        match self {
            Self::Plain => "PUBLISH",
            Self::Sharded => "SPUBLISH",
        }
    }

    pub(crate) fn subscribe(self) -> &'static str {
        match self {
            Self::Plain => "SUBSCRIBE",
            Self::Sharded => "SSUBSCRIBE",
        }
    }

    pub(crate) fn unsubscribe(self) -> &'static str {
        match self {
            Self::Plain => "UNSUBSCRIBE",
            Self::Sharded => "SUNSUBSCRIBE",
        }
    }
}

/// The database of a server or cluster, and how messages are published in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keyspace {
    pub(crate) db: u32,
    pub(crate) publish: Publish,
    /// Each slot has its own token counter, because a script cannot reach other slots.
    pub(crate) has_slots: bool,
    /// Length in bytes of the namespace that precedes each lock's name.
    pub(crate) namespace: usize,
}

impl Keyspace {
    /// Whether the reply to PUBLISH counts all subscribers: on a cluster only with sharded messages, which
    /// reach no other node.
    pub(crate) fn counts_listeners(self) -> bool {
        !self.has_slots || self.publish == Publish::Sharded
    }
}

/// How a request is made.
#[derive(Clone, Copy)]
pub(crate) struct RequestContext {
    pub(crate) space: Keyspace,
    /// The slot is still being imported by the server: prefix the request with ASKING.
    pub(crate) asking: bool,
    pub(crate) guarantees: Guarantees,
}

/// A request on its way over a connection. Passed by reference: each copy would enlarge the future of every
/// request.
pub(crate) struct RoutedRequest<'a, O = Op> {
    pub(crate) op: &'a O,
    pub(crate) pipeline: &'a Pipeline,
    pub(crate) context: RequestContext,
    pub(crate) deadline: Moment,
}

impl RoutedRequest<'_> {
    /// Another request under the same guarantees.
    pub(crate) fn of<'a>(&'a self, op: &'a Op) -> RoutedRequest<'a> {
        RoutedRequest { op, ..*self }
    }
}

/// Turns a server error into a failure.
pub(crate) fn answered(pipeline: &Pipeline, value: Value) -> Result<Value, Failure> {
    match value {
        Value::ServerError(error) => Err(refused(pipeline, &error)),
        value => Ok(value),
    }
}

/// Turns a script's error into a failure.
pub(crate) fn said(pipeline: &Pipeline, said: ScriptReply) -> Result<Reading, Failure> {
    match said {
        ScriptReply::Answer(reading) => Ok(reading),
        ScriptReply::Nothing => Ok(Err("a reply that is neither list nor string")),
        ScriptReply::Error(error) => Err(refused(pipeline, &error)),
    }
}

/// The failure for a server error. Closes the connection if the error calls for it.
pub(crate) fn refused(pipeline: &Pipeline, error: &ServerError) -> Failure {
    let (failure, leave) = failure::of(error);
    if leave {
        pipeline.hang_up();
    }
    failure
}

/// Warns that a release succeeded but its message could not be published.
pub(crate) fn warn_unheard(store: &Arc<str>, op: &Op, space: Keyspace, why: &str) {
    event!(
        WARN,
        target: SETUP,
        "wake_refused",
        "cannot wake the waiters",
        lock = text(space.name(&op.name)),
        store = text(store),
        why = why.to_owned(),
    );
}
