//! Addresses, connections and their supervision, TLS, deadlines and reconnect backoff for stores on servers;
//! [`url`] parses their URLs.

mod lookup;
mod roaming;
mod supervision;
#[cfg(feature = "tls")]
mod tls;
pub mod url;
#[cfg(feature = "tls")]
mod verifier;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::moment::Moment;
use crate::platform::{Keepalive, connect_local};
use crate::runtime::Runtime;
use crate::store::Failure;

use roaming::Roaming;

pub use lookup::DialAttempt;
pub use supervision::{DialStage, SILENCE, Supervision, warn_of_silence};
#[cfg(feature = "tls")]
pub use tls::{encrypt, failure_of};

/// An open byte stream.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A stream that counts its reads, so that a client can tell a silent connection from a slow server.
pub struct Counted {
    stream: Pin<Box<dyn Stream>>,
    // Relaxed: only a count; nothing is published by it.
    heard: Arc<AtomicU64>,
}

impl Counted {
    /// Counts the reads of this stream in `heard`.
    pub fn new(stream: Pin<Box<dyn Stream>>, heard: Arc<AtomicU64>) -> Self {
        Self { stream, heard }
    }
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Counted").field(&self.heard).finish()
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.stream.as_mut().poll_read(context, into);
        if read.is_ready() {
            self.heard.fetch_add(1, Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(context)
    }
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    /// A host name or IP address, without the brackets of IPv6, and a port.
    Tcp(String, u16),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl Address {
    /// The host that a certificate must name; empty for a Unix socket.
    #[must_use]
    pub fn host(&self) -> &str {
        match self {
            Self::Tcp(host, _) => host,
            Self::Unix(_) => "",
        }
    }

    /// Whether a connection to it may cross a network.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        let Self::Tcp(host, _) = self else { return false };
        let is_loopback = |host: IpAddr| host.to_canonical().is_loopback();
        !host.eq_ignore_ascii_case("localhost") && !host.parse().is_ok_and(is_loopback)
    }
}

/// Characters that a path must not have in a URL or a message.
const PATH: &AsciiSet = &CONTROLS.add(b'%').add(b'?');

/// As in a URL.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => utf8_percent_encode(&path.to_string_lossy(), PATH).fmt(f),
        }
    }
}

/// A connection, and the client's address as the server shows it.
pub struct Dialled {
    /// The byte stream.
    pub stream: Pin<Box<dyn Stream>>,
    /// The client's address. A proxy would hide it from the server.
    pub local: Option<String>,
    /// To be told once the connection is of use.
    pub attempt: DialAttempt,
}

impl fmt::Debug for Dialled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialled").field("local", &self.local).finish_non_exhaustive()
    }
}

/// Connects to a server.
///
/// # Errors
/// Those of the system.
pub async fn dial(to: &Address, runtime: &dyn Runtime) -> io::Result<Dialled> {
    dial_with(to, Keepalive::DEFAULT, runtime).await
}

/// As [`dial`], with this keepalive.
///
/// # Errors
/// Those of the system.
pub async fn dial_with(to: &Address, keepalive: Keepalive, runtime: &dyn Runtime) -> io::Result<Dialled> {
    Ok(match to {
        Address::Tcp(host, port) => {
            let stream = first_of(lookup::addresses_of(host, *port).await?.into_iter(), runtime).await?;
            // A request is one small write; Nagle's algorithm would delay it.
            stream.set_nodelay(true)?;
            keepalive.apply(&stream)?;
            let local = stream.local_addr().ok().map(|local| local.to_string());
            let attempt = DialAttempt::at(stream.peer_addr().ok());
            Dialled { stream: Box::pin(Roaming::new(stream)), local, attempt }
        }
        Address::Unix(path) => {
            let stream = connect_local(path).await?;
            let local = path.to_str().map(|path| format!("{path}:0"));
            Dialled { stream: Box::pin(Roaming::new(stream)), local, attempt: DialAttempt::default() }
        }
    })
}

/// Delay before the next address of a host is tried in parallel (RFC 8305, section 5).
const HEAD_START: Duration = Duration::from_millis(250);

/// Connects to the first address that answers, so that one address that drops packets does not block the
/// rest.
async fn first_of(
    mut addresses: impl Iterator<Item = SocketAddr>,
    runtime: &dyn Runtime,
) -> io::Result<TcpStream> {
    let mut tries = FuturesUnordered::new();
    let mut refused = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        tries.extend(addresses.next().map(TcpStream::connect));
        if tries.is_empty() {
            return Err(refused);
        }
        match select(tries.next(), runtime.sleep_until(runtime.now() + HEAD_START)).await {
            Either::Left((Some(Ok(stream)), _)) => return Ok(stream),
            Either::Left((Some(Err(error)), _)) => refused = error,
            Either::Left((None, _)) | Either::Right(_) => {}
        }
    }
}

/// TLS on a connection. Its files are read for each new connection, so that a renewed certificate needs no restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// How far the server is checked.
    pub mode: TlsMode,
    /// Trusted certificate authorities; the system's if `None`.
    pub ca: Option<PathBuf>,
    /// The client's certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The application protocol that the handshake names (ALPN).
    pub protocol: Option<&'static str>,
    /// Whether its user was told that nothing is checked.
    pub warning: UnverifiedWarning,
}

impl Tls {
    /// The mode as a parameter of a URL, unless it is none or a default.
    #[must_use]
    pub fn shown(tls: Option<&Self>) -> Option<String> {
        let mode = tls?.mode;
        (mode > TlsMode::Prefer).then(|| format!("sslmode={}", mode.as_str()))
    }

    /// What somebody in the network could do to a store at these addresses, for an operator.
    #[must_use]
    pub fn exposure(tls: Option<&Self>, addresses: &[Address]) -> Option<&'static str> {
        match tls.map(|tls| tls.mode) {
            Some(TlsMode::VerifyCa | TlsMode::VerifyFull) => None,
            Some(TlsMode::Require) => Some(
                "the connection is encrypted, but nothing checks which server answers: whoever controls the \
                 network can pose as the server, learn the password and grant locks twice; use verify-full",
            ),
            Some(TlsMode::Prefer) => Some(
                "the connection is encrypted only if the server offers it, and nothing checks which server \
                 answers: whoever controls the network can read and change everything; use verify-full",
            ),
            None if addresses.iter().any(Address::is_remote) => Some(
                "the connection crosses a network without encryption: whoever controls the network can read and \
                 change everything",
            ),
            None => None,
        }
    }
}

/// How far the server of a TLS connection is checked, from least to most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsMode {
    /// TLS if the server offers it, without checks.
    Prefer,
    /// TLS without checks: whoever controls the network can pose as the server.
    Require,
    /// An authority has signed the certificate, whatever its name.
    VerifyCa,
    /// And the certificate is for this host.
    #[default]
    VerifyFull,
}

impl TlsMode {
    /// Whether the server's certificate is checked.
    #[must_use]
    pub fn checks(self) -> bool {
        self >= Self::VerifyCa
    }

    /// The mode in a URL.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        }
    }
}

/// A failure to connect, for drivers that take errors.
#[derive(Debug)]
pub struct ConnectError(pub Failure);

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for ConnectError {}

impl ConnectError {
    /// The failure to connect behind an error of a driver.
    #[must_use]
    pub fn behind<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Failure> {
        let mut error = Some(error);
        while let Some(one) = error {
            if let Some(Self(failure)) = one.downcast_ref() {
                return Some(failure);
            }
            error = one.source();
        }
        None
    }
}

/// An encrypted connection.
pub struct Encrypted {
    /// The byte stream.
    pub stream: Pin<Box<dyn Stream>>,
    /// The server's certificate in DER, if the handshake has proven that the server has its key.
    pub certificate: Option<Vec<u8>>,
}

impl fmt::Debug for Encrypted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encrypted").finish_non_exhaustive()
    }
}

/// Whether the warning about a server that is not checked was logged. Clones share it.
// Relaxed: it only decides who logs.
#[derive(Clone, Debug, Default)]
pub struct UnverifiedWarning(#[cfg_attr(not(feature = "tls"), expect(dead_code))] Arc<AtomicBool>);

/// It is no part of the settings.
impl PartialEq for UnverifiedWarning {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for UnverifiedWarning {}

/// In a build without TLS, no I/O error stems from it.
#[cfg(not(feature = "tls"))]
#[must_use]
pub fn failure_of(_: &io::Error, _: &str) -> Option<Failure> {
    None
}

/// Replaces the handshake in a build without the feature `tls`.
///
/// # Errors
/// Always `Refused`. URL parsers reject encrypted URLs in such a build, so this is not reached.
#[cfg(not(feature = "tls"))]
#[expect(clippy::unused_async, reason = "the signature of the build with TLS")]
pub async fn encrypt(_: Pin<Box<dyn Stream>>, _: &str, _: &Tls, _: &str) -> Result<Encrypted, Failure> {
    Err(Failure::Refused(Failure::cause("this program was built without the feature `tls`")))
}

const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The output of `work`, or `None` if the deadline passes first.
pub async fn by<F: Future>(runtime: &dyn Runtime, deadline: Moment, work: F) -> Option<F::Output> {
    match select(pin!(work), runtime.sleep_until(deadline)).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(_) => None,
    }
}

/// Backoff before the next connection attempt after `tries` consecutive failures: 20 ms, doubled up to 1 s,
/// with jitter down to one half so that the clients of a restarted server do not reconnect all at once.
#[must_use]
pub fn pause(tries: u32, random: u64) -> Duration {
    let most = PAUSE_MIN.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(PAUSE_MAX);
    jittered(most, random)
}

/// A random part of this time, at least half of it.
#[must_use]
pub fn jittered(most: Duration, random: u64) -> Duration {
    most.mul_f64(0.5 + 0.5 * share(random))
}

/// A number from 0 to 1.
#[must_use]
pub fn share(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream as Blocking};
    use tokio::sync::oneshot;

    use super::*;
    use crate::runtime::{Driver, block_on};

    const LIMIT: Duration = Duration::from_secs(2);

    #[test]
    fn pauses_grow_to_a_second_and_never_fall_below_half_of_what_is_due() {
        for tries in 1..100 {
            let (least, most) = (pause(tries, 0), pause(tries, u64::MAX));
            assert!(
                least * 2 >= most && most <= PAUSE_MAX && least >= PAUSE_MIN / 2,
                "{tries}: {least:?} {most:?}"
            );
        }
        assert_eq!(pause(100, u64::MAX).as_millis(), 1_000);
    }

    fn local(listener: &TcpListener) -> SocketAddr {
        listener.local_addr().expect("an address")
    }

    /// An address that drops packets: its listener accepts nothing, and its backlog is full.
    fn swallowing() -> (TcpListener, Vec<Blocking>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let fits = |_| Blocking::connect_timeout(&local(&listener), Duration::from_millis(300)).ok();
        let queue: Vec<_> = (0..10_000).map_while(fits).collect();
        (listener, queue)
    }

    fn dialled(addresses: Vec<SocketAddr>) -> io::Result<SocketAddr> {
        let driver = Driver::start().expect("a thread");
        let runtime = Arc::clone(&driver);
        let (told, answer) = oneshot::channel();
        driver.spawn(Box::pin(async move {
            let stream =
                by(&*runtime, runtime.now() + LIMIT, first_of(addresses.into_iter(), &*runtime)).await;
            let _ = told.send(stream.map(|stream| stream.and_then(|stream| stream.peer_addr())));
        }));
        let within_time = block_on(answer).expect("the driver answers");
        within_time.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
    }

    #[test]
    fn an_unresponsive_address_does_not_block_the_next() {
        let (swallows, _queue) = swallowing();
        let good = TcpListener::bind("127.0.0.1:0").expect("a port");
        assert_eq!(dialled(vec![local(&swallows), local(&good)]).expect("a stream"), local(&good));
        let alone = dialled(vec![local(&swallows)]).expect_err("no server answers there");
        assert_eq!(alone.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn the_last_refusal_is_reported_without_delay() {
        let good = TcpListener::bind("127.0.0.1:0").expect("a port");
        let closed = {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            local(&listener)
        };
        assert_eq!(dialled(vec![closed, local(&good)]).expect("a stream"), local(&good));
        let refused = dialled(vec![closed, closed]).expect_err("no server is there");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(dialled(Vec::new()).expect_err("no address").kind(), io::ErrorKind::NotFound);
    }
}
