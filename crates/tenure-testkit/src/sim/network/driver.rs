//! Faults of the simulated Redis server.

use std::sync::Arc;

use tenure::internals::Store;

use super::*;
use crate::sim::driver::{Driver, Scene};
use crate::sim::node_faults::NodeFault;

impl Driver for Network {
    fn open(&self, process: &Arc<Process>) -> Arc<dyn Store> {
        let store = self.store(process);
        let renews_together = self.inner().renews_together;
        Arc::new(if renews_together { store.renewing_together() } else { store })
    }

    fn silence(&self, process: ProcessId) {
        self.silence(process);
    }

    fn heal(&self) {
        self.heal();
    }

    fn strike(&self, fault: NodeFault, scene: &Scene<'_>) {
        let Scene { sim, plan, workload, stepper, process } = scene;
        match fault {
            NodeFault::Pause | NodeFault::Kill => {}
            NodeFault::Cut => self.cut(*process),
            NodeFault::DelayMessages => self.delay_messages(*process),
            NodeFault::Stall => {
                let until = scene.until();
                sim.note(|| format!("server: stands still until {:.6}", until as f64 / 1e9));
                self.stall(until);
            }
            NodeFault::Forget => {
                sim.note(|| "server: forgets everything".into());
                self.forget();
            }
            NodeFault::Delete => {
                let name = scene.name();
                sim.note(|| format!("server: {} is deleted", name.as_str()));
                self.delete(name);
            }
            NodeFault::Part => {
                let until = scene.until();
                self.part(*process, Parting::draw(sim, until));
            }
            NodeFault::Rewind => {
                let to = sim.now().saturating_sub(plan.span(sim, plan.lease()));
                sim.note(|| format!("server: is again what it was at {:.6}", to as f64 / 1e9));
                self.rewind(to);
            }
            NodeFault::Evict => {
                let name = scene.name();
                sim.note(|| format!("server: the counter of {} is evicted", name.as_str()));
                self.evict_counter(name);
                // A real server does not answer several requests within a microsecond, which would put its
                // tokens ahead of its clock.
                self.stall(sim.now() + MS / 100);
            }
            NodeFault::Step => {
                let Some(stepper) = stepper else { return };
                let (network, workload, stepper) = (self.clone(), Arc::clone(workload), *stepper);
                let step = move || {
                    // Lapsed entries must not revive when the clock is stepped back.
                    for (name, sort) in workload.names.iter().zip(workload.plan.kinds) {
                        network.sweep(name, sort.spec());
                    }
                    network.set_off(stepper.next(network.with_server(Server::off)));
                };
                stepper.strike(sim, plan.heals_at, step);
            }
        }
    }
}
