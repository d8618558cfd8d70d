//! Requests of two runtimes over two connections. The callers' runtime is blocked, resumes and ends at any
//! moment, on a network that splits, delays and cuts.

use std::fmt;
use std::future::poll_fn;
#[cfg(tenure_planted)]
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, FutureExt, select};
use tenure::internals::protocol::{Answer, Fence, Liveness, LockSpec, Op, ReleaseScope, Verb};
use tenure::internals::store::StoreExt;
use tenure::internals::store::redis::{Redis, Target};
use tenure::internals::{Moment, Runtime};
use tenure::{LockName, Owner};
use tenure_testkit::sim::chooser::Chooser;
use tenure_testkit::sim::clock::{Clock, MS, SECOND};
use tenure_testkit::sim::executor::{Process, Sim, Stop};
use tenure_testkit::sim_transport::{Cut, Direction, SimTransport, Then};
use tokio::sync::oneshot;

use crate::grants::{Grant, check};

const WITHIN: Duration = Duration::from_millis(300);
const TURNS: u32 = 30;

/// One of the two runtimes of a program: the library's, or with `callers` that of its callers.
#[derive(Clone)]
struct Half {
    sim: Sim,
    process: Arc<Process>,
    callers: Option<Arc<Process>>,
}

impl Runtime for Half {
    fn now(&self) -> Moment {
        self.process.now()
    }

    fn unix_micros(&self) -> u64 {
        self.process.unix_micros()
    }

    fn random(&self) -> u64 {
        self.process.random()
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        self.process.sleep_until(at)
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.process.spawn(task);
    }

    fn of_caller(&self) -> Option<Arc<dyn Runtime>> {
        let callers = self.callers.as_ref().filter(|callers| callers.id() == self.sim.current())?;
        Some(Arc::new(Self { process: Arc::clone(callers), callers: None, ..self.clone() }))
    }

    fn is_callers(&self) -> bool {
        self.process.id() == self.sim.current()
    }
}

impl fmt::Debug for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.process.fmt(f)
    }
}

/// A program with two runtimes.
struct Client {
    store: Redis,
    sim: Sim,
    ours: Arc<Process>,
    callers: Arc<Process>,
    grants: Arc<Mutex<Vec<Grant>>>,
}

impl Client {
    /// Sends a request from one of the runtimes, and may drop it after a while.
    async fn ask(&self, at: &Process, owner: &Owner, request: u64, verb: Verb, most: u64) -> Option<Answer> {
        let name = LockName::new("x").expect("a name");
        let op = Op { name, spec: LockSpec::Mutex, owner: owner.clone(), request, verb };
        let store = self.store.clone();
        let ((begin, begun), (mut done, answer)) = (oneshot::channel(), oneshot::channel());
        at.spawn(Box::pin(async move {
            let mut call = store.request(op, WITHIN);
            let first = poll_fn(|context| Poll::Ready(call.poll_unpin(context))).await;
            let _ = begin.send(());
            let said = match first {
                Poll::Ready(said) => said,
                Poll::Pending => match select(pin!(call), pin!(done.closed())).await {
                    Either::Left((said, _)) => said,
                    Either::Right(_) => return,
                },
            };
            let _ = done.send(said.ok());
        }));
        // The next request must not be sent earlier.
        begun.await.ok()?;
        match select(answer, pin!(self.sleep(most))).await {
            Either::Left((answer, _)) => answer.ok()?,
            Either::Right(_) => None,
        }
    }

    async fn live(self) {
        for turn in 0..TURNS {
            let owner = Owner::new("callers").expect("an owner");
            let (fence, bind) = (Fence::Assign, Liveness::Process);
            let verb = Verb::Acquire { ttl_ms: 60_000, hold: 1, fence, wait_ms: None, listens: None, bind };
            let asked = self.sim.now();
            let most = if self.sim.choose(3) == 0 { self.sim.between(0, 4 * MS) } else { SECOND };
            let answer = self.ask(self.somewhere(), &owner, u64::from(2 * turn), verb, most).await;
            let answered = self.sim.now();
            self.sleep(u64::from(self.sim.choose(3)) * MS).await;
            if let Some(Answer::Held { fence: token }) = answer {
                let given_back = self.sim.now();
                self.grants.lock().expect("one thread").push(Grant { token, asked, answered, given_back });
            }
            // Unanswered requests are undone too.
            loop {
                let verb = Verb::Release { hold: 1, fence: Fence::Assign, whose: ReleaseScope::Own };
                let at = self.somewhere();
                if self.ask(at, &owner, u64::from(2 * turn + 1), verb, SECOND).await.is_some() {
                    break;
                }
            }
            self.sleep(u64::from(self.sim.choose(60)) * MS).await;
        }
    }

    fn somewhere(&self) -> &Process {
        match self.sim.choose(3) {
            0 => &self.ours,
            _ if self.sim.is_dead(self.callers.id()) => &self.ours,
            _ => &self.callers,
        }
    }

    async fn sleep(&self, time: u64) {
        self.ours.sleep_until(self.ours.now() + Duration::from_nanos(time)).await;
    }
}

/// The outcome of a schedule.
struct Played {
    grants: Vec<Grant>,
    connections: usize,
}

fn play(seed: u64) -> Played {
    let sim = Sim::new(Chooser::seeded(seed));
    let network = SimTransport::new(&sim, true).direct();
    let network = if seed.is_multiple_of(2) { network } else { network.with_delifeq() };
    let grants = Arc::new(Mutex::new(Vec::new()));
    for number in 0..2 {
        let (ours, callers) =
            (sim.process(Clock::default(), seed + number), sim.process(Clock::default(), seed + 7 + number));
        let target = Target::parse("redis://network").expect("a URL");
        let home = Half { sim: sim.clone(), process: Arc::clone(&ours), callers: Some(Arc::clone(&callers)) };
        let store = Redis::over(target, Arc::new(network.clone()), Arc::new(home));
        let (grants, id) = (Arc::clone(&grants), callers.id());
        // It is blocked for shorter and longer than the timeouts, and may end.
        for pause in 0..sim.choose(4) {
            let from = u64::from(pause + 1) * SECOND / 2 + sim.between(0, SECOND / 4);
            let until = from + sim.between(0, SECOND / 4);
            let (pauses, resumes) = (sim.clone(), sim.clone());
            sim.at(from, move || pauses.pause(id));
            sim.at(until, move || resumes.resume(id));
        }
        if sim.choose(3) == 0 {
            let kills = sim.clone();
            sim.at(SECOND + sim.between(0, 2 * SECOND), move || kills.kill(id));
        }
        let client = Client { store, sim: sim.clone(), ours: Arc::clone(&ours), callers, grants };
        ours.spawn(Box::pin(client.live()));
    }
    for connection in 0..8 {
        let direction = [Direction::ToServer, Direction::ToClient][sim.choose(2) as usize];
        let late = Then::Late(sim.between(0, 2 * SECOND));
        let then = [Then::Reset, Then::Silence, late, late][sim.choose(4) as usize];
        network.cut(connection, Cut { direction, after: 600 + u64::from(sim.choose(4_000)), then });
    }
    assert!(sim.run(600 * SECOND, 4_000_000) != Stop::Steps, "it turns in circles");
    let connections = network.connections();
    sim.end();
    assert_eq!(network.holder("x"), None, "seed {seed}: a lock that no client has");
    let grants = grants.lock().expect("one thread").clone();
    Played { grants, connections }
}

const SCHEDULES: u64 = 600;

#[test]
fn two_runtimes_keep_the_order_of_requests_about_a_name() {
    let (mut granted, mut connections) = (0, 0);
    for seed in 0..SCHEDULES {
        let played = play(seed);
        check(seed, &played.grants);
        (granted, connections) = (granted + played.grants.len(), connections + played.connections);
    }
    let shows = granted > 10_000 && connections > 5 * SCHEDULES as usize;
    assert!(shows, "{granted} grants, {connections} connections: this shows little");
}

#[cfg(tenure_planted)]
#[test]
fn a_request_given_up_and_forgotten_is_found() {
    use tenure::internals::planted::Bug;
    use tenure_testkit::plant;

    plant(Some(Bug::GivenUpForgotten));
    let found = (0..SCHEDULES)
        .find(|seed| catch_unwind(AssertUnwindSafe(|| check(*seed, &play(*seed).grants))).is_err());
    plant(None);
    println!("found by seed {found:?}");
    assert!(found.is_some());
}
