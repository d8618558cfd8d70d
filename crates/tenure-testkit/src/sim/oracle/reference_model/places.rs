//! Queries on places and locks.

use super::*;

impl Place {
    /// Whether it is the same place at another time.
    pub(super) fn is_of(&self, other: &Self) -> bool {
        (&self.owner, self.number) == (&other.owner, other.number)
    }

    /// Whether this hold of a reentrant owner exists.
    pub(in crate::sim) fn is_live(&self, hold: u64) -> bool {
        self.live.iter().any(|(live, _)| *live == hold)
    }

    /// Number of holds of a reentrant owner.
    pub(in crate::sim) fn count(&self) -> u32 {
        self.live.len() as u32 + self.detached
    }
}

impl Lock {
    pub(in crate::sim) fn place(&self, owner: &Owner) -> Option<&Place> {
        self.places.iter().find(|place| place.owner == *owner)
    }

    pub(in crate::sim) fn used(&self) -> u64 {
        self.places.iter().filter(|place| place.holds).map(|place| u64::from(place.weight)).sum()
    }

    pub(in crate::sim) fn head(&self) -> Option<&Place> {
        self.places.iter().find(|place| !place.holds)
    }

    /// Whether a request of this weight fits. One that exceeds the capacity, because that was lowered since,
    /// fits alone.
    pub(in crate::sim) fn fits(&self, weight: u32) -> bool {
        self.used() + u64::from(weight.min(self.capacity)) <= u64::from(self.capacity)
    }

    /// Whether clients may not know yet that a lease is over.
    pub(in crate::sim) fn is_unseen(&self, at: TrueTime) -> bool {
        at <= self.unseen_until
    }

    pub(in crate::sim) fn is_open(&self) -> bool {
        self.head().is_some_and(|head| self.fits(head.weight))
    }

    /// Updates everything derived from the places.
    pub(in crate::sim) fn changed(&mut self, at: TrueTime) {
        if self.places.is_empty() {
            (self.free_since, self.known_since) = (at, at);
        }
        self.open_since = if self.is_open() { self.open_since.or(Some(at)) } else { None };
        let is_queued = self.head().is_some() || self.sort == LockKind::Reentrant && !self.places.is_empty();
        let room = if is_queued { 0 } else { u64::from(self.capacity).saturating_sub(self.used()) };
        if self.room.last().is_none_or(|(_, last, of)| (*last, *of) != (room, self.capacity)) {
            self.room.push((at, room, self.capacity));
        }
    }

    /// Whether a newcomer of this weight would have fitted at all times since `since`.
    pub(in crate::sim) fn had_room(&self, weight: u32, since: TrueTime) -> bool {
        let first = self.room.partition_point(|(at, ..)| *at <= since).saturating_sub(1);
        self.room[first..].iter().all(|(_, room, of)| u64::from(weight.min(*of)) <= *room)
    }
}

impl Lock {
    pub(super) fn add(&mut self, owner: &Owner, number: u64) -> usize {
        let (owner, live) = (owner.clone(), Vec::new());
        let (process, weight, holds, lapses, is_bound, knows, detached) = (0, 1, false, 0, false, false, 0);
        let place = Place { owner, process, number, weight, holds, lapses, is_bound, knows, live, detached };
        self.places.push(place);
        self.places.len() - 1
    }
}

impl Place {
    /// The place of a sole holder.
    pub(in crate::sim) fn of(owner: &Owner, lapses: TrueTime) -> Self {
        let (owner, live) = (owner.clone(), Vec::new());
        let (process, number, weight, holds, is_bound, knows, detached) = (0, 0, 1, true, false, false, 0);
        Self { owner, process, number, weight, holds, lapses, is_bound, knows, live, detached }
    }

    /// Applies a granted request to the holds of a reentrant owner.
    pub(super) fn count_in(&mut self, verb: &Verb, process: ProcessId) {
        match verb {
            Verb::Acquire { hold, .. } if !self.is_live(*hold) => self.live.push((*hold, process)),
            Verb::Renew { hold, bind: Some(Liveness::Lease), .. } if self.is_live(*hold) => {
                self.live.retain(|(live, _)| live != hold);
                self.detached += 1;
            }
            Verb::Renew { hold, bind: Some(Liveness::Process | Liveness::Work), .. }
                if !self.is_live(*hold) && self.detached > 0 =>
            {
                self.detached -= 1;
                self.live.push((*hold, process));
            }
            _ => {}
        }
    }

    pub(super) fn bind(&mut self, verb: &Verb) {
        if let Verb::Acquire { bind, .. } | Verb::Renew { bind: Some(bind), .. } = verb {
            self.is_bound = *bind != Liveness::Lease;
        }
    }
}
