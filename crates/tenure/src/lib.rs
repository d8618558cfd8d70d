//! Distributed locks on the Redis or Valkey you already run, and on one machine with nothing at all.

mod error;
mod name;
mod owner;
#[doc(hidden)]
pub mod planted;
#[doc(hidden)]
pub mod protocol;
#[doc(hidden)]
pub mod runtime;
#[doc(hidden)]
pub mod store;

pub use error::{Error, Result};
pub use name::LockName;
pub use owner::Owner;
pub use protocol::Kind;
pub use runtime::block_on;

/// What the workspace's own test kit drives. No semver promise: nothing outside this workspace should use it.
#[doc(hidden)]
pub mod internals {
    pub use crate::protocol;
    pub use crate::runtime::{Driver, Moment, Runtime};
    pub use crate::store::{self, Store};
}
