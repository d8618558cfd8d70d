//! The handles of one client, and its holds and places.
//!
//! One handle serves all holds of similar ttl, so the number of renewals does not grow with the number of
//! holds. A handle outlives its holds by at least a sixth of the ttl, so that one keep-alive covers several
//! renewals. A hold that is not renewed ends before its handle and is removed by its own client. A client
//! that cannot do that, because it is dead, paused or cut off, does not keep its handle alive either.

use std::collections::BTreeMap;
use std::sync::MutexGuard;
use std::time::Duration;

use super::backend::Handle;
use crate::moment::Moment;
use crate::name::LockName;
use crate::owner::Owner;
use crate::protocol::lease::margin;
use crate::protocol::{LockSpec, Op};
use crate::sync::Locked;

/// A deposed leader that does not know it yet may still confirm keep-alives, but for no longer than this if
/// elections take a second as usual.
const RESERVE: Duration = Duration::from_secs(1);

/// The lifetime of a handle for holds of this ttl, in whole seconds.
pub(super) fn life(ttl: Duration) -> Duration {
    let least = ttl + ttl / 6 + margin(ttl) + RESERVE;
    Duration::from_secs(least.as_secs() + u64::from(least.subsec_nanos() > 0))
}

/// A handle that is kept alive for all holds of its lifetime class.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptHandle {
    pub(super) handle: Handle,
    pub(super) life: Duration,
    /// The last known version of its marker.
    pub(super) marker: u64,
    /// When the last confirmed keep-alive was sent.
    pub(super) kept: Moment,
}

impl KeptHandle {
    /// Minimum remaining lifetime.
    pub(super) fn left(&self, now: Moment) -> Duration {
        (self.kept + self.life.saturating_sub(RESERVE).saturating_sub(margin(self.life))).since(now)
    }
}

/// Identifies a hold or place of this client, beside the name of its lock: the owner and the hold number.
pub(super) type HoldKey = (Owner, u64);

/// The place that a request concerns.
#[derive(Clone, Copy)]
pub(super) enum About {
    /// The one that the request itself identifies, if any.
    Request,
    /// The one with this number.
    Place(u64),
    /// One with an unknown number, because the answer to its acquisition was lost.
    Unknown,
}

/// A hold or place of this client, including one that was requested and may have been granted.
#[derive(Clone, Debug)]
pub(super) struct ClientHold {
    pub(super) spec: LockSpec,
    pub(super) handle: Handle,
    /// Its expiry by this machine's clock.
    pub(super) end_ms: u64,
    /// Its token, once it is known to hold.
    pub(super) token: Option<u64>,
    /// Its ticket number, once known.
    pub(super) ticket: Option<u64>,
    /// The version of its handle's marker before the lock was last read. A client that ends a hold by force
    /// writes the marker, so the hold exists as long as the marker has this version.
    pub(super) verified: u64,
    /// The record beside the lock at the grant, until it is used.
    pub(super) record: Option<Option<String>>,
    /// It is being removed.
    pub(super) is_ending: bool,
}

/// The handles and holds known to one client.
#[derive(Debug, Default)]
pub(super) struct HoldTable {
    /// Keyed by lifetime in seconds.
    pub(super) leases: BTreeMap<u64, KeptHandle>,
    pub(super) holds: BTreeMap<LockName, BTreeMap<HoldKey, ClientHold>>,
    /// Handles of other clients, with the time they were last seen alive, or `None` for those that are gone.
    pub(super) others: BTreeMap<Handle, Option<Moment>>,
}

impl HoldTable {
    /// Maximum handles of other clients remembered.
    const OTHERS: usize = 10_000;

    pub(super) fn lease_of(&mut self, handle: Handle) -> Option<&mut KeptHandle> {
        self.leases.values_mut().find(|lease| lease.handle == handle)
    }

    /// Records a keep-alive. Returns the most recent one of the handle.
    pub(super) fn kept(&mut self, lease: KeptHandle) -> KeptHandle {
        match self.lease_of(lease.handle) {
            Some(known) if known.kept < lease.kept => {
                *known = lease;
                lease
            }
            Some(known) => *known,
            // It was lost meanwhile; whatever needs it finds that out.
            None => lease,
        }
    }

    /// Removes a lost handle; returns whether it was one of this client.
    pub(super) fn lost(&mut self, handle: Handle) -> bool {
        let before = self.leases.len();
        self.leases.retain(|_, lease| lease.handle != handle);
        // Whatever is bound to it has expired, even if this client expected it to last longer.
        self.saw(handle, None);
        self.leases.len() < before
    }

    pub(super) fn hold(&mut self, name: &LockName, key: &HoldKey) -> Option<&mut ClientHold> {
        self.holds.get_mut(name)?.get_mut(key)
    }

    /// Makes the next renewals of this owner's holds read the lock instead of relying on the marker.
    pub(super) fn doubt(&mut self, name: &LockName, owner: &Owner) {
        let holds = self.holds.get_mut(name).into_iter().flatten();
        holds.filter(|((of, _), _)| of == owner).for_each(|(_, hold)| hold.verified = u64::MAX);
    }

    pub(super) fn forget(&mut self, name: &LockName, key: &HoldKey) {
        if let Some(holds) = self.holds.get_mut(name) {
            holds.remove(key);
            if holds.is_empty() {
                self.holds.remove(name);
            }
        }
    }

    pub(super) fn saw(&mut self, handle: Handle, alive: Option<Moment>) {
        if self.others.len() >= Self::OTHERS {
            self.others.clear();
        }
        self.others.insert(handle, alive);
    }
}

/// A table shared by tasks.
#[derive(Debug, Default)]
pub(super) struct SharedTable(Locked<HoldTable>);

impl SharedTable {
    pub(super) fn lock(&self) -> MutexGuard<'_, HoldTable> {
        self.0.lock()
    }
}

/// The hold number in the table: only an owner of a reentrant mutex has several holds.
pub(super) fn table_hold(op: &Op, hold: u64) -> u64 {
    if op.spec == LockSpec::Reentrant { hold } else { 0 }
}
