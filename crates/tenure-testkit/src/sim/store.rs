//! What one process uses as its store: requests on their way, until the answer is there, the time
//! over or no client waits any more.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, ready};
use tenure::LockName;
use tenure::internals::Store;
use tenure::internals::protocol::record::{RecordAnswer, RecordOp};
use tenure::internals::protocol::{LockSpec, Op, Reply, Verb};
use tenure::internals::store::{Cursor, Failure, Incarnation, Listener, Page};

use super::clock::TrueTime;
use super::executor::{ProcessId, lock};
use super::network::Network;

/// A client that gives a request less time than this does not blame the connection when there is no
/// answer.
const SHORT: Duration = Duration::from_millis(50);

/// Where the answer to one request arrives.
#[derive(Default)]
pub(super) struct Slot(Mutex<Arrival>);

#[derive(Default)]
struct Arrival {
    answer: Option<Result<Reply, Failure>>,
    /// When there is a connection to leave on.
    leaves_at: TrueTime,
    /// When the client that asks gives up.
    until: TrueTime,
    is_out_of_time: bool,
    is_executed: bool,
    /// No client waits any more, and it has not left yet.
    is_withdrawn: bool,
    /// No client waits any more.
    is_over: bool,
    /// The server did not know its script, and was told it.
    is_again: bool,
    waker: Option<Waker>,
}

impl Slot {
    /// When its request leaves, and when it is given up.
    pub(super) fn leave(&self, leaves_at: TrueTime, until: TrueTime) {
        let mut arrival = lock(&self.0);
        (arrival.leaves_at, arrival.until) = (leaves_at, until);
    }

    /// When the client that asks gives up.
    pub(super) fn until(&self) -> TrueTime {
        lock(&self.0).until
    }

    /// Whether its request was not sent a second time yet.
    pub(super) fn is_first(&self) -> bool {
        !std::mem::replace(&mut lock(&self.0).is_again, true)
    }

    /// Whether it is sent a second time: not if no client waits for it.
    pub(super) fn leaves_again(&self) -> bool {
        let arrival = lock(&self.0);
        !arrival.is_over && !arrival.is_out_of_time
    }

    /// Its request has reached the server. Returns false when it is not to be carried out.
    pub(super) fn arrive(&self) -> bool {
        let mut arrival = lock(&self.0);
        arrival.is_executed = !arrival.is_withdrawn;
        arrival.is_executed
    }

    /// Its time is over.
    pub(super) fn end(&self) {
        let mut arrival = lock(&self.0);
        arrival.is_out_of_time = true;
        wake(arrival);
    }

    pub(super) fn fill(&self, answer: Result<Reply, Failure>) {
        let mut arrival = lock(&self.0);
        arrival.answer.get_or_insert(answer);
        wake(arrival);
    }
}

fn wake(mut arrival: MutexGuard<'_, Arrival>) {
    let waker = arrival.waker.take();
    drop(arrival);
    if let Some(waker) = waker {
        waker.wake();
    }
}

pub(super) fn unknown() -> Failure {
    Failure::Unknown(Failure::cause("the connection ended before the answer came"))
}

fn not_sent() -> Failure {
    Failure::NotSent(Failure::cause("there is no connection"))
}

/// What one process uses as its store.
pub struct SimStore {
    pub(super) network: Network,
    pub(super) process: ProcessId,
    pub(super) url: Arc<str>,
}

/// Its messages are those of locks.
const NO_RECORD: &str = "this simulation is of locks alone";

impl Store for SimStore {
    fn call(&self, op: Op, within: Duration) -> BoxFuture<'static, Result<Reply, Failure>> {
        Box::pin(Call {
            network: self.network.clone(),
            process: self.process,
            within,
            op: Some(op),
            slot: Arc::default(),
        })
    }

    fn record(&self, _: RecordOp, _: Duration) -> BoxFuture<'static, Result<RecordAnswer, Failure>> {
        ready(Err(Failure::impossible(NO_RECORD))).boxed()
    }

    fn keeps_records(&self) -> Result<(), &'static str> {
        Err(NO_RECORD)
    }

    fn listen(
        &self,
        name: &LockName,
        rule: LockSpec,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        let (network, process, name) = (self.network.clone(), self.process, name.clone());
        async move { network.listen(process, &name, rule.kind(), within).await }.boxed()
    }

    fn list(&self, prefix: &str, _: Cursor, _: Duration) -> BoxFuture<'static, Result<Page, Failure>> {
        let locks = self.network.list(prefix);
        ready(Ok(Page { locks, next: None })).boxed()
    }

    fn supports(&self, _: LockSpec, _: &LockName) -> Result<(), &'static str> {
        Ok(())
    }

    fn interrupted(&self) -> BoxFuture<'static, ()> {
        let (network, process) = (self.network.clone(), self.process);
        let before = network.breaks(process);
        poll_fn(move |cx| network.poll_break(process, before, cx)).boxed()
    }

    fn interruptions(&self) -> u64 {
        self.network.breaks(self.process)
    }

    fn life(&self) -> Incarnation {
        self.network.life(self.process)
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

/// One request on its way.
struct Call {
    network: Network,
    process: ProcessId,
    within: Duration,
    /// Until it is sent.
    op: Option<Op>,
    slot: Arc<Slot>,
}

impl Future for Call {
    type Output = Result<Reply, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(op) = self.op.take()
            && !self.network.send(self.process, op, &self.slot, self.within)
        {
            return Poll::Ready(Err(not_sent()));
        }
        let mut arrival = lock(&self.slot.0);
        if arrival.is_out_of_time && (arrival.answer.is_none() || self.network.sim.chance(500)) {
            // In a process that stood still both are there: the answer, and the end of its time.
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
    /// A request that was dropped on its way may be carried out, or, if it was still in this
    /// process, never; one that waited for a connection does not leave.
    fn drop(&mut self) {
        let mut arrival = lock(&self.slot.0);
        arrival.is_over = true;
        if self.op.is_none() && arrival.answer.is_none() && !arrival.is_executed {
            let sim = &self.network.sim;
            arrival.is_withdrawn = sim.chance(300) || sim.now() < arrival.leaves_at;
        }
    }
}

/// A request as one reads it in a trace.
pub(super) struct Shown<'a>(pub(super) &'a Op);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Op { name, owner, request, verb, .. } = self.0;
        let owner = &owner.as_str()[owner.as_str().len() - 6..];
        let (name, request) = (name.as_str(), request & 0xffff);
        match verb {
            Verb::Acquire { ttl_ms, wait_ms, hold, .. } => {
                let hold = hold & 0xffff;
                write!(f, "acquire {name} by …{owner} for {ttl_ms} ms, hold {hold} [{request}]")?;
                wait_ms.map_or(Ok(()), |wait_ms| write!(f, ", or a place for {wait_ms} ms"))
            }
            Verb::Renew { ttl_ms, bind, weight, .. } => {
                write!(f, "renew {name} by …{owner} for {ttl_ms} ms [{request}]")?;
                bind.map_or(Ok(()), |bind| write!(f, " bound to {bind:?}"))?;
                weight.map_or(Ok(()), |weight| write!(f, " at weight {weight}"))
            }
            Verb::Release { whose, hold, .. } => {
                let hold = hold & 0xffff;
                write!(f, "release {name} by …{owner} of {whose:?}, hold {hold} [{request}]")
            }
            Verb::Refresh { owners, wait_ms } => {
                write!(f, "refresh {name} by {} for {wait_ms} ms [{request}]", owners.len())
            }
            Verb::Inspect => write!(f, "inspect {name} by …{owner} [{request}]"),
        }
    }
}
