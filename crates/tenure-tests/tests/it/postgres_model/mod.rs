//! The PostgreSQL store on a model of its server, in virtual time: conflicts, lost or late answers, cut
//! connections, a restarted server, missed messages; and the bugs that these schedules catch.

mod crowd;
mod model;
mod scenes;
mod table;
mod twin;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tenure::internals::store::rows::RowStore;
use tenure::internals::{Runtime, locks};
use tenure::{Locks, Options};
use tenure_testkit::sim::chooser::Chooser;
use tenure_testkit::sim::clock::Clock;
use tenure_testkit::sim::executor::{Process, Sim, Stop};

use model::{Faults, Model};

/// A server and a few processes.
struct World {
    sim: Sim,
    model: Model,
    processes: Vec<Arc<Process>>,
    wrong: Arc<Mutex<Option<String>>>,
    tasks: Tasks,
}

/// The tasks of a schedule, by purpose.
#[derive(Clone, Default)]
struct Tasks(Arc<Mutex<Vec<Weak<&'static str>>>>);

impl Tasks {
    fn running(&self) -> Vec<&'static str> {
        lock(&self.0).iter().filter_map(Weak::upgrade).map(|what| *what).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    fn new(seed: u64, processes: usize, faults: Faults) -> Self {
        let sim = Sim::new(Chooser::seeded(seed));
        let model = Model::new(sim.process(Clock::default(), seed), faults);
        let processes = (0..processes).map(|_| sim.process(Clock::default(), seed)).collect();
        Self { sim, model, processes, wrong: Arc::default(), tasks: Tasks::default() }
    }

    /// The store of another client in a process.
    fn store(&self, process: usize) -> RowStore {
        RowStore::on(Arc::new(self.model.clone()), Arc::clone(&self.processes[process]) as Arc<dyn Runtime>)
    }

    /// Another client in a process.
    fn client(&self, process: usize, ttl: Duration) -> Locks {
        let runtime = Arc::clone(&self.processes[process]) as Arc<dyn Runtime>;
        locks(Arc::new(self.store(process)), runtime, Options::new().ttl(ttl)).expect("options")
    }

    fn spawn(
        &self,
        process: usize,
        what: &'static str,
        task: impl Future<Output = Result<(), String>> + Send + 'static,
    ) {
        let (wrong, sim, what) = (Arc::clone(&self.wrong), self.sim.clone(), Arc::new(what));
        lock(&self.tasks.0).push(Arc::downgrade(&what));
        let task = async move {
            if let Err(wrongly) = task.await {
                lock(&wrong).get_or_insert(wrongly);
                sim.halt();
            }
            drop(what);
        };
        self.sim.spawn(self.processes[process].id(), task.boxed());
    }

    /// Runs until nothing is left to do, at most for this long; returns the first error.
    fn run(self, nanos: u64) -> Result<(), String> {
        let stop = self.sim.run(nanos, 5_000_000);
        let wrong = lock(&self.wrong).take().or_else(|| self.model.wrong());
        let stuck = self.tasks.running();
        self.sim.end();
        match wrong {
            Some(wrong) => Err(wrong),
            None if stop != Stop::Halted && !stuck.is_empty() => {
                Err(format!("progress: {stuck:?} have not ended at {stop:?}"))
            }
            None => Ok(()),
        }
    }

    fn sleep(&self, process: usize) -> impl Fn(Duration) -> BoxFuture<'static, ()> + Send + use<> {
        let runtime = Arc::clone(&self.processes[process]);
        move |duration| runtime.sleep_until(runtime.now() + duration)
    }
}
