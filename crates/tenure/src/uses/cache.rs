use std::fmt;
use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;

use super::entry::{Content, Entry, Head, Sight, UNCACHED, look, soft_us};
use super::fill::{Lead, LeadTerms, Led, Outage, Overdue, computing};
use super::value::CacheValue;
use super::{RecordHandle, meter, micros, put};
use crate::engine::EngineHandle;
use crate::engine::acquire::Wait;
use crate::engine::flight::FlightResult;
use crate::error::{Error, Result};
use crate::events::{event, text};
use crate::guard::Guard;
use crate::metrics::UseResult;
use crate::moment::Moment;
use crate::name::LockName;
use crate::options::Options;
use crate::protocol::LockSpec;
use crate::protocol::record::{Put, Record, RecordAnswer, Then, VALUE_MAX};
use crate::runtime;

/// A cached value that one caller computes for a whole fleet, kept in the store of the locks.
///
/// Use it for values that are expensive to compute and read by many processes. Reading a fresh value is one
/// request (on Redis a plain `GET`). If the value is missing, one caller among all processes computes it
/// under a lock, and the others get the result together. With [`stale`](Self::stale), an expired value is
/// returned at once while one caller computes the next.
///
/// A `Cache` is stateless and cheap to clone. Tasks of one process that use clones of one
/// [`Locks`](crate::Locks) share a computation.
///
/// # Guarantees
/// - *One computation at a time* across all processes, as long as the computing caller keeps its lock. The
///   exceptions are [`Overdue::Compute`], [`Outage::Compute`] and values that are too large.
/// - *No late write.* The store accepts a value only from the holder of the lock. A caller that was paused
///   while computing cannot overwrite a newer value, or one that was [invalidated](Self::invalidate)
///   meanwhile.
/// - *A bounded wait.* A caller waits for others for [`wait`](Self::wait), then computes or fails, as set by
///   [`overdue`](Self::overdue).
/// - *Failure passes on.* If the closure fails, panics or is dropped, the next caller in its process computes
///   at once. If its process dies, a caller in another process does, at most one lease of 3 s later (on
///   `file:` at once).
///
/// Reads are not guaranteed to return the newest value: a value that was fresh when read may be invalidated
/// while the answer is in flight.
///
/// # Examples
/// ```
/// # tenure::block_on(async {
/// use std::time::Duration;
///
/// let locks = tenure::Locks::memory();
/// let user = locks.cache("user:42")?;
/// let query = async || Ok::<_, std::io::Error>("Ada".to_owned()); // the slow query
/// let name = user.get_or_compute(Duration::from_secs(60), query).await?.unwrap();
/// assert_eq!(name, "Ada");
/// user.invalidate().await?; // after the commit that changed the user
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "a cache does nothing until it is read"]
pub struct Cache {
    record: RecordHandle,
    stale: Duration,
    terms: LeadTerms,
    early: f64,
    jitter: f64,
    max_bytes: usize,
}

/// Reason for refusing caches where the client decides.
const NO_CACHE: &str = "its servers have no common clock, and values that are often rewritten do not belong in \
                        a replicated log: use `fill` with a cache of your own";
/// Maximum of every duration set here.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

impl Cache {
    pub(crate) fn new(shared: &Arc<EngineHandle>, options: &Options, name: LockName) -> Result<Self> {
        let store = &shared.engine.store;
        if store.capabilities().client_decides {
            let what = format!("store {} cannot cache {}: {NO_CACHE}", store.url(), name.quoted());
            return Err(Error::unsupported(store.url(), what));
        }
        let record = RecordHandle::new(shared, &computing(options), "cache", name, LockSpec::Mutex)?;
        Ok(Self {
            record,
            stale: Duration::ZERO,
            terms: LeadTerms::default(),
            early: 1.0,
            jitter: 0.1,
            max_bytes: 1 << 20,
        })
    }

    /// The name, without the prefix.
    ///
    /// ```
    /// # let locks = tenure::Locks::memory();
    /// assert_eq!(locks.cache("user:42")?.name().as_str(), "user:42");
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn name(&self) -> &LockName {
        &self.record.lock.name
    }

    /// How long after its ttl a value may still be returned while one caller computes the next. Default: 0,
    /// so that callers wait for the new value.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = tenure::Locks::memory();
    /// let user = locks.cache("user:42")?.stale(Duration::from_secs(3_600));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn stale(self, stale: Duration) -> Self {
        Self { stale, ..self }
    }

    /// How long a caller waits for another caller's computation. Default: 5 s.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = tenure::Locks::memory();
    /// let user = locks.cache("user:42")?.wait(Duration::from_millis(500));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn wait(mut self, wait: Duration) -> Self {
        self.terms.wait = wait;
        self
    }

    /// What a caller does once [`wait`](Self::wait) is over. Default: [`Overdue::Compute`].
    ///
    /// ```
    /// # let locks = tenure::Locks::memory();
    /// let user = locks.cache("user:42")?.overdue(tenure::Overdue::Fail);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn overdue(mut self, overdue: Overdue) -> Self {
        self.terms.overdue = overdue;
        self
    }

    /// What a caller does if the store does not answer. Default: [`Outage::Compute`].
    ///
    /// The first caller to notice waits for [`op_timeout`](Options::op_timeout). From then on one caller per
    /// second asks the store until it answers, and all others act at once.
    ///
    /// ```
    /// # let locks = tenure::Locks::memory();
    /// let user = locks.cache("user:42")?.outage(tenure::Outage::Fail);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn outage(mut self, outage: Outage) -> Self {
        self.terms.outage = outage;
        self
    }

    /// How eagerly one caller recomputes before the value expires (the β of XFetch). Default: 1; 0 disables
    /// it. Applies only in the last fifth of the ttl.
    ///
    /// ```
    /// # let locks = tenure::Locks::memory();
    /// let user = locks.cache("user:42")?.early(0.0);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn early(self, early: f64) -> Self {
        Self { early, ..self }
    }

    /// Maximum share of its ttl by which a value expires early, at random, from 0 to 1. Default: 0.1. It
    /// keeps values that were computed together from expiring together.
    ///
    /// ```
    /// # let locks = tenure::Locks::memory();
    /// let user = locks.cache("user:42")?.jitter(0.0);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn jitter(self, jitter: f64) -> Self {
        Self { jitter, ..self }
    }

    /// Maximum size of a stored value in bytes. Default: 1 MiB; at most 8 MiB. A larger value is returned but
    /// not stored, and for a second callers compute without waiting for other processes.
    ///
    /// ```
    /// # let locks = tenure::Locks::memory();
    /// let page = locks.cache("page:/")?.max_bytes(64 * 1024);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn max_bytes(self, max_bytes: usize) -> Self {
        Self { max_bytes, ..self }
    }

    /// Returns the value, computing it if necessary; it is then fresh for `ttl`. The inner result is that of
    /// `compute`.
    ///
    /// The first caller that finds an expired value computes the next one itself, and gets the old value if
    /// that fails. Use [`get_or_spawn`](Self::get_or_spawn) if no caller should wait.
    ///
    /// # Cancel safety
    /// If the future is dropped while it computes, the next caller computes at once.
    ///
    /// # Errors
    /// `is_overdue` and the errors of the store, as set by the options; `is_unsupported` if the server
    /// forbids scripts; `is_invalid` if an option or the ttl is invalid, or the value cannot be encoded.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// use std::time::Duration;
    ///
    /// let answer = tenure::Locks::memory().cache("answer")?;
    /// let compute = async || Ok::<_, std::fmt::Error>("42".to_owned());
    /// let first = answer.get_or_compute(Duration::from_secs(60), compute).await?.unwrap();
    /// let minute = Duration::from_secs(60);
    /// let again = answer.get_or_compute(minute, async || Err(std::fmt::Error)).await?;
    /// assert_eq!(again, Ok(first)); // not computed
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn get_or_compute<T: CacheValue, E>(
        &self,
        ttl: Duration,
        compute: impl AsyncFnOnce() -> Result<T, E>,
    ) -> Result<Result<T, E>> {
        let filled = self.get_or_fill(async || compute().await.map(|value| Entry::value(value, ttl))).await?;
        filled.map_or_else(
            |error| Ok(Err(error)),
            |value| value.map(Ok).ok_or_else(|| self.invalid("records an absent value: use `get_or_fill`")),
        )
    }

    /// Returns the value, if there is one: as [`get_or_compute`](Self::get_or_compute), for computations that
    /// may find nothing or that choose the ttl themselves. See [`Entry`].
    ///
    /// # Cancel safety
    /// As [`get_or_compute`](Self::get_or_compute).
    ///
    /// # Errors
    /// As [`get_or_compute`](Self::get_or_compute).
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// use std::time::Duration;
    /// use tenure::Entry;
    ///
    /// let user = tenure::Locks::memory().cache("user:43")?;
    /// let none = async || Ok::<_, std::fmt::Error>(Entry::<String>::absent(Duration::from_secs(30)));
    /// assert_eq!(user.get_or_fill(none).await?, Ok(None));
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn get_or_fill<T: CacheValue, E>(
        &self,
        fill: impl AsyncFnOnce() -> Result<Entry<T>, E>,
    ) -> Result<Result<Option<T>, E>> {
        self.check()?;
        let asked = self.record.engine().now();
        let is_alone = match self.seen().await {
            Ok(Sight::Fresh(value)) => return Ok(Ok(value)),
            Ok(Sight::Stale(value)) if !self.may_refresh() => return Ok(Ok(value)),
            // Boxed, because few reads get here, and otherwise the future of each would be as large.
            Ok(Sight::Stale(value)) => return Box::pin(self.refreshed(value, fill)).await,
            Ok(Sight::Uncached) => true,
            Ok(Sight::Missing) => false,
            Err(error) => self.terms.computes_after(error)?,
        };
        Box::pin(self.share(asked, false, is_alone, fill)).await
    }

    /// Returns a stored value at once, even an expired one, in which case a task on the caller's tokio
    /// runtime computes the next. If there is no value, or no such runtime, the caller computes as in
    /// [`get_or_compute`](Self::get_or_compute).
    ///
    /// # Cancel safety
    /// The task continues.
    ///
    /// # Errors
    /// As [`get_or_compute`](Self::get_or_compute). Errors of the task are reported as events.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> tenure::Result<()> {
    /// use std::time::Duration;
    ///
    /// let page = tenure::Locks::memory().cache("page:/")?.stale(Duration::from_secs(60));
    /// let render = || async { Ok::<_, std::fmt::Error>("<h1>Hello</h1>".to_owned()) };
    /// let page = page.get_or_spawn(Duration::from_secs(5), render).await?.unwrap();
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get_or_spawn<T, E, F>(
        &self,
        ttl: Duration,
        compute: impl FnOnce() -> F + Send + 'static,
    ) -> Result<Result<T, E>>
    where
        T: CacheValue + Send + Sync + 'static,
        E: Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        self.check()?;
        let seen = self.seen::<T>().await;
        if let Ok(Sight::Fresh(Some(value))) = seen {
            return Ok(Ok(value));
        }
        if let Ok(Sight::Stale(Some(value))) = seen
            && runtime::has_tokio()
        {
            if self.may_refresh() {
                let cache = self.clone();
                let fill = async move || compute().await.map(|value| Entry::value(value, ttl));
                runtime::spawn_on_tokio(async move { cache.refresh_unwaited(fill).await });
            }
            return Ok(Ok(value));
        }
        self.get_or_compute(ttl, async || compute().await).await
    }

    /// Returns the stored value, fresh or stale; `None` also if it is known to be absent. Never waits for a
    /// computation.
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
    /// let user = tenure::Locks::memory().cache("user:42")?;
    /// assert_eq!(user.get::<String>().await?, None);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn get<T: CacheValue>(&self) -> Result<Option<T>> {
        self.check()?;
        Ok(match self.seen().await? {
            Sight::Fresh(value) | Sight::Stale(value) => value,
            Sight::Uncached | Sight::Missing => None,
        })
    }

    /// Computes and stores the value even if one is stored. A computation that began before this call does
    /// not count, because it may have read outdated data.
    ///
    /// # Cancel safety
    /// As [`get_or_compute`](Self::get_or_compute).
    ///
    /// # Errors
    /// As [`get_or_compute`](Self::get_or_compute).
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// use std::time::Duration;
    ///
    /// let user = tenure::Locks::memory().cache("user:42")?;
    /// let query = async || Ok::<_, std::fmt::Error>("Grace".to_owned());
    /// assert_eq!(user.refresh(Duration::from_secs(60), query).await?, Ok("Grace".to_owned()));
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn refresh<T: CacheValue, E>(
        &self,
        ttl: Duration,
        compute: impl AsyncFnOnce() -> Result<T, E>,
    ) -> Result<Result<T, E>> {
        self.check()?;
        let asked = self.record.engine().now();
        let fill = async || compute().await.map(|value| Entry::value(value, ttl));
        let filled = self.share(asked, true, false, fill).await?;
        filled.map_or_else(
            |error| Ok(Err(error)),
            |value| value.map(Ok).ok_or_else(|| self.invalid("records an absent value: use `get_or_fill`")),
        )
    }

    /// Discards the value. Any value returned from now on was computed after this call began. Call it after
    /// the commit that outdates the value.
    ///
    /// The result of a computation in progress is not stored, because it may have read the old data.
    ///
    /// # Cancel safety
    /// The request may still be carried out.
    ///
    /// # Errors
    /// The errors of the store: `is_unreachable` and `is_refused`; `is_unknown` if no answer came, in which
    /// case the old value may be returned until it expires: call again.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// # let user = tenure::Locks::memory().cache("user:42")?;
    /// // … the transaction commits …
    /// user.invalidate().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn invalidate(&self) -> Result<()> {
        self.record.void().await
    }

    /// Reads the record.
    async fn seen<T: CacheValue>(&self) -> Result<Sight<T>> {
        let (lock, engine) = (&self.record.lock, self.record.engine());
        let flights = &lock.shared.flights;
        if !flights.may_ask(engine, &lock.full) {
            return Err(Error::silent_lately(self.name(), engine.store.url()));
        }
        let seen = self.record.read().await;
        flights.heard(&seen, engine, &lock.full);
        let seen = seen?;
        let sight = self.look(seen.record.as_ref(), seen.now_us);
        self.record.count(match sight {
            Sight::Fresh(Some(_)) => UseResult::ReadFresh,
            Sight::Fresh(None) => UseResult::ReadAbsent,
            Sight::Stale(_) => UseResult::ReadStale,
            Sight::Uncached | Sight::Missing => UseResult::ReadMissing,
        });
        Ok(sight)
    }

    fn look<T: CacheValue>(&self, record: Option<&Record>, now_us: u64) -> Sight<T> {
        look(record, now_us, self.early, || self.random())
    }

    /// Reads the record without early recomputation.
    async fn there<T: CacheValue>(&self) -> Result<Option<Option<T>>> {
        let seen = self.record.read().await?;
        Ok(match look(seen.record.as_ref(), seen.now_us, 0.0, || 1.0) {
            Sight::Fresh(value) => Some(value),
            _ => None,
        })
    }

    /// A random number in (0, 1].
    fn random(&self) -> f64 {
        ((self.record.engine().runtime.random() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Whether an existing value may be recomputed. It may not for a while after the lock was busy.
    fn may_refresh(&self) -> bool {
        let (lock, engine) = (&self.record.lock, self.record.engine());
        lock.shared.flights.may_try(&lock.full, engine.now())
    }

    /// Recomputes an existing value unless another caller does, and returns the newest known.
    async fn refreshed<T: CacheValue, E>(
        &self,
        value: Option<T>,
        fill: impl AsyncFnOnce() -> Result<Entry<T>, E>,
    ) -> Result<Result<Option<T>, E>> {
        Ok(Ok(match self.refresher().await {
            None => value,
            Some(Led::Found(newer)) => newer,
            Some(Led::Lead(lead)) => self.compute(lead, fill).await?.unwrap_or(value),
        }))
    }

    /// Recomputes an existing value unless another caller does. An error is reported as an event.
    async fn refresh_unwaited<T: CacheValue, E>(&self, fill: impl AsyncFnOnce() -> Result<Entry<T>, E>) {
        if let Some(Led::Lead(lead)) = self.refresher::<T>().await
            && let Err(error) = self.compute(lead, fill).await
        {
            event!(
                WARN,
                target: "tenure",
                "value_not_refreshed",
                "value not refreshed",
                lock = text(self.name()),
                store = text(self.record.engine().store.url()),
                failure = text(error),
            );
        }
    }

    /// Makes this caller the one that recomputes an existing value, unless there is one already.
    async fn refresher<T: CacheValue>(&self) -> Option<Led<'_, Option<T>>> {
        let (lock, engine) = (&self.record.lock, self.record.engine());
        let flights = &lock.shared.flights;
        let flight = flights.join(&lock.full);
        let turn = flight.try_turn()?;
        let (guard, there) = join(lock.acquire(Wait::Once), self.there()).await;
        match guard {
            Ok(Some(guard)) => Some(match there.unwrap_or_default() {
                Some(newer) => Led::Found(newer),
                None => Led::Lead(Lead { flight, guard: Some(guard), _turn: turn }),
            }),
            // Another process is computing, or the store does not answer. Either way there is a value to
            // return.
            Ok(None) | Err(_) => {
                flights.tried(&lock.full, engine.now());
                None
            }
        }
    }

    /// Computes the value, or waits for another caller's.
    async fn share<T: CacheValue, E>(
        &self,
        asked: Moment,
        insists: bool,
        is_alone: bool,
        fill: impl AsyncFnOnce() -> Result<Entry<T>, E>,
    ) -> Result<Result<Option<T>, E>> {
        let suits =
            |result: &FlightResult| result.suits(asked, insists) && value_of::<T>(&result.value).is_some();
        let found = |result: Arc<FlightResult>| ready(value_of::<T>(&result.value));
        let look = || async move { if insists { Ok(None) } else { self.there().await } };
        match self.terms.lead(&self.record.lock, asked, is_alone, suits, found, look).await? {
            Led::Found(value) => Ok(Ok(value)),
            Led::Lead(lead) => self.compute(lead, fill).await,
        }
    }

    /// Computes the value, stores it if this caller has the lock, and publishes it to the waiters.
    async fn compute<T: CacheValue, E>(
        &self,
        Lead { flight, guard, _turn }: Lead<'_>,
        fill: impl AsyncFnOnce() -> Result<Entry<T>, E>,
    ) -> Result<Result<Option<T>, E>> {
        let engine = self.record.engine();
        let begun = engine.now();
        let entry = match fill().await {
            Ok(entry) => entry,
            Err(error) => {
                let took = engine.now().since(begun);
                engine.metrics.filled(meter(&self.record.lock), took, UseResult::FillFailed);
                return Ok(Err(error));
            }
        };
        if entry.ttl < Duration::from_millis(1) || entry.ttl > LONGEST {
            return Err(self.invalid(&format!("needs a ttl between 1ms and 365d, got {:?}", entry.ttl)));
        }
        let bytes = match &entry.value {
            Some(value) => value.encode(),
            None => Ok(Vec::new()),
        };
        let bytes = bytes.map_err(|error| self.invalid(&format!("cannot encode the value: {error}")))?;
        let delta_us = micros(engine.now().since(begun));
        let token = guard.as_ref().map_or(0, Guard::fence);
        let content = if entry.value.is_some() { Content::Value } else { Content::Absent };
        let is_kept = entry.is_kept && bytes.len() <= self.max_bytes;
        // For the waiters in this process, even if the value is too large to be stored.
        let head = Head {
            content,
            soft_us: soft_us(entry.ttl, self.jitter, self.random()),
            hard_us: micros(entry.ttl.saturating_add(self.stale)),
            delta_us,
            token,
        };
        let value: Arc<[u8]> = head.encode(T::CODEC, &bytes).into();
        let sent = engine.now();
        let (is_stored, result) = match guard {
            None => (false, UseResult::FilledAlone),
            Some(guard) => {
                let keep = if is_kept { entry.ttl.saturating_add(self.stale) } else { UNCACHED };
                let mut put = put(guard.owner(), keep, Vec::new());
                let hard_us = micros(UNCACHED);
                put.value = match is_kept {
                    true => Arc::clone(&value),
                    false => Head { content: Content::Uncached, soft_us: hard_us, hard_us, ..head }
                        .encode(T::CODEC, &[])
                        .into(),
                };
                put.then = Then::Release;
                match self.keep(guard, put).await {
                    UseResult::Filled if !is_kept => (false, UseResult::Unkept),
                    result => (result == UseResult::Filled, result),
                }
            }
        };
        engine.metrics.filled(meter(&self.record.lock), sent.since(begun), result);
        flight.publish(FlightResult { value, stored: is_stored.then_some(sent), begun });
        Ok(Ok(entry.value))
    }

    /// Writes the value and releases the lock. A rejected value is no error, because the caller has it.
    async fn keep(&self, guard: Guard, put: Put) -> UseResult {
        guard.set_ending();
        match self.record.put(put).await {
            Ok(RecordAnswer::Stored { .. }) => {
                guard.ended();
                UseResult::Filled
            }
            Ok(_) => {
                event!(
                    DEBUG,
                    target: "tenure",
                    "value_refused",
                    "value refused: its lock was lost meanwhile, or it was invalidated",
                    lock = text(self.name()),
                    store = text(self.record.engine().store.url()),
                );
                UseResult::Refused
            }
            Err(failure) => {
                event!(
                    WARN,
                    target: "tenure",
                    "value_not_kept",
                    "value not stored",
                    lock = text(self.name()),
                    store = text(self.record.engine().store.url()),
                    failure = text(failure),
                );
                UseResult::Unkept
            }
        }
    }

    /// Rejects invalid options.
    fn check(&self) -> Result<()> {
        let what = match self {
            Self { stale, .. } if *stale > LONGEST => {
                format!("stale must be at most 365d, got {stale:?}")
            }
            Self { terms: LeadTerms { wait, .. }, .. } if *wait > LONGEST => {
                format!("wait must be at most 365d, got {wait:?}")
            }
            Self { early, .. } if !(0.0..=1_000.0).contains(early) => {
                format!("early must be between 0 and 1000, got {early}")
            }
            Self { jitter, .. } if !(0.0..=1.0).contains(jitter) => {
                format!("jitter must be between 0 and 1, got {jitter}")
            }
            Self { max_bytes, .. } if *max_bytes > VALUE_MAX => {
                format!("max_bytes must be at most 8 MiB, got {max_bytes}")
            }
            _ => return Ok(()),
        };
        Err(Error::invalid(format!("cache {}: {what}", self.name().quoted())))
    }

    fn invalid(&self, what: &str) -> Error {
        Error::invalid(format!("cache {} {what}", self.name().quoted()))
    }
}

/// The value of a record that was just computed.
fn value_of<T: CacheValue>(record: &[u8]) -> Option<Option<T>> {
    match Head::decode(record)? {
        (Head { content: Content::Absent, .. }, ..) => Some(None),
        (Head { content: Content::Value, .. }, codec, bytes) if codec == T::CODEC => {
            T::decode(bytes).ok().map(Some)
        }
        _ => None,
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cache").field(self.name()).finish()
    }
}
