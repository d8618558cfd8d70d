//! Checks of a MySQL or MariaDB server: what it may lose, and whether its connections suffice.

use tenure::diagnosis::diagnose_mysql;

use super::postgres::{ALONE, FLEET, compare_clocks};
use super::report::Report;
use super::versions;
use crate::exit::Failure;
use crate::versions::{UNTOLD, Versions};

/// Connects like a store does, which also checks the table and the version.
pub(super) async fn check(url: &str, at: &str, report: &mut Report) -> Result<(), Failure> {
    let server = diagnose_mysql(url).await?;
    let name = if server.version.contains("MariaDB") { "" } else { "MySQL " };
    report.saw(at, format!("{name}{}, one server: {ALONE}", server.version));
    let unknown = || format!("{UNTOLD}: MariaDB does with performance_schema = ON");
    let names = server.clients.as_ref().ok_or_else(unknown);
    versions::check(names.map(Versions::of), at, report);
    if server.flush != 1 {
        report.find(
            "flush-log",
            at,
            format!("innodb_flush_log_at_trx_commit is {}", server.flush),
            "a crash of the machine loses grants of the last moments that were acknowledged",
            "set innodb_flush_log_at_trx_commit = 1",
        );
    }
    if server.sync_binlog.is_some_and(|sync| sync != 1) {
        report.find(
            "sync-binlog",
            at,
            "sync_binlog is not 1",
            "a crash of the machine leaves the server and its replicas with different locks",
            "set sync_binlog = 1",
        );
    }
    if server.is_multi_primary {
        let what = "it is a node of a cluster: name one node for all clients, because locks are not tested with \
                    writes on several nodes";
        report.note("cluster", at, what);
    }
    let (limit, used) = (server.max_connections.unsigned_abs(), server.connections);
    if limit < FLEET {
        let what = format!(
            "max_connections is {limit}, and {used} are in use: a process that holds or waits takes one, so at most \
             {limit} do at once, and further ones wait for a connection; for {FLEET} set max_connections = {FLEET}"
        );
        report.note("connections", at, what);
    }
    compare_clocks(server.clock_us, at, report);
    Ok(())
}
