//! What must never happen, judged in true time and from outside.
//!
//! The oracle hears two things: what the server did, in the order in which it did it, and what the tasks were told. It knows true
//! time, which nobody in the schedule does. It trusts no clock, deadline or answer of the code under test.
//!
//! | file | invariant |
//! |---|---|
//! | [`exclusion`] | nobody thinks to hold what somebody else may have; no request touches another's hold |
//! | [`tokens`] | tokens grow in the order of the grants, and stay what they are |
//! | [`leftovers`] | what was given up, dropped or cancelled leaves nothing; nothing is without an end |
//! | [`progress`] | a free lock does not stay free while somebody waits |
//! | [`honesty`] | what is reported is true: lost, released, busy |

pub mod exclusion;
pub mod honesty;
pub mod leftovers;
pub mod progress;
pub mod tokens;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use tenure::internals::protocol::{Answer, Op, Verb, Whose};
use tenure::{LockName, Owner};

use super::clock::TrueTime;
use super::executor::{ProcessId, Sim, lock};
use super::regime::Plan;
use super::server::Standing;

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
    book: Arc<Mutex<Book>>,
}

/// All that the oracle knows.
#[derive(Default)]
struct Book {
    locks: BTreeMap<LockName, Lock>,
    owners: BTreeMap<Owner, Owned>,
    holds: Vec<Hold>,
    waits: Vec<Wait>,
    next_id: u64,
    strict_from: TrueTime,
    longest_ms: u64,
    /// By how much the clocks of a waiter and the server may differ at the end of a lease.
    drift: TrueTime,
    violation: Option<Violation>,
    grants: u64,
}

/// The truth about one lock.
#[derive(Default)]
struct Lock {
    holder: Option<Owner>,
    /// The first moment at which it is gone.
    lapses: TrueTime,
    /// While nobody holds: since when, which is also until when somebody did.
    free_since: TrueTime,
    last_token: u64,
    last_reported: u64,
}

/// What became of one owner's hold.
struct Owned {
    process: ProcessId,
    token: u64,
    /// When the server set its lease the first and the last time, and until when.
    granted_at: TrueTime,
    lapses: TrueTime,
    /// When the server ended it, and how.
    ended: Option<(TrueTime, End)>,
    /// When its guard went, if it ever had one.
    let_go_at: Option<TrueTime>,
    /// It was passed on without a guard.
    is_detached: bool,
    /// How long before the end of its lease its guard must know.
    grace: TrueTime,
    /// How often an acquisition of it was granted.
    grants: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Released,
    /// By somebody else, or by a server that forgets: its guard cannot know yet.
    Forced,
}

/// A guard in a task's hands.
struct Hold {
    id: u64,
    name: LockName,
    owner: Owner,
    token: u64,
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
    name: LockName,
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
    /// What stands at the key now.
    pub after: Option<Standing<'a>>,
}

impl Oracle {
    /// A judge who knows nothing yet.
    pub fn new(sim: &Sim, plan: &Plan) -> Self {
        let longest_ms = plan.ttl.as_millis() as u64;
        let (strict_from, drift) = (plan.strict_from, plan.drift());
        let book = Book { strict_from, longest_ms, drift, ..Book::default() };
        Self { sim: sim.clone(), book: Arc::new(Mutex::new(book)) }
    }

    /// What went wrong first, if anything did.
    pub fn violation(&self) -> Option<Violation> {
        lock(&self.book).violation.clone()
    }

    /// How many guards were handed out.
    pub fn grants(&self) -> u64 {
        lock(&self.book).grants
    }

    /// Reports something that the caller saw for itself.
    pub fn accuse(&self, invariant: &'static str, what: String) {
        let at = self.sim.now();
        self.sim.note(|| format!("VIOLATION: {what}"));
        lock(&self.book).accuse(at, invariant, what);
        self.sim.halt();
    }

    /// The server ran a request.
    pub fn executed(&self, executed: &Executed<'_>) {
        let at = self.sim.now();
        let mut book = lock(&self.book);
        book.settle(at, &executed.op.name);
        book.check_untouched(at, executed);
        let (name, owner) = (&executed.op.name, &executed.op.owner);
        match (&executed.op.verb, executed.answer) {
            (Verb::Acquire { .. } | Verb::Renew { .. }, Answer::Held { fence }) => {
                let Some(lapses) = book.check_end(at, executed) else { return };
                if book.locks.entry(name.clone()).or_default().holder.as_ref() == Some(owner) {
                    book.check_kept(at, name, owner, *fence);
                } else {
                    book.check_nobody_else(at, name, owner);
                    book.check_grown(at, name, *fence);
                    book.check_prompt(at, name, &self.sim);
                }
                let grace = book.note_held(at, executed, *fence, lapses);
                drop(book);
                if grace > 0 {
                    let (oracle, owner) = (self.clone(), owner.clone());
                    self.sim.at(lapses.saturating_sub(grace), move || oracle.warned(&owner, lapses, grace));
                }
                let (oracle, owner) = (self.clone(), owner.clone());
                self.sim.at(lapses, move || oracle.lapsed(&owner, lapses));
            }
            (Verb::Release { whose: Whose::Mine, .. }, Answer::Released { .. }) => {
                book.note_ended(at, name, End::Released);
            }
            (Verb::Release { whose: Whose::Anyone, .. }, Answer::Found(_)) => {
                book.note_ended(at, name, End::Forced);
            }
            _ => {}
        }
    }

    /// The server forgot everything.
    pub fn forgotten(&self) {
        let at = self.sim.now();
        let mut book = lock(&self.book);
        let names: Vec<LockName> = book.locks.keys().cloned().collect();
        for name in names {
            book.settle(at, &name);
            book.note_ended(at, &name, End::Forced);
        }
    }

    /// A lease is about to be over, unless it was set anew since: its guard was promised to know so early.
    fn warned(&self, owner: &Owner, lapses: TrueTime, grace: TrueTime) {
        let at = self.sim.now();
        let mut book = lock(&self.book);
        if book.owners.get(owner).is_some_and(|owned| owned.lapses == lapses && owned.grace == grace) {
            book.check_unheld(at, owner);
        }
    }

    /// A lease is over, unless it was set anew since.
    fn lapsed(&self, owner: &Owner, lapses: TrueTime) {
        let at = self.sim.now();
        let mut book = lock(&self.book);
        if book.owners.get(owner).is_none_or(|owned| owned.lapses != lapses) {
            return;
        }
        book.check_unheld(at, owner);
        book.check_told(at, owner, &self.sim);
        book.check_given_back(at, owner, &self.sim);
    }

    /// When the lease at a name ends, or an earlier one ended: where schedules are steered to.
    pub fn edge(&self, name: &LockName) -> Option<TrueTime> {
        lock(&self.book).locks.get(name).map(|lock| lock.lapses)
    }
}

impl Book {
    fn accuse(&mut self, at: TrueTime, invariant: &'static str, what: String) {
        self.violation.get_or_insert(Violation { at, invariant, what });
    }

    /// Brings the truth about a lock up to this moment: what has lapsed is free.
    fn settle(&mut self, at: TrueTime, name: &LockName) {
        if let Some(lock) = self.locks.get_mut(name)
            && lock.holder.is_some()
            && lock.lapses <= at
        {
            lock.holder = None;
            lock.free_since = lock.lapses;
        }
    }

    fn note_held(&mut self, at: TrueTime, executed: &Executed<'_>, token: u64, lapses: TrueTime) -> TrueTime {
        let lock = self.locks.entry(executed.op.name.clone()).or_default();
        lock.holder = Some(executed.op.owner.clone());
        lock.lapses = lapses;
        lock.last_token = lock.last_token.max(token);
        let owned = self.owners.entry(executed.op.owner.clone()).or_insert(Owned {
            process: executed.process,
            token,
            granted_at: at,
            lapses,
            ended: None,
            let_go_at: None,
            is_detached: false,
            grace: 0,
            grants: 0,
        });
        owned.grants += u32::from(matches!(executed.op.verb, Verb::Acquire { .. }));
        // A grant that lapsed before anybody was told of it may be made anew, with another token.
        (owned.process, owned.token, owned.lapses) = (executed.process, token, lapses);
        owned.ended = None;
        owned.grace
    }

    fn note_ended(&mut self, at: TrueTime, name: &LockName, end: End) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        let Some(owner) = lock.holder.take() else { return };
        lock.free_since = at;
        if let Some(owned) = self.owners.get_mut(&owner) {
            owned.ended = Some((at, end));
        }
    }

    /// Whether this owner's guard may rightly believe in a hold that the server no longer has.
    fn is_forced(&self, owner: &Owner) -> bool {
        self.owners.get(owner).is_some_and(|owned| matches!(owned.ended, Some((_, End::Forced))))
    }
}

impl Hold {
    fn is_held(&self) -> bool {
        self.claim.upgrade().is_some_and(|claim| claim.is_held())
    }
}

impl fmt::Debug for Oracle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let book = lock(&self.book);
        f.debug_struct("Oracle").field("violation", &book.violation).finish_non_exhaustive()
    }
}
