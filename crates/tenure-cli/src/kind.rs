//! Which locks a run wants.

use tenure::{Kind, Locks, Multi, Owner, Part, Share, Status};

use crate::cli::Run;
use crate::exit::Failure;

/// All that are to be held at once: NAME first, then the others as given.
pub(crate) fn all(args: &Run, locks: &Locks) -> Result<Multi, Failure> {
    let owner = match (&args.kind.owner, args.kind.reentrant) {
        (Some(owner), _) => Some(owner.parse::<Owner>()?),
        (None, true) => Some(Owner::new(&locks.options().label)?),
        (None, false) => None,
    };
    let names = [&args.name].into_iter().chain(&args.also);
    let parts: Result<Vec<_>, Failure> = names.map(|name| one(args, locks, name, owner.as_ref())).collect();
    Ok(Multi::new(parts?)?)
}

fn one(args: &Run, locks: &Locks, name: &str, owner: Option<&Owner>) -> Result<Part, Failure> {
    let kind = &args.kind;
    Ok(match (owner, kind.slots) {
        (Some(owner), _) => locks.reentrant_mutex(name, owner)?.into(),
        (None, Some(slots)) => locks.semaphore(name, slots)?.for_permits(kind.take.unwrap_or(1))?,
        _ if kind.shared => locks.rwlock(name)?.for_read(),
        _ if kind.exclusive => locks.rwlock(name)?.for_write(),
        _ if kind.fair => locks.fair_mutex(name)?.into(),
        _ => locks.mutex(name)?.into(),
    })
}

/// Whether this run could get a lock that only these hold.
pub(crate) fn has_room(args: &Run, others: &Status) -> bool {
    let (all, kind) = (&others.holders, &args.kind);
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
    // Those who wait go first.
    has_room && others.waiters.is_empty()
}
