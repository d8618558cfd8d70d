//! The store as a process sees it: requests in flight, until they are answered, time out, or are dropped.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{FutureExt, TryFutureExt, ready};
use tenure::LockName;
use tenure::internals::Store;
use tenure::internals::protocol::{Answer, LockSpec, Op, lease};
use tenure::internals::store::{
    Capabilities, Cursor, Failure, Listener, Page, Placement, Signals, StoreExt, StoreFuture, StoreReply,
    StoreRequest, Topic,
};

use super::executor::{Process, ProcessId, lock};
use super::network::Network;
use super::request::{Slot, unknown};

/// A client that times out earlier than this does not give the connection up for a missing answer.
const SHORT: Duration = Duration::from_millis(50);

fn not_sent() -> Failure {
    Failure::NotSent(Failure::cause("there is no connection"))
}

/// The store as a process sees it.
pub struct SimStore {
    pub(super) network: Network,
    pub(super) process: ProcessId,
    signals: Signals,
    pub(super) url: Arc<str>,
    renews_together: bool,
}

/// Reason why values are unsupported.
const NO_VALUES: &str = "this simulation is of locks alone";

impl Network {
    /// The store of a process.
    pub fn store(&self, process: &Process) -> SimStore {
        let signals = self.connect(process);
        let (network, process, url) = (self.clone(), process.id(), Arc::clone(&self.url));
        SimStore { network, process, signals, url, renews_together: false }
    }
}

impl SimStore {
    /// Makes the engine batch renewals; the store then sends them one by one.
    #[must_use]
    pub fn renewing_together(self) -> Self {
        Self { renews_together: true, ..self }
    }
}

impl Store for SimStore {
    fn call(&self, request: StoreRequest, within: Duration) -> StoreFuture<StoreReply> {
        match request {
            StoreRequest::Lock(op) => {
                let (network, process, slot) = (self.network.clone(), self.process, Arc::default());
                Call { network, process, within, op: Some(op), slot }.map_ok(StoreReply::Lock).boxed()
            }
            StoreRequest::Record(_) => ready(Err(Failure::impossible(NO_VALUES))).boxed(),
            StoreRequest::Renewals(ops) => self.renew_each(ops, within),
        }
    }

    fn subscribe(&self, topic: Topic<'_>, within: Duration) -> StoreFuture<Listener> {
        let (network, process, name) = (self.network.clone(), self.process, topic.name.clone());
        let (kind, is_of_client) = (topic.spec.kind(), topic.client().is_some());
        async move { network.listen(process, &name, kind, is_of_client, within).await }.boxed()
    }

    fn list(&self, prefix: &str, _: Cursor, _: Duration) -> StoreFuture<Page> {
        let locks = self.network.list(prefix);
        ready(Ok(Page { locks, next: None })).boxed()
    }

    fn ready(&self, _: Duration) -> StoreFuture<()> {
        ready(Ok(())).boxed()
    }

    fn capabilities(&self) -> Capabilities {
        let place_kept = Some(lease::PLACE_KEPT);
        Capabilities { values: Err(NO_VALUES), member: Ok(()), place_kept, ..Capabilities::SERVER }
    }

    fn placement(&self, _: &LockName, _: LockSpec) -> Placement {
        Placement { renews_with: self.renews_together.then_some(0), ..Placement::default() }
    }

    fn signals(&self) -> &Signals {
        &self.signals
    }

    fn url(&self) -> &Arc<str> {
        &self.url
    }
}

impl fmt::Debug for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimStore").field("process", &self.process).finish_non_exhaustive()
    }
}

struct Call {
    network: Network,
    process: ProcessId,
    within: Duration,
    /// `None` once it was sent.
    op: Option<Op>,
    slot: Arc<Slot>,
}

impl Future for Call {
    type Output = Result<Answer, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(op) = self.op.take()
            && !self.network.send(self.process, op, &self.slot, self.within)
        {
            return Poll::Ready(Err(not_sent()));
        }
        let mut arrival = lock(&self.slot.0);
        if arrival.is_out_of_time && (arrival.answer.is_none() || self.network.sim.chance(500)) {
            // After a pause of the process, both the answer and the timeout may be pending.
            let known = arrival.answer.take();
            drop(arrival);
            let gives_up = self.within >= SHORT || self.network.is_impatient();
            if gives_up && !matches!(known, Some(Err(_))) {
                self.network.replace(self.process);
            }
            return Poll::Ready(Err(unknown()));
        }
        if let Some(answer) = arrival.answer.take() {
            return Poll::Ready(answer);
        }
        match &mut arrival.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => arrival.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Call {
    /// A dropped request may still be carried out or, if it had not left the process, never is; one that
    /// waits for a connection is never sent.
    fn drop(&mut self) {
        let mut arrival = lock(&self.slot.0);
        arrival.is_over = true;
        if self.op.is_none() && arrival.answer.is_none() && !arrival.is_executed {
            let sim = &self.network.sim;
            arrival.is_withdrawn = sim.chance(300) || sim.now() < arrival.leaves_at;
        }
    }
}
