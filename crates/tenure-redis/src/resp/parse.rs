//! Incremental parsing of replies.
//!
//! The parser keeps its state between reads, so each byte is parsed once. It writes into a [`Tape`], whose
//! memory is reused between replies. A length announced by the server reserves no memory: a reply takes as
//! much memory as has arrived of it, within the limits below.

use std::fmt;

use crate::resp::encode::KEPT;
use crate::resp::{ServerError, Value};

/// Maximum size of a reply in bytes.
pub(crate) const REPLY_MAX: usize = 16 * 1024 * 1024;
/// Maximum length of a line in bytes: lines carry errors and numbers, not data.
const LINE_MAX: usize = 16 * 1024;
/// Maximum announced length of a list: three elements for each waiter of a long queue.
const LIST_MAX: u64 = 512 * 1024;
/// Maximum number of values in a reply, at all depths.
const VALUES_MAX: u32 = 1024 * 1024;
/// Maximum nesting depth of lists. `COMMAND INFO` needs about ten.
const DEPTH_MAX: usize = 32;

/// Why bytes are not a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed reply: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

/// One or more replies, flattened: the elements of a list follow its head.
#[derive(Debug, Default)]
pub(crate) struct Tape {
    nodes: Vec<TapeNode>,
    /// All strings, concatenated.
    text: Vec<u8>,
}

/// A value, or the head of a list. Strings carry their length.
#[derive(Clone, Copy, Debug)]
enum TapeNode {
    Nil,
    Int(i64),
    Bulk(usize),
    /// Includes the format prefix of four bytes.
    Verbatim(usize),
    Simple(usize),
    Error(usize),
    List(usize),
}

impl Tape {
    pub(crate) fn replies(&self) -> Replies<'_> {
        Replies { nodes: &self.nodes, text: &self.text }
    }

    /// Empties the tape. Keeps at most `KEPT` bytes of each buffer.
    pub(crate) fn clear(&mut self) {
        self.nodes.clear();
        self.nodes.shrink_to(KEPT / size_of::<TapeNode>());
        self.text.clear();
        self.text.shrink_to(KEPT);
    }
}

/// The unread rest of a tape.
#[derive(Clone, Debug)]
pub(crate) struct Replies<'a> {
    nodes: &'a [TapeNode],
    text: &'a [u8],
}

/// A value on a tape. A list is followed by its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply<'a> {
    Nil,
    Int(i64),
    Bulk(&'a [u8]),
    Simple(&'a [u8]),
    Error(&'a [u8]),
    List(usize),
}

impl<'a> Iterator for Replies<'a> {
    type Item = Reply<'a>;

    fn next(&mut self) -> Option<Reply<'a>> {
        let (node, rest) = self.nodes.split_first()?;
        self.nodes = rest;
        let mut text = |length: usize| {
            let (text, rest) = self.text.split_at(length);
            self.text = rest;
            text
        };
        Some(match *node {
            TapeNode::Nil => Reply::Nil,
            TapeNode::Int(int) => Reply::Int(int),
            TapeNode::Bulk(length) => Reply::Bulk(text(length)),
            TapeNode::Verbatim(length) => Reply::Bulk(&text(length)[FORMAT..]),
            TapeNode::Simple(length) => Reply::Simple(text(length)),
            TapeNode::Error(length) => Reply::Error(text(length)),
            TapeNode::List(length) => Reply::List(length),
        })
    }
}

impl<'a> Replies<'a> {
    /// The next value, skipping the elements of a list.
    pub(crate) fn head(&mut self) -> Option<Reply<'a>> {
        let head = self.next()?;
        if let Reply::List(length) = head {
            for _ in 0..length {
                self.head();
            }
        }
        Some(head)
    }

    /// The next value with all its elements; `None` at the end.
    pub(crate) fn value(&mut self) -> Option<Value> {
        let text = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        Some(match self.next()? {
            Reply::Nil => Value::Nil,
            Reply::Int(int) => Value::Int(int),
            Reply::Bulk(bytes) => Value::BulkString(bytes.to_vec()),
            Reply::Simple(bytes) => Value::SimpleString(text(bytes)),
            Reply::Error(bytes) => Value::ServerError(ServerError::new(text(bytes))),
            // The parser bounds the recursion depth.
            Reply::List(length) => Value::Array((0..length).map_while(|_| self.value()).collect()),
        })
    }

    pub(crate) fn values(mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.value()).collect()
    }
}

/// Length of the format prefix of a verbatim string: `txt:`.
const FORMAT: usize = 4;

/// The parser's position within a reply.
#[derive(Debug)]
pub(crate) struct Parser {
    /// Values still missing in each open list.
    open: [usize; DEPTH_MAX],
    depth: usize,
    /// Bytes still missing of an open string, including its line end.
    string: usize,
    /// Bytes and values of the current reply so far.
    bytes: usize,
    values: u32,
}

impl Default for Parser {
    fn default() -> Self {
        Self { open: [0; DEPTH_MAX], depth: 0, string: 0, bytes: 0, values: 0 }
    }
}

impl Parser {
    /// Whether the next byte begins a reply.
    pub(crate) fn is_between(&self) -> bool {
        self.bytes == 0
    }

    /// Parses up to the end of a reply. Returns the number of bytes consumed and whether the reply is
    /// complete. Bytes left over are part of a line, and must be passed again with the rest of it.
    pub(crate) fn parse(&mut self, input: &[u8], tape: &mut Tape) -> Result<(usize, bool), Malformed> {
        let mut taken = 0;
        while taken < input.len() {
            let rest = &input[taken..];
            let (length, is_value) = match self.string {
                0 => match self.line(rest, tape)? {
                    Some(line) => line,
                    None => break,
                },
                _ => self.data(rest, tape)?,
            };
            taken += length;
            self.bytes += length;
            if self.bytes > REPLY_MAX || self.values > VALUES_MAX {
                return Err(TOO_LONG);
            }
            if is_value && self.close() {
                (self.bytes, self.values) = (0, 0);
                return Ok((taken, true));
            }
        }
        Ok((taken, false))
    }

    /// Parses a line. Returns its length and whether it completes a value; `None` if the line is incomplete.
    fn line(&mut self, input: &[u8], tape: &mut Tape) -> Result<Option<(usize, bool)>, Malformed> {
        let kind = input[0];
        if !matches!(
            kind,
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' | b'$' | b'!' | b'=' | b'*' | b'~' | b'%' | b'>'
        ) {
            return Err(Malformed("a byte that begins no value"));
        }
        if kind == b'>' && !self.is_between() {
            return Err(Malformed("a push inside a reply"));
        }
        let Some(end) = input.iter().take(LINE_MAX).position(|byte| *byte == b'\r') else {
            return if input.len() < LINE_MAX { Ok(None) } else { Err(Malformed("a line without an end")) };
        };
        match input.get(end + 1) {
            Some(b'\n') => {}
            Some(_) => return Err(Malformed("a line that ends in the middle")),
            None => return Ok(None),
        }
        let line = &input[1..end];
        self.values += 1;
        let node = match kind {
            b'+' | b',' | b'(' => {
                tape.text.extend_from_slice(line);
                TapeNode::Simple(line.len())
            }
            b'-' => {
                tape.text.extend_from_slice(line);
                TapeNode::Error(line.len())
            }
            b':' => TapeNode::Int(int(line).ok_or(Malformed("a malformed integer"))?),
            b'#' => match line {
                b"t" => TapeNode::Int(1),
                b"f" => TapeNode::Int(0),
                _ => return Err(Malformed("a malformed boolean")),
            },
            b'_' if line.is_empty() => TapeNode::Nil,
            // RESP2 null.
            b'$' | b'*' if line == b"-1" => TapeNode::Nil,
            b'$' | b'!' | b'=' => self.begin_string(kind, line)?,
            b'*' | b'~' | b'%' | b'>' => self.begin_list(kind, line)?,
            _ => return Err(Malformed("a malformed null")),
        };
        tape.nodes.push(node);
        let is_value = match node {
            TapeNode::List(length) => length == 0,
            _ => self.string == 0,
        };
        Ok(Some((end + 2, is_value)))
    }

    fn begin_string(&mut self, kind: u8, length: &[u8]) -> Result<TapeNode, Malformed> {
        let length = length_of(length)?;
        let length = usize::try_from(length).ok().filter(|length| *length <= REPLY_MAX).ok_or(TOO_LONG)?;
        self.string = length + 2;
        Ok(match kind {
            b'$' => TapeNode::Bulk(length),
            b'!' => TapeNode::Error(length),
            _ if length < FORMAT => return Err(Malformed("a verbatim string without a format")),
            _ => TapeNode::Verbatim(length),
        })
    }

    fn begin_list(&mut self, kind: u8, length: &[u8]) -> Result<TapeNode, Malformed> {
        let length = length_of(length)?;
        if length > LIST_MAX {
            return Err(Malformed("a list that is too long"));
        }
        let length = length as usize * if kind == b'%' { 2 } else { 1 };
        if length > 0 {
            *self.open.get_mut(self.depth).ok_or(Malformed("lists that are too deep"))? = length;
            self.depth += 1;
        }
        Ok(TapeNode::List(length))
    }

    /// Consumes part of a string. Returns the number of bytes and whether the string is complete.
    fn data(&mut self, input: &[u8], tape: &mut Tape) -> Result<(usize, bool), Malformed> {
        let text = self.string.saturating_sub(2).min(input.len());
        tape.text.extend_from_slice(&input[..text]);
        self.string -= text;
        let mut taken = text;
        while let (left @ 1..=2, Some(byte)) = (self.string, input.get(taken)) {
            if *byte != b"\r\n"[2 - left] {
                return Err(Malformed("a string that is longer than announced"));
            }
            self.string -= 1;
            taken += 1;
        }
        Ok((taken, self.string == 0))
    }

    /// Closes the lists that a complete value completes. Returns whether the whole reply is complete.
    fn close(&mut self) -> bool {
        while let Some(top) = self.depth.checked_sub(1) {
            self.open[top] -= 1;
            if self.open[top] > 0 {
                return false;
            }
            self.depth = top;
        }
        true
    }
}

const TOO_LONG: Malformed = Malformed("a reply that is too long");

/// A length: digits only.
fn length_of(digits: &[u8]) -> Result<u64, Malformed> {
    let malformed = Malformed("a malformed length");
    if digits.is_empty() {
        return Err(malformed);
    }
    digits.iter().try_fold(0_u64, |length, digit| match digit {
        b'0'..=b'9' => length
            .checked_mul(10)
            .and_then(|length| length.checked_add(u64::from(digit - b'0')))
            .ok_or(malformed),
        _ => Err(malformed),
    })
}

fn int(text: &[u8]) -> Option<i64> {
    match text {
        [b'-', digits @ ..] => 0_i64.checked_sub_unsigned(length_of(digits).ok()?),
        [b'+', digits @ ..] | digits => length_of(digits).ok()?.try_into().ok(),
    }
}

#[cfg(test)]
pub(crate) fn parsed(bytes: &[u8]) -> Result<Vec<Value>, Malformed> {
    let (mut parser, mut tape, mut at) = (Parser::default(), Tape::default(), 0);
    while at < bytes.len() {
        let (taken, is_whole) = parser.parse(&bytes[at..], &mut tape)?;
        at += taken;
        if !is_whole {
            return Err(Malformed("a part of a reply"));
        }
    }
    Ok(tape.replies().values())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the bytes are whole replies.
    fn fed(bytes: &[u8]) -> Result<bool, Malformed> {
        let feed = |piece: usize| {
            let (mut parser, mut tape) = (Parser::default(), Tape::default());
            let mut buffer = Vec::new();
            for piece in bytes.chunks(piece) {
                buffer.extend_from_slice(piece);
                while !buffer.is_empty() {
                    let (taken, is_whole) = parser.parse(&buffer, &mut tape)?;
                    buffer.drain(..taken);
                    if !is_whole {
                        break;
                    }
                }
            }
            Ok((parser.is_between() && buffer.is_empty(), tape.replies().values()))
        };
        let whole = feed(bytes.len());
        assert_eq!(whole, feed(1), "byte by byte it comes to the same");
        whole.map(|(is_whole, _)| is_whole)
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
            b">2\r\n+a\r\n~0\r\n",
            b"!5\r\nERR x\r\n",
            b"(12345678901234567890\r\n",
        ] {
            assert_eq!(fed(reply), Ok(true), "{}", reply.escape_ascii());
            assert_ne!(fed(&reply[..reply.len() - 1]), Ok(true));
        }
    }

    #[test]
    fn values_are_those_of_the_reply() {
        let text = |text: &str| Value::SimpleString(text.to_owned());
        let bulk = |text: &str| Value::BulkString(text.into());
        let error = |text: &str| Value::ServerError(ServerError::new(text));
        for (reply, value) in [
            ("$-1\r\n", Value::Nil),
            ("*-1\r\n", Value::Nil),
            ("_\r\n", Value::Nil),
            (":-9223372036854775808\r\n", Value::Int(i64::MIN)),
            ("#t\r\n", Value::Int(1)),
            ("#f\r\n", Value::Int(0)),
            ("+OK\r\n", text("OK")),
            (",1.5\r\n", text("1.5")),
            ("$3\r\na\r\n\r\n", bulk("a\r\n")),
            ("=7\r\ntxt:abc\r\n", bulk("abc")),
            ("-ERR no way\r\n", error("ERR no way")),
            ("!7\r\nERR x\r\n\r\n", error("ERR x\r\n")),
            ("%1\r\n+a\r\n*2\r\n:1\r\n*0\r\n", {
                let inner = Value::Array(vec![Value::Int(1), Value::Array(vec![])]);
                Value::Array(vec![text("a"), inner])
            }),
        ] {
            assert_eq!(parsed(reply.as_bytes()), Ok(vec![value]), "{reply:?}");
        }
        let error = ServerError::new("NOPERM no way");
        assert_eq!((error.code(), error.details()), ("NOPERM", Some("no way")));
        assert_eq!((ServerError::new("X").code(), ServerError::new("X").details()), ("X", None));
    }

    #[test]
    fn bytes_that_are_no_reply_are_an_error() {
        for noise in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"\x16\x03\x01",
            b"\r\n",
            b"|1\r\n+a\r\n+b\r\n+c\r\n",
            b"$99999999999999999999999999\r\n",
            b"$18446744073709551615\r\n",
            b"$16777217\r\n",
            b"*9223372036854775807\r\n",
            b"*2000000000\r\n",
            b"%4294967296\r\n",
            b"$-2\r\n",
            b"~-1\r\n",
            b"$\rx",
            b"$\r\n",
            b"*1x\r\n",
            b"*?\r\n",
            b":x\r\n",
            b"#x\r\n",
            b"_x\r\n",
            b"=3\r\ntxt\r\n",
            b"$1\r\nabc\r\n",
            b"*1\r\n>1\r\n+x\r\n",
        ] {
            assert!(fed(noise).is_err(), "{}", noise.escape_ascii());
        }
    }

    #[test]
    fn limits_hold_for_lines_bytes_values_and_depth() {
        assert!(fed(&[b"+", &[b'x'; LINE_MAX][..]].concat()).is_err());
        assert_eq!(fed(&[b"+", &[b'x'; LINE_MAX - 2][..]].concat()), Ok(false));
        let parse = |bytes: &[u8]| Parser::default().parse(bytes, &mut Tape::default());
        let much =
            [b"*16\r\n", &[b"$1048576\r\n", &[b'x'; 1 << 20][..], b"\r\n"].concat().repeat(16)[..]].concat();
        assert_eq!(parse(&much), Err(TOO_LONG));
        let many =
            [&b"*3\r\n"[..], &[b"*400000\r\n", &b"_\r\n".repeat(400_000)[..]].concat().repeat(3)].concat();
        assert_eq!(parse(&many), Err(TOO_LONG));
        let deep = |levels: usize| [&b"*1\r\n".repeat(levels)[..], b":1\r\n"].concat();
        assert_eq!(parse(&deep(DEPTH_MAX)).map(|(_, is_whole)| is_whole), Ok(true));
        assert!(parse(&deep(DEPTH_MAX + 1)).is_err());
        assert!(parse(&deep(200_000)).is_err());
    }

    #[test]
    fn an_announced_length_reserves_no_memory() {
        let mut tape = Tape::default();
        let header = [b"*500000\r\n$16000000\r\n", &[b'x'; 10][..]].concat();
        Parser::default().parse(&header, &mut tape).expect("within the limits");
        assert!(tape.nodes.capacity() < 100 && tape.text.capacity() < 100);
        tape.text = Vec::with_capacity(1 << 20);
        tape.clear();
        assert!(tape.text.capacity() <= KEPT);
    }
}
