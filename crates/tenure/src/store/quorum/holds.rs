//! What this side knows of each owner's hold: its newest ballot, and where there may be something to give back.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::member::Said;
use crate::owner::Owner;
use crate::protocol::Answer;
use crate::runtime::Moment;
use crate::store::Failure;

/// One owner's hold, or its wish for one.
#[derive(Debug, Default)]
pub(super) struct Hold {
    /// The highest ballot that was sent for it.
    ballot: AtomicU64,
    /// The members where there may be something, one bit each.
    maybe: AtomicU64,
    /// How often in a row nobody got a majority.
    splits: AtomicU32,
    /// When the last lease that was asked for is over.
    until: AtomicU64,
    /// It is being given back.
    has_left: AtomicBool,
    /// How often it was asked for. Whoever gives back what an earlier question may have left looks here first, and sends what it
    /// sends while nobody can ask again.
    asked: Mutex<u64>,
}

impl Hold {
    /// The next ballot: above all before it, above what stands in its way, and not below the clock.
    pub(super) fn propose(&self, clock: u64, above: u64) -> u64 {
        let least = self.ballot().max(above) + 1;
        let next = clock.max(least);
        self.ballot.fetch_max(next, Ordering::AcqRel);
        next
    }

    pub(super) fn ballot(&self) -> u64 {
        self.ballot.load(Ordering::Acquire)
    }

    /// It is about to be asked for: whatever is not sent by now to give an earlier try back will not be.
    pub(super) fn asks(&self) {
        *self.asked() += 1;
    }

    /// How often it was asked for; nobody asks again while this is held.
    pub(super) fn asked(&self) -> MutexGuard<'_, u64> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A member has shown this token.
    pub(super) fn saw(&self, ballot: u64) {
        self.ballot.fetch_max(ballot, Ordering::AcqRel);
    }

    pub(super) fn until(&self) -> Moment {
        Moment(self.until.load(Ordering::Acquire))
    }

    pub(super) fn lasts_until(&self, until: Moment) {
        self.until.fetch_max(until.0, Ordering::AcqRel);
    }

    /// An acquisition is about to be sent to a member. Whether it is the first.
    pub(super) fn sent_to(&self, member: usize) -> bool {
        self.maybe.fetch_or(1 << member, Ordering::AcqRel) & (1 << member) == 0
    }

    /// An acquisition was answered by a member. What an earlier ballot may have taken there is there still if this one was not
    /// carried out.
    pub(super) fn heard_of(&self, member: usize, was_first: bool, said: &Said) {
        let is_nothing = match said {
            Ok(Answer::Held { .. }) | Err(Failure::Unknown(_)) => false,
            Ok(Answer::Behind { .. } | Answer::Ahead) | Err(Failure::NotSent(_) | Failure::Refused(_)) => {
                was_first
            }
            Ok(_) => true,
        };
        if is_nothing {
            self.maybe.fetch_and(!(1 << member), Ordering::AcqRel);
        }
    }

    pub(super) fn may_be_at(&self, member: usize) -> bool {
        self.maybe.load(Ordering::Acquire) & (1 << member) != 0
    }

    pub(super) fn leave(&self) {
        self.has_left.store(true, Ordering::Release);
    }

    pub(super) fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Acquire)
    }

    /// Nobody got a majority once more: how often in a row.
    pub(super) fn split(&self) -> u32 {
        self.splits.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn is_settled(&self) {
        self.splits.store(0, Ordering::Relaxed);
    }
}

/// The holds of one quorum.
#[derive(Debug, Default)]
pub(super) struct Holds(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    by_owner: BTreeMap<Owner, Arc<Hold>>,
    /// At so many the lapsed ones are forgotten.
    full_at: usize,
}

impl Holds {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing in here panics half-way, so a poisoned table is as good as another.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hold of an owner, which is known from now on.
    pub(super) fn of(&self, owner: &Owner, now: Moment, until: Moment) -> Arc<Hold> {
        let mut table = self.table();
        if table.by_owner.len() >= table.full_at {
            table.by_owner.retain(|_, hold| hold.until() >= now);
            table.full_at = (2 * table.by_owner.len()).max(64);
        }
        let hold = table.by_owner.entry(owner.clone()).or_default();
        hold.lasts_until(until);
        Arc::clone(hold)
    }

    pub(super) fn known(&self, owner: &Owner) -> Option<Arc<Hold>> {
        self.table().by_owner.get(owner).cloned()
    }

    pub(super) fn forget(&self, owner: &Owner) {
        self.table().by_owner.remove(owner);
    }
}
