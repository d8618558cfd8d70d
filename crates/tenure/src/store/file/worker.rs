//! The task that does the store's work: it takes requests in their order, waits for the guard without blocking its
//! thread, and tells those who listen what became free.

use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::{mpsc, oneshot, watch::Sender};

use super::apply::{apply, changed as changed_to, looked, now, page};
use super::directory::{Directory, Entered};
use super::fault::shown;
use super::holders::Holders;
use super::record::RecordId;
use super::watch::{Ears, Seen, Watch};
use crate::events::{event, text};
use crate::name::LockName;
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Op, Reply, Verb, Wake};
use crate::runtime::{Moment, Runtime};
use crate::store::{Cursor, Failure, Listener, Page};

/// So many requests are answered before the guard is given back, so that other processes have their turn.
const BATCH: usize = 32;
/// So often a busy guard is asked for again at once, and how long the pauses between later attempts are.
const EAGER: u32 = 8;
const PAUSE: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(8)];
/// How often the locks that somebody listens to are looked at. A release and most crashes are seen at once.
const LOOK: Duration = Duration::from_millis(200);
/// How long after a holder's file was closed its flock has certainly gone too.
const AFTER_CLOSE: Duration = Duration::from_millis(1);
/// How many looks without a listener end the watch.
const IDLE_LOOKS: u32 = 25;
/// How often what lapsed or crashed is cleared away.
const SWEEP: Duration = Duration::from_secs(60);

/// A request, and by when it must be answered.
pub(super) struct Job {
    pub(super) ask: Ask,
    pub(super) until: Moment,
}

pub(super) type Promise<T> = oneshot::Sender<Result<T, Failure>>;

pub(super) enum Ask {
    Call(Op, Promise<Reply>),
    Listen(LockName, Promise<Listener>),
    List { prefix: String, from: Cursor, promise: Promise<Page> },
    Ready(Promise<()>),
}

impl Ask {
    // Whoever asked may be gone: nobody is left to tell then.
    fn fail(self, failure: Failure) {
        match self {
            Self::Call(_, promise) => drop(promise.send(Err(failure))),
            Self::Listen(_, promise) => drop(promise.send(Err(failure))),
            Self::List { promise, .. } => drop(promise.send(Err(failure))),
            Self::Ready(promise) => drop(promise.send(Err(failure))),
        }
    }
}

/// The task's state. Nobody else touches the directory.
pub(super) struct Worker {
    path: PathBuf,
    runtime: Arc<dyn Runtime>,
    replaced: Arc<Sender<u64>>,
    jobs: mpsc::UnboundedReceiver<Job>,
    queue: VecDeque<Job>,
    directory: Option<Directory>,
    holders: Holders,
    swept: Option<Moment>,
    ears: Ears,
    watch: Option<Watch>,
    /// When to look again; none while nobody listens.
    look: Option<BoxFuture<'static, ()>>,
    idle_looks: u32,
}

enum Event {
    Job(Job),
    Seen,
    Look,
    End,
}

/// What came of one turn under the guard.
enum Turn {
    Done,
    Locked,
    Replaced,
}

impl Worker {
    pub(super) fn new(
        path: PathBuf,
        runtime: Arc<dyn Runtime>,
        replaced: Arc<Sender<u64>>,
        jobs: mpsc::UnboundedReceiver<Job>,
    ) -> Self {
        Self {
            path,
            runtime,
            replaced,
            jobs,
            queue: VecDeque::new(),
            directory: None,
            holders: Holders::default(),
            swept: None,
            ears: Ears::default(),
            watch: None,
            look: None,
            idle_looks: 0,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            match self.next().await {
                Event::Job(job) => {
                    self.queue.push_back(job);
                    self.serve().await;
                }
                Event::Seen => self.hear(Vec::new()),
                Event::Look => self.look(),
                Event::End => return,
            }
        }
    }

    /// Waits for whatever comes first.
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
            if self.look.as_mut().is_some_and(|look| look.poll_unpin(context).is_ready()) {
                return Poll::Ready(Event::Look);
            }
            Poll::Pending
        })
        .await
    }

    /// Answers everything that is asked, or fails it when its time is over: nothing waits longer than it was told to.
    async fn serve(&mut self) {
        let (mut attempts, mut replaced) = (0, 0);
        while !self.queue.is_empty() {
            match self.turn() {
                Ok(Turn::Done) => (attempts, replaced) = (0, 0),
                Ok(Turn::Locked) => {
                    self.pause(attempts).await;
                    attempts += 1;
                    self.expire();
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
                self.queue.push_back(job);
            }
            if !self.queue.is_empty() {
                // Whoever was answered has asked again, and so on without end: renewals and timers share this thread.
                tokio::task::yield_now().await;
            }
        }
    }

    fn fail_first(&mut self, failure: Failure) {
        if let Some(job) = self.queue.pop_front() {
            job.ask.fail(failure);
        }
    }

    /// Lets other tasks run, then sleeps longer and longer: whoever is inside is out again in some ten microseconds,
    /// unless it was stopped there.
    async fn pause(&mut self, attempts: u32) {
        if attempts < EAGER {
            return tokio::task::yield_now().await;
        }
        let pause = (PAUSE[0] * 2_u32.pow((attempts - EAGER).min(8))).min(PAUSE[1]);
        // Some earlier, some later, so that two who wait do not meet again.
        let jitter = Duration::from_nanos(self.runtime.random() % (pause.as_nanos() as u64 / 2));
        let end = self.runtime.now() + pause - jitter;
        // Whose time is over by then is told so, and not only afterwards.
        let due = self.queue.iter().map(|job| job.until).min();
        let due = due.filter(|due| *due < end && !planted(Bug::LateRefusal));
        self.runtime.sleep_until(due.unwrap_or(end)).await;
    }

    fn expire(&mut self) {
        let now = self.runtime.now();
        let (over, rest) = std::mem::take(&mut self.queue).into_iter().partition(|job| job.until <= now);
        self.queue = rest;
        let over: VecDeque<Job> = over;
        for job in over {
            let guard = self.path.join("guard");
            let text = format!("{} is locked by another process, which may be stopped", shown(&guard));
            job.ask.fail(Failure::NotSent(Failure::cause(text)));
        }
    }

    /// Answers the first in the queue without a directory, if it only wants to see who holds: that is no reason to make one.
    fn sees_nothing(&mut self) -> bool {
        let Some(Job { ask, until }) = self.queue.pop_front() else { return false };
        match ask {
            Ask::Call(Op { owner, request, verb: Verb::Inspect, .. }, promise) => {
                let _ = promise.send(Ok(Reply { owner, request, answer: Answer::Free }));
            }
            Ask::List { promise, .. } => {
                let _ = promise.send(Ok(Page { locks: Vec::new(), next: None }));
            }
            ask => {
                self.queue.push_front(Job { ask, until });
                return false;
            }
        }
        true
    }

    /// Enters once and answers what is in the queue, as far as a batch reaches.
    fn turn(&mut self) -> Result<Turn, Failure> {
        let directory = match self.directory.take() {
            Some(directory) => directory,
            None if matches!(self.path.try_exists(), Ok(false)) && self.sees_nothing() => {
                return Ok(Turn::Done);
            }
            None => Directory::open(&self.path)?,
        };
        let directory = &*self.directory.insert(directory);
        let mut batch = self.queue.iter().take(BATCH);
        if !self.ears.is_empty() || batch.any(|job| matches!(job.ask, Ask::Listen(..))) {
            // Outside the guard: beginning to watch takes the longer the more files there are.
            listen(&mut self.watch, directory);
        }
        let mut inside = match directory.enter()? {
            Entered::Inside(inside) => inside,
            Entered::Locked => return Ok(Turn::Locked),
            Entered::Replaced => return Ok(Turn::Replaced),
        };
        let runtime = &*self.runtime;
        if self.swept.is_none_or(|swept| runtime.now().since(swept) >= SWEEP) {
            self.swept = Some(runtime.now());
            let swept = inside.sweep(now(runtime), runtime.random(), |id| self.holders.is_mine(id));
            if let Err(failure) = swept {
                event!(DEBUG, target: "tenure", "the directory was not swept", failure = text(&failure));
            }
        }
        let (mut wakes, mut listing) = (Vec::new(), None);
        for _ in 0..BATCH {
            match self.queue.pop_front() {
                Some(Job { ask: Ask::Call(op, promise), .. }) => {
                    let applied = apply(&mut inside, &mut self.holders, runtime, &op);
                    let reply = applied.map(|(answer, wake)| {
                        wakes.extend(wake.map(|wake| (RecordId::of(&op.name), wake)));
                        Reply { owner: op.owner, request: op.request, answer }
                    });
                    let _ = promise.send(reply);
                }
                Some(Job { ask: Ask::Listen(name, promise), .. }) => {
                    let listener = Listener::new(|sender| {
                        self.ears.add(RecordId::of(&name), sender);
                        Box::new(())
                    });
                    self.look.get_or_insert_with(|| runtime.sleep_until(runtime.now() + LOOK));
                    let _ = promise.send(Ok(listener));
                }
                Some(Job { ask: Ask::Ready(promise), .. }) => {
                    let _ = promise.send(inside.probe());
                }
                Some(Job { ask: Ask::List { prefix, from, promise }, .. }) => {
                    listing = Some((prefix, from, promise));
                    break;
                }
                None => break,
            }
        }
        drop(inside);
        if let Some((prefix, from, promise)) = listing {
            // Long, and each record is whole in itself: no reason to keep others out meanwhile.
            let _ = promise.send(page(directory, now(runtime), &prefix, &from));
        }
        if !self.ears.is_empty() {
            self.hear(wakes);
        }
        Ok(Turn::Done)
    }

    /// Passes on what was seen. `own` is what this store's own requests have done; the system reports that as well.
    fn hear(&mut self, own: Vec<(RecordId, Wake)>) {
        let mut changed = BTreeSet::new();
        for seen in self.watch.as_ref().map(Watch::read).unwrap_or_default() {
            match seen {
                Seen::Changed(_) if planted(Bug::ChangeUnheard) => {}
                Seen::Changed(id) => drop(changed.insert(id)),
                Seen::HolderClosed if planted(Bug::DeathUnheard) => {}
                Seen::HolderClosed if self.look.is_some() => self.look_after(AFTER_CLOSE),
                Seen::HolderClosed => {}
                Seen::Replaced => self.replaced(),
                Seen::Missed => self.ears.tell_all(&Wake::Reconnected),
            }
        }
        let Some(directory) = &self.directory else { return };
        for (id, wake) in own {
            match wake {
                _ if !self.ears.has(id) => {}
                // Taken again: whoever has it now frees it again.
                Wake::Free { .. } if directory.has(id) => {}
                Wake::Free { .. } => {
                    changed.remove(&id);
                    self.ears.tell(id, &wake);
                }
                wake => self.ears.tell(id, &wake),
            }
        }
        let now = now(&*self.runtime);
        changed.retain(|id| self.ears.has(*id));
        for id in changed {
            if let Some(wake) = changed_to(directory, now, id) {
                self.ears.tell_news(id, wake);
            }
        }
    }

    fn look_after(&mut self, delay: Duration) {
        self.look = Some(self.runtime.sleep_until(self.runtime.now() + delay));
    }

    /// Looks at what is listened to: a crash may leave no trace, and the system may be unable to watch.
    fn look(&mut self) {
        let names = self.ears.names();
        self.idle_looks = if names.is_empty() { self.idle_looks + 1 } else { 0 };
        if self.idle_looks > IDLE_LOOKS {
            self.look = None;
            self.watch.iter_mut().for_each(Watch::end);
            return;
        }
        self.look_after(LOOK);
        let Some(directory) = &self.directory else { return };
        if !directory.is_in_place().unwrap_or(true) {
            return self.replaced();
        }
        let now = now(&*self.runtime);
        for id in names {
            if let Some(wake) = looked(directory, &self.holders, now, id) {
                self.ears.tell_news(id, wake);
            }
        }
    }

    /// Another directory is at the path now: nothing that was known of the old one counts.
    fn replaced(&mut self) {
        let Some(directory) = self.directory.take() else { return };
        self.watch.iter_mut().for_each(Watch::end);
        std::mem::take(&mut self.holders).leave(&directory);
        self.swept = None;
        self.ears.tell_all(&Wake::Reconnected);
        self.replaced.send_modify(|count| *count += 1);
        event!(
            WARN,
            target: "tenure",
            "the directory was replaced: its locks are gone",
            directory = text(shown(&self.path)),
        );
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let holders = std::mem::take(&mut self.holders);
        if std::thread::panicking() {
            // Who holds believes so still: then the leases have to end it, not the files.
            std::mem::forget(holders);
        } else if let Some(directory) = &self.directory {
            holders.leave(directory);
        }
    }
}

/// Has the directory watched, if the system can: otherwise the looks have to do.
fn listen(watch: &mut Option<Watch>, directory: &Directory) {
    if watch.is_none() {
        match Watch::new() {
            Ok(new) => *watch = Some(new),
            Err(error) => {
                event!(DEBUG, target: "tenure", "the system gives no inotify object", error = text(error));
                return;
            }
        }
    }
    if let Some(Err(errno)) = watch.as_mut().map(|watch| watch.begin(directory)) {
        event!(DEBUG, target: "tenure", "the system does not watch the directory", errno = text(errno));
    }
}
