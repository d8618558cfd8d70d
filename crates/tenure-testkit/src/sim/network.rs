//! The store as one process sees it: the server behind a network that delays, loses and cuts.
//!
//! This models the contract of [`Store::call`] to the letter. A process has one connection for requests, on which they arrive in
//! the order in which they were sent, and so do the replies. Whatever goes wrong ends the connection: what was under way has
//! an unknown outcome and may still be carried out, until the next connection, which begins by putting an end to the last. Messages come on a
//! connection of their own, and nobody notices when one of them is lost.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, ready};
use tenure::LockName;
use tenure::internals::protocol::{Kind, Op, Reply, Rule, Verb, Wake};
use tenure::internals::store::{Cursor, Failure, Life, Listener, Page};
use tenure::internals::{Moment, Store};
use tokio::sync::mpsc;

use super::clock::{Clock, MS, SECOND, TrueTime};
use super::executor::{Process, ProcessId, Sim, lock};
use super::oracle::{Executed, Oracle};
use super::regime::Faults;
use super::server::Server;

/// Whoever gives a request less time than this does not blame the connection when there is no answer.
const SHORT: Duration = Duration::from_millis(50);

/// How long a server had been up when the schedule began.
const OLD: Duration = Duration::from_secs(86_400);

/// A lease that ends later than this is not worth waiting for: no request takes so long.
const NEAR: TrueTime = 1_200 * MS;

/// The network and the server. Clones are the same one.
#[derive(Clone)]
pub struct Network {
    sim: Sim,
    /// Nobody judges what one member of several does.
    oracle: Option<Oracle>,
    url: Arc<str>,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    server: Server,
    faults: Faults,
    /// The server stands still until then.
    stalled_until: TrueTime,
    connections: Vec<Connection>,
    ends: Vec<End>,
    ears: Vec<Ear>,
    next_ear: u64,
    /// How often the server has started anew, and when last.
    starts: u64,
    started_at: TrueTime,
}

/// A process's end of the network.
struct End {
    clock: Clock,
    /// Which connection it sends on.
    connection: usize,
    /// The connection is there from then on.
    up_at: TrueTime,
    /// Messages are heard from then on.
    hears_from: TrueTime,
    /// How often the connection was replaced, and who wants to know.
    breaks: u64,
    curious: Vec<Waker>,
    is_dead: bool,
    /// What the server told of itself at the last connection.
    life: Life,
}

#[derive(Default)]
struct Connection {
    /// What arrives later is not carried out any more.
    cut_at: TrueTime,
    is_broken: bool,
    loses_requests: bool,
    loses_replies: bool,
    last_request: TrueTime,
    last_reply: TrueTime,
    under_way: Vec<Weak<Slot>>,
    /// Requests on their way, in the order in which they were sent.
    inbox: VecDeque<(Op, Arc<Slot>)>,
}

/// A subscription.
struct Ear {
    id: u64,
    process: ProcessId,
    name: LockName,
    kind: Kind,
    sender: mpsc::Sender<Wake>,
    /// The server knows of it.
    is_open: bool,
}

/// Where the answer to one request arrives.
#[derive(Default)]
struct Slot(Mutex<Arrival>);

#[derive(Default)]
struct Arrival {
    answer: Option<Result<Reply, Failure>>,
    is_out_of_time: bool,
    is_executed: bool,
    /// Nobody waits any more, and it has not left yet.
    is_withdrawn: bool,
    waker: Option<Waker>,
}

impl Slot {
    fn fill(&self, answer: Result<Reply, Failure>) {
        let mut arrival = lock(&self.0);
        arrival.answer.get_or_insert(answer);
        wake(arrival);
    }
}

fn wake(mut arrival: MutexGuard<'_, Arrival>) {
    let waker = arrival.waker.take();
    drop(arrival);
    if let Some(waker) = waker {
        waker.wake();
    }
}

fn unknown() -> Failure {
    Failure::Unknown(Failure::cause("the connection ended before the answer came"))
}

fn not_sent() -> Failure {
    Failure::NotSent(Failure::cause("there is no connection"))
}

impl Network {
    /// A network before a server with this clock.
    pub fn new(sim: &Sim, oracle: &Oracle, clock: Clock, faults: Faults) -> Self {
        Self { oracle: Some(oracle.clone()), ..Self::member(sim, "sim:", clock, faults) }
    }

    /// A network before a server that is one of several.
    pub fn member(sim: &Sim, url: &str, clock: Clock, faults: Faults) -> Self {
        let inner = Inner {
            server: Server::new(clock),
            faults,
            stalled_until: 0,
            connections: Vec::new(),
            ends: Vec::new(),
            ears: Vec::new(),
            next_ear: 0,
            starts: 0,
            started_at: 0,
        };
        Self { sim: sim.clone(), oracle: None, url: url.into(), inner: Arc::new(Mutex::new(inner)) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// The store for one process.
    pub fn store(&self, process: &Process) -> SimStore {
        let now = self.sim.now();
        let mut inner = self.inner();
        // The outside has no end of its own, but a place in the list.
        while inner.ends.len() <= process.id() {
            let connection = inner.connect();
            let life = inner.life(&self.url, process.clock(), now);
            inner.ends.push(End {
                life,
                clock: process.clock(),
                connection,
                up_at: 0,
                hears_from: 0,
                breaks: 0,
                curious: Vec::new(),
                is_dead: false,
            });
        }
        SimStore { network: self.clone(), process: process.id(), url: Arc::clone(&self.url) }
    }

    /// The server runs the scripts as well.
    pub fn run_scripts(&self) {
        self.inner().server.run_scripts();
    }

    /// Whoever reads this sees what the server has, not what anybody was told.
    pub fn with_server<T>(&self, look: impl FnOnce(&Server) -> T) -> T {
        look(&self.inner().server)
    }

    /// From now on nothing fails any more.
    pub fn heal(&self) {
        let mut inner = self.inner();
        inner.faults = Faults::NONE;
        inner.stalled_until = inner.stalled_until.min(self.sim.now());
        let broken: Vec<ProcessId> = (0..inner.ends.len())
            .filter(|process| {
                let connection = &inner.connections[inner.ends[*process].connection];
                connection.loses_requests || connection.loses_replies
            })
            .collect();
        drop(inner);
        broken.into_iter().for_each(|process| self.cut(process));
    }

    /// The server stands still until then; what arrives meanwhile waits.
    pub fn stall(&self, until: TrueTime) {
        let mut inner = self.inner();
        inner.stalled_until = inner.stalled_until.max(until);
    }

    /// The server starts again with nothing, so every connection ends.
    pub fn forget(&self) {
        let mut inner = self.inner();
        inner.server.forget();
        (inner.starts, inner.started_at) = (inner.starts + 1, self.sim.now());
        let ends = 0..inner.ends.len();
        drop(inner);
        if let Some(oracle) = &self.oracle {
            oracle.forgotten();
        }
        for process in ends {
            self.cut(process);
            self.deafen(process);
        }
    }

    /// An operator deletes a lock's key.
    pub fn delete(&self, name: &LockName) {
        self.inner().server.delete(name);
        if let Some(oracle) = &self.oracle {
            oracle.deleted(name);
        }
    }

    /// The process is gone: it sends and hears nothing any more. What it has sent may still arrive.
    pub fn silence(&self, process: ProcessId) {
        let now = self.sim.now();
        let arrives_until = if self.sim.chance(500) { now } else { now + self.sim.between(0, 100 * MS) };
        let mut inner = self.inner();
        inner.ends[process].is_dead = true;
        let connection = inner.ends[process].connection;
        inner.connections[connection].cut_at = arrives_until;
        inner.ears.retain(|ear| ear.process != process);
    }

    /// Ends a process's connection for requests. The next begins by putting an end to this one, so what is still on its way is
    /// carried out before anything later, or never.
    pub fn cut(&self, process: ProcessId) {
        let now = self.sim.now();
        let mut inner = self.inner();
        if inner.ends[process].is_dead {
            return;
        }
        let up_at = now.max(inner.stalled_until) + self.sim.between(MS / 10, 50 * MS);
        let next = inner.connect();
        let end = &mut inner.ends[process];
        end.up_at = end.up_at.max(up_at);
        let (up_at, old) = (end.up_at, std::mem::replace(&mut end.connection, next));
        let old = &mut inner.connections[old];
        (old.cut_at, old.is_broken) = (up_at, true);
        let under_way = std::mem::take(&mut old.under_way);
        drop(inner);
        self.sim
            .note(|| format!("p{process}: connection ended, the next is there at {:.6}", up_at as f64 / 1e9));
        under_way.iter().filter_map(Weak::upgrade).for_each(|slot| slot.fill(Err(unknown())));
        let network = self.clone();
        self.sim.at(up_at, move || network.reconnected(process));
    }

    fn reconnected(&self, process: ProcessId) {
        let now = self.sim.now();
        let mut inner = self.inner();
        let life = inner.life(&self.url, inner.ends[process].clock, now);
        let end = &mut inner.ends[process];
        end.life = life;
        end.breaks += 1;
        let curious = std::mem::take(&mut end.curious);
        drop(inner);
        curious.into_iter().for_each(Waker::wake);
    }

    /// Ends a process's connection for messages. It is there again a little later, and says so.
    pub fn deafen(&self, process: ProcessId) {
        let now = self.sim.now();
        let mut inner = self.inner();
        let hears_from = now.max(inner.stalled_until) + self.sim.between(MS / 10, 500 * MS);
        inner.ends[process].hears_from = inner.ends[process].hears_from.max(hears_from);
        let heard_at = hears_from + inner.latency(&self.sim);
        drop(inner);
        self.sim.note(|| format!("p{process}: hears nothing until {:.6}", hears_from as f64 / 1e9));
        let network = self.clone();
        self.sim.at(heard_at, move || {
            let inner = network.inner();
            let ears: Vec<_> = inner.ears_of(process).map(|ear| ear.sender.clone()).collect();
            drop(inner);
            for ear in ears {
                let _ = ear.try_send(Wake::Reconnected);
            }
        });
    }

    /// A request leaves its process. Returns false when it does not.
    fn send(&self, process: ProcessId, op: Op, slot: &Arc<Slot>, within: Duration) -> bool {
        let now = self.sim.now();
        let mut inner = self.inner();
        let refused = inner.faults.refuse;
        let end = &inner.ends[process];
        let (out_of_time_at, leaves_at) = (now + end.clock.lasts(within), now.max(end.up_at));
        let number = end.connection;
        if end.is_dead || leaves_at >= out_of_time_at && leaves_at > now || self.sim.chance(refused) {
            return false;
        }
        self.sim.note(|| format!("p{process}: sends {}", Shown(&op)));
        let faults = inner.faults;
        let latency = inner.delay(&self.sim, &op.name, leaves_at);
        let connection = &mut inner.connections[number];
        connection.loses_requests |= self.sim.chance(faults.lose_request);
        connection.loses_replies |= self.sim.chance(faults.lose_reply);
        connection.under_way.retain(|slot| slot.strong_count() > 0);
        connection.under_way.push(Arc::downgrade(slot));
        let arrives_at = (leaves_at + latency).max(connection.last_request + 1);
        connection.last_request = arrives_at;
        if !connection.loses_requests {
            connection.inbox.push_back((op, Arc::clone(slot)));
            let network = self.clone();
            self.sim.at(arrives_at, move || network.arrive(process, number));
        }
        drop(inner);
        let slot = Arc::downgrade(slot);
        self.sim.at(out_of_time_at, move || {
            let Some(slot) = slot.upgrade() else { return };
            let mut arrival = lock(&slot.0);
            arrival.is_out_of_time = true;
            wake(arrival);
        });
        true
    }

    /// The next request on a connection reaches the server.
    fn arrive(&self, process: ProcessId, number: usize) {
        let now = self.sim.now();
        let mut inner = self.inner();
        if now < inner.stalled_until {
            let (network, until) = (self.clone(), inner.stalled_until);
            return self.sim.at(until, move || network.arrive(process, number));
        }
        let Some((op, slot)) = inner.connections[number].inbox.pop_front() else { return };
        if now >= inner.connections[number].cut_at || lock(&slot.0).is_withdrawn {
            self.sim.note(|| format!("p{process}: never carried out: {}", Shown(&op)));
            return;
        }
        lock(&slot.0).is_executed = true;
        let (answer, wake) = inner.server.apply(now, &op);
        if let (Some(difference), Some(oracle)) = (inner.server.difference(), &self.oracle) {
            oracle.accuse("the scripts are the machines", difference);
        }
        self.sim.mark(now ^ process as u64);
        self.sim.note(|| format!("server: p{process}: {} -> {answer:?}", Shown(&op)));
        let after = inner.server.standing(now, &op.name);
        if let Some(oracle) = &self.oracle {
            oracle.executed(&Executed { process, op: &op, answer: &answer, wake: wake.as_ref(), after });
        }
        if let Some(wake) = wake {
            self.tell(&mut inner, &op, &wake);
        }
        let latency = inner.delay(&self.sim, &op.name, now);
        let connection = &mut inner.connections[number];
        if connection.is_broken || connection.loses_replies {
            return;
        }
        let answered_at = (now + latency).max(connection.last_reply + 1);
        connection.last_reply = answered_at;
        let reply = Reply { owner: op.owner, request: op.request, answer };
        let network = self.clone();
        self.sim.at(answered_at, move || {
            let is_broken = network.inner().connections[number].is_broken;
            if !is_broken {
                slot.fill(Ok(reply));
            }
        });
    }

    /// Tells all who listen to this kind of lock of this name.
    fn tell(&self, inner: &mut Inner, op: &Op, wake: &Wake) {
        let (now, name) = (self.sim.now(), &op.name);
        let faults = inner.faults;
        let ears = inner.ears.iter().filter(|ear| {
            ear.is_open
                && ear.name == *name
                && ear.kind == op.rule.kind()
                && inner.ends[ear.process].hears_from <= now
        });
        let ears: Vec<_> = ears.map(|ear| (ear.process, ear.sender.clone())).collect();
        for (process, ear) in ears {
            if self.sim.chance(faults.lose_wake) {
                self.sim.note(|| format!("p{process}: a message is lost"));
                continue;
            }
            for _ in 0..=u32::from(self.sim.chance(faults.repeat_wake)) {
                let (ear, wake) = (ear.clone(), wake.clone());
                let mut heard_at = now + inner.delay(&self.sim, name, now);
                if self.sim.chance(faults.late_wake.0) {
                    heard_at += self.sim.between(MS, faults.late_wake.1);
                }
                let sim = self.sim.clone();
                self.sim.at(heard_at, move || {
                    sim.note(|| format!("p{process}: hears {wake:?}"));
                    drop(ear.try_send(wake));
                });
            }
        }
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("server", &self.inner().server).finish_non_exhaustive()
    }
}

impl Inner {
    fn connect(&mut self) -> usize {
        self.connections.push(Connection { cut_at: TrueTime::MAX, ..Connection::default() });
        self.connections.len() - 1
    }

    /// What a server says of itself to whoever connects: in whole seconds.
    fn life(&self, url: &str, clock: Clock, now: TrueTime) -> Life {
        let up = if self.starts == 0 { OLD } else { Duration::from_secs((now - self.started_at) / SECOND) };
        Life::Since { id: format!("{url}#{}", self.starts).into(), up, at: Moment(clock.shows(now)) }
    }

    fn latency(&self, sim: &Sim) -> TrueTime {
        let (least, most) = self.faults.latency;
        sim.between(least, most)
    }

    /// How long something about a lock takes one way: sometimes just so long that it arrives when a lease ends.
    fn delay(&self, sim: &Sim, name: &LockName, now: TrueTime) -> TrueTime {
        if self.faults.edge > 0
            && sim.chance(self.faults.edge)
            && let Some(lapses) = self.server.standing(now, name).and_then(|standing| standing.edge())
            && lapses < now + NEAR
        {
            return (lapses + sim.between(0, 6 * MS)).saturating_sub(now + 3 * MS);
        }
        if sim.chance(self.faults.late.0) {
            return sim.between(self.faults.latency.1, self.faults.late.1);
        }
        self.latency(sim)
    }

    fn ears_of(&self, process: ProcessId) -> impl Iterator<Item = &Ear> {
        self.ears.iter().filter(move |ear| ear.process == process && ear.is_open)
    }
}

/// What one process uses as its store.
pub struct SimStore {
    network: Network,
    process: ProcessId,
    url: Arc<str>,
}

impl Store for SimStore {
    fn call(&self, op: Op, within: Duration) -> BoxFuture<'static, Result<Reply, Failure>> {
        Box::pin(Call {
            network: self.network.clone(),
            process: self.process,
            within,
            op: Some(op),
            slot: Arc::default(),
        })
    }

    fn listen(
        &self,
        name: &LockName,
        rule: Rule,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        let (network, process, name) = (self.network.clone(), self.process, name.clone());
        async move { network.listen(process, &name, rule.kind(), within).await }.boxed()
    }

    fn list(&self, prefix: &str, _: Cursor, _: Duration) -> BoxFuture<'static, Result<Page, Failure>> {
        let now = self.network.sim.now();
        let locks = self.network.with_server(|server| server.list(now, prefix));
        ready(Ok(Page { locks, next: None })).boxed()
    }

    fn supports(&self, _: Rule) -> Result<(), &'static str> {
        Ok(())
    }

    fn interrupted(&self) -> BoxFuture<'static, ()> {
        let (network, process) = (self.network.clone(), self.process);
        let before = network.inner().ends[process].breaks;
        std::future::poll_fn(move |cx| {
            let mut inner = network.inner();
            let end = &mut inner.ends[process];
            if end.breaks > before {
                return Poll::Ready(());
            }
            if !end.curious.iter().any(|known| known.will_wake(cx.waker())) {
                end.curious.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .boxed()
    }

    fn life(&self) -> Life {
        self.network.inner().ends[self.process].life.clone()
    }

    fn url(&self) -> &Arc<str> {
        &self.url
    }
}

impl Network {
    async fn listen(
        &self,
        process: ProcessId,
        name: &LockName,
        kind: Kind,
        within: Duration,
    ) -> Result<Listener, Failure> {
        let now = self.sim.now();
        let (id, opens_at, confirmed_at, out_of_time_at, is_lost) = {
            let mut inner = self.inner();
            inner.next_ear += 1;
            let end = &inner.ends[process];
            let out_of_time_at = now + end.clock.lasts(within);
            let leaves_at = now.max(end.hears_from).max(inner.stalled_until);
            let opens_at = leaves_at + inner.delay(&self.sim, name, leaves_at);
            let confirmed_at = opens_at + inner.delay(&self.sim, name, opens_at);
            let is_lost = end.is_dead || self.sim.chance(inner.faults.lose_reply);
            (inner.next_ear, opens_at, confirmed_at, out_of_time_at, is_lost)
        };
        let listener = Listener::new(|sender| {
            let ear = Ear { id, process, name: name.clone(), kind, sender, is_open: false };
            self.inner().ears.push(ear);
            Box::new(Subscription { network: self.clone(), id }) as Box<dyn Any + Send>
        });
        if is_lost || confirmed_at > out_of_time_at {
            self.sim.sleep_until(out_of_time_at).await;
            return Err(unknown());
        }
        let network = self.clone();
        self.sim.at(opens_at, move || {
            if let Some(ear) = network.inner().ears.iter_mut().find(|ear| ear.id == id) {
                ear.is_open = true;
            }
        });
        self.sim.sleep_until(confirmed_at).await;
        Ok(listener)
    }
}

impl fmt::Debug for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimStore").field("process", &self.process).finish_non_exhaustive()
    }
}

struct Subscription {
    network: Network,
    id: u64,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut inner = self.network.inner();
        let place = inner.ears.iter().position(|ear| ear.id == self.id);
        let ear = place.map(|place| inner.ears.swap_remove(place));
        drop(inner);
        drop(ear);
    }
}

/// One request on its way.
struct Call {
    network: Network,
    process: ProcessId,
    within: Duration,
    /// Until it is sent.
    op: Option<Op>,
    slot: Arc<Slot>,
}

impl Future for Call {
    type Output = Result<Reply, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(op) = self.op.take()
            && !self.network.send(self.process, op, &self.slot, self.within)
        {
            return Poll::Ready(Err(not_sent()));
        }
        let mut arrival = lock(&self.slot.0);
        if arrival.is_out_of_time && (arrival.answer.is_none() || self.network.sim.chance(500)) {
            // In a process that stood still both are there: the answer, and the end of its time.
            let known = arrival.answer.take();
            drop(arrival);
            let gives_up =
                self.within >= SHORT || self.network.sim.chance(self.network.inner().faults.impatient);
            if gives_up && !matches!(known, Some(Err(_))) {
                self.network.cut(self.process);
            }
            return Poll::Ready(Err(unknown()));
        }
        if let Some(answer) = arrival.answer.take() {
            return Poll::Ready(answer);
        }
        match &mut arrival.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => arrival.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Call {
    /// A request that was dropped on its way may be carried out, or, if it was still in this process, never.
    fn drop(&mut self) {
        let mut arrival = lock(&self.slot.0);
        if self.op.is_none() && arrival.answer.is_none() && !arrival.is_executed {
            arrival.is_withdrawn = self.network.sim.chance(300);
        }
    }
}

/// A request as one reads it in a trace.
struct Shown<'a>(&'a Op);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Op { name, owner, request, verb, .. } = self.0;
        let owner = &owner.as_str()[owner.as_str().len() - 6..];
        let (name, request) = (name.as_str(), request & 0xffff);
        match verb {
            Verb::Acquire { ttl_ms, wait_ms, hold, .. } => {
                let hold = hold & 0xffff;
                write!(f, "acquire {name} by …{owner} for {ttl_ms} ms, hold {hold} [{request}]")?;
                wait_ms.map_or(Ok(()), |wait_ms| write!(f, ", or a place for {wait_ms} ms"))
            }
            Verb::Renew { ttl_ms, bind, weight, .. } => {
                write!(f, "renew {name} by …{owner} for {ttl_ms} ms [{request}]")?;
                bind.map_or(Ok(()), |bind| write!(f, " bound to {bind:?}"))?;
                weight.map_or(Ok(()), |weight| write!(f, " at weight {weight}"))
            }
            Verb::Release { whose, hold, .. } => {
                let hold = hold & 0xffff;
                write!(f, "release {name} by …{owner} of {whose:?}, hold {hold} [{request}]")
            }
            Verb::Refresh { owners, wait_ms } => {
                write!(f, "refresh {name} by {} for {wait_ms} ms [{request}]", owners.len())
            }
            Verb::Inspect => write!(f, "inspect {name} by …{owner} [{request}]"),
        }
    }
}
