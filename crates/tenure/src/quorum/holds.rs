//! What this side knows of each owner's hold: its newest ballots, and where there may be something
//! to give back.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::member::Said;
use crate::moment::Moment;
use crate::owner::Owner;
use crate::protocol::Answer;
use crate::store::Failure;

/// One owner's hold, or its request for one.
#[derive(Debug, Default)]
pub(super) struct Hold {
    /// The highest ballot that was sent for it to all members.
    ballot: AtomicU64,
    /// The token with which it was granted, or taken over; 0 if it was not.
    token: AtomicU64,
    /// What may be at each member.
    places: Mutex<Vec<Place>>,
    /// How often in a row no client got a majority.
    splits: AtomicU32,
    /// When the last lease that was asked for is over.
    until: AtomicU64,
    /// It is being given back, or passed on.
    has_left: AtomicBool,
    is_passed_on: AtomicBool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// The highest ballot that was sent there alone. A member whose clock is ahead has a high one,
    /// and the others must not get it: they would keep it.
    ballot: u64,
    /// The highest that was shown there: who had the hold before, or has taken it over, may have
    /// sent it.
    shown: u64,
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
    /// The next ballot for all members: above all before it, above what stands in its way, and not
    /// below the clock.
    pub(super) fn propose(&self, clock: u64, above: u64) -> u64 {
        let next = clock.max(self.ballot.load(Ordering::Acquire).max(above) + 1);
        self.ballot.fetch_max(next, Ordering::AcqRel);
        next
    }

    /// The same for one member alone.
    pub(super) fn propose_to(&self, member: usize, clock: u64, above: u64) -> u64 {
        let next = clock.max(self.ballot_at(member).max(above) + 1);
        self.place(member, |place| place.ballot = place.ballot.max(next));
        next
    }

    /// The highest ballot that this side has sent to a member.
    pub(super) fn sent_at(&self, member: usize) -> u64 {
        let alone = self.places().get(member).map_or(0, |place| place.ballot);
        alone.max(self.ballot.load(Ordering::Acquire))
    }

    /// The highest that may be there, or on its way there: the token of a hold that was taken over
    /// too, as it was sent to all.
    pub(super) fn ballot_at(&self, member: usize) -> u64 {
        let shown = self.places().get(member).map_or(0, |place| place.shown);
        self.sent_at(member).max(shown).max(self.token())
    }

    /// A member has shown that it is held there, with this token.
    pub(super) fn saw(&self, member: usize, ballot: u64) {
        self.sent_to(member);
        self.place(member, |place| place.shown = place.shown.max(ballot));
    }

    /// A majority has granted this token.
    pub(super) fn is_granted(&self, token: u64) {
        self.token.store(token, Ordering::Release);
    }

    /// It is held, with this token if none was known before.
    pub(super) fn has_token(&self, token: u64) {
        let _ = self.token.compare_exchange(0, token, Ordering::AcqRel, Ordering::Acquire);
    }

    pub(super) fn token(&self) -> u64 {
        self.token.load(Ordering::Acquire)
    }

    pub(super) fn until(&self) -> Moment {
        Moment(self.until.load(Ordering::Acquire))
    }

    pub(super) fn lasts_until(&self, until: Moment) {
        self.until.fetch_max(until.0, Ordering::AcqRel);
    }

    /// Nothing is left of what was asked for.
    pub(super) fn lasts_no_longer_than(&self, until: Moment) {
        self.until.fetch_min(until.0, Ordering::AcqRel);
    }

    /// An acquisition is about to be sent to a member.
    pub(super) fn sent_to(&self, member: usize) -> Sent {
        self.place(member, |place| {
            let was_empty = !place.maybe;
            place.maybe = true;
            place.sent += 1;
            Sent { number: place.sent, was_empty }
        })
    }

    /// An acquisition was answered by a member. What an earlier one may have taken there is there
    /// still if this one was not carried out, and a later one may take it yet.
    pub(super) fn heard_of(&self, member: usize, sent: Sent, said: &Said) {
        let is_nothing = match said {
            Ok(Answer::Held { .. }) | Err(Failure::Unknown(_)) => false,
            Ok(Answer::Behind { .. } | Answer::Ahead) | Err(Failure::NotSent(_) | Failure::Refused(_)) => {
                sent.was_empty
            }
            Ok(_) => true,
        };
        let place = &mut self.places()[member];
        // Its owner may have been taken over, and another process may have taken it again there,
        // above what this side knows.
        if let Ok(Answer::Held { fence }) = said {
            place.shown = place.shown.max(*fence);
        }
        if is_nothing && place.sent == sent.number {
            place.maybe = false;
        }
    }

    pub(super) fn may_be_at(&self, member: usize) -> bool {
        self.places().get(member).is_some_and(|place| place.maybe)
    }

    fn place<R>(&self, member: usize, change: impl FnOnce(&mut Place) -> R) -> R {
        let mut places = self.places();
        if places.len() <= member {
            places.resize(member + 1, Place::default());
        }
        change(&mut places[member])
    }

    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn leave(&self) {
        self.has_left.store(true, Ordering::Release);
    }

    /// Another client has it from now on, or no client yet.
    pub(super) fn pass_on(&self) {
        self.is_passed_on.store(true, Ordering::Release);
        self.leave();
    }

    pub(super) fn is_passed_on(&self) -> bool {
        self.is_passed_on.load(Ordering::Acquire)
    }

    pub(super) fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Acquire)
    }

    /// No client got a majority once more: how often in a row.
    pub(super) fn split(&self) -> u32 {
        self.splits.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn is_settled(&self) {
        self.splits.store(0, Ordering::Relaxed);
    }
}

/// The holds of one quorum.
#[derive(Debug, Default)]
pub(super) struct OwnerRegistry(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    by_owner: BTreeMap<Owner, Arc<Hold>>,
    /// At so many the lapsed ones are forgotten.
    full_at: usize,
}

impl OwnerRegistry {
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

    /// The hold of an owner that is taken over: it may be anywhere, and what this side knew of it
    /// before it was passed on is over.
    pub(super) fn taken_over(&self, owner: &Owner, members: usize, now: Moment, until: Moment) -> Arc<Hold> {
        self.forget(owner);
        let hold = self.of(owner, now, until);
        for member in 0..members {
            hold.sent_to(member);
        }
        hold
    }

    pub(super) fn known(&self, owner: &Owner) -> Option<Arc<Hold>> {
        self.table().by_owner.get(owner).cloned()
    }

    pub(super) fn forget(&self, owner: &Owner) {
        self.table().by_owner.remove(owner);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.table().by_owner.len()
    }
}
