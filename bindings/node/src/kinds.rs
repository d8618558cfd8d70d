//! The kinds of locks.

use napi_derive::napi;
use tenure::bindings::AnyLock;
use tenure::{Locks, Owner};

use crate::error::{Result, checked, invalid, whole};

/// Which lock is meant.
#[napi(object)]
pub struct LockSpec {
    /// `mutex`, `fair`, `reentrant`, `read`, `upgradeable`, `write` or `permits`.
    pub kind: String,
    pub name: String,
    /// Of a reentrant mutex.
    pub owner: Option<String>,
    /// Of a semaphore: how many there are, and how many are taken.
    pub permits: Option<f64>,
    pub taken: Option<f64>,
}

pub fn owner(text: &str) -> Result<Owner> {
    checked(text.parse())
}

pub fn lock_of(locks: &Locks, spec: LockSpec) -> Result<AnyLock> {
    let name = spec.name;
    Ok(match spec.kind.as_str() {
        "mutex" => AnyLock::Mutex(checked(locks.mutex(name))?),
        "fair" => AnyLock::Fair(checked(locks.fair_mutex(name))?),
        "reentrant" => {
            let owner = owner(spec.owner.as_deref().unwrap_or_default())?;
            AnyLock::Reentrant(checked(locks.reentrant_mutex(name, &owner))?)
        }
        "read" => AnyLock::Read(checked(locks.rwlock(name))?),
        "upgradeable" => AnyLock::Upgradeable(checked(locks.rwlock(name))?),
        "write" => AnyLock::Write(checked(locks.rwlock(name))?),
        "permits" => {
            let permits = whole("permits", spec.permits.unwrap_or_default())?;
            let (semaphore, taken) =
                (checked(locks.semaphore(name, permits))?, whole("permits", spec.taken.unwrap_or(1.0))?);
            checked(semaphore.for_permits(taken))?;
            AnyLock::Permits(semaphore, taken)
        }
        other => return Err(invalid(format!("kind: got {other:?}"))),
    })
}
