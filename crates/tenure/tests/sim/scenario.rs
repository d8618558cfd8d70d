//! Small schedules that are written by hand, in virtual time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tenure::internals::protocol::{Fence, Liveness, LockSpec, Op, Verb};
use tenure::internals::{Moment, Runtime, Store, locks};
use tenure::{LockName, Locks, Options};
use tenure_testkit::sim::chooser::Chooser;
use tenure_testkit::sim::clock::{Clock, MS, SECOND};
use tenure_testkit::sim::driver::Driver;
use tenure_testkit::sim::executor::{Process, ProcessId, Sim, Stop};
use tenure_testkit::sim::scenarios::{Failed, Outcome};

pub(super) const SECONDS: fn(u64) -> Duration = Duration::from_secs;
pub(super) const MILLIS: fn(u64) -> Duration = Duration::from_millis;

/// A server, and processes that use it.
pub(super) struct Scenario<S> {
    pub(super) sim: Sim,
    pub(super) server: S,
    pub(super) processes: Vec<Arc<Process>>,
    /// The first failure. Each task has a clone until it ends or its process is killed.
    failure: Arc<Mutex<Option<Failed>>>,
}

impl<S: Driver + 'static> Scenario<S> {
    pub(super) fn with(processes: usize, server: impl FnOnce(Arc<Process>) -> S) -> Self {
        let sim = Sim::new(Chooser::seeded(1));
        let server = server(sim.process(Clock::default(), 1));
        let processes = (0..processes).map(|_| sim.process(Clock::default(), 1)).collect();
        Self { sim, server, processes, failure: Arc::default() }
    }

    pub(super) fn id(&self, process: usize) -> ProcessId {
        self.processes[process].id()
    }

    /// A client in a process.
    pub(super) fn store(&self, process: usize) -> Arc<dyn Store> {
        self.server.open(&self.processes[process])
    }

    /// A client in a process.
    pub(super) fn client(&self, process: usize, ttl: Duration) -> Locks {
        let runtime = Arc::clone(&self.processes[process]) as Arc<dyn Runtime>;
        locks(self.store(process), runtime, Options::new().ttl(ttl)).expect("options")
    }

    /// Sleeps until a time of the schedule, in milliseconds.
    pub(super) fn at(&self, process: usize) -> impl Fn(u64) -> BoxFuture<'static, ()> + use<S> {
        let runtime = Arc::clone(&self.processes[process]);
        move |ms| runtime.sleep_until(Moment(ms * MS))
    }

    pub(super) fn sleep(&self, process: usize) -> impl Fn(Duration) -> BoxFuture<'static, ()> + use<S> {
        let runtime = Arc::clone(&self.processes[process]);
        move |time| runtime.sleep_until(runtime.now() + time)
    }

    /// Kills processes at a time of the schedule, in milliseconds.
    pub(super) fn kill_at(&self, ms: u64, processes: impl IntoIterator<Item = usize>) {
        let dies: Vec<ProcessId> = processes.into_iter().map(|process| self.id(process)).collect();
        let sim = self.sim.clone();
        self.sim.at(ms * MS, move || dies.iter().for_each(|id| sim.kill(*id)));
    }

    pub(super) fn spawn(&self, process: usize, task: impl Future<Output = Outcome> + Send + 'static) {
        let (failure, sim) = (Arc::clone(&self.failure), self.sim.clone());
        let task = async move {
            if let Err(failed) = task.await {
                failure.lock().expect("one thread").get_or_insert(failed);
                sim.halt();
            }
        };
        self.sim.spawn(self.id(process), task.boxed());
    }

    /// Runs until nothing is left to do, for at most this many seconds.
    pub(super) fn run(self, seconds: u64) -> Outcome {
        let stop = self.sim.run(seconds * SECOND, 5_000_000);
        let left = Arc::strong_count(&self.failure) - 1;
        self.sim.end();
        match self.failure.lock().expect("one thread").take() {
            Some(failure) => Err(failure),
            None if stop != Stop::Halted && left > 0 => Err(format!("{left} tasks have not ended").into()),
            None => Ok(()),
        }
    }
}

pub(super) fn acquire(name: &LockName, spec: LockSpec, owner: u32, ttl_ms: u64) -> Op {
    let (hold, fence, bind) = (1, Fence::Assign, Liveness::Process);
    let verb = Verb::Acquire { ttl_ms, hold, fence, wait_ms: None, listens: None, bind };
    op(name, spec, owner, verb)
}

pub(super) fn renew(name: &LockName, spec: LockSpec, owner: u32, ttl_ms: u64) -> Op {
    op(name, spec, owner, Verb::Renew { ttl_ms, hold: 1, bind: None, weight: None })
}

pub(super) fn op(name: &LockName, spec: LockSpec, owner: u32, verb: Verb) -> Op {
    let owner = format!("o@h:1/{owner:032x}").parse().expect("an owner");
    Op { name: name.clone(), spec, owner, request: 1, verb }
}
