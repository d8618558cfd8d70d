//! Locks as observed over successive scans: holders, hand-overs, and a history of holds and waits.

#[cfg(feature = "serve")]
mod saved;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::time::Duration;

use crate::exit::Failure;
use crate::look::{Look, overdue};
use crate::table::{Party, Row};

/// Time span of a history, and the number of holds that are kept even if they are older.
pub(crate) const SPAN: Duration = Duration::from_secs(600);
const LEAST: usize = 20;
/// Maximum entries per history beside the current holders, and locks with a history.
const ENTRIES: usize = 200;
const HISTORIES: usize = 20_000;
/// Window over which hand-overs are counted.
const WINDOW: Duration = Duration::from_secs(30);

/// How a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Released, or ended by force.
    Released,
    /// Released, and another holder was there at the same scan.
    HandedOver,
    /// The lease ran out after a renewal was missed.
    Expired,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Released => "released",
            Self::HandedOver => "handed over",
            Self::Expired => "lease expired",
        })
    }
}

/// A hold, whose times are as exact as the interval between two scans. All times are since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) who: String,
    pub(crate) token: u64,
    pub(crate) from: Duration,
    pub(crate) end: Option<(Duration, End)>,
    /// When the lease ends.
    until: Option<Duration>,
    /// The longest remaining lease observed: a lower bound of its full length.
    lease: Duration,
    /// The scan that changed this entry.
    pub(crate) changed: Duration,
}

impl Hold {
    fn is_of(&self, party: &Party) -> bool {
        self.token == party.token && self.who == party.who()
    }

    /// Whether the lease had missed a renewal by the scan at `last`, and ran out by this one.
    fn has_expired(&self, last: Duration, at: Duration) -> bool {
        self.until.is_some_and(|until| until <= at && until.saturating_sub(last) * 2 < self.lease)
    }
}

#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) kind: String,
    /// Latest first.
    pub(crate) holds: VecDeque<Hold>,
    /// Times at which the number of waiters changed, and the new number; `None` if unknown.
    pub(crate) waits: VecDeque<(Duration, Option<u64>)>,
}

impl History {
    /// Records a scan at `at`; `last` is the time of the one before. Returns the number of new holders.
    fn looked(&mut self, row: Option<&Row>, last: Option<Duration>, at: Duration) -> u64 {
        let holders = row.map(|row| &row.holders[..]).unwrap_or_default();
        let is_new = |one: &&Party| !self.holds.iter().any(|hold| hold.end.is_none() && hold.is_of(one));
        let new: Vec<_> = holders.iter().filter(is_new).collect();
        let began = last.unwrap_or_default();
        let since = |one: &Party| one.since.unwrap_or(at).clamp(began.min(at), at);
        let successor = new.iter().map(|one| since(one)).min();
        let mut free_from = began;
        for hold in self.holds.iter_mut().filter(|hold| hold.end.is_none()) {
            if let Some(holder) = holders.iter().find(|one| hold.is_of(one)) {
                let left = holder.left.unwrap_or_default();
                (hold.until, hold.lease) = (holder.left.map(|left| at + left), hold.lease.max(left));
                continue;
            }
            let (end, how) = match (hold.until, successor) {
                (Some(until), _) if hold.has_expired(began, at) => (until.max(began), End::Expired),
                (_, Some(successor)) => (successor, End::HandedOver),
                _ => (at, End::Released),
            };
            if how == End::Expired {
                free_from = free_from.max(end);
            }
            (hold.end, hold.changed) = (Some((end.max(hold.from), how)), at);
        }
        for one in &new {
            self.holds.push_front(Hold {
                who: one.who(),
                token: one.token,
                from: since(one).max(free_from),
                end: None,
                until: one.left.map(|left| at + left),
                lease: one.left.unwrap_or_default(),
                changed: at,
            });
        }
        let waiting = row.map_or(Some(0), |row| row.waiting);
        if waiting != self.waiting() {
            self.waits.push_back((at, waiting));
        }
        if let Some(row) = row {
            self.kind.clone_from(&row.kind);
        }
        self.forget(at);
        new.len() as u64
    }

    fn waiting(&self) -> Option<u64> {
        self.waits.back().map_or(Some(0), |(_, count)| *count)
    }

    fn forget(&mut self, at: Duration) {
        let is_old = |hold: &Hold| hold.end.is_some_and(|(end, _)| end + SPAN < at);
        while self.holds.len() > LEAST && self.holds.back().is_some_and(is_old) {
            self.holds.pop_back();
        }
        while self.holds.len() > ENTRIES
            && let Some(oldest) = self.holds.iter().rposition(|hold| hold.end.is_some())
        {
            self.holds.remove(oldest);
        }
        while self.waits.len() > ENTRIES || self.waits.get(1).is_some_and(|(next, _)| *next + SPAN < at) {
            self.waits.pop_front();
        }
    }

    /// Whether something was observed within the span.
    pub(crate) fn is_recent(&self, at: Duration) -> bool {
        self.holds.front().is_some_and(|hold| hold.end.is_none_or(|(end, _)| end + SPAN >= at))
    }

    /// The current hold of this holder.
    pub(crate) fn hold(&self, party: &Party) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.end.is_none() && hold.is_of(party))
    }
}

/// All scans of a store so far.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// The error of the last scan, if it failed.
    trouble: Option<String>,
    /// The scan that has begun and has no result yet.
    pub(crate) looking: Option<Look>,
    /// Time of the last scan since 1970, and its duration.
    pub(crate) looked_at: Duration,
    pub(crate) took: Duration,
    pub(crate) rows: Vec<Row>,
    /// Number of hand-overs observed.
    pub(crate) handovers_total: u64,
    /// Time of the first scan.
    pub(crate) since: Option<Duration>,
    histories: BTreeMap<String, History>,
    handovers: VecDeque<(Duration, u64)>,
}

impl Observed {
    /// Records the result of a scan at `at`, the time since 1970.
    pub(crate) fn looked(&mut self, rows: Result<Vec<Row>, Failure>, at: Duration, took: Duration) {
        self.looking = None;
        let rows = match rows {
            Ok(rows) => rows,
            Err(failure) => {
                self.trouble = Some(failure.message);
                return;
            }
        };
        self.trouble = None;
        let last = self.since.map(|_| self.looked_at);
        self.since.get_or_insert(at);
        let mut new = 0;
        for row in &rows {
            if self.histories.len() < HISTORIES || self.histories.contains_key(&row.name) {
                new += self.histories.entry(row.name.clone()).or_default().looked(Some(row), last, at);
            }
        }
        let held: BTreeSet<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        self.histories.retain(|name, history| {
            let is_held = held.contains(name.as_str());
            if !is_held {
                history.looked(None, last, at);
            }
            is_held || history.is_recent(at)
        });
        let handovers = if last.is_some() { new } else { 0 };
        self.handovers_total += handovers;
        self.handovers.push_back((at, handovers));
        while self.handovers.front().is_some_and(|(then, _)| *then + WINDOW < at) {
            self.handovers.pop_front();
        }
        (self.rows, self.looked_at, self.took) = (rows, at, took);
    }

    /// Why what was seen may no longer be true: the last scan failed, or this one is overdue.
    pub(crate) fn trouble(&self, every: Duration) -> Option<String> {
        let is_overdue = |look: &Look| overdue(look.took(), every);
        self.trouble.clone().or_else(|| self.looking.as_ref().and_then(is_overdue))
    }

    pub(crate) fn count(&self) -> usize {
        self.rows.len()
    }

    /// Number of waiters, with a `+` if there are locks whose waiters are unknown; `-` if no other has any.
    pub(crate) fn waits(&self) -> String {
        let known: u64 = self.rows.iter().filter_map(|row| row.waiting).sum();
        match (known, self.rows.iter().any(|row| row.waiting.is_none())) {
            (known, false) => known.to_string(),
            (0, true) => "-".to_owned(),
            (known, true) => format!("{known}+"),
        }
    }

    /// Observed hand-overs per second: a lower bound.
    pub(crate) fn handovers_per_second(&self) -> f64 {
        let Some(since) = self.since else { return 0.0 };
        let time = (self.looked_at.saturating_sub(since)).min(WINDOW).max(Duration::from_secs(1));
        let count: u64 = self.handovers.iter().map(|(_, count)| count).sum();
        count as f64 / time.as_secs_f64()
    }

    /// The remaining lease of a holder, and the lower bound of its full length.
    pub(crate) fn lease_of(&self, name: &str, holder: &Party, now: Duration) -> Option<(Duration, Duration)> {
        let left = holder.left?.saturating_sub(now.saturating_sub(self.looked_at));
        let whole =
            self.history(name).and_then(|history| history.hold(holder)).map_or(left, |hold| hold.lease);
        Some((left, whole.max(left)))
    }

    /// As [`lease_of`](Self::lease_of), of the holder whose lease ends first.
    pub(crate) fn lease(&self, row: &Row, now: Duration) -> Option<(Duration, Duration)> {
        let holder = row.holders.iter().min_by_key(|holder| (holder.left.is_none(), holder.left))?;
        self.lease_of(&row.name, holder, now)
    }

    pub(crate) fn history(&self, name: &str) -> Option<&History> {
        self.histories.get(name)
    }

    /// The locks with a history, by name.
    #[cfg(feature = "serve")]
    pub(crate) fn histories(&self) -> impl Iterator<Item = (&str, &History)> {
        self.histories.iter().map(|(name, history)| (name.as_str(), history))
    }

    pub(crate) fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn row(token: u64, left: u64, waiters: u64) -> Row {
        let holder = Party { token, left: Some(seconds(left)), ..Party::default() };
        Row { name: "a".into(), holders: vec![holder], waiting: Some(waiters), ..Row::default() }
    }

    #[test]
    fn a_history_tells_releases_hand_overs_expiries_and_waits() {
        let mut seen = Observed::default();
        for (at, rows) in [
            (100, vec![row(1, 15, 0)]),
            (105, vec![row(1, 15, 2)]),
            (110, vec![row(2, 15, 1)]), // handed over
            (115, vec![row(2, 10, 1)]),
            (120, vec![row(2, 5, 1)]), // not renewed
            (125, vec![]),             // expired at 125
            (130, vec![row(3, 15, 0)]),
            (135, vec![]),
        ] {
            seen.looked(Ok(rows), seconds(at), Duration::ZERO);
        }
        let history = seen.history("a").expect("a history");
        let told: Vec<_> = history.holds.iter().map(|hold| (hold.token, hold.from, hold.end)).collect();
        let end = |at, how| Some((seconds(at), how));
        assert_eq!(
            told,
            [
                (3, seconds(130), end(135, End::Released)),
                (2, seconds(110), end(125, End::Expired)),
                (1, seconds(100), end(110, End::HandedOver)),
            ]
        );
        let waits = [(105, 2), (110, 1), (125, 0)].map(|(at, count)| (seconds(at), Some(count)));
        assert_eq!(history.waits, waits);
    }

    #[test]
    fn a_renewed_lease_shorter_than_the_interval_is_not_expired() {
        let mut seen = Observed::default();
        for (at, rows) in [(100, vec![row(1, 1, 0)]), (105, vec![row(1, 1, 0)]), (110, vec![])] {
            seen.looked(Ok(rows), seconds(at), Duration::ZERO);
        }
        let hold = &seen.history("a").expect("a history").holds[0];
        assert_eq!(hold.end, Some((seconds(110), End::Released)));
    }

    #[test]
    fn unchanged_holders_are_not_counted_as_hand_overs() {
        let mut seen = Observed::default();
        let holders = (1..=2 * ENTRIES as u64).map(|token| Party { token, ..Party::default() });
        let crowd = Row { name: "a".into(), holders: holders.collect(), ..Row::default() };
        for at in [100, 105, 110] {
            seen.looked(Ok(vec![crowd.clone()]), seconds(at), Duration::ZERO);
        }
        assert_eq!(seen.handovers_total, 0);
    }

    #[test]
    fn a_free_lock_is_forgotten_after_the_span() {
        let mut seen = Observed::default();
        seen.looked(Ok(vec![row(1, 15, 0)]), seconds(100), Duration::ZERO);
        seen.looked(Ok(vec![]), seconds(101), Duration::ZERO);
        seen.looked(Ok(vec![]), seconds(101) + SPAN, Duration::ZERO);
        assert!(seen.history("a").is_some());
        seen.looked(Ok(vec![]), seconds(102) + SPAN, Duration::ZERO);
        assert!(seen.history("a").is_none());
    }
}
