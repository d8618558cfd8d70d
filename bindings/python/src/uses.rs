//! Uses of locks: caches, jobs that run once, elections.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tenure::{CacheValue, Entry, Observer, Period, bindings};
use tokio::sync::watch;

use crate::error;
use crate::locks::{Root, checked, guarded};
use crate::op::{Convert, Op, converted, raised, told};
use crate::process::{Owned, lock};
use crate::question::{Ask, Question};
use crate::values;

/// Encoded values of a codec.
trait Encoded: CacheValue + Send + 'static {
    fn new(bytes: Vec<u8>) -> Self;
    fn into_bytes(self) -> Vec<u8>;
}

macro_rules! encoded {
    ($name:ident, $codec:literal, $check:expr) => {
        struct $name(Vec<u8>);

        impl CacheValue for $name {
            const CODEC: &'static str = $codec;

            fn encode(&self) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
                Ok(self.0.clone())
            }

            fn decode(bytes: &[u8]) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
                let check: fn(&[u8]) -> Result<(), std::str::Utf8Error> = $check;
                check(bytes)?;
                Ok(Self(bytes.to_vec()))
            }
        }

        impl Encoded for $name {
            fn new(bytes: Vec<u8>) -> Self {
                Self(bytes)
            }

            fn into_bytes(self) -> Vec<u8> {
                self.0
            }
        }
    };
}

encoded!(Bytes, "bytes", |_| Ok(()));
encoded!(Pickle, "pickle", |_| Ok(()));
encoded!(OfPython, "python", |_| Ok(()));
encoded!(Text, "text", |bytes| std::str::from_utf8(bytes).map(drop));
encoded!(Json, "json", |bytes| std::str::from_utf8(bytes).map(drop));

/// The encoded value, `None` if there is none, and the seconds for which it is fresh, `None` for a value that
/// is not to be kept.
type Computed = (Option<Vec<u8>>, Option<f64>);

const COMPUTE: Ask = Ask { what: "compute", fence: None };

async fn entry<T: Encoded>(question: &Question<Computed>) -> PyResult<Entry<T>> {
    let (bytes, ttl) = question.ask(COMPUTE).await?;
    let ttl = ttl.map(|ttl| error::seconds("ttl", ttl)).transpose()?;
    Ok(match (bytes, ttl) {
        (Some(bytes), Some(ttl)) => Entry::value(T::new(bytes), ttl),
        (Some(bytes), None) => Entry::uncached(T::new(bytes)),
        (None, ttl) => Entry::absent(ttl.unwrap_or_default()),
    })
}

/// A cached value.
#[pyclass(frozen, module = "tenure._native")]
pub struct Cache {
    cache: Owned<tenure::Cache>,
    _root: Owned<Arc<Root>>,
}

impl Cache {
    pub fn new(cache: tenure::Cache, root: Arc<Root>) -> Self {
        Self { cache: Owned::new(cache), _root: Owned::new(root) }
    }
}

/// `(value,)`, or `None` for a value that is missing or known to be absent.
fn value_of<T: Encoded>(py: Python<'_>, value: Option<T>) -> PyResult<Py<PyAny>> {
    Ok(value.map(|value| PyBytes::new(py, &value.into_bytes())).into_pyobject(py)?.unbind())
}

async fn read<T: Encoded>(cache: tenure::Cache) -> Convert {
    converted(cache.get::<T>().await, value_of)
}

async fn compute<T: Encoded>(cache: tenure::Cache, question: Arc<Question<Computed>>) -> Convert {
    let computed = cache.get_or_fill(async || entry::<T>(&question).await).await;
    converted(computed, |py, computed| value_of(py, computed?))
}

async fn refresh<T: Encoded>(cache: tenure::Cache, question: Arc<Question<Computed>>) -> Convert {
    let computed = bindings::refill(&cache, async || entry::<T>(&question).await).await;
    converted(computed, |py, computed| value_of(py, computed?))
}

/// Makes a call for the type of a codec.
macro_rules! by_codec {
    ($codec:expr, $call:ident($($argument:expr),*)) => {
        match $codec {
            "json" => Op::new($call::<Json>($($argument),*)),
            "text" => Op::new($call::<Text>($($argument),*)),
            "pickle" => Op::new($call::<Pickle>($($argument),*)),
            "python" => Op::new($call::<OfPython>($($argument),*)),
            _ => Op::new($call::<Bytes>($($argument),*)),
        }
    };
}

#[pymethods]
impl Cache {
    #[pyo3(signature = (*, stale, wait, overdue, outage, early, jitter, max_bytes))]
    #[expect(clippy::too_many_arguments, reason = "one for each option")]
    fn configured(
        &self,
        stale: f64,
        wait: f64,
        overdue: &str,
        outage: &str,
        early: f64,
        jitter: f64,
        max_bytes: usize,
    ) -> PyResult<Self> {
        let cache = self.cache.get()?.clone().stale(error::seconds("stale", stale)?);
        let cache = cache.wait(error::seconds("wait", wait)?);
        let cache =
            cache.overdue(checked(bindings::overdue(overdue))?).outage(checked(bindings::outage(outage))?);
        let cache = cache.early(early).jitter(jitter).max_bytes(max_bytes);
        let root = Arc::clone(self._root.get()?);
        Ok(Self::new(cache, root))
    }

    /// The stored bytes. `codec` is `bytes`, `text`, `json`, `pickle`, or `python` for functions.
    fn get(&self, codec: &str) -> PyResult<Op> {
        let cache = self.cache.get()?.clone();
        Ok(by_codec!(codec, read(cache)))
    }

    /// The stored bytes, or those that Python computes: `(bytes or None, ttl or None)`.
    fn compute(&self, codec: &str) -> PyResult<Op> {
        let (cache, question) = (self.cache.get()?.clone(), Arc::new(Question::default()));
        let asked = Arc::clone(&question);
        Ok(by_codec!(codec, compute(cache, question)).with_exchange(asked))
    }

    /// Like `compute`, but computes even if bytes are stored.
    fn refresh(&self, codec: &str) -> PyResult<Op> {
        let (cache, question) = (self.cache.get()?.clone(), Arc::new(Question::default()));
        let asked = Arc::clone(&question);
        Ok(by_codec!(codec, refresh(cache, question)).with_exchange(asked))
    }

    fn invalidate(&self) -> PyResult<Op> {
        let cache = self.cache.get()?.clone();
        Ok(Op::new(async move { told(cache.invalidate().await) }))
    }
}

/// A job that runs once in each window.
#[pyclass(frozen, module = "tenure._native")]
pub struct OncePer {
    job: Owned<tenure::OncePer>,
    root: Owned<Arc<Root>>,
    failed: Failed,
}

/// The exception of the function of windows, for the call that needed a window.
type Failed = Arc<Mutex<Option<PyErr>>>;

/// Calls a Python function that returns the window of a time, in seconds since 1970.
fn window(function: &Py<PyAny>, failed: &Failed, now: SystemTime) -> Range<SystemTime> {
    let time = |seconds: f64| UNIX_EPOCH + Duration::try_from_secs_f64(seconds).unwrap_or_default();
    Python::attach(|py| {
        let range = function.bind(py).call1((values::seconds(now),));
        match range.and_then(|range| range.extract::<(f64, f64)>()) {
            Ok((from, to)) => time(from)..time(to),
            Err(error) => {
                *lock(failed) = Some(error);
                UNIX_EPOCH..UNIX_EPOCH // an empty window is invalid
            }
        }
    })
}

/// The windows of a cron expression, of days, weeks or months.
fn of_calendar(kind: &str, at: &Bound<'_, PyAny>, zone: Option<&str>) -> PyResult<Period> {
    let time = || error::seconds("time", at.extract::<f64>()?);
    let period = match kind {
        "daily" => Period::daily(time()?),
        "weekly" => Period::weekly(time()?),
        #[cfg(feature = "schedule")]
        "monthly" => checked(Period::monthly(time()?))?,
        #[cfg(feature = "schedule")]
        "cron" => checked(Period::cron(&at.extract::<String>()?))?,
        _ => return Err(error::unsupported("this build is without the feature schedule")),
    };
    match zone {
        #[cfg(feature = "schedule")]
        Some(zone) => checked(period.in_zone(zone)),
        #[cfg(not(feature = "schedule"))]
        Some(_) => Err(error::unsupported("this build is without the feature schedule")),
        None => Ok(period),
    }
}

impl OncePer {
    /// `period` is a number of seconds, `(kind, text or seconds, zone or None)`, or a function.
    pub fn new(
        root: Arc<Root>,
        locks: &tenure::Locks,
        name: &str,
        period: &Bound<'_, PyAny>,
        open_for: Option<f64>,
        frees: &str,
        again: bool,
    ) -> PyResult<Self> {
        let failed = Failed::default();
        let mut windows = if let Ok(seconds) = period.extract::<f64>() {
            Period::every(error::seconds("period", seconds)?)
        } else if let Ok((kind, at, zone)) = period.extract::<(String, Bound<'_, PyAny>, Option<String>)>() {
            of_calendar(&kind, &at, zone.as_deref())?
        } else {
            let (function, failed) = (period.clone().unbind(), Arc::clone(&failed));
            Period::new(move |now| window(&function, &failed, now))
        };
        if let Some(open_for) = open_for {
            windows = windows.open_for(error::seconds("open_for", open_for)?);
        }
        let frees = checked(bindings::frees(frees))?;
        let job = checked(locks.once_per(name, windows))?.frees(frees).again(again);
        Ok(Self { job: Owned::new(job), root: Owned::new(root), failed })
    }
}

#[pymethods]
impl OncePer {
    /// Begins a run: a hold, or `None` if the job has run or is running.
    fn begin(&self) -> PyResult<Op> {
        let (job, root) = (self.job.get()?.clone(), Arc::clone(self.root.get()?));
        let failed = Arc::clone(&self.failed);
        Ok(Op::new(async move {
            let turn = job.try_begin().await;
            let failed = turn.is_err().then(|| lock(&failed).take()).flatten();
            match failed {
                Some(error) => raised(error),
                None => guarded(root, turn),
            }
        }))
    }

    /// Waits until the job may begin, and begins it: a hold, or `None` once `stop` is set.
    fn begin_until(&self, stop: &Stop) -> PyResult<Op> {
        let (job, root) = (self.job.get()?.clone(), Arc::clone(self.root.get()?));
        let (failed, end) = (Arc::clone(&self.failed), stop.wait()?);
        Ok(Op::new(async move {
            let turn = job.begin_until(end).await;
            let error = turn.is_err().then(|| lock(&failed).take()).flatten();
            match error {
                Some(error) => raised(error),
                None => guarded(root, turn),
            }
        }))
    }

    fn last(&self) -> PyResult<Op> {
        let job = self.job.get()?.clone();
        Ok(Op::new(async move { told(job.last().await) }))
    }

    /// Asks the runner to stop: its run, or `None` if the job is not running.
    fn request_stop(&self, reason: String) -> PyResult<Op> {
        let job = self.job.get()?.clone();
        Ok(Op::new(async move { told(job.request_stop(&reason).await) }))
    }

    fn reset(&self) -> PyResult<Op> {
        let job = self.job.get()?.clone();
        Ok(Op::new(async move { told(job.reset().await) }))
    }
}

/// Ends waits of jobs and candidates, without the loss of a run.
#[pyclass(frozen, module = "tenure._native")]
pub struct Stop(Owned<watch::Sender<bool>>);

impl Stop {
    fn wait(&self) -> PyResult<impl Future<Output = ()> + use<>> {
        let mut stopped = self.0.get()?.subscribe();
        Ok(async move {
            // An error means that nobody can set it any more.
            let _ = stopped.wait_for(|stopped| *stopped).await;
        })
    }
}

#[pymethods]
impl Stop {
    #[new]
    fn new() -> Self {
        Self(Owned::new(watch::Sender::new(false)))
    }

    fn set(&self) -> PyResult<()> {
        self.0.get()?.send_replace(true);
        Ok(())
    }
}

/// An election of one leader.
#[pyclass(frozen, module = "tenure._native")]
pub struct Election {
    election: Owned<tenure::Election>,
    root: Owned<Arc<Root>>,
}

impl Election {
    pub fn new(election: tenure::Election, root: Arc<Root>) -> Self {
        Self { election: Owned::new(election), root: Owned::new(root) }
    }
}

#[pymethods]
impl Election {
    /// Waits until this process leads.
    fn campaign(&self) -> PyResult<Op> {
        let (election, root) = (self.election.get()?.clone(), Arc::clone(self.root.get()?));
        Ok(Op::new(async move {
            let term = election.campaign().await;
            guarded(root, term.map(Some))
        }))
    }

    fn leader(&self) -> PyResult<Op> {
        let election = self.election.get()?.clone();
        Ok(Op::new(async move { told(election.leader().await) }))
    }

    /// Asks the leader to stop, and returns it, or `None` if nobody leads.
    fn request_stop(&self, reason: String) -> PyResult<Op> {
        let election = self.election.get()?.clone();
        Ok(Op::new(async move { told(election.request_stop(&reason).await) }))
    }

    fn observe(&self) -> PyResult<Changes> {
        Ok(Changes(Owned::new(Arc::new(tokio::sync::Mutex::new(self.election.get()?.observe())))))
    }

    fn candidacy(&self) -> PyResult<Candidacy> {
        let candidacy = bindings::Candidacy::new(self.election.get()?.clone());
        let candidacy = Owned::new(Arc::new(tokio::sync::Mutex::new(candidacy)));
        Ok(Candidacy { candidacy, root: Owned::new(Arc::clone(self.root.get()?)) })
    }
}

/// A candidate that leads again and again.
#[pyclass(frozen, module = "tenure._native")]
pub struct Candidacy {
    candidacy: Owned<Arc<tokio::sync::Mutex<bindings::Candidacy>>>,
    root: Owned<Arc<Root>>,
}

#[pymethods]
impl Candidacy {
    /// Waits until this process leads again: a hold, or `None` once `stop` is set.
    fn campaign_until(&self, stop: &Stop) -> PyResult<Op> {
        let (candidacy, root) = (Arc::clone(self.candidacy.get()?), Arc::clone(self.root.get()?));
        let end = stop.wait()?;
        Ok(Op::new(async move {
            let term = candidacy.lock().await.campaign_until(end).await;
            guarded(root, term)
        }))
    }
}

/// The changes of an election.
#[pyclass(frozen, module = "tenure._native")]
pub struct Changes(Owned<Arc<tokio::sync::Mutex<Observer>>>);

#[pymethods]
impl Changes {
    /// Waits for the next change.
    fn next(&self) -> PyResult<Op> {
        let observer = Arc::clone(self.0.get()?);
        Ok(Op::new(async move { told(observer.lock().await.next().await) }))
    }

    /// The next change if it is known already, or `None`.
    fn try_next(&self) -> PyResult<Op> {
        let observer = Arc::clone(self.0.get()?);
        Ok(Op::new(async move { told(observer.lock().await.try_next().await) }))
    }
}
