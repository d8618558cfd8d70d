//! How a cached value is read, and computed by one caller.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use super::cache::{Cache, LONGEST};
use super::entry::{Content, Entry, Head, Sight, UNCACHED, look, soft_us, token_of};
use super::fill::{Lead, Led};
use super::value::CacheValue;
use super::{meter, micros, put};
use crate::engine::acquire::Wait;
use crate::engine::flight::FlightResult;
use crate::error::{Error, Result};
use crate::events::{event, text};
use crate::guard::Guard;
use crate::metrics::UseResult;
use crate::moment::Moment;
use crate::protocol::record::{Put, Record, RecordAnswer, Then};

impl Cache {
    /// Reads the record.
    pub(super) async fn seen<T: CacheValue>(&self) -> Result<Sight<T>> {
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
            Sight::Stale(..) => UseResult::ReadStale,
            Sight::Uncached | Sight::Missing => UseResult::ReadMissing,
        });
        Ok(sight)
    }

    fn look<T: CacheValue>(&self, record: Option<&Record>, now_us: u64) -> Sight<T> {
        look(record, now_us, self.early, || self.random())
    }

    /// Reads the record without early recomputation. One of the computation `but` does not count.
    async fn there<T: CacheValue>(&self, but: Option<u64>) -> Result<Option<Option<T>>> {
        let seen = self.record.read().await?;
        let record = seen.record.as_ref().filter(|record| but.is_none() || token_of(record) != but);
        Ok(match look(record, seen.now_us, 0.0, || 1.0) {
            Sight::Fresh(value) => Some(value),
            _ => None,
        })
    }

    /// A random number in (0, 1].
    fn random(&self) -> f64 {
        ((self.record.engine().runtime.random() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Whether an existing value may be recomputed. It may not for a while after the lock was busy.
    pub(super) fn may_refresh(&self) -> bool {
        let (lock, engine) = (&self.record.lock, self.record.engine());
        lock.shared.flights.may_try(&lock.full, engine.now())
    }

    /// Recomputes the existing value of a computation unless another caller does, and returns the newest known.
    pub(super) async fn refreshed<T: CacheValue, E>(
        &self,
        (value, token): (Option<T>, u64),
        fill: impl AsyncFnOnce() -> Result<Entry<T>, E>,
    ) -> Result<Result<Option<T>, E>> {
        Ok(Ok(match self.refresher(token).await {
            None => value,
            Some(Led::Found(newer)) => newer,
            Some(Led::Lead(lead)) => self.compute(lead, fill).await?.unwrap_or(value),
        }))
    }

    /// Recomputes an existing value unless another caller does. An error is reported as an event.
    pub(super) async fn refresh_unwaited<T: CacheValue, E>(
        &self,
        token: u64,
        fill: impl AsyncFnOnce() -> Result<Entry<T>, E>,
    ) {
        if let Some(Led::Lead(lead)) = self.refresher::<T>(token).await
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

    /// Makes this caller the one that recomputes the value of a computation, unless there is one already.
    async fn refresher<T: CacheValue>(&self, token: u64) -> Option<Led<'_, Option<T>>> {
        let (lock, engine) = (&self.record.lock, self.record.engine());
        let flights = &lock.shared.flights;
        let flight = flights.join(&lock.full);
        let lead = flight.try_lead()?;
        match lock.acquire(Wait::Once).await {
            Ok(Some(guard)) => Some(match self.there(Some(token)).await.unwrap_or_default() {
                Some(newer) => Led::Found(newer),
                None => Led::Lead(Lead { flight, guard: Some(guard), _lead: lead }),
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
    pub(super) async fn share<T: CacheValue, E>(
        &self,
        asked: Moment,
        insists: bool,
        is_alone: bool,
        fill: impl AsyncFnOnce() -> Result<Entry<T>, E>,
    ) -> Result<Result<Option<T>, E>> {
        let suits =
            |result: &FlightResult| result.suits(asked, insists) && value_of::<T>(&result.value).is_some();
        let found = |result: Arc<FlightResult>| ready(value_of::<T>(&result.value));
        let look = || async move { if insists { Ok(None) } else { self.there(None).await } };
        match self.policy.lead(&self.record.lock, asked, is_alone, suits, found, look).await? {
            Led::Found(value) => Ok(Ok(value)),
            Led::Lead(mut lead) => {
                if insists && lead.guard.is_none() {
                    lead.guard = self.take_over().await;
                }
                self.compute(lead, fill).await
            }
        }
    }

    /// Ends an older computation, whose value the store then refuses, and takes its place. In an outage, both
    /// go on.
    async fn take_over(&self) -> Option<Guard> {
        let (lock, engine) = (&self.record.lock, self.record.engine());
        if !lock.shared.flights.may_ask(engine, &lock.full) {
            return None;
        }
        self.record.void().await.ok()?;
        lock.acquire(Wait::Once).await.ok().flatten()
    }

    /// Computes the value, stores it if this caller has the lock, and publishes it to the waiters.
    async fn compute<T: CacheValue, E>(
        &self,
        Lead { flight, guard, _lead }: Lead<'_>,
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
