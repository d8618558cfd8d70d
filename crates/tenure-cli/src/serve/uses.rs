//! The jobs and elections of the store, as metrics and JSON.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tenure::{ElectionStatus, Error, JobStatus, Locks, PastRun};

use super::answers::Pages;
use super::series::{Metrics, ms, quoted};
use crate::table::{self, Found, Row};
use crate::{clock, uses};

/// What one refresh found.
#[derive(Debug, Default)]
pub(super) struct Uses {
    pub(super) jobs: Vec<JobStatus>,
    pub(super) elections: Vec<ElectionStatus>,
    /// Why none can be listed.
    pub(super) trouble: Option<String>,
    /// Whether the store keeps them, and refuses to list them.
    pub(super) are_unknown: bool,
}

impl Uses {
    /// All jobs and elections with this prefix. A store may keep none, or the user may not read them.
    pub(super) async fn look(locks: &Locks, prefix: &str) -> tenure::Result<Self> {
        match Self::all(locks, prefix).await {
            Err(error) if error.is_unsupported() || error.is_refused() => {
                let (trouble, are_unknown) = (Some(crate::exit::chain(&error)), error.is_refused());
                Ok(Self { trouble, are_unknown, ..Self::default() })
            }
            found => found,
        }
    }

    async fn all(locks: &Locks, prefix: &str) -> Result<Self, Error> {
        let (mut jobs, mut elections, mut found) =
            (locks.jobs(prefix)?, locks.elections(prefix)?, Self::default());
        while let Some(job) = jobs.next().await? {
            found.jobs.push(job);
        }
        while let Some(election) = elections.next().await? {
            found.elections.push(election);
        }
        found.jobs.sort_by(|a, b| a.name.cmp(&b.name));
        found.elections.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Metrics of the first `series` jobs and elections, and of those asked for; `age` is the time since the refresh.
    pub(super) fn metrics(&self, to: &mut Metrics, page: &Pages, age: Duration) {
        let series = page.series;
        if self.trouble.is_none() || self.are_unknown {
            let is_up = vec![(String::new(), f64::from(!self.are_unknown))];
            to.add("tenure_uses_up", "gauge", "Whether jobs and elections could be listed.", is_up);
        }
        let is_listed = |name: &str| self.jobs.iter().any(|job| job.name.as_str() == name);
        let asked = page.jobs.iter().filter(|_| self.trouble.is_none());
        let recorded = asked.map(|name| (format!("{{name={}}}", quoted(name)), f64::from(is_listed(name))));
        let help = "Whether a run of a job of --job is recorded.";
        to.add("tenure_job_recorded", "gauge", help, recorded.collect());
        let jobs = shown(&self.jobs, |job| job.name.as_str(), series, &page.jobs);
        let each = |of: &dyn Fn(&JobStatus) -> Option<f64>| {
            let values = jobs
                .iter()
                .filter_map(|job| Some((format!("{{name={}}}", quoted(job.name.as_str())), of(job)?)));
            values.collect::<Vec<_>>()
        };
        let time = |time: SystemTime| clock::since_1970(time).as_secs_f64();
        let succeeded = each(&|job| job.last.succeeded.map(time));
        let help = "When a job last succeeded.";
        to.add("tenure_job_last_success_timestamp_seconds", "gauge", help, succeeded);
        let begun = each(&|job| Some(time(job.last.begun)));
        to.add("tenure_job_last_run_timestamp_seconds", "gauge", "When the last run of a job began.", begun);
        let took = each(&|job| Some(job.last.ended?.duration_since(job.last.begun).ok()?.as_secs_f64()));
        to.add("tenure_job_last_duration_seconds", "gauge", "How long the last run of a job took.", took);
        let mut outcomes = Vec::new();
        for job in &jobs {
            let (name, of) = (quoted(job.name.as_str()), uses::outcome(&job.last.outcome).0);
            for outcome in ["running", "done", "failed", "lost"] {
                let labels = format!("{{name={name},outcome=\"{outcome}\"}}");
                outcomes.push((labels, f64::from(outcome == of)));
            }
        }
        let help = "1 for the outcome of the last run of a job.";
        to.add("tenure_job_last_outcome", "gauge", help, outcomes);
        let running = each(&|job| Some(f64::from(job.is_running())));
        to.add("tenure_job_running", "gauge", "Whether a job runs.", running);
        let overdue = each(&|job| Some(job.overdue.map_or(0.0, |overdue| (overdue + age).as_secs_f64())));
        let help = "How long ago the window of a job began in which it has not run.";
        to.add("tenure_job_overdue_seconds", "gauge", help, overdue);
        let elections = shown(&self.elections, |one| one.name.as_str(), series, &page.elections);
        let is_listed = |name: &str| self.elections.iter().any(|one| one.name.as_str() == name);
        let asked = page.elections.iter().filter(|name| self.trouble.is_none() && !is_listed(name));
        let led = elections.iter().map(|one| (one.name.as_str(), one.leader.is_some()));
        let led = led.chain(asked.map(|name| (name.as_str(), false)));
        let led = led.map(|(name, is_led)| (format!("{{election={}}}", quoted(name)), f64::from(is_led)));
        to.add("tenure_election_has_leader", "gauge", "Whether somebody leads.", led.collect());
        let leaders = elections.iter().filter_map(|one| {
            let (election, holder) = (quoted(one.name.as_str()), table::who(&one.leader.as_ref()?.owner));
            Some((format!("{{election={election},holder={}}}", quoted(&holder)), 1.0))
        });
        to.add("tenure_election_leader", "gauge", "1 for the leader.", leaders.collect());
        let others = self.jobs.len() - jobs.len() + self.elections.len() - elections.len();
        let help = "Jobs and elections without metrics of their own.";
        to.add("tenure_uses_without_series", "gauge", help, vec![(String::new(), others as f64)]);
    }

    /// The elections that somebody leads, as locks of their leaders.
    pub(super) fn leaders(&self) -> Vec<Row> {
        self.elections.iter().cloned().filter_map(Found::election).map(|found| found.row).collect()
    }

    /// The names of the elections: those found, and those asked for.
    pub(super) fn election_names<'a>(&'a self, asked: &'a [String]) -> BTreeSet<&'a str> {
        self.elections.iter().map(|one| one.name.as_str()).chain(asked.iter().map(String::as_str)).collect()
    }

    /// The names of the jobs: those found, and those asked for.
    pub(super) fn job_names<'a>(&'a self, asked: &'a [String]) -> BTreeSet<&'a str> {
        self.jobs.iter().map(|job| job.name.as_str()).chain(asked.iter().map(String::as_str)).collect()
    }

    /// A job with its last runs.
    pub(super) fn job(&self, name: &str) -> Value {
        let since_1970 = |time| ms(clock::since_1970(time));
        let run = |run: &PastRun| {
            let (outcome, why) = uses::outcome(&run.outcome);
            json!({
                "begun_ms": since_1970(run.begun),
                "ended_ms": run.ended.map(since_1970),
                "host": run.host,
                "outcome": outcome,
                "code": run.code,
                "why": why.unwrap_or_default(),
            })
        };
        let job = self.jobs.iter().find(|job| job.name.as_str() == name);
        json!({
            "name": name,
            "schedule": job.and_then(|job| job.schedule.as_ref()),
            "overdue_ms": job.and_then(|job| job.overdue).map(ms),
            "runs": job.map_or_else(Vec::new, |job| job.runs.iter().map(run).collect()),
            "last": job.map(|JobStatus { last, .. }| {
                let (outcome, why) = uses::outcome(&last.outcome);
                json!({
                    "who": table::who(&last.owner),
                    "begun_ms": since_1970(last.begun),
                    "outcome": outcome,
                    "why": why.unwrap_or_default(),
                    "succeeded_ms": last.succeeded.map(since_1970),
                    "is_open": last.is_open,
                    "next_ms": since_1970(last.window.end),
                })
            }),
        })
    }
}

/// The first `series` of these, and those asked for.
fn shown<'a, T>(all: &'a [T], name: fn(&T) -> &str, series: usize, asked: &[String]) -> Vec<&'a T> {
    let is_shown = |at: usize, one: &T| at < series || asked.iter().any(|asked| asked == name(one));
    all.iter().enumerate().filter(|(at, one)| is_shown(*at, one)).map(|(_, one)| one).collect()
}
