use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::guard::{Guard, settled, unless_lost};
use crate::owner::Owner;
use crate::run_error::RunError;

/// A read lock held on an [`RwLock`](crate::RwLock), returned by [`RwLock::read`](crate::RwLock::read).
///
/// It has all methods of [`Guard`]. Convert it with `Guard::from` for code that handles locks of any kind.
///
/// ```
/// # tenure::block_on(async {
/// use tenure::{Guard, Locks};
///
/// let locks = Locks::memory();
/// let reader = locks.rwlock("config")?.read().await?;
/// assert!(reader.is_held());
/// let any: Guard = reader.into();
/// any.release().await?;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "the lock is released when its guard is dropped"]
pub struct ReadGuard(Guard);

/// A write lock held on an [`RwLock`](crate::RwLock), returned by [`RwLock::write`](crate::RwLock::write).
///
/// It has all methods of [`Guard`], and [`downgrade`](Self::downgrade). Convert it with `Guard::from` for
/// code that handles locks of any kind.
///
/// ```
/// # tenure::block_on(async {
/// use tenure::{Guard, Locks};
///
/// let locks = Locks::memory();
/// let writer = locks.rwlock("config")?.write().await?;
/// assert!(writer.fence() > 0);
/// let any: Guard = writer.into();
/// any.release().await?;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "the lock is released when its guard is dropped"]
pub struct WriteGuard(Guard);

/// A read lock that can become the write lock, returned by
/// [`RwLock::upgradeable_read`](crate::RwLock::upgradeable_read).
///
/// It has all methods of [`Guard`], and [`upgrade`](Self::upgrade) and [`downgrade`](Self::downgrade).
/// Convert it with `Guard::from` for code that handles locks of any kind.
///
/// ```
/// # tenure::block_on(async {
/// let lock = tenure::Locks::memory().rwlock("config")?;
/// let reader = lock.upgradeable_read().await?;
/// let is_outdated = true; // read, beside other readers
/// if is_outdated {
///     let writer = reader.upgrade().await?; // no writer has come between
///     writer.release().await?;
/// }
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "the lock is released when its guard is dropped"]
pub struct UpgradeableGuard(Guard);

impl UpgradeableGuard {
    /// Waits until the other readers have left, then holds the lock exclusively as the writer. No other
    /// writer gets in between, and no new reader is granted meanwhile. The token stays the same: it is
    /// greater than those of all earlier writers and smaller than those of all later ones.
    ///
    /// Two upgrades cannot deadlock, because only one guard at a time is upgradeable. A reader that waits for
    /// this guard's holder by other means, such as a message, would still deadlock.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// let lock = tenure::Locks::memory().rwlock("config")?;
    /// let writer = lock.upgradeable_read().await?.upgrade().await?;
    /// assert!(lock.try_read().await?.is_none());
    /// writer.release().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future drops the guard with it and releases the lock. Use
    /// [`try_upgrade_for`](Self::try_upgrade_for) to give up after a while and continue as a reader.
    ///
    /// # Errors
    /// As [`Guard::renew`], except that failures that pass within the lease are retried. The error contains
    /// the guard, which remains a reader unless it is lost. After [`is_unknown`](Error::is_unknown) the store
    /// may still keep other readers out: upgrade again, downgrade, or release.
    pub async fn upgrade(self) -> Result<WriteGuard, UpgradeError> {
        match self.0.upgrade(None).await {
            Ok(true) => Ok(WriteGuard(self.0)),
            Ok(false) => unreachable!("a wait without a limit ends as a writer or with an error"),
            Err(error) => Err(UpgradeError { error, guard: self }),
        }
    }

    /// Asks once. Returns the writer's guard, or this guard in `Err` if other readers hold the lock.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// let lock = tenure::Locks::memory().rwlock("config")?;
    /// let other = lock.read().await?;
    /// let reader = lock.upgradeable_read().await?.try_upgrade().await?.expect_err("another reads");
    /// other.release().await?;
    /// let writer = reader.try_upgrade().await?.expect("it is the only reader");
    /// writer.release().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`upgrade`](Self::upgrade).
    ///
    /// # Errors
    /// As [`upgrade`](Self::upgrade).
    pub async fn try_upgrade(self) -> Result<Result<WriteGuard, Self>, UpgradeError> {
        self.try_upgrade_for(Duration::ZERO).await
    }

    /// Waits for at most `limit`. Returns the writer's guard, or this guard in `Err` if other readers still
    /// hold the lock by then.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// use std::time::Duration;
    ///
    /// let lock = tenure::Locks::memory().rwlock("config")?;
    /// let reader = lock.upgradeable_read().await?;
    /// match reader.try_upgrade_for(Duration::from_secs(2)).await? {
    ///     Ok(writer) => writer.release().await?,
    ///     Err(reader) => reader.release().await?,
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`upgrade`](Self::upgrade).
    ///
    /// # Errors
    /// As [`upgrade`](Self::upgrade); also `is_unreachable` or `is_unknown` if the store is not answering
    /// when the limit is reached.
    pub async fn try_upgrade_for(self, limit: Duration) -> Result<Result<WriteGuard, Self>, UpgradeError> {
        match self.0.upgrade(Some(limit)).await {
            Ok(true) => Ok(Ok(WriteGuard(self.0))),
            Ok(false) => Ok(Err(self)),
            Err(error) => Err(UpgradeError { error, guard: self }),
        }
    }

    /// Becomes an ordinary reader, so that another reader can be upgradeable. The token stays the same.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// let lock = tenure::Locks::memory().rwlock("config")?;
    /// let reader = lock.upgradeable_read().await?.downgrade().await?;
    /// assert!(lock.try_upgradeable_read().await?.is_some());
    /// reader.release().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future drops the guard with it and releases the lock.
    ///
    /// # Errors
    /// As [`Guard::renew`]. The error contains the guard, which is unchanged. After
    /// [`is_unknown`](Error::is_unknown) the store may have it as an ordinary reader: downgrade again, or release.
    /// An upgrade then fails with `is_unknown`.
    pub async fn downgrade(self) -> Result<ReadGuard, UpgradeError> {
        match self.0.downgrade().await {
            Ok(()) => Ok(ReadGuard(self.0)),
            Err(error) => Err(UpgradeError { error, guard: self }),
        }
    }
}

/// The error of an [`UpgradeableGuard`] that could not be upgraded or downgraded, with the guard.
///
/// `?` converts it into an [`Error`] and drops the guard, which releases the lock.
///
/// ```
/// # tenure::block_on(async {
/// use tenure::{Result, UpgradeableGuard, WriteGuard};
///
/// async fn insist(reader: UpgradeableGuard) -> Result<WriteGuard> {
///     match reader.upgrade().await {
///         Ok(writer) => Ok(writer),
///         Err(failed) if failed.error.is_unknown() => Ok(failed.guard.upgrade().await?),
///         Err(failed) => Err(failed.error),
///     }
/// }
///
/// let lock = tenure::Locks::memory().rwlock("config")?;
/// let writer = insist(lock.upgradeable_read().await?).await?;
/// # assert!(writer.is_held());
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct UpgradeError {
    /// The cause.
    pub error: Error,
    /// The guard, which is still a reader as far as this client knows.
    pub guard: UpgradeableGuard,
}

impl WriteGuard {
    /// Becomes a reader without letting another writer in between. Readers at the head of the queue are
    /// granted at once. The token stays the same.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// let lock = tenure::Locks::memory().rwlock("config")?;
    /// let reader = lock.write().await?.downgrade().await?;
    /// assert!(lock.try_read().await?.is_some());
    /// assert!(lock.try_write().await?.is_none());
    /// reader.release().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future drops the guard with it and releases the lock.
    ///
    /// # Errors
    /// As [`Guard::renew`]. The error contains the guard, which is unchanged. After
    /// [`is_unknown`](Error::is_unknown) the store may have granted readers: downgrade again, or release.
    pub async fn downgrade(self) -> Result<ReadGuard, DowngradeError> {
        match self.0.downgrade().await {
            Ok(()) => Ok(ReadGuard(self.0)),
            Err(error) => Err(DowngradeError { error, guard: self }),
        }
    }
}

/// The error of a failed [`WriteGuard::downgrade`], with the guard.
///
/// `?` converts it into an [`Error`] and drops the guard, which releases the lock. Keep the guard to try
/// again:
///
/// ```
/// # tenure::block_on(async {
/// use tenure::{ReadGuard, Result, WriteGuard};
///
/// async fn insist(writer: WriteGuard) -> Result<ReadGuard> {
///     match writer.downgrade().await {
///         Ok(reader) => Ok(reader),
///         Err(failed) if failed.error.is_unknown() => Ok(failed.guard.downgrade().await?),
///         Err(failed) => Err(failed.error),
///     }
/// }
///
/// let lock = tenure::Locks::memory().rwlock("config")?;
/// let reader = insist(lock.write().await?).await?;
/// # assert!(reader.is_held());
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct DowngradeError {
    /// The cause.
    pub error: Error,
    /// The guard, which is still a writer as far as this client knows.
    pub guard: WriteGuard,
}

/// Implements what the errors with a guard share: they are their cause.
macro_rules! error_with_guard {
    ($kind:ident) => {
        impl From<$kind> for Error {
            fn from(failed: $kind) -> Self {
                failed.error
            }
        }

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.error, f)
            }
        }

        impl std::error::Error for $kind {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                std::error::Error::source(&self.error)
            }
        }
    };
}

error_with_guard!(UpgradeError);
error_with_guard!(DowngradeError);

/// Implements what the typed guards share with [`Guard`]: the methods that consume the guard, which `Deref`
/// does not reach.
macro_rules! guard {
    ($kind:ident, $take:ident) => {
        impl $kind {
            pub(crate) fn new(guard: Guard) -> Self {
                Self(guard)
            }

            /// Releases the lock and reports the outcome: as [`Guard::release`].
            ///
            /// ```
            /// # tenure::block_on(async {
            /// # let lock = tenure::Locks::memory().rwlock("config")?;
            #[doc = concat!("lock.", stringify!($take), "().await?.release().await?;")]
            /// # Ok::<(), tenure::Error>(()) }).unwrap();
            /// ```
            ///
            /// # Errors
            /// As [`Guard::release`].
            pub async fn release(self) -> Result<()> {
                self.0.release().await
            }

            /// Stops renewing without releasing, so that another process can resume the hold: as
            /// [`Guard::detach`].
            ///
            /// ```
            /// # tenure::block_on(async {
            /// # let locks = tenure::Locks::memory();
            #[doc = concat!("let owner = locks.rwlock(\"config\")?.", stringify!($take), "().await?.detach().await?;")]
            /// assert!(locks.resume("config", &owner).await?.is_some());
            /// # Ok::<(), tenure::Error>(()) }).unwrap();
            /// ```
            ///
            /// # Errors
            /// As [`Guard::detach`].
            pub async fn detach(self) -> Result<Owner> {
                self.0.detach().await
            }

            /// Runs `work` under the lock, then releases it: as [`Guard::run`].
            ///
            /// ```
            /// # tenure::block_on(async {
            /// # let lock = tenure::Locks::memory().rwlock("config")?;
            #[doc = concat!("let guard = lock.", stringify!($take), "().await?;")]
            /// assert!(guard.run(async |guard| guard.fence()).await? > 0);
            /// # Ok::<(), tenure::Error>(()) }).unwrap();
            /// ```
            ///
            /// # Errors
            /// As [`Guard::run`].
            pub async fn run<T>(self, work: impl AsyncFnOnce(&Self) -> T) -> Result<T> {
                let value = unless_lost(self.lost(), work(&self)).await?;
                Ok(settled(value, self.release().await)?)
            }

            /// Runs `work` under the lock, then releases it: as [`Guard::run_future`].
            ///
            /// ```
            /// # tenure::block_on(async {
            /// # let lock = tenure::Locks::memory().rwlock("config")?;
            #[doc = concat!("let guard = lock.", stringify!($take), "().await?;")]
            /// assert_eq!(guard.run_future(async { 17 }).await?, 17);
            /// # Ok::<(), tenure::Error>(()) }).unwrap();
            /// ```
            ///
            /// # Errors
            /// As [`Guard::run`].
            pub async fn run_future<F: Future>(self, work: F) -> Result<F::Output> {
                self.0.run_future(work).await
            }

            /// Runs `work` under the lock, then releases it: as [`Guard::run_recoverable`].
            ///
            /// ```
            /// # tenure::block_on(async {
            /// # let lock = tenure::Locks::memory().rwlock("config")?;
            #[doc = concat!("let guard = lock.", stringify!($take), "().await?;")]
            /// assert_eq!(guard.run_recoverable(async { 17 }).await?, 17);
            /// # Ok::<(), tenure::Error>(()) }).unwrap();
            /// ```
            ///
            /// # Errors
            /// As [`Guard::run`].
            pub async fn run_recoverable<F: Future>(
                self,
                work: F,
            ) -> Result<F::Output, RunError<F::Output>> {
                self.0.run_recoverable(work).await
            }
        }

        impl Deref for $kind {
            type Target = Guard;

            fn deref(&self) -> &Guard {
                &self.0
            }
        }

        impl From<$kind> for Guard {
            fn from(guard: $kind) -> Self {
                guard.0
            }
        }
    };
}

guard!(ReadGuard, read);
guard!(UpgradeableGuard, upgradeable_read);
guard!(WriteGuard, write);
