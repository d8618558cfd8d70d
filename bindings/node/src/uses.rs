//! Uses of locks: caches, jobs that run once, elections.

use std::sync::Arc;
use std::time::Duration;

use napi_derive::napi;
use tenure::bindings::{self, Candidacy, Report};
use tenure::{CacheValue, Entry, Period};

use crate::channel::{Outcome, Refused, Thread};
use crate::error::{Failure, Result, Time, checked, duration, invalid, whole};
use crate::store::{Source, Store, Stream};
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

/// What an optional word names.
fn or_default<T: Default>(word: Option<String>, named: fn(&str) -> tenure::Result<T>) -> Result<T> {
    word.map_or(Ok(T::default()), |word| checked(named(&word)))
}

/// JavaScript replaces this failure by its own error; without one its thread has ended.
fn refused(_: Refused) -> Failure {
    Failure::new("closed", "the locks are closed")
}

/// How a value is cached.
#[napi(object)]
pub struct CacheSpec {
    pub name: String,
    /// How long a value is fresh.
    pub ttl: Time,
    /// How values are written. A value that `json` would change silently is an error. Default: `json`.
    #[napi(ts_type = "'json' | 'text' | 'bytes'")]
    pub codec: Option<String>,
    /// How long after its ttl a value may still be returned while one caller computes the next.
    pub stale: Option<Time>,
    /// How long a caller waits for another caller's computation. Default: 5 s.
    pub wait: Option<Time>,
    /// What it does then: compute too, or fail with the code `overdue`. Default: `compute`.
    #[napi(ts_type = "'compute' | 'fail'")]
    pub overdue: Option<String>,
    /// What it does if the store does not answer. Default: `compute`.
    #[napi(ts_type = "'compute' | 'fail'")]
    pub outage: Option<String>,
    /// How eagerly one caller recomputes before the value expires. Default: 1.
    pub early: Option<f64>,
    /// The share of its ttl by which a value expires early, at random. Default: 0.1.
    pub jitter: Option<f64>,
    pub max_bytes: Option<f64>,
}

fn cache_of(locks: &tenure::Locks, spec: CacheSpec) -> Result<tenure::Cache> {
    let mut cache = checked(locks.cache(spec.name))?
        .overdue(or_default(spec.overdue, bindings::overdue)?)
        .outage(or_default(spec.outage, bindings::outage)?)
        .stale(duration("stale", &spec.stale.unwrap_or(Time::A(0.0)))?);
    if let Some(wait) = spec.wait {
        cache = cache.wait(duration("wait", &wait)?);
    }
    if let Some(early) = spec.early {
        cache = cache.early(early);
    }
    if let Some(jitter) = spec.jitter {
        cache = cache.jitter(jitter);
    }
    Ok(match spec.max_bytes {
        Some(most) => cache.max_bytes(whole("maxBytes", most)? as usize),
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
    bytes.map(Value::of).map_err(|error| Failure::new("invalid", error.to_string()))
}

/// The value of bytes that JavaScript encoded, which are of the codec.
fn decoded<T: CacheValue>(bytes: &[u8]) -> std::result::Result<T, Refused> {
    T::decode(bytes).map_err(|_| Refused)
}

#[napi]
impl Store {
    /// The stored bytes: of `get`, `compute` or `refresh`.
    #[napi]
    pub fn cache(&self, id: u32, spec: CacheSpec, what: String) -> Result<()> {
        let (codec, handle, ttl) = (spec.codec.clone(), self.handle(), duration("ttl", &spec.ttl)?);
        let (cache, thread) = (cache_of(&self.locks()?, spec)?, Arc::clone(handle.thread()));
        match codec.as_deref().unwrap_or("json") {
            "json" => handle.call(id, cached::<Json>(cache, what, ttl, thread, id)),
            "text" => handle.call(id, cached::<String>(cache, what, ttl, thread, id)),
            "bytes" => handle.call(id, cached::<Vec<u8>>(cache, what, ttl, thread, id)),
            other => return Err(invalid(format!("codec: got {other:?}, expected json, text or bytes"))),
        }
        Ok(())
    }

    /// Refuses invalid options, except for a codec.
    #[napi]
    pub fn check_cache(&self, spec: CacheSpec) -> Result<()> {
        cache_of(&self.locks()?, spec).map(drop)
    }

    #[napi]
    pub fn cache_invalidate(&self, id: u32, spec: CacheSpec) -> Result<()> {
        let cache = cache_of(&self.locks()?, spec)?;
        self.start(id, async move |_| cache.invalidate().await)
    }

    /// Asks for `get` and, if there is no value, perhaps for `compute` with a token, which is missing without the lock.
    /// JavaScript keeps the values.
    #[napi]
    pub fn fill(
        &self,
        id: u32,
        name: String,
        wait: Option<Time>,
        overdue: Option<String>,
        outage: Option<String>,
    ) -> Result<()> {
        let mut fill = checked(self.locks()?.fill(name))?
            .overdue(or_default(overdue, bindings::overdue)?)
            .outage(or_default(outage, bindings::outage)?);
        if let Some(wait) = wait {
            fill = fill.wait(duration("wait", &wait)?);
        }
        let thread = Arc::clone(self.handle().thread());
        self.handle().call(id, async move {
            let get = || async { Ok(thread.ask(id, "get", None).await?.0.map(drop)) };
            let compute = async |guard: Option<&tenure::Guard>| {
                thread.ask(id, "compute", guard.map(tenure::Guard::fence)).await.map(drop)
            };
            fill.run(get, compute).await?.map_err(refused)?;
            Ok(Value::NULL)
        });
        Ok(())
    }

    /// Refuses invalid options and schedules.
    #[napi]
    pub fn check_job(&self, spec: JobSpec) -> Result<()> {
        job_of(&self.locks()?, spec).map(drop)
    }

    /// Begins a run: a hold, or `null` if the job has run or is running.
    #[napi]
    pub fn begin(&self, id: u32, spec: JobSpec) -> Result<()> {
        let job = job_of(&self.locks()?, spec)?;
        self.handle().grant(id, async move { job.try_begin().await });
        Ok(())
    }

    /// Waits until the job may begin, and begins it: a hold, or `null` once the call is answered.
    #[napi]
    pub fn begin_next(&self, id: u32, spec: JobSpec) -> Result<()> {
        let (job, stop) = (job_of(&self.locks()?, spec)?, self.handle().thread().answer(id));
        self.handle().grant(id, async move { job.begin_until(async { drop(stop.await) }).await });
        Ok(())
    }

    /// The most recent run for `last`, that of the runner that is asked to `stop`; `reset` forgets it.
    #[napi]
    pub fn job(&self, id: u32, spec: JobSpec, what: String, reason: String) -> Result<()> {
        let job = job_of(&self.locks()?, spec)?;
        self.start(id, async move |_| {
            Ok(match what.as_str() {
                "last" => Report::from(job.last().await?),
                "stop" => job.request_stop(&reason).await?.into(),
                _ => job.reset().await?.into(),
            })
        })
    }

    /// Waits until this process leads.
    #[napi]
    pub fn campaign(&self, id: u32, name: String, payload: String) -> Result<()> {
        let election = checked(self.locks()?.election(name, payload))?;
        self.handle().grant(id, async move { election.campaign().await.map(Some) });
        Ok(())
    }

    /// The terms of this process, which is a candidate again and again.
    #[napi]
    pub fn terms(&self, name: String, payload: String) -> Result<Stream> {
        let election = checked(self.locks()?.election(name, payload))?;
        Ok(self.stream(Source::Terms(Candidacy::new(election))))
    }

    /// The leader, or `null`. It is asked to stop if there is a reason.
    #[napi]
    pub fn leader(&self, id: u32, name: String, stop: Option<String>) -> Result<()> {
        let election = checked(self.locks()?.election(name, ""))?;
        self.start(id, async move |_| match stop {
            Some(reason) => election.request_stop(&reason).await,
            None => election.leader().await,
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
    /// The length; or the time after the start of the day, week or month, which may be a text such as `02:30`.
    pub at: Option<Time>,
    /// Of `cron`.
    pub expression: Option<String>,
    pub zone: Option<String>,
    /// How long after the start of a window a run may begin. Default: the whole window.
    pub open_for: Option<Time>,
    /// What lets a window be used again. Default: `failure`.
    #[napi(ts_type = "'nothing' | 'failure' | 'failure_or_loss'")]
    pub reopens_on: Option<String>,
    /// Runs by hand although the job has run in its window.
    pub again: Option<bool>,
}

/// The time since midnight of a text such as `02:30` or `02:30:15`.
fn time_of_day(text: &str) -> Option<Duration> {
    let parts: Vec<_> = text.split(':').map(|part| part.parse::<u8>().ok()).collect::<Option<_>>()?;
    let [hours, minutes, seconds @ ..] = &parts[..] else { return None };
    let seconds = seconds.iter().copied().map(u64::from).sum::<u64>();
    (parts.len() <= 3)
        .then(|| Duration::from_secs(u64::from(*hours) * 3600 + u64::from(*minutes) * 60 + seconds))
}

fn period_of(spec: &JobSpec) -> Result<Period> {
    let time = match &spec.at {
        Some(Time::B(text)) if let Some(time) = time_of_day(text) => time,
        Some(at) => duration(if spec.period == "every" { "period" } else { "at" }, at)?,
        None => Duration::ZERO,
    };
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
        period = period.open_for(duration("openFor", &open_for)?);
    }
    let job =
        checked(locks.once_per(spec.name, period))?.frees(or_default(spec.reopens_on, bindings::frees)?);
    Ok(job.again(spec.again.unwrap_or_default()))
}
