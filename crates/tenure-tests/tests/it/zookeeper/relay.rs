//! A connection to ZooKeeper that can be cut at each message.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// When a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Before the server has the request.
    Before,
    /// After the server has answered it, before the client receives that.
    After,
}

/// Forwards messages between clients and a server.
pub(crate) struct Relay {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Requests before the cut; below 1, there is none.
    left: AtomicI64,
    is_after: AtomicBool,
    cuts: AtomicU64,
    /// The numbers of the requests, without pings.
    requests: Mutex<Vec<i32>>,
}

impl Relay {
    pub(crate) fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(server)) else { continue };
                forward(client, server, &shared);
            }
        });
        Self { address, state }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts the connection at this request, counted from now.
    pub(crate) fn cut_at(&self, request: i64, cut: Cut) {
        self.state.is_after.store(cut == Cut::After, Ordering::SeqCst);
        self.state.cuts.store(0, Ordering::SeqCst);
        self.state.left.store(request, Ordering::SeqCst);
    }

    pub(crate) fn was_cut(&self) -> bool {
        self.state.cuts.load(Ordering::SeqCst) > 0
    }

    /// The numbers of the requests since the last call, without pings.
    pub(crate) fn requests(&self) -> Vec<i32> {
        std::mem::take(&mut *self.state.requests.lock().expect("no panic"))
    }
}

/// A message with its length prefix.
fn message(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut all = vec![0; 4];
    from.read_exact(&mut all).ok()?;
    let length = i32::from_be_bytes(all[..4].try_into().expect("four bytes"));
    all.resize(4 + usize::try_from(length).ok()?, 0);
    from.read_exact(&mut all[4..]).ok()?;
    Some(all)
}

fn int(message: &[u8], at: usize) -> i32 {
    message.get(at..at + 4).map_or(0, |bytes| i32::from_be_bytes(bytes.try_into().expect("four bytes")))
}

fn forward(client: TcpStream, server: TcpStream, state: &Arc<State>) {
    const PING: i32 = 11;
    let end = |one: &TcpStream, other: &TcpStream| {
        let _ = (one.shutdown(Shutdown::Both), other.shutdown(Shutdown::Both));
    };
    let clone = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
    // The number of the request whose answer is dropped.
    let unheard = Arc::new(Mutex::new(None::<i32>));
    let (mut from, mut to) = (clone(&client), clone(&server));
    let (shared, cut) = (Arc::clone(state), Arc::clone(&unheard));
    thread::spawn(move || {
        let mut is_first = true;
        while let Some(request) = message(&mut from) {
            let number = int(&request, 8);
            if !std::mem::take(&mut is_first) && number != PING {
                shared.requests.lock().expect("no panic").push(number);
                if shared.left.fetch_sub(1, Ordering::SeqCst) == 1 {
                    shared.cuts.fetch_add(1, Ordering::SeqCst);
                    if !shared.is_after.load(Ordering::SeqCst) {
                        break;
                    }
                    *cut.lock().expect("no panic") = Some(int(&request, 4));
                }
            }
            if to.write_all(&request).is_err() {
                break;
            }
        }
        end(&from, &to);
    });
    let (mut from, mut to) = (server, client);
    thread::spawn(move || {
        while let Some(answer) = message(&mut from) {
            let unheard = *unheard.lock().expect("no panic");
            // Earlier requests may still be answered.
            if unheard.is_some_and(|unheard| int(&answer, 4) == unheard) || to.write_all(&answer).is_err() {
                break;
            }
        }
        end(&from, &to);
    });
}
