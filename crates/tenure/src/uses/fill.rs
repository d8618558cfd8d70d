use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::cache::{CacheTurn, Outage, Overdue, computing, take_turn};
use super::{lock_of, meter};
use crate::engine::EngineHandle;
use crate::engine::flight::{FlightResult, FlightRole};
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::handle::LockHandle;
use crate::metrics::UseResult;
use crate::name::LockName;
use crate::options::Options;
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
#[must_use = "it fills nothing until it is run"]
pub struct Fill {
    lock: LockHandle,
    wait: Duration,
    overdue: Overdue,
    outage: Outage,
}

impl Fill {
    pub(crate) fn new(shared: &Arc<EngineHandle>, options: &Options, name: LockName) -> Result<Self> {
        let lock = lock_of(shared, &computing(options), "fill", name, LockSpec::Mutex)?;
        let wait = Duration::from_secs(5);
        Ok(Self { lock, wait, overdue: Overdue::default(), outage: Outage::default() })
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
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    /// What a caller does once [`wait`](Self::wait) is over. Default: [`Overdue::Compute`], which computes
    /// without a guard, one caller per process.
    ///
    /// ```
    /// # let locks = tenure::Locks::memory();
    /// let report = locks.fill("report")?.overdue(tenure::Overdue::Fail);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn overdue(self, overdue: Overdue) -> Self {
        Self { overdue, ..self }
    }

    /// What a caller does if the store does not answer. Default: [`Outage::Compute`].
    ///
    /// ```
    /// # let locks = tenure::Locks::memory();
    /// let report = locks.fill("report")?.outage(tenure::Outage::Fail);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn outage(self, outage: Outage) -> Self {
        Self { outage, ..self }
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
        match get().await {
            Ok(None) => {}
            Ok(Some(found)) => return Ok(Ok(found)),
            Err(error) => return Ok(Err(error)),
        }
        let asked = engine.now();
        let mut flight = lock.shared.flights.join(&lock.full);
        let until = asked + self.wait;
        let until_late = until + self.wait;
        let mut is_late = false;
        loop {
            let until = if is_late { until_late } else { until };
            let turn = match flight.wait(engine, |_| true, is_late, until).await {
                FlightRole::Shared(_) => match get().await {
                    Ok(None) => continue,
                    Ok(Some(found)) => return Ok(Ok(found)),
                    Err(error) => return Ok(Err(error)),
                },
                FlightRole::Late if self.overdue == Overdue::Compute && !is_late => {
                    is_late = true;
                    continue;
                }
                FlightRole::Late => return Err(self.late()),
                FlightRole::Leader(turn) => turn,
            };
            let guard = if is_late {
                None
            } else if !lock.shared.flights.may_ask(engine, &lock.full) {
                self.without(Error::silent_lately(self.name(), engine.store.url()))?
            } else {
                let look = || async { Ok(get().await.transpose()) };
                let taken = take_turn(lock, until, look).await;
                lock.shared.flights.heard(&taken, engine, &lock.full);
                match taken {
                    Ok(CacheTurn::Found(found)) => return Ok(found),
                    // The first `get` ran concurrently with the acquisition and may have missed the last
                    // holder's write. Dropping the guard releases it.
                    Ok(CacheTurn::Granted(guard)) => match get().await {
                        Ok(None) => Some(guard),
                        Ok(Some(found)) => return Ok(Ok(found)),
                        Err(error) => return Ok(Err(error)),
                    },
                    Ok(CacheTurn::Late) if self.overdue == Overdue::Fail => return Err(self.late()),
                    Ok(CacheTurn::Late) => {
                        is_late = true;
                        drop(turn);
                        continue;
                    }
                    Err(error) => self.without(error)?,
                }
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
            return Ok(computed);
        }
    }

    /// Returns no guard if this error is an outage in which the caller computes.
    fn without(&self, error: Error) -> Result<Option<Guard>> {
        if self.outage.computes_after(&error) { Ok(None) } else { Err(error) }
    }

    fn late(&self) -> Error {
        Error::overdue(self.name(), self.lock.shared.engine.store.url())
    }
}

impl fmt::Debug for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fill").field(self.name()).finish()
    }
}
