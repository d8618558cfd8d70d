//! The engine asks until a lock is granted and keeps the grant alive. The only code that repeats an
//! operation and waits.
//!
//! - [`acquire`] asks once, or waits; [`acquisition`] is one attempt, with its requests and answers;
//! - [`call`] sends a request to the store, and decides when it is sent again;
//! - [`waiters`] has the queues in which the tasks of one process wait for a lock;
//! - [`hold`] is one grant, [`lease`] its terms and its state, and [`lost`] its end;
//! - [`reentry`] has the holds of one owner share a grant;
//! - [`upgrade`] makes a reader the writer;
//! - [`flight`] shares a computation among the tasks of one process;
//! - [`forced`] hears that a hold may have been ended by force;
//! - [`renew`] keeps all grants of one `Locks` alive, and [`window`] limits the renewals in flight;
//!   [`release`] ends grants.

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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
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

use flight::Flights;
use forced::Listeners;
use reentry::Reentries;
use release::PendingReleases;
use renew::Renewer;
use waiters::local_queue::LocalQueues;
use waiters::ticket_queue::TicketQueues;

/// One store, one runtime, and what is going on between them.
pub(crate) struct Engine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) metrics: Metrics,
    owners: Owners,
    local_queues: LocalQueues,
    ticket_queues: TicketQueues,
    renewer: Renewer,
    reentries: Reentries,
    listeners: Listeners,
    pending_releases: PendingReleases,
    ids: AtomicU64,
    /// Locks of which a request stopped at its bound, and that are being asked about until none
    /// does.
    unfinished: Mutex<BTreeSet<LockName>>,
}

impl Engine {
    pub(crate) fn new(store: Arc<dyn Store>, runtime: Arc<dyn Runtime>) -> Arc<Self> {
        // Ids need to be unique per owner only, but a random start distinguishes two processes'
        // traces.
        let ids = AtomicU64::new(runtime.random() >> 1);
        let owners = Owners::new(runtime.random());
        let (local_queues, ticket_queues) = (LocalQueues::default(), TicketQueues::default());
        let (renewer, reentries) = (Renewer::default(), Reentries::default());
        let pending_releases = PendingReleases::default();
        let (listeners, unfinished) = (Listeners::default(), Mutex::default());
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

    /// A fresh owner for one acquisition; the label was checked with the options.
    fn owner(&self, label: &str) -> Owner {
        self.owners.make(self.id(), label, self.runtime.unix_micros())
    }

    /// A number that no other request or hold of this process has.
    fn id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// `delay`, shortened by up to a quarter, so that those who failed together do not come back
    /// together.
    fn jittered(&self, delay: Duration) -> Duration {
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

    /// A store that answers what was not asked is as good as one that refuses.
    pub(crate) fn nonsense(&self, name: &LockName, answer: &Answer) -> Error {
        self.failed(
            name,
            Failure::Refused(Failure::cause(format!("an answer that does not belong here: {answer:?}"))),
        )
    }

    /// Waits until the releases in the background are done, at most this long.
    pub(crate) async fn flushed_within(&self, most: Duration) -> Result<()> {
        let timer = self.runtime.sleep_until(self.now() + most);
        match select(pin!(self.flushed()), timer).await {
            // What the store goes on with was answered.
            Either::Right(_) if !self.pending_releases.is_empty() => Err(Error::unflushed(self.store.url())),
            _ => Ok(()),
        }
    }

    /// Waits until neither the engine nor the store has releases under way.
    async fn flushed(&self) {
        self.pending_releases.flushed().await;
        self.store.settled().await;
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("store", &self.store).finish_non_exhaustive()
    }
}

/// The pause before attempt `n + 1` when there is nothing better to wait for: 50 ms × 1.5ⁿ, at most
/// 1 s.
fn backoff(attempt: u32) -> Duration {
    const FIRST: Duration = Duration::from_millis(50);
    const MOST: Duration = Duration::from_secs(1);
    if planted(Bug::NoBackoff) {
        return Duration::ZERO;
    }
    FIRST.mul_f64(1.5_f64.powi(attempt.min(16) as i32)).min(MOST)
}

/// An engine and its thread. Both live as long as there is a handle: `Locks`, face or guard.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) engine: Arc<Engine>,
    pub(crate) flights: Flights,
    driver: Option<Arc<Driver>>,
}

impl Client {
    pub(crate) fn new(engine: Arc<Engine>, driver: Option<Arc<Driver>>) -> Arc<Self> {
        Arc::new(Self { engine, flights: Flights::default(), driver })
    }

    /// Waits until the subscriber has had the events of the driver's thread, at most
    /// [`events::FLUSH`].
    pub(crate) async fn events_flushed(&self) {
        if let Some(driver) = &self.driver {
            let timer = driver.sleep_until(driver.now() + events::FLUSH);
            select(pin!(driver.events().flushed()), timer).await;
        }
    }
}

/// How long the drop of the very last handle waits for releases that are queued.
const LAST_WAIT: Duration = Duration::from_millis(100);

impl Drop for Client {
    /// The last handle is gone, perhaps because `main` returns. Queued releases and events get a
    /// moment to leave, and go on afterwards for as long as the process lives.
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
        // By what others find a process that waits, its store takes away at its end.
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
