use std::fmt;
use std::time::Duration;

use crate::engine::acquire::Wait;
use crate::error::Result;
use crate::guard::Guard;
use crate::handle::{LockHandle, mutex};
use crate::name::LockName;
use crate::options::Options;

/// A lock with one holder at a time, among all processes that use the same name on the same store.
///
/// Use it unless you need one of the other kinds: it is the cheapest lock, and the only one that works on a
/// quorum. Use a [`FairMutex`](crate::FairMutex) if no waiter may be overtaken, and a
/// [`ReentrantMutex`](crate::ReentrantMutex) if code that holds the lock calls code that acquires it. Among
/// the tasks of one process, `tokio::sync::Mutex` is enough.
///
/// A `Mutex` is stateless and cheap to clone. Each call is an acquisition with its own owner, so two `lock`
/// calls on one `Mutex` exclude each other, and a task that locks it twice waits for itself.
///
/// # Guarantees
/// - *Exclusion* while the guard [`is_held`](Guard::is_held), on the conditions stated at [`Guard`].
/// - *Order*: none is promised. Within a process, callers are served in order of arrival. Between processes,
///   the first to ask after a release wins; a process that hands the lock over internally yields to
///   others now and then.
/// - *A crash* costs one lease ([`Options::ttl`](crate::Options::ttl)). On the `file:` store it costs
///   nothing: the lock is free at once.
/// - *Tokens* ([`Guard::fence`]) increase with every grant.
///
/// # Examples
/// ```
/// # tenure::block_on(async {
/// let locks = tenure::Locks::memory();
/// let Some(guard) = locks.mutex("draw:noon")?.try_lock().await? else { return Ok(()) };
/// // … the draw, with guard.fence() in each write …
/// guard.release().await?;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Mutex(pub(crate) LockHandle);

mutex! {
    Mutex from "Locks::mutex", opened by "" "locks.mutex(\"nightly\")?";
    lock:
    /// Waits until the lock is granted.
    ///
    /// The wait for the holder has no limit; use [`try_lock_for`](Self::try_lock_for) or wrap the call in a
    /// timeout. If the store does not answer at all, the call fails after
    /// [`Options::patience`](crate::Options::patience).
    cancelled:
    /// Dropping the future leaves the queue. A grant that may be in flight is released in the background.
    unsupported:
    /// `is_unsupported` if the server forbids scripts and [`Options::unfenced`](crate::Options::unfenced) is
    /// not set, or if it cannot provide the `acks` in its URL.
    busy: "another client holds the lock";
    limited:
    /// Waits for at most `limit`, even if the store is down. Returns `None` if other clients held the lock all
    /// that time.
}
