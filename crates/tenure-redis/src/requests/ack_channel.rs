//! Acquisitions and renewals that must be confirmed by replicas.
//!
//! `WAIT` blocks the connection that it is sent on. Therefore all such requests pending at a time leave as one
//! batch with a single `WAIT`, while the next batch gathers. Everything else leaves on the same connection at
//! once, and is answered after the `WAIT` in flight: a release never overtakes the acquisition that it undoes.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use futures_util::future::{FutureExt, join};
use tokio::sync::{Notify, oneshot};

use crate::connection::pipeline::Pipeline;
use crate::connection::supervisor::Supervisor;
use crate::replies::bytes;
use crate::replies::failure;
use crate::requests::script::ScriptRequest;
use crate::requests::{RequestContext, RoutedRequest, answered, keys, refused};
use crate::resp::Value;
use crate::resp::encode::{Commands, command};
use tenure_core::moment::Moment;
use tenure_core::net::by;
use tenure_core::protocol::{Op, Verb};
use tenure_core::runtime::Runtime;
use tenure_core::store::Failure;
use tenure_core::sync::Locked;

/// Maximum time a batch waits for replicas before the next one leaves.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Additional time allowed for a reply.
const LATE: Duration = Duration::from_millis(500);

/// The requests queued for the server's connection.
pub(crate) struct AckChannel {
    runtime: Arc<dyn Runtime>,
    link: Arc<Supervisor>,
    /// Whether any request has been queued.
    used: AtomicBool,
    state: Locked<AckState>,
    /// Notified when there is something to send, and on close.
    notify: Notify,
}

#[derive(Default)]
struct AckState {
    queue: Vec<Unconfirmed>,
    next: u64,
    /// How many replicas confirmed the last grant that fell short, until a grant succeeds.
    short: Option<String>,
    closed: bool,
}

/// A request to be confirmed.
struct Unconfirmed {
    id: u64,
    op: Op,
    context: RequestContext,
    deadline: Moment,
    answer: oneshot::Sender<Result<Value, Failure>>,
}

/// Whether a request counts only once it is confirmed.
pub(crate) fn is_for(&RoutedRequest { op, context, .. }: &RoutedRequest<'_>) -> bool {
    context.guarantees.acks > 0 && matches!(op.verb, Verb::Acquire { .. } | Verb::Renew { .. })
}

impl AckChannel {
    pub(crate) fn new(runtime: Arc<dyn Runtime>, link: Arc<Supervisor>) -> Arc<Self> {
        let (used, state) = (AtomicBool::new(false), Locked::default());
        Arc::new(Self { runtime, link, used, state, notify: Notify::new() })
    }

    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.notify.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, AckState> {
        self.state.lock()
    }

    /// The server's reply; for a grant, only once enough replicas have it.
    pub(crate) async fn ask(self: &Arc<Self>, routed: &RoutedRequest<'_>) -> Result<Value, Failure> {
        let RoutedRequest { op, context, deadline, .. } = *routed;
        if !self.used.swap(true, Ordering::AcqRel) {
            self.runtime.spawn(Arc::clone(self).serve().boxed());
        }
        let (answer, reply) = oneshot::channel();
        let id = {
            let mut state = self.state();
            state.next += 1;
            let id = state.next;
            state.queue.push(Unconfirmed { id, op: op.clone(), context, deadline, answer });
            id
        };
        let queued = Queued { ack_channel: self, id };
        self.notify.notify_one();
        match by(&*self.runtime, deadline, reply).await {
            Some(Ok(reply)) => reply,
            Some(Err(_)) => Err(Failure::Unknown(Failure::cause("the store was closed"))),
            None => {
                let was_sent = !queued.withdraw();
                let short = self
                    .state()
                    .short
                    .as_ref()
                    .map_or(String::new(), |short| format!("; last time, {short}"));
                Err(if was_sent {
                    Failure::Unknown(Failure::cause(format!("replicas did not confirm it in time{short}")))
                } else {
                    let cause = format!("replicas did not confirm earlier requests in time{short}");
                    Failure::NotSent(Failure::cause(cause))
                })
            }
        }
    }

    async fn serve(self: Arc<Self>) {
        let mut checked = None;
        loop {
            let notified = self.notify.notified();
            if self.state().closed {
                return;
            }
            let batch = std::mem::take(&mut self.state().queue);
            let Some(latest) = batch.iter().map(|pending| pending.deadline).max() else {
                notified.await;
                continue;
            };
            let until = latest.min(self.runtime.now() + WAIT_MAX);
            let pipeline = match self.link.pipeline(until).await {
                Ok(pipeline) => pipeline,
                Err(failure) => {
                    fail(batch, &failure);
                    continue;
                }
            };
            if !checked.as_ref().is_some_and(|known| Arc::ptr_eq(known, &pipeline)) {
                if let Err(failure) = can_wait(&pipeline, &batch[0], until).await {
                    fail(batch, &failure);
                    continue;
                }
                checked = Some(Arc::clone(&pipeline));
            }
            // After too few confirmations there may be no replicas left: check again, so that the next requests
            // fail before they are sent.
            if !self.send(&pipeline, batch).await {
                checked = None;
            }
        }
    }

    /// Sends a batch followed by one WAIT. Requests whose script the server does not have are sent a second
    /// time in full, with a WAIT of their own. Returns false if too few replicas confirmed it.
    async fn send(&self, pipeline: &Pipeline, mut batch: Vec<Unconfirmed>) -> bool {
        let mut short = false;
        for again in [false, true] {
            // A caller that has left may have sent a release already, which this request must not follow.
            batch.retain(|pending| !pending.answer.is_closed());
            if batch.is_empty() {
                break;
            }
            let in_full = again || pipeline.brings_script();
            let now = self.runtime.now();
            let acks = batch.iter().map(|pending| pending.context.guarantees.acks).max().unwrap_or(1);
            let longest = batch.iter().map(|pending| pending.deadline.since(now)).max().unwrap_or(WAIT_MAX);
            // Leaves time to receive the count of confirmations before the deadline.
            let patience = (longest - longest / 8).clamp(Duration::from_millis(1), WAIT_MAX);
            let wait = command(&["WAIT", &acks.to_string(), &patience.as_millis().to_string()]);
            let until = now + patience + LATE;
            let mut commands = batch[0].mark();
            batch.iter().for_each(|pending| pending.write(&mut commands, in_full));
            let replies = async {
                match pipeline.ask_all(&commands, until).await {
                    Ok(replies) => Some(Self::sort(pipeline, batch, replies)),
                    // The connection is lost, or silent: what of the batch was carried out is unknown.
                    Err(failure) => {
                        for pending in batch {
                            let _ = pending.answer.send(Err(failure.clone()));
                        }
                        None
                    }
                }
            };
            // The scripts are answered before the server waits for replicas.
            let (sorted, confirmed) = join(replies, pipeline.ask(&wait, until)).await;
            // All have been answered.
            let Some(sorted) = sorted else { return true };
            let confirmed = match confirmed.and_then(|reply| answered(pipeline, reply)) {
                Ok(Value::Int(confirmed)) => confirmed,
                // Without a count, as from a server that was demoted, a grant may be on the master alone.
                other => {
                    let failure = other
                        .err()
                        .unwrap_or_else(|| Failure::Unknown(Failure::cause("a malformed reply to WAIT")));
                    for (pending, _) in sorted.granted {
                        let _ = pending.answer.send(Err(Failure::Unknown(Arc::clone(failure.why()))));
                    }
                    return true;
                }
            };
            for (pending, reply) in sorted.granted {
                let acks = pending.context.guarantees.acks;
                let answer = if confirmed >= i64::from(acks) {
                    self.state().short = None;
                    Ok(reply)
                } else {
                    short = true;
                    let within = patience.as_millis();
                    let cause = format!("{confirmed} of {acks} replicas confirmed it within {within} ms");
                    self.state().short = Some(cause.clone());
                    Err(Failure::Unknown(Failure::cause(cause)))
                };
                let _ = pending.answer.send(answer);
            }
            batch = sorted.unknown;
        }
        !short
    }

    /// Answers requests that need no confirmation. Each was carried out or never will be.
    fn sort(pipeline: &Pipeline, batch: Vec<Unconfirmed>, replies: Vec<Value>) -> Sorted {
        let mut sorted = Sorted { granted: Vec::new(), unknown: Vec::new() };
        let mut replies = replies.into_iter();
        let mark = replies.next();
        for pending in batch {
            let reply = replies.nth(usize::from(pending.context.asking));
            match reply {
                Some(Value::ServerError(error)) if failure::is_no_script(&error) => {
                    sorted.unknown.push(pending);
                    continue;
                }
                Some(Value::ServerError(error)) => {
                    let _ = pending.answer.send(Err(refused(pipeline, &error)));
                }
                Some(reply) if is_grant(&reply) => match &mark {
                    Some(Value::ServerError(error)) => {
                        let why = Arc::clone(failure::of(error).0.why());
                        let _ = pending.answer.send(Err(Failure::Unknown(why)));
                    }
                    _ => sorted.granted.push((pending, reply)),
                },
                Some(reply) => {
                    let _ = pending.answer.send(Ok(reply));
                }
                None => {
                    pipeline.hang_up();
                    let _ = pending.answer.send(Err(Failure::Unknown(Failure::cause("a reply is missing"))));
                }
            }
        }
        sorted
    }
}

/// Fails requests that were not sent.
fn fail(batch: Vec<Unconfirmed>, failure: &Failure) {
    for pending in batch {
        let _ = pending.answer.send(Err(failure.clone().not_sent()));
    }
}

struct Sorted {
    /// To be confirmed.
    granted: Vec<(Unconfirmed, Value)>,
    /// The server does not have their script.
    unknown: Vec<Unconfirmed>,
}

/// A queued request, as long as its caller waits.
struct Queued<'a> {
    ack_channel: &'a AckChannel,
    id: u64,
}

impl Queued<'_> {
    /// Removes the request if it was not sent yet; returns whether it was removed.
    fn withdraw(&self) -> bool {
        let queue = &mut self.ack_channel.state().queue;
        let at = queue.iter().position(|pending| pending.id == self.id);
        at.map(|at| queue.remove(at)).is_some()
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl Unconfirmed {
    /// The channel of [`mark`](Self::mark).
    fn channel(&self) -> Cow<'static, str> {
        keys::acks(self.context.space, self.op.name.as_str())
    }

    /// A message without subscribers that is replicated to every replica: `WAIT` covers only this connection's
    /// writes, and a request that found everything as it should be has written nothing.
    fn mark(&self) -> Commands {
        command(&["PUBLISH", &self.channel(), ""])
    }

    fn write(&self, out: &mut Commands, in_full: bool) {
        let (request, asking) = (ScriptRequest::new(&self.op, self.context.space), self.context.asking);
        if asking {
            out.command(&["ASKING"]);
        }
        request.guarded(&self.op.verb, self.context).write(out, in_full || asking);
    }
}

/// Whether a reply grants or renews a hold, which replicas have to confirm.
fn is_grant(reply: &Value) -> bool {
    match reply {
        Value::BulkString(text) => text.split(|byte| *byte == b' ').nth(2) == Some(b"held"),
        Value::Array(parts) => parts.get(2).and_then(bytes) == Some(b"held"),
        _ => false,
    }
}

/// Checks that the server supports WAIT and has replicas.
async fn can_wait(pipeline: &Pipeline, pending: &Unconfirmed, until: Moment) -> Result<(), Failure> {
    let (mark, wait, role) = (pending.mark(), command(&["WAIT", "0", "0"]), command(&["ROLE"]));
    let needed = join(pipeline.ask(&mark, until), pipeline.ask(&wait, until));
    let ((mark, wait), role) = join(needed, pipeline.ask(&role, until)).await;
    let role = role?;
    // Before the reply to WAIT, which a replica refuses like a command that the user may not run.
    if let Value::Array(role) = &role
        && role.first().and_then(bytes) == Some(b"slave")
    {
        pipeline.hang_up();
        return Err(Failure::NotSent(Failure::cause("it is now a replica")));
    }
    for reply in [mark?, wait?] {
        if let Value::ServerError(error) = reply {
            return Err(match refused(pipeline, &error) {
                Failure::Refused(why) => Failure::impossible(format!(
                    "`acks` needs WAIT and PUBLISH to `{}`, which this user may not use ({why})",
                    pending.channel()
                )),
                failure => failure,
            });
        }
    }
    match role {
        Value::Array(role) => match &role[..] {
            [name, _, Value::Array(replicas), ..]
                if bytes(name) == Some(b"master") && replicas.is_empty() =>
            {
                let cause = "the server has no connected replicas, which `acks` needs";
                Err(Failure::NotSent(Failure::cause(cause)))
            }
            _ => Ok(()),
        },
        // A reply to ROLE that does not say counts as having replicas.
        _ => Ok(()),
    }
}
