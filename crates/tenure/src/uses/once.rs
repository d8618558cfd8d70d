use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::join;

use super::period::{Period, Window, moment};
use super::stop::{self, StopRequest};
use super::{RecordHandle, Seen, put};
use crate::engine::Client;
use crate::engine::acquire::Wait;
use crate::engine::lost::Lost;
use crate::error::{Error, Result};
use crate::events::{event, text};
use crate::guard::{Guard, unless_lost};
use crate::metrics::UseResult;
use crate::name::LockName;
use crate::options::Options;
use crate::owner::{Owner, check_text};
use crate::planted::{Bug, planted};
use crate::protocol::LockSpec;
use crate::protocol::lease;
use crate::protocol::record::{RecordAnswer, Then};

/// A job that runs at most once in each window of a [`Period`], on whichever host asks first.
///
/// All hosts ask, for example each minute or by cron at the same time, and one of them runs the
/// job. That it ran is kept in the store: a host whose clock is ahead or behind does not run it
/// again.
///
/// Stateless and cheap to clone.
///
/// # Guarantees
/// - *At most once in a window*, by the clock of the store, as long as the store keeps what it has
///   acknowledged and its clock does not jump. The clocks of the hosts do not matter.
/// - *Not beside itself*: a job that takes longer than its window keeps its lock, and the next
///   window begins late or is missed.
/// - *Failure frees the window*, unless [`frees`](Self::frees) says otherwise: the next to ask runs
///   it again.
/// - *A runner that dies* leaves the window closed, because nothing knows how far it came.
///   [`last`](Self::last) tells of it as [`Outcome::Lost`]. [`Frees::FailureOrLoss`] opens it
///   instead.
///
/// It does not call: a window in which no host asks is missed.
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
#[must_use = "it runs nothing until it is asked"]
pub struct OncePer {
    record: RecordHandle,
    period: Period,
    frees: Frees,
}

/// What opens a window again in which a job has begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Frees {
    /// Nothing: the job is tried once in a window.
    Nothing,
    /// That it failed.
    #[default]
    Failure,
    /// That it failed, and that its runner died or lost its lock. The job may then run twice in a
    /// window, one after the other.
    FailureOrLoss,
}

/// The last time that a job began.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastRun {
    /// Its window.
    pub window: Range<SystemTime>,
    /// When it began, by the clock of the store.
    pub begun: SystemTime,
    /// Who ran it.
    pub owner: Owner,
    /// Its token.
    pub fence: u64,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It runs.
    Running,
    /// It is done.
    Done,
    /// It failed, for this reason: at most 1,000 bytes of it.
    Failed(String),
    /// Its runner died, or lost its lock. It may have done all of its work, or a part.
    Lost,
}

/// So many times one call begins again because a window has passed meanwhile.
const ATTEMPTS: u32 = 4;
/// A call that comes before its window by a tenth of the period, and by this at most, waits for it:
/// the caller's clock may be ahead of the store's.
const EARLY: Duration = Duration::from_secs(5);
/// How long a run is told of, at least.
const TOLD: Duration = Duration::from_secs(86_400);
const WHY_BYTES: usize = 1_000;
const FORMAT: &str = "1";

impl OncePer {
    pub(crate) fn new(
        home: &Arc<Client>,
        options: &Arc<Options>,
        name: LockName,
        period: Period,
    ) -> Result<Self> {
        let record = RecordHandle::new(home, options, "once", name, LockSpec::Mutex)?;
        Ok(Self { record, period, frees: Frees::default() })
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

    /// What opens a window again: [`Frees::Failure`] unless set.
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

    /// Runs the job, if no one has in this window: `None` if it ran, or runs. The inner result is
    /// the job's, and says whether it failed.
    ///
    /// The lock is renewed while the job runs. The job is dropped at its next await when the lock
    /// is lost. A call that comes a little before the next window waits for it, for a tenth of the
    /// period and 5 s at most.
    ///
    /// # Cancel safety
    /// Dropped while the job runs, the window counts as [lost](Outcome::Lost).
    ///
    /// # Errors
    /// `is_lost` when the lock was lost while the job ran; `is_invalid` when the period cannot be
    /// right; `is_unsupported` when the server forbids scripts; `is_refused` when the last run was
    /// in a window that is far ahead, as after a step of the store's clock (see
    /// [`reset`](Self::reset)); `is_unreachable`, `is_unknown`.
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
        match &outcome {
            Ok(_) => turn.succeed().await?,
            Err(error) => turn.fail(error).await?,
        }
        Ok(Some(outcome))
    }

    /// Begins, if no one has in this window: for work that is not one future. End it with
    /// [`Turn::succeed`] or [`Turn::fail`].
    ///
    /// # Cancel safety
    /// Dropped, the window may count as [lost](Outcome::Lost).
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
        let (lock, engine) = (&self.record.lock, self.record.engine());
        for _ in 0..ATTEMPTS {
            let seen = self.seen().await?;
            match self.judge(&seen)? {
                Judged::Open(_) | Judged::LooksOpen => {}
                Judged::Closed => return Ok(None),
                Judged::Soon(pause) => {
                    engine.runtime.sleep_until(engine.now() + pause).await;
                    continue;
                }
            }
            // The lock first: what its last holder has written is there when it is granted.
            let (guard, seen) = join(lock.acquire(Wait::Once), self.seen()).await;
            let Some(guard) = guard? else { return Ok(None) };
            let seen = seen?;
            let now_us = seen.now_us;
            let window = match self.judge(&seen)? {
                Judged::Open(window) => window,
                // This caller has the lock, so the runner has lost it.
                Judged::LooksOpen => self.window(now_us)?,
                Judged::Closed | Judged::Soon(_) => continue,
            };
            if let Some(turn) = self.begin(guard, window).await? {
                return Ok(Some(turn));
            }
        }
        Ok(None)
    }

    /// Writes that the job begins, and makes sure that its window is not over by then.
    async fn begin(&self, guard: Guard, window: Window) -> Result<Option<Turn>> {
        let engine = self.record.engine();
        let mut run = Run {
            state: State::Begun,
            from: window.from,
            to: window.to,
            fence: guard.fence(),
            begun: 0,
            owner: guard.owner().clone(),
            why: String::new(),
        };
        let keep = keep(&window);
        let mut begin = put(guard.owner(), keep, run.encode());
        begin.window = (!planted(Bug::WindowFromClient)).then_some(window.from..window.open_to);
        let sent = engine.now();
        let RecordAnswer::Stored { at_us } = self.record.put(begin).await? else { return Ok(None) };
        run.begun = at_us;
        let at_us = if planted(Bug::WindowFromClient) { window.from } else { at_us };
        let left = Duration::from_micros(window.to.saturating_sub(at_us));
        let turn = Turn { guard, record: self.record.clone(), run, keep, frees: self.frees };
        let is_in_time = engine.now() < sent + left.saturating_sub(lease::margin(left));
        if is_in_time && turn.guard.is_held() {
            self.record.count(UseResult::Begun);
            return Ok(Some(turn));
        }
        // This process was stopped between the two: nothing has begun.
        turn.end(State::Freed, "its runner was stopped before it began").await?;
        Ok(None)
    }

    /// The last time that the job began: it is told of for the length of its period after its
    /// window, and for a day at least.
    ///
    /// # Cancel safety
    /// Nothing is lost; it asks and changes nothing.
    ///
    /// # Errors
    /// Those of the store: `is_unreachable`, `is_refused`.
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
    /// assert_eq!(last.outcome, Outcome::Failed("no disk".to_owned()));
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn last(&self) -> Result<Option<LastRun>> {
        let Some(record) = self.record.read().await?.record else { return Ok(None) };
        let run = self.decode(record.at_us, &record.value)?;
        let outcome = match run.state {
            State::Done => Outcome::Done,
            State::Failed | State::Freed => Outcome::Failed(run.why),
            State::Begun => match self.is_lost().await? {
                // It may have ended between the two answers.
                true => match self.record.read().await?.record {
                    Some(now) if now != record => return Box::pin(self.last()).await,
                    _ => Outcome::Lost,
                },
                false => Outcome::Running,
            },
        };
        let window = moment(run.from)..moment(run.to);
        let (begun, owner, fence) = (moment(run.begun), run.owner, run.fence);
        Ok(Some(LastRun { window, begun, owner, fence, outcome }))
    }

    /// Asks a run that is under way to stop, and says which: `None` if the job does not run.
    /// Nothing ends by that: a run that waits for [`Turn::stop_requested`] hears of it within 2 s.
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
    /// Those of the store, and `is_invalid` when the reason cannot be used.
    pub async fn request_stop(&self, reason: &str) -> Result<Option<LastRun>> {
        check_text("a reason", reason)?;
        let last = self.last().await?.filter(|last| last.outcome == Outcome::Running);
        let Some(run) = last else { return Ok(None) };
        let record = stop::record_of(&self.record, stop::OF_JOB)?;
        stop::request(&record, slice::from_ref(&run.owner), reason).await?;
        Ok(Some(run))
    }

    /// Forgets the last run: the job may run again in this window. One that runs loses its lock.
    ///
    /// # Cancel safety
    /// The request may still be carried out.
    ///
    /// # Errors
    /// Those of the store: `is_unreachable`, `is_refused`, `is_unknown`.
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

    async fn seen(&self) -> Result<Seen> {
        let mut seen = self.record.read().await?;
        if planted(Bug::WindowFromClient) {
            seen.now_us = self.record.engine().runtime.unix_micros();
        }
        Ok(seen)
    }

    fn window(&self, now_us: u64) -> Result<Window> {
        let window = self.period.window(now_us);
        window.map_err(|what| Error::invalid(format!("job {}: {what}", self.name().quoted())))
    }

    /// Whether the job may begin, by what is kept.
    fn judge(&self, Seen { record, now_us }: &Seen) -> Result<Judged> {
        let (now, mut window) = (*now_us, self.window(*now_us)?);
        if let Some(record) = record {
            let run = self.decode(record.at_us, &record.value)?;
            let length = window.to - window.from;
            if run.from > now.saturating_add(2 * length) {
                let when = format!("its last run was in a window from {:?} on", moment(run.from));
                let what = format!("{when}, which is far ahead: `reset` it if the store's clock was wrong");
                return Err(Error::refused(self.name(), self.record.engine().store.url(), &what));
            }
            if run.to > now && run.state != State::Freed {
                let left = Duration::from_micros(run.to - now);
                let early = EARLY.min(Duration::from_micros(length / 10));
                return Ok(match run.state {
                    State::Begun if self.frees == Frees::FailureOrLoss => Judged::LooksOpen,
                    _ if left <= early => Judged::Soon(left),
                    _ => Judged::Closed,
                });
            }
            // Where the windows were others before, none overlaps another.
            if run.state != State::Freed {
                window.from = window.from.max(run.to);
            }
        }
        Ok(if now < window.open_to { Judged::Open(window) } else { Judged::Closed })
    }

    /// Whether no one has the lock.
    async fn is_lost(&self) -> Result<bool> {
        self.record.holders().await.map(|holders| holders.is_empty())
    }

    fn decode(&self, at_us: u64, value: &[u8]) -> Result<Run> {
        Run::decode(at_us, value).ok_or_else(|| {
            let what =
                "what is kept of it cannot be read, perhaps because another version wrote it: `reset` it";
            Error::refused(self.name(), self.record.engine().store.url(), what)
        })
    }
}

enum Judged {
    Open(Window),
    /// A job has begun in it, and its runner may be dead.
    LooksOpen,
    Closed,
    /// Until the next window.
    Soon(Duration),
}

/// How long a run in this window is kept.
fn keep(window: &Window) -> Duration {
    let length = Duration::from_micros(window.to - window.from);
    length.saturating_add(length.max(TOLD))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Begun,
    Done,
    Failed,
    /// It failed, and the window is open again.
    Freed,
}

const STATES: [(State, &str); 4] =
    [(State::Begun, "begun"), (State::Done, "done"), (State::Failed, "failed"), (State::Freed, "freed")];

/// What is kept of a run: one line, and behind it why it failed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    state: State,
    from: u64,
    to: u64,
    fence: u64,
    /// 0 in the record that says so: then the record's own time counts.
    begun: u64,
    owner: Owner,
    why: String,
}

impl Run {
    fn encode(&self) -> Vec<u8> {
        let Self { state, from, to, fence, begun, owner, why } = self;
        let state = STATES.iter().find(|(known, _)| known == state).expect("every state has a name").1;
        format!("{FORMAT} {state} {from} {to} {fence} {begun} {owner}\n{why}").into_bytes()
    }

    fn decode(at_us: u64, text: &[u8]) -> Option<Self> {
        let (line, why) = std::str::from_utf8(text).ok()?.split_once('\n')?;
        let words: Vec<_> = line.split(' ').collect();
        let [FORMAT, state, from, to, fence, begun, owner] = words[..] else { return None };
        let state = STATES.iter().find(|(_, name)| *name == state)?.0;
        let (from, to, fence, begun) =
            (from.parse().ok()?, to.parse().ok()?, fence.parse().ok()?, begun.parse().ok()?);
        let begun = if begun == 0 { at_us } else { begun };
        Some(Self { state, from, to, fence, begun, owner: owner.parse().ok()?, why: why.to_owned() })
    }
}

/// A job that has begun: it has its window, and the lock.
///
/// Dropped, it counts as [lost](Outcome::Lost).
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
    guard: Guard,
    record: RecordHandle,
    run: Run,
    keep: Duration,
    frees: Frees,
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

    /// Who runs it: a fresh owner for each run.
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

    /// Whether its lock is still held: see [`Guard::is_held`].
    pub fn is_current(&self) -> bool {
        self.guard.is_held()
    }

    /// The guard of its lock, which lasts as long as the run does.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// How long [`is_current`](Self::is_current) holds if nothing is renewed any more.
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// A future that resolves when the lock is lost: see [`Guard::lost`].
    pub fn lost(&self) -> Lost {
        self.guard.lost()
    }

    /// Waits until this run is [asked to stop](OncePer::request_stop). It looks at the store every
    /// 2 s.
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
    /// Nothing is lost: a request stays where it is.
    ///
    /// # Errors
    /// `is_refused` when the user may not read the record. A store that does not answer is asked
    /// again.
    pub async fn stop_requested(&self) -> Result<StopRequest> {
        let record = stop::record_of(&self.record, stop::OF_JOB)?;
        stop::requested(&record, self.owner()).await
    }

    /// The job is done: the window stays closed.
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
    /// The request may still be carried out; if not, the window counts as [lost](Outcome::Lost).
    ///
    /// # Errors
    /// `is_lost` when the lock was lost before. That the store does not answer is no error: the
    /// window stays closed.
    pub async fn succeed(self) -> Result<()> {
        let record = self.record.clone();
        self.end(State::Done, "").await.inspect(|()| record.count(UseResult::Done))
    }

    /// The job failed, for this reason. Others may run it again in this window, unless
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
        let state = if self.frees == Frees::Nothing { State::Failed } else { State::Freed };
        let record = self.record.clone();
        self.end(state, why).await.inspect(|()| record.count(UseResult::Failed))
    }

    fn end(self, state: State, why: impl fmt::Display) -> impl Future<Output = Result<()>> + Send {
        let mut why = why.to_string();
        while why.len() > WHY_BYTES {
            why.pop();
        }
        let Self { guard, record, run, keep, .. } = self;
        let run = Run { state, why, ..run };
        async move {
            let mut end = put(guard.owner(), keep, run.encode());
            end.then = Then::Release;
            match record.put(end).await {
                Ok(RecordAnswer::Stored { .. }) => {
                    guard.ended();
                    Ok(())
                }
                Ok(_) => {
                    let (name, store) = (&record.lock.name, record.engine().store.url());
                    Err(Error::lost(name, store, "it was lost before the job ended"))
                }
                Err(failure) => {
                    event!(
                        WARN,
                        target: "tenure",
                        "outcome_not_kept",
                        "the end of a job was not kept",
                        lock = text(&record.lock.name),
                        store = text(record.engine().store.url()),
                        failure = text(failure),
                    );
                    Ok(())
                }
            }
        }
    }
}

impl fmt::Debug for OncePer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OncePer")
            .field("name", self.name())
            .field("period", &self.period)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("guard", &self.guard).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_reads_back_and_noise_does_not() {
        let owner = Owner::new("x").expect("an owner");
        let run = Run {
            state: State::Freed,
            from: 5,
            to: 9,
            fence: 7,
            begun: 6,
            owner,
            why: "two\nlines".to_owned(),
        };
        assert_eq!(Run::decode(1, &run.encode()), Some(run.clone()));
        let begun = Run { begun: 0, ..run };
        assert_eq!(Run::decode(11, &begun.encode()).expect("a run").begun, 11);
        for text in ["", "1 begun\n", "1 x 5 9 7 6 o\n", "2 done 5 9 7 6 a@h:1/0\n"] {
            assert_eq!(Run::decode(1, text.as_bytes()), None, "{text:?}");
        }
    }
}
