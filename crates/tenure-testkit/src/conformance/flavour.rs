//! All kinds with one holder at a time behind one interface, so that each case is written once.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use futures_util::lock::Mutex;
use tenure::{FairMutex, Guard, Locks, Options, Owner, Result, RwLock, Semaphore};

use super::Fixture;

/// The kind under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// `Mutex`.
    Mutex,
    /// `FairMutex`.
    Fair,
    /// `RwLock`, write locks only.
    Write,
    /// `Semaphore` with one permit.
    OnePermit,
    /// `Semaphore` with five permits, four of which another client holds throughout.
    LastPermit,
    /// `ReentrantMutex`, with a new owner for each acquisition.
    Reentrant,
}

/// A lock of one kind, with the three ways to acquire it.
#[derive(Clone, Debug)]
pub enum Lock {
    /// `tenure::Mutex`.
    Mutex(tenure::Mutex),
    /// `FairMutex`.
    Fair(FairMutex),
    /// `RwLock`, write locks only.
    Write(RwLock),
    /// A single permit.
    Permit(Semaphore),
    /// A new owner for each acquisition.
    Reentrant(Locks, String),
}

/// Permits held so that one is left, by full name.
pub(super) type Taken = Mutex<BTreeMap<String, Guard>>;

impl Fixture {
    /// The lock of this name, of the kind under test.
    pub async fn mutex(&self, locks: &Locks, name: &str) -> Lock {
        match self.flavour {
            Flavour::Mutex => Lock::Mutex(locks.mutex(name).expect("a name")),
            Flavour::Fair => Lock::Fair(locks.fair_mutex(name).expect("a name")),
            Flavour::Write => Lock::Write(locks.rwlock(name).expect("a name")),
            Flavour::OnePermit => Lock::Permit(locks.semaphore(name, 1).expect("a name")),
            Flavour::Reentrant => Lock::Reentrant(locks.clone(), name.to_owned()),
            Flavour::LastPermit => {
                let full = format!("{}{name}", locks.options().prefix);
                // One at a time: concurrent requests for four permits would wait forever.
                let mut taken = self.taken.lock().await;
                if let Entry::Vacant(four) = taken.entry(full) {
                    let others = self.client_with(Options::new().ttl(Duration::from_secs(60)));
                    let five = others.semaphore(four.key(), 5).expect("a name");
                    four.insert(five.acquire_many(4).await.expect("four of five"));
                }
                Lock::Permit(locks.semaphore(name, 5).expect("a name"))
            }
        }
    }

    /// Whether the lock is free, tested by acquiring and releasing it.
    pub async fn is_free(&self, locks: &Locks, name: &str) -> bool {
        match self.mutex(locks, name).await.try_lock().await.expect("an answer") {
            Some(guard) => guard.release().await.is_ok(),
            None => false,
        }
    }
}

impl Lock {
    /// Waits for the lock.
    ///
    /// # Errors
    /// Those of the kind.
    pub async fn lock(&self) -> Result<Guard> {
        match self {
            Self::Mutex(mutex) => mutex.lock().await,
            Self::Fair(mutex) => mutex.lock().await,
            Self::Write(lock) => lock.write().await.map(Into::into),
            Self::Permit(semaphore) => semaphore.acquire().await,
            Self::Reentrant(locks, name) => locks.reentrant_mutex(name, &Owner::new("anew")?)?.lock().await,
        }
    }

    /// Tries once.
    ///
    /// # Errors
    /// Those of the kind.
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        match self {
            Self::Mutex(mutex) => mutex.try_lock().await,
            Self::Fair(mutex) => mutex.try_lock().await,
            Self::Write(lock) => Ok(lock.try_write().await?.map(Into::into)),
            Self::Permit(semaphore) => semaphore.try_acquire().await,
            Self::Reentrant(locks, name) => {
                locks.reentrant_mutex(name, &Owner::new("anew")?)?.try_lock().await
            }
        }
    }

    /// Waits up to `limit`.
    ///
    /// # Errors
    /// Those of the kind.
    pub async fn try_lock_for(&self, limit: Duration) -> Result<Option<Guard>> {
        match self {
            Self::Mutex(mutex) => mutex.try_lock_for(limit).await,
            Self::Fair(mutex) => mutex.try_lock_for(limit).await,
            Self::Write(lock) => Ok(lock.try_write_for(limit).await?.map(Into::into)),
            Self::Permit(semaphore) => semaphore.try_acquire_for(limit).await,
            Self::Reentrant(locks, name) => {
                locks.reentrant_mutex(name, &Owner::new("anew")?)?.try_lock_for(limit).await
            }
        }
    }
}
