//! One schedule of a mutex on a majority of several servers: the real quorum, engine and API over simulated
//! nodes.
//!
//! Each node has its own network that delays, loses and cuts, and nodes stall or restart without their data;
//! processes pause and die; all clocks drift, and some are stepped. Tasks and oracle are those of the
//! simulation with one server: the client that has a majority of the nodes has the lock
//! ([`members`](super::oracle::members)).
//!
//! `node_faults` injects the faults.

mod node_faults;

use std::sync::{Arc, Mutex};

use tenure::internals::store::quorum::Quorum;
use tenure::internals::{Runtime, Store, locks};
use tenure::{LockName, Options};

use super::chooser::{Chooser, Rng};
use super::clock::{Clock, SECOND, TrueTime};
use super::executor::{OUTSIDE, Process, Sim, lock};
use super::network::Network;
use super::node_faults::Stepper;
use super::oracle::Oracle;
use super::regime::{LockKind, Plan, RECOVERY, Regime};
use super::report::Report;
use super::workload::Workload;
use node_faults::FaultInjector;

/// Maximum number of polls; more mean a busy loop.
const STEPS: u64 = 600_000;

/// Invariant: released, dropped and abandoned holds leave nothing on any node.
pub const LEFTOVERS: &str = "nothing is left at any node";
/// Invariant: every wait and every task ends, and calls fail only when nodes are unreachable.
pub const ENDING: &str = "everything on a quorum ends";

/// Runs the schedule of a seed, in the regime that the seed selects.
pub fn run(seed: u64) -> Report {
    run_in(Regime::of(seed), seed, false)
}

/// Runs the schedule of a seed in a regime, with or without a log.
pub fn run_in(regime: Regime, seed: u64, keep_log: bool) -> Report {
    World::new(regime, seed, keep_log).run()
}

struct World {
    seed: u64,
    scene: Arc<Scene>,
    workload: Arc<Workload>,
    processes: Vec<Arc<Process>>,
}

/// The nodes, and the state of their faults.
struct Scene {
    sim: Sim,
    plan: Plan,
    stepper: Option<Stepper>,
    /// Number of nodes whose clocks are stepped.
    stepping: usize,
    name: LockName,
    nodes: Vec<Network>,
    remains: Mutex<Remains>,
}

/// What may temporarily be left behind.
#[derive(Default)]
struct Remains {
    /// A client could not release its hold: it died, or a node was stalled for so long that the lease ended
    /// before the node had seen the request.
    are_excused: bool,
    /// Nodes that were stalled, one bit each.
    stalled: u64,
}

impl Scene {
    /// Permits temporary leftovers that nobody can release.
    fn excuse(&self) {
        lock(&self.remains).are_excused = true;
    }
}

/// The plan of a schedule with a single mutex.
fn plan(sim: &Sim, regime: Regime) -> Plan {
    let mut plan = Plan::draw(sim, regime);
    (plan.names, plan.kinds, plan.both) = (1, [LockKind::Mutex; 2], 0);
    if regime == Regime::Forgetting {
        plan.node_faults.forget = 6;
    }
    (plan.node_faults.delete, plan.forced) = (0, 0);
    plan.node_faults.most *= 2;
    plan.processes = plan.processes.max(2);
    plan.is_near = sim.chance(300);
    plan
}

/// Draws the number of nodes whose clocks are stepped: usually a minority, if there is one.
fn stepping(sim: &Sim, nodes: usize) -> usize {
    let minority = (nodes - 1) / 2;
    if minority > 0 && sim.chance(700) { 1 + sim.choose(minority as u32) as usize } else { nodes }
}

impl World {
    fn new(regime: Regime, seed: u64, keep_log: bool) -> Self {
        // Different choices from the one-server schedule with the same seed.
        let sim = Sim::new(Chooser::seeded(Rng::new(!seed).next()));
        if keep_log {
            sim.keep_log();
        }
        let plan = plan(&sim, regime);
        sim.note(|| format!("{plan:?}"));
        let (start, far) = (200_000 * SECOND, if plan.is_near { 2 * SECOND } else { 100_000 * SECOND });
        let clock = || Clock {
            offset: start + sim.between(0, far),
            ppm: sim.between(0, 2 * u64::from(plan.ppm)) as i32 - plan.ppm as i32,
        };
        let count = [3, 3, 5, 4, 2][sim.choose(5) as usize];
        let mut workload = Workload::new(&sim, Oracle::new(&sim, &plan), plan);
        // Each request gets a quarter of a call to all nodes.
        (workload.trip, workload.labels) = (4 * plan.trip(), Some(Mutex::new(0)));
        let (oracle, name) = (&workload.oracle, workload.names[0].clone());
        oracle.has_members(&name, count);
        let node = |index| {
            let node = Network::member(&sim, &format!("sim:{index}"), clock(), plan.faults);
            node.judged(oracle.at(index))
        };
        let nodes: Vec<Network> = (0..count).map(node).collect();
        if plan.node_faults.rewind > 0 {
            nodes.iter().for_each(Network::remember);
        }
        let stepper = if plan.step > 0 { Some(Stepper::draw(&sim, plan.step)) } else { None };
        let stepping = if plan.step > 0 { stepping(&sim, count) } else { 0 };
        let processes = (0..plan.processes).map(|_| sim.process(clock(), seed)).collect();
        let scene = Scene { sim, plan, stepper, stepping, name, nodes, remains: Mutex::default() };
        Self { seed, processes, workload: Arc::new(workload), scene: Arc::new(scene) }
    }

    fn run(self) -> Report {
        let (scene, sim, plan) = (&self.scene, &self.scene.sim, self.scene.plan);
        self.people();
        if plan.heals_at > 0 {
            let ids = self.processes.iter().map(|process| process.id()).collect();
            sim.spawn(OUTSIDE, Box::pin(FaultInjector::new(scene).run(ids)));
        }
        let judged = self.workload.oracle.judge(ENDING, || self.see_through());
        Report::of(self.seed, scene.nodes.len(), &self.workload, judged)
    }

    /// Starts every process with its tasks.
    fn people(&self) {
        for process in &self.processes {
            let store = |node: &Network| Arc::new(node.store(process)) as Arc<dyn Store>;
            let stores = self.scene.nodes.iter().map(store).collect();
            let runtime = Arc::clone(process) as Arc<dyn Runtime>;
            let store = Quorum::new(stores, Box::new(()), Arc::clone(&runtime), None).expect("a quorum");
            let options = Options::new().ttl(self.scene.plan.ttl);
            let locks = locks(Arc::new(store), runtime, options).expect("the options are right");
            self.workload.start(process, locks, 2);
        }
    }

    /// Runs until all tasks have ended, then until what they left has settled, then until nothing runs.
    fn see_through(&self) {
        let (scene, sim, plan) = (&self.scene, &self.scene.sim, self.scene.plan);
        let oracle = &self.workload.oracle;
        if let Err(stop) = self.workload.run_out(2 * SECOND, STEPS) {
            return self.accuse(ENDING, format!("the tasks have not ended: {stop:?}"));
        }
        if oracle.violation().is_some() {
            return;
        }
        // Background releases at a silent node are retried within 1.7 s, and take at most 1 s.
        let settled = sim.now().max(plan.heals_at + RECOVERY) + 4 * SECOND;
        sim.run(settled, STEPS);
        if !lock(&scene.remains).are_excused {
            self.check_empty(sim.now());
        }
        // Leftovers that nobody could release have lapsed by now.
        let over = settled + plan.step + 2 * plan.lease() + 90 * SECOND;
        sim.run(over, STEPS);
        self.check_empty(over);
        let left: usize = self.processes.iter().map(|process| sim.tasks(process.id())).sum();
        if left > 0 {
            self.accuse(ENDING, format!("{left} tasks run on after the last handle is gone"));
        }
    }

    /// Everything ended well some time ago: nothing may be left.
    fn check_empty(&self, now: TrueTime) {
        if let Some((index, owner)) = self.workload.oracle.left_at_members(now) {
            self.accuse(LEFTOVERS, format!("node {index} still has {} for {owner}", self.scene.name));
        }
    }

    fn accuse(&self, invariant: &'static str, what: String) {
        self.workload.oracle.accuse(invariant, what);
    }
}
