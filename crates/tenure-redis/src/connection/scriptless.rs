//! What a server offers in place of scripts, where it forbids them. Cached per connection.

use std::sync::atomic::AtomicBool;

use crate::resp::Value;
use crate::resp::encode::Commands;
use tenure_core::moment::Moment;
use tenure_core::store::Failure;
use tenure_core::sync::Locked;

/// The replacements for scripts.
pub(crate) struct Scriptless {
    /// The error with which the server refused scripts.
    pub(crate) why: Failure,
    /// The compare-and-delete command, if the server has one.
    pub(crate) delete: Option<Delete>,
    /// Whether `SET … IFEQ` may be supported; `false` once it was rejected.
    // Relaxed: never set again; who reads it late has one more command rejected.
    pub(crate) sets: AtomicBool,
    /// When to ask again whether the server allows scripts.
    pub(crate) asks_again: Locked<Moment>,
}

/// The hash of no script.
pub(crate) const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";

/// Asks which compare-and-delete commands a server has.
pub(crate) const HAS_DELETE: [&str; 4] = ["COMMAND", "INFO", "DELIFEQ", "DELEX"];

/// A command that deletes a key if it has a given value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delete {
    /// Valkey 9.
    DelIfEq,
    /// Redis 8.4.
    DelEx,
}

impl Delete {
    /// Reads the reply to [`HAS_DELETE`]. A malformed reply counts as neither.
    pub(crate) fn read(said: &Value) -> Option<Self> {
        let Value::Array(commands) = said else { return None };
        let known = |at: usize| matches!(commands.get(at), Some(Value::Array(_)));
        match (known(0), known(1)) {
            (true, _) => Some(Self::DelIfEq),
            (_, true) => Some(Self::DelEx),
            _ => None,
        }
    }

    /// Encodes the deletion of `key` if its value is `value`.
    pub(crate) fn write(self, key: &str, value: &str, out: &mut Commands) {
        match self {
            Self::DelIfEq => out.command(&["DELIFEQ", key, value]),
            Self::DelEx => out.command(&["DELEX", key, "IFEQ", value]),
        };
    }
}
