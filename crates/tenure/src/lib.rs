//! Distributed locks on the Redis or Valkey you already run, or on a single machine with no server at all.
//!
//! A **tenure** is a period for which someone holds something. A distributed lock can give no more than that:
//! a lease that ends, not ownership. Every grant therefore has a deadline, a fencing token, and a
//! notification when the lock is lost.
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
//! | kind | who may hold | order |
//! |---|---|---|
//! | [`Mutex`] | one holder | none promised: the first to ask after a release |
//! | [`FairMutex`] | one holder | first come, first served |
//! | [`ReentrantMutex`] | one owner, any number of times | as the mutex |
//! | [`RwLock`] | many readers or one writer | first come, first served |
//! | [`Semaphore`] | as many holders as there are permits | first come, first served |
//! | [`Multi`] | several of these locks at once, all or none | by name |
//!
//! All of them return the same [`Guard`]. The mutex is the cheapest, and the one that every other client of
//! the `SET NX PX` family understands.
//!
//! # What a lock can and cannot guarantee
//!
//! While [`Guard::is_held`] is true, no other client holds the lock, provided that the store loses no
//! acknowledged write and its clock does not jump. A process that is paused for longer than its lease has
//! lost the lock, and finds out the first time it checks. Only the resource itself can reject a write that
//! was already in flight by then; [`Guard::fence`] exists for that.
//!
//! These rules hold throughout the crate:
//!
//! - A *busy* lock is `None`, never an error. A *lost* lock is an event on the guard. Everything else is one
//!   [`Error`] type.
//! - The method name states the limit of the wait: `try_lock` asks once, `try_lock_for` waits for the given
//!   time, and `lock` waits until the lock is granted.
//! - Every future may be dropped at any time, and none needs an async runtime. [`block_on`] is the blocking
//!   API.
//! - A thread owned by the [`Locks`] renews each lease from the moment the caller gets the guard.
//!
//! # Features
//!
//! | feature | default | |
//! |---|---|---|
//! | `postgres` | no | PostgreSQL servers, and `Guard::check_in` |
//! | `mysql` | no | MySQL and MariaDB servers; with `sqlx`, `Guard::check_in` there |
//! | `sqlx` | no | `postgres`, and `Guard::check_in` for transactions of sqlx 0.8 |
//! | `etcd` | no | `etcd://` and `etcds://` |
//! | `zookeeper` | no | `zookeeper://` and `zookeepers://` |
//! | `redis` | yes | all stores on Redis and Valkey servers; without it `memory:` and `file:` remain |
//! | `tls` | yes | TLS connections (`rediss://` and the like) with rustls and ring, for the enabled stores |
//! | `schedule` | no | `Period::cron` and `Period::in_zone`: cron expressions and time zones for jobs |
//! | `serde` | no | `Json`: serde values in a [`Cache`] |
//! | `metrics` | no | also reports [`Locks::metrics`] through the `metrics` crate |
//! | `testing` | no | `tenure::testing`: a store with injectable faults for tests, on tokio's clock |
//!
//! A URL that needs a disabled feature is [unsupported](Error::is_unsupported).
//!
//! # Metrics and tracing
//!
//! [`Locks::metrics`] counts acquisitions, waits, holds, renewals, losses and requests.
//!
//! [`tracing`](https://docs.rs/tracing) events and spans have the target `tenure`. The field `event` holds
//! the name of the event, which only a breaking version changes: `lock_acquired`, `lock_busy`,
//! `lock_timed_out`, `lock_cancelled`, `lock_failed`, `lock_released`, `lock_lost`, `renewal_failed` and
//! others. `book/operate/monitoring.md` lists all of them with their fields.
//!
//! A subscriber that blocks cannot cost a lease, because events from the thread of the `Locks` are queued for
//! it. They go to the subscriber of the thread that opened the `Locks`, or else to the global one.
//!
//! Warnings about problems an operator should fix have the target `tenure::setup`: a directory on a network
//! file system, a missing permission, a quorum with an even number of members.

#![cfg_attr(docsrs, feature(doc_cfg))] // docs.rs builds with a nightly compiler

#[doc(hidden)]
pub mod bindings;
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
#[cfg(feature = "mysql")]
pub mod mysql;
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

#[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
use tenure_core::credentials;
use tenure_core::{error, events, moment, name, owner, planted, protocol, runtime, store, sync};

#[doc(inline)]
#[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
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
pub use uses::cache::Cache;
pub use uses::election::Election;
pub use uses::elections::{ElectionStatus, Elections};
pub use uses::entry::Entry;
pub use uses::fill::{Fill, Outage, Overdue};
pub use uses::jobs::{JobStatus, Jobs};
pub use uses::log::Leader;
pub use uses::observer::{Change, Observer};
pub use uses::once::OncePer;
pub use uses::period::Period;
pub use uses::run::{LastRun, Outcome, PastRun};
pub use uses::stop::StopRequest;
pub use uses::term::Term;
pub use uses::turn::{Frees, Turn};
pub use uses::value::CacheValue;
#[cfg(feature = "serde")]
pub use uses::value::Json;

/// The version of this crate, which connections to servers carry: see `tenure doctor`.
pub const VERSION: &str = tenure_core::VERSION;

/// For the command, and its `tenure doctor`. Exempt from semver: nothing else should use this module.
#[doc(hidden)]
pub mod diagnosis {
    pub use tenure_core::name::{Namespace, is_control};
    pub use tenure_core::net::url::without_password;
    pub use tenure_core::platform::{boot_clock, host};
    pub use tenure_core::protocol::codec::VERSION as FORMAT;
    pub use tenure_core::store::{BareClient, BareStep};
    #[cfg(feature = "etcd")]
    pub use tenure_etcd::{EtcdDiagnosis, bare_etcd, diagnose_etcd};
    #[cfg(unix)]
    pub use tenure_file::{FORMAT as DIRECTORY_FORMAT, shared_file_system};
    #[cfg(feature = "mysql")]
    pub use tenure_mysql::{MysqlDiagnosis, bare_mysql, diagnose_mysql};
    #[cfg(feature = "postgres")]
    pub use tenure_postgres::{Diagnosis, bare_postgres, diagnose_postgres};
    #[cfg(feature = "redis")]
    pub use tenure_redis::{
        Address, Console, ConsoleReply, LockKeys, Sentinels, Target, Topology, keys_with,
    };
    #[cfg(feature = "zookeeper")]
    pub use tenure_zookeeper::{ZooKeeperDiagnosis, bare_zookeeper, diagnose_zookeeper, zookeeper_clients};

    pub use crate::open::{exposure, shown};
}

/// Internals for the workspace's own test kit. Exempt from semver: nothing outside this workspace should use
/// this module.
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

    /// The protocol of each kind of lock.
    pub mod protocol {
        pub use crate::protocol::*;
    }

    /// The interface of a store.
    pub mod store {
        pub use crate::store::*;
        pub use tenure_core::{cas, rows};
        #[cfg(feature = "etcd")]
        pub use tenure_etcd as etcd;
        #[cfg(unix)]
        pub use tenure_file as file;
        #[cfg(feature = "mysql")]
        pub use tenure_mysql as mysql;
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

    /// Another client of the `tenure::testing` store, and the runtime they all share.
    #[cfg(feature = "testing")]
    pub fn testing_client(control: &crate::testing::Control) -> (Locks, Arc<dyn Runtime>) {
        control.client()
    }

    /// Converts a guard into an upgradeable one if it is the upgradeable reader of a read-write lock.
    ///
    /// # Errors
    /// Returns any other guard unchanged.
    pub fn upgradeable_guard(guard: Guard) -> std::result::Result<UpgradeableGuard, Guard> {
        if guard.is_upgradeable() { Ok(UpgradeableGuard::new(guard)) } else { Err(guard) }
    }

    /// Wraps any guard of a read-write lock as a writer's, even a reader's: for tests that downgrade a
    /// reader.
    pub fn write_guard(guard: Guard) -> WriteGuard {
        WriteGuard::new(guard)
    }
}

/// Runs the programs in these pages as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../../book/start/rust.md")]
#[doc = include_str!("../../../book/use/library.md")]
#[doc = include_str!("../../../book/migrate/index.md")]
#[doc = include_str!("../../../book/migrate/redisson.md")]
#[cfg_attr(feature = "sqlx", doc = include_str!("../../../book/use/sqlx.md"))]
struct Pages;
