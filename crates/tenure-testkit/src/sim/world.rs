//! One schedule, from its seed to its verdict.

use std::sync::Arc;

use tenure::Options;
use tenure::internals::locks;
use tenure::internals::protocol::lease;
#[cfg(tenure_planted)]
use tenure::internals::store::observe;

use super::chooser::{Chooser, Rng};
use super::clock::{Clock, MS, SECOND, TrueTime};
use super::driver::{Driver, Scene};
use super::executor::{OUTSIDE, Process, Sim};
use super::network::Network;
use super::node_faults::{NodeFault, Stepper, pause};
use super::oracle::Oracle;
use super::regime::{LockKind, Plan, RECOVERY, Regime};
use super::report::Report;
use super::workload::Workload;

/// Maximum number of polls; more mean a busy loop.
pub(super) const STEPS: u64 = 2_000_000;

/// Invariant: every wait and every task ends, and calls fail only when the server is unreachable.
pub(super) const ENDING: &str = "everything ends";

/// Runs the schedule of a seed, in the regime that the seed selects.
pub fn run(seed: u64) -> Report {
    run_in(Regime::of(seed), seed, false)
}

/// Runs the schedule of a seed in a regime, with or without a log.
pub fn run_in(regime: Regime, seed: u64, keep_log: bool) -> Report {
    redis(regime, seed, keep_log, |_| (), |_| ())
}

/// Runs the schedule of a seed with locks of one kind only.
pub fn run_of(sort: LockKind, seed: u64) -> Report {
    let one_kind = |plan: &mut Plan| (plan.kinds, plan.both) = ([sort; 2], 0);
    redis(Regime::of(seed), seed, false, one_kind, |_| ())
}

/// Like `run_in`, on a server that also runs the real scripts: any difference is a violation.
pub fn run_scripts(regime: Regime, seed: u64, keep_log: bool) -> Report {
    redis(regime, seed, keep_log, |_| (), Network::run_scripts)
}

/// Like `run_in`, with processes that batch renewals.
pub fn run_together(regime: Regime, seed: u64, keep_log: bool) -> Report {
    redis(regime, seed, keep_log, |_| (), Network::renew_together)
}

/// Like `run_in`, where clients acquire most free locks by plain commands.
pub fn run_plain(regime: Regime, seed: u64, keep_log: bool) -> Report {
    redis(regime, seed, keep_log, |plan| plan.has_plain_clients = true, |_| ())
}

/// Like `run_scripts`, where clients acquire most free locks by plain commands.
pub fn run_plain_beside_scripts(regime: Regime, seed: u64, keep_log: bool) -> Report {
    redis(regime, seed, keep_log, |plan| plan.has_plain_clients = true, Network::run_scripts)
}

/// Runs a schedule on the simulated Redis server.
fn redis(
    regime: Regime,
    seed: u64,
    keep_log: bool,
    change: impl FnOnce(&mut Plan),
    set_up: impl FnOnce(&Network),
) -> Report {
    let sim = Sim::new(Chooser::seeded(Rng::new(seed).next()));
    let mut plan = Plan::draw(&sim, regime);
    plan.kept = lease::PLACE_KEPT.as_nanos() as TrueTime;
    change(&mut plan);
    let world = World::new(sim, seed, plan, keep_log, |sim, oracle, clock| {
        let network = Network::new(sim, oracle, clock, plan.faults);
        if plan.node_faults.rewind > 0 {
            network.remember();
        }
        if plan.has_plain_clients {
            network.serve_plain_clients();
        }
        set_up(&network);
        Arc::new(network)
    });
    world.run()
}

/// A schedule of tasks on a store.
pub(super) struct World {
    seed: u64,
    sim: Sim,
    oracle: Oracle,
    driver: Arc<dyn Driver>,
    plan: Plan,
    processes: Vec<Arc<Process>>,
}

impl World {
    /// A schedule with this plan. `driver` creates the server, with its clock.
    pub(super) fn new(
        sim: Sim,
        seed: u64,
        plan: Plan,
        keep_log: bool,
        driver: impl FnOnce(&Sim, &Oracle, Clock) -> Arc<dyn Driver>,
    ) -> Self {
        if keep_log {
            sim.keep_log();
        }
        sim.note(|| format!("{plan:?}"));
        // Far enough from zero to be stepped back.
        let start = if plan.step > 0 { 100_000 * SECOND } else { 0 };
        let clock = || Clock { offset: start + sim.between(0, 100_000 * SECOND), ppm: drift(&sim, plan.ppm) };
        let oracle = Oracle::new(&sim, &plan);
        let driver = driver(&sim, &oracle, clock());
        let processes = (0..plan.processes).map(|_| sim.process(clock(), seed)).collect();
        Self { seed, sim, oracle, driver, plan, processes }
    }

    pub(super) fn run(self) -> Report {
        let workload = Arc::new(Workload::new(&self.sim, self.oracle.clone(), self.plan));
        let (sim, driver, plan) = (self.sim.clone(), Arc::clone(&self.driver), self.plan);
        let stepper = if plan.step > 0 { Some(Stepper::draw(&sim, plan.step)) } else { None };
        let node_faults = FaultInjector { sim, driver, plan, stepper, workload: Arc::clone(&workload) };
        self.people(&workload);
        if self.plan.heals_at > 0 {
            let ids = self.processes.iter().map(|process| process.id()).collect();
            self.sim.spawn(OUTSIDE, Box::pin(node_faults.run(ids)));
        }
        #[cfg(tenure_planted)]
        observe::record(Some(self.oracle.unwritten()));
        let judged = self.oracle.judge(ENDING, || self.see_through(&workload));
        #[cfg(tenure_planted)]
        observe::record(None);
        Report::of(self.seed, 1, &workload, judged)
    }

    /// Starts every process with its tasks.
    fn people(&self, workload: &Arc<Workload>) {
        for process in &self.processes {
            let options = Options::new().ttl(self.plan.ttl);
            let locks = locks(self.driver.open(process), Arc::clone(process) as _, options);
            workload.start(process, locks.expect("the options are right"), self.plan.tasks);
        }
    }

    /// Runs until all tasks have ended, then until what they left has settled, then until nothing runs.
    fn see_through(&self, workload: &Workload) {
        if let Err(stop) = workload.run_out(SECOND, STEPS) {
            return self.accuse(format!("the tasks have not ended: {stop:?}"));
        }
        if self.oracle.violation().is_some() {
            return;
        }
        // A hold that reappeared when the server was rewound, or whose end was set too far ahead by a stepped
        // clock, ends only by lapsing.
        let node_faults = self.plan.node_faults;
        let calm = if node_faults.rewind + node_faults.step > 0 {
            self.plan.strict_from
        } else {
            self.plan.heals_at + RECOVERY
        };
        let settled = self.sim.now().max(calm) + 250 * MS;
        self.sim.run(settled, STEPS);
        if self.oracle.violation().is_some() {
            return;
        }
        self.oracle.check_empty();
        // The last handle went with the last task; what still runs in the background must end by itself.
        self.sim.run(settled + self.plan.lease() + 90 * SECOND, STEPS);
        let left: usize = self.processes.iter().map(|process| self.sim.tasks(process.id())).sum();
        if left > 0 {
            return self.accuse(format!("{left} tasks run on after the last handle is gone"));
        }
        let left = self.driver.left();
        if !left.is_empty() {
            self.accuse(format!("in the end the server has {left:?}"));
        }
    }

    fn accuse(&self, what: String) {
        self.oracle.accuse(ENDING, what);
    }
}

/// Draws a clock's rate error: none, some, or the maximum.
fn drift(sim: &Sim, most: u32) -> i32 {
    let most = most as i32;
    match sim.choose(5) {
        0 => 0,
        1 | 2 => -most,
        3 => most,
        _ => sim.between(0, 2 * most as u64) as i32 - most,
    }
}

/// Injects the faults of a schedule, and heals everything at the end.
struct FaultInjector {
    sim: Sim,
    driver: Arc<dyn Driver>,
    plan: Plan,
    stepper: Option<Stepper>,
    workload: Arc<Workload>,
}

impl FaultInjector {
    async fn run(self, processes: Vec<usize>) {
        let Plan { node_faults, heals_at, .. } = self.plan;
        node_faults.deal(&self.sim, heals_at, || self.strike(&processes)).await;
        processes.iter().for_each(|process| self.sim.resume(*process));
        self.driver.heal();
    }

    fn strike(&self, processes: &[usize]) {
        let Self { sim, driver, plan, stepper, workload } = self;
        let process = processes[sim.choose(processes.len() as u32) as usize];
        let scene = Scene { sim, plan, workload, stepper: *stepper, process };
        match plan.node_faults.draw(sim) {
            None => {}
            Some(NodeFault::Pause) => pause(sim, process, scene.until()),
            Some(NodeFault::Kill) if sim.is_dead(process) => {}
            Some(NodeFault::Kill) => {
                sim.note(|| format!("p{process}: dies"));
                driver.silence(process);
                sim.kill(process);
            }
            Some(fault) => driver.strike(fault, &scene),
        }
    }
}
