//! TLS, shared with the other stores, and what binds a login to it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use sha2::{Digest, Sha256, Sha384, Sha512};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Config;
use tokio_postgres::config::{SslMode, SslNegotiation};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

use tenure_core::net::{Address, ConnectError, Stream, Tls, TlsMode, encrypt};

/// Performs the TLS handshake once the server has agreed to it.
pub(super) struct Encryption {
    host: String,
    tls: Tls,
    /// Whether the server has agreed.
    agreed: Arc<AtomicBool>,
}

impl Encryption {
    /// Also returns whether the server agrees to TLS, once it has answered.
    pub(super) fn of(
        tls: Option<&Tls>,
        is_direct: bool,
        address: &Address,
        config: &mut Config,
    ) -> (Self, Arc<AtomicBool>) {
        config.ssl_mode(match tls.map(|tls| tls.mode) {
            None => SslMode::Disable,
            Some(TlsMode::Prefer) => SslMode::Prefer,
            Some(_) => SslMode::Require,
        });
        if is_direct {
            config.ssl_negotiation(SslNegotiation::Direct);
        }
        let (host, tls) = (address.host().to_owned(), tls.cloned().unwrap_or_default());
        let agreed = Arc::new(AtomicBool::new(false));
        (Self { host, tls, agreed: Arc::clone(&agreed) }, agreed)
    }
}

impl<S: Stream + 'static> TlsConnect<S> for Encryption {
    type Stream = EncryptedStream;
    type Error = ConnectError;
    type Future = BoxFuture<'static, Result<EncryptedStream, ConnectError>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            self.agreed.store(true, Ordering::Relaxed);
            let encrypted = encrypt(Box::pin(stream), &self.host, &self.tls, "sslmode=disable").await;
            let encrypted = encrypted.map_err(ConnectError)?;
            let binding = encrypted.certificate.as_deref().and_then(end_point);
            Ok(EncryptedStream { stream: encrypted.stream, binding })
        })
    }
}

/// A TLS stream.
pub(super) struct EncryptedStream {
    stream: Pin<Box<dyn Stream>>,
    /// The hash of the server's certificate, which a login with SCRAM includes.
    binding: Option<Vec<u8>>,
}

impl AsyncRead for EncryptedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_read(context, into)
    }
}

impl AsyncWrite for EncryptedStream {
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

impl TlsStream for EncryptedStream {
    fn channel_binding(&self) -> ChannelBinding {
        match &self.binding {
            Some(hash) => ChannelBinding::tls_server_end_point(hash.clone()),
            None => ChannelBinding::none(),
        }
    }
}

/// The hash of a certificate for `tls-server-end-point` (RFC 5929): that of its signature, and SHA-256 instead of
/// MD5 and SHA-1. `None` where the hash is not defined, as for Ed25519.
fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let (_, parts, _) = der(certificate)?;
    let (_, _, rest) = der(parts)?;
    let (_, algorithm, _) = der(rest)?;
    let (6, algorithm, _) = der(algorithm)? else { return None };
    /// 1.2.840.113549.1.1 (RSA) and 1.2.840.10045.4 (ECDSA).
    const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
    const ECDSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04];
    match (algorithm.strip_prefix(RSA), algorithm.strip_prefix(ECDSA)) {
        (Some([4 | 5 | 11]), _) | (_, Some([1] | [3, 2])) => Some(Sha256::digest(certificate).to_vec()),
        (Some([12]), _) | (_, Some([3, 3])) => Some(Sha384::digest(certificate).to_vec()),
        (Some([13]), _) | (_, Some([3, 4])) => Some(Sha512::digest(certificate).to_vec()),
        _ => None,
    }
}

/// The first value in DER: its tag, its content, and what follows it.
fn der(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let [tag, len, rest @ ..] = bytes else { return None };
    let (len, rest) = match usize::from(*len) {
        len @ ..0x80 => (len, rest),
        long => {
            let (digits, rest) =
                rest.split_at_checked(long - 0x80).filter(|(digits, _)| digits.len() <= 4)?;
            (digits.iter().fold(0, |len, digit| len << 8 | usize::from(*digit)), rest)
        }
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((*tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate with this algorithm identifier and nothing else of interest.
    fn certificate(algorithm: &[u8]) -> Vec<u8> {
        let value = |tag: u8, content: &[u8]| [&[tag, content.len() as u8], content].concat();
        let identifier = value(0x30, &value(6, algorithm));
        value(0x30, &[value(0x30, b"tbs"), identifier, value(3, b"signature")].concat())
    }

    #[test]
    fn the_hash_is_that_of_the_signature() {
        let rsa = |last: u8| [&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01][..], &[last]].concat();
        let ecdsa = |last: u8| [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 3, last].to_vec();
        for (algorithm, len) in [
            (rsa(5), Some(32)),
            (rsa(11), Some(32)),
            (rsa(12), Some(48)),
            (rsa(13), Some(64)),
            (rsa(10), None),
            (ecdsa(2), Some(32)),
            (ecdsa(3), Some(48)),
            (vec![0x2b, 0x65, 0x70], None),
        ] {
            let hash = end_point(&certificate(&algorithm));
            assert_eq!(hash.map(|hash| hash.len()), len, "{algorithm:x?}");
        }
        for short in 0..20 {
            assert_eq!(end_point(&certificate(&rsa(11))[..short]), None);
        }
    }
}
