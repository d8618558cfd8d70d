//! RESP2 and RESP3, the protocols of Redis and Valkey: encoding of commands, parsing of replies.

pub(crate) mod encode;
pub(crate) mod parse;

use std::fmt;

/// A reply that owns its data. Sets and pushes are arrays, a map is an array of keys and values in
/// turn, as in RESP2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Null, of any spelling.
    Nil,
    /// An integer or a boolean.
    Int(i64),
    /// A bulk or a verbatim string.
    BulkString(Vec<u8>),
    /// A simple string, a double or a big number, as it was written.
    SimpleString(String),
    /// An error.
    ServerError(ServerError),
    /// An array, a set, a map or a push.
    Array(Vec<Self>),
}

impl Value {
    /// Whether this is the simple string `OK`.
    pub(crate) fn is_okay(&self) -> bool {
        matches!(self, Self::SimpleString(text) if text == "OK")
    }
}

/// An error reply: a code, and mostly a text after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError(String);

impl ServerError {
    /// The error that a server writes like this.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The first word: `NOAUTH`, `ERR`.
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
