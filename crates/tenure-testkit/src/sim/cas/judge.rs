//! Reports to the oracle. On such a server a hold lasts until its client removes it or its session ends, so
//! the oracle takes the end of the session as that of the lease.

use std::collections::BTreeMap;

use tenure::internals::Moment;
use tenure::internals::protocol::{Answer, Data, ExpiringValue, Liveness, LockSpec, ReleaseScope, Verb};
use tenure::internals::store::cas::{BoundEntry, Session, whole_lock};
use tenure::internals::store::observe::Told;
use tenure::{LockName, Owner};

use super::state::State;
use crate::sim::clock::{MS, TrueTime};
use crate::sim::executor::ProcessId;
use crate::sim::host::Judge;
use crate::sim::oracle::Executed;
use crate::sim::request::Shown;
use crate::sim::server::LockView;

/// How long a client relies on its last check of another client's session.
const LOOKS: TrueTime = 500 * MS;

/// A lock on the server.
#[derive(Default)]
pub(super) struct Look {
    bound: Vec<BoundEntry>,
    lock: Option<ExpiringValue<Data>>,
}

impl Look {
    /// The token of a reentrant owner, whose holds keep their numbers at a re-entry.
    fn fence(&self) -> Option<&str> {
        match &self.lock.as_ref()?.value {
            Data::Hash(hash) => hash.get("#fence").map(String::as_str),
            _ => None,
        }
    }

    /// Number of detached holds of a reentrant owner.
    fn detached(&self) -> u32 {
        match self.lock.as_ref().map(|lock| &lock.value) {
            Some(Data::Hash(hash)) => hash.get("#0").and_then(|count| count.parse().ok()).unwrap_or(0),
            _ => 0,
        }
    }

    /// The new binding of a reentrant owner's hold, if a request changed it.
    fn moves(&self, Told { op, answer, .. }: &Told) -> Option<Liveness> {
        let Verb::Renew { hold, bind: Some(bind), .. } = op.verb else { return None };
        let is_bound = self.bound.iter().any(|bound| bound.number == hold);
        let is_moved = op.spec == LockSpec::Reentrant && is_bound == (bind == Liveness::Lease);
        (is_moved && matches!(answer, Answer::Held { .. })).then_some(bind)
    }

    /// Whether a request has released or rebound this hold or place.
    fn releases(&self, told: &Told, bound: &BoundEntry) -> bool {
        let Told { op, answer, .. } = told;
        match op.verb {
            _ if op.owner != bound.owner => false,
            Verb::Release { hold, whose: ReleaseScope::Own, .. } => {
                let is_it = op.spec != LockSpec::Reentrant || hold == bound.number;
                matches!(answer, Answer::Released { .. }) && is_it
            }
            // Detached holds have the number 0.
            Verb::Renew { hold, .. } => match self.moves(told) {
                Some(Liveness::Lease) => bound.number == hold,
                Some(Liveness::Process | Liveness::Work) => bound.number == 0,
                None => false,
            },
            _ => false,
        }
    }

    /// Whether this is the number of a waiting place.
    fn waits(&self, number: u64) -> bool {
        matches!(self.lock.as_ref().map(|lock| &lock.value), Some(Data::Queue(queue)) if number > queue.mark)
    }
}

impl Judge {
    /// The current state of a lock.
    pub(super) fn look(&self, state: &State, name: &LockName) -> Look {
        let Some(stored) = state.locks.get(name) else { return Look::default() };
        let part = |id| state.parts.get(&(name.clone(), id)).map(String::as_str);
        let end = |session| state.sessions.get(&session).map(|life| life.end.0 / MS - 1);
        whole_lock(stored, part, end).map_or_else(Look::default, |(bound, lock)| Look { bound, lock })
    }

    /// A write was executed. `added` is the offset of the numbers in its requests.
    pub(super) fn committed(
        &self,
        state: &State,
        process: ProcessId,
        name: &LockName,
        before: Look,
        told: &[Told],
        added: u64,
    ) {
        let (at, after) = (self.sim.now(), self.look(state, name));
        let is_forced = told
            .iter()
            .any(|told| matches!(told.op.verb, Verb::Release { whose, .. } if whose != ReleaseScope::Own));
        let is_again = before.fence() != after.fence();
        // Detached holds share the number 0, and end together.
        let moves = told.iter().filter_map(|told| before.moves(told));
        let detached = moves.fold(before.detached(), |detached, to| match to {
            Liveness::Lease => detached + 1,
            Liveness::Process | Liveness::Work => detached.saturating_sub(1),
        });
        let are_detached_left = after.detached() >= detached;
        let gone = before.bound.iter().filter(|bound| {
            let left = |left: &&BoundEntry| (left.number, &left.owner) == (bound.number, &bound.owner);
            let is_detached = bound.number == 0 && before.detached() > 0;
            let is_left = !is_again
                && after.bound.iter().any(|other| left(&other))
                && (!is_detached || are_detached_left);
            // Not those of another living client.
            let is_own = state.sessions.get(&bound.session).is_none_or(|life| life.process == process);
            let is_ended_by_force = is_forced && !before.waits(bound.number);
            !is_left && is_own && !is_ended_by_force && !told.iter().any(|told| before.releases(told, bound))
        });
        let gone: Vec<(Owner, u64)> = gone.map(|bound| (bound.owner.clone(), bound.number)).collect();
        if !gone.is_empty() {
            self.sim.note(|| format!("p{process}: takes out {gone:?}"));
            self.oracle.unbound(name, &gone);
            // The rest of a reentrant owner's state ends with the last of its other holds.
            let asks = |owner: &Owner| told.iter().any(|told| told.op.owner == *owner);
            let lapses =
                |owner: &Owner| LockView::at(at, after.lock.as_ref()?, self.clock)?.share(owner)?.lapses;
            self.oracle.extended(|of, owner| {
                let is_left = of == name && !asks(owner) && gone.iter().any(|(gone, _)| gone == owner);
                is_left.then(|| lapses(owner)).flatten()
            });
        }
        let owners: Vec<&Owner> = told.iter().map(|told| &told.op.owner).collect();
        for Told { op, answer, wake, after: left, .. } in told {
            let answer = counted(answer, added);
            self.sim.mark(at ^ process as u64);
            self.sim.note(|| format!("server: p{process}: {}: {answer:?}", Shown(op)));
            // A batch may count several holds of one owner.
            let counts = left.lock.as_ref().map(|lock| &lock.value);
            let between = match (counts, &after.lock) {
                (Some(Data::Hash(_)), Some(lock)) if told.len() > 1 => {
                    let ends = before.lock.as_ref().map_or(lock.expires_ms, |before| before.expires_ms);
                    counts.map(|value| ExpiringValue { value: value.clone(), expires_ms: ends })
                }
                _ => None,
            };
            let lock = between.as_ref().or(after.lock.as_ref());
            let view = lock.and_then(|lock| LockView::at(at, lock, self.clock));
            let (answer, wake, together) = (&answer, wake.as_ref(), &owners[..]);
            let passed = &[];
            self.oracle.executed(&Executed { process, op, answer, wake, passed, together, after: view });
        }
        // Each hold of a reentrant owner has its own session.
        if matches!(after.lock.as_ref().map(|lock| &lock.value), Some(Data::Hash(_))) {
            self.extended(state);
        }
    }

    /// A session ends.
    pub(super) fn ended(&self, state: &State, session: Session) {
        self.sim.note(|| format!("server: session {session} ends"));
        for name in state.locks.keys() {
            let bound = self.look(state, name).bound.into_iter().filter(|bound| bound.session == session);
            let gone: Vec<(Owner, u64)> = bound.map(|bound| (bound.owner, bound.number)).collect();
            if !gone.is_empty() {
                self.oracle.unbound(name, &gone);
                self.oracle.unseen(name, LOOKS);
            }
        }
    }

    /// The ends of sessions have changed.
    pub(super) fn extended(&self, state: &State) {
        let at = self.sim.now();
        let looks: BTreeMap<&LockName, Look> =
            state.locks.keys().map(|name| (name, self.look(state, name))).collect();
        self.oracle.extended(|name, owner| {
            let lock = looks.get(name)?.lock.as_ref()?;
            LockView::at(at, lock, self.clock)?.share(owner)?.lapses
        });
    }

    /// Entries bound to sessions that were kept alive.
    pub(super) fn left(&self, state: &State, now: Moment) -> Vec<String> {
        let all = state.locks.keys().flat_map(|name| self.look(state, name).bound);
        let lives = |session: &Session| state.sessions.get(session).is_some_and(|life| life.kept_until > now);
        let alive = all.filter(|bound| lives(&bound.session));
        alive.map(|bound| format!("{bound:?}")).collect()
    }
}

/// An answer with its numbers relative to the creation of the lock.
fn counted(answer: &Answer, added: u64) -> Answer {
    match answer {
        Answer::Held { fence } => Answer::Held { fence: fence + added },
        Answer::Waiting { ticket, retry_in_ms } => {
            Answer::Waiting { ticket: ticket + added, retry_in_ms: *retry_in_ms }
        }
        answer => answer.clone(),
    }
}
