//! What plugs a store into the simulated world: a new store needs one implementation of [`Driver`].

use std::sync::Arc;

use tenure::LockName;
use tenure::internals::Store;

use super::clock::{MS, TrueTime};
use super::executor::{Process, ProcessId, Sim};
use super::node_faults::{NodeFault, Stepper};
use super::regime::Plan;
use super::workload::Workload;

/// A server in virtual time, and the client of each process: the real client of a store, over a
/// seam behind which the simulated server stands.
///
/// The driver reports what the server does to the [`Oracle`](super::oracle::Oracle): each request
/// that it carries out ([`executed`](super::oracle::Oracle::executed)), each lease that ends at
/// another moment than before ([`extended`](super::oracle::Oracle::extended)), each hold that ends
/// without a request ([`unbound`](super::oracle::Oracle::unbound)), and each message that it loses
/// or delays (`has_failed`).
pub trait Driver: Send + Sync {
    /// Opens the store in a process.
    fn open(&self, process: &Arc<Process>) -> Arc<dyn Store>;

    /// A process dies. What it has sent may still arrive.
    fn silence(&self, process: ProcessId);

    /// Injects a fault of the network or the server. The world itself pauses and kills processes.
    fn strike(&self, fault: NodeFault, scene: &Scene<'_>);

    /// Ends all faults.
    fn heal(&self);

    /// What still stands on the server that is not over.
    fn left(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Where a fault strikes.
#[derive(Debug)]
pub struct Scene<'a> {
    /// The executor.
    pub sim: &'a Sim,
    /// The numbers of the schedule.
    pub plan: &'a Plan,
    /// What the tasks share.
    pub workload: &'a Arc<Workload>,
    /// How the server's clock is set.
    pub stepper: Option<Stepper>,
    /// A process that was drawn.
    pub process: ProcessId,
}

impl Scene<'_> {
    /// Draws a lock.
    pub fn name(&self) -> &LockName {
        let names = &self.workload.names;
        &names[self.sim.choose(names.len() as u32) as usize]
    }

    /// Draws when a fault ends: some time within two leases, or just when a lease does.
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
