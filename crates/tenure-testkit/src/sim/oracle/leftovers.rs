//! What was given up, dropped or cancelled leaves nothing, and nothing is without an end.

use tenure::Owner;

use super::{Book, Executed, Oracle};
use crate::sim::clock::{MS, TrueTime};
use crate::sim::executor::{Sim, lock};

const ENDLESS: &str = "every hold has an end";
const ORPHAN: &str = "nothing is left behind";

/// How long giving back may take when nothing fails.
const GIVING_BACK: TrueTime = 200 * MS;

impl Book {
    /// A hold has an end, and none later than the lease that was asked for. Returns that end.
    pub(super) fn check_end(&mut self, at: TrueTime, executed: &Executed<'_>) -> Option<TrueTime> {
        let name = &executed.op.name;
        let Some(after) = executed.after else {
            self.accuse(at, ENDLESS, format!("{name} was granted, and nothing stands at its key"));
            return None;
        };
        let Some(lapses) = after.lapses else {
            self.accuse(at, ENDLESS, format!("{name} is held without an end"));
            return None;
        };
        // The server counts whole milliseconds on a clock that may be half a percent slow.
        let longest = (self.longest_ms + 2) * MS;
        if lapses > at + longest + longest / 100 {
            self.accuse(at, ENDLESS, format!("{name} is held for {} ms", (lapses - at) / MS));
        }
        Some(lapses)
    }

    /// A lease ran out by itself. When nothing fails that happens only to those who chose it: to a guard that is still in
    /// somebody's hands, a process that died or stood still, an owner that was passed on.
    pub(super) fn check_given_back(&mut self, at: TrueTime, owner: &Owner, sim: &Sim) {
        let Some(owned) = self.owners.get(owner) else { return };
        let unused = owned.let_go_at.unwrap_or(owned.granted_at).max(self.strict_from);
        let is_excused = owned.ended.is_some()
            || owned.is_detached
            || at < unused + GIVING_BACK
            || sim.is_dead(owned.process)
            || sim.resumed_at(owned.process) > unused
            || self.holds.iter().any(|hold| hold.owner == *owner);
        if !is_excused {
            let what = format!(
                "the hold of {owner} in process {} ran out, {} ms after it was of no use to anybody",
                owned.process,
                (at - unused) / MS
            );
            self.accuse(at, ORPHAN, what);
        }
    }
}

impl Oracle {
    /// Everything has ended well and some time ago: whatever still stands must be somebody's who can no longer give it back.
    pub fn check_empty(&self) {
        let at = self.sim.now();
        let mut book = lock(&self.book);
        let left = book.locks.iter().find_map(|(name, lock)| {
            let owner = lock.holder.as_ref().filter(|_| lock.lapses > at)?;
            let owned = book.owners.get(owner)?;
            let is_excused = owned.is_detached || self.sim.is_dead(owned.process);
            (!is_excused).then(|| format!("{owner} in process {} still has {name}", owned.process))
        });
        if let Some(what) = left {
            book.accuse(at, ORPHAN, what);
        }
    }
}
