//! Which servers each owner has, where a lock is on several.

use std::collections::BTreeMap;

use tenure::internals::protocol::{Answer, Verb};
use tenure::{LockName, Owner};

use super::Executed;
use crate::sim::clock::TrueTime;

/// What has become of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It began again, with nothing or with less.
    StartedAnew,
    /// Its clock was set ahead.
    SteppedAhead,
    /// Its clock was set back.
    SteppedBack,
    /// It lost the ballot that it had accepted.
    Evicted,
}

/// The servers, what stands at each, and what each owner had of them.
pub(super) struct Members {
    pub(super) name: LockName,
    pub(super) servers: Vec<Server>,
    pub(super) owners: BTreeMap<Owner, Votes>,
    /// Which know that they have accepted a token.
    pub(super) kept: BTreeMap<u64, Bits>,
}

#[derive(Default)]
pub(super) struct Server {
    pub(super) stands: Option<Stand>,
    pub(super) past: Vec<Past>,
}

/// Who has one server, and the first moment at which it does not.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Stand {
    pub(super) owner: Owner,
    pub(super) lapses: TrueTime,
}

/// A request that came to a server, or something that became of it, and what stood there before.
pub(super) struct Past {
    pub(super) at: TrueTime,
    pub(super) by: Option<Owner>,
    pub(super) before: Option<Stand>,
}

/// Servers as bits.
pub(super) type Bits = u64;

/// What one owner has had of the servers.
#[derive(Default)]
pub(super) struct Votes {
    /// Which have accepted each token from it.
    pub(super) accepted: BTreeMap<u64, Bits>,
    /// Which have granted each of its acquisitions, by the number of the request.
    pub(super) granted: BTreeMap<u64, Bits>,
    /// Which were asked, and which with a second ballot.
    pub(super) asked: BTreeMap<u64, (Bits, Bits)>,
    /// Which have lost it without its doing, and which of them by a step ahead.
    pub(super) taken: Bits,
    pub(super) stepped: Bits,
    /// Which have it again, as they went back to before it was given back.
    pub(super) again: Bits,
    /// Whether it had no majority between two times at which it had one.
    pub(super) is_interrupted: bool,
}

impl Members {
    pub(super) fn new(name: LockName, count: usize) -> Self {
        let servers = std::iter::repeat_with(Server::default).take(count).collect();
        Self { name, servers, owners: BTreeMap::new(), kept: BTreeMap::new() }
    }

    pub(super) fn majority(&self) -> usize {
        self.servers.len() / 2 + 1
    }

    pub(super) fn is_majority(&self, servers: Bits) -> bool {
        servers.count_ones() as usize >= self.majority()
    }

    /// Which servers an owner has at a moment.
    pub(super) fn of(&self, at: TrueTime, owner: &Owner) -> Bits {
        let has = |server: &Server| {
            server.stands.as_ref().is_some_and(|stand| stand.owner == *owner && at < stand.lapses)
        };
        let bits = self.servers.iter().enumerate().filter(|(_, server)| has(server));
        bits.fold(0, |bits, (index, _)| bits | 1 << index)
    }

    /// Until when an owner has a majority, if it has one now.
    pub(super) fn lapses(&self, at: TrueTime, owner: &Owner) -> Option<TrueTime> {
        let stands = self.servers.iter().filter_map(|server| server.stands.as_ref());
        let mine = stands.filter(|stand| stand.owner == *owner && at < stand.lapses);
        let mut lapses: Vec<TrueTime> = mine.map(|stand| stand.lapses).collect();
        lapses.sort_unstable_by(|a, b| b.cmp(a));
        lapses.get(self.majority() - 1).copied()
    }

    /// Whether an owner has no majority, and would have one with the votes that were taken.
    pub(super) fn lacks_only(&self, at: TrueTime, owner: &Owner, taken: impl Fn(&Votes) -> Bits) -> bool {
        let (has, votes) = (self.of(at, owner), self.owners.get(owner));
        !self.is_majority(has) && votes.is_some_and(|votes| self.is_majority(has | taken(votes)))
    }

    /// At how many servers a client with another label stood, or asked for something, since a
    /// moment.
    pub(super) fn disputed(&self, label: &str, since: TrueTime) -> usize {
        let is_other = |owner: &Owner| owner.label() != label;
        let stood = |stand: &Option<Stand>| {
            stand.as_ref().is_some_and(|stand| is_other(&stand.owner) && stand.lapses > since)
        };
        let was_there = |past: &Past| past.by.as_ref().is_some_and(is_other) || stood(&past.before);
        let is_disputed = |server: &&Server| {
            let mut since_then = server.past.iter().rev().take_while(|past| past.at >= since);
            stood(&server.stands) || since_then.any(was_there)
        };
        self.servers.iter().filter(is_disputed).count()
    }
}

impl Votes {
    pub(super) fn hears(&mut self, member: usize, executed: &Executed<'_>) {
        let (bit, request) = (1 << member, executed.op.request);
        if let Answer::Held { fence } = executed.answer {
            *self.accepted.entry(*fence).or_default() |= bit;
            self.taken &= !bit;
            self.stepped &= !bit;
            self.again &= !bit;
        }
        let Verb::Acquire { .. } = executed.op.verb else { return };
        let (asked, again) = self.asked.entry(request).or_default();
        *again |= *asked & bit;
        *asked |= bit;
        if matches!(executed.answer, Answer::Held { .. }) {
            *self.granted.entry(request).or_default() |= bit;
        }
    }
}
