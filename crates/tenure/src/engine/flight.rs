//! Single flight: when several tasks of a process need the same value, one of them computes it for all.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::{OwnedMutexGuard, watch};

use super::Engine;
use crate::error::Result;
use crate::moment::Moment;
use crate::name::LockName;
use crate::protocol::LockSpec;
use crate::sync::Locked;

/// The flights of one client, and what is known about its store.
#[derive(Default)]
pub(crate) struct Flights {
    by_name: Locked<BTreeMap<LockName, Arc<Flight>>>,
    /// When a busy lock may next be tried by callers that already have a value.
    tried: Locked<BTreeMap<LockName, Moment>>,
    /// The [shards](crate::store::Placement::shard) that did not answer. Until this time, only one caller sends
    /// each of them requests.
    silent_until: Locked<BTreeMap<Option<Arc<str>>, Moment>>,
}

/// One name, while any task of this process needs its value.
pub(crate) struct Flight {
    /// Held by the task that computes the value, with the store's lock.
    lead: Arc<tokio::sync::Mutex<()>>,
    /// Held by the task that computes the value without the store's lock, because its wait is over.
    late: Arc<tokio::sync::Mutex<()>>,
    published: watch::Sender<Option<Arc<FlightResult>>>,
}

/// The result of a flight.
#[derive(Debug)]
pub(crate) struct FlightResult {
    /// The bytes of the record.
    pub(crate) value: Arc<[u8]>,
    /// When the accepted write was sent; nothing newer was stored at that time.
    pub(crate) stored: Option<Moment>,
    /// When the computation began.
    pub(crate) begun: Moment,
}

impl FlightResult {
    /// Whether this result is fresh enough for a caller that asked at `asked`. An `invalidate` that had
    /// finished by then makes the store refuse older writes, so a write accepted later is fresh. A caller
    /// that insists has invalidated everything older.
    pub(crate) fn suits(&self, asked: Moment, insists: bool) -> bool {
        self.begun >= asked || (self.stored.is_some_and(|sent| sent >= asked) && !insists)
    }
}

/// What a caller of a flight is to do.
pub(crate) enum FlightRole {
    /// This caller computes the value for all.
    Leader(OwnedMutexGuard<()>),
    /// Another caller has computed it.
    Shared(Arc<FlightResult>),
    /// The wait limit was reached.
    Late,
}

/// A caller's participation in a flight. The last one to leave removes the flight.
pub(crate) struct FlightCaller<'a> {
    flights: &'a Flights,
    name: LockName,
    flight: Option<Arc<Flight>>,
    published: watch::Receiver<Option<Arc<FlightResult>>>,
}

/// How long only one caller sends requests to a store that did not answer.
const SILENCE: Duration = Duration::from_secs(1);
/// Retry interval for a busy lock, for callers that have a value.
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// Number of names remembered as tried before the expired ones are removed.
const TRIED: usize = 1_024;

impl Flights {
    pub(crate) fn join(&self, name: &LockName) -> FlightCaller<'_> {
        let mut by_name = self.by_name.lock();
        let flight = by_name.entry(name.clone()).or_insert_with(|| {
            Arc::new(Flight {
                lead: Arc::default(),
                late: Arc::default(),
                published: watch::Sender::new(None),
            })
        });
        let (flight, published) = (Arc::clone(flight), flight.published.subscribe());
        FlightCaller { flights: self, name: name.clone(), flight: Some(flight), published }
    }

    /// Whether a caller that has a value may try a busy lock again.
    pub(crate) fn may_try(&self, name: &LockName, now: Moment) -> bool {
        self.tried.lock().get(name).is_none_or(|until| now >= *until)
    }

    /// Records that the lock was busy.
    pub(crate) fn tried(&self, name: &LockName, now: Moment) {
        let mut tried = self.tried.lock();
        if tried.len() >= TRIED {
            tried.retain(|_, until| now < *until);
        }
        tried.insert(name.clone(), now + TRY_AGAIN);
    }

    /// Whether to send the store requests about this name: after it failed to answer, one caller per interval
    /// retries.
    pub(crate) fn may_ask(&self, engine: &Engine, name: &LockName) -> bool {
        let mut silent_until = self.silent_until.lock();
        if silent_until.is_empty() {
            return true;
        }
        let now = engine.now();
        match silent_until.get_mut(&shard(engine, name)) {
            Some(until) if now < *until => false,
            Some(until) => {
                *until = now + SILENCE;
                true
            }
            None => true,
        }
    }

    /// Records whether the store answered. A refusal counts as an answer, because it may concern only this
    /// name.
    pub(crate) fn heard<T>(&self, answer: &Result<T>, engine: &Engine, name: &LockName) {
        let is_silent = matches!(answer, Err(error) if error.is_unreachable() || error.is_unknown());
        let mut silent_until = self.silent_until.lock();
        if is_silent {
            silent_until.insert(shard(engine, name), engine.now() + SILENCE);
        } else if !silent_until.is_empty() {
            silent_until.remove(&shard(engine, name));
        }
    }
}

/// The shard of a lock with a record, which is a mutex.
fn shard(engine: &Engine, name: &LockName) -> Option<Arc<str>> {
    engine.store.placement(name, LockSpec::Mutex).shard
}

impl FlightCaller<'_> {
    fn flight(&self) -> &Flight {
        self.flight.as_ref().expect("a caller has its flight until it leaves")
    }

    /// Takes the lead if no other task has it.
    pub(crate) fn try_lead(&self) -> Option<OwnedMutexGuard<()>> {
        Arc::clone(&self.flight().lead).try_lock_owned().ok()
    }

    /// Waits for the lead or for a suitable result.
    pub(crate) async fn wait(
        &mut self,
        engine: &Engine,
        suits: impl Fn(&FlightResult) -> bool,
        is_late: bool,
        until: Moment,
    ) -> FlightRole {
        let flight = self.flight();
        let lead = if is_late { &flight.late } else { &flight.lead };
        let lead = pin!(Arc::clone(lead).lock_owned());
        let published = pin!(published(&mut self.published, suits));
        match select(select(published, lead), engine.runtime.sleep_until(until)).await {
            Either::Left((Either::Left((result, _)), _)) => FlightRole::Shared(result),
            Either::Left((Either::Right((lead, _)), _)) => FlightRole::Leader(lead),
            Either::Right(_) => FlightRole::Late,
        }
    }

    /// Publishes the result to all others on the flight.
    pub(crate) fn publish(&self, result: FlightResult) {
        self.flight().published.send_replace(Some(Arc::new(result)));
    }
}

async fn published(
    receiver: &mut watch::Receiver<Option<Arc<FlightResult>>>,
    suits: impl Fn(&FlightResult) -> bool,
) -> Arc<FlightResult> {
    loop {
        // The sender lives as long as the flight, which this caller keeps alive.
        if receiver.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        if let Some(result) = receiver.borrow_and_update().clone().filter(|result| suits(result)) {
            return result;
        }
    }
}

impl Drop for FlightCaller<'_> {
    fn drop(&mut self) {
        let mut by_name = self.flights.by_name.lock();
        drop(self.flight.take());
        if by_name.get(&self.name).is_some_and(|flight| Arc::strong_count(flight) == 1) {
            by_name.remove(&self.name);
        }
    }
}

impl fmt::Debug for Flights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flights").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_for_those_who_asked_before_it_was_written_or_computed() {
        let at = |ms| Moment(0) + Duration::from_millis(ms);
        let result = |stored| FlightResult { value: Arc::default(), stored, begun: at(10) };
        for (stored, asked, insists, suits) in [
            (Some(at(20)), at(10), true, true),
            (Some(at(20)), at(15), false, true),
            (Some(at(20)), at(15), true, false),
            // A result computed before an invalidation may be older than this caller accepts.
            (Some(at(20)), at(21), false, false),
            (None, at(15), false, false),
        ] {
            assert_eq!(result(stored).suits(asked, insists), suits, "{stored:?}, {asked:?}, {insists}");
        }
    }
}
