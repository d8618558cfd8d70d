//! Acquisitions and renewals that count only once replicas have confirmed them: on a connection of
//! their own.
//!
//! `WAIT` stops the connection that it is sent on. So here all such requests of the moment leave
//! together with one `WAIT`, and the next gather meanwhile. Releases, and all that needs no
//! confirmation, go over the shared connection without a wait.
//!
//! Between two connections there is no order, and a release must not overtake the acquisition that
//! it undoes. So a request by the other connection waits while one about the same lock is
//! unanswered here, which is never for long: the server answers it before it waits for its
//! replicas. And before one leaves here about a lock that the other connection may still have a
//! request of, that connection is asked anything: when it has answered, it has carried out all that
//! came before. A request that was held back once is overtaken no more: however much is asked about
//! a lock, its renewals leave.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use futures_util::future::{FutureExt, join, select};
use tokio::sync::{Notify, oneshot};

use crate::connection::Connector;
use crate::connection::pipeline::Pipeline;
use crate::connection::supervisor::Supervisor;
use crate::replies::bytes;
use crate::replies::failure::{self, not_sent};
use crate::requests::{RequestContext, ScriptRequest, answered, refused};
use crate::resp::Value;
use crate::resp::encode::{Commands, command};
use tenure_core::moment::Moment;
use tenure_core::name::LockName;
use tenure_core::net::by;
use tenure_core::protocol::{Op, Verb};
use tenure_core::runtime::Runtime;
use tenure_core::store::Failure;
use tenure_core::sync::Locked;

/// The next requests leave after this time, also if replicas have not confirmed.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// What a reply may take beyond what was asked for.
const LATE: Duration = Duration::from_millis(500);
/// A message without subscribers that every replica gets: `WAIT` is about what this connection has
/// written, and a request that has found all as it should be has written nothing.
const MARK: [&str; 3] = ["PUBLISH", "tenure:wake:acks", ""];

/// The connection for them, and the requests that wait for it.
pub(crate) struct AckChannel {
    runtime: Arc<dyn Runtime>,
    link: Arc<Supervisor>,
    /// The connection of all.
    main: Arc<Supervisor>,
    /// Whether a request has ever asked for confirmations.
    used: AtomicBool,
    state: Locked<AckState>,
    /// There is something to send, or nothing ever more.
    notify: Notify,
    /// Something is not under way any more.
    settled: Notify,
}

#[derive(Default)]
struct AckState {
    queue: Vec<Unconfirmed>,
    next: u64,
    /// How many requests about a lock are under way here and unanswered.
    here: BTreeMap<LockName, usize>,
    /// What may be under way about a lock by the connection of all.
    there: BTreeMap<LockName, There>,
    /// How many replicas had confirmed the last grant that too few did, unless there was a good one
    /// since.
    short: Option<String>,
    closed: bool,
}

#[derive(Default)]
struct There {
    /// By when they came; and whether they are on their way, or still wait for their turn.
    asking: BTreeMap<u64, bool>,
    /// So many have left without an answer.
    left: usize,
}

impl There {
    fn is_empty(&self) -> bool {
        self.asking.is_empty() && self.left == 0
    }

    /// Whether one that came as this number has to wait: for those before it, and for those that
    /// have overtaken it.
    fn holds_back(&self, id: u64) -> bool {
        self.left > 0 || self.asking.iter().any(|(other, on_its_way)| *other < id || *on_its_way)
    }
}

/// A request that is to be confirmed.
struct Unconfirmed {
    id: u64,
    op: Op,
    context: RequestContext,
    deadline: Moment,
    answer: oneshot::Sender<Result<Value, Failure>>,
    /// It was held back by others: from here on no request overtakes it.
    is_due: bool,
}

/// Whether a request counts only when it is confirmed.
pub(crate) fn is_for(op: &Op, context: RequestContext) -> bool {
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
        // Nothing in here panics half-way, so a poisoned state is as good as another.
        self.state.lock()
    }

    /// The server's reply; that of a grant only when enough replicas have it too.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        op: &Op,
        context: RequestContext,
        deadline: Moment,
    ) -> Result<Value, Failure> {
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
                    .map_or(String::new(), |short| format!(": the last time {short}"));
                Err(if was_sent {
                    Failure::Unknown(Failure::cause(format!("replicas have not confirmed it in time{short}")))
                } else {
                    let cause = format!("replicas have not confirmed in time what came before{short}");
                    Failure::NotSent(Failure::cause(cause))
                })
            }
        }
    }

    /// Lets a request about a lock leave by the shared connection, behind those under way here.
    pub(crate) async fn beside(
        self: &Arc<Self>,
        name: &LockName,
        deadline: Moment,
    ) -> Result<Option<OtherRequest>, Failure> {
        if !self.used.load(Ordering::Acquire) {
            return Ok(None);
        }
        self.pass_beside(name, deadline).boxed().await.map(Some)
    }

    async fn pass_beside(
        self: &Arc<Self>,
        name: &LockName,
        deadline: Moment,
    ) -> Result<OtherRequest, Failure> {
        // Noted before it waits: what comes after it, here, is to come after it there.
        let in_flight = {
            let mut state = self.state();
            let id = state.number();
            state.there.entry(name.clone()).or_default().asking.insert(id, false);
            OtherRequest { ack_channel: Arc::clone(self), name: name.clone(), id }
        };
        loop {
            let mut settled = pin!(self.settled.notified());
            settled.as_mut().enable();
            if self.state().lets_pass(name, in_flight.id) {
                return Ok(in_flight);
            }
            if self.runtime.now() >= deadline {
                let cause = "an earlier request about it is still on its way by another connection";
                return Err(Failure::NotSent(Failure::cause(cause)));
            }
            select(settled, self.runtime.sleep_until(deadline)).await;
        }
    }

    async fn serve(self: Arc<Self>) {
        // What left by the connection of all before this was used was not noted.
        let mut unnoted = true;
        let (mut main, mut knows) = (0, None);
        loop {
            let rung = self.notify.notified();
            if self.state().closed {
                return;
            }
            if unnoted || self.has_left() {
                unnoted = !self.pass().await && unnoted;
            }
            let batch = if unnoted { Vec::new() } else { self.take() };
            let Some(latest) = batch.iter().map(|pending| pending.deadline).max() else {
                rung.await;
                continue;
            };
            let until = latest.min(self.runtime.now() + WAIT_MAX);
            // The server may be another by now, and then so is this connection to be.
            let connects = self.main.connects();
            if connects != std::mem::replace(&mut main, connects) {
                self.hang_up();
            }
            let pipeline =
                match self.link.pipeline(until).await.and_then(|pipeline| self.beside_main(pipeline)) {
                    Ok(pipeline) => pipeline,
                    Err(failure) => {
                        self.fail(batch, &failure);
                        continue;
                    }
                };
            if !knows.as_ref().is_some_and(|known| Arc::ptr_eq(known, &pipeline)) {
                if let Err(failure) = can_wait(&pipeline, until).await {
                    self.fail(batch, &failure);
                    continue;
                }
                knows = Some(Arc::clone(&pipeline));
            }
            // A request whose caller has left is not sent.
            let (gone, batch) =
                batch.into_iter().partition::<Vec<_>, _>(|pending| pending.answer.is_closed());
            gone.iter().for_each(|pending| self.settle(&pending.op.name));
            match self.send(&pipeline, batch).await {
                BatchResult::Well => {}
                // Perhaps there are no replicas any more: then the next are told before they leave.
                BatchResult::Short => knows = None,
                BatchResult::Unknown(names) => self.give_up(&pipeline, names).await,
            }
        }
    }

    /// The same pipeline, if it goes to where the connection of all goes. Two that asked who the
    /// master is may have heard of two.
    fn beside_main(&self, pipeline: Arc<Pipeline>) -> Result<Arc<Pipeline>, Failure> {
        match self.main.open_line() {
            Some(main) if main.to != pipeline.to => {
                let cause = format!("one connection goes to {}, the other to {}", main.to, pipeline.to);
                main.hang_up();
                pipeline.hang_up();
                Err(Failure::NotSent(Failure::cause(cause)))
            }
            _ => Ok(pipeline),
        }
    }

    /// Whether a waiting request is about a lock of a request that left the shared connection
    /// without an answer.
    fn has_left(&self) -> bool {
        let state = self.state();
        let has_left =
            |pending: &Unconfirmed| state.there.get(&pending.op.name).is_some_and(|there| there.left > 0);
        state.queue.iter().any(has_left)
    }

    /// Makes sure that all that has left by the connection of all was carried out, or never will
    /// be. If not, those who would come before it are told.
    async fn pass(&self) -> bool {
        let left: Vec<_> = {
            let state = self.state();
            state.there.iter().map(|(name, there)| (name.clone(), there.left)).collect()
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
                    if let Some(there) = state.there.get_mut(&name) {
                        there.left -= count;
                        if there.is_empty() {
                            state.there.remove(&name);
                        }
                    }
                }
                true
            }
            Some(failure) => {
                for pending in state.queue.drain(..) {
                    let _ = pending.answer.send(Err(not_sent(failure.clone())));
                }
                drop(state);
                self.settled.notify_waiters();
                false
            }
        }
    }

    /// Those that can leave now: no request by the shared connection is about their lock. From here
    /// on they are under way.
    fn take(&self) -> Vec<Unconfirmed> {
        let mut state = self.state();
        let mut batch = Vec::new();
        for mut pending in std::mem::take(&mut state.queue) {
            if state.there.get(&pending.op.name).is_some_and(|there| there.holds_back(pending.id)) {
                pending.is_due = true;
                state.queue.push(pending);
            } else {
                *state.here.entry(pending.op.name.clone()).or_default() += 1;
                batch.push(pending);
            }
        }
        batch
    }

    /// None of these was sent.
    fn fail(&self, batch: Vec<Unconfirmed>, failure: &Failure) {
        for pending in batch {
            self.settle(&pending.op.name);
            let _ = pending.answer.send(Err(not_sent(failure.clone())));
        }
    }

    fn settle(&self, name: &LockName) {
        {
            let mut state = self.state();
            if let Some(here) = state.here.get_mut(name) {
                *here -= 1;
                if *here == 0 {
                    state.here.remove(name);
                }
            }
        }
        self.settled.notify_waiters();
    }

    /// Sends a batch and one WAIT behind it; scripts that the server does not know, and one more, a
    /// second time.
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
            // So that there is time left to say how many have.
            let patience = (longest - longest / 8).clamp(Duration::from_millis(1), WAIT_MAX);
            let wait = command(&["WAIT", &acks.to_string(), &patience.as_millis().to_string()]);
            let until = now + patience + LATE;
            let mut commands = command(&MARK);
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
            // The scripts are answered before the replicas are waited for.
            let (sorted, confirmed) = join(replies, pipeline.ask(&wait, until)).await;
            let Some(sorted) = sorted else { return BatchResult::Unknown(self.names()) };
            let confirmed = match confirmed.and_then(|reply| answered(pipeline, reply)) {
                Ok(Value::Int(confirmed)) => confirmed,
                other => {
                    let failure = other
                        .err()
                        .unwrap_or_else(|| Failure::Unknown(Failure::cause("a malformed reply to WAIT")));
                    let (Failure::NotSent(why) | Failure::Unknown(why) | Failure::Refused(why)) = failure;
                    for (pending, _) in sorted.granted {
                        let _ = pending.answer.send(Err(Failure::Unknown(Arc::clone(&why))));
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
                    let cause =
                        format!("{confirmed} of {acks} replicas have confirmed it within {within} ms");
                    self.state().short = Some(cause.clone());
                    Err(Failure::Unknown(Failure::cause(cause)))
                };
                let _ = pending.answer.send(answer);
            }
            batch = sorted.unknown;
        }
        if short { BatchResult::Short } else { BatchResult::Well }
    }

    /// Answers what needs no confirmation. Each has been carried out, or never will be.
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
                            let (Failure::NotSent(why) | Failure::Unknown(why) | Failure::Refused(why)) =
                                failure::of(error).0;
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

    /// What is under way, by name.
    fn names(&self) -> BTreeMap<LockName, usize> {
        self.state().here.clone()
    }

    /// Ends a connection whose requests have unknown outcomes. They are over when there is the
    /// next.
    async fn give_up(&self, pipeline: &Pipeline, names: BTreeMap<LockName, usize>) {
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

/// What became of a batch.
enum BatchResult {
    Well,
    /// Too few replicas have confirmed it.
    Short,
    /// The connection is lost, and of these it is not known whether they were carried out.
    Unknown(BTreeMap<LockName, usize>),
}

struct Sorted {
    /// To be confirmed.
    granted: Vec<(Unconfirmed, Value)>,
    /// The server does not know their script.
    unknown: Vec<Unconfirmed>,
}

impl AckState {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Whether a request about a lock can leave by the connection of all, as this number. It is on
    /// its way then.
    fn lets_pass(&mut self, name: &LockName, id: u64) -> bool {
        let is_before = |pending: &Unconfirmed| pending.is_due && pending.id < id && pending.op.name == *name;
        let passes = !self.here.contains_key(name) && !self.queue.iter().any(is_before);
        if passes && let Some(there) = self.there.get_mut(name) {
            there.asking.insert(id, true);
        }
        passes
    }
}

/// A request that is to be confirmed, for as long as its caller waits.
struct Queued<'a> {
    ack_channel: &'a AckChannel,
    id: u64,
}

impl Queued<'_> {
    /// Removes it if it was still to be sent; returns whether it was.
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
    fn write(&self, out: &mut Commands, in_full: bool) {
        let (request, asking) = (ScriptRequest::new(&self.op, self.context.space), self.context.asking);
        if asking {
            out.command(&["ASKING"]);
        }
        request.guarded(self.context.terms).write(out, in_full || asking);
    }
}

/// A request by the connection of all, for as long as it is unanswered.
pub(crate) struct OtherRequest {
    ack_channel: Arc<AckChannel>,
    name: LockName,
    id: u64,
}

impl OtherRequest {
    /// It was carried out, or never will be.
    pub(crate) fn answered(self) {
        if let Some(there) = self.ack_channel.state().there.get_mut(&self.name) {
            there.asking.remove(&self.id);
        }
    }
}

impl Drop for OtherRequest {
    fn drop(&mut self) {
        {
            let mut state = self.ack_channel.state();
            if let Some(there) = state.there.get_mut(&self.name) {
                // Still on its way: its outcome is unknown.
                there.left += usize::from(there.asking.remove(&self.id) == Some(true));
                if there.is_empty() {
                    state.there.remove(&self.name);
                }
            }
        }
        self.ack_channel.notify.notify_one();
    }
}

/// Whether a reply gives or keeps what replicas have to know of.
fn is_grant(reply: &Value) -> bool {
    match reply {
        Value::BulkString(text) => text.split(|byte| *byte == b' ').nth(2) == Some(b"held"),
        Value::Array(parts) => parts.get(2).and_then(bytes) == Some(b"held"),
        _ => false,
    }
}

/// Whether the server can wait for replicas, and has any.
async fn can_wait(pipeline: &Pipeline, until: Moment) -> Result<(), Failure> {
    let (mark, wait, role) = (command(&MARK), command(&["WAIT", "0", "0"]), command(&["ROLE"]));
    let needed = join(pipeline.ask(&mark, until), pipeline.ask(&wait, until));
    let ((mark, wait), role) = join(needed, pipeline.ask(&role, until)).await;
    for reply in [mark?, wait?] {
        if let Value::ServerError(error) = reply {
            return Err(match refused(pipeline, &error) {
                Failure::Refused(why) => Failure::impossible(format!(
                    "`acks` needs WAIT, and PUBLISH to `{}`, and the server does not let us ({why})",
                    MARK[1]
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
                let cause = "the server has no replicas that are connected, and `acks` waits for some";
                Err(Failure::NotSent(Failure::cause(cause)))
            }
            [name, ..] if bytes(name) == Some(b"slave") => {
                pipeline.hang_up();
                Err(Failure::NotSent(Failure::cause("it is a replica by now")))
            }
            _ => Ok(()),
        },
        // It does not say.
        _ => Ok(()),
    }
}
