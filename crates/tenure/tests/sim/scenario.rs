//! Small schedules that are written by hand, in virtual time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tenure::LockName;
use tenure::internals::protocol::{Fence, Liveness, LockSpec, Op, Verb};
use tenure::internals::{Moment, Runtime};
use tenure_testkit::sim::chooser::Chooser;
use tenure_testkit::sim::clock::{Clock, MS, SECOND};
use tenure_testkit::sim::executor::{Process, Sim, Stop};

pub(super) const SECONDS: fn(u64) -> Duration = Duration::from_secs;
pub(super) const MILLIS: fn(u64) -> Duration = Duration::from_millis;

pub(super) type Outcome = Result<(), String>;

pub(super) fn text(error: impl ToString) -> String {
    error.to_string()
}

/// A server, and processes that use it.
pub(super) struct Scenario<S> {
    pub(super) sim: Sim,
    pub(super) server: S,
    pub(super) processes: Vec<Arc<Process>>,
    /// The first failure, and the number of tasks that have not ended.
    state: Arc<Mutex<(Option<String>, u32)>>,
}

impl<S> Scenario<S> {
    pub(super) fn with(processes: usize, server: impl FnOnce(Arc<Process>) -> S) -> Self {
        let sim = Sim::new(Chooser::seeded(1));
        let server = server(sim.process(Clock::default(), 1));
        let processes = (0..processes).map(|_| sim.process(Clock::default(), 1)).collect();
        Self { sim, server, processes, state: Arc::default() }
    }

    /// Sleeps until a time of the schedule, in milliseconds.
    pub(super) fn at(&self, process: usize) -> impl Fn(u64) -> BoxFuture<'static, ()> + use<S> {
        let runtime = Arc::clone(&self.processes[process]);
        move |ms| runtime.sleep_until(Moment(ms * MS))
    }

    pub(super) fn spawn(&self, process: usize, task: impl Future<Output = Outcome> + Send + 'static) {
        let (state, sim) = (Arc::clone(&self.state), self.sim.clone());
        state.lock().expect("one thread").1 += 1;
        let task = async move {
            let outcome = task.await;
            let mut state = state.lock().expect("one thread");
            state.1 -= 1;
            if let Err(failure) = outcome {
                state.0.get_or_insert(failure);
                sim.halt();
            }
        };
        self.sim.spawn(self.processes[process].id(), task.boxed());
    }

    /// Runs until nothing is left to do, for at most this many seconds.
    pub(super) fn run(self, seconds: u64) -> Outcome {
        let stop = self.sim.run(seconds * SECOND, 5_000_000);
        let (failure, left) = self.state.lock().expect("one thread").clone();
        self.sim.end();
        match failure {
            Some(failure) => Err(failure),
            None if stop != Stop::Halted && left > 0 => Err(format!("{left} tasks have not ended")),
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
