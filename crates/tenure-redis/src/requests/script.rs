//! The scripts: invoked by their SHA-1, sent in full only if the server does not have them cached. Their headers
//! document keys and arguments.

use std::borrow::Cow;

use crate::requests::{Keyspace, RequestContext, keys};
use crate::resp::encode::Commands;
use tenure_core::protocol::{
    Fence, Listening, Liveness, LockSpec, Op, QueueSpec, ReleaseScope, Verb, lease, queue,
};

/// A script and its SHA-1.
pub(crate) struct Script {
    pub(crate) text: &'static str,
    /// Pinned by a test: two versions of a client coexist during an upgrade, so changing a script is a
    /// decision.
    pub(crate) sha: &'static str,
    /// The variant for a restart grace: a server that restarted or was promoted grants nothing for a while.
    pub(crate) guarded: Option<&'static Self>,
}

impl Script {
    /// Begins a call of this script: with its text if `in_full`, otherwise with its SHA-1. `keys` keys and `args`
    /// arguments follow.
    pub(crate) fn call<'a>(
        &self,
        out: &'a mut Commands,
        in_full: bool,
        keys: usize,
        args: usize,
    ) -> &'a mut Commands {
        let (command, script) = if in_full { ("EVAL", self.text) } else { ("EVALSHA", self.sha) };
        out.begin(3 + keys + args).arg(command).arg(script).number(keys as u64)
    }
}

pub(crate) static MUTEX: Script = Script {
    text: include_str!("../scripts/mutex.lua"),
    sha: "6c814edd70d86b2267df69231d25e960cc9b2664",
    guarded: Some(&GUARDED_MUTEX),
};

static GUARDED_MUTEX: Script = Script {
    text: concat!(include_str!("../scripts/grace.lua"), include_str!("../scripts/mutex.lua")),
    sha: "0583a52d6af45307fdbaf34e2061577fbff3358e",
    guarded: None,
};

pub(crate) static REENTRANT: Script = Script {
    text: include_str!("../scripts/reentrant.lua"),
    sha: "0edeffd3675d33ebb20fad540fdf8523a29a20e6",
    guarded: Some(&GUARDED_REENTRANT),
};

static GUARDED_REENTRANT: Script = Script {
    text: concat!(include_str!("../scripts/grace.lua"), include_str!("../scripts/reentrant.lua")),
    sha: "f961ea3674a710ee221f88f87408e8522ef42b5f",
    guarded: None,
};

pub(crate) static QUEUE: Script = Script {
    text: include_str!("../scripts/queue.lua"),
    sha: "a8f96fbbe33b8cccfa44dce340ab4e2c36c098d7",
    guarded: Some(&GUARDED_QUEUE),
};

static GUARDED_QUEUE: Script = Script {
    text: concat!(include_str!("../scripts/grace.lua"), include_str!("../scripts/queue.lua")),
    sha: "5bfcccd25e7a8589a70bf401e82fb7da70cb416e",
    guarded: None,
};

/// The release by a holder without waiters.
pub(crate) static RELEASE: Script = Script {
    text: include_str!("../scripts/release.lua"),
    sha: "e64c57651bbdd6be1b67cb3f452fdf7091763479",
    guarded: None,
};

/// Batched renewals of mutexes and holds in queues.
pub(crate) static RENEW: Script = Script {
    text: include_str!("../scripts/renew.lua"),
    sha: "235da654d908abf9a50c9e9f2da9b95580827df7",
    guarded: None,
};

pub(crate) static RECORD: Script = Script {
    text: include_str!("../scripts/record.lua"),
    sha: "baec929d5f2ef99e1a54ff1a6d0949f3b4204960",
    guarded: None,
};

/// A request that the script of a machine carries out.
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

    /// The request under these guarantees: with a restart grace, what may grant uses the guarded script. That is an
    /// acquisition, or a reader that becomes the writer.
    pub(crate) fn guarded(mut self, verb: &Verb, context: RequestContext) -> Self {
        let RequestContext { space, guarantees, .. } = context;
        let grants = match verb {
            Verb::Acquire { .. } => true,
            Verb::Renew { weight, .. } => *weight == Some(QueueSpec::WRITER.weight),
            _ => false,
        };
        if let Some(grace) = guarantees.restart_grace
            && grants
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
        if queue::draws_number(&op.verb) {
            self.with_counter(space);
        }
        match &op.verb {
            Verb::Acquire { ttl_ms, wait_ms, listens, .. } => {
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
        self.script.call(out, in_full, keys, self.args.len()).arg(lock);
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

/// What follows the owner of a hold without waiters in its value, before its token.
pub(crate) fn solo(spec: LockSpec) -> String {
    match spec {
        LockSpec::Queue(queue_spec) => format!("{}+{}", header(queue_spec, ""), queue_spec.weight),
        LockSpec::Mutex | LockSpec::Reentrant => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use sha1::{Digest, Sha1};

    use super::*;

    #[test]
    fn a_script_is_named_by_its_sha() {
        let guarded = [&MUTEX, &REENTRANT, &QUEUE].map(|script| script.guarded.expect("each has one"));
        for script in [&MUTEX, &REENTRANT, &QUEUE, &RELEASE, &RENEW, &RECORD].iter().chain(&guarded) {
            let sha: String = Sha1::digest(script.text).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(script.sha, sha);
        }
    }
}
