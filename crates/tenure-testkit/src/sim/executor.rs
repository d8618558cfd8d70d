//! Tasks, timers and processes in virtual time.
//!
//! One thread, one loop: whatever is due happens; then one of the tasks that can go on is chosen and polled; when
//! none can, time jumps to the next thing that is due. So ten minutes of leases take as long as the code in them takes to run.
//!
//! A task belongs to a process. A process can be *paused*, as by SIGSTOP, a long garbage collection or a suspended machine: its
//! tasks are not polled while time goes on. It can be *killed*, as by SIGKILL: it sends nothing any more, and its tasks are gone.

use std::any::Any;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use futures_util::future::BoxFuture;
use tenure::internals::{Moment, Runtime};

use super::chooser::{Choice, Chooser, Rng};
use super::clock::{Clock, TrueTime};
use super::coverage::{Event, Events};

/// What one poll takes. Not nothing, so that time passes also for a task that never rests.
const POLL: TrueTime = 1_000;

/// A poll in which the clock is looked at so often is one that never ends: time stands still in it.
const LOOKS: u32 = 10_000;

/// The wall clocks of all schedules begin here, in microseconds since 1970.
const EPOCH_US: u64 = 1_700_000_000_000_000;

/// Which process, counted from 0. Process 0 is the outside: it makes the faults, and has none.
pub type ProcessId = usize;

/// The outside.
pub const OUTSIDE: ProcessId = 0;

/// One schedule's executor. Clones are the same one.
#[derive(Clone)]
pub struct Sim(Arc<Shared>);

struct Shared {
    core: Mutex<Core>,
    woken: Arc<Mutex<Vec<u32>>>,
    pump: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

struct Core {
    now: TrueTime,
    chooser: Chooser,
    tasks: Vec<Task>,
    ready: Vec<u32>,
    processes: Vec<Life>,
    due: BinaryHeap<Reverse<Due>>,
    next_due: u64,
    steps: u64,
    hash: u64,
    log: Option<Vec<(TrueTime, String)>>,
    events: Events,
    /// How often somebody looked at a clock since the last poll began.
    looks: u32,
    /// Whose task was polled last.
    current: ProcessId,
    over: bool,
    halted: bool,
}

struct Task {
    process: ProcessId,
    /// Taken out while it is polled; `None` for good once it is done.
    future: Option<BoxFuture<'static, ()>>,
    done: bool,
    waker: Arc<TaskWaker>,
}

#[derive(Default)]
struct Life {
    paused: bool,
    dead: bool,
    /// Tasks that could go on, were the process not paused.
    parked: Vec<u32>,
    /// When it last went on after a pause.
    resumed_at: TrueTime,
}

struct TaskWaker {
    id: u32,
    queued: AtomicBool,
    woken: Arc<Mutex<Vec<u32>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            lock(&self.woken).push(self.id);
        }
    }
}

struct Due {
    at: TrueTime,
    /// First come, first served among those due at one moment.
    number: u64,
    what: What,
}

enum What {
    Timer(Arc<Mutex<Option<Waker>>>),
    Event(Box<dyn FnOnce() + Send>),
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Nothing is left to do, now or later.
    Idle,
    /// The given time was reached.
    Time,
    /// So many polls were made that something turns in circles.
    Steps,
    /// Somebody has seen enough.
    Halted,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // One thread: poisoned only if a check panicked, and then that panic is the message.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sim {
    /// An executor at time 0, with the outside as its only process.
    pub fn new(chooser: Chooser) -> Self {
        let core = Core {
            now: 0,
            chooser,
            tasks: Vec::with_capacity(32),
            ready: Vec::with_capacity(16),
            processes: vec![Life::default()],
            due: BinaryHeap::with_capacity(64),
            next_due: 0,
            steps: 0,
            hash: 0,
            events: Events::default(),
            log: None,
            looks: 0,
            current: OUTSIDE,
            over: false,
            halted: false,
        };
        Self(Arc::new(Shared { core: Mutex::new(core), woken: Arc::default(), pump: OnceLock::new() }))
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.0.core)
    }

    /// A further process, with a clock of its own and randomness that depends on `seed`.
    pub fn process(&self, clock: Clock, seed: u64) -> Arc<Process> {
        let mut core = self.core();
        let id = core.processes.len();
        core.processes.push(Life::default());
        let random = Rng::new(seed ^ (id as u64) << 56).next();
        Arc::new(Process { sim: self.clone(), id, clock, random: AtomicU64::new(random) })
    }

    /// True time.
    pub fn now(&self) -> TrueTime {
        self.core().now
    }

    /// How many polls were made.
    pub fn steps(&self) -> u64 {
        self.core().steps
    }

    /// One of `among` possibilities.
    pub fn choose(&self, among: u32) -> u32 {
        self.core().choose(among)
    }

    /// Happens in so many of a thousand cases. What never or always happens is not chosen.
    pub fn chance(&self, permille: u32) -> bool {
        match permille {
            0 => false,
            1_000.. => true,
            _ => self.choose(1_000) < permille,
        }
    }

    /// A number within the bounds, both included, small ones as likely as big ones: each power of two gets the same share.
    pub fn between(&self, low: u64, high: u64) -> u64 {
        let span = high.saturating_sub(low);
        if span == 0 {
            return low;
        }
        let bits = self.choose(u64::BITS - span.leading_zeros() + 1);
        if bits == 0 {
            return low;
        }
        let (floor, fine) = (1_u64 << (bits - 1), u64::from(self.choose(1 << 16)));
        let width = floor.min(span - floor + 1);
        low + floor + ((u128::from(width) * u128::from(fine)) >> 16) as u64
    }

    /// Every choice so far.
    pub fn choices(&self) -> Vec<Choice> {
        self.core().chooser.made().to_vec()
    }

    /// A number that differs when anything that happened differs.
    pub fn hash(&self) -> u64 {
        self.core().hash
    }

    /// Adds something that happened to the hash.
    pub fn mark(&self, what: u64) {
        self.core().mark(what);
    }

    /// Counts what happened.
    pub fn count(&self, event: Event) {
        self.core().events.add(event);
    }

    /// What has happened so far.
    pub fn events(&self) -> Events {
        self.core().events
    }

    /// Writes notes down from now on.
    pub fn keep_log(&self) {
        self.core().log.get_or_insert_default();
    }

    /// Writes down what happened, for a person to read; costs nothing when nobody will.
    pub fn note(&self, what: impl FnOnce() -> String) {
        let is_kept = self.core().log.is_some();
        if is_kept {
            let text = what();
            let mut core = self.core();
            let now = core.now;
            core.log.get_or_insert_default().push((now, text));
        }
    }

    /// The notes so far.
    pub fn log(&self) -> Vec<(TrueTime, String)> {
        self.core().log.clone().unwrap_or_default()
    }

    /// Does something at a true time, outside every process.
    pub fn at(&self, at: TrueTime, event: impl FnOnce() + Send + 'static) {
        let mut core = self.core();
        if !core.over {
            core.push(at, What::Event(Box::new(event)));
        }
    }

    /// Completes at a true time; for the outside, which has no clock.
    pub fn sleep_until(&self, at: TrueTime) -> Sleep {
        Sleep { sim: self.clone(), at, waker: None }
    }

    /// The process one of whose tasks is being polled.
    pub fn current(&self) -> ProcessId {
        self.core().current
    }

    /// Runs a task in a process. A dead process runs nothing.
    pub fn spawn(&self, process: ProcessId, future: BoxFuture<'static, ()>) {
        let mut core = self.core();
        if core.over || core.processes[process].dead {
            drop(core);
            // Dropped without the lock: what it owns may come back here.
            return drop(future);
        }
        let id = core.tasks.len() as u32;
        let woken = Arc::clone(&self.0.woken);
        let waker = Arc::new(TaskWaker { id, queued: AtomicBool::new(true), woken });
        core.tasks.push(Task { process, future: Some(future), done: false, waker });
        core.make_ready(id);
    }

    /// Stops polling a process.
    pub fn pause(&self, process: ProcessId) {
        let mut core = self.core();
        core.processes[process].paused = true;
        let Core { ready, tasks, processes, .. } = &mut *core;
        let parked = &mut processes[process].parked;
        ready.retain(|id| {
            let stays = tasks[*id as usize].process != process;
            if !stays {
                parked.push(*id);
            }
            stays
        });
    }

    /// Goes on with a process.
    pub fn resume(&self, process: ProcessId) {
        let mut core = self.core();
        if core.processes[process].paused {
            core.processes[process].paused = false;
            core.processes[process].resumed_at = core.now;
            let parked = std::mem::take(&mut core.processes[process].parked);
            core.ready.extend(parked);
        }
    }

    /// Ends a process: its tasks are dropped where they stand. Whoever calls this has cut its network before, so that what
    /// destructors try to send goes nowhere.
    pub fn kill(&self, process: ProcessId) {
        let mut core = self.core();
        core.processes[process].dead = true;
        let mut gone: Vec<BoxFuture<'static, ()>> = Vec::new();
        for task in core.tasks.iter_mut().filter(|task| task.process == process && !task.done) {
            task.done = true;
            gone.extend(task.future.take());
        }
        if !gone.is_empty() {
            core.events.add(Event::Died);
        }
        drop(core);
        drop(gone);
    }

    /// Whether a process is neither paused nor dead.
    pub fn runs(&self, process: ProcessId) -> bool {
        let core = self.core();
        !core.processes[process].paused && !core.processes[process].dead
    }

    /// Whether a process was killed.
    pub fn is_dead(&self, process: ProcessId) -> bool {
        self.core().processes[process].dead
    }

    /// When a process last went on after a pause; 0 if it never paused, now if it is paused.
    pub fn resumed_at(&self, process: ProcessId) -> TrueTime {
        let core = self.core();
        if core.processes[process].paused { core.now } else { core.processes[process].resumed_at }
    }

    /// Whether a process runs, and has run without a pause since then.
    pub fn ran_since(&self, process: ProcessId, since: TrueTime) -> bool {
        self.runs(process) && self.resumed_at(process) <= since
    }

    /// How many tasks of a process are not done.
    pub fn tasks(&self, process: ProcessId) -> usize {
        self.core().tasks.iter().filter(|task| task.process == process && !task.done).count()
    }

    /// From now on does this before whatever comes next: it wakes who waits for the system, which is real.
    pub fn pump(&self, pump: impl Fn() + Send + Sync + 'static) {
        assert!(self.0.pump.set(Box::new(pump)).is_ok(), "there is one system");
    }

    /// Runs until nothing is left to do, a true time is reached, or so many polls were made in all.
    pub fn run(&self, until: TrueTime, steps: u64) -> Stop {
        loop {
            if let Some(pump) = self.0.pump.get() {
                let before = lock(&self.0.woken).len();
                pump();
                // In whatever order the system tells those who wait for the same.
                lock(&self.0.woken)[before..].sort_unstable();
            }
            match self.next(until, steps) {
                Next::Stop(stop) => return stop,
                Next::Event(event) => event(),
                Next::Timer(waker) => waker.wake(),
                Next::Poll(id, mut future, waker) => {
                    waker.queued.store(false, Ordering::Relaxed);
                    let waker = Waker::from(waker);
                    let is_done = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
                    let mut core = self.core();
                    let task = &mut core.tasks[id as usize];
                    if is_done || task.done {
                        task.done = true;
                        drop(core);
                        drop(future);
                    } else {
                        task.future = Some(future);
                    }
                }
            }
        }
    }

    /// Ends the run that goes on, before anything else happens.
    pub fn halt(&self) {
        self.core().halted = true;
    }

    fn next(&self, until: TrueTime, steps: u64) -> Next {
        let mut core = self.core();
        if std::mem::take(&mut core.halted) {
            return Next::Stop(Stop::Halted);
        }
        for id in lock(&self.0.woken).drain(..) {
            core.make_ready(id);
        }
        loop {
            let horizon = if core.ready.is_empty() { until } else { core.now };
            match core.due.peek() {
                Some(Reverse(due)) if due.at <= horizon => {
                    let Some(Reverse(due)) = core.due.pop() else { continue };
                    let next = match due.what {
                        What::Event(event) => Next::Event(event),
                        // A sleep that was dropped: its time never comes.
                        What::Timer(waker) => match lock(&waker).take() {
                            Some(waker) => Next::Timer(waker),
                            None => continue,
                        },
                    };
                    core.now = core.now.max(due.at);
                    return next;
                }
                Some(_) if core.ready.is_empty() => {
                    core.now = until;
                    return Next::Stop(Stop::Time);
                }
                None if core.ready.is_empty() => return Next::Stop(Stop::Idle),
                _ => break,
            }
        }
        if core.now >= until {
            return Next::Stop(Stop::Time);
        }
        if core.steps >= steps {
            return Next::Stop(Stop::Steps);
        }
        (core.steps, core.looks) = (core.steps + 1, 0);
        core.now += POLL;
        let among = core.ready.len() as u32;
        let chosen = core.choose(among);
        let id = core.ready.swap_remove(chosen as usize);
        let now = core.now;
        core.mark(now ^ u64::from(id) << 48);
        core.current = core.tasks[id as usize].process;
        let task = &mut core.tasks[id as usize];
        match task.future.take() {
            Some(future) => Next::Poll(id, future, Arc::clone(&task.waker)),
            None => Next::Timer(Waker::noop().clone()),
        }
    }

    /// Ends the schedule: every task and event is dropped, in the order in which they came.
    pub fn end(&self) {
        let mut core = self.core();
        core.over = true;
        let mut gone: Vec<Box<dyn Any + Send>> = Vec::new();
        for task in &mut core.tasks {
            task.done = true;
            gone.extend(task.future.take().map(|future| Box::new(future) as Box<dyn Any + Send>));
        }
        let due = std::mem::take(&mut core.due);
        drop(core);
        drop(gone);
        drop(due);
    }
}

enum Next {
    Stop(Stop),
    Event(Box<dyn FnOnce() + Send>),
    Timer(Waker),
    Poll(u32, BoxFuture<'static, ()>, Arc<TaskWaker>),
}

impl Core {
    fn choose(&mut self, among: u32) -> u32 {
        let chosen = self.chooser.choose(among);
        self.mark(u64::from(chosen));
        chosen
    }

    fn mark(&mut self, what: u64) {
        self.hash = (self.hash ^ what).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    fn push(&mut self, at: TrueTime, what: What) {
        let number = self.next_due;
        self.next_due += 1;
        self.due.push(Reverse(Due { at, number, what }));
    }

    fn make_ready(&mut self, id: u32) {
        let task = &self.tasks[id as usize];
        let life = &mut self.processes[task.process];
        if task.done {
        } else if life.paused {
            life.parked.push(id);
            self.events.add(Event::Paused);
        } else {
            self.ready.push(id);
        }
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim").field("now", &self.now()).finish_non_exhaustive()
    }
}

/// A process: what [`Runtime`] is to the code under test.
pub struct Process {
    sim: Sim,
    id: ProcessId,
    clock: Clock,
    random: AtomicU64,
}

impl Process {
    /// Which one.
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Its clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }
}

impl Runtime for Process {
    fn now(&self) -> Moment {
        let mut core = self.sim.core();
        core.looks += 1;
        // Whatever is dropped because of that may look once more.
        let is_over = core.looks >= LOOKS && !thread::panicking();
        assert!(!is_over, "a poll looked at the clock {LOOKS} times, and will not end");
        Moment(self.clock.shows(core.now))
    }

    fn unix_micros(&self) -> u64 {
        EPOCH_US + self.clock.shows(self.sim.now()) / 1_000
    }

    fn random(&self) -> u64 {
        Rng::new(self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)).next()
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        Box::pin(self.sim.sleep_until(self.clock.when(at.0)))
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.sim.spawn(self.id, task);
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("id", &self.id).field("clock", &self.clock).finish_non_exhaustive()
    }
}

/// A sleep in true time.
#[derive(Debug)]
pub struct Sleep {
    sim: Sim,
    at: TrueTime,
    waker: Option<Arc<Mutex<Option<Waker>>>>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut core = self.sim.core();
        if core.now >= self.at {
            return Poll::Ready(());
        }
        match &self.waker {
            Some(waker) => {
                let mut waker = lock(waker);
                match &mut *waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
            }
            None => {
                let waker = Arc::new(Mutex::new(Some(cx.waker().clone())));
                core.push(self.at, What::Timer(Arc::clone(&waker)));
                drop(core);
                self.waker = Some(waker);
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(waker) = &self.waker {
            lock(waker).take();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sim::clock::{MS, SECOND};

    /// Three processes whose tasks sleep, spawn, wake one another and are paused and killed; returns the hash and the order
    /// of what happened.
    fn run(seed: u64) -> (u64, Vec<(TrueTime, u32)>) {
        let sim = Sim::new(Chooser::seeded(seed));
        let seen: Arc<Mutex<Vec<(TrueTime, u32)>>> = Arc::default();
        let bell = Arc::new(tokio::sync::Notify::new());
        let processes: Vec<_> = (0..3)
            .map(|index| {
                sim.process(Clock { offset: index * 77 * SECOND, ppm: index as i32 * 900 - 900 }, seed)
            })
            .collect();
        for index in 0..9 {
            let (process, seen, bell, sim) =
                (Arc::clone(&processes[index % 3]), Arc::clone(&seen), Arc::clone(&bell), sim.clone());
            let task = {
                let process = Arc::clone(&process);
                async move {
                    for round in 0..4 {
                        let pause = Duration::from_nanos(process.random() % 50_000_000);
                        process.sleep_until(process.now() + pause).await;
                        bell.notify_waiters();
                        lock(&seen).push((sim.now(), index as u32 * 10 + round));
                    }
                }
            };
            process.spawn(Box::pin(task));
        }
        sim.at(30 * MS, {
            let sim = sim.clone();
            move || sim.pause(1)
        });
        sim.at(90 * MS, {
            let sim = sim.clone();
            move || sim.resume(1)
        });
        sim.at(50 * MS, {
            let sim = sim.clone();
            move || sim.kill(2)
        });
        assert_eq!(sim.run(SECOND, 10_000), Stop::Idle);
        sim.end();
        let seen = lock(&seen).clone();
        (sim.hash(), seen)
    }

    #[test]
    fn the_same_seed_gives_the_same_schedule() {
        let hashes: Vec<u64> = (0..200).map(|seed| run(seed).0).collect();
        for (seed, hash) in hashes.iter().enumerate() {
            assert_eq!(run(seed as u64).0, *hash, "seed {seed}");
        }
        let mut distinct = hashes;
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 200);
    }

    #[test]
    fn a_paused_process_runs_nothing_and_a_killed_one_nothing_more() {
        let (_, seen) = run(3);
        let in_pause = |at: TrueTime| at > 30 * MS && at < 90 * MS;
        assert!(seen.iter().all(|(at, task)| task / 10 % 3 != 0 || !in_pause(*at)));
        assert!(seen.iter().all(|(at, task)| task / 10 % 3 != 1 || *at <= 50 * MS));
        assert!(seen.iter().any(|(at, task)| task / 10 % 3 == 0 && *at >= 90 * MS), "it goes on");
    }

    #[test]
    fn a_dropped_sleep_does_not_move_time() {
        let sim = Sim::new(Chooser::seeded(0));
        let process = sim.process(Clock::default(), 0);
        let long = process.sleep_until(process.now() + Duration::from_secs(3_600));
        process.spawn(Box::pin(async move {
            let mut long = long;
            assert!(futures_util::poll!(&mut long).is_pending());
        }));
        assert_eq!(sim.run(u64::MAX, 100), Stop::Idle);
        assert!(sim.now() < MS);
    }

    #[test]
    fn a_task_that_never_rests_is_stopped() {
        let sim = Sim::new(Chooser::seeded(0));
        let turn = std::future::poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        sim.spawn(OUTSIDE, Box::pin(turn));
        assert_eq!(sim.run(u64::MAX, 1_000), Stop::Steps);
    }

    #[test]
    fn a_number_between_two_bounds_is_within_them() {
        let sim = Sim::new(Chooser::seeded(0));
        for (low, high) in [(0, 0), (0, 1), (3, 10), (7, 1_000_000_007), (0, u64::MAX / 2)] {
            for _ in 0..1_000 {
                assert!((low..=high).contains(&sim.between(low, high)), "{low} {high}");
            }
        }
    }
}
