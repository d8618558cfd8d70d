//! What calls return, before it is on the thread that may make JavaScript's values of it. Times are milliseconds since
//! 1970, durations milliseconds.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use napi::Env;
use napi::bindgen_prelude::{BigInt, Buffer, JsObjectValue, Null, Object, ToNapiValue, Unknown};
use tenure::{
    Change, ElectionStatus, ForcedRelease, Holder, JobStatus, LastRun, Leader, Outcome, PastRun, Share,
    Status, StopRequest,
};

use crate::hold::Hold;

pub enum Value {
    Null,
    Flag(bool),
    Number(f64),
    Token(u64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Self>),
    Object(Vec<(&'static str, Self)>),
    Hold(Box<Hold>),
}

impl Value {
    pub fn into_js(self, env: &Env) -> napi::Result<Unknown<'_>> {
        match self {
            Self::Null => Null.into_unknown(env),
            Self::Flag(flag) => flag.into_unknown(env),
            Self::Number(number) => number.into_unknown(env),
            Self::Token(token) => BigInt::from(token).into_unknown(env),
            Self::Text(text) => text.into_unknown(env),
            Self::Bytes(bytes) => Buffer::from(bytes).into_unknown(env),
            Self::Hold(hold) => hold.into_unknown(env),
            Self::List(values) => {
                let mut list = env.create_array(values.len() as u32)?;
                for (at, value) in values.into_iter().enumerate() {
                    list.set(at as u32, value.into_js(env)?)?;
                }
                list.into_unknown(env)
            }
            Self::Object(fields) => {
                let mut object = Object::new(env)?;
                for (name, value) in fields {
                    object.set_named_property(name, value.into_js(env)?)?;
                }
                object.into_unknown(env)
            }
        }
    }
}

macro_rules! from {
    ($type:ty, $value:ident => $into:expr) => {
        impl From<$type> for Value {
            fn from($value: $type) -> Self {
                $into
            }
        }
    };
}

from!((), _unit => Self::Null);
from!(bool, flag => Self::Flag(flag));
from!(u32, number => Self::Number(f64::from(number)));
from!(i32, number => Self::Number(f64::from(number)));
from!(&str, text => Self::Text(text.to_owned()));
from!(String, text => Self::Text(text));
from!(Vec<u8>, bytes => Self::Bytes(bytes));
from!(Duration, duration => Self::Number(millis(duration)));
from!(SystemTime, time => Self::Number(millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())));
from!(Vec<Self>, values => Self::List(values));

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn list<T: Into<Value>>(values: Vec<T>) -> Value {
    Value::List(values.into_iter().map(Into::into).collect())
}

from!(Holder, holder => {
    let (share, count) = match holder.share {
        Share::Whole => ("whole", 1),
        Share::Holds(count) => ("holds", count),
        Share::Reader => ("reader", 1),
        Share::Upgradeable => ("upgradeable", 1),
        Share::Writer => ("writer", 1),
        Share::Permits(count) => ("permits", count),
        _ => ("unknown", 1),
    };
    let since = holder.since();
    let owner = holder.owner.as_ref();
    Self::Object(vec![
        ("owner", owner.map(|owner| owner.as_str()).into()),
        ("user", owner.map(|owner| owner.user()).into()),
        ("host", owner.map(|owner| owner.host()).into()),
        ("pid", owner.map(|owner| owner.pid()).into()),
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
        ("unlisted", Self::Number(status.unlisted as f64)),
        ("waiting", status.waiting.map_or(Self::Null, |waiting| Self::Number(waiting as f64))),
        ("foreign", foreign.into()),
    ])
});

from!(StopRequest, request => {
    Self::Object(vec![("by", request.by.as_str().into()), ("reason", request.reason.into())])
});

from!(ForcedRelease, forced => {
    let (result, status) = match forced {
        ForcedRelease::Ended(status) => ("ended", Some(status)),
        ForcedRelease::Other(status) => ("other", Some(status)),
        _ => ("free", None),
    };
    Self::Object(vec![("result", result.into()), ("status", status.into())])
});

from!(Leader, leader => Self::Object(vec![
    ("payload", leader.payload.into()),
    ("fence", Self::Token(leader.fence)),
    ("owner", leader.owner.as_str().into()),
]));

from!(ElectionStatus, election => Self::Object(vec![
    ("name", election.name.as_str().into()),
    ("leader", election.leader.into()),
    ("hold", election.hold.into()),
    ("candidates", list(election.candidates)),
    ("unlisted", Self::Number(election.unlisted as f64)),
]));

from!(Change, change => {
    let (what, leader, count) = match change {
        Change::Elected(leader) => ("elected", leader.into(), Self::Null),
        Change::Updated(leader) => ("updated", leader.into(), Self::Null),
        Change::Resigned(leader) => ("resigned", leader.into(), Self::Null),
        Change::Missed(count) => ("missed", Self::Null, Self::Number(count as f64)),
        _ => ("rewritten", Self::Null, Self::Null),
    };
    Self::Object(vec![("what", what.into()), ("leader", leader), ("count", count)])
});

/// What all runs have.
fn run(
    begun: SystemTime,
    ended: Option<SystemTime>,
    fence: u64,
    outcome: Outcome,
    code: Option<i32>,
) -> Vec<(&'static str, Value)> {
    let (outcome, why) = match outcome {
        Outcome::Running => ("running", None),
        Outcome::Done => ("done", None),
        Outcome::Failed(why) => ("failed", Some(why)),
        _ => ("lost", None),
    };
    vec![
        ("begun", begun.into()),
        ("ended", ended.into()),
        ("fence", Value::Token(fence)),
        ("outcome", outcome.into()),
        ("why", why.into()),
        ("code", code.into()),
    ]
}

from!(LastRun, last => {
    let mut all = run(last.begun, last.ended, last.fence, last.outcome, last.code);
    all.extend([
        ("window", Self::List(vec![last.window.start.into(), last.window.end.into()])),
        ("owner", last.owner.as_str().into()),
        ("remaining", last.remaining.into()),
        ("succeeded", last.succeeded.into()),
        ("isOpen", last.is_open.into()),
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
