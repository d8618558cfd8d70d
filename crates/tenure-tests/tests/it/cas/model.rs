//! A server that compares and swaps, in memory and virtual time: its conflicts, handles and
//! watches.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, ready};
use tenure::LockName;
use tenure::internals::store::cas::{
    Backend, Committed, Handle, Listed, LockWatch, PartChange, Stamp, Stored, Swap, WatchNotice,
};
use tenure::internals::store::{Cursor, Failure};
use tenure::internals::{Moment, Runtime};
use tokio::sync::{mpsc, oneshot};

/// The server. Clones are connections to it.
#[derive(Clone)]
pub(crate) struct Model(Arc<Inner>);

struct Inner {
    runtime: Arc<dyn Runtime>,
    state: Mutex<State>,
    faults: Faults,
}

/// How often something goes wrong, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// The answer is lost, and the request may be carried out later.
    pub(crate) late: u64,
    /// A watch ends.
    pub(crate) cut: u64,
    /// What it compares.
    pub(crate) versions: Versions,
    /// So many places are in one part of a line; 0 is as many as on real servers.
    pub(crate) part: usize,
}

/// So many steps are in one write at most, as in etcd's default settings.
const STEPS: usize = 128;

/// What the server compares before it writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Versions {
    /// Versions that grow over deletions, as on etcd.
    #[default]
    Lasting,
    /// Versions that begin again with each creation, and which creation it is, as on ZooKeeper. Its
    /// watches tell that something has changed, and what is there is read afterwards.
    OfCreations,
    /// The same by a backend that forgets to compare the creation: a known bug.
    Alone,
}

#[derive(Default)]
struct State {
    revision: u64,
    locks: BTreeMap<LockName, Stored>,
    /// Parts of lines.
    parts: BTreeMap<(LockName, u64), String>,
    handles: BTreeMap<Handle, Life>,
    next: Handle,
    watches: Vec<(LockName, Moment, mpsc::UnboundedSender<WatchNotice>)>,
    /// The next write is carried out so much later, and its answer lost.
    delayed: Option<Duration>,
    /// How many requests of each sort there were.
    requests: BTreeMap<&'static str, u32>,
}

struct Life {
    life: Duration,
    end: Moment,
    marker: u64,
}

impl Model {
    pub(crate) fn new(runtime: Arc<dyn Runtime>, faults: Faults) -> Self {
        Self(Arc::new(Inner { runtime, state: Mutex::default(), faults }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the next write be carried out so much later, and its answer be lost.
    pub(crate) fn delay_next_write(&self, by: Duration) {
        self.state().delayed = Some(by);
    }

    /// How many requests of each sort there were since the last look.
    pub(crate) fn requests(&self) -> BTreeMap<&'static str, u32> {
        std::mem::take(&mut self.state().requests)
    }

    /// Whether nothing is left of any lock.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.state();
        state.locks.is_empty() && state.parts.is_empty()
    }

    /// How many parts there are of all lines.
    pub(crate) fn parts(&self) -> usize {
        self.state().parts.len()
    }

    /// Loses a part of a line, as if it was deleted by hand.
    pub(crate) fn lose_part(&self) {
        self.state().parts.pop_last();
    }

    /// Writes something else over a part of a line.
    pub(crate) fn damage_part(&self) {
        if let Some(mut part) = self.state().parts.last_entry() {
            "something else".clone_into(part.get_mut());
        }
    }

    fn chance(&self, permille: u64) -> bool {
        permille > 0 && self.0.runtime.random() % 1_000 < permille
    }

    fn later(&self, by: Duration, what: impl FnOnce(&Self) + Send + 'static) {
        let (model, runtime) = (self.clone(), Arc::clone(&self.0.runtime));
        let at = runtime.now() + by;
        let wait = runtime.sleep_until(at);
        let task = async move {
            wait.await;
            what(&model);
        };
        runtime.spawn(task.boxed());
    }

    fn delay(&self) -> Duration {
        Duration::from_micros(self.0.runtime.random() % 4_000)
    }

    fn ask<T: Send + 'static>(
        &self,
        sort: &'static str,
        what: impl FnOnce(&Self, &mut State) -> T + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Failure>> {
        let model = self.clone();
        async move {
            let (promise, answer) = oneshot::channel();
            *model.state().requests.entry(sort).or_default() += 1;
            let mut delay = model.delay();
            let mut is_lost = model.chance(model.0.faults.late);
            if is_lost {
                delay *= 1 + (model.0.runtime.random() % 100) as u32;
            }
            if sort == "commit"
                && let Some(by) = model.state().delayed.take()
            {
                (delay, is_lost) = (by, true);
            }
            let promise = (!is_lost).then_some(promise);
            model.later(delay, move |model| {
                model.purge();
                let told = what(model, &mut model.state());
                if let Some(promise) = promise {
                    model.later(model.delay(), move |_| drop(promise.send(told)));
                }
            });
            let cut = || Failure::Unknown(Failure::cause("the connection was cut"));
            answer.await.map_err(|_| cut())
        }
        .boxed()
    }

    /// Ends handles that were not kept.
    fn purge(&self) {
        let now = self.0.runtime.now();
        let mut state = self.state();
        let over: Vec<Handle> =
            state.handles.iter().filter(|(_, life)| life.end <= now).map(|(handle, _)| *handle).collect();
        for handle in over {
            self.end(&mut state, handle);
        }
    }

    fn end(&self, state: &mut State, handle: Handle) {
        if state.handles.remove(&handle).is_some() {
            self.tell(state, None, &WatchNotice::Gone(handle));
        }
    }

    /// Tells those who watch this lock, or all: each in the order of the changes.
    fn tell(&self, state: &mut State, name: Option<&LockName>, seen: &WatchNotice) {
        let now = self.0.runtime.now();
        state.watches.retain(|(_, _, watch)| !watch.is_closed());
        for (of, last, watch) in &mut state.watches {
            if name.is_some_and(|name| name != of) {
                continue;
            }
            *last = (*last + Duration::from_nanos(1)).max(now + self.delay());
            let (watch, seen, of) = (watch.clone(), seen.clone(), of.clone());
            let is_read = self.0.faults.versions != Versions::Lasting && matches!(seen, WatchNotice::Lock(_));
            self.later(last.since(now), move |model| {
                let seen =
                    if is_read { WatchNotice::Lock(model.state().locks.get(&of).cloned()) } else { seen };
                drop(watch.send(seen));
            });
        }
        if self.chance(self.0.faults.cut) {
            state.watches.clear();
        }
    }

    fn commit_now(&self, state: &mut State, change: Swap) -> Committed {
        let versions = self.0.faults.versions;
        let stored = state.locks.get(&change.name).cloned();
        let marker = state.handles.get(&change.guard.0).map(|life| life.marker);
        let compared = |stamp: Stamp| match versions {
            Versions::Lasting => (stamp.version, (0, 0)),
            Versions::OfCreations => (stamp.version - stamp.base, stamp.creation),
            Versions::Alone => (stamp.version - stamp.base, (0, 0)),
        };
        let stands = stored.as_ref().map(|stored| compared(stored.stamp)) == change.seen.map(compared);
        let there = |part: &PartChange| state.parts.contains_key(&(change.name.clone(), part.id));
        let fits = change.parts.iter().all(|part| there(part) != part.is_new);
        if !stands || !fits || marker != Some(change.guard.1) {
            return Committed::Conflict { stored, marker };
        }
        for PartChange { id, text, .. } in change.parts {
            match text {
                Some(text) => drop(state.parts.insert((change.name.clone(), id), text)),
                None => drop(state.parts.remove(&(change.name.clone(), id))),
            }
        }
        state.revision += 1;
        let version = state.revision;
        let stamp = match (versions, stored.as_ref().map(|stored| stored.stamp)) {
            (Versions::Lasting, before) => {
                Stamp { base: before.map_or(version, |before| before.base), version, creation: (0, 0) }
            }
            (_, Some(before)) => Stamp { version: before.version + 1, ..before },
            (_, None) => Stamp { base: version, version, creation: (change.guard.0, version) },
        };
        match change.text {
            Some(text) => {
                state.locks.insert(change.name.clone(), Stored { text, stamp });
            }
            None => drop(state.locks.remove(&change.name)),
        }
        for victim in change.victims {
            if let Some(life) = state.handles.get_mut(&victim) {
                life.marker = version;
            }
        }
        let stands = state.locks.get(&change.name).cloned();
        self.tell(state, Some(&change.name), &WatchNotice::Lock(stands));
        Committed::Done(stamp)
    }

    fn set_end(&self, state: &mut State, handle: Handle) -> Option<u64> {
        let now = self.0.runtime.now();
        let life = state.handles.get_mut(&handle)?;
        life.end = now + life.life;
        let lasts = life.life;
        self.later(lasts, |model| model.purge());
        Some(life.marker)
    }
}

impl Backend for Model {
    fn read(&self, name: &LockName) -> BoxFuture<'static, Result<Option<Stored>, Failure>> {
        let name = name.clone();
        self.ask("read", move |_, state| state.locks.get(&name).cloned())
    }

    fn parts(
        &self,
        name: &LockName,
        ids: Vec<u64>,
    ) -> BoxFuture<'static, Result<Vec<Option<String>>, Failure>> {
        let name = name.clone();
        self.ask("parts", move |_, state| {
            ids.iter().map(|id| state.parts.get(&(name.clone(), *id)).cloned()).collect()
        })
    }

    fn commit(&self, change: Swap) -> BoxFuture<'static, Result<Committed, Failure>> {
        if 1 + change.parts.len() + change.victims.len() > STEPS {
            let refused = Failure::Refused(Failure::cause("too many operations in txn request"));
            return ready(Err(refused)).boxed();
        }
        self.ask("commit", move |model, state| model.commit_now(state, change))
    }

    fn open(&self, life: Duration, _is_kept: bool) -> BoxFuture<'static, Result<(Handle, u64), Failure>> {
        self.ask("open", move |model, state| {
            // Not in a row: a number that is one off is no other handle.
            state.next += 16;
            state.revision += 1;
            let (handle, marker) = (state.next, state.revision);
            state.handles.insert(handle, Life { life, end: Moment(0), marker });
            model.set_end(state, handle);
            (handle, marker)
        })
    }

    fn keep(&self, handle: Handle) -> BoxFuture<'static, Result<Option<u64>, Failure>> {
        self.ask("keep", move |model, state| model.set_end(state, handle))
    }

    fn close(&self, handle: Handle) -> BoxFuture<'static, Result<(), Failure>> {
        self.ask("close", move |model, state| model.end(state, handle))
    }

    fn bump(&self, handles: Vec<Handle>) -> BoxFuture<'static, Result<Vec<Option<u64>>, Failure>> {
        self.ask("bump", move |_, state| {
            state.revision += 1;
            let version = state.revision;
            let bump = |handle: &Handle| {
                state.handles.get_mut(handle).map(|life| {
                    life.marker = version;
                    version
                })
            };
            handles.iter().map(bump).collect()
        })
    }

    fn living(&self, handles: Vec<Handle>) -> BoxFuture<'static, Result<Vec<bool>, Failure>> {
        self.ask("living", move |_, state| {
            handles.iter().map(|handle| state.handles.contains_key(handle)).collect()
        })
    }

    fn watch(&self, name: &LockName) -> BoxFuture<'static, Result<Box<dyn LockWatch>, Failure>> {
        let name = name.clone();
        let begun = self.ask("watch", move |model, state| {
            let (sender, seen) = mpsc::unbounded_channel();
            state.watches.push((name, model.0.runtime.now(), sender));
            seen
        });
        async move { Ok(Box::new(Watching(begun.await?)) as Box<dyn LockWatch>) }.boxed()
    }

    fn list(&self, prefix: &str, _from: Cursor) -> BoxFuture<'static, Result<Listed, Failure>> {
        let prefix = prefix.to_owned();
        self.ask("list", move |_, state| {
            let locks = state.locks.iter().filter(|(name, _)| name.as_str().starts_with(&prefix));
            let locks = locks.map(|(name, stored)| (name.clone(), stored.clone())).collect();
            Listed { locks, next: None }
        })
    }

    fn ready(&self) -> BoxFuture<'static, Result<(), Failure>> {
        self.ask("ready", |_, _| ())
    }

    fn silent(&self) {}

    fn limit(&self) -> usize {
        100_000
    }

    fn part(&self) -> usize {
        if self.0.faults.part == 0 { 128 } else { self.0.faults.part }
    }
}

struct Watching(mpsc::UnboundedReceiver<WatchNotice>);

impl LockWatch for Watching {
    fn next(&mut self) -> BoxFuture<'_, Result<WatchNotice, Failure>> {
        async move {
            let cut = || Failure::Unknown(Failure::cause("the watch was cut"));
            self.0.recv().await.ok_or_else(cut)
        }
        .boxed()
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Model")
    }
}
