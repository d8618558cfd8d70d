//! The sessions of one client, and its holds and places.
//!
//! One session serves all holds of similar ttl, so the number of renewals does not grow with the number of
//! holds. A session outlives its holds by at least a sixth of the ttl, so that one keep-alive covers several
//! renewals. A hold that is not renewed ends before its session and is removed by its own client. A client
//! that cannot do that, because it is dead, paused or cut off, does not keep its session alive either.

use std::collections::BTreeMap;
use std::sync::MutexGuard;
use std::time::Duration;

use super::backend::Session;
use crate::moment::Moment;
use crate::name::LockName;
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::lease::{margin, millis};
use crate::protocol::{LockSpec, Op};
use crate::sync::Locked;

/// Part of a session's life that its client does not rely on: until a deposed leader notices, which takes about
/// an election timeout, it may confirm keep-alives that the next leader does not know.
const RESERVE: Duration = Duration::from_secs(1);

/// The lifetime of the session of places, which decides how long a dead waiter holds others up. etcd grants no
/// less than 2 s, and ZooKeeper no session of less than two ticks, 4 s.
const PLACE_LIFE: Duration = Duration::from_secs(3);
/// How long a place is kept without a refresh: almost what such a session guarantees.
pub const PLACE_WAIT: Duration = Duration::from_millis(1_900);

/// The lifetime of a session for holds of this ttl, in whole seconds.
pub(super) fn life(ttl: Duration) -> Duration {
    let least = ttl + ttl / 6 + margin(ttl) + RESERVE;
    Duration::from_secs(least.as_secs() + u64::from(least.subsec_nanos() > 0))
}

/// The lifetime of a session for places that are kept for `wait`, of locks with this ttl.
pub(super) fn place_life(ttl: Duration, wait: Duration) -> Duration {
    let life = life(ttl);
    if wait <= usable(PLACE_LIFE) { life.min(PLACE_LIFE) } else { life }
}

/// The part of a session's lifetime that its client may rely on.
pub(super) fn usable(life: Duration) -> Duration {
    life.saturating_sub(RESERVE).saturating_sub(margin(life))
}

/// A session that is kept alive for all holds or places of its lifetime class.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptSession {
    pub(super) session: Session,
    pub(super) life: Duration,
    /// The last known version of its marker.
    pub(super) marker: u64,
    /// When the marker was last read.
    pub(super) marked: Moment,
    /// When the last confirmed keep-alive was sent.
    pub(super) kept: Moment,
}

impl KeptSession {
    /// Minimum remaining lifetime.
    pub(super) fn left(&self, now: Moment) -> Duration {
        (self.kept + usable(self.life)).since(now)
    }
}

/// How often the refresh of a place reads the lock although a watch reports its changes.
const LOOK: Duration = Duration::from_secs(30);

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
    pub(super) session: Session,
    /// The session before, while a request that moves the hold may not have been carried out yet.
    pub(super) former: Option<Session>,
    /// Its expiry by this machine's clock.
    pub(super) end_ms: u64,
    /// Its token, once it is known to hold.
    pub(super) token: Option<u64>,
    /// Its ticket number, once known.
    pub(super) ticket: Option<u64>,
    /// When the last request was sent that found the place waiting.
    pub(super) looked: Option<Moment>,
    /// When the place was last refreshed: its waiter relies on it for [`PLACE_WAIT`] from then on.
    pub(super) refreshed: Moment,
    /// The version of its session's marker before the lock was last read. A client that ends a hold by force
    /// writes the marker, so the hold exists as long as the marker has this version.
    pub(super) verified: u64,
    /// The record beside the lock at the grant, until it is used.
    pub(super) record: Option<Option<String>>,
    /// It is being removed.
    pub(super) is_ending: bool,
}

impl ClientHold {
    pub(super) fn is_bound_to(&self, session: Session) -> bool {
        self.session == session || self.former == Some(session) && !planted(Bug::CasMovingHoldRemoved)
    }

    /// Whether it is a place in a queue that is not known to hold: it waits, or was granted and not renewed yet.
    pub(super) fn is_place(&self) -> bool {
        self.token.is_none() && (matches!(self.spec, LockSpec::Queue(_)) || planted(Bug::CasDetachedIsPlace))
    }
}

/// The open watches of one lock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OpenWatches {
    pub(super) count: usize,
    /// When one of them opened or closed last. The client checks again which sessions it has seen alive before,
    /// because their ends may have gone unreported.
    pub(super) opened: Moment,
    /// The last event that the waiters must look into.
    pub(super) since: Moment,
}

/// The sessions and holds known to one client.
#[derive(Debug, Default)]
pub(super) struct HoldTable {
    /// Keyed by lifetime in seconds.
    pub(super) leases: BTreeMap<u64, KeptSession>,
    pub(super) holds: BTreeMap<LockName, BTreeMap<HoldKey, ClientHold>>,
    /// Sessions of other clients, with the time they were last seen alive, or `None` for those that are gone.
    pub(super) others: BTreeMap<Session, Option<Moment>>,
    pub(super) watched: BTreeMap<LockName, OpenWatches>,
    /// When idle sessions were last closed.
    pub(super) cleared: Moment,
}

impl HoldTable {
    /// Maximum sessions of other clients remembered.
    const OTHERS: usize = 10_000;

    pub(super) fn lease_of(&mut self, session: Session) -> Option<&mut KeptSession> {
        self.leases.values_mut().find(|lease| lease.session == session)
    }

    /// Records a keep-alive. Returns the most recent state of the session.
    pub(super) fn kept(&mut self, lease: KeptSession) -> KeptSession {
        match self.lease_of(lease.session) {
            Some(known) => {
                known.kept = known.kept.max(lease.kept);
                (known.marker, known.marked) =
                    (known.marker.max(lease.marker), known.marked.max(lease.marked));
                *known
            }
            // It was lost meanwhile; whatever needs it finds that out.
            None => lease,
        }
    }

    /// Removes a lost session; returns whether it was one of this client.
    pub(super) fn lost(&mut self, session: Session) -> bool {
        let before = self.leases.len();
        self.leases.retain(|_, lease| lease.session != session);
        // Whatever is bound to it has expired, even if this client expected it to last longer.
        self.saw(session, None);
        self.leases.len() < before
    }

    pub(super) fn hold(&mut self, name: &LockName, key: &HoldKey) -> Option<&mut ClientHold> {
        self.holds.get_mut(name)?.get_mut(key)
    }

    /// A place that is granted has no more of its lease than its client may rely on.
    pub(super) fn cap_granted_place(&mut self, name: &LockName, key: &HoldKey, is_held: bool, now_ms: u64) {
        if let Some(hold) = self.hold(name, key).filter(|hold| is_held && hold.is_place()) {
            hold.end_ms = hold.end_ms.min(now_ms.saturating_add(millis(PLACE_WAIT)));
        }
    }

    /// Makes the next refreshes of a lock's places read the lock.
    pub(super) fn doubt_places(&mut self, name: &LockName, now: Moment) {
        if let Some(watched) = self.watched.get_mut(name) {
            watched.since = now;
        }
    }

    /// The ticket of a place that waits, unless the lock has to be read to know.
    pub(super) fn seen_waiting(
        &mut self,
        name: &LockName,
        owner: &Owner,
        now: Moment,
        now_ms: u64,
    ) -> Option<(u64, KeptSession)> {
        let since = self.watched.get(name)?.since;
        let hold = self.hold(name, &(owner.clone(), 0)).filter(|hold| hold.end_ms >= now_ms)?;
        let (ticket, session, looked) = (hold.ticket?, hold.session, hold.looked?);
        let is_recent = looked > since && now.since(looked) < LOOK;
        let lease = self.lease_of(session).copied().filter(|_| is_recent)?;
        Some((ticket, lease))
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

    /// Records whether a session is alive. One that is gone stays gone, because an answer from before its end may
    /// arrive after the notice of it.
    pub(super) fn saw(&mut self, session: Session, alive: Option<Moment>) {
        if self.others.len() >= Self::OTHERS {
            self.others.clear();
        }
        let known = self.others.entry(session).or_insert(alive);
        if known.is_some() || planted(Bug::CasGoneRevived) {
            *known = alive;
        }
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

#[cfg(all(test, tenure_planted))]
mod tests {
    use super::*;
    use crate::planted::plant;

    #[test]
    fn a_late_answer_does_not_revive_a_session() {
        let revived = || {
            let mut table = HoldTable::default();
            table.saw(1, Some(Moment(1)));
            table.saw(1, None);
            table.saw(1, Some(Moment(1)));
            table.others[&1]
        };
        assert_eq!(revived(), None);
        plant(Some(Bug::CasGoneRevived));
        let outcome = revived();
        plant(None);
        assert_eq!(outcome, Some(Moment(1)), "the planted bug is not seen");
    }
}
