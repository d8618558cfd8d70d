//! `tenure status`: the holders of a lock.

use std::fmt::Write;

use tenure::{Holder, Locks};

use crate::cli::Status;
use crate::clock;
use crate::exit::{self, Failure};
use crate::output::{self, Line};
use crate::table::Party;
use crate::uses::Uses;
use crate::{json, store, table};

/// Prints the holders of a lock; returns the exit code.
pub(crate) async fn status(args: &Status) -> Result<u8, Failure> {
    let locks = store::open_existing(&args.target.store)?;
    let found = store::unless_absent(&locks, locks.inspect(&args.target.name)).await??;
    let lines = match args.json {
        true => json::with_uses(
            &locks,
            &args.target.name,
            found.as_ref(),
            &Uses::of(&locks, &args.target.name).await,
        ),
        false => {
            let uses = Uses::of(&locks, &args.target.name).await;
            lock(&locks, "held", found.as_ref()) + &uses.to_string()
        }
    };
    print(found.as_ref(), &lines)
}

/// Prints the state of a lock; returns the exit code.
pub(crate) fn tell(
    locks: &Locks,
    how: &str,
    name: &str,
    found: Option<&tenure::Status>,
    as_json: bool,
) -> Result<u8, Failure> {
    let lines = if as_json { json::lock(locks, name, found) } else { lock(locks, how, found) };
    print(found, &lines)
}

/// The state of a lock, on several lines.
fn lock(locks: &Locks, how: &str, found: Option<&tenure::Status>) -> String {
    let state = found.map_or_else(|| "free\n".to_owned(), |found| held(how, found));
    format!("{state}store: {}\n", Line(locks.url()))
}

fn print(found: Option<&tenure::Status>, lines: &str) -> Result<u8, Failure> {
    output::print(lines)?;
    Ok(if found.is_some() { 0 } else { exit::FREE })
}

/// A line for the kind, and one for each holder and waiter.
fn held(how: &str, status: &tenure::Status) -> String {
    let mut lines = match status.permits {
        _ if status.foreign().is_some() => format!("{how} by another program\n"),
        Some(permits) => format!("{how} as a {} of {permits}\n", status.kind),
        None => format!("{how} as a {}\n", status.kind),
    };
    for (role, all) in [("holder", &status.holders), ("waiter", &status.waiters)] {
        for one in all {
            let share = table::share(one.share);
            let separator = if share.is_empty() { "" } else { ", " };
            let shown = describe(one, status.foreign().as_deref());
            let _ = writeln!(lines, "{role}: {}{separator}{share}", Line(&shown));
        }
    }
    if status.unlisted > 0 {
        let _ = writeln!(lines, "and {} more", status.unlisted);
    }
    let listed = status.waiters.len() as u64 + status.unlisted;
    if let Some(waiting) = status.waiting.filter(|waiting| *waiting > listed) {
        let _ = writeln!(lines, "waiting: {waiting}");
    }
    lines
}

/// The holders on one line: at most three, and the number of others.
pub(crate) fn holders(status: &tenure::Status) -> String {
    shown(&status.holders, status.foreign())
}

/// The same; `foreign` is the type of another program's data.
pub(crate) fn shown(holders: &[Holder], foreign: Option<String>) -> String {
    const SHOWN: usize = 3;
    let mut shown: Vec<_> =
        holders.iter().take(SHOWN).map(|holder| describe(holder, foreign.as_deref())).collect();
    if holders.len() > SHOWN {
        shown.push(format!("and {} more", holders.len() - SHOWN));
    }
    shown.join("; ")
}

/// One holder; `foreign` is the type of another program's data.
fn describe(holder: &Holder, foreign: Option<&str>) -> String {
    let (party, now) = (Party::of(holder), clock::unix());
    let who = match &holder.owner {
        Some(_) => party.who(),
        // Not the value itself, which may be a secret.
        None => foreign.map_or_else(String::new, |what| format!("another program, {what}")),
    };
    format!("{who}{}", party.hold(now, now))
}
