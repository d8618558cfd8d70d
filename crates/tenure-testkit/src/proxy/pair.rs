//! One connection through the proxy: two sockets, two directions, and what a fault lets pass.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::connect_unspec;

use super::reply::{self, NotResp};
use super::{Direction, Fault, Traffic};

pub(super) struct Pair {
    pub(super) ordinal: usize,
    /// `None` once cut: the server's further bytes are dropped.
    client: Option<TcpStream>,
    /// `None` until something may pass to the server.
    server: Option<TcpStream>,
    up: Flow,
    down: Flow,
}

/// The state of a pair after a round.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Goes,
    /// Cut, but the server has not closed its side yet.
    Drains,
    Ends,
    Resets,
}

impl Pair {
    pub(super) fn new(ordinal: usize, client: TcpStream) -> Self {
        prepare(&client);
        Self {
            ordinal,
            client: Some(client),
            server: None,
            up: Flow::new(Direction::ToServer),
            down: Flow::new(Direction::ToClient),
        }
    }

    /// Resets the counts when a fault is set.
    pub(super) fn count_anew(&mut self) {
        for direction in [&mut self.up, &mut self.down] {
            (direction.bytes, direction.replies) = (0, 0);
        }
    }

    /// Reads what has arrived; it may pass at `due`.
    pub(super) fn receive(&mut self, due: Instant, traffic: &mut Traffic) {
        if let Some(bytes) = self.client.as_ref().and_then(|client| self.up.receive(client, due)) {
            traffic.bytes_to_server += bytes as u64;
            traffic.writes_to_server += 1;
        }
        if let Some(bytes) = self.server.as_ref().and_then(|server| self.down.receive(server, due)) {
            traffic.bytes_to_client += bytes as u64;
            traffic.writes_to_client += 1;
        }
    }

    /// Passes on what is due and what the fault permits.
    pub(super) fn deliver(&mut self, fault: Fault, address: SocketAddr, now: Instant) -> Fate {
        if self.server.is_none() && !holds(fault, Direction::ToServer) {
            let Ok(server) = TcpStream::connect_timeout(&address, Duration::from_secs(1)) else {
                return Fate::Resets;
            };
            prepare(&server);
            self.server = Some(server);
        }
        if let (Some(client), Some(server)) = (&self.client, &self.server) {
            let up = self.up.deliver(server, fault, now);
            let down = if up == Step::Waits { self.down.deliver(client, fault, now) } else { up };
            match down {
                Step::Waits => {}
                Step::Broken => return Fate::Resets,
                Step::Cut => self.cut(),
            }
        }
        match self.client {
            Some(_) if self.up.ended && self.down.ended => Fate::Ends,
            Some(_) => Fate::Goes,
            None if self.down.closed => Fate::Ends,
            None => {
                self.down.waiting.clear();
                Fate::Drains
            }
        }
    }

    /// Closes the client's side at once. The server's side stays open until the server closes it: closing it
    /// with unread replies would send RST, which could cost the server the last bytes that passed.
    fn cut(&mut self) {
        if let Some(mut client) = self.client.take() {
            while client.read(&mut [0; 4096]).is_ok_and(|len| len > 0) {} // for the same reason
            let _ = client.shutdown(Shutdown::Both);
        }
        if let Some(server) = &self.server {
            let _ = server.shutdown(Shutdown::Write);
        }
    }

    /// Resets both sides at once. On Linux, connecting a connected socket to AF_UNSPEC sends RST. A close
    /// with zero linger would be delayed by a child of this process that is between fork and exec and still
    /// holds a copy of the socket.
    pub(super) fn reset(self) {
        for socket in self.client.iter().chain(&self.server) {
            let _ = connect_unspec(socket); // it may have ended by itself
        }
    }

    /// The sockets, and whether to poll each for reading and writing.
    pub(super) fn wants(&self) -> impl Iterator<Item = (&TcpStream, bool, bool)> {
        let client = self.client.as_ref().map(|client| (client, !self.up.closed, self.down.full));
        let server = self.server.as_ref().map(|server| (server, !self.down.closed, self.up.full));
        client.into_iter().chain(server)
    }

    /// When the next pieces are due.
    pub(super) fn due(&self) -> impl Iterator<Item = Instant> {
        [&self.up, &self.down].into_iter().filter_map(|direction| Some(direction.waiting.front()?.0))
    }
}

fn prepare(socket: &TcpStream) {
    socket.set_nonblocking(true).and_then(|()| socket.set_nodelay(true)).expect("a socket takes any mode");
}

fn holds(fault: Fault, direction: Direction) -> bool {
    fault == Fault::BlackHole || fault == Fault::Hold(direction)
}

/// One direction of a connection: pieces that arrived and have not passed.
struct Flow {
    direction: Direction,
    waiting: VecDeque<(Instant, Piece)>,
    /// Nothing more arrives.
    closed: bool,
    ended: bool,
    /// The receiver currently accepts no more bytes.
    full: bool,
    bytes: u64,
    /// Complete replies passed since the fault was set.
    replies: u64,
    /// The passed part of an incomplete reply; `None` if this is not RESP.
    reply: Option<Vec<u8>>,
}

enum Piece {
    Bytes(Vec<u8>),
    End,
    Reset,
}

#[derive(PartialEq, Eq)]
enum Step {
    Waits,
    Cut,
    Broken,
}

impl Flow {
    fn new(direction: Direction) -> Self {
        let reply = (direction == Direction::ToClient).then(Vec::new);
        let waiting = VecDeque::new();
        Self { direction, waiting, closed: false, ended: false, full: false, bytes: 0, replies: 0, reply }
    }

    /// Reads one piece if there is one, and returns its length in bytes.
    fn receive(&mut self, mut from: &TcpStream, due: Instant) -> Option<usize> {
        if self.closed {
            return None;
        }
        let mut buffer = [0; 16 * 1024];
        let piece = match from.read(&mut buffer) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return None;
            }
            Err(_) => Piece::Reset,
            Ok(0) => Piece::End,
            Ok(len) => Piece::Bytes(buffer[..len].to_vec()),
        };
        let len = if let Piece::Bytes(bytes) = &piece { Some(bytes.len()) } else { None };
        self.closed = len.is_none();
        self.waiting.push_back((due, piece));
        len
    }

    fn deliver(&mut self, mut to: &TcpStream, fault: Fault, now: Instant) -> Step {
        self.full = false;
        if holds(fault, self.direction) {
            return Step::Waits;
        }
        while self.waiting.front().is_some_and(|(due, _)| *due <= now) {
            let Some((due, piece)) = self.waiting.pop_front() else { break };
            let mut bytes = match piece {
                Piece::Bytes(bytes) => bytes,
                Piece::Reset => return Step::Broken,
                Piece::End => {
                    self.ended = true;
                    let _ = to.shutdown(Shutdown::Write); // it may have ended by itself
                    continue;
                }
            };
            let space = self.space(&bytes, fault);
            let len = match to.write(&bytes[..bytes.len().min(space)]) {
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.full = true;
                    self.waiting.push_front((due, Piece::Bytes(bytes)));
                    return Step::Waits;
                }
                Err(_) => return Step::Broken,
            };
            self.pass(&bytes[..len]);
            if len == space {
                return Step::Cut;
            }
            bytes.drain(..len);
            if !bytes.is_empty() {
                self.waiting.push_front((due, Piece::Bytes(bytes)));
            }
        }
        Step::Waits
    }

    /// Number of the next bytes that may pass before the connection is cut.
    fn space(&self, bytes: &[u8], fault: Fault) -> usize {
        match fault {
            Fault::CutAfterBytes(direction, count) if direction == self.direction => {
                usize::try_from(count.saturating_sub(self.bytes)).expect("a count that fits into memory")
            }
            Fault::CutAfterReplies(count) => self.room_for(count.saturating_sub(self.replies), bytes),
            _ => usize::MAX,
        }
    }

    /// Number of the next bytes that complete `count` replies.
    fn room_for(&self, count: u64, bytes: &[u8]) -> usize {
        let Some(begun) = &self.reply else { return usize::MAX };
        let stream = [begun, bytes].concat();
        let (mut end, mut replies) = (0, 0);
        while replies < count {
            let Ok(Some(length)) = reply::length(&stream[end..]) else { return usize::MAX };
            replies += u64::from(!reply::is_push(&stream[end..]));
            end += length;
        }
        end.saturating_sub(begun.len())
    }

    /// Counts bytes that have passed.
    fn pass(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let Some(reply) = &mut self.reply else { return };
        reply.extend(bytes);
        loop {
            match reply::length(reply) {
                Ok(None) => return,
                Ok(Some(length)) => {
                    self.replies += u64::from(!reply::is_push(reply));
                    reply.drain(..length);
                }
                Err(NotResp) => return self.reply = None,
            }
        }
    }
}
