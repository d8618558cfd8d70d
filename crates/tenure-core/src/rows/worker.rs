//! Executes requests on one connection, in order.
//!
//! Requests are queued by lock, with one statement in flight per lock. A lone acquire, renew or release of a
//! lock that has no other holder takes a single statement. Everything else takes two: the rows of many locks
//! are read together, the machine runs here, and its result is written if the row is unchanged; otherwise the
//! row is read again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::{BoxFuture, Either, FutureExt, select};
use futures_util::stream::{FuturesUnordered, Stream, StreamExt};

use super::gather::{Gathered, StatementSort};
use super::inbox::{Inbox, QueuedOp, QueuedRequest};
use super::lock_queue::{LockQueue, QueueStep};
use super::names::LockKey;
use super::server::{
    ChangeOutcome, Row, RowChange, ServerConnection, SoleChange, StatementError, StatementSession,
    WriteOutcome,
};
use super::sweep::{SWEEP, TableSweep};
use crate::moment::Moment;
use crate::net::{SILENCE, Supervision, share, warn_of_silence};
use crate::planted::{Bug, planted};
use crate::protocol::Verb;
use crate::store::Failure;

pub(super) struct StatementWorker {
    pub(super) inbox: Arc<Inbox>,
    pub(super) locks: BTreeMap<String, LockQueue>,
    /// Locks whose next requests can be sent.
    pub(super) ready: BTreeSet<String>,
    /// Locks in backoff before their next read.
    pub(super) resting: BTreeSet<(Moment, String)>,
    /// Statements in flight that are not about one lock, by request number.
    pub(super) plain: BTreeMap<u64, QueuedOp>,
    pub(super) waiting: VecDeque<QueuedRequest>,
    pub(super) dues: BTreeMap<(Moment, u64), Option<String>>,
    /// When to give the connection up unless something is received, with the value of `heard` when the doubt
    /// began.
    pub(super) doubt: Option<(Moment, u64)>,
    /// Requests in flight or queued behind another: since when, and the value of `heard` then.
    pub(super) sent: BTreeMap<u64, (Moment, u64)>,
    pub(super) sweep: TableSweep,
    /// Why the last connection attempt failed.
    pub(super) failure: Option<Failure>,
    pub(super) gathered: Gathered,
    /// Locks of several holders or waiters, which have to be read first.
    pub(super) shared: BTreeSet<String>,
}

/// The result of a statement.
pub(super) enum Done {
    Changed(StatementSort, Vec<SoleChange>, Result<ChangeOutcome, StatementError>),
    Read(Vec<String>, Result<Vec<Row>, StatementError>),
    Wrote(Vec<(LockKey, RowChange)>, Result<WriteOutcome, StatementError>),
    Plain(u64, Result<Vec<Row>, StatementError>),
    Swept(Result<Option<String>, StatementError>),
}

enum StatementEvent {
    Done(Done),
    Look,
}

pub(super) type SharedSession = Arc<dyn StatementSession>;
pub(super) type UnderWay = FuturesUnordered<BoxFuture<'static, Done>>;

impl StatementWorker {
    pub(super) fn new(inbox: Arc<Inbox>) -> Self {
        let sweep = TableSweep::new(inbox.runtime.now() + SWEEP.mul_f64(share(inbox.runtime.random())));
        Self {
            inbox,
            locks: BTreeMap::new(),
            ready: BTreeSet::new(),
            resting: BTreeSet::new(),
            plain: BTreeMap::new(),
            waiting: VecDeque::new(),
            dues: BTreeMap::new(),
            doubt: None,
            sent: BTreeMap::new(),
            sweep,
            failure: None,
            gathered: Gathered::default(),
            shared: BTreeSet::new(),
        }
    }

    pub(super) fn now(&self) -> Moment {
        self.inbox.runtime.now()
    }

    pub(super) async fn run(mut self) {
        let (inbox, runtime) = (Arc::clone(&self.inbox), Arc::clone(&self.inbox.runtime));
        let mut supervision = Supervision::new(Arc::clone(&runtime), inbox.signals.clone());
        let mut before: Option<String> = None;
        while !inbox.is_closed() {
            let connecting = inbox.server.connect(before.as_deref());
            let Some(connected) = self.meanwhile(connecting).await else { return };
            inbox.first.dialled(&connected);
            match connected {
                Ok(connection) => {
                    if !planted(Bug::RowsBeforeNotEnded) {
                        before = Some(connection.session.label().to_owned());
                    }
                    self.failure = None;
                    supervision.connected();
                    self.serve(connection).await;
                    supervision.ended(true);
                }
                Err(failure) => {
                    supervision.failed();
                    self.unconnected(&failure);
                }
            }
            if let Some(until) = supervision.retry_at() {
                self.meanwhile(runtime.sleep_until(until)).await;
            }
        }
    }

    /// The output of `work`, during which requests are queued and time out without a connection; `None` if
    /// the store is closed.
    async fn meanwhile<T>(&mut self, mut work: BoxFuture<'_, T>) -> Option<T> {
        let inbox = Arc::clone(&self.inbox);
        loop {
            self.take(None);
            let timer = inbox.runtime.sleep_until(self.first_due());
            match select(&mut work, select(pin!(inbox.work.notified()), timer)).await {
                Either::Left((output, _)) => return Some(output),
                Either::Right(_) if inbox.is_closed() => return None,
                Either::Right(_) => self.expire(None),
            };
        }
    }

    /// Serves one connection until it ends.
    async fn serve(&mut self, connection: ServerConnection) {
        let ServerConnection { session, messages: _messages, mut driver } = connection;
        let mut under_way = UnderWay::new();
        select(pin!(self.talk(&session, &mut under_way)), &mut driver).await;
        self.inbox.set_idle(false);
        // Statements that were already answered count.
        while let Some(Some(done)) = under_way.next().now_or_never() {
            self.done(done);
        }
        self.cut_off();
    }

    /// Sends statements until the connection is no longer usable, or the store is closed.
    async fn talk(&mut self, session: &SharedSession, under_way: &mut UnderWay) {
        while !self.inbox.is_closed() {
            self.take(Some(session.heard()));
            let dead = self.expire(Some(&**session));
            if dead {
                warn_of_silence(self.inbox.server.shown());
                return;
            }
            self.send(session, under_way);
            match self.next(under_way).await {
                StatementEvent::Done(done) => {
                    let mut goes_on = self.done(done);
                    while let Some(Some(done)) = under_way.next().now_or_never() {
                        goes_on &= self.done(done);
                    }
                    if !goes_on {
                        return;
                    }
                }
                // Requests of tasks that were woken together, as by a release, leave together.
                StatementEvent::Look => others_first().await,
            }
        }
    }

    async fn next(&mut self, under_way: &mut UnderWay) -> StatementEvent {
        let rests = self.resting.first().map_or(Moment(u64::MAX), |(until, _)| *until);
        let doubt = self.doubt.map_or(Moment(u64::MAX), |(at, _)| at);
        let until =
            self.first_due().min(rests).min(doubt).min(self.sweep.next_at()).min(self.gathered.next_free());
        let mut timer = self.inbox.runtime.sleep_until(until);
        let mut work = pin!(self.inbox.work.notified());
        self.inbox.set_idle(under_way.is_empty() && self.gathered.is_idle(self.now()));
        poll_fn(|context| {
            if let Poll::Ready(Some(done)) = Pin::new(&mut *under_way).poll_next(context) {
                return Poll::Ready(StatementEvent::Done(done));
            }
            if work.as_mut().poll(context).is_ready() || timer.poll_unpin(context).is_ready() {
                return Poll::Ready(StatementEvent::Look);
            }
            Poll::Pending
        })
        .await
    }

    /// Queues new requests by lock. `heard` is the connection's read count, if there is a connection.
    fn take(&mut self, heard: Option<u64>) {
        let now = self.now();
        for request in self.inbox.take() {
            let name = match &request.ask {
                QueuedOp::Lock(op, _) => {
                    if matches!(op.verb, Verb::Acquire { .. }) {
                        self.sweep.acquires(&op.name);
                    }
                    &op.name
                }
                QueuedOp::Record(op, _) => &op.lock,
                QueuedOp::Plain { .. } => {
                    self.dues.insert((request.due, request.number), None);
                    self.waiting.push_back(request);
                    continue;
                }
            };
            let key = LockKey::of(name);
            let name = key.name.clone();
            self.dues.insert((request.due, request.number), Some(name.clone()));
            let lock = self.locks.entry(name.clone()).or_insert_with(|| LockQueue::new(key));
            if lock.is_idle() && lock.queue.is_empty() {
                self.ready.insert(name);
            } else if let Some(heard) = heard.filter(|_| !planted(Bug::RowsSilenceUnseen)) {
                // It is queued behind another request, and may be the only evidence that the connection is
                // dead, because the requests in flight may have timed out before.
                self.sent.insert(request.number, (now, heard));
            }
            lock.queue.push_back(request);
        }
    }

    fn first_due(&self) -> Moment {
        self.dues.first_key_value().map_or(Moment(u64::MAX), |((due, _), _)| *due)
    }

    /// Fails requests that have timed out. Returns whether to give the connection up.
    fn expire(&mut self, session: Option<&dyn StatementSession>) -> bool {
        let now = self.now();
        while let Some(first) = self.dues.first_entry().filter(|first| first.key().0 <= now) {
            let ((_, number), name) = first.remove_entry();
            let late = || Failure::cause("no reply in time");
            let unsent = || match (session, &self.failure) {
                (Some(_), _) => Failure::NotSent(late()),
                (None, Some(failure)) => failure.clone(),
                (None, None) => self.inbox.server.no_connection(),
            };
            if let Some(name) = name {
                let Some(lock) = self.locks.get_mut(&name) else { continue };
                // Not sent: it waits for those before it, or for a connection.
                if let Some(at) = lock.queue.iter().position(|request| request.number == number) {
                    if let Some(request) = lock.queue.remove(at) {
                        request.ask.fail(unsent());
                    }
                } else if let Some(at) = lock.running.iter().position(|request| request.number == number) {
                    let failure = match lock.step {
                        QueueStep::Fast { .. } => Failure::Unknown(late()),
                        // The write includes the effects of all running requests, this one too.
                        QueueStep::Writing { ref mut said, .. } => {
                            drop(said.remove(at));
                            Failure::Unknown(late())
                        }
                        QueueStep::Idle | QueueStep::Reading { .. } => Failure::NotSent(late()),
                    };
                    lock.running.remove(at).ask.fail(failure);
                }
                if lock.is_over() {
                    self.locks.remove(&name);
                    self.ready.remove(&name);
                }
            // Sent, but not about one lock.
            } else if let Some(ask) = self.plain.remove(&number) {
                ask.fail(Failure::Unknown(late()));
            } else if let Some(at) = self.waiting.iter().position(|request| request.number == number)
                && let Some(request) = self.waiting.remove(at)
            {
                request.ask.fail(unsent());
            }
            if let (Some((sent, heard)), Some(session)) = (self.sent.remove(&number), session)
                && session.heard() == heard
                && self.doubt.is_none_or(|(known, _)| known > sent + SILENCE)
            {
                self.doubt = Some((sent + SILENCE, heard));
            }
        }
        match (self.doubt, session) {
            // Something came since the doubt began.
            (Some((_, heard)), Some(session)) if session.heard() != heard => self.doubt = None,
            // Silent: dead once the doubt is old enough.
            (Some((at, _)), Some(_)) => return at <= now,
            _ => {}
        }
        false
    }

    /// Handles a failed connection attempt.
    fn unconnected(&mut self, failure: &Failure) {
        self.take(None);
        // A permanent failure, such as wrong credentials: do not let the requests wait.
        let is_refused = matches!(failure, Failure::Refused(_));
        self.failure = Some(failure.clone());
        let kept = mem::take(&mut self.waiting);
        for request in kept {
            match request.ask {
                QueuedOp::Plain { at_once, .. } if at_once || is_refused => {
                    self.dues.remove(&(request.due, request.number));
                    request.ask.fail(failure.clone());
                }
                _ => self.waiting.push_back(request),
            }
        }
        if is_refused {
            for lock in mem::take(&mut self.locks).into_values() {
                for request in lock.running.into_iter().chain(lock.queue) {
                    self.dues.remove(&(request.due, request.number));
                    request.ask.fail(failure.clone());
                }
            }
            self.ready.clear();
            self.resting.clear();
        }
    }

    /// The connection ended. Requests whose writes were in flight have an unknown outcome; those only read or
    /// not sent continue on the next connection.
    fn cut_off(&mut self) {
        let cause = || Failure::cause("the connection was closed");
        self.sent.clear();
        self.doubt = None;
        for (number, ask) in mem::take(&mut self.plain) {
            self.dues.retain(|(_, known), _| *known != number);
            ask.fail(Failure::Unknown(cause()));
        }
        self.resting.clear();
        self.sweep.failed(self.now());
        for key in self.gathered.clear() {
            // It was not sent, so the row is read again.
            if let Some(lock) = self.locks.get_mut(&key.name) {
                lock.step = QueueStep::Idle;
            }
        }
        let names: Vec<String> = self.locks.keys().cloned().collect();
        for name in names {
            let Some(lock) = self.locks.get_mut(&name) else { continue };
            match lock.step {
                QueueStep::Fast { .. } | QueueStep::Writing { .. } => {
                    self.fail(&name, &Failure::Unknown(cause()))
                }
                QueueStep::Idle | QueueStep::Reading { .. } => {
                    lock.step = QueueStep::Idle;
                    (lock.tries, lock.met) = (0, None);
                    self.ready.insert(name);
                }
            }
        }
    }
}

/// Lets the other tasks of this thread run first.
async fn others_first() {
    let mut is_over = false;
    let yields = poll_fn(|context| {
        context.waker().wake_by_ref();
        if mem::replace(&mut is_over, true) { Poll::Ready(()) } else { Poll::Pending }
    });
    yields.await;
}
