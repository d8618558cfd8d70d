//! First come, first served, and a waiter that fits is admitted at once.

use tenure::internals::protocol::Verb;
use tenure::{LockName, Owner};

use super::reference_model::{Lock, ReferenceModel};
use super::{Executed, Passed};
use crate::sim::clock::TrueTime;
use crate::sim::regime::LockKind;

const ORDER: &str = "first come, first served";
const OPEN: &str = "a waiter that fits is let in";

impl ReferenceModel {
    /// A client was admitted: nobody who came earlier may still wait.
    pub(super) fn check_turn(&mut self, at: TrueTime, name: &LockName, owner: &Owner) {
        let Some(lock) = self.locks.get(name) else { return };
        let Some(place) = lock.place(owner) else { return };
        let passed = lock.places.iter().find(|other| !other.holds && other.number < place.number);
        if let Some(passed) = passed {
            let what = format!("{name}: {owner} was let in before {}, who came first", passed.owner);
            self.accuse(at, ORDER, what);
        }
    }

    /// A waiter was removed on its grant: its process must have ended, be unreachable, or have stopped
    /// waiting.
    pub(super) fn check_passed(&mut self, at: TrueTime, name: &LockName, passed: &Passed) {
        // A wait that began later is for another place.
        let came_at = self.owners.get(&passed.owner).map_or(at, |owned| owned.granted_at);
        let waits = |process| {
            let mut waits = self.waits.iter().filter(|wait| wait.process == process && wait.since <= came_at);
            waits.any(|wait| wait.name.as_ref() == Some(name))
        };
        if let Some(process) = passed.process.filter(|process| waits(*process)) {
            let what = format!("{name}: {} was passed, and its process {process} could hear", passed.owner);
            self.accuse(at, ORDER, what);
        }
    }

    /// A client got a place: its number must be above all earlier ones.
    pub(super) fn check_numbered(&mut self, at: TrueTime, name: &LockName, number: u64) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        let last = std::mem::replace(&mut lock.last_number, number);
        if number <= last {
            self.accuse(at, ORDER, format!("{name}: place {number} was given after {last}"));
        }
    }

    /// A place must not change.
    pub(super) fn check_place_kept(&mut self, at: TrueTime, name: &LockName, owner: &Owner, number: u64) {
        let Some(place) = self.locks.get(name).and_then(|lock| lock.place(owner)) else { return };
        let (known, holds) = (place.number, place.holds);
        if known != number || holds {
            let what =
                format!("{name}: {owner} has place {known}, held: {holds}, and is told to wait as {number}");
            self.accuse(at, ORDER, what);
        }
    }

    /// A message named a client that does not wait: allowed only for a reader that waited for its upgrade and
    /// is now alone.
    pub(super) fn check_told_number(&mut self, at: TrueTime, name: &LockName, number: u64) {
        let is_ticket =
            |owner: &Owner| self.owners.get(owner).is_some_and(|owned| owned.ticket == Some(number));
        let is_writer = |lock: &Lock| {
            lock.sort == LockKind::RwLock
                && lock.used() == u64::from(lock.capacity)
                && lock
                    .places
                    .iter()
                    .any(|place| place.holds && (place.number == number || is_ticket(&place.owner)))
        };
        if self.locks.get(name).is_some_and(|lock| is_writer(lock) || lock.is_unseen(at)) {
            return;
        }
        self.accuse(
            at,
            ORDER,
            format!("{name}: {number} was told that it holds, and no client waits as that"),
        );
    }

    /// After each request that may change something, the first waiter must not fit.
    pub(super) fn check_head(&mut self, at: TrueTime, name: &LockName) {
        let Some(lock) = self.locks.get(name).filter(|lock| lock.is_open()) else { return };
        if lock.is_unseen(at) {
            return;
        }
        let Some(head) = lock.head() else { return };
        let what = format!(
            "{name}: {} waits for {} of {}, of which {} are in use",
            head.owner,
            head.weight,
            lock.capacity,
            lock.used()
        );
        self.accuse(at, OPEN, what);
    }

    /// A request without a wait was refused: the capacity must have been exceeded, or others must be waiting.
    pub(super) fn check_refused(&mut self, at: TrueTime, executed: &Executed<'_>) {
        let (name, owner) = (&executed.op.name, &executed.op.owner);
        let Some(lock) = self.locks.get(name) else { return };
        let is_queue = !matches!(lock.sort, LockKind::Mutex | LockKind::Reentrant);
        let weight = match executed.op.spec {
            tenure::internals::protocol::LockSpec::Queue(queue_spec) => queue_spec.weight,
            _ => 1,
        };
        let is_mine = lock.place(owner).is_some();
        let is_free = lock.head().is_none() && lock.fits(weight) && !lock.is_unseen(at);
        if is_mine || is_free {
            let waits = matches!(executed.op.verb, Verb::Acquire { wait_ms: Some(_), .. }) && is_queue;
            let what = format!("{name}: {owner} was refused what it could have had, waits: {waits}");
            self.accuse(at, OPEN, what);
        }
    }
}
