use std::fmt;
use std::time::Duration;

use crate::engine::acquire::Wait;
use crate::error::Result;
use crate::guard::Guard;
use crate::handle::LockHandle;
use crate::name::LockName;
use crate::options::Options;

/// One holder at a time, first come, first served, across processes.
///
/// Use it if waiters compete for long and none may starve, as for a leader. A
/// [`Mutex`](crate::Mutex) takes less work of the store, and other clients of `SET NX PX`
/// understand it. A quorum has no fair mutex.
///
/// Stateless and cheap to clone: each call is its own acquisition, as with
/// [`Mutex`](crate::Mutex).
///
/// # Guarantees
/// - *Exclusion* while the guard [`is_held`](Guard::is_held): see there what it rests on.
/// - *Order*: callers are served in the order in which the store first saw them, as long as they
///   keep waiting. A caller that was not heard of for 5 seconds has lost its place, and goes to the
///   end. [`try_lock`](Self::try_lock) overtakes no client: it is refused while any client waits.
/// - *A crash* of the holder costs one lease; that of a waiter at most 5 seconds, and only once it
///   is first. On the `file:` store neither costs anything.
/// - *Tokens* ([`Guard::fence`]) grow from grant to grant.
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

    /// The same lock with changed options: see [`Locks::with`](crate::Locks::with).
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

    /// Waits until this caller is first in the queue, then holds the lock. For a store that does
    /// not answer at all the limit is [`Options::patience`](crate::Options::patience).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.fair_mutex("nightly")?.lock().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Dropped, it leaves the queue; a place, once left, is gone.
    ///
    /// # Errors
    /// `is_unreachable`, `is_refused`; `is_mismatch` when the name is in use as another kind;
    /// `is_unsupported` when the server forbids scripts, without which there is no such lock, or
    /// cannot do what `acks` in its URL asks for.
    pub async fn lock(&self) -> Result<Guard> {
        self.0.lock().await
    }

    /// Asks once, for at most [`Options::op_timeout`](crate::Options::op_timeout): `None` when
    /// another client holds it or waits for it.
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

    /// Waits in the queue for this long: `None` when its turn does not come.
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
    /// As [`lock`](Self::lock); `is_unreachable` too when the store is silent at the limit.
    pub async fn try_lock_for(&self, limit: Duration) -> Result<Option<Guard>> {
        self.0.acquire(Wait::For(limit)).await
    }
}

impl fmt::Debug for FairMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FairMutex").field(&self.0.name).finish()
    }
}
