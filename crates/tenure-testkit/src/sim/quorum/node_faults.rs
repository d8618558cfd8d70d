//! Faults of the nodes of a quorum, and of its clients.

use std::sync::Arc;

use super::Scene;
use crate::sim::clock::{MS, TrueTime};
use crate::sim::executor::{ProcessId, lock};
use crate::sim::network::{Network, Parting};
use crate::sim::node_faults::{NodeFault, pause};
use crate::sim::regime::LockKind;

/// Injects the faults of a schedule, and heals everything at the end.
pub(super) struct FaultInjector(Arc<Scene>);

impl FaultInjector {
    pub(super) fn new(scene: &Arc<Scene>) -> Self {
        Self(Arc::clone(scene))
    }

    pub(super) async fn run(self, processes: Vec<ProcessId>) {
        let (scene, sim, plan) = (&self.0, &self.0.sim, self.0.plan);
        plan.node_faults.deal(sim, plan.heals_at, || self.strike(&processes)).await;
        processes.iter().for_each(|process| sim.resume(*process));
        scene.nodes.iter().for_each(Network::heal);
    }

    fn strike(&self, processes: &[ProcessId]) {
        let (scene, sim, node_faults) = (&self.0, &self.0.sim, self.0.plan.node_faults);
        let process = processes[sim.choose(processes.len() as u32) as usize];
        let index = sim.choose(scene.nodes.len() as u32) as usize;
        let node = &scene.nodes[index];
        let span = node_faults.span(sim, MS, 2 * scene.plan.lease());
        let until = (sim.now() + span).min(scene.plan.heals_at);
        match node_faults.draw(sim) {
            None | Some(NodeFault::Delete) => {}
            Some(NodeFault::Pause) => pause(sim, process, until),
            Some(NodeFault::Kill) if sim.is_dead(process) => {}
            Some(NodeFault::Kill) => {
                sim.note(|| format!("p{process}: dies"));
                scene.excuse();
                scene.nodes.iter().for_each(|node| node.silence(process));
                sim.kill(process);
            }
            Some(NodeFault::Cut) => node.cut(process),
            Some(NodeFault::DelayMessages) => node.delay_messages(process),
            Some(NodeFault::Stall) => self.stall(index, until),
            Some(NodeFault::Forget) => self.forget(index),
            Some(NodeFault::Part) => self.part(index, process, until),
            Some(NodeFault::Rewind) => {
                let to = sim.now().saturating_sub(scene.plan.span(sim, scene.plan.lease()));
                sim.note(|| format!("node {index}: starts with what it had at {:.6}", to as f64 / 1e9));
                scene.excuse();
                node.rewind(to);
            }
            Some(NodeFault::Evict) => {
                // One node is a minority of three; with two nodes there is no minority.
                if scene.nodes.len() > 2 {
                    sim.note(|| "node 0: its ballot is evicted".into());
                    scene.excuse();
                    scene.nodes[0].evict_counter(&scene.name);
                }
            }
            Some(NodeFault::Step) => self.step(index),
        }
    }

    fn stall(&self, index: usize, until: TrueTime) {
        let (scene, sim) = (&self.0, &self.0.sim);
        sim.note(|| format!("node {index}: stands still until {:.6}", until as f64 / 1e9));
        let lasts_long = until.saturating_sub(sim.now()) > scene.plan.lease() / 2;
        let mut remains = lock(&scene.remains);
        let is_again = remains.stalled & (1 << index) != 0;
        remains.stalled |= 1 << index;
        remains.are_excused |= is_again || lasts_long;
        drop(remains);
        scene.nodes[index].stall(until);
    }

    fn forget(&self, index: usize) {
        let (scene, sim) = (&self.0, &self.0.sim);
        sim.note(|| format!("node {index}: starts with nothing"));
        scene.nodes[index].forget();
        if sim.chance(300) {
            let next = (index + 1) % scene.nodes.len();
            sim.note(|| format!("node {next}: starts with nothing too"));
            scene.nodes[next].forget();
        }
    }

    /// Partitions a process from the largest set of nodes that leaves it a majority, or from one more.
    fn part(&self, index: usize, process: ProcessId, until: TrueTime) {
        let (scene, sim) = (&self.0, &self.0.sim);
        scene.excuse();
        let nodes = scene.nodes.len();
        let cut_off = (nodes - 1) / 2 + sim.choose(2) as usize;
        for node in (0..cut_off).map(|next| &scene.nodes[(index + next) % nodes]) {
            node.part(process, Parting::draw(sim, until));
        }
    }

    fn step(&self, index: usize) {
        let (scene, sim) = (&self.0, &self.0.sim);
        let Some(stepper) = scene.stepper else { return };
        scene.excuse();
        let node = &scene.nodes[index % scene.stepping];
        let (swept, name) = (node.clone(), scene.name.clone());
        // Lapsed entries must not revive when the clock is stepped back.
        let sweep = move || swept.sweep(&name, LockKind::Mutex.spec());
        let node = node.clone();
        let step = move || {
            sweep();
            node.set_off(stepper.next(node.with_server(|server| server.off())));
        };
        stepper.strike(sim, scene.plan.heals_at, step);
    }
}
