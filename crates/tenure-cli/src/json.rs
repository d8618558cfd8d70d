//! Who holds what, for programs. Names of fields are a promise: one may come, none goes.

use std::time::UNIX_EPOCH;

use serde_json::{Value, json};
use tenure::{Holder, Share, Status};

/// One lock as an object on a line of its own.
pub(crate) fn lock(name: &str, status: Option<&Status>) -> String {
    let all = |holders: &[Holder]| holders.iter().map(holder).collect::<Vec<Value>>();
    let object = json!({
        "name": name,
        "held": status.is_some(),
        "kind": status.map(|status| status.kind.to_string()),
        "permits": status.and_then(|status| status.permits),
        "holders": status.map_or(Vec::new(), |status| all(&status.holders)),
        "waiters": status.map_or(Vec::new(), |status| all(&status.waiters)),
        "unlisted": status.map_or(0, |status| status.unlisted),
    });
    format!("{object}\n")
}

fn holder(holder: &Holder) -> Value {
    let owner = holder.owner.as_ref();
    let since = holder.since().and_then(|since| since.duration_since(UNIX_EPOCH).ok());
    json!({
        "owner": owner.map_or_else(|| String::from_utf8_lossy(&holder.value), |owner| owner.as_str().into()),
        "foreign": owner.is_none(),
        "label": owner.map(|owner| owner.label()),
        "host": owner.map(|owner| owner.host()),
        "pid": owner.map(|owner| owner.pid()),
        "since_ms": since.map(|since| since.as_millis() as u64),
        "remaining_ms": holder.remaining.map(|remaining| remaining.as_millis() as u64),
        "fence": (holder.fence > 0).then_some(holder.fence),
        "weight": weight(holder.share),
    })
}

/// How much of the lock it has, as a number.
fn weight(share: Share) -> u32 {
    match share {
        Share::Holds(count) | Share::Permits(count) => count,
        Share::Writer => 1 << 20,
        _ => 1,
    }
}
