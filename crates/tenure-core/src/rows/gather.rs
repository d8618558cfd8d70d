//! Gathers the requests that wait for a statement in flight, and sends them together in the next one.
//!
//! One statement of each sort is in flight, so that a server that waits for its disk commits many requests at
//! once, and the next ones gather meanwhile. A request that meets no statement of its sort leaves at once.

use std::collections::VecDeque;
use std::mem;

use super::names::LockKey;
use super::server::{RowChange, SoleChange, SoleVerb};

/// Maximum locks per statement.
pub(super) const LOCKS: usize = 500;

/// The sorts of statements about locks, in the order in which they are sent: first those that need no disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatementSort {
    Change(SoleVerb),
    Read,
    Write { durable: bool },
}

pub(super) const VERBS: [SoleVerb; 3] = [SoleVerb::Release, SoleVerb::Renew, SoleVerb::Acquire];
const SORTS: usize = 6;

impl StatementSort {
    pub(super) fn index(self) -> usize {
        match self {
            Self::Change(verb) => verb as usize,
            Self::Read => 3,
            Self::Write { durable } => 4 + usize::from(durable),
        }
    }
}

/// What gathers for the next statements.
#[derive(Default)]
pub(super) struct Gathered {
    in_flight: [usize; SORTS],
    /// Locks whose next requests wait for a statement in flight.
    names: [VecDeque<String>; SORTS],
    /// Changes for the next writes: those that need no disk, and the others.
    writes: [VecDeque<(LockKey, RowChange)>; 2],
    pub(super) halves: Vec<RowBatch>,
}

pub(super) enum RowBatch {
    Change(SoleVerb, Vec<SoleChange>),
    Write(Vec<(LockKey, RowChange)>),
}

impl RowBatch {
    pub(super) fn sort(&self) -> StatementSort {
        match self {
            Self::Change(verb, _) => StatementSort::Change(*verb),
            Self::Write(changes) => Self::sort_of(changes),
        }
    }

    pub(super) fn sort_of(changes: &[(LockKey, RowChange)]) -> StatementSort {
        StatementSort::Write { durable: changes.iter().any(|(_, change)| change.durable) }
    }
}

impl Gathered {
    pub(super) fn sent(&mut self, sort: StatementSort) {
        self.in_flight[sort.index()] += 1;
    }

    pub(super) fn done(&mut self, sort: StatementSort) {
        self.in_flight[sort.index()] -= 1;
    }

    pub(super) fn is_in_flight(&self, sort: StatementSort) -> bool {
        self.in_flight[sort.index()] > 0
    }

    pub(super) fn wait(&mut self, sort: StatementSort, name: String) {
        self.names[sort.index()].push_back(name);
    }

    /// The locks that need no longer wait, those first that have waited for longest.
    pub(super) fn names(&mut self) -> Vec<String> {
        let free = self.names.iter_mut().zip(self.in_flight).filter(|(_, count)| *count == 0);
        free.flat_map(|(names, _)| names.drain(..names.len().min(LOCKS))).collect()
    }

    pub(super) fn write(&mut self, key: LockKey, change: RowChange) {
        self.writes[usize::from(change.durable)].push_back((key, change));
    }

    /// The next write, unless one is in flight.
    pub(super) fn writes(&mut self, durable: bool) -> Option<RowBatch> {
        let is_free = !self.is_in_flight(StatementSort::Write { durable });
        let writes = &mut self.writes[usize::from(durable)];
        let count = writes.len().min(LOCKS);
        (is_free && count > 0).then(|| RowBatch::Write(writes.drain(..count).collect()))
    }

    /// Forgets everything, because the connection has ended. Returns the locks whose changes were not sent.
    pub(super) fn clear(&mut self) -> Vec<LockKey> {
        let Self { writes, halves, .. } = mem::take(self);
        let halves = halves.into_iter().flat_map(|half| match half {
            RowBatch::Change(_, changes) => changes.into_iter().map(|change| change.key).collect(),
            RowBatch::Write(changes) => changes.into_iter().map(|(key, _)| key).collect::<Vec<_>>(),
        });
        writes.into_iter().flatten().map(|(key, _)| key).chain(halves).collect()
    }
}
