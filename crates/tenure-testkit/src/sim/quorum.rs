//! One schedule of a mutex on a majority of several servers: the real quorum, engine and faces over simulated nodes.
//!
//! Each node has a network of its own that delays, loses and cuts, and stands still or starts anew without its memory; processes
//! stop and die; all clocks drift. What must hold is judged from outside, by what guards say and what stands on the nodes.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;
use std::time::Duration;

use tenure::internals::store::quorum::Quorum;
use tenure::internals::{Runtime, Store, locks};
use tenure::{Error, Guard, LockName, Locks, Options, Renewal};

use super::blows::{Blow, Stepper};
use super::chooser::{Chooser, Rng};
use super::clock::{Clock, MS, SECOND, TrueTime};
use super::executor::{OUTSIDE, Process, Sim, Stop, lock};
use super::network::{Network, Parting};
use super::oracle::Violation;
use super::regime::{Plan, RECOVERY, Regime, Sort};
use super::report::Report;

/// So many polls, and something turns in circles.
const STEPS: u64 = 600_000;

/// No two guards say at one time that they hold, and each that says so has a majority.
pub const EXCLUSION: &str = "exclusion on a quorum";
/// Tokens grow from guard to guard.
pub const TOKENS: &str = "token order on a quorum";
/// Nothing stays at any node of what was released, dropped or given up.
pub const LEFTOVERS: &str = "nothing is left at any node";
/// Every wait and every task ends, and no call fails but by silence.
pub const ENDING: &str = "everything on a quorum ends";

/// Runs the schedule of a seed, in the regime whose turn it is.
pub fn run(seed: u64) -> Report {
    run_in(Regime::of(seed), seed)
}

/// Runs the schedule of a seed in a regime.
pub fn run_in(regime: Regime, seed: u64) -> Report {
    World::new(regime, seed, false).run()
}

/// Runs the schedule of a seed in a regime and writes down what happens.
pub fn replay(regime: Regime, seed: u64) -> Report {
    World::new(regime, seed, true).run()
}

struct World {
    seed: u64,
    plan: Plan,
    scene: Arc<Scene>,
    processes: Vec<Arc<Process>>,
}

/// What everybody in a schedule shares.
struct Scene {
    sim: Sim,
    plan: Plan,
    stepper: Option<Stepper>,
    name: LockName,
    nodes: Vec<Network>,
    judge: Mutex<Judge>,
    /// How many tasks have not ended.
    left: Mutex<u32>,
}

#[derive(Default)]
struct Judge {
    guards: Vec<Weak<Guard>>,
    last_token: u64,
    grants: u64,
    /// Whether somebody could not give back what it had: it died, or a node stood still for so long that the lease was over before
    /// the node had even seen it.
    is_excused: bool,
    /// The nodes that have stood still, one bit each.
    stalled: u64,
    violation: Option<Violation>,
}

impl World {
    fn new(regime: Regime, seed: u64, keep_log: bool) -> Self {
        // Not the choices of the schedule of one server that has this seed.
        let sim = Sim::new(Chooser::seeded(Rng::new(!seed).next()));
        if keep_log {
            sim.keep_log();
        }
        let mut plan = Plan::draw(&sim, regime);
        (plan.names, plan.kinds, plan.both) = (1, [Sort::Mutex; 2], 0);
        if regime == Regime::Forgetting {
            plan.blows.forget = 6;
        }
        plan.blows.delete = 0;
        plan.processes = plan.processes.max(2);
        sim.note(|| format!("{plan:?}"));
        // A node that has lost its ballot answers from its clock: then, and only then, tokens rest on clocks that are near each other.
        let far = match regime {
            Regime::Forgetting | Regime::Rewinding => 200 * MS,
            _ => 100_000 * SECOND,
        };
        let start = 200_000 * SECOND;
        let clock = || Clock {
            offset: start + sim.between(0, far),
            ppm: sim.between(0, 2 * u64::from(plan.ppm)) as i32 - plan.ppm as i32,
        };
        let count = [3, 3, 5, 4, 2][sim.choose(5) as usize];
        let node = |index| Network::member(&sim, &format!("sim:{index}"), clock(), plan.faults);
        let nodes: Vec<Network> = (0..count).map(node).collect();
        if plan.blows.rewind > 0 {
            nodes.iter().for_each(Network::remember);
        }
        let stepper = if plan.step > 0 { Some(Stepper::draw(&sim, plan.step)) } else { None };
        let processes = (0..plan.processes).map(|_| sim.process(clock(), seed)).collect();
        let name = LockName::new("x").expect("a name");
        let (judge, left) = (Mutex::default(), Mutex::new(0));
        Self {
            seed,
            plan,
            processes,
            scene: Arc::new(Scene { sim, plan, stepper, name, nodes, judge, left }),
        }
    }

    fn run(self) -> Report {
        let scene = &self.scene;
        for process in &self.processes {
            let store = |node: &Network| Arc::new(node.store(process)) as Arc<dyn Store>;
            let stores = scene.nodes.iter().map(store).collect();
            let runtime = Arc::clone(process) as Arc<dyn Runtime>;
            let store = Quorum::new(stores, Box::new(()), Arc::clone(&runtime), None).expect("a quorum");
            let options = Options::new().ttl(self.plan.ttl);
            let locks = locks(Arc::new(store), runtime, options).expect("the options are right");
            for _ in 0..=scene.sim.choose(2) {
                let (process, locks) = (Arc::clone(process), locks.clone());
                let present = Present::new(scene);
                let task = Task { scene: Arc::clone(scene), process, locks, _present: present };
                scene.sim.spawn(task.process.id(), Box::pin(task.run()));
            }
        }
        if self.plan.heals_at > 0 {
            let ids = self.processes.iter().map(|process| process.id()).collect();
            scene.sim.spawn(OUTSIDE, Box::pin(blows(Arc::clone(scene), ids)));
        }
        match catch_unwind(AssertUnwindSafe(|| self.see_through())) {
            Ok(()) => scene.sim.end(),
            // What it was doing is not to be touched any more, not even to be dropped.
            Err(_) => scene.accuse(ENDING, "a task panicked; see above".into()),
        }
        let judge = lock(&scene.judge);
        Report {
            seed: self.seed,
            plan: self.plan,
            nodes: scene.nodes.len(),
            violation: judge.violation.clone(),
            seen_by_callers: None,
            hash: scene.sim.hash(),
            steps: scene.sim.steps(),
            grants: judge.grants,
            events: scene.sim.events(),
            lasted: scene.sim.now(),
            log: scene.sim.log(),
        }
    }

    /// Runs to the end of all tasks, then until what they left behind has settled, then until nothing runs any more.
    fn see_through(&self) {
        let (scene, sim, plan) = (&self.scene, &self.scene.sim, self.plan);
        let rounds = u64::from(*lock(&scene.left)) * u64::from(plan.rounds);
        let horizon = plan.strict_from + rounds * (14 * plan.lease() + 2 * SECOND);
        match sim.run(horizon, STEPS) {
            Stop::Halted => {}
            Stop::Idle if *lock(&scene.left) == 0 => {}
            stop => return scene.accuse(ENDING, format!("the tasks have not ended: {stop:?}")),
        }
        if lock(&scene.judge).violation.is_some() {
            return;
        }
        // What is released on and on at a node that was silent is asked for again after at most 1.7 s, and takes at most 1 s.
        let settled = sim.now().max(plan.heals_at + RECOVERY) + 4 * SECOND;
        sim.run(settled, STEPS);
        if !lock(&scene.judge).is_excused {
            scene.check_empty(sim.now());
        }
        // Whatever nobody could give back has lapsed.
        let over = settled + plan.step + 2 * plan.lease() + 90 * SECOND;
        sim.run(over, STEPS);
        scene.check_empty(over);
        let left: usize = self.processes.iter().map(|process| sim.tasks(process.id())).sum();
        if left > 0 {
            scene.accuse(ENDING, format!("{left} tasks run on after the last handle is gone"));
        }
    }
}

impl Scene {
    /// From now on something may be left for a while that nobody can give back.
    fn excuse(&self) {
        lock(&self.judge).is_excused = true;
    }

    fn accuse(&self, invariant: &'static str, what: String) {
        let at = self.sim.now();
        self.sim.note(|| format!("VIOLATION: {what}"));
        lock(&self.judge).violation.get_or_insert(Violation { at, invariant, what });
        self.sim.halt();
    }

    /// A task got a guard.
    fn granted(&self, guard: &Arc<Guard>) {
        self.sim.note(|| format!("GRANTED to {}, token {}", guard.owner(), guard.fence()));
        self.sim.mark(guard.fence());
        let mut judge = lock(&self.judge);
        judge.grants += 1;
        let others: Vec<_> = judge.guards.iter().filter_map(Weak::upgrade).collect();
        judge.guards.retain(|known| known.strong_count() > 0);
        judge.guards.push(Arc::downgrade(guard));
        let last = std::mem::replace(&mut judge.last_token, guard.fence());
        drop(judge);
        if guard.fence() <= last {
            self.accuse(TOKENS, format!("a guard has token {} after {last}", guard.fence()));
        }
        if let Some(other) = others.iter().find(|other| other.is_held())
            && guard.is_held()
            && !self.steps_ahead()
        {
            self.accuse(
                EXCLUSION,
                format!("{} and {} say both that they hold", other.owner(), guard.owner()),
            );
        }
        self.check_covered(guard);
    }

    /// Nodes think leases over that are not: exclusion is not promised then.
    fn steps_ahead(&self) -> bool {
        self.stepper.is_some_and(|stepper| stepper.off > 0 || !stepper.is_final)
    }

    /// A guard that says that it holds has a majority of the nodes.
    fn check_covered(&self, guard: &Guard) {
        let forgets = self.plan.blows.forget + self.plan.blows.rewind > 0;
        if forgets || self.steps_ahead() || !guard.is_held() {
            return;
        }
        let now = self.sim.now();
        let stands = |node: &&Network| {
            node.with_server(|server| {
                server
                    .standing(now, &self.name)
                    .is_some_and(|standing| standing.share(guard.owner()).is_some())
            })
        };
        let covered = self.nodes.iter().filter(stands).count();
        if covered <= self.nodes.len() / 2 {
            let of = self.nodes.len();
            self.accuse(
                EXCLUSION,
                format!("{} says that it holds, with {covered} of {of} nodes", guard.owner()),
            );
        }
    }

    /// Everything has ended well and some time ago.
    fn check_empty(&self, now: TrueTime) {
        for (index, node) in self.nodes.iter().enumerate() {
            let is_left = node.with_server(|server| server.standing(now, &self.name).is_some());
            if is_left {
                return self.accuse(LEFTOVERS, format!("node {index} still has {}", self.name));
            }
        }
    }
}

/// Deals the blows of a schedule, and heals everything at the end.
async fn blows(scene: Arc<Scene>, processes: Vec<usize>) {
    let (sim, plan) = (&scene.sim, scene.plan);
    let most = plan.blows.most;
    let count = if most == 0 { 0 } else { 1 + sim.choose(2 * most as u32) };
    let mut times: Vec<_> = (0..count).map(|_| sim.between(0, plan.heals_at)).collect();
    times.sort_unstable();
    for at in times {
        sim.sleep_until(at).await;
        strike(&scene, &processes);
    }
    sim.sleep_until(plan.heals_at).await;
    sim.note(|| "healed".into());
    processes.iter().for_each(|process| sim.resume(*process));
    scene.nodes.iter().for_each(Network::heal);
}

fn strike(scene: &Arc<Scene>, processes: &[usize]) {
    let (sim, blows) = (&scene.sim, scene.plan.blows);
    let process = processes[sim.choose(processes.len() as u32) as usize];
    let index = sim.choose(scene.nodes.len() as u32) as usize;
    let node = &scene.nodes[index];
    let until = (sim.now() + sim.between(MS, 2 * scene.plan.lease())).min(scene.plan.heals_at);
    let lasts_long = until.saturating_sub(sim.now()) > scene.plan.lease() / 2;
    match blows.draw(sim) {
        None | Some(Blow::Delete) => {}
        Some(Blow::Pause) => {
            sim.note(|| format!("p{process}: stands still until {:.6}", until as f64 / 1e9));
            sim.pause(process);
            let (sim, resumed) = (sim.clone(), sim.clone());
            sim.at(until, move || resumed.resume(process));
        }
        Some(Blow::Kill) if sim.is_dead(process) => {}
        Some(Blow::Kill) => {
            sim.note(|| format!("p{process}: dies"));
            scene.excuse();
            scene.nodes.iter().for_each(|node| node.silence(process));
            sim.kill(process);
        }
        Some(Blow::Cut) => node.cut(process),
        Some(Blow::Deafen) => node.deafen(process),
        Some(Blow::Stall) => {
            sim.note(|| format!("node {index}: stands still until {:.6}", until as f64 / 1e9));
            let mut judge = lock(&scene.judge);
            let is_again = judge.stalled & (1 << index) != 0;
            judge.stalled |= 1 << index;
            judge.is_excused |= is_again || lasts_long;
            drop(judge);
            node.stall(until);
        }
        Some(Blow::Forget) => {
            sim.note(|| format!("node {index}: starts with nothing"));
            node.forget();
            if sim.chance(300) {
                let next = (index + 1) % scene.nodes.len();
                sim.note(|| format!("node {next}: starts with nothing too"));
                scene.nodes[next].forget();
            }
        }
        Some(Blow::Part) => {
            // As many as leave it a majority, or one fewer, from each process's own place on.
            scene.excuse();
            let nodes = scene.nodes.len();
            let cut_off = (nodes - 1) / 2 + sim.choose(2) as usize;
            for node in (0..cut_off).map(|next| &scene.nodes[(index + next) % nodes]) {
                node.part(process, Parting::draw(sim, until));
            }
        }
        Some(Blow::Rewind) => {
            let to = sim.now().saturating_sub(sim.between(0, scene.plan.lease()));
            sim.note(|| format!("node {index}: starts with what it had at {:.6}", to as f64 / 1e9));
            scene.excuse();
            node.rewind(to);
        }
        Some(Blow::Evict) => {
            // One node is a minority of three; of two there is none.
            if scene.nodes.len() > 2 {
                sim.note(|| "node 0: its ballot is evicted".into());
                scene.excuse();
                scene.nodes[0].evict_counter(&scene.name);
            }
        }
        Some(Blow::Step) => {
            let Some(stepper) = scene.stepper else { return };
            scene.excuse();
            stepper.strike(sim, node, scene.plan.heals_at, || {});
        }
    }
}

/// A task that has not ended; the last one to go ends the run.
struct Present(Arc<Scene>);

impl Present {
    fn new(scene: &Arc<Scene>) -> Self {
        *lock(&scene.left) += 1;
        Self(Arc::clone(scene))
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        let mut left = lock(&self.0.left);
        *left -= 1;
        if *left == 0 {
            self.0.sim.halt();
        }
    }
}

/// One task of one process.
struct Task {
    scene: Arc<Scene>,
    process: Arc<Process>,
    locks: Locks,
    _present: Present,
}

impl Task {
    /// Locks a few times.
    async fn run(self) {
        let (sim, plan) = (&self.scene.sim, self.scene.plan);
        for _ in 0..=sim.choose(plan.rounds) {
            self.rest(sim.between(0, 30 * MS)).await;
            match self.acquire().await {
                Ok(Some(guard)) => self.live_with(guard).await,
                Ok(None) => {}
                Err(error) if error.is_unreachable() => {}
                Err(error) => self.scene.accuse(ENDING, format!("{error:?}")),
            }
        }
    }

    async fn rest(&self, time: TrueTime) {
        self.process.sleep_until(self.process.now() + Duration::from_nanos(time)).await;
    }

    async fn acquire(&self) -> Result<Option<Guard>, Error> {
        let (sim, plan) = (&self.scene.sim, self.scene.plan);
        let mut options = Options::new().ttl(plan.ttl);
        if sim.chance(plan.unrenewed) {
            options = options.renewal(Renewal::Off);
        }
        let mutex = self.locks.with(options)?.mutex(self.scene.name.as_str())?;
        let lease = plan.ttl.as_nanos() as TrueTime;
        let outcome = match sim.choose(4) {
            0 => self.cut_short(mutex.try_lock()).await,
            1 => {
                let limit = Duration::from_nanos(sim.between(0, 2 * lease));
                self.cut_short(mutex.try_lock_for(limit)).await
            }
            _ => self.cut_short(async { mutex.lock().await.map(Some) }).await,
        };
        outcome.unwrap_or(Ok(None))
    }

    /// From the grant to the end of a hold.
    async fn live_with(&self, guard: Guard) {
        let (sim, plan) = (&self.scene.sim, self.scene.plan);
        let guard = Arc::new(guard);
        self.scene.granted(&guard);
        let lease = plan.ttl.as_nanos() as TrueTime;
        if sim.chance(plan.overstay) {
            guard.lost_or(self.process.sleep_until(self.process.now() + 4 * plan.ttl)).await;
        } else {
            let looks = 1 + sim.choose(3);
            for _ in 0..looks {
                self.rest(sim.between(0, lease / 2)).await;
                self.scene.check_covered(&guard);
            }
        }
        let Some(guard) = Arc::into_inner(guard) else { return };
        if sim.choose(3) == 0 {
            return drop(guard);
        }
        if let Some(Err(error)) = self.cut_short(guard.release()).await
            && !(error.is_lost() || error.is_unknown())
        {
            self.scene.accuse(ENDING, format!("{error:?}"));
        }
    }

    /// A future's output, unless it is dropped after a few polls or some time.
    async fn cut_short<F: Future>(&self, future: F) -> Option<F::Output> {
        let (sim, plan) = (&self.scene.sim, self.scene.plan);
        let is_cut = sim.chance(plan.cancel);
        let most = if sim.chance(500) { 1 + sim.choose(6) } else { u32::MAX };
        let mut end = pin!(sim.sleep_until(sim.now() + sim.between(0, plan.ttl.as_nanos() as TrueTime)));
        let (mut future, mut polls) = (pin!(future), 0);
        poll_fn(|context| {
            polls += 1;
            match future.as_mut().poll(context) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending if is_cut && polls >= most => Poll::Ready(None),
                Poll::Pending if is_cut => end.as_mut().poll(context).map(|()| None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }
}

/// Waits for the loss of a guard, or for something else.
trait LostOr {
    fn lost_or(&self, other: impl Future<Output = ()> + Unpin) -> impl Future<Output = ()>;
}

impl LostOr for Guard {
    async fn lost_or(&self, other: impl Future<Output = ()> + Unpin) {
        drop(futures_util::future::select(self.lost(), other).await);
    }
}
