//! Re-entry without a request: the holds that an owner has through one `Locks` share one hold on
//! the store, which ends with the last of them.
//!
//! What the store has is a separate [`Lease`], the *term*: it is renewed, and its loss is the
//! loss of all. Each hold in a caller's hands is a share of it, with an end and listeners of its
//! own.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Arc, Mutex};

use super::Engine;
use super::lease::{Lease, Role, Shares, bind, lock};
use crate::metrics::Meter;
use crate::name::LockName;
use crate::options::{Options, Renewal};
use crate::owner::Owner;
use crate::protocol::lease;

/// The terms of an engine, with at least one share each.
#[derive(Default)]
pub(super) struct Reentries(Mutex<BTreeMap<(LockName, Owner, u64), Arc<Lease>>>);

impl Reentries {
    /// From now on others may share it; false if they could before.
    pub(super) fn add(&self, term: &Arc<Lease>) -> bool {
        lock(&self.0).insert(key(term), Arc::clone(term)).is_none()
    }

    /// The lock was released by force: what its owners had is no more to be entered by.
    pub(super) fn forced(&self, name: &LockName) {
        lock(&self.0).retain(|(known, ..), _| known != name);
    }

    pub(super) fn remove(&self, term: &Lease) {
        lock(&self.0).remove(&key(term));
    }

    /// One more hold for an owner who has the lock, if one of its leases will do for these options.
    pub(super) fn enter(
        &self,
        engine: &Engine,
        name: &LockName,
        owner: &Owner,
        meter: Meter,
        options: &Options,
    ) -> Option<Arc<Lease>> {
        let terms = self.of(name, owner);
        let term = terms.iter().rev().find(|term| term.covers(engine, options))?;
        term.share(meter)
    }

    /// How many more holds the owner has than the store knows of.
    pub(super) fn more(&self, engine: &Engine, name: &LockName, owner: &Owner) -> usize {
        let live = |term: &Arc<Lease>| term.outcome(engine).is_none();
        self.of(name, owner).iter().filter(|term| live(term)).map(|term| term.others()).sum()
    }

    fn of(&self, name: &LockName, owner: &Owner) -> Vec<Arc<Lease>> {
        let key = |hold| (name.clone(), owner.clone(), hold);
        lock(&self.0).range(key(0)..=key(u64::MAX)).map(|(_, term)| Arc::clone(term)).collect()
    }
}

fn key(term: &Lease) -> (LockName, Owner, u64) {
    (term.name.clone(), term.owner.clone(), term.hold)
}

impl Lease {
    /// The first share of what the store has granted.
    pub(super) fn first_share(mut term: Self) -> Arc<Self> {
        term.role = Role::Term(Box::default());
        let term = Arc::new(term);
        term.share_if(term.meter, |_| true).expect("nothing has ended it yet")
    }

    /// One more share, unless the last has left, or the loss is known.
    fn share(self: &Arc<Self>, meter: Meter) -> Option<Arc<Self>> {
        self.share_if(meter, |shares| !shares.leases.is_empty() && !shares.is_closed)
    }

    fn share_if(self: &Arc<Self>, meter: Meter, may: impl FnOnce(&Shares) -> bool) -> Option<Arc<Self>> {
        let Role::Term(shares) = &self.role else { return None };
        let share = {
            let mut shares = lock(shares);
            if !may(&shares) {
                return None;
            }
            let share = Arc::new(self.like(meter, Role::Share(Arc::clone(self))));
            shares.leases.push(Arc::clone(&share));
            share
        };
        // A loss tells those that it finds: it came before, or it tells this one too.
        if self.known_outcome().is_some() {
            share.leave();
            return None;
        }
        Some(share)
    }

    /// Whether a hold with these options can be had without a request: it would be renewed as
    /// this one is, as much is left as of a fresh grant, and the store has not been away since.
    fn covers(&self, engine: &Engine, options: &Options) -> bool {
        let is_renewed = |renewal| renewal == Renewal::Automatic;
        let is_alike = is_renewed(self.renewal)
            && is_renewed(options.renewal)
            && self.end.is_none()
            && options.max_hold.is_none()
            && options.lease() <= self.ttl()
            && options.grace == self.grace
            && bind(options) == self.bind;
        let is_sure = engine.store.interruptions() == self.interruptions;
        let ttl = options.lease();
        let least = (ttl - ttl / 3).saturating_sub(lease::margin(ttl) + self.grace);
        is_alike && is_sure && self.remaining(engine) >= least
    }

    /// Leaves those that share the hold. `None` if it has left before, or shares with none; else
    /// how many are left.
    pub(super) fn leave(&self) -> Option<usize> {
        let Role::Share(term) = &self.role else { return None };
        let Role::Term(shares) = &term.role else { return None };
        let mut shares = lock(shares);
        let before = shares.leases.len();
        shares.leases.retain(|share| !ptr::eq(&**share, self));
        (shares.leases.len() < before).then_some(shares.leases.len())
    }

    /// Whether no other hold shares it. None will from now on.
    pub(crate) fn is_alone(&self) -> bool {
        let Role::Share(term) = &self.role else { return true };
        let Role::Term(shares) = &term.role else { return true };
        let mut shares = lock(shares);
        let is_alone = shares.leases.len() <= 1;
        shares.is_closed |= is_alone;
        is_alone
    }

    fn others(&self) -> usize {
        let Role::Term(shares) = &self.role else { return 0 };
        lock(shares).leases.len().saturating_sub(1)
    }
}
