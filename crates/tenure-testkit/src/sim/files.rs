//! One schedule of processes on one machine that share a directory: the real file store, engine and API, in
//! virtual time.
//!
//! The files are real, and so are the system's notifications; all processes share the schedule's clock.
//! Processes pause and die, some while another holds the directory's guard, and the directory is removed.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;
use tenure::Options;
use tenure::internals::store::Cursor;
use tenure::internals::store::file::File;
use tenure::internals::store::file::observe::observe;
use tenure::internals::{Runtime, Store, locks};

use super::chooser::{Chooser, Rng};
use super::clock::{Clock, MS, SECOND};
use super::event::Event;
use super::executor::{OUTSIDE, Process, ProcessId, Sim, lock};
use super::node_faults::{NodeFault, pause};
use super::oracle::{Executed, Oracle};
use super::regime::{Faults, Plan, RECOVERY, Regime};
use super::report::Report;
use super::request::Shown;
use super::server::LockView;
use super::workload::Workload;
use super::world::{ENDING, STEPS};

/// Regimes that apply to processes and a directory; the others are about networks and servers.
pub const REGIMES: &[Regime] = &[
    Regime::Quiet,
    Regime::Pausing,
    Regime::Killing,
    Regime::Drifting,
    Regime::Tiny,
    Regime::Storm,
    Regime::Forgetting,
    Regime::Brink,
    Regime::Rush,
    Regime::Outage,
];

/// Runs the schedule of a seed, in the regime that the seed selects.
pub fn run(seed: u64) -> Report {
    run_in(REGIMES[(seed % REGIMES.len() as u64) as usize], seed, false)
}

/// Runs the schedule of a seed in a regime, with or without a log.
pub fn run_in(regime: Regime, seed: u64, keep_log: bool) -> Report {
    World::new(regime, seed, keep_log).run()
}

struct World {
    seed: u64,
    scene: Arc<Scene>,
    processes: Vec<Arc<Process>>,
    /// Inspects what is left.
    auditor: Arc<Process>,
}

/// The directory, and the state of its faults.
struct Scene {
    sim: Sim,
    plan: Plan,
    workload: Arc<Workload>,
    /// The machine's clock.
    clock: Clock,
    directory: TempDir,
    /// How often the directory was removed.
    taken: Mutex<u32>,
    /// Processes that have not ended.
    alive: Mutex<Vec<ProcessId>>,
}

/// The plan of a schedule without a network.
fn plan(sim: &Sim, regime: Regime) -> Plan {
    let mut plan = Plan::draw(sim, regime);
    (plan.faults, plan.ppm) = (Faults::NONE, 0);
    let node_faults = &mut plan.node_faults;
    (node_faults.cut, node_faults.delay_messages, node_faults.delete) = (0, 0, 0);
    (plan.forced, plan.passes, plan.kept) = (0, false, 60 * SECOND);
    // The interval at which the store polls an awaited lock.
    plan.looks = 200 * MS;
    if regime == Regime::Killing && sim.chance(500) {
        // If nothing else fails, nobody has to wait for the holds of the dead.
        (plan.strict_from, plan.cancel) = (0, 0);
    }
    plan
}

impl World {
    fn new(regime: Regime, seed: u64, keep_log: bool) -> Self {
        // Different choices from the server schedule with the same seed.
        let sim = Sim::new(Chooser::seeded(Rng::new(seed ^ u64::MAX >> 1).next()));
        if keep_log {
            sim.keep_log();
        }
        let plan = plan(&sim, regime);
        sim.note(|| format!("{plan:?}"));
        let clock = Clock { offset: sim.between(0, 100_000 * SECOND), ppm: 0 };
        let workload = Workload::new(&sim, Oracle::new(&sim, &plan), plan);
        let processes: Vec<_> = (0..plan.processes).map(|_| sim.process(clock, seed)).collect();
        let alive = Mutex::new(processes.iter().map(|process| process.id()).collect());
        let auditor = sim.process(clock, seed);
        // On a memory file system if possible: thousands of directories are created and removed.
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let directory = directory.expect("a directory");
        let (workload, taken) = (Arc::new(workload), Mutex::new(0));
        let scene = Scene { sim, plan, workload, clock, directory, taken, alive };
        Self { seed, scene: Arc::new(scene), processes, auditor }
    }

    fn run(self) -> Report {
        let Scene { sim, plan, workload, .. } = &*self.scene;
        // Receives the system's notifications; nothing else runs on it.
        let reactor = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let reactor = Arc::new(reactor.expect("a reactor"));
        let _inside = reactor.enter();
        let heard = Arc::clone(&reactor);
        sim.pump(move || heard.block_on(tokio::task::yield_now()));
        self.people();
        if plan.heals_at > 0 {
            let ids = self.processes.iter().map(|process| process.id()).collect();
            sim.spawn(OUTSIDE, Box::pin(Arc::clone(&self.scene).node_faults(ids)));
        }
        self.scene.observe();
        let judged = workload.oracle.judge(ENDING, || self.see_through());
        observe(None);
        Report::of(self.seed, 0, workload, judged)
    }

    /// Starts every process with its tasks.
    fn people(&self) {
        let Scene { plan, workload, .. } = &*self.scene;
        for process in &self.processes {
            let options = Options::new().ttl(plan.ttl);
            let runtime = Arc::clone(process) as Arc<dyn Runtime>;
            let locks = locks(Arc::new(self.scene.store(process)), runtime, options);
            workload.start(process, locks.expect("the options are right"), plan.tasks);
        }
    }

    /// Runs until all tasks have ended, then until what they left has lapsed, then until nothing runs.
    fn see_through(&self) {
        let Scene { sim, plan, workload, .. } = &*self.scene;
        if let Err(stop) = workload.run_out(SECOND, STEPS) {
            return self.accuse(format!("the tasks have not ended: {stop:?}"));
        }
        if workload.oracle.violation().is_some() {
            return;
        }
        let settled = sim.now().max(plan.heals_at + RECOVERY) + 250 * MS;
        sim.run(settled, STEPS);
        self.scene.bury();
        workload.oracle.check_empty();
        // The last handle went with the last task; what still runs in the background must end by itself.
        let over = settled + plan.lease() + 90 * SECOND;
        sim.run(over, STEPS);
        let left: usize = self.processes.iter().map(|process| sim.tasks(process.id())).sum();
        if left > 0 {
            return self.accuse(format!("{left} tasks run on after the last handle is gone"));
        }
        let left = Arc::new(Mutex::new(None));
        let (store, told) = (self.scene.store(&self.auditor), Arc::clone(&left));
        let all_is_over = sim.sleep_until(over);
        let look = async move {
            all_is_over.await;
            let page = store.list("", Cursor::default(), Duration::from_secs(1)).await;
            *lock(&told) = Some(page.map(|page| page.locks));
        };
        sim.spawn(self.auditor.id(), Box::pin(look));
        sim.run(over + 2 * SECOND, STEPS);
        let left = lock(&left).take();
        if !matches!(&left, Some(Ok(locks)) if locks.is_empty()) {
            self.accuse(format!("in the end there is {left:?}"));
        }
    }

    fn accuse(&self, what: String) {
        self.scene.workload.oracle.accuse(ENDING, what);
    }
}

impl Scene {
    fn path(&self) -> PathBuf {
        self.directory.path().join("locks")
    }

    /// Reports each request to the oracle, in order of execution: everything runs on this thread.
    fn observe(self: &Arc<Self>) {
        let scene = Arc::clone(self);
        let (sim, oracle, clock) = (self.sim.clone(), self.workload.oracle.clone(), self.clock);
        observe(Some(Box::new(move |op, answer, wake, after| {
            scene.bury();
            let (at, process) = (sim.now(), sim.current());
            sim.note(|| format!("p{process}: {}: {answer:?}", Shown(op)));
            let after = after.and_then(|record| LockView::at(at, record, clock));
            oracle.executed(&Executed { process, op, answer, wake, passed: &[], together: &[], after });
            // A request is carried out within the caller's poll, and takes its time there.
            sim.pass();
        })));
    }

    /// Reports ended processes to the oracle, whether they died or finished, because the holds bound to them
    /// end as well.
    fn bury(&self) {
        lock(&self.alive).retain(|process| {
            let is_alive = self.sim.tasks(*process) > 0;
            if !is_alive {
                self.workload.oracle.died(*process);
            }
            is_alive
        });
    }

    fn store(&self, process: &Arc<Process>) -> File {
        File::new(&self.path(), "file:sim", Arc::clone(process) as Arc<dyn Runtime>)
    }

    /// Injects the faults of a schedule, and heals everything at the end.
    async fn node_faults(self: Arc<Self>, processes: Vec<ProcessId>) {
        let (sim, plan) = (&self.sim, self.plan);
        plan.node_faults.deal(sim, plan.heals_at, || self.strike(&processes)).await;
        processes.iter().for_each(|process| sim.resume(*process));
    }

    fn strike(&self, processes: &[ProcessId]) {
        let sim = &self.sim;
        let process = processes[sim.choose(processes.len() as u32) as usize];
        let span = self.plan.node_faults.span(sim, MS, 2 * self.plan.lease());
        let until = (sim.now() + span).min(self.plan.heals_at);
        match self.plan.node_faults.draw(sim) {
            Some(NodeFault::Pause) => pause(sim, process, until),
            Some(NodeFault::Kill) if !sim.is_dead(process) => {
                sim.note(|| format!("p{process}: dies"));
                sim.kill(process);
                self.bury();
            }
            Some(NodeFault::Stall) => {
                let Some(guard) = self.guard() else { return };
                sim.note(|| format!("a client stands still inside until {:.6}", until as f64 / 1e9));
                sim.count(Event::Stalled);
                sim.at(until, move || drop(guard));
            }
            Some(NodeFault::Forget) => {
                let mut taken = lock(&self.taken);
                let away = self.directory.path().join(taken.to_string());
                if fs::rename(self.path(), away).is_ok() {
                    sim.note(|| "the directory is taken away".into());
                    sim.count(Event::Forgotten);
                    *taken += 1;
                    self.workload.oracle.forgotten();
                }
            }
            _ => {}
        }
    }

    /// Takes the directory's guard, as another process would. `None` before it exists; nobody else holds it
    /// between two polls.
    fn guard(&self) -> Option<OwnedFd> {
        let guard = fs::File::open(self.path().join("guard")).ok()?;
        flock(&guard, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(guard.into())
    }
}
