//! Faults of the network and its server.

use super::*;

impl Network {
    /// Ends all faults.
    pub fn heal(&self) {
        let mut inner = self.inner();
        inner.faults = Faults::NONE;
        inner.ends.iter_mut().for_each(|end| end.parting = Parting::default());
        inner.stalled_until = inner.stalled_until.min(self.sim.now());
        let broken: Vec<ProcessId> = (0..inner.ends.len())
            .filter(|process| inner.connections[inner.ends[*process].connection].loses())
            .collect();
        drop(inner);
        broken.into_iter().for_each(|process| self.replace(process));
    }

    /// Refuses requests with this probability, in thousandths.
    pub fn refuse(&self, permille: u32) {
        self.inner().faults.refuse = permille;
    }

    /// Stalls the server until then; requests that arrive meanwhile wait.
    pub fn stall(&self, until: TrueTime) {
        let mut inner = self.inner();
        inner.stalled_until = inner.stalled_until.max(until);
    }

    /// Restarts the server without data; all connections end.
    pub fn forget(&self) {
        self.changes(Event::Forgotten, Server::forget);
        if let Some(oracle) = &self.oracle {
            oracle.forgotten();
        }
        self.show(Trouble::StartedAnew);
        self.start_anew();
    }

    /// Drops all writes after a moment, as on the server's successor; all connections end.
    pub fn rewind(&self, to: TrueTime) {
        self.changes(Event::Rewound, |server| server.rewind(to));
        if let Some(oracle) = &self.oracle {
            oracle.rewound(to, true);
        }
        self.show(Trouble::StartedAnew);
        self.inner().rewinds += 1;
        self.start_anew();
    }

    /// Applies a fault to the server, and counts it if it changes the locks.
    pub(super) fn changes(&self, event: Event, what: impl FnOnce(&mut Server)) {
        let now = self.sim.now();
        let server = &mut self.inner().server;
        let before = server.list(now, "");
        what(server);
        if server.list(now, "") != before {
            self.sim.count(event);
        }
    }

    /// Shows the oracle of a quorum the state of this server after a fault.
    pub(super) fn show(&self, trouble: Trouble) {
        let (now, inner) = (self.sim.now(), self.inner());
        if let Some(oracle) = &self.oracle {
            oracle.shows(trouble, |name| inner.server.view(now, name));
        }
    }

    pub(super) fn start_anew(&self) {
        let mut inner = self.inner();
        (inner.starts, inner.started_at) = (inner.starts + 1, self.sim.now());
        // Requests in flight do not reach the new server.
        inner.connections.iter_mut().for_each(|connection| connection.inbox.clear());
        let ends = 0..inner.ends.len();
        drop(inner);
        for process in ends {
            self.cut(process);
            self.delay_messages(process);
        }
    }

    /// Starts recording changes, for `rewind`.
    pub fn remember(&self) {
        self.inner().server.remember();
    }

    /// Steps the server's clock so that it is off by this much.
    pub fn set_off(&self, off: i64) {
        let now = self.sim.now();
        let mut inner = self.inner();
        let by = inner.server.set_off(off);
        if by != 0 {
            self.sim.count(Event::Stepped);
        }
        self.sim.note(|| format!("server: its clock steps by {:.3} s", by as f64 / 1e9));
        if let Some(oracle) = &self.oracle {
            oracle.stepped(by > 0, |name, owner| inner.server.view(now, name)?.share(owner)?.lapses);
        }
        drop(inner);
        self.show(if by > 0 { Trouble::SteppedAhead } else { Trouble::SteppedBack });
    }

    /// Releases a lock as an owner that holds nothing, which sweeps lapsed entries.
    pub fn sweep(&self, name: &LockName, spec: LockSpec) {
        let verb = Verb::Release { hold: 1, fence: Fence::Assign, whose: ReleaseScope::Own };
        let owner = format!("sweeper@sim:1/{:032x}", 0).parse().expect("an owner");
        self.carry_out(OUTSIDE, &Op { name: name.clone(), spec, owner, request: 0, verb });
    }

    /// Ends all holds of a lock by force.
    pub fn force(&self, name: &LockName, spec: LockSpec) {
        let verb = Verb::Release { hold: 0, fence: Fence::Assign, whose: ReleaseScope::Any };
        let owner = format!("operator@sim:1/{:032x}", 0).parse().expect("an owner");
        self.carry_out(OUTSIDE, &Op { name: name.clone(), spec, owner, request: 0, verb });
    }

    /// Partitions a process from the server; of overlapping partitions, the later end counts.
    pub fn part(&self, process: ProcessId, parting: Parting) {
        self.sim.note(|| format!("p{process}: parted from {}: {parting:?}", self.url));
        let known = &mut self.inner().ends[process].parting;
        known.requests = known.requests.max(parting.requests);
        known.replies = known.replies.max(parting.replies);
        known.messages = known.messages.max(parting.messages);
        known.loses = parting.loses;
    }

    /// Evicts the token counter.
    pub fn evict_counter(&self, name: &LockName) {
        let had_one = self.inner().server.has_counter(name);
        self.inner().server.evict_counter(name);
        if had_one && !self.inner().server.has_counter(name) {
            self.sim.count(Event::Evicted);
        }
        self.show(Trouble::Evicted);
    }

    /// Sends a message that the lock is free, true or not.
    pub fn forge(&self, name: &LockName) {
        let inner = self.inner();
        let listeners = inner.listeners.iter().filter(|listener| listener.is_open && listener.name == *name);
        let publishers: Vec<_> = listeners.map(|listener| listener.publisher.clone()).collect();
        drop(inner);
        publishers.iter().for_each(|publisher| publisher.say(Notification::Free { by: None }));
    }

    /// Deletes a lock's key, as an operator would.
    pub fn delete(&self, name: &LockName) {
        self.changes(Event::Deleted, |server| server.delete(name));
        if let Some(oracle) = &self.oracle {
            oracle.deleted(name);
        }
    }

    /// A process dies: it sends and receives nothing any more. Requests already sent may still arrive.
    pub fn silence(&self, process: ProcessId) {
        let now = self.sim.now();
        let arrives_until = if self.sim.chance(500) { now } else { now + self.sim.between(0, 100 * MS) };
        let mut inner = self.inner();
        inner.ends[process].is_dead = true;
        let connection = inner.ends[process].connection;
        inner.connections[connection].cut_at = arrives_until;
        inner.listeners.retain(|listener| listener.process != process);
    }

    /// Cuts a process's connection for requests.
    pub fn cut(&self, process: ProcessId) {
        self.has_failed(process);
        self.replace(process);
    }

    /// Reports a fault between a process and the server to the oracle.
    pub(super) fn has_failed(&self, process: ProcessId) {
        if let Some(oracle) = &self.oracle {
            oracle.has_failed(process);
        }
    }

    /// Starts the next connection of a process, which kills the last one: requests still in flight there are
    /// carried out before anything later, or never.
    pub(in crate::sim) fn replace(&self, process: ProcessId) {
        let now = self.sim.now();
        let mut inner = self.inner();
        if inner.ends[process].is_dead {
            return;
        }
        let parted_until = inner.ends[process].parting.ends();
        let up_at = now.max(inner.stalled_until).max(parted_until) + self.sim.between(MS / 10, 50 * MS);
        let next = inner.connect();
        let end = &mut inner.ends[process];
        end.up_at = end.up_at.max(up_at);
        let (up_at, old) = (end.up_at, std::mem::replace(&mut end.connection, next));
        let old = &mut inner.connections[old];
        (old.cut_at, old.is_broken) = (up_at, true);
        let under_way = std::mem::take(&mut old.under_way);
        drop(inner);
        if under_way.iter().any(|slot| slot.strong_count() > 0) {
            self.sim.count(Event::Cut);
        }
        self.sim
            .note(|| format!("p{process}: connection ended, the next is there at {:.6}", up_at as f64 / 1e9));
        under_way.iter().filter_map(Weak::upgrade).for_each(|slot| slot.fill(Err(unknown())));
        let network = self.clone();
        self.sim.at(up_at, move || network.reconnected(process));
    }

    pub(super) fn reconnected(&self, process: ProcessId) {
        let now = self.sim.now();
        let inner = self.inner();
        let life = inner.life_at(&self.url, inner.ends[process].clock, now);
        let signals = inner.ends[process].signals.clone();
        drop(inner);
        signals.set_incarnation(life);
        signals.interrupt();
    }

    /// Cuts a process's connection for messages. It is re-established a little later, and subscribers are
    /// notified.
    pub fn delay_messages(&self, process: ProcessId) {
        let now = self.sim.now();
        let mut inner = self.inner();
        let Parting { requests, messages, .. } = inner.ends[process].parting;
        let begins_at = now.max(inner.stalled_until).max(requests).max(messages);
        let hears_from = begins_at + self.sim.between(MS / 10, inner.faults.messages_late);
        inner.ends[process].hears_from = inner.ends[process].hears_from.max(hears_from);
        let heard_at = hears_from + inner.latency(&self.sim);
        drop(inner);
        self.sim.note(|| format!("p{process}: hears nothing until {:.6}", hears_from as f64 / 1e9));
        let network = self.clone();
        self.sim.at(heard_at, move || {
            let inner = network.inner();
            let at = inner.station();
            let listeners = inner.subscribers_of(process).map(|listener| {
                listener.station.set(at.filter(|_| listener.is_counted));
                listener.publisher.clone()
            });
            let listeners: Vec<_> = listeners.collect();
            drop(inner);
            for listener in listeners {
                listener.say(Notification::Reconnected);
            }
        });
    }
}
