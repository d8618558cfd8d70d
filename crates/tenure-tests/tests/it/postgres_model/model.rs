//! A model of a PostgreSQL server in memory and virtual time. Connections execute one statement after the
//! other, each in one step or two. Answers and messages may be late or lost, connections may be cut, and the
//! server may be restarted.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tenure::internals::store::Failure;
use tenure::internals::store::rows::{
    LockKey, Renewals, Row, RowChange, Server, ServerConnection, StatementError, StatementResult,
    StatementSession,
};
use tenure::internals::{Moment, Runtime};
use tokio::sync::{mpsc, oneshot};

use super::table::{Mistake, Table};

/// Clones share the server.
#[derive(Clone)]
pub(crate) struct Model(Arc<Inner>);

struct Inner {
    /// The server's process.
    runtime: Arc<dyn Runtime>,
    state: Mutex<State>,
    faults: Faults,
}

/// Probabilities of faults, in thousandths of statements.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// One direction of the connection stalls for up to four seconds.
    pub(crate) late: u64,
    /// The client receives nothing more.
    pub(crate) silent: u64,
    /// The connection is cut: before or after the data in flight has arrived, or much later.
    pub(crate) cut: u64,
    /// The server crashes and restarts.
    pub(crate) restart: u64,
    /// Another statement has locked the row.
    pub(crate) locked: u64,
    /// The server's clock steps back by up to two seconds.
    pub(crate) back: u64,
    /// The mistake in a statement.
    pub(crate) mistake: Mistake,
    /// Rows swept at a time; 0 means few, so that there are many batches.
    pub(crate) part: usize,
}

#[derive(Default)]
struct State {
    table: Table,
    links: BTreeMap<String, Link>,
    /// Until when connections are refused.
    down_until: Moment,
    /// How far its clock was set back.
    back_us: i64,
    /// No more faults.
    is_calm: bool,
    /// Delay of the next statement of this sort, and whether its connection is cut immediately.
    delayed: Vec<(&'static str, Duration, bool)>,
    /// Number of connections so far.
    connects: u32,
    /// Number of statements of each sort.
    statements: BTreeMap<&'static str, u32>,
}

/// A connection: both ends, and the data in between.
struct Link {
    /// Whether the server still serves it.
    is_served: bool,
    /// Whether it has executed LISTEN.
    listens: bool,
    /// The client receives nothing.
    is_silent: bool,
    /// The client's end while it is open.
    client: Option<Client>,
    /// When the last data sent arrives at the server, and at the client.
    arrives: Moment,
    answered: Moment,
}

/// The client's end of a connection.
struct Client {
    jobs: mpsc::UnboundedSender<(Moment, BoxFuture<'static, ()>)>,
    messages: mpsc::UnboundedSender<String>,
    /// Closes the connection when dropped.
    _over: oneshot::Sender<()>,
    heard: Arc<AtomicU64>,
    /// Unanswered statements.
    asked: BTreeMap<u64, Box<dyn FnOnce() + Send>>,
    next: u64,
}

impl Model {
    pub(crate) fn new(runtime: Arc<dyn Runtime>, faults: Faults) -> Self {
        let table = Table::new(faults.mistake, if faults.part == 0 { 3 } else { faults.part });
        let state = Mutex::new(State { table, ..State::default() });
        Self(Arc::new(Inner { runtime, state, faults }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Moment {
        self.0.runtime.now()
    }

    /// The server's clock, in microseconds since 1970.
    pub(crate) fn clock_us(&self) -> i64 {
        self.0.runtime.unix_micros() as i64 - self.state().back_us
    }

    pub(crate) fn set_back(&self, by: Duration) {
        self.state().back_us += by.as_micros() as i64;
    }

    /// Delays the next statement of a sort; with `is_cut`, cuts its connection immediately.
    pub(crate) fn delay_next(&self, sort: &'static str, by: Duration, is_cut: bool) {
        self.state().delayed.push((sort, by, is_cut));
    }

    /// Stops all faults.
    pub(crate) fn calm(&self) {
        self.state().is_calm = true;
    }

    /// Number of statements of each sort since the last call.
    pub(crate) fn statements(&self) -> BTreeMap<&'static str, u32> {
        std::mem::take(&mut self.state().statements)
    }

    pub(crate) fn connects(&self) -> u32 {
        self.state().connects
    }

    /// The last token, or ticket, of a lock.
    pub(crate) fn token(&self, name: &str) -> u64 {
        self.state().table.token(name) as u64
    }

    /// The locks that are held or waited for.
    pub(crate) fn left(&self) -> Vec<String> {
        let us = self.clock_us();
        self.state().table.left(us)
    }

    pub(crate) fn rows(&self) -> usize {
        self.state().table.rows()
    }

    /// The violation of a checked-in hold, if there was one.
    pub(crate) fn wrong(&self) -> Option<String> {
        self.state().table.wrong.take()
    }

    /// Checks a hold in, if it is held, until the transaction is dropped.
    pub(crate) fn check_in(&self, name: &str, owner: &str, fence: u64) -> Option<Transaction> {
        let (us, fence) = (self.clock_us(), fence as i64);
        let is_held = self.state().table.check_in(name, owner, fence, us);
        let (model, name, owner) = (self.clone(), name.to_owned(), owner.to_owned());
        is_held.then_some(Transaction { model, name, owner, fence })
    }

    /// Cuts a random connection, if there is one.
    pub(crate) fn cut_one(&self) {
        let labels: Vec<String> = {
            let state = self.state();
            state
                .links
                .iter()
                .filter(|(_, link)| link.client.is_some())
                .map(|(name, _)| name.clone())
                .collect()
        };
        if !labels.is_empty() {
            self.cut(&labels[self.below(labels.len() as u64) as usize], self.below(2) == 0);
        }
    }

    pub(crate) fn cut_all(&self) {
        let labels: Vec<String> = self.state().links.keys().cloned().collect();
        labels.iter().for_each(|label| self.cut(label, false));
    }

    /// Makes all current connections silent.
    pub(crate) fn silence(&self) {
        self.state().links.values_mut().for_each(|link| link.is_silent = true);
    }

    /// Cuts the listening connections.
    pub(crate) fn cut_listeners(&self) {
        let labels: Vec<String> = {
            let state = self.state();
            state.links.iter().filter(|(_, link)| link.listens).map(|(label, _)| label.clone()).collect()
        };
        labels.iter().for_each(|label| self.cut(label, false));
    }

    /// Crashes, and restarts a little later.
    pub(crate) fn restart(&self) {
        let down = Duration::from_millis(self.below(1_500));
        let mut state = self.state();
        state.down_until = self.now() + down;
        state.table.break_off();
        let links = std::mem::take(&mut state.links);
        drop(state);
        drop(links);
    }

    fn below(&self, count: u64) -> u64 {
        self.0.runtime.random() % count
    }

    /// Whether a fault happens.
    fn chance(&self, permille: u64) -> bool {
        permille > 0 && self.below(1_000) < permille
    }

    fn delay(&self) -> Duration {
        Duration::from_micros(self.below(2_000))
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.runtime.spawn(task.boxed());
    }

    fn sleep(&self, by: Duration) -> BoxFuture<'static, ()> {
        self.0.runtime.sleep_until(self.now() + by)
    }

    /// Closes the client's end. Data in flight arrives or is lost.
    fn cut(&self, label: &str, arrives: bool) {
        let mut state = self.state();
        let Some(link) = state.links.get_mut(label) else { return };
        let client = link.client.take();
        link.is_served &= arrives;
        drop(state);
        drop(client);
    }

    /// The backend of a connection.
    async fn serve(self, label: String, mut jobs: mpsc::UnboundedReceiver<(Moment, BoxFuture<'static, ()>)>) {
        while let Some((arrives, job)) = jobs.recv().await {
            self.0.runtime.sleep_until(arrives).await;
            job.await;
        }
        let link = self.state().links.remove(&label);
        drop(link);
    }

    /// One step of a statement, if the connection is still served, and its time.
    fn step<T>(&self, label: &str, what: impl FnOnce(&mut Table, i64, &dyn Fn() -> bool) -> T) -> Option<T> {
        let us = self.clock_us();
        let mut state = self.state();
        if !state.links.get(label)?.is_served {
            return None;
        }
        let locked = if state.is_calm { 0 } else { self.0.faults.locked };
        let done = what(&mut state.table, us, &|| self.chance(locked));
        let said = std::mem::take(&mut state.table.said);
        if !said.is_empty() {
            let is_calm = state.is_calm;
            let listening = state.links.iter_mut().filter(|(_, link)| link.listens);
            for (label, link) in listening {
                let at = self.answers_at(link, is_calm);
                for message in &said {
                    let (model, label, message) = (self.clone(), label.clone(), message.clone());
                    self.later(at, move || model.hear(&label, |client| drop(client.messages.send(message))));
                }
            }
        }
        Some(done)
    }

    /// When data sent to a client arrives, in order.
    fn answers_at(&self, link: &mut Link, is_calm: bool) -> Moment {
        let mut delay = self.delay();
        if !is_calm && self.chance(self.0.faults.late) {
            delay = Duration::from_millis(self.below(4_000));
        }
        link.answered = (link.answered + Duration::from_nanos(1)).max(self.now() + delay);
        link.answered
    }

    fn later(&self, at: Moment, what: impl FnOnce() + Send + 'static) {
        let wait = self.0.runtime.sleep_until(at);
        self.spawn(async move {
            wait.await;
            what();
        });
    }

    /// Delivers something to a client, unless its connection is closed or silent.
    fn hear(&self, label: &str, what: impl FnOnce(&mut Client)) {
        let mut state = self.state();
        let Some(link) = state.links.get_mut(label).filter(|link| !link.is_silent) else { return };
        if let Some(client) = &mut link.client {
            client.heard.fetch_add(1, Ordering::Relaxed);
            what(client);
        }
    }
}

/// A transaction of a user's program that has checked in a hold. A restart of the server aborts it.
pub(crate) struct Transaction {
    model: Model,
    name: String,
    owner: String,
    fence: i64,
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.model.state().table.check_out(&self.name, &self.owner, self.fence);
    }
}

/// A statement in two steps may stall between them.
async fn pause(model: &Model) {
    match model.below(40) {
        0 => model.sleep(Duration::from_millis(model.below(300))).await,
        1..10 => model.sleep(model.delay()).await,
        _ => {}
    }
}

impl Server for Model {
    fn connect<'a>(&'a self, before: Option<&'a str>) -> BoxFuture<'a, Result<ServerConnection, Failure>> {
        let (model, before) = (self.clone(), before.map(str::to_owned));
        let (promise, connected) = oneshot::channel();
        let runtime = Arc::clone(&self.0.runtime);
        runtime.spawn(async move { drop(promise.send(model.dial(before).await)) }.boxed());
        let refused = |_| Failure::NotSent(Failure::cause("the simulation is over"));
        async move { connected.await.map_err(refused).flatten() }.boxed()
    }

    fn stage(&self) -> String {
        "a model".into()
    }

    fn has_notifications(&self) -> bool {
        true
    }

    fn shown(&self) -> Arc<str> {
        "postgres:model".into()
    }
}

impl Model {
    /// Like `Connector`: terminates the previous connection, or opens no new one.
    async fn dial(self, before: Option<String>) -> Result<ServerConnection, Failure> {
        let failed = |text: &str| Err(Failure::NotSent(Failure::cause(text)));
        let rarely = if self.state().is_calm { 0 } else { self.0.faults.cut + self.0.faults.silent };
        self.sleep(self.delay()).await;
        if self.chance(rarely) {
            self.sleep(Duration::from_millis(self.below(3_000))).await;
            return failed("it does not answer");
        }
        if self.state().down_until > self.now() {
            return failed("it does not listen");
        }
        if let Some(before) = before {
            if self.chance(rarely) {
                self.sleep(Duration::from_secs(2)).await;
                return failed("the server has not ended the previous connection");
            }
            let link = self.state().links.remove(&before);
            drop(link);
        }
        self.sleep(self.delay()).await;
        if self.chance(rarely) {
            return failed("it was ended and not made");
        }
        let label = format!("model-{:016x}", self.0.runtime.random());
        let (jobs, todo) = mpsc::unbounded_channel();
        let (say, messages) = mpsc::unbounded_channel();
        let ((hangup, hung), (done, over)) = (oneshot::channel::<()>(), oneshot::channel());
        let heard = Arc::new(AtomicU64::new(0));
        let client = Client {
            jobs,
            messages: say,
            _over: done,
            heard: Arc::clone(&heard),
            asked: BTreeMap::new(),
            next: 0,
        };
        let link = Link {
            is_served: true,
            listens: false,
            is_silent: false,
            client: Some(client),
            arrives: self.now(),
            answered: self.now(),
        };
        {
            let mut state = self.state();
            state.connects += 1;
            state.links.insert(label.clone(), link);
        }
        self.spawn(self.clone().serve(label.clone(), todo));
        let (model, of) = (self.clone(), label.clone());
        self.spawn(async move {
            let _ = hung.await;
            let client = model.state().links.get_mut(&of).and_then(|link| link.client.take());
            drop(client);
        });
        Ok(ServerConnection { session: Arc::new(Line { model: self, label, heard }), messages, over, hangup })
    }
}

#[derive(Debug)]
struct Line {
    model: Model,
    label: String,
    heard: Arc<AtomicU64>,
}

/// Whether an error leaves the outcome of a statement unknown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sort {
    Writes,
    Reads,
}

impl Line {
    /// Sends a statement, which is executed in order.
    fn ask<T: Send + 'static>(
        &self,
        name: &'static str,
        sort: Sort,
        job: impl FnOnce(Model, String) -> BoxFuture<'static, Option<T>> + Send + 'static,
    ) -> StatementResult<'static, T> {
        let (model, label) = (self.model.clone(), self.label.clone());
        async move {
            let (promise, answer) = oneshot::channel();
            model.send(&label, name, promise, job);
            answer.await.map_err(|_| {
                let cause = Failure::cause("the connection is closed");
                let failure =
                    if sort == Sort::Writes { Failure::Unknown(cause) } else { Failure::NotSent(cause) };
                StatementError { failure, ends_connection: true }
            })
        }
        .boxed()
    }
}

impl Model {
    fn send<T: Send + 'static>(
        &self,
        label: &str,
        name: &'static str,
        promise: oneshot::Sender<T>,
        job: impl FnOnce(Self, String) -> BoxFuture<'static, Option<T>> + Send + 'static,
    ) {
        let mut state = self.state();
        let faults = if state.is_calm { Faults::default() } else { self.0.faults };
        *state.statements.entry(name).or_default() += 1;
        let (mut delay, cuts) = (self.delay(), self.chance(faults.cut));
        if self.chance(faults.late) || cuts && self.below(2) == 0 {
            delay = Duration::from_millis(self.below(4_000));
        }
        let mut cut = cuts.then(|| (2 * self.delay(), self.below(2) == 0));
        if let Some(at) = state.delayed.iter().position(|(sort, ..)| *sort == name) {
            let (_, by, is_cut) = state.delayed.swap_remove(at);
            (delay, cut) = (by, is_cut.then_some((Duration::ZERO, true)));
        }
        if self.chance(faults.back) {
            state.back_us += self.below(2_000_000) as i64;
        }
        let Some(link) = state.links.get_mut(label) else { return };
        link.is_silent |= self.chance(faults.silent);
        link.arrives = (link.arrives + Duration::from_nanos(1)).max(self.now() + delay);
        let Some(client) = &mut link.client else { return };
        let number = client.next;
        client.next += 1;
        // The result for the client, dropped when its end is closed.
        let told: Arc<Mutex<Option<T>>> = Arc::default();
        let tell = Arc::clone(&told);
        client.asked.insert(
            number,
            Box::new(move || {
                if let Some(answer) = tell.lock().unwrap_or_else(PoisonError::into_inner).take() {
                    let _ = promise.send(answer);
                }
            }),
        );
        let (model, label) = (self.clone(), label.to_owned());
        let work = {
            let (model, label) = (model.clone(), label.clone());
            async move {
                let Some(answer) = job(model.clone(), label.clone()).await else { return };
                *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
                let at = {
                    let mut state = model.state();
                    let is_calm = state.is_calm;
                    let Some(link) = state.links.get_mut(&label) else { return };
                    model.answers_at(link, is_calm)
                };
                let (of, answers) = (label, model.clone());
                model.later(at, move || {
                    let mut tell = None;
                    answers.hear(&of, |client| tell = client.asked.remove(&number));
                    if let Some(tell) = tell {
                        tell();
                    }
                });
            }
        };
        let _ = client.jobs.send((link.arrives, work.boxed()));
        drop(state);
        if let Some((after, arrives)) = cut {
            // Before it is executed, during that, or while its answer is in flight.
            self.later(self.now() + after, move || model.cut(&label, arrives));
        }
        if self.chance(faults.restart) {
            self.restart();
        }
    }
}

impl StatementSession for Line {
    fn label(&self) -> &str {
        &self.label
    }

    fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    fn acquire<'a>(
        &'a self,
        key: &'a LockKey,
        owner: &'a str,
        ttl_ms: i64,
    ) -> StatementResult<'a, Option<i64>> {
        let (key, owner) = (key.clone(), owner.to_owned());
        self.ask("acquire", Sort::Writes, move |model, label| {
            async move {
                let drawn = model.step(&label, |table, us, _| table.draw(&key.name, us))?;
                let Some(drawn) = drawn else { return Some(None) };
                pause(&model).await;
                model.step(&label, |table, _, _| table.acquire(&key, &owner, ttl_ms, &drawn))
            }
            .boxed()
        })
    }

    fn release<'a>(&'a self, name: &'a str, owner: &'a str, message: &'a str) -> StatementResult<'a, bool> {
        let (name, owner, message) = (name.to_owned(), owner.to_owned(), message.to_owned());
        self.ask("release", Sort::Writes, move |model, label| {
            async move {
                model.step(&label, |table, us, is_locked| {
                    !is_locked() && table.release(&name, &owner, &message, us)
                })
            }
            .boxed()
        })
    }

    fn renew<'a>(&'a self, renewals: &'a Renewals) -> StatementResult<'a, Vec<(String, i64)>> {
        let Renewals { names, owners, ttls_ms } = renewals;
        let renewals = Renewals { names: names.clone(), owners: owners.clone(), ttls_ms: ttls_ms.clone() };
        self.ask("renew", Sort::Writes, move |model, label| {
            async move { model.step(&label, |table, us, is_locked| table.renew(&renewals, us, is_locked)) }
                .boxed()
        })
    }

    fn read<'a>(&'a self, names: &'a [String], with_records: bool) -> StatementResult<'a, Vec<Row>> {
        let names = names.to_vec();
        self.ask("read", Sort::Reads, move |model, label| {
            async move { model.step(&label, |table, us, _| table.read(&names, with_records, us)) }.boxed()
        })
    }

    fn write<'a>(
        &'a self,
        changes: &'a [(LockKey, RowChange)],
    ) -> StatementResult<'a, std::collections::BTreeSet<String>> {
        let mut changes = changes.to_vec();
        self.ask("write", Sort::Writes, move |model, label| {
            async move {
                model.step(&label, |table, us, _| {
                    changes.retain(|(_, change)| table.is_in_time(change, us))
                })?;
                pause(&model).await;
                model.step(&label, |table, us, is_locked| table.write(&changes, us, is_locked))
            }
            .boxed()
        })
    }

    fn note_listeners<'a>(&'a self, keys: &'a [LockKey]) -> StatementResult<'a, ()> {
        let keys = keys.to_vec();
        self.ask("note_listeners", Sort::Writes, move |model, label| {
            async move { model.step(&label, |table, us, _| table.note_listeners(&keys, us)) }.boxed()
        })
    }

    fn listen(&self) -> StatementResult<'_, ()> {
        self.ask("listen", Sort::Reads, |model, label| {
            async move {
                model.step(&label, |_, _, _| ())?;
                model.state().links.get_mut(&label)?.listens = true;
                Some(())
            }
            .boxed()
        })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: &'a str) -> StatementResult<'a, Vec<Row>> {
        let (prefix, after) = (prefix.to_owned(), after.to_owned());
        self.ask("list", Sort::Reads, move |model, label| {
            async move { model.step(&label, |table, us, _| table.list(&prefix, &after, us)) }.boxed()
        })
    }

    fn sweep<'a>(&'a self, after: &'a str) -> StatementResult<'a, Option<String>> {
        let after = after.to_owned();
        self.ask("sweep", Sort::Writes, move |model, label| {
            async move { model.step(&label, |table, us, is_locked| table.sweep(&after, us, is_locked)) }
                .boxed()
        })
    }

    fn ping(&self) -> StatementResult<'_, ()> {
        self.ask("ping", Sort::Reads, |model, label| async move { model.step(&label, |_, _, _| ()) }.boxed())
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Model")
    }
}
