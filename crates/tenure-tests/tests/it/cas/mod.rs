//! Locks by compare-and-swap on a model of such a server, in virtual time: conflicts, handles that
//! end, watches that are late, answers that are lost. And the bugs that these schedules catch.

mod lines;
pub(crate) mod model;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::FutureExt;
use tenure::internals::planted::Bug;
use tenure::internals::store::cas::Cas;
use tenure::internals::{Runtime, locks};
use tenure::{Guard, Locks, Options};
use tenure_testkit::plant;
use tenure_testkit::sim::chooser::Chooser;
use tenure_testkit::sim::clock::{Clock, MS, SECOND};
use tenure_testkit::sim::executor::{OUTSIDE, Process, Sim};

use model::{Faults, Model, Versions};

/// A small world: a server and a few processes.
struct World {
    sim: Sim,
    model: Model,
    processes: Vec<Arc<Process>>,
    wrong: Arc<Mutex<Option<String>>>,
}

impl World {
    fn new(seed: u64, processes: usize, faults: Faults) -> Self {
        let sim = Sim::new(Chooser::seeded(seed));
        let model = Model::new(sim.process(Clock::default(), seed), faults);
        let processes = (0..processes).map(|_| sim.process(Clock::default(), seed)).collect();
        Self { sim, model, processes, wrong: Arc::default() }
    }

    /// A further client in a process.
    fn client(&self, process: usize, ttl: Duration) -> Locks {
        let runtime = Arc::clone(&self.processes[process]) as Arc<dyn Runtime>;
        let store = Cas::new(Arc::new(self.model.clone()), "cas:model", Arc::clone(&runtime));
        locks(Arc::new(store), runtime, Options::new().ttl(ttl)).expect("options")
    }

    /// Runs a task in a process.
    fn spawn(&self, process: usize, task: impl Future<Output = Result<(), String>> + Send + 'static) {
        let wrong = Arc::clone(&self.wrong);
        let task = async move {
            if let Err(what) = task.await {
                wrong.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
            }
        };
        self.sim.spawn(self.processes[process].id(), task.boxed());
    }

    /// Runs until nothing is left to do; what went wrong first.
    fn outcome(self) -> Result<(), String> {
        let model = self.model.clone();
        self.run(120 * SECOND)?;
        if model.is_empty() { Ok(()) } else { Err("something is left".into()) }
    }

    /// Runs for so long; what went wrong first.
    fn run(self, nanos: u64) -> Result<(), String> {
        self.sim.run(nanos, 3_000_000);
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.sim.end();
        wrong.map_or(Ok(()), Err)
    }

    fn sleep(
        &self,
        process: usize,
    ) -> impl Fn(Duration) -> futures_util::future::BoxFuture<'static, ()> + use<> {
        let runtime = Arc::clone(&self.processes[process]);
        move |duration| runtime.sleep_until(runtime.now() + duration)
    }
}

/// What tasks hold, as they were told.
#[derive(Default)]
struct Ledger {
    held: Vec<Arc<Guard>>,
    newest: u64,
}

impl Ledger {
    fn enter(&mut self, guard: &Arc<Guard>) -> Result<(), String> {
        if let Some(other) = self.held.iter().find(|other| other.is_held()) {
            return Err(format!("exclusion: {} and {}", other.fence(), guard.fence()));
        }
        if guard.fence() <= self.newest {
            return Err(format!("tokens: {} after {}", guard.fence(), self.newest));
        }
        self.newest = guard.fence();
        self.held.push(Arc::clone(guard));
        Ok(())
    }
}

/// Six tasks of three processes take turns at one lock, and processes stand still.
fn crowd(seed: u64, faults: Faults) -> Result<(), String> {
    const TTL: Duration = Duration::from_millis(600);
    let world = World::new(seed, 3, faults);
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    for process in 0..3 {
        let locks = world.client(process, TTL);
        for task in 0..2 {
            let (locks, ledger, sleep) = (locks.clone(), Arc::clone(&ledger), world.sleep(process));
            let runtime = Arc::clone(&world.processes[process]);
            let is_fair = seed.is_multiple_of(2);
            world.spawn(process, async move {
                for turn in 0..6 {
                    let limit = Duration::from_secs(60);
                    let got = match is_fair {
                        true => locks.fair_mutex("x").expect("a name").try_lock_for(limit).await,
                        false => locks.mutex("x").expect("a name").try_lock_for(limit).await,
                    };
                    let guard = match got {
                        Ok(Some(guard)) => Arc::new(guard),
                        Ok(None) => {
                            return Err(format!("progress: {process}/{task} waited for its turn {turn}"));
                        }
                        // The answer was lost: it is asked for again.
                        Err(_) => continue,
                    };
                    if guard.is_held() {
                        ledger.lock().unwrap_or_else(PoisonError::into_inner).enter(&guard)?;
                    }
                    sleep(Duration::from_millis(runtime.random() % 900)).await;
                    ledger
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .held
                        .retain(|held| !Arc::ptr_eq(held, &guard));
                    if let (Some(guard), true) = (Arc::into_inner(guard), turn % 3 > 0) {
                        let _ = guard.release().await;
                    }
                }
                Ok(())
            });
        }
    }
    let (sim, ids) =
        (world.sim.clone(), world.processes.iter().map(|process| process.id()).collect::<Vec<_>>());
    let pauses = async move {
        for _ in 0..6 {
            sim.sleep_until(sim.now() + sim.between(100 * MS, 2 * SECOND)).await;
            let process = ids[sim.choose(ids.len() as u32) as usize];
            sim.pause(process);
            sim.sleep_until(sim.now() + sim.between(10 * MS, 4 * SECOND)).await;
            sim.resume(process);
        }
    };
    world.sim.spawn(OUTSIDE, pauses.boxed());
    world.outcome()
}

const SECONDS: fn(u64) -> Duration = Duration::from_secs;

/// What a request may have left behind after its answer was lost does not keep others out.
fn an_undo_is_final() -> Result<(), String> {
    let world = World::new(1, 2, Faults::default());
    let (ours, theirs) = (world.client(0, SECONDS(10)), world.client(1, SECONDS(10)));
    let (model, sleep) = (world.model.clone(), world.sleep(0));
    world.spawn(0, async move {
        // It keeps the handle of the process alive.
        let kept = ours.mutex("y").expect("a name").lock().await.expect("a free lock");
        model.delay_next_write(Duration::from_millis(900));
        let asked = ours.mutex("x").expect("a name").try_lock().await;
        drop(asked);
        sleep(SECONDS(20)).await;
        kept.release().await.map_err(|error| error.to_string())
    });
    let sleep = world.sleep(1);
    world.spawn(1, async move {
        sleep(SECONDS(3)).await;
        let got = theirs.mutex("x").expect("a name").try_lock().await.map_err(|error| error.to_string())?;
        got.map(drop).ok_or_else(|| "a request that was undone keeps others out".into())
    });
    world.outcome()
}

/// A lock is free when the handle of its dead holder is gone, and its waiter hears of it.
fn the_dead_hold_nothing() -> Result<(), String> {
    let world = World::new(2, 2, Faults::default());
    let (ours, theirs) = (world.client(0, SECONDS(2)), world.client(1, SECONDS(2)));
    world.spawn(0, async move {
        let _guard = ours.mutex("x").expect("a name").lock().await.expect("a free lock");
        std::future::pending().await
    });
    let sleep = world.sleep(1);
    world.spawn(1, async move {
        sleep(SECONDS(1)).await;
        let got = theirs.mutex("x").expect("a name").try_lock_for(SECONDS(10)).await;
        got.map_err(|error| error.to_string())?.map(drop).ok_or_else(|| "the dead hold on".into())
    });
    let (sim, id) = (world.sim.clone(), world.processes[0].id());
    let killer = sim.clone();
    sim.at(1_500 * MS, move || killer.kill(id));
    world.outcome()
}

/// Of a semaphore that a client with many permits keeps busy, a dead one's are free at once too.
fn the_dead_hold_nothing_beside_many() -> Result<(), String> {
    let world = World::new(2, 3, Faults::default());
    let permits = |locks: &Locks| locks.semaphore("x", 41).expect("a name");
    let clients = [0, 1, 2].map(|process| world.client(process, SECONDS(2)));
    let [many, dead, third] = clients.each_ref().map(permits);
    let [also_held, _, also_wanted] = clients.map(|locks| locks.mutex("y").expect("a name"));
    let hold = world.sleep(0);
    world.spawn(0, async move {
        let mut held = Vec::new();
        for _ in 0..40 {
            held.push(many.acquire().await.expect("a permit"));
        }
        let _also = also_held.lock().await.expect("a free lock");
        hold(SECONDS(15)).await;
        Ok(())
    });
    let sleep = world.sleep(1);
    world.spawn(1, async move {
        sleep(SECONDS(1)).await;
        let _held = dead.acquire().await.expect("a permit");
        std::future::pending().await
    });
    let sleep = world.sleep(2);
    world.spawn(2, async move {
        // The dead one is long gone, and the busy one was seen a moment ago.
        sleep(SECONDS(10)).await;
        let busy = also_wanted.try_lock().await.map_err(|error| error.to_string())?;
        assert!(busy.is_none(), "the busy one holds it");
        let got = third.try_acquire().await.map_err(|error| error.to_string())?;
        got.map(drop).ok_or_else(|| "the dead hold on".into())
    });
    let (sim, id) = (world.sim.clone(), world.processes[1].id());
    let killer = sim.clone();
    sim.at(3_000 * MS, move || killer.kill(id));
    world.outcome()
}

/// A client that asks for a free lock gets it, also where others write at that moment.
fn a_conflict_is_not_busy() -> Result<(), String> {
    let world = World::new(3, 4, Faults::default());
    for process in 0..4 {
        let locks = world.client(process, SECONDS(5));
        let sleep = world.sleep(process);
        world.spawn(process, async move {
            for turn in 1..20 {
                sleep(Duration::from_millis(turn)).await;
                let permit = locks.semaphore("s", 4).expect("a name").try_acquire().await;
                let permit = permit.map_err(|error| error.to_string())?.ok_or("a free permit was busy")?;
                permit.release().await.map_err(|error| error.to_string())?;
            }
            Ok(())
        });
    }
    world.outcome()
}

/// A release at any moment wakes who begins to wait.
fn a_release_is_heard() -> Result<(), String> {
    let world = World::new(4, 2, Faults::default());
    let (ours, theirs) = (world.client(0, SECONDS(60)), world.client(1, SECONDS(60)));
    let at = |process: usize| {
        let (sleep, runtime) = (world.sleep(process), Arc::clone(&world.processes[process]));
        move |ms: u64| sleep(tenure::internals::Moment(ms * MS).since(runtime.now()))
    };
    let until = at(0);
    world.spawn(0, async move {
        for turn in 0..40 {
            until(turn * 1_000).await;
            let guard = ours.mutex(format!("x{turn}")).expect("a name").lock().await.expect("a free lock");
            until(turn * 1_000 + 500 + 3 * turn).await;
            guard.release().await.map_err(|error| error.to_string())?;
        }
        Ok(())
    });
    let until = at(1);
    world.spawn(1, async move {
        for turn in 0..40 {
            until(turn * 1_000 + 500).await;
            let mutex = theirs.mutex(format!("x{turn}")).expect("a name");
            let got =
                mutex.try_lock_for(Duration::from_millis(450)).await.map_err(|error| error.to_string())?;
            if got.is_none() {
                return Err(format!("a release was not heard in turn {turn}"));
            }
        }
        Ok(())
    });
    world.outcome()
}

#[test]
fn a_crowd_takes_turns_whatever_goes_wrong() {
    for seed in 0..80 {
        let faults = match seed % 3 {
            0 => Faults::default(),
            1 => Faults { late: 20, ..Faults::default() },
            _ => Faults { late: 10, cut: 30, ..Faults::default() },
        };
        // Seeds of all faults have both.
        let versions = if seed / 3 % 2 == 0 { Versions::Lasting } else { Versions::OfCreations };
        // Of a fair lock's line, all but the first is in parts of this size.
        let faults = Faults { versions, part: (seed / 2 % 4) as usize, ..faults };
        assert_eq!(crowd(seed, faults), Ok(()), "seed {seed}, {faults:?}");
    }
}

/// Fails where a promise is broken.
type Scene = fn() -> Result<(), String>;

const SCENES: [(Bug, Scene); 4] = [
    (Bug::CasUnfenced, an_undo_is_final),
    (Bug::CasDeathIgnored, the_dead_hold_nothing),
    (Bug::CasConflictIsBusy, a_conflict_is_not_busy),
    (Bug::CasWatchAfterLook, a_release_is_heard),
];

#[test]
fn each_scene_goes_well_and_fails_with_its_bug() {
    for (bug, scene) in SCENES {
        assert_eq!(scene(), Ok(()), "without {bug:?}");
        plant(Some(bug));
        let outcome = scene();
        plant(None);
        assert!(outcome.is_err(), "{bug:?} is not seen in its scene");
    }
}

#[test]
fn permits_of_a_dead_process_are_found_beside_those_of_a_busy_one() {
    the_dead_hold_nothing_beside_many().expect("a free permit");
}

#[test]
fn a_crowd_shows_bugs_that_break_exclusion() {
    for bug in [Bug::CasUncompared, Bug::CasHandleOfAnother] {
        plant(Some(bug));
        let seen = (0..60).map(|seed| crowd(seed, Faults::default())).find_map(Result::err);
        plant(None);
        assert!(
            seen.as_ref().is_some_and(|seen| seen.contains("exclusion") || seen.contains("tokens")),
            "{bug:?}: {seen:?}"
        );
    }
}

/// A version that began again is not the one that was seen.
#[test]
fn a_crowd_shows_a_backend_that_does_not_compare_creations() {
    let faults = Faults { versions: Versions::Alone, ..Faults::default() };
    let seen = (0..60).map(|seed| crowd(seed, faults)).find_map(Result::err);
    let is_broken = |seen: &String| seen.contains("exclusion") || seen.contains("tokens");
    assert!(seen.as_ref().is_some_and(is_broken), "{seen:?}");
}

/// What is uncontended costs one request each way, and renewals do not grow with the holds.
#[test]
fn a_pair_is_two_requests_and_a_handle_serves_all_holds() {
    let world = World::new(5, 1, Faults::default());
    let locks = world.client(0, SECONDS(9));
    let (model, sleep) = (world.model.clone(), world.sleep(0));
    world.spawn(0, async move {
        let first = locks.mutex("first").expect("a name").lock().await.expect("a free lock");
        first.release().await.expect("a release");
        model.requests();
        for turn in 0..10 {
            let guard = locks.mutex(format!("{turn}")).expect("a name").lock().await.expect("a free lock");
            guard.release().await.expect("a release");
        }
        let pairs = model.requests();
        if pairs.values().sum::<u32>() != 20 {
            return Err(format!("ten pairs: {pairs:?}"));
        }
        let mut guards = Vec::new();
        for name in 0..200 {
            guards
                .push(locks.mutex(format!("held{name}")).expect("a name").lock().await.expect("a free lock"));
        }
        model.requests();
        // Once for each hold, its holder begins to listen to whether it is ended by force.
        sleep(SECONDS(5)).await;
        let mut listening = model.requests();
        listening.retain(|what, count| !(["read", "watch"].contains(what) && *count <= 200));
        if listening.values().sum::<u32>() > 6 {
            return Err(format!("200 holds listen: {listening:?}"));
        }
        sleep(SECONDS(9)).await;
        let renewals = model.requests();
        if renewals.values().sum::<u32>() > 10 || !guards.iter().all(Guard::is_held) {
            return Err(format!("a lease of 200 holds: {renewals:?}"));
        }
        for guard in guards {
            guard.release().await.expect("a release");
        }
        Ok(())
    });
    assert_eq!(world.outcome(), Ok(()));
}

#[test]
fn holders_of_one_lock_share_a_watch_and_all_hear_that_it_is_ended_by_force() {
    const HOLDS: usize = 200;
    let world = World::new(6, 2, Faults::default());
    let (ours, theirs) = (world.client(0, SECONDS(9)), world.client(1, SECONDS(9)));
    let (model, sleep) = (world.model.clone(), world.sleep(0));
    world.spawn(0, async move {
        // Those that come after all have left watch as well.
        for _ in 0..2 {
            let mut permits = Vec::new();
            for _ in 0..HOLDS {
                let permit = ours.semaphore("s", HOLDS as u32).expect("a name").acquire().await;
                permits.push(permit.expect("a permit"));
            }
            model.requests();
            sleep(SECONDS(5)).await;
            let listening = model.requests();
            if listening.get("watch") != Some(&1) {
                return Err(format!("{HOLDS} holds listen: {listening:?}"));
            }
            theirs.force_release("s").await.expect("an answer").expect("it was held");
            sleep(Duration::from_millis(500)).await;
            let held = permits.iter().filter(|permit| permit.is_held()).count();
            if held > 0 {
                return Err(format!("{held} were not told"));
            }
        }
        Ok(())
    });
    assert_eq!(world.outcome(), Ok(()));
}
