//! TLS, shared with the store on Redis.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

use tenure_core::net::{Address, Stream, Tls, encrypt};
use tenure_core::store::Failure;

/// Performs the TLS handshake once the server has agreed to it.
pub(super) struct Encryption {
    host: String,
    tls: Option<Tls>,
}

impl Encryption {
    pub(super) fn of(tls: Option<&Tls>, address: &Address, config: &mut Config) -> Self {
        config.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        Self { host: address.host().to_owned(), tls: tls.cloned() }
    }
}

impl<S: Stream + 'static> TlsConnect<S> for Encryption {
    type Stream = Encrypted;
    type Error = Refused;
    type Future = BoxFuture<'static, Result<Encrypted, Refused>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let tls = self.tls.unwrap_or_default();
            let encrypted = encrypt(Box::pin(stream), &self.host, &tls, "sslmode=disable").await;
            encrypted.map(Encrypted).map_err(Refused)
        })
    }
}

/// Why the handshake failed.
#[derive(Debug)]
pub(super) struct Refused(pub(super) Failure);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Refused {}

/// A TLS stream.
pub(super) struct Encrypted(Pin<Box<dyn Stream>>);

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_read(context, into)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.as_mut().poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_shutdown(context)
    }
}

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}
