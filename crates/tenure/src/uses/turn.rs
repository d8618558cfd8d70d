use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::period::moment;
use super::run::{RunRecord, RunState, cut};
use super::stop::{self, StopRequest};
use super::{RecordHandle, jobs, put};
use crate::engine::backoff;
use crate::engine::lost::Lost;
use crate::error::{Error, Result};
use crate::events::{event, text};
use crate::guard::Guard;
use crate::metrics::UseResult;
use crate::owner::Owner;
use crate::protocol::record::{RecordAnswer, Then};

/// Maximum length of the reason of a failure.
const WHY_BYTES: usize = 1_000;

/// What reopens a window in which the job has begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Frees {
    /// Nothing: the job is tried once per window.
    Nothing,
    /// The failure of the job.
    #[default]
    Failure,
    /// The failure of the job, or the death of its runner, or the loss of its lock. The job may then run
    /// twice in a window, one run after the other.
    FailureOrLoss,
}

/// A run of a job, with its window and lock, returned by [`OncePer::try_begin`](crate::OncePer::try_begin).
///
/// A run that is dropped counts as [lost](crate::Outcome::Lost).
///
/// ```
/// # tenure::block_on(async {
/// # let minute = std::time::Duration::from_secs(60);
/// let report = tenure::Locks::memory().once_per("report", minute)?;
/// let turn = report.try_begin().await?.expect("the first");
/// turn.fail("no disk").await?; // another may try again in this window
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[must_use = "the window counts as lost when it is dropped"]
pub struct Turn {
    pub(super) guard: Guard,
    pub(super) record: RecordHandle,
    pub(super) run: RunRecord,
    pub(super) keep: Duration,
    pub(super) frees: Frees,
}

impl Turn {
    /// The fencing token: see [`Guard::fence`].
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let minute = std::time::Duration::from_secs(60);
    /// # let report = tenure::Locks::memory().once_per("report", minute)?;
    /// report.run(async |turn| Ok::<_, String>(assert!(turn.fence() > 0))).await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn fence(&self) -> u64 {
        self.run.fence
    }

    /// The window, by the clock of the store.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let minute = std::time::Duration::from_secs(60);
    /// # let report = tenure::Locks::memory().once_per("report", minute)?;
    /// let turn = report.try_begin().await?.expect("the first");
    /// let window = turn.window();
    /// assert_eq!(window.end.duration_since(window.start).unwrap(), minute);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn window(&self) -> Range<SystemTime> {
        moment(self.run.from)..moment(self.run.to)
    }

    /// How long after the start of its window the run began, by the clock of the store: long if no host asked at
    /// the start, or if an earlier run in this window failed.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let minute = std::time::Duration::from_secs(60);
    /// # let report = tenure::Locks::memory().once_per("report", minute)?;
    /// let turn = report.try_begin().await?.expect("the first");
    /// assert!(turn.late_by() < minute);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn late_by(&self) -> Duration {
        Duration::from_micros(self.run.begun.saturating_sub(self.run.from))
    }

    /// What reopens the window of this run: as [set](crate::OncePer::frees), or nothing if it runs
    /// [again](crate::OncePer::again) in a window that was closed.
    pub fn frees(&self) -> Frees {
        self.frees
    }

    /// The owner: new for each run.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let minute = std::time::Duration::from_secs(60);
    /// # let report = tenure::Locks::memory().once_per("report", minute)?;
    /// let turn = report.try_begin().await?.expect("the first");
    /// println!("run by {}", turn.owner());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn owner(&self) -> &Owner {
        self.guard.owner()
    }

    /// Whether the lock is still held: see [`Guard::is_held`].
    pub fn is_current(&self) -> bool {
        self.guard.is_held()
    }

    /// The guard of the lock, held for as long as the run lasts.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Time for which [`is_current`](Self::is_current) stays true if no further renewal succeeds.
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// A future that resolves once the lock is lost: see [`Guard::lost`].
    pub fn lost(&self) -> Lost {
        self.guard.lost()
    }

    /// Waits until this run is [asked to stop](crate::OncePer::request_stop), as
    /// [`Locks::stop_requested`](crate::Locks::stop_requested) does.
    ///
    /// ```no_run
    /// # tenure::block_on(async {
    /// # let minute = std::time::Duration::from_secs(60);
    /// # let report = tenure::Locks::memory().once_per("report", minute)?;
    /// let turn = report.try_begin().await?.expect("the first");
    /// let request = turn.stop_requested().await?; // beside the work, in a `select!`
    /// turn.fail(format_args!("asked to stop: {}", request.reason)).await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Nothing is lost: the request remains in the store.
    ///
    /// # Errors
    /// `is_refused` if the user may not read the record. Retries while the store does not answer.
    pub fn stop_requested(&self) -> impl Future<Output = Result<StopRequest>> + Send + use<> {
        stop::requested(stop::record_of(&self.record, stop::OF_JOB), self.owner().clone())
    }

    /// Records the exit code of the command that did the work, beside the outcome that follows.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let minute = std::time::Duration::from_secs(60);
    /// let locks = tenure::Locks::memory();
    /// if let Some(turn) = locks.once_per("report", minute)?.try_begin().await? {
    ///     turn.exit_code(3).fail("no disk").await?;
    /// }
    /// let job = locks.job("report").await?.expect("it ran");
    /// assert_eq!(job.last.code, Some(3));
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn exit_code(mut self, code: i32) -> Self {
        self.run.code = Some(code);
        self
    }

    /// Ends the run as successful: the window stays closed. Retries for as long as the lease lasts, if the
    /// store does not answer.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let minute = std::time::Duration::from_secs(60);
    /// # let report = tenure::Locks::memory().once_per("report", minute)?;
    /// if let Some(turn) = report.try_begin().await? {
    ///     turn.succeed().await?;
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// The request may still be carried out; otherwise the run counts as [lost](crate::Outcome::Lost).
    ///
    /// # Errors
    /// `is_lost` if the lock had been lost; otherwise those of the store, if the result could not be stored.
    /// The run then counts as [lost](crate::Outcome::Lost), and with [`Frees::FailureOrLoss`] the job may run again
    /// in this window.
    pub async fn succeed(self) -> Result<()> {
        let record = self.record.clone();
        self.end(RunState::Done, "").await.inspect(|()| record.count(UseResult::Done))
    }

    /// Ends the run as failed, with this reason. The job may run again in this window, unless
    /// [`Frees::Nothing`] is set.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let minute = std::time::Duration::from_secs(60);
    /// # let report = tenure::Locks::memory().once_per("report", minute)?;
    /// if let Some(turn) = report.try_begin().await? {
    ///     turn.fail("no disk").await?;
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`succeed`](Self::succeed).
    ///
    /// # Errors
    /// As [`succeed`](Self::succeed).
    pub async fn fail(self, why: impl fmt::Display) -> Result<()> {
        let state = if self.frees == Frees::Nothing { RunState::Failed } else { RunState::Freed };
        let record = self.record.clone();
        self.end(state, why).await.inspect(|()| record.count(UseResult::Failed))
    }

    pub(super) fn end(
        self,
        state: RunState,
        why: impl fmt::Display,
    ) -> impl Future<Output = Result<()>> + Send {
        let why = cut(&why.to_string(), WHY_BYTES).to_owned();
        let Self { guard, record, run, keep, .. } = self;
        let run = RunRecord { state, why, ..run };
        async move {
            let engine = Arc::clone(record.engine());
            let mut end = put(guard.owner(), keep, run.encode());
            end.then = Then::Release;
            guard.set_ending();
            // The lease ends after the last renewal, but while only this request fails it goes on.
            let until = engine.now() + record.lock.options.lease();
            let mut attempt = 0;
            let answer = loop {
                let failure = match record.put(end.clone()).await {
                    Ok(answer) => break answer,
                    Err(failure) => failure,
                };
                let pause = engine.jittered(backoff(attempt));
                let may_pass = failure.is_unreachable() || failure.is_unknown();
                if !may_pass || engine.now() + pause >= until || !guard.is_held() {
                    event!(
                        WARN,
                        target: "tenure",
                        "outcome_not_kept",
                        "result of a job not stored",
                        lock = text(&record.lock.name),
                        store = text(engine.store.url()),
                        failure = text(&failure),
                    );
                    return Err(failure);
                }
                engine.runtime.sleep_until(engine.now() + pause).await;
                attempt += 1;
            };
            if let RecordAnswer::Stored { at_us } = answer {
                let succeeded = if run.state == RunState::Done { at_us } else { run.succeeded };
                jobs::report(&record, &RunRecord { ended: at_us, succeeded, ..run }, at_us);
            }
            // A repeated request may find that an earlier one has ended the hold.
            let is_stored = matches!(answer, RecordAnswer::Stored { .. })
                || attempt > 0 && has(&record, &end.value).await;
            if !is_stored {
                let (name, store) = (&record.lock.name, engine.store.url());
                return Err(Error::lost(name, store, "it was lost before the job ended"));
            }
            guard.ended();
            Ok(())
        }
    }
}

/// Whether the record has this value.
async fn has(record: &RecordHandle, value: &[u8]) -> bool {
    let seen = record.read().await;
    seen.is_ok_and(|seen| seen.record.is_some_and(|record| *record.value == *value))
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("guard", &self.guard).finish_non_exhaustive()
    }
}
