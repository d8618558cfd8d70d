//! The invariants, judged in true time and from outside.
//!
//! The oracle observes what the server did, in order of execution, and what the tasks were told. It knows
//! true time, which no client in the schedule does, and trusts no clock, deadline or answer of the code under
//! test.
//!
//! | module | invariant |
//! |---|---|
//! | [`counting`] | each hold of a reentrant owner counts once |
//! | [`exclusion`] | holders never exceed the capacity; no request touches another owner's hold |
//! | `history` | what callers can see, by the judge of `tenure stress` |
//! | [`leftovers`] | abandoned and dropped work leaves nothing behind; everything ends |
//! | [`members`] | who has a majority of several servers |
//! | [`order`] | first come, first served; a waiter that fits is admitted at once |
//! | [`progress`] | nobody waits for a free lock |
//! | [`reference_model`] | the state: who has a place at which lock, from the server's answers |
//! | [`reporting`] | reports are true: held, lost, released, busy |
//! | [`tokens`] | tokens grow in the order of the grants, and never change |
//! | [`votes`] | which servers each owner has, for [`members`] |

pub mod counting;
pub mod exclusion;
mod history;
pub mod leftovers;
pub mod members;
pub mod order;
pub mod progress;
pub mod reference_model;
pub mod reporting;
pub mod tokens;
pub mod votes;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak};

use tenure::internals::protocol::{Answer, Notification, Op};
use tenure::{LockName, Owner};

use reference_model::ReferenceModel;

use super::clock::TrueTime;
use super::executor::{ProcessId, Sim, lock};
use super::regime::{LockKind, Plan};
use super::server::LockView;

/// A task's guard, as the oracle observes it.
pub trait Claim: Send + Sync {
    /// Whether it reports that it holds.
    fn is_held(&self) -> bool;
    /// Its token.
    fn fence(&self) -> u64;
}

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When, in true time.
    pub at: TrueTime,
    /// The invariant.
    pub invariant: &'static str,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} violated at {:.6} s: {}", self.invariant, self.at as f64 / 1e9, self.what)
    }
}

/// The oracle of one schedule. Clones share it.
#[derive(Clone)]
pub struct Oracle {
    sim: Sim,
    model: Arc<Mutex<ReferenceModel>>,
    /// The server that it observes, if there are several.
    member: Option<usize>,
}

/// A guard in a task's hands.
struct Hold {
    id: u64,
    name: LockName,
    owner: Owner,
    token: u64,
    /// Its weight as its task knows it.
    weight: u32,
    /// How long before the end of its lease it must report the loss.
    grace: TrueTime,
    /// Its hold was ended by others; it cannot know yet.
    is_forced: bool,
    /// It may have been told of a longer lease than it has.
    is_doubted: bool,
    /// It was notified of its turn by a server that has since gone back to an earlier state.
    was_let_in: bool,
    /// It is renewed automatically, so it learns periodically whether it still holds.
    is_renewed: bool,
    /// It was handed out as soon as it was granted.
    is_fresh: bool,
    process: ProcessId,
    claim: Weak<dyn Claim>,
    /// It was observed as lost, which is final.
    was_lost: bool,
    /// A task is currently waiting for its loss.
    is_watched: bool,
}

/// A task that waits for a lock without a limit.
struct Wait {
    id: u64,
    /// The awaited lock; `None` for several.
    name: Option<LockName>,
    process: ProcessId,
    since: TrueTime,
}

/// A request that the server carried out.
#[derive(Debug)]
pub struct Executed<'a> {
    /// The process that sent it.
    pub process: ProcessId,
    /// The request.
    pub op: &'a Op,
    /// Its answer.
    pub answer: &'a Answer,
    /// The notification that it publishes.
    pub wake: Option<&'a Notification>,
    /// Waiters removed because their clients could not be notified.
    pub passed: &'a [Passed],
    /// The owners of all requests that were carried out with it, in one write. `after` is the state after the
    /// last of them.
    pub together: &'a [&'a Owner],
    /// What is at the key now.
    pub after: Option<LockView<'a>>,
}

/// A waiter that was removed on its grant.
#[derive(Debug)]
pub struct Passed {
    /// The waiter.
    pub owner: Owner,
    /// Its process, if that could be reached.
    pub process: Option<ProcessId>,
}

impl Oracle {
    /// An oracle for a new schedule.
    pub fn new(sim: &Sim, plan: &Plan) -> Self {
        Self { sim: sim.clone(), model: Arc::new(Mutex::new(ReferenceModel::new(plan))), member: None }
    }

    /// Registers a lock of this name and kind.
    pub fn knows(&self, name: &LockName, sort: LockKind) {
        lock(&self.model).open(name, sort);
    }

    /// The first violation.
    pub fn violation(&self) -> Option<Violation> {
        lock(&self.model).violation.clone()
    }

    /// Runs a schedule to its end. Returns the first violation, and the first one that callers could observe.
    /// `ending` is the invariant that a panic violates.
    pub fn judge(
        &self,
        ending: &'static str,
        schedule: impl FnOnce(),
    ) -> (Option<Violation>, Option<String>) {
        let seen = || {
            schedule();
            let mut model = lock(&self.model);
            model.history.finish(self.sim.now());
            model.history.evidence().map(str::to_owned)
        };
        let seen = match catch_unwind(AssertUnwindSafe(seen)) {
            Ok(seen) => {
                self.sim.end();
                seen
            }
            // After a panic, its state must not be touched any more, not even to be dropped.
            Err(_) => {
                self.accuse(ending, "a task panicked; see above".into());
                None
            }
        };
        let by_callers =
            seen.clone().map(|what| Violation { at: self.sim.now(), invariant: "what callers see", what });
        (self.violation().or(by_callers), seen)
    }

    /// Number of guards handed out.
    pub fn grants(&self) -> u64 {
        lock(&self.model).grants
    }

    /// Reports a violation that the caller observed.
    pub fn accuse(&self, invariant: &'static str, what: String) {
        let at = self.sim.now();
        self.sim.note(|| format!("VIOLATION: {what}"));
        lock(&self.model).accuse(at, invariant, what);
        self.sim.halt();
    }

    /// The server carried out a request.
    pub fn executed(&self, executed: &Executed<'_>) {
        if let Some(member) = self.member {
            return self.executed_at(member, executed);
        }
        let at = self.sim.now();
        let mut model = lock(&self.model);
        model.settle(at, &executed.op.name, &self.sim);
        model.remember(at, &executed.op.name);
        model.check_untouched(at, executed);
        let mut news = Vec::new();
        model.note(at, executed, &self.sim, &mut news);
        drop(model);
        for owner in news {
            self.watch(owner);
        }
    }

    /// Schedules checks for the end of the lease that was just set, and for the moment when its guards must
    /// report it.
    fn watch(&self, owner: Owner) {
        let model = lock(&self.model);
        let Some(owned) = model.owners.get(&owner) else { return };
        let lapses = owned.lapses;
        let warned = model.holds.iter().filter(|hold| hold.grace > 0 && hold.owner == owner);
        let warned: Vec<_> = warned.map(|hold| (hold.id, hold.grace)).collect();
        let let_in_at = owned.let_in_at.filter(|at| *at == self.sim.now());
        let telling = progress::TELLING + model.plan.polls;
        drop(model);
        for (id, grace) in warned {
            self.warns(id, &owner, lapses, grace);
        }
        if let Some(at) = let_in_at {
            let (oracle, owner) = (self.clone(), owner.clone());
            self.sim.at(at + telling, move || oracle.told(&owner, at));
        }
        let oracle = self.clone();
        self.sim.at(lapses, move || oracle.lapsed(&owner, lapses));
    }

    /// Schedules the check that a guard reports the loss this long before the end of its lease.
    fn warns(&self, id: u64, owner: &Owner, lapses: TrueTime, grace: TrueTime) {
        let (oracle, owner) = (self.clone(), owner.clone());
        self.sim.at(lapses.saturating_sub(grace), move || {
            let at = oracle.sim.now();
            let mut model = lock(&oracle.model);
            let is_set = model.owners.get(&owner).is_some_and(|owned| owned.lapses == lapses);
            if is_set && !model.is_robbed(lapses, &owner) {
                model.check_unheld(at, &owner, Some(id));
            }
        });
    }

    /// A process ended, and the holds bound to it with it.
    pub fn died(&self, process: ProcessId) {
        let at = self.sim.now();
        let mut model = lock(&self.model);
        model.settle_all(at, &self.sim);
        model.bury(at, process);
    }

    /// The server lost all data.
    pub fn forgotten(&self) {
        if self.member.is_some() {
            return;
        }
        let names: Vec<LockName> = lock(&self.model).locks.keys().cloned().collect();
        names.iter().for_each(|name| self.deleted(name));
    }

    /// A lock's key was deleted.
    pub fn deleted(&self, name: &LockName) {
        let at = self.sim.now();
        self.sim.note(|| format!("server: {} is gone", name.as_str()));
        let mut model = lock(&self.model);
        model.settle(at, name, &self.sim);
        model.force(at, name, |_| true);
        let unaware = model.plan.kept / 3;
        if let Some(lock) = model.locks.get_mut(name).filter(|_| unaware > 0) {
            lock.unaware_until = at + unaware;
        }
        drop(model);
        self.will_tell();
    }

    /// The server is back in its state at `to`. With `grants`, it has lost grants.
    pub fn rewound(&self, to: TrueTime, grants: bool) {
        if self.member.is_some() {
            return;
        }
        let at = self.sim.now();
        let mut model = lock(&self.model);
        model.settle_all(at, &self.sim);
        for name in model.rewind(at, to) {
            if grants {
                model.doubt(&name);
            }
            model.settle(at, &name, &self.sim);
        }
        drop(model);
        self.watch_all();
        self.will_tell();
    }

    /// The server's clock was stepped, which moves the ends of leases.
    pub fn stepped(&self, is_ahead: bool, lapses: impl Fn(&LockName, &Owner) -> Option<TrueTime>) {
        if self.member.is_some() {
            return;
        }
        let at = self.sim.now();
        let mut model = lock(&self.model);
        let names = model.settle_all(at, &self.sim);
        model.retime(at, lapses);
        for name in names.iter().filter(|_| is_ahead) {
            model.doubt(name);
            model.force(at, name, |place| place.lapses <= at);
        }
        drop(model);
        self.watch_all();
        self.will_tell();
    }

    /// Observes requests that a client answers from what it has read, without writing.
    #[cfg(tenure_planted)]
    pub(super) fn unwritten(&self) -> tenure::internals::store::observe::Unwritten {
        use tenure::internals::protocol::Verb;
        let (model, sim) = (Arc::clone(&self.model), self.sim.clone());
        Box::new(move |op, answer| {
            let Answer::Held { .. } = answer else { return };
            let mut model = lock(&model);
            let Some(owned) = model.owners.get_mut(&op.owner) else { return };
            match op.verb {
                Verb::Acquire { .. } => owned.grants += 1,
                Verb::Renew { ttl_ms, .. } => {
                    owned.told_at = Some(sim.now());
                    owned.tells(sim.now(), op, ttl_ms, true);
                }
                _ => {}
            }
        })
    }

    /// The ends of leases moved, because what they are bound to lives on or its lifetime is known more
    /// precisely.
    pub fn extended(&self, lapses: impl Fn(&LockName, &Owner) -> Option<TrueTime>) {
        let at = self.sim.now();
        let mut model = lock(&self.model);
        model.settle_all(at, &self.sim);
        let changed = model.extend(at, lapses);
        drop(model);
        changed.into_iter().for_each(|owner| self.watch(owner));
    }

    /// Holds and places disappeared without a request of their owners; numbers identify the holds of a
    /// reentrant owner. They lapsed, as reported by the client that had them, or with their session.
    pub fn unbound(&self, name: &LockName, gone: &[(Owner, u64)]) {
        let at = self.sim.now();
        let mut model = lock(&self.model);
        model.settle(at, name, &self.sim);
        for (owner, number) in gone {
            model.unbind(at, name, (owner, *number), &self.sim);
        }
    }

    /// Clients may not know for so long that holds or places of a lock have lapsed.
    pub fn unseen(&self, name: &LockName, looks: TrueTime) {
        let until = self.sim.now() + looks;
        if let Some(lock) = lock(&self.model).locks.get_mut(name) {
            lock.unseen_until = until;
        }
    }

    fn watch_all(&self) {
        let model = lock(&self.model);
        let owners =
            model.locks.values().flat_map(|lock| lock.places.iter().map(|place| place.owner.clone()));
        let owners: Vec<Owner> = owners.collect();
        drop(model);
        owners.into_iter().for_each(|owner| self.watch(owner));
    }

    /// A lease is over, unless it was set again since.
    fn lapsed(&self, owner: &Owner, lapses: TrueTime) {
        let at = self.sim.now();
        let mut model = lock(&self.model);
        if model.owners.get(owner).is_none_or(|owned| owned.lapses != lapses) {
            return;
        }
        if model.is_robbed(at, owner) {
            return;
        }
        model.check_unheld(at, owner, None);
        model.check_told(at, owner, &self.sim);
        model.check_given_back(at, owner, &self.sim);
    }

    /// When a lease on this name ends or ended; the moment that schedules aim at.
    pub fn edge(&self, name: &LockName) -> Option<TrueTime> {
        lock(&self.model).locks.get(name).map(|lock| lock.edge)
    }
}

impl Hold {
    /// Whether it may believe in a hold that it does not have.
    fn is_excused(&self) -> bool {
        self.is_forced || self.is_doubted
    }

    fn is_held(&self) -> bool {
        self.claim.upgrade().is_some_and(|claim| claim.is_held())
    }
}

impl fmt::Debug for Oracle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model = lock(&self.model);
        f.debug_struct("Oracle").field("violation", &model.violation).finish_non_exhaustive()
    }
}
