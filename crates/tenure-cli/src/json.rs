//! Locks and holders as JSON. Fields may be added, but are never removed.

use std::time::SystemTime;

use serde_json::{Value, json};
use tenure::{Holder, JobStatus, LastRun, Locks, PastRun, Share, Status};

use crate::clock;
use crate::table::Found;
use crate::uses::{self, Uses};

/// One lock as an object on one line.
pub(crate) fn lock(locks: &Locks, name: &str, status: Option<&Status>) -> String {
    let found = status.cloned().map(Found::from);
    format!("{}\n", object(locks, name, found.as_ref()))
}

/// The same of what was listed.
pub(crate) fn found(locks: &Locks, found: &Found) -> String {
    format!("{}\n", object(locks, &found.row.name, Some(found)))
}

/// A job or an election that runs no more.
pub(crate) fn ended(locks: &Locks, name: &str, kind: &str) -> String {
    let mut object = object(locks, name, None);
    object["kind"] = kind.into();
    format!("{object}\n")
}

/// The same with the leader and the last run of this name.
pub(crate) fn with_uses(locks: &Locks, name: &str, status: Option<&Status>, of: &Uses) -> String {
    let found = status.cloned().map(Found::from);
    let mut object = object(locks, name, found.as_ref());
    object["leader"] = of.leader.as_ref().map_or(Value::Null, |leader| {
        json!({
            "owner": leader.owner.as_str(),
            "fence": leader.fence,
            "payload": leader.payload,
        })
    });
    object["last_run"] = of.job.as_ref().map_or(Value::Null, |job| last_run(&job.last));
    object["uses_trouble"] = json!(of.trouble);
    format!("{object}\n")
}

/// One job as an object on one line.
pub(crate) fn job(locks: &Locks, job: &JobStatus) -> String {
    let run = |run: &PastRun| {
        let (outcome, error) = uses::outcome(&run.outcome);
        json!({
            "begun_ms": since_1970_ms(run.begun),
            "ended_ms": run.ended.map(since_1970_ms),
            "host": run.host,
            "fence": run.fence,
            "outcome": outcome,
            "code": run.code,
            "error": error,
        })
    };
    let object = json!({
        "name": job.name.as_str(),
        "store": locks.url(),
        "schedule": job.schedule,
        "last_run": last_run(&job.last),
        "next_ms": since_1970_ms(job.next),
        "overdue_ms": job.overdue.map(|overdue| overdue.as_millis() as u64),
        "runs": job.runs.iter().map(run).collect::<Vec<_>>(),
    });
    format!("{object}\n")
}

fn last_run(run: &LastRun) -> Value {
    let (outcome, error) = uses::outcome(&run.outcome);
    json!({
        "owner": run.owner.as_str(),
        "host": run.owner.host(),
        "fence": run.fence,
        "begun_ms": since_1970_ms(run.begun),
        "ended_ms": run.ended.map(since_1970_ms),
        "window_end_ms": since_1970_ms(run.window.end),
        "outcome": outcome,
        "code": run.code,
        "error": error,
        "succeeded_ms": run.succeeded.map(since_1970_ms),
        "is_open": run.is_open,
        "remaining_ms": run.remaining.map(|left| left.as_millis() as u64),
    })
}

fn since_1970_ms(time: SystemTime) -> u64 {
    clock::since_1970(time).as_millis() as u64
}

fn object(locks: &Locks, name: &str, found: Option<&Found>) -> Value {
    let foreign = found.and_then(|found| found.row.foreign.as_deref());
    let all = |holders: &[Holder]| holders.iter().map(|one| holder(one, foreign)).collect::<Vec<Value>>();
    json!({
        "name": name,
        "store": locks.url(),
        "held": found.is_some(),
        "kind": found.map(|found| &found.row.kind),
        "permits": found.and_then(|found| found.row.permits).map(|(_, all)| all),
        "holders": found.map_or(Vec::new(), |found| all(&found.holders)),
        "waiters": found.map_or(Vec::new(), |found| all(&found.waiters)),
        "unlisted": found.map_or(0, |found| found.row.unlisted),
        "waiting": found.map_or(Some(0), |found| found.row.waiting),
    })
}

/// A holder or waiter. For another program's data: the type of value at the name, not the value.
fn holder(holder: &Holder, foreign: Option<&str>) -> Value {
    let owner = holder.owner.as_ref();
    json!({
        "owner": owner.map(|owner| owner.as_str()),
        "foreign": foreign,
        "user": owner.map(|owner| owner.user()),
        "label": owner.map(|owner| owner.label()),
        "host": owner.map(|owner| owner.host()),
        "pid": owner.map(|owner| owner.pid()),
        "since_ms": holder.since().map(since_1970_ms),
        "remaining_ms": holder.remaining.map(|remaining| remaining.as_millis() as u64),
        "fence": (holder.fence > 0).then_some(holder.fence),
        "weight": weight(holder.share),
    })
}

/// The weight of the hold, as a number.
fn weight(share: Share) -> u32 {
    match share {
        Share::Holds(count) | Share::Permits(count) => count,
        Share::Writer => 1 << 20,
        Share::Upgradeable => (1 << 19) + 1,
        _ => 1,
    }
}
