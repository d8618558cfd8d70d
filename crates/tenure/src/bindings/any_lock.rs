use std::time::Duration;

use super::any_guard::AnyGuard;
use crate::error::{Error, Result};
use crate::fair::FairMutex;
use crate::multi::{Multi, Part};
use crate::mutex::Mutex;
use crate::reentrant::ReentrantMutex;
use crate::rwlock::RwLock;
use crate::semaphore::Semaphore;

/// A lock of any kind.
#[derive(Clone, Debug)]
pub enum AnyLock {
    /// A mutex.
    Mutex(Mutex),
    /// A fair mutex.
    Fair(FairMutex),
    /// A reentrant mutex.
    Reentrant(ReentrantMutex),
    /// A reader.
    Read(RwLock),
    /// The reader that may become the writer.
    Upgradeable(RwLock),
    /// The writer.
    Write(RwLock),
    /// Permits of a semaphore, and how many.
    Permits(Semaphore, u32),
    /// Several locks.
    Multi(Multi),
}

/// Calls the method of a lock for a wait.
macro_rules! by_wait {
    ($wait:expr, $lock:ident.$forever:ident / $once:ident / $within:ident($($argument:expr),*)) => {
        match $wait {
            None => $lock.$forever($($argument),*).await.map(|guard| Some(guard.into())),
            Some(Duration::ZERO) => $lock.$once($($argument),*).await.map(|guard| guard.map(Into::into)),
            Some(limit) => $lock.$within($($argument,)* limit).await.map(|guard| guard.map(Into::into)),
        }
    };
}

impl AnyLock {
    /// Waits without a limit, or for so long; not at all if that is zero. `None` if the lock is busy.
    ///
    /// # Errors
    /// Those of the lock.
    pub async fn acquire(&self, wait: Option<Duration>) -> Result<Option<AnyGuard>> {
        match self {
            Self::Mutex(lock) => by_wait!(wait, lock.lock / try_lock / try_lock_for()),
            Self::Fair(lock) => by_wait!(wait, lock.lock / try_lock / try_lock_for()),
            Self::Reentrant(lock) => by_wait!(wait, lock.lock / try_lock / try_lock_for()),
            Self::Multi(lock) => by_wait!(wait, lock.lock / try_lock / try_lock_for()),
            Self::Read(lock) => by_wait!(wait, lock.read / try_read / try_read_for()),
            Self::Write(lock) => by_wait!(wait, lock.write / try_write / try_write_for()),
            Self::Upgradeable(lock) => {
                by_wait!(wait, lock.upgradeable_read / try_upgradeable_read / try_upgradeable_read_for())
            }
            Self::Permits(lock, count) => {
                by_wait!(wait, lock.acquire_many / try_acquire_many / try_acquire_many_for(*count))
            }
        }
    }

    /// The lock as a part of a [`Multi`].
    ///
    /// # Errors
    /// `is_invalid` for kinds that cannot be one.
    pub fn part(&self) -> Result<Part> {
        Ok(match self.clone() {
            Self::Mutex(lock) => lock.into(),
            Self::Fair(lock) => lock.into(),
            Self::Reentrant(lock) => lock.into(),
            Self::Read(lock) => lock.for_read(),
            Self::Write(lock) => lock.for_write(),
            Self::Permits(semaphore, count) => semaphore.for_permits(count)?,
            Self::Upgradeable(_) | Self::Multi(_) => {
                return Err(Error::invalid("a multi-lock consists of mutexes, readers, writers and permits"));
            }
        })
    }

    /// How often its owner holds a reentrant mutex; 0 for other locks.
    ///
    /// # Errors
    /// As [`ReentrantMutex::hold_count`].
    pub async fn hold_count(&self) -> Result<u32> {
        match self {
            Self::Reentrant(lock) => lock.hold_count().await,
            _ => Ok(0),
        }
    }
}
