//! Checks of sentinels: whether they agree, how many decide, and how long a failover takes.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure::diagnosis::{Console, ConsoleReply, Sentinels, Target};

use super::report::Report;
use super::server::text;
use super::{Setup, address, examine};
use crate::exit::{Failure, STORE};

/// Duration of an election, until clients find the promoted server.
const ELECTION: Duration = Duration::from_secs(3);

/// Examines each sentinel of the URL, then the master that they name.
pub(super) async fn check(sentinels: &Sentinels, setup: &Setup, report: &mut Report) -> Result<(), Failure> {
    let mut masters = Vec::new();
    let mut silent = Vec::new();
    for target in &sentinels.at {
        match ask(target, sentinels, setup, report).await {
            Ok(Some(master)) if masters.contains(&master) => {}
            Ok(Some(master)) => masters.push(master),
            Ok(None) => {}
            Err(error) => silent.push((target, error)),
        }
    }
    let Some(master) = masters.first() else {
        let message = match silent.into_iter().next() {
            Some((_, error)) => return Err(error.into()),
            None => format!("no sentinel names a master of the service {:?}", sentinels.service),
        };
        return Err(Failure::new(STORE, message));
    };
    for (target, error) in silent {
        report.find(
            "sentinels",
            &target.address.to_string(),
            format!("the sentinel does not answer: {error}"),
            "one sentinel fewer can agree on a failover and direct clients to the master",
            "start it, or take it out of the URL",
        );
    }
    if masters.len() > 1 {
        let named: BTreeSet<_> = masters.iter().map(|master| master.address.to_string()).collect();
        report.find(
            "sentinels",
            &named.iter().cloned().collect::<Vec<_>>().join(","),
            "the sentinels name different masters",
            "two clients may get the same lock from different servers",
            "wait until the failover ends; if they still differ, run SENTINEL RESET on the wrong one",
        );
    }
    examine(master, setup, report).await?;
    Ok(())
}

/// The master named by the first responsive sentinel.
pub(crate) async fn master(sentinels: &Sentinels) -> Result<Target, Failure> {
    let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &sentinels.service];
    let mut failure = None;
    for target in &sentinels.at {
        let told = match Console::open(target).await {
            Ok(mut console) => console.ask(&words).await,
            Err(error) => Err(error),
        };
        match told {
            Ok(told) => {
                if let Some(master) = named(&told, target, sentinels) {
                    return Ok(master);
                }
            }
            Err(error) => failure = Some(error.into()),
        }
    }
    let message = format!("no sentinel names a master of the service {:?}", sentinels.service);
    Err(failure.unwrap_or(Failure::new(STORE, message)))
}

fn named(reply: &ConsoleReply, asked: &Target, sentinels: &Sentinels) -> Option<Target> {
    let ConsoleReply::Items(parts) = reply else { return None };
    let [ConsoleReply::Text(host), ConsoleReply::Text(port)] = &parts[..] else { return None };
    address(host, port.parse().unwrap_or(0), asked).map(|address| sentinels.server(address))
}

/// Examines one sentinel; returns the master that it names.
async fn ask(
    target: &Target,
    sentinels: &Sentinels,
    setup: &Setup,
    report: &mut Report,
) -> Result<Option<Target>, tenure::Error> {
    let (at, service) = (target.address.to_string(), sentinels.service.as_str());
    let mut console = Console::open(target).await?;
    let named = match console.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", service]).await? {
        told @ ConsoleReply::Items(_) => named(&told, target, sentinels),
        ConsoleReply::Error(error) => {
            report.find(
                "rights",
                &at,
                format!("the sentinel does not report the master: {error}"),
                "without it clients cannot find the master",
                "give the sentinel's user +sentinel|get-master-addr-by-name",
            );
            None
        }
        _ => {
            report.find(
                "sentinels",
                &at,
                format!("the sentinel knows no service {service:?}"),
                "it cannot direct clients to the master",
                "correct the service in the URL, or SENTINEL MONITOR it",
            );
            None
        }
    };
    match console.ask(&["SENTINEL", "MASTER", service]).await? {
        ConsoleReply::Items(fields) => settings(&fields, sentinels.at.len(), &at, setup, report),
        ConsoleReply::Error(error) if named.is_some() => report.cannot_check(
            "sentinels",
            &at,
            format!("SENTINEL MASTER was refused ({error}): give the sentinel's user +sentinel|master"),
        ),
        _ => {}
    }
    Ok(named)
}

fn settings(fields: &[ConsoleReply], in_url: usize, at: &str, setup: &Setup, report: &mut Report) {
    let number = |name: &str| {
        let pair = fields.chunks_exact(2).find(|pair| text(&pair[0]) == Some(name))?;
        text(&pair[1])?.parse::<u64>().ok()
    };
    let sentinels = number("num-other-sentinels").unwrap_or(0) + 1;
    if sentinels < 3 {
        report.find(
            "sentinels",
            at,
            format!("it knows of {sentinels} sentinels, itself included"),
            "with fewer than three, one failure leaves no majority for a failover",
            "run three sentinels on three machines",
        );
    }
    if (in_url as u64) < sentinels {
        report.note("sentinels", at, format!("the URL has {in_url} of {sentinels} sentinels: name them all"));
    }
    if let Some(quorum) = number("quorum") {
        if quorum > sentinels {
            report.find(
                "sentinels",
                at,
                format!("its quorum is {quorum}, and there are {sentinels} sentinels"),
                "no failover can start",
                format!("SENTINEL SET SERVICE quorum {} on each sentinel", sentinels / 2 + 1),
            );
        } else if quorum < 2 {
            report.find(
                "sentinels",
                at,
                "its quorum is 1",
                "one sentinel that is cut off starts a failover from a master that still grants locks",
                "SENTINEL SET SERVICE quorum 2 on each sentinel",
            );
        }
    }
    if let Some(down_after) = number("down-after-milliseconds") {
        failover("down-after-milliseconds", down_after, at, setup, report);
    }
}

/// Compares the setting after which a failover begins, in milliseconds, with the lease.
pub(super) fn failover(setting: &str, ms: u64, at: &str, setup: &Setup, report: &mut Report) {
    if Duration::from_millis(ms) + ELECTION > setup.least_left() {
        report.find(
            "failover",
            at,
            format!("{setting} is {ms} ms, and the lease is {} ms", setup.ttl.as_millis()),
            "a failover takes about 3 s longer, when two thirds of a lease may be left, so holders lose their locks",
            format!("lower {setting}, or use longer leases (--ttl)"),
        );
    }
}
