//! Requests to the store, and their retries.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use futures_util::future::FutureExt;

use super::grant::Grant;
use super::{Engine, backoff};
use crate::metrics::{RequestResult, RequestVerb};
use crate::moment::Moment;
use crate::name::LockName;
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::queue::FORCED;
use crate::protocol::record::{RecordAnswer, RecordOp};
use crate::protocol::{Answer, LockSpec, Op, Verb};
use crate::store::{Failure, StoreExt};

/// A request about one lock.
#[derive(Clone)]
pub(crate) struct Call<'a> {
    pub(crate) name: &'a LockName,
    spec: LockSpec,
    owner: &'a Owner,
    verb: Verb,
    is_idempotent: bool,
}

impl<'a> Call<'a> {
    pub(crate) fn new(name: &'a LockName, spec: LockSpec, owner: &'a Owner, verb: Verb) -> Self {
        Self { name, spec, owner, verb, is_idempotent: false }
    }

    /// A request about a held lock.
    pub(crate) fn of(grant: &'a Grant, verb: Verb) -> Self {
        Self::new(&grant.name, grant.spec, &grant.owner, verb)
    }

    /// Marks it as safe to execute twice, so that it is retried if its connection drops before the answer.
    pub(crate) fn idempotent(self) -> Self {
        Self { is_idempotent: true, ..self }
    }

    /// Whether it is an acquisition that takes no ticket.
    fn only_asks(&self) -> bool {
        matches!(self.verb, Verb::Acquire { wait_ms: None, .. })
    }

    fn forces(&self) -> bool {
        matches!(self.verb, Verb::Release { whose, .. } if whose.is_forced())
    }
}

/// The results of a call's earlier attempts.
#[derive(Default)]
struct Attempts {
    /// Number of attempts with an unknown outcome.
    unknown: u32,
    /// Number of attempts that a full server did not let in.
    full: u32,
    /// The first answer of a release of all holders that ended only some of them.
    first: Option<Box<Answer>>,
}

impl Engine {
    /// Sends a request and retries it, if there is a reason to, until `within` has passed since `sent`.
    pub(crate) fn call(
        self: &Arc<Self>,
        call: &Call<'_>,
        sent: Moment,
        within: Duration,
    ) -> impl Future<Output = Result<Answer, Failure>> {
        self.call_from(call, sent, within).map(|answer| answer.map(|(answer, _)| answer))
    }

    /// The same, with the time from which a lease that it set counts: `sent`, or later if the store knows.
    #[expect(clippy::manual_async_fn, reason = "an async fn stores its arguments twice")]
    pub(super) fn call_from(
        self: &Arc<Self>,
        call: &Call<'_>,
        sent: Moment,
        mut within: Duration,
    ) -> impl Future<Output = Result<(Answer, Moment), Failure>> {
        async move {
            let until = sent + within;
            let mut before = Attempts::default();
            loop {
                let (answer, began) = self.send(call, within).await;
                let pause = match self.judge(call, &mut before, until, answer) {
                    ControlFlow::Break(answer) => {
                        return answer.map(|answer| (answer, began.unwrap_or(sent)));
                    }
                    ControlFlow::Continue(pause) => pause,
                };
                if let Some(pause) = pause {
                    self.runtime.sleep_until(self.now() + pause).await;
                }
                within = until.since(self.now()).max(Duration::from_millis(1));
            }
        }
    }

    /// The result of a call, or the pause before its retry.
    fn judge(
        self: &Arc<Self>,
        call: &Call<'_>,
        before: &mut Attempts,
        until: Moment,
        answer: Result<Answer, Failure>,
    ) -> ControlFlow<Result<Answer, Failure>, Option<Duration>> {
        match answer {
            // A forced release of many holders goes on until none is left.
            Ok(answer) if call.forces() && is_in_part(&answer) => {
                before.first.get_or_insert_with(|| Box::new(answer));
                ControlFlow::Continue(None)
            }
            Ok(answer) => match before.first.take().map_or(answer, |first| *first) {
                // Possibly only expired tickets are in the way, which the next attempt removes.
                Answer::More(answer) if call.only_asks() && matches!(*answer, Answer::Busy { .. }) => {
                    match self.now() < until {
                        true => ControlFlow::Continue(None),
                        false => ControlFlow::Break(Ok(*answer)),
                    }
                }
                answer => ControlFlow::Break(Ok(self.finished(call.name, call.spec, answer))),
            },
            Err(Failure::Unknown(cause)) if call.is_idempotent => {
                // The first retry only waits for the next connection.
                let pause = match before.unknown {
                    0 => Duration::ZERO,
                    attempt => self.jittered(backoff(attempt)),
                };
                before.unknown += 1;
                match self.now() + pause < until {
                    true => ControlFlow::Continue(Some(pause)),
                    false => ControlFlow::Break(Err(Failure::Unknown(cause))),
                }
            }
            // The server accepts no more clients or memory: nothing was carried out.
            Err(failure) if failure.is_full() && before.unknown == 0 => {
                let pause = self.jittered(backoff(before.full));
                before.full += 1;
                match self.now() + pause < until {
                    true => ControlFlow::Continue(Some(pause)),
                    false => ControlFlow::Break(Err(failure)),
                }
            }
            // An earlier attempt may have been executed.
            Err(Failure::NotSent(cause)) if before.unknown > 0 => {
                ControlFlow::Break(Err(Failure::Unknown(cause)))
            }
            Err(failure) => ControlFlow::Break(Err(failure)),
        }
    }

    /// Sends a request once. Also returns when the store carried it out, if it says so.
    #[expect(clippy::manual_async_fn, reason = "an async fn stores its arguments twice")]
    fn send(
        &self,
        call: &Call<'_>,
        within: Duration,
    ) -> impl Future<Output = (Result<Answer, Failure>, Option<Moment>)> {
        async move {
            if call.forces() {
                self.reentries.forced(call.name);
            }
            let answer = self.store.request(self.op(call), within).await;
            self.count(RequestVerb::of(&call.verb), &answer);
            if call.forces() {
                // Earlier grants may have reached their callers meanwhile.
                self.reentries.forced(call.name);
            }
            match answer.map(Answer::timed) {
                Ok((answer, began)) => (Ok(answer), began),
                Err(failure) => (Err(failure), None),
            }
        }
    }

    fn op(&self, call: &Call<'_>) -> Op {
        Op {
            name: call.name.clone(),
            spec: call.spec,
            owner: call.owner.clone(),
            request: self.id(),
            verb: call.verb.clone(),
        }
    }

    /// Renews several locks that the store can renew in one request. Answers are in the same order.
    pub(crate) async fn renew<'a>(
        self: &Arc<Self>,
        each: impl Iterator<Item = Call<'a>> + Clone,
        within: Duration,
    ) -> Vec<Result<Answer, Failure>> {
        let ops: Vec<Op> = each.clone().map(|call| self.op(&call)).collect();
        let count = ops.len();
        let answers = self.store.renew(ops, within).await;
        debug_assert_eq!(answers.len(), count, "an answer for each");
        answers.iter().for_each(|answer| self.count(RequestVerb::Renew, answer));
        each.zip(answers)
            .map(|(call, answer)| match planted(Bug::BoundTakenForAnswer) {
                true => answer,
                false => answer.map(|answer| self.finished(call.name, call.spec, answer)),
            })
            .collect()
    }

    /// Sends a request about the record beside a lock.
    pub(crate) async fn record(&self, op: RecordOp, within: Duration) -> Result<RecordAnswer, Failure> {
        let asked = RequestVerb::of_record(&op.verb);
        let answer = self.store.record(op, within).await;
        self.count(asked, &answer);
        answer
    }

    fn count<T>(&self, asked: RequestVerb, answer: &Result<T, Failure>) {
        let result = match answer {
            Ok(_) => RequestResult::Answered,
            Err(Failure::NotSent(_)) => RequestResult::NotSent,
            Err(Failure::Unknown(_)) => RequestResult::Unknown,
            Err(Failure::Refused(_)) => RequestResult::Refused,
        };
        self.metrics.request(asked, result, || self.store.signals().interruptions());
    }

    /// Unwraps an answer. If the request stopped at its work limit, the rest is done in the background.
    fn finished(self: &Arc<Self>, name: &LockName, spec: LockSpec, answer: Answer) -> Answer {
        let Answer::More(answer) = answer else { return answer };
        self.finish(name, spec);
        *answer
    }

    /// Repeats a request that stopped at its work limit, in the background until it is complete. On failure,
    /// the next refresh by any waiter continues.
    fn finish(self: &Arc<Self>, name: &LockName, spec: LockSpec) {
        if !self.unfinished().insert(name.clone()) {
            return;
        }
        let (engine, name) = (Arc::clone(self), name.clone());
        let task = async move {
            // With an unused owner: waiters that it grants are notified by message.
            let owner = engine.owner("");
            let verb = Verb::Refresh { owners: Arc::new([owner.clone()]), wait_ms: 0, listens: None };
            let call = Call::new(&name, spec, &owner, verb);
            while let (Ok(Answer::More(_)), _) = engine.send(&call, Duration::from_secs(1)).await {}
            engine.unfinished().remove(&name);
        };
        self.runtime.spawn(task.boxed());
    }

    fn unfinished(&self) -> MutexGuard<'_, BTreeSet<LockName>> {
        self.unfinished.lock()
    }
}

/// Whether a release of all holders reached its limit without granting to a waiter, so that holders may
/// remain.
fn is_in_part(answer: &Answer) -> bool {
    matches!(answer, Answer::More(answer) if matches!(&**answer, Answer::Found(found) if found.holders.len() >= FORCED))
}
