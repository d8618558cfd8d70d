//! Runs the state machine for one request, reading further into the line as it grants tickets.

use std::sync::Arc;

use super::bindings::Bindings;
use super::directory::Inside;
use super::holders::HolderFiles;
use super::lock::Lock;
use super::look::front;
use super::names::RecordId;
use super::seen::sees_all;
use tenure_core::owner::Owner;
use tenure_core::protocol::queue::{BOUND, Queue};
use tenure_core::protocol::{self, Answer, Data, ExpiringValue, Notification, Now, Op, State, Verb};
use tenure_core::store::Failure;

/// Maximum dead waiters removed per request. If there may be more, the answer says so and the request is
/// repeated.
pub(super) const DEAD: usize = 500;

/// One request in progress.
pub(super) struct RequestRun<'a, 'b> {
    pub(super) inside: &'a Inside<'b>,
    pub(super) holders: &'a HolderFiles,
    pub(super) id: RecordId,
    pub(super) now: Now,
    pub(super) state: &'a mut State,
    pub(super) bindings: &'a mut Bindings,
    pub(super) counter: &'a mut u64,
}

/// Its result.
pub(super) struct Ran {
    pub(super) answer: Answer,
    pub(super) wake: Option<Notification>,
    pub(super) is_bounded: bool,
}

impl RequestRun<'_, '_> {
    /// Runs the machine. `line` is the source of further waiters.
    pub(super) fn all(
        &mut self,
        op: &Op,
        asked: &[Owner],
        line: Option<&mut Lock>,
        budget: &mut usize,
    ) -> Result<Ran, Failure> {
        let Some(line) = line.filter(|line| !line.is_whole()) else {
            let (answer, wake) = self.alive(op);
            return Ok(Ran { answer, wake, is_bounded: false });
        };
        let (verb, name) =
            (Verb::Refresh { owners: Arc::new([]), wait_ms: 0, listens: None }, op.name.clone());
        let settles = Op { name, spec: op.spec, owner: op.owner.clone(), request: op.request, verb };
        let (mut let_in, mut is_bounded) = (Vec::new(), false);
        let is_new = matches!(op.verb, Verb::Acquire { .. });
        if is_new {
            *self.counter = (*self.counter).max(line.last_number().unwrap_or(0));
        }
        // Waiters whose turn it is go before the requester.
        self.settle(&settles, is_new, line, budget, &mut let_in, &mut is_bounded)?;
        let (answer, wake) = self.alive(op);
        if let Some(Notification::Granted { tickets }) = wake {
            let_in.extend(tickets);
        }
        if self.is_short(line) {
            self.settle(&settles, false, line, budget, &mut let_in, &mut is_bounded)?;
        }
        let mine = |queue: &Queue| asked.iter().filter_map(|owner| queue.number(owner)).collect::<Vec<_>>();
        let mine = self.queue().map(mine).unwrap_or_default();
        let_in.retain(|number| !mine.contains(number));
        let wake = (!let_in.is_empty()).then_some(Notification::Granted { tickets: let_in });
        Ok(Ran { answer, wake, is_bounded })
    }

    /// Grants tickets whose turn it is, and reads further while more may follow. With `all`, without a bound,
    /// because a newcomer must not pass them.
    fn settle(
        &mut self,
        op: &Op,
        all: bool,
        line: &mut Lock,
        budget: &mut usize,
        let_in: &mut Vec<u64>,
        is_bounded: &mut bool,
    ) -> Result<(), Failure> {
        loop {
            let (answer, wake) = self.alive(op);
            if let Some(Notification::Granted { tickets }) = wake {
                let_in.extend(tickets);
            }
            let is_more = matches!(answer, Answer::More(_));
            match self.is_short(line) {
                true if all || self.queue().is_none() || (let_in.len() < BOUND && *budget > 0) => {
                    let read = self.read_on(line)?;
                    *budget = budget.saturating_sub(read);
                }
                false if is_more && all => {}
                is_short => {
                    *is_bounded |= is_more || is_short;
                    return Ok(());
                }
            }
        }
    }

    fn queue(&self) -> Option<&Queue> {
        match &self.state.lock {
            Some(ExpiringValue { value: Data::Queue(queue), .. }) => Some(queue),
            _ => None,
        }
    }

    /// Whether fewer than two waiters are known although the line has more.
    fn is_short(&self, line: &Lock) -> bool {
        !line.is_whole() && self.queue().is_none_or(|queue| queue.waiting().nth(1).is_none())
    }

    /// Adds the next waiters from the line and returns how many.
    fn read_on(&mut self, line: &mut Lock) -> Result<usize, Failure> {
        let waiting = |line: &Lock| line.queue().map_or(0, |queue| queue.waiting().count());
        let known = waiting(line);
        let last = line.queue().and_then(|queue| queue.tickets().next_back()).map_or(0, |(last, _)| last);
        line.fill(self.inside, self.id, known + 1, |_| false)?;
        let Some(read) = line.queue() else { return Ok(0) };
        // Everything known of the lock may be gone by now.
        let Some(lock) = self.state.lock.take().or_else(|| line.shell()) else { return Ok(0) };
        let (lock, bindings) = (self.state.lock.insert(lock), &line.record.bindings);
        let Data::Queue(queue) = &mut lock.value else { return Ok(0) };
        for (number, ticket) in read.waiting().filter(|(number, _)| *number > last) {
            queue.insert(number, ticket.clone());
            self.bindings.bind(number, bindings.holder_of(number));
        }
        Ok(waiting(line) - known)
    }

    /// Runs the machine for one request; see [`run`].
    fn alive(&mut self, op: &Op) -> (Answer, Option<Notification>) {
        let Self { inside, holders, now, state, bindings, counter, .. } = self;
        let is_dead =
            |number| bindings.holder_of(number).is_some_and(|holder| holders.is_dead(inside, holder));
        run(state, counter, *now, op, is_dead)
    }
}

/// Runs the machine. Dead processes lose tickets that were just granted, and tickets at the front of the
/// queue, where they would block the ones behind them; then the next tickets are granted.
fn run(
    state: &mut State,
    counter: &mut u64,
    now: Now,
    op: &Op,
    is_dead: impl Fn(u64) -> bool,
) -> (Answer, Option<Notification>) {
    let first = |state: &State| state.lock.as_ref().and_then(|lock| front(&lock.value)[0]);
    let mut alive = first(state);
    let (mut answer, mut wake) = protocol::apply(state, counter, now, op);
    let mut granted = Vec::new();
    for _ in 0..DEAD {
        let mut dead = Vec::new();
        if let Some(Notification::Granted { tickets }) = &wake {
            for number in tickets {
                if is_dead(*number) { &mut dead } else { &mut granted }.push(*number);
            }
        }
        match first(state) {
            Some(number) if Some(number) != alive && !sees_all(&op.verb) => match is_dead(number) {
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
