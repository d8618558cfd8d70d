//! The client side of the MySQL protocol: packets, the login, and statements as text.

use std::io;
use std::pin::Pin;

use sha1::{Digest, Sha1};
use sha2::Sha256;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};

use super::url::MysqlTarget;
use tenure_core::net::{Stream, Tls, encrypt};
use tenure_core::store::Failure;

/// Maximum payload of a packet; a longer message continues in the next one.
const LONGEST: usize = 0xff_ffff;
/// Maximum message, unless it is a row.
const SHORT: usize = 1 << 16;
/// Maximum bytes of a query's rows, which is above what is ever written to one row.
const ROWS: usize = 128 << 20;
/// Maximum columns of a query.
const COLUMNS: u64 = 16;
/// `utf8mb4_general_ci`, which every supported server knows.
const UTF8: u8 = 45;

/// Capabilities: long passwords, a database, protocol 4.1, transaction states, secure logins, plugins.
const CAPABILITIES: u32 = 1 | 1 << 3 | 1 << 9 | 1 << 13 | 1 << 15 | 1 << 19;
/// The capability of TLS.
const SSL: u32 = 1 << 11;

/// Why a message failed.
#[derive(Debug)]
pub(super) enum WireError {
    /// The connection failed, or the server does not follow the protocol.
    Io(io::Error),
    /// The server reported an error.
    Server(ReportedError),
    /// A retry cannot succeed.
    Refused(Failure),
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
    /// Logs in. `host` is the name that the certificate must be valid for; without it the connection is a
    /// socket of this machine.
    pub(super) async fn log_in(
        stream: Pin<Box<dyn Stream>>,
        host: Option<&str>,
        target: &MysqlTarget,
        password: &str,
    ) -> Result<Self, WireError> {
        let mut wire = Self { stream: BufReader::new(stream), sequence: 0 };
        let greeting = wire.receive(SHORT).await?;
        let greeting = MysqlGreeting::of(&failed(greeting)?).ok_or_else(malformed)?;
        let mut flags = CAPABILITIES;
        if let Some(tls) = &target.tls {
            if greeting.flags & SSL == 0 {
                let text = "it does not use TLS; without TLS, use sslmode=disable";
                return Err(WireError::Refused(Failure::Refused(Failure::cause(text))));
            }
            flags |= SSL;
            wire.send(&head(flags)).await?;
            wire = wire.encrypted(host.unwrap_or_default(), tls).await?;
        }
        let mut plugin = greeting.plugin;
        let mut nonce = greeting.nonce;
        let mut response = head(flags);
        response.extend([target.user.as_bytes(), b"\0"].concat());
        let proof = prove(&plugin, password, &nonce).unwrap_or_default();
        response.push(proof.len() as u8);
        response.extend([&proof, target.database.as_bytes(), b"\0", plugin.as_bytes(), b"\0"].concat());
        wire.send(&response).await?;
        loop {
            let message = failed(wire.receive(SHORT).await?)?;
            match message.split_first() {
                Some((0x00, _)) => return Ok(wire),
                // The account uses another plugin than the server's default.
                Some((0xfe, rest)) => {
                    let mut rest = MessageBytes(rest);
                    plugin = text(rest.until_zero().unwrap_or_default());
                    nonce = rest.0.strip_suffix(b"\0").unwrap_or(rest.0).to_vec();
                    let proof = prove(&plugin, password, &nonce).ok_or_else(|| unknown(&plugin))?;
                    wire.send(&proof).await?;
                }
                // The server has the password's hash in its cache.
                Some((0x01, [3])) => {}
                // It has not, and needs the password itself.
                Some((0x01, [4])) if target.tls.is_some() || host.is_none() => {
                    wire.send(&[password.as_bytes(), b"\0"].concat()).await?;
                }
                Some((0x01, [4])) => {
                    let text =
                        "this login sends the password itself; for TLS, add ?sslmode=verify-full to the URL";
                    return Err(WireError::Refused(Failure::Refused(Failure::cause(text))));
                }
                _ => return Err(unknown(&plugin)),
            }
        }
    }

    async fn encrypted(self, host: &str, tls: &Tls) -> Result<Self, WireError> {
        if !self.stream.buffer().is_empty() {
            // Sent before the encryption, possibly by another.
            return Err(malformed().into());
        }
        let stream = encrypt(self.stream.into_inner(), host, tls, "sslmode=disable").await;
        Ok(Self { stream: BufReader::new(stream.map_err(WireError::Refused)?), ..self })
    }

    /// Runs a statement.
    pub(super) async fn run(&mut self, sql: &str) -> Result<StatementReply, WireError> {
        self.run_all(&[sql.to_owned()]).await?.pop().ok_or_else(malformed)?
    }

    /// Runs statements in one round trip. One that fails does not keep the server from running the next.
    ///
    /// # Errors
    /// If the connection fails.
    pub(super) async fn run_all(
        &mut self,
        all: &[String],
    ) -> io::Result<Vec<Result<StatementReply, WireError>>> {
        let (mut packets, mut sequences) = (Vec::new(), Vec::new());
        for sql in all {
            self.sequence = 0;
            self.pack(&mut packets, &[b"\x03", sql.as_bytes()].concat());
            sequences.push(self.sequence);
        }
        self.stream.write_all(&packets).await?;
        self.stream.flush().await?;
        let mut replies = Vec::new();
        for sequence in sequences {
            self.sequence = sequence;
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

    async fn send(&mut self, message: &[u8]) -> io::Result<()> {
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

    async fn receive(&mut self, longest: usize) -> io::Result<Vec<u8>> {
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

/// The beginning of a login message, which is also the whole request for TLS.
fn head(flags: u32) -> Vec<u8> {
    [&flags.to_le_bytes()[..], &(1_u32 << 30).to_le_bytes(), &[UTF8], &[0; 23]].concat()
}

/// The proof that the client knows the password; `None` for an unknown plugin.
fn prove(plugin: &str, password: &str, nonce: &[u8]) -> Option<Vec<u8>> {
    let password = password.as_bytes();
    let xor = |one: &[u8], other: &[u8]| one.iter().zip(other).map(|(a, b)| a ^ b).collect();
    match plugin {
        "mysql_native_password" | "caching_sha2_password" if password.is_empty() => Some(Vec::new()),
        "mysql_native_password" => {
            let once = Sha1::digest(password);
            let salted = Sha1::new().chain_update(nonce).chain_update(Sha1::digest(once));
            Some(xor(&once, &salted.finalize()))
        }
        "caching_sha2_password" => {
            let once = Sha256::digest(password);
            let salted =
                Sha256::new().chain_update(Sha256::digest(Sha256::digest(password))).chain_update(nonce);
            Some(xor(&once, &salted.finalize()))
        }
        _ => None,
    }
}

fn unknown(plugin: &str) -> WireError {
    let text = format!(
        "unsupported authentication plugin: got {plugin}, expected caching_sha2_password or mysql_native_password"
    );
    WireError::Refused(Failure::Refused(Failure::cause(text)))
}

/// The server's first message.
struct MysqlGreeting {
    nonce: Vec<u8>,
    flags: u32,
    plugin: String,
}

impl MysqlGreeting {
    fn of(message: &[u8]) -> Option<Self> {
        let mut rest = MessageBytes(message);
        (rest.take(1)? == [10]).then_some(())?;
        rest.until_zero()?; // its version
        rest.take(4)?; // the connection's id
        let mut nonce = rest.take(8)?.to_vec();
        rest.take(1)?;
        let low = rest.take(2)?;
        rest.take(3)?; // character set and status
        let high = rest.take(2)?;
        let flags = u32::from_le_bytes([low[0], low[1], high[0], high[1]]);
        let len = usize::from(rest.take(1)?[0]);
        rest.take(10)?;
        let end = rest.take(len.saturating_sub(8).max(13))?;
        nonce.extend(end.strip_suffix(b"\0").unwrap_or(end));
        let plugin = text(rest.until_zero().unwrap_or(b"mysql_native_password"));
        Some(Self { nonce, flags, plugin })
    }
}

/// The message, unless it reports an error.
fn failed(message: Vec<u8>) -> Result<Vec<u8>, WireError> {
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

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it does not follow the MySQL protocol")
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "its reply is too long for any request")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The rest of a message.
struct MessageBytes<'a>(&'a [u8]);

impl<'a> MessageBytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn until_zero(&mut self) -> Option<&'a [u8]> {
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
