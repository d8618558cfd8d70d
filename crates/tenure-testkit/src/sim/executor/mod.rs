//! Tasks, timers and processes in virtual time.
//!
//! A single loop on a single thread: due events run; then one of the runnable tasks is chosen and polled; if
//! there is none, time jumps to the next due event. Ten minutes of leases take as long as the code in them
//! takes to run.
//!
//! A task belongs to a process. A process can be *paused*, as by SIGSTOP, a long garbage collection or a
//! suspended machine: its tasks are not polled while time goes on. It can be *killed*, as by SIGKILL: it
//! sends nothing any more, and its tasks are dropped.
//!
//! | module | what it holds |
//! |---|---|
//! | `process` | a simulated process, and its timers |
//! | `task` | tasks, and the queue of due events |

mod process;
mod task;

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
use super::event::{Event, Events};
use task::{Due, Life, Task, TaskWaker, What};

pub use process::{Process, Sleep};

/// Duration of a poll. Not zero, so that time passes even for a task that never rests.
const POLL: TrueTime = 1_000;

/// Maximum clock reads per poll: more mean a loop that waits for time to pass, which it does not within a
/// poll.
const LOOKS: u32 = 10_000;

/// Start of all wall clocks, in microseconds since 1970.
pub(crate) const EPOCH_US: u64 = 1_700_000_000_000_000;

/// Index of a process. Process 0 is the outside, which injects the faults and has none itself.
pub type ProcessId = usize;

/// The outside.
pub const OUTSIDE: ProcessId = 0;

/// The executor of one schedule. Clones share it.
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
    /// Clock reads since the last poll began.
    looks: u32,
    /// The process whose task was polled last.
    current: ProcessId,
    over: bool,
    halted: bool,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Nothing is left to do, now or later.
    Idle,
    /// The given time was reached.
    Time,
    /// The maximum number of polls was reached, so something loops.
    Steps,
    /// [`Sim::halt`] was called.
    Halted,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Single-threaded: the lock is poisoned only after a failed check, whose panic is the message.
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

    /// Adds a process, with its own clock and with randomness that depends on `seed`.
    pub fn process(&self, clock: Clock, seed: u64) -> Arc<Process> {
        let mut core = self.core();
        let id = core.processes.len();
        core.processes.push(Life::default());
        let random = Rng::new(seed ^ (id as u64) << 56).next();
        Arc::new(Process { sim: self.clone(), id, clock, random: AtomicU64::new(random) })
    }

    /// The current true time.
    pub fn now(&self) -> TrueTime {
        self.core().now
    }

    /// Advances time by the duration of a poll.
    pub fn pass(&self) {
        self.core().now += POLL;
    }

    /// Number of polls so far.
    pub fn steps(&self) -> u64 {
        self.core().steps
    }

    /// Chooses one of `among` alternatives.
    pub fn choose(&self, among: u32) -> u32 {
        self.core().choose(among)
    }

    /// True with this probability in thousandths. Probabilities 0 and 1 make no choice.
    pub fn chance(&self, permille: u32) -> bool {
        match permille {
            0 => false,
            1_000.. => true,
            _ => self.choose(1_000) < permille,
        }
    }

    /// A number within the bounds, both included, log-uniform: each power of two is equally likely.
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

    /// All choices so far.
    pub fn choices(&self) -> Vec<Choice> {
        self.core().chooser.made().to_vec()
    }

    /// A hash of everything that happened.
    pub fn hash(&self) -> u64 {
        self.core().hash
    }

    /// Adds an occurrence to the hash.
    pub fn mark(&self, what: u64) {
        self.core().mark(what);
    }

    /// Counts an event.
    pub fn count(&self, event: Event) {
        self.core().events.add(event);
    }

    /// The events so far.
    pub fn events(&self) -> Events {
        self.core().events
    }

    /// Starts keeping a log.
    pub fn keep_log(&self) {
        self.core().log.get_or_insert_default();
    }

    /// Adds a log entry; costs nothing if no log is kept.
    pub fn note(&self, what: impl FnOnce() -> String) {
        let is_kept = self.core().log.is_some();
        if is_kept {
            let text = what();
            let mut core = self.core();
            let now = core.now;
            core.log.get_or_insert_default().push((now, text));
        }
    }

    /// The log so far.
    pub fn log(&self) -> Vec<(TrueTime, String)> {
        self.core().log.clone().unwrap_or_default()
    }

    /// Runs `event` at a true time, outside every process.
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

    /// The process whose task is being polled.
    pub fn current(&self) -> ProcessId {
        self.core().current
    }

    /// Spawns a task in a process; does nothing if the process is dead.
    pub fn spawn(&self, process: ProcessId, future: BoxFuture<'static, ()>) {
        let mut core = self.core();
        if core.over || core.processes[process].dead {
            drop(core);
            // Dropped outside the lock, because its destructor may call back.
            return drop(future);
        }
        let id = core.tasks.len() as u32;
        let woken = Arc::clone(&self.0.woken);
        let waker = Arc::new(TaskWaker { id, queued: AtomicBool::new(true), woken });
        core.tasks.push(Task { process, future: Some(future), done: false, waker });
        core.make_ready(id);
    }

    /// Pauses a process.
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

    /// Resumes a process.
    pub fn resume(&self, process: ProcessId) {
        let mut core = self.core();
        if core.processes[process].paused {
            core.processes[process].paused = false;
            core.processes[process].resumed_at = core.now;
            let parked = std::mem::take(&mut core.processes[process].parked);
            core.ready.extend(parked);
        }
    }

    /// Kills a process: drops its tasks where they are. The caller must have cut its network, so that
    /// destructors cannot send anything.
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

    /// When a process was last resumed; 0 if it was never paused, now if it is paused.
    pub fn resumed_at(&self, process: ProcessId) -> TrueTime {
        let core = self.core();
        if core.processes[process].paused { core.now } else { core.processes[process].resumed_at }
    }

    /// Whether a process is running, and has been without a pause since then.
    pub fn ran_since(&self, process: ProcessId, since: TrueTime) -> bool {
        self.runs(process) && self.resumed_at(process) <= since
    }

    /// Number of unfinished tasks of a process.
    pub fn tasks(&self, process: ProcessId) -> usize {
        self.core().tasks.iter().filter(|task| task.process == process && !task.done).count()
    }

    /// Runs `pump` before each step, to wake the tasks that wait for the real operating system.
    pub fn pump(&self, pump: impl Fn() + Send + Sync + 'static) {
        assert!(self.0.pump.set(Box::new(pump)).is_ok(), "there is one system");
    }

    /// Runs until nothing is left to do, a true time is reached, or the total number of polls is.
    pub fn run(&self, until: TrueTime, steps: u64) -> Stop {
        loop {
            if let Some(pump) = self.0.pump.get() {
                let before = lock(&self.0.woken).len();
                pump();
                // The system wakes tasks in arbitrary order.
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

    /// Ends the current run before anything else happens.
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
                        // A dropped sleep does not advance time.
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

    /// Ends the schedule: drops all tasks and events in order of creation.
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
