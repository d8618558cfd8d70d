//! Nobody thinks to hold what somebody else may have, and no request touches another's hold.

use tenure::internals::protocol::{Answer, Verb, Whose};
use tenure::{LockName, Owner};

use super::{Book, Executed, Hold};
use crate::sim::clock::TrueTime;

/// Two never believe to hold at one moment.
const EXCLUSION: &str = "exclusion within validity";
/// A request of one owner never changes another's hold, nor revives its own.
const UNTOUCHED: &str = "no stale release, no revival";

impl Book {
    /// The server granted a lock: no guard of anybody else may say that it holds, from this moment on and not only from when the new
    /// holder hears of it.
    pub(super) fn check_nobody_else(&mut self, at: TrueTime, name: &LockName, owner: &Owner) {
        let other = self.holds.iter().find(|hold| {
            hold.name == *name && hold.owner != *owner && !self.is_forced(&hold.owner) && hold.is_held()
        });
        if let Some(other) = other {
            let what = format!(
                "{name} was granted to {owner} while a guard of {} in process {} said that it holds",
                other.owner, other.process
            );
            self.accuse(at, EXCLUSION, what);
        }
    }

    /// A lease is over in true time: its guard must have known.
    pub(super) fn check_unheld(&mut self, at: TrueTime, owner: &Owner) {
        if let Some(hold) = self.holds.iter().find(|hold| hold.owner == *owner && hold.is_held()) {
            let what = format!(
                "the guard of {owner} in process {} says that it holds {} when its lease is over",
                hold.process, hold.name
            );
            self.accuse(at, EXCLUSION, what);
        }
    }

    /// A guard says now that it holds: then the server must have a living lease for it.
    pub(super) fn check_covered(&mut self, at: TrueTime, hold: &Hold) {
        let Some(owned) = self.owners.get(&hold.owner) else {
            return self.accuse(
                at,
                EXCLUSION,
                format!("a guard of {} that the server never saw", hold.owner),
            );
        };
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

    /// What a request may do to the hold that stood before it.
    pub(super) fn check_untouched(&mut self, at: TrueTime, executed: &Executed<'_>) {
        let Executed { op, answer, after, .. } = executed;
        let before = self.locks.get(&op.name).and_then(|lock| lock.holder.as_ref());
        let stands =
            after.is_some_and(|after| before.is_some_and(|before| after.value.starts_with(before.as_str())));
        let wrong = match (before, &op.verb) {
            (_, Verb::Release { whose: Whose::Anyone, .. }) => return,
            (Some(before), _) if *before != op.owner && !stands => {
                format!("a request of {} ended the hold of {before}: {:?}", op.owner, op.verb)
            }
            (Some(before), Verb::Acquire { .. } | Verb::Renew { .. })
                if *before != op.owner && matches!(answer, Answer::Held { .. }) =>
            {
                format!("{} was told that it holds what {before} has", op.owner)
            }
            (None, Verb::Renew { .. }) if after.is_some() => {
                format!("a renewal of {} made a hold where there was none", op.owner)
            }
            _ => return,
        };
        self.accuse(at, UNTOUCHED, format!("{}: {wrong}", op.name));
    }
}
