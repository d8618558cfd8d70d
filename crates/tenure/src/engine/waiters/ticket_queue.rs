//! Where the tasks of one process wait for a name whose kind keeps a queue.
//!
//! Each has a place in the store, so that first come is first served across processes. One task for
//! each name refreshes all places of this process together, and hears which of them hold now.
//!
//! *A message is a grant here, not a hint*, so it must be exact: it names ticket numbers, and one
//! is believed only if it is the waiter's own and the place cannot have lapsed, counted from when
//! its last **answered** refresh was sent. A message may have lain in a socket for a minute; the
//! place has not.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, Stream};
use tokio::sync::oneshot;

use super::newcomer::Newcomer;
use super::server::{Event, Server, Strategy, earlier};
use super::subscription::{Heard, Subscription};
use super::wait_queues::{self, WaitQueue, WaitQueues};
use crate::engine::Engine;
use crate::engine::acquisition::{Acquisition, Waiting};
use crate::engine::hold::Hold;
use crate::engine::lease::bind;
use crate::error::Result;
use crate::moment::Moment;
use crate::name::LockName;
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Fence, Listening, LockSpec, Notification, Place, Verb, lease};
use crate::store::{Failure, Station};

/// So many places are refreshed by one request.
const BATCH: usize = 256;
/// So many grants are remembered whose waiter has not yet heard its own number.
const EARLY: usize = 256;

/// In place of a time: all places are due, or the one that has it.
const ALL: Moment = Moment(0);
const SOON: Moment = Moment(1);

/// The ticket_queues of one engine.
pub(in crate::engine) type TicketQueues = WaitQueues<LockName, Queue>;
type TicketQueue = WaitQueue<LockName, Queue>;

impl TicketQueues {
    /// Waits for the turn of a ticket. `sent`: when the request was sent that was answered with it.
    pub(in crate::engine) fn join(
        &self,
        engine: &Arc<Engine>,
        ask: &Arc<Acquisition>,
        place: Waiting,
    ) -> TicketHandle {
        let (sender, receiver) = oneshot::channel();
        let Waiting { ticket, sent, retry_at } = place;
        let (ticket_queue, server) = self.enter(
            ask.name.clone(),
            |ticket_queue| Server::<KeepPlaces>::new(engine, ticket_queue),
            |ticket_queue| {
                let mut queue = ticket_queue.queue();
                let wait = lease::wait(ask.options.lease());
                let may_have_missed = queue.may_have_missed(sent);
                let waiter = Waiter { ask: Arc::clone(ask), sent, wait, may_have_missed, turn: sender };
                queue.refresh_at = queue.refresh_at.min(waiter.refresh_at());
                queue.waiters.insert(ticket, waiter);
                queue.retry_at = earlier(queue.retry_at, retry_at);
                queue.silence = None;
            },
        );
        ask.settle();
        ticket_queue.notify.notify_one();
        // A runtime that has ended drops it at once, and then it abandons its ticket queue.
        if let Some(server) = server {
            engine.runtime.spawn(server.run().boxed());
        }
        TicketHandle { ticket_queue, ticket, receiver }
    }

    /// A client is about to ask for a place. Where messages about the lock are heard, they are
    /// until this is dropped.
    pub(in crate::engine) fn newcomer(&self, name: &LockName) -> Option<Newcomer> {
        // It is not closed meanwhile.
        let all = self.all();
        let Some(ticket_queue) = all.get(name).cloned() else {
            return planted(Bug::ListensTooSoon).then(|| Newcomer::new(None, || {}));
        };
        let station = {
            let mut queue = ticket_queue.queue();
            let station = queue.station.clone()?;
            queue.newcomers += 1;
            station
        };
        drop(all);
        Some(Newcomer::new(Some(station), move || {
            let is_last = {
                let mut queue = ticket_queue.queue();
                queue.newcomers -= 1;
                queue.newcomers == 0 && queue.waiters.is_empty()
            };
            if is_last {
                ticket_queue.notify.notify_one();
            }
        }))
    }
}

/// What became of a wait.
pub(in crate::engine) enum Turn {
    /// It holds.
    Held(Hold),
    /// The place is gone: it lapsed while the store did not answer, or the store has forgotten it.
    Gone,
}

pub(in crate::engine) struct Queue {
    waiters: BTreeMap<u64, Waiter>,
    /// When the first of the places must be refreshed.
    refresh_at: Moment,
    /// When the first in line should ask, because a lease is over.
    retry_at: Option<Moment>,
    silence: Option<(Moment, Failure)>,
    /// Since when messages have been heard without a gap; `None` without a subscription.
    hears_from: Option<Moment>,
    /// Where: what a request says that keeps a place.
    station: Option<Station>,
    /// How many are asking for a place, and may have said so.
    newcomers: usize,
    closed: bool,
}

impl Default for Queue {
    fn default() -> Self {
        let (waiters, refresh_at) = (BTreeMap::new(), Moment(u64::MAX));
        let (retry_at, silence, hears_from, station) = (None, None, None, None);
        Self { waiters, refresh_at, retry_at, silence, hears_from, station, newcomers: 0, closed: false }
    }
}

impl Queue {
    /// What a request says that keeps a place.
    fn listens(&self) -> Option<Listening> {
        self.station.as_ref().and_then(Station::listens)
    }

    /// Whether a place that was granted to a request of then may have been called before messages
    /// were heard.
    fn may_have_missed(&self, sent: Moment) -> bool {
        self.hears_from.is_some_and(|from| sent < from) && !planted(Bug::CallMissed)
    }
}

pub(in crate::engine) struct Waiter {
    ask: Arc<Acquisition>,
    /// When the last refresh was sent that was answered.
    sent: Moment,
    /// For how long it kept the place.
    wait: Duration,
    /// The request that said so may have been carried out before messages were heard: it may hold
    /// by now.
    may_have_missed: bool,
    turn: oneshot::Sender<Result<Turn>>,
}

impl Waiter {
    fn refresh_at(&self) -> Moment {
        match self.may_have_missed {
            true => SOON,
            false if planted(Bug::RefreshedTooLate) => self.sent + self.wait,
            false => self.sent + self.wait / 3,
        }
    }
}

impl wait_queues::Queue for Queue {
    type Waiters = BTreeMap<u64, Waiter>;

    fn is_empty(&self) -> bool {
        // A newcomer that has said that messages are heard here is reached by them.
        self.waiters.is_empty() && self.newcomers == 0
    }

    fn clear(&mut self) -> BTreeMap<u64, Waiter> {
        std::mem::take(&mut self.waiters)
    }

    fn close(&mut self) {
        self.closed = true;
    }

    fn is_closed(&self) -> bool {
        self.closed
    }
}

impl TicketQueue {
    fn take(&self, ticket: u64) -> Option<Waiter> {
        self.queue().waiters.remove(&ticket)
    }
}

/// A waiter's end of its place. Dropped, the place is left; the store is told by the
/// [`Acquisition`].
pub(in crate::engine) struct TicketHandle {
    ticket_queue: Arc<TicketQueue>,
    ticket: u64,
    receiver: oneshot::Receiver<Result<Turn>>,
}

impl TicketHandle {
    /// The turn, or why there will be none; `None` when the task of the ticket queue has ended.
    pub(in crate::engine) async fn turn(&mut self) -> Option<Result<Turn>> {
        (&mut self.receiver).await.ok()
    }

    /// Why the store has said nothing, if it has not.
    pub(in crate::engine) fn silence(&self) -> Option<Failure> {
        self.ticket_queue.queue().silence.as_ref().map(|(_, failure)| failure.clone())
    }
}

impl Drop for TicketHandle {
    fn drop(&mut self) {
        self.ticket_queue.take(self.ticket);
    }
}

/// Keeps a place in the store for each waiter: refreshes them, and hands out turns.
#[derive(Default)]
pub(in crate::engine) struct KeepPlaces {
    under_way: FuturesUnordered<BoxFuture<'static, Refreshed>>,
    /// Tickets that are being refreshed.
    asked: BTreeSet<u64>,
    /// Grants that were heard before their waiter was here, or while it was being refreshed, and
    /// when.
    early: VecDeque<(u64, Moment)>,
    /// When to try again to subscribe.
    listen_at: Moment,
}

/// A request for some places, and what became of it.
pub(in crate::engine) struct Refreshed {
    tickets: Vec<u64>,
    sent: Moment,
    first: Duration,
    answer: Result<Answer, Failure>,
}

impl Strategy for KeepPlaces {
    type Key = LockName;
    type Queue = Queue;
    type Answer = Refreshed;

    fn queues(engine: &Engine) -> &TicketQueues {
        &engine.ticket_queues
    }

    fn lock(key: &LockName) -> &LockName {
        key
    }

    async fn serve(server: &mut Server<Self>) {
        server.listen();
        let until = server.ask_what_is_due();
        let mut timer = server.engine.runtime.sleep_until(until);
        let event = server.event(&mut timer).await;
        Self::hear(server, event);
    }

    /// Each place was left by its own request.
    fn rest(_server: &mut Server<Self>) {}

    fn hear(server: &mut Server<Self>, event: Event<Refreshed>) {
        match event {
            Event::Notified => server.hand_out_early(),
            Event::Time => {}
            Event::Heard(Heard::Open) => server.hears_from_now(),
            Event::Heard(Heard::Message(message)) => server.hear(message),
            Event::Heard(Heard::Over(failure)) => server.hears_no_more(failure),
            Event::Answered(refreshed) => {
                server.judge(refreshed);
                server.hand_out_early();
            }
        }
    }

    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Refreshed> {
        // None are under way: there will be no answer.
        ready!(Pin::new(&mut self.under_way).poll_next(context)).map_or(Poll::Pending, Poll::Ready)
    }
}

impl Server<KeepPlaces> {
    /// Subscribes.
    fn listen(&mut self) {
        if !self.subscription.is_idle() || self.engine.now() < self.strategy.listen_at {
            return;
        }
        if let Some((rule, within)) = self.first(|ask| (ask.rule, ask.options.op_timeout)) {
            let (store, client) = (&self.engine.store, self.engine.client);
            let opening = store.listen_for_turns(&self.wait_queue.key, rule, client, within);
            self.subscription = Subscription::Connecting(opening);
        }
    }

    fn hears_no_more(&mut self, failure: Option<Failure>) {
        {
            let mut queue = self.wait_queue.queue();
            (queue.hears_from, queue.station) = (None, None);
        }
        if let Some(failure) = failure {
            // Until then, refreshing has to do.
            self.strategy.listen_at = self.engine.now() + lease::WAIT_MAX / 3;
            self.note_deafness(&failure);
        }
    }

    /// Earlier messages were missed, also about places whose waiters have not joined yet.
    fn hears_from_now(&self) {
        let mut queue = self.wait_queue.queue();
        (queue.refresh_at, queue.hears_from) = (ALL, Some(self.engine.now()));
        queue.station = self.subscription.station().cloned();
    }

    fn first<T>(&self, what: impl FnOnce(&Acquisition) -> T) -> Option<T> {
        self.wait_queue.queue().waiters.values().next().map(|waiter| what(&waiter.ask))
    }

    /// Asks about the places that are due, and says when the next are.
    fn ask_what_is_due(&mut self) -> Moment {
        let now = self.engine.now();
        let mut queue = self.wait_queue.queue();
        let listens = queue.listens();
        let mut due: Vec<u64> = Vec::new();
        if now >= queue.refresh_at {
            let all = queue.refresh_at == ALL;
            let mut next = Moment(u64::MAX);
            for (ticket, waiter) in &queue.waiters {
                let at = waiter.refresh_at();
                if (all || at <= now + waiter.wait / 6) && !self.strategy.asked.contains(ticket) {
                    due.push(*ticket);
                } else {
                    next = next.min(at.max(now + waiter.wait / 12));
                }
            }
            queue.refresh_at = next;
        }
        let head = queue.waiters.keys().next().copied();
        if queue.retry_at.is_some_and(|at| now >= at) {
            queue.retry_at = None;
            let head = head.filter(|_| !planted(Bug::FirstDoesNotAsk));
            due.extend(head.filter(|head| !self.strategy.asked.contains(head) && !due.contains(head)));
        }
        let until = earlier(Some(queue.refresh_at), queue.retry_at).unwrap_or(queue.refresh_at);
        let batches: Vec<_> = due
            .chunks(BATCH)
            .filter_map(|tickets| {
                let waiters = || tickets.iter().filter_map(|ticket| queue.waiters.get(ticket));
                let owners: Arc<[Owner]> = waiters().map(|waiter| waiter.ask.owner.clone()).collect();
                let wait = waiters().map(|waiter| waiter.wait).max()?;
                let ask = &waiters().next()?.ask;
                Some((tickets.to_vec(), owners, ask.rule, wait, ask.options.op_timeout))
            })
            .collect();
        drop(queue);
        for (tickets, owners, rule, wait, within) in batches {
            self.strategy.asked.extend(&tickets);
            let verb = Verb::Refresh { owners: Arc::clone(&owners), wait_ms: lease::millis(wait), listens };
            self.ask(tickets, rule, owners[0].clone(), verb, wait, within);
        }
        until
    }

    fn ask(
        &mut self,
        tickets: Vec<u64>,
        rule: LockSpec,
        owner: Owner,
        verb: Verb,
        first: Duration,
        within: Duration,
    ) {
        let (engine, name) = (Arc::clone(&self.engine), self.wait_queue.key.clone());
        self.strategy.under_way.push(
            async move {
                let sent = engine.now();
                let answer = engine.call(&name, rule, &owner, verb, within).await;
                Refreshed { tickets, sent, first, answer }
            }
            .boxed(),
        );
    }

    fn judge(&mut self, refreshed: Refreshed) {
        let Refreshed { tickets, sent, first, answer } = refreshed;
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
                    queue.retry_at = earlier(queue.retry_at, retry_at);
                }
                for (ticket, place) in tickets.into_iter().zip(places) {
                    match place {
                        Place::Held { fence } if fence == ticket && planted(Bug::RefreshedWithTooLittle) => {
                            self.grant(ticket, sent, first)
                        }
                        Place::Held { fence } if fence == ticket => _ = self.call(ticket, sent, first),
                        Place::Waiting { ticket: same } if same == ticket => self.note(ticket, sent, first),
                        _ => self.lose(ticket),
                    }
                }
            }
            // A renewal that a late message made necessary.
            Ok(Answer::Held { fence }) if tickets == [fence] => self.grant(fence, sent, first),
            // The server is in grace: the place is kept, and asked about again.
            Ok(Answer::Busy { left_ms, .. }) => self.ask_again(&tickets, left_ms.unwrap_or(0)),
            // A renewal changes nothing for one that only waits.
            Ok(Answer::Waiting { ticket, .. }) if tickets == [ticket] => self.ask_again(&tickets, 0),
            // It is of another kind, or gone, or says nothing of these places.
            Ok(_) => tickets.into_iter().for_each(|ticket| self.lose(ticket)),
            Err(failure @ Failure::Refused(_)) => self.refuse(tickets, &failure),
            Err(failure) => self.unheard(failure),
        }
    }

    /// The place is still there; later news counts from here.
    fn note(&self, ticket: u64, sent: Moment, wait: Duration) {
        let mut queue = self.wait_queue.queue();
        let may_have_missed = queue.may_have_missed(sent);
        if let Some(waiter) = queue.waiters.get_mut(&ticket) {
            (waiter.sent, waiter.wait, waiter.may_have_missed) = (sent, wait, may_have_missed);
            let at = waiter.refresh_at();
            queue.refresh_at = queue.refresh_at.min(at);
        }
    }

    /// They were taken for holders, and are none yet: they are refreshed when they are due, or when
    /// something will be else.
    fn ask_again(&self, tickets: &[u64], left_ms: u64) {
        let now = self.engine.now();
        let mut queue = self.wait_queue.queue();
        let waits =
            tickets.iter().filter_map(|ticket| queue.waiters.get(ticket)).map(|waiter| waiter.wait / 3);
        if let Some(wait) = waits.min() {
            let pause = wait.min(Duration::from_millis(left_ms.saturating_add(1)));
            queue.refresh_at = queue.refresh_at.min(now + pause);
        }
    }

    fn lose(&self, ticket: u64) {
        if let Some(waiter) = self.wait_queue.take(ticket) {
            let _ = waiter.turn.send(Ok(Turn::Gone));
        }
    }

    fn refuse(&self, tickets: Vec<u64>, failure: &Failure) {
        for waiter in tickets.into_iter().filter_map(|ticket| self.wait_queue.take(ticket)) {
            let error = waiter.ask.silent(failure.clone());
            let _ = waiter.turn.send(Err(error));
        }
    }

    /// No answer: asks again soon. Waiters whose patience is over get the failure.
    fn unheard(&mut self, failure: Failure) {
        let now = self.engine.now();
        let pause = self.next_backoff();
        let mut queue = self.wait_queue.queue();
        queue.refresh_at = queue.refresh_at.min(now + pause);
        let since = queue.silence.get_or_insert((now, failure.clone())).0;
        let is_out = |waiter: &Waiter| now.since(since.max(waiter.ask.since)) >= waiter.ask.options.patience;
        let out: Vec<_> =
            queue.waiters.iter().filter(|(_, waiter)| is_out(waiter)).map(|(ticket, _)| *ticket).collect();
        drop(queue);
        let given_up = out.len();
        self.refuse(out, &failure);
        self.note_silence(&failure, given_up);
    }

    fn hear(&mut self, message: Notification) {
        match message {
            Notification::Granted { tickets } => {
                let now = self.engine.now();
                for ticket in tickets {
                    self.hear_of(ticket, now);
                }
            }
            // Not a message of a queue: ask.
            Notification::Free { .. } => self.wait_queue.queue().refresh_at = ALL,
            Notification::Reconnected => self.hears_from_now(),
        }
    }

    fn hear_of(&mut self, ticket: u64, heard_at: Moment) {
        let ticket = match planted(Bug::PushOfAnotherLife) {
            true => self.wait_queue.queue().waiters.keys().next().copied().unwrap_or(ticket),
            false => ticket,
        };
        let now = self.engine.now();
        let known = |waiter: &Waiter| (waiter.sent, waiter.wait);
        let found = self.wait_queue.queue().waiters.get(&ticket).map(known);
        let Some((sent, wait)) = found else { return self.remember(ticket, heard_at) };
        if heard_at < sent && !planted(Bug::OldCallBelieved) {
            return; // The place is younger: another had this number, on a server that has gone back since.
        }
        let counted_from = if planted(Bug::PushFromReceipt) { now } else { sent };
        if !self.call(ticket, counted_from, wait) {
            self.remember(ticket, heard_at);
        }
    }

    /// It holds, and its place was last refreshed, for `wait`, by a request that was sent at
    /// `sent`. What is left of that is what it returns with, unless that is too little, or less
    /// than the time by which it must hear of its loss. False if it must be called again: a refresh
    /// is under way that may have been carried out before the grant, and then says nothing of it.
    fn call(&mut self, ticket: u64, sent: Moment, wait: Duration) -> bool {
        let now = self.engine.now();
        let known = self.wait_queue.queue().waiters.get(&ticket).map(|waiter| Arc::clone(&waiter.ask));
        let Some(ask) = known else { return true };
        let left = lease::deadline(sent, now, wait).since(now);
        let messages_grant = self.engine.store.capabilities().messages_grant;
        let is_enough = left >= wait / 2 + ask.options.grace || planted(Bug::CalledWithTooLittle);
        if is_enough && messages_grant {
            self.grant(ticket, sent, wait);
        } else if self.strategy.asked.insert(ticket) {
            // The whole lease first.
            let (mut ttl, within) = (ask.options.lease(), ask.options.op_timeout);
            if !messages_grant && wait >= wait / 2 + lease::margin(wait) + ask.options.grace {
                // A waiter that does not take it must not keep others out for longer than its place
                // would.
                ttl = wait;
            }
            let (ttl_ms, hold) = (lease::millis(ttl), ask.hold);
            let verb = if !messages_grant {
                // Only an acquisition asks whether it may be granted here and now.
                let (fence, wait_ms, bind) = (Fence::Assign, Some(lease::millis(wait)), bind(&ask.options));
                let listens = self.wait_queue.queue().listens();
                Verb::Acquire { ttl_ms, hold, fence, wait_ms, listens, bind }
            } else {
                Verb::Renew { ttl_ms, hold, bind: None, weight: None }
            };
            self.ask(vec![ticket], ask.rule, ask.owner.clone(), verb, ttl, within);
        } else {
            return false;
        }
        true
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

    /// Its lease was set to `first` by a request that was sent at `sent`.
    fn grant(&self, ticket: u64, sent: Moment, first: Duration) {
        if !planted(Bug::RetryForgotten) {
            // The first waiter may have been told no time, or one that has come while this one was
            // being asked about.
            let mut queue = self.wait_queue.queue();
            queue.retry_at = earlier(queue.retry_at, Some(sent + first));
        }
        if let Some(waiter) = self.wait_queue.take(ticket) {
            let begun = if planted(Bug::MaxHoldFromWait) { sent } else { self.engine.now() };
            let held = waiter.ask.granted(ticket, begun, sent, first);
            // If the waiter has left, the grant is dropped, which releases it.
            let _ = waiter.turn.send(Ok(Turn::Held(held)));
        }
    }
}
