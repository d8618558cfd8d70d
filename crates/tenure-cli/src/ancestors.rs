//! The runs above this one: a run that waits for a lock held by one of them may wait for itself.
//!
//! Each run passes the owners of its locks to its command in `TENURE_HELD`, appended to those it received.
//! Owners are unique, so the store tells whether such a lock is still held. The owners of one run differ only in
//! their ids, so each but the first is `/ID`: an environment variable has at most 128 KiB.

use std::env;

use tenure::{Owner, Status};

use crate::kind;
use crate::wanted::Wanted;

const HELD: &str = "TENURE_HELD";

/// The environment variable for the command, with all owners above it.
pub(crate) fn held<'a>(owners: impl Iterator<Item = &'a Owner>) -> (&'static str, String) {
    let above = above();
    let (mut text, mut last) = (String::new(), String::new());
    for owner in above.iter().map(Owner::to_string).chain(owners.map(Owner::to_string)) {
        let (process, id) = owner.rsplit_once('/').unwrap_or(("", &owner));
        let separator = if text.is_empty() { "" } else { " " };
        let shown = if process == last { "" } else { process };
        text.push_str(&format!("{separator}{shown}/{id}"));
        process.clone_into(&mut last);
    }
    (HELD, text)
}

/// The owners of everything held by the runs above this one.
pub(crate) fn above() -> Vec<Owner> {
    owners(&env::var(HELD).unwrap_or_default())
}

fn owners(text: &str) -> Vec<Owner> {
    let mut process = "";
    let whole = |word| {
        let (before, id) = str::rsplit_once(word, '/')?;
        process = if before.is_empty() { process } else { before };
        format!("{process}/{id}").parse().ok()
    };
    text.split(' ').filter_map(whole).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_read_back_and_those_of_one_run_are_short() {
        let label = "x".repeat(200);
        let made = |label: &str| Owner::new(label).expect("an owner");
        let all: Vec<Owner> = [&label, &label, "", &label].map(made).into();
        let (_, text) = held(all.iter());
        assert_eq!(owners(&text), all);
        assert_eq!(text.matches(&label).count(), 2, "{text}");
        let many: Vec<Owner> = (0..2_000).map(|_| made(&label)).collect();
        assert!(held(many.iter()).1.len() < 128 * 1024);
    }
}
