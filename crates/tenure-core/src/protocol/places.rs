//! How long a place in a queue lasts at a store that knows which clients live: an SQL database by their sessions,
//! a directory by the flocks of their processes.
//!
//! Such a store tells a waiter of its grant and notices when its client dies, so a place lasts for [`PLACE`] and is
//! refreshed rarely. A place that was granted lasts for a short time, because its client may be stopped.

use std::collections::BTreeSet;
use std::slice;
use std::time::Duration;

use super::queue::Queue;
use super::{Answer, Data, ExpiringValue, Now, Op, Place, State, Verb, lease};
use crate::planted::{Bug, planted};

/// How long a place lasts without a refresh while its client can be told of its grant. A refresh leaves at least half.
pub const PLACE: Duration = Duration::from_secs(60);
const PLACE_MS: u64 = PLACE.as_millis() as u64;
/// The same if it cannot be told, and once the place is granted.
const WAIT_MS: u64 = lease::WAIT_MAX.as_millis() as u64;

/// A request for the queue machine, which may concern places.
#[derive(Debug)]
pub struct PlaceRequest {
    /// The request without the mark that its client listens: the machine would set other leases for it.
    pub op: Op,
    /// Whether it had that mark.
    is_told: bool,
    /// The mark of the queue before the request.
    mark: u64,
}

impl PlaceRequest {
    /// A request that is about to run on this state.
    pub fn new(state: &State, op: &Op) -> Self {
        let mut op = op.clone();
        let is_told = match &mut op.verb {
            Verb::Acquire { listens, .. } | Verb::Refresh { listens, .. } => listens.take().is_some(),
            _ => false,
        };
        Self { op, is_told, mark: state.queue().map_or(0, |queue| queue.mark) }
    }

    /// Corrects the leases of places, and the machine's answer, after the request has run.
    pub fn finish(&self, state: &mut State, now: Now, answer: Answer) -> Answer {
        self.set_leases(state, now);
        match state.queue() {
            Some(queue) if self.is_told => with_retry(queue, now, answer),
            _ => answer,
        }
    }

    fn set_leases(&self, state: &mut State, now: Now) {
        let Some(ExpiringValue { value: Data::Queue(queue), expires_ms }) = &mut state.lock else { return };
        let (askers, wait_ms, ttl_ms) = match &self.op.verb {
            Verb::Acquire { wait_ms, ttl_ms, .. } => (slice::from_ref(&self.op.owner), *wait_ms, *ttl_ms),
            Verb::Renew { ttl_ms, .. } => (slice::from_ref(&self.op.owner), None, *ttl_ms),
            Verb::Refresh { owners, wait_ms, .. } => (&owners[..], Some(*wait_ms), 0),
            Verb::Release { .. } | Verb::Resize | Verb::Inspect => (&[][..], None, 0),
        };
        let until = |lease_ms: u64| now.ms.saturating_add(lease_ms);
        let asking: BTreeSet<u64> = askers.iter().filter_map(|owner| queue.number(owner)).collect();
        self.shorten_granted(queue, now, |number| if asking.contains(&number) { ttl_ms } else { 0 });
        let Some(wait_ms) = wait_ms.filter(|wait_ms| *wait_ms > 0) else { return };
        for number in asking.range(queue.mark + 1..) {
            if self.is_told && wait_ms >= WAIT_MS {
                // With half of its time left, it needs no write.
                if queue.ticket(*number).is_some_and(|ticket| ticket.deadline_ms < until(PLACE_MS / 2)) {
                    queue.extend(*number, until(PLACE_MS));
                    *expires_ms = (*expires_ms).max(Some(until(PLACE_MS)));
                }
            } else if !planted(Bug::PlaceKeptUntold) {
                queue.shorten(*number, until(WAIT_MS));
            }
        }
    }

    /// Shortens the places that the request has granted. `ttl_ms` is the lease that the client of a ticket has
    /// asked for itself.
    fn shorten_granted(&self, queue: &mut Queue, now: Now, ttl_ms: impl Fn(u64) -> u64) {
        let is_granted = |number: &u64| *number > self.mark && !planted(Bug::PlaceGrantedForLong);
        for number in queue.holding().filter(is_granted).collect::<Vec<_>>() {
            queue.shorten(number, now.ms.saturating_add(ttl_ms(number).max(WAIT_MS)));
        }
    }
}

/// A waiter that is not the first also asks some time after the end of the next hold, because those before it
/// may be gone or stopped, and refreshes its place too rarely to notice.
fn with_retry(queue: &Queue, now: Now, mut answer: Answer) -> Answer {
    let (ticket, retry) = match &mut answer {
        Answer::Waiting { ticket, retry_in_ms } => (Some(*ticket), retry_in_ms),
        Answer::Places { places, retry_in_ms } => {
            let waiting = |place: &Place| match place {
                Place::Waiting { ticket } => Some(*ticket),
                Place::Held { .. } | Place::Gone => None,
            };
            (places.iter().find_map(waiting), retry_in_ms)
        }
        _ => return answer,
    };
    if let (Some(ticket), None) = (ticket, &retry)
        && !planted(Bug::RowsHeadAloneAsks)
    {
        let ends = queue.holding().filter_map(|number| Some(queue.ticket(number)?.deadline_ms));
        let after = WAIT_MS / 6;
        *retry = ends.min().map(|end| end.saturating_sub(now.ms) + after + ticket % after);
    }
    answer
}
