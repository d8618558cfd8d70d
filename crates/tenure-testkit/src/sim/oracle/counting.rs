//! Each hold of a reentrant owner counts once, even if its requests are repeated.

use tenure::{LockName, Owner};

use super::reference_model::ReferenceModel;
use super::{Executed, Oracle};
use crate::sim::clock::TrueTime;
use crate::sim::executor::{ProcessId, lock};
use crate::sim::regime::LockKind;

const COUNT: &str = "each hold counts once";

impl ReferenceModel {
    /// The count at the key matches the owner's holds.
    pub(super) fn check_count(&mut self, at: TrueTime, executed: &Executed<'_>, owner: &Owner) {
        let name = &executed.op.name;
        let Some(lock) = self.locks.get(name).filter(|lock| lock.sort == LockKind::Reentrant) else { return };
        if lock.is_unseen(at) {
            return;
        }
        let Some(count) = lock.place(owner).map(|place| place.count()) else { return };
        let counted = executed.after.and_then(|after| after.share(owner)).map_or(0, |share| share.weight);
        if counted != count {
            let what = format!("{name}: {owner} has {count} holds, and {counted} are counted");
            self.accuse(at, COUNT, what);
        }
    }

    /// A release reported the right number of remaining holds.
    pub(super) fn check_left(&mut self, at: TrueTime, name: &LockName, owner: &Owner, count: u32, left: u32) {
        let is_known = self.locks.get(name).is_some_and(|lock| !lock.is_unseen(at));
        if count != left && is_known {
            let what = format!("{name}: {owner} was told that {left} holds are left, and has {count}");
            self.accuse(at, COUNT, what);
        }
    }
}

impl Oracle {
    /// The guards of an owner in a process that report that they hold, without those whose hold was taken
    /// away.
    pub fn held_by(&self, process: ProcessId, name: &LockName, owner: &Owner) -> Vec<u64> {
        let model = lock(&self.model);
        let guards = model
            .holds
            .iter()
            .filter(|hold| hold.process == process && hold.owner == *owner && hold.name == *name);
        guards.filter(|hold| !hold.is_excused() && hold.is_held()).map(|hold| hold.id).collect()
    }

    /// How many of these guards still do.
    pub fn still_held(&self, process: ProcessId, name: &LockName, owner: &Owner, before: &[u64]) -> usize {
        self.held_by(process, name, owner).iter().filter(|guard| before.contains(guard)).count()
    }

    /// `hold_count` returned `said` in a process; `before` are the guards that held before the call.
    pub fn said_count(&self, process: ProcessId, name: &LockName, owner: &Owner, said: u32, before: &[u64]) {
        let held = self.still_held(process, name, owner, before);
        if (said as usize) < held {
            let at = self.sim.now();
            let what = format!("{owner} was told that it has {name} {said} times, and has {held} guards");
            lock(&self.model).accuse(at, COUNT, what);
        }
    }
}
