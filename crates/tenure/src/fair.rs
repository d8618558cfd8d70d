use std::fmt;
use std::time::Duration;

use crate::engine::acquire::Wait;
use crate::error::Result;
use crate::guard::Guard;
use crate::handle::LockHandle;
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

impl FairMutex {
    /// The lock's name, without the prefix.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// assert_eq!(locks.fair_mutex("nightly")?.name().as_str(), "nightly");
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn name(&self) -> &LockName {
        &self.0.name
    }

    /// Returns the same lock with changed options: see [`Locks::with`](crate::Locks::with).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = tenure::Locks::memory();
    /// let slow = locks.fair_mutex("leader")?
    ///     .with(|options| options.ttl(Duration::from_secs(60)))?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Locks::with`](crate::Locks::with) and [`Locks::fair_mutex`](crate::Locks::fair_mutex).
    pub fn with(&self, change: impl FnOnce(Options) -> Options) -> Result<Self> {
        self.0.configured(change).map(Self)
    }

    /// Waits until this caller is at the head of the queue, then acquires the lock. If the store does not
    /// answer at all, the call fails after [`Options::patience`](crate::Options::patience).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.fair_mutex("nightly")?.lock().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue and gives up the place in it.
    ///
    /// # Errors
    /// `is_unreachable` and `is_refused`; `is_mismatch` if the name is in use by another kind of lock;
    /// `is_unsupported` if the server forbids scripts, which this lock requires, or cannot provide the `acks`
    /// in its URL.
    pub async fn lock(&self) -> Result<Guard> {
        self.0.lock().await
    }

    /// Asks once, for at most [`Options::op_timeout`](crate::Options::op_timeout). Returns `None` if another
    /// client holds the lock or waits for it.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let Some(guard) = locks.fair_mutex("nightly")?.try_lock().await? else {
    ///     return Ok(()); // busy
    /// };
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        self.0.acquire(Wait::Once).await
    }

    /// Waits in the queue for at most `limit`. Returns `None` if the lock was not granted by then.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// use std::time::Duration;
    ///
    /// let guard = locks.fair_mutex("nightly")?.try_lock_for(Duration::from_secs(2)).await?;
    /// assert!(guard.is_some());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    ///
    /// # Errors
    /// As [`lock`](Self::lock); also `is_unreachable` if the store is not answering when the limit is
    /// reached.
    pub async fn try_lock_for(&self, limit: Duration) -> Result<Option<Guard>> {
        self.0.acquire(Wait::For(limit)).await
    }
}

impl fmt::Debug for FairMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FairMutex").field(&self.0.name).finish()
    }
}
