//! The kinds of locks, and their acquisition.

use std::time::Duration;

use napi_derive::napi;
use tenure::{FairMutex, Locks, Multi, Mutex, Owner, Part, ReentrantMutex, RwLock, Semaphore};

use crate::error::{Result, checked, invalid};
use crate::hold::Held;

/// Which lock is meant.
#[napi(object)]
pub struct LockSpec {
    /// `mutex`, `fair`, `reentrant`, `read`, `upgradeable`, `write` or `permits`.
    pub kind: String,
    pub name: String,
    /// Of a reentrant mutex.
    pub owner: Option<String>,
    /// Of a semaphore: how many there are, and how many are taken.
    pub permits: Option<u32>,
    pub taken: Option<u32>,
}

pub enum Kind {
    Mutex(Mutex),
    Fair(FairMutex),
    Reentrant(ReentrantMutex),
    Read(RwLock),
    Upgradeable(RwLock),
    Write(RwLock),
    Permits(Semaphore, u32),
    Multi(Multi),
}

pub fn owner(text: &str) -> Result<Owner> {
    checked(text.parse())
}

impl Kind {
    pub fn of(locks: &Locks, spec: LockSpec) -> Result<Self> {
        let name = spec.name;
        Ok(match spec.kind.as_str() {
            "mutex" => Self::Mutex(checked(locks.mutex(name))?),
            "fair" => Self::Fair(checked(locks.fair_mutex(name))?),
            "reentrant" => {
                let owner = owner(spec.owner.as_deref().unwrap_or_default())?;
                Self::Reentrant(checked(locks.reentrant_mutex(name, &owner))?)
            }
            "read" => Self::Read(checked(locks.rwlock(name))?),
            "upgradeable" => Self::Upgradeable(checked(locks.rwlock(name))?),
            "write" => Self::Write(checked(locks.rwlock(name))?),
            "permits" => {
                let semaphore = checked(locks.semaphore(name, spec.permits.unwrap_or_default()))?;
                let taken = spec.taken.unwrap_or(1);
                checked(semaphore.for_permits(taken))?;
                Self::Permits(semaphore, taken)
            }
            other => return Err(invalid(format!("kind: got {other:?}"))),
        })
    }

    pub fn into_part(self) -> Result<Part> {
        Ok(match self {
            Self::Mutex(lock) => lock.into(),
            Self::Fair(lock) => lock.into(),
            Self::Reentrant(lock) => lock.into(),
            Self::Read(lock) => lock.for_read(),
            Self::Write(lock) => lock.for_write(),
            Self::Permits(semaphore, taken) => checked(semaphore.for_permits(taken))?,
            Self::Upgradeable(_) | Self::Multi(_) => {
                return Err(invalid("a multi-lock consists of mutexes, readers, writers and permits"));
            }
        })
    }
}

/// Calls the method of a lock that waits without a limit, or the one with a limit, which tries once if it is zero.
macro_rules! by_wait {
    ($wait:expr, $into:expr, $lock:ident.$forever:ident / $within:ident($($argument:expr),*)) => {
        match $wait {
            None => $lock.$forever($($argument),*).await.map(|guard| Some($into(guard))),
            Some(limit) => $lock.$within($($argument,)* limit).await.map(|guard| guard.map($into)),
        }
    };
}

pub async fn acquire(kind: &Kind, wait: Option<Duration>) -> tenure::Result<Option<Held>> {
    let reader = |guard: tenure::ReadGuard| Held::Plain(guard.into());
    match kind {
        Kind::Mutex(one) => by_wait!(wait, Held::Plain, one.lock / try_lock_for()),
        Kind::Fair(one) => by_wait!(wait, Held::Plain, one.lock / try_lock_for()),
        Kind::Reentrant(one) => by_wait!(wait, Held::Plain, one.lock / try_lock_for()),
        Kind::Multi(all) => by_wait!(wait, Held::Multi, all.lock / try_lock_for()),
        Kind::Read(one) => by_wait!(wait, reader, one.read / try_read_for()),
        Kind::Write(one) => by_wait!(wait, Held::Write, one.write / try_write_for()),
        Kind::Upgradeable(one) => {
            by_wait!(wait, Held::Upgradeable, one.upgradeable_read / try_upgradeable_read_for())
        }
        Kind::Permits(one, taken) => {
            by_wait!(wait, Held::Plain, one.acquire_many / try_acquire_many_for(*taken))
        }
    }
}
