//! Faults of the server, and of the network between it and its clients.

use tenure::internals::Store;
use tenure::internals::store::cas::Cas;

use super::*;
use crate::sim::driver::{Driver, Scene};
use crate::sim::node_faults::NodeFault;

impl Driver for Server {
    fn open(&self, process: &Arc<Process>) -> Arc<dyn Store> {
        let runtime = Arc::clone(process) as Arc<dyn Runtime>;
        Arc::new(Cas::new(self.client(process).backend(&runtime), "cas:sim", runtime))
    }

    fn silence(&self, process: ProcessId) {
        let now = self.now();
        let until = if self.host.chance(500) { now } else { now + self.host.span(0, 100 * MS) };
        let mut state = self.state();
        state.ends.entry(process).or_default().arrives_until = Some(until);
        state.watches.retain(|watcher| watcher.process != process);
    }

    fn strike(&self, fault: NodeFault, scene: &Scene<'_>) {
        let Scene { sim, process, .. } = scene;
        sim.note(|| format!("p{process}: {fault:?}"));
        match fault {
            NodeFault::Cut => self.cut(*process),
            NodeFault::DelayMessages => self.delay_events(*process, scene.plan.faults.messages_late),
            NodeFault::Stall => self.stall(self.host.shows(scene.until())),
            NodeFault::Forget => self.restart(),
            NodeFault::Part => self.part(*process, self.host.parting(sim, scene.until())),
            NodeFault::Pause
            | NodeFault::Kill
            | NodeFault::Delete
            | NodeFault::Rewind
            | NodeFault::Evict
            | NodeFault::Step => {}
        }
    }

    fn heal(&self) {
        let mut state = self.state();
        state.faults = Faults::NONE;
        state.stalled_until = Moment(0);
        for end in state.ends.values_mut() {
            (end.parting, end.hears_from) = (Parting::default(), Moment(0));
        }
        let silent = std::mem::take(&mut state.silent);
        drop(state);
        drop(silent);
    }

    fn left(&self) -> Vec<String> {
        self.host.judge.as_ref().map_or_else(Vec::new, |judge| judge.left(&self.state(), self.now()))
    }
}

impl Server {
    /// Cuts the connection of a process. What it has sent may still arrive.
    pub(super) fn cut(&self, process: ProcessId) {
        let now = self.now();
        let mut state = self.state();
        let end = state.ends.entry(process).or_default();
        if Arc::strong_count(&end.cuts) > 1 {
            self.host.has_failed(process, Event::Cut);
        }
        if self.host.chance(500) {
            end.arrives_until = Some(now);
            let until = now + Duration::from_nanos(1);
            self.of(process).later(until, move |server| {
                if let Some(end) = server.state().ends.get_mut(&server.process) {
                    end.arrives_until = None;
                }
            });
        }
        end.cuts.notify_waiters();
        state.watches.retain(|watcher| watcher.process != process);
    }

    /// Ends the watches of a process, and delays its events.
    pub(super) fn delay_events(&self, process: ProcessId, by: u64) {
        let until = self.now() + self.host.span(MS / 10, by);
        let mut state = self.state();
        let end = state.ends.entry(process).or_default();
        end.hears_from = end.hears_from.max(until);
        state.watches.retain(|watcher| watcher.process != process);
    }

    /// Disconnects a process from the server.
    pub fn part(&self, process: ProcessId, parting: Parting) {
        self.state().ends.entry(process).or_default().parting = parting;
    }

    /// Stalls the server.
    pub(super) fn stall(&self, until: Moment) {
        let mut state = self.state();
        state.stalled_until = state.stalled_until.max(until);
        drop(state);
        self.later(until, |server| server.purge(&mut server.state()));
    }

    /// Restarts the server with all its data, and each session with its full lifetime.
    pub(super) fn restart(&self) {
        let up_at = self.now() + self.host.span(MS, 1_500 * MS);
        self.stall(up_at);
        self.host.count(Event::Forgotten);
        let processes: Vec<ProcessId> = self.state().ends.keys().copied().collect();
        processes.into_iter().for_each(|process| self.cut(process));
        let mut state = self.state();
        let now = self.now();
        let alive = state.sessions.iter().filter(|(_, life)| life.end > now);
        let sessions: Vec<Session> = alive.map(|(session, _)| *session).collect();
        for session in sessions {
            self.set_end(&mut state, session, up_at);
        }
    }

    /// Revokes the sessions of a process, as an operator would.
    pub fn revoke(&self, process: ProcessId) {
        let mut state = self.state();
        let of_process = state.sessions.iter().filter(|(_, life)| life.process == process);
        let sessions: Vec<Session> = of_process.map(|(session, _)| *session).collect();
        sessions.into_iter().for_each(|session| self.end(&mut state, session));
    }
}
