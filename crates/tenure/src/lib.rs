//! Distributed locks on the Redis or Valkey you already run, and on one machine with nothing at all.

mod engine;
mod error;
mod face;
mod fair;
mod guard;
mod locks;
mod multi;
mod mutex;
mod name;
mod options;
mod owner;
#[doc(hidden)]
pub mod planted;
#[doc(hidden)]
pub mod protocol;
mod reentrant;
#[doc(hidden)]
pub mod runtime;
mod rwlock;
mod semaphore;
mod status;
#[doc(hidden)]
pub mod store;

pub use engine::held::Lost;
pub use error::{Error, Result};
pub use fair::FairMutex;
pub use guard::Guard;
pub use locks::Locks;
pub use multi::{Multi, MultiGuard, Part};
pub use mutex::Mutex;
pub use name::LockName;
pub use options::{Options, Renewal};
pub use owner::Owner;
pub use protocol::Kind;
pub use reentrant::ReentrantMutex;
pub use runtime::block_on;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use status::{Holder, Listing, Status};

/// What the workspace's own test kit drives. No semver promise: nothing outside this workspace should use it.
#[doc(hidden)]
pub mod internals {
    use std::sync::Arc;

    pub use crate::planted;
    pub use crate::protocol;
    pub use crate::runtime::{Driver, Moment, Runtime};
    pub use crate::store::{self, Store};
    use crate::{Locks, Options, Result};

    /// Locks on any store and runtime.
    ///
    /// # Errors
    /// As [`Locks::with`].
    pub fn locks(store: Arc<dyn Store>, runtime: Arc<dyn Runtime>, options: Options) -> Result<Locks> {
        Locks::on(store, runtime, None).with(options)
    }
}
