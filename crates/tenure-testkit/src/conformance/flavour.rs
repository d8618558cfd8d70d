//! Every kind that has one holder at a time, behind one face: so that a case about that is written
//! once.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use futures_util::lock::Mutex;
use tenure::{FairMutex, Guard, Locks, Options, Owner, Result, RwLock, Semaphore};

use super::Fixture;

/// Which kind plays the mutex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// `Mutex`.
    Mutex,
    /// `FairMutex`.
    Fair,
    /// `RwLock`, only written.
    Write,
    /// `Semaphore` with one permit.
    OnePermit,
    /// `Semaphore` with five, of which another client has four all the time.
    LastPermit,
    /// `ReentrantMutex`, each time with its own owner.
    Reentrant,
}

/// One lock of some kind with the three ways to ask for it.
#[derive(Clone, Debug)]
pub enum Lock {
    /// As named.
    Mutex(tenure::Mutex),
    /// As named.
    Fair(FairMutex),
    /// As named.
    Write(RwLock),
    /// One permit.
    Permit(Semaphore),
    /// With a fresh owner each time.
    Reentrant(Locks, String),
}

/// Permits that are held so that one is left, by full name.
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
                // One at a time: a request for four would wait for ever.
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

    /// Whether no client holds it, found out by holding it.
    pub async fn is_free(&self, locks: &Locks, name: &str) -> bool {
        match self.mutex(locks, name).await.try_lock().await.expect("an answer") {
            Some(guard) => guard.release().await.is_ok(),
            None => false,
        }
    }
}

impl Lock {
    /// Waits for it.
    ///
    /// # Errors
    /// The kind's own.
    pub async fn lock(&self) -> Result<Guard> {
        match self {
            Self::Mutex(mutex) => mutex.lock().await,
            Self::Fair(mutex) => mutex.lock().await,
            Self::Write(lock) => lock.write().await.map(Into::into),
            Self::Permit(semaphore) => semaphore.acquire().await,
            Self::Reentrant(locks, name) => locks.reentrant_mutex(name, &Owner::new("anew")?)?.lock().await,
        }
    }

    /// Asks once.
    ///
    /// # Errors
    /// The kind's own.
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

    /// Waits this long.
    ///
    /// # Errors
    /// The kind's own.
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
