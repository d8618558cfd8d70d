//! A store with faults, and a record of what it was asked.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, FutureExt, ready, select};
use tokio::sync::watch;

use super::request::{Request, of_failure, of_lock, of_record};
use crate::metrics::RequestVerb;
use crate::name::LockName;
use crate::owner::Owner;
use crate::protocol::record::{RecordAnswer, RecordOp};
use crate::protocol::{Answer, LockSpec, Notification, Op};
use crate::runtime::{Callers, Runtime};
use crate::store::memory::Memory;
use crate::store::{Client, Decorator, Failure, Listener, Publisher, Store};
use crate::sync::Locked;

/// So many requests are kept.
const MOST: usize = 10_000;

#[derive(Debug)]
pub(super) struct Faulty {
    memory: Memory,
    runtime: Callers,
    state: Arc<Locked<FaultState>>,
    /// How often its connection was made again.
    interruptions: watch::Sender<u64>,
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
        Self { memory, runtime, state: Arc::default(), interruptions: watch::Sender::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, FaultState> {
        lock(&self.state)
    }

    /// It is as after a reconnect.
    pub(super) fn interrupt(&self) {
        self.interruptions.send_modify(|count| *count += 1);
    }

    pub(super) fn begin_outage(&self) {
        self.state().outages += 1;
    }

    pub(super) fn end_outage(&self) {
        let outages = {
            let mut state = self.state();
            state.outages -= 1;
            state.outages
        };
        if outages == 0 {
            self.interrupt();
        }
    }

    pub(super) fn slow(&self, delay: Duration) {
        self.state().delay = delay;
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        self.state().requests.values().cloned().collect()
    }

    pub(super) fn forget_requests(&self) {
        self.state().requests.clear();
    }

    /// Carries out a request as the faults of this moment let it, and keeps a record of it.
    fn ask<T: Send + 'static>(
        &self,
        name: &LockName,
        verb: RequestVerb,
        within: Duration,
        request: BoxFuture<'static, Result<T, Failure>>,
        shown: fn(&T) -> &'static str,
    ) -> BoxFuture<'static, Result<T, Failure>> {
        let (state, runtime, name) = (Arc::clone(&self.state), self.runtime.clone(), name.clone());
        async move {
            let (id, delay, is_out) = {
                let asked = Request { name, verb: verb.as_str(), answer: "pending", at: runtime.elapsed() };
                let mut state = lock(&state);
                (state.keep(asked), state.delay, state.outages > 0)
            };
            let answer = if is_out {
                Err(outage())
            } else {
                let answer = request.await;
                runtime.sleep_until(runtime.now() + delay.min(within)).await;
                let late = || Failure::Unknown(Failure::cause("no answer in time: the test's store is slow"));
                if delay > within { Err(late()) } else { answer }
            };
            if let Some(asked) = lock(&state).requests.get_mut(&id) {
                asked.answer = answer.as_ref().map_or_else(of_failure, shown);
            }
            answer
        }
        .boxed()
    }

    /// The same subscription, as the faults of this moment let its messages pass.
    fn passed_on(
        &self,
        heard: BoxFuture<'static, Result<Listener, Failure>>,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        let (state, runtime) = (Arc::clone(&self.state), self.runtime.clone());
        let interruptions = self.interruptions.subscribe();
        async move {
            let heard = heard.await?;
            let station = heard.station().clone();
            let listener = Listener::new(|publisher| {
                runtime.spawn(pass_on(heard, publisher, state, interruptions).boxed());
                Box::new(())
            });
            Ok(listener.at(station))
        }
        .boxed()
    }
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

fn lock(state: &Locked<FaultState>) -> MutexGuard<'_, FaultState> {
    state.lock()
}

impl Decorator for Faulty {
    fn inner(&self) -> &dyn Store {
        &self.memory
    }

    fn call(&self, op: Op, within: Duration) -> BoxFuture<'static, Result<Answer, Failure>> {
        let (name, verb) = (op.name.clone(), RequestVerb::of(&op.verb));
        self.ask(&name, verb, within, self.memory.call(op, within), of_lock)
    }

    fn record(&self, op: RecordOp, within: Duration) -> BoxFuture<'static, Result<RecordAnswer, Failure>> {
        let (name, verb) = (op.lock.clone(), RequestVerb::of_record(&op.verb));
        self.ask(&name, verb, within, self.memory.record(op, within), of_record)
    }

    fn listen(
        &self,
        name: &LockName,
        spec: LockSpec,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        if self.state().outages > 0 {
            return ready(Err(outage())).boxed();
        }
        self.passed_on(self.memory.listen(name, spec, within))
    }

    fn listen_for_turns(
        &self,
        name: &LockName,
        spec: LockSpec,
        client: Client,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        if self.state().outages > 0 {
            return ready(Err(outage())).boxed();
        }
        self.passed_on(self.memory.listen_for_turns(name, spec, client, within))
    }

    fn listen_to_ask(
        &self,
        name: &LockName,
        spec: LockSpec,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        if self.state().outages > 0 {
            return ready(Err(outage())).boxed();
        }
        self.passed_on(self.memory.listen_to_ask(name, spec, within))
    }

    fn listen_while_held(
        &self,
        name: &LockName,
        spec: LockSpec,
        owner: &Owner,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        if self.state().outages > 0 {
            return ready(Err(outage())).boxed();
        }
        self.passed_on(self.memory.listen_while_held(name, spec, owner, within))
    }

    fn interrupted(&self) -> BoxFuture<'static, ()> {
        let mut interruptions = self.interruptions.subscribe();
        async move {
            if interruptions.changed().await.is_err() {
                std::future::pending().await
            }
        }
        .boxed()
    }

    fn interruptions(&self) -> u64 {
        *self.interruptions.borrow()
    }
}

/// Passes on messages, except in an outage, and says when the connection was made again.
async fn pass_on(
    mut heard: Listener,
    publisher: Publisher,
    state: Arc<Locked<FaultState>>,
    mut interruptions: watch::Receiver<u64>,
) {
    loop {
        let (message, reconnect) = (pin!(heard.next()), pin!(interruptions.changed()));
        match select(select(message, reconnect), pin!(publisher.over())).await {
            Either::Left((Either::Left((Some(message), _)), _)) => {
                if lock(&state).outages == 0 {
                    publisher.say(message);
                }
            }
            Either::Left((Either::Right((Ok(()), _)), _)) => publisher.say(Notification::Reconnected),
            _ => return,
        }
    }
}
