use std::fmt;
use std::time::Duration;

use crate::engine::acquire::Wait;
use crate::error::Result;
use crate::handle::LockHandle;
use crate::multi::Part;
use crate::name::LockName;
use crate::options::Options;
use crate::protocol::{LockSpec, QueueSpec};
use crate::rwguard::{ReadGuard, UpgradeableGuard, WriteGuard};

/// A lock held by many readers or one writer.
///
/// Use it if reads are long and far more frequent than writes. For short work a [`Mutex`](crate::Mutex) is
/// the better choice, because each reader costs the store as much as a mutex. A quorum does not support
/// read-write locks.
///
/// # Guarantees
/// - *Exclusion*: a writer holds the lock alone. Readers share it, and at most one of them is
///   [upgradeable](Self::upgradeable_read).
/// - *Order*: first come, first served. A waiting writer blocks the readers behind it, so nobody starves;
///   adjacent readers in the queue are granted together. [`try_read`](Self::try_read) and
///   [`try_write`](Self::try_write) overtake nobody.
/// - *A crash* of a reader costs its own lease, and only to the clients waiting for it: each reader has a
///   separate lease, and a release affects no other lease. Readers and writers may use different leases: see
///   [`with`](Self::with). On the `file:` store a crash costs nothing.
/// - *Tokens* increase with every grant. **Only a writer's token may raise the highest token that a resource
///   accepts.** A reader's token merely distinguishes it from other readers; a resource that compared it
///   would reject the earlier readers.
///
/// # Examples
/// ```
/// # tenure::block_on(async {
/// use std::time::Duration;
/// use tenure::Locks;
///
/// let locks = Locks::memory();
/// let reader = locks.rwlock("config")?.read().await?;
/// assert!(locks.rwlock("config")?.try_write().await?.is_none());
/// reader.release().await?;
///
/// let lock = locks.rwlock("config")?.with(|options| options.ttl(Duration::from_secs(60)))?;
/// let writer = lock.write().await?;
/// let reader = writer.downgrade().await?; // others may read now
/// assert!(locks.rwlock("config")?.try_read().await?.is_some());
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct RwLock(pub(crate) LockHandle);

impl RwLock {
    /// The lock's name, without the prefix.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// assert_eq!(locks.rwlock("config")?.name().as_str(), "config");
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
    /// let slow = locks.rwlock("config")?.with(|options| options.ttl(Duration::from_secs(60)))?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Locks::with`](crate::Locks::with) and [`Locks::rwlock`](crate::Locks::rwlock).
    pub fn with(&self, change: impl FnOnce(Options) -> Options) -> Result<Self> {
        self.0.configured(change).map(Self)
    }

    fn reader(&self) -> LockHandle {
        self.0.with(LockSpec::Queue(QueueSpec::READER))
    }

    fn upgradeable(&self) -> LockHandle {
        self.0.with(LockSpec::Queue(QueueSpec::UPGRADEABLE))
    }

    fn writer(&self) -> LockHandle {
        self.0.with(LockSpec::Queue(QueueSpec::WRITER))
    }

    /// Waits until no writer holds the lock or is ahead in the queue, then acquires it as a reader.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.rwlock("config")?.read().await?;
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
    pub async fn read(&self) -> Result<ReadGuard> {
        self.reader().lock().await.map(ReadGuard::new)
    }

    /// Asks once for a read lock. Returns `None` if a writer holds the lock or any client waits.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let Some(guard) = locks.rwlock("config")?.try_read().await? else { return Ok(()) }; // busy
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn try_read(&self) -> Result<Option<ReadGuard>> {
        Ok(self.reader().acquire(Wait::Once).await?.map(ReadGuard::new))
    }

    /// Waits for at most `limit` for a read lock. Returns `None` if it was not granted by then.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// use std::time::Duration;
    ///
    /// let guard = locks.rwlock("config")?.try_read_for(Duration::from_secs(2)).await?;
    /// assert!(guard.is_some());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read); also `is_unreachable` if the store is not answering when the limit is
    /// reached.
    pub async fn try_read_for(&self, limit: Duration) -> Result<Option<ReadGuard>> {
        Ok(self.reader().acquire(Wait::For(limit)).await?.map(ReadGuard::new))
    }

    /// Waits until no writer and no other upgradeable guard holds the lock or is ahead in the queue, then
    /// acquires it as the one reader that may [`upgrade`](UpgradeableGuard::upgrade).
    ///
    /// Use it to read first and write only if something has to change, without another writer in between.
    /// Only one such guard exists at a time, so a reader that never writes should use [`read`](Self::read).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let lock = locks.rwlock("config")?;
    /// let guard = lock.upgradeable_read().await?;
    /// let reader = lock.read().await?;
    /// assert!(lock.try_upgradeable_read().await?.is_none());
    /// reader.release().await?;
    /// let writer = guard.upgrade().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn upgradeable_read(&self) -> Result<UpgradeableGuard> {
        self.upgradeable().lock().await.map(UpgradeableGuard::new)
    }

    /// Asks once for an upgradeable guard. Returns `None` if a writer or another upgradeable guard holds the
    /// lock, or if any client waits.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let Some(guard) = locks.rwlock("config")?.try_upgradeable_read().await? else { return Ok(()) };
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn try_upgradeable_read(&self) -> Result<Option<UpgradeableGuard>> {
        Ok(self.upgradeable().acquire(Wait::Once).await?.map(UpgradeableGuard::new))
    }

    /// Waits for at most `limit` for an upgradeable guard. Returns `None` if it was not granted by then.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// use std::time::Duration;
    ///
    /// let lock = locks.rwlock("config")?;
    /// let guard = lock.try_upgradeable_read_for(Duration::from_secs(2)).await?;
    /// assert!(guard.is_some());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`read`](Self::read).
    ///
    /// # Errors
    /// As [`try_read_for`](Self::try_read_for).
    pub async fn try_upgradeable_read_for(&self, limit: Duration) -> Result<Option<UpgradeableGuard>> {
        Ok(self.upgradeable().acquire(Wait::For(limit)).await?.map(UpgradeableGuard::new))
    }

    /// Waits until every earlier holder and waiter has gone, then acquires the lock exclusively.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.rwlock("config")?.write().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn write(&self) -> Result<WriteGuard> {
        self.writer().lock().await.map(WriteGuard::new)
    }

    /// Asks once for the write lock. Returns `None` if any client holds the lock or waits for it.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let Some(guard) = locks.rwlock("config")?.try_write().await? else { return Ok(()) }; // busy
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn try_write(&self) -> Result<Option<WriteGuard>> {
        Ok(self.writer().acquire(Wait::Once).await?.map(WriteGuard::new))
    }

    /// Waits for at most `limit` for the write lock. Returns `None` if it was not granted by then.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// use std::time::Duration;
    ///
    /// let guard = locks.rwlock("config")?.try_write_for(Duration::from_secs(2)).await?;
    /// assert!(guard.is_some());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`read`](Self::read).
    ///
    /// # Errors
    /// As [`try_read_for`](Self::try_read_for).
    pub async fn try_write_for(&self, limit: Duration) -> Result<Option<WriteGuard>> {
        Ok(self.writer().acquire(Wait::For(limit)).await?.map(WriteGuard::new))
    }

    /// The read side of this lock, as a part of a [`Multi`](crate::Multi).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// use tenure::{Multi, Part};
    ///
    /// let both = Multi::new([locks.rwlock("config")?.for_read(), locks.mutex("deploy")?.into()] as [Part; 2])?;
    /// let guards = both.lock().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn for_read(&self) -> Part {
        Part(self.reader())
    }

    /// The write side of this lock, as a part of a [`Multi`](crate::Multi).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// use tenure::{Multi, Part};
    ///
    /// let both = Multi::new([locks.rwlock("config")?.for_write(), locks.mutex("deploy")?.into()] as [Part; 2])?;
    /// let guards = both.lock().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn for_write(&self) -> Part {
        Part(self.writer())
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RwLock").field(&self.0.name).finish()
    }
}
