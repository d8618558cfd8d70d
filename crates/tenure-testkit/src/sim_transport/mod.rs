//! The fake Redis server behind a simulated network, in virtual time. The network splits, merges,
//! delays and cuts at any byte, as the schedule says.
//!
//! Clients reach the server through [`SimTransport`], which is a [`Dial`].

mod stream;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use futures_util::future::{BoxFuture, FutureExt};
use tenure::internals::store::redis::{Address, Dial, Dialled};

pub use crate::fake_redis::server::{Executed, Look, Server};
use crate::fake_redis::server::{Guarded, Session, Spoiler};
use crate::sim::clock::{MS, TrueTime};
use crate::sim::executor::Sim;
use crate::sim::scripts::Scripts;

/// The network and the server. Clones are the same ones.
#[derive(Clone)]
pub struct SimTransport(Arc<Shared>);

struct Shared {
    sim: Sim,
    /// Pieces and delays are drawn; otherwise each write arrives as it is, a little later.
    shaken: bool,
    inner: Mutex<Inner>,
}

struct Inner {
    server: Server,
    connections: Vec<Connection>,
    cuts: BTreeMap<usize, Cut>,
    spoiler: Option<(usize, Spoiler)>,
    /// Nothing passes.
    swallows: bool,
    is_direct: bool,
}

/// How a connection fails.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// The direction whose bytes are counted.
    pub direction: Direction,
    /// After so many of them, counted from the first of the connection.
    pub after: u64,
    /// What becomes of it.
    pub then: Then,
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Requests.
    ToServer,
    /// Replies.
    ToClient,
}

/// What becomes of a connection that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Both ends are told.
    Reset,
    /// No client is told, and nothing passes any more either way.
    Silence,
    /// No client is told, and what is held back passes after this time.
    Late(TrueTime),
}

struct Connection {
    session: Session,
    /// What has arrived for the client to read.
    arrived: Vec<u8>,
    /// The client reads the end, or a reset, once it has read what has arrived.
    end: Option<io::ErrorKind>,
    reader: Option<Waker>,
    passed: [u64; 2],
    /// When the last piece arrives: nothing overtakes.
    due: [TrueTime; 2],
    state: Line,
    held: Vec<(Direction, Vec<u8>)>,
    /// The client is gone; the server hears of it behind the bytes that are on their way.
    left: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    Open,
    Held,
    Closed,
}

impl SimTransport {
    /// A server that knows no script yet, and a network that is as good as `shaken` says.
    pub fn new(sim: &Sim, shaken: bool) -> Self {
        let inner = Inner {
            server: Server::default(),
            connections: Vec::new(),
            cuts: BTreeMap::new(),
            spoiler: None,
            swallows: false,
            is_direct: false,
        };
        Self(Arc::new(Shared { sim: sim.clone(), shaken, inner: Mutex::new(inner) }))
    }

    /// The server sees each end as it sees itself, as where no proxy is in between.
    #[must_use]
    pub fn direct(self) -> Self {
        self.inner().is_direct = true;
        self
    }

    /// The server has `DELIFEQ`, as Valkey 9.
    #[must_use]
    pub fn with_delifeq(self) -> Self {
        self.inner().server.has_delifeq = true;
        self
    }

    /// Makes a connection fail; they are counted from 0.
    pub fn cut(&self, connection: usize, cut: Cut) {
        self.inner().cuts.insert(connection, cut);
    }

    /// Says something else in place of one reply of a script; they are counted from 0.
    pub fn spoil(&self, reply: usize, with: impl Fn(Vec<u8>) -> Vec<u8> + Send + 'static) {
        self.inner().spoiler = Some((reply, Box::new(with)));
    }

    /// The server answers with these bytes, where there are any, instead of its answer: any
    /// server can be played so.
    pub fn answer(&self, with: impl FnMut(&[&str]) -> Option<String> + Send + 'static) {
        self.inner().server.player = Some(Box::new(with));
    }

    /// Does this before each such command.
    pub fn before(&self, verb: &'static str, what: impl FnMut(&mut Server) + Send + 'static) {
        self.inner().server.before = Some((verb, Box::new(what)));
    }

    /// The server's counter of tokens is lost.
    pub fn lose_counter(&self) {
        self.inner().server.lose_counter();
    }

    /// The server refuses to end connections, as one does to a user without the right to.
    pub fn let_nobody_kill(&self) {
        self.inner().server.no_kill = true;
    }

    /// The server lets only this user in, and all requests have to be about this database.
    #[must_use]
    pub fn guarded(self, user: &str, password: &str, database: u32) -> Self {
        let (user, password) = (user.to_owned(), password.to_owned());
        self.inner().server.guarded = Some(Guarded { user, password, database });
        self
    }

    /// The scripts themselves run beside the machine in Rust and have to say the same;
    /// [`SimTransport::looks`] then shows what they keep. One such server at a time on a thread.
    pub fn run_scripts(&self) {
        self.inner().server.scripts = Some(Scripts::new());
    }

    /// What the server kept after each script and each failure of a connection.
    pub fn looks(&self) -> Vec<Look> {
        self.inner().server.looks.clone()
    }

    /// From now on nothing passes on any connection, and no client is told.
    pub fn swallow(&self) {
        let mut inner = self.inner();
        inner.swallows = true;
        for line in inner.connections.iter_mut().filter(|line| line.state == Line::Open) {
            line.state = Line::Held;
        }
    }

    /// What was held back goes on its way, and so does what comes.
    pub fn let_pass(&self) {
        let connections = {
            let mut inner = self.inner();
            inner.swallows = false;
            inner.connections.len()
        };
        (0..connections).for_each(|id| self.release(id));
    }

    /// What was held back is lost, with all connections of before; the next are as good as ever.
    pub fn lose(&self) {
        let connections = {
            let mut inner = self.inner();
            inner.swallows = false;
            inner.connections.iter_mut().for_each(|line| line.held.clear());
            inner.connections.len()
        };
        (0..connections).for_each(|id| self.reset(id));
    }

    /// What was carried out, in order.
    pub fn executed(&self) -> Vec<Executed> {
        self.inner().server.executed.clone()
    }

    /// How many connections there were.
    pub fn connections(&self) -> usize {
        self.inner().connections.len()
    }

    /// Bytes that passed over a connection: to the server, and to the client.
    pub fn passed(&self, connection: usize) -> [u64; 2] {
        self.inner().connections[connection].passed
    }

    /// The holder of a lock, as it is written at its key.
    pub fn holder(&self, key: &str) -> Option<String> {
        let now = self.0.sim.now();
        self.inner().server.holder(key, now)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> usize {
        let mut inner = self.inner();
        let id = inner.connections.len();
        let state = if inner.swallows { Line::Held } else { Line::Open };
        let session = inner.server.session();
        inner.connections.push(Connection {
            session,
            arrived: Vec::new(),
            end: None,
            reader: None,
            passed: [0; 2],
            due: [0; 2],
            state,
            held: Vec::new(),
            left: false,
        });
        id
    }

    /// What the end of a connection calls itself.
    fn local(&self, id: usize) -> Option<String> {
        let inner = self.inner();
        let session = inner.connections[id].session.id;
        inner.is_direct.then(|| format!("127.0.0.1:{session}"))
    }

    /// Sends bytes one way. What is beyond a cut goes the way of the cut.
    fn send(&self, id: usize, direction: Direction, bytes: &[u8]) {
        let cut = self.inner().cuts.get(&id).copied().filter(|cut| cut.direction == direction);
        let passed = self.inner().connections[id].passed[direction as usize];
        let space = cut.map_or(u64::MAX, |cut| cut.after.saturating_sub(passed));
        let fits = bytes.len().min(usize::try_from(space).unwrap_or(usize::MAX));
        let (now, later) = bytes.split_at(fits);
        self.pass(id, direction, now);
        if let (Some(cut), false) = (cut, later.is_empty()) {
            self.fail(id, cut, later);
        }
    }

    fn pass(&self, id: usize, direction: Direction, bytes: &[u8]) {
        let sim = &self.0.sim;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (length, delay) = if self.0.shaken {
                (sim.between(1, rest.len() as u64) as usize, sim.between(MS / 100, 3 * MS))
            } else {
                (rest.len(), MS / 20)
            };
            let (piece, further) = rest.split_at(length);
            rest = further;
            let mut inner = self.inner();
            let line = &mut inner.connections[id];
            match line.state {
                Line::Closed => return,
                Line::Held => {
                    line.held.push((direction, piece.to_vec()));
                    continue;
                }
                Line::Open => {}
            }
            line.passed[direction as usize] += piece.len() as u64;
            let due = line.due[direction as usize].max(sim.now() + delay);
            line.due[direction as usize] = due;
            drop(inner);
            let (wire, piece) = (self.clone(), piece.to_vec());
            sim.at(due, move || wire.arrive(id, direction, &piece));
        }
    }

    fn fail(&self, id: usize, cut: Cut, beyond: &[u8]) {
        let mut inner = self.inner();
        inner.cuts.remove(&id);
        inner.server.look(self.0.sim.now());
        let line = &mut inner.connections[id];
        if line.state != Line::Open {
            return;
        }
        match cut.then {
            Then::Reset => {
                // Behind the bytes before it.
                let due = line.due[cut.direction as usize].max(self.0.sim.now());
                drop(inner);
                let wire = self.clone();
                self.0.sim.at(due, move || wire.reset(id));
            }
            Then::Silence => line.state = Line::Held,
            Then::Late(after) => {
                line.state = Line::Held;
                line.held.push((cut.direction, beyond.to_vec()));
                drop(inner);
                let wire = self.clone();
                self.0.sim.at(self.0.sim.now() + after, move || wire.release(id));
            }
        }
    }

    /// What was held back goes on its way.
    fn release(&self, id: usize) {
        let (held, left) = {
            let mut inner = self.inner();
            let line = &mut inner.connections[id];
            if line.state == Line::Held {
                line.state = Line::Open;
            }
            (std::mem::take(&mut line.held), line.left)
        };
        for (direction, bytes) in held {
            self.pass(id, direction, &bytes);
        }
        if left {
            self.leave(id);
        }
    }

    fn reset(&self, id: usize) {
        let mut inner = self.inner();
        let reader = inner.connections[id].close(Some(io::ErrorKind::ConnectionReset));
        inner.server.look(self.0.sim.now());
        drop(inner);
        reader.into_iter().for_each(Waker::wake);
    }

    /// The client closes its end.
    fn leave(&self, id: usize) {
        let mut inner = self.inner();
        let line = &mut inner.connections[id];
        line.left = true;
        if line.state == Line::Open {
            let due = line.due[Direction::ToServer as usize].max(self.0.sim.now());
            drop(inner);
            let wire = self.clone();
            self.0.sim.at(due, move || drop(wire.inner().connections[id].close(None)));
        }
    }

    /// Bytes have come to their end.
    fn arrive(&self, id: usize, direction: Direction, bytes: &[u8]) {
        let mut inner = self.inner();
        if inner.connections[id].state == Line::Closed {
            return;
        }
        match direction {
            Direction::ToClient => {
                let line = &mut inner.connections[id];
                line.arrived.extend_from_slice(bytes);
                let reader = line.reader.take();
                drop(inner);
                reader.into_iter().for_each(Waker::wake);
            }
            Direction::ToServer => {
                let now = self.0.sim.now();
                let Inner { server, connections, spoiler, .. } = &mut *inner;
                let said = server.hear(&mut connections[id].session, bytes, now, spoiler);
                let mut readers = Vec::new();
                for line in connections.iter_mut().filter(|line| said.killed.contains(&line.session.id)) {
                    readers.extend(line.close(Some(io::ErrorKind::UnexpectedEof)));
                }
                let listeners: Vec<_> = said
                    .published
                    .iter()
                    .flat_map(|(channel, message)| {
                        let heard = |line: &&Connection| line.session.channels.contains(channel);
                        let ids = (0..connections.len()).filter(|id| heard(&&connections[*id]));
                        ids.map(|id| (id, message.clone())).collect::<Vec<_>>()
                    })
                    .collect();
                drop(inner);
                for (id, message) in listeners {
                    self.send(id, Direction::ToClient, &message);
                }
                self.send(id, Direction::ToClient, &said.reply);
                readers.into_iter().for_each(Waker::wake);
            }
        }
    }
}

impl Connection {
    fn close(&mut self, end: Option<io::ErrorKind>) -> Option<Waker> {
        self.state = Line::Closed;
        self.end = self.end.or(end);
        self.reader.take()
    }
}

impl Dial for SimTransport {
    fn dial(&self, _to: &Address) -> BoxFuture<'static, io::Result<Dialled>> {
        let wire = self.clone();
        async move {
            let id = wire.open();
            let local = wire.local(id);
            Ok(Dialled { stream: Box::pin(stream::End { wire, id }), local })
        }
        .boxed()
    }
}

impl fmt::Debug for SimTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimTransport").field("connections", &self.connections()).finish_non_exhaustive()
    }
}
