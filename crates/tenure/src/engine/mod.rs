//! The engine acquires locks and keeps grants alive. It is the only code that retries operations and waits.
//!
//! - [`acquire`] acquires a lock, with a single try or by waiting; [`acquisition`] is one attempt, with its
//!   requests and answers;
//! - [`call`] sends a request to the store and decides on retries;
//! - [`waiters`] has the queues in which the tasks of one process wait for a lock;
//! - [`hold`] is one grant, [`lease`] its terms and its state, and [`lost`] its end;
//! - [`reentry`] lets the holds of one owner share a grant;
//! - [`upgrade`] turns a reader into the writer;
//! - [`flight`] shares a computation among the tasks of one process;
//! - [`forced`] subscribes to messages that a hold may have been ended by force;
//! - [`renew`] keeps all grants of one `Locks` alive, and [`window`] limits the renewals in flight;
//! - [`release`] ends grants.

pub(crate) mod acquire;
pub(crate) mod acquisition;
pub(crate) mod call;
pub(crate) mod flight;
mod forced;
pub(crate) mod hold;
mod hold_end;
pub(crate) mod lease;
pub(crate) mod lost;
mod reentry;
mod release;
mod renew;
pub(crate) mod upgrade;
mod waiters;
mod window;

use std::collections::BTreeSet;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{Either, FutureExt, select};

use crate::error::{Error, Result};
use crate::events;
use crate::metrics::Metrics;
use crate::moment::Moment;
use crate::name::LockName;
use crate::owner::{Owner, Owners};
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Kind, LockSpec};
use crate::runtime::{Driver, Runtime};
use crate::store::{Failure, Store};
use crate::sync::Locked;

use flight::Flights;
use forced::ListenerCount;
use reentry::Reentries;
use release::PendingReleases;
use renew::Renewer;
use waiters::local_queue::LocalQueues;
use waiters::ticket_queue::TicketQueues;

/// One store, one runtime, and the operations in progress between them.
pub(crate) struct Engine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) metrics: Metrics,
    owners: Owners,
    local_queues: LocalQueues,
    ticket_queues: TicketQueues,
    renewer: Renewer,
    reentries: Reentries,
    listeners: ListenerCount,
    pending_releases: PendingReleases,
    // Relaxed: each id only has to differ from the others; nothing is published by it.
    ids: AtomicU64,
    /// Locks with a request that stopped at its work limit and is being repeated until it is complete.
    unfinished: Locked<BTreeSet<LockName>>,
}

impl Engine {
    pub(crate) fn new(store: Arc<dyn Store>, runtime: Arc<dyn Runtime>) -> Arc<Self> {
        // Ids must be unique only per owner, but a random start makes two processes' traces distinguishable.
        let ids = AtomicU64::new(runtime.random() >> 1);
        let owners = Owners::new(runtime.random());
        let (local_queues, ticket_queues) = (LocalQueues::default(), TicketQueues::default());
        let (renewer, reentries) = (Renewer::default(), Reentries::default());
        let pending_releases = PendingReleases::default();
        let (listeners, unfinished) = (ListenerCount::default(), Locked::default());
        let metrics = Metrics::new(store.url());
        Arc::new(Self {
            store,
            runtime,
            metrics,
            owners,
            local_queues,
            ticket_queues,
            renewer,
            reentries,
            listeners,
            pending_releases,
            ids,
            unfinished,
        })
    }

    /// How many more holds an owner has here than the store knows of.
    pub(crate) fn more_holds(&self, name: &LockName, owner: &Owner) -> u32 {
        u32::try_from(self.reentries.more(self, name, owner)).unwrap_or(u32::MAX)
    }

    pub(crate) fn now(&self) -> Moment {
        self.runtime.now()
    }

    /// A fresh owner for one acquisition. The label was validated with the options.
    fn owner(&self, label: &str) -> Owner {
        self.owners.make(self.id(), label, self.runtime.unix_micros())
    }

    /// A number unique among the requests and holds of this process.
    fn id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// `delay`, shortened by up to a quarter, so that callers that failed together do not retry together.
    pub(crate) fn jittered(&self, delay: Duration) -> Duration {
        delay - delay.mul_f64(0.25 * (self.runtime.random() >> 32) as f64 / f64::from(u32::MAX))
    }

    pub(crate) fn failed(&self, name: &LockName, failure: Failure) -> Error {
        Error::failed(Some(name), self.store.url(), failure)
    }

    pub(crate) fn silent(&self, name: &LockName, failure: Failure) -> Error {
        Error::silent(Some(name), self.store.url(), failure)
    }

    pub(crate) fn mismatch(
        &self,
        name: &LockName,
        asked: LockSpec,
        kind: Kind,
        capacity: Option<u32>,
    ) -> Error {
        Error::mismatch(name, self.store.url(), asked, kind, capacity)
    }

    /// Error for an answer that does not match the request; treated as a refusal.
    pub(crate) fn unexpected_answer(&self, name: &LockName, answer: &Answer) -> Error {
        self.failed(name, Failure::Refused(Failure::cause(format!("unexpected reply: {answer:?}"))))
    }

    /// Waits until background releases are done, at most this long.
    pub(crate) async fn flushed_within(&self, most: Duration) -> Result<()> {
        let timer = self.runtime.sleep_until(self.now() + most);
        match select(pin!(self.flushed()), timer).await {
            // Those that the store still has in progress were already answered.
            Either::Right(_) if !self.pending_releases.is_empty() => Err(Error::unflushed(self.store.url())),
            _ => Ok(()),
        }
    }

    /// Waits until neither the engine nor the store has releases in progress.
    async fn flushed(&self) {
        self.pending_releases.flushed().await;
        self.store.signals().settled().await;
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("store", &self.store).finish_non_exhaustive()
    }
}

/// Delay before retry `attempt`, counted from 0: 50 ms × 1.5ⁿ, at most 1 s.
pub(crate) fn backoff(attempt: u32) -> Duration {
    const FIRST: Duration = Duration::from_millis(50);
    const MOST: Duration = Duration::from_secs(1);
    if planted(Bug::NoBackoff) {
        return Duration::ZERO;
    }
    FIRST.mul_f64(1.5_f64.powi(attempt.min(16) as i32)).min(MOST)
}

/// An engine and its thread. Both live as long as there is a `Locks`, a lock handle or a guard.
#[derive(Debug)]
pub(crate) struct EngineHandle {
    pub(crate) engine: Arc<Engine>,
    pub(crate) flights: Flights,
    driver: Option<Arc<Driver>>,
}

impl EngineHandle {
    pub(crate) fn new(engine: Arc<Engine>, driver: Option<Arc<Driver>>) -> Arc<Self> {
        Arc::new(Self { engine, flights: Flights::default(), driver })
    }

    /// Waits until the subscriber has received the events of the driver's thread, at most [`events::FLUSH`].
    pub(crate) async fn events_flushed(&self) {
        if let Some(driver) = &self.driver {
            let timer = driver.sleep_until(driver.now() + events::FLUSH);
            select(pin!(driver.events().flushed()), timer).await;
        }
    }
}

/// How long dropping the last handle waits for queued releases.
const LAST_WAIT: Duration = Duration::from_millis(100);

impl Drop for EngineHandle {
    /// The last handle is gone, perhaps because `main` returns. Waits briefly for queued releases and events,
    /// which then continue for as long as the process lives.
    fn drop(&mut self) {
        self.engine.renewer.close();
        let has_waited = self.engine.local_queues.close() | self.engine.ticket_queues.close();
        let Some(driver) = self.driver.take() else { return };
        if self.engine.flushed().now_or_never().is_some() {
            driver.stop();
        } else {
            let engine = Arc::clone(&self.engine);
            let last = Arc::clone(&driver);
            driver.spawn(Box::pin(async move {
                engine.flushed().await;
                last.stop();
            }));
            if !driver.is_current() {
                self.engine.pending_releases.wait(LAST_WAIT);
            }
        }
        // Give the store time to remove the waiter's socket.
        if has_waited && !driver.is_current() {
            driver.wait(LAST_WAIT);
        }
        if !driver.is_current() {
            driver.events().wait(events::FLUSH);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_second_and_no_further() {
        let pauses: Vec<_> = (0..40).map(backoff).collect();
        assert_eq!(pauses[0], Duration::from_millis(50));
        assert!(pauses.is_sorted() && pauses[39] == Duration::from_secs(1));
    }
}
