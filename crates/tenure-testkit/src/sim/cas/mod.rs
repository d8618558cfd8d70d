//! Locks by compare-and-swap, like those on etcd and ZooKeeper, in the simulated world.

mod judge;
mod server;
mod state;

use std::sync::Arc;

use tenure::internals::protocol::lease;
use tenure::internals::store::cas::{self, Cas};
use tenure::internals::{Runtime, Store};

use super::chooser::{Chooser, Rng};
use super::clock::{SECOND, TrueTime};
use super::driver::{Driver, Scene};
use super::executor::{Process, ProcessId, Sim};
use super::host::Judge;
use super::network::Parting;
use super::node_faults::NodeFault;
use super::regime::{Plan, Regime};
use super::report::Report;
use super::world::World;

pub use server::{Server, Versions};

/// Faults of such a server. It has no clock that decides about leases, loses no writes, and runs no scripts.
pub const REGIMES: &[Regime] = &[
    Regime::Quiet,
    Regime::Lossy,
    Regime::Slow,
    Regime::Pausing,
    Regime::Killing,
    Regime::Drifting,
    Regime::Tiny,
    Regime::Storm,
    Regime::Forgetting,
    Regime::Parted,
    Regime::Brink,
    Regime::LateMessages,
    Regime::Hiccup,
    Regime::Rush,
    Regime::Outage,
    Regime::OnTheDot,
    Regime::Fleeting,
    Regime::Flapping,
];

/// Runs the schedule of a seed in a regime.
pub fn run_in(regime: Regime, seed: u64) -> Report {
    schedule(regime, seed, false, None)
}

/// Runs the schedule of a seed in a regime, and prints its events.
pub fn replay(regime: Regime, seed: u64) -> Report {
    schedule(regime, seed, true, None)
}

/// Runs the schedule of a seed on a server with this kind of versions.
pub fn run_with(versions: Versions, seed: u64) -> Report {
    schedule(REGIMES[(seed % REGIMES.len() as u64) as usize], seed, false, Some(versions))
}

/// The parameters of a schedule on such a server.
fn plan(sim: &Sim, regime: Regime) -> Plan {
    let mut plan = Plan::draw(sim, regime);
    // A watch reports each change once, and requests do not use the server's time.
    (plan.faults.repeat_wake, plan.faults.limit, plan.faults.again) = (0, 0, 0);
    (plan.passes, plan.trips) = (false, 8);
    // A renewal does not notice a key deleted by hand, and a revoked handle is noticed at its next
    // keep-alive.
    plan.node_faults.delete = 0;
    // The lifetime of a handle: see `cas::leases`.
    let ttl = plan.ttl;
    plan.place_max = cas::PLACE_WAIT;
    // A hold that is being released lasts two seconds longer.
    plan.session = (ttl / 6 + lease::margin(ttl)).as_nanos() as TrueTime + 5 * SECOND;
    plan.strict_from += plan.session * u64::from(!regime.is_calm());
    plan
}

fn schedule(regime: Regime, seed: u64, keep_log: bool, versions: Option<Versions>) -> Report {
    // With other choices than the schedule of another store with this seed.
    let sim = Sim::new(Chooser::seeded(Rng::new(seed ^ u64::MAX >> 2).next()));
    let plan = plan(&sim, regime);
    let drawn = if sim.chance(500) { Versions::Lasting } else { Versions::OfCreations };
    // Split queues, with parts short enough to matter.
    let part = [128, 1, 2, 3][sim.choose(4) as usize];
    let world = World::new(sim, seed, plan, keep_log, |sim, oracle, clock| {
        let runtime = sim.process(clock, seed) as Arc<dyn Runtime>;
        let judge = Judge { sim: sim.clone(), oracle: oracle.clone(), clock };
        let versions = versions.unwrap_or(drawn);
        Arc::new(Server::judged(runtime, versions, part, plan.faults, Some(judge)))
    });
    world.run()
}

impl Driver for Server {
    fn open(&self, process: &Arc<Process>) -> Arc<dyn Store> {
        let runtime = Arc::clone(process) as Arc<dyn Runtime>;
        Arc::new(Cas::new(Arc::new(self.client(process)), "cas:sim", runtime))
    }

    fn silence(&self, process: ProcessId) {
        self.silence(process);
    }

    fn strike(&self, fault: NodeFault, scene: &Scene<'_>) {
        let Scene { sim, process, .. } = scene;
        sim.note(|| format!("p{process}: {fault:?}"));
        match fault {
            NodeFault::Cut => self.cut(*process),
            NodeFault::DelayMessages => self.delay_events(*process, scene.plan.faults.messages_late),
            NodeFault::Stall => self.stall(self.host.shows(scene.until())),
            NodeFault::Forget => self.restart(),
            NodeFault::Part => {
                let Parting { requests, replies, messages, loses } = Parting::draw(sim, scene.until());
                let [requests, replies, messages] =
                    [requests, replies, messages].map(|at| self.host.shows(at).0);
                self.part(*process, Parting { requests, replies, messages, loses });
            }
            NodeFault::Pause
            | NodeFault::Kill
            | NodeFault::Delete
            | NodeFault::Rewind
            | NodeFault::Evict
            | NodeFault::Step => {}
        }
    }

    fn heal(&self) {
        self.heal();
    }

    fn left(&self) -> Vec<String> {
        self.host.judge.as_ref().map_or_else(Vec::new, |judge| judge.left(&self.state()))
    }
}
