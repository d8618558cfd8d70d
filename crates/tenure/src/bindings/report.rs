use std::time::{Duration, SystemTime};

use crate::owner::Owner;
use crate::status::{ForcedRelease, Holder, Share, Status};
use crate::uses::elections::ElectionStatus;
use crate::uses::jobs::JobStatus;
use crate::uses::log::Leader;
use crate::uses::observer::Change;
use crate::uses::run::{LastRun, Outcome, PastRun};
use crate::uses::stop::StopRequest;

/// What a call returns, before a package makes values of its language of it.
#[derive(Clone, Debug)]
pub enum Report {
    /// Nothing: a lock that is free, a value that is missing.
    Null,
    /// Yes or no.
    Flag(bool),
    /// A count or a code.
    Number(i64),
    /// A fencing token.
    Token(u64),
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A duration.
    Duration(Duration),
    /// A time.
    Time(SystemTime),
    /// Several values.
    List(Vec<Self>),
    /// Values by name.
    Object(Vec<(&'static str, Self)>),
}

macro_rules! from {
    ($type:ty, $value:ident => $into:expr) => {
        impl From<$type> for Report {
            fn from($value: $type) -> Self {
                $into
            }
        }
    };
}

from!((), _unit => Self::Null);
from!(bool, flag => Self::Flag(flag));
from!(u32, number => Self::Number(number.into()));
from!(i32, number => Self::Number(number.into()));
from!(u64, number => Self::Number(i64::try_from(number).unwrap_or(i64::MAX)));
from!(&str, text => Self::Text(text.to_owned()));
from!(String, text => Self::Text(text));
from!(Owner, owner => owner.as_str().into());
from!(Vec<u8>, bytes => Self::Bytes(bytes));
from!(Duration, duration => Self::Duration(duration));
from!(SystemTime, time => Self::Time(time));

impl<T: Into<Self>> From<Option<T>> for Report {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

fn list<T: Into<Report>>(values: Vec<T>) -> Report {
    Report::List(values.into_iter().map(Into::into).collect())
}

from!(Holder, holder => {
    let (share, count) = match holder.share {
        Share::Whole => ("whole", 1),
        Share::Holds(count) => ("holds", count),
        Share::Reader => ("reader", 1),
        Share::Upgradeable => ("upgradeable", 1),
        Share::Writer => ("writer", 1),
        Share::Permits(count) => ("permits", count),
    };
    let since = holder.since();
    let owner = holder.owner.as_ref();
    Self::Object(vec![
        ("owner", owner.map(Owner::as_str).into()),
        ("user", owner.map(Owner::user).into()),
        ("host", owner.map(Owner::host).into()),
        ("pid", owner.map(Owner::pid).into()),
        ("label", owner.map(|owner| owner.label().into_owned()).into()),
        ("value", holder.value.into()),
        ("fence", Self::Token(holder.fence)),
        ("remaining", holder.remaining.into()),
        ("since", since.into()),
        ("share", share.into()),
        ("count", count.into()),
    ])
});

from!(Status, status => {
    let foreign = status.foreign();
    Self::Object(vec![
        ("name", status.name.as_str().into()),
        ("kind", status.kind.as_str().into()),
        ("permits", status.permits.into()),
        ("holders", list(status.holders)),
        ("waiters", list(status.waiters)),
        ("unlisted", status.unlisted.into()),
        ("waiting", status.waiting.into()),
        ("foreign", foreign.into()),
    ])
});

from!(StopRequest, request => Self::Object(vec![("by", request.by.into()), ("reason", request.reason.into())]));

from!(ForcedRelease, forced => {
    let (kind, status) = match forced {
        ForcedRelease::Ended(status) => ("ended", Some(status)),
        ForcedRelease::Other(status) => ("other", Some(status)),
        ForcedRelease::Free => ("free", None),
    };
    Self::Object(vec![("kind", kind.into()), ("status", status.into())])
});

from!(Leader, leader => Self::Object(vec![
    ("payload", leader.payload.into()),
    ("fence", Self::Token(leader.fence)),
    ("owner", leader.owner.into()),
]));

from!(ElectionStatus, election => Self::Object(vec![
    ("name", election.name.as_str().into()),
    ("leader", election.leader.into()),
    ("hold", election.hold.into()),
    ("candidates", list(election.candidates)),
    ("unlisted", election.unlisted.into()),
]));

from!(Change, change => {
    let (kind, leader, missed) = match change {
        Change::Elected(leader) => ("elected", Some(leader), 0),
        Change::Updated(leader) => ("updated", Some(leader), 0),
        Change::Resigned(leader) => ("resigned", Some(leader), 0),
        Change::Missed(count) => ("missed", None, count),
        Change::Rewritten => ("rewritten", None, 0),
    };
    Self::Object(vec![("kind", kind.into()), ("leader", leader.into()), ("missed", missed.into())])
});

/// What all runs have.
fn run(
    begun: SystemTime,
    ended: Option<SystemTime>,
    fence: u64,
    outcome: Outcome,
    code: Option<i32>,
) -> Vec<(&'static str, Report)> {
    let (outcome, why) = match outcome {
        Outcome::Running => ("running", None),
        Outcome::Done => ("done", None),
        Outcome::Failed(why) => ("failed", Some(why)),
        Outcome::Lost => ("lost", None),
    };
    vec![
        ("begun", begun.into()),
        ("ended", ended.into()),
        ("fence", Report::Token(fence)),
        ("outcome", outcome.into()),
        ("why", why.into()),
        ("code", code.into()),
    ]
}

from!(LastRun, last => {
    let mut all = run(last.begun, last.ended, last.fence, last.outcome, last.code);
    all.extend([
        ("window", list(vec![last.window.start, last.window.end])),
        ("owner", last.owner.into()),
        ("remaining", last.remaining.into()),
        ("succeeded", last.succeeded.into()),
        ("is_open", last.is_open.into()),
    ]);
    Self::Object(all)
});

from!(PastRun, past => {
    let mut all = run(past.begun, past.ended, past.fence, past.outcome, past.code);
    all.push(("host", past.host.into()));
    Self::Object(all)
});

from!(JobStatus, job => Self::Object(vec![
    ("name", job.name.as_str().into()),
    ("schedule", job.schedule.into()),
    ("last", job.last.into()),
    ("runs", list(job.runs)),
    ("next", job.next.into()),
    ("overdue", job.overdue.into()),
]));
