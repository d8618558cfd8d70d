//! Where the tasks of one process wait for one name.
//!
//! Only the first of them is asked for, by one task a name, so a thousand waiters cost the store
//! what one costs. That task listens, asks, and sleeps until it is told, until the holder's lease
//! is over, or until a cap. A wake-up is a hint to the task, never a permit of a waiter's: a waiter
//! that leaves takes nothing with it.
//!
//! A waiter whose owner holds already is asked for before the first in line, which waits for that
//! owner. It is a re-entry, where an owner may hold several times, or its grant was lost on its
//! way. The last answer names the holder; no other owner's waiters ask.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{Either, FutureExt, select};
use tokio::sync::oneshot;

use super::server::{Event, Server, Strategy};
use super::subscription::{Heard, Subscription};
use super::wait_queues::{self, WaitQueue, WaitQueues};
use crate::engine::Engine;
use crate::engine::acquisition::{Acquisition, Outcome};
use crate::engine::hold::Hold;
use crate::engine::release::Pending;
use crate::error::Result;
use crate::events::{event, text};
use crate::moment::Moment;
use crate::name::LockName;
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::{Kind, LockSpec, Notification, parse_value};
use crate::store::Failure;

/// The longest sleep of a waiter that hears nothing.
const CAP: Duration = Duration::from_secs(30);
/// So long a question waits for the subscription that is to come before it.
const SUBSCRIBE: Duration = Duration::from_millis(100);
/// After so many hand-overs inside this process, or so much time, one turn is left to others.
const STREAK: u32 = 16;
const STREAK_TIME: Duration = Duration::from_millis(50);
/// Each turn that no other process took makes both twice as long, so many times at most. The time
/// then takes as many hand-overs too: a long hold does not leave a turn each time.
const UNTAKEN: u32 = 3;
/// How long a hop is taken to last, at least and at most, where others are let go first: the last
/// hop may have been one through a server that stood still.
const HOP: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(8));
/// Others get so many hops for a turn. Those of them that yield use most of them.
const TURN_HOPS: u32 = 6;
/// For so long a process that has left a turn asks later than others do, at first by so many hops,
/// then less and less. Otherwise the two that hear first would take turns, and others none.
const YIELDING: Duration = Duration::from_millis(200);
const YIELD_HOPS: u32 = 4;

/// A full name, and the kind that is meant.
type Key = (LockName, Kind);

/// The lines of one engine.
pub(in crate::engine) type LocalQueues = WaitQueues<Key, Queue>;
type LocalQueue = WaitQueue<Key, Queue>;

impl LocalQueues {
    /// Whether a newcomer may ask at once without overtaking a waiter.
    pub(in crate::engine) fn may_ask(&self, ask: &Acquisition) -> bool {
        self.all().get(&key(ask)).is_none_or(|line| {
            let queue = line.queue();
            queue.waiters.is_empty() || queue.has(ask)
        })
    }

    /// Takes a place at the end. `silence`: the newcomer has asked already, and this is why there
    /// was no answer.
    pub(in crate::engine) fn join(
        &self,
        engine: &Arc<Engine>,
        ask: &Arc<Acquisition>,
        silence: Option<Failure>,
    ) -> Place {
        let (sender, receiver) = oneshot::channel();
        let waiter = Waiter { ask: Arc::clone(ask), grant: sender };
        let (mut id, mut heard) = (0, 0);
        let (line, server) = self.enter(
            key(ask),
            |line| Server::<AskInTurn>::new(engine, line),
            |line| {
                let mut queue = line.queue();
                if queue.waiters.is_empty() || silence.is_some() && planted(Bug::SilenceOfOne) {
                    // Who comes first has asked, and knows more than those who have left.
                    queue.silence = silence.clone().map(|failure| (engine.now(), failure));
                }
                heard = queue.heard;
                queue.hurries |= silence.is_some();
                // Taken here, so that ids grow in the order of the line.
                id = engine.id();
                queue.join(id, waiter);
                if queue.waiters.len() == 1 || queue.has(ask) || silence.is_some() {
                    line.notify.notify_one();
                }
            },
        );
        // A runtime that has ended drops it at once, and then it abandons its line.
        if let Some(server) = server {
            engine.runtime.spawn(server.run().boxed());
        }
        Place { line, id, silence: silence.map(|failure| (heard, failure)), receiver }
    }

    /// A hold of this name has ended, here, by a release of `by`, or was found lost: the first in
    /// line may try.
    pub(in crate::engine) fn ask_soon(&self, name: &LockName, by: Option<&Owner>) {
        let lines = self.all();
        for (_, line) in
            lines.range((name.clone(), Kind::Mutex)..).take_while(|((known, _), _)| known == name)
        {
            let mut queue = line.queue();
            if queue.waiters.is_empty() {
                continue;
            }
            queue.nudged = true;
            queue.holder = None;
            if by.is_some() {
                queue.departed = by.cloned();
            }
            drop(queue);
            line.notify.notify_one();
        }
    }
}

/// Where its process waits for it.
fn key(ask: &Acquisition) -> Key {
    (ask.name.clone(), ask.rule.kind())
}

#[derive(Default)]
pub(in crate::engine) struct Queue {
    /// By their ids, which grow in the order in which they came.
    waiters: BTreeMap<u64, Waiter>,
    /// The same by owner, so that a hand-over does not look at each waiter.
    owners: BTreeSet<(Owner, u64)>,
    /// How often the store has answered.
    heard: u64,
    /// Since when it has not, and why.
    silence: Option<(Moment, Failure)>,
    /// The question of a newcomer was lost: the next does not wait for other processes.
    hurries: bool,
    /// A hold ended on this side since the first in line was last asked for.
    nudged: bool,
    /// Whose it was: the store's message about the same is no news.
    departed: Option<Owner>,
    /// Who has it, as the store last said.
    holder: Option<Owner>,
    closed: bool,
}

impl Queue {
    /// Whether the store has it for this owner already: for another of its holds, or because the
    /// answer that said so got lost.
    fn has(&self, ask: &Acquisition) -> bool {
        let bug = if ask.rule == LockSpec::Reentrant { Bug::ReentryInLine } else { Bug::LostGrantInLine };
        self.holder.as_ref() == Some(&ask.owner) && !planted(bug)
    }

    fn join(&mut self, id: u64, waiter: Waiter) {
        self.owners.insert((waiter.ask.owner.clone(), id));
        self.waiters.insert(id, waiter);
    }

    fn leave(&mut self, id: u64) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        self.owners.remove(&(waiter.ask.owner.clone(), id));
        Some(waiter)
    }

    /// The first waiter whose owner has the lock already.
    fn again(&self) -> Option<(&u64, &Waiter)> {
        let holder = self.holder.as_ref()?;
        let (owner, id) = self.owners.range((holder.clone(), 0)..).next()?;
        let waiter = self.waiters.get(id).filter(|waiter| owner == holder && self.has(&waiter.ask))?;
        Some((id, waiter))
    }
}

pub(in crate::engine) struct Waiter {
    ask: Arc<Acquisition>,
    grant: oneshot::Sender<Result<Hold>>,
}

impl wait_queues::Queue for Queue {
    type Waiters = BTreeMap<u64, Waiter>;

    fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    fn clear(&mut self) -> BTreeMap<u64, Waiter> {
        self.owners.clear();
        std::mem::take(&mut self.waiters)
    }

    fn close(&mut self) {
        self.closed = true;
    }

    fn is_closed(&self) -> bool {
        self.closed
    }
}

impl LocalQueue {
    fn name(&self) -> &LockName {
        &self.key.0
    }

    /// The next to ask for: one whose owner has the lock already, else the first.
    fn next(&self) -> Option<(u64, Arc<Acquisition>)> {
        let queue = self.queue();
        let next = queue.again().or_else(|| queue.waiters.first_key_value());
        next.map(|(id, waiter)| (*id, Arc::clone(&waiter.ask)))
    }

    /// Records the holder. Returns whether a waiter of the same owner is in line.
    fn held_by(&self, holder: Option<Owner>) -> bool {
        let mut queue = self.queue();
        if holder.is_some() && queue.departed == holder && !planted(Bug::EndTakenForTold) {
            // It was asked about before the release was carried out: that is still to be told.
            queue.departed = None;
        }
        queue.holder = holder;
        queue.again().is_some()
    }

    /// Gives a waiter its answer. If it has left, the grant is dropped, which releases it.
    fn answer(&self, id: u64, answer: Result<Hold>) -> bool {
        self.leave(id).is_some_and(|waiter| waiter.grant.send(answer).is_ok())
    }

    fn leave(&self, id: u64) -> Option<Waiter> {
        self.queue().leave(id)
    }

    /// The store has answered.
    fn heard(&self) {
        let mut queue = self.queue();
        (queue.heard, queue.silence) = (queue.heard + 1, None);
    }

    /// The store has not answered: waiters whose patience is over get the failure. Returns how
    /// many.
    fn unheard(&self, engine: &Engine, failure: &Failure) -> usize {
        let now = engine.now();
        let mut queue = self.queue();
        let since = queue.silence.get_or_insert((now, failure.clone())).0;
        let is_out = |ask: &Acquisition| now.since(since.max(ask.since)) >= ask.options.patience;
        let out = queue.waiters.iter().filter(|(_, waiter)| is_out(&waiter.ask));
        let out: Vec<u64> = out.map(|(id, _)| *id).collect();
        let out: Vec<Waiter> = out.into_iter().filter_map(|id| queue.leave(id)).collect();
        drop(queue);
        let given_up = out.len();
        for waiter in out {
            let _ = waiter.grant.send(Err(waiter.ask.silent(failure.clone())));
        }
        given_up
    }
}

/// A place in line; dropped, it is left.
pub(in crate::engine) struct Place {
    line: Arc<LocalQueue>,
    id: u64,
    /// Why its own question was not answered, and how many others had been by then.
    silence: Option<(u64, Failure)>,
    receiver: oneshot::Receiver<Result<Hold>>,
}

impl Place {
    /// The turn, or why there will be none; `None` when the task of the line has ended.
    pub(in crate::engine) async fn granted(&mut self) -> Option<Result<Hold>> {
        (&mut self.receiver).await.ok()
    }

    /// Why the store has said nothing, if it has not.
    pub(in crate::engine) fn silence(&self) -> Option<Failure> {
        let queue = self.line.queue();
        let own = self.silence.as_ref().filter(|(heard, _)| *heard == queue.heard);
        queue.silence.as_ref().map(|(_, failure)| failure).or(own.map(|(_, failure)| failure)).cloned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (left, is_empty) = {
            let mut queue = self.line.queue();
            (queue.leave(self.id), queue.waiters.is_empty())
        };
        if left.is_some() && is_empty {
            // The task of the line waits for none any more.
            self.line.notify.notify_one();
        }
    }
}

/// Asks for the first waiter, until it holds.
#[derive(Default)]
pub(in crate::engine) struct AskInTurn {
    /// The foreign holder that was found last, as its value shows it.
    foreign: String,
    /// Hand-overs inside this process since others last had a turn, and since when.
    streak: u32,
    streak_since: Moment,
    /// Turns in a row that were left to others, and that no other process took.
    untaken: u32,
    /// Who was granted it here last.
    granted: Option<Owner>,
    /// When a turn was last left to others.
    left_at: Option<Moment>,
    /// How long the last question took.
    hop: Duration,
    /// The store may tell this process alone that the lock is free.
    is_expected: bool,
    /// Counts among the releases from before a question until its outcome is known. The waiter may
    /// leave meanwhile, and then its grant is released.
    under_way: Option<Pending>,
}

impl Strategy for AskInTurn {
    type Key = Key;
    type Queue = Queue;
    /// It waits for each answer before anything else.
    type Answer = Infallible;

    fn queues(engine: &Engine) -> &LocalQueues {
        &engine.local_queues
    }

    fn lock(key: &Key) -> &LockName {
        &key.0
    }

    async fn serve(server: &mut Server<Self>) {
        server.strategy.under_way = Some(server.engine.pending_releases.add(&server.engine));
        if let Some((id, ask)) = server.wait_queue.next() {
            server.ask_for(id, &ask).await;
        }
        if !server.has_waiters() {
            server.strategy.under_way = None;
        }
    }

    /// A store that has told this process alone tells another.
    fn rest(server: &mut Server<Self>) {
        if std::mem::take(&mut server.strategy.is_expected) {
            server.subscription.rest();
        }
    }

    /// The next waiter asks anyway. A task that does not wait has asked meanwhile, and the store
    /// may have taken it for one that does.
    fn hear(server: &mut Server<Self>, event: Event<Infallible>) {
        if let Event::Heard(Heard::Message(_)) = event {
            server.subscription.rest();
        }
    }

    fn poll_answer(&mut self, _context: &mut Context<'_>) -> Poll<Infallible> {
        Poll::Pending
    }
}

impl Server<AskInTurn> {
    /// One question for one of the line, and the sleep after it.
    async fn ask_for(&mut self, id: u64, ask: &Acquisition) {
        if !planted(Bug::ListenAfterAsking) {
            self.listen(ask).await;
        }
        self.leave_a_turn().await;
        // This question answers all earlier messages and notifications.
        self.subscription.drain();
        if !self.wait_queue.queue().closed {
            let _ = self.wait_queue.notify.notified().now_or_never();
        }
        // On a quorum each of two may have what the other lacks: they do not ask in turns without a
        // pause.
        let is_out_of_turn = ask.rule == LockSpec::Mutex && self.wait_queue.queue().has(ask);
        let sent = self.engine.now();
        let asked = ask.once(true, None).await;
        self.strategy.hop = self.engine.now().since(sent);
        self.strategy.is_expected = !matches!(asked, Outcome::Held(_));
        if planted(Bug::ListenAfterAsking) {
            self.listen(ask).await;
        }
        let is_heard = !matches!(asked, Outcome::Silent(_));
        if is_heard {
            self.wait_queue.heard();
        }
        let pause = match asked {
            Outcome::Held(held) => {
                self.note_turn(&ask.owner);
                let left = held.lease.lapses_at().since(self.engine.now());
                if !self.wait_queue.answer(id, Ok(held)) && planted(Bug::WakeSwallowed) {
                    return self.engine.runtime.sleep_until(self.engine.now() + CAP).await;
                }
                if self.wait_queue.held_by(Some(ask.owner.clone())) && !planted(Bug::SecondHoldForgotten) {
                    return;
                }
                left.min(CAP)
            }
            Outcome::Busy { holder, left_ms } => {
                let owner = parse_value(&holder).map(|(owner, _)| owner);
                if owner.is_none() || owner != self.strategy.granted {
                    (self.strategy.streak, self.strategy.untaken) = (0, 0);
                }
                let owner = owner.filter(|owner| *owner != ask.owner);
                if self.wait_queue.held_by(owner) && !is_out_of_turn {
                    return;
                }
                self.pause(ask, &holder, left_ms)
            }
            // Only kinds that keep no queue are asked for here.
            Outcome::Waiting(_) => CAP,
            Outcome::Refused(error) => {
                self.wait_queue.answer(id, Err(error));
                return;
            }
            Outcome::Silent(failure) => {
                let given_up = self.wait_queue.unheard(&self.engine, &failure);
                self.note_silence(&failure, given_up);
                self.next_backoff()
            }
        };
        if is_heard {
            self.strategy.under_way = None;
        }
        self.sleep(self.engine.now() + pause).await;
    }

    /// How long to wait for news before asking again: to the end of the holder's lease if its end
    /// will be told, else a little longer each time, because a foreign holder publishes nothing.
    fn pause(&mut self, ask: &Acquisition, holder: &str, left_ms: Option<u64>) -> Duration {
        let cap = if planted(Bug::NoCap) { Duration::MAX } else { CAP };
        let left = left_ms.map_or(CAP, |left_ms| Duration::from_millis(left_ms.saturating_add(1))).min(cap);
        let known = parse_value(holder);
        if self.attempt == 0 {
            let holder = known.as_ref().map_or(holder, |(owner, _)| owner.as_str());
            event!(
                DEBUG,
                target: "tenure",
                "lock_waiting",
                "waiting",
                lock = text(&ask.name),
                kind = ask.meter.kind(),
                store = text(self.engine.store.url()),
                holder = holder.to_owned(),
                left_ms = left_ms,
            );
        }
        if known.is_some() && left_ms.is_some() && self.subscription.is_open() {
            self.attempt = 1;
            return if planted(Bug::EndNotAwaited) { CAP } else { left };
        }
        if known.is_none() && self.strategy.foreign != holder {
            // Foreign clients pass it on without a message, and ask often. A waiter that asks more
            // and more rarely never gets it.
            self.attempt = 0;
            holder.clone_into(&mut self.strategy.foreign);
        }
        self.next_backoff().min(left)
    }

    /// Subscribes, so that nothing is missed between the next question and the sleep after it.
    /// Where that takes long, it goes on while the store is asked. Where the store refuses
    /// subscriptions, repeated questions replace them.
    async fn listen(&mut self, ask: &Acquisition) {
        if !self.subscription.is_idle() {
            return;
        }
        let within = ask.options.op_timeout;
        self.subscription = Subscription::Connecting(self.engine.store.listen_to_ask(
            self.wait_queue.name(),
            ask.rule,
            within,
        ));
        let mut timer = self.engine.runtime.sleep_until(self.engine.now() + SUBSCRIBE.min(within));
        let heard = poll_fn(|context| match self.subscription.poll(context) {
            Poll::Ready(heard) => Poll::Ready(Some(heard)),
            Poll::Pending => timer.poll_unpin(context).map(|()| None),
        });
        if let Some(Heard::Over(Some(failure))) = heard.await {
            self.note_deafness(&failure);
        }
    }

    fn note_turn(&mut self, owner: &Owner) {
        self.strategy.granted = Some(owner.clone());
        if self.strategy.streak == 0 {
            self.strategy.streak_since = self.engine.now();
        }
        self.strategy.streak += 1;
    }

    /// After a release of our own, asking at once always wins against other processes, which first
    /// have to hear of it. So now and then they get the time to: first the one whose own turns are
    /// longest ago.
    async fn leave_a_turn(&mut self) {
        let released_here = std::mem::take(&mut self.wait_queue.queue().nudged);
        let hurries = || std::mem::take(&mut self.wait_queue.queue().hurries);
        if hurries() {
            return;
        }
        let now = self.engine.now();
        let AskInTurn { streak, streak_since, untaken, left_at, hop, .. } = &mut self.strategy;
        let hop = (*hop).clamp(HOP.0, HOP.1);
        let longer = 1 << (*untaken).min(UNTAKEN);
        let is_long = *streak >= STREAK * longer
            || (*streak >= longer && now.since(*streak_since) >= STREAK_TIME * longer);
        let pause = match left_at.map(|left_at| now.since(left_at)) {
            _ if released_here && is_long => {
                (*streak, *untaken, *left_at) = (0, *untaken + 1, Some(now));
                TURN_HOPS * hop
            }
            Some(since) if !released_here && since < YIELDING && !planted(Bug::NeverYields) => {
                (YIELD_HOPS * hop).mul_f64(1.0 - since.div_duration_f64(YIELDING))
            }
            _ => return,
        };
        let mut timer = self.engine.runtime.sleep_until(now + pause);
        loop {
            let notified = pin!(self.wait_queue.notify.notified());
            if let Either::Left(_) = select(&mut timer, notified).await {
                return;
            }
            // A permit that says so stays for the loop of this task.
            if self.wait_queue.queue().closed {
                return self.wait_queue.notify.notify_one();
            }
            if hurries() {
                return;
            }
        }
    }

    /// Sleeps until there is news or it is time to ask again.
    async fn sleep(&mut self, until: Moment) {
        let mut timer = self.engine.runtime.sleep_until(until);
        loop {
            match self.event(&mut timer).await {
                // A release in this process, a first waiter, or the end.
                Event::Notified => break,
                // The store's word on a release of our own, after which the next was asked for at
                // once.
                Event::Heard(Heard::Message(Notification::Free { by: Some(by) }))
                    if self.wait_queue.queue().departed.as_ref() == Some(&by) => {}
                Event::Heard(Heard::Message(_) | Heard::Open) => break,
                Event::Heard(Heard::Over(None)) => {
                    let pause = self.next_backoff();
                    timer = self.engine.runtime.sleep_until(self.engine.now() + pause);
                }
                // It was slept no longer than it may be without.
                Event::Heard(Heard::Over(Some(failure))) => self.note_deafness(&failure),
                Event::Answered(never) => match never {},
                Event::Time => return,
            }
        }
        self.attempt = 0;
    }
}

#[cfg(test)]
mod tests {
    use rustix::time::{ClockId, clock_gettime};

    use super::*;
    use crate::error::Error;
    use crate::options::Options;
    use crate::runtime::{Driver, Runtime};
    use crate::store::memory::Memory;

    const TURNS: u32 = 2_000;

    /// What this thread has computed so far; the load of the machine does not count.
    fn computed() -> Duration {
        Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a time")
    }

    /// What the line itself costs for so many turns while so many others wait.
    fn cost_of_turns(engine: &Arc<Engine>, waiters: u32) -> Duration {
        let name = LockName::new("crowd").expect("a name");
        let options = Arc::new(Options::new());
        let lines = LocalQueues::default();
        let (line, _) = lines.enter((name.clone(), Kind::Mutex), |_| (), |_| ());
        let mut places = Vec::new();
        for id in 0..u64::from(waiters + TURNS) {
            let meter = engine.metrics.meter(&options.groups, &name, &name, LockSpec::Mutex);
            let ask = Acquisition::new(engine, name.clone(), LockSpec::Mutex, None, &options, meter);
            let ask = Arc::new(ask);
            let (grant, receiver) = oneshot::channel();
            line.queue().join(id, Waiter { ask, grant });
            places.push(Place { line: Arc::clone(&line), id, silence: None, receiver });
        }
        let others = places.split_off(TURNS as usize);
        let before = computed();
        for place in places {
            let (id, ask) = line.next().expect("a waiter");
            assert_eq!(id, place.id);
            assert!(line.answer(id, Err(Error::invalid("a turn"))));
            assert!(!line.held_by(Some(ask.owner.clone())));
            drop(place);
        }
        let cost = computed() - before;
        drop(others);
        cost
    }

    #[test]
    fn a_turn_costs_about_the_same_however_many_wait() {
        let driver = Driver::start().expect("a thread");
        let runtime = Arc::clone(&driver) as Arc<dyn Runtime>;
        let store = Arc::new(Memory::new(Arc::clone(&runtime), "memory:"));
        let engine = Engine::new(store, runtime);
        cost_of_turns(&engine, 100);
        let (few, many) = (cost_of_turns(&engine, 100), cost_of_turns(&engine, 100_000));
        assert!(many < few * 10, "{TURNS} turns cost {few:?} beside 100 others, {many:?} beside 100,000");
        driver.stop();
    }
}
