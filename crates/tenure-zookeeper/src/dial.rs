//! Opens connections: dials the servers in turn, and starts or resumes a session.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::poll_fn;
use tokio::io::{AsyncReadExt, ReadBuf};

use super::jute::Reader;
use super::messages::{ConnectRequest, code, fixed};
use super::url::ZooKeeperTarget;
use tenure_core::net::{Address, DialAttempt, Stream, by, dial, encrypt};
use tenure_core::runtime::Runtime;
use tenure_core::store::{Failure, FullWarning};

/// Timeout until a new connection is usable.
const DIAL: Duration = Duration::from_secs(2);
/// How long a full server may take to close a connection.
const CLOSES: Duration = Duration::from_millis(500);
/// Maximum message length; a longer one means a different protocol.
const LONGEST: usize = 256 * 1024 * 1024;

/// A connection that exchanges length-prefixed messages.
pub(super) struct Wire {
    stream: Pin<Box<dyn Stream>>,
    received: Vec<u8>,
    unsent: Vec<u8>,
    /// Number of bytes of `unsent` already sent.
    sent: usize,
}

impl Wire {
    fn new(stream: Pin<Box<dyn Stream>>) -> Self {
        Self { stream, received: Vec::new(), unsent: Vec::new(), sent: 0 }
    }

    /// Queues a message made of these parts.
    pub(super) fn push(&mut self, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.unsent.extend(i32::try_from(length).unwrap_or(i32::MAX).to_be_bytes());
        parts.iter().for_each(|part| self.unsent.extend(*part));
    }

    /// Sends what is queued.
    pub(super) fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.unsent.len() {
            let sent = ready!(self.stream.as_mut().poll_write(context, &self.unsent[self.sent..]))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += sent;
        }
        (self.sent, self.unsent) = (0, std::mem::take(&mut self.unsent));
        self.unsent.clear();
        self.stream.as_mut().poll_flush(context)
    }

    /// The next message.
    pub(super) fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
        loop {
            if let Some(length) = Reader(&self.received).int() {
                let length = usize::try_from(length).ok().filter(|length| *length <= LONGEST);
                let length =
                    length.ok_or_else(|| io::Error::other("it does not speak the ZooKeeper protocol"))?;
                if self.received.len() >= 4 + length {
                    let rest = self.received.split_off(4 + length);
                    let mut message = std::mem::replace(&mut self.received, rest);
                    message.drain(..4);
                    return Poll::Ready(Ok(message));
                }
            }
            let mut piece = [0; 16 * 1024];
            let mut into = ReadBuf::new(&mut piece);
            ready!(self.stream.as_mut().poll_read(context, &mut into))?;
            if into.filled().is_empty() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.received.extend(into.filled());
        }
    }

    async fn exchange(&mut self, message: &[u8]) -> io::Result<Vec<u8>> {
        self.push(&[message]);
        poll_fn(|context| self.poll_sent(context)).await?;
        poll_fn(|context| self.poll_received(context)).await
    }
}

/// Opens connections to the servers of one URL.
pub(super) struct Dialer {
    pub(super) target: ZooKeeperTarget,
    pub(super) runtime: Arc<dyn Runtime>,
    full: FullWarning,
    /// Index of the server to dial first.
    first: AtomicUsize,
}

impl Dialer {
    pub(super) fn new(target: ZooKeeperTarget, runtime: Arc<dyn Runtime>) -> Self {
        // A random start spreads clients over the servers.
        let first = AtomicUsize::new(runtime.random() as usize % target.addresses.len());
        Self { target, runtime, full: FullWarning::default(), first }
    }

    /// The server that is dialled first: the one connected to last.
    pub(super) fn first(&self) -> usize {
        self.first.load(Ordering::Relaxed)
    }

    /// Makes the next dial start with another server than this one.
    pub(super) fn use_next_server(&self, from: usize) {
        let next = (from + 1) % self.target.addresses.len();
        let _ = self.first.compare_exchange(from, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Resumes or starts the session on the first server that accepts it. Returns the connection, the session
    /// and the server's index, or `None` if the session has expired.
    pub(super) async fn dial(
        &self,
        session: &ConnectRequest,
    ) -> Result<Option<(Wire, ConnectRequest, usize)>, Failure> {
        let (count, first) = (self.target.addresses.len(), self.first());
        let mut said = Vec::new();
        for at in (first..first + count).map(|at| at % count) {
            let address = &self.target.addresses[at];
            // The next dial begins behind it, also if this one is dropped: a silent server outlasts a request.
            self.first.store((at + 1) % count, Ordering::Relaxed);
            let until = self.runtime.now() + DIAL;
            let dialled = by(&*self.runtime, until, self.open(address, session)).await;
            match dialled.unwrap_or_else(|| Err(not_sent(address, &"it did not answer in time"))) {
                Ok((_, session)) if session.life_ms <= 0 => return Ok(None),
                Ok((wire, session)) => {
                    self.first.store(at, Ordering::Relaxed);
                    return Ok(Some((wire, session, at)));
                }
                // The other servers would refuse too.
                Err(failure @ Failure::Refused(_)) => return Err(failure),
                Err(failure) => said.push(failure),
            }
        }
        if let Some(full) = said.iter().find(|failure| failure.is_full()) {
            self.full.note(self.target.shown(), full);
            return Err(full.clone());
        }
        let causes: Vec<String> = said.iter().map(|failure| failure.why().to_string()).collect();
        Err(Failure::NotSent(Failure::cause(causes.join("; "))))
    }

    async fn open(
        &self,
        address: &Address,
        session: &ConnectRequest,
    ) -> Result<(Wire, ConnectRequest), Failure> {
        let (stream, attempt) = self.connect(address).await?;
        let begun = match self.begin(address, session, stream).await {
            // A session that is resumed must not lose the time.
            Err(Failure::NotSent(_)) if session.id == 0 => {
                let (mut stream, again) = self.connect(address).await?;
                self.outlast(address, &mut stream).await?;
                again.succeeded();
                self.begin(address, session, stream).await
            }
            begun => begun,
        }?;
        attempt.succeeded();
        Ok(begun)
    }

    async fn connect(&self, address: &Address) -> Result<(Pin<Box<dyn Stream>>, DialAttempt), Failure> {
        match dial(address, &*self.runtime).await {
            Ok(dialled) => Ok((dialled.stream, dialled.attempt)),
            // The connection was accepted and closed.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) =>
            {
                Err(closed_at_once(address))
            }
            Err(error) => Err(not_sent(address, &error)),
        }
    }

    /// Fails if the server closes a connection before the first request. It does so at its limit of clients.
    /// Without a majority it closes connections too, but only when a session is requested.
    async fn outlast(&self, address: &Address, stream: &mut Pin<Box<dyn Stream>>) -> Result<(), Failure> {
        let until = self.runtime.now() + CLOSES;
        match by(&*self.runtime, until, stream.read_u8()).await {
            None => Ok(()),
            Some(_) => Err(closed_at_once(address)),
        }
    }

    async fn begin(
        &self,
        address: &Address,
        session: &ConnectRequest,
        stream: Pin<Box<dyn Stream>>,
    ) -> Result<(Wire, ConnectRequest), Failure> {
        let mut wire = Wire::new(match &self.target.tls {
            Some(tls) => encrypt(stream, address.host(), tls, "zookeeper://").await?.stream,
            None => stream,
        });
        let answer = wire.exchange(&session.connect()).await.map_err(|error| {
            let hint = match error.kind() {
                // A server that requires a client certificate rejects its absence only after the client has
                // finished the handshake.
                _ if self.target.tls.as_ref().is_some_and(|files| files.identity.is_none()) => {
                    let hint = "it may require a client certificate (cert=FILE and key=FILE in the URL)";
                    return not_sent(address, &format!("{error}; {hint}"));
                }
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                    "it closed the connection: is a majority of the ensemble running?"
                }
                _ => return not_sent(address, &error),
            };
            not_sent(address, &hint)
        })?;
        let connected = ConnectRequest::connected(&answer);
        let connected =
            connected.ok_or_else(|| not_sent(address, &"it does not speak the ZooKeeper protocol"))?;
        let login = &self.target.login;
        if let (Some(user), true) = (&login.user, connected.life_ms > 0) {
            let password = login.password()?.unwrap_or_default();
            let answer = wire.exchange(&fixed::auth(user, &password)).await;
            let answer = answer.map_err(|error| not_sent(address, &error))?;
            let mut read = Reader(&answer);
            let (_number, _change) = (read.int(), read.long());
            if read.int() != Some(code::OK) {
                let what = format!("{address}: it does not accept digest logins");
                return Err(Failure::Refused(Failure::cause(what)));
            }
        }
        Ok((wire, connected))
    }
}

fn not_sent(address: &Address, what: &dyn std::fmt::Display) -> Failure {
    Failure::NotSent(Failure::cause(format!("{address}: {what}")))
}

fn closed_at_once(address: &Address) -> Failure {
    Failure::full(format!(
        "{address} closes connections at once (maxClientCnxns limits the clients of a host)"
    ))
}
