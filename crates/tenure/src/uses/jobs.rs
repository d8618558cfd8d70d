//! The jobs of a store: what their records tell.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::listing::RecordListing;
use super::period::moment;
use super::run::{LastRun, Outcome, PastRun, RunRecord, RunState};
use super::{RecordHandle, SeenRecord};
use crate::engine::engine_handle::EngineHandle;
use crate::error::{Error, Result};
use crate::metrics::JobRun;
use crate::name::LockName;
use crate::options::Options;
use crate::protocol::LockSpec;
use crate::protocol::record::Record;
use crate::status::{Holder, Status};

/// The kind of a job's record.
pub(super) const KIND: &str = "once";

/// The state of a [job](crate::OncePer) at the time the store answered.
///
/// ```
/// # tenure::block_on(async {
/// # let minute = std::time::Duration::from_secs(60);
/// let locks = tenure::Locks::memory();
/// locks.once_per("report", minute)?.run(async |_| Ok::<_, String>(())).await?;
/// let job = locks.job("report").await?.expect("it ran");
/// assert_eq!(job.last.outcome, tenure::Outcome::Done);
/// assert_eq!(job.next, job.last.window.end);
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobStatus {
    /// The job's name, without the prefix.
    pub name: LockName,
    /// The schedule of its last run as text, if its period [has one](crate::Period).
    pub schedule: Option<String>,
    /// The most recent run.
    pub last: LastRun,
    /// The hold of the current run, with its lease.
    pub hold: Option<Holder>,
    /// The last runs, newest first, at most ten. The first is [`last`](Self::last).
    pub runs: Vec<PastRun>,
    /// When it may run next, by the store's clock: in the window after that of the last run, or at once if a
    /// failure has reopened that window. In the past if it is due.
    pub next: SystemTime,
    /// How long ago the next window has begun in which no run has begun yet, by the store's clock. `None` if it
    /// has not.
    pub overdue: Option<Duration>,
}

impl JobStatus {
    fn new(name: LockName, run: RunRecord, hold: Option<Holder>, now_us: u64) -> Self {
        let past = run.last(hold.is_some());
        let is_open = run.state == RunState::Freed && now_us < run.to;
        let last = LastRun {
            window: moment(run.from)..moment(run.to),
            begun: past.begun,
            ended: past.ended,
            owner: run.owner,
            fence: run.fence,
            outcome: past.outcome.clone(),
            code: run.code,
            remaining: hold.as_ref().and_then(|hold| hold.remaining),
            succeeded: (run.succeeded > 0).then(|| moment(run.succeeded)),
            is_open: run.state == RunState::Freed,
        };
        Self {
            name,
            schedule: Some(run.schedule).filter(|schedule| !schedule.is_empty()),
            next: moment(if is_open { run.ended } else { run.to }),
            overdue: now_us.checked_sub(run.to).map(Duration::from_micros),
            hold,
            runs: std::iter::once(past).chain(run.earlier).collect(),
            last,
        }
    }

    /// Whether it runs now.
    pub fn is_running(&self) -> bool {
        self.last.outcome == Outcome::Running
    }
}

/// What a record tells of its job; `None` if it is not readable. Only the lock of a run that has not ended is
/// looked at.
pub(super) async fn status(
    handle: &RecordHandle,
    mut record: Record,
    mut now_us: u64,
) -> Result<Option<JobStatus>> {
    let name = &handle.lock.name;
    loop {
        let Some(run) = RunRecord::of(&record) else { return Ok(None) };
        if run.state != RunState::Begun {
            return Ok(Some(JobStatus::new(name.clone(), run, None, now_us)));
        }
        let found = handle.found().await?.map(|found| Status::new(name.clone(), found));
        let hold = found.and_then(|status| status.holders.into_iter().next());
        if hold.is_none() {
            // The run may have ended between the two answers.
            let seen = handle.read().await?;
            if let Some(later) = seen.record.filter(|later| *later != record) {
                (record, now_us) = (later, seen.now_us);
                continue;
            }
        }
        return Ok(Some(JobStatus::new(name.clone(), run, hold, now_us)));
    }
}

/// The job of this name, if it has run.
pub(crate) async fn job(
    shared: &Arc<EngineHandle>,
    options: &Arc<Options>,
    name: LockName,
) -> Result<Option<JobStatus>> {
    let handle = RecordHandle::new(shared, options, KIND, name, LockSpec::Mutex)?;
    let SeenRecord { record: Some(record), now_us } = handle.read().await? else { return Ok(None) };
    let job = status(&handle, record, now_us).await?;
    job.map(Some).ok_or_else(|| {
        let what = "cannot read its record, perhaps because another version wrote it";
        Error::refused(&handle.lock.name, handle.engine().store.url(), what)
    })
}

/// Reports a record that was read or written at this time of the store's clock as a metric.
pub(super) fn report(record: &RecordHandle, run: &RunRecord, now_us: u64) {
    let outcome = match run.state {
        RunState::Begun => "begun",
        RunState::Done => "done",
        RunState::Failed | RunState::Freed => "failed",
    };
    let RunRecord { begun, ended, succeeded, to: due, .. } = *run;
    let (engine, seen) = (record.engine(), now_us);
    let run = JobRun { outcome, begun, ended, succeeded, due, seen, seen_here: engine.runtime.unix_micros() };
    engine.metrics.saw_job(&record.lock.name, run);
}

/// Iterates over the jobs of a store: see [`Locks::jobs`](crate::Locks::jobs).
#[derive(Debug)]
pub struct Jobs(RecordListing<JobStatus>);

impl UnwindSafe for Jobs {}
impl RefUnwindSafe for Jobs {}

impl Jobs {
    pub(crate) fn new(shared: &Arc<EngineHandle>, options: &Arc<Options>, prefix: &str) -> Result<Self> {
        RecordListing::new(shared, options, KIND, LockSpec::Mutex, prefix).map(Self)
    }

    /// Returns the next job, or `None` after the last one.
    ///
    /// # Cancel safety
    /// Jobs may be missed: begin again.
    ///
    /// # Errors
    /// As [`Listing::next`](crate::Listing::next); also `is_unsupported` if the store has no records, or cannot
    /// list them.
    pub async fn next(&mut self) -> Result<Option<JobStatus>> {
        let look = async |handle: RecordHandle, record, now_us| status(&handle, record, now_us).await;
        self.0.next(look).await
    }
}
