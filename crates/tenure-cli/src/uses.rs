//! Elections and jobs: those of a name, and all that run.

use std::fmt;
use std::time::Duration;

use futures_util::future::join;
use tenure::{JobStatus, Leader, Locks, Outcome};

use crate::output::{Line, Span};
use crate::table::{Found, Row};
use crate::{clock, exit, table};

/// Requests about a running job do not depend on the period.
pub(crate) const ANY_PERIOD: Duration = Duration::from_secs(86_400);

/// The running election and the job of this name, which are not locks.
pub(crate) struct Uses {
    pub(crate) leader: Option<Leader>,
    pub(crate) job: Option<JobStatus>,
    /// Why one of them is unknown, although the store supports them.
    pub(crate) trouble: Option<String>,
}

impl Uses {
    pub(crate) async fn of(locks: &Locks, name: &str) -> Self {
        let leader = async { locks.election(name, "")?.leader().await };
        let (leader, job) = join(leader, locks.job(name)).await;
        let errors = [leader.as_ref().err(), job.as_ref().err()];
        let trouble = errors
            .into_iter()
            .flatten()
            .find(|error| !error.is_unsupported() && !error.is_invalid())
            .map(|error| exit::chain(error));
        Self { leader: leader.unwrap_or_default(), job: job.unwrap_or_default(), trouble }
    }

    /// For a request about a lock that is free: what else runs under its name, and the flag for it.
    pub(crate) fn hint(&self, name: &str) -> Option<String> {
        let (running, name) = (self.job.as_ref().filter(|job| job.is_running()), Line(name));
        match (&self.leader, running) {
            (Some(leader), _) => {
                let who = table::who(&leader.owner);
                let who = Line(&who);
                Some(format!("an election of this name is led by {who}: `tenure stop --election {name}`"))
            }
            (None, Some(job)) => {
                let who = table::who(&job.last.owner);
                let who = Line(&who);
                Some(format!("a job of this name is run by {who}: `tenure stop --job {name}`"))
            }
            (None, None) => None,
        }
    }
}

/// The running jobs and led elections whose names begin with this prefix.
pub(crate) async fn held(locks: &Locks, prefix: &str) -> tenure::Result<Vec<Found>> {
    let (mut jobs, mut elections, mut found) = (locks.jobs(prefix)?, locks.elections(prefix)?, Vec::new());
    while let Some(job) = jobs.next().await? {
        found.extend(Found::job(job));
    }
    while let Some(election) = elections.next().await? {
        found.extend(Found::election(election));
    }
    Ok(found)
}

/// The kind of a row that is no lock.
pub(crate) fn of_row(row: &Row) -> Option<&'static str> {
    ["job", "election"].into_iter().find(|kind| row.kind == *kind)
}

/// The outcome of a run for programs, and why it failed.
pub(crate) fn outcome(of: &Outcome) -> (&'static str, Option<&str>) {
    match of {
        Outcome::Running => ("running", None),
        Outcome::Done => ("done", None),
        Outcome::Failed(why) => ("failed", Some(why)),
        _ => ("lost", None),
    }
}

impl fmt::Display for Uses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(leader) = &self.leader {
            let who = table::who(&leader.owner);
            writeln!(
                f,
                "election of this name: led by {}; see `tenure leader`, `tenure stop --election`",
                Line(&who)
            )?;
        }
        if let Some(JobStatus { last: run, .. }) = &self.job {
            let begun = clock::since_1970(run.begun);
            let (who, ago) = (table::who(&run.owner), Span(clock::unix().saturating_sub(begun)));
            let how = match &run.outcome {
                Outcome::Running => {
                    let left = run.remaining.map_or(String::new(), |left| format!(", {} left", Span(left)));
                    format!("running{left}; see `tenure stop --job`")
                }
                Outcome::Done => "done".to_owned(),
                Outcome::Failed(why) if run.is_open => format!("failed: {}", Line(why)),
                Outcome::Failed(why) => format!("failed: {}; its window stays closed", Line(why)),
                _ => "died or lost its lock".to_owned(),
            };
            write!(f, "job of this name: run by {}, begun {ago} ago: {how}", Line(&who))?;
            match run.succeeded.filter(|_| run.outcome != Outcome::Done) {
                Some(at) => {
                    let ago = clock::unix().saturating_sub(clock::since_1970(at));
                    writeln!(f, "; last done {} ago", Span(ago))?;
                }
                None => writeln!(f)?,
            }
        }
        match &self.trouble {
            Some(trouble) => writeln!(f, "election and job of this name: unknown: {}", Line(trouble)),
            None => Ok(()),
        }
    }
}
