use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, join};
use tokio::sync::OwnedMutexGuard;

use super::{Watch, lock_of, meter};
use crate::engine::acquire::Wait;
use crate::engine::engine_handle::EngineHandle;
use crate::engine::flight::{FlightCaller, FlightResult, FlightRole};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::handle::LockHandle;
use crate::metrics::UseResult;
use crate::moment::Moment;
use crate::name::LockName;
use crate::options::{HoldOptions, Options, Renewal};
use crate::protocol::LockSpec;

/// Lets one caller in a fleet fill a cache of your own while the others wait for it.
///
/// Use it if the cache is something else that all callers can see: a table, memcached, a file. If the value
/// may live in the store of the locks, a [`Cache`](crate::Cache) does more. `Fill` needs only a mutex, so it
/// works on a quorum too.
///
/// # Guarantees
/// - *One computation at a time*, as long as the computing caller keeps its lock, except under
///   [`Overdue::Compute`] and [`Outage::Compute`].
/// - *Waiters finish together*: when the computation is done, all waiters look into the cache at the same
///   time.
/// - *Late writes* are yours to reject: compare [`Guard::fence`] where you write.
///
/// # Examples
/// ```
/// # tenure::block_on(async {
/// use std::sync::Mutex;
///
/// let table = Mutex::new(None::<String>); // the cache of your own
/// let get = || async { Ok::<_, std::io::Error>(table.lock().unwrap().clone()) };
///
/// let locks = tenure::Locks::memory();
/// let fill = locks.fill("report")?;
/// let report = fill.run(get, async |_guard| {
///     let report = "42 orders".to_owned(); // the slow query
///     *table.lock().unwrap() = Some(report.clone());
///     Ok(report)
/// });
/// assert_eq!(report.await?.unwrap(), "42 orders");
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "a fill does nothing until it is run"]
pub struct Fill {
    lock: LockHandle,
    policy: WaitPolicy,
}

impl Fill {
    pub(crate) fn new(shared: &Arc<EngineHandle>, options: &Options, name: LockName) -> Result<Self> {
        let lock = lock_of(shared, &computing(options), "fill", name, LockSpec::Mutex)?;
        Ok(Self { lock, policy: WaitPolicy::default() })
    }

    /// The name, without the prefix.
    ///
    /// ```
    /// # let locks = tenure::Locks::memory();
    /// assert_eq!(locks.fill("report")?.name().as_str(), "report");
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn name(&self) -> &LockName {
        &self.lock.name
    }

    /// How long a caller waits for another caller's computation. Default: 5 s.
    ///
    /// ```
    /// # let locks = tenure::Locks::memory();
    /// let report = locks.fill("report")?.wait(std::time::Duration::from_secs(1));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn wait(mut self, wait: Duration) -> Self {
        self.policy.wait = wait;
        self
    }

    /// What a caller does once [`wait`](Self::wait) is over. Default: [`Overdue::Compute`], which computes
    /// without a guard, one caller per process.
    ///
    /// ```
    /// # let locks = tenure::Locks::memory();
    /// let report = locks.fill("report")?.overdue(tenure::Overdue::Fail);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn overdue(mut self, overdue: Overdue) -> Self {
        self.policy.overdue = overdue;
        self
    }

    /// What a caller does if the store does not answer. Default: [`Outage::Compute`].
    ///
    /// ```
    /// # let locks = tenure::Locks::memory();
    /// let report = locks.fill("report")?.outage(tenure::Outage::Fail);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn outage(mut self, outage: Outage) -> Self {
        self.policy.outage = outage;
        self
    }

    /// Returns what `get` finds or, if it finds nothing, what `compute` returns. `compute` must put the value
    /// into the cache itself. The inner result is that of the two closures.
    ///
    /// `compute` gets the guard of the lock, or `None` if it runs without the lock: after the wait, or in an
    /// outage.
    ///
    /// # Cancel safety
    /// If the future is dropped while it computes, the next caller computes at once.
    ///
    /// # Errors
    /// `is_overdue` and the errors of the store, as set by the options.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let get = || async { Ok::<_, std::io::Error>(Some(42)) };
    /// let report = tenure::Locks::memory().fill("report")?;
    /// let found = report.run(get, async |_| unreachable!("it is there")).await?.unwrap();
    /// assert_eq!(found, 42);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn run<T, E, G>(
        &self,
        get: impl Fn() -> G,
        compute: impl AsyncFnOnce(Option<&Guard>) -> Result<T, E>,
    ) -> Result<Result<T, E>>
    where
        G: Future<Output = Result<Option<T>, E>>,
    {
        let (lock, engine) = (&self.lock, &self.lock.shared.engine);
        let get = || async { get().await.transpose() };
        if let Some(found) = get().await {
            return Ok(found);
        }
        let look = || async { Ok(get().await) };
        let Lead { flight, guard, _lead } =
            match self.policy.lead(lock, engine.now(), false, |_| true, |_| get(), look).await? {
                Led::Found(found) => return Ok(found),
                Led::Lead(lead) => lead,
            };
        let begun = engine.now();
        let computed = compute(guard.as_ref()).await;
        let result = match (&computed, &guard) {
            (Err(_), _) => UseResult::FillFailed,
            (Ok(_), None) => UseResult::FilledAlone,
            (Ok(_), Some(_)) => UseResult::Filled,
        };
        engine.metrics.filled(meter(lock), engine.now().since(begun), result);
        if computed.is_ok() {
            flight.publish(FlightResult { value: Arc::default(), stored: None, begun });
        }
        if let Some(guard) = guard {
            // A release without an answer continues in the background.
            let _ = guard.release().await;
        }
        Ok(computed)
    }
}

impl fmt::Debug for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fill").field(self.name()).finish()
    }
}

/// What a caller does after waiting for [`wait`](crate::Cache::wait) for another caller's computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overdue {
    /// Compute as well, once per process, without storing the result. A caller that waits for such a
    /// computation for as long again [fails](Error::is_overdue).
    #[default]
    Compute,
    /// Fail with [`is_overdue`](Error::is_overdue).
    Fail,
}

/// What a caller does if the store does not answer or rejects writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outage {
    /// Compute without the store, one caller at a time per process, without storing the result.
    #[default]
    Compute,
    /// Fail with the store's error.
    Fail,
}

/// Maximum lease of a lock that protects a computation: how long others wait if its process dies.
const LEASE: Duration = Duration::from_secs(3);
/// Polling interval of a waiter that gets no message.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The options of a lock that protects a computation: a short lease, automatically renewed.
pub(super) fn computing(options: &Options) -> Arc<Options> {
    let HoldOptions { ttl, renewal: _, max_hold: _, grace: _, bind, op_timeout } = HoldOptions::of(options);
    let (ttl, renewal, max_hold, grace) = (ttl.min(LEASE), Renewal::Automatic, None, Duration::ZERO);
    let kept = HoldOptions { ttl, renewal, max_hold, grace, bind, op_timeout };
    Arc::new(kept.and(Options { unfenced: false, ..options.clone() }))
}

/// How callers wait for each other.
#[derive(Clone)]
pub(super) struct WaitPolicy {
    pub(super) wait: Duration,
    pub(super) overdue: Overdue,
    pub(super) outage: Outage,
}

impl Default for WaitPolicy {
    fn default() -> Self {
        Self { wait: Duration::from_secs(5), overdue: Overdue::default(), outage: Outage::default() }
    }
}

/// The one caller that computes.
pub(super) struct Lead<'a> {
    pub(super) flight: FlightCaller<'a>,
    /// `None` without the lock: in an outage, or after the wait.
    pub(super) guard: Option<Guard>,
    pub(super) _lead: OwnedMutexGuard<()>,
}

/// The outcome of a wait for another caller's value.
pub(super) enum Led<'a, V> {
    /// Another caller has produced the value.
    Found(V),
    /// This caller computes.
    Lead(Lead<'a>),
}

impl WaitPolicy {
    /// `true` if the error is an outage in which callers compute.
    pub(super) fn computes_after(&self, error: Error) -> Result<bool> {
        let is_outage =
            matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Unknown | ErrorKind::Refused);
        if is_outage && self.outage == Outage::Compute { Ok(true) } else { Err(error) }
    }

    /// Waits for another caller's value, or until this caller is to compute.
    ///
    /// `found` takes the value from a result of this process's flight that `suits`, and `look` from where other
    /// processes put it. With `is_alone`, the store is not asked.
    pub(super) async fn lead<'a, V, F: Future<Output = Result<Option<V>>>, G: Future<Output = Option<V>>>(
        &self,
        lock: &'a LockHandle,
        asked: Moment,
        mut is_alone: bool,
        suits: impl Fn(&FlightResult) -> bool,
        found: impl Fn(Arc<FlightResult>) -> G,
        look: impl Fn() -> F,
    ) -> Result<Led<'a, V>> {
        let (engine, flights) = (&lock.shared.engine, &lock.shared.flights);
        let late = || Error::overdue(&lock.name, engine.store.url());
        let mut flight = flights.join(&lock.full);
        let (mut until, mut is_late) = (asked + self.wait, false);
        loop {
            let lead = match flight.wait(engine, &suits, is_late, until).await {
                FlightRole::Shared(result) => match found(result).await {
                    Some(value) => return Ok(Led::Found(value)),
                    None => continue,
                },
                FlightRole::Late if self.overdue == Overdue::Compute && !is_late => {
                    (is_late, is_alone, until) = (true, true, until + self.wait);
                    continue;
                }
                FlightRole::Late => return Err(late()),
                FlightRole::Leader(lead) => lead,
            };
            // Only a caller that goes on to ask may use up the lead to ask a silent store. If callers that
            // compute alone took the lead each second, the store would never be asked.
            if !is_alone && !flights.may_ask(engine, &lock.full) {
                is_alone = self.computes_after(Error::silent_lately(&lock.name, engine.store.url()))?;
            }
            if is_alone {
                return Ok(Led::Lead(Lead { flight, guard: None, _lead: lead }));
            }
            let taken = take_turn(lock, until, &look).await;
            flights.heard(&taken, engine, &lock.full);
            let guard = match taken {
                Ok(Some(Either::Left(value))) => return Ok(Led::Found(value)),
                Ok(Some(Either::Right(guard))) => Some(guard),
                Ok(None) if self.overdue == Overdue::Fail => return Err(late()),
                Ok(None) => {
                    (is_late, is_alone, until) = (true, true, until + self.wait);
                    continue;
                }
                Err(error) => {
                    self.computes_after(error)?;
                    None
                }
            };
            return Ok(Led::Lead(Lead { flight, guard, _lead: lead }));
        }
    }
}

/// Acquires the lock, unless the value appears first or the time is up (`None`).
///
/// A waiter is woken by the message of the holder's write, looks once, and asks for the lock only if it found
/// nothing. All waiters therefore finish together. If the store rejects subscriptions, polling replaces them.
async fn take_turn<V, F: Future<Output = Result<Option<V>>>>(
    lock: &LockHandle,
    until: Moment,
    look: impl Fn() -> F,
) -> Result<Option<Either<V, Guard>>> {
    let engine = &lock.shared.engine;
    let mut watch = Watch::default();
    loop {
        // Together, for the callers that find the lock busy.
        let (guard, found) = join(lock.acquire(Wait::Once), look()).await;
        if let Some(found) = found? {
            return Ok(Some(Either::Left(found)));
        }
        if let Some(guard) = guard? {
            // A store may grant at a second request, so that look may have missed the last holder's write.
            return Ok(Some(match look().await? {
                Some(found) => Either::Left(found),
                None => Either::Right(guard),
            }));
        }
        if engine.now() >= until {
            return Ok(None);
        }
        let within = lock.options.op_timeout.min(until.since(engine.now()));
        if watch.is_open() || watch.open(lock, within).await.is_err() {
            watch.wait(lock, until.min(engine.now() + LOOK_AGAIN)).await;
        }
        if let Some(found) = look().await? {
            return Ok(Some(Either::Left(found)));
        }
    }
}
