//! RESP2 and RESP3, as much as it takes to arrange and to inspect: values, and where a reply ends.

use std::fmt;

/// One reply. Maps are flat lists of keys and values, as RESP2 has them; doubles and big numbers are their text.
#[derive(Clone, PartialEq, Eq)]
pub enum Value {
    /// Null, of any kind.
    Nil,
    /// An integer.
    Int(i64),
    /// A boolean.
    Bool(bool),
    /// A simple or a bulk string.
    Bytes(Vec<u8>),
    /// An error, the code first: `WRONGTYPE Operation against …`.
    Error(String),
    /// An array, a set or a map.
    Array(Vec<Self>),
    /// What the server says unasked: a message, in RESP3.
    Push(Vec<Self>),
}

impl Value {
    /// The integer that this is, or spells.
    ///
    /// # Panics
    /// If it is something else: then the test was wrong about the server.
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(int) => *int,
            other => {
                other.text().parse().unwrap_or_else(|_| panic!("an integer was expected, not {other:?}"))
            }
        }
    }

    /// The string that this is.
    ///
    /// # Panics
    /// If it is something else, or not UTF-8.
    pub fn text(&self) -> &str {
        match self {
            Self::Bytes(bytes) => str::from_utf8(bytes).ok(),
            _ => None,
        }
        .unwrap_or_else(|| panic!("a text was expected, not {self:?}"))
    }

    /// The items of this array, set, map or push.
    ///
    /// # Panics
    /// If it is something else.
    pub fn items(&self) -> &[Self] {
        match self {
            Self::Array(items) | Self::Push(items) => items,
            other => panic!("an array was expected, not {other:?}"),
        }
    }

    /// The error's code, its first word: `NOAUTH`, `OOM`. `None` for anything but an error.
    pub fn error_code(&self) -> Option<&str> {
        match self {
            Self::Error(message) => message.split(' ').next(),
            _ => None,
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => write!(f, "nil"),
            Self::Int(int) => write!(f, "{int}"),
            Self::Bool(truth) => write!(f, "{truth}"),
            Self::Bytes(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Self::Error(message) => write!(f, "error({message})"),
            Self::Array(items) => f.debug_list().entries(items).finish(),
            Self::Push(items) => write!(f, "push").and_then(|()| f.debug_list().entries(items).finish()),
        }
    }
}

impl PartialEq<&str> for Value {
    fn eq(&self, text: &&str) -> bool {
        matches!(self, Self::Bytes(bytes) if bytes == text.as_bytes())
    }
}

impl PartialEq<i64> for Value {
    fn eq(&self, int: &i64) -> bool {
        matches!(self, Self::Int(own) if own == int)
    }
}

/// These bytes are not RESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// A command as clients send it: an array of bulk strings.
pub(crate) fn encode<A: AsRef<[u8]>>(arguments: &[A]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments.iter().map(AsRef::as_ref) {
        out.extend(format!("${}\r\n", argument.len()).bytes());
        out.extend(argument);
        out.extend(b"\r\n");
    }
    out
}

/// The reply at the front of `bytes` and its length. `None` if its end has not come yet.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Value, usize)>, Malformed> {
    let mut rest = bytes;
    Ok(value(&mut rest)?.map(|value| (value, bytes.len() - rest.len())))
}

fn value(rest: &mut &[u8]) -> Result<Option<Value>, Malformed> {
    let Some((kind, line)) = line(rest)? else { return Ok(None) };
    let bytes = |line: &[u8]| Value::Bytes(line.to_vec());
    Ok(Some(match kind {
        b'+' | b',' | b'(' => bytes(line),
        b'-' => Value::Error(String::from_utf8_lossy(line).into_owned()),
        b':' => Value::Int(number(line)?),
        b'#' => Value::Bool(line == b"t"),
        b'_' => Value::Nil,
        b'$' | b'=' | b'!' | b'*' | b'~' | b'>' | b'%' | b'|' if number(line)? < 0 => Value::Nil,
        b'$' | b'=' | b'!' => {
            let Some(text) = blob(rest, number(line)?)? else { return Ok(None) };
            match kind {
                b'!' => Value::Error(String::from_utf8_lossy(text).into_owned()),
                b'=' => bytes(text.get(4..).ok_or(Malformed)?), // behind "txt:"
                _ => bytes(text),
            }
        }
        b'*' | b'~' | b'>' => {
            let Some(items) = items(rest, number(line)?)? else { return Ok(None) };
            if kind == b'>' { Value::Push(items) } else { Value::Array(items) }
        }
        b'%' => {
            let Some(items) = items(rest, number(line)?.saturating_mul(2))? else { return Ok(None) };
            Value::Array(items)
        }
        b'|' => {
            // Attributes stand before the value that they describe; nobody here asks for them.
            let Some(_) = items(rest, number(line)?.saturating_mul(2))? else { return Ok(None) };
            return value(rest);
        }
        _ => return Err(Malformed),
    }))
}

fn items(rest: &mut &[u8], count: i64) -> Result<Option<Vec<Value>>, Malformed> {
    (0..count).map(|_| value(rest).transpose()).map(Option::transpose).collect::<Result<Option<_>, _>>()
}

/// The type byte and what follows it up to the end of the line.
fn line<'a>(rest: &mut &'a [u8]) -> Result<Option<(u8, &'a [u8])>, Malformed> {
    let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let (kind, line) = rest[..end].split_first().ok_or(Malformed)?;
    *rest = &rest[end + 2..];
    Ok(Some((*kind, line)))
}

fn blob<'a>(rest: &mut &'a [u8], len: i64) -> Result<Option<&'a [u8]>, Malformed> {
    let len = usize::try_from(len).map_err(|_| Malformed)?;
    if rest.len() < len.saturating_add(2) {
        return Ok(None);
    }
    let (text, after) = rest.split_at(len);
    *rest = after.strip_prefix(b"\r\n").ok_or(Malformed)?;
    Ok(Some(text))
}

fn number(line: &[u8]) -> Result<i64, Malformed> {
    str::from_utf8(line).ok().and_then(|text| text.parse().ok()).ok_or(Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLIES: &[u8] = b"+OK\r\n:-7\r\n$3\r\na\r\n\r\n$-1\r\n-ERR no\r\n*2\r\n:1\r\n*-1\r\n\
        %1\r\n+k\r\n#t\r\n>2\r\n+m\r\n_\r\n=5\r\ntxt:x\r\n|1\r\n+a\r\n:1\r\n,1.5\r\n!4\r\nX no\r\n";

    fn all(mut bytes: &[u8]) -> Vec<Value> {
        let mut values = Vec::new();
        while let Some((value, len)) = parse(bytes).unwrap() {
            values.push(value);
            bytes = &bytes[len..];
        }
        values
    }

    #[test]
    fn each_kind_of_reply_is_read() {
        let text = |text: &str| Value::Bytes(text.into());
        let expected = [
            text("OK"),
            Value::Int(-7),
            text("a\r\n"),
            Value::Nil,
            Value::Error("ERR no".into()),
            Value::Array(vec![Value::Int(1), Value::Nil]),
            Value::Array(vec![text("k"), Value::Bool(true)]),
            Value::Push(vec![text("m"), Value::Nil]),
            text("x"),
            text("1.5"),
            Value::Error("X no".into()),
        ];
        assert_eq!(all(REPLIES), expected);
    }

    #[test]
    fn half_a_reply_is_none_wherever_it_ends() {
        for end in 0..REPLIES.len() {
            assert!(all(&REPLIES[..end]).len() < all(REPLIES).len());
        }
    }

    #[test]
    fn what_is_not_resp_is_malformed() {
        for bytes in ["HTTP/1.1 400\r\n", ":x\r\n", "$1\r\nabc\r\n", "\r\n", "=1\r\nx\r\n"] {
            assert_eq!(parse(bytes.as_bytes()), Err(Malformed), "{bytes}");
        }
    }
}
