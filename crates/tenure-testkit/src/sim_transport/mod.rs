//! The fake Redis server behind a simulated network, in virtual time. The network splits, merges, delays and
//! cuts at any byte, as the schedule demands.
//!
//! Clients reach the server through [`SimTransport`], which is a [`Dial`].
//!
//! `stream` is the client's end of a connection.

mod stream;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use futures_util::future::{BoxFuture, FutureExt};
use tenure::internals::store::redis::{Address, Dial, DialAttempt, Dialled};

pub use crate::fake_redis::server::{Executed, Look, Server};
use crate::fake_redis::server::{Guarded, Session, Spoiler};
use crate::sim::clock::{MS, TrueTime};
use crate::sim::executor::Sim;
use crate::sim::scripts::Scripts;

/// The network and the server. Clones share both.
#[derive(Clone)]
pub struct SimTransport(Arc<Shared>);

struct Shared {
    sim: Sim,
    /// Split writes and delays are random; otherwise each write arrives unchanged after a short delay.
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

/// A fault of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// The direction whose bytes are counted.
    pub direction: Direction,
    /// Number of bytes after which the fault occurs, from the start of the connection.
    pub after: u64,
    /// What happens to the connection.
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

/// What happens to a connection at its cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Both ends see a reset.
    Reset,
    /// Neither end notices, and nothing passes any more in either direction.
    Silence,
    /// Neither end notices, and held bytes pass after this time.
    Late(TrueTime),
}

struct Connection {
    session: Session,
    /// Bytes that the client can read.
    arrived: Vec<u8>,
    /// The end of stream or reset that the client reads after the arrived bytes.
    end: Option<io::ErrorKind>,
    reader: Option<Waker>,
    passed: [u64; 2],
    /// When the last piece arrives, so that none overtakes another.
    due: [TrueTime; 2],
    state: Line,
    held: Vec<(Direction, Vec<u8>)>,
    /// The client closed its end; the server notices after the bytes still in flight.
    left: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    Open,
    Held,
    Closed,
}

impl SimTransport {
    /// A server with an empty script cache, and a network that is random if `shaken`.
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

    /// Makes the server see each client's own address, as without a proxy.
    #[must_use]
    pub fn direct(self) -> Self {
        self.inner().is_direct = true;
        self
    }

    /// Adds `DELIFEQ`, as on Valkey 9.
    #[must_use]
    pub fn with_delifeq(self) -> Self {
        self.inner().server.has_delifeq = true;
        self
    }

    /// Sets a fault of a connection; they are numbered from 0.
    pub fn cut(&self, connection: usize, cut: Cut) {
        self.inner().cuts.insert(connection, cut);
    }

    /// Replaces one script reply; they are numbered from 0.
    pub fn spoil(&self, reply: usize, with: impl Fn(Vec<u8>) -> Vec<u8> + Send + 'static) {
        self.inner().spoiler = Some((reply, Box::new(with)));
    }

    /// Answers with these bytes in place of the server, unless `with` returns `None`. Simulates any other
    /// server.
    pub fn answer(&self, with: impl FnMut(&[&str]) -> Option<String> + Send + 'static) {
        self.inner().server.player = Some(Box::new(with));
    }

    /// Runs `what` before each command with this name.
    pub fn before(&self, verb: &'static str, what: impl FnMut(&mut Server) + Send + 'static) {
        self.inner().server.before = Some((verb, Box::new(what)));
    }

    /// Resets the server's token counter, as if it were lost.
    pub fn lose_counter(&self) {
        self.inner().server.lose_counter();
    }

    /// Makes the server refuse to kill connections, as for a user without the right.
    pub fn let_nobody_kill(&self) {
        self.inner().server.no_kill = true;
    }

    /// Makes the server accept only this login, and requests for this database only.
    #[must_use]
    pub fn guarded(self, user: &str, password: &str, database: u32) -> Self {
        let (user, password) = (user.to_owned(), password.to_owned());
        self.inner().server.guarded = Some(Guarded { user, password, database });
        self
    }

    /// Runs the real scripts beside their Rust twin, with which they must agree; [`SimTransport::looks`] then
    /// shows what they keep. One such server at a time per thread.
    pub fn run_scripts(&self) {
        self.inner().server.scripts = Some(Scripts::new());
    }

    /// Snapshots of the server after each script and each connection fault.
    pub fn looks(&self) -> Vec<Look> {
        self.inner().server.looks.clone()
    }

    /// Silently holds all traffic from now on.
    pub fn swallow(&self) {
        let mut inner = self.inner();
        inner.swallows = true;
        for line in inner.connections.iter_mut().filter(|line| line.state == Line::Open) {
            line.state = Line::Held;
        }
    }

    /// Releases held traffic and resumes.
    pub fn let_pass(&self) {
        let connections = {
            let mut inner = self.inner();
            inner.swallows = false;
            inner.connections.len()
        };
        (0..connections).for_each(|id| self.release(id));
    }

    /// Drops held traffic and resets all existing connections; new ones work.
    pub fn lose(&self) {
        let connections = {
            let mut inner = self.inner();
            inner.swallows = false;
            inner.connections.iter_mut().for_each(|line| line.held.clear());
            inner.connections.len()
        };
        (0..connections).for_each(|id| self.reset(id));
    }

    /// The requests carried out, in order.
    pub fn executed(&self) -> Vec<Executed> {
        self.inner().server.executed.clone()
    }

    /// Number of connections so far.
    pub fn connections(&self) -> usize {
        self.inner().connections.len()
    }

    /// Bytes that passed over a connection: to the server, and to the client.
    pub fn passed(&self, connection: usize) -> [u64; 2] {
        self.inner().connections[connection].passed
    }

    /// The holder of a lock, as written at its key.
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

    /// The local address of a connection.
    fn local(&self, id: usize) -> Option<String> {
        let inner = self.inner();
        let session = inner.connections[id].session.id;
        inner.is_direct.then(|| format!("127.0.0.1:{session}"))
    }

    /// Sends bytes in one direction; those beyond a cut are subject to it.
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
                // After the bytes before the cut.
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

    /// Sends held bytes on.
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

    /// Closes the client's end.
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

    /// Delivers bytes to their destination.
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
            Ok(Dialled { stream: Box::pin(stream::End { wire, id }), local, attempt: DialAttempt::default() })
        }
        .boxed()
    }
}

impl fmt::Debug for SimTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimTransport").field("connections", &self.connections()).finish_non_exhaustive()
    }
}
