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
use tenure::{Locks, Status};
use tokio::time::{sleep, timeout};

use crate::cli::List;
use crate::exit::{Failure, STORE, of_signal};
use crate::look::{Look, overdue, patience};
use crate::output::{self, Line, plural};
use crate::signals::{END_THE_WAIT, Signals};
use crate::table::{self, Row, fitted};
use crate::{json, status, store};

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

type Found = Vec<(Row, Status)>;

async fn found(locks: &Locks, args: &List) -> Result<Found, Failure> {
    let mut found = table::walk(locks, &args.locks.names, &args.filter).await?;
    if let Some(sort) = args.sort {
        found.sort_by(|(a, _), (b, _)| sort.compare(a, b));
    }
    Ok(found)
}

/// Shows the result of each scan, and that a scan is overdue.
async fn watch(
    locks: &Locks,
    args: &List,
    every: Duration,
    first: Found,
    mut show: impl FnMut(Result<Found, Failure>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (mut now, mut pause) = (Ok(first), every);
    loop {
        show(now)?;
        sleep(pause).await;
        let look = Look::begin();
        let mut found = pin!(found(locks, args));
        now = match timeout(patience(every), found.as_mut()).await {
            Ok(found) => found,
            Err(_) => {
                let why = overdue(look.took(), every).unwrap_or_default();
                show(Err(Failure::new(STORE, why)))?;
                found.await
            }
        };
        pause = look.pause(every, now.is_ok());
    }
}

/// Redraws the table, as much of it as fits on the screen.
fn redraw(locks: &Locks, now: Result<Found, Failure>) -> Result<(), Failure> {
    let text = match now {
        Ok(found) => table(&found, Some(locks)),
        Err(failure) => format!("{}\n", Line(&failure.message)),
    };
    output::print(format_args!("{ERASE}{text}"))
}

/// The tokens of all held locks.
type Tokens = BTreeMap<String, Vec<u64>>;

/// Prints a line for each lock whose holders changed, and for each that became free.
fn tell_changes(
    locks: &Locks,
    args: &List,
    held: &mut Tokens,
    now: Result<Found, Failure>,
) -> Result<(), Failure> {
    let mut found = match now {
        Ok(found) => found,
        Err(failure) => {
            output::complain(failure.message);
            return Ok(());
        }
    };
    let tokens = |row: &Row| row.holders.iter().map(|holder| holder.token).collect();
    let now: Tokens = found.iter().map(|(row, _)| (row.name.clone(), tokens(row))).collect();
    let before = std::mem::replace(held, now);
    found.retain(|(row, _)| before.get(&row.name) != held.get(&row.name));
    let mut text = lines(locks, args, &found);
    for name in before.keys().filter(|name| !held.contains_key(*name)) {
        match args.json {
            true => text.push_str(&json::lock(locks, name, None)),
            false => _ = writeln!(text, "{}\tfree", Line(name)),
        }
    }
    output::print(text)
}

fn lines(locks: &Locks, args: &List, found: &Found) -> String {
    let mut text = String::new();
    for (row, status) in found {
        if args.json {
            text.push_str(&json::lock(locks, &row.name, Some(status)));
        } else {
            let (name, holders) = (Line(&row.name), status::holders(status));
            let holders = Line(&holders);
            let _ = writeln!(text, "{name}\t{}\t{holders}\t{}\t{}", row.kind, row.waits(), row.used());
        }
    }
    text
}

/// A header and columns; limited to the screen if it is redrawn.
fn table(found: &Found, redrawn_of: Option<&Locks>) -> String {
    let size = tcgetwinsize(io::stdout()).ok();
    let columns = size.map_or(100, |size| usize::from(size.ws_col)).max(40);
    let rows = size.map_or(24, |size| usize::from(size.ws_row)).max(4);
    let longest = found.iter().map(|(row, _)| row.name.chars().count()).max().unwrap_or(0);
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
    for (row, status) in found.iter().take(most) {
        line([&row.name, &row.kind, &row.used(), &row.waits(), &status::holders(status)]);
    }
    if found.len() > most {
        let _ = writeln!(text, "and {} more", found.len() - most);
    }
    text
}
