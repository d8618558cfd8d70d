//! The interface between a store and the simulated world: a new store needs one implementation of [`Driver`].

use std::sync::Arc;

use tenure::LockName;
use tenure::internals::Store;

use super::clock::{MS, TrueTime};
use super::executor::{Process, ProcessId, Sim};
use super::node_faults::{NodeFault, Stepper};
use super::regime::Plan;
use super::workload::Workload;

/// A server in virtual time, and each process's client: the real client of a store, over a seam behind which
/// the simulated server stands.
///
/// The driver reports what the server does to the [`Oracle`](super::oracle::Oracle): each request it carries
/// out ([`executed`](super::oracle::Oracle::executed)), each change of a lease's end
/// ([`extended`](super::oracle::Oracle::extended)), each hold that ends without a request
/// ([`unbound`](super::oracle::Oracle::unbound)), and each message that it loses or delays (`has_failed`).
pub trait Driver: Send + Sync {
    /// Opens the store in a process.
    fn open(&self, process: &Arc<Process>) -> Arc<dyn Store>;

    /// A process dies. Requests already sent may still arrive.
    fn silence(&self, process: ProcessId);

    /// Injects a fault of the network or the server. The world itself pauses and kills processes.
    fn strike(&self, fault: NodeFault, scene: &Scene<'_>);

    /// Ends all faults.
    fn heal(&self);

    /// Anything left on the server that has not lapsed.
    fn left(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The context of a fault.
#[derive(Debug)]
pub struct Scene<'a> {
    /// The executor.
    pub sim: &'a Sim,
    /// The plan of the schedule.
    pub plan: &'a Plan,
    /// State shared by the tasks.
    pub workload: &'a Arc<Workload>,
    /// How the server's clock is stepped.
    pub stepper: Option<Stepper>,
    /// A randomly chosen process.
    pub process: ProcessId,
}

impl Scene<'_> {
    /// Draws a lock.
    pub fn name(&self) -> &LockName {
        let names = &self.workload.names;
        &names[self.sim.choose(names.len() as u32) as usize]
    }

    /// Draws the end of a fault: within two leases, or close to the end of a lease.
    pub fn until(&self) -> TrueTime {
        let now = self.sim.now();
        let edge = self.workload.names.iter().find_map(|name| self.workload.oracle.edge(name));
        let until = match edge {
            Some(edge) if edge > now && self.sim.chance(500) => edge + self.sim.between(0, 6 * MS) - 3 * MS,
            _ => now + self.plan.node_faults.span(self.sim, MS, 2 * self.plan.lease()),
        };
        until.min(self.plan.heals_at)
    }
}
