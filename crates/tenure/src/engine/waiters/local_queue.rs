//! Wait queues for kinds without a queue in the store: the tasks of one process that wait for one name.
//!
//! One task per name sends requests for the first waiter only, so a thousand waiters cost the store as much
//! as one. It subscribes, sends a request, and sleeps until a message, the end of the holder's lease, or a
//! cap. A wake-up is a hint to that task and not a permit for a waiter, so no wake-up is lost when a waiter
//! leaves. Only where nobody is behind it does a waiter get one, and asks itself.
//!
//! A waiter whose owner already holds the lock goes before the first, which is waiting for that owner: it is
//! either a re-entry, or its grant was lost on the way. The last answer names the holder.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{Either, FutureExt, select};

use super::subscription::{Heard, Subscription};
use super::wait_queues::{
    QueueEvent, QueueServer, QueuedWaiter, Strategy, WaitHandle, WaitOutcome, WaitQueue, WaitQueues, Waiters,
};
use crate::engine::Engine;
use crate::engine::acquisition::{AcquireOutcome, Acquisition};
use crate::engine::pending_releases::PendingRelease;
use crate::events::{event, text};
use crate::moment::Moment;
use crate::name::LockName;
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::{Kind, LockSpec, Notification, parse_value};
use crate::store::{Failure, Purpose, Station, Topic};

/// Maximum sleep between two requests, for messages that are lost without an error. A subscription that ends, as
/// with its connection, is replaced, and the waiter then retries at once.
const CAP: Duration = Duration::from_secs(30);
/// How long the first request waits for the subscription to be confirmed.
const SUBSCRIBE: Duration = Duration::from_millis(100);
/// Hand-overs within this process, or the time spent on them, after which it yields to other processes.
const STREAK: u32 = 16;
const STREAK_TIME: Duration = Duration::from_millis(50);
/// Each time that no other process takes the lock doubles both limits, up to this many times. The time limit then also
/// requires as many hand-overs, so that a long hold does not make it yield each time.
const UNTAKEN: u32 = 3;
/// Bounds of the measured round trip, because the last request may have met a stalled server.
const HOP: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(8));
/// How long it yields, in round trips. Processes that yield use most of it.
const PAUSE_HOPS: u32 = 6;
/// How long a process that has yielded delays its requests: initially by `YIELD_HOPS` round trips,
/// then less and less. Without it, two processes would alternate and starve the others.
const YIELDING: Duration = Duration::from_millis(200);
const YIELD_HOPS: u32 = 4;

/// A full name and the requested kind.
type Key = (LockName, Kind);

/// The local queues of one engine.
pub(in crate::engine) type LocalQueues = WaitQueues<AskForFirst>;
type LocalQueue = WaitQueue<AskForFirst>;

impl LocalQueues {
    /// Whether a newcomer may send a request without overtaking a waiter.
    pub(in crate::engine) fn may_ask(&self, ask: &Acquisition) -> bool {
        let queues = self.all();
        if queues.is_empty() {
            return true;
        }
        queues.get(&key(ask)).is_none_or(|queue| {
            let queue = queue.queue();
            let is_empty = queue.waiters.is_empty() && queue.known.ahead.strong_count() == 0;
            is_empty || queue.known.has(ask)
        })
    }

    /// Joins behind those who came earlier. `silence` is the failure of the newcomer's own request, if it was not
    /// answered.
    pub(in crate::engine) fn join(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        ask: &Arc<Acquisition>,
        silence: Option<Failure>,
    ) -> WaitHandle<AskForFirst> {
        let mut is_news = false;
        let place = self.place(engine, key(ask), ask, |queue| {
            let is_first = queue.waiters.is_empty();
            if is_first || silence.is_some() && planted(Bug::SilenceOfOne) {
                // The first waiter's request is more recent than those of earlier waiters.
                queue.silence = silence.clone().map(|failure| (engine.now(), failure));
            }
            queue.known.hurries |= silence.is_some();
            is_news = is_first || queue.known.has(ask) || silence.is_some();
            // Drawn before its own request, during which others may have joined.
            (ask.hold, silence.map(|failure| (queue.known.heard, failure)))
        });
        if is_news {
            place.wait_queue.notify.notify_one();
        }
        place
    }

    /// Lets the first waiter try, because a hold of this name has ended in this process: released by `by`, or
    /// lost. A sole waiter sends the request itself, which crosses no thread if it runs where the release does.
    pub(in crate::engine) fn ask_soon(&self, name: &LockName, by: Option<&Owner>) {
        let mut sole = Vec::new();
        {
            let queues = self.all();
            let of_name = queues.range((name.clone(), Kind::Mutex)..);
            for (_, wait_queue) in of_name.take_while(|((known, _), _)| known == name) {
                let mut queue = wait_queue.queue();
                if queue.waiters.is_empty() {
                    continue;
                }
                queue.known.holder = None;
                if by.is_some() {
                    queue.known.departed = by.cloned();
                    if let Some(waiter) = queue.sole() {
                        sole.push(waiter);
                        continue;
                    }
                }
                queue.known.is_nudged = true;
                drop(queue);
                wait_queue.notify.notify_one();
            }
        }
        // Outside the locks, because a woken task may run here, and ask.
        for (waiter, ahead) in sole {
            waiter.answer(Ok(WaitOutcome::Free(ahead)));
        }
    }
}

fn key(ask: &Acquisition) -> Key {
    (ask.name.clone(), ask.spec.kind())
}

#[derive(Default)]
pub(in crate::engine) struct LocalState {
    /// The waiters by owner, so that a hand-over does not search for them.
    owners: BTreeSet<(Owner, u64)>,
    /// Number of answers of the store.
    heard: u64,
    /// A newcomer's request was lost, so the next request does not yield to other processes.
    hurries: bool,
    /// A hold has ended in this process since the last request for the first waiter.
    is_nudged: bool,
    /// The owner of that hold. The store's message about the same release is ignored.
    departed: Option<Owner>,
    /// The holder in the store's last answer.
    holder: Option<Owner>,
    /// The subscription, while the task sleeps after an answer about a mutex.
    asleep: Option<Station>,
    /// Lives while a waiter that has left as the only one sends its own request, which newcomers must not overtake.
    ahead: Weak<()>,
}

impl LocalState {
    /// Whether this owner already has the lock: for another of its holds, or because the answer was lost.
    fn has(&self, ask: &Acquisition) -> bool {
        let bug = if ask.spec == LockSpec::Reentrant { Bug::ReentryInLine } else { Bug::LostGrantInLine };
        self.holder.as_ref() == Some(&ask.owner) && !planted(bug)
    }
}

impl Waiters<AskForFirst> {
    /// The first waiter whose owner already has the lock.
    fn again(&self) -> Option<(&u64, &QueuedWaiter<AskForFirst>)> {
        let known = &self.known;
        let holder = known.holder.as_ref()?;
        let (owner, number) = known.owners.range((holder.clone(), 0)..).next()?;
        let waiter = self.waiters.get(number).filter(|waiter| owner == holder && known.has(&waiter.ask))?;
        Some((number, waiter))
    }

    /// Removes the only waiter, if no other client waits and no request for it is under way. Behind another waiter
    /// it would have to yield, and others would depend on its runtime.
    fn sole(&mut self) -> Option<(QueuedWaiter<AskForFirst>, Arc<()>)> {
        let is_alone = self.known.asleep.as_ref().is_some_and(Station::is_alone);
        let is_sole = self.waiters.len() == 1 && (is_alone || planted(Bug::SoleAskedTwice));
        let (number, _) = self.waiters.first_key_value().filter(|_| is_sole)?;
        let (waiter, ahead) = (self.leave(*number)?, Arc::new(()));
        self.known.ahead = Arc::downgrade(&ahead);
        Some((waiter, ahead))
    }
}

impl LocalQueue {
    fn name(&self) -> &LockName {
        &self.key.0
    }

    /// The next waiter to send a request for: one whose owner already has the lock, or else the first.
    fn next(&self) -> Option<(u64, Arc<Acquisition>)> {
        let mut queue = self.queue();
        queue.known.asleep = None;
        let next = queue.again().or_else(|| queue.waiters.first_key_value());
        next.map(|(number, waiter)| (*number, Arc::clone(&waiter.ask)))
    }

    /// Records the holder. Returns whether a waiter has the same owner.
    fn held_by(&self, holder: Option<Owner>) -> bool {
        let mut queue = self.queue();
        if holder.is_some() && queue.known.departed == holder && !planted(Bug::EndTakenForTold) {
            // The answer is older than the release, whose message is still to come.
            queue.known.departed = None;
        }
        queue.known.holder = holder;
        queue.again().is_some()
    }

    /// Records an answer of the store.
    fn heard(&self) {
        let mut queue = self.queue();
        queue.known.heard += 1;
        queue.silence = None;
    }
}

/// Sends requests for the first waiter until it holds the lock.
#[derive(Default)]
pub(in crate::engine) struct AskForFirst {
    /// The value last seen of a foreign holder.
    foreign: String,
    /// Hand-overs within this process since it last yielded, and the time of the first.
    streak: u32,
    streak_since: Moment,
    /// How often in succession no other process took the lock then.
    untaken: u32,
    /// The last owner in this process.
    granted: Option<Owner>,
    /// When it last yielded.
    left_at: Option<Moment>,
    /// Round trip of the last request.
    hop: Duration,
    /// The store may wake only this process when the lock is free.
    is_expected: bool,
    /// Counts as a pending release from before a request until its outcome is known, because the grant is
    /// released if the waiter leaves meanwhile.
    under_way: Option<PendingRelease>,
}

impl Strategy for AskForFirst {
    type Key = Key;
    type Known = LocalState;
    /// The failure of the waiter's own request, and the number of answers before it.
    type Note = Option<(u64, Failure)>;
    /// It waits for each answer before anything else.
    type Answer = Infallible;

    /// A request for a waiter that has left counts as a pending release until the sleep ends.
    const ENDS_SLEEP: bool = true;

    fn lock(key: &Key) -> &LockName {
        &key.0
    }

    fn joined(known: &mut LocalState, number: u64, ask: &Acquisition) {
        known.owners.insert((ask.owner.clone(), number));
    }

    fn left(known: &mut LocalState, number: u64, ask: &Acquisition) {
        known.owners.remove(&(ask.owner.clone(), number));
    }

    fn silence<'a>(known: &LocalState, note: &'a Self::Note) -> Option<&'a Failure> {
        note.as_ref().filter(|(heard, _)| *heard == known.heard).map(|(_, failure)| failure)
    }

    async fn serve(server: &mut QueueServer<Self>) {
        server.strategy.under_way = Some(server.engine.pending_releases.add(None));
        if let Some((number, ask)) = server.wait_queue.next() {
            server.ask_for(number, ask).await;
        }
        if !server.has_waiters() {
            server.strategy.under_way = None;
        }
    }

    /// Passes on the wake-up if the store wakes only this process.
    fn rest(server: &mut QueueServer<Self>) {
        if std::mem::take(&mut server.strategy.is_expected) {
            server.subscription.rest();
        }
    }

    /// The next waiter sends a request anyway. A task that does not wait may have sent one meanwhile, which
    /// the store counts as waiting.
    fn hear(server: &mut QueueServer<Self>, event: QueueEvent<Infallible>) {
        if let QueueEvent::Heard(Heard::Message(_)) = event {
            server.subscription.rest();
        }
    }

    fn poll_answer(&mut self, _context: &mut Context<'_>) -> Poll<Infallible> {
        Poll::Pending
    }
}

impl QueueServer<AskForFirst> {
    /// One request for a waiter, and the sleep after it.
    async fn ask_for(&mut self, number: u64, ask: Arc<Acquisition>) {
        if !planted(Bug::ListenAfterAsking) {
            self.listen(&ask).await;
        }
        self.yield_to_others().await;
        // This request covers all earlier messages and notifications.
        self.subscription.drain();
        if !self.wait_queue.queue().is_closed {
            let _ = self.wait_queue.notify.notified().now_or_never();
        }
        // On a quorum, two clients may each have the members that the other lacks; without a pause they would
        // retry in alternation for ever.
        let is_out_of_turn = ask.spec == LockSpec::Mutex && self.wait_queue.queue().known.has(&ask);
        let sent = self.engine.now();
        let asked = ask.request(true, None, sent).await;
        self.strategy.hop = self.engine.now().since(sent);
        self.strategy.is_expected = !matches!(asked, AcquireOutcome::Held(..) | AcquireOutcome::Lapsed(_));
        if planted(Bug::ListenAfterAsking) {
            self.listen(&ask).await;
        }
        let is_heard = !matches!(asked, AcquireOutcome::Silent(_));
        if is_heard {
            self.wait_queue.heard();
        }
        let pause = match asked {
            AcquireOutcome::Held(held, _) | AcquireOutcome::Lapsed(held) => {
                self.note_turn(&ask.owner);
                let left = held.lease.lapses_at().since(self.engine.now());
                if !self.wait_queue.answer(number, Ok(WaitOutcome::Held(held))) && planted(Bug::WakeSwallowed)
                {
                    return self.engine.runtime.sleep_until(self.engine.now() + CAP).await;
                }
                if self.wait_queue.held_by(Some(ask.owner.clone())) && !planted(Bug::SecondHoldForgotten) {
                    return;
                }
                left.min(CAP)
            }
            AcquireOutcome::Busy { holder, left_ms } => {
                let owner = parse_value(&holder).map(|(owner, _)| owner);
                if owner.is_none() || owner != self.strategy.granted {
                    (self.strategy.streak, self.strategy.untaken) = (0, 0);
                }
                let owner = owner.filter(|owner| *owner != ask.owner);
                if self.wait_queue.held_by(owner) && !is_out_of_turn {
                    return;
                }
                self.pause(&ask, &holder, left_ms)
            }
            // Kinds without a queue never answer this.
            AcquireOutcome::Waiting(_) => CAP,
            // Only this waiter is told; the next one asks at once.
            AcquireOutcome::Refused(error) => {
                self.wait_queue.answer(number, Err(error));
                return;
            }
            // No answer: all waiters go on until their patience is exhausted.
            AcquireOutcome::Silent(failure) => {
                self.note_silence(&failure);
                self.next_backoff()
            }
        };
        let is_mutex = ask.spec == LockSpec::Mutex;
        // A waiter that leaves from now on gives back at once what it may have been granted.
        drop(ask);
        if is_heard {
            self.strategy.under_way = None;
            let station = self.subscription.station().filter(|_| is_mutex);
            self.wait_queue.queue().known.asleep = station.cloned();
        }
        self.sleep(self.engine.now() + pause).await;
    }

    /// Maximum sleep. Where messages announce a release, the rest of the holder's lease, or more if the store
    /// reports its end, too. Otherwise a backoff, because a foreign holder publishes nothing.
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
        // A holder of this library, and a message will announce its release.
        if known.is_some() && left_ms.is_some() && self.subscription.is_open() {
            self.attempt = 1;
            let is_reported = self.engine.store.capabilities().reports_expiry;
            return if is_reported || planted(Bug::EndNotAwaited) { cap } else { left };
        }
        if known.is_none() && self.strategy.foreign != holder {
            // Foreign clients poll often and publish nothing, so a waiter in backoff would never get the lock
            // from them.
            self.attempt = 0;
            holder.clone_into(&mut self.strategy.foreign);
        }
        self.next_backoff().min(left)
    }

    /// Subscribes first, so that nothing is missed between the next request and the sleep after it. A slow
    /// subscription continues beside the request. If the store refuses it, repeated requests take its place.
    async fn listen(&mut self, ask: &Acquisition) {
        if !self.subscription.is_idle() {
            return;
        }
        let within = ask.options.op_timeout;
        let topic = Topic::new(self.wait_queue.name(), ask.spec, Purpose::Ask);
        self.subscription = Subscription::Connecting(self.engine.store.subscribe(topic, within));
        let mut timer = self.engine.runtime.sleep_until(self.engine.now() + SUBSCRIBE.min(within));
        let heard = poll_fn(|context| match self.subscription.poll(context) {
            Poll::Ready(heard) => Poll::Ready(Some(heard)),
            Poll::Pending => timer.poll_unpin(context).map(|()| None),
        });
        if let Some(Heard::Over(Some(failure))) = heard.await {
            self.log_subscribe_error(&failure);
        }
    }

    fn note_turn(&mut self, owner: &Owner) {
        self.strategy.granted = Some(owner.clone());
        if self.strategy.streak == 0 {
            self.strategy.streak_since = self.engine.now();
        }
        self.strategy.streak = self.strategy.streak.saturating_add(1);
    }

    /// Yields to other processes now and then. A request right behind this process's own release always wins,
    /// because other processes have to be woken first. A process that has yielded recently yields further, so
    /// that the one whose last hold is longest ago goes first. A process that waits alone does not yield.
    async fn yield_to_others(&mut self) {
        let released_here = std::mem::take(&mut self.wait_queue.queue().known.is_nudged);
        let hurries = || std::mem::take(&mut self.wait_queue.queue().known.hurries);
        if hurries() {
            return;
        }
        let (now, is_alone) = (self.engine.now(), self.subscription.is_alone());
        let AskForFirst { streak, streak_since, untaken, left_at, hop, .. } = &mut self.strategy;
        let hop = (*hop).clamp(HOP.0, HOP.1);
        let longer = 1 << (*untaken).min(UNTAKEN);
        let is_long = *streak >= STREAK * longer
            || (*streak >= longer && now.since(*streak_since) >= STREAK_TIME * longer);
        let pause = match left_at.map(|left_at| now.since(left_at)) {
            // This process has had the lock many times in succession, and others wait: they are next.
            _ if released_here && is_long && !is_alone => {
                (*streak, *untaken, *left_at) = (0, *untaken + 1, Some(now));
                PAUSE_HOPS * hop
            }
            // It yielded a moment ago: the others' requests go first.
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
            // The permit is meant for this task's main loop.
            if self.wait_queue.queue().is_closed {
                return self.wait_queue.notify.notify_one();
            }
            if hurries() {
                return;
            }
        }
    }

    /// Sleeps until there is news or the next request is due.
    async fn sleep(&mut self, until: Moment) {
        let mut timer = self.engine.runtime.sleep_until(until);
        loop {
            match self.event(&mut timer).await {
                QueueEvent::Notified => break,
                // The message about this process's own release, which the next request already followed.
                QueueEvent::Heard(Heard::Message(Notification::Free { by: Some(by) }))
                    if self.wait_queue.queue().known.departed.as_ref() == Some(&by) => {}
                QueueEvent::Heard(Heard::Message(_) | Heard::Open) => break,
                QueueEvent::Heard(Heard::Over(None)) => {
                    let pause = self.next_backoff();
                    timer = self.engine.runtime.sleep_until(self.engine.now() + pause);
                }
                // The timer is already capped for the unsubscribed case.
                QueueEvent::Heard(Heard::Over(Some(failure))) => self.log_subscribe_error(&failure),
                QueueEvent::Answered(never) => match never {},
                QueueEvent::Time => return,
            }
        }
        self.attempt = 0;
    }
}

#[cfg(test)]
mod tests {
    use rustix::time::{ClockId, clock_gettime};

    use super::*;
    use crate::engine::acquire::Wait;
    use crate::engine::acquisition::Wanted;
    use crate::error::Error;
    use crate::options::Options;
    use crate::runtime::{Driver, Runtime};
    use crate::store::memory::Memory;

    const ANSWERS: u32 = 2_000;

    /// CPU time of this thread, which does not depend on the machine's load.
    fn computed() -> Duration {
        Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a time")
    }

    /// Cost of `ANSWERS` answers in the queue itself with this many waiters.
    fn cost_of_answers(engine: &Arc<Engine>, waiters: u32) -> Duration {
        let name = LockName::new("crowd").expect("a name");
        let options = Arc::new(Options::new());
        let queues = Arc::new(LocalQueues::default());
        // Without a serving task; the answers below take its place.
        let queue = LocalQueue::new((name.clone(), Kind::Mutex));
        queues.all().insert((name.clone(), Kind::Mutex), Arc::clone(&queue));
        let mut places = Vec::new();
        for _ in 0..waiters + ANSWERS {
            let meter = engine.metrics.meter(&options.groups, &name, &name, LockSpec::Mutex);
            let (name, spec, owner, options) = (&name, LockSpec::Mutex, None, &options);
            let ask =
                Acquisition::new(Wanted { engine, name, spec, owner, options, meter, wait: Wait::Forever });
            places.push(queues.join(engine, &Arc::new(ask), None));
        }
        let others = places.split_off(ANSWERS as usize);
        let before = computed();
        for place in places {
            let (number, ask) = queue.next().expect("a waiter");
            assert_eq!(number, place.number);
            assert!(queue.answer(number, Err(Error::invalid("an answer"))));
            assert!(!queue.held_by(Some(ask.owner.clone())));
            drop(place);
        }
        let cost = computed() - before;
        drop(others);
        cost
    }

    #[test]
    fn an_answer_costs_about_the_same_however_many_wait() {
        let driver = Driver::start().expect("a thread");
        let runtime = Arc::clone(&driver) as Arc<dyn Runtime>;
        let store = Arc::new(Memory::new(Arc::clone(&runtime), "memory:"));
        let engine = Engine::new(store, runtime);
        cost_of_answers(&engine, 100);
        let (few, many) = (cost_of_answers(&engine, 100), cost_of_answers(&engine, 100_000));
        assert!(many < few * 10, "{ANSWERS} answers cost {few:?} beside 100 others, {many:?} beside 100,000");
        driver.stop();
    }
}
