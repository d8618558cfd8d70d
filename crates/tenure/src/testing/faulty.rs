//! A store with injected faults, which records its requests.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, FutureExt, ready, select};

use super::recorded::{Request, of_failure, of_reply};
use crate::metrics::RequestVerb;
use crate::name::LockName;
use crate::protocol::{Found, Notification};
use crate::runtime::{Callers, Runtime};
use crate::store::memory::Memory;
use crate::store::{
    Cursor, Decorator, Failure, Listener, Page, Publisher, RecordPage, Signals, Store, StoreExt, StoreFuture,
    StoreReply, StoreRequest, Topic,
};
use crate::sync::Locked;

/// Maximum requests recorded.
const MOST: usize = 10_000;

#[derive(Debug)]
pub(super) struct Faulty {
    memory: Memory,
    runtime: Callers,
    state: Arc<Locked<FaultState>>,
}

#[derive(Debug, Default)]
struct FaultState {
    outages: usize,
    delay: Duration,
    requests: BTreeMap<u64, Request>,
    next: u64,
}

impl Faulty {
    pub(super) fn new(memory: Memory, runtime: Callers) -> Self {
        Self { memory, runtime, state: Arc::default() }
    }

    /// As after a reconnect.
    pub(super) fn interrupt(&self) {
        self.memory.signals().interrupt();
    }

    pub(super) fn begin_outage(&self) {
        self.state.lock().outages += 1;
    }

    pub(super) fn end_outage(&self) {
        let outages = {
            let mut state = self.state.lock();
            state.outages -= 1;
            state.outages
        };
        if outages == 0 {
            self.interrupt();
        }
    }

    pub(super) fn slow(&self, delay: Duration) {
        self.state.lock().delay = delay;
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        self.state.lock().requests.values().cloned().collect()
    }

    pub(super) fn forget_requests(&self) {
        self.state.lock().requests.clear();
    }

    /// Carries out a request subject to the current faults, and records it.
    fn ask(
        &self,
        name: LockName,
        verb: RequestVerb,
        within: Duration,
        request: StoreFuture<StoreReply>,
    ) -> StoreFuture<StoreReply> {
        let (state, runtime) = (Arc::clone(&self.state), self.runtime.clone());
        async move {
            let asked = Request { name, verb: verb.as_str(), answer: "pending", at: runtime.elapsed() };
            let id = state.lock().keep(asked);
            let answer = carried_out(&state, &runtime, within, request).await;
            if let Some(asked) = state.lock().requests.get_mut(&id) {
                asked.answer = answer.as_ref().map_or_else(of_failure, of_reply);
            }
            answer
        }
        .boxed()
    }

    /// The same for a request that only reads, and is not recorded.
    fn read<T: Send + 'static>(&self, within: Duration, request: StoreFuture<T>) -> StoreFuture<T> {
        let (state, runtime) = (Arc::clone(&self.state), self.runtime.clone());
        async move { carried_out(&state, &runtime, within, request).await.map_err(Failure::not_sent) }.boxed()
    }

    /// Subjects a subscription to the current faults.
    fn passed_on(
        &self,
        heard: BoxFuture<'static, Result<Listener, Failure>>,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        let (state, runtime) = (Arc::clone(&self.state), self.runtime.clone());
        let signals = self.memory.signals().clone();
        let interrupted = signals.interrupted();
        async move {
            let heard = heard.await?;
            let station = heard.station().clone();
            let listener = Listener::new(|publisher| {
                runtime.spawn(pass_on(heard, publisher, state, (signals, interrupted)).boxed());
                Box::new(())
            });
            Ok(listener.at(station))
        }
        .boxed()
    }
}

/// Carries out a request subject to the current faults.
async fn carried_out<T>(
    state: &Locked<FaultState>,
    runtime: &Callers,
    within: Duration,
    request: StoreFuture<T>,
) -> Result<T, Failure> {
    let (delay, is_out) = {
        let state = state.lock();
        (state.delay, state.outages > 0)
    };
    if is_out {
        return Err(outage());
    }
    let answer = request.await;
    runtime.sleep_until(runtime.now() + delay.min(within)).await;
    let late = || Failure::Unknown(Failure::cause("no answer in time: the test's store is slow"));
    if delay > within { Err(late()) } else { answer }
}

fn outage() -> Failure {
    Failure::NotSent(Failure::cause("the test has an outage of its store"))
}

impl FaultState {
    fn keep(&mut self, request: Request) -> u64 {
        if self.requests.len() == MOST {
            self.requests.pop_first();
        }
        self.next += 1;
        self.requests.insert(self.next, request);
        self.next
    }
}

impl Decorator for Faulty {
    fn inner(&self) -> &dyn Store {
        &self.memory
    }

    fn call(&self, request: StoreRequest, within: Duration) -> StoreFuture<StoreReply> {
        let (name, verb) = match &request {
            StoreRequest::Lock(op) => (op.name.clone(), RequestVerb::of(&op.verb)),
            StoreRequest::Record(op) => (op.lock.clone(), RequestVerb::of_record(&op.verb)),
            StoreRequest::Renewals(ops) => return self.renew_each(ops.clone(), within),
        };
        self.ask(name, verb, within, self.memory.call(request, within))
    }

    fn subscribe(&self, topic: Topic<'_>, within: Duration) -> StoreFuture<Listener> {
        if self.state.lock().outages > 0 {
            return ready(Err(outage())).boxed();
        }
        self.passed_on(self.memory.subscribe(topic, within))
    }

    fn list(&self, prefix: &str, from: Cursor, within: Duration) -> StoreFuture<Page> {
        self.read(within, self.memory.list(prefix, from, within))
    }

    fn waiting(&self, locks: &[(LockName, Found)], within: Duration) -> StoreFuture<Vec<Option<u64>>> {
        self.read(within, self.memory.waiting(locks, within))
    }

    fn records(&self, prefix: &str, from: Cursor, within: Duration) -> StoreFuture<RecordPage> {
        self.read(within, self.memory.records(prefix, from, within))
    }

    fn ready(&self, within: Duration) -> StoreFuture<()> {
        self.read(within, self.memory.ready(within))
    }
}

/// Forwards messages except during an outage, and reports the reconnect after it.
async fn pass_on(
    mut heard: Listener,
    publisher: Publisher,
    state: Arc<Locked<FaultState>>,
    (signals, mut interrupted): (Signals, BoxFuture<'static, ()>),
) {
    loop {
        let message = pin!(heard.next());
        match select(select(message, &mut interrupted), pin!(publisher.over())).await {
            Either::Left((Either::Left((Some(message), _)), _)) => {
                if state.lock().outages == 0 {
                    publisher.say(message);
                }
            }
            Either::Left((Either::Right(((), _)), _)) => {
                interrupted = signals.interrupted();
                publisher.say(Notification::Reconnected);
            }
            _ => return,
        }
    }
}
