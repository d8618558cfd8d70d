//! The history of a schedule as callers see it, judged like those of workers on real servers.
//!
//! This judge knows less than the rest of the oracle, nothing of the server, and makes no excuses. It
//! therefore stops when the server first breaks a promise: where exclusion is not guaranteed, callers see
//! that.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Weak;

use tenure::{LockName, Owner};
use tenure_history::judge::Judge;
use tenure_history::line::{self, End, Line, What};
use tenure_history::merge::Event;

use super::{Claim, Hold};
use crate::sim::clock::{SECOND, TrueTime};
use crate::sim::executor::ProcessId;
use crate::sim::regime::{LockKind, Plan};

pub(super) struct History {
    judge: Judge,
    locks: BTreeMap<LockName, line::Lock>,
    /// By task number: here every wait and every hold counts as a task of its own.
    turns: BTreeMap<u32, Turn>,
    tasks: u32,
    is_over: bool,
}

/// A hold as callers see it; re-entering or resuming it extends it.
struct Turn {
    process: ProcessId,
    lock: line::Lock,
    owner: Owner,
    token: u64,
    weight: u32,
    /// The guards of the hold.
    claims: Vec<(u64, Weak<dyn Claim>)>,
    /// The first moment at which none of them was known to report that it holds.
    until: TrueTime,
}

impl History {
    pub(super) fn new(plan: &Plan) -> Self {
        // After healing, as long as it takes until a detached hold and an abandoned place have lapsed. Not
        // limited for multi-locks, which are acquired one after the other, because the first one alone is not
        // reported.
        let stall = if plan.both > 0 { u64::MAX } else { plan.strict_from + 4 * plan.lease() + 5 * SECOND };
        Self {
            judge: Judge::new(0, stall),
            locks: BTreeMap::new(),
            turns: BTreeMap::new(),
            tasks: 0,
            is_over: false,
        }
    }

    pub(super) fn open(&mut self, name: &LockName, sort: LockKind) {
        let number = self.locks.len() as u32;
        let capacity = sort.capacity();
        let sort = match sort {
            LockKind::Mutex => line::Sort::Mutex,
            LockKind::Fair => line::Sort::Fair,
            LockKind::RwLock => line::Sort::Rwlock,
            LockKind::Semaphore(_) => line::Sort::Semaphore,
            LockKind::Reentrant => line::Sort::Reentrant,
        };
        self.locks.insert(name.clone(), line::Lock { sort, number, capacity });
    }

    /// The server breaks its promises from here on.
    pub(super) fn ends_here(&mut self, at: TrueTime) {
        self.finish(at);
        self.is_over = true;
    }

    fn tell(&mut self, time: TrueTime, process: ProcessId, task: u32, what: What) {
        if !self.is_over {
            self.judge.hear(time, process as u32, Event::Said(Line { time, task, what }));
        }
    }

    fn number(&mut self) -> u32 {
        self.tasks += 1;
        self.tasks
    }

    /// A task starts to wait. Returns its number for `leaves`.
    pub(super) fn asks(&mut self, at: TrueTime, process: ProcessId, name: &LockName) -> Option<u32> {
        let lock = *self.locks.get(name)?;
        let task = self.number();
        self.tell(at, process, task, What::Asks(lock));
        Some(task)
    }

    /// The task stops waiting.
    pub(super) fn leaves(&mut self, at: TrueTime, process: ProcessId, task: u32) {
        self.tell(at, process, task, What::Leaves);
    }

    /// A task got a guard.
    pub(super) fn granted(&mut self, at: TrueTime, hold: &Hold, is_resumed: bool) {
        let Some(lock) = self.locks.get(&hold.name).copied() else { return };
        // Determine until when others hold.
        self.look(at, |turn| turn.lock == lock);
        let claim = (hold.id, Weak::clone(&hold.claim));
        let is_same = |turn: &&mut Turn| turn.owner == hold.owner && turn.token == hold.token;
        match self.turns.values_mut().find(is_same) {
            Some(turn) if turn.weight == hold.weight => turn.claims.push(claim),
            // A downgraded writer. The judge does not know downgrades and would see an unprotected reader.
            Some(_) => self.ends_here(at),
            // It may have been an upgradeable reader, whose token is older than those of readers that have left.
            None if is_resumed && lock.sort == line::Sort::Rwlock && hold.weight == lock.capacity => {
                self.ends_here(at);
            }
            None => {
                let Hold { process, token, weight, .. } = *hold;
                let (task, until) = (self.number(), at + 1);
                self.tell(at, process, task, What::Asks(lock));
                self.tell(at, process, task, What::Holds { token, weight, deadline: until });
                let (owner, claims) = (hold.owner.clone(), vec![claim]);
                self.turns.insert(task, Turn { process, lock, owner, token, weight, claims, until });
            }
        }
    }

    /// A guard is queried.
    pub(super) fn looks(&mut self, at: TrueTime, id: u64) {
        self.look(at, |turn| turn.has(id));
    }

    /// A guard leaves its task's hands, or is downgraded.
    pub(super) fn lets_go(&mut self, at: TrueTime, id: u64) {
        self.look(at, |turn| turn.has(id));
        self.turns.values_mut().for_each(|turn| turn.claims.retain(|(known, _)| *known != id));
    }

    fn look(&mut self, at: TrueTime, which: impl Fn(&Turn) -> bool) {
        let mut kept = Vec::new();
        for (task, turn) in &mut self.turns {
            if which(turn) && turn.until <= at && turn.is_held() {
                turn.until = at + 1;
                kept.push((*task, turn.process));
            }
        }
        for (task, process) in kept {
            self.tell(at, process, task, What::Keeps { deadline: at + 1 });
        }
    }

    /// All turns are over: complete the verdict.
    pub(super) fn finish(&mut self, at: TrueTime) {
        self.look(at, |_| true);
        for (task, turn) in mem::take(&mut self.turns) {
            self.tell(at, turn.process, task, What::Ends { until: turn.until, how: End::Released });
        }
        if !self.is_over {
            self.judge.finish();
        }
    }

    pub(super) fn evidence(&self) -> Option<&str> {
        self.judge.evidence.first().map(String::as_str)
    }
}

impl Turn {
    fn has(&self, id: u64) -> bool {
        self.claims.iter().any(|(known, _)| *known == id)
    }

    fn is_held(&self) -> bool {
        self.claims.iter().any(|(_, claim)| claim.upgrade().is_some_and(|claim| claim.is_held()))
    }
}
