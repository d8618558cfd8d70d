//! Uses of locks: caches, jobs that run once, elections.

use std::sync::Arc;
use std::time::Duration;

use napi_derive::napi;
use tenure::{CacheValue, Entry, Frees, Outage, Overdue, Period};

use crate::channel::{Outcome, Refused, Thread};
use crate::error::{Failure, Result, checked, invalid, millis};
use crate::hold::Held;
use crate::store::{Handle, Source, Store, Stream};
use crate::value::Value;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// JSON that JavaScript encodes. Text and bytes are values of the library.
struct Json(Vec<u8>);

impl CacheValue for Json {
    const CODEC: &'static str = "json";

    fn encode(&self) -> std::result::Result<Vec<u8>, Failed> {
        Ok(self.0.clone())
    }

    fn decode(bytes: &[u8]) -> std::result::Result<Self, Failed> {
        std::str::from_utf8(bytes)?;
        Ok(Self(bytes.to_vec()))
    }
}

/// JavaScript replaces this failure by its own error; without one its thread has ended.
fn refused(_: Refused) -> Failure {
    Failure::new("closed", "the locks are closed")
}

/// Whether to compute, the default, or to fail.
fn computes(what: &str, text: Option<&str>) -> Result<bool> {
    match text {
        None | Some("compute") => Ok(true),
        Some("fail") => Ok(false),
        Some(other) => Err(invalid(format!("{what}: got {other:?}, expected compute or fail"))),
    }
}

fn overdue_of(text: Option<&str>) -> Result<Overdue> {
    Ok(if computes("overdue", text)? { Overdue::Compute } else { Overdue::Fail })
}

fn outage_of(text: Option<&str>) -> Result<Outage> {
    Ok(if computes("outage", text)? { Outage::Compute } else { Outage::Fail })
}

/// How a value is cached. Times are in milliseconds.
#[napi(object)]
pub struct CacheSpec {
    pub name: String,
    /// `json`, `text` or `bytes`.
    pub codec: String,
    pub stale: Option<f64>,
    pub wait: Option<f64>,
    pub overdue: Option<String>,
    pub outage: Option<String>,
    pub early: Option<f64>,
    pub jitter: Option<f64>,
    pub max_bytes: Option<u32>,
}

fn cache_of(locks: &tenure::Locks, spec: CacheSpec) -> Result<tenure::Cache> {
    let mut cache = checked(locks.cache(spec.name))?
        .overdue(overdue_of(spec.overdue.as_deref())?)
        .outage(outage_of(spec.outage.as_deref())?)
        .stale(millis("stale", spec.stale.unwrap_or_default())?);
    if let Some(wait) = spec.wait {
        cache = cache.wait(millis("wait", wait)?);
    }
    if let Some(early) = spec.early {
        cache = cache.early(early);
    }
    if let Some(jitter) = spec.jitter {
        cache = cache.jitter(jitter);
    }
    Ok(match spec.max_bytes {
        Some(most) => cache.max_bytes(most as usize),
        None => cache,
    })
}

/// Returns the stored bytes for `get`; for `compute`, computes those that are missing, and for `refresh` replaces them. A
/// computed value without a time is not kept, and a time without a value is for its absence.
async fn cached<T: CacheValue + Send + 'static>(
    cache: tenure::Cache,
    what: String,
    ttl: Duration,
    thread: Arc<Thread>,
    id: u32,
) -> Outcome {
    let compute = || thread.ask(id, "compute", None);
    let value = match what.as_str() {
        "get" => cache.get::<T>().await?,
        "compute" => {
            let computed = cache.get_or_fill(async || {
                Ok(match compute().await? {
                    (Some(bytes), Some(ttl)) => Entry::value(decoded::<T>(&bytes)?, ttl),
                    (Some(bytes), None) => Entry::uncached(decoded::<T>(&bytes)?),
                    (None, ttl) => Entry::absent(ttl.unwrap_or_default()),
                })
            });
            computed.await?.map_err(refused)?
        }
        _ => {
            let computed = cache.refresh(ttl, async || decoded::<T>(&compute().await?.0.ok_or(Refused)?));
            Some(computed.await?.map_err(refused)?)
        }
    };
    let bytes = value.map(|value| value.encode()).transpose();
    Ok(bytes.map_err(|error| Failure::new("invalid", error.to_string()))?.into())
}

/// The value of bytes that JavaScript encoded, which are of the codec.
fn decoded<T: CacheValue>(bytes: &[u8]) -> std::result::Result<T, Refused> {
    T::decode(bytes).map_err(|_| Refused)
}

#[napi]
impl Store {
    /// The stored bytes: of `get`, `compute` or `refresh`.
    #[napi]
    pub fn cache(&self, id: u32, spec: CacheSpec, what: String, ttl: f64) -> Result<()> {
        let (codec, handle, ttl) = (spec.codec.clone(), self.handle(), millis("ttl", ttl)?);
        let (cache, thread) = (cache_of(&self.locks()?, spec)?, Arc::clone(handle.thread()));
        match codec.as_str() {
            "json" => handle.call(id, cached::<Json>(cache, what, ttl, thread, id)),
            "text" => handle.call(id, cached::<String>(cache, what, ttl, thread, id)),
            "bytes" => handle.call(id, cached::<Vec<u8>>(cache, what, ttl, thread, id)),
            other => return Err(invalid(format!("codec: got {other:?}, expected json, text or bytes"))),
        }
        Ok(())
    }

    #[napi]
    pub fn cache_invalidate(&self, id: u32, spec: CacheSpec) -> Result<()> {
        let cache = cache_of(&self.locks()?, spec)?;
        self.start(id, async move |_| Ok(cache.invalidate().await?.into()))
    }

    /// Asks for `get` and, if there is no value, perhaps for `compute` with a token, which is missing without the lock.
    /// JavaScript keeps the values.
    #[napi]
    pub fn fill(
        &self,
        id: u32,
        name: String,
        wait: Option<f64>,
        overdue: Option<String>,
        outage: Option<String>,
    ) -> Result<()> {
        let mut fill = checked(self.locks()?.fill(name))?
            .overdue(overdue_of(overdue.as_deref())?)
            .outage(outage_of(outage.as_deref())?);
        if let Some(wait) = wait {
            fill = fill.wait(millis("wait", wait)?);
        }
        let thread = Arc::clone(self.handle().thread());
        self.start(id, async move |_| {
            let get = || async { Ok(thread.ask(id, "get", None).await?.0.map(drop)) };
            let compute = async |guard: Option<&tenure::Guard>| {
                thread.ask(id, "compute", guard.map(tenure::Guard::fence)).await.map(drop)
            };
            fill.run(get, compute).await?.map_err(refused)?;
            Ok(Value::Null)
        })
    }

    /// Begins a run: a hold, or `null` if the job has run or is running.
    #[napi]
    pub fn begin(&self, id: u32, spec: JobSpec) -> Result<()> {
        let (job, handle) = (job_of(&self.locks()?, spec)?, self.handle().clone());
        self.start(id, async move |_| Ok(begun(&handle, job.try_begin().await?)))
    }

    /// Waits until the job may begin, and begins it: a hold, or `null` once the call is answered.
    #[napi]
    pub fn begin_next(&self, id: u32, spec: JobSpec) -> Result<()> {
        let (job, handle) = (job_of(&self.locks()?, spec)?, self.handle().clone());
        let stop = handle.thread().answer(id);
        self.start(id, async move |_| {
            let end = async { drop(stop.await) };
            Ok(begun(&handle, job.begin_until(end).await?))
        })
    }

    /// The most recent run for `last`, that of the runner that is asked to `stop`; `reset` forgets it.
    #[napi]
    pub fn job(&self, id: u32, spec: JobSpec, what: String, reason: String) -> Result<()> {
        let job = job_of(&self.locks()?, spec)?;
        self.start(id, async move |_| {
            Ok(match what.as_str() {
                "last" => job.last().await?.into(),
                "stop" => job.request_stop(&reason).await?.into(),
                _ => job.reset().await?.into(),
            })
        })
    }

    /// Waits until this process leads.
    #[napi]
    pub fn campaign(&self, id: u32, name: String, payload: String) -> Result<()> {
        let (election, handle) = (checked(self.locks()?.election(name, payload))?, self.handle().clone());
        self.start(id, async move |_| {
            let term = election.campaign().await?;
            Ok(handle.granted(Some(Held::Term(Box::new(term)))))
        })
    }

    /// The leader, or `null`. It is asked to stop if there is a reason.
    #[napi]
    pub fn leader(&self, id: u32, name: String, stop: Option<String>) -> Result<()> {
        let election = checked(self.locks()?.election(name, ""))?;
        self.start(id, async move |_| {
            Ok(match stop {
                Some(reason) => election.request_stop(&reason).await?.into(),
                None => election.leader().await?.into(),
            })
        })
    }

    /// The changes of leadership.
    #[napi]
    pub fn observe(&self, name: String) -> Result<Stream> {
        Ok(self.stream(Source::Changes(checked(self.locks()?.election(name, ""))?.observe())))
    }
}

/// A job, and its windows.
#[napi(object)]
pub struct JobSpec {
    pub name: String,
    /// `every`, `daily`, `weekly`, `monthly` or `cron`.
    pub period: String,
    /// The length, or the time after the start of the day, week or month, in milliseconds.
    pub time: Option<f64>,
    /// Of `cron`.
    pub expression: Option<String>,
    pub zone: Option<String>,
    pub open_for: Option<f64>,
    /// `nothing`, `failure` or `failure_or_loss`.
    pub reopens_on: Option<String>,
    pub again: Option<bool>,
}

fn period_of(spec: &JobSpec) -> Result<Period> {
    let time = millis("time", spec.time.unwrap_or_default())?;
    let period = match spec.period.as_str() {
        "every" => Period::every(time),
        "daily" => Period::daily(time),
        "weekly" => Period::weekly(time),
        "monthly" => checked(Period::monthly(time))?,
        "cron" => checked(Period::cron(spec.expression.as_deref().unwrap_or_default()))?,
        other => return Err(invalid(format!("period: got {other:?}"))),
    };
    spec.zone.as_deref().map_or(Ok(period.clone()), |zone| checked(period.in_zone(zone)))
}

fn job_of(locks: &tenure::Locks, spec: JobSpec) -> Result<tenure::OncePer> {
    let mut period = period_of(&spec)?;
    if let Some(open_for) = spec.open_for {
        period = period.open_for(millis("openFor", open_for)?);
    }
    let frees = match spec.reopens_on.as_deref() {
        None => Frees::default(),
        Some("nothing") => Frees::Nothing,
        Some("failure") => Frees::Failure,
        Some("failure_or_loss") => Frees::FailureOrLoss,
        Some(other) => {
            let expected = "expected nothing, failure or failure_or_loss";
            return Err(invalid(format!("reopensOn: got {other:?}, {expected}")));
        }
    };
    let job = checked(locks.once_per(spec.name, period))?.frees(frees);
    Ok(job.again(spec.again.unwrap_or_default()))
}

fn begun(handle: &Handle, turn: Option<tenure::Turn>) -> Value {
    handle.granted(turn.map(|turn| Held::Turn(Box::new(turn))))
}
