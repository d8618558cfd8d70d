//! `tenure status`: the holders of a lock.

use std::fmt::Write;
use std::time::Duration;

use tenure::{Holder, Locks, Outcome};

use crate::cli::Status;
use crate::clock;
use crate::exit::{self, Failure};
use crate::output::{self, Line, Span};
use crate::table::Party;
use crate::{json, store, table};

/// Requests about a running job do not depend on the period.
pub(crate) const ANY_PERIOD: Duration = Duration::from_secs(86_400);

/// Prints the holders of a lock; returns the exit code.
pub(crate) async fn status(args: &Status) -> Result<u8, Failure> {
    let locks = store::open_existing(&args.store)?;
    let found = store::unless_absent(&locks, locks.inspect(&args.name)).await??;
    let code = tell(&locks, "held", &args.name, found.as_ref(), args.json)?;
    if found.is_none() && !args.json {
        output::print(of_uses(&locks, &args.name).await)
            .map_err(|error| Failure::own("cannot print", &error))?;
    }
    Ok(code)
}

/// The running election and the last run of the job of this name, which are not locks. Empty if the store does
/// not support them, or if the user may not read them.
async fn of_uses(locks: &Locks, name: &str) -> String {
    let mut lines = String::new();
    if let Ok(election) = locks.election(name, "")
        && let Ok(Some(leader)) = election.leader().await
    {
        let who = table::who(&leader.owner);
        let _ = writeln!(lines, "election of this name: led by {who}; see `tenure leader`");
    }
    if let Ok(job) = locks.once_per(name, ANY_PERIOD)
        && let Ok(Some(run)) = job.last().await
    {
        let begun = run.begun.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let (who, ago) = (table::who(&run.owner), Span(clock::unix().saturating_sub(begun)));
        let how = match run.outcome {
            Outcome::Running => "running; see `tenure stop --job`".to_owned(),
            Outcome::Done => "done".to_owned(),
            Outcome::Failed(why) => format!("failed: {}", Line(&why)),
            _ => "died or lost its lock".to_owned(),
        };
        let _ = writeln!(lines, "job of this name: run by {who}, begun {ago} ago: {how}");
    }
    lines
}

/// Prints the state of a lock; returns the exit code.
pub(crate) fn tell(
    locks: &Locks,
    how: &str,
    name: &str,
    found: Option<&tenure::Status>,
    as_json: bool,
) -> Result<u8, Failure> {
    let lines = match found {
        found if as_json => json::lock(locks, name, found),
        Some(found) => format!("{}store: {}\n", held(how, found), Line(locks.url())),
        None => format!("free\nstore: {}\n", Line(locks.url())),
    };
    output::print(lines).map_err(|error| Failure::own("cannot print", &error))?;
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
            let _ = writeln!(lines, "{role}: {}{separator}{share}", describe(status, one));
        }
    }
    if status.unlisted > 0 {
        let _ = writeln!(lines, "and {} more", status.unlisted);
    }
    lines
}

/// The holders on one line: at most three, and the number of others.
pub(crate) fn holders(status: &tenure::Status) -> String {
    const SHOWN: usize = 3;
    let mut shown: Vec<_> =
        status.holders.iter().take(SHOWN).map(|holder| describe(status, holder)).collect();
    if status.holders.len() > SHOWN {
        shown.push(format!("and {} more", status.holders.len() - SHOWN));
    }
    shown.join("; ")
}

fn describe(status: &tenure::Status, holder: &Holder) -> String {
    let mut text = match &holder.owner {
        Some(_) => Party::of(holder).who(),
        // Not the value itself, which may be a secret.
        None => status.foreign().map_or_else(String::new, |what| format!("another program, {what}")),
    };
    if let Some(since) = holder.since() {
        let since = since.duration_since(std::time::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let _ = write!(text, ", for {}", Span(clock::unix().saturating_sub(since)));
    }
    let _ = match holder.remaining {
        Some(remaining) => write!(text, ", {} left", Span(remaining)),
        None => write!(text, ", without end"),
    };
    if holder.fence > 0 {
        let _ = write!(text, ", token {}", holder.fence);
    }
    text
}
