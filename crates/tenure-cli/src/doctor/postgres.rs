//! Checks of a PostgreSQL server: what it may lose, and what transactions may do to locks.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tenure::diagnosis::diagnose_postgres;

use super::report::Report;
use super::versions;
use crate::exit::Failure;
use crate::versions::Versions;

/// Maximum clock offset: owners and tokens contain times, so larger offsets confuse readers.
const OFFSET: Duration = Duration::from_secs(5);

/// Maximum time between a waiter's requests, with a margin.
const WAITER_IDLE: Duration = Duration::from_secs(60);
/// Connections of a process that holds or waits: one for requests, one for notifications.
const CONNECTIONS: u64 = 2;
/// What the loss of the only server costs.
pub(super) const ALONE: &str = "while it is down, no lock is granted or renewed";
/// Number of processes that a server should have connections for.
pub(super) const FLEET: u64 = 100;

/// The check, its setting, what it costs while it is off, and the remedy.
const MUST_BE_ON: [(&str, &str, &str, &str); 3] = [
    (
        "fsync",
        "fsync",
        "a crash of the machine loses acknowledged grants, or the whole database",
        "set fsync = on in postgresql.conf",
    ),
    (
        "full-page-writes",
        "full_page_writes",
        "a crash of the machine may leave a torn page in the locks table",
        "set full_page_writes = on, unless the file system writes whole pages",
    ),
    (
        "autovacuum",
        "autovacuum",
        "each change of a lock leaves a dead row, so requests become slower and slower",
        "set autovacuum = on",
    ),
];

/// Connects like a store does, which also checks the table and the version.
pub(super) async fn check(url: &str, at: &str, ttl: Duration, report: &mut Report) -> Result<(), Failure> {
    let server = diagnose_postgres(url).await?;
    let cost = match server.standbys {
        0 => format!("no standby: {ALONE}"),
        count => format!("{count} standbys: after a failover, locks go on where the URL names all servers"),
    };
    report.saw(at, format!("PostgreSQL {}, {cost}", server.version));
    versions::check(Ok(Versions::of(&server.clients)), at, report);
    for (check, setting, costs, remedy) in MUST_BE_ON {
        if server.setting(setting) == "off" {
            report.find(check, at, format!("{setting} is off"), costs, remedy);
        }
    }
    let commit = server.setting("synchronous_commit");
    if commit == "off" && at.contains("pgbouncer=1") {
        report.find(
            "synchronous-commit",
            at,
            "synchronous_commit is off",
            "a crash of the server loses the last acknowledged grants",
            "ALTER ROLE … SET synchronous_commit = on for the user of the locks",
        );
    } else if server.setting("commit of this user") == "off" {
        let what = "synchronous_commit is off for some users; the connections of locks set it to on";
        report.note("synchronous-commit", at, what);
    }
    if server.standbys > 0 && server.setting("synchronous_standby_names").is_empty() {
        report.find(
            "standby",
            at,
            format!("{} standbys, none of them synchronous", server.standbys),
            "a failover loses the last grants, so another client may get a held lock",
            "set synchronous_standby_names, or let the database compare tokens (book/use/fencing.md)",
        );
    }
    if server.setting("idle_in_transaction_session_timeout") == "0" {
        let what = "idle_in_transaction_session_timeout is 0: a transaction that was checked in with a lock \
                    keeps it for as long as it is open";
        report.note("idle-transactions", at, what);
    }
    let number = |name: &str| server.setting(name).parse::<u64>().unwrap_or(0);
    let idle = Duration::from_millis(number("idle_session_timeout"));
    let needed = WAITER_IDLE.max(ttl / 3);
    if !idle.is_zero() && idle < needed {
        report.find(
            "idle-sessions",
            at,
            format!("idle_session_timeout is {} s", idle.as_secs_f64()),
            "the server closes the connections of holders and waiters between requests",
            format!(
                "ALTER ROLE … SET idle_session_timeout = 0 for the user of the locks, or at least {} s",
                needed.as_secs()
            ),
        );
    }
    let reserved = number("superuser_reserved_connections") + number("reserved_connections");
    let (limit, used) = (number("max_connections").saturating_sub(reserved), number("connections"));
    let processes = limit / CONNECTIONS;
    if processes < FLEET {
        let what = format!(
            "max_connections leaves {limit} connections, and {used} are in use: each process that holds or waits \
             takes {CONNECTIONS}, enough for {processes} processes, and more wait for a connection; for {FLEET}, set \
             max_connections = {}, or use PgBouncer",
            FLEET * CONNECTIONS + reserved
        );
        report.note("connections", at, what);
    }
    compare_clocks(server.clock_us, at, report);
    Ok(())
}

/// Notes a server whose clock differs from that of this machine.
pub(super) fn compare_clocks(clock_us: i64, at: &str, report: &mut Report) {
    let now = Duration::from_secs(clock_gettime(ClockId::Realtime).tv_sec.unsigned_abs());
    let theirs = Duration::from_micros(clock_us.try_into().unwrap_or(0));
    let offset = now.abs_diff(theirs);
    if offset > OFFSET {
        let what = format!("its clock and that of this machine differ by {} s", offset.as_secs());
        report.note("clock", at, what);
    }
}
