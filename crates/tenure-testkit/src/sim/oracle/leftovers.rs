//! Abandoned, dropped and cancelled work leaves nothing behind, and everything has an end.

use tenure::internals::protocol::Answer;
use tenure::{LockName, Owner};

use super::reference_model::ReferenceModel;
use super::{Executed, Oracle};
use crate::sim::clock::{MS, TrueTime};
use crate::sim::executor::{Sim, lock};

pub(super) const ENDLESS: &str = "every hold has an end";
const ORPHAN: &str = "nothing is left behind";

/// Maximum time for a release when nothing fails.
const GIVING_BACK: TrueTime = 200 * MS;

impl ReferenceModel {
    /// A place must expire, no later than the requested lease. Returns its end and its weight.
    pub(super) fn check_end(
        &mut self,
        at: TrueTime,
        executed: &Executed<'_>,
        owner: &Owner,
    ) -> Option<(TrueTime, u32)> {
        let name = &executed.op.name;
        let Some(share) = executed.after.and_then(|after| after.share(owner)) else {
            self.accuse(at, ENDLESS, format!("{name} was granted, and nothing stands at its key"));
            return None;
        };
        let Some(lapses) = share.lapses else {
            self.accuse(at, ENDLESS, format!("{name} is held without an end"));
            return None;
        };
        // The server counts whole milliseconds, by a clock that may be half a percent slow.
        let mut longest = (self.longest_ms + 2) * MS + self.plan.session;
        if !matches!(executed.answer, Answer::Held { .. } | Answer::Growing { .. }) {
            longest = longest.max(self.plan.kept);
        }
        if self.plan.kept > 0 {
            // A renewal estimates the server's clock.
            longest += 400 * MS;
        }
        // A lease set before its clock was stepped back may end later, and nothing shortens it.
        let known = self.locks.get(name).and_then(|lock| lock.place(owner)).map_or(0, |place| place.lapses);
        if lapses > known.max(at + longest + longest / 100) {
            self.accuse(at, ENDLESS, format!("{name} is held for {} ms", (lapses - at) / MS));
        }
        Some((lapses, share.weight))
    }

    /// A place that was granted, or whose client no longer listens, must not last longer than another.
    pub(super) fn check_short(&mut self, at: TrueTime, name: &LockName, owner: &Owner, lapses: TrueTime) {
        let most = self.plan.wait() + 2 * MS;
        if self.plan.kept > 0 && self.plan.step == 0 && lapses > at + most + most / 100 {
            let what = format!("{name}: the place of {owner} lasts for {} ms", (lapses - at) / MS);
            self.accuse(at, ENDLESS, what);
        }
    }

    /// A lease expired. When nothing fails, that is legitimate only for a guard still in a task's hands, a
    /// process that died or was paused, or a detached owner. A waiter refreshes its place as long as it
    /// waits, and then withdraws it.
    pub(super) fn check_given_back(&mut self, at: TrueTime, owner: &Owner, sim: &Sim) {
        let Some(owned) = self.owners.get(owner) else { return };
        let unused = if owned.waits {
            owned.set_at
        } else {
            owned.let_go_at.unwrap_or(owned.granted_at).max(owned.granted_at)
        };
        let unused = unused.max(self.plan.strict_from);
        let processes = || (0..64).filter(|process| owned.processes & 1 << process != 0);
        let is_excused = owned.ended.is_some()
            // Holds that reappeared after their release are counted again, and nobody releases them twice.
            || owned.is_back
            || owned.detached > 0
            || !owned.waits && at < unused + GIVING_BACK
            || owned.waits && owned.set_at < self.plan.strict_from
            || processes().any(|process| sim.is_dead(process) || sim.resumed_at(process) > unused)
            || self.holds.iter().any(|hold| hold.owner == *owner);
        if !is_excused {
            let what = format!(
                "the {} of {owner} in process {} ran out, {} ms after it was of no use to any client",
                if owned.waits { "place" } else { "hold" },
                owned.process,
                (at - unused) / MS
            );
            self.accuse(at, ORPHAN, what);
        }
    }
}

impl Oracle {
    /// Everything ended well some time ago: whatever is left must belong to a client that can no longer
    /// release it.
    pub fn check_empty(&self) {
        let at = self.sim.now();
        let mut model = lock(&self.model);
        let mut places = model.locks.iter().flat_map(|(name, lock)| {
            let alive = lock.places.iter().filter(|place| place.lapses > at);
            alive.map(move |place| (name, &place.owner))
        });
        let left = places.find_map(|(name, owner)| {
            let owned = model.owners.get(owner)?;
            let mut processes = (0..64).filter(|process| owned.processes & 1 << process != 0);
            let is_excused =
                owned.is_back || owned.detached > 0 || processes.any(|process| self.sim.is_dead(process));
            (!is_excused).then(|| format!("{owner} in process {} still has {name}", owned.process))
        });
        if let Some(what) = left {
            model.accuse(at, ORPHAN, what);
        }
    }
}
