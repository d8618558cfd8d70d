//! The client side of the MySQL protocol: packets, and statements as text. `login` has the login.

use std::io;
use std::pin::Pin;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};

use tenure_core::net::{Stream, Tls, encrypt};
use tenure_core::store::Failure;

/// Maximum payload of a packet; a longer message continues in the next one.
const LONGEST: usize = 0xff_ffff;
/// Maximum message, unless it is a row.
pub(super) const SHORT: usize = 1 << 16;
/// Maximum bytes of a query's rows, which is above what is ever written to one row.
const ROWS: usize = 128 << 20;
/// Maximum columns of a query.
const COLUMNS: u64 = 16;

/// Why a message failed.
#[derive(Debug)]
pub(super) enum WireError {
    /// The connection failed, or the server does not follow the protocol.
    Io(io::Error),
    /// The server reported an error.
    Server(ReportedError),
    /// A retry cannot succeed.
    Refused(Failure),
    /// The TLS handshake failed.
    Tls(Failure),
    /// A statement or its rows are too long. The connection stays usable.
    TooLong(String),
}

/// An error that the server reported.
#[derive(Clone, Debug)]
pub(super) struct ReportedError {
    pub(super) code: u16,
    pub(super) message: String,
}

impl From<io::Error> for WireError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The values of a row; `None` is NULL.
pub(super) type Values = Vec<Option<Vec<u8>>>;

/// The reply to a statement.
#[derive(Debug, Default)]
pub(super) struct StatementReply {
    /// The rows of a query.
    pub(super) rows: Vec<Values>,
    /// The number of changed rows, and the value of `LAST_INSERT_ID(expr)`.
    pub(super) changed: u64,
    pub(super) id: u64,
}

/// A logged-in connection. A reply has no number: it belongs to the statement before it, so a connection whose
/// statement was abandoned must not be used again.
pub(super) struct MysqlWire {
    stream: BufReader<Pin<Box<dyn Stream>>>,
    sequence: u8,
}

impl MysqlWire {
    /// A connection on which nothing was said yet.
    pub(super) fn new(stream: Pin<Box<dyn Stream>>) -> Self {
        Self { stream: BufReader::new(stream), sequence: 0 }
    }

    /// Encrypts the rest of the conversation.
    pub(super) async fn encrypted(self, host: &str, tls: &Tls) -> Result<Self, WireError> {
        if !self.stream.buffer().is_empty() {
            // Sent before the encryption, possibly by another.
            return Err(malformed().into());
        }
        let encrypted = encrypt(self.stream.into_inner(), host, tls, "sslmode=disable").await;
        let encrypted = encrypted.map_err(WireError::Tls)?;
        Ok(Self { stream: BufReader::new(encrypted.stream), ..self })
    }

    /// Runs a statement.
    pub(super) async fn run(&mut self, sql: &str) -> Result<StatementReply, WireError> {
        self.run_all(&[sql.to_owned()]).await?.pop().ok_or_else(malformed)?
    }

    /// Runs statements in one round trip. One that fails does not keep the server from running the next. At most
    /// `AHEAD` replies are unread: a Unix socket holds some 270, and a server that cannot write reads no more.
    ///
    /// # Errors
    /// If the connection fails.
    pub(super) async fn run_all(
        &mut self,
        all: &[String],
    ) -> io::Result<Vec<Result<StatementReply, WireError>>> {
        const AHEAD: usize = 192;
        let (mut sent, mut sequences, mut replies) = (0, Vec::new(), Vec::new());
        for at in 0..all.len() {
            if sent == at || sent < all.len() && sent - at <= AHEAD / 2 {
                let mut packets = Vec::new();
                for sql in all.iter().take(at + AHEAD).skip(sent) {
                    self.sequence = 0;
                    self.pack(&mut packets, &[b"\x03", sql.as_bytes()].concat());
                    sequences.push(self.sequence);
                }
                sent = sequences.len();
                self.stream.write_all(&packets).await?;
                self.stream.flush().await?;
            }
            self.sequence = sequences[at];
            match self.reply().await {
                Err(WireError::Io(error)) => return Err(error),
                reply => replies.push(reply),
            }
        }
        Ok(replies)
    }

    async fn reply(&mut self) -> Result<StatementReply, WireError> {
        let first = failed(self.receive(SHORT).await?)?;
        let mut head = MessageBytes(&first);
        if first.first() == Some(&0) {
            head.take(1).ok_or_else(malformed)?;
            let (changed, id) = head.number().zip(head.number()).ok_or_else(malformed)?;
            return Ok(StatementReply { changed, id, ..StatementReply::default() });
        }
        let columns = head.number().filter(|columns| *columns <= COLUMNS).ok_or_else(malformed)?;
        for _ in 0..=columns {
            self.receive(SHORT).await?;
        }
        let (mut rows, mut bytes) = (Vec::new(), 0);
        // Rows that are too long are read to their end and dropped.
        while bytes < 16 * ROWS {
            let row = failed(self.receive(ROWS).await?)?;
            if row.first() == Some(&0xfe) && row.len() < 9 {
                return match bytes {
                    ..=ROWS => Ok(StatementReply { rows, ..StatementReply::default() }),
                    _ => Err(WireError::TooLong(format!("rows of {bytes} bytes, expected at most {ROWS}"))),
                };
            }
            bytes += row.len() + columns as usize * size_of::<Option<Vec<u8>>>();
            if bytes > ROWS {
                rows = Vec::new();
                continue;
            }
            let mut row = MessageBytes(&row);
            rows.push((0..columns).map(|_| row.value()).collect::<Option<Values>>().ok_or_else(malformed)?);
        }
        Err(too_long().into())
    }

    /// Completes when the server closes the connection, or sends anything, which means the same between
    /// statements.
    pub(super) async fn over(&mut self) {
        let _ = self.stream.read_u8().await;
    }

    pub(super) async fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let mut packets = Vec::with_capacity(message.len() + 4);
        self.pack(&mut packets, message);
        self.stream.write_all(&packets).await?;
        self.stream.flush().await
    }

    fn pack(&mut self, packets: &mut Vec<u8>, message: &[u8]) {
        // After a full packet there is another one, even if it is empty.
        for start in (0..=message.len()).step_by(LONGEST) {
            let part = &message[start..message.len().min(start + LONGEST)];
            packets.extend(&(part.len() as u32).to_le_bytes()[..3]);
            packets.push(self.sequence);
            packets.extend(part);
            self.sequence = self.sequence.wrapping_add(1);
        }
    }

    pub(super) async fn receive(&mut self, longest: usize) -> io::Result<Vec<u8>> {
        let mut message = Vec::new();
        loop {
            let mut head = [0; 4];
            self.stream.read_exact(&mut head).await?;
            let [a, b, c, sequence] = head;
            let len = u32::from_le_bytes([a, b, c, 0]) as usize;
            if sequence != self.sequence {
                return Err(malformed());
            }
            if message.len() + len > longest {
                return Err(too_long());
            }
            self.sequence = self.sequence.wrapping_add(1);
            let begin = message.len();
            message.resize(begin + len, 0);
            self.stream.read_exact(&mut message[begin..]).await?;
            if len < LONGEST {
                return Ok(message);
            }
        }
    }
}

/// The message, unless it reports an error.
pub(super) fn failed(message: Vec<u8>) -> Result<Vec<u8>, WireError> {
    if message.first() != Some(&0xff) {
        return Ok(message);
    }
    let mut rest = MessageBytes(&message[1..]);
    let code = rest.take(2).ok_or_else(malformed)?;
    let code = u16::from_le_bytes([code[0], code[1]]);
    // The SQLSTATE, which errors before the login do not have.
    let said = if rest.0.first() == Some(&b'#') { rest.0.get(6..).unwrap_or_default() } else { rest.0 };
    Err(WireError::Server(ReportedError { code, message: text(said) }))
}

pub(super) fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it does not follow the MySQL protocol")
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "its reply is too long for any request")
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The rest of a message.
pub(super) struct MessageBytes<'a>(pub(super) &'a [u8]);

impl<'a> MessageBytes<'a> {
    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn until_zero(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let taken = self.take(end)?;
        self.take(1)?;
        Some(taken)
    }

    /// An integer of one to nine bytes.
    fn number(&mut self) -> Option<u64> {
        let count = match self.take(1)?[0] {
            0xfc => 2,
            0xfd => 3,
            0xfe => 8,
            small @ ..=0xfa => return Some(small.into()),
            _ => return None,
        };
        let mut bytes = [0; 8];
        bytes[..count].copy_from_slice(self.take(count)?);
        Some(u64::from_le_bytes(bytes))
    }

    /// A value of a row.
    fn value(&mut self) -> Option<Option<Vec<u8>>> {
        if self.0.first() == Some(&0xfb) {
            self.take(1)?;
            return Some(None);
        }
        let len = self.number()?;
        Some(Some(self.take(usize::try_from(len).ok()?)?.to_vec()))
    }
}
