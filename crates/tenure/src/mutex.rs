use std::fmt;
use std::time::Duration;

use crate::engine::acquire::Wait;
use crate::error::Result;
use crate::guard::Guard;
use crate::handle::LockHandle;
use crate::name::LockName;
use crate::options::Options;

/// One holder at a time, among all processes that use the same name on the same store.
///
/// Use it unless you need one of the others: it is the cheapest lock, and the only one on a
/// majority of servers. Use a
/// [`FairMutex`](crate::FairMutex) if no waiter may be overtaken, and a
/// [`ReentrantMutex`](crate::ReentrantMutex) if code that holds the lock calls code that takes it.
/// Among the tasks of one process `tokio::sync::Mutex` is enough.
///
/// The value is stateless and cheap to clone: each call is an acquisition with its own owner,
/// so two `lock`s of one `Mutex` exclude each other, and one task that locks it twice waits for
/// itself.
///
/// # Guarantees
/// - *Exclusion* while the guard [`is_held`](Guard::is_held): see there what it rests on.
/// - *Order*: none is promised. In a process, callers are served in the order in which they came;
///   between processes the first to ask after a release wins, and a process that hands over inside
///   itself leaves others a turn now and then.
/// - *A crash* costs one lease ([`Options::ttl`](crate::Options::ttl)), and on the `file:` store
///   nothing: the lock is free at once.
/// - *Tokens* ([`Guard::fence`]) grow from grant to grant.
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

impl Mutex {
    /// The lock's name, without the prefix.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// assert_eq!(locks.mutex("nightly")?.name().as_str(), "nightly");
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
    /// let slow = locks.mutex("nightly")?.with(|options| options.ttl(Duration::from_secs(60)))?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Locks::with`](crate::Locks::with) and [`Locks::mutex`](crate::Locks::mutex).
    pub fn with(&self, change: impl FnOnce(Options) -> Options) -> Result<Self> {
        self.0.configured(change).map(Self)
    }

    /// Waits until the lock is granted.
    ///
    /// There is no limit for the holder; compose with a timeout, or use
    /// [`try_lock_for`](Self::try_lock_for). For a store that does not answer at all the limit is
    /// [`Options::patience`](crate::Options::patience).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("nightly")?.lock().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Dropped, it leaves the queue; what may have been granted is released in the background.
    ///
    /// # Errors
    /// `is_unreachable`, `is_refused`; `is_mismatch` when the name is in use as another kind;
    /// `is_unsupported` when the server forbids scripts and
    /// [`Options::unfenced`](crate::Options::unfenced) is not set, or cannot do what
    /// `acks` in its URL asks for.
    pub async fn lock(&self) -> Result<Guard> {
        self.0.lock().await
    }

    /// Asks once, for at most [`Options::op_timeout`](crate::Options::op_timeout): `None` when
    /// another client holds it.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let Some(guard) = locks.mutex("nightly")?.try_lock().await? else { return Ok(()) }; // busy
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

    /// Waits for this long, also when the store is down or silent: `None` when another client holds
    /// the lock all the time.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// use std::time::Duration;
    ///
    /// let guard = locks.mutex("nightly")?.try_lock_for(Duration::from_secs(2)).await?;
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

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mutex").field(&self.0.name).finish()
    }
}
