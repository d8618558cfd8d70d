//! Waits for the windows of a job, and runs it in each.

use std::fmt;
use std::future::{Future, pending};
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, FutureExt, select};

use super::once::{Judged, LOOK, NotBegun, OncePer};
use super::period::Window;
use super::run::{RunRecord, RunState};
use super::turn::Turn;
use super::{SeenRecord, is_permanent, patient_backoff};
use crate::engine::backoff;
use crate::error::Result;
use crate::events::{event, millis, text};
use crate::guard::unless_lost;
use crate::store::SETUP;

/// Maximum time between two looks at the store, whose clock may be set.
const RELOOK: Duration = Duration::from_secs(600);
/// Minimum and maximum delay before a failed job runs again in its window, at most a tenth of the window.
const RETRY: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(300)];

/// What a look at the record found.
enum Look {
    /// The job may begin. If another caller has the lock, look again after this time.
    Open(Duration),
    Wait(Duration),
}

impl OncePer {
    /// Waits until the job may begin, and begins it. Returns `None` once `end` has completed, for example when
    /// the process is to stop.
    ///
    /// Any number of processes can wait; one of them begins each window, when it opens by the store's clock. A
    /// run that failed is repeated on any of them, 10 s after its window opened, then after twice the time and
    /// so on, at most 5 minutes or a tenth of the window after the failure. An unreachable or refusing store is
    /// asked again, at most a minute later. [`again`](Self::again) has no effect.
    ///
    /// # Cancel safety
    /// As [`try_begin`](Self::try_begin). When `end` completes instead, no run is lost.
    ///
    /// # Errors
    /// `is_invalid` if the period is invalid, `is_unsupported` if the server forbids scripts, and `is_mismatch`.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// # let minute = std::time::Duration::from_secs(60);
    /// let report = tenure::Locks::memory().once_per("report", minute)?;
    /// let turn = report.begin_until(std::future::pending()).await?.expect("never told to end");
    /// turn.succeed().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn begin_until(&self, end: impl Future<Output = ()>) -> Result<Option<Turn>> {
        let once = self.clone().again(false);
        let engine = once.record.engine();
        let (mut end, mut failures, mut passed) = (pin!(end), 0, 0);
        loop {
            // Only a look may be dropped: a run that has begun would be lost.
            let looked = match select(end.as_mut(), pin!(once.look())).await {
                Either::Left(_) => return Ok(None),
                Either::Right((looked, _)) => looked,
            };
            let tried = match looked {
                Ok(Look::Wait(pause)) => Ok(Err(pause)),
                Ok(Look::Open(if_busy)) => once.take().await.map(|taken| {
                    taken.map_err(|why| match why {
                        NotBegun::Busy => engine.jittered(if_busy),
                        NotBegun::Passed => engine.jittered(backoff(passed)),
                    })
                }),
                Err(error) => Err(error),
            };
            let pause = match tried {
                Ok(Ok(turn)) if end.as_mut().now_or_never().is_none() => return Ok(Some(turn)),
                Ok(Ok(turn)) => {
                    let _ = turn.end(RunState::Freed, "the run was stopped before it began").await;
                    return Ok(None);
                }
                Ok(Err(pause)) => {
                    (failures, passed) = (0, passed + 1);
                    pause
                }
                Err(error) if is_permanent(&error) => return Err(error),
                Err(error) => {
                    let pause = engine.jittered(patient_backoff(failures));
                    failures += 1;
                    engine.metrics.job_goes_on(&once.record.lock.name, engine.runtime.unix_micros());
                    event!(
                        WARN,
                        target: SETUP,
                        "job_not_begun",
                        "cannot begin a job: retrying",
                        lock = text(&once.record.lock.name),
                        store = text(engine.store.url()),
                        failure = text(&error),
                        retry_ms = millis(pause),
                    );
                    pause
                }
            };
            let timer = engine.runtime.sleep_until(engine.now() + pause.min(RELOOK));
            if let Either::Left(_) = select(end.as_mut(), timer).await {
                return Ok(None);
            }
        }
    }

    /// Runs the job in each window, for ever: [`run_each_until`](Self::run_each_until) without an end.
    ///
    /// ```no_run
    /// # tenure::block_on(async {
    /// use std::time::Duration;
    ///
    /// let locks = tenure::Locks::connect("redis://127.0.0.1").await?;
    /// let nightly = locks.once_per("nightly", tenure::Period::daily(Duration::from_secs(2 * 3_600)))?;
    /// nightly.run_each(async |turn| report(turn.window().start, turn.fence()).await).await?;
    /// # async fn report(date: std::time::SystemTime, token: u64) -> std::io::Result<()> { Ok(()) }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// If the future is dropped while the job runs, the run counts as [lost](crate::Outcome::Lost).
    ///
    /// # Errors
    /// As [`run_each_until`](Self::run_each_until).
    pub async fn run_each<T, E: fmt::Display>(
        &self,
        job: impl AsyncFnOnce(&Turn) -> Result<T, E> + Clone,
    ) -> Result<()> {
        self.run_each_until(pending(), job).await
    }

    /// Runs the job in each window until `end` completes: the scheduler, in as many processes as you like. A
    /// run in progress is finished first.
    ///
    /// Waits, failures and outages are those of [`begin_until`](Self::begin_until), and a lost run is that of
    /// [`run`](Self::run); events report them. Each run gets a clone of the job, so that the future is `Send` if
    /// the job's is.
    ///
    /// # Cancel safety
    /// As [`run_each`](Self::run_each).
    ///
    /// # Errors
    /// As [`begin_until`](Self::begin_until); also `is_refused` if the store refuses the first request.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// use std::future::Future;
    ///
    /// async fn schedule(locks: tenure::Locks, shutdown: impl Future<Output = ()>) -> tenure::Result<()> {
    ///     let digest = locks.once_per("digest", std::time::Duration::from_secs(3_600))?;
    ///     digest.run_each_until(shutdown, async |turn| send(turn.fence()).await).await
    /// }
    /// # async fn send(token: u64) -> std::io::Result<()> { Ok(()) }
    /// # schedule(tenure::Locks::memory(), async {}).await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn run_each_until<T, E: fmt::Display>(
        &self,
        end: impl Future<Output = ()>,
        job: impl AsyncFnOnce(&Turn) -> Result<T, E> + Clone,
    ) -> Result<()> {
        let mut end = pin!(end);
        // A store that refuses from the start needs its user.
        if let Err(error) = self.last().await
            && !error.is_unreachable()
            && !error.is_unknown()
        {
            return Err(error);
        }
        while let Some(turn) = self.begin_until(end.as_mut()).await? {
            let (engine, name, fence) = (self.record.engine(), &self.record.lock.name, turn.fence());
            let begun = engine.now();
            event!(
                DEBUG,
                target: "tenure",
                "job_begun",
                "job begun",
                lock = text(name),
                store = text(engine.store.url()),
                fence = fence,
                late_ms = millis(turn.late_by()),
            );
            let Ok(outcome) = unless_lost(turn.lost(), job.clone()(&turn)).await else { continue };
            let failure = outcome.as_ref().err().map(ToString::to_string);
            let took_ms = millis(engine.now().since(begun));
            // If the result cannot be stored, an event reports it.
            let _ = match failure {
                None => {
                    event!(
                        DEBUG,
                        target: "tenure",
                        "job_done",
                        "job done",
                        lock = text(name),
                        store = text(engine.store.url()),
                        fence = fence,
                        took_ms = took_ms,
                    );
                    turn.succeed().await
                }
                Some(failure) => {
                    event!(
                        WARN,
                        target: "tenure",
                        "job_failed",
                        "job failed",
                        lock = text(name),
                        store = text(engine.store.url()),
                        fence = fence,
                        took_ms = took_ms,
                        failure = text(&failure),
                    );
                    turn.fail(failure).await
                }
            };
        }
        Ok(())
    }

    /// Reads the record, and judges whether the job may begin.
    async fn look(&self) -> Result<Look> {
        let seen = self.seen(None).await?;
        let window = match self.judge(&seen)? {
            Judged::Open(window) => window,
            Judged::LooksOpen | Judged::ByHand(_) => self.window(seen.now_us)?,
            Judged::Closed(pause) | Judged::Soon(pause) => return Ok(Look::Wait(pause)),
        };
        Ok(match retry_in(&seen, &window) {
            Some(pause) => Look::Wait(pause),
            None => {
                let open = Duration::from_micros(seen.now_us.saturating_sub(window.from));
                Look::Open((open / 10).clamp(Duration::from_secs(1), LOOK))
            }
        })
    }
}

/// Time until a failed run is repeated in its window. It doubles from one failure to the next, because it depends
/// on how long the window has been open, and is the same for all processes.
fn retry_in(SeenRecord { record, now_us }: &SeenRecord, window: &Window) -> Option<Duration> {
    let record = record.as_ref()?;
    let run = RunRecord::of(record).filter(|run| run.state == RunState::Freed && run.to > *now_us)?;
    let tenth = Duration::from_micros((window.to - window.from) / 10);
    let open = Duration::from_micros(record.at_us.saturating_sub(run.from));
    let pause = open.clamp(RETRY[0].min(tenth), RETRY[1].min(tenth));
    let passed = Duration::from_micros(now_us.saturating_sub(record.at_us));
    pause.checked_sub(passed).filter(|left| !left.is_zero())
}
