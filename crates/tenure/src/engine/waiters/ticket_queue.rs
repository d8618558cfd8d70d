//! Wait queues for kinds with a queue in the store: the tasks of one process that wait for one name.
//!
//! Each waiter has a ticket in the store, so that waiters of all processes are served in order. One task per
//! name refreshes all tickets of this process together and receives the messages that name the tickets which
//! now hold.
//!
//! *A message is a grant here, not a hint*, so it is accepted only for the waiter's own ticket, and only if
//! that cannot have expired, counted from when its last **answered** refresh was sent. The message may have
//! been buffered in a socket for a minute; the ticket would have expired.

use std::collections::{BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, Stream};

use super::subscription::{Heard, Subscription};
use super::wait_queues::{
    QueueEvent, QueueServer, QueuedWaiter, Strategy, WaitHandle, WaitOutcome, WaitQueues, Waiters, earlier,
};
use crate::engine::Engine;
use crate::engine::acquisition::{Acquisition, Waiting};
use crate::engine::call::Call;
use crate::engine::grant::Granting;
use crate::engine::kept_subscription::KeptSubscription;
use crate::moment::Moment;
use crate::name::LockName;
use crate::options::HoldOptions;
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Fence, Listening, LockSpec, Notification, Place, Verb, lease};
use crate::store::{Failure, Purpose, Station, Topic};

/// Maximum tickets refreshed by one request.
const BATCH: usize = 256;
/// Maximum grants remembered for waiters that do not know their own number yet.
const EARLY: usize = 256;

/// Special due times: all tickets are due, or only the one with this time.
const ALL: Moment = Moment(0);
const SOON: Moment = Moment(1);

/// The ticket queues of one engine.
pub(in crate::engine) type TicketQueues = WaitQueues<KeepPlaces>;

impl TicketQueues {
    /// Waits for the grant of a ticket.
    pub(in crate::engine) fn join(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        ask: &Arc<Acquisition>,
        place: Waiting,
    ) -> WaitHandle<KeepPlaces> {
        let Waiting { ticket, sent, retry_at } = place;
        let place = self.place(engine, ask.name.clone(), ask, |queue| {
            let wait = engine.store.capabilities().wait(ask.options.lease());
            let may_have_missed = queue.known.may_have_missed(sent);
            let note = TicketPlace { sent, wait, kept: wait, may_have_missed };
            queue.known.refresh_at = queue.known.refresh_at.min(note.refresh_at());
            queue.known.retry_at = earlier(queue.known.retry_at, retry_at);
            queue.silence = None;
            (ticket, note)
        });
        ask.settle();
        place.wait_queue.notify.notify_one();
        place
    }

    /// Announces a request for a ticket. If the lock has a subscription, it is kept until the returned value
    /// is dropped.
    pub(in crate::engine) fn subscribed(&self, name: &LockName) -> Option<KeptSubscription> {
        // Held so that the queue is not closed meanwhile.
        let all = self.all();
        let Some(ticket_queue) = all.get(name).cloned() else {
            return planted(Bug::ListensTooSoon).then(|| KeptSubscription::new(None, || {}));
        };
        let station = {
            let mut queue = ticket_queue.queue();
            let station = queue.known.station.clone()?;
            queue.known.newcomers += 1;
            station
        };
        drop(all);
        Some(KeptSubscription::new(Some(station), move || {
            let is_last = {
                let mut queue = ticket_queue.queue();
                queue.known.newcomers -= 1;
                queue.is_empty()
            };
            if is_last {
                ticket_queue.notify.notify_one();
            }
        }))
    }
}

pub(in crate::engine) struct TicketState {
    /// When the first ticket must be refreshed.
    refresh_at: Moment,
    /// When the head of the queue should send a request, because a lease ends.
    retry_at: Option<Moment>,
    /// Since when messages have been received without a gap; `None` without a subscription.
    hears_from: Option<Moment>,
    /// The station of the open subscription, which requests for a ticket name.
    station: Option<Station>,
    /// Acquisitions that are requesting a ticket and may have named the station.
    newcomers: usize,
    /// The last grant to this process.
    granted_at: Moment,
    /// Until then this process is granted tickets so often that refreshing all of them often is cheaper than
    /// requesting a lease for each grant.
    busy_until: Moment,
}

impl Default for TicketState {
    fn default() -> Self {
        let (retry_at, hears_from, station) = (None, None, None);
        let (refresh_at, granted_at, busy_until) = (Moment(u64::MAX), Moment(0), Moment(0));
        Self { refresh_at, retry_at, hears_from, station, newcomers: 0, granted_at, busy_until }
    }
}

impl TicketState {
    fn listens(&self) -> Option<Listening> {
        self.station.as_ref().and_then(Station::listens)
    }

    /// Whether a ticket requested at that time may have been granted before the subscription was open.
    fn may_have_missed(&self, sent: Moment) -> bool {
        self.hears_from.is_some_and(|from| sent < from) && !planted(Bug::CallMissed)
    }
}

/// A ticket as the store has it.
pub(in crate::engine) struct TicketPlace {
    /// When the last answered refresh was sent.
    sent: Moment,
    /// The lease that the ticket has from then on if it is granted.
    wait: Duration,
    /// For how long the place is kept.
    kept: Duration,
    /// The refresh may have been executed before the subscription was open, so its waiter may already hold
    /// the lock.
    may_have_missed: bool,
}

impl TicketPlace {
    fn refresh_at(&self) -> Moment {
        match self.may_have_missed {
            true => SOON,
            false if planted(Bug::RefreshedTooLate) => self.sent + self.kept,
            false => self.sent + self.kept / 3,
        }
    }
}

/// Refreshes the tickets of all waiters and distributes grants.
#[derive(Default)]
pub(in crate::engine) struct KeepPlaces {
    under_way: FuturesUnordered<BoxFuture<'static, Refreshed>>,
    /// Tickets with a refresh in flight.
    asked: BTreeSet<u64>,
    /// Grants received before their waiter joined or during its refresh, with the time of receipt.
    early: VecDeque<(u64, Moment)>,
    /// When to retry the subscription.
    listen_at: Moment,
}

/// A refresh of some tickets, and its answer.
pub(in crate::engine) struct Refreshed {
    tickets: Vec<u64>,
    sent: Moment,
    first: Duration,
    kept: Duration,
    answer: Result<Answer, Failure>,
}

impl Strategy for KeepPlaces {
    type Key = LockName;
    type Known = TicketState;
    type Note = TicketPlace;
    type Answer = Refreshed;

    /// It sleeps at most until the next refresh.
    const ENDS_SLEEP: bool = false;

    fn lock(key: &LockName) -> &LockName {
        key
    }

    /// A message may still grant to a newcomer that has named the station.
    fn is_needed(known: &TicketState) -> bool {
        known.newcomers > 0
    }

    async fn serve(server: &mut QueueServer<Self>) {
        server.listen();
        let until = server.refresh_due();
        let mut timer = server.engine.runtime.sleep_until(until);
        let event = server.event(&mut timer).await;
        Self::hear(server, event);
    }

    /// Each waiter's acquisition releases its own ticket.
    fn rest(_server: &mut QueueServer<Self>) {}

    fn hear(server: &mut QueueServer<Self>, event: QueueEvent<Refreshed>) {
        match event {
            QueueEvent::Notified => server.hand_out_early(),
            QueueEvent::Time => {}
            QueueEvent::Heard(Heard::Open) => server.hears_from_now(),
            QueueEvent::Heard(Heard::Message(message)) => server.hear(message),
            QueueEvent::Heard(Heard::Over(failure)) => server.hears_no_more(failure),
            QueueEvent::Answered(refreshed) => {
                server.judge(refreshed);
                server.hand_out_early();
            }
        }
    }

    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Refreshed> {
        ready!(Pin::new(&mut self.under_way).poll_next(context)).map_or(Poll::Pending, Poll::Ready)
    }
}

impl QueueServer<KeepPlaces> {
    fn listen(&mut self) {
        if !self.subscription.is_idle() || self.engine.now() < self.strategy.listen_at {
            return;
        }
        if let Some((spec, within)) = self.first(|ask| (ask.spec, ask.options.op_timeout)) {
            let purpose = Purpose::Grants(self.engine.owners.client());
            let topic = Topic::new(&self.wait_queue.key, spec, purpose);
            self.subscription = Subscription::Connecting(self.engine.store.subscribe(topic, within));
        }
    }

    fn hears_no_more(&mut self, failure: Option<Failure>) {
        {
            let mut queue = self.wait_queue.queue();
            (queue.known.hears_from, queue.known.station) = (None, None);
            let is_kept = |waiter: &QueuedWaiter<KeepPlaces>| waiter.note.kept > waiter.note.wait;
            if queue.waiters.values().any(is_kept) && !planted(Bug::PlaceRefreshedLateUnheard) {
                queue.known.refresh_at = ALL;
            }
        }
        if let Some(failure) = failure {
            // Refreshes take the place of messages until then.
            self.strategy.listen_at = self.engine.now() + lease::WAIT_MAX / 3;
            self.log_subscribe_error(&failure);
        }
    }

    /// Earlier messages may have been missed, including those for waiters that have not joined yet.
    fn hears_from_now(&self) {
        let known = &mut self.wait_queue.queue().known;
        (known.refresh_at, known.hears_from) = (ALL, Some(self.engine.now()));
        known.station = self.subscription.station().cloned();
    }

    fn first<T>(&self, what: impl FnOnce(&Acquisition) -> T) -> Option<T> {
        self.wait_queue.queue().waiters.values().next().map(|waiter| what(&waiter.ask))
    }

    /// Refreshes the tickets that are due, and returns when the next are.
    fn refresh_due(&mut self) -> Moment {
        let now = self.engine.now();
        let mut queue = self.wait_queue.queue();
        let Waiters { waiters, known, .. } = &mut *queue;
        let listens = known.listens();
        let is_kept = listens.is_some() && now >= known.busy_until;
        let mut due: Vec<u64> = Vec::new();
        // A ticket is due, or all are: after a reconnect, or when the subscription has opened.
        if now >= known.refresh_at {
            let all = known.refresh_at == ALL;
            let mut next = Moment(u64::MAX);
            for (ticket, QueuedWaiter { note, .. }) in &*waiters {
                let at = note.refresh_at();
                // Those that are nearly due go along, unless a request about them is in flight.
                if (all || at <= now + note.kept / 6) && !self.strategy.asked.contains(ticket) {
                    due.push(*ticket);
                } else {
                    next = next.min(at.max(now + note.kept / 12));
                }
            }
            known.refresh_at = next;
        }
        let head = waiters.keys().next().copied();
        // The store told when the lease before the first waiter ends: only that waiter asks.
        if known.retry_at.is_some_and(|at| now >= at) {
            known.retry_at = None;
            let head = head.filter(|_| !planted(Bug::FirstDoesNotAsk));
            due.extend(head.filter(|head| !self.strategy.asked.contains(head) && !due.contains(head)));
        }
        let until = earlier(Some(known.refresh_at), known.retry_at).unwrap_or(known.refresh_at);
        let by_wait = self.engine.store.capabilities().shares_leases && !planted(Bug::CasPlacesExtended);
        let time =
            |ticket: &u64| queue.waiters.get(ticket).map(|waiter| waiter.note.wait).filter(|_| by_wait);
        // Where one lease of the store keeps all places of a ttl, tickets of different ttls need different requests.
        due.sort_by_key(time);
        let batches: Vec<_> = due
            .chunk_by(|one, other| time(one) == time(other))
            .flat_map(|alike| alike.chunks(BATCH))
            .filter_map(|tickets| {
                let waiters = || tickets.iter().filter_map(|ticket| queue.waiters.get(ticket));
                let owners: Arc<[Owner]> = waiters().map(|waiter| waiter.ask.owner.clone()).collect();
                let wait = waiters().map(|waiter| waiter.note.wait).max()?;
                let ask = &waiters().next()?.ask;
                Some((tickets.to_vec(), owners, ask.spec, wait, ask.options.op_timeout))
            })
            .collect();
        drop(queue);
        for (tickets, owners, spec, wait, within) in batches {
            self.strategy.asked.extend(&tickets);
            let verb = Verb::Refresh { owners: Arc::clone(&owners), wait_ms: lease::millis(wait), listens };
            let kept = if is_kept { self.engine.store.capabilities().kept(wait) } else { wait };
            self.ask(tickets, (spec, owners[0].clone()), None, verb, [wait, kept], within);
        }
        until
    }

    /// `keeps` is an acquisition that must not end before the answer.
    fn ask(
        &mut self,
        tickets: Vec<u64>,
        (spec, owner): (LockSpec, Owner),
        keeps: Option<Arc<Acquisition>>,
        verb: Verb,
        [first, kept]: [Duration; 2],
        within: Duration,
    ) {
        let (engine, name) = (Arc::clone(&self.engine), self.wait_queue.key.clone());
        self.strategy.under_way.push(
            async move {
                let sent = engine.now();
                let answer = engine.call(&Call::new(&name, spec, &owner, verb), sent, within).await;
                // A release before would overtake an acquisition that is sent later.
                drop(keeps);
                Refreshed { tickets, sent, first, kept, answer }
            }
            .boxed(),
        );
    }

    fn judge(&mut self, refreshed: Refreshed) {
        let Refreshed { tickets, sent, first, kept, answer } = refreshed;
        for ticket in &tickets {
            self.strategy.asked.remove(ticket);
        }
        match answer {
            Ok(Answer::Places { places, retry_in_ms }) if places.len() == tickets.len() => {
                self.attempt = 0;
                let retry_at = retry_in_ms.map(|retry_in_ms| sent + Duration::from_millis(retry_in_ms));
                {
                    let mut queue = self.wait_queue.queue();
                    queue.silence = None;
                    let is_of_head = queue.waiters.keys().next().is_some_and(|head| tickets.contains(head));
                    // The leases that an earlier answer was about may have been renewed.
                    let known = queue.known.retry_at.filter(|_| !is_of_head || retry_at.is_none());
                    queue.known.retry_at = earlier(known, retry_at);
                }
                for (ticket, place) in tickets.into_iter().zip(places) {
                    match place {
                        Place::Held { fence } if fence == ticket && planted(Bug::RefreshedWithTooLittle) => {
                            self.grant(ticket, sent, first)
                        }
                        // Granted, by a message that was lost or has not arrived yet.
                        Place::Held { fence } if fence == ticket => _ = self.call(ticket, sent, first),
                        Place::Waiting { ticket: same } if same == ticket => {
                            self.note(ticket, sent, [first, kept])
                        }
                        // The place has expired, or the owner has another one.
                        _ => self.lose(ticket),
                    }
                }
            }
            // The answer to a renewal that a late message required.
            Ok(Answer::Held { fence }) if tickets == [fence] => self.grant(fence, sent, first),
            // During its restart grace the server keeps the ticket and grants nothing.
            Ok(Answer::Busy { left_ms, .. }) => self.ask_again(&tickets, left_ms.unwrap_or(0)),
            // A renewal does not change a ticket that is still waiting.
            Ok(Answer::Waiting { ticket, .. }) if tickets == [ticket] => self.ask_again(&tickets, 0),
            // The lock is gone or of another kind, or the answer is about other tickets.
            Ok(_) => tickets.into_iter().for_each(|ticket| self.lose(ticket)),
            // The server rejects the request, and would reject the next one: these waits fail.
            Err(failure @ Failure::Refused(_)) => self.refuse(tickets, &failure),
            // No answer: the tickets stay, and are refreshed after a backoff.
            Err(failure) => self.unanswered(&failure),
        }
    }

    /// Records that the ticket still exists; later messages are judged by this refresh.
    fn note(&self, ticket: u64, sent: Moment, [wait, kept]: [Duration; 2]) {
        let mut queue = self.wait_queue.queue();
        let Waiters { waiters, known, .. } = &mut *queue;
        if let Some(waiter) = waiters.get_mut(&ticket) {
            let may_have_missed = known.may_have_missed(sent);
            waiter.note = TicketPlace { sent, wait, kept, may_have_missed };
            known.refresh_at = known.refresh_at.min(waiter.note.refresh_at());
        }
    }

    /// Refreshes tickets that were taken for holders but still wait: when they are due, or when the grace is
    /// over if that is sooner.
    fn ask_again(&self, tickets: &[u64], left_ms: u64) {
        let now = self.engine.now();
        let mut queue = self.wait_queue.queue();
        let waits =
            tickets.iter().filter_map(|ticket| queue.waiters.get(ticket)).map(|waiter| waiter.note.wait / 3);
        if let Some(wait) = waits.min() {
            let pause = wait.min(Duration::from_millis(left_ms.saturating_add(1)));
            queue.known.refresh_at = queue.known.refresh_at.min(now + pause);
        }
    }

    fn lose(&self, ticket: u64) {
        self.wait_queue.answer(ticket, Ok(WaitOutcome::Gone));
    }

    fn refuse(&self, tickets: Vec<u64>, failure: &Failure) {
        for ticket in tickets {
            let waiter = self.wait_queue.queue().leave(ticket);
            if let Some(waiter) = waiter {
                let error = waiter.ask.silent(failure.clone());
                waiter.answer(Err(error));
            }
        }
    }

    /// Refreshes again soon.
    fn unanswered(&mut self, failure: &Failure) {
        let retry_at = self.engine.now() + self.next_backoff();
        {
            let known = &mut self.wait_queue.queue().known;
            known.refresh_at = known.refresh_at.min(retry_at);
        }
        self.note_silence(failure);
    }

    fn hear(&mut self, message: Notification) {
        match message {
            Notification::Granted { tickets } => {
                let now = self.engine.now();
                for ticket in tickets {
                    self.hear_of(ticket, now);
                }
            }
            Notification::First { ticket } => {
                let Waiters { waiters, known, .. } = &mut *self.wait_queue.queue();
                if waiters.contains_key(&ticket) {
                    known.retry_at = earlier(known.retry_at, Some(self.engine.now() + lease::WAIT_MAX));
                }
            }
            // Not a message about a queue.
            Notification::Free { .. } => self.wait_queue.queue().known.refresh_at = ALL,
            Notification::Reconnected => self.hears_from_now(),
        }
    }

    fn hear_of(&mut self, ticket: u64, heard_at: Moment) {
        let ticket = match planted(Bug::PushOfAnotherLife) {
            true => self.wait_queue.queue().waiters.keys().next().copied().unwrap_or(ticket),
            false => ticket,
        };
        let now = self.engine.now();
        let lease = |note: &TicketPlace| if planted(Bug::KeptPlaceBelieved) { note.kept } else { note.wait };
        let place = |waiter: &QueuedWaiter<KeepPlaces>| (waiter.note.sent, lease(&waiter.note));
        let found = self.wait_queue.queue().waiters.get(&ticket).map(place);
        let Some((sent, wait)) = found else { return self.remember(ticket, heard_at) };
        if heard_at < sent && !planted(Bug::OldCallBelieved) {
            return; // The message is about an older place, on a server that has lost data since.
        }
        let counted_from = if planted(Bug::PushFromReceipt) { now } else { sent };
        if !self.call(ticket, counted_from, wait) {
            self.remember(ticket, heard_at);
        }
    }

    /// Grants the lock to a waiter whose ticket was last refreshed, for `wait`, by a request sent at `sent`,
    /// with the rest of that lease. If the rest is less than half of `wait` plus the grace, or the store's
    /// messages do not grant, first requests a lease from the store. Returns false if the grant must be
    /// handled again later, because a refresh is in flight that may have been executed before it.
    fn call(&mut self, ticket: u64, sent: Moment, wait: Duration) -> bool {
        let now = self.engine.now();
        let ask = self.wait_queue.queue().waiters.get(&ticket).map(|waiter| Arc::clone(&waiter.ask));
        let Some(ask) = ask else { return true };
        let left = lease::deadline(sent, now, wait).since(now);
        let messages_grant = self.engine.store.capabilities().messages_grant;
        let is_enough = left >= wait / 2 + ask.options.grace || planted(Bug::CalledWithTooLittle);
        if is_enough && messages_grant {
            self.grant(ticket, sent, wait);
        // Too little is left, or only the store may grant. No request about this ticket is in flight.
        } else if self.strategy.asked.insert(ticket) {
            let (mut ttl, within) = (ask.options.lease(), ask.options.op_timeout);
            if !messages_grant && wait >= wait / 2 + lease::margin(wait) + ask.options.grace {
                // A waiter that is gone must not block others for longer than its ticket would.
                ttl = wait;
            }
            let (ttl_ms, hold) = (lease::millis(ttl), ask.hold);
            let verb = if !messages_grant {
                // Only an acquisition verifies that the lock may be granted now.
                let (fence, wait_ms, bind) =
                    (Fence::Assign, Some(lease::millis(wait)), HoldOptions::of(&ask.options).bind);
                let listens = self.wait_queue.queue().known.listens();
                Verb::Acquire { ttl_ms, hold, fence, wait_ms, listens, bind }
            } else {
                Verb::Renew { ttl_ms, hold, bind: None, weight: None }
            };
            let of = (ask.spec, ask.owner.clone());
            let keeps = Some(ask).filter(|_| !messages_grant);
            self.ask(vec![ticket], of, keeps, verb, [ttl; 2], within);
        } else {
            return false;
        }
        true
    }

    /// Decides which way to be ready for the next grant takes fewer requests.
    fn note_turn(&self) {
        let now = self.engine.now();
        let mut queue = self.wait_queue.queue();
        let batches = queue.waiters.len() / BATCH + 1;
        let since = now.since(std::mem::replace(&mut queue.known.granted_at, now));
        if since.saturating_mul(u32::try_from(batches).unwrap_or(u32::MAX)) < lease::WAIT_MAX / 3 {
            queue.known.busy_until = now + lease::WAIT_MAX;
        }
    }

    fn remember(&mut self, ticket: u64, heard_at: Moment) {
        if planted(Bug::EarlyCallForgotten) {
            return;
        }
        if self.strategy.early.len() == EARLY {
            self.strategy.early.pop_front();
        }
        self.strategy.early.push_back((ticket, heard_at));
    }

    fn hand_out_early(&mut self) {
        for (ticket, heard_at) in std::mem::take(&mut self.strategy.early) {
            self.hear_of(ticket, heard_at);
        }
    }

    /// Hands over a hold whose lease was set to `first` by a request sent at `sent`.
    fn grant(&self, ticket: u64, sent: Moment, first: Duration) {
        if !planted(Bug::RetryForgotten) {
            // The next head may have no retry time, or one that was computed before this grant.
            let known = &mut self.wait_queue.queue().known;
            known.retry_at = earlier(known.retry_at, Some(sent + first));
        }
        self.note_turn();
        let waiter = self.wait_queue.queue().leave(ticket);
        if let Some(waiter) = waiter {
            let answered = self.engine.now();
            let begun = if planted(Bug::MaxHoldFromWait) { sent } else { answered };
            let whole = waiter.ask.options.lease();
            let held = waiter.ask.granted(ticket, begun, Granting { sent, answered, first, whole });
            waiter.answer(Ok(WaitOutcome::Held(held)));
        }
    }
}
