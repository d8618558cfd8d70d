//! Exclusion: believed holds never exceed the capacity, and no request touches another owner's hold.

use tenure::internals::protocol::{Answer, Notification, Verb};
use tenure::{LockName, Owner};

use super::reference_model::ReferenceModel;
use super::{Executed, Hold};
use crate::sim::clock::TrueTime;
use crate::sim::regime::LockKind;

/// Invariant: all guards that report at one moment that they hold fit together.
pub(super) const EXCLUSION: &str = "exclusion within validity";
/// Invariant: a request never changes another owner's hold, nor revives its own.
pub(super) const UNTOUCHED: &str = "no stale release, no revival";

impl ReferenceModel {
    /// A client holds from the moment of the grant, not only from when it learns of it: together with the
    /// guards that report that they hold, that must not exceed the capacity.
    pub(super) fn check_room(&mut self, at: TrueTime, name: &LockName, owner: &Owner, weight: u32) {
        let Some(lock) = self.locks.get(name) else { return };
        // The maximum capacity, because holds from before the capacity was lowered stay.
        let most = u64::from(lock.sort.capacity());
        let others = || {
            self.holds.iter().filter(|hold| {
                let is_other = hold.name == *name && hold.owner != *owner && !hold.is_excused();
                is_other && hold.is_held() && !self.is_stepped_over(at, &hold.owner)
            })
        };
        if self.is_stepped_over(at, owner) {
            return;
        }
        let used: u64 = others().map(|hold| u64::from(hold.weight)).sum();
        if used + u64::from(weight) > most
            && let Some(other) = others().next()
        {
            let what = format!(
                "{owner} holds {weight} of {name} while a guard of {} in process {} says that it holds: {} of {most}",
                other.owner,
                other.process,
                used + u64::from(weight),
            );
            self.accuse(at, EXCLUSION, what);
        }
    }

    /// The server granted a lock: it fits beside the granted and the believed holds, its token is above all
    /// issued before, and it was its turn.
    pub(super) fn check_granted(&mut self, at: TrueTime, name: &LockName, owner: &Owner, token: u64) {
        let Some(lock) = self.locks.get(name) else { return };
        let (used, most) = (lock.used(), u64::from(lock.capacity));
        let weight = lock.place(owner).map_or(1, |place| place.weight);
        // The owner had this number before the server went back, and others have had greater ones since.
        let is_back = self.owners.get(owner).is_some_and(|owned| owned.is_back);
        let is_alone = lock.places.iter().filter(|place| place.holds).count() == 1;
        if used > most && !is_alone {
            self.accuse(
                at,
                EXCLUSION,
                format!("{name}: {owner} was let in, and {used} of {most} are in use"),
            );
        }
        self.check_room(at, name, owner, weight);
        if !is_back {
            self.check_grown(at, name, owner, token);
        }
        self.check_turn(at, name, owner);
    }

    /// A holder learned that its weight is now `weight`.
    pub(super) fn check_alone(&mut self, at: TrueTime, name: &LockName, owner: &Owner, weight: u32) {
        let Some(lock) = self.locks.get(name) else { return };
        let (used, most) = (lock.used(), u64::from(lock.capacity));
        if used > most && u64::from(weight) > most / 2 {
            let what = format!("{name}: {owner} has {weight}, and {used} of {most} are in use");
            self.accuse(at, EXCLUSION, what);
        }
        self.check_room(at, name, owner, weight);
    }

    /// The guards backed by an owner's current lease, without those of an earlier hold that was ended by
    /// force.
    pub(super) fn guards_of<'a>(&'a self, owner: &'a Owner) -> impl Iterator<Item = &'a Hold> {
        let token = self.owners.get(owner).map(|owned| owned.token);
        self.holds.iter().filter(move |hold| {
            hold.owner == *owner && !hold.is_doubted && !(hold.is_forced && token != Some(hold.token))
        })
    }

    /// A lease has ended in true time: its guards must know. Checks all of them, or only `only`.
    pub(super) fn check_unheld(&mut self, at: TrueTime, owner: &Owner, only: Option<u64>) {
        let is_wrong = |hold: &&Hold| only.is_none_or(|id| id == hold.id) && hold.is_held();
        let found = self.guards_of(owner).find(is_wrong);
        if let Some(hold) = found {
            let what = format!(
                "the guard of {owner} in process {} says that it holds {} when its lease is over",
                hold.process, hold.name
            );
            self.accuse(at, EXCLUSION, what);
        }
    }

    /// A guard reports that it holds: the server must have a live lease for it.
    pub(super) fn check_covered(&mut self, at: TrueTime, hold: &Hold) {
        if self.members.is_some() {
            return self.check_majority(at, &hold.owner);
        }
        let Some(owned) = self.owners.get(&hold.owner) else {
            return self.accuse(
                at,
                EXCLUSION,
                format!("a guard of {} that the server never saw", hold.owner),
            );
        };
        if owned.waits {
            if !hold.was_let_in {
                let what = format!("a guard of {} that the server has never let in", hold.owner);
                self.accuse(at, EXCLUSION, what);
            }
            return;
        }
        if owned.lapses <= at && owned.ended.is_none() {
            let what = format!(
                "the guard of {} in process {} says that it holds {}, whose lease ended {} µs ago",
                hold.owner,
                hold.process,
                hold.name,
                (at - owned.lapses) / 1_000
            );
            self.accuse(at, EXCLUSION, what);
        }
    }

    /// A request changes no other owner's place, and never shortens its own.
    pub(super) fn check_untouched(&mut self, at: TrueTime, executed: &Executed<'_>) {
        let Executed { op, after, .. } = executed;
        if matches!(op.verb, Verb::Release { whose, .. } if whose.is_forced()) {
            return;
        }
        let asked = |owner: &Owner| match &op.verb {
            Verb::Refresh { owners, .. } => owners.contains(owner),
            _ => op.owner == *owner || executed.together.contains(&owner),
        };
        let is_released = match executed.answer {
            Answer::Released { left: 0 } => true,
            // Each hold of a reentrant owner is bound to a session of its own.
            Answer::Released { .. } => self.plan.session > 0,
            _ => false,
        };
        // A place that is kept for long is shortened when it is granted.
        let is_shortened = |number| match executed.wake {
            Some(Notification::Granted { tickets }) => self.plan.kept > 0 && tickets.contains(&number),
            _ => false,
        };
        let is_passed = |owner: &Owner| executed.passed.iter().any(|passed| passed.owner == *owner);
        let Some(lock) = self.locks.get(&op.name) else { return };
        let wrong = lock.places.iter().find_map(|place| {
            let share = after.and_then(|after| after.share(&place.owner));
            let lapses = share.and_then(|share| share.lapses);
            let weight = share.map_or(0, |share| share.weight);
            let count = if lock.sort == LockKind::Reentrant { place.count() } else { place.weight };
            let (by, of) = (&op.owner, &place.owner);
            // A session lasts longer than the leases that are bound to it, and they may move to another.
            let least = match self.owners.get(of) {
                // It waits again because the server went back, and may have been told of a hold since.
                Some(owned) if owned.is_back && !place.holds && self.plan.kept > 0 => at,
                Some(owned) if self.plan.session > 0 || !place.holds && self.plan.kept > 0 => {
                    place.lapses.min(owned.told_until())
                }
                _ => place.lapses,
            };
            match lapses {
                _ if asked(of) && is_released => None,
                None if is_passed(of) => None,
                None => Some(format!("a request of {by} ended the place of {of}: {:?}", op.verb)),
                Some(lapses) if lapses < least => {
                    let less = (least - lapses) / 1_000;
                    Some(format!("a request of {by} shortened the lease of {of} by {less} µs: {:?}", op.verb))
                }
                Some(lapses)
                    if !asked(of)
                        && (lapses != place.lapses && !is_shortened(place.number) || weight != count) =>
                {
                    Some(format!("a request of {by} changed the place of {of}: {:?}", op.verb))
                }
                Some(_) => None,
            }
        });
        if let Some(wrong) = wrong {
            self.accuse(at, UNTOUCHED, format!("{}: {wrong}", op.name));
        }
    }

    /// A place appeared: only an acquisition creates one.
    pub(super) fn check_made(&mut self, at: TrueTime, executed: &Executed<'_>, owner: &Owner) {
        if !matches!(executed.op.verb, Verb::Acquire { .. }) {
            let what = format!("{}: {owner} has a place again that was gone", executed.op.name);
            self.accuse(at, UNTOUCHED, what);
        }
    }

    /// A client learned that it holds nothing.
    pub(super) fn check_gone(&mut self, at: TrueTime, executed: &Executed<'_>, owner: &Owner) {
        let name = &executed.op.name;
        let Some(lock) = self.locks.get(name) else { return };
        let Some(place) = lock.place(owner) else { return };
        // One hold of a reentrant owner may be gone while others exist.
        let counts = |hold: &u64| lock.sort != LockKind::Reentrant || place.is_live(*hold);
        let is_wrong = match &executed.op.verb {
            Verb::Renew { hold, .. } | Verb::Release { hold, .. } => counts(hold),
            _ => true,
        };
        if is_wrong {
            let what = format!("{name}: {owner} was told that it has nothing, and has a place");
            self.accuse(at, UNTOUCHED, what);
        }
    }
}
