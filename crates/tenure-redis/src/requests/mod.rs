//! What is sent for a request: which script, with which keys and arguments. The heads of the
//! scripts list them.

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
use tenure_core::protocol::{Fence, Listening, Liveness, LockSpec, Op, QueueSpec, ReleaseScope, Verb, lease};
use tenure_core::store::{Failure, SETUP};

/// How a message reaches those who listen. All clients of a lock have to agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publish {
    /// To all of the server, and of its cluster.
    Plain,
    /// To those who listen at the server that has the lock's slot.
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

/// The database of a server, or of a cluster, and how messages are sent in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keyspace {
    pub(crate) db: u32,
    pub(crate) publish: Publish,
    /// Each slot has a counter of tokens: a script can reach no other.
    pub(crate) has_slots: bool,
}

impl Keyspace {
    /// Whether the server that says something counts all who hear it: on a cluster, where it is
    /// said to no other node.
    pub(crate) fn counts_listeners(self) -> bool {
        !self.has_slots || self.publish == Publish::Sharded
    }
}

/// How a request is made.
#[derive(Clone, Copy)]
pub(crate) struct RequestContext {
    pub(crate) space: Keyspace,
    /// The server is asked to answer for a slot that it is only about to get.
    pub(crate) asking: bool,
    pub(crate) terms: Terms,
}

/// A script with its arguments.
pub(crate) struct ScriptRequest<'a> {
    pub(crate) script: &'static Script,
    pub(crate) keys: (&'a str, Option<Cow<'static, str>>),
    pub(crate) args: Vec<Cow<'a, str>>,
    epoch: Option<&'static str>,
}

impl<'a> ScriptRequest<'a> {
    /// The request that asks `op`.
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

    /// The same on these terms: a server that may have forgotten leases grants nothing for a while.
    pub(crate) fn guarded(mut self, terms: Terms) -> Self {
        if let Some(grace) = terms.restart_grace
            && self.args[0] == "acquire"
        {
            self.script = self.script.guarded.unwrap_or(self.script);
            self.epoch = Some(keys::EPOCH);
            self.number(lease::millis(grace));
        }
        self
    }

    fn mutex(&mut self, op: &'a Op, space: Keyspace) {
        match &op.verb {
            Verb::Acquire { ttl_ms, fence, .. } => {
                match fence {
                    Fence::Assign | Fence::Optional => self.with_counter(space),
                    Fence::Ballot(_) => self.with_ballot(),
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
                    self.with_ballot();
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

    /// The counter is named only where it is needed: a request about one key is never torn by a
    /// slot that moves.
    fn with_counter(&mut self, space: Keyspace) {
        self.keys.1 = Some(match space.has_slots {
            true => Cow::Owned(keys::counter_in_slot(self.keys.0)),
            false => Cow::Borrowed(keys::COUNTER),
        });
    }

    fn with_ballot(&mut self) {
        self.keys.1 = Some(Cow::Owned(keys::ballot(self.keys.0)));
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
        self.owned(keys::channel(space.db, spec, self.keys.0)).text(space.publish.command())
    }

    /// Encodes it: `in_full` with its text, otherwise with its name.
    pub(crate) fn write(&self, out: &mut Commands, in_full: bool) {
        let (lock, counter) = (self.keys.0, self.keys.1.as_deref());
        let keys = 1 + usize::from(counter.is_some()) + usize::from(self.epoch.is_some());
        out.begin(3 + keys + self.args.len());
        match in_full {
            true => out.arg("EVAL").arg(self.script.text),
            false => out.arg("EVALSHA").arg(self.script.sha),
        };
        out.number(keys as u64).arg(lock);
        for key in [counter, self.epoch].into_iter().flatten() {
            out.arg(key);
        }
        for text in &self.args {
            out.arg(&**text);
        }
    }
}

/// The first member of the set that a queue is. `set`: `=` where the capacity is set by it.
pub(crate) fn header(queue_spec: QueueSpec, set: &str) -> String {
    format!("#1:{}:{set}{}", queue_spec.kind, queue_spec.capacity)
}

/// What the server answered, unless that is an error.
pub(crate) fn answered(pipeline: &Pipeline, value: Value) -> Result<Value, Failure> {
    match value {
        Value::ServerError(error) => Err(refused(pipeline, &error)),
        value => Ok(value),
    }
}

/// What a script answered, unless that is an error.
pub(crate) fn said(pipeline: &Pipeline, said: ScriptReply) -> Result<Reading, Failure> {
    match said {
        ScriptReply::Answer(reading) => Ok(reading),
        ScriptReply::Nothing => Ok(Err("a reply that is neither list nor string")),
        ScriptReply::Error(error) => Err(refused(pipeline, &error)),
    }
}

/// What an error of the server says. The connection is given up where it must be.
pub(crate) fn refused(pipeline: &Pipeline, error: &ServerError) -> Failure {
    let (failure, leave) = failure::of(error);
    if leave {
        pipeline.hang_up();
    }
    failure
}

/// Warns that a release was carried out, and its message was not.
pub(crate) fn warn_unheard(store: &Arc<str>, op: &Op, why: &str) {
    event!(
        WARN,
        target: SETUP,
        "wake_refused",
        "those who wait could not be woken",
        lock = text(&op.name),
        store = text(store),
        why = why.to_owned(),
    );
}
