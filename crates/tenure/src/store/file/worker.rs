//! The task that does the store's work: it takes requests in their order, waits for the guard
//! without blocking its thread, and tells those who listen what became free.

use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::{mpsc, oneshot, watch::Sender};

use super::apply::{Applied, apply, changed as changed_to, looked, now, page};
use super::beside::apply_to_record;
use super::bindings::Bindings;
use super::directory::{Directory, Entered, Inside, Locked};
use super::error::shown;
use super::holders::Holders;
use super::lock::Lock;
use super::names::{HolderId, RecordId};
use super::shared::{Core, Handed, SWEEP, Shared};
use super::sweep::Sweep;
use super::watch::{Listeners, Seen, Watch};
use crate::events::{event, text};
use crate::moment::Moment;
use crate::name::LockName;
use crate::planted::{Bug, planted};
use crate::protocol::record::{RecordAnswer, RecordOp, RecordVerb};
use crate::protocol::{Answer, LockSpec, Notification, Now, Op, Verb};
use crate::runtime::Runtime;
use crate::store::{Cursor, Failure, Listener, Page};

/// So many requests are answered before the guard is given back, so that other processes have their
/// turn.
const BATCH: usize = 32;
/// So often a busy guard is asked for again at once, and how long the pauses between later attempts
/// are.
const EAGER: u32 = 8;
const PAUSE: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(8)];
/// How often the locks that a process listens to are looked at. A release and most crashes are seen
/// at once.
const LOOK: Duration = Duration::from_millis(200);
/// A timer that is so late says that this process had no processor; so often a request is given its
/// time again for that.
const STARVED: Duration = Duration::from_millis(200);
const STARVED_TIMES: u32 = 3;
/// How long after a holder's file was closed its flock has certainly gone too.
const AFTER_CLOSE: Duration = Duration::from_millis(1);
/// How many looks without a listener end the watch.
const IDLE_LOOKS: u32 = 25;
/// So many locks are looked at before other tasks run.
const LOOKS: usize = 32;
/// The looks take at most one part in so many of the time.
const SHARE: u32 = 4;
/// The pause between two pieces of a sweep.
const PIECE_PAUSE: Duration = Duration::from_millis(2);

/// A request, and by when it must be answered.
pub(super) struct Job {
    ask: Request,
    within: Duration,
    until: Moment,
    /// How often it was given its time again because this process had no processor.
    starved: u32,
    /// While it is here, no later request is carried out elsewhere.
    _handed: Option<Handed>,
}

impl Job {
    pub(super) fn new(ask: Request, now: Moment, within: Duration, handed: Option<Handed>) -> Self {
        Self { ask, within, until: now + within, starved: 0, _handed: handed }
    }
}

pub(super) type Promise<T> = oneshot::Sender<Result<T, Failure>>;

pub(super) enum Request {
    Call(Op, Promise<Answer>),
    Record(RecordOp, Promise<RecordAnswer>),
    Listen(LockName, LockSpec, Promise<Listener>),
    /// For holders of this lock.
    ListenWhileHeld(LockName, Promise<Listener>),
    List {
        prefix: String,
        from: Cursor,
        promise: Promise<Page>,
    },
    Ready(Promise<()>),
    /// A caller's thread has done this: those who listen are to hear of it.
    Heard((RecordId, Applied)),
}

impl Request {
    // The process that asked may be gone: no process is left to tell then.
    fn fail(self, failure: Failure) {
        match self {
            Self::Call(_, promise) => drop(promise.send(Err(failure))),
            Self::Record(_, promise) => drop(promise.send(Err(failure))),
            Self::Listen(_, _, promise) | Self::ListenWhileHeld(_, promise) => {
                drop(promise.send(Err(failure)))
            }
            Self::List { promise, .. } => drop(promise.send(Err(failure))),
            Self::Ready(promise) => drop(promise.send(Err(failure))),
            Self::Heard(_) => {}
        }
    }
}

/// The task's state.
pub(super) struct Worker {
    path: PathBuf,
    runtime: Arc<dyn Runtime>,
    replaced: Arc<Sender<u64>>,
    jobs: mpsc::UnboundedReceiver<Job>,
    queue: VecDeque<Job>,
    shared: Arc<Shared>,
    sweep: Option<Sweep>,
    /// When to do the next piece of the sweep.
    sweep_at: Option<BoxFuture<'static, ()>>,
    listeners: Listeners,
    watch: Option<Watch>,
    /// When to look again; none while there is nothing to look at.
    look: Option<BoxFuture<'static, ()>>,
    /// What is still to be looked at in this round, which began then.
    looking: Vec<RecordId>,
    looking_since: Moment,
    idle_looks: u32,
}

enum Event {
    Job(Job),
    Seen,
    Called,
    Look,
    Sweep,
    End,
}

/// A request that was carried out, and its answer.
enum Answered {
    Call(Promise<Answer>, Result<Answer, Failure>),
    Record(Promise<RecordAnswer>, Result<RecordAnswer, Failure>),
}

impl Answered {
    // The process that asked may be gone: no process is left to tell then.
    fn send(self) {
        match self {
            Self::Call(promise, reply) => drop(promise.send(reply)),
            Self::Record(promise, answer) => drop(promise.send(answer)),
        }
    }
}

/// What was done in one turn.
#[derive(Default)]
struct Done {
    requests: usize,
    applied: Vec<(RecordId, Applied)>,
    replies: Vec<Answered>,
    listing: Option<(String, Cursor, Promise<Page>)>,
}

/// What came of one turn under the guard.
enum Turn {
    Done,
    Locked,
    Replaced,
}

/// What ended a wait for the guard.
enum Waited {
    Guard(Option<Locked>),
    Job(Job),
    Due,
}

impl Worker {
    pub(super) fn new(
        path: PathBuf,
        runtime: Arc<dyn Runtime>,
        shared: Arc<Shared>,
        replaced: Arc<Sender<u64>>,
        jobs: mpsc::UnboundedReceiver<Job>,
    ) -> Self {
        Self {
            path,
            runtime,
            replaced,
            jobs,
            queue: VecDeque::new(),
            shared,
            sweep: None,
            sweep_at: None,
            listeners: Listeners::default(),
            watch: None,
            look: None,
            looking: Vec::new(),
            looking_since: Moment(0),
            idle_looks: 0,
        }
    }

    fn now(&self) -> Now {
        now(&*self.runtime, self.shared.offset_ms)
    }

    pub(super) async fn run(mut self) {
        loop {
            match self.next().await {
                Event::Job(job) => {
                    self.take_in(job);
                    self.serve().await;
                }
                Event::Seen => self.hear(Vec::new()),
                Event::Called => self.called(),
                Event::Sweep => self.sweep(),
                Event::Look => self.look(),
                Event::End => return,
            }
        }
    }

    /// Puts a request in the queue. What was done elsewhere is passed on.
    fn take_in(&mut self, job: Job) {
        match job.ask {
            Request::Heard(applied) => self.hear(vec![applied]),
            _ => self.queue.push_back(job),
        }
    }

    /// Waits for the first event.
    async fn next(&mut self) -> Event {
        poll_fn(|context| {
            match self.jobs.poll_recv(context) {
                Poll::Ready(Some(job)) => return Poll::Ready(Event::Job(job)),
                Poll::Ready(None) => return Poll::Ready(Event::End),
                Poll::Pending => {}
            }
            if self.watch.as_ref().is_some_and(|watch| watch.poll_ready(context).is_ready()) {
                return Poll::Ready(Event::Seen);
            }
            if self.shared.core().holders.poll_called(context).is_ready() {
                return Poll::Ready(Event::Called);
            }
            if self.sweep_at.as_mut().is_some_and(|sweep| sweep.poll_unpin(context).is_ready()) {
                return Poll::Ready(Event::Sweep);
            }
            if self.look.as_mut().is_some_and(|look| look.poll_unpin(context).is_ready()) {
                return Poll::Ready(Event::Look);
            }
            Poll::Pending
        })
        .await
    }

    /// Answers everything that is asked, or fails it when its time is over: nothing waits longer
    /// than it was told to.
    async fn serve(&mut self) {
        let (mut attempts, mut replaced) = (0, 0);
        // Waits for the guard on its own thread. Dropped, it gives the guard back as soon as
        // it has it.
        let mut waiting: Option<oneshot::Receiver<Locked>> = None;
        let (mut locked, mut modified) = (None, None);
        while !self.queue.is_empty() {
            match self.turn(locked.take()) {
                Ok(Turn::Done) => (attempts, replaced, waiting) = (0, 0, None),
                Ok(Turn::Locked) => {
                    let first_due = |queue: &VecDeque<Job>| queue.iter().map(|job| job.until).min();
                    let due = first_due(&self.queue).unwrap_or_default();
                    if (attempts >= EAGER || due <= self.runtime.now()) && waiting.is_none() {
                        waiting = self.wait_for_guard();
                        modified = self.modified();
                        if waiting.is_some() {
                            self.begin_to_wait();
                        }
                    }
                    let due = first_due(&self.queue).unwrap_or_default();
                    match waiting.take() {
                        Some(mut guard) => match self.wait(&mut guard, due).await {
                            Waited::Guard(taken) => locked = taken,
                            Waited::Job(job) => {
                                self.take_in(job);
                                waiting = Some(guard);
                            }
                            Waited::Due => {
                                let now = self.modified();
                                let moves = std::mem::replace(&mut modified, now) != now;
                                self.expire(moves, self.runtime.now().since(due) >= STARVED);
                                waiting = Some(guard);
                            }
                        },
                        None => {
                            self.pause(attempts).await;
                            self.expire(false, false);
                        }
                    }
                    attempts += 1;
                }
                Ok(Turn::Replaced) if replaced < 3 => {
                    replaced += 1;
                    self.replaced();
                }
                Ok(Turn::Replaced) => {
                    let text = format!("{} is replaced again and again", shown(&self.path));
                    self.fail_first(Failure::NotSent(Failure::cause(text)));
                }
                Err(failure) => self.fail_first(failure),
            }
            while let Ok(job) = self.jobs.try_recv() {
                self.take_in(job);
            }
            if !self.queue.is_empty() {
                // The process that was answered has asked again, and so on without end: renewals
                // and timers share this thread.
                tokio::task::yield_now().await;
            }
        }
    }

    /// When another process was last seen to change something.
    fn modified(&self) -> Option<[(i64, u64); 3]> {
        self.shared.core().directory.as_ref().and_then(Directory::modified)
    }

    fn fail_first(&mut self, failure: Failure) {
        if let Some(job) = self.queue.pop_front() {
            job.ask.fail(failure);
        }
    }

    /// Lets other tasks run, then sleeps longer and longer: the process that is inside is out again
    /// in some ten microseconds, unless it was stopped there.
    async fn pause(&mut self, attempts: u32) {
        if attempts < EAGER {
            return tokio::task::yield_now().await;
        }
        let pause = (PAUSE[0] * 2_u32.pow((attempts - EAGER).min(8))).min(PAUSE[1]);
        // Some earlier, some later, so that two who wait do not meet again.
        let jitter = Duration::from_nanos(self.runtime.random() % (pause.as_nanos() as u64 / 2));
        let end = self.runtime.now() + pause - jitter;
        // A request whose time is over by then is told so, and not only afterwards.
        let due = self.queue.iter().map(|job| job.until).min();
        let due = due.filter(|due| *due < end && !planted(Bug::LateRefusal));
        self.runtime.sleep_until(due.unwrap_or(end)).await;
    }

    /// Waits for the guard, for another request, or until the first request is due.
    async fn wait(&mut self, guard: &mut oneshot::Receiver<Locked>, due: Moment) -> Waited {
        let mut timer = self.runtime.sleep_until(due);
        poll_fn(|context| {
            if let Poll::Ready(taken) = guard.poll_unpin(context) {
                return Poll::Ready(Waited::Guard(taken.ok()));
            }
            if let Poll::Ready(Some(job)) = self.jobs.poll_recv(context) {
                return Poll::Ready(Waited::Job(job));
            }
            timer.poll_unpin(context).map(|()| Waited::Due)
        })
        .await
    }

    /// Has another thread wait for the guard, if there are threads.
    fn wait_for_guard(&self) -> Option<oneshot::Receiver<Locked>> {
        let guard = self.shared.core().directory.as_ref()?.guard_to_wait_for()?;
        let (sender, receiver) = oneshot::channel();
        let wait = move || {
            if let Ok(locked) = guard.wait() {
                // If it is too late, what is not taken gives the guard back.
                let _ = sender.send(locked);
            }
        };
        self.runtime.spawn_blocking(Box::new(wait)).then_some(receiver)
    }

    /// From here on this process is in the system's queue for the guard: what it had no processor
    /// for before is no sign that the guard is stuck.
    fn begin_to_wait(&mut self) {
        let now = self.runtime.now();
        self.queue.iter_mut().for_each(|job| job.until = job.until.max(now + job.within));
    }

    /// Refuses the requests whose time is over, unless others make changes meanwhile. Then the
    /// guard goes from process to process, and this one is in the system's queue for it. If it
    /// had no processor for a while, the one that has the guard may have had none either.
    fn expire(&mut self, moves: bool, starved: bool) {
        let now = self.runtime.now();
        for job in self.queue.iter_mut().filter(|job| job.until <= now) {
            let is_starved = starved && job.starved < STARVED_TIMES;
            if moves || is_starved {
                job.until = now + job.within;
                job.starved += u32::from(!moves);
            }
        }
        let (over, rest) = std::mem::take(&mut self.queue).into_iter().partition(|job| job.until <= now);
        self.queue = rest;
        let over: VecDeque<Job> = over;
        for job in over {
            let guard = self.path.join("guard");
            let text = format!("{} is locked by another process, which may be stopped", shown(&guard));
            job.ask.fail(Failure::NotSent(Failure::cause(text)));
        }
    }

    /// Answers the first in the queue without a directory, if it only wants to see the holders:
    /// that is no reason to make one.
    fn sees_nothing(&mut self) -> bool {
        let Some(job) = self.queue.pop_front() else { return false };
        match job.ask {
            Request::Call(Op { verb: Verb::Inspect, .. }, promise) => {
                let _ = promise.send(Ok(Answer::Free));
            }
            Request::Record(RecordOp { verb: RecordVerb::Read, .. }, promise) => {
                let now_us = self.now().unix_us;
                let _ = promise.send(Ok(RecordAnswer::Read { record: None, now_us }));
            }
            Request::List { promise, .. } => {
                let _ = promise.send(Ok(Page { locks: Vec::new(), next: None }));
            }
            ask => {
                self.queue.push_front(Job { ask, ..job });
                return false;
            }
        }
        true
    }

    /// Enters once and answers what is in the queue, as far as a batch reaches.
    fn turn(&mut self, locked: Option<Locked>) -> Result<Turn, Failure> {
        let shared = Arc::clone(&self.shared);
        let mut core = shared.core();
        let (begun, mut done) = (self.runtime.now(), Done::default());
        let turn = self.enter(&mut core, locked, &mut done);
        if let (Ok(Turn::Done), None) = (&turn, &done.listing) {
            shared.took(self.runtime.now().since(begun), done.requests);
        }
        // Outside the guard, so that a process that is called does not wait for it; and before the
        // answers, because a process that has released its lock may end at once.
        if let Some(directory) = &core.directory {
            for (id, applied) in &done.applied {
                applied.calls.iter().for_each(|holder| directory.call(*holder, *id));
            }
        }
        if let (Some((prefix, from, promise)), Some(directory)) = (done.listing, &core.directory) {
            // Long, and each record is whole in itself: no reason to keep others out meanwhile.
            let _ = promise.send(page(directory, self.now(), &prefix, &from));
        }
        // Who is answered may ask again at once.
        drop(core);
        done.replies.into_iter().for_each(Answered::send);
        if !self.listeners.is_empty() && matches!(turn, Ok(Turn::Done)) {
            self.hear(done.applied);
        }
        turn
    }

    fn enter(&mut self, core: &mut Core, locked: Option<Locked>, done: &mut Done) -> Result<Turn, Failure> {
        let directory = match core.directory.take() {
            Some(directory) => directory,
            None if matches!(self.path.try_exists(), Ok(false)) && self.sees_nothing() => {
                return Ok(Turn::Done);
            }
            None => Directory::open(&self.path)?,
        };
        let Core { directory: open, holders, swept } = core;
        let directory = &*open.insert(directory);
        let cannot_be_called = holders.cannot_be_called();
        let watches = |job: &Job| match &job.ask {
            Request::Listen(_, rule, _) => cannot_be_called || !matches!(rule, LockSpec::Queue(_)),
            Request::ListenWhileHeld(..) => cannot_be_called,
            _ => false,
        };
        if self.listeners.any_watches() || self.queue.iter().take(BATCH).any(watches) {
            // Outside the guard: beginning to watch takes the longer the more files there are.
            listen(&mut self.watch, directory);
        }
        let mut inside = match directory.enter(locked)? {
            Entered::Inside(inside) => inside,
            Entered::Locked => return Ok(Turn::Locked),
            Entered::Replaced => return Ok(Turn::Replaced),
        };
        let (runtime, offset_ms) = (&*self.runtime, self.shared.offset_ms);
        if self.sweep.is_none() && swept.is_none_or(|swept| runtime.now().since(swept) >= SWEEP) {
            *swept = Some(runtime.now());
            match Sweep::new(&inside, runtime.random()) {
                Ok(sweep) => self.sweep = Some(sweep),
                Err(failure) => not_swept(&failure),
            }
            self.sweep_at = do_piece(&mut self.sweep, &inside, holders, runtime, offset_ms);
        }
        for _ in 0..BATCH {
            let Some(Job { ask, _handed, .. }) = self.queue.pop_front() else { break };
            done.requests += 1;
            match ask {
                Request::Call(op, promise) => {
                    let now = now(runtime, offset_ms);
                    let applied = apply(&mut inside, holders, now, runtime, &op);
                    let reply = applied.map(|applied| {
                        let answer = applied.answer.clone();
                        done.applied.push((RecordId::of(&op.name), applied));
                        answer
                    });
                    done.replies.push(Answered::Call(promise, reply));
                }
                Request::Record(op, promise) => {
                    let now = now(runtime, offset_ms);
                    let answer = apply_to_record(&mut inside, holders, now, runtime, &op);
                    let answer = answer.map(|(answer, applied)| {
                        done.applied.extend(applied.map(|applied| (RecordId::of(&op.lock), applied)));
                        answer
                    });
                    done.replies.push(Answered::Record(promise, answer));
                }
                Request::Listen(name, rule, promise) => {
                    let (id, is_called) =
                        (RecordId::of(&name), !cannot_be_called && matches!(rule, LockSpec::Queue(_)));
                    let listener = Listener::new(|sender| {
                        self.listeners.add(id, sender, is_called);
                        Box::new(())
                    });
                    // Before the guard is given back: every later change is heard.
                    self.shared.listens.store(true, Ordering::Release);
                    if is_called {
                        // Whether its place is at the front of the line.
                        if self.looking.is_empty() {
                            self.looking_since = runtime.now();
                        }
                        self.looking.push(id);
                        self.look = Some(runtime.sleep_until(runtime.now()));
                    } else {
                        self.look.get_or_insert_with(|| runtime.sleep_until(runtime.now() + LOOK));
                    }
                    let _ = promise.send(Ok(listener));
                }
                Request::ListenWhileHeld(name, promise) => {
                    let id = RecordId::of(&name);
                    let bindings = Lock::peek(&inside, id).ok().flatten().map(|record| record.bindings);
                    for (_, holder) in bindings.iter().flat_map(Bindings::iter) {
                        holders.listen(&inside, holder);
                    }
                    let is_called = !holders.cannot_be_called();
                    let listener = Listener::new(|sender| {
                        self.listeners.add_holder(id, sender, is_called);
                        Box::new(())
                    });
                    self.shared.listens.store(true, Ordering::Release);
                    if !is_called {
                        self.look.get_or_insert_with(|| runtime.sleep_until(runtime.now() + LOOK));
                    }
                    let _ = promise.send(Ok(listener));
                }
                Request::Ready(promise) => {
                    let _ = promise.send(inside.probe());
                }
                Request::List { prefix, from, promise } => {
                    done.listing = Some((prefix, from, promise));
                    break;
                }
                Request::Heard(_) => {}
            }
        }
        Ok(Turn::Done)
    }

    /// Passes on what was seen. `own` is what this store's own requests have done; the system
    /// reports that as well.
    fn hear(&mut self, own: Vec<(RecordId, Applied)>) {
        let mut changed = BTreeSet::new();
        for seen in self.watch.as_ref().map(Watch::read).unwrap_or_default() {
            match seen {
                Seen::Changed(_) if planted(Bug::ChangeUnheard) => {}
                Seen::Changed(id) => drop(changed.insert(id)),
                Seen::HolderClosed if planted(Bug::DeathUnheard) => {}
                Seen::HolderClosed if self.look.is_some() => self.look_after(AFTER_CLOSE),
                Seen::HolderClosed => {}
                Seen::Replaced => self.replaced(),
                Seen::Missed => self.listeners.tell_all(&Notification::Reconnected),
            }
        }
        let shared = Arc::clone(&self.shared);
        let core = shared.core();
        let Some(directory) = &core.directory else { return };
        let mut near = Vec::new();
        for (id, Applied { wake, is_near, is_forced, .. }) in own {
            if is_forced {
                self.listeners.tell_holders(id);
            }
            if self.listeners.has(id) && is_near && !self.listeners.is_near(id) {
                near.push(id);
            }
            match wake {
                None => {}
                _ if !self.listeners.has(id) => {}
                // Taken again: its new holder frees it again.
                Some(Notification::Free { .. }) if directory.has(id) => {}
                Some(wake @ Notification::Free { .. }) => {
                    changed.remove(&id);
                    self.listeners.tell(id, &wake);
                }
                Some(wake) => self.listeners.tell(id, &wake),
            }
        }
        let now = self.now();
        changed.retain(|id| self.listeners.watches(*id));
        for id in changed {
            if let Some(wake) = changed_to(directory, now, id) {
                self.listeners.tell_news(id, wake);
            }
        }
        drop(core);
        for id in near {
            self.look_at(id);
        }
    }

    /// Looks at the locks about which another process has called.
    fn called(&mut self) {
        let called = self.shared.core().holders.called();
        for id in called {
            if self.listeners.has(id) && !planted(Bug::ChangeUnheard) {
                self.listeners.tell_holders(id);
                self.look_at(id);
            }
        }
    }

    fn look_after(&mut self, delay: Duration) {
        self.look = Some(self.runtime.sleep_until(self.runtime.now() + delay));
    }

    /// Looks at some of what is listened to: a crash may leave no trace, and the system may be
    /// unable to watch.
    fn look(&mut self) {
        if self.looking.is_empty() {
            self.looking = self.listeners.due_looks();
            self.shared.listens.store(!self.listeners.is_empty(), Ordering::Release);
            self.looking_since = self.runtime.now();
            self.idle_looks = if self.looking.is_empty() { self.idle_looks + 1 } else { 0 };
            if !self.looking.is_empty() && !self.listeners.any_watches() {
                self.watch.iter_mut().for_each(Watch::end_directory);
            }
            let watches = self.watch.as_ref().is_some_and(Watch::is_active);
            if self.looking.is_empty() && (!watches || self.idle_looks > IDLE_LOOKS) {
                self.look = None;
                self.watch.iter_mut().for_each(Watch::end);
                return;
            }
        }
        let is_in_place = |directory: &Directory| directory.is_in_place().unwrap_or(true);
        if !self.shared.core().directory.as_ref().is_none_or(is_in_place) {
            self.look_after(LOOK);
            return self.replaced();
        }
        for _ in 0..LOOKS {
            let Some(id) = self.looking.pop() else { break };
            self.look_at(id);
        }
        // Other tasks run in between, and the next round is counted from the end of this one.
        let took = self.runtime.now().since(self.looking_since);
        let pause = if self.looking.is_empty() { LOOK.max(took * SHARE) } else { Duration::ZERO };
        self.look_after(pause);
    }

    /// Looks at one lock. If a place of this process is at the front of the line, those ahead of it
    /// are watched from here on.
    fn look_at(&mut self, id: RecordId) {
        let now = self.now();
        let shared = Arc::clone(&self.shared);
        let core = shared.core();
        let Some(directory) = &core.directory else { return };
        let looked = looked(directory, &core.holders, now, id);
        if self.listeners.set_ahead(id, looked.ahead) {
            let ahead = self.listeners.all_ahead();
            if !ahead.is_empty() && self.watch.is_none() {
                self.watch = new_watch();
            }
            self.watch.iter_mut().for_each(|watch| watch.watch_holders(directory, &ahead));
            // A holder that crashed before it was watched.
            self.look_after(if ahead.is_empty() { LOOK } else { AFTER_CLOSE });
        }
        if let Some(wake) = looked.wake {
            self.listeners.tell_news(id, wake);
        }
    }

    /// Does a piece of the sweep, unless another process is inside.
    fn sweep(&mut self) {
        self.sweep_at = None;
        let core = self.shared.core();
        let Some(directory) = &core.directory else { return };
        let (runtime, offset_ms) = (&*self.runtime, self.shared.offset_ms);
        self.sweep_at = match directory.enter(None) {
            Ok(Entered::Inside(inside)) => {
                do_piece(&mut self.sweep, &inside, &core.holders, runtime, offset_ms)
            }
            Ok(Entered::Locked) => Some(runtime.sleep_until(runtime.now() + PIECE_PAUSE)),
            // The next request notices.
            Ok(Entered::Replaced) | Err(_) => None,
        };
    }

    /// Another directory is at the path now: nothing that was known of the old one counts.
    fn replaced(&mut self) {
        let Core { directory, holders, .. } = std::mem::take(&mut *self.shared.core());
        let Some(directory) = directory else { return };
        self.watch.iter_mut().for_each(Watch::end);
        holders.leave(&directory);
        (self.sweep, self.sweep_at) = (None, None);
        self.listeners.tell_all(&Notification::Reconnected);
        self.replaced.send_modify(|count| *count += 1);
        event!(
            WARN,
            target: "tenure",
            "directory_replaced",
            "the directory was replaced: its locks are gone",
            directory = text(shown(&self.path)),
        );
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let (mut core, is_sound) = self.shared.last();
        let Core { directory, holders, .. } = std::mem::take(&mut *core);
        if !is_sound || std::thread::panicking() {
            // The holder still believes so: then the leases have to end it, not the files.
            std::mem::forget(holders);
        } else if let Some(directory) = directory {
            holders.leave(&directory);
        }
    }
}

/// Does a piece of a sweep, and says when the next is due.
fn do_piece(
    sweep: &mut Option<Sweep>,
    inside: &Inside<'_>,
    holders: &Holders,
    runtime: &dyn Runtime,
    offset_ms: i64,
) -> Option<BoxFuture<'static, ()>> {
    let mut under_way = sweep.take()?;
    match under_way.piece(inside, now(runtime, offset_ms), |id: HolderId| holders.is_mine(id)) {
        Ok(true) => None,
        Ok(false) => {
            *sweep = Some(under_way);
            Some(runtime.sleep_until(runtime.now() + PIECE_PAUSE))
        }
        Err(failure) => {
            not_swept(&failure);
            None
        }
    }
}

fn not_swept(failure: &Failure) {
    event!(DEBUG, target: "tenure", "directory_not_swept", "the directory was not swept", failure = text(failure));
}

/// Has the directory watched, if the system can: otherwise the looks have to do.
fn listen(watch: &mut Option<Watch>, directory: &Directory) {
    if watch.is_none() {
        *watch = new_watch();
    }
    if let Some(Err(errno)) = watch.as_mut().map(|watch| watch.begin(directory)) {
        event!(DEBUG, target: "tenure", "directory_not_watched", "the system does not watch the directory", errno = text(errno));
    }
}

fn new_watch() -> Option<Watch> {
    Watch::new()
        .inspect_err(|error| event!(DEBUG, target: "tenure", "directory_not_watched", "the system gives no inotify object", errno = text(error)))
        .ok()
}
