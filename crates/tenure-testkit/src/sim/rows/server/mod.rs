//! A server with a table of locks, in memory: connections that execute one statement after the other, each in
//! one step or two, and what goes wrong between it and its clients.

mod faults;
mod session;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tenure::internals::protocol::Answer;
use tenure::internals::store::Failure;
use tenure::internals::store::observe::Told;
use tenure::internals::store::rows::{
    self, ChangeOutcome, LockKey, Row, RowChange, ServerConnection, SoleChange, SoleVerb, StatementError,
    StatementResult, StatementSession, WriteOutcome,
};
use tenure::internals::{Moment, Runtime};
use tenure::{LockName, Owner};
use tokio::sync::{mpsc, oneshot};

use super::table::{Database, Mistake, Table};
use crate::sim::clock::{Clock, MS, TrueTime};
use crate::sim::event::Event;
use crate::sim::executor::{EPOCH_US, OUTSIDE, ProcessId, lock};
use crate::sim::host::{Host, Judge};
use crate::sim::network::Parting;
use crate::sim::oracle::{Executed, Passed};
use crate::sim::regime::Faults;
use crate::sim::request::Shown;
use crate::sim::server::LockView;
use session::Line;

/// Timeout of a connection attempt, as in the store.
const DIAL: Duration = Duration::from_secs(3);

/// The server, as one process reaches it.
#[derive(Clone)]
pub struct Server {
    pub(super) host: Arc<Host>,
    state: Arc<Mutex<State>>,
    process: ProcessId,
}

struct State {
    table: Table,
    /// The table before each change, if the server may go back to it.
    past: Option<Vec<(TrueTime, Table)>>,
    /// The table before each change that has not reached the disk, if the server may crash.
    unflushed: Option<Vec<(TrueTime, Table)>>,
    links: BTreeMap<String, Link>,
    ends: BTreeMap<ProcessId, End>,
    faults: Faults,
    /// Rows in one page of a sweep.
    page: usize,
    /// How far its clock is off, in nanoseconds.
    off: i64,
    /// The server stands still until then.
    stalled_until: Moment,
    /// No connection can be made until then.
    down_until: Moment,
    /// The next statement of this sort arrives so much later, and its connection may be cut at once.
    delayed: Vec<(&'static str, Duration, bool)>,
    connects: u32,
    /// Number of statements of each sort.
    statements: BTreeMap<&'static str, u32>,
}

/// A connection.
struct Link {
    process: ProcessId,
    /// Statements that arrive later are not executed any more.
    serves_until: Moment,
    listens: bool,
    /// Nothing reaches the server any more.
    loses_statements: bool,
    /// Nothing reaches the client any more.
    is_silent: bool,
    /// The client's end, while it is open.
    client: Option<Client>,
    /// When the last statement arrives at the server, and the last answer at the client.
    arrives: Moment,
    answered: Moment,
}

/// The client's end of a connection.
struct Client {
    jobs: mpsc::UnboundedSender<(Moment, BoxFuture<'static, ()>)>,
    messages: mpsc::UnboundedSender<String>,
    /// Dropped when the connection ends.
    _over: oneshot::Sender<()>,
    heard: Arc<AtomicU64>,
    /// Statements that are not answered yet.
    asked: BTreeMap<u64, Box<dyn FnOnce() + Send>>,
    next: u64,
}

/// Closes a connection, from its client's side, when dropped.
struct HangsUp(Server, String);

impl Drop for HangsUp {
    fn drop(&mut self) {
        let client = self.0.state().links.get_mut(&self.1).and_then(|link| link.client.take());
        drop(client);
    }
}

/// A process's end of the network.
#[derive(Default)]
struct End {
    /// Statements that arrive later are not executed any more.
    arrives_until: Option<Moment>,
    /// Connections listen from then on.
    hears_from: Moment,
    /// By the server's clock.
    parting: Parting,
    /// It has lost a statement or an answer.
    has_lost: bool,
}

impl Server {
    /// A server without faults, for processes that a test starts.
    pub fn new(runtime: Arc<dyn Runtime>, mistake: Mistake, database: Database, page: usize) -> Self {
        Self::judged(runtime, Faults::NONE, Table::new(mistake, database), page, None)
    }

    pub(super) fn judged(
        runtime: Arc<dyn Runtime>,
        faults: Faults,
        table: Table,
        page: usize,
        judge: Option<Judge>,
    ) -> Self {
        let state = State {
            table,
            past: None,
            unflushed: None,
            links: BTreeMap::new(),
            ends: BTreeMap::new(),
            faults,
            page,
            off: 0,
            stalled_until: Moment(0),
            down_until: Moment(0),
            delayed: Vec::new(),
            connects: 0,
            statements: BTreeMap::new(),
        };
        let state = Arc::new(Mutex::new(state));
        Self { host: Arc::new(Host { runtime, judge }), state, process: OUTSIDE }
    }

    /// The server as a process reaches it.
    #[must_use]
    pub fn of(&self, process: ProcessId) -> Self {
        Self { process, ..self.clone() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The server's clock, in microseconds since 1970.
    fn clock_us(&self, state: &State) -> i64 {
        self.host.runtime.unix_micros() as i64 + state.off / 1_000
    }

    /// Its clock, as the oracle reads it.
    fn clock(judge: &Judge, state: &State) -> Clock {
        let Clock { offset, ppm } = judge.clock;
        Clock { offset: EPOCH_US * 1_000 + offset, ppm }.stepped(state.off)
    }

    /// The next statement of a sort arrives so much later; with `is_cut` its connection is cut at once.
    pub fn delay_next(&self, sort: &'static str, by: Duration, is_cut: bool) {
        self.state().delayed.push((sort, by, is_cut));
    }

    /// Number of statements of each sort since the last call.
    pub fn statements(&self) -> BTreeMap<&'static str, u32> {
        std::mem::take(&mut self.state().statements)
    }

    /// Number of connections that were made.
    pub fn connects(&self) -> u32 {
        self.state().connects
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.state().table.rows()
    }

    /// Checks a hold in, if it is held: until the transaction is dropped.
    pub fn check_in(&self, name: &str, owner: &str, fence: u64) -> Option<Transaction> {
        let mut state = self.state();
        let (us, fence) = (self.clock_us(&state), fence as i64);
        let is_held = state.table.check_in(name, owner, fence, us);
        let (server, name, owner) = (self.clone(), name.to_owned(), owner.to_owned());
        is_held.then(|| Transaction { server, name, owner, fence })
    }

    /// Whether it is MySQL, whose clients poll.
    fn polls(&self) -> bool {
        self.state().table.database == Database::Mysql
    }

    fn later(&self, at: Moment, what: impl FnOnce(&Self) + Send + 'static) {
        let server = self.clone();
        self.host.later(at, move || what(&server));
    }

    fn latency(&self, state: &State, process: ProcessId) -> Duration {
        let us = self.clock_us(state);
        let first = if state.faults.edge > 0 { state.table.next_end(us) } else { None };
        let first = first.map(|end| self.host.now() + Duration::from_micros((end - us) as u64));
        self.host.latency(&state.faults, process, first)
    }

    async fn sleep(&self, by: Duration) {
        self.host.runtime.sleep_until(self.host.now() + by).await;
    }

    /// What works on a connection in the server.
    async fn serve(self, label: String, mut jobs: mpsc::UnboundedReceiver<(Moment, BoxFuture<'static, ()>)>) {
        while let Some((arrives, job)) = jobs.recv().await {
            self.host.runtime.sleep_until(arrives).await;
            loop {
                let stalled_until = self.state().stalled_until;
                if stalled_until <= self.host.now() {
                    break;
                }
                self.host.count(Event::Stalled);
                self.host.runtime.sleep_until(stalled_until).await;
            }
            job.await;
        }
        let link = self.state().links.remove(&label);
        drop(link);
    }

    /// One step of a statement, if the connection is still served.
    fn step<T>(&self, label: &str, what: impl FnOnce(&mut Table, i64, &dyn Fn() -> bool) -> T) -> Option<T> {
        let now = self.host.now();
        let mut state = self.state();
        let us = self.clock_us(&state);
        let State { table, links, ends, past, unflushed, faults, .. } = &mut *state;
        let process = links.get(label).filter(|link| now <= link.serves_until)?.process;
        if ends.get(&process).and_then(|end| end.arrives_until).is_some_and(|until| now > until) {
            return None;
        }
        let before = past.as_ref().or(unflushed.as_ref()).map(|_| table.clone());
        table.sessions =
            links.iter().filter(|(_, link)| link.listens).map(|(label, _)| label.clone()).collect();
        let refuse = faults.refuse;
        let done = what(table, us, &|| self.host.chance(refuse));
        let (told, said) = (std::mem::take(&mut table.told), std::mem::take(&mut table.said));
        let at = self.host.judge.as_ref().map_or(0, |judge| judge.sim.now());
        match (std::mem::take(&mut table.durable), unflushed, &before) {
            // A commit that waits for the disk flushes those before it.
            (Some(true), Some(unflushed), _) => unflushed.clear(),
            (Some(false), Some(unflushed), Some(before)) => unflushed.push((at, before.clone())),
            _ => {}
        }
        if let (Some(past), Some(before), false) = (past, before, told.is_empty()) {
            past.push((at, before));
        }
        self.report(&state, process, &told);
        self.tell(&mut state, &said);
        Some(done)
    }

    /// Reports requests that were carried out to the oracle.
    fn report(&self, state: &State, process: ProcessId, told: &[Told]) {
        let Some(judge) = &self.host.judge else { return };
        let (at, clock) = (judge.sim.now(), Self::clock(judge, state));
        for Told { op, answer, passed, wake, after } in told {
            judge.sim.mark(at ^ process as u64);
            judge.sim.note(|| format!("server: p{process}: {}: {answer:?}", Shown(op)));
            let after = after.lock.as_ref().and_then(|lock| LockView::at(at, lock, clock));
            // The lease of an acquire counts from before it waits for the row, and may be over.
            if after.is_some() || !matches!(answer, Answer::Held { .. }) {
                let wake = wake.as_ref();
                let passed: Vec<Passed> = passed.iter().map(|owner| Self::passed(state, owner)).collect();
                let (passed, together) = (&passed[..], &[][..]);
                judge.oracle.executed(&Executed { process, op, answer, wake, passed, together, after });
            }
        }
    }

    /// A waiter that was removed, and its process if that has a session.
    fn passed(state: &State, owner: &Owner) -> Passed {
        let session = state.table.session(&format!("\\!{}", owner.client()));
        let link = session.and_then(|(session, _)| state.links.get(session)).filter(|link| link.listens);
        Passed { owner: owner.clone(), process: link.map(|link| link.process) }
    }

    /// Sends messages to all connections that listen.
    fn tell(&self, state: &mut State, said: &[String]) {
        let now = self.host.now();
        let faults = state.faults;
        let State { links, ends, .. } = state;
        for (label, link) in links.iter_mut().filter(|(_, link)| link.listens) {
            for message in said {
                let parting = ends.get(&link.process).map_or_else(Parting::default, |end| end.parting);
                if parting.loses && now.0 < parting.messages || self.host.chance(faults.lose_wake) {
                    self.host.count(Event::MessageLost);
                    // With the connection.
                    let label = label.clone();
                    self.later(now, move |server| server.cut(&label, false));
                    break;
                }
                let mut delay = self.host.span(faults.latency.0, faults.latency.1);
                if self.host.chance(faults.late_wake.0) {
                    self.host.count(Event::MessageLate);
                    delay += self.host.span(MS, faults.late_wake.1);
                }
                let from = now.max(Moment(parting.messages));
                link.answered = (link.answered + Duration::from_nanos(1)).max(from + delay);
                let (label, message) = (label.clone(), message.clone());
                self.later(link.answered, move |server| {
                    server.hear(&label, |client| drop(client.messages.send(message)));
                });
            }
        }
    }

    /// Something arrives at a client, unless its connection is over or silent.
    fn hear(&self, label: &str, what: impl FnOnce(&mut Client)) {
        let mut state = self.state();
        let Some(link) = state.links.get_mut(label).filter(|link| !link.is_silent) else { return };
        if let Some(client) = &mut link.client {
            client.heard.fetch_add(1, Ordering::Relaxed);
            what(client);
        }
    }

    /// Connects as the store does to a real server.
    async fn dial(self, before: Option<String>) -> Result<ServerConnection, Failure> {
        let failed = |text: &str| Err(Failure::NotSent(Failure::cause(text)));
        let deadline = self.host.now() + DIAL;
        loop {
            let delay = self.latency(&self.state(), self.process);
            self.sleep(delay).await;
            let now = self.host.now();
            let (down_until, reached_at) = {
                let mut state = self.state();
                let parting = state.ends.entry(self.process).or_default().parting;
                let parted_until = Moment(parting.requests.max(parting.replies));
                (state.down_until, state.stalled_until.max(parted_until))
            };
            if down_until > now {
                return failed("it does not listen");
            }
            if reached_at <= now {
                break;
            }
            self.host.runtime.sleep_until(reached_at.min(deadline)).await;
            if reached_at > deadline {
                return failed("it does not answer");
            }
        }
        let refuse = self.state().faults.refuse;
        if self.host.chance(refuse) {
            self.host.has_failed(self.process, Event::NotSent);
            return failed("it has too many connections");
        }
        if let Some(before) = before {
            let link = self.state().links.remove(&before);
            drop(link);
            let delay = self.latency(&self.state(), self.process);
            self.sleep(delay).await;
        }
        let label = format!("sim-{:016x}", self.host.runtime.random());
        let (jobs, todo) = mpsc::unbounded_channel();
        let (say, messages) = mpsc::unbounded_channel();
        let (done, over) = oneshot::channel();
        let (heard, now) = (Arc::new(AtomicU64::new(0)), self.host.now());
        let (asked, next) = (BTreeMap::new(), 0);
        let client = Client { jobs, messages: say, _over: done, heard: Arc::clone(&heard), asked, next };
        let link = Link {
            process: self.process,
            serves_until: Moment(u64::MAX),
            listens: false,
            loses_statements: false,
            is_silent: false,
            client: Some(client),
            arrives: now,
            answered: now,
        };
        {
            let mut state = self.state();
            state.connects += 1;
            state.links.insert(label.clone(), link);
        }
        self.host.runtime.spawn(self.clone().serve(label.clone(), todo).boxed());
        let hangs_up = HangsUp(self.clone(), label.clone());
        let driver = async move {
            let _hangs_up = hangs_up;
            let _ = over.await;
        };
        let session = Arc::new(Line { server: self, label, heard });
        Ok(ServerConnection { session, messages, driver: driver.boxed() })
    }

    /// Sends a statement, which is executed in its turn. Its answer is promised.
    fn send<T: Send + 'static>(
        &self,
        label: &str,
        sort: &'static str,
        promise: oneshot::Sender<Result<T, StatementError>>,
        job: impl FnOnce(Self, String) -> BoxFuture<'static, Option<T>> + Send + 'static,
    ) {
        let (host, now) = (&self.host, self.host.now());
        let mut state = self.state();
        *state.statements.entry(sort).or_default() += 1;
        let faults = state.faults;
        if host.chance(faults.refuse) {
            host.has_failed(self.process, Event::NotSent);
            let failure = Failure::NotSent(Failure::cause("deadlock detected (40P01)"));
            return drop(promise.send(Err(StatementError { failure, ends_connection: false })));
        }
        let mut delay = self.latency(&state, self.process);
        let delayed = state.delayed.iter().position(|(of, ..)| *of == sort);
        let delayed = delayed.map(|at| state.delayed.swap_remove(at));
        let mut is_cut = false;
        if let Some((_, by, cuts)) = delayed {
            (delay, is_cut) = (by, cuts);
        }
        let State { ends, links, .. } = &mut *state;
        let end = ends.entry(self.process).or_default();
        let is_parted = now.0 < end.parting.requests;
        if is_parted {
            host.count(Event::Parted);
        }
        let is_spared = faults.once && end.has_lost;
        let loses_request = !is_spared && host.chance(faults.lose_request);
        let lost_reply =
            if matches!(sort, "listen" | "note_listeners") { faults.lose_subscription } else { 0 };
        let loses_reply = !is_spared && !loses_request && host.chance(faults.lose_reply + lost_reply);
        if loses_request || loses_reply {
            end.has_lost = true;
            host.has_failed(self.process, if loses_request { Event::RequestLost } else { Event::ReplyLost });
            // Half of them are noticed at once, because the connection ends.
            is_cut |= host.chance(500);
        }
        let begins = if sort == "listen" { now.max(end.hears_from) } else { now };
        let begins = begins.max(Moment(end.parting.requests));
        let loses_parted = is_parted && end.parting.loses;
        let Some(link) = links.get_mut(label) else { return };
        link.loses_statements |= loses_request || loses_parted;
        link.is_silent |= loses_reply;
        link.arrives = (link.arrives + Duration::from_nanos(1)).max(begins + delay);
        let (arrives, is_lost) = (link.arrives, link.loses_statements);
        let Some(client) = &mut link.client else { return };
        let number = client.next;
        client.next += 1;
        // The answer, which reaches the client unless its end is closed before.
        let told: Arc<Mutex<Option<T>>> = Arc::default();
        let answer = Arc::clone(&told);
        client.asked.insert(
            number,
            Box::new(move || {
                if let Some(answer) = lock(&answer).take() {
                    let _ = promise.send(Ok(answer));
                }
            }),
        );
        let (server, of) = (self.clone(), label.to_owned());
        let work = async move {
            let Some(done) = job(server.clone(), of.clone()).await else { return };
            *lock(&told) = Some(done);
            server.answer(of, number);
        };
        if !is_lost {
            let _ = client.jobs.send((arrives, work.boxed()));
        }
        drop(state);
        if is_cut {
            let label = label.to_owned();
            self.later(now, move |server| server.cut(&label, !loses_request));
        }
    }

    /// Sends the answer to a statement.
    fn answer(&self, label: String, number: u64) {
        let now = self.host.now();
        let mut state = self.state();
        let delay = self.latency(&state, self.process);
        let State { ends, links, .. } = &mut *state;
        let parting = ends.entry(self.process).or_default().parting;
        let Some(link) = links.get_mut(&label) else { return };
        link.is_silent |= parting.loses && now.0 < parting.replies;
        link.answered =
            (link.answered + Duration::from_nanos(1)).max(now.max(Moment(parting.replies)) + delay);
        let at = link.answered;
        drop(state);
        self.later(at, move |server| {
            let mut tell = None;
            server.hear(&label, |client| tell = client.asked.remove(&number));
            if let Some(tell) = tell {
                tell();
            }
        });
    }
}

/// A transaction of a user's program that has checked a hold in. A restart of the server ends it.
#[derive(Debug)]
pub struct Transaction {
    server: Server,
    name: String,
    owner: String,
    fence: i64,
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.server.state().table.check_out(&self.name, &self.owner, self.fence);
    }
}

impl rows::Server for Server {
    fn connect<'a>(&'a self, before: Option<&'a str>) -> BoxFuture<'a, Result<ServerConnection, Failure>> {
        let (server, before) = (self.clone(), before.map(str::to_owned));
        let (promise, connected) = oneshot::channel();
        let dial = async move { drop(promise.send(server.dial(before).await)) };
        self.host.runtime.spawn(dial.boxed());
        let over = |_| Failure::NotSent(Failure::cause("the schedule is over"));
        async move { connected.await.map_err(over).flatten() }.boxed()
    }

    fn no_connection(&self) -> Failure {
        Failure::NotSent(Failure::cause("no connection in time"))
    }

    fn has_notifications(&self) -> bool {
        !self.polls()
    }

    fn has_soft_releases(&self) -> bool {
        !self.polls()
    }

    fn shown(&self) -> Arc<str> {
        "rows:sim".into()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("process", &self.process).finish_non_exhaustive()
    }
}
