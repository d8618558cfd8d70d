//! The grants that the holds of one owner share, and the shares.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::grant::{Granting, Lease, LeaseTerms, Role, Shares};
use crate::metrics::Meter;
use crate::name::LockName;
use crate::options::Options;
use crate::owner::Owner;
use crate::sync::Locked;

/// The terms of an engine, each with at least one share.
#[derive(Default)]
pub(super) struct Reentries(Locked<BTreeMap<(LockName, Owner, u64), Arc<Lease>>>);

impl Reentries {
    /// Makes a term available for sharing.
    pub(super) fn add(&self, term: &Arc<Lease>) {
        self.0.lock().insert(key(term), Arc::clone(term));
    }

    /// Closes the terms of a lock that was released by force. Their shares count until they leave, because
    /// the release may have failed.
    pub(super) fn forced(&self, name: &LockName) {
        self.0.lock().values().filter(|term| term.name == *name).for_each(|term| term.close());
    }

    pub(super) fn remove(&self, term: &Lease) {
        self.0.lock().remove(&key(term));
    }

    pub(super) fn of(&self, name: &LockName, owner: &Owner) -> Vec<Arc<Lease>> {
        let key = |hold| (name.clone(), owner.clone(), hold);
        self.0.lock().range(key(0)..=key(u64::MAX)).map(|(_, term)| Arc::clone(term)).collect()
    }
}

fn key(term: &Lease) -> (LockName, Owner, u64) {
    (term.name.clone(), term.owner.clone(), term.hold)
}

impl Lease {
    /// The first share of a grant.
    pub(super) fn first_share(terms: LeaseTerms, request: Granting) -> Arc<Self> {
        let (meter, op_timeout) = (terms.meter, terms.options.op_timeout);
        let term = Arc::new(Self::granted(terms, Role::Term(Box::default()), request));
        term.share_if(meter, op_timeout, |_| true).expect("it is not closed yet")
    }

    /// Another share, unless the last one has left or the term is closed.
    pub(super) fn share(self: &Arc<Self>, meter: Meter, options: &Options) -> Option<Arc<Self>> {
        let is_open = |shares: &Shares| !shares.leases.is_empty() && !shares.is_closed;
        self.share_if(meter, options.op_timeout, is_open)
    }

    fn share_if(
        self: &Arc<Self>,
        meter: Meter,
        op_timeout: Duration,
        may: impl FnOnce(&Shares) -> bool,
    ) -> Option<Arc<Self>> {
        let Role::Term(shares) = &self.role else { return None };
        let mut shares = shares.lock();
        if !may(&shares) {
            return None;
        }
        let share = Arc::new(Self::share_of(self, meter, op_timeout));
        shares.leases.push(Arc::clone(&share));
        Some(share)
    }

    /// Removes it from its term and returns how many shares are left; `None` if it has no term or was removed
    /// before.
    pub(super) fn leave(&self) -> Option<usize> {
        let Role::Share(term) = &self.role else { return None };
        let Role::Term(shares) = &term.role else { return None };
        let mut shares = shares.lock();
        let before = shares.leases.len();
        shares.leases.retain(|share| !ptr::eq(&**share, self));
        (shares.leases.len() < before).then_some(shares.leases.len())
    }

    /// Whether no other hold shares the term. If so, closes the term.
    pub(crate) fn is_alone(&self) -> bool {
        let Role::Share(term) = &self.role else { return true };
        let Role::Term(shares) = &term.role else { return true };
        let mut shares = shares.lock();
        let is_alone = shares.leases.len() <= 1;
        shares.is_closed |= is_alone;
        is_alone
    }

    /// Lets no more holds share it.
    pub(super) fn close(&self) {
        if let Role::Term(shares) = &self.role {
            shares.lock().is_closed = true;
        }
    }

    pub(super) fn others(&self) -> usize {
        let Role::Term(shares) = &self.role else { return 0 };
        shares.lock().leases.len().saturating_sub(1)
    }
}
