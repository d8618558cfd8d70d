//! The last known states of the jobs for which a process asks.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::name::LockName;
use crate::sync::Locked;

/// Maximum number of jobs with metrics of their own: the first that a process asks for.
const JOBS: usize = 100;

/// The last run of a job, as a process saw it last. Times are in microseconds since 1970 by the store's clock, 0 if
/// there is none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JobRun {
    pub(crate) outcome: &'static str,
    pub(crate) begun: u64,
    pub(crate) ended: u64,
    pub(crate) succeeded: u64,
    /// When the next window begins.
    pub(crate) due: u64,
    /// The store's clock when this was seen, and that of this process.
    pub(crate) seen: u64,
    pub(crate) seen_here: u64,
}

/// The last run of a job for which this process asks, as it was last seen: of the first 100 jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobMetrics {
    /// The job's name, without the prefix.
    pub name: String,
    /// `begun` (it runs, or its runner is dead), `done` or `failed`.
    pub outcome: &'static str,
    /// When it began.
    pub begun: SystemTime,
    /// When it ended.
    pub ended: Option<SystemTime>,
    /// When the job last succeeded.
    pub succeeded: Option<SystemTime>,
    /// How long ago the next window began; 0 if it has not.
    pub overdue: Duration,
}

#[derive(Default)]
pub(super) struct JobRuns(Locked<BTreeMap<LockName, JobRun>>);

impl JobRuns {
    pub(super) fn saw(&self, name: &LockName, run: JobRun) {
        let mut runs = self.0.lock();
        if let Some(known) = runs.get_mut(name) {
            *known = run;
        } else if runs.len() < JOBS {
            runs.insert(name.clone(), run);
        }
    }

    /// One of them, at this time of this process's clock.
    #[cfg(feature = "metrics")]
    pub(super) fn of(&self, name: &LockName, now_us: u64) -> Option<JobMetrics> {
        self.0.lock().get(name).map(|run| run.metrics(name, now_us))
    }

    /// All of them, at this time of this process's clock.
    pub(super) fn all(&self, now_us: u64) -> Vec<JobMetrics> {
        self.0.lock().iter().map(|(name, run)| run.metrics(name, now_us)).collect()
    }
}

impl JobRun {
    fn metrics(&self, name: &LockName, now_us: u64) -> JobMetrics {
        let time = |us: u64| (us > 0).then(|| UNIX_EPOCH + Duration::from_micros(us));
        let now = self.seen + now_us.saturating_sub(self.seen_here);
        JobMetrics {
            name: name.as_str().to_owned(),
            outcome: self.outcome,
            begun: UNIX_EPOCH + Duration::from_micros(self.begun),
            ended: time(self.ended),
            succeeded: time(self.succeeded),
            overdue: Duration::from_micros(now.saturating_sub(self.due)),
        }
    }
}
