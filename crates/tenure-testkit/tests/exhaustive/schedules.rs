//! The real engine in every schedule of a small world: two or three tasks in two processes, one lock, and
//! every fate of each message. A depth-first walk over all choices: which task runs next, when each starts,
//! gives up and releases, and which messages are lost.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, FutureExt, ready, select};
use tenure::internals::protocol::{Answer, Now, Op, State, apply, found};
use tenure::internals::store::{
    Capabilities, Cursor, Failure, Listener, Page, Publisher, Signals, Store, StoreFuture, StoreReply,
    StoreRequest, Topic,
};
use tenure::internals::{Runtime, locks};
use tenure::{Guard, Locks, Options, Result};
use tenure_testkit::sim::chooser::{Chooser, next_in_order};
use tenure_testkit::sim::clock::{Clock, MS, SECOND};
use tenure_testkit::sim::executor::{Process, Sim};

use crate::is_large;

/// In one direction.
const LATENCY: u64 = MS;
const TTL: Duration = Duration::from_millis(60);

/// The kind of the one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Mutex,
    Fair,
}

#[derive(Clone, Copy, Debug)]
struct Small {
    kind: Kind,
    /// Tasks per process.
    tasks: &'static [usize],
    /// Maximum lost messages.
    losses: u32,
}

/// The connection of one process to the server.
#[derive(Clone)]
struct Wire {
    sim: Sim,
    process: Arc<Process>,
    server: Arc<Mutex<Server>>,
    losses: Arc<AtomicU32>,
    signals: Signals,
    url: Arc<str>,
}

#[derive(Default)]
struct Server {
    lock: State,
    counter: u64,
    listeners: Vec<(u64, Publisher)>,
    next: u64,
}

fn server(server: &Mutex<Server>) -> std::sync::MutexGuard<'_, Server> {
    server.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The fate of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Answered,
    RequestLost,
    ReplyLost,
    WakeLost,
}

impl Wire {
    fn fate(&self) -> Fate {
        if self.losses.load(Ordering::Relaxed) == 0 {
            return Fate::Answered;
        }
        let fate = match self.sim.choose(4) {
            0 => return Fate::Answered,
            1 => Fate::RequestLost,
            2 => Fate::ReplyLost,
            _ => Fate::WakeLost,
        };
        self.losses.fetch_sub(1, Ordering::Relaxed);
        fate
    }

    fn arrive(&self, op: &Op, fate: Fate) -> Answer {
        let at = self.sim.now() + SECOND;
        let mut server = server(&self.server);
        let Server { lock, counter, .. } = &mut *server;
        let (answer, wake) = apply(lock, counter, Now { ms: at / MS, unix_us: at / 1_000 }, op);
        if let Some(wake) = wake.filter(|_| fate != Fate::WakeLost) {
            for (_, listener) in &server.listeners {
                listener.say(wake.clone());
            }
        }
        answer
    }

    async fn sleep(&self, time: u64) {
        self.process.sleep_until(self.process.now() + Duration::from_nanos(time)).await;
    }
}

/// Its messages are those of locks.
const NO_VALUES: &str = "this simulation is of locks alone";

impl Store for Wire {
    fn call(&self, request: StoreRequest, within: Duration) -> StoreFuture<StoreReply> {
        let StoreRequest::Lock(op) = request else {
            return ready(Err(Failure::impossible(NO_VALUES))).boxed();
        };
        let wire = self.clone();
        async move {
            let (fate, slot) = (wire.fate(), Arc::new(Mutex::new(None)));
            if fate != Fate::RequestLost {
                let (there, slot) = (wire.clone(), Arc::clone(&slot));
                wire.sim.at(wire.sim.now() + LATENCY, move || {
                    *slot.lock().expect("one thread") = Some(there.arrive(&op, fate));
                });
            }
            if matches!(fate, Fate::RequestLost | Fate::ReplyLost)
                || within.as_nanos() < u128::from(2 * LATENCY)
            {
                wire.sleep(within.as_nanos() as u64).await;
                return Err(Failure::Unknown(Failure::cause("no answer")));
            }
            wire.sleep(2 * LATENCY).await;
            Ok(StoreReply::Lock(slot.lock().expect("one thread").take().expect("it has arrived")))
        }
        .boxed()
    }

    fn subscribe(&self, _: Topic<'_>, _: Duration) -> StoreFuture<Listener> {
        let wire = self.clone();
        async move {
            wire.sleep(2 * LATENCY).await;
            Ok(Listener::new(|publisher| {
                let mut server = server(&wire.server);
                let id = server.next;
                server.next += 1;
                server.listeners.push((id, publisher));
                Box::new(Subscription(Arc::clone(&wire.server), id)) as Box<dyn Any + Send>
            }))
        }
        .boxed()
    }

    fn list(&self, _: &str, _: Cursor, _: Duration) -> StoreFuture<Page> {
        ready(Ok(Page::default())).boxed()
    }

    fn ready(&self, _: Duration) -> StoreFuture<()> {
        ready(Ok(())).boxed()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { values: Err(NO_VALUES), ..Capabilities::SERVER }
    }

    fn signals(&self) -> &Signals {
        &self.signals
    }

    fn url(&self) -> &Arc<str> {
        &self.url
    }
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wire")
    }
}

struct Subscription(Arc<Mutex<Server>>, u64);

impl Drop for Subscription {
    fn drop(&mut self) {
        server(&self.0).listeners.retain(|(id, _)| *id != self.1);
    }
}

/// What the tasks report.
#[derive(Default)]
struct ReferenceModel {
    inside: Vec<Arc<Guard>>,
    done: usize,
    /// When the last one ended.
    ended: u64,
    wrong: Option<&'static str>,
}

struct Task {
    sim: Sim,
    process: Arc<Process>,
    locks: Locks,
    kind: Kind,
    model: Arc<Mutex<ReferenceModel>>,
}

impl Task {
    async fn run(self) {
        if self.sim.choose(2) == 1 {
            self.sleep(3 * LATENCY / 2).await;
        }
        // Never, during the request, during the answer, during the wait.
        let patience = [SECOND, LATENCY / 2, 3 * LATENCY / 2, 7 * LATENCY / 2][self.sim.choose(4) as usize];
        let guard = {
            let lock: BoxFuture<'static, Result<Guard>> = match self.kind {
                Kind::Mutex => {
                    let lock = self.locks.mutex("x").expect("a name");
                    async move { lock.lock().await }.boxed()
                }
                Kind::Fair => {
                    let lock = self.locks.fair_mutex("x").expect("a name");
                    async move { lock.lock().await }.boxed()
                }
            };
            match select(lock, pin!(self.sleep(patience))).await {
                Either::Left((guard, _)) => Some(guard.expect("the store answers in the end")),
                Either::Right(_) => None,
            }
        };
        if let Some(guard) = guard {
            let guard = Arc::new(guard);
            {
                let mut model = self.model.lock().expect("one thread");
                model.inside.push(Arc::clone(&guard));
                if model.inside.iter().filter(|guard| guard.is_held()).count() > 1 {
                    model.wrong = Some("two hold it");
                }
            }
            self.sleep(LATENCY).await;
            self.model.lock().expect("one thread").inside.retain(|other| !Arc::ptr_eq(other, &guard));
            let guard = Arc::into_inner(guard).expect("no other client has it");
            if self.sim.choose(2) == 0 {
                drop(guard);
            } else {
                let _ = guard.release().await;
            }
        } else if patience == SECOND {
            self.model.lock().expect("one thread").wrong = Some("a client waits for ever");
        }
        let mut model = self.model.lock().expect("one thread");
        (model.done, model.ended) = (model.done + 1, self.sim.now());
    }

    async fn sleep(&self, time: u64) {
        self.process.sleep_until(self.process.now() + Duration::from_nanos(time)).await;
    }
}

impl Small {
    /// Runs one schedule; returns the violation.
    fn run(self, sim: &Sim) -> Option<&'static str> {
        let (shared, model) =
            (Arc::new(Mutex::new(Server::default())), Arc::new(Mutex::new(ReferenceModel::default())));
        let losses = Arc::new(AtomicU32::new(self.losses));
        for tasks in self.tasks {
            let process = sim.process(Clock::default(), 7);
            let store = Wire {
                sim: sim.clone(),
                process: Arc::clone(&process),
                server: Arc::clone(&shared),
                losses: Arc::clone(&losses),
                signals: Signals::default(),
                url: "sim:".into(),
            };
            let options = Options::new().ttl(TTL).op_timeout(Duration::from_millis(10));
            let locks = locks(Arc::new(store), Arc::clone(&process) as _, options).expect("options");
            for _ in 0..*tasks {
                let (sim, process, locks, model) =
                    (sim.clone(), Arc::clone(&process), locks.clone(), Arc::clone(&model));
                let id = process.id();
                let task = Task { sim: sim.clone(), process, locks, kind: self.kind, model };
                sim.spawn(id, Box::pin(task.run()));
            }
        }
        sim.run(2 * SECOND, 20_000);
        // For background releases, and leases that no client could release.
        sim.run(3 * SECOND, 40_000);
        // A hold whose message was lost ends with its lease, everything else immediately.
        let lost = self.losses - losses.load(Ordering::Relaxed);
        let at = sim.now() + SECOND + u64::from(lost) * TTL.as_nanos() as u64;
        let now = Now { ms: at / MS, unix_us: at / 1_000 };
        let is_left = found(&server(&shared).lock, now).is_some();
        let model = model.lock().expect("one thread");
        let tasks: usize = self.tasks.iter().sum();
        match model.wrong {
            Some(wrong) => Some(wrong),
            None if model.done < tasks => Some("a task has not ended"),
            // A lease is longer than all turns together, so a client waited for its end.
            None if lost == 0 && model.ended > 3 * TTL.as_nanos() as u64 / 4 => {
                Some("it was free, and a client waited")
            }
            None if is_left => Some("something is left behind"),
            None => None,
        }
    }

    /// Walks over all schedules; returns their number and the first violation, with the choices that lead to
    /// it.
    fn walk(self) -> (u64, Option<(&'static str, Vec<u32>)>) {
        let (mut next, mut count) = (Some(Vec::new()), 0);
        while let Some(choices) = next {
            let sim = Sim::new(Chooser::replay(choices));
            let wrong = catch_unwind(AssertUnwindSafe(|| self.run(&sim))).unwrap_or(Some("a panic"));
            sim.end();
            count += 1;
            let made = sim.choices();
            if let Some(wrong) = wrong {
                return (count, Some((wrong, made.iter().map(|choice| choice.chosen).collect())));
            }
            next = next_in_order(&made);
        }
        (count, None)
    }
}

#[test]
fn the_engine_keeps_its_promises_in_every_schedule_of_a_small_world() {
    let mut sizes: Vec<(&[usize], u32)> = vec![(&[1, 1], 1)];
    if is_large() {
        sizes.extend([(&[2, 1][..], 0), (&[1, 1], 2)]);
    }
    for kind in [Kind::Mutex, Kind::Fair] {
        for (tasks, losses) in &sizes {
            let small = Small { kind, tasks, losses: *losses };
            let (count, wrong) = small.walk();
            println!("{small:?}: {count} schedules");
            assert_eq!(wrong, None, "{small:?}");
        }
    }
}

/// The check can fail.
#[test]
#[cfg(tenure_planted)]
fn mistakes_of_the_engine_are_found_in_small_worlds() {
    use tenure::internals::planted::Bug;
    use tenure_testkit::plant;
    for bug in [Bug::ListenAfterAsking, Bug::WakeSwallowed, Bug::DropLeaves] {
        plant(Some(bug));
        let found = [Kind::Mutex, Kind::Fair].into_iter().find_map(|kind| {
            let small = Small { kind, tasks: &[2, 1], losses: 0 };
            let (count, wrong) = small.walk();
            wrong.map(|(wrong, _)| (small, count, wrong))
        });
        plant(None);
        let Some((small, count, wrong)) = found else { panic!("{bug:?} is not found") };
        println!("{bug:?}: {wrong} in schedule {count} of {small:?}");
    }
}
