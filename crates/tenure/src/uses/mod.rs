//! Applications of locks. Each one is a lock with a record beside it.
//!
//! - [`cache`] computes a value once for a fleet ([`compute`]), and [`fill`] does the same for a cache of the
//!   user's own; [`entry`] is the format of a stored value, and [`value`] its encoding;
//! - [`once`] runs a job once per [`period`], such as those of a [`schedule`]: each [`turn`] leaves the record of
//!   a [`run`]; [`each`] waits for the windows; [`duration`] is for the text of a period;
//! - [`election`] elects a leader for a [`term`], again and again in [`lead`], with [observers](observer); [`log`]
//!   is the format of its record;
//! - [`listing`] enumerates the records of a store: those of [`jobs`] and of [`elections`];
//! - [`stop`] asks the holders of a lock to stop.

pub(crate) mod cache;
mod compute;
mod duration;
mod each;
pub(crate) mod election;
pub(crate) mod elections;
pub(crate) mod entry;
pub(crate) mod fill;
pub(crate) mod jobs;
pub(crate) mod lead;
mod listing;
pub(crate) mod log;
pub(crate) mod observer;
pub(crate) mod once;
pub(crate) mod period;
pub(crate) mod run;
#[cfg(feature = "schedule")]
mod schedule;
pub(crate) mod stop;
pub(crate) mod term;
pub(crate) mod turn;
pub(crate) mod value;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, FutureExt, select};

use crate::engine::Engine;
use crate::engine::call::Call;
use crate::engine::engine_handle::EngineHandle;
use crate::error::{Error, Result};
use crate::handle::LockHandle;
use crate::metrics::{Meter, UseResult};
use crate::moment::Moment;
use crate::name::LockName;
use crate::options::Options;
use crate::owner::Owner;
use crate::protocol::record::{Put, Record, RecordAnswer, RecordOp, RecordVerb, Then, lock_name};
use crate::protocol::{Answer, Found, Holding, LockSpec, Verb, parse_value};
use crate::store::{Failure, Listener, Purpose, Topic};

/// A record as it was read.
#[derive(Clone, Debug)]
pub(crate) struct SeenRecord {
    pub(crate) record: Option<Record>,
    /// Estimate of the store's clock when the answer arrived, in microseconds since 1970.
    pub(crate) now_us: u64,
}

/// A lock with a record beside it.
#[derive(Clone)]
pub(crate) struct RecordHandle {
    pub(crate) lock: LockHandle,
    meter: Meter,
}

impl RecordHandle {
    /// Returns the lock and record of an application.
    pub(crate) fn new(
        shared: &Arc<EngineHandle>,
        options: &Arc<Options>,
        kind: &str,
        name: LockName,
        spec: LockSpec,
    ) -> Result<Self> {
        let store = &shared.engine.store;
        store.capabilities().values.map_err(|reason| {
            let what = format!("store {} keeps no record of {}: {reason}", store.url(), name.quoted());
            Error::unsupported(store.url(), what)
        })?;
        let lock = lock_of(shared, options, kind, name, spec)?;
        let meter = meter(&lock);
        Ok(Self { lock, meter })
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.lock.shared.engine
    }

    /// Counts a result.
    pub(crate) fn count(&self, result: UseResult) {
        self.engine().metrics.used(self.meter, result);
    }

    /// Reads the record.
    pub(crate) async fn read(&self) -> Result<SeenRecord> {
        self.read_granted(None).await
    }

    /// Reads the record; for the first read of an owner that was granted the lock.
    pub(crate) async fn read_granted(&self, owner: Option<&Owner>) -> Result<SeenRecord> {
        let engine = self.engine();
        let sent = engine.now();
        match self.ask(RecordVerb::Read, owner).await {
            Ok(RecordAnswer::Read { record, now_us }) => {
                let since = engine.now().since(sent).as_micros() as u64;
                Ok(SeenRecord { record, now_us: now_us.saturating_add(since) })
            }
            Ok(answer) => Err(self.unexpected_answer(&answer)),
            Err(failure) => Err(engine.silent(&self.lock.name, failure)),
        }
    }

    /// Writes the record as the holder of the lock. A write without an answer is verified by reading: the
    /// holder's write contains its token, so identical bytes are its own.
    pub(crate) async fn put(&self, put: Put) -> Result<RecordAnswer> {
        let value = Arc::clone(&put.value);
        match self.ask(RecordVerb::Put(put), None).await {
            Ok(RecordAnswer::Read { .. } | RecordAnswer::Voided) => Err(self.mismatched()),
            Ok(answer) => Ok(answer),
            Err(Failure::Unknown(cause)) => match self.read().await {
                Ok(SeenRecord { record: Some(record), .. }) if record.value == value => {
                    Ok(RecordAnswer::Stored { at_us: record.at_us })
                }
                _ => Err(self.engine().failed(&self.lock.name, Failure::Unknown(cause))),
            },
            Err(failure) => Err(self.engine().failed(&self.lock.name, failure)),
        }
    }

    /// Returns the owners that hold the lock, with their tokens.
    pub(crate) async fn holders(&self) -> Result<Vec<(Owner, u64)>> {
        let leases = self.leases().await?;
        Ok(leases.iter().filter_map(|lease| parse_value(&lease.value)).collect())
    }

    /// Returns the holders of the lock.
    pub(crate) async fn leases(&self) -> Result<Vec<Holding>> {
        Ok(self.found().await?.map_or_else(Vec::new, |found| found.holders))
    }

    /// Returns the state of the lock, if it is held.
    pub(crate) async fn found(&self) -> Result<Option<Found>> {
        let (lock, engine) = (&self.lock, self.engine());
        let owner = Owner::fresh(&lock.options.label, &*engine.runtime);
        let call = Call::new(&lock.full, lock.spec, &owner, Verb::Inspect).idempotent();
        match engine.call(&call, engine.now(), lock.options.op_timeout).await {
            Ok(Answer::Found(found)) => Ok(Some(found)),
            Ok(Answer::Free) => Ok(None),
            Ok(answer) => Err(engine.unexpected_answer(&lock.name, &answer)),
            Err(failure) => Err(engine.silent(&lock.name, failure)),
        }
    }

    /// Deletes the record and ends the lock.
    pub(crate) async fn void(&self) -> Result<()> {
        match self.ask(RecordVerb::Void, None).await {
            Ok(_) => Ok(()),
            Err(failure) => Err(self.engine().failed(&self.lock.name, failure)),
        }
    }

    async fn ask(&self, verb: RecordVerb, granted: Option<&Owner>) -> Result<RecordAnswer, Failure> {
        let op = RecordOp { lock: self.lock.full.clone(), granted: granted.cloned(), verb };
        self.engine().record(op, self.lock.options.op_timeout).await
    }

    pub(crate) fn unexpected_answer(&self, answer: &RecordAnswer) -> Error {
        let cause = Failure::cause(format!("unexpected reply: {answer:?}"));
        self.engine().failed(&self.lock.name, Failure::Refused(cause))
    }

    fn mismatched(&self) -> Error {
        let cause = Failure::cause("the answer to another request");
        self.engine().failed(&self.lock.name, Failure::Refused(cause))
    }
}

/// A subscription to the messages about a lock and its record.
#[derive(Default)]
pub(crate) struct Watch(Option<Listener>);

impl Watch {
    pub(crate) fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Subscribes, unless it has.
    pub(crate) async fn open(&mut self, lock: &LockHandle, within: Duration) -> Result<(), Failure> {
        if self.0.is_none() {
            let store = &lock.shared.engine.store;
            self.0 = Some(store.subscribe(Topic::new(&lock.full, lock.spec, Purpose::Watch), within).await?);
        }
        Ok(())
    }

    /// Waits for a message, at most until this time. It is not open afterwards if the subscription has ended.
    pub(crate) async fn wait(&mut self, lock: &LockHandle, until: Moment) {
        let timer = lock.shared.engine.runtime.sleep_until(until);
        let Some(listener) = &mut self.0 else { return timer.await };
        let is_over = matches!(select(listener.next().boxed(), timer).await, Either::Left((None, _)));
        if is_over {
            self.0 = None;
        }
    }
}

/// Returns the lock of an application.
pub(crate) fn lock_of(
    shared: &Arc<EngineHandle>,
    options: &Arc<Options>,
    kind: &str,
    name: LockName,
    spec: LockSpec,
) -> Result<LockHandle> {
    let full = lock_name(kind, &options.full_name(&name)?);
    LockHandle::at(Arc::clone(shared), Arc::clone(options), name, full, spec, None)
}

/// The meter that counts an application.
pub(crate) fn meter(lock: &LockHandle) -> Meter {
    lock.shared.engine.metrics.meter(&lock.options.groups, &lock.name, &lock.full, lock.spec)
}

/// The write of a record by the lock's holder.
pub(crate) fn put(owner: &Owner, keep: Duration, value: Vec<u8>) -> Put {
    let keep_ms = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX).clamp(1, KEEP_MAX_MS);
    Put { owner: owner.clone(), window: None, keep_ms, then: Then::Nothing, value: value.into() }
}

/// Delay before retry `attempt`, counted from 0, of a process that goes on for as long as its caller wants: 1 s,
/// doubled up to a minute.
pub(crate) fn patient_backoff(attempt: u32) -> Duration {
    Duration::from_secs(1 << attempt.min(6)).min(Duration::from_secs(60))
}

/// Whether no retry can succeed.
pub(crate) fn is_permanent(error: &Error) -> bool {
    error.is_invalid() || error.is_unsupported() || error.is_mismatch()
}

/// Maximum retention of a record: ten years.
const KEEP_MAX_MS: u64 = 10 * 365 * 86_400_000;

/// The duration in microseconds, saturating.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
