//! A network that fails on demand: a TCP proxy on loopback in front of one server.
//!
//! One thread owns all sockets and moves all bytes. It carries out each call of the test between two rounds:
//! what arrived earlier has passed under the old fault, and what arrives after the call returned is subject
//! to the new one.
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
//!
//! | module | what it holds |
//! |---|---|
//! | `pair` | one connection: two sockets, and what a fault lets pass |
//! | `relay` | the proxy's thread: one loop over all sockets |
//! | [`reply`] | RESP framing, for counting replies |
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "real sockets, a real thread and real time"
)]

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::servers::port::Port;

mod pair;
mod relay;
pub mod reply;

use relay::{Order, Relay};

/// A fault of a connection. None by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Bytes pass at once.
    #[default]
    None,
    /// Bytes pass after this delay, in each direction.
    Delay(Duration),
    /// Nothing passes, not even the end of a stream. Sent bytes are accepted, and pass late, once the fault
    /// is lifted. New connections are accepted and receive nothing.
    BlackHole,
    /// Like `BlackHole`, in one direction only.
    Hold(Direction),
    /// New connections are refused; existing ones work.
    Refuse,
    /// Closes a connection on both sides once this many bytes have passed in this direction since the fault
    /// was set; 0 cuts before the first byte. The server executes requests that arrived completely, but no
    /// reply to them passes.
    CutAfterBytes(Direction, u64),
    /// Closes a connection after this many replies; 0 cuts before the first one. Pushes pass without
    /// counting.
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

/// What arrived on one connection, whether or not it passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes sent by the client.
    pub bytes_to_server: u64,
    /// Number of reads in which they arrived: usually one per write.
    pub writes_to_server: u64,
    /// Bytes sent by the server.
    pub bytes_to_client: u64,
    /// Number of reads in which they arrived.
    pub writes_to_client: u64,
    /// Whether the connection is still open.
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
    /// A proxy on a free port in front of this address. While nothing listens there, connections are accepted
    /// and reset at once.
    ///
    /// # Panics
    /// If no port can be bound.
    pub fn start(server: SocketAddr) -> Self {
        let (port, listener) = Port::listen();
        let address = port.address();
        let relay = Relay::new(port, listener, server);
        let (wake, woken) = UnixStream::pair().expect("a pair of sockets");
        let (orders, received) = channel();
        let thread = std::thread::spawn(move || relay.run(&received, &woken));
        Self { address, orders, wake, thread: Some(thread) }
    }

    /// The address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Sets the fault of all connections, including future ones.
    pub fn set(&self, fault: Fault) {
        self.ask(move |relay| relay.set(fault));
    }

    /// Sets the fault of one connection, which may not exist yet. Connections are numbered from 1, in the
    /// order in which they are accepted.
    pub fn set_on(&self, connection: usize, fault: Fault) {
        self.ask(move |relay| relay.set_on(connection, fault));
    }

    /// Resets all connections with RST on both sides; bytes in flight are lost.
    pub fn reset(&self) {
        self.ask(|relay| relay.reset(None));
    }

    /// Resets one connection.
    pub fn reset_on(&self, connection: usize) {
        self.ask(move |relay| relay.reset(Some(connection)));
    }

    /// Traffic so far, by connection; the first one is at index 0.
    pub fn traffic(&self) -> Vec<Traffic> {
        self.ask(|relay| relay.traffic().to_vec())
    }

    /// Number of connections accepted so far.
    pub fn connections(&self) -> usize {
        self.ask(|relay| relay.traffic().len())
    }

    fn ask<T: Send + 'static>(&self, order: impl FnOnce(&mut Relay) -> T + Send + 'static) -> T {
        let (reply, answer) = channel();
        let order: Order = Box::new(move |relay| drop(reply.send(order(relay))));
        self.orders.send(order).expect("the proxy's thread runs until the drop");
        // The thread may have carried out this order already, as its last one, and ended.
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
