//! Which servers each owner has, for a lock on several servers.

use std::collections::BTreeMap;

use tenure::internals::protocol::{Answer, Verb};
use tenure::{LockName, Owner};

use super::Executed;
use crate::sim::clock::TrueTime;

/// A fault of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It restarted without data, or with less.
    StartedAnew,
    /// Its clock was stepped forward.
    SteppedAhead,
    /// Its clock was stepped back.
    SteppedBack,
    /// It lost the ballot that it had accepted.
    Evicted,
}

/// The servers, what each holds, and which of them each owner had.
pub(super) struct Members {
    pub(super) name: LockName,
    pub(super) servers: Vec<Server>,
    pub(super) owners: BTreeMap<Owner, Votes>,
    /// Servers that remember having accepted a token.
    pub(super) kept: BTreeMap<u64, Bits>,
}

#[derive(Default)]
pub(super) struct Server {
    pub(super) stands: Option<Stand>,
    pub(super) past: Vec<Past>,
}

/// The holder on one server, and the first moment at which it is not any more.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Stand {
    pub(super) owner: Owner,
    pub(super) lapses: TrueTime,
}

/// A request or fault at a server, and what it held before.
pub(super) struct Past {
    pub(super) at: TrueTime,
    pub(super) by: Option<Owner>,
    pub(super) before: Option<Stand>,
}

/// A set of servers, one bit each.
pub(super) type Bits = u64;

#[derive(Default)]
pub(super) struct Votes {
    /// Servers that accepted each token from it.
    pub(super) accepted: BTreeMap<u64, Bits>,
    /// Servers that granted each acquisition, by request number.
    pub(super) granted: BTreeMap<u64, Bits>,
    /// Servers that were asked, and those asked with a second ballot, by request number.
    pub(super) asked: BTreeMap<u64, (Bits, Bits)>,
    /// Servers that lost its hold without its doing, and those among them whose clock was stepped forward.
    pub(super) taken: Bits,
    pub(super) stepped: Bits,
    /// Servers that have its hold again, because they went back to before its release.
    pub(super) again: Bits,
    /// Whether it lost its majority and then regained it.
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

    /// Servers that an owner has at a moment.
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

    /// Whether an owner lacks a majority but would have one with its taken votes.
    pub(super) fn lacks_only(&self, at: TrueTime, owner: &Owner, taken: impl Fn(&Votes) -> Bits) -> bool {
        let (has, votes) = (self.of(at, owner), self.owners.get(owner));
        !self.is_majority(has) && votes.is_some_and(|votes| self.is_majority(has | taken(votes)))
    }

    /// Number of servers on which a client with another label held or requested something since `since`.
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
