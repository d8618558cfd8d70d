//! The jobs and elections of the store, as metrics.

use std::time::{Duration, SystemTime};

use tenure::{ElectionStatus, Error, JobStatus, Locks};

use super::answers::{Metrics, quoted};
use crate::{clock, table, uses};

/// What one refresh found.
#[derive(Debug, Default)]
pub(super) struct Uses {
    pub(super) jobs: Vec<JobStatus>,
    pub(super) elections: Vec<ElectionStatus>,
    /// Why none can be listed.
    pub(super) trouble: Option<String>,
}

impl Uses {
    /// All jobs and elections with this prefix. A store may keep none, or the user may not read them.
    pub(super) async fn look(locks: &Locks, prefix: &str) -> tenure::Result<Self> {
        match Self::all(locks, prefix).await {
            Err(error) if error.is_unsupported() || error.is_refused() => {
                Ok(Self { trouble: Some(crate::exit::chain(&error)), ..Self::default() })
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

    /// Metrics of the first `series` jobs and elections; `age` is the time since the refresh.
    pub(super) fn metrics(&self, to: &mut Metrics, series: usize, age: Duration) {
        let each = |of: &dyn Fn(&JobStatus) -> Option<f64>| {
            let jobs = self.jobs.iter().take(series);
            let values =
                jobs.filter_map(|job| Some((format!("{{name={}}}", quoted(job.name.as_str())), of(job)?)));
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
        for job in self.jobs.iter().take(series) {
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
        let elections = || self.elections.iter().take(series);
        let led = elections().map(|one| {
            (format!("{{election={}}}", quoted(one.name.as_str())), f64::from(one.leader.is_some()))
        });
        to.add("tenure_election_has_leader", "gauge", "Whether somebody leads.", led.collect());
        let leaders = elections().filter_map(|one| {
            let (election, holder) = (quoted(one.name.as_str()), table::who(&one.leader.as_ref()?.owner));
            Some((format!("{{election={election},holder={}}}", quoted(&holder)), 1.0))
        });
        to.add("tenure_election_leader", "gauge", "1 for the leader.", leaders.collect());
        let others = self.jobs.len().saturating_sub(series) + self.elections.len().saturating_sub(series);
        let help = "Jobs and elections without metrics of their own.";
        to.add("tenure_uses_without_series", "gauge", help, vec![(String::new(), others as f64)]);
    }
}
