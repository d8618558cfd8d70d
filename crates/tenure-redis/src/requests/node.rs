//! One server: runs requests and lists its locks.

use std::sync::Arc;

use futures_util::future::{FutureExt, join, join_all};

use crate::connection::Connector;
use crate::connection::pipeline::Pipeline;
use crate::connection::pipelines::Pipelines;
use crate::connection::scriptless::Scriptless;
use crate::connection::supervisor::Supervisor;
use crate::messages::Notifications;
use crate::replies::{self, Reading, ScriptReply, failure};
use crate::requests;
use crate::requests::ack_channel::{self, AckChannel};
use crate::requests::keys;
use crate::requests::pair::{self, PairOutcome, Pairs};
use crate::requests::record;
use crate::requests::renewals;
use crate::requests::script::ScriptRequest;
use crate::requests::scriptless::ExclusiveConnection;
use crate::requests::{RequestContext, RoutedRequest, answered, warn_unheard};
use crate::resp::Value;
use crate::resp::encode::command;
use crate::resp::parse::{REPLY_MAX, Tape};
use crate::topology::slots;
use tenure_core::events::{event, text};
use tenure_core::moment::Moment;
use tenure_core::name::LockName;
use tenure_core::owner::Owner;
use tenure_core::planted::{Bug, planted};
use tenure_core::protocol::record::VALUE_MAX;
use tenure_core::protocol::{
    Answer, Fence, Found, Holding, Kind, LockSpec, Op, QueueSpec, ReleaseScope, Verb, parse_value,
};
use tenure_core::runtime::Runtime;
use tenure_core::store::{Cursor, Failure, Page, RecordPage, Signals};

/// Keys per page of a listing.
const PAGE: usize = 250;
// The largest replies: a page of the longest names, and a cached value with its header.
const _: () = assert!(REPLY_MAX > PAGE * LockName::MAX_BYTES && REPLY_MAX > VALUE_MAX + 1024);

/// A server with its connections for requests and for messages. All are closed on drop.
pub(crate) struct Node {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) link: Arc<Supervisor>,
    /// Chooses between `link` and the connection on the callers' runtime.
    pub(crate) pipelines: Arc<Pipelines>,
    pub(crate) notifications: Arc<Notifications>,
    /// For requests that replicas must confirm.
    pub(crate) ack_channel: Arc<AckChannel>,
    /// For locks that nobody waits for.
    pub(crate) pairs: Pairs,
    /// For requests that need a connection to themselves.
    pub(crate) exclusive: ExclusiveConnection,
    /// For log and error messages.
    url: Arc<str>,
}

impl Node {
    pub(crate) fn new(connector: Connector, signals: Signals, url: Arc<str>) -> Self {
        let runtime = Arc::clone(&connector.runtime);
        let connector = Arc::new(connector);
        let (link, exclusive) = (
            Supervisor::reporting(Arc::clone(&connector), signals),
            ExclusiveConnection::new(Arc::clone(&connector), Arc::clone(&url)),
        );
        let ack_channel = AckChannel::new(Arc::clone(&runtime), Arc::clone(&link));
        let pipelines = Pipelines::new(Arc::clone(&connector), Arc::clone(&link));
        Self {
            runtime,
            link,
            pipelines,
            notifications: Notifications::new(connector),
            ack_channel,
            pairs: Pairs::default(),
            exclusive,
            url,
        }
    }

    /// Carries out a request. Rare paths are boxed: unboxed they would enlarge every request's future, which
    /// costs as much as everything else this function does.
    pub(crate) async fn ask(&self, routed: &RoutedRequest<'_>) -> Result<Answer, Failure> {
        let RoutedRequest { op, pipeline, context, .. } = *routed;
        // This connection has met a server that forbids scripts.
        if let Some(plain) = pipeline.plain.get() {
            return plain.ask(&self.exclusive, routed).boxed().await;
        }
        let is_pair = pair::is_for(routed);
        let tried = match is_pair {
            true => self.pairs.ask(&*self.runtime, &self.url, routed).await,
            false => Ok(PairOutcome::NOT),
        };
        let reading = match tried {
            Ok(PairOutcome::Held(fence)) => return Ok(Answer::Held { fence }),
            Ok(PairOutcome::Released { reached }) => {
                if reached > 0 && context.space.counts_listeners() {
                    let channel = keys::channel(context.space, op.spec, op.name.as_str());
                    self.notifications.reached(&channel, reached);
                }
                return Ok(Answer::Released { left: 0 });
            }
            // Its commands ended with the script, whose reply this is.
            Ok(PairOutcome::Said(reading)) => Ok(reading),
            // The commands may have taken the lock without a token that counts.
            Ok(PairOutcome::Undecided { may_hold: true }) => settled(routed).boxed().await,
            // No pair, or the commands changed nothing.
            Ok(PairOutcome::Undecided { may_hold: false }) => self.by_script(routed).await,
            Err(failure) => Err(failure),
        };
        let reading = match reading {
            // The first script on this connection was refused.
            Err(failure) if failure::forbids_scripts(&failure) => {
                // Commands before it may have taken the lock.
                let may_hold = matches!(failure, Failure::Unknown(_));
                let asked = async {
                    let plain = Scriptless::look(pipeline, failure, routed.deadline).await?;
                    plain.ask(&self.exclusive, routed).await
                };
                return asked.boxed().await.map_err(|failure| match failure {
                    Failure::NotSent(cause) | Failure::Refused(cause) if may_hold => Failure::Unknown(cause),
                    failure => failure,
                });
            }
            reading => reading?,
        };
        match reading {
            Ok(replies::Read { answer, unheard, is_counted }) => {
                if let (true, Answer::Held { fence }) = (is_counted, &answer) {
                    let slot = keys::counter_slot(context.space, op.name.as_str());
                    pipeline.tokens.raised(slot, *fence, self.runtime.now());
                }
                if is_pair {
                    self.pairs.learned(&*self.runtime, op, &answer, is_counted);
                }
                if let Some(why) = unheard {
                    warn_unheard(&self.url, op, context.space, &why);
                }
                Ok(answer)
            }
            Err(what) => {
                // Replies can no longer be matched with requests.
                pipeline.hang_up();
                event!(
                    WARN,
                    target: "tenure",
                    "connection_given_up",
                    "unexpected reply: closing the connection",
                    lock = text(context.space.name(&op.name)),
                    store = text(&self.url),
                    what = what,
                );
                Err(Failure::Unknown(Failure::cause(what)))
            }
        }
    }

    /// Carries out renewals, batched into scripts where possible. Answers in the order of `ops`.
    pub(crate) async fn renew(
        &self,
        pipeline: &Pipeline,
        ops: &[Op],
        context: RequestContext,
        deadline: Moment,
    ) -> Vec<Result<Answer, Failure>> {
        let is_possible =
            pipeline.plain.get().is_none() && ops.iter().all(|op| renewals::is_for(op, context));
        let said = match is_possible {
            true => renewals::ask(pipeline, ops, deadline).await,
            false => vec![None; ops.len()],
        };
        let rest = ops.iter().zip(said).map(|(op, said)| async move {
            match said {
                Some(answer) => answer,
                None => self.ask(&RoutedRequest { op, pipeline, context, deadline }).boxed().await,
            }
        });
        join_all(rest).await
    }

    async fn by_script(&self, routed: &RoutedRequest<'_>) -> Result<Reading, Failure> {
        if ack_channel::is_for(routed) {
            let value = self.ack_channel.ask(routed).boxed().await?;
            return Ok(replies::read(&value, routed.op));
        }
        run(routed).await
    }

    /// One page of the server's locks.
    pub(crate) async fn list(
        &self,
        prefix: &str,
        from: &Cursor,
        context: RequestContext,
        deadline: Moment,
    ) -> Result<Page, Failure> {
        let pipeline = self.link.pipeline(deadline).await?;
        // One key type after the other, each with the server's own cursor.
        let (kind, cursor) = from.0.split_once(' ').unwrap_or((TYPES[0].0, "0"));
        let at = TYPES.iter().position(|(name, _)| *name == kind).unwrap_or(0);
        let (kind, spec) = TYPES[at];
        let (next, keys) = scan(&pipeline, cursor, prefix, kind, deadline).await?;
        let is_name =
            |key: &String| key.get(context.space.namespace..).is_some_and(|name| LockName::new(name).is_ok());
        let names: Vec<_> = keys.into_iter().filter(is_name).map(LockName::in_store).collect();
        let next = match (&*next, TYPES.get(at + 1)) {
            ("0", None) => None,
            ("0", Some((kind, _))) => Some(Cursor(format!("{kind} 0"))),
            (next, _) => Some(Cursor(format!("{kind} {next}"))),
        };
        let mut page = Page { locks: Vec::new(), next };
        let looks = names.iter().map(|name| self.look(&pipeline, name, spec, context, deadline));
        for (name, found) in names.iter().zip(join_all(looks).await) {
            let is_ours = |holding: &Holding| parse_value(&holding.value).is_some();
            let found = match found {
                // The lock's slot has migrated.
                Err(failure) if failure::said_in(&failure).is_some_and(slots::redirects) => None,
                found => found?,
            };
            if let Some(found) = found
                && (prefix.len() > context.space.namespace
                    || found.holders.iter().chain(&found.waiters).any(is_ours))
            {
                page.locks.push((name.clone(), found));
            }
        }
        Ok(page)
    }

    /// One page of the server's records, beside the locks whose names begin with `prefix`.
    pub(crate) async fn records(
        &self,
        prefix: String,
        from: &Cursor,
        context: RequestContext,
        deadline: Moment,
    ) -> Result<RecordPage, Failure> {
        let pipeline = self.link.pipeline(deadline).await?;
        let now_us = record::now_us(&*self.runtime, &pipeline, deadline).await?;
        let prefix = keys::record(context.space, &LockName::in_store(prefix)).concat();
        let cursor = if from.0.is_empty() { "0" } else { &from.0 };
        let (next, keys) = scan(&pipeline, cursor, &prefix, "string", deadline).await?;
        let found = record::values(&pipeline, &keys, context, deadline).await?;
        let named = |key: &str| keys::recorded(context.space, key);
        let records = keys.iter().zip(found).filter_map(|(key, found)| Some((named(key)?, found?)));
        let next = (next != "0").then_some(Cursor(next));
        Ok(RecordPage { records: records.collect(), now_us, next })
    }

    /// The holders of a lock, if its key has the type of this rule.
    async fn look(
        &self,
        pipeline: &Pipeline,
        name: &LockName,
        spec: LockSpec,
        context: RequestContext,
        deadline: Moment,
    ) -> Result<Option<Found>, Failure> {
        if spec == LockSpec::Mutex {
            return look_at_text(pipeline, name, deadline).await;
        }
        let owner = Owner::fresh("", &*self.runtime);
        let op = Op { name: name.clone(), spec, owner, request: 0, verb: Verb::Inspect };
        let reading = match run(&RoutedRequest { op: &op, pipeline, context, deadline }).await {
            // Locks of this kind cannot exist on a server without scripts.
            Err(failure) if failure::forbids_scripts(&failure) => return Ok(None),
            reading => reading?,
        };
        Ok(match reading {
            // A hash that is not a lock.
            Ok(replies::Read { answer: Answer::Found(found), .. })
                if found.holders.iter().any(is_no_lock) =>
            {
                None
            }
            Ok(replies::Read { answer: Answer::Found(found), .. }) => Some(found),
            // Deleted or replaced by another type meanwhile.
            _ => None,
        })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.link.close();
        self.pipelines.close();
        self.notifications.close();
        self.exclusive.close();
        self.ack_channel.close();
    }
}

async fn run(routed: &RoutedRequest<'_>) -> Result<Reading, Failure> {
    let RoutedRequest { op, pipeline, context, deadline } = *routed;
    let request = ScriptRequest::new(op, context.space).guarded(&op.verb, context);
    if context.asking {
        // Rare, and must not need a third round trip: send the script in full.
        let asked = pipeline.send(deadline, |out| request.write(out.command(&["ASKING"]), true))?;
        let value = answered(pipeline, asked.last().boxed().await?)?;
        return Ok(replies::read(&value, op));
    }
    // The first request after a reconnect verifies whether a lock is still held. A server that lost the lock
    // has lost its script cache as well, so send the script in full to save a second round trip.
    let in_full = pipeline.brings_script();
    let ask = |in_full| pipeline.send(deadline, |out| request.write(out, in_full));
    let read = |tape: &mut Tape| ScriptReply::of(tape.replies(), op);
    let mut said = ask(in_full)?.read(read).await?;
    if said.is_no_script() {
        said = ask(true)?.read(read).await?;
    }
    requests::said(pipeline, said)
}

/// Runs the script after plain commands that may have taken the lock. If the script is refused or not carried
/// out, the lock is released first, because these failures tell the caller that nothing is held.
async fn settled(routed: &RoutedRequest<'_>) -> Result<Reading, Failure> {
    let reading = run(routed).await;
    let Err(failure) = reading else { return reading };
    let cause = match &failure {
        Failure::Refused(cause) | Failure::NotSent(cause) => Arc::clone(cause),
        Failure::Unknown(_) => return Err(failure),
    };
    if planted(Bug::PairLeftBehind) {
        return Err(failure);
    }
    let verb = Verb::Release { hold: 0, fence: Fence::Assign, whose: ReleaseScope::Own };
    let back = Op { verb, ..routed.op.clone() };
    match run(&routed.of(&back)).await {
        Ok(Ok(_)) => Err(failure),
        // Replies can no longer be matched with requests.
        Ok(unreadable) => Ok(unreadable),
        Err(_) => Err(Failure::Unknown(cause)),
    }
}

const TYPES: [(&str, LockSpec); 3] =
    [("string", LockSpec::Mutex), ("hash", LockSpec::Reentrant), ("zset", LockSpec::Queue(QueueSpec::FAIR))];

fn is_no_lock(holding: &Holding) -> bool {
    holding.value == b"(hash)"
}

/// Like `look`, for a string. Uses plain commands, because a script would read the whole value, which may be
/// huge.
async fn look_at_text(
    pipeline: &Pipeline,
    name: &LockName,
    deadline: Moment,
) -> Result<Option<Found>, Failure> {
    let (value, left) = (["GETRANGE", name.as_str(), "0", "1023"], ["PTTL", name.as_str()]);
    let (value, left) = (command(&value), command(&left));
    let (value, left) = join(pipeline.ask(&value, deadline), pipeline.ask(&left, deadline)).await;
    // An empty value means that the key is gone.
    let value = match value? {
        Value::ServerError(error) if error.code() == "WRONGTYPE" => None, // something else stands there by now
        value => {
            replies::bytes(&answered(pipeline, value)?).map(<[u8]>::to_vec).filter(|value| !value.is_empty())
        }
    };
    Ok(match (value, replies::left(&answered(pipeline, left?)?)) {
        (Some(value), Some(left_ms)) => {
            let mutex = || Found::one(Kind::Mutex, Holding { value: value.clone(), left_ms, weight: 1 });
            Some(replies::solo(&value, left_ms).unwrap_or_else(mutex))
        }
        _ => None,
    })
}

/// Scans a part of the keys of this type: the next cursor, and the keys with this prefix.
async fn scan(
    pipeline: &Pipeline,
    cursor: &str,
    prefix: &str,
    kind: &str,
    deadline: Moment,
) -> Result<(String, Vec<String>), Failure> {
    let pattern = keys::pattern(prefix);
    let scan = ["SCAN", cursor, "MATCH", &pattern, "COUNT", &PAGE.to_string(), "TYPE", kind];
    let value = answered(pipeline, pipeline.ask(&command(&scan), deadline).await?)?;
    scanned(&value).ok_or_else(|| {
        pipeline.hang_up();
        Failure::Unknown(Failure::cause("a malformed reply to SCAN"))
    })
}

/// The next cursor and the keys in a reply to SCAN, without those that are no text.
fn scanned(value: &Value) -> Option<(String, Vec<String>)> {
    let Value::Array(parts) = value else { return None };
    let [next, Value::Array(keys)] = &parts[..] else { return None };
    let next = std::str::from_utf8(replies::bytes(next)?).ok()?;
    let text = |key: &Value| Some(std::str::from_utf8(replies::bytes(key)?).ok()?.to_owned());
    let mut keys: Vec<_> = keys.iter().filter_map(text).collect();
    keys.sort();
    keys.dedup();
    next.bytes().all(|byte| byte.is_ascii_digit()).then(|| (next.to_owned(), keys))
}
