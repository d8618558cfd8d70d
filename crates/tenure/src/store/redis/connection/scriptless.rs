//! What a server has in place of scripts, where it forbids them. A connection keeps it.

use std::sync::atomic::AtomicBool;

use crate::store::Failure;

/// The commands in place of scripts.
pub(crate) struct Scriptless {
    /// How the server said that they are forbidden.
    pub(crate) why: Failure,
    /// Deletes a key that has a certain value, if the server can.
    pub(crate) delete: Option<Delete>,
    /// Whether it sets one only then: not known to be false.
    pub(crate) sets: AtomicBool,
}

/// The command for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delete {
    /// Valkey 9.
    DelIfEq,
    /// Redis 8.4.
    DelEx,
}
