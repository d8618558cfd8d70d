//! Which part of a lock a request reads, and how it handles tickets further back in the line.

use super::bindings::Bindings;
use super::directory::{Directory, Inside};
use super::holders::HolderFiles;
use super::line::{Span, Standing};
use super::lock::Lock;
use super::names::RecordId;
use tenure_core::owner::Owner;
use tenure_core::protocol::queue::Queue;
use tenure_core::protocol::{Answer, Data, ExpiringValue, Now, Op, Place, ReleaseScope, State, Verb};
use tenure_core::store::Failure;

/// Up to this many holders of a queue are tested on every request; more only when the first waiter sends it.
const FEW: usize = 8;

/// The valid part of a lock, for one request.
#[derive(Default)]
pub(super) struct Living {
    pub(super) lock: Option<ExpiringValue<Data>>,
    pub(super) bindings: Bindings,
    pub(super) span: Span,
    /// Tickets of the requesting owners that lie behind the part that was read.
    pub(super) later: Vec<Standing>,
}

/// The owners whose tickets a request concerns.
pub(super) fn asked(op: &Op) -> &[Owner] {
    match &op.verb {
        Verb::Refresh { owners, .. } => owners,
        _ => std::slice::from_ref(&op.owner),
    }
}

/// The valid part of a lock, for one request. Reads and tests only what the request's decision depends on.
/// For a queue that is the first waiters up to a live one, and the holders if they are few or the first
/// waiter sent the request. Otherwise the total work would be quadratic in the number of waiters.
pub(super) fn seen(
    inside: &Inside<'_>,
    holders: &HolderFiles,
    lock: &mut Lock,
    id: RecordId,
    now: Now,
    op: &Op,
    budget: &mut usize,
) -> Result<Living, Failure> {
    let has_file = lock.record.span;
    if lock.record.boot != inside.boot() {
        lock.read_all(inside, id)?;
    }
    if !holders.is_of_this_boot(inside, &lock.record)? {
        return Ok(Living { span: Span { from: has_file.to, count: 0, ..has_file }, ..Living::default() });
    }
    let mut later = Vec::new();
    if sees_all(&op.verb) || matches!(op.verb, Verb::Resize) {
        lock.read_all(inside, id)?;
    } else if !lock.is_whole() {
        let is_far = matches!(op.verb, Verb::Refresh { .. }) && is_far(inside, lock, id, now, op)?;
        if !is_far {
            fill(inside, holders, lock, id, now, budget)?;
        }
        later = match further(lock, holders, id, op) {
            Some(later)
                if later.is_empty() || matches!(op.verb, Verb::Refresh { .. } | Verb::Release { .. }) =>
            {
                later
            }
            _ => {
                lock.read_all(inside, id)?;
                Vec::new()
            }
        };
    }
    let dead: Vec<u64> = match &lock.record.lock.value {
        Data::Queue(queue) if !sees_all(&op.verb) => {
            let holding: Vec<u64> = queue.holding().collect();
            let looks = holding.len() <= FEW || asks_first(queue, op);
            let bindings = &lock.record.bindings;
            let is_dead = |number: &u64| {
                bindings.holder_of(*number).is_some_and(|holder| holders.is_dead(inside, holder))
            };
            holding.into_iter().filter(|number| looks && is_dead(number)).collect()
        }
        _ => lock.record.bound_to(|holder| holders.is_dead(inside, holder)),
    };
    let record = lock.take_or_clone().without_numbers(&dead);
    let (lock, bindings) =
        record.map_or((None, Bindings::default()), |record| (Some(record.lock), record.bindings));
    Ok(Living { lock, bindings, span: has_file, later })
}

/// Reads on until two waiters are known, for a refresh. If one of them is the requester, restores the lock as
/// it was before and returns false.
fn is_far(inside: &Inside<'_>, lock: &mut Lock, id: RecordId, now: Now, op: &Op) -> Result<bool, Failure> {
    lock.fill(inside, id, 2, |standing| now.ms > standing.ticket.deadline_ms)?;
    let is_near = lock
        .queue()
        .is_some_and(|queue| queue.waiting().take(2).any(|(_, ticket)| asked(op).contains(&ticket.owner)));
    if is_near && let Some(anew) = Lock::load(inside, id)? {
        *lock = anew;
    }
    Ok(!is_near)
}

/// Reads on until two waiters are known, skipping expired and crashed ones at the front.
fn fill(
    directory: &Directory,
    holders: &HolderFiles,
    lock: &mut Lock,
    id: RecordId,
    now: Now,
    budget: &mut usize,
) -> Result<(), Failure> {
    lock.fill(directory, id, 2, |standing| {
        if now.ms > standing.ticket.deadline_ms {
            return true;
        }
        let looks = *budget > 0;
        *budget = budget.saturating_sub(1);
        let is_over = looks && standing.holder.is_some_and(|holder| holders.is_dead(directory, holder));
        if !is_over && looks {
            *budget += 1;
        }
        is_over
    })
}

/// The requesting owners' tickets behind the part that was read. `None` if one exists but not where this
/// store wrote it.
fn further(lock: &Lock, holders: &HolderFiles, id: RecordId, op: &Op) -> Option<Vec<Standing>> {
    let queue = lock.queue()?;
    let mut later = Vec::new();
    for owner in asked(op).iter().filter(|owner| queue.number(owner).is_none()) {
        match holders.place_of(id, owner).and_then(|at| lock.standing_at(at, owner)) {
            Some(standing) => later.push(standing),
            None if lock.names_further_back(owner) => return None,
            None => {}
        }
    }
    Some(later)
}

/// Refreshes tickets further back, or abandons one. Returns those that still existed.
pub(super) fn keep(
    inside: &Inside<'_>,
    id: RecordId,
    lock: &Lock,
    now: Now,
    op: &Op,
    later: Vec<Standing>,
    span: &mut Span,
) -> Result<Vec<Standing>, Failure> {
    let mut kept = Vec::new();
    for mut standing in later {
        match op.verb {
            Verb::Refresh { wait_ms, .. } if now.ms <= standing.ticket.deadline_ms => {
                let deadline_ms = now.ms.saturating_add(wait_ms);
                if deadline_ms > standing.ticket.deadline_ms {
                    standing.ticket.deadline_ms = deadline_ms;
                    lock.refresh(inside, id, &standing)?;
                }
                kept.push(standing);
            }
            _ => {
                lock.leave(inside, id, &standing)?;
                span.count = span.count.saturating_sub(1);
                if now.ms <= standing.ticket.deadline_ms {
                    kept.push(standing);
                }
            }
        }
    }
    Ok(kept)
}

/// Completes the machine's answer with the tickets it did not see.
pub(super) fn further_back(op: &Op, answer: Answer, later: &[Standing], state: &State) -> Answer {
    if later.is_empty() {
        return answer;
    }
    match (answer, &op.verb) {
        (Answer::More(answer), _) => further_back(op, *answer, later, state).and_more(),
        (Answer::Free, Verb::Release { .. }) => Answer::Released { left: 0 },
        (Answer::Places { mut places, retry_in_ms }, Verb::Refresh { owners, .. }) => {
            for (place, owner) in places.iter_mut().zip(owners.iter()) {
                let Some(standing) = later.iter().find(|standing| standing.ticket.owner == *owner) else {
                    continue;
                };
                let number = standing.number;
                // The ticket may have been read and granted while the machine ran.
                let holds = matches!(&state.lock, Some(ExpiringValue { value: Data::Queue(queue), .. })
                    if queue.ticket(number).is_some() && number <= queue.mark);
                *place =
                    if holds { Place::Held { fence: number } } else { Place::Waiting { ticket: number } };
            }
            Answer::Places { places, retry_in_ms }
        }
        (answer, _) => answer,
    }
}

/// Whether a request needs everything in the lock.
pub(super) fn sees_all(verb: &Verb) -> bool {
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
