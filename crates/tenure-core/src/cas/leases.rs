//! The handles of one client, and what it holds by them.
//!
//! A handle serves all holds whose ttls are alike, so renewals do not grow with the holds. It lives
//! longer than a hold may, by a sixth and more, so that one keep-alive serves the renewals of a
//! while. A hold that is not renewed ends before its handle: its own client takes it out then. If
//! the client cannot, because it is dead, paused or cut off, it keeps no handle alive either.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::backend::Handle;
use crate::moment::Moment;
use crate::name::LockName;
use crate::owner::Owner;
use crate::protocol::lease::margin;
use crate::protocol::{LockSpec, Op};

/// A leader that was deposed, and does not know it yet, may confirm a keep-alive: for no longer
/// than this, if elections take a second as is usual.
const RESERVE: Duration = Duration::from_secs(1);

/// How long a handle lives that serves holds of this ttl: whole seconds.
pub(super) fn life(ttl: Duration) -> Duration {
    let least = ttl + ttl / 6 + margin(ttl) + RESERVE;
    Duration::from_secs(least.as_secs() + u64::from(least.subsec_nanos() > 0))
}

/// A handle that is kept for all holds of its life.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) handle: Handle,
    pub(super) life: Duration,
    /// The version of its marker, as last heard.
    pub(super) marker: u64,
    /// When the keep-alive was sent that was last confirmed.
    pub(super) kept: Moment,
}

impl Lease {
    /// For how long it lives at least, from then on.
    pub(super) fn left(&self, now: Moment) -> Duration {
        (self.kept + self.life.saturating_sub(RESERVE).saturating_sub(margin(self.life))).since(now)
    }
}

/// What identifies a hold or place of this client, beside the name of its lock.
pub(super) type Key = (Owner, u64);

/// A hold or place of this client; also one that was asked for, while it may have been granted.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) rule: LockSpec,
    pub(super) handle: Handle,
    /// Until when, by this machine's clock.
    pub(super) end_ms: u64,
    /// Its token, once it is known to hold.
    pub(super) token: Option<u64>,
    /// The number of its place in a queue, once that is known.
    pub(super) ticket: Option<u64>,
    /// The version of its handle's marker before the lock was last read. Who ends a hold by force
    /// writes the marker: while it has this version, the hold stands.
    pub(super) verified: u64,
    /// It is being taken out.
    pub(super) is_ending: bool,
}

/// What one client knows.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// By their lives, in seconds.
    pub(super) leases: BTreeMap<u64, Lease>,
    pub(super) holds: BTreeMap<LockName, BTreeMap<Key, Hold>>,
    /// Handles of other clients: when they were last seen to live, or `None` for those that are
    /// gone.
    pub(super) others: BTreeMap<Handle, Option<Moment>>,
}

impl Table {
    /// So many handles of others are remembered.
    const OTHERS: usize = 10_000;

    pub(super) fn lease_of(&mut self, handle: Handle) -> Option<&mut Lease> {
        self.leases.values_mut().find(|lease| lease.handle == handle)
    }

    /// Forgets a handle that is gone; says whether it was one of these.
    pub(super) fn lost(&mut self, handle: Handle) -> bool {
        let before = self.leases.len();
        self.leases.retain(|_, lease| lease.handle != handle);
        // What is bound to it has lapsed, also where this client counted on more.
        self.saw(handle, None);
        self.leases.len() < before
    }

    pub(super) fn hold(&mut self, name: &LockName, key: &Key) -> Option<&mut Hold> {
        self.holds.get_mut(name)?.get_mut(key)
    }

    /// The next renewals of this owner's holds read the lock. The marker of their handle is not
    /// enough for them.
    pub(super) fn doubt(&mut self, name: &LockName, owner: &Owner) {
        let holds = self.holds.get_mut(name).into_iter().flatten();
        holds.filter(|((of, _), _)| of == owner).for_each(|(_, hold)| hold.verified = u64::MAX);
    }

    pub(super) fn forget(&mut self, name: &LockName, key: &Key) {
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

/// A table that tasks share.
#[derive(Debug, Default)]
pub(super) struct Shared(Mutex<Table>);

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing in here panics half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The hold by which the table knows it: only an owner of a reentrant mutex has several.
pub(super) fn table_hold(op: &Op, hold: u64) -> u64 {
    if op.rule == LockSpec::Reentrant { hold } else { 0 }
}
