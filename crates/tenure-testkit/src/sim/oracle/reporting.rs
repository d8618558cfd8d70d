//! Reports are true: held, lost, released, busy.

use std::sync::Arc;
use std::time::Duration;

use tenure::internals::protocol::{Op, QueueSpec, Verb};
use tenure::{LockName, Owner};

use super::progress::TELLING;
use super::reference_model::{End, Owned, ReferenceModel};
use super::{Claim, Hold, Oracle};
use crate::sim::clock::{MS, TrueTime};
use crate::sim::executor::{ProcessId, Sim, lock};
use crate::sim::regime::Regime;

pub(super) const REPORTING: &str = "reporting";

/// What a call reported about a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// Success.
    Yes,
    /// The lease is lost.
    Lost,
    /// Unknown outcome, or no answer.
    Unknown,
}

/// How a task got a guard.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// When it asked.
    pub asked_at: TrueTime,
    /// Whether it resumed an existing hold.
    pub is_resumed: bool,
    /// Remaining lease by the clock of its process.
    pub remaining: Duration,
    /// Whether the guard was handed out as soon as the grant was known.
    pub is_fresh: bool,
    /// Minimum remaining lease of a fresh grant.
    pub fresh: Duration,
    /// Minimum remaining lease of a waiter granted from the queue.
    pub fresh_if_called: Duration,
    /// How long before the end of the lease its loss is reported.
    pub grace: TrueTime,
    /// Whether it is renewed automatically while held.
    pub is_renewed: bool,
    /// Its weight as the task knows it, if that differs from the server's.
    pub weight: Option<u32>,
}

/// Tolerance for clock differences during a request, and for the duration of a poll.
const SLACK: TrueTime = MS;

/// How often a grant that took too long is requested again.
const ROUNDS: u32 = 3;

impl ReferenceModel {
    /// A guard was handed out: most of its lease must be left, unless several attempts were made.
    fn check_fresh(&mut self, at: TrueTime, owner: &Owner, told: &Told) {
        let Some(owned) = self.owners.get(owner) else { return };
        // A granted waiter with too little lease left has renewed it first, once.
        let rounds = if owned.was_called && owned.told_at.is_some() { ROUNDS } else { owned.grants };
        // A granted waiter did not get its hold when it asked, but later.
        let least = if owned.was_called { told.fresh.min(told.fresh_if_called) } else { told.fresh };
        if told.remaining < least && rounds < ROUNDS {
            let what = format!(
                "{owner} was handed a guard with {:?} left, asked for {rounds} times",
                told.remaining
            );
            self.accuse(at, REPORTING, what);
        }
    }

    /// A renewed guard is lost, although nobody took it away: more than one thing must have failed, because
    /// there is time for a retry if most of the lease was left at first.
    fn check_kept_alive(&mut self, at: TrueTime, hold: &Hold) {
        let failed = self.failed.get(&hold.process).copied().unwrap_or(0);
        let most = if hold.is_fresh { 1 } else { 0 };
        if self.plan.regime.is_gentle() && failed <= most {
            let what = format!("a guard of {} is lost, and no more has failed than {failed}", hold.owner);
            self.accuse(at, REPORTING, what);
        }
    }

    /// A lease ended in true time: a task waiting for its loss must have been notified, unless its process is
    /// paused.
    pub(super) fn check_told(&mut self, at: TrueTime, owner: &Owner, sim: &Sim) {
        let waits = self
            .guards_of(owner)
            .find(|hold| hold.is_watched && sim.ran_since(hold.process, at.saturating_sub(MS)));
        if let Some(hold) = waits {
            let what = format!(
                "`lost` of {owner} in process {} had not resolved when the lease was over",
                hold.process
            );
            self.accuse(at, REPORTING, what);
        }
    }
}

impl Oracle {
    /// A fault occurred between a process and the server.
    pub(in crate::sim) fn has_failed(&self, process: ProcessId) {
        *lock(&self.model).failed.entry(process).or_default() += 1;
    }

    /// An answer arrived: a waiter that had been admitted before the server went back knows now that it
    /// waits.
    pub(in crate::sim) fn answered(&self, op: &Op) {
        let mut model = lock(&self.model);
        if model.plan.node_faults.rewind == 0 {
            return;
        }
        let owners = match &op.verb {
            Verb::Refresh { owners, .. } => &owners[..],
            _ => std::slice::from_ref(&op.owner),
        };
        for owner in owners {
            if let Some(owned) = model.owners.get_mut(owner) {
                owned.was_let_in = false;
            }
        }
    }

    /// Holds may be gone without their guards' doing: renewed ones must learn of it with their next request.
    pub(super) fn will_tell(&self) {
        let at = self.sim.now();
        let mut model = lock(&self.model);
        model.shaken_at = at;
        let ttl = model.plan.ttl.as_nanos() as TrueTime;
        // After a third of the lease; an unanswered attempt takes another sixth, and the next one starts
        // within a twelfth.
        let told_at = at + ttl / 3 + ttl / 6 + ttl / 12 + model.plan.drift() + TELLING;
        let guards = model.holds.iter().filter(|hold| hold.is_renewed && hold.is_excused());
        let guards: Vec<u64> = guards.map(|hold| hold.id).collect();
        drop(model);
        for id in guards {
            let oracle = self.clone();
            self.sim.at(told_at, move || oracle.has_told(id, at));
        }
    }

    fn has_told(&self, id: u64, since: TrueTime) {
        let at = self.sim.now();
        let mut model = lock(&self.model);
        if model.shaken_at > since {
            // The hold may have disappeared later.
            return;
        }
        let Some(hold) = model.holds.iter().find(|hold| hold.id == id) else { return };
        let place = model.locks.get(&hold.name).and_then(|lock| lock.place(&hold.owner));
        let is_there = place.is_some_and(|place| place.holds && place.lapses > since);
        if !is_there && hold.is_held() && self.sim.ran_since(hold.process, since) {
            let what = format!(
                "the guard of {} says that it holds {}, {} ms after the server has lost it",
                hold.owner,
                hold.name,
                (at - since) / MS
            );
            model.accuse(at, REPORTING, what);
        }
    }

    /// A task got a guard.
    pub fn granted(
        &self,
        process: ProcessId,
        name: &LockName,
        owner: &Owner,
        claim: Arc<dyn Claim>,
        told: Told,
    ) -> Holding {
        let at = self.sim.now();
        let token = claim.fence();
        let mut model = lock(&self.model);
        model.grants += 1;
        model.next_id += 1;
        let id = model.next_id;
        let place = model.locks.get(name).and_then(|lock| lock.place(owner));
        let weight = told.weight.unwrap_or(place.map_or(1, |place| place.weight));
        // A reader whose upgrade was interrupted reads, also in the process that resumes it.
        let is_growing = model.locks.get(name).is_some_and(|lock| lock.used() > u64::from(lock.capacity));
        let weight = if is_growing { weight.min(QueueSpec::UPGRADEABLE.weight) } else { weight };
        model.check_reported(at, name, owner, token, weight, told.is_resumed);
        if told.remaining.is_zero() {
            model.accuse(at, REPORTING, format!("{owner} was handed a guard that is lost already"));
        }
        if told.is_fresh && self.sim.ran_since(process, told.asked_at) {
            model.check_fresh(at, owner, &told);
        }
        if !told.is_resumed {
            model.check_one_trip(at, owner);
        }
        let grace = told.grace;
        let mut is_forced = model.is_forced(owner);
        let is_doubted = model.owners.get(owner).is_some_and(|owned| owned.doubted.contains(&token));
        let was_let_in = model.owners.get(owner).is_some_and(|owned| owned.was_let_in);
        if let Some(owned) = model.owners.get_mut(owner) {
            let was_taken = owned.taken.contains(&token);
            // Detached holds from before the lock was taken from its owner do not count for later ones.
            owned.detached = owned.detached.saturating_sub(u32::from(told.is_resumed && !was_taken));
            (owned.told_at, owned.let_go_at) = (Some(at), None);
            is_forced |= was_taken;
            if grace > 0 {
                self.warns(id, owner, owned.lapses, grace);
            }
        }
        let (name, owner, weak) = (name.clone(), owner.clone(), Arc::downgrade(&claim));
        let (was_lost, is_watched) = (false, false);
        let hold = Hold {
            id,
            name,
            owner: owner.clone(),
            token,
            weight,
            grace,
            is_forced,
            is_doubted,
            was_let_in,
            is_renewed: told.is_renewed,
            is_fresh: told.is_fresh,
            process,
            claim: weak,
            was_lost,
            is_watched,
        };
        model.history.granted(at, &hold, told.is_resumed);
        model.holds.push(hold);
        drop(model);
        let holding = Holding { oracle: self.clone(), id, owner };
        holding.look();
        holding
    }

    /// `try_lock` for this weight, by an owner with this label, reported busy: at some moment since the call
    /// began, there must have been no room.
    pub fn said_busy(&self, name: &LockName, weight: u32, label: &str, since: TrueTime) {
        let at = self.sim.now();
        let mut model = lock(&self.model);
        model.settle(at, name, &self.sim);
        if model.members.is_some() {
            return model.check_busy_members(at, label, since);
        }
        if model.locks.get(name).is_some_and(|lock| lock.had_room(weight, since) && !lock.is_unseen(since)) {
            let what = format!("{name} was called busy, and {weight} of it were free all the time");
            model.accuse(at, REPORTING, what);
        }
    }

    /// The release of a guard, begun at `since`, ended with this report.
    pub fn said_released(
        &self,
        owner: &Owner,
        since: TrueTime,
        was_held: bool,
        is_one_of_many: bool,
        said: Said,
    ) {
        let at = self.sim.now();
        let mut model = lock(&self.model);
        let Some(owned) = model.owners.get(owner) else { return };
        // If the release had to be repeated, it may take another's doing for its own.
        let is_wrong = owned.ended.is_none() && (owned.lapses < since || owned.lapses > at);
        // With several servers, some may have lost the hold before the release arrived, or let its lease
        // expire; a late request may have restored a majority since.
        let was_gone = model.was_robbed(owner) || model.was_interrupted(owner) || owned.lapses <= at;
        let is_torn = model.members.is_some() && was_gone;
        // A server that does not answer may have what it lost, or have again what was released.
        let is_unsure = owned.is_back || model.has_again(owner) || model.was_robbed(owner);
        let is_released = |owned: &Owned| matches!(owned.ended, Some((_, End::Released))) && !is_torn;
        let wrong = match said {
            // Another hold of a reentrant owner may still exist; and the state a server went back to does not
            // contradict the answer.
            Said::Yes => is_wrong && !is_one_of_many && !is_unsure,
            Said::Lost => was_held && !is_one_of_many && is_released(owned),
            Said::Unknown => false,
        };
        if wrong {
            let what = format!("the release of {owner} said {said:?}, and the server has {:?}", owned.ended);
            model.accuse(at, REPORTING, what);
        }
    }

    /// A hold was detached from its guard, or the detach failed and the hold is released.
    pub fn detached(&self, owner: &Owner, is_detached: bool) {
        let at = self.sim.now();
        if let Some(owned) = lock(&self.model).owners.get_mut(owner) {
            owned.detached = if is_detached { owned.detached + 1 } else { owned.detached.saturating_sub(1) };
            owned.let_go_at = Some(at);
        }
    }

    /// `verify` or `renew` ended with this report about a hold with this token and this remaining lease.
    pub fn said_held(&self, owner: &Owner, token: u64, since: TrueTime, left: Duration, said: Said) {
        let at = self.sim.now();
        let mut model = lock(&self.model);
        let Some(owned) = model.owners.get(owner) else { return };
        let gone_at = owned.ended.map_or(owned.lapses, |(ended, _)| ended.min(owned.lapses));
        // Several servers that went back between their answers to one request were each right at the time.
        let is_torn = model.members.is_some() && model.plan.regime == Regime::Relapsing;
        // So is a single server that has the owner again by another of its holds, with the same token.
        let is_again = owned.is_back && owned.token == token;
        if said == Said::Yes && gone_at < since && !is_torn && !is_again {
            let what = format!("{owner} was told that it holds, {} µs after it did", (at - gone_at) / 1_000);
            model.accuse(at, REPORTING, what);
        }
        // A request that outlasts the lease loses the lock, even if the servers still have it.
        let is_early = (at - since) * 101 / 100 + SLACK < left.as_nanos() as TrueTime;
        if said == Said::Lost && is_early {
            model.check_not_had(at, owner, since);
        }
    }
}

/// A guard in a task's hands, until dropped.
#[derive(Debug)]
pub struct Holding {
    oracle: Oracle,
    id: u64,
    owner: Owner,
}

impl Holding {
    /// Queries the guard as its task would. Returns whether it reports that it holds.
    pub fn look(&self) -> bool {
        let at = self.oracle.sim.now();
        let mut model = lock(&self.oracle.model);
        let Some(place) = model.holds.iter().position(|hold| hold.id == self.id) else { return false };
        let mut hold = model.holds.swap_remove(place);
        let is_held = hold.is_held();
        if is_held {
            if hold.was_lost {
                model.accuse(at, REPORTING, format!("a guard of {} was lost, and holds again", self.owner));
            }
            if !hold.is_excused() {
                model.check_covered(at, &hold);
                model.check_room(at, &hold.name, &self.owner, hold.weight);
            }
        }
        if hold.claim.upgrade().is_some_and(|claim| claim.fence() != hold.token) {
            model.accuse(at, REPORTING, format!("the token of {} changed under its guard", self.owner));
        }
        if !is_held && hold.is_renewed && !hold.is_excused() {
            model.check_kept_alive(at, &hold);
        }
        hold.was_lost |= !is_held;
        model.history.looks(at, self.id);
        model.holds.push(hold);
        is_held
    }

    /// A task starts or stops waiting for the guard's loss.
    pub fn watch(&self, is_watched: bool) {
        let mut model = lock(&self.oracle.model);
        if let Some(hold) = model.holds.iter_mut().find(|hold| hold.id == self.id) {
            hold.is_watched = is_watched;
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let at = self.oracle.sim.now();
        let mut model = lock(&self.oracle.model);
        model.history.lets_go(at, self.id);
        model.holds.retain(|hold| hold.id != self.id);
        if let Some(owned) = model.owners.get_mut(&self.owner) {
            owned.let_go_at = Some(at);
        }
    }
}
