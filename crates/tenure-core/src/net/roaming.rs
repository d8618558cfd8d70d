//! A connection that follows the task that polls it from runtime to runtime.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::{Handle, Id, is_rt_shutdown_err};

use crate::platform::Socket;
use crate::runtime::with_host;

/// A connection that is registered with the runtime whose thread polls it: its own, or the
/// [host](crate::runtime::with_host) of its task.
pub(super) struct Roaming<S> {
    /// `None` once it could not be registered.
    socket: Option<S>,
    host: Option<Id>,
}

impl<S: Socket> Roaming<S> {
    pub(super) fn new(socket: S) -> Self {
        Self { socket: Some(socket), host: None }
    }

    fn poll<T>(&mut self, mut poll: impl FnMut(Pin<&mut S>) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        with_host(|host| {
            if host.map(Handle::id) != self.host {
                self.register(host)?;
            }
            match poll(self.socket()?) {
                Poll::Ready(Err(error)) if self.host.is_some() && is_rt_shutdown_err(&error) => {
                    self.register(None)?;
                    poll(self.socket()?)
                }
                polled => polled,
            }
        })
    }

    fn register(&mut self, host: Option<&Handle>) -> io::Result<()> {
        let (socket, is_hosted) = self.socket.take().ok_or(io::ErrorKind::NotConnected)?.registered(host)?;
        (self.socket, self.host) = (Some(socket), host.filter(|_| is_hosted).map(Handle::id));
        Ok(())
    }

    fn socket(&mut self) -> io::Result<Pin<&mut S>> {
        self.socket.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl<S: Socket> AsyncRead for Roaming<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll(|socket| socket.poll_read(context, into))
    }
}

impl<S: Socket> AsyncWrite for Roaming<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll(|socket| socket.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll(|socket| socket.poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.as_ref().is_some_and(S::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(|socket| socket.poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(|socket| socket.poll_shutdown(context))
    }
}
