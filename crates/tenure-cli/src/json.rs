//! Locks and holders as JSON. Fields may be added, but are never removed.

use std::time::SystemTime;

use serde_json::{Value, json};
use tenure::{Holder, Locks, Share, Status};

use crate::clock;
use crate::uses::{self, Uses};

/// One lock as an object on one line.
pub(crate) fn lock(locks: &Locks, name: &str, status: Option<&Status>) -> String {
    format!("{}\n", object(locks, name, status))
}

/// The same with the leader and the last run of this name.
pub(crate) fn with_uses(locks: &Locks, name: &str, status: Option<&Status>, of: &Uses) -> String {
    let mut object = object(locks, name, status);
    object["leader"] = of.leader.as_ref().map_or(Value::Null, |leader| {
        json!({
            "owner": leader.owner.as_str(),
            "fence": leader.fence,
            "payload": leader.payload,
        })
    });
    object["last_run"] = of.last_run.as_ref().map_or(Value::Null, |run| {
        let (outcome, error) = uses::outcome(&run.outcome);
        json!({
            "owner": run.owner.as_str(),
            "fence": run.fence,
            "begun_ms": since_1970_ms(run.begun),
            "window_end_ms": since_1970_ms(run.window.end),
            "outcome": outcome,
            "error": error,
            "succeeded_ms": run.succeeded.map(since_1970_ms),
            "is_open": run.is_open,
            "remaining_ms": run.remaining.map(|left| left.as_millis() as u64),
        })
    });
    format!("{object}\n")
}

fn since_1970_ms(time: SystemTime) -> u64 {
    clock::since_1970(time).as_millis() as u64
}

fn object(locks: &Locks, name: &str, status: Option<&Status>) -> Value {
    let foreign = status.and_then(Status::foreign);
    let all = |holders: &[Holder]| {
        holders.iter().map(|one| holder(one, foreign.as_deref())).collect::<Vec<Value>>()
    };
    json!({
        "name": name,
        "store": locks.url(),
        "held": status.is_some(),
        "kind": status.map(|status| status.kind.to_string()),
        "permits": status.and_then(|status| status.permits),
        "holders": status.map_or(Vec::new(), |status| all(&status.holders)),
        "waiters": status.map_or(Vec::new(), |status| all(&status.waiters)),
        "unlisted": status.map_or(0, |status| status.unlisted),
        "waiting": status.map_or(Some(0), |status| status.waiting),
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
