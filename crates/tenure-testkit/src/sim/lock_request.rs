//! What a task acquires: a lock of any kind, or two locks at once, in one of three ways.

use std::sync::Arc;
use std::time::Duration;

use tenure::internals::protocol::QueueSpec;
use tenure::{
    Error, FairMutex, Guard, Lost, Multi, MultiGuard, Mutex, Owner, Part, ReentrantMutex, RwLock, Semaphore,
};
use tenure::{LockName, Locks};

use super::executor::Sim;
use super::oracle::Claim;
use super::regime::LockKind;

/// A lock as one task requests it.
#[derive(Debug)]
pub(super) enum LockRequest {
    Mutex(Mutex),
    Fair(FairMutex),
    Read(RwLock),
    Upgradeable(RwLock),
    Write(RwLock),
    /// A number of permits.
    Permits(Semaphore, u32),
    Reentrant(ReentrantMutex),
    /// Several locks at once.
    Both(Multi),
}

/// What was granted.
#[derive(Debug)]
pub(super) enum Got {
    One(Guard),
    Both(MultiGuard),
}

impl LockRequest {
    /// Draws a request for one lock.
    pub(super) fn draw(
        sim: &Sim,
        locks: &Locks,
        name: &LockName,
        sort: LockKind,
        owners: &[Owner],
    ) -> Result<Self, Error> {
        let name = name.as_str();
        Ok(match sort {
            LockKind::Mutex => Self::Mutex(locks.mutex(name)?),
            LockKind::Fair => Self::Fair(locks.fair_mutex(name)?),
            LockKind::RwLock => match sim.choose(5) {
                0 | 1 => Self::Read(locks.rwlock(name)?),
                2 => Self::Upgradeable(locks.rwlock(name)?),
                _ => Self::Write(locks.rwlock(name)?),
            },
            LockKind::Semaphore(permits) => {
                Self::Permits(locks.semaphore(name, permits)?, 1 + sim.choose(permits))
            }
            LockKind::Reentrant => {
                let owner = &owners[sim.choose(owners.len() as u32) as usize];
                Self::Reentrant(locks.reentrant_mutex(name, owner)?)
            }
        })
    }

    /// How much of the lock's capacity it takes.
    pub(super) fn weight(&self) -> u32 {
        match self {
            Self::Mutex(_) | Self::Fair(_) | Self::Read(_) | Self::Reentrant(_) | Self::Both(_) => 1,
            Self::Upgradeable(_) => QueueSpec::UPGRADEABLE.weight,
            Self::Write(_) => QueueSpec::WRITER.weight,
            Self::Permits(_, permits) => *permits,
        }
    }

    /// A request for all of these at once.
    pub(super) fn both(requests: impl IntoIterator<Item = Self>) -> Result<Self, Error> {
        let parts: Result<Vec<Part>, Error> = requests.into_iter().map(Self::part).collect();
        Multi::new(parts?).map(Self::Both)
    }

    fn part(self) -> Result<Part, Error> {
        match self {
            Self::Mutex(lock) => Ok(lock.into()),
            Self::Fair(lock) => Ok(lock.into()),
            Self::Read(lock) | Self::Upgradeable(lock) => Ok(lock.for_read()),
            Self::Write(lock) => Ok(lock.for_write()),
            Self::Permits(lock, permits) => lock.for_permits(permits),
            Self::Reentrant(lock) => Ok(lock.into()),
            Self::Both(_) => unreachable!("several at once are no part"),
        }
    }

    pub(super) async fn lock(&self) -> Result<Got, Error> {
        Ok(Got::One(match self {
            Self::Mutex(lock) => lock.lock().await?,
            Self::Fair(lock) => lock.lock().await?,
            Self::Read(lock) => lock.read().await?.into(),
            Self::Upgradeable(lock) => lock.upgradeable_read().await?.into(),
            Self::Write(lock) => lock.write().await?.into(),
            Self::Permits(lock, permits) => lock.acquire_many(*permits).await?,
            Self::Reentrant(lock) => lock.lock().await?,
            Self::Both(locks) => return locks.lock().await.map(Got::Both),
        }))
    }

    pub(super) async fn try_lock(&self) -> Result<Option<Got>, Error> {
        let guard = match self {
            Self::Mutex(lock) => lock.try_lock().await?,
            Self::Fair(lock) => lock.try_lock().await?,
            Self::Read(lock) => lock.try_read().await?.map(Into::into),
            Self::Upgradeable(lock) => lock.try_upgradeable_read().await?.map(Into::into),
            Self::Write(lock) => lock.try_write().await?.map(Into::into),
            Self::Permits(lock, permits) => lock.try_acquire_many(*permits).await?,
            Self::Reentrant(lock) => lock.try_lock().await?,
            Self::Both(locks) => return Ok(locks.try_lock().await?.map(Got::Both)),
        };
        Ok(guard.map(Got::One))
    }

    pub(super) async fn try_lock_for(&self, limit: Duration) -> Result<Option<Got>, Error> {
        let guard = match self {
            Self::Mutex(lock) => lock.try_lock_for(limit).await?,
            Self::Fair(lock) => lock.try_lock_for(limit).await?,
            Self::Read(lock) => lock.try_read_for(limit).await?.map(Into::into),
            Self::Upgradeable(lock) => lock.try_upgradeable_read_for(limit).await?.map(Into::into),
            Self::Write(lock) => lock.try_write_for(limit).await?.map(Into::into),
            Self::Permits(lock, permits) => lock.try_acquire_many_for(*permits, limit).await?,
            Self::Reentrant(lock) => lock.try_lock_for(limit).await?,
            Self::Both(locks) => return Ok(locks.try_lock_for(limit).await?.map(Got::Both)),
        };
        Ok(guard.map(Got::One))
    }
}

/// One of several guards held together, for the oracle.
#[derive(Debug)]
pub(super) struct OneOf(pub(super) Arc<MultiGuard>, pub(super) usize);

impl OneOf {
    pub(super) fn guard(&self) -> &Guard {
        &self.0[self.1]
    }
}

impl Claim for OneOf {
    fn is_held(&self) -> bool {
        self.guard().is_held()
    }

    fn fence(&self) -> u64 {
        self.guard().fence()
    }
}

/// The guards that a task holds.
pub(super) trait Hand {
    /// Resolves when one of them is lost.
    fn lost(&self) -> Lost;
}

impl Hand for Guard {
    fn lost(&self) -> Lost {
        Self::lost(self)
    }
}

impl Hand for MultiGuard {
    fn lost(&self) -> Lost {
        Self::lost(self)
    }
}
