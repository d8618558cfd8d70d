//! The engine asks until a lock is granted and keeps the grant alive. The only code that repeats an
//! operation and waits.
//!
//! - [`acquire`] asks once, or waits; [`acquisition`] is one attempt, with what it asks and was
//!   told;
//! - [`waiters`] is where the tasks of one process wait for a lock;
//! - [`hold`] is one grant, [`lease`] its deadline, and [`lost`] the news of its loss;
//! - [`reentry`] has the holds of one owner share a grant;
//! - [`upgrade`] makes a reader the writer;
//! - [`flight`] has one task of a process get for all what they need;
//! - [`forced`] hears that a hold may have been ended by force;
//! - [`renew`] keeps all grants of one `Locks` alive, and [`window`] says how many renewals are
//!   under way at once; [`release`] ends grants;
//! - [`error`] makes the caller's error of a store's failure.

pub(crate) mod acquire;
pub(crate) mod acquisition;
pub(crate) mod flight;
mod forced;
pub(crate) mod hold;
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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, FutureExt, join_all, select};

use crate::error::{Error, Result};
use crate::events;
use crate::metrics::{Metrics, RequestResult, RequestVerb};
use crate::moment::Moment;
use crate::name::LockName;
use crate::owner::{self, Owner};
use crate::planted::{Bug, planted};
use crate::protocol::queue::FORCED;
use crate::protocol::record::{RecordAnswer, RecordOp};
use crate::protocol::{Answer, Kind, LockSpec, Op, Verb};
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
    /// What all of its owners have in common.
    client: owner::Client,
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
        let client = owner::Client::new(runtime.random());
        let (local_queues, ticket_queues) = (LocalQueues::default(), TicketQueues::default());
        let (renewer, reentries) = (Renewer::default(), Reentries::default());
        let pending_releases = PendingReleases::default();
        let (listeners, unfinished) = (Listeners::default(), Mutex::default());
        let metrics = Metrics::new(store.url());
        Arc::new(Self {
            store,
            runtime,
            metrics,
            client,
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

    /// Sends one request.
    pub(crate) async fn call(
        self: &Arc<Self>,
        name: &LockName,
        rule: LockSpec,
        owner: &Owner,
        verb: Verb,
        within: Duration,
    ) -> Result<Answer, Failure> {
        let until = self.now() + within;
        let only_asks = matches!(verb, Verb::Acquire { wait_ms: None, .. });
        let forces = matches!(verb, Verb::Release { whose, .. } if whose.is_forced());
        if forces {
            self.reentries.forced(name);
        }
        let mut first = None;
        loop {
            let left = until.since(self.now()).max(Duration::from_millis(1));
            let answer = self.call_once(name, rule, owner, verb.clone(), left).await;
            if forces {
                // What was granted before has come into a caller's hands meanwhile.
                self.reentries.forced(name);
            }
            let answer = answer?;
            if forces && is_in_part(&answer) {
                first.get_or_insert(answer);
                continue;
            }
            match first.take().unwrap_or(answer) {
                // In the way of this one may be nothing but places that have lapsed.
                Answer::More(answer) if only_asks && matches!(*answer, Answer::Busy { .. }) => {
                    if self.now() >= until {
                        return Ok(*answer);
                    }
                }
                answer => return Ok(self.finished(name, rule, answer)),
            }
        }
    }

    /// Sends a request that may be carried out twice. Sends it again where its connection has
    /// ended before the answer.
    pub(crate) async fn call_again(
        self: &Arc<Self>,
        name: &LockName,
        rule: LockSpec,
        owner: &Owner,
        verb: Verb,
        within: Duration,
    ) -> Result<Answer, Failure> {
        let until = self.now() + within;
        let mut left = within;
        for attempt in 0.. {
            let answer = self.call(name, rule, owner, verb.clone(), left).await;
            let Err(Failure::Unknown(cause)) = answer else {
                return match answer {
                    // One before may have been carried out.
                    Err(Failure::NotSent(cause)) if attempt > 0 => Err(Failure::Unknown(cause)),
                    answer => answer,
                };
            };
            // At once at first: the next connection comes in its own time.
            let pause = if attempt == 0 { Duration::ZERO } else { self.jittered(backoff(attempt)) };
            if self.now() + pause >= until {
                return Err(Failure::Unknown(cause));
            }
            self.runtime.sleep_until(self.now() + pause).await;
            left = until.since(self.now()).max(Duration::from_millis(1));
        }
        unreachable!("time passes")
    }

    /// The answer itself, where the request stopped at its bound: the rest is done beside.
    fn finished(self: &Arc<Self>, name: &LockName, rule: LockSpec, answer: Answer) -> Answer {
        let Answer::More(answer) = answer else { return answer };
        self.finish(name, rule);
        *answer
    }

    async fn call_once(
        &self,
        name: &LockName,
        rule: LockSpec,
        owner: &Owner,
        verb: Verb,
        within: Duration,
    ) -> Result<Answer, Failure> {
        let asked = RequestVerb::of(&verb);
        let op = Op { name: name.clone(), rule, owner: owner.clone(), request: self.id(), verb };
        let answer = self.store.call(op, within).await;
        self.count(asked, &answer);
        answer
    }

    /// Renews several locks that the store can renew by one request. Answers in their order.
    pub(crate) async fn renew<'a>(
        self: &Arc<Self>,
        each: impl Iterator<Item = (&'a LockName, LockSpec, &'a Owner, Verb)> + Clone,
        within: Duration,
    ) -> Vec<Result<Answer, Failure>> {
        let ops: Vec<Op> = each
            .clone()
            .map(|(name, rule, owner, verb)| {
                let (name, owner, request) = (name.clone(), owner.clone(), self.id());
                Op { name, rule, owner, request, verb }
            })
            .collect();
        let count = ops.len();
        let answers = match self.store.renews_many() {
            Some(many) => many.renew(ops, within).await,
            None => join_all(ops.into_iter().map(|op| self.store.call(op, within))).await,
        };
        debug_assert_eq!(answers.len(), count, "an answer for each");
        answers.iter().for_each(|answer| self.count(RequestVerb::Renew, answer));
        each.zip(answers)
            .map(|((name, rule, ..), answer)| match planted(Bug::BoundTakenForAnswer) {
                true => answer,
                false => answer.map(|answer| self.finished(name, rule, answer)),
            })
            .collect()
    }

    /// Sends one request about the record beside a lock.
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
        self.metrics.request(asked, result, || self.store.interruptions());
    }

    /// A request about a queue stopped at its bound: asks, in the background, until one does not.
    /// Where that fails, the next refresh of any waiter goes on.
    fn finish(self: &Arc<Self>, name: &LockName, rule: LockSpec) {
        if !self.unfinished().insert(name.clone()) {
            return;
        }
        let (engine, name) = (Arc::clone(self), name.clone());
        let task = async move {
            // For an unused owner: waiters that it lets in hear so by message.
            let owner = engine.owner("");
            let verb = Verb::Refresh { owners: Arc::new([owner.clone()]), wait_ms: 0, listens: None };
            let within = Duration::from_secs(1);
            let ask = || engine.call_once(&name, rule, &owner, verb.clone(), within);
            while let Ok(Answer::More(_)) = ask().await {}
            engine.unfinished().remove(&name);
        };
        self.runtime.spawn(task.boxed());
    }

    fn unfinished(&self) -> MutexGuard<'_, BTreeSet<LockName>> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Moment {
        self.runtime.now()
    }

    /// A fresh owner for one acquisition; the label was checked with the options.
    fn owner(&self, label: &str) -> Owner {
        Owner::of(self.client, self.id(), label, self.runtime.unix_micros())
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

/// Whether a release of all holders has ended so many that others may be left, and has let no
/// waiter in.
fn is_in_part(answer: &Answer) -> bool {
    matches!(answer, Answer::More(answer) if matches!(&**answer, Answer::Found(found) if found.holders.len() >= FORCED))
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
