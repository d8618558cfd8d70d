use std::fmt;
use std::time::Duration;

use crate::engine::acquire::Wait;
use crate::error::Result;
use crate::guard::Guard;
use crate::handle::{LockHandle, mutex};
use crate::name::LockName;
use crate::options::Options;

/// A lock with one holder at a time, granted first come, first served across processes.
///
/// Use it if waiters compete for a long time and none may starve, as in leader election. A
/// [`Mutex`](crate::Mutex) costs the store less work, and other `SET NX PX` clients understand it. A quorum
/// does not support fair mutexes.
///
/// Like [`Mutex`](crate::Mutex), a `FairMutex` is stateless and cheap to clone: each call is its own
/// acquisition.
///
/// # Guarantees
/// - *Exclusion* while the guard [`is_held`](Guard::is_held), on the conditions stated at [`Guard`].
/// - *Order*: callers are served in the order in which the store first saw them, as long as they keep
///   waiting. A waiter that the store has not heard from for 5 seconds loses its place and rejoins at the
///   tail. [`try_lock`](Self::try_lock) overtakes nobody: it fails while any client waits.
/// - *A crash* of the holder costs one lease. A crash of a waiter costs at most 5 seconds, and only once it
///   is at the head of the queue. On the `file:` store neither costs anything.
/// - *Tokens* ([`Guard::fence`]) increase with every grant.
///
/// # Examples
/// ```
/// # tenure::block_on(async {
/// let locks = tenure::Locks::memory();
/// let guard = locks.fair_mutex("leader")?.lock().await?;
/// guard.release().await?;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct FairMutex(pub(crate) LockHandle);

mutex! {
    FairMutex from "Locks::fair_mutex", opened by "" "locks.fair_mutex(\"nightly\")?";
    lock:
    /// Waits until this caller is at the head of the queue, then acquires the lock. If the store does not
    /// answer at all, the call fails after [`Options::patience`](crate::Options::patience).
    cancelled:
    /// Dropping the future leaves the queue and gives up the place in it.
    unsupported:
    /// `is_unsupported` if the server forbids scripts, which this lock requires, or cannot provide the `acks`
    /// in its URL.
    busy: "another client holds the lock or waits for it";
    limited:
    /// Waits in the queue for at most `limit`. Returns `None` if the lock was not granted by then.
}
