//! The grants that the holds of one owner share, and the shares.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::grant::{Grant, Granting, Lease, Role, Shares};
use crate::metrics::Meter;
use crate::name::LockName;
use crate::options::Options;
use crate::owner::Owner;
use crate::sync::Locked;

/// The roots of an engine, each with at least one share.
#[derive(Default)]
pub(super) struct Reentries(Locked<BTreeMap<(LockName, Owner, u64), Arc<Lease>>>);

impl Reentries {
    /// Makes a root available for sharing.
    pub(super) fn add(&self, root: &Arc<Lease>) {
        self.0.lock().insert(key(root), Arc::clone(root));
    }

    /// Closes the roots of a lock that was released by force. Their shares count until they leave, because
    /// the release may have failed.
    pub(super) fn forced(&self, name: &LockName) {
        self.0.lock().values().filter(|root| root.name == *name).for_each(|root| root.close());
    }

    pub(super) fn remove(&self, root: &Lease) {
        self.0.lock().remove(&key(root));
    }

    pub(super) fn of(&self, name: &LockName, owner: &Owner) -> Vec<Arc<Lease>> {
        let key = |hold| (name.clone(), owner.clone(), hold);
        self.0.lock().range(key(0)..=key(u64::MAX)).map(|(_, root)| Arc::clone(root)).collect()
    }
}

fn key(root: &Lease) -> (LockName, Owner, u64) {
    (root.name.clone(), root.owner.clone(), root.hold)
}

impl Lease {
    /// The first share of a grant.
    pub(super) fn first_share(grant: Grant, request: Granting) -> Arc<Self> {
        let (meter, op_timeout) = (grant.meter, grant.options.op_timeout);
        let root = Arc::new(Self::granted(grant, Role::Root(Box::default()), request));
        root.share_if(meter, op_timeout, |_| true).expect("it is not closed yet")
    }

    /// Another share, unless the last one has left or the root is closed.
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
        let Role::Root(shares) = &self.role else { return None };
        let mut shares = shares.lock();
        if !may(&shares) {
            return None;
        }
        let share = Arc::new(Self::share_of(self, meter, op_timeout));
        shares.leases.push(Arc::clone(&share));
        Some(share)
    }

    /// Removes it from its root and returns how many shares are left; `None` if it has no root or was removed
    /// before.
    pub(super) fn leave(&self) -> Option<usize> {
        let Role::Share(root) = &self.role else { return None };
        let Role::Root(shares) = &root.role else { return None };
        let mut shares = shares.lock();
        let before = shares.leases.len();
        shares.leases.retain(|share| !ptr::eq(&**share, self));
        (shares.leases.len() < before).then_some(shares.leases.len())
    }

    /// Whether no other hold shares the root. If so, closes the root.
    pub(crate) fn is_alone(&self) -> bool {
        let Role::Share(root) = &self.role else { return true };
        let Role::Root(shares) = &root.role else { return true };
        let mut shares = shares.lock();
        let is_alone = shares.leases.len() <= 1;
        shares.is_closed |= is_alone;
        is_alone
    }

    /// Lets no more holds share it.
    pub(super) fn close(&self) {
        if let Role::Root(shares) = &self.role {
            shares.lock().is_closed = true;
        }
    }

    pub(super) fn others(&self) -> usize {
        let Role::Root(shares) = &self.role else { return 0 };
        shares.lock().leases.len().saturating_sub(1)
    }
}
