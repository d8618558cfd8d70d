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

/// Many readers or one writer.
///
/// Use it if reads are long and far more frequent than writes. Each reader costs the store as much
/// as a
/// [`Mutex`](crate::Mutex), which is the better choice for short work. A quorum has no read-write
/// lock.
///
/// # Guarantees
/// - *Exclusion*: a writer holds alone; readers hold together, one of them at most
///   [upgradeable](Self::upgradeable_read).
/// - *Order*: first come, first served. A writer that waits stops readers that come after it, so
///   no client starves; readers that stand together in the queue are let in together.
///   [`try_read`](Self::try_read) and [`try_write`](Self::try_write) overtake no client.
/// - *A crash* of a reader costs its own lease, and only those who wait for it: each reader has a
///   separate lease, and a release touches no other lease. Leases of readers and writers may
///   differ: see [`with`](Self::with). On the `file:` store a crash costs nothing.
/// - *Tokens* grow from grant to grant. **Only a writer's token may raise the mark that a resource
///   compares.** A reader's tells it from other readers; a resource that let it raise the mark
///   would lock out the readers that came before.
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

    /// The same lock with changed options: see [`Locks::with`](crate::Locks::with).
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

    /// Waits until no writer holds it or came before, then holds it with other readers.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.rwlock("config")?.read().await?;
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
    pub async fn read(&self) -> Result<ReadGuard> {
        self.reader().lock().await.map(ReadGuard::new)
    }

    /// Asks once to read: `None` when a writer holds it or any client waits.
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

    /// Waits for this long to read.
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
    /// As [`read`](Self::read); `is_unreachable` too when the store is silent at the limit.
    pub async fn try_read_for(&self, limit: Duration) -> Result<Option<ReadGuard>> {
        Ok(self.reader().acquire(Wait::For(limit)).await?.map(ReadGuard::new))
    }

    /// Waits until no writer and no other upgradeable guard holds it or came before, then reads
    /// beside other readers, as the one that may [`upgrade`](UpgradeableGuard::upgrade).
    ///
    /// Use it to look first and to write only where something is to be changed, with no other
    /// writer between. There is one such guard at a time, so a reader that never writes takes
    /// [`read`](Self::read).
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

    /// Asks once for an upgradeable guard: `None` when a writer or another such guard holds it, or
    /// any client waits.
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

    /// Waits for this long for an upgradeable guard.
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

    /// Waits until all who came before have gone, then holds it alone.
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

    /// Asks once to write: `None` when any client holds it or waits.
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

    /// Waits for this long to write.
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

    /// The reader's side, as a part of a [`Multi`](crate::Multi).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// use tenure::Multi;
    ///
    /// let both = Multi::new([locks.rwlock("config")?.for_read(), locks.mutex("deploy")?.into()])?;
    /// let guards = both.lock().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn for_read(&self) -> Part {
        Part(self.reader())
    }

    /// The writer's side, as a part of a [`Multi`](crate::Multi).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// use tenure::Multi;
    ///
    /// let both = Multi::new([locks.rwlock("config")?.for_write(), locks.mutex("deploy")?.into()])?;
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
