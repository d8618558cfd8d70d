//! Distributed locks on the Redis or Valkey you already run, and on one machine with nothing at
//! all.
//!
//! A **tenure** is a period for which someone holds something. That is all a distributed lock can
//! give: not ownership, but a lease with an end. So every grant here has a deadline, a fencing
//! token, and a way to hear that it was lost.
//!
//! ```
//! # tenure::block_on(async {
//! use std::time::Duration;
//! use tenure::Locks;
//!
//! let locks = Locks::connect("memory:").await?; // or file:DIR, or redis://HOST
//! let Some(guard) = locks.mutex("draw:noon")?.try_lock_for(Duration::from_secs(2)).await? else {
//!     return Ok(()); // another process draws
//! };
//! let drawn = guard.run(async |guard| draw(guard.fence()).await).await?;
//! # async fn draw(fence: u64) -> u64 { fence }
//! # assert!(drawn > 0);
//! # Ok::<(), tenure::Error>(()) }).unwrap();
//! ```
//!
//! # Which kind of lock
//!
//! | kind | who may hold | in which order |
//! |---|---|---|
//! | [`Mutex`] | one | none promised: the first to ask after a release |
//! | [`FairMutex`] | one | first come, first served |
//! | [`ReentrantMutex`] | one owner, as often as it likes | as the mutex |
//! | [`RwLock`] | many readers or one writer | first come, first served |
//! | [`Semaphore`] | as many as there are permits for | first come, first served |
//! | [`Multi`] | several of these at once, all or none | by name |
//!
//! All give the same [`Guard`]. A mutex is the cheapest, and the one that every other client of the
//! `SET NX PX` family understands.
//!
//! # What a lock can promise, and what it cannot
//!
//! While [`Guard::is_held`], no other client holds the lock, if the store loses nothing that it has
//! acknowledged and its clock does not jump. A process that is stopped for longer than its lease
//! has lost the lock, and hears of it at its first look; a write that it had already sent by then
//! can only be refused by the resource itself, which is what [`Guard::fence`] is for.
//!
//! Rules that hold throughout:
//!
//! - *Busy* is `None`, never an error. *Lost* is an event on the guard. Everything else is one
//!   [`Error`].
//! - The limit of a wait is in the method's name: `try_lock` asks once, `try_lock_for` waits that
//!   long, `lock` until it is granted.
//! - Every future may be dropped at any time, and needs no runtime of yours: [`block_on`] is the
//!   blocking API.
//! - A lease is renewed on a thread of the [`Locks`], from the moment on in which its guard is in
//!   your hands.
//!
//! # Features
//!
//! | feature | default | |
//! |---|---|---|
//! | `postgres` | no | PostgreSQL servers, and `Guard::check_in` |
//! | `etcd` | no | `etcd://` and `etcds://` |
//! | `zookeeper` | no | `zookeeper://` and `zookeepers://` |
//! | `redis` | yes | all stores on Redis and Valkey servers; without it `memory:` and `file:` remain |
//! | `tls` | yes | encrypted connections (`rediss://` and its like), with rustls and ring, for the stores that are built |
//! | `serde` | no | `Json`: values of serde in a [`Cache`] |
//! | `metrics` | no | the numbers of [`Locks::metrics`] through the crate `metrics` too |
//! | `testing` | no | `tenure::testing`: a store for tests, whose faults they choose, on tokio's clock |
//!
//! A URL that needs a feature which is off is [unsupported](Error::is_unsupported).
//!
//! # What it says about itself
//!
//! [`Locks::metrics`] has numbers: acquisitions, waits, holds, renewals, losses, requests.
//!
//! Events and spans of [`tracing`](https://docs.rs/tracing) have the target `tenure`. The field
//! `event` is the name of an event, which does not change between versions: `lock_acquired`,
//! `lock_busy`, `lock_timed_out`, `lock_cancelled`, `lock_failed`, `lock_released`, `lock_lost`,
//! `renewal_failed` and others. `docs/watching.md` has them all with their fields.
//!
//! A subscriber that blocks costs no lease: events of the thread of the `Locks` wait for it in a
//! queue. They go to the subscriber of the thread that opened the `Locks`, or else to that of the
//! process.
//!
//! Warnings about what an operator should change have the target `tenure::setup`: a directory on a
//! network file system, a right that is missing, a quorum of an even number.

mod engine;
mod fair;
pub mod fence;
mod guard;
mod handle;
mod hold_id;
mod locks;
pub mod metrics;
mod multi;
mod mutex;
mod open;
mod options;
#[cfg(feature = "postgres")]
pub mod postgres;
mod quorum;
mod reentrant;
mod run_error;
mod rwguard;
mod rwlock;
mod semaphore;
mod status;
#[cfg(feature = "testing")]
pub mod testing;
mod uses;

#[cfg(feature = "redis")]
use tenure_core::credentials;
use tenure_core::{error, events, moment, name, owner, planted, protocol, runtime, store};

#[doc(inline)]
#[cfg(feature = "redis")]
pub use credentials::Credentials;
pub use engine::lost::HoldEnd;
pub use engine::lost::Lost;
#[doc(inline)]
pub use error::{Error, ErrorKind, Result};
pub use fair::FairMutex;
pub use guard::Guard;
pub use hold_id::HoldId;
pub use locks::Locks;
pub use multi::{Multi, MultiGuard, Part};
pub use mutex::Mutex;
#[doc(inline)]
pub use name::LockName;
pub use options::{Options, Renewal};
#[doc(inline)]
pub use owner::Owner;
#[doc(inline)]
pub use protocol::Kind;
pub use reentrant::ReentrantMutex;
pub use run_error::RunError;
#[doc(inline)]
pub use runtime::block_on;
pub use rwguard::{DowngradeError, ReadGuard, UpgradeError, UpgradeableGuard, WriteGuard};
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use status::{ForcedRelease, Holder, Listing, Share, Status};
pub use uses::cache::{Cache, Outage, Overdue};
pub use uses::election::Election;
pub use uses::entry::Entry;
pub use uses::fill::Fill;
pub use uses::log::Leader;
pub use uses::observer::{Change, Observer};
pub use uses::once::{Frees, LastRun, OncePer, Outcome, Turn};
pub use uses::period::Period;
pub use uses::stop::StopRequest;
pub use uses::term::Term;
pub use uses::value::CacheValue;
#[cfg(feature = "serde")]
pub use uses::value::Json;

/// What `tenure doctor` asks of a store beside its locks. No semver promise: nothing else should
/// use it.
#[doc(hidden)]
pub mod diagnosis {
    #[cfg(feature = "etcd")]
    pub use tenure_etcd::shown as etcd_shown;
    pub use tenure_file::shared_file_system;
    #[cfg(feature = "postgres")]
    pub use tenure_postgres::{Diagnosis, diagnose_postgres, postgres_url_shown};
    #[cfg(feature = "redis")]
    pub use tenure_redis::{
        Address, Console, Reply, Sentinels, Target, Topology, ballot_key, fence_key, keys_with, wake_channel,
    };
    #[cfg(feature = "zookeeper")]
    pub use tenure_zookeeper::shown as zookeeper_shown;
}

/// What the workspace's own test kit drives. No semver promise: nothing outside this workspace
/// should use it.
#[doc(hidden)]
pub mod internals {
    use std::sync::Arc;

    pub use crate::moment::Moment;
    pub use crate::runtime::{Driver, Runtime};
    pub use crate::store::Store;
    use crate::{Guard, Locks, Options, Result, UpgradeableGuard, WriteGuard};

    /// Known bugs that a test can switch on.
    pub mod planted {
        pub use crate::planted::*;
    }

    /// What a lock is.
    pub mod protocol {
        pub use crate::protocol::*;
    }

    /// Where locks live.
    pub mod store {
        pub use crate::store::*;
        pub use tenure_core::cas;
        #[cfg(feature = "etcd")]
        pub use tenure_etcd as etcd;
        pub use tenure_file as file;
        #[cfg(feature = "postgres")]
        pub use tenure_postgres as postgres;
        #[cfg(feature = "redis")]
        pub use tenure_redis as redis;
        #[cfg(feature = "zookeeper")]
        pub use tenure_zookeeper as zookeeper;

        /// Locks on a majority of independent stores.
        pub mod quorum {
            pub use crate::quorum::*;
        }
    }

    /// Locks on any store and runtime.
    ///
    /// # Errors
    /// As [`Locks::with`].
    pub fn locks(store: Arc<dyn Store>, runtime: Arc<dyn Runtime>, options: Options) -> Result<Locks> {
        Locks::on(store, runtime, None).with(|_| options)
    }

    /// A further client of the store of `tenure::testing`, and the runtime of all.
    #[cfg(feature = "testing")]
    pub fn testing_client(control: &crate::testing::Control) -> (Locks, Arc<dyn Runtime>) {
        control.client()
    }

    /// A guard of a read-write lock that may become the writer's, if it is one; else the guard.
    ///
    /// # Errors
    /// The guard.
    pub fn upgradeable_guard(guard: Guard) -> std::result::Result<UpgradeableGuard, Guard> {
        if guard.is_upgradeable() { Ok(UpgradeableGuard::new(guard)) } else { Err(guard) }
    }

    /// A guard of a read-write lock as a writer's, also if it is a reader's: for tests that ask a
    /// reader to become one.
    pub fn write_guard(guard: Guard) -> WriteGuard {
        WriteGuard::new(guard)
    }
}

/// The programs of these pages run as examples do.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/cookbook.md")]
#[doc = include_str!("../../../docs/migrating.md")]
struct Pages;
