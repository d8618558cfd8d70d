//! The network between processes and a server: delays, losses, cut connections.
//!
//! It implements the contract of [`Store::call`](tenure::internals::Store::call) and no more. A process has
//! one connection for requests, on which requests arrive in the order in which they were sent, and so do
//! replies; requests waiting for a connection are sent in any order. A fault ends the connection: requests in
//! flight have an unknown outcome and may still be carried out, until the next connection kills this one.
//! Messages have a separate connection, and lost messages go unnoticed.
//!
//! | module | what it holds |
//! |---|---|
//! | `driver` | faults of the simulated Redis server |
//! | `subscription` | subscriptions, and what a process learns about its connection |
//! | `trouble` | faults of the network and its server |

mod driver;
mod subscription;
mod trouble;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tenure::internals::Moment;
use tenure::internals::protocol::{
    self, Answer, Fence, Found, Kind, Listening, LockSpec, Notification, Op, ReleaseScope, Verb,
};
use tenure::internals::store::{Client, Failure, Incarnation, Listener, Publisher, Signals, Station};
use tenure::{LockName, Owner};

use super::clock::{Clock, MS, SECOND, TrueTime};
use super::event::Event;
use super::executor::{OUTSIDE, Process, ProcessId, Sim, lock};
use super::oracle::votes::Trouble;
use super::oracle::{Executed, Oracle, Passed};
use super::regime::Faults;
use super::request::{Shown, Slot, unknown};
use super::scripts::Audience;
use super::server::Server;

/// The server's uptime at the start of the schedule.
const OLD: Duration = Duration::from_secs(86_400);

/// Leases ending later than this are not targeted, because no request takes that long.
const NEAR: TrueTime = 1_200 * MS;

/// The network and the server. Clones share both.
#[derive(Clone)]
pub struct Network {
    pub(super) sim: Sim,
    /// The oracle, if there is one.
    oracle: Option<Oracle>,
    pub(super) url: Arc<str>,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    server: Server,
    faults: Faults,
    /// End of the server's stall.
    stalled_until: TrueTime,
    connections: Vec<Connection>,
    ends: Vec<End>,
    listeners: Vec<Subscriber>,
    next_ear: u64,
    /// The process of each client.
    clients: BTreeMap<Client, ProcessId>,
    /// The owners that got a place, and no reply since.
    untold: BTreeSet<Owner>,
    /// Number of restarts of the server, and the time of the last one.
    starts: u64,
    started_at: TrueTime,
    /// Number of rewinds of the server.
    rewinds: u64,
    renews_together: bool,
}

/// A process's end of the network.
struct End {
    clock: Clock,
    /// Index of the connection that it sends on.
    connection: usize,
    /// When that connection is established.
    up_at: TrueTime,
    /// When its message connection is established.
    hears_from: TrueTime,
    /// Interrupted by each reconnect, with the incarnation that the server reported then.
    signals: Signals,
    is_dead: bool,
    /// It has lost a request or a reply.
    has_lost: bool,
    parting: Parting,
}

/// A partition between a process and the server that neither end notices, in one direction or both.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parting {
    /// When requests pass again.
    pub requests: TrueTime,
    /// When replies pass again.
    pub replies: TrueTime,
    /// When messages pass again.
    pub messages: TrueTime,
    /// Whether traffic sent meanwhile, and everything after it on the same connection, is lost; otherwise it
    /// arrives afterwards.
    pub loses: bool,
}

impl Parting {
    /// When connections can be made again.
    fn ends(&self) -> TrueTime {
        self.requests.max(self.replies)
    }
}

#[derive(Default)]
struct Connection {
    /// Requests arriving later are not carried out.
    cut_at: TrueTime,
    is_broken: bool,
    loses_requests: bool,
    loses_replies: bool,
    last_request: TrueTime,
    last_reply: TrueTime,
    under_way: Vec<Weak<Slot>>,
    /// Requests in flight, in sending order.
    inbox: VecDeque<(Op, Arc<Slot>)>,
}

struct Subscriber {
    id: u64,
    process: ProcessId,
    name: LockName,
    kind: Kind,
    publisher: Publisher,
    /// It is a client's own channel, whose subscribers the server counts.
    is_counted: bool,
    station: Station,
    /// The server has registered it.
    is_open: bool,
}

impl Connection {
    /// Whether a caller on it gets no replies.
    fn loses(&self) -> bool {
        self.loses_requests || self.loses_replies
    }
}

impl Network {
    /// A network in front of a server with this clock.
    pub fn new(sim: &Sim, oracle: &Oracle, clock: Clock, faults: Faults) -> Self {
        Self::member(sim, "sim:", clock, faults).judged(oracle.clone())
    }

    /// Adds an oracle.
    pub fn judged(self, oracle: Oracle) -> Self {
        Self { oracle: Some(oracle), ..self }
    }

    /// A network in front of one of several servers.
    pub fn member(sim: &Sim, url: &str, clock: Clock, faults: Faults) -> Self {
        let inner = Inner {
            server: Server::new(clock),
            faults,
            stalled_until: 0,
            connections: Vec::new(),
            ends: Vec::new(),
            listeners: Vec::new(),
            next_ear: 0,
            clients: BTreeMap::new(),
            untold: BTreeSet::new(),
            starts: 0,
            started_at: 0,
            rewinds: 0,
            renews_together: false,
        };
        Self { sim: sim.clone(), oracle: None, url: url.into(), inner: Arc::new(Mutex::new(inner)) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Connects a process.
    pub(super) fn connect(&self, process: &Process) -> Signals {
        let now = self.sim.now();
        let mut inner = self.inner();
        // The outside has an entry, too, so that indices match.
        while inner.ends.len() <= process.id() {
            let connection = inner.connect();
            let life = inner.life_at(&self.url, process.clock(), now);
            inner.ends.push(End {
                signals: Signals::new(life),
                clock: process.clock(),
                connection,
                up_at: 0,
                hears_from: 0,
                is_dead: false,
                has_lost: false,
                parting: Parting::default(),
            });
        }
        inner.ends[process.id()].signals.clone()
    }

    /// Makes the engine batch renewals in stores opened from now on.
    pub fn renew_together(&self) {
        self.inner().renews_together = true;
    }

    /// Makes the server also run the real scripts.
    pub fn run_scripts(&self) {
        self.inner().server.run_scripts();
    }

    /// Some clients acquire free locks by plain commands from now on.
    pub fn serve_plain_clients(&self) {
        self.inner().server.serve_plain_clients();
    }

    /// Reads the server's true state.
    pub fn with_server<T>(&self, look: impl FnOnce(&Server) -> T) -> T {
        look(&self.inner().server)
    }

    /// Sends a request; `false` if it was not sent.
    pub(super) fn send(&self, process: ProcessId, op: Op, slot: &Arc<Slot>, within: Duration) -> bool {
        let now = self.sim.now();
        let mut inner = self.inner();
        inner.clients.entry((&op.owner).into()).or_insert(process);
        let refused = inner.faults.refuse;
        let end = &inner.ends[process];
        let (out_of_time_at, leaves_at) = (now + end.clock.lasts(within), now.max(end.up_at));
        let number = end.connection;
        if end.is_dead || leaves_at >= out_of_time_at && leaves_at > now {
            return false;
        }
        if self.sim.chance(refused) {
            self.sim.count(Event::NotSent);
            self.has_failed(process);
            return false;
        }
        self.sim.note(|| format!("p{process}: sends {}", Shown(&op)));
        let faults = inner.faults;
        slot.leave(leaves_at, out_of_time_at);
        let parting = inner.ends[process].parting;
        if leaves_at < parting.requests {
            self.sim.count(Event::Parted);
        }
        let latency = inner.delay(&self.sim, &op.name, leaves_at, Some(out_of_time_at));
        let is_spared = faults.once && inner.ends[process].has_lost;
        let connection = &mut inner.connections[number];
        let was_well = !connection.loses();
        connection.loses_requests |= parting.loses && leaves_at < parting.requests;
        connection.loses_requests |= self.sim.chance(faults.lose_request) && !is_spared;
        connection.loses_replies |= self.sim.chance(faults.lose_reply) && !is_spared;
        let has_lost = was_well && connection.loses();
        inner.ends[process].has_lost |= has_lost;
        if has_lost || latency > faults.latency.1 {
            self.has_failed(process);
        }
        let connection = &mut inner.connections[number];
        connection.under_way.retain(|slot| slot.strong_count() > 0);
        connection.under_way.push(Arc::downgrade(slot));
        let arrives_at = (leaves_at.max(parting.requests) + latency).max(connection.last_request + 1);
        connection.last_request = arrives_at;
        if !connection.loses_requests {
            let ahead = connection.inbox.len();
            // Requests waiting for a connection are sent in any order.
            let place = if leaves_at > now { self.sim.between(0, ahead as u64) as usize } else { ahead };
            connection.inbox.insert(place, (op, Arc::clone(slot)));
            let network = self.clone();
            self.sim.at(arrives_at, move || network.arrive(process, number));
        } else {
            self.sim.count(Event::RequestLost);
        }
        drop(inner);
        let slot = Arc::downgrade(slot);
        self.sim.at(out_of_time_at, move || {
            if let Some(slot) = slot.upgrade() {
                slot.end();
            }
        });
        true
    }

    /// The next request of a connection arrives at the server.
    fn arrive(&self, process: ProcessId, number: usize) {
        let now = self.sim.now();
        let mut inner = self.inner();
        if now < inner.stalled_until {
            self.sim.count(Event::Stalled);
            let (network, until) = (self.clone(), inner.stalled_until);
            return self.sim.at(until, move || network.arrive(process, number));
        }
        let Some((op, slot)) = inner.connections[number].inbox.pop_front() else { return };
        let is_cut = now >= inner.connections[number].cut_at;
        if !is_cut && self.sim.chance(inner.faults.again) && slot.is_first() {
            self.sim.note(|| format!("server: p{process}: what script? {}", Shown(&op)));
            let leaves_at = now + inner.latency(&self.sim);
            let network = self.clone();
            return self.sim.at(leaves_at, move || network.send_again(process, number, op, slot));
        }
        drop(inner);
        if is_cut || !slot.arrive() {
            self.sim.note(|| format!("p{process}: never carried out: {}", Shown(&op)));
            return;
        }
        let answer = self.carry_out(process, &op);
        let mut inner = self.inner();
        if let Answer::Waiting { .. } = answer {
            inner.untold.insert(op.owner.clone());
        }
        let parting = inner.ends[process].parting;
        let latency = inner.delay(&self.sim, &op.name, now, Some(slot.until()));
        if latency > inner.faults.latency.1 {
            self.has_failed(process);
        }
        let connection = &mut inner.connections[number];
        connection.loses_replies |= parting.loses && now < parting.replies;
        if connection.is_broken || connection.loses_replies {
            self.sim.count(Event::ReplyLost);
            return;
        }
        let answered_at = (now.max(parting.replies) + latency).max(connection.last_reply + 1);
        connection.last_reply = answered_at;
        let reply = answer;
        let network = self.clone();
        self.sim.at(answered_at, move || {
            let is_broken = network.inner().connections[number].is_broken;
            if !is_broken {
                network.inner().untold.remove(&op.owner);
                if let Some(oracle) = &network.oracle {
                    oracle.answered(&op);
                }
                slot.fill(Ok(reply));
            }
        });
    }

    /// Resends a request in full, unless the caller has left or the connection is gone.
    fn send_again(&self, process: ProcessId, number: usize, op: Op, slot: Arc<Slot>) {
        let now = self.sim.now();
        let mut inner = self.inner();
        let latency = inner.latency(&self.sim);
        let connection = &mut inner.connections[number];
        if connection.is_broken || connection.loses_requests || !slot.leaves_again() {
            return;
        }
        self.sim.count(Event::Again);
        let arrives_at = (now + latency).max(connection.last_request + 1);
        connection.last_request = arrives_at;
        connection.inbox.push_back((op, slot));
        let network = self.clone();
        self.sim.at(arrives_at, move || network.arrive(process, number));
    }

    /// Runs a request on the server, reports it to the oracle, and notifies subscribers.
    fn carry_out(&self, process: ProcessId, op: &Op) -> Answer {
        let now = self.sim.now();
        let mut inner = self.inner();
        let audience = inner.audience(now, op);
        let ((answer, wake), passed) = inner.server.apply(now, op, audience);
        let passed: Vec<_> = passed.into_iter().map(|owner| inner.passed(now, owner)).collect();
        for Passed { owner, .. } in &passed {
            self.sim.note(|| format!("server: {owner} is called, and no client hears it"));
            self.sim.count(Event::NobodyThere);
        }
        if let (Some(difference), Some(oracle)) = (inner.server.difference(), &self.oracle) {
            oracle.accuse("the scripts are the machines", difference);
        }
        self.sim.mark(now ^ process as u64);
        self.sim.note(|| format!("server: p{process}: {} -> {answer:?}", Shown(op)));
        let after = inner.server.view(now, &op.name);
        if let Some(oracle) = &self.oracle {
            let (answer, wake, passed) = (&answer, wake.as_ref(), &passed);
            oracle.executed(&Executed { process, op, answer, wake, passed, together: &[], after });
        }
        for wake in wake.into_iter().chain(protocol::forced(op, &answer)) {
            self.tell(&mut inner, op, &wake);
        }
        answer
    }

    /// Notifies the subscribers of this name and kind.
    fn tell(&self, inner: &mut Inner, op: &Op, wake: &Notification) {
        let (now, name) = (self.sim.now(), &op.name);
        let faults = inner.faults;
        let listeners = inner.listeners.iter().filter(|listener| {
            let is_meant = listener.is_open && listener.name == *name && listener.kind == op.spec.kind();
            let is_late = is_meant && now < inner.ends[listener.process].hears_from;
            if is_late {
                self.sim.count(Event::Unheard);
            }
            is_meant && !is_late
        });
        let listeners: Vec<_> = listeners
            .map(|listener| (listener.process, listener.publisher.clone(), listener.station.clone()))
            .collect();
        if inner.server.has_plain_clients() {
            // A release by plain commands tells how many messages were sent.
            listeners.iter().for_each(|(.., station)| station.set_alone(listeners.len() == 1));
        }
        let rewinds = inner.rewinds;
        for (process, listener, _) in listeners {
            let parting = inner.ends[process].parting;
            if parting.loses && now < parting.messages || self.sim.chance(faults.lose_wake) {
                self.sim.note(|| format!("p{process}: a message is lost"));
                self.sim.count(Event::MessageLost);
                continue;
            }
            let again = self.sim.chance(faults.repeat_wake);
            if again {
                self.sim.count(Event::MessageAgain);
            }
            for _ in 0..=u32::from(again) {
                let (listener, wake) = (listener.clone(), wake.clone());
                let mut heard_at = now.max(parting.messages) + inner.delay(&self.sim, name, now, None);
                if self.sim.chance(faults.late_wake.0) {
                    self.sim.count(Event::MessageLate);
                    heard_at += self.sim.between(MS, faults.late_wake.1);
                }
                let network = self.clone();
                self.sim.at(heard_at, move || {
                    // A message of a server that no longer exists is not delivered on a connection to its
                    // successor.
                    if network.inner().rewinds == rewinds {
                        network.sim.note(|| format!("p{process}: hears {wake:?}"));
                        listener.say(wake);
                    }
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

    /// The incarnation that the server reports to a new connection, in whole seconds.
    fn life_at(&self, url: &str, clock: Clock, now: TrueTime) -> Incarnation {
        let up = if self.starts == 0 { OLD } else { Duration::from_secs((now - self.started_at) / SECOND) };
        Incarnation::Since { id: format!("{url}#{}", self.starts).into(), up, at: Moment(clock.shows(now)) }
    }

    fn latency(&self, sim: &Sim) -> TrueTime {
        let (least, most) = self.faults.latency;
        sim.between(least, most)
    }

    /// The delay of a message about a lock in one direction: sometimes chosen so that it arrives as a lease
    /// ends or the caller gives up.
    fn delay(&self, sim: &Sim, name: &LockName, now: TrueTime, until: Option<TrueTime>) -> TrueTime {
        let beside = |moment: TrueTime| match sim.chance(self.faults.exact) {
            true => moment.saturating_sub(now),
            false => (moment + sim.between(0, 6 * MS)).saturating_sub(now + 3 * MS),
        };
        if self.faults.edge > 0
            && sim.chance(self.faults.edge)
            && let Some(lapses) = self.server.view(now, name).and_then(|view| view.edge())
            && lapses < now + NEAR
        {
            sim.count(Event::AtEdge);
            return beside(lapses);
        }
        if let Some(until) = until
            && sim.chance(self.faults.limit)
        {
            sim.count(Event::AtLimit);
            return beside(until);
        }
        if sim.chance(self.faults.late.0) {
            sim.count(Event::Late);
            return sim.between(self.faults.latency.1, self.faults.late.1);
        }
        self.latency(sim)
    }

    /// The clients that cannot be notified of a grant of this lock.
    fn audience(&self, now: TrueTime, op: &Op) -> Audience {
        let starts = (self.starts % 1024) as u16;
        if !matches!(op.spec, LockSpec::Queue(_)) {
            return Audience { starts, unreached: Vec::new() };
        }
        let hears = |process: ProcessId| {
            let mut those = self.subscribers_of(process);
            now >= self.ends[process].hears_from
                && those.any(|listener| listener.is_counted && listener.name == op.name)
        };
        let unreached = self.clients.iter().filter(|(_, process)| !hears(**process));
        Audience { starts, unreached: unreached.map(|(client, _)| *client).collect() }
    }

    /// The listening state of a client that is subscribed on this server.
    fn station(&self) -> Option<Listening> {
        Audience { starts: (self.starts % 1024) as u16, unreached: Vec::new() }.station()
    }

    /// Whether a removed waiter could have been reached: it is connected, and was told of its place.
    fn passed(&self, now: TrueTime, owner: Owner) -> Passed {
        let end = self.clients.get(&(&owner).into()).map(|process| (*process, &self.ends[*process]));
        let process = end
            .filter(|(_, end)| {
                !end.is_dead && now >= end.hears_from.max(end.up_at) && !self.untold.contains(&owner)
            })
            .map(|(process, _)| process);
        Passed { owner, process }
    }

    fn subscribers_of(&self, process: ProcessId) -> impl Iterator<Item = &Subscriber> {
        self.listeners.iter().filter(move |listener| listener.process == process && listener.is_open)
    }
}
