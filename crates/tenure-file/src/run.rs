//! Runs the state machine for one request, without the holds and tickets of crashed processes.

use super::bindings::Bindings;
use super::directory::Inside;
use super::holders::HolderFiles;
use super::look::front;
use super::record::FileRecord;
use tenure_core::protocol::places::PlaceRequest;
use tenure_core::protocol::queue::Queue;
use tenure_core::protocol::{self, Answer, Data, LockSpec, Notification, Now, Op, ReleaseScope, State, Verb};
use tenure_core::store::Failure;

/// Up to this many holders of a queue are tested on every request; more only when the first waiter sends it.
const FEW: usize = 8;

/// A lock while a request runs on it.
#[derive(Default)]
pub(super) struct RunningLock {
    pub(super) state: State,
    pub(super) bindings: Bindings,
}

impl RunningLock {
    /// The lock without the holds of crashed processes. Of a queue, tests the holders if they are few or the
    /// first waiter sent the request. Otherwise the total work would be quadratic in the number of waiters.
    pub(super) fn of(
        record: FileRecord,
        inside: &Inside<'_>,
        holders: &HolderFiles,
        op: &Op,
    ) -> Result<Self, Failure> {
        if !holders.is_of_this_boot(inside, &record)? {
            return Ok(Self::default());
        }
        let is_dead = |holder| holders.is_dead(inside, holder);
        let dead: Vec<u64> = match &record.lock.value {
            Data::Queue(queue) if !tests_all(&op.verb) => {
                let holding: Vec<u64> = queue.holding().collect();
                if holding.len() <= FEW || asks_first(queue, op) {
                    let is_dead = |number: &u64| record.bindings.holder_of(*number).is_some_and(is_dead);
                    holding.into_iter().filter(is_dead).collect()
                } else {
                    Vec::new()
                }
            }
            _ => record.bound_to(is_dead),
        };
        let Some(FileRecord { lock, bindings, .. }) = record.without_numbers(&dead) else {
            return Ok(Self::default());
        };
        Ok(Self { state: State { lock: Some(lock), ballot: None }, bindings })
    }

    /// Runs the machine. The places of a queue get the leases of a store that knows which clients live.
    pub(super) fn run(
        &mut self,
        inside: &Inside<'_>,
        holders: &HolderFiles,
        counter: &mut u64,
        now: Now,
        op: &Op,
    ) -> (Answer, Option<Notification>) {
        let Self { state, bindings } = self;
        let is_dead =
            |number| bindings.holder_of(number).is_some_and(|holder| holders.is_dead(inside, holder));
        let LockSpec::Queue(_) = op.spec else { return pass_dead(state, counter, now, op, is_dead) };
        let place = PlaceRequest::new(state, op);
        let (answer, wake) = pass_dead(state, counter, now, &place.op, is_dead);
        (place.finish(state, now, answer), wake)
    }
}

/// Runs the machine. Dead processes lose tickets that were just granted, and tickets at the front of the
/// queue, where they would block the ones behind them; then the next tickets are granted.
fn pass_dead(
    state: &mut State,
    counter: &mut u64,
    now: Now,
    op: &Op,
    is_dead: impl Fn(u64) -> bool,
) -> (Answer, Option<Notification>) {
    let first = |state: &State| state.lock.as_ref().and_then(|lock| front(&lock.value)[0]);
    let mut alive = None;
    let (mut answer, mut wake) = protocol::apply(state, counter, now, op);
    let mut granted = Vec::new();
    loop {
        let mut dead = Vec::new();
        if let Some(Notification::Granted { tickets }) = &wake {
            for number in tickets {
                if is_dead(*number) { &mut dead } else { &mut granted }.push(*number);
            }
        }
        match first(state) {
            Some(number) if Some(number) != alive && !tests_all(&op.verb) => match is_dead(number) {
                true => dead.push(number),
                false => alive = Some(number),
            },
            _ => {}
        }
        if dead.is_empty() {
            break;
        }
        dead.iter().for_each(|number| protocol::end(state, *number));
        // Repeating the request has no further effect than granting tickets.
        let (again, next) = protocol::apply(state, counter, now, op);
        if !matches!(op.verb, Verb::Release { .. }) {
            answer = again;
        }
        wake = next;
    }
    match wake {
        Some(Notification::Granted { .. }) | None => {
            (answer, (!granted.is_empty()).then_some(Notification::Granted { tickets: granted }))
        }
        wake => (answer, wake),
    }
}

/// Whether a request tests every process in the lock.
fn tests_all(verb: &Verb) -> bool {
    matches!(verb, Verb::Inspect | Verb::Release { whose: ReleaseScope::Any, .. })
}

/// Whether no waiter is ahead of the requester.
fn asks_first(queue: &Queue, op: &Op) -> bool {
    let Some((_, first)) = queue.waiting().next() else { return true };
    match &op.verb {
        Verb::Refresh { owners, .. } => owners.contains(&first.owner),
        _ => first.owner == op.owner,
    }
}
