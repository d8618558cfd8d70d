//! What goes wrong between a server and its clients.

use tenure::internals::Store;
use tenure::internals::store::rows::RowStore;

use super::*;
use crate::sim::driver::{Driver, Scene};
use crate::sim::executor::Process;
use crate::sim::node_faults::NodeFault;

impl Driver for Server {
    fn open(&self, process: &Arc<Process>) -> Arc<dyn Store> {
        let runtime = Arc::clone(process) as Arc<dyn Runtime>;
        Arc::new(RowStore::on(Arc::new(self.of(process.id())), runtime))
    }

    fn silence(&self, process: ProcessId) {
        let now = self.host.now();
        let until = if self.host.chance(500) { now } else { now + self.host.span(0, 100 * MS) };
        self.state().ends.entry(process).or_default().arrives_until = Some(until);
    }

    fn strike(&self, fault: NodeFault, scene: &Scene<'_>) {
        let Scene { sim, plan, process, .. } = scene;
        sim.note(|| format!("p{process}: {fault:?}"));
        match fault {
            NodeFault::Cut => self.cut_of(*process, false),
            NodeFault::DelayMessages => self.delay_messages(*process, plan.faults.messages_late),
            NodeFault::Stall => self.stall(self.host.shows(scene.until())),
            NodeFault::Forget => self.restart(),
            NodeFault::Delete => self.delete(scene.name()),
            NodeFault::Rewind => self.rewind(sim.now().saturating_sub(plan.span(sim, plan.lease()))),
            NodeFault::Part => self.part(*process, self.host.parting(sim, scene.until())),
            NodeFault::Step => {
                let Some(stepper) = scene.stepper else { return };
                let (server, names) = (self.clone(), scene.workload.names.clone());
                let step = move || server.set_off(stepper.next(server.off()), &names);
                stepper.strike(sim, plan.heals_at, step);
            }
            NodeFault::Pause | NodeFault::Kill | NodeFault::Evict => {}
        }
    }

    fn heal(&self) {
        let mut state = self.state();
        state.faults = Faults::NONE;
        (state.stalled_until, state.down_until) = (Moment(0), Moment(0));
        for end in state.ends.values_mut() {
            (end.parting, end.hears_from) = (Parting::default(), Moment(0));
        }
        drop(state);
        for label in self.labels(|link| link.is_silent || link.loses_statements) {
            self.cut(&label, true);
        }
    }

    fn left(&self) -> Vec<String> {
        let state = self.state();
        state.table.left(self.clock_us(&state))
    }
}

impl Server {
    /// The client's end of a connection closes. Statements on their way are executed, or they are not.
    pub(super) fn cut(&self, label: &str, arrives: bool) {
        let now = self.host.now();
        let mut state = self.state();
        let Some(link) = state.links.get_mut(label) else { return };
        let client = link.client.take();
        if client.as_ref().is_some_and(|client| !client.asked.is_empty()) {
            self.host.has_failed(link.process, Event::Cut);
        }
        if !arrives {
            link.serves_until = link.serves_until.min(now);
        }
        drop(state);
        drop(client);
    }

    fn labels(&self, is_meant: impl Fn(&Link) -> bool) -> Vec<String> {
        let state = self.state();
        state.links.iter().filter(|(_, link)| is_meant(link)).map(|(label, _)| label.clone()).collect()
    }

    /// Cuts the connections of a process that have this purpose.
    pub(super) fn cut_of(&self, process: ProcessId, listens: bool) {
        for label in self.labels(|link| link.process == process && link.listens == listens) {
            self.cut(&label, self.host.chance(500));
        }
    }

    /// Cuts all connections.
    pub fn cut_all(&self) {
        self.labels(|_| true).iter().for_each(|label| self.cut(label, false));
    }

    /// Cuts the connections that listen.
    pub fn cut_listeners(&self) {
        self.labels(|link| link.listens).iter().for_each(|label| self.cut(label, false));
    }

    /// No connection can be made until then; those that there are go on.
    pub fn refuse_connections(&self, until: Moment) {
        self.state().down_until = until;
    }

    /// From now on nothing comes back on any connection that there is.
    pub fn silence_all(&self) {
        self.state().links.values_mut().for_each(|link| link.is_silent = true);
    }

    /// The connections of a process that listen end, and no other listens for so long.
    pub(super) fn delay_messages(&self, process: ProcessId, by: TrueTime) {
        let until = self.host.now() + self.host.span(MS / 10, by);
        let mut state = self.state();
        let end = state.ends.entry(process).or_default();
        end.hears_from = end.hears_from.max(until);
        drop(state);
        if !self.labels(|link| link.process == process && link.listens).is_empty() {
            self.host.count(Event::Unheard);
        }
        self.cut_of(process, true);
    }

    /// Keeps a process from the server.
    pub(super) fn part(&self, process: ProcessId, parting: Parting) {
        self.state().ends.entry(process).or_default().parting = parting;
    }

    /// The server stands still.
    pub(super) fn stall(&self, until: Moment) {
        let mut state = self.state();
        state.stalled_until = state.stalled_until.max(until);
    }

    /// The server crashes and starts again, without some of the last changes that need no disk.
    pub fn restart(&self) {
        self.host.count(Event::Forgotten);
        let mut state = self.state();
        let lost = state.unflushed.as_mut().map(std::mem::take).unwrap_or_default();
        let kept = self.host.span(0, lost.len() as TrueTime).as_nanos() as usize;
        if let Some((at, before)) = lost.into_iter().nth(kept) {
            state.table = before;
            if let Some(judge) = &self.host.judge {
                judge.oracle.rewound(at.saturating_sub(1), false);
            }
        }
        drop(state);
        self.start_anew(200 * MS);
    }

    /// All connections end, and for up to so long no other is made.
    fn start_anew(&self, down: TrueTime) {
        let down_until = self.host.now() + self.host.span(MS, down);
        let mut state = self.state();
        state.down_until = state.down_until.max(down_until);
        state.table.break_off();
        let links = std::mem::take(&mut state.links);
        drop(state);
        for link in links.values() {
            self.host.has_failed(link.process, Event::Cut);
        }
    }

    /// An operator deletes a row.
    pub(super) fn delete(&self, name: &LockName) {
        let mut state = self.state();
        let us = self.clock_us(&state);
        if state.table.delete(name, us) {
            self.host.count(Event::Deleted);
            // Its commit flushes those before it.
            state.unflushed.iter_mut().for_each(Vec::clear);
        }
        drop(state);
        if let Some(judge) = &self.host.judge {
            judge.oracle.deleted(name);
        }
    }

    /// Keeps the table before each change.
    pub(in crate::sim) fn remember(&self) {
        self.state().past = Some(Vec::new());
    }

    /// Keeps the table before each change that a crash may undo.
    pub fn may_crash(&self) {
        self.state().unflushed = Some(Vec::new());
    }

    /// A standby without the last transactions becomes the primary.
    pub(super) fn rewind(&self, to: TrueTime) {
        let Some(judge) = &self.host.judge else { return };
        let mut state = self.state();
        let State { table, past, .. } = &mut *state;
        let lost = past.as_mut().into_iter().flat_map(|past| {
            let first = past.partition_point(|(at, _)| *at <= to);
            past.drain(first..)
        });
        if let Some((_, before)) = lost.reduce(|first, _| first) {
            *table = before;
            self.host.count(Event::Rewound);
        }
        drop(state);
        judge.oracle.rewound(to, true);
        self.start_anew(50 * MS);
    }

    /// How far its clock is off, in nanoseconds.
    pub(super) fn off(&self) -> i64 {
        self.state().off
    }

    /// Steps the clock so that it is off by this much. What was read of these locks before is not written.
    pub fn set_off(&self, off: i64, names: &[LockName]) {
        let mut state = self.state();
        let us = self.clock_us(&state);
        // Expired holds must not revive when the clock is stepped back.
        state.table.settle(us);
        let told = std::mem::take(&mut state.table.told);
        self.report(&state, OUTSIDE, &told);
        names.iter().for_each(|name| state.table.touch(name, us));
        let off = off / 1_000 * 1_000;
        let by = off - std::mem::replace(&mut state.off, off);
        let Some(judge) = self.host.judge.as_ref().filter(|_| by != 0) else { return };
        judge.sim.count(Event::Stepped);
        let (at, clock) = (judge.sim.now(), Self::clock(judge, &state));
        judge.oracle.stepped(by > 0, |name: &LockName, owner: &Owner| {
            let lock = state.table.state(name).lock?;
            LockView::at(at, &lock, clock)?.share(owner)?.lapses
        });
    }
}
