//! Replies in a form that tests compare.

use std::fmt;

use crate::fake_redis::message;

/// A reply. Maps are flattened to alternating keys and values, as in RESP2; doubles are their text.
#[derive(Clone, PartialEq, Eq)]
pub enum Value {
    /// Null, in any encoding.
    Nil,
    /// An integer.
    Int(i64),
    /// A boolean.
    Bool(bool),
    /// A simple or bulk string.
    Bytes(Vec<u8>),
    /// An error, its code first: `WRONGTYPE Operation against …`.
    Error(String),
    /// An array, set or map.
    Array(Vec<Self>),
    /// A RESP3 push.
    Push(Vec<Self>),
}

impl Value {
    /// The value as an integer, parsed from a string if necessary.
    ///
    /// # Panics
    /// If it is neither.
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(int) => *int,
            other => {
                other.text().parse().unwrap_or_else(|_| panic!("an integer was expected, not {other:?}"))
            }
        }
    }

    /// The value as a string.
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

    /// The items of an array, set, map or push.
    ///
    /// # Panics
    /// If it is something else.
    pub fn items(&self) -> &[Self] {
        match self {
            Self::Array(items) | Self::Push(items) => items,
            other => panic!("an array was expected, not {other:?}"),
        }
    }

    /// The error's code, such as `NOAUTH` or `OOM`; `None` if this is no error.
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

impl From<redis::Value> for Value {
    fn from(value: redis::Value) -> Self {
        let all = |values: Vec<redis::Value>| values.into_iter().map(Self::from).collect();
        match value {
            redis::Value::Nil => Self::Nil,
            redis::Value::Int(int) => Self::Int(int),
            redis::Value::Boolean(truth) => Self::Bool(truth),
            redis::Value::BulkString(bytes) => Self::Bytes(bytes),
            redis::Value::SimpleString(text) | redis::Value::VerbatimString { text, .. } => {
                Self::Bytes(text.into())
            }
            redis::Value::Okay => Self::Bytes("OK".into()),
            redis::Value::Double(number) => Self::Bytes(number.to_string().into()),
            redis::Value::ServerError(error) => Self::Error(message(&error)),
            redis::Value::Array(values) | redis::Value::Set(values) => Self::Array(all(values)),
            redis::Value::Map(pairs) => {
                Self::Array(all(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect()))
            }
            redis::Value::Push { kind, data } => {
                let kind = Self::Bytes(kind.to_string().into());
                Self::Push([vec![kind], all(data)].concat())
            }
            redis::Value::Attribute { data, .. } => (*data).into(),
            other => panic!("no test asks for {other:?}"),
        }
    }
}
