use std::fmt;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use super::period::{Period, Window, moment};
use super::run::{LastRun, Outcome, RunRecord, RunState};
use super::turn::{Frees, Turn};
use super::{RecordHandle, SeenRecord, jobs, put, stop};
use crate::engine::acquire::Wait;
use crate::engine::engine_handle::EngineHandle;
use crate::error::{Error, Result};
use crate::guard::{Guard, unless_lost};
use crate::metrics::UseResult;
use crate::name::LockName;
use crate::options::Options;
use crate::owner::{Owner, check_text};
use crate::planted::{Bug, planted};
use crate::protocol::LockSpec;
use crate::protocol::lease;
use crate::protocol::record::{Record, RecordAnswer};

/// A job that runs at most once in each window of a [`Period`], on whichever host asks first.
///
/// Use it for scheduled work on a fleet: all hosts ask, for example every minute or from cron at the same
/// time, and one of them runs the job. The store records that it ran, so a host whose clock is wrong does not
/// run it again.
///
/// An `OncePer` is stateless and cheap to clone.
///
/// # Guarantees
/// - *At most once per window*, by the store's clock, as long as the store keeps what it has acknowledged and
///   its clock does not jump. The hosts' clocks do not matter.
/// - *On etcd and ZooKeeper*, at most once per window by the clock of the host that asks, and only in a window
///   later than the last one. This holds whatever the clocks do: where they differ, a run is early or late by
///   the difference.
/// - *No overlap*: a job that takes longer than its window keeps its lock, and the next window begins late or
///   is missed.
/// - *Failure reopens the window*, unless [`frees`](Self::frees) is set otherwise: the next host to ask runs
///   the job again.
/// - *A runner that dies* leaves the window closed, because nobody knows how far it got. [`last`](Self::last)
///   reports it as [`Outcome::Lost`]. With [`Frees::FailureOrLoss`] the window is reopened instead.
///
/// [`run_each`](Self::run_each) is the scheduler: it runs the job in each window. With [`run`](Self::run), a window
/// in which no host asks is missed.
///
/// # Examples
/// ```
/// # tenure::block_on(async {
/// use std::time::Duration;
///
/// let locks = tenure::Locks::memory();
/// let digest = locks.once_per("digest", Duration::from_secs(86_400))?;
/// let sent = digest.run(async |turn| send(turn.fence()).await).await?;
/// assert!(sent.is_some());
/// let again = digest.run(async |turn| send(turn.fence()).await).await?;
/// assert!(again.is_none()); // it ran already
/// # async fn send(token: u64) -> std::io::Result<()> { Ok(()) }
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "a job does nothing until it is run"]
pub struct OncePer {
    pub(super) record: RecordHandle,
    period: Period,
    frees: Frees,
    again: bool,
}

/// Maximum restarts of a call because its window passed meanwhile.
const ATTEMPTS: u32 = 4;
/// A call that comes before its window by at most a tenth of the period, and at most this, waits for the
/// window, because the caller's clock may be ahead of the store's.
const EARLY: Duration = Duration::from_secs(5);
/// How often a run in progress is looked at, which may fail and reopen its window.
pub(super) const LOOK: Duration = Duration::from_secs(60);
/// Minimum time for which a run is reported.
const TOLD: Duration = Duration::from_secs(7 * 86_400);
const REMEDY: &str = "run it with `again` (`tenure run --again`)";
/// The reason in the record of a run whose window stays closed even if it is lost.
const STAYS_CLOSED: &str = "stays closed";

impl OncePer {
    pub(crate) fn new(
        shared: &Arc<EngineHandle>,
        options: &Arc<Options>,
        name: LockName,
        period: Period,
    ) -> Result<Self> {
        let record = RecordHandle::new(shared, options, jobs::KIND, name, LockSpec::Mutex)?;
        Ok(Self { record, period, frees: Frees::default(), again: false })
    }

    /// The name, without the prefix.
    ///
    /// ```
    /// # let locks = tenure::Locks::memory();
    /// let digest = locks.once_per("digest", std::time::Duration::from_secs(60))?;
    /// assert_eq!(digest.name().as_str(), "digest");
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn name(&self) -> &LockName {
        &self.record.lock.name
    }

    /// What reopens a window. Default: [`Frees::Failure`].
    ///
    /// ```
    /// # let locks = tenure::Locks::memory();
    /// # let minute = std::time::Duration::from_secs(60);
    /// let digest = locks.once_per("digest", minute)?.frees(tenure::Frees::Nothing);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn frees(self, frees: Frees) -> Self {
        Self { frees, ..self }
    }

    /// Whether to run the job although it has run in this window, died or lost its lock, or the window
    /// [admits no run any more](Period::open_for): for a run by hand. Default: no.
    ///
    /// The run takes the lock of the job, so it never overlaps another run, and is recorded in the window
    /// that it finds closed. If it fails or is lost, that window stays closed. It replaces a record that
    /// cannot be read, and one whose window is far ahead because a clock was wrong; other clients may then
    /// repeat the windows up to that one.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let minute = std::time::Duration::from_secs(60);
    /// let report = tenure::Locks::memory().once_per("report", minute)?;
    /// report.run(async |_| Ok::<_, String>(())).await?;
    /// let by_hand = report.again(true);
    /// assert!(by_hand.run(async |_| Ok::<_, String>(())).await?.is_some());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn again(self, again: bool) -> Self {
        Self { again, ..self }
    }

    /// Runs the job unless it has run in this window. Returns `None` if it has run or is running. The inner
    /// result is that of the job, and decides whether it failed.
    ///
    /// The lock is renewed while the job runs. If the lock is lost, the job is dropped at its next await. A
    /// call that comes shortly before the next window (a tenth of the period, at most 5 s) waits for it.
    ///
    /// # Cancel safety
    /// If the future is dropped while the job runs, the run counts as [lost](Outcome::Lost).
    ///
    /// # Errors
    /// `is_lost` if the lock was lost while the job ran; `is_invalid` if the period is invalid;
    /// `is_unsupported` if the server forbids scripts; `is_refused` if the last run was in a window far
    /// ahead, as after a step of the clock (see [`again`](Self::again)); `is_unreachable`, also if the
    /// server's `restart-grace` lasts longer than [`op_timeout`](crate::Options::op_timeout), and
    /// `is_unknown`.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// use std::time::Duration;
    ///
    /// let report = tenure::Locks::memory().once_per("report", Duration::from_secs(3_600))?;
    /// match report.run(async |_| Ok::<_, std::io::Error>(17)).await? {
    ///     Some(Ok(rows)) => println!("{rows} rows"),
    ///     Some(Err(error)) => println!("failed: {error}"),
    ///     None => println!("another host has run it"),
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn run<T, E: fmt::Display>(
        &self,
        job: impl AsyncFnOnce(&Turn) -> Result<T, E>,
    ) -> Result<Option<Result<T, E>>> {
        let Some(turn) = self.try_begin().await? else { return Ok(None) };
        let outcome = unless_lost(turn.lost(), job(&turn)).await?;
        // If the result cannot be stored, the caller still gets it, and an event reports it.
        match &outcome {
            Ok(_) => turn.succeed().await,
            Err(error) => turn.fail(error).await,
        }
        .or_else(|error| if error.is_lost() { Err(error) } else { Ok(()) })?;
        Ok(Some(outcome))
    }

    /// Begins a run unless there has been one in this window: for work that is not a single future. End the
    /// run with [`Turn::succeed`] or [`Turn::fail`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the run may count as [lost](Outcome::Lost).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// # let minute = std::time::Duration::from_secs(60);
    /// let report = tenure::Locks::memory().once_per("report", minute)?;
    /// if let Some(turn) = report.try_begin().await? {
    ///     // … the work, with turn.fence() in each write …
    ///     turn.succeed().await?;
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn try_begin(&self) -> Result<Option<Turn>> {
        let engine = self.record.engine();
        for _ in 0..ATTEMPTS {
            let seen = self.seen(None).await?;
            let pause = match self.judge(&seen)? {
                Judged::Open(_) | Judged::LooksOpen if self.again => None,
                // The window is still open, but the caller means the next one.
                Judged::Open(_) | Judged::LooksOpen => self.until_soon(seen.now_us)?,
                Judged::ByHand(_) => None,
                Judged::Closed(_) => return Ok(None),
                Judged::Soon(pause) => Some(pause),
            };
            if let Some(pause) = pause {
                engine.runtime.sleep_until(engine.now() + pause).await;
                continue;
            }
            match self.take().await? {
                Ok(turn) => return Ok(Some(turn)),
                Err(NotBegun::Busy) => return Ok(None),
                Err(NotBegun::Passed) => {}
            }
        }
        Ok(None)
    }

    /// Takes the lock of a job that looks open, and begins it.
    pub(super) async fn take(&self) -> Result<std::result::Result<Turn, NotBegun>> {
        let guard = self.record.lock.acquire(Wait::OnceGranting).await?;
        let Some(guard) = guard else { return Ok(Err(NotBegun::Busy)) };
        // Not sent together with the acquisition: a store may grant at a second request, and a read between the
        // two would miss what the last holder wrote.
        let seen = self.seen(Some(guard.owner())).await?;
        let (window, by_hand) = match self.judge(&seen)? {
            Judged::Open(window) => (window, false),
            // This caller has the lock, so the previous runner has lost it.
            Judged::LooksOpen => (self.window(seen.now_us)?, false),
            Judged::ByHand(window) => (window, true),
            Judged::Closed(_) | Judged::Soon(_) => return Ok(Err(NotBegun::Passed)),
        };
        let last = seen.record.as_ref().and_then(RunRecord::of);
        Ok(self.begin(guard, window, by_hand, last).await?.ok_or(NotBegun::Passed))
    }

    /// Records the beginning of the run, and makes sure that its window is not over by then.
    async fn begin(
        &self,
        guard: Guard,
        window: Window,
        by_hand: bool,
        last: Option<RunRecord>,
    ) -> Result<Option<Turn>> {
        let engine = self.record.engine();
        // The window was closed before this run.
        let stays_closed = by_hand && !planted(Bug::AgainReopens);
        let (frees, freed, why) = match stays_closed {
            true => (Frees::Nothing, RunState::Failed, STAYS_CLOSED),
            false => (self.frees, RunState::Freed, ""),
        };
        // A run by hand may have a period of its own; the job keeps its schedule.
        let known = last.as_ref().filter(|_| self.again).map(|run| run.schedule.clone());
        let schedule = known.filter(|schedule| !schedule.is_empty()).or_else(|| self.period.text());
        let mut run = RunRecord {
            state: RunState::Begun,
            from: window.from,
            to: window.to,
            fence: guard.fence(),
            begun: 0,
            ended: 0,
            owner: guard.owner().clone(),
            code: None,
            succeeded: last.as_ref().map_or(0, |run| run.succeeded),
            why: why.to_owned(),
            schedule: schedule.unwrap_or_default(),
            earlier: last.map_or_else(Vec::new, RunRecord::history),
        };
        let keep = keep(&window);
        let mut begin = put(guard.owner(), keep, run.encode());
        let turn = |run| Turn { guard, record: self.record.clone(), run, keep, frees };
        let is_checked = !by_hand && !planted(Bug::WindowFromClient);
        begin.window = is_checked.then_some(window.from..window.open_to);
        let sent = engine.now();
        let stored = match planted(Bug::RecordedAfterRun) {
            true => RecordAnswer::Stored { at_us: engine.runtime.unix_micros() },
            false => match self.record.put(begin).await {
                // It may be stored, and would close the window in which the job has not run.
                Err(error) if error.is_unknown() => {
                    run.begun = engine.runtime.unix_micros();
                    let _ = turn(run).end(freed, "the run was stopped before it began: no answer").await;
                    return Err(error);
                }
                stored => stored?,
            },
        };
        let RecordAnswer::Stored { at_us } = stored else { return Ok(None) };
        run.begun = at_us;
        jobs::report(&self.record, &run, at_us);
        let at_us = if planted(Bug::WindowFromClient) { window.from } else { at_us };
        let left = Duration::from_micros(window.to.saturating_sub(at_us));
        let turn = turn(run);
        // A failover that forgot the record would open the window again.
        if engine.store.capabilities().confirms
            && let Err(error) = turn.guard.set_lease(None, None).await
        {
            let _ = turn.end(freed, "the run was stopped before it began: replicas did not confirm it").await;
            return Err(error);
        }
        let is_in_time = engine.now() < sent + left.saturating_sub(lease::margin(left));
        if is_in_time && turn.guard.is_held() {
            self.record.count(UseResult::Begun);
            return Ok(Some(turn));
        }
        // This process was paused in between; the job has not begun.
        turn.end(freed, "the run was stopped before it began").await?;
        Ok(None)
    }

    /// Returns the most recent run. It is reported until one period after its window has passed, and for at
    /// least a week after the window; on etcd and ZooKeeper for ever.
    ///
    /// # Cancel safety
    /// Safe to drop: the request changes nothing.
    ///
    /// # Errors
    /// The errors of the store: `is_unreachable` and `is_refused`.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// use tenure::Outcome;
    ///
    /// # let minute = std::time::Duration::from_secs(60);
    /// let report = tenure::Locks::memory().once_per("report", minute)?;
    /// assert_eq!(report.last().await?, None);
    /// report.run(async |_| Err::<(), _>("no disk")).await?;
    /// let last = report.last().await?.expect("it ran");
    /// assert_eq!((last.outcome, last.is_open), (Outcome::Failed("no disk".to_owned()), true));
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn last(&self) -> Result<Option<LastRun>> {
        let SeenRecord { record: Some(record), now_us } = self.record.read().await? else { return Ok(None) };
        self.decode(&record)?;
        let job = jobs::status(&self.record, record, now_us).await?;
        Ok(job.map(|job| job.last))
    }

    /// Asks the current run to stop, and returns it, or `None` if the job is not running. This does not end
    /// the run: a runner that waits for [`Turn::stop_requested`] learns of it within 2 s.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let minute = std::time::Duration::from_secs(60);
    /// let report = tenure::Locks::memory().once_per("report", minute)?;
    /// let turn = report.try_begin().await?.expect("the first");
    /// let asked = report.request_stop("it hangs").await?.expect("it runs");
    /// assert_eq!(asked.fence, turn.fence());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// The request may still be made.
    ///
    /// # Errors
    /// The errors of the store; also `is_invalid` if the reason is not valid.
    pub async fn request_stop(&self, reason: &str) -> Result<Option<LastRun>> {
        check_text("a reason", reason)?;
        let last = self.last().await?.filter(|last| last.outcome == Outcome::Running);
        let Some(run) = last else { return Ok(None) };
        let record = stop::record_of(&self.record, stop::OF_JOB)?;
        stop::request(&record, slice::from_ref(&run.owner), reason).await?;
        Ok(Some(run))
    }

    /// Forgets the most recent run, so that the job may run again in this window. A run in progress loses its
    /// lock.
    ///
    /// # Cancel safety
    /// The request may still be carried out.
    ///
    /// # Errors
    /// The errors of the store: `is_unreachable`, `is_refused` and `is_unknown`.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// # let minute = std::time::Duration::from_secs(60);
    /// let report = tenure::Locks::memory().once_per("report", minute)?;
    /// report.run(async |_| Ok::<_, String>(())).await?;
    /// report.reset().await?;
    /// assert!(report.run(async |_| Ok::<_, String>(())).await?.is_some());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn reset(&self) -> Result<()> {
        self.record.void().await
    }

    pub(super) async fn seen(&self, granted: Option<&Owner>) -> Result<SeenRecord> {
        let mut seen = self.record.read_granted(granted).await?;
        if planted(Bug::WindowFromClient) {
            seen.now_us = self.record.engine().runtime.unix_micros();
        }
        Ok(seen)
    }

    pub(super) fn window(&self, now_us: u64) -> Result<Window> {
        let window = self.period.window(now_us);
        window.map_err(|what| Error::invalid(format!("job {}: {what}", self.name().quoted())))
    }

    /// The time until the next window, if it begins so soon that a caller whose clock is ahead may mean it.
    fn until_soon(&self, now_us: u64) -> Result<Option<Duration>> {
        let window = self.window(now_us)?;
        let left = Duration::from_micros(window.to - now_us);
        Ok((left <= early(&window)).then_some(left))
    }

    /// Whether the job may begin, according to the record.
    pub(super) fn judge(&self, seen: &SeenRecord) -> Result<Judged> {
        match self.judge_record(seen) {
            Ok(Judged::Closed(_) | Judged::Soon(_)) | Err(_) if self.again => {
                Ok(Judged::ByHand(self.window_by_hand(seen)?))
            }
            judged => judged,
        }
    }

    /// The window that was found closed, which may be longer than the present one, or later by the clock of
    /// another host.
    fn window_by_hand(&self, SeenRecord { record, now_us }: &SeenRecord) -> Result<Window> {
        let window = self.window(*now_us)?;
        let last = record.as_ref().and_then(RunRecord::of);
        Ok(match last.filter(|run| run.to > *now_us && !is_far_ahead(run, &window, *now_us)) {
            Some(RunRecord { from, to, .. }) => Window { from, to, open_to: to },
            None => window,
        })
    }

    fn judge_record(&self, SeenRecord { record, now_us }: &SeenRecord) -> Result<Judged> {
        let (now, mut window) = (*now_us, self.window(*now_us)?);
        let early = early(&window);
        let until = |end: u64| match Duration::from_micros(end - now) {
            left if left <= early => Judged::Soon(left),
            left => Judged::Closed(left),
        };
        let closed = until(window.to);
        if let Some(record) = record {
            let run = self.decode(record)?;
            jobs::report(&self.record, &run, now);
            if run.from == window.from && planted(Bug::WindowRepeats) {
                return Ok(Judged::Open(window));
            }
            if is_far_ahead(&run, &window, now) {
                let clock = match self.record.engine().store.capabilities().client_decides {
                    true => "the clock of its host",
                    false => "the store's clock",
                };
                let when = format!("its last window begins at {:?}", moment(run.from));
                let what = format!("{when}, which is far ahead: if {clock} was wrong, {REMEDY}");
                return Err(Error::refused(self.name(), self.record.engine().store.url(), &what));
            }
            if run.to > now && run.state != RunState::Freed {
                let (is_open, may_open) = (now < window.open_to, run.why != STAYS_CLOSED);
                return Ok(match (run.state, until(run.to)) {
                    (RunState::Begun, _) if self.frees == Frees::FailureOrLoss && may_open && is_open => {
                        Judged::LooksOpen
                    }
                    // The run may fail, which reopens the window.
                    (RunState::Begun, Judged::Closed(left)) => Judged::Closed(left.min(LOOK)),
                    (_, closed) => closed,
                });
            }
            // A run that failed reopens its own window, not those before it.
            if run.from >= window.to {
                return Ok(closed);
            }
            // After a change of the period, and where the zone has other rules on another host, the window must
            // not overlap that of the last run. If half of it does, the last run was that of this window.
            if run.state != RunState::Freed {
                let overlap = run.to.saturating_sub(run.from.max(window.from));
                if overlap >= (window.to - window.from).div_ceil(2) {
                    return Ok(closed);
                }
                window.from = window.from.max(run.to);
            } else if run.to > now && run.from > window.from {
                // What failed runs again, and no part of the window before it.
                (window.from, window.to) = (run.from, run.to);
            }
        }
        Ok(if now < window.open_to { Judged::Open(window) } else { closed })
    }

    fn decode(&self, record: &Record) -> Result<RunRecord> {
        RunRecord::of(record).ok_or_else(|| {
            let what = format!("cannot read its record, perhaps because another version wrote it: {REMEDY}");
            Error::refused(self.name(), self.record.engine().store.url(), &what)
        })
    }
}

pub(super) enum Judged {
    Open(Window),
    /// The job has begun in this window, and its runner may be dead.
    LooksOpen,
    /// Open to a run by hand only, which is recorded in this window.
    ByHand(Window),
    /// Time until another look may find it open.
    Closed(Duration),
    /// Time until the next window.
    Soon(Duration),
}

/// Why a job that looked open was not begun.
pub(super) enum NotBegun {
    /// Another caller has the lock.
    Busy,
    /// The window has passed, or another caller has run the job in it.
    Passed,
}

/// Whether the last run was in a window that only a wrong clock can have reached.
fn is_far_ahead(run: &RunRecord, window: &Window, now_us: u64) -> bool {
    run.from > now_us.saturating_add(2 * (window.to - window.from))
}

/// How long before the end of a window a caller may mean the next one.
fn early(window: &Window) -> Duration {
    EARLY.min(Duration::from_micros((window.to - window.from) / 10))
}

/// How long a run in this window is kept.
fn keep(window: &Window) -> Duration {
    let length = Duration::from_micros(window.to - window.from);
    length.saturating_add(length.max(TOLD))
}

impl fmt::Debug for OncePer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OncePer")
            .field("name", self.name())
            .field("period", &self.period)
            .finish_non_exhaustive()
    }
}
