//! The locks of a store as rows, which `list`, `top` and `serve` show; `list` and `top` sort and filter them.

use std::cmp::Ordering;
use std::fmt::Write;
use std::time::Duration;

use clap::ValueEnum;
use tenure::{ElectionStatus, Holder, JobStatus, Locks, Owner, Share, Status};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::clock;
use crate::exit::Failure;
use crate::output::{Line, Span, plural};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) holders: Vec<Party>,
    pub(crate) waiters: Vec<Party>,
    /// Number of holders and waiters that are not listed.
    pub(crate) unlisted: u64,
    /// Number of waiters; `None` if the store cannot tell.
    pub(crate) waiting: Option<u64>,
    /// Permits in use and permits in total, for a semaphore.
    pub(crate) permits: Option<(u32, u32)>,
    /// The type of another program's data.
    pub(crate) foreign: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Party {
    pub(crate) owner: String,
    pub(crate) user: String,
    pub(crate) label: String,
    pub(crate) host: String,
    pub(crate) pid: u32,
    /// Time since 1970.
    pub(crate) since: Option<Duration>,
    /// Remaining lease; `None` without an end.
    pub(crate) left: Option<Duration>,
    /// 0 without a token.
    pub(crate) token: u64,
    /// The share of the lock, or the payload of a leader.
    pub(crate) detail: String,
}

/// Sort order of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    Name,
    Kind,
    /// The most waiters first.
    Waiters,
    /// The longest hold first.
    Age,
    /// The lease that ends first.
    Left,
}

impl Sort {
    const ALL: [Self; 5] = [Self::Name, Self::Kind, Self::Waiters, Self::Age, Self::Left];

    pub(crate) fn next(self) -> Self {
        let at = Self::ALL.iter().position(|one| *one == self).unwrap_or_default();
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Kind => "kind",
            Self::Waiters => "waiters",
            Self::Age => "age",
            Self::Left => "left",
        }
    }

    /// The order of two rows; equal ones are ordered by name.
    pub(crate) fn compare(self, a: &Row, b: &Row) -> Ordering {
        let order = match self {
            Self::Name => Ordering::Equal,
            Self::Kind => a.kind.cmp(&b.kind),
            // Rows without a number come last.
            Self::Waiters => b.waiting.cmp(&a.waiting),
            // Rows without a time come last.
            Self::Age => (a.since().is_none(), a.since()).cmp(&(b.since().is_none(), b.since())),
            Self::Left => (a.left().is_none(), a.left()).cmp(&(b.left().is_none(), b.left())),
        };
        order.then_with(|| a.name.cmp(&b.name))
    }
}

/// The kinds of locks.
pub(crate) const LOCKS: [&str; 5] =
    ["mutex", "reentrant mutex", "fair mutex", "read-write lock", "semaphore"];

/// A condition for a row to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    Name(String),
    Kind(String),
    Label(String),
    User(String),
    Host(String),
    Pid(u32),
    Waiting,
    Foreign,
}

impl Filter {
    /// Parses `KEY=TEXT`, `waiting` or `foreign`.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let valid =
            "expected name=TEXT, kind=KIND, user=TEXT, label=TEXT, host=TEXT, pid=N, waiting or foreign";
        match text.split_once('=') {
            None if text == "waiting" => Ok(Self::Waiting),
            None if text == "foreign" => Ok(Self::Foreign),
            Some(("name", value)) => Ok(Self::Name(value.into())),
            Some(("kind", value)) => {
                match LOCKS.iter().chain(&["job", "election"]).any(|kind| kind.contains(value)) {
                    true => Ok(Self::Kind(value.into())),
                    false => Err(format!("expected a part of {}, job or election", LOCKS.join(", "))),
                }
            }
            Some(("label", value)) => Ok(Self::Label(value.into())),
            Some(("user", value)) => Ok(Self::User(value.into())),
            Some(("host", value)) => Ok(Self::Host(value.into())),
            Some(("pid", value)) => value.parse().map(Self::Pid).map_err(|_| valid.into()),
            _ => Err(valid.into()),
        }
    }

    pub(crate) fn keeps(&self, row: &Row) -> bool {
        let mut parties = row.holders.iter().chain(&row.waiters);
        match self {
            Self::Name(part) => row.name.contains(part),
            Self::Kind(part) => row.kind.contains(part),
            Self::Label(part) => parties.any(|one| one.label.contains(part)),
            Self::User(part) => parties.any(|one| one.user.contains(part)),
            Self::Host(part) => parties.any(|one| one.host.contains(part)),
            Self::Pid(pid) => parties.any(|one| one.pid == *pid),
            Self::Waiting => row.waiting > Some(0),
            Self::Foreign => row.foreign.is_some(),
        }
    }
}

impl Row {
    pub(crate) fn of(status: &Status) -> Self {
        let weight = |share| match share {
            Share::Permits(permits) => permits,
            _ => 0,
        };
        let used = status.holders.iter().map(|holder| weight(holder.share)).sum();
        Self {
            name: status.name.as_str().to_owned(),
            kind: status.kind.to_string(),
            holders: status.holders.iter().map(Party::of).collect(),
            waiters: status.waiters.iter().map(Party::of).collect(),
            unlisted: status.unlisted,
            waiting: status.waiting,
            permits: status.permits.map(|all| (used, all)),
            foreign: status.foreign(),
        }
    }

    pub(crate) fn since(&self) -> Option<Duration> {
        self.holders.iter().filter_map(|holder| holder.since).min()
    }

    pub(crate) fn left(&self) -> Option<Duration> {
        self.holders.iter().filter_map(|holder| holder.left).min()
    }

    /// The number of waiters for a cell.
    pub(crate) fn waits(&self) -> String {
        self.waiting.map_or_else(|| "-".into(), |waiting| waiting.to_string())
    }

    /// Permits in use and in total.
    pub(crate) fn used(&self) -> String {
        self.permits.map_or_else(|| "-".into(), |(used, all)| format!("{used}/{all}"))
    }

    /// The first holder, and the number of others.
    pub(crate) fn who(&self) -> String {
        if let Some(what) = &self.foreign {
            return format!("another program, {what}");
        }
        let first = self.holders.first().map(Party::who).unwrap_or_default();
        match self.holders.len() {
            0 | 1 => first,
            count => format!("{first} and {} more", count - 1),
        }
    }
}

/// A holder's share of the lock, if there are different kinds.
pub(crate) fn share(share: Share) -> String {
    match share {
        Share::Reader => "to read".to_owned(),
        Share::Upgradeable => "to read and perhaps write".to_owned(),
        Share::Writer => "to write".to_owned(),
        Share::Permits(permits) => plural(permits.into(), "permit"),
        Share::Holds(count) if count > 1 => format!("{count} times"),
        _ => String::new(),
    }
}

impl Party {
    pub(crate) fn of(holder: &Holder) -> Self {
        Self {
            since: holder.since().map(clock::since_1970),
            left: holder.remaining,
            token: holder.fence,
            detail: share(holder.share),
            ..holder.owner.as_ref().map(Self::named).unwrap_or_default()
        }
    }

    pub(crate) fn named(owner: &Owner) -> Self {
        Self {
            owner: owner.to_string(),
            user: owner.user().to_owned(),
            label: owner.label().into_owned(),
            host: owner.host().to_owned(),
            pid: owner.pid(),
            ..Self::default()
        }
    }

    /// User, host, process and label.
    pub(crate) fn who(&self) -> String {
        let Self { user, host, pid, label, .. } = self;
        match (user.as_str(), host.as_str()) {
            ("", "") => "another program".into(),
            ("", host) => format!("{host} pid {pid}{}", quoted(label)),
            (user, host) => format!("{user}@{host} pid {pid}{}", quoted(label)),
        }
    }

    /// How long it has held or waited, its remaining lease and its token, at `now`; its lease was read at `read`.
    pub(crate) fn hold(&self, now: Duration, read: Duration) -> String {
        let mut text = String::new();
        if let Some(since) = self.since {
            let _ = write!(text, ", for {}", Span(now.saturating_sub(since)));
        }
        let _ = match self.left {
            Some(left) => write!(text, ", {} left", Span(left.saturating_sub(now.saturating_sub(read)))),
            None => write!(text, ", without end"),
        };
        if self.token > 0 {
            let _ = write!(text, ", token {}", self.token);
        }
        text
    }
}

pub(crate) fn who(owner: &Owner) -> String {
    Party::named(owner).who()
}

fn quoted(label: &str) -> String {
    if label.is_empty() { String::new() } else { format!(" \"{label}\"") }
}

/// What is held, with what the store tells of the holders and waiters.
pub(crate) struct Found {
    pub(crate) row: Row,
    pub(crate) holders: Vec<Holder>,
    pub(crate) waiters: Vec<Holder>,
}

impl From<Status> for Found {
    fn from(status: Status) -> Self {
        Self { row: Row::of(&status), holders: status.holders, waiters: status.waiters }
    }
}

impl Found {
    /// A running job.
    pub(crate) fn job(job: JobStatus) -> Option<Self> {
        Some(Self::named("job", job.name.as_str(), vec![job.hold?], Vec::new(), 0))
    }

    /// An election that somebody leads.
    pub(crate) fn election(election: ElectionStatus) -> Option<Self> {
        let ElectionStatus { name, leader, hold, candidates, unlisted, .. } = election;
        let (leader, hold) = (leader?, hold?);
        let mut found = Self::named("election", name.as_str(), vec![hold], candidates, unlisted);
        found.row.holders[0].detail = leader.payload;
        Some(found)
    }

    fn named(kind: &str, name: &str, holders: Vec<Holder>, waiters: Vec<Holder>, unlisted: u64) -> Self {
        let parties = |all: &[Holder]| all.iter().map(Party::of).collect();
        let row = Row {
            name: name.to_owned(),
            kind: kind.to_owned(),
            holders: parties(&holders),
            waiters: parties(&waiters),
            unlisted,
            waiting: Some(waiters.len() as u64 + unlisted),
            ..Row::default()
        };
        Self { row, holders, waiters }
    }
}

/// All locks with this prefix.
pub(crate) async fn walk(locks: &Locks, prefix: &str) -> Result<Vec<Found>, Failure> {
    let (mut listing, mut found) = (locks.list(prefix)?, Vec::new());
    while let Some(status) = listing.next().await? {
        found.push(Found::from(status));
    }
    Ok(found)
}

/// The text of a cell, padded or shortened to this many columns.
pub(crate) fn fitted(text: &str, columns: usize) -> String {
    let text = Line(text).to_string();
    let width = text.width();
    if width <= columns {
        return format!("{text}{}", " ".repeat(columns - width));
    }
    let (mut short, mut used) = (String::new(), 0);
    for char in text.chars() {
        let width = char.width().unwrap_or(0);
        if used + width >= columns {
            break;
        }
        short.push(char);
        used += width;
    }
    let _ = write!(
        short,
        "{}{}",
        if columns > 0 { "…" } else { "" },
        " ".repeat(columns.saturating_sub(used + 1))
    );
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, kind: &str, waiters: u64, left: Option<u64>, since: Option<u64>) -> Row {
        let holder = Party {
            user: "alice".into(),
            label: format!("job-{name}"),
            host: "db1".into(),
            pid: 7,
            since: since.map(Duration::from_secs),
            left: left.map(Duration::from_secs),
            token: 1,
            ..Party::default()
        };
        let waiting = Some(waiters);
        Row { name: name.into(), kind: kind.into(), holders: vec![holder], waiting, ..Row::default() }
    }

    #[test]
    fn the_kinds_of_locks_are_those_of_the_library() {
        for kind in LOCKS {
            assert_eq!(kind.parse::<tenure::Kind>().expect("a kind").to_string(), kind);
        }
        assert!(Filter::read("kind=fair").is_ok() && Filter::read("kind=election").is_ok());
        assert!(Filter::read("kind=rwlock").expect_err("no kind").contains("read-write lock"));
    }

    #[test]
    fn rows_are_sorted_and_equal_ones_by_name() {
        let rows = [
            row("c", "mutex", 0, Some(9), Some(100)),
            row("a", "semaphore", 2, None, None),
            row("b", "mutex", 2, Some(3), Some(50)),
        ];
        for (sort, expected) in [
            (Sort::Name, "abc"),
            (Sort::Kind, "bca"),
            (Sort::Waiters, "abc"),
            (Sort::Age, "bca"),
            (Sort::Left, "bca"),
        ] {
            let mut rows = rows.to_vec();
            rows.sort_by(|a, b| sort.compare(a, b));
            assert_eq!(rows.iter().map(|row| row.name.as_str()).collect::<String>(), expected, "{sort:?}");
        }
    }

    #[test]
    fn a_cell_has_exactly_its_columns() {
        for (text, columns, expected) in [
            ("ab", 4, "ab  "),
            ("abcdef", 4, "abc…"),
            ("錠錠錠", 4, "錠… "),
            ("a\nb", 4, "a\\nb"),
            ("x", 0, ""),
        ] {
            assert_eq!(fitted(text, columns), expected, "{text}");
        }
    }
}
