//! The proxy's thread: one loop over all sockets.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use super::pair::{Fate, Pair};
use super::{Fault, Traffic};
use crate::servers::port::Port;

/// A call of the test, carried out between two rounds.
pub(super) type Order = Box<dyn FnOnce(&mut Relay) + Send>;

pub(super) struct Relay {
    port: Port,
    server: SocketAddr,
    /// `None` while connections are refused.
    listener: Option<TcpListener>,
    /// Applies to each connection that `faults` does not name.
    fault: Fault,
    faults: BTreeMap<usize, Fault>,
    pairs: Vec<Pair>,
    /// By ordinal minus one; closed connections stay.
    traffic: Vec<Traffic>,
    ended: bool,
}

impl Relay {
    pub(super) fn new(port: Port, listener: TcpListener, server: SocketAddr) -> Self {
        listener.set_nonblocking(true).expect("a listener takes any mode");
        let (pairs, traffic) = (Vec::new(), Vec::new());
        let listener = Some(listener);
        Self {
            port,
            server,
            listener,
            fault: Fault::None,
            faults: BTreeMap::new(),
            pairs,
            traffic,
            ended: false,
        }
    }

    pub(super) fn run(mut self, orders: &Receiver<Order>, mut woken: &UnixStream) {
        woken.set_nonblocking(true).expect("a socket takes any mode");
        loop {
            // Bytes sent before an order have arrived by now, and pass before the order is carried out.
            let ordered: Vec<Order> = orders.try_iter().collect();
            self.accept();
            self.receive();
            let now = Instant::now();
            self.deliver(now);
            if ordered.is_empty() {
                self.wait(woken, now);
                let _ = woken.read(&mut [0; 64]); // ahead of the orders: each is sent before its wake-up
            }
            for order in ordered {
                order(&mut self);
            }
            if self.ended {
                self.refuse();
                return self.reset(None);
            }
        }
    }

    pub(super) fn set(&mut self, fault: Fault) {
        self.fault = fault;
        self.faults.clear();
        self.pairs.iter_mut().for_each(Pair::count_anew);
        if fault == Fault::Refuse {
            self.refuse();
        } else if self.listener.is_none() {
            let listener =
                TcpListener::bind(self.port.address()).expect("no other client takes a claimed port");
            listener.set_nonblocking(true).expect("a listener takes any mode");
            self.listener = Some(listener);
        }
    }

    pub(super) fn set_on(&mut self, ordinal: usize, fault: Fault) {
        self.faults.insert(ordinal, fault);
        self.pairs.iter_mut().filter(|pair| pair.ordinal == ordinal).for_each(Pair::count_anew);
    }

    pub(super) fn reset(&mut self, ordinal: Option<usize>) {
        for pair in self.pairs.extract_if(.., |pair| ordinal.is_none_or(|ordinal| pair.ordinal == ordinal)) {
            self.traffic[pair.ordinal - 1].open = false;
            pair.reset();
        }
    }

    /// A shutdown takes effect at once; a close alone may not, see [`Pair::reset`].
    fn refuse(&mut self) {
        if let Some(listener) = self.listener.take() {
            let _ = shutdown(&listener, Shutdown::Both);
        }
    }

    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    pub(super) fn traffic(&self) -> &[Traffic] {
        &self.traffic
    }

    fn fault(&self, ordinal: usize) -> Fault {
        self.faults.get(&ordinal).copied().unwrap_or(self.fault)
    }

    /// Passes on what is due.
    fn deliver(&mut self, now: Instant) {
        for mut pair in std::mem::take(&mut self.pairs) {
            let fate = pair.deliver(self.fault(pair.ordinal), self.server, now);
            self.traffic[pair.ordinal - 1].open = fate == Fate::Goes;
            match fate {
                Fate::Goes | Fate::Drains => self.pairs.push(pair),
                Fate::Ends => {}
                Fate::Resets => pair.reset(),
            }
        }
    }

    /// Sleeps until a socket or an order is ready, or until a piece that was not due at `now` is.
    fn wait(&self, woken: &UnixStream, now: Instant) {
        let mut sockets = vec![PollFd::new(woken, PollFlags::IN)];
        sockets.extend(self.listener.as_ref().map(|listener| PollFd::new(listener, PollFlags::IN)));
        for (socket, reads, writes) in self.pairs.iter().flat_map(Pair::wants) {
            let mut wanted = PollFlags::empty();
            wanted.set(PollFlags::IN, reads);
            wanted.set(PollFlags::OUT, writes);
            if !wanted.is_empty() {
                sockets.push(PollFd::new(socket, wanted)); // a socket without a request would still report its end, for ever
            }
        }
        let next = self.pairs.iter().flat_map(Pair::due).filter(|due| *due > now).min();
        let sleep = next.map(|due| due.saturating_duration_since(Instant::now()));
        let sleep =
            sleep.map(|sleep: Duration| Timespec::try_from(sleep).expect("a delay shorter than a life"));
        match poll(&mut sockets, sleep.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("poll: {error}"),
        }
    }

    fn accept(&mut self) {
        while let Some(Ok((client, _))) = self.listener.as_ref().map(TcpListener::accept) {
            let pair = Pair::new(self.traffic.len() + 1, client);
            let open = self.fault(pair.ordinal) != Fault::Refuse;
            self.traffic.push(Traffic { open, ..Traffic::default() });
            if open { self.pairs.push(pair) } else { pair.reset() }
        }
    }

    /// Reads what has arrived.
    fn receive(&mut self) {
        let now = Instant::now();
        for pair in &mut self.pairs {
            let fault = self.faults.get(&pair.ordinal).copied().unwrap_or(self.fault);
            let due = if let Fault::Delay(delay) = fault { now + delay } else { now };
            pair.receive(due, &mut self.traffic[pair.ordinal - 1]);
        }
    }
}
