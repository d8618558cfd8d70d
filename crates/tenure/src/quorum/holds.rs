//! What this side knows of each owner's hold: its latest ballots, and the members where something may have to
//! be released.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use super::member::MemberAnswer;
use crate::moment::Moment;
use crate::owner::Owner;
use crate::protocol::Answer;
use crate::store::Failure;
use crate::sync::Locked;

/// The hold of one owner, or its request for one.
#[derive(Debug, Default)]
pub(super) struct OwnerHold {
    /// Highest ballot sent to all members.
    ballot: AtomicU64,
    /// Token granted or taken over; 0 if there is none.
    token: AtomicU64,
    /// What each member may have, by index.
    places: Locked<Vec<HeldPlace>>,
    /// Number of consecutive split votes.
    splits: AtomicU32,
    /// End of the last lease that was requested.
    until: AtomicU64,
    /// Set when the hold is being released or passed on.
    has_left: AtomicBool,
    is_passed_on: AtomicBool,
}

#[derive(Clone, Copy, Debug, Default)]
struct HeldPlace {
    /// Highest ballot sent to this member alone. If its clock is ahead, this ballot is high, and must not be
    /// sent to the other members, because they would keep it.
    ballot: u64,
    /// Highest ballot reported by this member; a previous or later holder may have sent it.
    shown: u64,
    /// Number of acquisitions sent to this member.
    sent: u64,
    /// Whether any of them may have been granted.
    maybe: bool,
}

/// An acquisition in flight to a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentAcquisition {
    number: u64,
    /// Whether nothing could be at the member before it.
    was_empty: bool,
}

impl OwnerHold {
    /// The next ballot for all members: above all previous ones, above `above`, and at least `clock`.
    pub(super) fn propose(&self, clock: u64, above: u64) -> u64 {
        let next = |known: u64| clock.max(known.max(above) + 1);
        let raised = self.ballot.fetch_update(Ordering::AcqRel, Ordering::Acquire, |known| Some(next(known)));
        next(raised.unwrap_or_else(|known| known))
    }

    /// The next ballot for one member alone.
    pub(super) fn propose_to(&self, member: usize, clock: u64, above: u64) -> u64 {
        let next = clock.max(self.ballot_at(member).max(above) + 1);
        self.place(member, |place| place.ballot = place.ballot.max(next));
        next
    }

    /// Highest ballot that this side has sent to a member.
    pub(super) fn sent_at(&self, member: usize) -> u64 {
        let alone = self.places().get(member).map_or(0, |place| place.ballot);
        alone.max(self.ballot.load(Ordering::Acquire))
    }

    /// Highest ballot that may be at a member or on its way there. Includes the token of a hold that was
    /// taken over, because it was sent to all members.
    pub(super) fn ballot_at(&self, member: usize) -> u64 {
        let shown = self.places().get(member).map_or(0, |place| place.shown);
        self.sent_at(member).max(shown).max(self.token())
    }

    /// Records that a member reported the hold with this ballot.
    pub(super) fn saw(&self, member: usize, ballot: u64) {
        self.sent_to(member);
        self.place(member, |place| place.shown = place.shown.max(ballot));
    }

    /// Records the token that a majority has granted.
    pub(super) fn is_granted(&self, token: u64) {
        self.token.store(token, Ordering::Release);
    }

    /// Records the token of a held lock, unless one is known already.
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

    /// Shortens the lifetime after everything requested was undone.
    pub(super) fn lasts_no_longer_than(&self, until: Moment) {
        self.until.fetch_min(until.0, Ordering::AcqRel);
    }

    /// Records an acquisition about to be sent to a member.
    pub(super) fn sent_to(&self, member: usize) -> SentAcquisition {
        self.place(member, |place| {
            let was_empty = !place.maybe;
            place.maybe = true;
            place.sent += 1;
            SentAcquisition { number: place.sent, was_empty }
        })
    }

    /// Records a member's answer to an acquisition. If that acquisition was not carried out, the grant of an
    /// earlier one may remain, and a later one may still be granted.
    pub(super) fn heard_of(&self, member: usize, sent: SentAcquisition, said: &MemberAnswer) {
        let is_nothing = match said {
            Ok(Answer::Held { .. }) | Err(Failure::Unknown(_)) => false,
            Ok(Answer::Behind { .. } | Answer::Ahead) | Err(Failure::NotSent(_) | Failure::Refused(_)) => {
                sent.was_empty
            }
            Ok(_) => true,
        };
        let place = &mut self.places()[member];
        // The hold may have been taken over, and the other process may have reacquired here with a ballot
        // above any known to this side.
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

    fn place<R>(&self, member: usize, change: impl FnOnce(&mut HeldPlace) -> R) -> R {
        let mut places = self.places();
        if places.len() <= member {
            places.resize(member + 1, HeldPlace::default());
        }
        change(&mut places[member])
    }

    fn places(&self) -> MutexGuard<'_, Vec<HeldPlace>> {
        self.places.lock()
    }

    pub(super) fn leave(&self) {
        self.has_left.store(true, Ordering::Release);
    }

    /// Marks the hold as detached: from now on it belongs to another client, or to none yet.
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

    /// Counts a split vote. Returns the number of consecutive ones before it.
    pub(super) fn split(&self) -> u32 {
        self.splits.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn is_settled(&self) {
        self.splits.store(0, Ordering::Relaxed);
    }
}

/// The holds known to one quorum.
#[derive(Debug, Default)]
pub(super) struct OwnerRegistry(Locked<QuorumTable>);

#[derive(Debug, Default)]
struct QuorumTable {
    by_owner: BTreeMap<Owner, Arc<OwnerHold>>,
    /// Size at which lapsed holds are removed.
    full_at: usize,
}

impl OwnerRegistry {
    fn table(&self) -> MutexGuard<'_, QuorumTable> {
        self.0.lock()
    }

    /// Returns the hold of an owner, registering it if necessary.
    pub(super) fn of(&self, owner: &Owner, now: Moment, until: Moment) -> Arc<OwnerHold> {
        let mut table = self.table();
        if table.by_owner.len() >= table.full_at {
            table.by_owner.retain(|_, hold| hold.until() >= now);
            table.full_at = (2 * table.by_owner.len()).max(64);
        }
        let hold = table.by_owner.entry(owner.clone()).or_default();
        hold.lasts_until(until);
        Arc::clone(hold)
    }

    /// Registers a hold that is taken over. It may be on any member, and knowledge from before it was passed
    /// on is discarded.
    pub(super) fn taken_over(
        &self,
        owner: &Owner,
        members: usize,
        now: Moment,
        until: Moment,
    ) -> Arc<OwnerHold> {
        self.forget(owner);
        let hold = self.of(owner, now, until);
        for member in 0..members {
            hold.sent_to(member);
        }
        hold
    }

    pub(super) fn known(&self, owner: &Owner) -> Option<Arc<OwnerHold>> {
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
