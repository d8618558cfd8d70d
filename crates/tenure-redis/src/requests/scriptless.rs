//! The mutex on servers that forbid scripts: plain commands only, and no token.
//!
//! The value is the bare owner. Taking a free lock is one command. Renewing and releasing compare and change:
//! on the shared connection where the server has commands for it (`SET … IFEQ`, and `DELIFEQ` of Valkey or
//! `DELEX` of Redis); otherwise by WATCH on a connection used by one request at a time, because WATCH is per
//! connection. The choice is made once per connection, so that all requests about a lock take the same route,
//! in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join;
use tokio::sync::Mutex;

use crate::connection::Connector;
use crate::connection::pipeline::Pipeline;
use crate::connection::scriptless::{Delete, HAS_DELETE, NO_SCRIPT, Scriptless};
use crate::connection::supervisor::Supervisor;
use crate::replies::{self, bytes, failure};
use crate::requests::keys;
use crate::requests::{Keyspace, RequestContext, RoutedRequest, answered, refused, warn_unheard};
use crate::resp::encode::{Commands, command};
use crate::resp::{ServerError, Value};
use crate::topology::Guarantees;
use tenure_core::moment::Moment;
use tenure_core::net::by;
use tenure_core::owner::Owner;
use tenure_core::protocol::{
    Answer, Fence, Found, Holding, Kind, LockSpec, Op, ReleaseScope, Verb, parse_value, shown,
};
use tenure_core::runtime::Runtime;
use tenure_core::store::Failure;
use tenure_core::sync::Locked;

/// Bytes of a value that are read, as by the scripts. This library's own values are shorter.
const SHOWN: usize = 1024;

/// Interval at which a server that forbids scripts is asked whether it still does.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// A connection used by one request at a time.
pub(crate) struct ExclusiveConnection {
    link: Arc<Supervisor>,
    serial: Mutex<()>,
    runtime: Arc<dyn Runtime>,
    /// For log and error messages.
    url: Arc<str>,
}

impl ExclusiveConnection {
    pub(crate) fn new(connector: Arc<Connector>, url: Arc<str>) -> Self {
        let runtime = Arc::clone(&connector.runtime);
        Self { link: Supervisor::new(connector), serial: Mutex::new(()), runtime, url }
    }

    pub(crate) fn close(&self) {
        self.link.close();
    }
}

impl Scriptless {
    /// Queries what the server supports, and caches it with the connection.
    pub(crate) async fn look(pipeline: &Pipeline, why: Failure, deadline: Moment) -> Result<&Self, Failure> {
        let delete = Delete::read(&pipeline.ask(&command(&HAS_DELETE), deadline).await?);
        if delete.is_none() {
            Self::may_compare(pipeline, &why, deadline).await?;
        }
        let asks_again = Locked::new(pipeline.now() + ASK_AGAIN);
        Ok(pipeline.plain.get_or_init(|| Self { why, delete, sets: AtomicBool::new(true), asks_again }))
    }

    /// Gives the connection up if the server allows scripts by now, as after a change of rights.
    async fn look_again(&self, pipeline: &Pipeline, deadline: Moment) -> Result<(), Failure> {
        let now = pipeline.now();
        {
            let mut asks_again = self.asks_again.lock();
            if now < *asks_again {
                return Ok(());
            }
            *asks_again = now + ASK_AGAIN;
        }
        // Either may be forbidden alone.
        let asks = commands(&[&["EVALSHA", NO_SCRIPT, "0"], &["EVAL", "return 0", "0"]]);
        let replies = pipeline.ask_all(&asks, deadline).await.map_err(Failure::not_sent)?;
        match &replies[..] {
            [Value::ServerError(error), Value::Int(0)] if failure::is_no_script(error) => {
                pipeline.hang_up();
                Err(Failure::NotSent(Failure::cause("scripts are allowed again")))
            }
            _ => Ok(()),
        }
    }

    /// Checks that transactions work. If only MULTI were refused, the commands between it and EXEC would run
    /// unconditionally.
    async fn may_compare(pipeline: &Pipeline, why: &Failure, deadline: Moment) -> Result<(), Failure> {
        for reply in pipeline.ask_all(&commands(&[&["MULTI"], &["EXEC"]]), deadline).await? {
            if let Value::ServerError(error) = reply {
                // The connection may be stuck inside MULTI.
                pipeline.hang_up();
                return Err(Failure::Refused(Failure::cause(format!(
                    "it forbids scripts ({why}), and without them WATCH, MULTI and EXEC are needed ({error})"
                ))));
            }
        }
        Ok(())
    }

    pub(crate) async fn ask(
        &self,
        exclusive: &ExclusiveConnection,
        routed: &RoutedRequest<'_>,
    ) -> Result<Answer, Failure> {
        let RoutedRequest { op, pipeline, context, deadline } = *routed;
        self.look_again(pipeline, deadline).await?;
        self.allows(op, context)?;
        let ask = |pipeline, delete| ScriptlessRequest {
            plain: self,
            delete,
            pipeline,
            op,
            space: context.space,
            deadline,
        };
        // Another client's value may not be text, so the compare commands cannot match it.
        let is_foreign = matches!(op.verb, Verb::Release { whose: ReleaseScope::Foreign, .. });
        let compared = match self.delete {
            Some(_) if !is_foreign => Some(ask(pipeline, self.delete).answer(&exclusive.url).await),
            _ => None,
        };
        let answer = match compared {
            // A server out of memory refuses to write even an existing value, but still extends its TTL.
            Some(Err(failure)) if matches!(op.verb, Verb::Renew { .. }) && is_out_of_memory(&failure) => None,
            answered => answered,
        };
        let answer = match answer {
            Some(answer) => answer?,
            None => {
                let Some(_serial) = by(&*exclusive.runtime, deadline, exclusive.serial.lock()).await else {
                    let cause = "the connection for requests without scripts is in use";
                    return Err(Failure::NotSent(Failure::cause(cause)));
                };
                let pipeline = exclusive.link.pipeline(deadline).await?;
                if self.delete.is_some() && is_foreign {
                    Self::may_compare(&pipeline, &self.why, deadline).await?;
                }
                ask(&pipeline, None).answer(&exclusive.url).await?
            }
        };
        Ok(answer)
    }

    /// Checks that the request is possible, and permitted, without scripts.
    fn allows(&self, op: &Op, context: RequestContext) -> Result<(), Failure> {
        let why = self.why.why();
        let cannot = |what: &str| Err(Failure::impossible(format!("it forbids scripts ({why}), and {what}")));
        match (&op.verb, op.spec) {
            (_, LockSpec::Reentrant | LockSpec::Queue(_)) => {
                cannot(&format!("a {} needs them", op.spec.kind()))
            }
            (
                Verb::Acquire { fence: Fence::Ballot(_), .. } | Verb::Release { fence: Fence::Ballot(_), .. },
                _,
            ) => cannot("members of a quorum need them"),
            (Verb::Acquire { fence: Fence::Assign, .. }, _) => cannot(
                "without them a mutex has no fencing token; allow EVAL and EVALSHA, or accept a mutex \
                 without a token (Options::unfenced)",
            ),
            (Verb::Acquire { .. } | Verb::Renew { .. }, _) if context.guarantees != Guarantees::default() => {
                cannot("acks and restart-grace need them")
            }
            // A request to a node that is importing the slot must be a single command.
            _ if context.asking => Err(Failure::NotSent(Failure::cause(
                "it forbids scripts, and the lock's slot is being moved",
            ))),
            _ => Ok(()),
        }
    }
}

struct ScriptlessRequest<'a> {
    plain: &'a Scriptless,
    /// The compare-and-delete command; `None` to watch the key on an exclusive connection instead.
    delete: Option<Delete>,
    pipeline: &'a Pipeline,
    op: &'a Op,
    space: Keyspace,
    deadline: Moment,
}

enum KeyContent {
    Nothing,
    /// A string, and its remaining TTL in milliseconds.
    Text(Vec<u8>, Option<u64>),
    /// A queue with one holder, in a string: the answer to a request about a mutex.
    Queue(Answer),
    Other,
}

impl ScriptlessRequest<'_> {
    async fn answer(&self, url: &Arc<str>) -> Result<Answer, Failure> {
        match self.op.verb {
            Verb::Acquire { ttl_ms, .. } => self.acquire(ttl_ms).await,
            Verb::Renew { ttl_ms, .. } => match self.content().await? {
                KeyContent::Nothing => Ok(Answer::Free),
                KeyContent::Queue(answer) => Ok(answer),
                KeyContent::Text(value, left_ms) => self.extend(value, left_ms, ttl_ms).await,
                KeyContent::Other => self.other_kind().await,
            },
            Verb::Release { whose, .. } => {
                let (answer, unheard) = self.release(whose).await?;
                if let Some(why) = unheard {
                    warn_unheard(url, self.op, self.space, &why);
                }
                Ok(answer)
            }
            Verb::Refresh { .. } | Verb::Resize | Verb::Inspect => match self.content().await? {
                KeyContent::Nothing => Ok(Answer::Free),
                KeyContent::Queue(answer) => Ok(answer),
                KeyContent::Text(value, left_ms) => Ok(found(value, left_ms)),
                KeyContent::Other => self.other_kind().await,
            },
        }
    }

    fn key(&self) -> &str {
        self.op.name.as_str()
    }

    async fn ask(&self, words: &[&str]) -> Result<Value, Failure> {
        self.pipeline.ask(&command(words), self.deadline).await
    }

    /// Takes the lock in one command that also returns the holder. Before Redis 7 that takes two.
    async fn acquire(&self, ttl_ms: u64) -> Result<Answer, Failure> {
        let (key, owner, ttl) = (self.key(), self.op.owner.as_str(), ttl_ms.to_string());
        let set = ["SET", key, owner, "NX", "GET", "PX", &ttl];
        let (set, left) = join(self.ask(&set), self.ask(&["PTTL", key])).await;
        let (value, left) = match (set?, left?) {
            (Value::Nil, _) => return Ok(Answer::Held { fence: 0 }),
            (Value::ServerError(error), _) if is_wrong_type(&error) => return self.other_kind().await,
            (Value::ServerError(error), _) if is_syntax(&error) => {
                let set = ["SET", key, owner, "NX", "PX", &ttl];
                let (get, left) = (["GETRANGE", key, "0", "1023"], ["PTTL", key]);
                let (set, (get, left)) = join(self.ask(&set), join(self.ask(&get), self.ask(&left))).await;
                if answered(self.pipeline, set?)?.is_okay() {
                    return Ok(Answer::Held { fence: 0 });
                }
                match get? {
                    Value::ServerError(error) if is_wrong_type(&error) => return self.other_kind().await,
                    value => (value, left?),
                }
            }
            (value, left) => (value, left),
        };
        match self.text(&answered(self.pipeline, value)?, &answered(self.pipeline, left)?)? {
            // The owner's own hold is extended; anything else is busy.
            KeyContent::Text(value, left_ms) => self.extend(value, left_ms, ttl_ms).await,
            KeyContent::Queue(answer) => Ok(answer),
            KeyContent::Nothing | KeyContent::Other => Err(changed()),
        }
    }

    /// Reads the key, watching it if the change to come depends on WATCH.
    async fn content(&self) -> Result<KeyContent, Failure> {
        let key = self.key();
        // Long enough for an owner and its token; of another client's value, no more is needed.
        let look: [&[&str]; 4] =
            [&["UNWATCH"], &["WATCH", key], &["GETRANGE", key, "0", "1023"], &["PTTL", key]];
        let watches = self.delete.is_none() && !matches!(self.op.verb, Verb::Inspect);
        let look = commands(&look[if watches { 0 } else { 2 }..]);
        let mut replies = self.pipeline.ask_all(&look, self.deadline).await?;
        let (Some(left), Some(value)) = (replies.pop(), replies.pop()) else { return Err(self.malformed()) };
        for reply in replies {
            answered(self.pipeline, reply)?;
        }
        match value {
            Value::ServerError(error) if is_wrong_type(&error) => Ok(KeyContent::Other),
            value => self.text(&answered(self.pipeline, value)?, &answered(self.pipeline, left)?),
        }
    }

    fn text(&self, value: &Value, left: &Value) -> Result<KeyContent, Failure> {
        match (value, left) {
            (_, Value::Int(-2)) | (Value::Nil, _) => Ok(KeyContent::Nothing),
            (Value::BulkString(value), left) => {
                let left_ms = replies::left(left).ok_or_else(|| self.malformed())?;
                let shown = &value[..value.len().min(SHOWN)];
                Ok(match replies::solo(shown, left_ms) {
                    Some(Found { kind, capacity, .. }) => {
                        KeyContent::Queue(Answer::Mismatch { kind, capacity })
                    }
                    None => KeyContent::Text(shown.to_vec(), left_ms),
                })
            }
            _ => Err(self.malformed()),
        }
    }

    /// The token if the value is this owner's hold. A hold granted by a script has one.
    fn mine(&self, value: &[u8]) -> Option<u64> {
        let owner: &Owner = &self.op.owner;
        parse_value(value).filter(|(holder, _)| holder == owner).map(|(_, fence)| fence)
    }

    /// Renews the caller's hold. Never shortens a lease.
    async fn extend(&self, value: Vec<u8>, left_ms: Option<u64>, ttl_ms: u64) -> Result<Answer, Failure> {
        let Some(fence) = self.mine(&value) else {
            return Ok(Answer::Busy { holder: shown(&value), left_ms });
        };
        let value = shown(&value);
        if left_ms.is_some_and(|left_ms| left_ms >= ttl_ms) {
            return Ok(Answer::Held { fence });
        }
        let (key, ttl) = (self.key(), ttl_ms.to_string());
        if self.plain.sets.load(Ordering::Relaxed) {
            match self.ask(&["SET", key, &value, "IFEQ", &value, "PX", &ttl]).await? {
                value if value.is_okay() => return Ok(Answer::Held { fence }),
                Value::Nil => return Err(changed()),
                Value::ServerError(error) if is_syntax(&error) && self.delete.is_none() => {
                    self.plain.sets.store(false, Ordering::Relaxed);
                }
                // SET rewrites the value and so needs memory; PEXPIRE on the watched key does not.
                Value::ServerError(error) if error.code() == "OOM" && self.delete.is_none() => {}
                Value::ServerError(error) => return Err(refused(self.pipeline, &error)),
                _ => return Err(self.malformed()),
            }
        }
        // An acquisition that found its own hold has not watched the key yet.
        if let Verb::Acquire { .. } = self.op.verb {
            match self.content().await? {
                KeyContent::Text(now, _) if now == value.as_bytes() => {}
                _ => return Err(changed()),
            }
        }
        match self.at_once(&[&["PEXPIRE", key, &ttl]]).await?.first() {
            Some(Value::Int(1)) => Ok(Answer::Held { fence }),
            Some(Value::ServerError(error)) => Err(refused(self.pipeline, error)),
            _ => Err(changed()),
        }
    }

    /// Ends a hold and publishes the release. Also returns why it could not be published, if the user lacks
    /// the right.
    async fn release(&self, whose: ReleaseScope) -> Result<(Answer, Option<String>), Failure> {
        let mut unheard = None;
        loop {
            let (value, left_ms) = match self.content().await? {
                KeyContent::Nothing => return Ok((Answer::Free, None)),
                KeyContent::Queue(answer) => return Ok((answer, None)),
                KeyContent::Other => return Ok((self.other_kind().await?, None)),
                KeyContent::Text(value, left_ms) => (value, left_ms),
            };
            let answer = match whose {
                ReleaseScope::Own | ReleaseScope::Named if self.mine(&value).is_none() => {
                    return Ok((Answer::Busy { holder: shown(&value), left_ms }, None));
                }
                ReleaseScope::Own | ReleaseScope::Named => Answer::Released { left: 0 },
                ReleaseScope::Any if parse_value(&value).is_none() => {
                    return Ok((Answer::Busy { holder: shown(&value), left_ms }, None));
                }
                ReleaseScope::Any | ReleaseScope::Foreign => found(value.clone(), left_ms),
            };
            let value = shown(&value);
            let by = parse_value(&value).map_or(value.clone(), |(owner, _)| owner.as_str().to_owned());
            let key = self.key();
            let delete: &[&str] = match self.delete {
                Some(Delete::DelIfEq) => &["DELIFEQ", key, &value],
                Some(Delete::DelEx) => &["DELEX", key, "IFEQ", &value],
                None => &["DEL", key],
            };
            let channel = keys::channel(self.space, self.op.spec, key);
            let publish: &[&str] = &[self.space.publish.command(), &channel, &by];
            let both = [delete, publish];
            let done = self.at_once(&both[..if unheard.is_none() { 2 } else { 1 }]).await;
            match done {
                // Refused before anything was done: release without publishing.
                Err(failure) if unheard.is_none() && is_about(&failure, publish[0]) => {
                    unheard = Some(failure.to_string());
                    continue;
                }
                Err(failure) => return Err(failure),
                Ok(replies) => match &replies[..] {
                    [Value::Int(1), ..] => {
                        if let Some(Value::ServerError(error)) = replies.get(1) {
                            unheard = error.details().map(str::to_owned);
                        }
                        return Ok((answer, unheard));
                    }
                    [Value::ServerError(error), ..] => return Err(refused(self.pipeline, error)),
                    _ => return Err(changed()),
                },
            }
        }
    }

    /// Runs the commands unless the watched key has changed. An error before EXEC means that none was run.
    async fn at_once(&self, commands: &[&[&str]]) -> Result<Vec<Value>, Failure> {
        if self.delete.is_some() {
            // Each command does its own comparison.
            return self.pipeline.ask_all(&self::commands(commands), self.deadline).await;
        }
        let all = [&[&["MULTI"][..]], commands, &[&["EXEC"]]].concat();
        let mut replies = self.pipeline.ask_all(&self::commands(&all), self.deadline).await?;
        let done = replies.pop();
        if let Some(Value::ServerError(error)) = &done
            && error.code() != "EXECABORT"
        {
            // The connection is still inside MULTI, or never was.
            self.pipeline.hang_up();
        }
        if let Some(Value::ServerError(error)) =
            replies.iter().find(|reply| matches!(reply, Value::ServerError(_)))
        {
            return Err(refused(self.pipeline, error));
        }
        match done {
            Some(Value::Array(done)) if done.len() == commands.len() => Ok(done),
            Some(Value::Nil) => Err(changed()),
            Some(Value::ServerError(error)) => Err(refused(self.pipeline, &error)),
            _ => Err(self.malformed()),
        }
    }

    /// The answer for a key of another type. A mismatch if this library wrote it as another kind; `NoLock` if
    /// an acquisition found a type that no lock library writes, because waiting for it is pointless;
    /// otherwise busy.
    async fn other_kind(&self) -> Result<Answer, Failure> {
        let key = self.key();
        let (kind, left) = join(self.ask(&["TYPE", key]), self.ask(&["PTTL", key])).await;
        let kind = match answered(self.pipeline, kind?)? {
            Value::SimpleString(kind) => kind,
            _ => return Err(self.malformed()),
        };
        let mut may_be_lock = kind == "hash";
        let mismatch = match &*kind {
            "none" | "string" => return Err(changed()),
            "zset" => {
                let first = answered(self.pipeline, self.ask(&["ZRANGE", key, "0", "0"]).await?)?;
                may_be_lock = is_queue(&first);
                header(&first)
            }
            "hash" => {
                let fence = answered(self.pipeline, self.ask(&["HGET", key, "#fence"]).await?)?;
                let looks = !matches!(self.op.verb, Verb::Acquire { .. } | Verb::Renew { .. });
                (looks || fence != Value::Nil).then_some((Kind::Reentrant, None))
            }
            _ => None,
        };
        Ok(match mismatch {
            Some((kind, capacity)) => Answer::Mismatch { kind, capacity },
            None if matches!(self.op.verb, Verb::Acquire { .. }) && !may_be_lock => {
                Answer::NoLock { type_name: kind }
            }
            None => {
                let left_ms = replies::left(&answered(self.pipeline, left?)?).ok_or_else(changed)?;
                Answer::Busy { holder: format!("({kind})"), left_ms }
            }
        })
    }

    /// Drops the connection, because replies can no longer be matched with requests.
    fn malformed(&self) -> Failure {
        self.pipeline.hang_up();
        Failure::Unknown(Failure::cause("a malformed reply to a plain command"))
    }
}

fn commands(all: &[&[&str]]) -> Commands {
    let mut commands = Commands::default();
    for words in all {
        commands.command(words);
    }
    commands
}

/// The kind and capacity in the header of a queue's sorted set, if this library wrote it: `#1:KIND:CAPACITY`,
/// with a `=` before an explicitly set capacity.
fn header(first: &Value) -> Option<(Kind, Option<u32>)> {
    let (kind, capacity) = member(first)?.strip_prefix("#1:")?.split_once(':')?;
    let capacity = capacity.strip_prefix('=').unwrap_or(capacity);
    Some((kind.parse().ok()?, Some(capacity.parse().ok()?)))
}

/// Whether a sorted set is a queue of this or a later version.
fn is_queue(first: &Value) -> bool {
    let version = member(first).and_then(|first| first.strip_prefix('#')?.split_once(':'));
    version.is_some_and(|(digits, _)| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

fn member(first: &Value) -> Option<&str> {
    let Value::Array(first) = first else { return None };
    std::str::from_utf8(bytes(first.first()?)?).ok()
}

fn found(value: Vec<u8>, left_ms: Option<u64>) -> Answer {
    Answer::Found(Found::one(Kind::Mutex, Holding { value, left_ms, weight: 1 }))
}

/// Nothing was done, and the next request sees the new state.
fn changed() -> Failure {
    Failure::NotSent(Failure::cause("the lock changed while it was read"))
}

fn is_wrong_type(error: &ServerError) -> bool {
    error.code() == "WRONGTYPE"
}

fn is_out_of_memory(failure: &Failure) -> bool {
    matches!(failure, Failure::Refused(cause) if cause.to_string().contains("OOM"))
}

fn is_syntax(error: &ServerError) -> bool {
    error.code() == "ERR" && error.details().is_some_and(|text| text.contains("syntax error"))
}

/// Whether a failure is a permission error about this command or its channel.
fn is_about(failure: &Failure, publish: &str) -> bool {
    let text = failure.to_string().to_ascii_uppercase();
    text.contains("NOPERM") && (text.contains("CHANNEL") || text.contains(publish))
}
