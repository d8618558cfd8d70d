//! The client's end of a connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Direction, Line, SimTransport};

pub(super) struct End {
    pub(super) wire: SimTransport,
    pub(super) id: usize,
}

impl AsyncRead for End {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.wire.inner();
        let line = &mut inner.connections[self.id];
        if !line.arrived.is_empty() {
            let length = line.arrived.len().min(buf.remaining());
            buf.put_slice(&line.arrived[..length]);
            line.arrived.drain(..length);
            return Poll::Ready(Ok(()));
        }
        match line.end {
            Some(io::ErrorKind::UnexpectedEof) => Poll::Ready(Ok(())),
            Some(kind) => Poll::Ready(Err(kind.into())),
            None => {
                line.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl AsyncWrite for End {
    fn poll_write(self: Pin<&mut Self>, _cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.wire.inner().connections[self.id].state == Line::Closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        // A socket may accept only a part.
        let length = match self.wire.0.shaken && bytes.len() > 1 {
            true => self.wire.0.sim.between(1, bytes.len() as u64) as usize,
            false => bytes.len(),
        };
        self.wire.send(self.id, Direction::ToServer, &bytes[..length]);
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.wire.leave(self.id);
    }
}
