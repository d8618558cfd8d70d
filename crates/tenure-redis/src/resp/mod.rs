//! RESP2 and RESP3, the wire protocols of Redis and Valkey.
//!
//! | module | what it holds |
//! |---|---|
//! | `encode` | encoding of commands |
//! | `parse` | incremental parsing of replies |

pub(crate) mod encode;
pub(crate) mod parse;

use std::fmt;

/// An owned reply. Sets and pushes become arrays; a map becomes an array of alternating keys and values, as
/// in RESP2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Null, in any encoding.
    Nil,
    /// An integer or a boolean.
    Int(i64),
    /// A bulk or verbatim string.
    BulkString(Vec<u8>),
    /// A simple string, a double or a big number, as written.
    SimpleString(String),
    /// An error.
    ServerError(ServerError),
    /// An array, set, map or push.
    Array(Vec<Self>),
}

impl Value {
    /// Whether this is the simple string `OK`.
    pub(crate) fn is_okay(&self) -> bool {
        matches!(self, Self::SimpleString(text) if text == "OK")
    }
}

/// An error reply: a code, usually followed by a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError(String);

impl ServerError {
    /// The error with this code and text, as on the wire.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The first word, such as `NOAUTH` or `ERR`.
    pub(crate) fn code(&self) -> &str {
        self.0.split(' ').next().unwrap_or_default()
    }

    /// The text after the code.
    pub(crate) fn details(&self) -> Option<&str> {
        self.0.split_once(' ').map(|(_, details)| details)
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
