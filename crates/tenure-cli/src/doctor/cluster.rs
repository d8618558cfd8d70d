//! Checks of a cluster: slot coverage, cost of a failover, and each master as a server.

use std::collections::BTreeSet;

use tenure::diagnosis::{Address, Console, ConsoleReply, Target};

use super::report::Report;
use super::sentinel::failover;
use super::server::{Server, fields, text};
use super::{Setup, address, examine};
use crate::exit::{Failure, STORE};

const SLOTS: i64 = 16_384;

/// Asks the first responsive node for the topology, and examines each master.
pub(super) async fn check(seeds: &[Target], setup: &Setup, report: &mut Report) -> Result<(), Failure> {
    let (mut console, seed) = reach(seeds, report).await?;
    let at = seed.address.to_string();
    let slots = slots(&mut console, &at).await?;
    match console.ask(&["CLUSTER", "INFO"]).await? {
        ConsoleReply::Text(info) => {
            if let Some(state) = fields(&info).get("cluster_state").filter(|state| *state != "ok") {
                report.find(
                    "coverage",
                    &at,
                    format!("the node reports cluster state {state}"),
                    "locks of slots that no node serves are not granted",
                    "restart the failed nodes, or assign their slots: redis-cli --cluster fix",
                );
            }
        }
        ConsoleReply::Error(error) => {
            report.cannot_check("coverage", &at, format!("CLUSTER INFO was refused ({error})"))
        }
        _ => {}
    }
    let (masters, covered) = served(&slots, seed);
    if covered < SLOTS {
        report.find(
            "coverage",
            &at,
            format!("no node serves {} of {SLOTS} slots", SLOTS - covered),
            "locks of these slots are not granted",
            "assign the slots: redis-cli --cluster fix",
        );
    }
    for address in masters {
        let (at, target) = (address.to_string(), seed.at(address));
        let mut server = match examine(&target, setup, report).await {
            Ok(server) => server,
            Err(error) => {
                report.find(
                    "nodes",
                    &at,
                    format!("the master does not answer: {error}"),
                    "clients on this machine get no locks of its slots",
                    "start it, or let it announce an address that clients can reach (cluster-announce-ip)",
                );
                continue;
            }
        };
        // A node's CLUSTER SLOTS omits replicas that have not replicated any write yet.
        if server.info("connected_slaves") == Some("0") {
            report.find(
                "replicas",
                &at,
                "the master has no replica",
                "while it is down, no lock of its slots is granted, and data that it loses is gone",
                "add a replica: redis-cli --cluster add-node … --cluster-slave",
            );
        }
        settings(&mut server, setup, report).await?;
    }
    Ok(())
}

/// The masters that the first responsive node names.
#[cfg(feature = "serve")]
pub(crate) async fn masters(seeds: &[Target]) -> Result<Vec<Target>, Failure> {
    let (mut console, seed) = reach(seeds, &mut Report::default()).await?;
    let slots = slots(&mut console, &seed.address.to_string()).await?;
    Ok(served(&slots, seed).0.into_iter().map(|address| seed.at(address)).collect())
}

async fn slots(console: &mut Console, at: &str) -> Result<Vec<ConsoleReply>, Failure> {
    match console.ask(&["CLUSTER", "SLOTS"]).await? {
        ConsoleReply::Items(slots) => Ok(slots),
        ConsoleReply::Error(error) => {
            let message = format!("the node {at} does not say which node serves which slot: {error}");
            Err(Failure::new(STORE, message))
        }
        _ => Ok(Vec::new()),
    }
}

/// Connects to each node of the URL; returns the first that answers.
async fn reach<'a>(seeds: &'a [Target], report: &mut Report) -> Result<(Console, &'a Target), Failure> {
    let (mut reached, mut failure) = (None, None);
    for seed in seeds {
        match Console::open(seed).await {
            Ok(console) => reached = reached.or(Some((console, seed))),
            Err(error) => {
                report.find(
                    "nodes",
                    &seed.address.to_string(),
                    format!("the node of the URL does not answer: {error}"),
                    "a client that starts while the others are down cannot find the cluster",
                    "start it, or take it out of the URL",
                );
                failure = Some(error);
            }
        }
    }
    let no_node = || Failure::new(STORE, "the URL names no node of a cluster");
    reached.ok_or_else(|| failure.map_or_else(no_node, Failure::from))
}

async fn settings(server: &mut Server, setup: &Setup, report: &mut Report) -> Result<(), Failure> {
    let timeout = server.setting("failover", "cluster-node-timeout", report).await?;
    if let Some(timeout) = timeout.and_then(|timeout| timeout.parse().ok()) {
        failover("cluster-node-timeout", timeout, &server.at, setup, report);
    }
    let full = server.setting("coverage", "cluster-require-full-coverage", report).await?;
    if full.as_deref() == Some("yes") {
        report.find(
            "coverage",
            &server.at,
            "cluster-require-full-coverage is yes",
            "if one shard is down, all others refuse locks",
            "CONFIG SET cluster-require-full-coverage no on each node",
        );
    }
    Ok(())
}

/// The masters, and the number of served slots.
fn served(slots: &[ConsoleReply], asked: &Target) -> (BTreeSet<Address>, i64) {
    let (mut masters, mut covered) = (BTreeSet::new(), 0);
    for range in slots {
        let ConsoleReply::Items(range) = range else { continue };
        let [ConsoleReply::Int(first), ConsoleReply::Int(last), ConsoleReply::Items(master), ..] = &range[..]
        else {
            continue;
        };
        let [host, ConsoleReply::Int(port), ..] = &master[..] else { continue };
        let Some(address) = address(text(host).unwrap_or_default(), *port, asked) else { continue };
        covered += last - first + 1;
        masters.insert(address);
    }
    (masters, covered)
}
