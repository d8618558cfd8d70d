//! Sends many requests in one piece.
//!
//! A task that asks wakes the task of the connection, which tokio runs next. So each request would
//! be a packet, with a system call here and one at the server. Where many are under way, the
//! connection lets other tasks run first, once, and what they ask for leaves with it.

use std::future::Future;
use std::io::Result;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::yield_now;

/// From so many unanswered requests on. With fewer, client and server would wait for each other.
const MANY: usize = 8;
/// So many bytes leave at once: some 15 requests.
pub(super) const ENOUGH: usize = 2_048;

/// A stream that waits, once, before it writes.
pub(super) struct Gathered<S> {
    stream: S,
    /// How many requests are unanswered.
    unanswered: Arc<AtomicUsize>,
    has_waited: bool,
}

impl<S> Gathered<S> {
    pub(super) fn new(stream: S, unanswered: Arc<AtomicUsize>) -> Self {
        Self { stream, unanswered, has_waited: false }
    }

    fn waits(&self, bytes: &[u8]) -> bool {
        bytes.len() < ENOUGH && !self.has_waited && self.unanswered.load(Ordering::Relaxed) >= MANY
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gathered<S> {
    /// Writes whenever it is polled again, by what is read or asked for meanwhile too: a worker of
    /// the runtime that stands still keeps nothing back.
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        // Unlike a wake-up, this wakes no other worker.
        if self.waits(bytes) && pin!(yield_now()).poll(cx).is_pending() {
            self.has_waited = true;
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.has_waited = false;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gathered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::FutureExt;
    use tokio::io::{AsyncWriteExt, Sink, sink};
    use tokio::runtime::Builder;

    use super::*;

    /// Whether it writes at the first poll.
    fn writes(stream: &mut Gathered<Sink>, bytes: usize) -> bool {
        let bytes = vec![0; bytes];
        stream.write(&bytes).now_or_never().is_some()
    }

    #[test]
    fn it_waits_once_where_many_requests_are_under_way() {
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let unanswered = Arc::new(AtomicUsize::new(MANY - 1));
        let mut stream = Gathered::new(sink(), Arc::clone(&unanswered));
        runtime.block_on(async {
            assert!(writes(&mut stream, 1), "few are under way");
            unanswered.store(MANY, Ordering::Relaxed);
            assert!(!writes(&mut stream, 1), "many are");
            assert!(writes(&mut stream, 1) && writes(&mut stream, 1), "it has waited");
            stream.flush().await.expect("a sink");
            assert!(writes(&mut stream, ENOUGH), "that is enough");
            assert!(!writes(&mut stream, ENOUGH - 1), "all before is written");
            stream.flush().await.expect("a sink");
            stream.write_all(b"PING").await.expect("it is polled again, and writes");
            assert!(stream.has_waited);
        });
    }
}
