use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::RecordHandle;
use super::entry::{Entry, Sight};
use super::fill::{Outage, Overdue, WaitPolicy, computing};
use super::value::CacheValue;
use crate::engine::engine_handle::EngineHandle;
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::options::Options;
use crate::protocol::LockSpec;
use crate::protocol::record::VALUE_MAX;
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
    pub(super) record: RecordHandle,
    pub(super) stale: Duration,
    pub(super) policy: WaitPolicy,
    pub(super) early: f64,
    pub(super) jitter: f64,
    pub(super) max_bytes: usize,
}

/// Reason for refusing caches where the client decides.
const NO_CACHE: &str = "its servers have no common clock, and values that are often rewritten do not belong in \
                        a replicated log: use `fill` with a cache of your own";
/// Maximum of every duration set here.
pub(super) const LONGEST: Duration = Duration::from_secs(365 * 86_400);

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
            policy: WaitPolicy::default(),
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
        self.policy.wait = wait;
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
        self.policy.overdue = overdue;
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
        self.policy.outage = outage;
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
        self.present(filled)
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
            Ok(Sight::Stale(value, _)) if !self.may_refresh() => return Ok(Ok(value)),
            // Boxed, because few reads get here, and otherwise the future of each would be as large.
            Ok(Sight::Stale(value, token)) => {
                return Box::pin(self.refreshed((value, token), fill)).await;
            }
            Ok(Sight::Uncached) => true,
            Ok(Sight::Missing) => false,
            Err(error) => self.policy.computes_after(error)?,
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
        if let Ok(Sight::Stale(Some(value), token)) = seen
            && runtime::has_tokio()
        {
            if self.may_refresh() {
                let cache = self.clone();
                let fill = async move || compute().await.map(|value| Entry::value(value, ttl));
                runtime::spawn_on_tokio(async move { cache.refresh_unwaited(token, fill).await });
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
            Sight::Fresh(value) | Sight::Stale(value, _) => value,
            Sight::Uncached | Sight::Missing => None,
        })
    }

    /// Computes and stores the value even if one is stored. A computation that began before this call does
    /// not count, because it may have read outdated data. It is waited for, and its value discarded if that
    /// takes longer than [`wait`](Self::wait).
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
        let filled = self.refill(async || compute().await.map(|value| Entry::value(value, ttl))).await?;
        self.present(filled)
    }

    /// As [`refresh`](Self::refresh), with the ttl and the kind of entry that `fill` returns.
    pub(crate) async fn refill<T: CacheValue, E>(
        &self,
        fill: impl AsyncFnOnce() -> Result<Entry<T>, E>,
    ) -> Result<Result<Option<T>, E>> {
        self.check()?;
        let asked = self.record.engine().now();
        self.share(asked, true, false, fill).await
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

    /// Rejects invalid options.
    fn check(&self) -> Result<()> {
        let what = match self {
            Self { stale, .. } if *stale > LONGEST => {
                format!("stale must be at most 365d, got {stale:?}")
            }
            Self { policy: WaitPolicy { wait, .. }, .. } if *wait > LONGEST => {
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

    /// The value of a computation that always has one.
    fn present<T, E>(&self, filled: Result<Option<T>, E>) -> Result<Result<T, E>> {
        let absent = || self.invalid("records an absent value: use `get_or_fill`");
        filled.map_or_else(|error| Ok(Err(error)), |value| value.map(Ok).ok_or_else(absent))
    }

    pub(super) fn invalid(&self, what: &str) -> Error {
        Error::invalid(format!("cache {} {what}", self.name().quoted()))
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cache").field(self.name()).finish()
    }
}
