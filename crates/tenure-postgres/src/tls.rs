//! Encrypts the talk with a server, as the store on Redis does.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

use super::url::{Address, Tls};
use crate::store::Failure;

/// An open stream of bytes.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// What encrypts, once the server has agreed.
pub(super) struct Encryption {
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "it encrypts nothing"))]
    host: String,
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "it encrypts nothing"))]
    tls: Option<Tls>,
}

impl Encryption {
    pub(super) fn of(tls: Option<&Tls>, address: &Address, config: &mut Config) -> Self {
        config.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        let host = match address {
            Address::Tcp(host, _) => host.clone(),
            Address::Socket(..) => String::new(),
        };
        Self { host, tls: tls.cloned() }
    }
}

impl<S: Stream + 'static> TlsConnect<S> for Encryption {
    type Stream = Encrypted;
    type Error = Refused;
    type Future = BoxFuture<'static, Result<Encrypted, Refused>>;

    #[cfg(feature = "tls")]
    fn connect(self, stream: S) -> Self::Future {
        use crate::store::redis::{Certificates, encrypt};

        Box::pin(async move {
            let Tls { ca, identity } = self.tls.unwrap_or_default();
            let certificates = Certificates { ca, identity };
            let encrypted = encrypt(Box::pin(stream), &self.host, &certificates, "sslmode=disable").await;
            encrypted.map(Encrypted).map_err(Refused)
        })
    }

    #[cfg(not(feature = "tls"))]
    fn connect(self, _: S) -> Self::Future {
        let cause = Failure::cause("this program was built without TLS");
        Box::pin(async { Err(Refused(Failure::Refused(cause))) })
    }
}

/// Why the talk is not encrypted.
#[derive(Debug)]
pub(super) struct Refused(pub(super) Failure);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Refused {}

#[cfg(feature = "tls")]
type Inner = Pin<Box<dyn crate::store::redis::Stream>>;
#[cfg(not(feature = "tls"))]
type Inner = Pin<Box<dyn Stream>>;

/// An encrypted stream.
pub(super) struct Encrypted(Inner);

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
