use std::fmt;
use std::time::Duration;

use crate::engine::acquire::Wait;
use crate::error::{Error, Result};
use crate::face::Face;
use crate::guard::Guard;
use crate::multi::Part;
use crate::name::LockName;
use crate::options::Options;
use crate::protocol::{Rule, Seat};

/// Many readers or one writer.
///
/// # Guarantees
/// - *Exclusion*: a writer holds alone; readers hold together.
/// - *Order*: first come, first served. A writer that waits stops readers that come after it, so nobody starves; readers that stand
///   together in the queue are let in together. [`try_read`](Self::try_read) and [`try_write`](Self::try_write) overtake nobody.
/// - *A crash* of a reader costs its own lease, and only those who wait for it: each reader has a lease of its own, and a
///   release touches nobody else's. Leases of readers and writers may differ: see [`with`](Self::with).
///   On the `file:` store a crash costs nothing.
/// - *Tokens* grow from grant to grant. **Only a writer's token may raise the mark that a resource compares.** A reader's tells it
///   from other readers; a resource that let it raise the mark would lock out the readers that came before.
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
/// let mut writer = lock.write().await?;
/// lock.downgrade(&mut writer).await?; // others may read now
/// assert!(locks.rwlock("config")?.try_read().await?.is_some());
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct RwLock(pub(crate) Face);

impl RwLock {
    /// The lock's name, without the prefix.
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

    fn reader(&self) -> Face {
        self.0.with(Rule::Queue(Seat::READER))
    }

    fn writer(&self) -> Face {
        self.0.with(Rule::Queue(Seat::WRITER))
    }

    /// Waits until no writer holds it or came before, then holds it with other readers.
    ///
    /// # Cancel safety
    /// Dropped, it leaves the queue; a place, once left, is gone.
    ///
    /// # Errors
    /// `is_unreachable`, `is_refused`; `is_mismatch` when the name is in use as another kind; `is_unsupported` when the server
    /// forbids scripts, without which there is no such lock, or cannot do what [`Options::acks`](crate::Options::acks) asks for.
    pub async fn read(&self) -> Result<Guard> {
        self.reader().lock().await
    }

    /// Asks once to read: `None` when a writer holds it or anybody waits.
    ///
    /// # Cancel safety
    /// As [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn try_read(&self) -> Result<Option<Guard>> {
        self.reader().acquire(Wait::Once).await
    }

    /// Waits for this long to read.
    ///
    /// # Cancel safety
    /// As [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read); `is_unreachable` too when the store is silent at the limit.
    pub async fn try_read_for(&self, limit: Duration) -> Result<Option<Guard>> {
        self.reader().acquire(Wait::For(limit)).await
    }

    /// Waits until all who came before have gone, then holds it alone.
    ///
    /// # Cancel safety
    /// As [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn write(&self) -> Result<Guard> {
        self.writer().lock().await
    }

    /// Asks once to write: `None` when anybody holds it or waits.
    ///
    /// # Cancel safety
    /// As [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn try_write(&self) -> Result<Option<Guard>> {
        self.writer().acquire(Wait::Once).await
    }

    /// Waits for this long to write.
    ///
    /// # Cancel safety
    /// As [`read`](Self::read).
    ///
    /// # Errors
    /// As [`try_read_for`](Self::try_read_for).
    pub async fn try_write_for(&self, limit: Duration) -> Result<Option<Guard>> {
        self.writer().acquire(Wait::For(limit)).await
    }

    /// Makes a writer a reader, with no moment between in which another writer could come in. Readers that wait next are let in at
    /// once. The guard keeps its token. A reader stays one.
    ///
    /// # Cancel safety
    /// The request may still be carried out; the guard goes on to hold in either case.
    ///
    /// # Errors
    /// `is_invalid` when the guard is not of this lock, or was taken through another [`Locks`](crate::Locks) than this one, its
    /// clones and what [`Locks::with`](crate::Locks::with) makes of it; otherwise as [`Guard::renew`].
    pub async fn downgrade(&self, write: &mut Guard) -> Result<()> {
        let is_of_this = matches!(write.rule(), Rule::Queue(seat) if seat.kind == Seat::WRITER.kind);
        if !is_of_this || !write.is_at(&self.0.home, &self.0.full) {
            let (name, other) = (self.0.full.quoted(), write.full_name().quoted());
            return Err(Error::invalid(format!(
                "a guard of {other} is none of the read-write lock {name} of this `Locks`"
            )));
        }
        write.set_lease(None, Some(Seat::READER.weight)).await
    }

    /// The reader's side, as a part of a [`Multi`](crate::Multi).
    pub fn for_read(&self) -> Part {
        Part(self.reader())
    }

    /// The writer's side, as a part of a [`Multi`](crate::Multi).
    pub fn for_write(&self) -> Part {
        Part(self.writer())
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RwLock").field(&self.0.name).finish()
    }
}
