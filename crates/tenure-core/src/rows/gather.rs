//! Gathers the requests that wait for a statement in flight, and sends them together in the next one.
//!
//! One statement of each sort is in flight, so that a server that waits for its disk commits many requests at
//! once, and the next ones gather meanwhile. A request that meets no statement of its sort leaves at once.
//!
//! The statement after one of several requests waits for a moment, so that those whom that one has served can take
//! part: otherwise their releases would queue behind the next commit, and the first one to return would leave alone.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use super::names::LockKey;
use super::server::{RowChange, SoleChange, SoleVerb};
use crate::moment::Moment;

/// Maximum locks per statement.
pub(super) const LOCKS: usize = 500;
/// After a statement of several requests, the share of its time that the next one waits, for whoever returns and
/// after the first has returned, and the most.
const SHARE: u32 = 16;
const PAUSE: Duration = Duration::from_millis(2);

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
    /// The statement for a change. With `soft` releases, those leave without the others.
    pub(super) fn of_change(verb: SoleVerb, soft: bool) -> Self {
        Self::Change(if soft { verb } else { SoleVerb::Acquire })
    }

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
    /// When the statement in flight was sent.
    sent_at: [Moment; SORTS],
    /// How long the next one waits for others.
    pause: [Duration; SORTS],
    /// When the next one may be sent.
    free_at: [Moment; SORTS],
    /// Nobody has returned since the last one.
    expects: [bool; SORTS],
    /// Locks whose next requests wait for a statement in flight.
    names: [VecDeque<String>; SORTS],
    /// Changes for the next writes: those that need no disk, and the others.
    writes: [VecDeque<(LockKey, RowChange)>; 2],
    pub(super) halves: Vec<RowBatch>,
}

pub(super) enum RowBatch {
    Change(StatementSort, Vec<SoleChange>),
    Write(Vec<(LockKey, RowChange)>),
}

impl RowBatch {
    pub(super) fn sort(&self) -> StatementSort {
        match self {
            Self::Change(sort, _) => *sort,
            Self::Write(changes) => Self::sort_of(changes),
        }
    }

    pub(super) fn sort_of(changes: &[(LockKey, RowChange)]) -> StatementSort {
        StatementSort::Write { durable: changes.iter().any(|(_, change)| change.durable) }
    }
}

impl Gathered {
    pub(super) fn sent(&mut self, sort: StatementSort, now: Moment) {
        self.in_flight[sort.index()] += 1;
        self.sent_at[sort.index()] = now;
    }

    /// A statement about so many locks was answered.
    pub(super) fn done(&mut self, sort: StatementSort, locks: usize, now: Moment) {
        let at = sort.index();
        self.in_flight[at] -= 1;
        self.expects[at] = locks > 1 && !self.has_gathered(at);
        let share = now.since(self.sent_at[at]) / SHARE;
        self.pause[at] = if locks > 1 { share.min(PAUSE) } else { Duration::ZERO };
        self.free_at[at] = now + self.pause[at];
    }

    /// Whether a request has to wait for the next statement.
    pub(super) fn waits(&mut self, sort: StatementSort, now: Moment) -> bool {
        let at = sort.index();
        if mem::take(&mut self.expects[at]) && now >= self.free_at[at] {
            self.free_at[at] = now + self.pause[at];
        }
        self.in_flight[at] > 0 || now < self.free_at[at]
    }

    fn has_gathered(&self, at: usize) -> bool {
        let writes = at.checked_sub(4).is_some_and(|durable| !self.writes[durable].is_empty());
        writes || !self.names[at].is_empty()
    }

    /// When something that has gathered may be sent.
    pub(super) fn next_free(&self) -> Moment {
        let waits = |at: &usize| self.in_flight[*at] == 0 && self.has_gathered(*at);
        (0..SORTS).filter(waits).map(|at| self.free_at[at]).min().unwrap_or(Moment(u64::MAX))
    }

    pub(super) fn wait(&mut self, sort: StatementSort, name: String) {
        self.names[sort.index()].push_back(name);
    }

    /// The locks that need no longer wait, those first that have waited for longest.
    pub(super) fn names(&mut self, now: Moment) -> Vec<String> {
        let states =
            self.in_flight.iter().zip(self.free_at).map(|(count, free_at)| *count == 0 && free_at <= now);
        let free = self.names.iter_mut().zip(states).filter(|(_, is_free)| *is_free);
        free.flat_map(|(names, _)| names.drain(..names.len().min(LOCKS))).collect()
    }

    pub(super) fn write(&mut self, key: LockKey, change: RowChange) {
        self.writes[usize::from(change.durable)].push_back((key, change));
    }

    /// The next write, unless one is in flight.
    pub(super) fn writes(&mut self, durable: bool, now: Moment) -> Option<RowBatch> {
        let count = self.writes[usize::from(durable)].len().min(LOCKS);
        if count == 0 || self.waits(StatementSort::Write { durable }, now) {
            return None;
        }
        Some(RowBatch::Write(self.writes[usize::from(durable)].drain(..count).collect()))
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
