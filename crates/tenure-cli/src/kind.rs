//! The kinds of locks to acquire.

use tenure::{Kind, Locks, Multi, Owner, Part, Share, Status};

use crate::cli;
use crate::exit::Failure;
use crate::wanted::Wanted;

/// All locks to hold at once: NAME first, then the others in the order given.
pub(crate) fn all(wanted: &Wanted<'_>) -> Result<Multi, Failure> {
    let kind = &wanted.request.kind;
    let owner = match (&kind.owner, kind.reentrant) {
        (Some(owner), _) => Some(owner.parse::<Owner>()?),
        (None, true) => Some(Owner::new(&wanted.locks.options().label)?),
        (None, false) => None,
    };
    let one = |name: &String| one(kind, wanted.locks, name, owner.as_ref());
    let parts: Result<Vec<_>, Failure> = wanted.names().map(one).collect();
    Ok(Multi::new(parts?)?)
}

fn one(kind: &cli::Kind, locks: &Locks, name: &str, owner: Option<&Owner>) -> Result<Part, Failure> {
    Ok(match (owner, kind.slots) {
        (Some(owner), _) => locks.reentrant_mutex(name, owner)?.into(),
        (None, Some(slots)) => locks.semaphore(name, slots)?.for_permits(kind.take.unwrap_or(1))?,
        _ if kind.shared => locks.rwlock(name)?.for_read(),
        _ if kind.exclusive => locks.rwlock(name)?.for_write(),
        _ if kind.fair => locks.fair_mutex(name)?.into(),
        _ => locks.mutex(name)?.into(),
    })
}

/// Whether a request of this kind fits beside these holders.
pub(crate) fn has_room(kind: &cli::Kind, others: &Status) -> bool {
    let all = &others.holders;
    let has_room = match (others.kind, others.permits) {
        (Kind::RwLock, _) if kind.shared => all.iter().all(|holder| holder.share == Share::Reader),
        (Kind::Semaphore, Some(permits)) => {
            let taken = all.iter().fold(0_u32, |taken, holder| match holder.share {
                Share::Permits(permits) => taken.saturating_add(permits),
                _ => taken,
            });
            taken.saturating_add(kind.take.unwrap_or(1)) <= permits
        }
        _ => all.is_empty(),
    };
    // Waiters go first.
    has_room && others.waiters.is_empty()
}
