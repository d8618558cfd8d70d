//! What a server has in place of scripts, where it forbids them. A connection keeps it.

use std::sync::atomic::AtomicBool;

use crate::resp::Value;
use crate::resp::encode::Commands;
use tenure_core::store::Failure;

/// The commands in place of scripts.
pub(crate) struct Scriptless {
    /// How the server said that they are forbidden.
    pub(crate) why: Failure,
    /// Deletes a key that has a certain value, if the server can.
    pub(crate) delete: Option<Delete>,
    /// Whether it sets one only then: not known to be false.
    pub(crate) sets: AtomicBool,
}

/// The question which of them a server has.
pub(crate) const HAS_DELETE: [&str; 4] = ["COMMAND", "INFO", "DELIFEQ", "DELEX"];

/// The command for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delete {
    /// Valkey 9.
    DelIfEq,
    /// Redis 8.4.
    DelEx,
}

impl Delete {
    /// What the answer to [`HAS_DELETE`] says. A server that does not say has neither.
    pub(crate) fn read(said: &Value) -> Option<Self> {
        let Value::Array(commands) = said else { return None };
        let known = |at: usize| matches!(commands.get(at), Some(Value::Array(_)));
        match (known(0), known(1)) {
            (true, _) => Some(Self::DelIfEq),
            (_, true) => Some(Self::DelEx),
            _ => None,
        }
    }

    /// Deletes this key if it has this value.
    pub(crate) fn write(self, key: &str, value: &str, out: &mut Commands) {
        match self {
            Self::DelIfEq => out.command(&["DELIFEQ", key, value]),
            Self::DelEx => out.command(&["DELEX", key, "IFEQ", value]),
        };
    }
}
