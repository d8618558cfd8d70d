//! A compare-and-swap server in memory: its conflicts, sessions and watches, and the faults between it and its
//! clients.

mod backend;
mod faults;
mod key_value;

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, FutureExt, ready, select};
use tenure::LockName;
use tenure::internals::store::cas::{
    Backend, Committed, Listed, ListedRecords, LockWatch, OneKey, PartChange, Session, Stamp, Stored, Swap,
    ValueChange, WatchNotice, Watched,
};
use tenure::internals::store::{Cursor, Failure, StoreFuture};
use tenure::internals::{Moment, Runtime};
use tokio::sync::{mpsc, oneshot};

use super::state::{End, Life, State, Watcher};
use crate::sim::clock::MS;
use crate::sim::event::Event;
use crate::sim::executor::{OUTSIDE, Process, ProcessId, lock};
use crate::sim::host::{Host, Judge};
use crate::sim::network::Parting;
use crate::sim::regime::Faults;

/// Maximum operations in one write, as in etcd's default settings.
const STEPS: usize = 128;

/// Places in one part of a queue on real servers.
const PART: usize = 128;

/// How often a client like that of ZooKeeper sends a ping.
const PING: Duration = Duration::from_secs(1);

/// A connection to the server.
#[derive(Clone)]
pub struct Server {
    pub(super) host: Arc<Host>,
    inner: Arc<Inner>,
    /// The process that is connected.
    process: ProcessId,
    /// Keeps this client's sessions, as on ZooKeeper, until the client ends.
    pings: Option<Arc<Pings>>,
}

/// Where the pings of a client are sent from; dropped with the client.
struct Pings(Arc<dyn Runtime>);

struct Inner {
    state: Mutex<State>,
    versions: Versions,
    part: usize,
}

/// What the server compares before a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Versions {
    /// Versions that increase across deletions, as on etcd.
    #[default]
    Lasting,
    /// Versions that restart with each creation, compared together with the creation, as on ZooKeeper. Its
    /// watches only report that something has changed, and the client reads it afterwards.
    OfCreations,
    /// The same in a backend that forgets to compare the creation: a planted bug.
    Alone,
    /// Those of single keys, as on NATS.
    OneKey {
        /// The server removes the markers of clients that have died.
        expires: bool,
    },
}

impl Versions {
    /// Whether clients are like those of ZooKeeper.
    fn restart(self) -> bool {
        matches!(self, Self::OfCreations | Self::Alone)
    }
}

/// The fate of a request.
struct Fate {
    arrives: Moment,
    is_carried_out: bool,
    is_answered: bool,
}

impl Server {
    /// A server without faults, whose queues are split as on real servers.
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self::with(runtime, Versions::Lasting, PART)
    }

    /// The same, with this many places in one part of a queue.
    pub fn with(runtime: Arc<dyn Runtime>, versions: Versions, part: usize) -> Self {
        Self::judged(runtime, versions, part, Faults { latency: (0, 4 * MS), ..Faults::NONE }, None)
    }

    pub(super) fn judged(
        runtime: Arc<dyn Runtime>,
        versions: Versions,
        part: usize,
        faults: Faults,
        judge: Option<Judge>,
    ) -> Self {
        let keeps_markers = versions == Versions::OneKey { expires: false };
        let state = Mutex::new(State { faults, keeps_markers, ..State::default() });
        let inner = Arc::new(Inner { state, versions, part });
        Self { host: Arc::new(Host { runtime, judge }), inner, process: OUTSIDE, pings: None }
    }

    /// The connection of a process.
    #[must_use]
    pub fn of(&self, process: ProcessId) -> Self {
        Self { process, pings: None, ..self.clone() }
    }

    /// The connection of a client in a process. On a server like ZooKeeper it keeps the client's sessions.
    #[must_use]
    pub fn client(&self, process: &Arc<Process>) -> Self {
        let pings = || Arc::new(Pings(Arc::clone(process) as Arc<dyn Runtime>));
        let pings = self.inner.versions.restart().then(pings);
        Self { pings, ..self.of(process.id()) }
    }

    /// The backend of a client.
    #[must_use]
    pub fn backend(&self, runtime: &Arc<dyn Runtime>) -> Arc<dyn Backend> {
        match self.inner.versions {
            Versions::OneKey { .. } => Arc::new(OneKey::new(Arc::new(self.clone()), Arc::clone(runtime))),
            _ => Arc::new(self.clone()),
        }
    }

    /// Sends pings for a session of this client until it is gone, or the client.
    fn ping(&self, session: Session) {
        let Some(client) = &self.pings else { return };
        let (server, runtime, client) =
            (self.of(self.process), Arc::clone(&client.0), Arc::downgrade(client));
        let pings = {
            let runtime = Arc::clone(&runtime);
            async move {
                while client.strong_count() > 0 {
                    runtime.sleep_until(runtime.now() + PING).await;
                    let ping = move |server: &Self, state: &mut State| {
                        server.set_end(state, session, server.now()).is_some()
                    };
                    let late = runtime.sleep_until(runtime.now() + PING);
                    if let Either::Left((Ok(false), _)) = select(server.ask("ping", ping), late).await {
                        return;
                    }
                }
            }
        };
        runtime.spawn(pings.boxed());
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.inner.state)
    }

    fn now(&self) -> Moment {
        self.host.now()
    }

    /// Delays the next write by this, and loses its answer.
    pub fn delay_next_write(&self, by: Duration) {
        self.state().delayed = Some(by);
    }

    /// Number of requests of each sort since the last call.
    pub fn requests(&self) -> BTreeMap<&'static str, u32> {
        std::mem::take(&mut self.state().requests)
    }

    /// Whether nothing is left of any lock.
    pub fn is_empty(&self) -> bool {
        let state = self.state();
        state.locks.is_empty() && state.parts.is_empty()
    }

    /// Number of parts of all queues.
    pub fn parts(&self) -> usize {
        self.state().parts.len()
    }

    /// Deletes a part of a queue, as if by hand.
    pub fn lose_part(&self) {
        self.state().parts.pop_last();
    }

    /// Overwrites a part of a queue with something else.
    pub fn damage_part(&self) {
        if let Some(mut part) = self.state().parts.last_entry() {
            "something else".clone_into(part.get_mut());
        }
    }

    fn later(&self, at: Moment, what: impl FnOnce(&Self) + Send + 'static) {
        let server = self.clone();
        self.host.later(at, move || what(&server));
    }

    /// The time a message takes in one direction.
    fn latency(&self, state: &State) -> Duration {
        let first = state.sessions.values().map(|life| life.end).min();
        self.host.latency(&state.faults, self.process, first)
    }

    /// Draws the fate of a request; `None` if it is not sent.
    fn fate(&self, state: &mut State, sort: &'static str) -> Option<Fate> {
        let now = self.now();
        *state.requests.entry(sort).or_default() += 1;
        let faults = state.faults;
        if self.host.chance(faults.refuse) {
            self.host.has_failed(self.process, Event::NotSent);
            return None;
        }
        let delay = self.latency(state);
        let delayed = if sort == "commit" { state.delayed.take() } else { None };
        let End { parting, hears_from, has_lost, .. } = state.ends.entry(self.process).or_default();
        let (parting, hears_from) = (*parting, *hears_from);
        let is_parted = now.0 < parting.requests;
        if is_parted {
            self.host.count(Event::Parted);
        }
        let is_spared = faults.once && *has_lost;
        let loses_request = !is_spared && self.host.chance(faults.lose_request);
        let loses_answer = !is_spared && !loses_request && self.host.chance(faults.lose_reply);
        if loses_request || loses_answer {
            *has_lost = true;
            self.host
                .has_failed(self.process, if loses_request { Event::RequestLost } else { Event::ReplyLost });
        }
        let begins = Moment(now.0.max(parting.requests)).max(if sort == "watch" { hears_from } else { now });
        Some(Fate {
            arrives: begins + delayed.unwrap_or(delay),
            is_carried_out: !loses_request && (!parting.loses || !is_parted),
            is_answered: !loses_request && !loses_answer && delayed.is_none(),
        })
    }

    fn ask<T: Send + 'static>(
        &self,
        sort: &'static str,
        what: impl FnOnce(&Self, &mut State) -> T + Send + 'static,
    ) -> StoreFuture<T> {
        let server = self.clone();
        async move {
            let (promise, answer) = oneshot::channel();
            let cuts = {
                let mut state = server.state();
                let Some(fate) = server.fate(&mut state, sort) else {
                    return Err(Failure::NotSent(Failure::cause("there is no connection")));
                };
                let cuts = Arc::clone(&state.ends.entry(server.process).or_default().cuts);
                let promise = match fate.is_answered {
                    true => Some(promise),
                    // Half of them are noticed at once, because the connection ends.
                    false if server.host.chance(500) => {
                        state.silent.push(Box::new(promise));
                        None
                    }
                    false => {
                        drop(promise);
                        None
                    }
                };
                drop(state);
                if fate.is_carried_out {
                    server.later(fate.arrives, move |server| server.arrive(sort, promise, what));
                }
                cuts
            };
            let cut = || Failure::Unknown(Failure::cause("the connection was cut"));
            match select(answer, pin!(cuts.notified())).await {
                Either::Left((answer, _)) => answer.map_err(|_| cut()),
                Either::Right(_) => Err(cut()),
            }
        }
        .boxed()
    }

    /// A request reaches the server.
    fn arrive<T: Send + 'static>(
        &self,
        sort: &'static str,
        promise: Option<oneshot::Sender<T>>,
        what: impl FnOnce(&Self, &mut State) -> T + Send + 'static,
    ) {
        let now = self.now();
        let mut state = self.state();
        if now < state.stalled_until {
            self.host.count(Event::Stalled);
            let until = state.stalled_until;
            drop(state);
            return self.later(until, move |server| server.arrive(sort, promise, what));
        }
        let end = state.ends.entry(self.process).or_default();
        if end.arrives_until.is_some_and(|until| now > until) {
            return;
        }
        let parting = end.parting;
        self.purge(&mut state);
        self.host.note(|| format!("server: p{}: {sort}", self.process));
        let told = what(self, &mut state);
        if now.0 < parting.replies && parting.loses {
            state.silent.push(Box::new(promise));
            return;
        }
        let at = Moment(now.0.max(parting.replies)) + self.latency(&state);
        drop(state);
        if let Some(promise) = promise {
            self.later(at, move |_| drop(promise.send(told)));
        }
    }

    /// Ends sessions that were not kept alive; not during a stall of the server.
    fn purge(&self, state: &mut State) {
        let now = self.now();
        if now < state.stalled_until {
            return;
        }
        let over: Vec<Session> =
            state.sessions.iter().filter(|(_, life)| life.end <= now).map(|(session, _)| *session).collect();
        for session in over {
            self.end(state, session);
        }
    }

    /// Lets a marker that clients remove last until any of them would have.
    fn outlast(&self, session: Session, end: Moment) {
        let (mut state, now) = (self.state(), self.now());
        let Some(life) = state.sessions.get_mut(&session).filter(|life| life.end == end) else { return };
        if now < life.kept_until + 3 * life.life {
            life.end = end + life.life;
            self.ends_at(&mut state, session);
        }
    }

    /// The end of a session has changed.
    fn ends_at(&self, state: &mut State, session: Session) {
        let Some(end) = state.sessions.get(&session).map(|life| life.end) else { return };
        self.later(end, |server| server.purge(&mut server.state()));
        if state.keeps_markers {
            self.later(Moment(end.0.saturating_sub(2 * MS)), move |server| server.outlast(session, end));
        }
        if let Some(judge) = &self.host.judge {
            judge.extended(state);
        }
    }

    fn end(&self, state: &mut State, session: Session) {
        if let Some(judge) = &self.host.judge {
            judge.ended(state, session);
        }
        if state.sessions.remove(&session).is_some() {
            self.tell(state, |watcher| watcher.what == Watched::Lock, &WatchNotice::Gone(session));
        }
    }

    /// Notifies watchers, each in the order of the changes.
    fn tell(&self, state: &mut State, is_meant: impl Fn(&Watcher) -> bool, seen: &WatchNotice) {
        let now = self.now();
        state.watches.retain(|watcher| !watcher.sender.is_closed());
        let faults = state.faults;
        let mut cut = Vec::new();
        for at in 0..state.watches.len() {
            if !is_meant(&state.watches[at]) {
                continue;
            }
            let process = state.watches[at].process;
            let end = state.ends.entry(process).or_default();
            let (from, parting) = (end.hears_from.max(Moment(end.parting.messages)), end.parting);
            if now < end.hears_from {
                self.host.count(Event::Unheard);
            }
            if parting.loses && now.0 < parting.messages || self.host.chance(faults.lose_wake) {
                self.host.count(Event::MessageLost);
                cut.push(at);
                continue;
            }
            let mut delay = self.host.span(faults.latency.0, faults.latency.1);
            if self.host.chance(faults.late_wake.0) {
                self.host.count(Event::MessageLate);
                delay += self.host.span(MS, faults.late_wake.1);
            }
            let watcher = &mut state.watches[at];
            watcher.last = (watcher.last + Duration::from_nanos(1)).max(now.max(from) + delay);
            lock(&watcher.coming).push_back(seen.clone());
            let (sender, coming, of) =
                (watcher.sender.clone(), Arc::clone(&watcher.coming), watcher.name.clone());
            let is_read = self.inner.versions.restart();
            // The first one in flight, because tasks that are due together run in any order.
            self.later(watcher.last, move |server| match lock(&coming).pop_front() {
                Some(WatchNotice::Lock(_)) if is_read => {
                    drop(sender.send(WatchNotice::Lock(server.state().locks.get(&of).cloned())));
                }
                Some(seen) => drop(sender.send(seen)),
                None => {}
            });
        }
        // A watch that misses an event ends: there are no gaps.
        cut.into_iter().rev().for_each(|at| drop(state.watches.remove(at)));
    }

    fn commit_now(&self, state: &mut State, change: Swap) -> Committed {
        let versions = self.inner.versions;
        let stored = state.locks.get(&change.name).cloned();
        let marker = state.sessions.get(&change.guard.0).map(|life| life.marker);
        let compared = |stamp: Stamp| match versions {
            Versions::Lasting | Versions::OneKey { .. } => (stamp.version, (0, 0)),
            Versions::OfCreations => (stamp.version - stamp.base, stamp.creation),
            Versions::Alone => (stamp.version - stamp.base, (0, 0)),
        };
        let stands = stored.as_ref().map(|stored| compared(stored.stamp)) == change.seen.map(compared);
        let there = |part: &PartChange| state.parts.contains_key(&(change.name.clone(), part.id));
        let fits = change.parts.iter().all(|part| there(part) != part.is_new);
        let lasts = change.moved_from.iter().all(|session| state.sessions.contains_key(session));
        if !stands || !fits || !lasts || marker != Some(change.guard.1) {
            return Committed::Conflict { stored, marker };
        }
        let before = self.host.judge.as_ref().map(|judge| judge.look(state, &change.name));
        for PartChange { id, text, .. } in change.parts {
            match text {
                Some(text) => drop(state.parts.insert((change.name.clone(), id), text)),
                None => drop(state.parts.remove(&(change.name.clone(), id))),
            }
        }
        state.revision += 1;
        let version = state.revision;
        let stamp = match (versions, stored.as_ref().map(|stored| stored.stamp)) {
            (Versions::Lasting | Versions::OneKey { .. }, before) => {
                Stamp { base: before.map_or(version, |before| before.base), version, creation: (0, 0) }
            }
            (_, Some(before)) => Stamp { version: before.version + 1, ..before },
            (_, None) => Stamp { base: version, version, creation: (change.guard.0, version) },
        };
        let (keeps, is_recorded) = (change.lock == ValueChange::Keep, change.record != ValueChange::Keep);
        let stamp = change.seen.filter(|_| keeps).unwrap_or(stamp);
        match change.lock {
            ValueChange::Write(text) => drop(state.locks.insert(change.name.clone(), Stored { text, stamp })),
            ValueChange::Remove => drop(state.locks.remove(&change.name)),
            ValueChange::Keep => {}
        }
        match change.record {
            ValueChange::Write(text) => drop(state.records.insert(change.name.clone(), text)),
            ValueChange::Remove => drop(state.records.remove(&change.name)),
            ValueChange::Keep => {}
        }
        for victim in change.victims {
            if let Some(life) = state.sessions.get_mut(&victim) {
                life.marker = version;
            }
        }
        if let (Some(judge), Some(before)) = (&self.host.judge, before) {
            let added = if stored.is_none() { stamp.base } else { 0 };
            judge.committed(state, self.process, &change.name, before, change.notes.told(), added);
        }
        let stands = state.locks.get(&change.name).cloned();
        let is_changed = |what| if what == Watched::Lock { !keeps } else { is_recorded };
        let is_meant = |watcher: &Watcher| watcher.name == change.name && is_changed(watcher.what);
        self.tell(state, is_meant, &WatchNotice::Lock(stands));
        let record = change.reads_record.then(|| state.records.get(&change.name).cloned());
        Committed::Done { stamp, record }
    }

    /// Restarts the lifetime of a session.
    fn set_end(&self, state: &mut State, session: Session, from: Moment) -> Option<u64> {
        let life = state.sessions.get_mut(&session)?;
        // In whole milliseconds, like the oracle's times.
        life.end = Moment((from + life.life).0.next_multiple_of(MS));
        life.kept_until = life.end;
        let marker = life.marker;
        self.ends_at(state, session);
        Some(marker)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("process", &self.process).finish_non_exhaustive()
    }
}
