//! What must never happen, judged in true time and from outside.
//!
//! The oracle hears two things: what the server did, in the order in which it did it, and what the
//! tasks were told. It knows true time, which no client in the schedule does. It trusts no clock,
//! deadline or answer of the code under test.
//!
//! | file | invariant |
//! |---|---|
//! | [`reference_model`] | who has a place at which lock, by what the server answered |
//! | [`exclusion`] | holders never take more than there is; no request touches another's hold |
//! | [`order`] | first come, first served; who fits is let in at once |
//! | [`counting`] | each hold of a reentrant owner counts once |
//! | [`tokens`] | tokens grow in the order of the grants, and stay what they are |
//! | [`leftovers`] | what was given up or dropped leaves nothing; everything ends |
//! | [`members`] | who has a majority of several servers; [`votes`] is who has which |
//! | [`progress`] | no client waits for what is free |
//! | [`reporting`] | what is reported is true: lost, released, busy |
//! | `history` | what callers can see: the judge of `tenure stress` |

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

/// What a task holds, as the oracle looks at it from outside: a guard.
pub trait Claim: Send + Sync {
    /// Whether its owner, asked now, would say that it holds.
    fn is_held(&self) -> bool;
    /// Its token.
    fn fence(&self) -> u64;
}

/// Something that must never happen, and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When, in true time.
    pub at: TrueTime,
    /// Which invariant.
    pub invariant: &'static str,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} violated at {:.6} s: {}", self.invariant, self.at as f64 / 1e9, self.what)
    }
}

/// The judge of one schedule. Clones are the same one.
#[derive(Clone)]
pub struct Oracle {
    sim: Sim,
    model: Arc<Mutex<ReferenceModel>>,
    /// Which of several servers it looks at, if there are several.
    member: Option<usize>,
}

/// A guard in a task's hands.
struct Hold {
    id: u64,
    name: LockName,
    owner: Owner,
    token: u64,
    /// How much it takes, as far as its task may think.
    weight: u32,
    /// How long before the end of its lease it must know.
    grace: TrueTime,
    /// The server ended it without its doing: it cannot know yet.
    is_forced: bool,
    /// It may have been told of a longer lease than it has.
    is_doubted: bool,
    /// It heard of its turn on a server that has gone back since to before that.
    was_let_in: bool,
    /// It asks whether it still holds, by and by.
    is_renewed: bool,
    /// It was handed out as soon as it was granted.
    is_fresh: bool,
    process: ProcessId,
    claim: Weak<dyn Claim>,
    /// It was seen lost, which is final.
    was_lost: bool,
    /// A task waits for its loss right now.
    is_watched: bool,
}

/// A task that waits for a lock without a limit.
struct Wait {
    id: u64,
    /// For which, where it is for one.
    name: Option<LockName>,
    process: ProcessId,
    since: TrueTime,
}

/// What the server did with one request.
#[derive(Debug)]
pub struct Executed<'a> {
    /// For which process.
    pub process: ProcessId,
    /// The request.
    pub op: &'a Op,
    /// Its answer.
    pub answer: &'a Answer,
    /// What it tells those who listen.
    pub wake: Option<&'a Notification>,
    /// The waiters that it has removed, because their clients did not hear that they were called.
    pub passed: &'a [Passed],
    /// What stands at the key now.
    pub after: Option<LockView<'a>>,
}

/// A waiter that was removed when it was called.
#[derive(Debug)]
pub struct Passed {
    /// Who waited.
    pub owner: Owner,
    /// Its process, if that could be reached.
    pub process: Option<ProcessId>,
}

impl Oracle {
    /// A judge who knows nothing yet.
    pub fn new(sim: &Sim, plan: &Plan) -> Self {
        Self { sim: sim.clone(), model: Arc::new(Mutex::new(ReferenceModel::new(plan))), member: None }
    }

    /// A lock of these names exists, and lets in so much.
    pub fn knows(&self, name: &LockName, sort: LockKind) {
        lock(&self.model).open(name, sort);
    }

    /// What went wrong first, if anything did.
    pub fn violation(&self) -> Option<Violation> {
        lock(&self.model).violation.clone()
    }

    /// Runs a schedule to its end. Returns what went wrong first, and what callers saw that must
    /// not be. `ending`: what is violated by a panic.
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
            // What it was doing is not to be touched any more, not even to be dropped.
            Err(_) => {
                self.accuse(ending, "a task panicked; see above".into());
                None
            }
        };
        let by_callers =
            seen.clone().map(|what| Violation { at: self.sim.now(), invariant: "what callers see", what });
        (self.violation().or(by_callers), seen)
    }

    /// How many guards were handed out.
    pub fn grants(&self) -> u64 {
        lock(&self.model).grants
    }

    /// Reports something that the caller saw for itself.
    pub fn accuse(&self, invariant: &'static str, what: String) {
        let at = self.sim.now();
        self.sim.note(|| format!("VIOLATION: {what}"));
        lock(&self.model).accuse(at, invariant, what);
        self.sim.halt();
    }

    /// The server ran a request.
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

    /// Looks again when the lease that was just set is over, and when its guards must know.
    fn watch(&self, owner: Owner) {
        let model = lock(&self.model);
        let Some(owned) = model.owners.get(&owner) else { return };
        let lapses = owned.lapses;
        let warned = model.holds.iter().filter(|hold| hold.grace > 0 && hold.owner == owner);
        let warned: Vec<_> = warned.map(|hold| (hold.id, hold.grace)).collect();
        let let_in_at = owned.let_in_at.filter(|at| *at == self.sim.now());
        drop(model);
        for (id, grace) in warned {
            self.warns(id, &owner, lapses, grace);
        }
        if let Some(at) = let_in_at {
            let (oracle, owner) = (self.clone(), owner.clone());
            self.sim.at(at + progress::TELLING, move || oracle.told(&owner, at));
        }
        let oracle = self.clone();
        self.sim.at(lapses, move || oracle.lapsed(&owner, lapses));
    }

    /// A guard must know so long before the end of its lease.
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

    /// A process is over, and its end ends what is bound to it.
    pub fn died(&self, process: ProcessId) {
        let at = self.sim.now();
        let mut model = lock(&self.model);
        model.settle_all(at, &self.sim);
        model.bury(at, process);
    }

    /// The server forgot everything.
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
        drop(model);
        self.will_tell();
    }

    /// The server is what it was at a moment.
    pub fn rewound(&self, to: TrueTime) {
        if self.member.is_some() {
            return;
        }
        let at = self.sim.now();
        let mut model = lock(&self.model);
        model.settle_all(at, &self.sim);
        for name in model.rewind(at, to) {
            model.doubt(&name);
            model.settle(at, &name, &self.sim);
        }
        drop(model);
        self.watch_all();
        self.will_tell();
    }

    /// The server's clock was set, ahead or back, and by that leases end at these moments.
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

    /// What hears of requests that a client answers from what it has read, and writes nothing.
    #[cfg(tenure_planted)]
    pub(super) fn unwritten(&self) -> tenure::internals::store::observe::Unwritten {
        let model = Arc::clone(&self.model);
        Box::new(move |op, answer| {
            if let (tenure::internals::protocol::Verb::Acquire { .. }, Answer::Held { .. }) =
                (&op.verb, answer)
                && let Some(owned) = lock(&model).owners.get_mut(&op.owner)
            {
                owned.grants += 1;
            }
        })
    }

    /// Leases end at these moments, because what they are bound to lives on, or its life is known
    /// better.
    pub fn extended(&self, lapses: impl Fn(&LockName, &Owner) -> Option<TrueTime>) {
        let at = self.sim.now();
        let mut model = lock(&self.model);
        model.settle_all(at, &self.sim);
        let changed = model.extend(at, lapses);
        drop(model);
        changed.into_iter().for_each(|owner| self.watch(owner));
    }

    /// Holds and places are gone from a lock without a request of their owners: by the numbers of
    /// the holds of a reentrant owner. They have lapsed, as the client says that had them, or an
    /// operator has ended the session that they were bound to.
    pub fn unbound(&self, name: &LockName, gone: &[(Owner, u64)], is_forced: bool) {
        let at = self.sim.now();
        let mut model = lock(&self.model);
        model.settle(at, name, &self.sim);
        for (owner, number) in gone {
            model.unbind(at, name, (owner, *number), is_forced, &self.sim);
        }
        drop(model);
        if is_forced && !gone.is_empty() {
            self.will_tell();
        }
    }

    /// Looks again at every lease that is set.
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

    /// When a lease at a name ends, or an earlier one ended: where schedules are steered to.
    pub fn edge(&self, name: &LockName) -> Option<TrueTime> {
        lock(&self.model).locks.get(name).map(|lock| lock.edge)
    }
}

impl Hold {
    /// Whether it may believe in what it does not have.
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
