//! The queue machine: tickets in the order in which the store first saw them. Fair mutex, read-write lock and
//! semaphore share one algorithm, based on *capacity and weight*.
//!
//! ```text
//! fair mutex      capacity 1       weight 1
//! read-write      capacity 2^20    a reader weighs 1, a writer all of it, a reader that may become
//!                                  a writer more than half
//! semaphore(n)    capacity n       k permits weigh k
//! ```
//!
//! A ticket's number is its fencing token, and **a ticket holds when its number is at or below the mark**.
//! The mark moves over the next ticket whenever its weight fits. Nothing is ever inserted ahead, which gives
//! FIFO order and freedom from starvation. A ticket that weighs more than the whole capacity, because the
//! capacity was reduced, is admitted alone.
//!
//! A holder of a read-write lock with more than half of the capacity may grow. There is at most one such
//! holder, so two can never wait for each other. The new weight counts at once and keeps newcomers out. When
//! the other holders have left and everything fits, the holder is notified by its number.
//!
//! Each ticket has its own lease: a short one while it waits, refreshed by the waiting client, and the full
//! one once it holds. Every verb *sweeps* expired tickets, *acts*, *promotes* from the head, and names the
//! tickets that now hold, even if a waiter left or expired. The clients of promoted tickets renew them, so a dead
//! client is skipped within its short lease. If the client of a waiter said that it *listens*, and the wake-up
//! reaches no subscriber, the ticket is removed at once and the next one is woken. Such a waiter is therefore
//! kept for longer without a refresh, until it is promoted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::mutex::assign_above;
use super::{
    Answer, Data, ExpiringValue, Found, Hears, Holding, Kind, Listening, Liveness, Notification, Now, Op,
    Place, QueueSpec, ReleaseScope, State, Verb, inspect, lease, other_kind,
};
use crate::owner::Owner;
use crate::planted::{Bug, planted};

/// Maximum tickets swept, and maximum tickets promoted, by one request. The answer says so if the limit was
/// reached, and the next request continues.
pub const BOUND: usize = 64;
/// How long a place lasts without a refresh if its client listens.
const KEPT_MS: u64 = lease::PLACE_KEPT.as_millis() as u64;
/// The same if it does not, and once it is granted.
const WAIT_MS: u64 = lease::WAIT_MAX.as_millis() as u64;
/// The number of a hold that was acquired by plain commands: its client alone knows the token.
const BARE: u64 = 0;
/// Maximum holders ended by one forced release.
pub const FORCED: usize = 250;
/// Maximum places listed by one request.
const LISTED: usize = 1_000;
/// Maximum tickets examined for a listing.
const LOOKED_AT: usize = 8 * LISTED;

/// The queue of one lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Queue {
    /// The kind: fair mutex, read-write lock or semaphore.
    pub kind: Kind,
    /// Maximum total weight of the holders.
    pub capacity: u32,
    /// The capacity was set explicitly: it overrides that of the clients, and the queue is kept without
    /// tickets until its key expires.
    pub is_set: bool,
    /// The last ticket that was admitted. Tickets at or below it hold.
    pub mark: u64,
    /// Total weight of the holders.
    used: u32,
    tickets: BTreeMap<u64, Ticket>,
    numbers: BTreeMap<Owner, u64>,
    /// In the order of the server's sorted set: within a millisecond by listening number, then by owner.
    deadlines: BTreeSet<(u64, Option<Listening>, Owner)>,
}

/// One ticket in a queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The owner.
    pub owner: Owner,
    /// Its weight.
    pub weight: u32,
    /// Valid up to and including this millisecond.
    pub deadline_ms: u64,
    /// Where its client last said that it listens.
    pub listens: Option<Listening>,
}

impl Ticket {
    fn lapses(&self) -> (u64, Option<Listening>, Owner) {
        (self.deadline_ms, self.listens, self.owner.clone())
    }
}

/// Runs one request.
pub fn apply(
    state: &mut State,
    counter: &mut u64,
    now: Now,
    op: &Op,
    queue_spec: QueueSpec,
    hears: Hears<'_>,
) -> (Answer, Option<Notification>) {
    if let Some(answer) = mismatch(state, now, queue_spec, &op.verb) {
        return (answer, None);
    }
    if draws_number(&op.verb) {
        number_bare(state, counter, now);
    }
    let over = queue_of(state).filter(|queue| queue.is_over_full()).map(|queue| queue.mark);
    let askers = match &op.verb {
        Verb::Refresh { owners, .. } => owners,
        Verb::Acquire { .. } | Verb::Renew { .. } => std::slice::from_ref(&op.owner),
        // Whether the requester waits itself does not matter.
        Verb::Release { .. } | Verb::Resize | Verb::Inspect => &[],
    };
    let mut done =
        QueueEffects { granted: Vec::new(), is_bounded: false, over, knows: None, askers, hears, now };
    let answer = match &op.verb {
        Verb::Acquire { ttl_ms, wait_ms, listens, .. } => {
            let (owner, ttl_ms, wait_ms, listens) = (&op.owner, *ttl_ms, *wait_ms, *listens);
            let asked = AcquireArgs { owner, queue_spec, ttl_ms, wait_ms, listens };
            acquire(state, counter, now, asked, &mut done)
        }
        Verb::Renew { ttl_ms, weight, .. } => renew(state, now, &op.owner, *ttl_ms, *weight, &mut done),
        Verb::Refresh { owners, wait_ms, listens } => {
            refresh(state, now, owners, (*wait_ms, *listens), &mut done)
        }
        Verb::Release { whose, .. } => release(state, now, &op.owner, *whose, &mut done),
        Verb::Resize => resize(state, now, queue_spec, &mut done),
        Verb::Inspect => inspect(state, now, |_| true),
    };
    if let Some(number) = upgraded(state, &done) {
        done.granted.push(number);
    }
    settle(state);
    let QueueEffects { granted, is_bounded, .. } = done;
    let wake = (!granted.is_empty()).then_some(Notification::Granted { tickets: granted });
    (if is_bounded { answer.and_more() } else { answer }, wake)
}

/// Whether a request may draw a number from the counter of tokens.
pub fn draws_number(verb: &Verb) -> bool {
    let lasts = |bind: &Option<Liveness>| *bind == Some(Liveness::Lease);
    match verb {
        Verb::Acquire { .. } | Verb::Resize => true,
        Verb::Renew { weight, bind, .. } => weight.is_some() || lasts(bind),
        Verb::Refresh { .. } | Verb::Release { .. } | Verb::Inspect => false,
    }
}

/// A hold acquired by plain commands has the number 0 until its ticket needs one. That is drawn now, and so is
/// above the token that the holder has drawn from the same counter.
fn number_bare(state: &mut State, counter: &mut u64, now: Now) {
    let Some(queue) = queue_of(state) else { return };
    let Some(mut ticket) = queue.ticket(BARE).cloned() else { return };
    if planted(Bug::NumberBelowToken) {
        *counter = now.unix_us;
    }
    if planted(Bug::LeaseOfBareForgotten) {
        ticket.deadline_ms = now.ms;
    }
    ticket.listens = None;
    queue.remove(BARE);
    queue.mark = assign_above(counter, now, 0);
    queue.insert(queue.mark, ticket);
}

/// Side effects of a request.
struct QueueEffects<'a> {
    /// The tickets admitted, except those of the requester.
    granted: Vec<u64>,
    /// The request reached its work limit.
    is_bounded: bool,
    /// The mark before the request, if the holders exceeded the capacity.
    over: Option<u64>,
    /// The ticket whose owner gets the answer, which says whether its weight fits, and so needs no wake-up.
    knows: Option<u64>,
    /// The owners that receive the answer and so need no wake-up.
    askers: &'a [Owner],
    hears: Hears<'a>,
    now: Now,
}

impl QueueEffects<'_> {
    /// Whether the client of an admitted ticket is alive, as far as is known.
    fn reaches(&self, ticket: &Ticket) -> bool {
        let says_so = ticket.listens.is_some() || planted(Bug::ListeningIgnored);
        let is_there =
            !says_so || self.askers.contains(&ticket.owner) || (self.hears)(ticket.listens, &ticket.owner);
        is_there || planted(Bug::NobodyCalled)
    }
}

/// The holder of a read-write lock whose increased weight fits since this request.
fn upgraded(state: &mut State, done: &QueueEffects<'_>) -> Option<u64> {
    let queue = queue_of(state).filter(|queue| queue.kind == Kind::RwLock)?;
    let (number, held) = (queue.first()?, done.over?);
    let is_so = number <= held && queue.used == queue.capacity && done.knows != Some(number);
    is_so.then_some(number)
}

/// The answer if the existing lock is not a queue of this kind and capacity. Inspection is always allowed,
/// and an explicitly set capacity is adopted.
fn mismatch(state: &mut State, now: Now, queue_spec: QueueSpec, verb: &Verb) -> Option<Answer> {
    let looks = match verb {
        Verb::Release { whose, .. } => whose.is_forced(),
        verb => *verb == Verb::Inspect,
    };
    let lock = state.lock.as_ref()?;
    match &lock.value {
        Data::Queue(_) if looks => None,
        Data::Queue(queue) if queue.kind == queue_spec.kind && follows(queue, queue_spec, verb) => None,
        Data::Queue(queue) if queue.is_over(now) => {
            // Every ticket has expired: the newcomer's kind and capacity apply.
            state.lock = None;
            None
        }
        Data::Queue(_) => Some(lock.value.mismatch()),
        other if looks => Some(other.mismatch()),
        _ => Some(other_kind(lock, now)),
    }
}

fn follows(queue: &Queue, queue_spec: QueueSpec, verb: &Verb) -> bool {
    queue.capacity == queue_spec.capacity || queue.is_set || *verb == Verb::Resize
}

/// The arguments of an acquisition.
struct AcquireArgs<'a> {
    owner: &'a Owner,
    queue_spec: QueueSpec,
    ttl_ms: u64,
    wait_ms: Option<u64>,
    listens: Option<Listening>,
}

fn acquire(
    state: &mut State,
    counter: &mut u64,
    now: Now,
    asked: AcquireArgs<'_>,
    done: &mut QueueEffects<'_>,
) -> Answer {
    let AcquireArgs { owner, queue_spec, ttl_ms, wait_ms, listens } = asked;
    let (mut fits, mut capacity) = (true, queue_spec.capacity);
    let mut mine = None;
    if let Some(queue) = queue_of(state) {
        queue.sweep(now, done);
        mine = queue.number_of(owner, now);
        queue.promote(done);
        (fits, capacity) = (queue.lets_in(queue_spec.weight), queue.capacity_for(queue_spec));
    }
    let number = match mine {
        Some(number) => number,
        // It would wait forever.
        None if queue_spec.weight > capacity => {
            return Answer::Mismatch { kind: queue_spec.kind, capacity: Some(capacity) };
        }
        None if wait_ms.is_none() && !fits => return busy(state, now),
        None => {
            let above = queue_of(state).map_or(0, |queue| queue.last());
            let number = assign_above(counter, now, above);
            let queue = queue_or_new(state, queue_spec);
            // Its lease is set below, once it is known whether it holds or waits, because no request could
            // shorten it later.
            let (owner, weight) = (owner.clone(), queue_spec.weight);
            queue.insert(number, Ticket { owner, weight, deadline_ms: now.ms, listens: None });
            if fits {
                queue.let_in(number, queue_spec.weight);
            }
            number
        }
    };
    let Some(queue) = queue_of(state) else { return Answer::Free };
    done.granted.retain(|ticket| *ticket != number);
    if queue.holds(number) {
        queue.extend(number, now.ms.saturating_add(ttl_ms));
        return Answer::Held { fence: number };
    }
    if let Some(wait_ms) = wait_ms {
        queue.extend(number, now.ms.saturating_add(wait_ms));
        queue.listens(number, listens);
    }
    Answer::Waiting { ticket: number, retry_in_ms: queue.retry_in_ms(number, now) }
}

fn renew(
    state: &mut State,
    now: Now,
    owner: &Owner,
    ttl_ms: u64,
    weight: Option<u32>,
    done: &mut QueueEffects<'_>,
) -> Answer {
    let Some(queue) = queue_of(state) else { return Answer::Free };
    queue.sweep(now, done);
    let number = queue.number_of(owner, now);
    if let (Some(number), Some(weight)) = (number, weight)
        && queue.holds(number)
    {
        queue.weigh(number, weight);
        done.knows = Some(number);
    }
    if !(weight.is_some() && planted(Bug::DowngradeWakesNobody)) {
        queue.promote(done);
    }
    let Some(number) = number else { return Answer::Free };
    done.granted.retain(|ticket| *ticket != number);
    if !queue.holds(number) {
        return Answer::Waiting { ticket: number, retry_in_ms: queue.retry_in_ms(number, now) };
    }
    queue.extend(number, now.ms.saturating_add(ttl_ms));
    if weight.is_some()
        && queue.may_grow(number)
        && queue.is_over_full()
        && !planted(Bug::UpgradeBesideReaders)
    {
        return Answer::Growing { fence: number, retry_in_ms: queue.next_lapse_in_ms(now).unwrap_or(1) };
    }
    Answer::Held { fence: number }
}

fn refresh(
    state: &mut State,
    now: Now,
    owners: &Arc<[Owner]>,
    (wait_ms, listens): (u64, Option<Listening>),
    done: &mut QueueEffects<'_>,
) -> Answer {
    let gone = || Answer::Places { places: owners.iter().map(|_| Place::Gone).collect(), retry_in_ms: None };
    let Some(queue) = queue_of(state) else { return gone() };
    if planted(Bug::LapsedWaiterRevived) {
        for owner in owners.iter() {
            if let Some(number) = queue.numbers.get(owner).copied() {
                queue.extend(number, now.ms.saturating_add(wait_ms));
            }
        }
    }
    queue.sweep(now, done);
    let numbers: Vec<_> = owners.iter().map(|owner| queue.number_of(owner, now)).collect();
    let until = |lease_ms: u64| now.ms.saturating_add(lease_ms);
    // A request that only continues another one leaves the places unchanged.
    for number in numbers.iter().flatten().filter(|_| wait_ms > 0) {
        let listened = queue.ticket(*number).is_some_and(|ticket| ticket.listens.is_some());
        match listens {
            _ if queue.holds(*number) => {}
            Some(_) if wait_ms >= WAIT_MS => queue.extend(*number, until(KEPT_MS)),
            None if listened && !planted(Bug::PlaceKeptUnheard) => queue.shorten(*number, until(WAIT_MS)),
            _ => {}
        }
        queue.extend(*number, until(wait_ms));
        queue.listens(*number, listens);
    }
    // Before a grant shortens a place, as in the script.
    let last = queue.deadlines.last().map(|(end_ms, ..)| *end_ms).filter(|_| !planted(Bug::KeyEndsFirst));
    queue.promote(done);
    done.granted.retain(|ticket| !numbers.contains(&Some(*ticket)));
    let retry_in_ms = numbers.iter().flatten().find_map(|number| queue.retry_in_ms(*number, now));
    let place = |number: &Option<u64>| match number {
        None => Place::Gone,
        Some(number) if queue.holds(*number) => Place::Held { fence: *number },
        Some(number) => Place::Waiting { ticket: *number },
    };
    let places = numbers.iter().map(place).collect();
    if let Some(lock) = &mut state.lock {
        lock.expires_ms = lock.expires_ms.max(last);
    }
    Answer::Places { places, retry_in_ms }
}

fn release(
    state: &mut State,
    now: Now,
    owner: &Owner,
    whose: ReleaseScope,
    done: &mut QueueEffects<'_>,
) -> Answer {
    if whose.is_forced() {
        let answer = inspect(state, now, |_| true);
        let Some(queue) = queue_of(state) else { return answer };
        queue.sweep(now, done);
        for _ in 0..FORCED {
            let Some(number) = queue.first().filter(|number| queue.holds(*number)) else {
                queue.promote(done);
                return answer;
            };
            queue.remove(number);
        }
        // While more holders may be left, admit no waiter: the next request could not distinguish it from
        // them.
        done.is_bounded = true;
        return answer;
    }
    let Some(queue) = queue_of(state) else { return Answer::Free };
    queue.sweep(now, done);
    let number = match queue.number_of(owner, now) {
        None if planted(Bug::ReleaseOfAnother) => queue.first(),
        number => number,
    };
    let waited = number.is_some_and(|number| !queue.holds(number));
    if let Some(number) = number {
        queue.remove(number);
    }
    if !(waited && planted(Bug::LeaverPromotesNobody)) {
        queue.promote(done);
    }
    if number.is_some() { Answer::Released { left: 0 } } else { Answer::Free }
}

/// Sets the capacity to that of the requester. Current holders stay; waiters that now fit are admitted.
fn resize(state: &mut State, now: Now, queue_spec: QueueSpec, done: &mut QueueEffects<'_>) -> Answer {
    if queue_of(state).is_none() {
        state.lock = Some(ExpiringValue {
            value: Data::Queue(Queue::new(queue_spec.kind, queue_spec.capacity)),
            expires_ms: None,
        });
    }
    let Some(queue) = queue_of(state) else { return Answer::Free };
    queue.sweep(now, done);
    (queue.capacity, queue.is_set) = (queue_spec.capacity, true);
    if !planted(Bug::ResizeWakesNobody) {
        queue.promote(done);
    }
    if let Some(lock) = &mut state.lock {
        let end = now.ms.saturating_add(lease::CAPACITY_MS);
        lock.expires_ms = Some(lock.expires_ms.map_or(end, |old| old.max(end)));
    }
    Answer::Resized
}

/// The first holder, in the form of a mutex's answer.
fn busy(state: &mut State, now: Now) -> Answer {
    let first = queue_of(state).and_then(|queue| {
        let (number, ticket) = queue.tickets.first_key_value()?;
        Some((format!("{}#{number}", ticket.owner), ticket.deadline_ms.saturating_sub(now.ms)))
    });
    match first {
        Some((holder, left_ms)) => Answer::Busy { holder, left_ms: Some(left_ms) },
        None => Answer::Free,
    }
}

/// Removes an empty queue, unless its capacity was set explicitly, and makes the key expire with its last
/// ticket.
fn settle(state: &mut State) {
    let Some(lock) = &mut state.lock else { return };
    if let Data::Queue(queue) = &lock.value {
        let last = match planted(Bug::KeyEndsFirst) {
            true => queue.deadlines.first(),
            false => queue.deadlines.last(),
        };
        match last {
            Some((end, ..)) => lock.expires_ms = Some(lock.expires_ms.map_or(*end, |old| old.max(*end))),
            None if queue.is_set => {}
            None => state.lock = None,
        }
    }
}

fn queue_of(state: &mut State) -> Option<&mut Queue> {
    match &mut state.lock {
        Some(ExpiringValue { value: Data::Queue(queue), .. }) => Some(queue),
        _ => None,
    }
}

fn queue_or_new(state: &mut State, queue_spec: QueueSpec) -> &mut Queue {
    let fresh = || Queue::new(queue_spec.kind, queue_spec.capacity);
    // A queue swept empty belongs to nobody: the newcomer's kind and capacity apply.
    if queue_of(state).is_none_or(|queue| queue.tickets.is_empty() && !queue.is_set) {
        state.lock = Some(ExpiringValue { value: Data::Queue(fresh()), expires_ms: None });
    }
    queue_of(state).expect("it was just put there")
}

impl Queue {
    /// Creates a queue without tickets.
    pub fn new(kind: Kind, capacity: u32) -> Self {
        let (tickets, numbers, deadlines) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Self { kind, capacity, is_set: false, mark: 0, used: 0, tickets, numbers, deadlines }
    }

    /// A copy without tickets, for stores that write the tickets in another form.
    #[must_use]
    pub fn without_tickets(&self) -> Self {
        Self { is_set: self.is_set, mark: self.mark, ..Self::new(self.kind, self.capacity) }
    }

    /// All tickets, by number.
    pub fn tickets(&self) -> impl DoubleEndedIterator<Item = (u64, &Ticket)> {
        self.tickets.iter().map(|(number, ticket)| (*number, ticket))
    }

    /// Inserts a stored ticket, for stores that keep queues outside memory.
    pub fn insert(&mut self, number: u64, ticket: Ticket) {
        if number <= self.mark {
            self.used = self.used.saturating_add(ticket.weight);
        }
        self.numbers.insert(ticket.owner.clone(), number);
        self.deadlines.insert(ticket.lapses());
        self.tickets.insert(number, ticket);
    }

    /// The number of owners with a ticket.
    pub fn owners(&self) -> usize {
        self.numbers.len()
    }

    /// The ticket of this number.
    pub fn ticket(&self, number: u64) -> Option<&Ticket> {
        self.tickets.get(&number)
    }

    /// The number of an owner's ticket, even if it has expired.
    pub fn number(&self, owner: &Owner) -> Option<u64> {
        self.numbers.get(owner).copied()
    }

    /// Whether there is a ticket of this number.
    pub(super) fn has(&self, number: u64) -> bool {
        self.tickets.contains_key(&number)
    }

    /// Removes one ticket; returns whether nothing is left to keep.
    pub(super) fn end(&mut self, number: u64) -> bool {
        self.remove(number);
        self.tickets.is_empty() && !self.is_set
    }

    /// The numbers of the tickets that hold.
    pub fn holding(&self) -> impl Iterator<Item = u64> {
        self.admitted().map(|(number, _)| number)
    }

    /// The tickets that hold.
    pub fn admitted(&self) -> impl Iterator<Item = (u64, &Ticket)> {
        self.tickets.range(..=self.mark).map(|(number, ticket)| (*number, ticket))
    }

    /// The waiting tickets, head first.
    pub fn waiting(&self) -> impl Iterator<Item = (u64, &Ticket)> {
        self.tickets.range(self.mark + 1..).map(|(number, ticket)| (*number, ticket))
    }

    /// Whether the next request would admit a waiter: a holder was removed, and no request has run since.
    pub fn is_due(&self) -> bool {
        let next = self.tickets.range(self.mark + 1..).next();
        next.is_some_and(|(_, ticket)| self.fits(ticket.weight))
    }

    /// The head of the queue, if it does not fit and a later waiter would.
    pub fn blocks(&self) -> Option<(u64, &Ticket)> {
        let mut waiting = self.waiting();
        let (number, head) = waiting.next().filter(|(_, ticket)| !self.fits(ticket.weight))?;
        let smaller = |ticket: &Ticket| ticket.weight < head.weight && self.fits(ticket.weight);
        waiting.any(|(_, ticket)| smaller(ticket)).then_some((number, head))
    }

    /// Whether this weight fits beside the current holders. A weight above a capacity that was reduced later
    /// may hold alone.
    fn fits(&self, weight: u32) -> bool {
        self.used.saturating_add(weight.min(self.capacity)) <= self.capacity
    }

    /// The capacity that limits a newcomer: its own if the queue is empty and its capacity was not set
    /// explicitly.
    fn capacity_for(&self, queue_spec: QueueSpec) -> u32 {
        if self.tickets.is_empty() && !self.is_set { queue_spec.capacity } else { self.capacity }
    }

    fn remove(&mut self, number: u64) {
        if let Some(ticket) = self.tickets.remove(&number) {
            if number <= self.mark {
                self.used = self.used.saturating_sub(ticket.weight);
            }
            self.numbers.remove(&ticket.owner);
            self.deadlines.remove(&ticket.lapses());
        }
    }

    /// Removes expired tickets, up to the work limit; the next request removes the rest.
    fn sweep(&mut self, now: Now, done: &mut QueueEffects<'_>) {
        for _ in 0..BOUND {
            let lapsed = self.deadlines.first().filter(|(deadline_ms, ..)| now.ms > *deadline_ms);
            let Some(number) = lapsed.and_then(|(_, _, owner)| self.numbers.get(owner).copied()) else {
                return;
            };
            self.remove(number);
        }
        done.is_bounded |= !planted(Bug::SweepStops);
    }

    /// Admits waiters from the head while they fit, and removes those whose client is gone.
    fn promote(&mut self, done: &mut QueueEffects<'_>) {
        for _ in 0..BOUND {
            let Some((number, ticket)) = self.tickets.range(self.mark + 1..).next() else { return };
            let weight = if planted(Bug::WeightIgnored) { 1 } else { ticket.weight };
            if !self.fits(weight) {
                return;
            }
            let (number, weight, is_there) = (*number, ticket.weight, done.reaches(ticket));
            let was_kept = ticket.listens.is_some();
            self.let_in(number, weight);
            if was_kept && !planted(Bug::GrantedForLong) {
                self.shorten(number, done.now.ms.saturating_add(WAIT_MS));
            }
            if is_there {
                done.granted.push(number);
            } else {
                self.remove(number);
            }
        }
        done.is_bounded |= !planted(Bug::LettingInStops);
    }

    fn let_in(&mut self, number: u64, weight: u32) {
        self.used = self.used.saturating_add(weight);
        self.mark = number;
    }

    /// The owner's ticket. An expired one is removed here, even if the sweep did not reach it.
    fn number_of(&mut self, owner: &Owner, now: Now) -> Option<u64> {
        let number = self.numbers.get(owner).copied()?;
        if self.tickets.get(&number).is_some_and(|ticket| now.ms > ticket.deadline_ms) {
            self.remove(number);
            return None;
        }
        Some(number)
    }

    fn holds(&self, number: u64) -> bool {
        if planted(Bug::RankOffByOne) {
            let next = self.tickets.range(self.mark + 1..).next().map(|(number, _)| *number);
            return number <= self.mark || next == Some(number);
        }
        number <= self.mark
    }

    /// Whether a client that does not queue may hold at once: there are no waiters, and its weight fits.
    fn lets_in(&self, weight: u32) -> bool {
        let waits = self.tickets.last_key_value().is_some_and(|(last, _)| *last > self.mark);
        !waits && self.fits(weight)
    }

    /// Extends a ticket's lease. An extension clears the listening number.
    pub fn extend(&mut self, number: u64, deadline_ms: u64) {
        if let Some(ticket) = self.tickets.get_mut(&number)
            && deadline_ms > ticket.deadline_ms
        {
            self.deadlines.remove(&ticket.lapses());
            (ticket.deadline_ms, ticket.listens) = (deadline_ms, None);
            self.deadlines.insert(ticket.lapses());
        }
    }

    /// Shortens a ticket's lease, to one on which its client relies at most.
    pub fn shorten(&mut self, number: u64, deadline_ms: u64) {
        if let Some(ticket) = self.tickets.get_mut(&number)
            && deadline_ms < ticket.deadline_ms
        {
            self.deadlines.remove(&ticket.lapses());
            ticket.deadline_ms = deadline_ms;
            self.deadlines.insert(ticket.lapses());
        }
    }

    /// Sets where its client receives wake-ups.
    fn listens(&mut self, number: u64, listens: Option<Listening>) {
        if let Some(ticket) = self.tickets.get_mut(&number) {
            self.deadlines.remove(&ticket.lapses());
            ticket.listens = listens;
            self.deadlines.insert(ticket.lapses());
        }
    }

    /// Makes a holder lighter, or the holder with more than half of the capacity heavier.
    fn weigh(&mut self, number: u64, weight: u32) {
        let may_grow = weight <= self.capacity && self.may_grow(number);
        let Some(ticket) = self.tickets.get_mut(&number) else { return };
        if weight < ticket.weight || may_grow {
            self.used = self.used.saturating_sub(ticket.weight).saturating_add(weight);
            ticket.weight = weight;
        }
    }

    /// Whether it has more than half of the capacity of a read-write lock: only one such ticket can hold at
    /// once.
    fn may_grow(&self, number: u64) -> bool {
        let weight = self.tickets.get(&number).map_or(0, |ticket| ticket.weight);
        self.kind == Kind::RwLock && weight > self.capacity / 2
    }

    /// Whether the holders exceed the capacity: a holder waits to grow, or the capacity was reduced.
    fn is_over_full(&self) -> bool {
        self.used > self.capacity
    }

    /// When the head of the queue should retry if no notification arrives: when the next ticket expires.
    /// Other waiters need not retry.
    fn retry_in_ms(&self, number: u64, now: Now) -> Option<u64> {
        let first = self.tickets.range(self.mark + 1..).next().map(|(first, _)| *first);
        self.next_lapse_in_ms(now).filter(|_| first == Some(number))
    }

    fn next_lapse_in_ms(&self, now: Now) -> Option<u64> {
        let (deadline_ms, ..) = self.deadlines.first()?;
        Some(deadline_ms.saturating_sub(now.ms) + 1)
    }

    fn first(&self) -> Option<u64> {
        self.tickets.first_key_value().map(|(number, _)| *number)
    }

    fn last(&self) -> u64 {
        self.tickets.last_key_value().map_or(self.mark, |(number, _)| (*number).max(self.mark))
    }

    /// Whether this owner's ticket holds and has not expired.
    pub fn is_held_by(&self, owner: &Owner, now: Now) -> bool {
        self.numbers.get(owner).is_some_and(|number| {
            *number <= self.mark
                && self.tickets.get(number).is_some_and(|ticket| ticket.deadline_ms >= now.ms)
        })
    }

    fn is_over(&self, now: Now) -> bool {
        !self.is_set && self.deadlines.last().is_none_or(|(deadline_ms, ..)| now.ms > *deadline_ms)
    }

    /// Holders and waiters without expired ones, up to the listing limit, with the number of further ones.
    pub(super) fn found(&self, now: Now) -> Option<Found> {
        let (mut holders, mut waiters) = (Vec::new(), Vec::new());
        let living =
            self.deadlines.iter().rev().take_while(|(deadline_ms, ..)| now.ms <= *deadline_ms).count();
        let is_living = |(_, ticket): &(u64, &Ticket)| now.ms <= ticket.deadline_ms;
        for (number, ticket) in self.tickets().take(LOOKED_AT).filter(is_living).take(LISTED) {
            let holding = Holding {
                value: format!("{}#{number}", ticket.owner).into_bytes(),
                left_ms: Some(ticket.deadline_ms - now.ms),
                weight: ticket.weight,
            };
            if number <= self.mark { holders.push(holding) } else { waiters.push(holding) }
        }
        let unlisted = (living - holders.len() - waiters.len()) as u64;
        let (kind, capacity) = (self.kind, Some(self.capacity));
        (living > 0).then_some(Found { kind, capacity, holders, waiters, unlisted })
    }
}

#[cfg(all(test, tenure_planted))]
mod tests {
    use super::*;
    use crate::name::LockName;
    use crate::planted::plant;
    use crate::protocol::{Fence, Liveness, LockSpec};

    #[test]
    fn a_place_whose_client_no_longer_listens_is_short() {
        let left_ms = || {
            let (mut state, mut counter) = (State::default(), 0);
            let mut ask = |ms, owner: &Owner, verb| {
                let (name, spec) = (LockName::new("x").expect("a name"), LockSpec::Queue(QueueSpec::FAIR));
                let op = Op { name, spec, owner: owner.clone(), request: 1, verb };
                apply(
                    &mut state,
                    &mut counter,
                    Now { ms, unix_us: ms * 1_000 },
                    &op,
                    QueueSpec::FAIR,
                    &|_, _| true,
                );
            };
            let [holder, waiter] = ["a", "b"].map(|label| Owner::new(label).expect("an owner"));
            let acquire = || Verb::Acquire {
                ttl_ms: 60_000,
                hold: 1,
                fence: Fence::Assign,
                wait_ms: Some(WAIT_MS),
                listens: None,
                bind: Liveness::Process,
            };
            ask(0, &holder, acquire());
            ask(0, &waiter, acquire());
            for listens in [Listening::new(1), None] {
                let owners = Arc::new([waiter.clone()]);
                ask(0, &waiter, Verb::Refresh { owners, wait_ms: WAIT_MS, listens });
            }
            let queue = queue_of(&mut state).expect("a queue");
            let (_, ticket) = queue.waiting().next().expect("a waiter");
            ticket.deadline_ms
        };
        assert_eq!(left_ms(), WAIT_MS);
        plant(Some(Bug::PlaceKeptUnheard));
        let outcome = left_ms();
        plant(None);
        assert_eq!(outcome, KEPT_MS, "the planted bug is not seen");
    }
}
