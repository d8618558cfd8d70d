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
    /// What may be at each member.
    places: Mutex<Vec<Place>>,
    /// How often in a row nobody got a majority.
    splits: AtomicU32,
    /// When the last lease that was asked for is over.
    until: AtomicU64,
    /// It is being given back.
    has_left: AtomicBool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// How many acquisitions were sent there.
    sent: u64,
    /// One of them may have been granted.
    maybe: bool,
}

/// An acquisition that was sent to a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    number: u64,
    /// Nothing could be there before it.
    was_empty: bool,
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

    /// An acquisition is about to be sent to a member.
    pub(super) fn sent_to(&self, member: usize) -> Sent {
        let mut places = self.places();
        if places.len() <= member {
            places.resize(member + 1, Place::default());
        }
        let place = &mut places[member];
        let was_empty = !place.maybe;
        place.maybe = true;
        place.sent += 1;
        Sent { number: place.sent, was_empty }
    }

    /// An acquisition was answered by a member. What an earlier one may have taken there is there still if this one was not
    /// carried out, and a later one may take it yet.
    pub(super) fn heard_of(&self, member: usize, sent: Sent, said: &Said) {
        let is_nothing = match said {
            Ok(Answer::Held { .. }) | Err(Failure::Unknown(_)) => false,
            Ok(Answer::Behind { .. } | Answer::Ahead) | Err(Failure::NotSent(_) | Failure::Refused(_)) => {
                sent.was_empty
            }
            Ok(_) => true,
        };
        let place = &mut self.places()[member];
        if is_nothing && place.sent == sent.number {
            place.maybe = false;
        }
    }

    pub(super) fn may_be_at(&self, member: usize) -> bool {
        self.places().get(member).is_some_and(|place| place.maybe)
    }

    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
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
