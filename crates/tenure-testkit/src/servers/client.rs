//! A small synchronous client, for arranging and inspecting, and as the bare client in comparisons.

use std::fmt::{self, Debug};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use redis::{Parser, pack_command};

use super::Value;

/// One connection to a server, possibly through a proxy. It never reconnects: what a test breaks stays
/// broken.
pub struct Client {
    stream: Box<dyn Stream>,
    parser: Parser,
    timeout: Duration,
}

impl Client {
    /// Connects over TCP without sending anything. Each reply times out after 5 s.
    ///
    /// # Errors
    /// Those of `connect`.
    pub fn dial(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, Self::TIMEOUT)?;
        stream.set_nodelay(true)?;
        Ok(Self::over(stream))
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// Those of `connect`.
    pub fn dial_unix(path: &Path) -> io::Result<Self> {
        UnixStream::connect(path).map(Self::over)
    }

    const TIMEOUT: Duration = Duration::from_secs(5);

    fn over(stream: impl Stream + 'static) -> Self {
        Self { stream: Box::new(stream), parser: Parser::new(), timeout: Self::TIMEOUT }
    }

    /// Sets the timeout of each reply.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sends one command and waits for its reply; a server error is a reply. Pushes in between are skipped.
    ///
    /// # Errors
    /// `TimedOut` without an answer in time, `UnexpectedEof` at the end of the connection, `InvalidData` if
    /// the reply is not RESP. The connection is unusable afterwards.
    pub fn command<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> io::Result<Value> {
        self.send(arguments)?;
        loop {
            match self.receive()? {
                Value::Push(_) => {}
                reply => return Ok(reply),
            }
        }
    }

    /// Sends one command without waiting.
    ///
    /// # Errors
    /// As [`Client::command`].
    pub fn send<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> io::Result<()> {
        let arguments: Vec<_> = arguments.iter().map(|argument| argument.as_ref().to_vec()).collect();
        self.send_bytes(&pack_command(&arguments))
    }

    /// Sends raw bytes, which need not form a command.
    ///
    /// # Errors
    /// As [`Client::command`].
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.limit(self.timeout)?;
        self.stream.write_all(bytes).map_err(as_timeout)
    }

    /// Waits for the next reply or push.
    ///
    /// # Errors
    /// As [`Client::command`].
    pub fn receive(&mut self) -> io::Result<Value> {
        let until = Instant::now() + self.timeout;
        let mut stream = Until { stream: &mut *self.stream, until, failed: None };
        match self.parser.parse_value(&mut stream) {
            Ok(value) => Ok(value.into()),
            Err(error) => Err(stream
                .failed
                .unwrap_or_else(|| io::Error::new(ErrorKind::InvalidData, error.to_string()))),
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("stream", &self.stream).finish_non_exhaustive()
    }
}

/// A socket that is read until a deadline, and how it failed.
struct Until<'a> {
    stream: &'a mut dyn Stream,
    until: Instant,
    failed: Option<io::Error>,
}

impl Until<'_> {
    fn read_in_time(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream.limit(left)?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                // A signal that a test sends to itself or to its children.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => return read.map_err(as_timeout),
            }
        }
    }
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_in_time(buffer).map_err(|error| {
            let kind = error.kind();
            self.failed = Some(error);
            kind.into()
        })
    }
}

/// A socket with a timeout reports `WouldBlock` when the time is over.
fn as_timeout(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}

trait Stream: Read + Write + Send + Debug {
    fn limit(&self, timeout: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn limit(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout)).and_then(|()| self.set_write_timeout(Some(timeout)))
    }
}

impl Stream for UnixStream {
    fn limit(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout)).and_then(|()| self.set_write_timeout(Some(timeout)))
    }
}
