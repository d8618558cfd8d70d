//! The network between the members of a cluster: each member is reached through a relay. Relays can cut any
//! two members from each other while both keep running and serving clients.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::port::Port;

/// The relays of one cluster.
#[derive(Debug, Default)]
pub(super) struct Between {
    network: Arc<Network>,
    relays: Vec<(usize, Port)>,
}

#[derive(Debug, Default)]
struct Network {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Process id of each member.
    pids: Vec<Option<u32>>,
    /// Disconnected pairs of members, smaller index first.
    cut: BTreeSet<(usize, usize)>,
    is_over: bool,
}

impl Between {
    /// Adds a relay to this member and returns its address.
    pub(super) fn relay(&mut self, to: usize, target: SocketAddr) -> SocketAddr {
        let (port, listener) = Port::listen();
        let address = port.address();
        self.relays.push((to, port));
        let network = Arc::clone(&self.network);
        thread::spawn(move || {
            for client in listener.incoming() {
                if network.lock().is_over {
                    return;
                }
                let Ok(client) = client else { continue };
                let network = Arc::clone(&network);
                thread::spawn(move || network.serve(client, address, to, target));
            }
        });
        address
    }

    /// Sets the process ids of the members.
    pub(super) fn know(&self, pids: Vec<Option<u32>>) {
        self.network.lock().pids = pids;
    }

    /// Blocks traffic between two members in both directions; it is delayed, not dropped.
    pub(super) fn cut(&self, a: usize, b: usize) {
        self.network.lock().cut.insert((a.min(b), a.max(b)));
    }

    pub(super) fn heal(&self) {
        self.network.lock().cut.clear();
        self.network.changed.notify_all();
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        self.network.lock().is_over = true;
        self.network.changed.notify_all();
        for (_, port) in &self.relays {
            // Unblocks the accept loop, so that it ends.
            drop(TcpStream::connect(port.address()));
        }
    }
}

impl Network {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves one connection. Traffic is held while the dialling member is cut from the other one.
    fn serve(self: Arc<Self>, client: TcpStream, relay: SocketAddr, to: usize, target: SocketAddr) {
        let Some(from) = client.peer_addr().ok().and_then(|dialler| self.member(dialler, relay)) else {
            return;
        };
        if !self.passes(from, to) {
            return;
        }
        let Ok(server) = TcpStream::connect(target) else { return };
        let both =
            [&client, &server].map(|socket| socket.set_nodelay(true).and_then(|()| socket.try_clone()));
        let [Ok(from_client), Ok(from_server)] = both else { return };
        let network = Arc::clone(&self);
        let up = thread::spawn(move || network.pass(from_client, server, from, to));
        self.pass(from_server, client, from, to);
        let _ = up.join();
    }

    fn pass(&self, mut from: TcpStream, mut into: TcpStream, a: usize, b: usize) {
        let mut bytes = [0; 16 << 10];
        while let Ok(count) = from.read(&mut bytes) {
            if count == 0 || !self.passes(a, b) || into.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), into.shutdown(Shutdown::Both));
    }

    /// Waits until traffic between the two may pass; `false` once the relays are shut down.
    fn passes(&self, a: usize, b: usize) -> bool {
        let is_cut = |state: &mut State| state.cut.contains(&(a.min(b), a.max(b))) && !state.is_over;
        let state = self.changed.wait_while(self.lock(), is_cut);
        !state.unwrap_or_else(PoisonError::into_inner).is_over
    }

    /// The member that owns the dialling socket.
    fn member(&self, dialler: SocketAddr, relay: SocketAddr) -> Option<usize> {
        let inode = inode(dialler, relay)?;
        let pids = self.lock().pids.clone();
        pids.iter().position(|pid| pid.is_some_and(|pid| has_socket(pid, &inode)))
    }
}

/// The inode of the socket connected from one address to the other, from `/proc/net/tcp`.
fn inode(from: SocketAddr, to: SocketAddr) -> Option<String> {
    let ends = [from, to].map(|end| format!(":{:04X}", end.port()));
    let tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines()).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields.get(1)?.ends_with(&ends[0]) && fields.get(2)?.ends_with(&ends[1]);
        is_it.then(|| fields.get(9).map(|inode| format!("socket:[{inode}]")))?
    })
}

fn has_socket(pid: u32, inode: &str) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    open.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|link| link.to_string_lossy() == inode))
}
