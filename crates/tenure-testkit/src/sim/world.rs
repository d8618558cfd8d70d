//! One schedule, from its seed to its verdict.

use std::sync::Arc;

use tenure::Options;
use tenure::internals::locks;

use super::chooser::{Chooser, Rng};
use super::clock::{Clock, MS, SECOND, TrueTime};
use super::executor::{OUTSIDE, Process, Sim};
use super::network::{Network, Parting};
use super::node_faults::{NodeFault, Stepper, pause};
use super::oracle::Oracle;
use super::regime::{LockKind, Plan, RECOVERY, Regime};
use super::report::Report;
use super::workload::Workload;

/// So many polls, and something turns in circles.
pub(super) const STEPS: u64 = 2_000_000;

/// Every wait and every task ends, and no call fails but by silence.
pub(super) const ENDING: &str = "everything ends";

/// Runs the schedule of a seed, in the regime whose turn it is.
pub fn run(seed: u64) -> Report {
    run_in(Regime::of(seed), seed)
}

/// Runs the schedule of a seed in a regime.
pub fn run_in(regime: Regime, seed: u64) -> Report {
    World::new(regime, seed, None, false).run()
}

/// Runs a schedule of a seed in which all locks are of one kind.
pub fn run_of(sort: LockKind, seed: u64) -> Report {
    World::new(Regime::of(seed), seed, Some(sort), false).run()
}

/// Runs the schedule of a seed in a regime on a server that runs the scripts as well: any
/// difference is a violation.
pub fn run_scripts(regime: Regime, seed: u64) -> Report {
    World::new(regime, seed, None, false).with_scripts().run()
}

/// Runs the schedule of a seed in a regime with processes that renew several locks together.
pub fn run_together(regime: Regime, seed: u64) -> Report {
    World::new(regime, seed, None, false).renewing_together().run()
}

/// Runs the schedule of a seed in a regime and writes down what happens.
pub fn replay(regime: Regime, seed: u64) -> Report {
    World::new(regime, seed, None, true).run()
}

/// The same on a server that runs the scripts as well.
pub fn replay_scripts(regime: Regime, seed: u64) -> Report {
    World::new(regime, seed, None, true).with_scripts().run()
}

/// The same with processes that renew several locks together.
pub fn replay_together(regime: Regime, seed: u64) -> Report {
    World::new(regime, seed, None, true).renewing_together().run()
}

struct World {
    seed: u64,
    sim: Sim,
    oracle: Oracle,
    network: Network,
    plan: Plan,
    processes: Vec<Arc<Process>>,
    renews_together: bool,
}

impl World {
    fn new(regime: Regime, seed: u64, only: Option<LockKind>, keep_log: bool) -> Self {
        let sim = Sim::new(Chooser::seeded(Rng::new(seed).next()));
        if keep_log {
            sim.keep_log();
        }
        let mut plan = Plan::draw(&sim, regime);
        if let Some(sort) = only {
            (plan.kinds, plan.both) = ([sort; 2], 0);
        }
        sim.note(|| format!("{plan:?}"));
        // Far enough from zero to be set back.
        let start = if plan.step > 0 { 100_000 * SECOND } else { 0 };
        let clock = || Clock { offset: start + sim.between(0, 100_000 * SECOND), ppm: drift(&sim, plan.ppm) };
        let oracle = Oracle::new(&sim, &plan);
        let network = Network::new(&sim, &oracle, clock(), plan.faults);
        if plan.node_faults.rewind > 0 {
            network.remember();
        }
        let processes = (0..plan.processes).map(|_| sim.process(clock(), seed)).collect();
        Self { seed, sim, oracle, network, plan, processes, renews_together: false }
    }

    fn renewing_together(self) -> Self {
        Self { renews_together: true, ..self }
    }

    fn with_scripts(self) -> Self {
        self.network.run_scripts();
        self
    }

    fn run(self) -> Report {
        let workload = Arc::new(Workload::new(&self.sim, self.oracle.clone(), self.plan));
        let (sim, network, plan) = (self.sim.clone(), self.network.clone(), self.plan);
        let stepper = if plan.step > 0 { Some(Stepper::draw(&sim, plan.step)) } else { None };
        let node_faults = FaultInjector { sim, network, plan, stepper, workload: Arc::clone(&workload) };
        self.people(&workload);
        if self.plan.heals_at > 0 {
            let ids = self.processes.iter().map(|process| process.id()).collect();
            self.sim.spawn(OUTSIDE, Box::pin(node_faults.run(ids)));
        }
        let judged = self.oracle.judge(ENDING, || self.see_through(&workload));
        Report::of(self.seed, 1, &workload, judged)
    }

    /// Starts every process with its tasks.
    fn people(&self, workload: &Arc<Workload>) {
        for process in &self.processes {
            let store = self.network.store(process);
            let store = Arc::new(if self.renews_together { store.renewing_together() } else { store });
            let options = Options::new().ttl(self.plan.ttl);
            let locks = locks(store, Arc::clone(process) as _, options).expect("the options are right");
            workload.start(process, locks, self.plan.tasks);
        }
    }

    /// Runs to the end of all tasks, then until what they left behind has settled, then until
    /// nothing runs any more.
    fn see_through(&self, workload: &Workload) {
        if let Err(stop) = workload.run_out(SECOND, STEPS) {
            return self.accuse(format!("the tasks have not ended: {stop:?}"));
        }
        if self.oracle.violation().is_some() {
            return;
        }
        // What a server has again that was given back before it went back, or has set too far
        // ahead, only time ends.
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
        // The last handle went with the last task: what still runs in the background ends by
        // itself.
        self.sim.run(settled + self.plan.lease() + 90 * SECOND, STEPS);
        let left: usize = self.processes.iter().map(|process| self.sim.tasks(process.id())).sum();
        if left > 0 {
            self.accuse(format!("{left} tasks run on after the last handle is gone"));
        }
    }

    fn accuse(&self, what: String) {
        self.oracle.accuse(ENDING, what);
    }
}

/// A clock's error: none, some, or as much as there may be.
fn drift(sim: &Sim, most: u32) -> i32 {
    let most = most as i32;
    match sim.choose(5) {
        0 => 0,
        1 | 2 => -most,
        3 => most,
        _ => sim.between(0, 2 * most as u64) as i32 - most,
    }
}

/// Injects the faults of a schedule into processes and servers, and heals everything at the end.
struct FaultInjector {
    sim: Sim,
    network: Network,
    plan: Plan,
    stepper: Option<Stepper>,
    workload: Arc<Workload>,
}

impl FaultInjector {
    async fn run(self, processes: Vec<usize>) {
        let Plan { node_faults, heals_at, .. } = self.plan;
        node_faults.deal(&self.sim, heals_at, || self.strike(&processes)).await;
        processes.iter().for_each(|process| self.sim.resume(*process));
        self.network.heal();
    }

    fn strike(&self, processes: &[usize]) {
        let process = processes[self.sim.choose(processes.len() as u32) as usize];
        let name = || {
            let names = &self.workload.names;
            &names[self.sim.choose(names.len() as u32) as usize]
        };
        match self.plan.node_faults.draw(&self.sim) {
            None => {}
            Some(NodeFault::Pause) => pause(&self.sim, process, self.until()),
            Some(NodeFault::Kill) if self.sim.is_dead(process) => {}
            Some(NodeFault::Kill) => {
                self.sim.note(|| format!("p{process}: dies"));
                self.network.silence(process);
                self.sim.kill(process);
            }
            Some(NodeFault::Cut) => self.network.cut(process),
            Some(NodeFault::DelayMessages) => self.network.delay_messages(process),
            Some(NodeFault::Stall) => {
                let until = self.until();
                self.sim.note(|| format!("server: stands still until {:.6}", until as f64 / 1e9));
                self.network.stall(until);
            }
            Some(NodeFault::Forget) => {
                self.sim.note(|| "server: forgets everything".into());
                self.network.forget();
            }
            Some(NodeFault::Delete) => {
                let name = name();
                self.sim.note(|| format!("server: {} is deleted", name.as_str()));
                self.network.delete(name);
            }
            Some(NodeFault::Part) => {
                let until = self.until();
                self.network.part(process, Parting::draw(&self.sim, until));
            }
            Some(NodeFault::Rewind) => {
                let now = self.sim.now();
                let to = now.saturating_sub(self.plan.span(&self.sim, self.plan.lease()));
                self.sim.note(|| format!("server: is again what it was at {:.6}", to as f64 / 1e9));
                self.network.rewind(to);
            }
            Some(NodeFault::Evict) => {
                let name = name();
                self.sim.note(|| format!("server: the counter of {} is evicted", name.as_str()));
                self.network.evict_counter(name);
                // None answers several requests in one microsecond, by which its numbers would be
                // ahead of its clock.
                self.network.stall(self.sim.now() + MS / 100);
            }
            Some(NodeFault::Step) => {
                let Some(stepper) = self.stepper else { return };
                let (network, workload) = (self.network.clone(), Arc::clone(&self.workload));
                // What has lapsed by now does not live again when the clock is set back.
                let sweep = move || {
                    for (name, sort) in workload.names.iter().zip(workload.plan.kinds) {
                        network.sweep(name, sort.rule());
                    }
                };
                stepper.strike(&self.sim, &self.network, self.plan.heals_at, sweep);
            }
        }
    }

    /// When a pause ends: some time within two leases, or just when a lease does.
    fn until(&self) -> TrueTime {
        let now = self.sim.now();
        let edge = self.workload.names.iter().find_map(|name| self.workload.oracle.edge(name));
        let until = match edge {
            Some(edge) if edge > now && self.sim.chance(500) => edge + self.sim.between(0, 6 * MS) - 3 * MS,
            _ => now + self.plan.node_faults.span(&self.sim, MS, 2 * self.plan.lease()),
        };
        until.min(self.plan.heals_at)
    }
}
