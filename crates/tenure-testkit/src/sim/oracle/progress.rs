//! Nobody waits for a free lock.

use tenure::{LockName, Owner};

use super::reference_model::ReferenceModel;
use super::{Oracle, Wait};
use crate::sim::clock::{MS, TrueTime};
use crate::sim::executor::{ProcessId, Sim, lock};

const PROGRESS: &str = "progress";

/// Maximum time a lock stays free while a client waits for it and nothing fails: the message, the request,
/// and the turn that busy processes leave to each other.
const HAND_OVER: TrueTime = 150 * MS;
/// The same with a majority, where turns are not guaranteed. A minority's answers are held back for up to 1
/// s, and randomly for as long again; after that, clients that split the vote retry after up to 500 ms, three
/// times.
const AMONG_MEMBERS: TrueTime = 4_000 * MS;
/// Maximum time until a granted waiter has its guard or has released it.
pub(super) const TELLING: TrueTime = 200 * MS;

impl ReferenceModel {
    /// The server granted a lock: nobody may have waited for all the time that it was free, unless that was
    /// short.
    pub(super) fn check_prompt(&mut self, at: TrueTime, name: &LockName, free_since: TrueTime, sim: &Sim) {
        let unaware_until = self.locks.get(name).map_or(0, |lock| lock.unaware_until);
        let free_since = free_since.max(self.plan.strict_from).max(unaware_until);
        let hand_over = if self.members.is_some() { AMONG_MEMBERS } else { HAND_OVER };
        let most = hand_over + self.plan.polls + self.plan.drift();
        if at <= free_since + most || self.locks.get(name).is_some_and(|lock| lock.places.len() > 1) {
            return;
        }
        let waited = self.waits.iter().find(|wait| {
            let since = free_since.max(wait.since);
            wait.name.as_ref() == Some(name) && at > since + most && sim.ran_since(wait.process, since)
        });
        if let Some(wait) = waited {
            let what = format!(
                "{name} was free for {} ms while a task of process {} waited for it",
                (at - free_since.max(wait.since)) / MS,
                wait.process
            );
            self.accuse(at, PROGRESS, what);
        }
    }

    /// The first waiter could be admitted because a lease ended, but no request arrived. That may last until
    /// the next waiter refreshes its place, so a dead head costs its own lease plus that. The head itself
    /// knows when to retry, if it received its last answer.
    pub(super) fn check_let_in(&mut self, at: TrueTime, name: &LockName, sim: &Sim) {
        let Some(lock) = self.locks.get(name) else { return };
        let Some(open_since) = lock.open_since else { return };
        let since = open_since.max(self.plan.strict_from);
        let knows = self.plan.regime.is_calm() && lock.head().is_some_and(|head| head.knows);
        let refreshed = if knows { 0 } else { self.plan.wait().max(self.plan.kept_by_listening()) / 2 };
        let most = HAND_OVER + refreshed + self.plan.polls + self.plan.drift();
        let waits = |process: ProcessId| sim.ran_since(process, since);
        let waiter = lock.places.iter().find(|place| !place.holds && waits(place.process));
        if let Some(waiter) = waiter.filter(|_| at > since + most) {
            let what = format!(
                "{} could have been let in to {name} for {} ms, and no client asked",
                waiter.owner,
                (at - since) / MS
            );
            self.accuse(at, PROGRESS, what);
        }
    }
}

impl Oracle {
    /// A task starts to wait for a lock without a limit, until the result is dropped.
    pub fn waits(&self, process: ProcessId, name: Option<&LockName>) -> Waiting {
        let since = self.sim.now();
        let mut model = lock(&self.model);
        model.next_id += 1;
        let id = model.next_id;
        model.waits.push(Wait { id, name: name.cloned(), process, since });
        let told = name.and_then(|name| model.history.asks(since, process, name));
        Waiting { oracle: self.clone(), id, process, told }
    }

    /// A client was admitted by another's request a while ago: it must have its guard by now, or have left.
    pub(super) fn told(&self, owner: &Owner, let_in_at: TrueTime) {
        let at = self.sim.now();
        let mut model = lock(&self.model);
        let Some(owned) = model.owners.get(owner) else { return };
        // An acquisition of several locks keeps the first while it waits for the next.
        let is_excused = model.plan.both > 0
            || owned.let_in_at != Some(let_in_at)
            || owned.ended.is_some()
            || owned.lapses <= at
            // It had its guard, or had left, before the server went back: nobody waits for it now.
            || owned.is_back && (owned.told_at.is_some() || owned.has_left)
            || owned.told_at.is_some_and(|told_at| told_at >= let_in_at)
            || !self.sim.ran_since(owned.process, let_in_at);
        if !is_excused {
            let what = format!("{owner} was let in {} ms ago and has not heard of it", (at - let_in_at) / MS);
            model.accuse(at, PROGRESS, what);
        }
    }

    /// The schedule was long enough for everything in it: nobody may still wait.
    pub fn check_served(&self) {
        let at = self.sim.now();
        let mut model = lock(&self.model);
        let waits = model.waits.iter().find(|wait| self.sim.runs(wait.process));
        if let Some(wait) = waits {
            let what = format!(
                "a task of process {} waits for {:?} since {:.3} s",
                wait.process,
                wait.name,
                wait.since as f64 / 1e9
            );
            model.accuse(at, PROGRESS, what);
        }
    }
}

/// A waiting task, until dropped.
#[derive(Debug)]
pub struct Waiting {
    oracle: Oracle,
    id: u64,
    process: ProcessId,
    /// Its number in the history.
    told: Option<u32>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let at = self.oracle.sim.now();
        let mut model = lock(&self.oracle.model);
        model.waits.retain(|wait| wait.id != self.id);
        if let Some(task) = self.told {
            model.history.leaves(at, self.process, task);
        }
    }
}
