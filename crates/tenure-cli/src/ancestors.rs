//! The runs above this one: a run that waits for a lock held by one of them may wait for itself.
//!
//! Each run passes the owners of its locks to its command in `TENURE_HELD`, appended to those it received.
//! Owners are unique, so the store tells whether such a lock is still held.

use std::env;

use tenure::{Owner, Status};

use crate::kind;
use crate::wanted::Wanted;

const HELD: &str = "TENURE_HELD";

/// The environment variable for the command, with all owners above it.
pub(crate) fn held<'a>(owners: impl Iterator<Item = &'a Owner>) -> (&'static str, String) {
    let mut all: Vec<String> = above().iter().map(Owner::to_string).collect();
    all.extend(owners.map(Owner::to_string));
    (HELD, all.join(" "))
}

/// The owners of everything held by the runs above this one.
pub(crate) fn above() -> Vec<Owner> {
    let held = env::var(HELD).unwrap_or_default();
    held.split(' ').filter_map(|owner| owner.parse().ok()).collect()
}

/// The locks that this run cannot get before the runs above it end, as far as the store tells.
pub(crate) async fn hold(wanted: &Wanted<'_>) -> Vec<Status> {
    let kind = &wanted.request.kind;
    let above = above();
    let mut found = Vec::new();
    for name in wanted.names() {
        if above.is_empty() {
            break;
        }
        let Ok(Some(mut status)) = wanted.locks.inspect(name).await else { continue };
        status.holders.retain(|holder| holder.owner.as_ref().is_some_and(|owner| above.contains(owner)));
        status.waiters.clear();
        let is_own = |owner: &Owner| kind.owner.as_ref().is_some_and(|own| *own == owner.to_string());
        status.holders.retain(|holder| !holder.owner.as_ref().is_some_and(is_own));
        if !kind::has_room(kind, &status) {
            found.push(status);
        }
    }
    found
}
