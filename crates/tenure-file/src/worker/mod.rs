//! The store's background task: executes requests in order, waits for the guard without blocking its thread,
//! and notifies listeners of changes.

mod looks;
mod pass;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::{mpsc, oneshot};

use self::pass::PassOutcome;
use super::apply::{Applied, now};
use super::directory::{Directory, HeldGuard};
use super::error::shown;
use super::inotify::DirectoryWatch;
use super::names::RecordId;
use super::shared::{Core, Handed, SharedDirectory};
use super::sweep::Sweep;
use super::watch::{Listeners, WatchMode};
use tenure_core::events::{event, text};
use tenure_core::moment::Moment;
use tenure_core::name::LockName;
use tenure_core::planted::{Bug, planted};
use tenure_core::protocol::record::{RecordAnswer, RecordOp};
use tenure_core::protocol::{Answer, Notification, Now, Op};
use tenure_core::runtime::Runtime;
use tenure_core::store::{Cursor, Failure, Listener, Page, RecordPage, Signals};

/// Immediate retries of a busy guard, then the minimum and maximum backoff of later ones.
const EAGER: u32 = 8;
const PAUSE: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(8)];
/// Timer delay that indicates CPU starvation of this process, and how many times a request's timeout is
/// restarted for that reason.
const STARVED: Duration = Duration::from_millis(200);
const STARVED_TIMES: u32 = 3;

/// A request and its deadline.
pub(crate) struct Job {
    ask: JobRequest,
    sent: Moment,
    within: Duration,
    until: Moment,
    /// How many times its timeout was restarted because of CPU starvation.
    starved: u32,
    /// Keeps later requests from being executed on callers' threads.
    _handed: Option<Handed>,
}

impl Job {
    pub(crate) fn new(ask: JobRequest, now: Moment, within: Duration, handed: Option<Handed>) -> Self {
        Self { ask, sent: now, within, until: now + within, starved: 0, _handed: handed }
    }
}

pub(crate) type Promise<T> = oneshot::Sender<Result<T, Failure>>;

pub(crate) enum JobRequest {
    Call(Op, Promise<Answer>),
    Record(RecordOp, Promise<RecordAnswer>),
    Listen {
        name: LockName,
        hears: WatchMode,
        promise: Promise<Listener>,
    },
    /// For holders of this lock.
    ListenWhileHeld(LockName, Promise<Listener>),
    /// This process stops waiting for a lock without a queue.
    Rest(RecordId),
    List {
        prefix: String,
        from: Cursor,
        promise: Promise<Page>,
    },
    ListRecords {
        prefix: String,
        from: Cursor,
        promise: Promise<RecordPage>,
    },
    Ready(Promise<()>),
    /// A change made on a caller's thread, to be published to the listeners.
    Heard((RecordId, Applied)),
}

impl JobRequest {
    // The caller may have dropped its future, so a failed send is ignored.
    fn fail(self, failure: Failure) {
        match self {
            Self::Call(_, promise) => drop(promise.send(Err(failure))),
            Self::Record(_, promise) => drop(promise.send(Err(failure))),
            Self::Listen { promise, .. } | Self::ListenWhileHeld(_, promise) => {
                drop(promise.send(Err(failure)))
            }
            Self::List { promise, .. } => drop(promise.send(Err(failure))),
            Self::ListRecords { promise, .. } => drop(promise.send(Err(failure))),
            Self::Ready(promise) => drop(promise.send(Err(failure))),
            Self::Heard(_) | Self::Rest(_) => {}
        }
    }
}

/// The task's state.
pub(super) struct DirectoryWorker {
    path: PathBuf,
    runtime: Arc<dyn Runtime>,
    signals: Signals,
    jobs: mpsc::UnboundedReceiver<Job>,
    queue: VecDeque<Job>,
    /// A thread waiting for the guard, at most one. If its result is no longer needed, the guard is released
    /// as soon as it arrives.
    waiting: Option<oneshot::Receiver<HeldGuard>>,
    shared: Arc<SharedDirectory>,
    sweep: Option<Sweep>,
    /// When the next piece of the sweep is due.
    sweep_at: Option<BoxFuture<'static, ()>>,
    listeners: Listeners,
    watch: Option<DirectoryWatch>,
    /// The next look, and when it is due; `None` while there is nothing to look at.
    look: Option<(Moment, BoxFuture<'static, ()>)>,
    /// Locks left to look at in this round, and when the round began.
    looking: Vec<RecordId>,
    looking_since: Moment,
    idle_looks: u32,
    /// When a holder's file was closed last.
    closed_at: Moment,
    /// Next look at the locks that normally rely on wake-ups.
    rare_at: Moment,
    /// Next cleanup of listeners, unless a look does it before.
    forget_at: Moment,
}

enum WorkerEvent {
    Job(Job),
    Due(DueEvent),
    End,
}

/// What the worker has to do besides requests.
enum DueEvent {
    Seen,
    Called,
    Look,
    Sweep,
}

/// What ended a wait for the guard.
enum Waited {
    Guard(Option<HeldGuard>),
    Job(Job),
    Due,
}

impl DirectoryWorker {
    pub(super) fn new(
        path: PathBuf,
        runtime: Arc<dyn Runtime>,
        shared: Arc<SharedDirectory>,
        signals: Signals,
        jobs: mpsc::UnboundedReceiver<Job>,
    ) -> Self {
        Self {
            path,
            runtime,
            signals,
            jobs,
            queue: VecDeque::new(),
            waiting: None,
            shared,
            sweep: None,
            sweep_at: None,
            listeners: Listeners::default(),
            watch: None,
            look: None,
            looking: Vec::new(),
            looking_since: Moment(0),
            idle_looks: 0,
            closed_at: Moment(0),
            rare_at: Moment(0),
            forget_at: Moment(0),
        }
    }

    fn now(&self) -> Now {
        now(&*self.runtime, self.shared.offset_ms)
    }

    pub(super) async fn run(mut self) {
        loop {
            match self.next().await {
                WorkerEvent::Job(job) => {
                    self.take_in(job);
                    self.serve().await;
                }
                WorkerEvent::Due(due) => {
                    self.on_due(due);
                    self.serve().await;
                }
                WorkerEvent::End => return,
            }
        }
    }

    fn on_due(&mut self, due: DueEvent) {
        match due {
            DueEvent::Seen => self.hear(Vec::new()),
            DueEvent::Called => self.called(),
            DueEvent::Sweep => self.sweep(),
            DueEvent::Look => self.look(),
        }
    }

    /// Queues a request. Changes made on callers' threads are published to the listeners.
    fn take_in(&mut self, job: Job) {
        match job.ask {
            JobRequest::Heard(applied) => {
                self.hear(vec![applied]);
                self.forget();
            }
            // This process is not in the list, and no queued request could add it.
            JobRequest::Rest(id) if self.queue.is_empty() && !self.shared.core().holders.has_come_in(id) => {}
            _ => self.queue.push_back(job),
        }
    }

    /// Waits for the next event.
    async fn next(&mut self) -> WorkerEvent {
        poll_fn(|context| {
            if self.waiting.as_mut().is_some_and(|guard| guard.poll_unpin(context).is_ready()) {
                // The request it was for is gone, so the guard is released.
                self.waiting = None;
            }
            match self.jobs.poll_recv(context) {
                Poll::Ready(Some(job)) => return Poll::Ready(WorkerEvent::Job(job)),
                Poll::Ready(None) => return Poll::Ready(WorkerEvent::End),
                Poll::Pending => {}
            }
            self.poll_due(context).map(WorkerEvent::Due)
        })
        .await
    }

    /// What is due besides requests.
    fn poll_due(&mut self, context: &mut Context<'_>) -> Poll<DueEvent> {
        if self.watch.as_ref().is_some_and(|watch| watch.poll_ready(context).is_ready()) {
            return Poll::Ready(DueEvent::Seen);
        }
        if self.shared.core().holders.poll_called(context).is_ready() {
            return Poll::Ready(DueEvent::Called);
        }
        if self.sweep_at.as_mut().is_some_and(|sweep| sweep.poll_unpin(context).is_ready()) {
            return Poll::Ready(DueEvent::Sweep);
        }
        if self.look.as_mut().is_some_and(|(_, look)| look.poll_unpin(context).is_ready()) {
            return Poll::Ready(DueEvent::Look);
        }
        Poll::Pending
    }

    /// Executes every queued request, or fails it once its timeout has passed.
    async fn serve(&mut self) {
        let (mut attempts, mut replaced) = (0, 0);
        let (mut locked, mut modified) = (None, self.waiting.as_ref().and_then(|_| self.modified()));
        while !self.queue.is_empty() {
            match self.pass(locked.take()) {
                Ok(PassOutcome::Done) => {
                    (attempts, replaced, self.waiting) = (0, 0, None);
                    // The requests of busy callers never end.
                    if let Poll::Ready(due) = poll_fn(|context| Poll::Ready(self.poll_due(context))).await {
                        self.on_due(due);
                    }
                }
                Ok(PassOutcome::Locked) => {
                    let first_due = |queue: &VecDeque<Job>| queue.iter().map(|job| job.until).min();
                    let due = first_due(&self.queue).unwrap_or_default();
                    if (attempts >= EAGER || due <= self.runtime.now()) && self.waiting.is_none() {
                        self.waiting = self.wait_for_guard();
                        modified = self.modified();
                        if self.waiting.is_some() {
                            self.begin_to_wait();
                        }
                    }
                    let due = first_due(&self.queue).unwrap_or_default();
                    match self.waiting.take() {
                        Some(mut guard) => match self.wait(&mut guard, due).await {
                            Waited::Guard(Some(taken)) => locked = Some(taken),
                            // The file system cannot wait, as NFS cannot with a file that is open for reading.
                            Waited::Guard(None) => {
                                self.pause(attempts).await;
                                self.expire(false, false);
                            }
                            Waited::Job(job) => {
                                self.take_in(job);
                                self.waiting = Some(guard);
                            }
                            Waited::Due => {
                                let now = self.modified();
                                let moves = std::mem::replace(&mut modified, now) != now;
                                self.expire(moves, self.runtime.now().since(due) >= STARVED);
                                self.waiting = Some(guard);
                            }
                        },
                        None => {
                            self.pause(attempts).await;
                            self.expire(false, false);
                        }
                    }
                    attempts += 1;
                }
                Ok(PassOutcome::Replaced) if replaced < 3 => {
                    replaced += 1;
                    self.replaced();
                }
                Ok(PassOutcome::Replaced) => {
                    let text = format!("{} keeps being replaced", shown(&self.path));
                    self.fail_first(Failure::NotSent(Failure::cause(text)));
                }
                Err(failure) => self.fail_first(failure),
            }
            while let Ok(job) = self.jobs.try_recv() {
                self.take_in(job);
            }
            if !self.queue.is_empty() {
                // A caller may answer each result with a new request, without end; renewals and timers share
                // this thread.
                tokio::task::yield_now().await;
            }
        }
    }

    /// When another process last changed something.
    fn modified(&self) -> Option<[(i64, u64); 3]> {
        self.shared.core().directory.as_ref().and_then(Directory::modified)
    }

    fn fail_first(&mut self, failure: Failure) {
        if let Some(job) = self.queue.pop_front() {
            job.ask.fail(failure);
        }
    }

    /// Yields first and then sleeps with exponential backoff: a process normally holds the guard for some ten
    /// microseconds, unless it was stopped.
    async fn pause(&mut self, attempts: u32) {
        if attempts < EAGER {
            return tokio::task::yield_now().await;
        }
        let pause = (PAUSE[0] * 2_u32.pow((attempts - EAGER).min(8))).min(PAUSE[1]);
        // Jitter, so that two waiters do not collide again.
        let jitter = Duration::from_nanos(self.runtime.random() % (pause.as_nanos() as u64 / 2));
        let end = self.runtime.now() + pause - jitter;
        // Wakes early if a request times out before the end of the pause.
        let due = self.queue.iter().map(|job| job.until).min();
        let due = due.filter(|due| *due < end && !planted(Bug::LateRefusal));
        self.runtime.sleep_until(due.unwrap_or(end)).await;
    }

    /// Waits for the guard, another request, or the first timeout.
    async fn wait(&mut self, guard: &mut oneshot::Receiver<HeldGuard>, due: Moment) -> Waited {
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

    /// Waits for the guard on another thread, if the runtime has one.
    fn wait_for_guard(&self) -> Option<oneshot::Receiver<HeldGuard>> {
        let guard = self.shared.core().directory.as_ref()?.guard_to_wait_for()?;
        let (sender, receiver) = oneshot::channel();
        let wait = move || {
            if let Ok(locked) = guard.wait() {
                // If the receiver is gone, dropping the value releases the guard.
                let _ = sender.send(locked);
            }
        };
        self.runtime.spawn_blocking(Box::new(wait)).then_some(receiver)
    }

    /// From now on this process is in the kernel's queue for the guard. CPU starvation before this point says
    /// nothing about whether the guard is stuck.
    fn begin_to_wait(&mut self) {
        let now = self.runtime.now();
        self.queue.iter_mut().for_each(|job| job.until = job.until.max(now + job.within));
    }

    /// Fails the requests that have timed out, unless other processes make changes meanwhile: then the guard
    /// is being passed on, and this process is in the kernel's queue for it. If this process was starved of
    /// CPU, the guard's owner may have been too.
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

    /// Another directory is at the path: drops all state of the old one.
    fn replaced(&mut self) {
        let mut core = self.shared.core();
        let Core { directory, holders, .. } = std::mem::take(&mut *core);
        core.holders.ask_as(&holders);
        drop(core);
        // It belongs to the old directory's guard.
        self.waiting = None;
        let Some(directory) = directory else { return };
        self.watch.iter_mut().for_each(DirectoryWatch::end);
        holders.leave(&directory);
        (self.sweep, self.sweep_at) = (None, None);
        self.listeners.tell_all(&Notification::Reconnected);
        self.signals.interrupt();
        event!(
            WARN,
            target: "tenure",
            "directory_replaced",
            "the directory was replaced: its locks are gone",
            directory = text(shown(&self.path)),
        );
    }
}

impl Drop for DirectoryWorker {
    fn drop(&mut self) {
        let (mut core, is_sound) = self.shared.last();
        let Core { directory, holders, .. } = std::mem::take(&mut *core);
        if !is_sound || std::thread::panicking() {
            // Callers may still believe that they hold locks. Keep the files flocked, so that the leases end
            // the holds.
            std::mem::forget(holders);
        } else if let Some(directory) = directory {
            holders.leave(&directory);
        }
    }
}
