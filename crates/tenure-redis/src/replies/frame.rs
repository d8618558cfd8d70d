//! What may come in over a connection, checked before it is parsed.
//!
//! The parser behind this believes every length it is told. And a message without a subscription,
//! such as the one a cluster sends when a slot moves away, would be taken for the reply to a
//! request, and each later reply for that of the next one. Here both end the connection instead.

use std::fmt;
use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A reply may be this long: a page of names of 64 KiB, and some more.
const REPLY_MAX: u64 = 16 * 1024 * 1024;
/// A line may be this long: errors and numbers, not data.
const LINE_MAX: u64 = 16 * 1024;
/// A list may announce this many elements: three for each waiter of a long queue.
const LIST_MAX: u64 = 512 * 1024;

/// A stream whose input is checked and counted.
pub(crate) struct Checked<S> {
    stream: S,
    scan: Scan,
    heard: Arc<AtomicU64>,
}

impl<S> Checked<S> {
    /// `heard` counts what came in whole: replies and messages. Messages are let through if they
    /// are expected at all.
    pub(crate) fn new(stream: S, heard: Arc<AtomicU64>, messages: bool) -> Self {
        Self { stream, scan: Scan::new(messages), heard }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Checked<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let checked = self.scan.feed(&buf.filled()[before..]);
        self.heard.store(self.scan.whole, Ordering::Relaxed);
        Poll::Ready(checked.map_err(|what| Error::new(ErrorKind::InvalidData, Malformed(what))))
    }
}

/// What came in is not what a server says.
#[derive(Debug)]
pub(crate) struct Malformed(&'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

impl<S: AsyncWrite + Unpin> AsyncWrite for Checked<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Walks over the frames of RESP3 without keeping them.
pub(crate) struct Scan {
    messages: bool,
    /// Replies and messages that came in whole.
    pub(crate) whole: u64,
    /// Values that are still to come until this one is; 0 between two.
    open: u64,
    /// Bytes of this reply so far.
    bytes: u64,
    at: At,
}

enum At {
    /// The first byte of a value.
    Kind,
    /// The line behind it. `length` is what it says, where it is one.
    Line { kind: u8, seen: u64, negative: bool, length: Option<u64>, cr: bool },
    /// So many bytes of data and the line end behind them.
    Data(u64),
}

impl Scan {
    pub(crate) fn new(messages: bool) -> Self {
        Self { messages, whole: 0, open: 0, bytes: 0, at: At::Kind }
    }

    pub(crate) fn feed(&mut self, mut new: &[u8]) -> std::result::Result<(), &'static str> {
        while let Some((&byte, rest)) = new.split_first() {
            match &mut self.at {
                At::Data(left) => {
                    let taken = (*left).min(new.len() as u64);
                    *left -= taken;
                    self.bytes += taken;
                    new = &new[taken as usize..];
                    if *left == 0 {
                        self.close(0);
                    }
                    continue;
                }
                At::Kind => self.begin(byte)?,
                At::Line { kind, seen, negative, length, cr } => {
                    *seen += 1;
                    if *seen > LINE_MAX {
                        return Err("a line without an end");
                    }
                    match (byte, *cr) {
                        (b'\n', true) => {
                            let (kind, negative, length) = (*kind, *negative, *length);
                            self.end_of_line(kind, negative, length)?;
                        }
                        (_, true) => return Err("a line that ends in the middle"),
                        (b'\r', false) => *cr = true,
                        (b'-', false) if *seen == 1 => *negative = true,
                        (b'0'..=b'9', false) => {
                            let digit = u64::from(byte - b'0');
                            *length = length.and_then(|length| length.checked_mul(10)?.checked_add(digit));
                        }
                        _ => *length = None,
                    }
                }
            }
            self.bytes += 1;
            if self.bytes > REPLY_MAX {
                return Err("a reply that is too long");
            }
            new = rest;
        }
        Ok(())
    }

    /// Whether all that has begun is whole.
    #[cfg(test)]
    pub(crate) fn is_between(&self) -> bool {
        self.open == 0
    }

    fn begin(&mut self, kind: u8) -> std::result::Result<(), &'static str> {
        if self.open == 0 {
            self.open = 1;
            self.bytes = 0;
            if kind == b'>' && !self.messages {
                return Err("a message where none was subscribed to");
            }
        } else if kind == b'>' {
            return Err("a message in the middle of a reply");
        }
        if !b"+-:_,#($!=*~%>".contains(&kind) {
            return Err("a byte that begins no value");
        }
        self.at = At::Line { kind, seen: 0, negative: false, length: Some(0), cr: false };
        Ok(())
    }

    fn end_of_line(
        &mut self,
        kind: u8,
        negative: bool,
        length: Option<u64>,
    ) -> std::result::Result<(), &'static str> {
        let length = match (kind, negative, length) {
            (b'$' | b'!' | b'=' | b'*' | b'~' | b'%' | b'>', false, Some(length)) => length,
            // Nothing, as it was spelled before RESP3.
            (b'$' | b'*', true, Some(1)) => {
                self.close(0);
                return Ok(());
            }
            (b'$' | b'!' | b'=' | b'*' | b'~' | b'%' | b'>', ..) => return Err("a malformed length"),
            _ => {
                self.close(0);
                return Ok(());
            }
        };
        match kind {
            b'$' | b'!' | b'=' if self.bytes.saturating_add(length) > REPLY_MAX => {
                Err("a reply that is too long")
            }
            b'$' | b'!' | b'=' => {
                self.at = At::Data(length + 2);
                Ok(())
            }
            _ if length > LIST_MAX => Err("a list that is too long"),
            b'%' => {
                self.close(2 * length);
                Ok(())
            }
            _ => {
                self.close(length);
                Ok(())
            }
        }
    }

    /// A value is over, or has so many within it.
    fn close(&mut self, within: u64) {
        self.open = self.open - 1 + within;
        self.whole += u64::from(self.open == 0);
        self.at = At::Kind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(bytes: &[u8], messages: bool) -> std::result::Result<bool, &'static str> {
        let mut whole = Scan::new(messages);
        let outcome = whole.feed(bytes);
        // Byte by byte it comes to the same.
        let mut split = Scan::new(messages);
        let parts = bytes.chunks(1).try_for_each(|byte| split.feed(byte));
        assert_eq!(outcome, parts);
        outcome.map(|()| whole.is_between())
    }

    #[test]
    fn whole_replies_pass() {
        for reply in [
            &b"+OK\r\n"[..],
            b":-12\r\n",
            b"$5\r\n\r\n$9x\r\n",
            b"$-1\r\n",
            b"_\r\n",
            b"*-1\r\n",
            b"*0\r\n",
            b"*3\r\n$1\r\na\r\n*1\r\n:1\r\n#t\r\n",
            b"%1\r\n+a\r\n,1.5\r\n",
            b"-ERR no\r\n+OK\r\n",
            b"=7\r\ntxt:abc\r\n",
        ] {
            assert_eq!(fed(reply, false), Ok(true), "{}", reply.escape_ascii());
            assert_ne!(fed(&reply[..reply.len() - 1], false), Ok(true));
        }
    }

    #[test]
    fn a_message_passes_only_where_one_was_subscribed_to() {
        let message = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n";
        assert_eq!(fed(message, true), Ok(true));
        assert!(fed(message, false).is_err());
        assert!(fed(&[b"*1\r\n", &message[..]].concat(), true).is_err());
    }

    #[test]
    fn what_no_server_says_is_stopped() {
        for noise in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"\r\n",
            b"|1\r\n+a\r\n+b\r\n+c\r\n",
            b"$99999999999999999999999999\r\n",
            b"$18446744073709551615\r\n",
            b"$16777216\r\n",
            b"*9223372036854775807\r\n",
            b"%4294967296\r\n",
            b"$-2\r\n",
            b"~-1\r\n",
            b"$\rx",
            b"*1x\r\n",
        ] {
            assert!(fed(noise, true).is_err(), "{}", noise.escape_ascii());
        }
        assert!(fed(&[b"+", &[b'x'; LINE_MAX as usize + 1][..]].concat(), false).is_err());
        let much =
            [b"*16\r\n", &[b"$1048576\r\n", &[b'x'; 1 << 20][..], b"\r\n"].concat().repeat(16)[..]].concat();
        assert!(Scan::new(false).feed(&much).is_err());
    }
}
