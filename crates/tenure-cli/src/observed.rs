//! Locks as observed over successive scans: holders, history, and hand-overs.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::exit::Failure;
use crate::table::Row;

/// Maximum changes kept per lock, and locks with a history.
const CHANGES: usize = 100;
const HISTORIES: usize = 5_000;
/// Window over which hand-overs are counted.
const WINDOW: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Time since 1970.
    pub(crate) at: Duration,
    pub(crate) what: String,
}

/// All scans of a store so far.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// The error of the last scan, if it failed.
    pub(crate) trouble: Option<String>,
    /// Time of the last scan since 1970, and its duration.
    pub(crate) looked_at: Duration,
    pub(crate) took: Duration,
    pub(crate) rows: Vec<Row>,
    /// Number of hand-overs observed.
    pub(crate) handoffs_total: u64,
    histories: BTreeMap<String, VecDeque<Change>>,
    handoffs: VecDeque<(Duration, u64)>,
    since: Option<Duration>,
    /// The longest remaining lease observed for each token.
    leases: BTreeMap<(String, u64), Duration>,
}

impl Observed {
    /// Records the result of a scan at `at`, the time since 1970.
    pub(crate) fn looked(&mut self, rows: Result<Vec<Row>, Failure>, at: Duration, took: Duration) {
        let rows = match rows {
            Ok(rows) => rows,
            Err(failure) => {
                self.trouble = Some(failure.message);
                return;
            }
        };
        self.trouble = None;
        let is_first = self.since.is_none();
        self.since.get_or_insert(at);
        let before: BTreeMap<&str, &Row> = self.rows.iter().map(|row| (row.name.as_str(), row)).collect();
        let (mut handoffs, mut changes) = (0, Vec::new());
        for row in &rows {
            let old = before.get(row.name.as_str()).map(|row| &row.holders[..]).unwrap_or_default();
            for holder in &row.holders {
                if !old.iter().any(|old| old.token == holder.token) {
                    handoffs += u64::from(!is_first);
                    changes.push((row.name.clone(), format!("{}, token {}", holder.who(), holder.token)));
                }
            }
        }
        let held: BTreeMap<&str, ()> = rows.iter().map(|row| (row.name.as_str(), ())).collect();
        let freed = before.keys().filter(|name| !held.contains_key(*name));
        changes.extend(freed.map(|name| ((*name).to_owned(), "free".to_owned())));
        for (name, what) in changes {
            if self.histories.len() < HISTORIES || self.histories.contains_key(&name) {
                let history = self.histories.entry(name).or_default();
                history.push_front(Change { at, what });
                history.truncate(CHANGES);
            }
        }
        self.handoffs_total += handoffs;
        self.handoffs.push_back((at, handoffs));
        while self.handoffs.front().is_some_and(|(then, _)| *then + WINDOW < at) {
            self.handoffs.pop_front();
        }
        let mut leases = std::mem::take(&mut self.leases);
        for row in &rows {
            for holder in &row.holders {
                let key = (row.name.clone(), holder.token);
                let seen = leases.remove(&key).unwrap_or_default();
                self.leases.insert(key, seen.max(holder.left.unwrap_or_default()));
            }
        }
        (self.rows, self.looked_at, self.took) = (rows, at, took);
    }

    pub(crate) fn count(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn waiting(&self) -> u64 {
        self.rows.iter().map(Row::waiting).sum()
    }

    /// Observed hand-overs per second: a lower bound.
    pub(crate) fn handoffs_per_second(&self) -> f64 {
        let Some(since) = self.since else { return 0.0 };
        let time = (self.looked_at.saturating_sub(since)).min(WINDOW).max(Duration::from_secs(1));
        let count: u64 = self.handoffs.iter().map(|(_, count)| count).sum();
        count as f64 / time.as_secs_f64()
    }

    /// The remaining lease of the holder whose lease ends first, and the lower bound of its full length.
    pub(crate) fn lease(&self, row: &Row, now: Duration) -> Option<(Duration, Duration)> {
        let holder = row.holders.iter().min_by_key(|holder| (holder.left.is_none(), holder.left))?;
        let left = holder.left?.saturating_sub(now.saturating_sub(self.looked_at));
        let whole = self.leases.get(&(row.name.clone(), holder.token)).copied().unwrap_or(left);
        Some((left, whole.max(left)))
    }

    pub(crate) fn history(&self, name: &str) -> impl Iterator<Item = &Change> {
        self.histories.get(name).into_iter().flatten()
    }

    pub(crate) fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }
}
