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
//! | `script` | the scripts and their SHA-1 |
//! | `scripted` | a request as its script sees it, for simulations |
//! | `scriptless` | mutexes on servers that forbid scripts |

pub(crate) mod ack_channel;
pub(crate) mod keys;
pub(crate) mod node;
pub(crate) mod pair;
pub(crate) mod record;
pub(crate) mod renewals;
pub(crate) mod script;
pub mod scripted;
pub(crate) mod scriptless;

use std::borrow::Cow;
use std::sync::Arc;

use crate::connection::pipeline::Pipeline;
use crate::replies::{Reading, ScriptReply, failure};
use crate::requests::script::{MUTEX, QUEUE, REENTRANT, Script};
use crate::resp::encode::Commands;
use crate::resp::{ServerError, Value};
use crate::topology::Terms;
use tenure_core::events::{event, text};
use tenure_core::moment::Moment;
use tenure_core::protocol::{Fence, Listening, Liveness, LockSpec, Op, QueueSpec, ReleaseScope, Verb, lease};
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
    pub(crate) terms: Terms,
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
    /// Another request under the same terms.
    pub(crate) fn of<'a>(&'a self, op: &'a Op) -> RoutedRequest<'a> {
        RoutedRequest { op, ..*self }
    }
}

pub(crate) struct ScriptRequest<'a> {
    pub(crate) script: &'static Script,
    pub(crate) keys: (&'a str, Option<Cow<'static, str>>),
    pub(crate) args: Vec<Cow<'a, str>>,
    epoch: Option<Cow<'static, str>>,
}

impl<'a> ScriptRequest<'a> {
    pub(crate) fn new(op: &'a Op, space: Keyspace) -> Self {
        let mut request = Self {
            script: match op.spec {
                LockSpec::Mutex => &MUTEX,
                LockSpec::Reentrant => &REENTRANT,
                LockSpec::Queue(_) => &QUEUE,
            },
            keys: (op.name.as_str(), None),
            args: Vec::with_capacity(10),
            epoch: None,
        };
        request.text(match op.verb {
            Verb::Acquire { .. } => "acquire",
            Verb::Renew { .. } => "renew",
            Verb::Release { .. } => "release",
            Verb::Refresh { .. } if matches!(op.spec, LockSpec::Queue(_)) => "refresh",
            Verb::Resize if matches!(op.spec, LockSpec::Queue(_)) => "resize",
            Verb::Refresh { .. } | Verb::Resize | Verb::Inspect => "inspect",
        });
        request.text(op.owner.as_str()).number(op.request);
        match op.spec {
            LockSpec::Mutex => request.mutex(op, space),
            LockSpec::Reentrant => request.reentrant(op, space),
            LockSpec::Queue(queue_spec) => request.queue(op, queue_spec, space),
        }
        request
    }

    /// The request under these terms: with a restart grace, acquisitions use the guarded script.
    pub(crate) fn guarded(mut self, RequestContext { space, terms, .. }: RequestContext) -> Self {
        if let Some(grace) = terms.restart_grace
            && self.args[0] == "acquire"
        {
            self.script = self.script.guarded.unwrap_or(self.script);
            self.epoch = Some(keys::epoch(space, self.keys.0));
            self.number(lease::millis(grace));
        }
        self
    }

    fn mutex(&mut self, op: &'a Op, space: Keyspace) {
        match &op.verb {
            Verb::Acquire { ttl_ms, fence, .. } => {
                match fence {
                    Fence::Assign | Fence::Optional => self.with_counter(space),
                    Fence::Ballot(_) => self.with_ballot(space),
                }
                self.number(*ttl_ms).ballot(*fence);
            }
            Verb::Renew { ttl_ms, bind, .. } => {
                self.number(*ttl_ms);
                if let Some(Liveness::Lease) = bind {
                    self.with_counter(space);
                    self.text("detach");
                }
            }
            Verb::Release { fence, whose, .. } => {
                if let Fence::Ballot(_) = fence {
                    self.with_ballot(space);
                }
                self.ballot(*fence).text(match whose {
                    ReleaseScope::Own | ReleaseScope::Named => "mine",
                    ReleaseScope::Any => "anyone",
                    ReleaseScope::Foreign => "foreign",
                });
                self.channel(op.spec, space);
            }
            Verb::Refresh { .. } | Verb::Resize | Verb::Inspect => {}
        }
    }

    fn reentrant(&mut self, op: &'a Op, space: Keyspace) {
        match &op.verb {
            Verb::Acquire { ttl_ms, hold, .. } => {
                self.with_counter(space);
                self.hold(*hold).number(*ttl_ms);
            }
            Verb::Renew { ttl_ms, hold, bind, .. } => {
                self.hold(*hold).number(*ttl_ms).text(match bind {
                    None => "",
                    Some(Liveness::Lease) => "detach",
                    Some(Liveness::Process | Liveness::Work) => "resume",
                });
            }
            Verb::Release { hold, whose, .. } => {
                self.hold(*hold).whose(*whose).channel(op.spec, space);
            }
            Verb::Refresh { .. } | Verb::Resize | Verb::Inspect => {}
        }
    }

    fn queue(&mut self, op: &'a Op, queue_spec: QueueSpec, space: Keyspace) {
        self.owned(header(queue_spec, if op.verb == Verb::Resize { "=" } else { "" }))
            .number(queue_spec.capacity)
            .channel(op.spec, space);
        match &op.verb {
            Verb::Acquire { ttl_ms, wait_ms, listens, .. } => {
                self.with_counter(space);
                self.number(*ttl_ms).number(queue_spec.weight).maybe(*wait_ms);
                self.maybe(listens.map(Listening::get));
            }
            Verb::Renew { ttl_ms, weight, .. } => {
                self.number(*ttl_ms).maybe(*weight);
            }
            Verb::Refresh { owners, wait_ms, listens } => {
                self.number(*wait_ms).maybe(listens.map(Listening::get));
                self.args.extend(owners.iter().map(|owner| Cow::Borrowed(owner.as_str())));
            }
            Verb::Release { whose: ReleaseScope::Named, .. } => {
                self.text("named");
            }
            Verb::Release { whose, .. } => {
                self.whose(*whose);
            }
            Verb::Resize => {
                self.number(lease::CAPACITY_MS);
            }
            Verb::Inspect => {}
        }
    }

    /// The counter's key is passed only where it is needed, because a request about a single key is never
    /// split by a migrating slot.
    fn with_counter(&mut self, space: Keyspace) {
        self.keys.1 = Some(keys::counter(space, self.keys.0));
    }

    fn with_ballot(&mut self, space: Keyspace) {
        self.keys.1 = Some(Cow::Owned(keys::ballot(space, self.keys.0)));
    }

    fn text(&mut self, text: &'a str) -> &mut Self {
        self.args.push(Cow::Borrowed(text));
        self
    }

    fn owned(&mut self, text: String) -> &mut Self {
        self.args.push(Cow::Owned(text));
        self
    }

    fn number(&mut self, number: impl Into<u64>) -> &mut Self {
        self.owned(number.into().to_string())
    }

    fn maybe(&mut self, number: Option<impl Into<u64>>) -> &mut Self {
        match number {
            Some(number) => self.number(number),
            None => self.text(""),
        }
    }

    fn hold(&mut self, hold: u64) -> &mut Self {
        self.owned(format!("{hold:x}"))
    }

    fn ballot(&mut self, fence: Fence) -> &mut Self {
        match fence {
            Fence::Assign | Fence::Optional => self.text(""),
            Fence::Ballot(ballot) => self.number(ballot),
        }
    }

    fn whose(&mut self, whose: ReleaseScope) -> &mut Self {
        self.text(if whose.is_forced() { "anyone" } else { "mine" })
    }

    fn channel(&mut self, spec: LockSpec, space: Keyspace) -> &mut Self {
        self.owned(keys::channel(space, spec, self.keys.0)).text(space.publish.command())
    }

    /// Encodes the request: with the script's text if `in_full`, otherwise with its SHA-1.
    pub(crate) fn write(&self, out: &mut Commands, in_full: bool) {
        let (lock, counter) = (self.keys.0, self.keys.1.as_deref());
        let keys = 1 + usize::from(counter.is_some()) + usize::from(self.epoch.is_some());
        out.begin(3 + keys + self.args.len());
        match in_full {
            true => out.arg("EVAL").arg(self.script.text),
            false => out.arg("EVALSHA").arg(self.script.sha),
        };
        out.number(keys as u64).arg(lock);
        for key in [counter, self.epoch.as_deref()].into_iter().flatten() {
            out.arg(key);
        }
        for text in &self.args {
            out.arg(&**text);
        }
    }
}

/// The header member of a queue's sorted set. `set` is `=` if this request sets the capacity explicitly.
pub(crate) fn header(queue_spec: QueueSpec, set: &str) -> String {
    format!("#1:{}:{set}{}", queue_spec.kind, queue_spec.capacity)
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
