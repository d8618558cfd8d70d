//! Gathers the requests that wait for a statement in flight, and sends them together in the next one.
//!
//! One statement of each sort is in flight, so that a server that waits for its disk commits many requests at
//! once, and the next ones gather meanwhile. A request that meets no statement of its sort leaves at once.
//!
//! After a statement of several requests, or one behind which others have gathered, the next one waits for a moment, so
//! that the tasks it has served can join. Otherwise their releases would queue behind the next commit, and the first
//! task to return would leave alone. It waits longer while their releases are in flight, and leaves once as many
//! requests are there as before.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use super::names::LockKey;
use super::server::{RowChange, SoleChange, SoleVerb};
use crate::moment::Moment;

/// Maximum locks per statement.
pub(super) const LOCKS: usize = 500;
/// The wait after such a statement, again after the first request that follows it, and after releases: this part of the
/// time that the statement took, at most `PAUSE`.
const SHARE: u32 = 16;
const PAUSE: Duration = Duration::from_millis(2);
/// Maximum of all waits, in multiples of it.
const PAUSES: u32 = 4;
/// After a shorter statement nothing waits: a timer takes up to a millisecond.
const SHORTEST: Duration = Duration::from_millis(1);
/// How long a statement of several requests shows that more such will come.
const RECENT: Duration = Duration::from_millis(100);

/// The sorts of statements about locks, in the order in which they are sent: first those that need no disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatementSort {
    Change(SoleVerb),
    Read,
    Write { durable: bool },
}

pub(super) const VERBS: [SoleVerb; 3] = [SoleVerb::Release, SoleVerb::Renew, SoleVerb::Acquire];
const SORTS: usize = 6;
const RELEASES: StatementSort = StatementSort::Change(SoleVerb::Release);

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
    /// Requests of the last statement, and those that had gathered meanwhile.
    expected: usize,
    /// How long the next one waits for as many.
    pause: Duration,
    /// When the next one may be sent: later while releases are in flight, but not after `latest`.
    free_at: Moment,
    latest: Moment,
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
    fn len(&self) -> usize {
        self.names.len() + self.writes.len()
    }

    /// Ends the wait, if the request that was just added is the last of those that are expected.
    fn added(&mut self) {
        if self.len() >= self.expected {
            (self.free_at, self.latest, self.expects) = (Moment(0), Moment(0), false);
        }
    }

    /// Starts the wait anew, if this request is the first after a while.
    fn wait_from_first(&mut self, now: Moment) {
        if mem::take(&mut self.expects) && now >= self.free_at {
            self.free_at = now + self.pause;
        }
    }

    /// When what has gathered may be sent; `releases` if some are in flight.
    fn free_at(&self, releases: bool) -> Moment {
        if releases { self.free_at.max(self.latest) } else { self.free_at }
    }

    fn is_free(&self, releases: bool, now: Moment) -> bool {
        self.in_flight == 0 && self.free_at(releases) <= now
    }
}

impl Gathered {
    fn of(&mut self, sort: StatementSort) -> &mut GatheredSort {
        &mut self.sorts[sort.index()]
    }

    /// Whether nothing is under way, and the last requests have left alone.
    pub(super) fn is_idle(&self, now: Moment) -> bool {
        let is_lone = |sort: &GatheredSort| sort.expected <= 1 || now.since(sort.sent_at) > RECENT;
        self.sorts.iter().all(|sort| sort.in_flight == 0 && sort.len() == 0 && is_lone(sort))
    }

    pub(super) fn sent(&mut self, sort: StatementSort, now: Moment) {
        let sort = self.of(sort);
        sort.in_flight += 1;
        sort.sent_at = now;
    }

    /// A statement about so many locks was answered.
    pub(super) fn done(&mut self, sort: StatementSort, locks: usize, now: Moment) {
        let is_release = sort == RELEASES;
        let sort = self.of(sort);
        sort.in_flight -= 1;
        let (took, waiting) = (now.since(sort.sent_at), sort.len());
        sort.expected = (locks + waiting).min(LOCKS);
        let is_group = sort.expected > 1 && took >= SHORTEST;
        sort.pause = if is_group { (took / SHARE).min(PAUSE) } else { Duration::ZERO };
        sort.expects = is_group && waiting == 0;
        sort.free_at = now + sort.pause;
        sort.latest = now + sort.pause * PAUSES;
        if is_release {
            for sort in &mut self.sorts {
                sort.free_at = sort.free_at.max(sort.latest.min(now + sort.pause));
            }
        }
    }

    /// Whether a statement of releases is in flight.
    fn releases(&self) -> bool {
        self.sorts[RELEASES.index()].in_flight > 0
    }

    /// Whether a request has to wait for the next statement.
    pub(super) fn waits(&mut self, sort: StatementSort, now: Moment) -> bool {
        let releases = self.releases();
        let sort = self.of(sort);
        sort.wait_from_first(now);
        !sort.is_free(releases, now)
    }

    /// When something that has gathered may be sent.
    pub(super) fn next_free(&self) -> Moment {
        let waiting = self.sorts.iter().filter(|sort| sort.in_flight == 0 && sort.len() > 0);
        waiting.map(|sort| sort.free_at(self.releases())).min().unwrap_or(Moment(u64::MAX))
    }

    pub(super) fn wait(&mut self, sort: StatementSort, name: String) {
        let sort = self.of(sort);
        sort.names.push_back(name);
        sort.added();
    }

    /// The locks that need no longer wait, those first that have waited for longest. `room` is the number that a
    /// statement of this sort can still take.
    pub(super) fn names(&mut self, now: Moment, room: impl Fn(usize) -> usize) -> Vec<String> {
        let releases = self.releases();
        let sorts = self.sorts.iter_mut().enumerate();
        let free = sorts.filter(|(_, sort)| sort.is_free(releases, now));
        free.flat_map(|(at, sort)| sort.names.drain(..sort.names.len().min(room(at)))).collect()
    }

    pub(super) fn write(&mut self, key: LockKey, change: RowChange) {
        let sort = StatementSort::Write { durable: change.durable };
        let sort = self.of(sort);
        sort.writes.push_back((key, change));
        sort.added();
    }

    /// The next write, unless it has to wait.
    pub(super) fn writes(&mut self, durable: bool, now: Moment) -> Option<RowBatch> {
        let of = StatementSort::Write { durable };
        if self.of(of).writes.is_empty() || self.waits(of, now) {
            return None;
        }
        let writes = &mut self.of(of).writes;
        let count = writes.len().min(LOCKS);
        Some(RowBatch::Write(writes.drain(..count).collect()))
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

#[cfg(test)]
mod tests {
    use super::*;

    const ACQUIRES: StatementSort = StatementSort::Change(SoleVerb::Acquire);
    const MS: Duration = Duration::from_millis(1);

    /// After a statement of two acquires that has just been answered.
    fn after(took: Duration) -> (Gathered, Moment) {
        let (mut gathered, start) = (Gathered::default(), Moment(1));
        gathered.sent(ACQUIRES, start);
        gathered.done(ACQUIRES, 2, start + took);
        (gathered, start + took)
    }

    fn free(gathered: &mut Gathered, now: Moment) -> Vec<String> {
        gathered.names(now, |_| LOCKS)
    }

    #[test]
    fn a_group_leaves_once_all_its_tasks_have_come_back() {
        let (mut gathered, now) = after(4 * MS);
        assert!(!gathered.is_idle(now) && gathered.waits(ACQUIRES, now));
        gathered.wait(ACQUIRES, "a".to_owned());
        assert!(free(&mut gathered, now).is_empty());
        gathered.wait(ACQUIRES, "b".to_owned());
        // One more than expected has left the queue already, and they join it.
        assert!(!gathered.waits(ACQUIRES, now));
        assert_eq!(gathered.names(now, |_| LOCKS - 1), ["a", "b"]);
    }

    #[test]
    fn a_group_waits_a_sixteenth_of_its_time_for_a_task_that_stays_away() {
        let (mut gathered, now) = after(4 * MS);
        gathered.wait(ACQUIRES, "a".to_owned());
        assert_eq!(gathered.next_free(), now + MS / 4);
        assert_eq!(free(&mut gathered, now + MS / 4), ["a"]);
        // Also if the first one comes late.
        let (mut gathered, now) = after(4 * MS);
        assert!(gathered.waits(ACQUIRES, now + 9 * MS));
        gathered.wait(ACQUIRES, "a".to_owned());
        assert_eq!(gathered.next_free(), now + 9 * MS + MS / 4);
    }

    #[test]
    fn a_group_waits_for_the_releases_of_its_tasks() {
        let (mut gathered, now) = after(4 * MS);
        gathered.sent(RELEASES, now);
        gathered.wait(ACQUIRES, "a".to_owned());
        assert_eq!(gathered.next_free(), now + MS);
        gathered.done(RELEASES, 2, now + MS / 2);
        assert_eq!(gathered.next_free(), now + MS / 2 + MS / 4);
        assert_eq!(free(&mut gathered, now + MS), ["a"]);
        // Not for ever.
        gathered.wait(ACQUIRES, "b".to_owned());
        gathered.sent(RELEASES, now);
        assert_eq!(free(&mut gathered, now + MS), ["b"]);
    }

    #[test]
    fn nothing_waits_where_statements_are_short_and_lone() {
        let (mut gathered, now) = after(MS - Duration::from_micros(1));
        assert!(!gathered.waits(ACQUIRES, now) && !gathered.is_idle(now));
        gathered.sent(ACQUIRES, now);
        assert!(gathered.waits(ACQUIRES, now));
        gathered.done(ACQUIRES, 1, now + 4 * MS);
        assert!(!gathered.waits(ACQUIRES, now + 4 * MS) && gathered.is_idle(now + 4 * MS));
        let (gathered, now) = after(4 * MS);
        assert!(gathered.is_idle(now + RECENT), "groups come no longer");
    }

    #[test]
    fn who_has_waited_behind_a_lone_request_shares_the_next_statement_with_its_task() {
        let (mut gathered, now) = (Gathered::default(), Moment(1));
        gathered.sent(ACQUIRES, now);
        gathered.wait(ACQUIRES, "b".to_owned());
        gathered.done(ACQUIRES, 1, now + 4 * MS);
        assert!(free(&mut gathered, now + 4 * MS).is_empty());
        gathered.wait(ACQUIRES, "a".to_owned());
        assert_eq!(free(&mut gathered, now + 4 * MS), ["b", "a"]);
    }
}
