//! The login: capabilities, TLS, and the proof that the client knows the password.
//!
//! | plugin | what the client sends |
//! |---|---|
//! | `mysql_native_password` | a hash of the password and the server's nonce |
//! | `caching_sha2_password` | such a hash; on request the password |
//! | `sha256_password`, `mysql_clear_password` | the password |
//!
//! The password itself passes through TLS, to a local socket, or encrypted with the server's RSA key.

use std::fs;
use std::path::PathBuf;
use std::pin::Pin;

use rsa::PublicKey;
use rsa::pkcs8::DecodePublicKey;
use sha1::{Digest, Sha1};
use sha2::Sha256;

use super::wire::{MessageBytes, MysqlWire, SHORT, WireError, failed, malformed, text};
use tenure_core::CLIENT;
use tenure_core::net::{Stream, Tls, TlsMode};
use tenure_core::store::Failure;

/// `utf8mb4_general_ci`, which every supported server knows.
const UTF8: u8 = 45;
/// Capabilities: long passwords, a database, protocol 4.1, transaction states, secure logins, plugins.
const CAPABILITIES: u32 = 1 | 1 << 3 | 1 << 9 | 1 << 13 | 1 << 15 | 1 << 19;
/// The capability of attributes, which tell the version of the client.
const ATTRIBUTES: u32 = 1 << 20;
/// The capability of TLS.
const SSL: u32 = 1 << 11;

const NATIVE: &str = "mysql_native_password";
const CACHING: &str = "caching_sha2_password";
const SHA256: &str = "sha256_password";
const CLEAR: &str = "mysql_clear_password";

/// Who logs in, and how.
#[derive(Debug)]
pub(super) struct LoginRequest<'a> {
    pub(super) user: &'a str,
    pub(super) database: &'a str,
    /// The host that answers; `None` for a socket of this machine.
    pub(super) host: Option<&'a str>,
    pub(super) tls: Option<&'a Tls>,
    pub(super) key: &'a ServerKey,
}

/// Where the server's RSA key comes from, for passwords without TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum ServerKey {
    /// From nowhere.
    #[default]
    Unknown,
    /// From the server, which somebody in the network can replace.
    Retrieved,
    /// A PEM file, which is read for each login.
    File(PathBuf),
}

/// A login in progress.
struct MysqlHandshake<'a> {
    wire: MysqlWire,
    request: LoginRequest<'a>,
    password: &'a str,
    plugin: String,
    nonce: Vec<u8>,
    is_encrypted: bool,
}

/// Logs in.
pub(super) async fn log_in(
    stream: Pin<Box<dyn Stream>>,
    request: LoginRequest<'_>,
    password: &str,
) -> Result<MysqlWire, WireError> {
    let mut wire = MysqlWire::new(stream);
    let greeting = wire.receive(SHORT).await?;
    let MysqlGreeting { nonce, flags: offered, plugin } =
        MysqlGreeting::of(&failed(greeting)?).ok_or_else(malformed)?;
    let mut flags = CAPABILITIES | offered & ATTRIBUTES;
    let is_encrypted = match request.tls {
        Some(tls) if offered & SSL != 0 => {
            flags |= SSL;
            wire.send(&head(flags)).await?;
            wire = wire.encrypted(request.host.unwrap_or_default(), tls).await?;
            true
        }
        Some(tls) if tls.mode > TlsMode::Prefer => {
            return Err(refused("it does not use TLS; without TLS, use sslmode=disable"));
        }
        _ => false,
    };
    // The server's default; it asks for another if the account has one.
    let plugin = if plugin == NATIVE { plugin } else { CACHING.to_owned() };
    let mut response = head(flags);
    response.extend([request.user.as_bytes(), b"\0"].concat());
    let proof = prove(&plugin, password, &nonce).unwrap_or_default();
    response.push(proof.len() as u8);
    response.extend([&proof, request.database.as_bytes(), b"\0", plugin.as_bytes(), b"\0"].concat());
    if flags & ATTRIBUTES != 0 {
        // Each text has its length before it, and so have all together.
        let texts =
            ["program_name", CLIENT].map(|text| [&[text.len() as u8], text.as_bytes()].concat()).concat();
        response.push(texts.len() as u8);
        response.extend(texts);
    }
    wire.send(&response).await?;
    MysqlHandshake { wire, request, password, plugin, nonce, is_encrypted }.finish().await
}

impl MysqlHandshake<'_> {
    async fn finish(mut self) -> Result<MysqlWire, WireError> {
        loop {
            let message = failed(self.wire.receive(SHORT).await?)?;
            match message.split_first() {
                Some((0x00, _)) => return Ok(self.wire),
                // The account uses another plugin.
                Some((0xfe, rest)) => {
                    let mut rest = MessageBytes(rest);
                    self.plugin = text(rest.until_zero().unwrap_or_default());
                    self.nonce = rest.0.strip_suffix(b"\0").unwrap_or(rest.0).to_vec();
                    match prove(&self.plugin, self.password, &self.nonce) {
                        Some(proof) => self.wire.send(&proof).await?,
                        None if self.plugin == CLEAR => self.tell_in_clear().await?,
                        None if self.plugin == SHA256 => self.tell().await?,
                        None => return Err(unknown(&self.plugin)),
                    }
                }
                // The server has the password's hash in its cache.
                Some((0x01, [3])) if self.plugin == CACHING => {}
                Some((0x01, [4])) if self.plugin == CACHING => self.tell().await?,
                _ => return Err(unknown(&self.plugin)),
            }
        }
    }

    /// Sends the password, encrypted by TLS or with the server's RSA key.
    async fn tell(&mut self) -> Result<(), WireError> {
        let mut password = [self.password.as_bytes(), b"\0"].concat();
        let is_local = self.request.host.is_none();
        if self.is_encrypted || password.len() == 1 || is_local && self.plugin == CACHING {
            return Ok(self.wire.send(&password).await?);
        }
        let key = match self.request.key {
            ServerKey::File(file) => fs::read_to_string(file).map_err(|error| {
                refused(&format!("cannot read the key server-public-key={}: {error}", file.display()))
            })?,
            ServerKey::Unknown if !is_local => return Err(refused(KEYLESS)),
            ServerKey::Unknown | ServerKey::Retrieved => {
                let ask = if self.plugin == CACHING { 2 } else { 1 };
                self.wire.send(&[ask]).await?;
                let told = failed(self.wire.receive(SHORT).await?)?;
                text(told.strip_prefix(&[1]).ok_or_else(malformed)?)
            }
        };
        // MySQL writes a zero byte after the last line of the file.
        let key = PublicKey::from_public_key_pem(
            key.trim_matches(|char: char| char == '\0' || char.is_whitespace()),
        );
        let key = key.map_err(|error| refused(&format!("the server's key is no RSA key: {error}")))?;
        password.iter_mut().zip(self.nonce.iter().cycle()).for_each(|(byte, nonce)| *byte ^= nonce);
        let secret = key.oaep_encrypt::<Sha1>(&password);
        let secret =
            secret.map_err(|error| refused(&format!("the password cannot be encrypted: {error}")))?;
        Ok(self.wire.send(&secret).await?)
    }

    /// Sends the password to a server that is certainly the right one: any other could ask for it, too.
    async fn tell_in_clear(&mut self) -> Result<(), WireError> {
        let is_checked = self.is_encrypted && self.request.tls.is_some_and(|tls| tls.mode.checks());
        if !is_checked && self.request.host.is_some() {
            return Err(refused(
                "this login sends the password itself; add sslmode=verify-full to the URL, so that no other server \
                 gets it",
            ));
        }
        Ok(self.wire.send(&[self.password.as_bytes(), b"\0"].concat()).await?)
    }
}

const KEYLESS: &str = "this login sends the password itself, and nothing encrypts it; add to the URL sslmode=require \
                       for TLS, server-public-key=FILE with the server's RSA key, or allowPublicKeyRetrieval=true to \
                       take the key that the network gives";

fn refused(what: &str) -> WireError {
    WireError::Refused(Failure::Refused(Failure::cause(what.to_owned())))
}

fn unknown(plugin: &str) -> WireError {
    refused(&format!(
        "unsupported authentication plugin: got {plugin}, expected {CACHING}, {SHA256}, {NATIVE} or {CLEAR}; change \
         the account with ALTER USER … IDENTIFIED WITH {CACHING} BY …, on MariaDB VIA {NATIVE}"
    ))
}

/// The beginning of a login message, which is also the whole request for TLS.
fn head(flags: u32) -> Vec<u8> {
    [&flags.to_le_bytes()[..], &(1_u32 << 30).to_le_bytes(), &[UTF8], &[0; 23]].concat()
}

/// The proof that the client knows the password; `None` for a plugin without one.
fn prove(plugin: &str, password: &str, nonce: &[u8]) -> Option<Vec<u8>> {
    let password = password.as_bytes();
    let xor = |one: &[u8], other: &[u8]| one.iter().zip(other).map(|(a, b)| a ^ b).collect();
    match plugin {
        NATIVE | CACHING if password.is_empty() => Some(Vec::new()),
        NATIVE => {
            let once = Sha1::digest(password);
            let salted = Sha1::new().chain_update(nonce).chain_update(Sha1::digest(once));
            Some(xor(&once, &salted.finalize()))
        }
        CACHING => {
            let once = Sha256::digest(password);
            let salted =
                Sha256::new().chain_update(Sha256::digest(Sha256::digest(password))).chain_update(nonce);
            Some(xor(&once, &salted.finalize()))
        }
        _ => None,
    }
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
        let plugin = text(rest.until_zero().unwrap_or(NATIVE.as_bytes()));
        Some(Self { nonce, flags, plugin })
    }
}
