//! A network that fails on demand: a TCP proxy on loopback in front of one server.
//!
//! One thread owns all sockets and moves all bytes. It carries out each call of the test between
//! two moves: what came in before has passed under the old fault, and what comes after the call has
//! returned meets the new one.
//!
//! ```no_run
//! use std::time::Duration;
//! use tenure_testkit::proxy::{Fault, Proxy, Direction};
//! # let server = tenure_testkit::servers::Server::start();
//! let proxy = Proxy::start(server.address()); // clients connect to proxy.url()
//! proxy.set(Fault::Delay(Duration::from_millis(20)));
//! proxy.set_on(2, Fault::CutAfterBytes(Direction::ToServer, 17)); // the second connection only
//! proxy.reset();
//! ```
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "real sockets, a real thread and real time"
)]

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::servers::port::Port;

mod pair;
mod relay;
pub mod reply;

use relay::{Order, Relay};

/// What the network does to a connection. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Bytes pass at once.
    #[default]
    None,
    /// Bytes pass after this time, each way.
    Delay(Duration),
    /// Nothing passes, not even an end. What is sent is taken, and passes, late, when the fault is
    /// lifted. New connections are accepted and hear nothing.
    BlackHole,
    /// The same, one way only.
    Hold(Direction),
    /// New connections are refused; the others pass.
    Refuse,
    /// A connection ends, for both sides, when so many bytes have passed this way since the fault
    /// was set; with 0 instead of the first one. The server executes what it got in whole, and no
    /// reply to it passes.
    CutAfterBytes(Direction, u64),
    /// The same after so many replies; with 0 instead of the first one. Pushes are none, but pass.
    CutAfterReplies(u64),
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Requests.
    ToServer,
    /// Replies.
    ToClient,
}

/// What came in over one connection, whether or not it passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The bytes that the client sent.
    pub bytes_to_server: u64,
    /// In how many pieces they came: writes, unless two came at once.
    pub writes_to_server: u64,
    /// The bytes that the server sent.
    pub bytes_to_client: u64,
    /// In how many pieces they came.
    pub writes_to_client: u64,
    /// Whether the connection still is.
    pub open: bool,
}

/// A proxy. Dropping it resets all connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    orders: Sender<Order>,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A proxy on a free port in front of this address. While no client listens there, connections
    /// are accepted and reset at once.
    ///
    /// # Panics
    /// If no port can be bound.
    pub fn start(server: SocketAddr) -> Self {
        let (port, listener) = (0..20)
            .find_map(|_| {
                let port = Port::claim();
                TcpListener::bind(port.address()).ok().map(|listener| (port, listener))
            })
            .expect("one of twenty free ports can be bound");
        let address = port.address();
        let relay = Relay::new(port, listener, server);
        let (wake, woken) = UnixStream::pair().expect("a pair of sockets");
        let (orders, received) = channel();
        let thread = std::thread::spawn(move || relay.run(&received, &woken));
        Self { address, orders, wake, thread: Some(thread) }
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// From now on this happens to all connections, those that come later too.
    pub fn set(&self, fault: Fault) {
        self.ask(move |relay| relay.set(fault));
    }

    /// From now on this happens to one connection instead, also if it has not come yet. Connections
    /// are counted from 1, as they are accepted.
    pub fn set_on(&self, connection: usize, fault: Fault) {
        self.ask(move |relay| relay.set_on(connection, fault));
    }

    /// Ends all connections with RST for both sides; what is on its way is lost.
    pub fn reset(&self) {
        self.ask(|relay| relay.reset(None));
    }

    /// The same for one connection.
    pub fn reset_on(&self, connection: usize) {
        self.ask(move |relay| relay.reset(Some(connection)));
    }

    /// What came in so far, by connection: the first one at 0.
    pub fn traffic(&self) -> Vec<Traffic> {
        self.ask(|relay| relay.traffic().to_vec())
    }

    /// How many connections were accepted so far.
    pub fn connections(&self) -> usize {
        self.ask(|relay| relay.traffic().len())
    }

    fn ask<T: Send + 'static>(&self, order: impl FnOnce(&mut Relay) -> T + Send + 'static) -> T {
        let (reply, answer) = channel();
        let order: Order = Box::new(move |relay| drop(reply.send(order(relay))));
        self.orders.send(order).expect("the proxy's thread runs until the drop");
        // It may have come by, done this as its last order, and ended before it is woken.
        let _ = (&self.wake).write_all(b"!");
        answer.recv().expect("the proxy's thread did not panic")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let thread = self.thread.take().expect("dropped once");
        if !thread.is_finished() {
            self.ask(Relay::end);
        }
        let _ = thread.join();
    }
}
