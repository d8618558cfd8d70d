//! Chooses the connection of each request: the store's own, or one on the runtime of its callers.
//!
//! A request that crosses to the store's thread and back takes about twice as long as one that stays on the
//! caller's runtime. Therefore the first tokio runtime that sends [`FREQUENT`] requests within a second gets a
//! connection of its own, used by its tasks. Everything else takes the store's connection: renewals, background
//! releases, other runtimes and threads. A caller's runtime that blocks or is dropped costs no lease.
//!
//! Guarantees in spite of two connections:
//!
//! - *Order*: a request takes the connection on which another request about the same name is unanswered or
//!   was given up. If that connection is gone, the store's connection first kills it on the server.
//! - *Deadlines*: the store's thread watches the callers' connection. If it is silent for [`PATIENCE`] while
//!   the server answers the store's connection, it is given up.
//!
//! The callers' connection is used only beside a store connection to the same server, and only if that one is
//! direct, because only then can the server be told to kill it.

use std::collections::hash_map::Entry;
use std::future::{Future, ready};
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock};
use std::time::Duration;

use futures_util::future::FutureExt;
use siphasher::sip::SipHasher13;
use tokio::sync::Notify;

use crate::connection::Connector;
use crate::connection::pipeline::Pipeline;
use crate::connection::scriptless::NO_SCRIPT;
use crate::connection::supervisor::Supervisor;
use crate::resp::encode::command;
use crate::topology::Guarantees;
use tenure_core::events::{event, text};
use tenure_core::moment::Moment;
use tenure_core::name::LockName;
use tenure_core::net::by;
use tenure_core::planted::{Bug, planted};
use tenure_core::runtime::Runtime;
use tenure_core::store::Failure;
use tenure_core::sync::Locked;

/// Requests within a second for which a callers' runtime gets a connection.
const FREQUENT: u32 = 8;
/// Maximum silence of the callers' connection while the store's own is answered.
const PATIENCE: Duration = Duration::from_millis(100);
/// Deadline of the probe of the store's connection. Longer than any pause of writes, because a missed deadline would
/// end the connection; nothing waits for it.
const PAUSE: Duration = Duration::from_secs(60);
/// How often the store's thread checks the callers' connection while it is in use.
const LOOK: Duration = Duration::from_millis(25);

/// The connections for requests to one server.
pub(crate) struct Pipelines {
    runtime: Arc<dyn Runtime>,
    connector: Arc<Connector>,
    ours: Arc<Supervisor>,
    callers: OnceLock<Arc<CallersPipeline>>,
    /// Whether there is never a callers' connection.
    // Relaxed: set only before the first request.
    is_ours_only: AtomicBool,
    unanswered: Locked<UnansweredByName>,
}

/// The connection on the callers' runtime.
struct CallersPipeline {
    runtime: Arc<dyn Runtime>,
    link: Arc<Supervisor>,
    /// Whether a request used it since the last check.
    is_used: AtomicBool,
    /// Notifies the store's thread of a use.
    used: Notify,
}

/// Requests that are unanswered or were given up, by name.
#[derive(Default)]
struct UnansweredByName {
    next: u64,
    by_name: ByName,
    /// Requests of callers' runtimes without a connection, since this time.
    frequent: (Moment, u32),
    /// Both connections as last seen. Cached here, so that a request takes a single lock.
    beside: Option<Beside>,
}

#[expect(clippy::disallowed_types, reason = "no order shows: it is never iterated over")]
type ByName = std::collections::HashMap<LockName, Traffic, BuildHasherDefault<SipHasher13>>;

/// The callers' connection, and the store's own to the same server.
struct Beside {
    callers: Arc<Pipeline>,
    ours: Arc<Pipeline>,
}

/// Unanswered requests about one name, all on the same connection.
struct Traffic {
    place: ConnectionRoute,
    in_flight: usize,
    /// Requests with smaller numbers went to a connection that has since been killed.
    first: u64,
    /// The first number after the last request that was given up. Only a reply to a request that began then proves
    /// that it is over: one that began before may have been sent before its last part.
    given_up: Option<u64>,
}

#[derive(Clone)]
enum ConnectionRoute {
    Ours,
    Callers(Arc<Pipeline>),
    /// The store's connection, after killing this one.
    OursAfter(Arc<Pipeline>),
}

/// A connection for one request.
pub(crate) struct Chosen {
    pub(crate) pipeline: Arc<Pipeline>,
    request: Numbered,
}

/// A request about a name. If dropped before its answer, it counts as given up.
struct Numbered {
    pipelines: Arc<Pipelines>,
    /// `None` once it is over.
    name: Option<LockName>,
    number: u64,
    /// It changes nothing, so the time at which it is carried out does not matter. No trace is kept if its
    /// answer does not come, because a program may give up reads of ever new names.
    only_reads: bool,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestEnd {
    /// Answered, or never sent.
    Settled,
    /// May still be carried out.
    GivenUp,
    /// May still be carried out, but changes nothing.
    Ignored,
}

impl Pipelines {
    /// `ours` is the store's own connection; `connector` is what it is dialled by.
    pub(crate) fn new(connector: Arc<Connector>, ours: Arc<Supervisor>) -> Arc<Self> {
        let (runtime, callers, unanswered) =
            (Arc::clone(&connector.runtime), OnceLock::new(), Locked::default());
        Arc::new(Self { runtime, connector, ours, callers, is_ours_only: AtomicBool::new(false), unanswered })
    }

    /// The connection for a request about this name. With `acks` or a restart grace it is always the store's
    /// own, because the scripts then have effects that two connections cannot keep in order.
    pub(crate) async fn choose(
        self: &Arc<Self>,
        name: &LockName,
        only_reads: bool,
        guarantees: Guarantees,
        deadline: Moment,
    ) -> Result<Chosen, Failure> {
        let (request, place) = self.place(name, only_reads, guarantees);
        self.take(request, place, self.ours.pipeline(deadline), deadline).await
    }

    /// Like `choose`, with the store's own connection given.
    pub(crate) async fn choose_beside(
        self: &Arc<Self>,
        ours: &Arc<Pipeline>,
        name: &LockName,
        only_reads: bool,
        guarantees: Guarantees,
        deadline: Moment,
    ) -> Result<Chosen, Failure> {
        let (request, place) = self.place(name, only_reads, guarantees);
        self.take(request, place, ready(Ok(Arc::clone(ours))), deadline).await
    }

    pub(crate) fn use_ours_only(&self) {
        self.is_ours_only.store(true, Ordering::Relaxed);
    }

    fn place(
        self: &Arc<Self>,
        name: &LockName,
        only_reads: bool,
        guarantees: Guarantees,
    ) -> (Numbered, ConnectionRoute) {
        let may_have_callers =
            guarantees == Guarantees::default() && !self.is_ours_only.load(Ordering::Relaxed);
        let callers = if may_have_callers { self.callers() } else { None };
        self.begin(name, only_reads, callers)
    }

    async fn take(
        &self,
        mut request: Numbered,
        place: ConnectionRoute,
        ours: impl Future<Output = Result<Arc<Pipeline>, Failure>>,
        deadline: Moment,
    ) -> Result<Chosen, Failure> {
        let pipeline = match place {
            ConnectionRoute::Callers(pipeline) => {
                self.note_use();
                pipeline
            }
            ConnectionRoute::Ours => match ours.await {
                Ok(pipeline) => pipeline,
                Err(failure) => {
                    if let Some(pipeline) =
                        self.callers.get().and_then(|callers| callers.link.open_pipeline())
                        && failure.is_full()
                    {
                        pipeline.hang_up();
                    }
                    request.settle();
                    return Err(failure);
                }
            },
            // If this fails, the request counts as given up, and the next one retries.
            ConnectionRoute::OursAfter(over) => {
                let pipeline = self.end(&over, deadline).boxed().await?;
                request.follows_the_end();
                pipeline
            }
        };
        Ok(Chosen { pipeline, request })
    }

    /// The connection on the current caller's runtime. The first one that is used often gets it.
    fn callers(&self) -> Option<&CallersPipeline> {
        let Some(callers) = self.callers.get() else {
            if let Some(runtime) = self.runtime.of_caller()
                && self.is_frequent()
            {
                self.start(runtime);
            }
            return None;
        };
        callers.runtime.is_callers().then_some(callers)
    }

    fn is_frequent(&self) -> bool {
        let now = self.runtime.now();
        let (since, count) = &mut self.unanswered().frequent;
        if now.since(*since) > Duration::from_secs(1) {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        *count >= FREQUENT
    }

    /// The open callers' connection, if it is usable.
    fn callers_pipeline(
        &self,
        callers: &CallersPipeline,
        known: &mut Option<Beside>,
    ) -> Option<Arc<Pipeline>> {
        if known.as_ref().is_none_or(Beside::is_over) {
            let both = callers.link.open_pipeline().zip(self.ours.open_pipeline());
            *known = both.map(|(callers, ours)| Beside { callers, ours });
        }
        known.as_ref().filter(|beside| beside.is_fit()).map(|beside| Arc::clone(&beside.callers))
    }

    /// Has the store's thread watch the callers' connection.
    fn note_use(&self) {
        if let Some(callers) = self.callers.get()
            && !callers.is_used.swap(true, Ordering::AcqRel)
        {
            callers.used.notify_one();
        }
    }

    fn start(&self, runtime: Arc<dyn Runtime>) {
        let link = Supervisor::new(Arc::new(self.connector.beside(Arc::clone(&runtime))));
        let (is_used, used) = (AtomicBool::new(false), Notify::new());
        let callers = Arc::new(CallersPipeline { runtime, link, is_used, used });
        if self.callers.set(Arc::clone(&callers)).is_ok() {
            let (ours, runtime) = (Arc::clone(&self.ours), Arc::clone(&self.runtime));
            let task = async move {
                // A server may have room for one connection only.
                while ours.pipeline(Moment(u64::MAX)).await.is_err() && !ours.is_closed() {}
                callers.link.start();
                callers.watch(ours, runtime).await;
            };
            self.runtime.spawn(task.boxed());
        }
    }

    /// Kills a callers' connection on the server and returns the store's own: the server carries out later
    /// requests only after the kill.
    async fn end(&self, over: &Pipeline, deadline: Moment) -> Result<Arc<Pipeline>, Failure> {
        let ours = self.ours.pipeline(deadline).await?;
        if let Some(peer) = &over.peer {
            let reply = ours.ask(&peer.kill(), deadline).await?;
            self.connector.has_ended(&ours.to.to_string(), &reply)?;
        }
        Ok(ours)
    }

    /// Registers a request about this name, and decides where it goes.
    fn begin(
        self: &Arc<Self>,
        name: &LockName,
        only_reads: bool,
        callers: Option<&CallersPipeline>,
    ) -> (Numbered, ConnectionRoute) {
        let mut unanswered = self.unanswered();
        let UnansweredByName { next, by_name, beside, .. } = &mut *unanswered;
        let number = *next;
        *next += 1;
        let preferred = callers.and_then(|callers| self.callers_pipeline(callers, beside));
        let wanted = preferred.map_or(ConnectionRoute::Ours, ConnectionRoute::Callers);
        let traffic = by_name.entry(name.clone()).or_insert_with(|| Traffic {
            place: wanted,
            in_flight: 0,
            first: number,
            given_up: None,
        });
        if let ConnectionRoute::Callers(pipeline) = &traffic.place
            && pipeline.is_closed()
        {
            let place = ConnectionRoute::OursAfter(Arc::clone(pipeline));
            *traffic = Traffic { place, in_flight: 0, first: number, given_up: None };
        }
        traffic.in_flight += 1;
        let request = Numbered { pipelines: Arc::clone(self), name: Some(name.clone()), number, only_reads };
        (request, traffic.place.clone())
    }

    fn unanswered(&self) -> MutexGuard<'_, UnansweredByName> {
        self.unanswered.lock()
    }

    /// Closes the callers' connection.
    pub(crate) fn close(&self) {
        if let Some(callers) = self.callers.get() {
            callers.link.close();
            callers.used.notify_one();
            self.unanswered().beside = None;
        }
    }
}

impl Beside {
    fn is_over(&self) -> bool {
        self.callers.is_closed() || self.ours.is_closed()
    }

    fn is_fit(&self) -> bool {
        let Self { callers, ours } = self;
        callers.is_direct
            && callers.to == ours.to
            && !callers.life.differs(&ours.life)
            && ours.plain.get().is_none()
    }
}

impl Chosen {
    /// Passes the answer on. An answer that leaves the outcome unknown does not settle the request.
    pub(crate) fn answered<T>(mut self, answer: Result<T, Failure>) -> Result<T, Failure> {
        if !matches!(answer, Err(Failure::Unknown(_))) {
            self.request.settle();
        }
        answer
    }
}

impl Numbered {
    /// Answered, or never sent.
    fn settle(&mut self) {
        self.leave(RequestEnd::Settled);
    }

    /// The kill has been carried out: later requests need not wait for it.
    fn follows_the_end(&self) {
        if let Some(name) = &self.name
            && let Some(traffic) = self.pipelines.unanswered().by_name.get_mut(name)
            && matches!(traffic.place, ConnectionRoute::OursAfter(_))
        {
            traffic.place = ConnectionRoute::Ours;
        }
    }

    fn leave(&mut self, end: RequestEnd) {
        let Some(name) = self.name.take() else { return };
        let mut unanswered = self.pipelines.unanswered();
        let UnansweredByName { next, by_name, .. } = &mut *unanswered;
        let Entry::Occupied(mut entry) = by_name.entry(name) else { return };
        let traffic = entry.get_mut();
        if self.number < traffic.first {
            return;
        }
        traffic.in_flight = traffic.in_flight.saturating_sub(1);
        match end {
            RequestEnd::Settled => {
                traffic.given_up = traffic.given_up.filter(|given_up| *given_up > self.number)
            }
            RequestEnd::GivenUp => traffic.given_up = Some(*next),
            RequestEnd::Ignored => {}
        }
        if traffic.in_flight == 0 && traffic.given_up.is_none() {
            entry.remove();
        }
    }
}

impl Drop for Numbered {
    fn drop(&mut self) {
        self.leave(match self.only_reads {
            true => RequestEnd::Ignored,
            false if planted(Bug::GivenUpForgotten) => RequestEnd::Settled,
            false => RequestEnd::GivenUp,
        });
    }
}

impl CallersPipeline {
    /// Gives the callers' connection up if it is silent while the server answers the store's own. Runs on the
    /// store's thread.
    async fn watch(self: Arc<Self>, ours: Arc<Supervisor>, runtime: Arc<dyn Runtime>) {
        while !self.link.is_closed() {
            let open = self.link.open_pipeline();
            let is_busy = open.as_ref().is_some_and(|pipeline| pipeline.has_unanswered());
            if !self.is_used.swap(false, Ordering::AcqRel) && !is_busy {
                self.used.notified().await;
                continue;
            }
            runtime.sleep_until(runtime.now() + LOOK).await;
            let Some(pipeline) = open else { continue };
            let asked = runtime.now();
            if !pipeline.is_silent_since(asked - PATIENCE) {
                continue;
            }
            let Some(our_pipeline) = ours.open_pipeline() else { continue };
            // A server that has paused writes answers PING, but no EVALSHA, not even of a script that it lacks.
            let asks = command(&["EVALSHA", NO_SCRIPT, "0"]);
            let answer = by(&*runtime, asked + PATIENCE, our_pipeline.ask(&asks, asked + PAUSE)).await;
            if matches!(answer, Some(Ok(_)))
                && pipeline.is_silent_since(asked - PATIENCE)
                && !pipeline.is_closed()
            {
                event!(
                    WARN,
                    target: "tenure",
                    "callers_blocked",
                    "the callers' runtime is blocked: closing their connection",
                    server = text(&pipeline.to),
                );
                pipeline.hang_up();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::io;

    use futures_util::future::BoxFuture;

    use super::*;
    use crate::connection::{Dial, Dialled};
    use crate::topology::{Address, Target};
    use tenure_core::runtime::Driver;

    #[derive(Debug)]
    struct Silent;

    impl Dial for Silent {
        fn dial(&self, _to: &Address) -> BoxFuture<'static, io::Result<Dialled>> {
            pending().boxed()
        }
    }

    #[test]
    fn nothing_is_kept_of_a_read_that_was_given_up() {
        let driver = Driver::start().expect("a thread");
        let runtime = Arc::clone(&driver) as Arc<dyn Runtime>;
        let target = Target::parse("redis://h").expect("a URL");
        let connector = Arc::new(Connector::new(Arc::clone(&runtime), Arc::new(Silent), target));
        let ours = Supervisor::new(Arc::clone(&connector));
        let pipelines = Pipelines::new(connector, Arc::clone(&ours));
        let name = LockName::new("x").expect("a name");
        let deadline = runtime.now() + Duration::from_secs(60);
        for (only_reads, kept) in [(true, 0), (false, 1), (true, 1)] {
            let asked = pipelines.choose(&name, only_reads, Guarantees::default(), deadline).now_or_never();
            assert!(asked.is_none(), "no server is there");
            assert_eq!(pipelines.unanswered().by_name.len(), kept, "after a read: {only_reads}");
        }
        ours.close();
        driver.stop();
    }

    /// Such as an acquisition whose script leaves after its plain commands, and after the release of another task.
    #[test]
    fn a_reply_to_a_request_that_began_later_may_not_prove_that_an_earlier_one_is_over() {
        let driver = Driver::start().expect("a thread");
        let runtime = Arc::clone(&driver) as Arc<dyn Runtime>;
        let target = Target::parse("redis://h").expect("a URL");
        let connector = Arc::new(Connector::new(runtime, Arc::new(Silent), target));
        let ours = Supervisor::new(Arc::clone(&connector));
        let pipelines = Pipelines::new(connector, Arc::clone(&ours));
        let name = LockName::new("x").expect("a name");
        let begin = || pipelines.begin(&name, false, None).0;
        let (acquisition, mut release) = (begin(), begin());
        drop(acquisition);
        release.settle();
        assert_eq!(pipelines.unanswered().by_name.len(), 1, "the acquisition may be under way");
        begin().settle();
        assert_eq!(pipelines.unanswered().by_name.len(), 0, "it was overtaken by nothing");
        ours.close();
        driver.stop();
    }
}
