//! The engine acquires locks and keeps grants alive. It is the only code that retries operations and waits.
//!
//! The engine's own fields are below it, in files that do not name it: [`renew_schedule`] of the renewer, [`shares`] of
//! grants, [`pending_releases`], [`listener_count`], and what it needs of its [`queues`]. The others use it:
//!
//! - [`acquire`] acquires a lock, with a single try or by waiting; [`acquisition`] is one attempt, with its
//!   requests and answers;
//! - [`call`] sends a request to the store and decides on retries;
//! - [`waiters`] has the queues in which the tasks of one process wait for a lock;
//! - [`hold`] is one grant, [`grant`] its lease, [`loss`] what follows its end, and [`lost`] tells the
//!   caller of it;
//! - [`reentry`] lets the holds of one owner share a grant;
//! - [`upgrade`] turns a reader into the writer;
//! - [`flight`] shares a computation among the tasks of one process;
//! - [`forced`] subscribes to messages that a hold may have been ended by force;
//! - [`renew`] keeps all grants of one `Locks` alive, and [`window`] limits the renewals in flight;
//! - [`release`] ends grants;
//! - [`engine_handle`] is what all handles of one `Locks` share.

pub(crate) mod acquire;
pub(crate) mod acquisition;
pub(crate) mod call;
pub(crate) mod engine_handle;
pub(crate) mod flight;
mod forced;
pub(crate) mod grant;
pub(crate) mod hold;
mod hold_end;
mod kept_subscription;
mod listener_count;
mod loss;
pub(crate) mod lost;
mod pending_releases;
mod queues;
mod reentry;
mod release;
mod renew;
mod renew_schedule;
mod shares;
pub(crate) mod upgrade;
mod waiters;
mod window;

use std::collections::BTreeSet;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::{Either, select};

use crate::error::{Error, Result};
use crate::metrics::Metrics;
use crate::moment::Moment;
use crate::name::LockName;
use crate::owner::{Owner, Owners};
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Kind, LockSpec};
use crate::runtime::Runtime;
use crate::store::{Failure, Store};
use crate::sync::Locked;

use kept_subscription::KeptSubscription;
use listener_count::ListenerCount;
use pending_releases::PendingReleases;
use queues::Queues;
use renew_schedule::Renewer;
use shares::Reentries;

/// One store, one runtime, and the operations in progress between them.
pub(crate) struct Engine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) metrics: Metrics,
    owners: Owners,
    queues: OnceLock<Box<dyn Queues>>,
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
        let (renewer, reentries) = (Renewer::default(), Reentries::default());
        let pending_releases = PendingReleases::default();
        let (listeners, unfinished) = (ListenerCount::default(), Locked::default());
        let metrics = Metrics::new(store.url());
        Arc::new(Self {
            store,
            runtime,
            metrics,
            owners,
            queues: OnceLock::new(),
            renewer,
            reentries,
            listeners,
            pending_releases,
            ids,
            unfinished,
        })
    }

    fn set_queues(&self, queues: Box<dyn Queues>) {
        let _ = self.queues.set(queues);
    }

    fn ask_soon(&self, name: &LockName, by: Option<&Owner>) {
        self.queues.get().into_iter().for_each(|queues| queues.ask_soon(name, by));
    }

    fn subscribed(&self, name: &LockName) -> Option<KeptSubscription> {
        self.queues.get()?.subscribed(name)
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
        self.settled_within(most, self.pending_releases.flushed(), || !self.pending_releases.is_empty()).await
    }

    /// Waits until failed resumes have given back the holds of this owner, at most this long.
    pub(crate) async fn given_back_within(
        &self,
        most: Duration,
        name: &LockName,
        owner: &Owner,
    ) -> Result<()> {
        let pending = &self.pending_releases;
        self.settled_within(most, pending.given_back(name, owner), || pending.gives_back(name, owner)).await
    }

    /// Waits for releases, and until the store has none in progress, at most this long.
    async fn settled_within(
        &self,
        most: Duration,
        releases: impl Future<Output = ()>,
        are_pending: impl Fn() -> bool,
    ) -> Result<()> {
        let timer = self.runtime.sleep_until(self.now() + most);
        let settled = async {
            releases.await;
            self.store.signals().settled().await;
        };
        match select(pin!(settled), timer).await {
            // Those that the store still has in progress were already answered.
            Either::Right(_) if are_pending() => Err(Error::unflushed(self.store.url())),
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
