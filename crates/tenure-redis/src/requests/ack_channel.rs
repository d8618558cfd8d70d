//! A separate connection for acquisitions and renewals that must be confirmed by replicas.
//!
//! `WAIT` blocks the connection that it is sent on. Therefore all such requests pending at a time leave as
//! one batch with a single `WAIT`, while the next batch gathers. Releases, and everything else that needs no
//! confirmation, take the shared connection without waiting.
//!
//! There is no order between two connections, and a release must not overtake the acquisition that it undoes.
//! Therefore a request on the shared connection waits while one about the same lock is unanswered here, which
//! never takes long, because the server answers before it waits for replicas. Conversely, if the shared
//! connection may still have a request about a lock in flight, a PING on it flushes that request before one
//! about the lock leaves here. A request that was held back once is not overtaken again, so renewals get
//! through however busy a lock is.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use futures_util::future::{FutureExt, join};
use tokio::sync::{Notify, oneshot};

use crate::connection::Connector;
use crate::connection::pipeline::Pipeline;
use crate::connection::supervisor::Supervisor;
use crate::replies::bytes;
use crate::replies::failure;
use crate::requests::script::ScriptRequest;
use crate::requests::{RequestContext, RoutedRequest, answered, keys, refused};
use crate::resp::Value;
use crate::resp::encode::{Commands, command};
use tenure_core::moment::Moment;
use tenure_core::name::LockName;
use tenure_core::net::by;
use tenure_core::protocol::{Op, Verb};
use tenure_core::runtime::Runtime;
use tenure_core::store::Failure;
use tenure_core::sync::{Locked, wait_for};

/// Maximum time a batch waits for replicas before the next one leaves.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Additional time allowed for a reply.
const LATE: Duration = Duration::from_millis(500);

/// The connection, and the requests queued for it.
pub(crate) struct AckChannel {
    runtime: Arc<dyn Runtime>,
    link: Arc<Supervisor>,
    /// The shared connection.
    main: Arc<Supervisor>,
    /// Whether any request has asked for confirmations.
    used: AtomicBool,
    state: Locked<AckState>,
    /// Notified when there is something to send, and on close.
    notify: Notify,
    /// Notified when a request is no longer in flight.
    settled: Notify,
}

#[derive(Default)]
struct AckState {
    queue: Vec<Unconfirmed>,
    next: u64,
    /// Number of unanswered requests per lock on this connection.
    in_flight: BTreeMap<LockName, usize>,
    /// Requests per lock that may be in flight on the shared connection.
    main: BTreeMap<LockName, MainRequests>,
    /// How many replicas confirmed the last grant that fell short, until a grant succeeds.
    short: Option<String>,
    closed: bool,
}

#[derive(Default)]
struct MainRequests {
    /// By sequence number: whether the request is in flight (`true`) or still waits for its turn.
    asking: BTreeMap<u64, bool>,
    /// Number of requests that were abandoned without an answer.
    abandoned: usize,
}

impl MainRequests {
    fn is_empty(&self) -> bool {
        self.asking.is_empty() && self.abandoned == 0
    }

    /// Whether a request with this sequence number has to wait: for earlier requests, and for those that have
    /// overtaken it.
    fn holds_back(&self, id: u64) -> bool {
        self.abandoned > 0 || self.asking.iter().any(|(other, is_sent)| *other < id || *is_sent)
    }
}

/// A request to be confirmed.
struct Unconfirmed {
    id: u64,
    op: Op,
    context: RequestContext,
    deadline: Moment,
    answer: oneshot::Sender<Result<Value, Failure>>,
    /// It was held back once: no request may overtake it from here on.
    is_due: bool,
}

/// Whether a request counts only once it is confirmed.
pub(crate) fn is_for(&RoutedRequest { op, context, .. }: &RoutedRequest<'_>) -> bool {
    context.terms.acks > 0 && matches!(op.verb, Verb::Acquire { .. } | Verb::Renew { .. })
}

impl AckChannel {
    pub(crate) fn new(connector: Arc<Connector>, main: Arc<Supervisor>) -> Arc<Self> {
        let runtime = Arc::clone(&connector.runtime);
        let (link, used, state) = (Supervisor::new(connector), AtomicBool::new(false), Locked::default());
        Arc::new(Self { runtime, link, main, used, state, notify: Notify::new(), settled: Notify::new() })
    }

    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.link.close();
        self.notify.notify_one();
    }

    pub(crate) fn hang_up(&self) {
        if let Some(pipeline) = self.link.open_line() {
            pipeline.hang_up();
        }
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
            let id = state.number();
            state.queue.push(Unconfirmed { id, op: op.clone(), context, deadline, answer, is_due: false });
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

    /// Admits a request about a lock to the shared connection, after the unanswered ones here. `None` if this
    /// channel was never used.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        name: &LockName,
        deadline: Moment,
    ) -> Result<Option<MainRequest>, Failure> {
        if !self.used.load(Ordering::Acquire) {
            return Ok(None);
        }
        self.admit_in_turn(name, deadline).boxed().await.map(Some)
    }

    async fn admit_in_turn(
        self: &Arc<Self>,
        name: &LockName,
        deadline: Moment,
    ) -> Result<MainRequest, Failure> {
        // Registered before waiting, so that later requests on this channel stay behind it.
        let in_flight = {
            let mut state = self.state();
            let id = state.number();
            state.main.entry(name.clone()).or_default().asking.insert(id, false);
            MainRequest { ack_channel: Arc::clone(self), name: name.clone(), id }
        };
        let admitted = wait_for(&self.settled, || self.state().admits(name, in_flight.id).then_some(()));
        match by(&*self.runtime, deadline, admitted).await {
            Some(()) => Ok(in_flight),
            None => Err(Failure::NotSent(Failure::cause(
                "an earlier request about this lock is still in flight on another connection",
            ))),
        }
    }

    async fn serve(self: Arc<Self>) {
        // Requests that left on the shared connection before this channel was first used were not recorded.
        let mut flush_first = true;
        let (mut main, mut checked) = (0, None);
        loop {
            let notified = self.notify.notified();
            if self.state().closed {
                return;
            }
            if flush_first || self.has_abandoned() {
                flush_first = !self.flush_main().await && flush_first;
            }
            let batch = if flush_first { Vec::new() } else { self.take() };
            let Some(latest) = batch.iter().map(|pending| pending.deadline).max() else {
                notified.await;
                continue;
            };
            let until = latest.min(self.runtime.now() + WAIT_MAX);
            // The shared connection may lead to another server now, so this one must reconnect, too.
            let connects = self.main.connects();
            if connects != std::mem::replace(&mut main, connects) {
                self.hang_up();
            }
            let pipeline =
                match self.link.pipeline(until).await.and_then(|pipeline| self.same_server_as_main(pipeline))
                {
                    Ok(pipeline) => pipeline,
                    Err(failure) => {
                        self.fail(batch, &failure);
                        continue;
                    }
                };
            if !checked.as_ref().is_some_and(|known| Arc::ptr_eq(known, &pipeline)) {
                if let Err(failure) = can_wait(&pipeline, &batch[0], until).await {
                    self.fail(batch, &failure);
                    continue;
                }
                checked = Some(Arc::clone(&pipeline));
            }
            // Do not send requests whose callers have left.
            let (gone, batch) =
                batch.into_iter().partition::<Vec<_>, _>(|pending| pending.answer.is_closed());
            gone.iter().for_each(|pending| self.settle(&pending.op.name));
            match self.send(&pipeline, batch).await {
                BatchResult::Confirmed => {}
                // There may be no replicas left: check again, so that the next requests fail before they are
                // sent.
                BatchResult::TooFew => checked = None,
                BatchResult::Unknown(names) => self.reconnect_after(&pipeline, names).await,
            }
        }
    }

    /// The same pipeline, if it leads to the same server as the shared connection. Two connections may have
    /// been told of different masters.
    fn same_server_as_main(&self, pipeline: Arc<Pipeline>) -> Result<Arc<Pipeline>, Failure> {
        match self.main.open_line() {
            Some(main) if main.to != pipeline.to => {
                let cause =
                    format!("two connections lead to different servers, {} and {}", main.to, pipeline.to);
                main.hang_up();
                pipeline.hang_up();
                Err(Failure::NotSent(Failure::cause(cause)))
            }
            _ => Ok(pipeline),
        }
    }

    /// Whether a queued request is about a lock with an abandoned request on the shared connection.
    fn has_abandoned(&self) -> bool {
        let state = self.state();
        let is_abandoned = |pending: &Unconfirmed| {
            state.main.get(&pending.op.name).is_some_and(|requests| requests.abandoned > 0)
        };
        state.queue.iter().any(is_abandoned)
    }

    /// Flushes the shared connection with a PING: everything sent on it before was carried out or never will
    /// be. If that fails, all queued requests fail with `NotSent`.
    async fn flush_main(&self) -> bool {
        let left: Vec<_> = {
            let state = self.state();
            state.main.iter().map(|(name, requests)| (name.clone(), requests.abandoned)).collect()
        };
        let until = self.runtime.now() + WAIT_MAX;
        let passed = async {
            let pipeline = self.main.pipeline(until).await?;
            pipeline.ask(&command(&["PING"]), until).await
        };
        let failure = passed.await.err();
        let mut state = self.state();
        match failure {
            None => {
                for (name, count) in left {
                    if let Some(requests) = state.main.get_mut(&name) {
                        requests.abandoned -= count;
                        if requests.is_empty() {
                            state.main.remove(&name);
                        }
                    }
                }
                true
            }
            Some(failure) => {
                for pending in state.queue.drain(..) {
                    let _ = pending.answer.send(Err(failure.clone().not_sent()));
                }
                drop(state);
                self.settled.notify_waiters();
                false
            }
        }
    }

    /// Takes the requests that can leave now because none about their locks is ahead of them on the shared
    /// connection, and counts them as in flight.
    fn take(&self) -> Vec<Unconfirmed> {
        let mut state = self.state();
        let mut batch = Vec::new();
        for mut pending in std::mem::take(&mut state.queue) {
            if state.main.get(&pending.op.name).is_some_and(|requests| requests.holds_back(pending.id)) {
                pending.is_due = true;
                state.queue.push(pending);
            } else {
                *state.in_flight.entry(pending.op.name.clone()).or_default() += 1;
                batch.push(pending);
            }
        }
        batch
    }

    /// Fails requests that were not sent.
    fn fail(&self, batch: Vec<Unconfirmed>, failure: &Failure) {
        for pending in batch {
            self.settle(&pending.op.name);
            let _ = pending.answer.send(Err(failure.clone().not_sent()));
        }
    }

    fn settle(&self, name: &LockName) {
        {
            let mut state = self.state();
            if let Some(count) = state.in_flight.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    state.in_flight.remove(name);
                }
            }
        }
        self.settled.notify_waiters();
    }

    /// Sends a batch followed by one WAIT. Requests whose script the server does not have are sent a second
    /// time in full, with a WAIT of their own.
    async fn send(&self, pipeline: &Pipeline, mut batch: Vec<Unconfirmed>) -> BatchResult {
        let mut short = false;
        for again in [false, true] {
            if batch.is_empty() {
                break;
            }
            let in_full = again || pipeline.brings_script();
            let now = self.runtime.now();
            let acks = batch.iter().map(|pending| pending.context.terms.acks).max().unwrap_or(1);
            let longest = batch.iter().map(|pending| pending.deadline.since(now)).max().unwrap_or(WAIT_MAX);
            // Leaves time to receive the count of confirmations before the deadline.
            let patience = (longest - longest / 8).clamp(Duration::from_millis(1), WAIT_MAX);
            let wait = command(&["WAIT", &acks.to_string(), &patience.as_millis().to_string()]);
            let until = now + patience + LATE;
            let mut commands = batch[0].mark();
            batch.iter().for_each(|pending| pending.write(&mut commands, in_full));
            let replies = async {
                match pipeline.ask_all(&commands, until).await {
                    Ok(replies) => Some(self.sort(pipeline, batch, replies)),
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
            let Some(sorted) = sorted else { return BatchResult::Unknown(self.names()) };
            let confirmed = match confirmed.and_then(|reply| answered(pipeline, reply)) {
                Ok(Value::Int(confirmed)) => confirmed,
                other => {
                    let failure = other
                        .err()
                        .unwrap_or_else(|| Failure::Unknown(Failure::cause("a malformed reply to WAIT")));
                    for (pending, _) in sorted.granted {
                        let _ = pending.answer.send(Err(Failure::Unknown(Arc::clone(failure.why()))));
                    }
                    return BatchResult::Unknown(self.names());
                }
            };
            for (pending, reply) in sorted.granted {
                let acks = pending.context.terms.acks;
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
        if short { BatchResult::TooFew } else { BatchResult::Confirmed }
    }

    /// Answers requests that need no confirmation. Each was carried out or never will be.
    fn sort(&self, pipeline: &Pipeline, batch: Vec<Unconfirmed>, replies: Vec<Value>) -> Sorted {
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
                    self.settle(&pending.op.name);
                    let _ = pending.answer.send(Err(refused(pipeline, &error)));
                }
                Some(reply) if is_grant(&reply) => {
                    self.settle(&pending.op.name);
                    match &mark {
                        Some(Value::ServerError(error)) => {
                            let why = Arc::clone(failure::of(error).0.why());
                            let _ = pending.answer.send(Err(Failure::Unknown(why)));
                        }
                        _ => sorted.granted.push((pending, reply)),
                    }
                }
                Some(reply) => {
                    self.settle(&pending.op.name);
                    let _ = pending.answer.send(Ok(reply));
                }
                None => {
                    pipeline.hang_up();
                    self.settle(&pending.op.name);
                    let _ = pending.answer.send(Err(Failure::Unknown(Failure::cause("a reply is missing"))));
                }
            }
        }
        sorted
    }

    /// The locks with requests in flight, and how many.
    fn names(&self) -> BTreeMap<LockName, usize> {
        self.state().in_flight.clone()
    }

    /// Closes a connection whose requests have unknown outcomes. They are settled once the next connection is
    /// open, because it kills this one first.
    async fn reconnect_after(&self, pipeline: &Pipeline, names: BTreeMap<LockName, usize>) {
        pipeline.hang_up();
        while self.link.pipeline(self.runtime.now() + WAIT_MAX).await.is_err() {
            if self.state().closed {
                return;
            }
        }
        for (name, count) in names {
            (0..count).for_each(|_| self.settle(&name));
        }
    }
}

enum BatchResult {
    Confirmed,
    /// Too few replicas confirmed.
    TooFew,
    /// The connection was lost; the outcome of requests about these locks is unknown.
    Unknown(BTreeMap<LockName, usize>),
}

struct Sorted {
    /// To be confirmed.
    granted: Vec<(Unconfirmed, Value)>,
    /// The server does not have their script.
    unknown: Vec<Unconfirmed>,
}

impl AckState {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Whether a request with this sequence number may leave on the shared connection; if so, it counts as in
    /// flight.
    fn admits(&mut self, name: &LockName, id: u64) -> bool {
        let is_before = |pending: &Unconfirmed| pending.is_due && pending.id < id && pending.op.name == *name;
        let passes = !self.in_flight.contains_key(name) && !self.queue.iter().any(is_before);
        if passes && let Some(requests) = self.main.get_mut(name) {
            requests.asking.insert(id, true);
        }
        passes
    }
}

/// A queued request, as long as its caller waits.
struct Queued<'a> {
    ack_channel: &'a AckChannel,
    id: u64,
}

impl Queued<'_> {
    /// Removes the request if it was not sent yet; returns whether it was removed.
    fn withdraw(&self) -> bool {
        let was_queued = {
            let queue = &mut self.ack_channel.state().queue;
            let at = queue.iter().position(|pending| pending.id == self.id);
            at.map(|at| queue.remove(at)).is_some()
        };
        if was_queued {
            self.ack_channel.settled.notify_waiters();
        }
        was_queued
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
        request.guarded(self.context).write(out, in_full || asking);
    }
}

/// A request on the shared connection, until it is answered.
pub(crate) struct MainRequest {
    ack_channel: Arc<AckChannel>,
    name: LockName,
    id: u64,
}

impl MainRequest {
    /// It was carried out or never will be.
    pub(crate) fn answered(self) {
        if let Some(requests) = self.ack_channel.state().main.get_mut(&self.name) {
            requests.asking.remove(&self.id);
        }
    }
}

impl Drop for MainRequest {
    fn drop(&mut self) {
        {
            let mut state = self.ack_channel.state();
            if let Some(requests) = state.main.get_mut(&self.name) {
                // In flight without an answer: the outcome is unknown.
                requests.abandoned += usize::from(requests.asking.remove(&self.id) == Some(true));
                if requests.is_empty() {
                    state.main.remove(&self.name);
                }
            }
        }
        self.ack_channel.notify.notify_one();
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
    match role? {
        Value::Array(role) => match &role[..] {
            [name, _, Value::Array(replicas), ..]
                if bytes(name) == Some(b"master") && replicas.is_empty() =>
            {
                let cause = "the server has no connected replicas, which `acks` needs";
                Err(Failure::NotSent(Failure::cause(cause)))
            }
            [name, ..] if bytes(name) == Some(b"slave") => {
                pipeline.hang_up();
                Err(Failure::NotSent(Failure::cause("it is now a replica")))
            }
            _ => Ok(()),
        },
        // A reply to ROLE that does not say counts as having replicas.
        _ => Ok(()),
    }
}
