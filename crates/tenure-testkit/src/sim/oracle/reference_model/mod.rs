//! The oracle's state: who has a place at which lock. Derived from the server's answers, and compared with
//! what is at its keys.
//!
//! | module | what it holds |
//! |---|---|
//! | `places` | queries on places and locks |
//! | `requests` | the effect of each request on the model |

mod places;
mod requests;

use std::collections::BTreeMap;

use tenure::internals::protocol::{
    Answer, Liveness, LockSpec, Notification, Op, Place as Told, ReleaseScope, Verb,
};
use tenure::{LockName, Owner};

use super::history::History;
use super::votes::Members;
use super::{Executed, Hold, Passed, Violation, Wait};
use crate::sim::clock::{MS, TrueTime};
use crate::sim::executor::{ProcessId, Sim};
use crate::sim::regime::{LockKind, Plan};

/// The oracle's state.
pub(super) struct ReferenceModel {
    pub(super) locks: BTreeMap<LockName, Lock>,
    pub(super) owners: BTreeMap<Owner, Owned>,
    pub(super) holds: Vec<Hold>,
    pub(super) waits: Vec<Wait>,
    /// The history as callers see it.
    pub(super) history: History,
    /// The servers, if a majority of several decides.
    pub(super) members: Option<Members>,
    /// Owners that the current request admitted, with their numbers.
    let_in: Vec<(u64, Owner)>,
    /// Places before each request, if the server may go back.
    past: Vec<(TrueTime, LockName, Vec<Place>)>,
    /// When the server last did something that may have ended leases without their owners' doing.
    pub(super) shaken_at: TrueTime,
    /// Number of faults between each process and the server.
    pub(super) failed: BTreeMap<ProcessId, u32>,
    pub(super) next_id: u64,
    pub(super) plan: Plan,
    pub(super) longest_ms: u64,
    pub(super) violation: Option<Violation>,
    pub(super) grants: u64,
}

/// The truth about one lock.
pub(super) struct Lock {
    pub(super) sort: LockKind,
    /// The current capacity.
    pub(super) capacity: u32,
    /// Holders and waiters, in order of arrival.
    pub(super) places: Vec<Place>,
    /// While nobody has a place: since when.
    pub(super) free_since: TrueTime,
    /// Since when clients may know that it is free.
    known_since: TrueTime,
    /// Capacity available to a newcomer, and the whole capacity, from each moment on.
    room: Vec<(TrueTime, u64, u32)>,
    /// Since when the first waiter would fit.
    pub(super) open_since: Option<TrueTime>,
    pub(super) last_number: u64,
    pub(super) last_token: u64,
    /// The owner that was let in last.
    pub(super) last_owner: Option<Owner>,
    pub(super) last_reported: u64,
    pub(super) last_exclusive: u64,
    pub(super) edge: TrueTime,
    /// Until then clients may not know of a lease that is over.
    pub(super) unseen_until: TrueTime,
    /// Until then waiters may not know that an operator has deleted their places.
    pub(super) unaware_until: TrueTime,
}

/// One owner's place at a lock.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) owner: Owner,
    pub(super) process: ProcessId,
    /// Its token, or its number in a queue.
    pub(super) number: u64,
    pub(super) weight: u32,
    pub(super) holds: bool,
    /// The first moment at which it is gone.
    pub(super) lapses: TrueTime,
    /// Whether it is bound to its process.
    is_bound: bool,
    /// Whether it knows when to retry, as the first in line does.
    pub(super) knows: bool,
    /// The holds of a reentrant owner with their processes, and the number of detached ones.
    live: Vec<(u64, ProcessId)>,
    pub(super) detached: u32,
}

pub(super) struct Owned {
    /// The process of its last request.
    pub(super) process: ProcessId,
    /// All processes that sent requests for it, one bit each.
    pub(super) processes: u64,
    pub(super) token: u64,
    /// The number of its ticket, if plain commands have granted its hold before that had one.
    pub(super) ticket: Option<u64>,
    /// Tokens of its holds that were ended by force.
    pub(super) taken: Vec<u64>,
    /// When the server set its lease first and last, and its end.
    pub(super) granted_at: TrueTime,
    pub(super) set_at: TrueTime,
    pub(super) lapses: TrueTime,
    /// Until when it may believe in the lease of each of its holds. Detached holds share the number 0, and so
    /// do all holds of a lock that is not reentrant.
    told: BTreeMap<u64, TrueTime>,
    /// Tokens with which it may have been told of a longer lease than it had: see [`ReferenceModel::doubt`].
    pub(super) doubted: Vec<u64>,
    /// Its place reappeared because the server went back.
    pub(super) is_back: bool,
    /// It had been released when the server went back.
    pub(super) has_left: bool,
    /// It has a place but does not hold.
    pub(super) waits: bool,
    /// It was admitted, but waits again because the server went back: it may be notified of its turn until it
    /// has been told that it waits.
    pub(super) was_let_in: bool,
    /// When another client's request let it in.
    pub(super) let_in_at: Option<TrueTime>,
    /// When a guard of it was handed out, or it renewed the hold that it was admitted to.
    pub(super) told_at: Option<TrueTime>,
    /// It waited before it held.
    pub(super) was_called: bool,
    /// When the server ended it, and how.
    pub(super) ended: Option<(TrueTime, End)>,
    /// When its last guard was dropped, if it ever had one.
    pub(super) let_go_at: Option<TrueTime>,
    pub(super) detached: u32,
    pub(super) grants: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Released,
    /// It expired, and its client removed it.
    Lapsed,
    /// By another client, or by a server that lost it: its guard cannot know yet.
    Forced,
}

impl ReferenceModel {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            locks: BTreeMap::new(),
            owners: BTreeMap::new(),
            holds: Vec::new(),
            waits: Vec::new(),
            history: History::new(plan),
            members: None,
            let_in: Vec::new(),
            past: Vec::new(),
            shaken_at: 0,
            failed: BTreeMap::new(),
            next_id: 0,
            plan: *plan,
            longest_ms: plan.ttl.as_millis() as u64,
            violation: None,
            grants: 0,
        }
    }

    pub(super) fn open(&mut self, name: &LockName, sort: LockKind) {
        let lock = Lock {
            sort,
            capacity: sort.capacity(),
            places: Vec::new(),
            free_since: 0,
            known_since: 0,
            room: vec![(0, u64::from(sort.capacity()), sort.capacity())],
            open_since: None,
            last_number: 0,
            last_token: 0,
            last_owner: None,
            last_reported: 0,
            last_exclusive: 0,
            edge: 0,
            unseen_until: 0,
            unaware_until: 0,
        };
        self.history.open(name, sort);
        self.locks.insert(name.clone(), lock);
    }

    pub(super) fn accuse(&mut self, at: TrueTime, invariant: &'static str, what: String) {
        self.violation.get_or_insert(Violation { at, invariant, what });
    }

    /// Advances a lock to this moment: removes lapsed places, one after the other.
    pub(super) fn settle(&mut self, at: TrueTime, name: &LockName, sim: &Sim) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        while let Some(lapsed) = lock.places.iter().map(|place| place.lapses).min().filter(|end| *end <= at) {
            lock.places.retain(|place| place.lapses > lapsed);
            lock.changed(lapsed);
            lock.known_since = lapsed + self.plan.looks;
        }
        self.check_let_in(at, name, sim);
    }

    /// Advances all locks. Returns their names.
    pub(super) fn settle_all(&mut self, at: TrueTime, sim: &Sim) -> Vec<LockName> {
        let names: Vec<LockName> = self.locks.keys().cloned().collect();
        names.iter().for_each(|name| self.settle(at, name, sim));
        names
    }

    /// Ends places without their owners' doing.
    pub(super) fn force(&mut self, at: TrueTime, name: &LockName, which: impl Fn(&Place) -> bool) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        let (gone, stay) = std::mem::take(&mut lock.places).into_iter().partition(which);
        lock.places = stay;
        lock.changed(at);
        let gone: Vec<Place> = gone;
        if !gone.is_empty() {
            self.history.ends_here(at);
        }
        for place in gone {
            if let Some(owned) = self.owners.get_mut(&place.owner) {
                owned.ended = Some((at, End::Forced));
                owned.taken.push(place.number);
                owned.detached = 0;
            }
            let guards = self.holds.iter_mut().filter(|hold| hold.owner == place.owner);
            guards.for_each(|hold| hold.is_forced = true);
        }
    }

    /// Updates the ends of leases. Returns the owners whose leases changed.
    pub(super) fn extend(
        &mut self,
        at: TrueTime,
        lapses: impl Fn(&LockName, &Owner) -> Option<TrueTime>,
    ) -> Vec<Owner> {
        let mut changed = Vec::new();
        for (name, lock) in &mut self.locks {
            for place in &mut lock.places {
                let Some(lapses) = lapses(name, &place.owner).map(|lapses| lapses.max(at)) else { continue };
                if lapses == place.lapses {
                    continue;
                }
                place.lapses = lapses;
                lock.edge = lapses;
                if let Some(owned) = self.owners.get_mut(&place.owner) {
                    owned.lapses = lapses;
                }
                changed.push(place.owner.clone());
            }
        }
        changed
    }

    /// A hold or place is gone without a request of its owner.
    pub(super) fn unbind(
        &mut self,
        at: TrueTime,
        name: &LockName,
        (owner, number): (&Owner, u64),
        sim: &Sim,
    ) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        let is_counted = lock.sort == LockKind::Reentrant;
        let Some(place) = lock.places.iter_mut().find(|place| place.owner == *owner) else { return };
        if is_counted {
            match number {
                // All detached holds have the number 0.
                0 => place.detached = 0,
                _ => place.live.retain(|(live, _)| *live != number),
            }
            if let Some(owned) = self.owners.get_mut(owner) {
                owned.forgets(number);
            }
            if place.count() > 0 {
                return;
            }
        } else if place.number != number {
            return;
        }
        self.check_unheld(at, owner, None);
        self.check_given_back(at, owner, sim);
        let Some(lock) = self.locks.get_mut(name) else { return };
        lock.places.retain(|place| place.owner != *owner);
        lock.changed(at);
        if let Some(owned) = self.owners.get_mut(owner) {
            owned.ended = Some((at, End::Lapsed));
        }
    }

    /// A process ended: everything bound to it is gone.
    pub(super) fn bury(&mut self, at: TrueTime, process: ProcessId) {
        for lock in self.locks.values_mut() {
            let is_counted = lock.sort == LockKind::Reentrant;
            lock.places.iter_mut().for_each(|place| place.live.retain(|(_, of)| *of != process));
            let ends = |place: &mut Place| match is_counted {
                true => place.count() == 0,
                false => place.is_bound && place.process == process,
            };
            for place in lock.places.extract_if(.., ends) {
                if let Some(owned) = self.owners.get_mut(&place.owner) {
                    owned.ended = Some((at, End::Forced));
                }
            }
            lock.changed(at);
        }
    }

    /// Records the places before a request, if the server may go back to them.
    pub(super) fn remember(&mut self, at: TrueTime, name: &LockName) {
        if self.plan.node_faults.rewind + self.plan.node_faults.forget > 0
            && let Some(lock) = self.locks.get(name)
        {
            self.past.push((at, name.clone(), lock.places.clone()));
        }
    }

    /// The server is back in its state at `to`: those who had a place then have it again, and nobody else.
    /// Returns the locks that changed.
    pub(super) fn rewind(&mut self, at: TrueTime, to: TrueTime) -> Vec<LockName> {
        self.history.ends_here(at);
        let mut then: BTreeMap<LockName, Vec<Place>> = BTreeMap::new();
        while let Some((_, name, places)) = self.past.pop_if(|(at, ..)| *at > to) {
            then.insert(name, places);
        }
        for (name, places) in &then {
            self.force(at, name, |now| !places.iter().any(|then| then.is_of(now)));
            let Some(lock) = self.locks.get_mut(name) else { continue };
            let kept = std::mem::take(&mut lock.places);
            for place in places {
                let now = kept.iter().find(|now| place.is_of(now));
                if let Some(owned) = self.owners.get_mut(&place.owner) {
                    (owned.token, owned.lapses, owned.waits) = (place.number, place.lapses, !place.holds);
                    (owned.let_in_at, owned.is_back) = (None, true);
                    owned.was_let_in |= !place.holds && now.is_some_and(|now| now.holds);
                    owned.has_left |= matches!(owned.ended, Some((_, End::Released)));
                    owned.ended = if now.is_some() { None } else { Some((at, End::Forced)) };
                }
                lock.places.push(place.clone());
            }
            lock.open_since = None;
            lock.changed(at);
        }
        then.into_keys().collect()
    }

    /// The guards of this lock may have been told of longer leases than they have: they are excused until the
    /// server sets their lease again.
    pub(super) fn doubt(&mut self, name: &LockName) {
        let places = self.locks.get(name).into_iter().flat_map(|lock| &lock.places);
        let guards = self.holds.iter_mut().filter(|hold| hold.name == *name);
        let guards = guards.map(|hold| {
            hold.is_doubted = true;
            &hold.owner
        });
        for owner in places.map(|place| &place.owner).chain(guards) {
            if let Some(owned) = self.owners.get_mut(owner) {
                owned.doubted.push(owned.token);
            }
        }
    }

    /// A lease may have been set again. For a reentrant owner that says nothing about its other holds, nor
    /// about one that was told of a longer lease before.
    fn trust(&mut self, at: TrueTime, executed: &Executed<'_>, owner: &Owner, token: u64, is_new: bool) {
        let Some(owned) = self.owners.get_mut(owner) else { return };
        let told_ms = match executed.op.verb {
            Verb::Refresh { wait_ms: 0, .. } => return,
            Verb::Acquire { wait_ms: Some(wait_ms), .. } if owned.waits => wait_ms,
            Verb::Refresh { wait_ms, .. } => wait_ms,
            Verb::Acquire { ttl_ms, .. } | Verb::Renew { ttl_ms, .. } => ttl_ms,
            Verb::Release { .. } | Verb::Resize | Verb::Inspect => return,
        };
        if is_new {
            owned.told.clear();
        }
        let place = self.locks.get(&executed.op.name).and_then(|lock| lock.place(owner));
        owned.tells(at, executed.op, told_ms, place.is_some_and(|place| place.detached > 0));
        owned.is_back &= !is_new;
        owned.has_left &= !is_new;
        owned.was_let_in &= !is_new;
        if owned.lapses < owned.told_until() {
            return;
        }
        let is_one = self.locks.get(&executed.op.name).is_some_and(|lock| lock.sort != LockKind::Reentrant);
        owned.doubted.retain(|doubted| !is_one || *doubted != token);
        // A hold that had grown, and shrank when the server was rewound, is not what its guard believes.
        let weight = place.map_or(0, |place| place.weight);
        let guards = self
            .holds
            .iter_mut()
            .filter(|hold| is_one && hold.owner == *owner && hold.token == token && hold.weight <= weight);
        guards.for_each(|hold| hold.is_doubted = false);
    }

    /// The server's clock was stepped: leases end when it says so now, some of them at once.
    pub(super) fn retime(&mut self, at: TrueTime, lapses: impl Fn(&LockName, &Owner) -> Option<TrueTime>) {
        self.history.ends_here(at);
        for (name, lock) in &mut self.locks {
            for place in &mut lock.places {
                place.lapses = lapses(name, &place.owner).unwrap_or(at).max(at);
                lock.edge = place.lapses;
                if let Some(owned) = self.owners.get_mut(&place.owner) {
                    owned.lapses = place.lapses;
                }
            }
        }
    }

    fn owned(
        &mut self,
        at: TrueTime,
        executed: &Executed<'_>,
        owner: &Owner,
        token: u64,
        lapses: TrueTime,
    ) -> &mut Owned {
        let owned = self.owners.entry(owner.clone()).or_insert_with(|| Owned::new(at));
        // A grant that lapsed before any client learned of it may be made again, with another token.
        (owned.process, owned.token, owned.lapses) = (executed.process, token, lapses);
        owned.processes |= 1 << executed.process;
        (owned.set_at, owned.ended) = (at, None);
        owned
    }

    /// Whether this owner's guard may rightly believe in a hold that the server no longer has.
    pub(super) fn is_forced(&self, owner: &Owner) -> bool {
        self.owners.get(owner).is_some_and(|owned| matches!(owned.ended, Some((_, End::Forced))))
    }
}

impl Owned {
    /// A request lets it believe in a lease of this length.
    pub(super) fn tells(&mut self, at: TrueTime, op: &Op, told_ms: u64, is_any_detached: bool) {
        // Minus what the holder deducts for clocks and rounding.
        let until = at + (told_ms * MS * 99 / 100).saturating_sub(2 * MS);
        let (hold, moved) = match op.verb {
            _ if op.spec != LockSpec::Reentrant => (0, None),
            Verb::Acquire { bind: Liveness::Lease, .. } => (0, None),
            Verb::Renew { hold, bind: Some(Liveness::Lease), .. } => (0, Some(hold)),
            Verb::Renew { hold, bind: Some(_), .. } => (hold, Some(0)),
            Verb::Acquire { hold, .. } | Verb::Renew { hold, .. } => (hold, None),
            _ => (0, None),
        };
        let kept = moved.and_then(|moved| match moved == 0 && is_any_detached {
            true => self.told.get(&moved).copied(),
            false => self.told.remove(&moved),
        });
        let told = self.told.entry(hold).or_default();
        *told = (*told).max(until).max(kept.unwrap_or(0));
    }

    /// One of a reentrant owner's holds has ended.
    pub(super) fn forgets(&mut self, hold: u64) {
        self.told.remove(&hold);
    }

    /// The latest time until which it may believe in its lease.
    pub(super) fn told_until(&self) -> TrueTime {
        self.told.values().copied().max().unwrap_or(0)
    }

    pub(super) fn new(at: TrueTime) -> Self {
        Self {
            process: 0,
            processes: 0,
            token: 0,
            ticket: None,
            taken: Vec::new(),
            granted_at: at,
            set_at: at,
            lapses: at,
            told: BTreeMap::new(),
            doubted: Vec::new(),
            is_back: false,
            has_left: false,
            was_let_in: false,
            waits: false,
            let_in_at: None,
            told_at: None,
            was_called: false,
            ended: None,
            let_go_at: None,
            detached: 0,
            grants: 0,
        }
    }
}
