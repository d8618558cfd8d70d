//! Locks by compare-and-swap on the simulated server, without faults: the cost of requests, long queues, and
//! shared locks. `tenure/tests/sim/cas.rs` has the schedules with faults.

mod long_queues;
mod waiters;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::FutureExt;
use tenure::internals::planted::Bug;
use tenure::internals::store::cas::Cas;
use tenure::internals::{Runtime, locks};
use tenure::{Guard, Locks, Options};
use tenure_testkit::plant;
use tenure_testkit::sim::cas::{Server, Versions};
use tenure_testkit::sim::chooser::Chooser;
use tenure_testkit::sim::clock::{Clock, MS, SECOND};
use tenure_testkit::sim::executor::{Process, Sim};

/// Places in one part of a queue on real servers.
const PART: usize = 128;

/// A server and a few processes.
struct World {
    sim: Sim,
    server: Server,
    processes: Vec<Arc<Process>>,
    wrong: Arc<Mutex<Option<String>>>,
}

impl World {
    fn new(seed: u64, processes: usize) -> Self {
        Self::with(seed, processes, PART)
    }

    fn with(seed: u64, processes: usize, part: usize) -> Self {
        Self::of(Versions::Lasting, seed, processes, part)
    }

    /// On a server like etcd or ZooKeeper.
    fn of(versions: Versions, seed: u64, processes: usize, part: usize) -> Self {
        let sim = Sim::new(Chooser::seeded(seed));
        let server = Server::with(sim.process(Clock::default(), seed), versions, part);
        let processes = (0..processes).map(|_| sim.process(Clock::default(), seed)).collect();
        Self { sim, server, processes, wrong: Arc::default() }
    }

    /// Another client in a process.
    fn client(&self, process: usize, ttl: Duration) -> Locks {
        let runtime = Arc::clone(&self.processes[process]) as Arc<dyn Runtime>;
        let server = self.server.client(&self.processes[process]);
        let store = Cas::new(Arc::new(server), "cas:sim", Arc::clone(&runtime));
        locks(Arc::new(store), runtime, Options::new().ttl(ttl)).expect("options")
    }

    fn spawn(&self, process: usize, task: impl Future<Output = Result<(), String>> + Send + 'static) {
        let wrong = Arc::clone(&self.wrong);
        let task = async move {
            if let Err(what) = task.await {
                wrong.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
            }
        };
        self.sim.spawn(self.processes[process].id(), task.boxed());
    }

    /// Runs until nothing is left to do; returns the first error.
    fn outcome(self) -> Result<(), String> {
        let server = self.server.clone();
        self.run(120 * SECOND)?;
        if server.is_empty() { Ok(()) } else { Err("something is left".into()) }
    }

    /// Runs for this long; returns the first error.
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

const SECONDS: fn(u64) -> Duration = Duration::from_secs;

/// A request whose answer was lost leaves nothing behind that blocks others.
fn an_undo_is_final() -> Result<(), String> {
    let world = World::new(1, 2);
    let (ours, theirs) = (world.client(0, SECONDS(10)), world.client(1, SECONDS(10)));
    let (server, sleep) = (world.server.clone(), world.sleep(0));
    world.spawn(0, async move {
        // Keeps the process's handle alive.
        let kept = ours.mutex("y").expect("a name").lock().await.expect("a free lock");
        server.delay_next_write(Duration::from_millis(900));
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

/// A dead client's permits become available immediately, beside a busy client with many permits.
fn the_dead_hold_nothing_beside_many() -> Result<(), String> {
    let world = World::new(2, 3);
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
        // The dead client is long gone, and the busy one was seen a moment ago.
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

#[test]
fn an_undone_request_keeps_nobody_out() {
    assert_eq!(an_undo_is_final(), Ok(()));
    plant(Some(Bug::CasNoBarrier));
    let outcome = an_undo_is_final();
    plant(None);
    assert!(outcome.is_err());
}

/// The keep-alive of another hold has just renewed their shared lease.
#[test]
fn a_renewal_by_hand_notices_a_forced_release() {
    let world = World::new(7, 2);
    let (ours, theirs) = (world.client(0, SECONDS(30)), world.client(1, SECONDS(30)));
    world.spawn(0, async move {
        let guard = ours.mutex("x").expect("a name").lock().await.map_err(|error| error.to_string())?;
        let ended = theirs.force_release("x").await.map_err(|error| error.to_string())?;
        match (ended, guard.renew().await) {
            (Some(_), Err(error)) if error.is_lost() => Ok(()),
            outcome => Err(format!("{outcome:?}")),
        }
    });
    assert_eq!(world.outcome(), Ok(()));
}

/// An operator has revoked the lease of a process.
#[test]
fn holders_notice_that_their_lease_was_revoked() {
    let world = World::new(8, 2);
    let (ours, theirs) = (world.client(0, SECONDS(6)), world.client(1, SECONDS(6)));
    let (server, sleep, process) = (world.server.clone(), world.sleep(0), world.processes[0].id());
    world.spawn(0, async move {
        let mutex = ours.mutex("x").expect("a name").lock().await.map_err(|error| error.to_string())?;
        let fair = ours.fair_mutex("y").expect("a name").lock().await.map_err(|error| error.to_string())?;
        server.revoke(process);
        sleep(SECONDS(3)).await;
        match (mutex.is_held(), fair.is_held()) {
            (false, false) => Ok(()),
            held => Err(format!("{held:?}")),
        }
    });
    let sleep = world.sleep(1);
    world.spawn(1, async move {
        sleep(SECONDS(1)).await;
        let got = theirs.mutex("x").expect("a name").try_lock().await.map_err(|error| error.to_string())?;
        got.map(drop).ok_or_else(|| "a hold without a lease keeps others out".into())
    });
    assert_eq!(world.outcome(), Ok(()));
}

#[test]
fn permits_of_a_dead_process_are_found_beside_those_of_a_busy_one() {
    the_dead_hold_nothing_beside_many().expect("a free permit");
}

/// An uncontended acquire and release take one request each, and renewals do not grow with the number of
/// holds.
#[test]
fn a_pair_is_two_requests_and_a_handle_serves_all_holds() {
    let world = World::new(5, 1);
    let locks = world.client(0, SECONDS(9));
    let (server, sleep) = (world.server.clone(), world.sleep(0));
    world.spawn(0, async move {
        let first = locks.mutex("first").expect("a name").lock().await.expect("a free lock");
        first.release().await.expect("a release");
        server.requests();
        for turn in 0..10 {
            let guard = locks.mutex(format!("{turn}")).expect("a name").lock().await.expect("a free lock");
            guard.release().await.expect("a release");
        }
        let pairs = server.requests();
        if pairs.values().sum::<u32>() != 20 {
            return Err(format!("ten pairs: {pairs:?}"));
        }
        let mut guards = Vec::new();
        for name in 0..200 {
            guards
                .push(locks.mutex(format!("held{name}")).expect("a name").lock().await.expect("a free lock"));
        }
        server.requests();
        // Each holder subscribes once to the end of its hold.
        sleep(SECONDS(5)).await;
        let mut listening = server.requests();
        listening.retain(|what, count| !(["read", "watch"].contains(what) && *count <= 200));
        if listening.values().sum::<u32>() > 6 {
            return Err(format!("200 holds listen: {listening:?}"));
        }
        sleep(SECONDS(9)).await;
        let renewals = server.requests();
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
    let world = World::new(6, 2);
    let (ours, theirs) = (world.client(0, SECONDS(9)), world.client(1, SECONDS(9)));
    let (server, sleep) = (world.server.clone(), world.sleep(0));
    world.spawn(0, async move {
        // Also for clients that arrive after all others have left.
        for _ in 0..2 {
            let mut permits = Vec::new();
            for _ in 0..HOLDS {
                let permit = ours.semaphore("s", HOLDS as u32).expect("a name").acquire().await;
                permits.push(permit.expect("a permit"));
            }
            server.requests();
            sleep(SECONDS(5)).await;
            let listening = server.requests();
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
