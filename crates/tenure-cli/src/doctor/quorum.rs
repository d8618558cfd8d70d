//! Checks of a quorum: number of members, which of them answer, and each as a server.

use std::collections::BTreeMap;

use tenure::diagnosis::Target;

use super::report::Report;
use super::{Setup, examine};
use crate::exit::Failure;
use crate::output::plural;

/// Examines each member; an error if none answers.
pub(super) async fn check(members: &[Target], setup: &Setup, report: &mut Report) -> Result<(), Failure> {
    let all: Vec<_> = members.iter().map(|member| member.address.to_string()).collect();
    let count = members.len();
    of_a_majority("the quorum", count, &all.join(","), report);
    let mut any_answers = false;
    let mut failure = None;
    let mut runs: BTreeMap<String, String> = BTreeMap::new();
    for member in members {
        let at = member.address.to_string();
        match examine(member, setup, report).await {
            Ok(server) => {
                if let Some(run) = server.info("run_id")
                    && let Some(other) = runs.insert(run.to_owned(), at.clone())
                {
                    report.find(
                        "members",
                        &at,
                        format!("it is the same server as {other}"),
                        "one failure would cost two votes",
                        "name each server once",
                    );
                }
                any_answers = true;
            }
            Err(error) => {
                report.find(
                    "members",
                    &at,
                    format!("the member does not answer: {error}"),
                    "the quorum survives fewer further failures",
                    "start it, or correct its address or login",
                );
                failure = Some(error);
            }
        }
    }
    match failure {
        Some(error) if !any_answers => Err(error.into()),
        _ => Ok(()),
    }
}

/// Finds a number of members whose majority tolerates too little. Returns what the loss of one costs.
pub(super) fn of_a_majority(what: &str, count: usize, at: &str, report: &mut Report) -> String {
    if count < 3 || count.is_multiple_of(2) {
        let why = match count {
            0..=2 => "while one is down, no lock is granted or renewed",
            _ => "it survives no more failures than with one member fewer",
        };
        let what = format!("{what} has {}", plural(count as u64, "member"));
        report.find("members", at, what, why, "use three or five servers on separate machines");
    }
    match count.saturating_sub(1) / 2 {
        0 => "while one is down, no lock is granted or renewed".to_owned(),
        most => format!(
            "locks are granted and renewed while at most {most} of them {} down",
            if most == 1 { "is" } else { "are" }
        ),
    }
}
