//! The store as a process sees it: requests in flight, until they are answered, time out, or are dropped.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, join_all, ready};
use tenure::LockName;
use tenure::internals::Store;
use tenure::internals::protocol::record::{RecordAnswer, RecordOp};
use tenure::internals::protocol::{Answer, LockSpec, Op};
use tenure::internals::store::{
    Capabilities, Client, Cursor, Failure, HoldLiveness, Incarnation, Kinds, LeaseClock, Listener, Page,
    QuorumMember, RenewsMany,
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
    pub(super) url: Arc<str>,
    renews_together: bool,
}

/// Reason why values are unsupported.
const NO_VALUES: &str = "this simulation is of locks alone";

impl Network {
    /// The store of a process.
    pub fn store(&self, process: &Process) -> SimStore {
        self.connect(process);
        let (network, process, url) = (self.clone(), process.id(), Arc::clone(&self.url));
        SimStore { network, process, url, renews_together: false }
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
    fn call(&self, op: Op, within: Duration) -> BoxFuture<'static, Result<Answer, Failure>> {
        Box::pin(Call {
            network: self.network.clone(),
            process: self.process,
            within,
            op: Some(op),
            slot: Arc::default(),
        })
    }

    fn record(&self, _: RecordOp, _: Duration) -> BoxFuture<'static, Result<RecordAnswer, Failure>> {
        ready(Err(Failure::impossible(NO_VALUES))).boxed()
    }

    fn listen(
        &self,
        name: &LockName,
        spec: LockSpec,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        let (network, process, name) = (self.network.clone(), self.process, name.clone());
        async move { network.listen(process, &name, spec.kind(), false, within).await }.boxed()
    }

    fn listen_for_turns(
        &self,
        name: &LockName,
        spec: LockSpec,
        _: Client,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        let (network, process, name) = (self.network.clone(), self.process, name.clone());
        async move { network.listen(process, &name, spec.kind(), true, within).await }.boxed()
    }

    fn list(&self, prefix: &str, _: Cursor, _: Duration) -> BoxFuture<'static, Result<Page, Failure>> {
        let locks = self.network.list(prefix);
        ready(Ok(Page { locks, next: None })).boxed()
    }

    fn ready(&self, _: Duration) -> BoxFuture<'static, Result<(), Failure>> {
        ready(Ok(())).boxed()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kinds: Kinds::All,
            clock: LeaseClock::Server,
            values: Err(NO_VALUES),
            client_decides: false,
            liveness: HoldLiveness::Lease,
            messages_grant: true,
            shares_leases: false,
            restart_grace: None,
        }
    }

    fn supports(&self, _: LockSpec, _: &LockName) -> Result<(), &'static str> {
        Ok(())
    }

    fn declare_ttl(&self, _: Duration) {}

    fn settled(&self) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }

    fn interrupted(&self) -> BoxFuture<'static, ()> {
        let (network, process) = (self.network.clone(), self.process);
        let before = network.breaks(process);
        poll_fn(move |cx| network.poll_break(process, before, cx)).boxed()
    }

    fn interruptions(&self) -> u64 {
        self.network.breaks(self.process)
    }

    fn renews_many(&self) -> Option<&dyn RenewsMany> {
        self.renews_together.then_some(self as _)
    }

    fn member(&self) -> Result<&dyn QuorumMember, &'static str> {
        Ok(self)
    }

    fn url(&self) -> &Arc<str> {
        &self.url
    }
}

impl RenewsMany for SimStore {
    fn group(&self, _: &LockName, _: LockSpec) -> Option<u16> {
        Some(0)
    }

    fn renew(&self, ops: Vec<Op>, within: Duration) -> BoxFuture<'static, Vec<Result<Answer, Failure>>> {
        join_all(ops.into_iter().map(|op| self.call(op, within))).boxed()
    }
}

impl QuorumMember for SimStore {
    fn incarnation(&self) -> Incarnation {
        self.network.life(self.process)
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
