//! `tenure list`: the held locks.
#![expect(
    clippy::disallowed_methods,
    reason = "a timer of this command's own; the clock of leases is the library's"
)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::pin::pin;
use std::time::Duration;

use rustix::termios::tcgetwinsize;
use tenure::Locks;
use tokio::time::{sleep, timeout};

use crate::cli::List;
use crate::exit::{Failure, STORE, chain, of_signal};
use crate::look::{Look, overdue, patience};
use crate::output::{self, Line, plural};
use crate::signals::{END_THE_WAIT, Signals};
use crate::table::{self, Found, Row, fitted};
use crate::{json, status, store, uses};

/// Moves the cursor home and clears the screen below it.
const ERASE: &str = "\x1b[H\x1b[J";

/// Prints one line per lock: a table with a header on a terminal, otherwise tab-separated name, kind,
/// holders, waiters and permits. Returns the exit code.
pub(crate) async fn list(args: &List) -> Result<u8, Failure> {
    let locks = store::open_existing(&args.locks.store)?;
    let found = store::unless_absent(&locks, found(&locks, args)).await??;
    let shows_table = io::stdout().is_terminal() && !args.json;
    let Some(every) = args.watch else {
        output::print(if shows_table { table(&found, None) } else { lines(&locks, args, &found) })?;
        return Ok(0);
    };
    let mut signals = Signals::catch(&END_THE_WAIT)?;
    let mut held = BTreeMap::new();
    let show = |now| match shows_table {
        true => redraw(&locks, now),
        false => tell_changes(&locks, args, &mut held, now),
    };
    match signals.or_end(watch(&locks, args, every, found, show)).await {
        Ok(result) => result.map(|()| 0),
        Err(signal) => Ok(of_signal(signal)),
    }
}

async fn found(locks: &Locks, args: &List) -> Result<Vec<Found>, Failure> {
    let prefix = &args.locks.names;
    let mut found = table::walk(locks, prefix).await?;
    match uses::held(locks, prefix).await {
        Ok(uses) => found.extend(uses),
        // A store may keep none, or the user may not read them.
        Err(error) if error.is_unsupported() => {}
        Err(error) if error.is_refused() => {
            output::complain(format_args!("jobs and elections are not listed: {}", chain(&error)));
        }
        Err(error) => return Err(error.into()),
    }
    found.retain(|found| args.filter.iter().all(|filter| filter.keeps(&found.row)));
    if let Some(sort) = args.sort {
        found.sort_by(|a, b| sort.compare(&a.row, &b.row));
    }
    Ok(found)
}

/// Prints what `show` makes of each scan, and of one that is overdue, while anybody reads it.
async fn watch(
    locks: &Locks,
    args: &List,
    every: Duration,
    first: Vec<Found>,
    mut show: impl FnMut(Result<Vec<Found>, Failure>) -> String,
) -> Result<(), Failure> {
    let (mut now, mut pause) = (Ok(first), every);
    loop {
        if !output::print_while_read(show(now)).await? {
            return Ok(());
        }
        sleep(pause).await;
        let look = Look::begin();
        let mut found = pin!(found(locks, args));
        now = match timeout(patience(every), found.as_mut()).await {
            Ok(found) => found,
            Err(_) => {
                let why = overdue(look.took(), every).unwrap_or_default();
                output::print_while_read(show(Err(Failure::new(STORE, why)))).await?;
                found.await
            }
        };
        pause = look.pause(every, now.is_ok());
    }
}

/// The table, as much of it as fits on the screen, over the one before.
fn redraw(locks: &Locks, now: Result<Vec<Found>, Failure>) -> String {
    let text = match now {
        Ok(found) => table(&found, Some(locks)),
        Err(failure) => format!("{}\n", Line(&failure.message)),
    };
    format!("{ERASE}{text}")
}

/// The tokens and owners of all that is held, by name and, for a job or an election, its kind. The store may not have
/// a token.
type Holds = BTreeMap<(String, Option<&'static str>), Vec<(u64, String)>>;

/// A line for each lock whose holders changed, and for each that became free.
fn tell_changes(locks: &Locks, args: &List, held: &mut Holds, now: Result<Vec<Found>, Failure>) -> String {
    let mut found = match now {
        Ok(found) => found,
        Err(failure) => {
            output::complain(failure.message);
            return String::new();
        }
    };
    let tokens = |row: &Row| row.holders.iter().map(|holder| (holder.token, holder.owner.clone())).collect();
    let key = |row: &Row| (row.name.clone(), uses::of_row(row));
    let now: Holds = found.iter().map(|found| (key(&found.row), tokens(&found.row))).collect();
    let before = std::mem::replace(held, now);
    found.retain(|found| before.get(&key(&found.row)) != held.get(&key(&found.row)));
    let mut text = lines(locks, args, &found);
    for key in before.keys().filter(|key| !held.contains_key(*key)) {
        match (args.json, key) {
            (true, (name, None)) => text.push_str(&json::lock(locks, name, None)),
            (true, (name, Some(kind))) => text.push_str(&json::ended(locks, name, kind)),
            (false, (name, None)) => _ = writeln!(text, "{}\tfree", Line(name)),
            (false, (name, Some(kind))) => _ = writeln!(text, "{}\t{kind}\tfree", Line(name)),
        }
    }
    text
}

fn lines(locks: &Locks, args: &List, found: &[Found]) -> String {
    let mut text = String::new();
    for found in found {
        if args.json {
            text.push_str(&json::found(locks, found));
        } else {
            let row = &found.row;
            let (name, holders) = (Line(&row.name), status::shown(&found.holders, row.foreign.clone()));
            let holders = Line(&holders);
            let _ = writeln!(text, "{name}\t{}\t{holders}\t{}\t{}", row.kind, row.waits(), row.used());
        }
    }
    text
}

/// A header and columns; limited to the screen if it is redrawn.
fn table(found: &[Found], redrawn_of: Option<&Locks>) -> String {
    let size = tcgetwinsize(io::stdout()).ok();
    let columns = size.map_or(100, |size| usize::from(size.ws_col)).max(40);
    let rows = size.map_or(24, |size| usize::from(size.ws_row)).max(4);
    let longest = found.iter().map(|found| found.row.name.chars().count()).max().unwrap_or(0);
    let name = longest.clamp(4, columns / 3);
    let [kind, permits, wait] = [15, 7, 4];
    // Without the two spaces after each of four columns, and one column so that no terminal wraps the line.
    let holders = columns.saturating_sub(name + kind + permits + wait + 4 * 2 + 1);
    let mut text = String::new();
    let mut most = found.len();
    if let Some(locks) = redrawn_of {
        let count = plural(found.len() as u64, "lock");
        let _ =
            writeln!(text, "{}", fitted(&format!("{count} held in {}", locks.url()), columns - 1).trim_end());
        most = rows - 3;
    }
    let mut line = |cells: [&str; 5]| {
        let widths = [name, kind, permits, wait, holders];
        let line = cells.iter().zip(widths).map(|(cell, width)| fitted(cell, width)).collect::<Vec<_>>();
        let _ = writeln!(text, "{}", line.join("  ").trim_end());
    };
    line(["NAME", "KIND", "PERMITS", "WAIT", "HOLDERS"]);
    for Found { row, holders, .. } in found.iter().take(most) {
        let holders = status::shown(holders, row.foreign.clone());
        line([&row.name, &row.kind, &row.used(), &row.waits(), &holders]);
    }
    if found.len() > most {
        let _ = writeln!(text, "and {} more", found.len() - most);
    }
    text
}
