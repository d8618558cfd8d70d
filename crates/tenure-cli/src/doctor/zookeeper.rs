//! Checks of ZooKeeper: versions, what the loss of a member costs, and how many clients of one host it takes.
#![expect(clippy::disallowed_methods, reason = "a timer of this command's own")]

use std::time::Duration;

use tenure::diagnosis::{diagnose_zookeeper, zookeeper_clients};
use tokio::time::timeout;

use super::postgres::FLEET;
use super::quorum::of_a_majority;
use super::report::Report;
use super::versions;
use crate::exit::chain;
use crate::output::plural;
use crate::versions::Versions;

/// Timeout of the answers of all servers.
const LIMIT: Duration = Duration::from_secs(2);

pub(super) async fn check(url: &str, store: &str, report: &mut Report) {
    let servers = timeout(LIMIT, diagnose_zookeeper(url)).await.unwrap_or_default();
    let voters = servers.iter().find_map(|server| server.voters).unwrap_or(servers.len());
    let cost = of_a_majority("the ensemble", voters, store, report);
    report.saw(store, format!("{}: {cost}", plural(voters as u64, "member")));
    let clients = zookeeper_clients(url).await.map_err(|error| chain(&error));
    versions::check(clients.map(Versions::of), store, report);
    for server in servers {
        let at = server.at;
        let version = server.version.unwrap_or_else(|| "of unknown version".to_owned());
        let mode = server.mode.map_or(String::new(), |mode| format!(", {mode}"));
        report.saw(&at, format!("ZooKeeper {version}{mode}"));
        match server.max_clients {
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
