//! Checks of ZooKeeper: how many clients of one host its servers take.
#![expect(clippy::disallowed_methods, reason = "a timer of this command's own")]

use std::time::Duration;

use tenure::diagnosis::zookeeper_client_limits;
use tokio::time::timeout;

use super::postgres::FLEET;
use super::report::Report;

/// Timeout of the answers of all servers.
const LIMIT: Duration = Duration::from_secs(2);

pub(super) async fn check(url: &str, report: &mut Report) {
    let limits = timeout(LIMIT, zookeeper_client_limits(url)).await.unwrap_or_default();
    for (at, limit) in limits {
        match limit {
            // No limit.
            Some(0) => {}
            Some(limit) if limit < FLEET => {
                let what = format!(
                    "maxClientCnxns is {limit}: each process that holds or waits takes one connection, enough for \
                     {limit} processes of one host, and more wait for a connection; for {FLEET}, set \
                     maxClientCnxns = {FLEET} in zoo.cfg"
                );
                report.note("connections", &at, what);
            }
            Some(_) => {}
            None => {
                let why =
                    "cannot read maxClientCnxns: 4lw.commands.whitelist in zoo.cfg does not allow `conf`";
                report.cannot_check("connections", &at, why);
            }
        }
    }
}
