//! Gathers the requests that wait for a statement in flight, and sends them together in the next one.
//!
//! One statement of each sort is in flight, so that a server that waits for its disk commits many requests at
//! once, and the next ones gather meanwhile. A request that meets no statement of its sort leaves at once.
//!
//! After a statement of several requests, the next one waits for a moment, so that the tasks it has served can join.
//! Otherwise their releases would queue behind the next commit, and the first task to return would leave alone.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use super::names::LockKey;
use super::server::{RowChange, SoleChange, SoleVerb};
use crate::moment::Moment;

/// Maximum locks per statement.
pub(super) const LOCKS: usize = 500;
/// The wait after a statement of several requests, and again after the first request that follows it: this part of
/// the time that the statement took, at most `PAUSE`.
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
    sorts: [GatheredSort; SORTS],
    pub(super) halves: Vec<RowBatch>,
}

/// What gathers for the next statement of one sort.
#[derive(Default)]
struct GatheredSort {
    in_flight: usize,
    /// When the statement in flight was sent.
    sent_at: Moment,
    /// How long the next one waits for others.
    pause: Duration,
    /// When the next one may be sent.
    free_at: Moment,
    /// No request has come since the last one.
    expects: bool,
    /// Locks whose next requests wait.
    names: VecDeque<String>,
    /// Changes for the next write.
    writes: VecDeque<(LockKey, RowChange)>,
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

impl GatheredSort {
    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.writes.is_empty()
    }

    /// Whether a request has to wait for the next statement.
    fn waits(&mut self, now: Moment) -> bool {
        if mem::take(&mut self.expects) && now >= self.free_at {
            self.free_at = now + self.pause;
        }
        self.in_flight > 0 || now < self.free_at
    }
}

impl Gathered {
    fn of(&mut self, sort: StatementSort) -> &mut GatheredSort {
        &mut self.sorts[sort.index()]
    }

    pub(super) fn sent(&mut self, sort: StatementSort, now: Moment) {
        let sort = self.of(sort);
        sort.in_flight += 1;
        sort.sent_at = now;
    }

    /// A statement about so many locks was answered.
    pub(super) fn done(&mut self, sort: StatementSort, locks: usize, now: Moment) {
        let sort = self.of(sort);
        sort.in_flight -= 1;
        sort.expects = locks > 1 && sort.is_empty();
        let share = (now.since(sort.sent_at) / SHARE).min(PAUSE);
        sort.pause = if locks > 1 { share } else { Duration::ZERO };
        sort.free_at = now + sort.pause;
    }

    /// Whether a request has to wait for the next statement.
    pub(super) fn waits(&mut self, sort: StatementSort, now: Moment) -> bool {
        self.of(sort).waits(now)
    }

    /// When something that has gathered may be sent.
    pub(super) fn next_free(&self) -> Moment {
        let waiting = self.sorts.iter().filter(|sort| sort.in_flight == 0 && !sort.is_empty());
        waiting.map(|sort| sort.free_at).min().unwrap_or(Moment(u64::MAX))
    }

    pub(super) fn wait(&mut self, sort: StatementSort, name: String) {
        self.of(sort).names.push_back(name);
    }

    /// The locks that need no longer wait, those first that have waited for longest.
    pub(super) fn names(&mut self, now: Moment) -> Vec<String> {
        let free = self.sorts.iter_mut().filter(|sort| sort.in_flight == 0 && sort.free_at <= now);
        free.flat_map(|sort| sort.names.drain(..sort.names.len().min(LOCKS))).collect()
    }

    pub(super) fn write(&mut self, key: LockKey, change: RowChange) {
        let sort = StatementSort::Write { durable: change.durable };
        self.of(sort).writes.push_back((key, change));
    }

    /// The next write, unless it has to wait.
    pub(super) fn writes(&mut self, durable: bool, now: Moment) -> Option<RowBatch> {
        let sort = self.of(StatementSort::Write { durable });
        let count = sort.writes.len().min(LOCKS);
        (count > 0 && !sort.waits(now)).then(|| RowBatch::Write(sort.writes.drain(..count).collect()))
    }

    /// Forgets everything, because the connection has ended. Returns the locks whose changes were not sent.
    pub(super) fn clear(&mut self) -> Vec<LockKey> {
        let Self { sorts, halves } = mem::take(self);
        let writes = sorts.into_iter().flat_map(|sort| sort.writes);
        let halves = halves.into_iter().flat_map(|half| match half {
            RowBatch::Change(_, changes) => changes.into_iter().map(|change| change.key).collect(),
            RowBatch::Write(changes) => changes.into_iter().map(|(key, _)| key).collect::<Vec<_>>(),
        });
        writes.map(|(key, _)| key).chain(halves).collect()
    }
}
