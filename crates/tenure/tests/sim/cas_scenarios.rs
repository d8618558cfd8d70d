//! Small schedules on a compare-and-swap store, for what no regime draws often: each shows one bug.

use std::sync::Arc;

use futures_util::future::try_join_all;
use tenure::internals::planted::Bug;
use tenure::internals::protocol::{Answer, Fence, Liveness, LockSpec, ReleaseScope, Verb};
use tenure::internals::store::StoreExt;
use tenure::internals::store::cas::Cas;
use tenure::internals::{Moment, Runtime, locks};
use tenure::{Guard, LockName, Locks, Options};
use tenure_testkit::plant;
use tenure_testkit::sim::cas::{Server, Versions};
use tenure_testkit::sim::clock::MS;
use tenure_testkit::sim::network::Parting;

use super::scenario::{MILLIS, Outcome, SECONDS, Scenario, acquire, op, renew, text};

impl Scenario<Server> {
    fn new(processes: usize, versions: Versions) -> Self {
        Self::with(processes, |process| Server::with(process, versions, 128))
    }

    fn store(&self, process: usize) -> Cas {
        let process = &self.processes[process];
        let server = Arc::new(self.server.client(process));
        Cas::new(server, "cas:sim", Arc::clone(process) as Arc<dyn Runtime>)
    }

    fn client(&self, process: usize) -> Locks {
        let runtime = Arc::clone(&self.processes[process]) as Arc<dyn Runtime>;
        locks(Arc::new(self.store(process)), runtime, Options::new().ttl(SECONDS(10))).expect("options")
    }
}

/// The answer to an acquisition arrives when its hold has expired and another request of the same client has
/// removed it: the hold stays gone.
fn a_late_answer_revives_nothing(versions: Versions) -> Outcome {
    let scenario = Scenario::new(2, versions);
    let (ours, theirs, server) = (scenario.store(0), scenario.store(1), scenario.server.clone());
    let (name, spec, process) =
        (LockName::new("x").expect("a name"), LockSpec::Mutex, scenario.processes[0].id());
    let (at, store, lock) = (scenario.at(0), ours.clone(), name.clone());
    scenario.spawn(0, async move {
        // Opens the handle.
        store
            .request(acquire(&LockName::new("y").expect("a name"), spec, 1, 1_000), SECONDS(2))
            .await
            .map_err(text)?;
        at(100).await;
        server.part(process, Parting { replies: 1_600 * MS, ..Parting::default() });
        let acquired = store.request(acquire(&lock, spec, 2, 1_000), SECONDS(5)).await.map_err(text)?;
        let renewed = store.request(renew(&lock, spec, 2, 1_000), SECONDS(2)).await.map_err(text)?;
        match (acquired, renewed) {
            (Answer::Held { .. }, Answer::Busy { .. }) => Ok(()),
            answers => Err(format!("a removed hold is renewed: {answers:?}")),
        }
    });
    let (at, server, lock) = (scenario.at(0), scenario.server.clone(), name.clone());
    scenario.spawn(0, async move {
        at(200).await;
        server.part(process, Parting::default());
        at(1_300).await;
        let release = Verb::Release { hold: 1, fence: Fence::Assign, whose: ReleaseScope::Own };
        ours.request(op(&lock, spec, 3, release), SECONDS(2)).await.map(drop).map_err(text)
    });
    let at = scenario.at(1);
    scenario.spawn(1, async move {
        at(1_400).await;
        match theirs.request(acquire(&name, spec, 4, 9_000), SECONDS(2)).await.map_err(text)? {
            Answer::Held { .. } => Ok(()),
            answer => Err(format!("an expired hold keeps others out: {answer:?}")),
        }
    });
    scenario.run(60)
}

/// A client has just seen that a holder lives, and begins to wait. The holder dies before, while or after the
/// watch of the waiter opens: the waiter is let in at once.
fn a_death_before_a_watch_is_seen(versions: Versions) -> Outcome {
    const TURNS: usize = 60;
    let scenario = Scenario::new(1 + TURNS, versions);
    for turn in 0..TURNS {
        let begins = turn as u64 * 20_000;
        let mutex = |process: usize| scenario.client(process).fair_mutex(format!("x{turn}")).expect("a name");
        let (holds, waits) = (mutex(1 + turn), mutex(0));
        let (at, server, process) =
            (scenario.at(1 + turn), scenario.server.clone(), scenario.processes[1 + turn].id());
        scenario.spawn(1 + turn, async move {
            at(begins).await;
            let _guard = holds.lock().await.map_err(text)?;
            at(begins + 400 + turn as u64).await;
            server.revoke(process);
            at(begins + 10_000).await;
            Ok(())
        });
        let (at, runtime) = (scenario.at(0), Arc::clone(&scenario.processes[0]));
        scenario.spawn(0, async move {
            at(begins + 300).await;
            drop(waits.try_lock().await.map_err(text)?);
            at(begins + 400).await;
            let begun = runtime.now();
            let guard = waits.lock().await.map_err(text)?;
            let waited = runtime.now().since(begun);
            drop(guard);
            if waited > MILLIS(500) { Err(format!("a death is seen after {waited:?}")) } else { Ok(()) }
        });
    }
    scenario.run(TURNS as u64 * 20 + 60)
}

/// A process that waits for a mutex relies on its watch, and retries twice a minute beside it. The holder dies: the
/// waiter is let in at once.
fn a_waiter_for_a_mutex_sends_few_requests(versions: Versions) -> Outcome {
    let scenario = Scenario::new(2, versions);
    let mutex = |process: usize| scenario.client(process).mutex("x").expect("a name");
    let (holds, waits) = (mutex(0), mutex(1));
    let (at, server, process) = (scenario.at(0), scenario.server.clone(), scenario.processes[0].id());
    scenario.spawn(0, async move {
        let _guard = holds.lock().await.map_err(text)?;
        at(10_000).await;
        server.requests();
        at(70_000).await;
        let mut requests = server.requests();
        // The holder's renewals, and the pings of both.
        requests.retain(|sort, _| !["keep", "ping"].contains(sort));
        server.revoke(process);
        at(80_000).await;
        let count: u32 = requests.values().sum();
        if count <= 2 * 3 { Ok(()) } else { Err(format!("requests in a minute: {requests:?}")) }
    });
    let (at, runtime) = (scenario.at(1), Arc::clone(&scenario.processes[1]));
    scenario.spawn(1, async move {
        at(1_000).await;
        let _guard = waits.lock().await.map_err(text)?;
        let waited = runtime.now().since(Moment(70_000 * MS));
        if waited > MILLIS(500) { Err(format!("a death is seen after {waited:?}")) } else { Ok(()) }
    });
    scenario.run(100)
}

/// Processes take turns at a fair mutex: a grant to one makes no other read the lock.
fn a_grant_makes_one_waiter_read(versions: Versions) -> Outcome {
    const PROCESSES: usize = 10;
    const TURNS: u32 = 6;
    let scenario = Scenario::new(PROCESSES, versions);
    for process in 0..PROCESSES {
        let (at, mutex) = (scenario.at(process), scenario.client(process).fair_mutex("x").expect("a name"));
        let (runtime, server) = (Arc::clone(&scenario.processes[process]), scenario.server.clone());
        scenario.spawn(process, async move {
            at(process as u64 * 100).await;
            let guard = mutex.lock().await.map_err(text)?;
            if process == 0 {
                at(3_000).await;
                server.requests();
            }
            runtime.sleep_until(runtime.now() + MILLIS(900)).await;
            if process == TURNS as usize {
                let requests = server.requests();
                let reads = ["read", "living"].map(|sort| requests.get(sort).copied().unwrap_or(0));
                if reads.iter().sum::<u32>() > 3 * TURNS {
                    return Err(format!("requests in {TURNS} turns: {requests:?}"));
                }
            }
            guard.release().await.map_err(text)
        });
    }
    scenario.run(100)
}

/// The answer to a detach is lost, and its undo asks for a millisecond: the hold keeps its lease.
fn an_undone_detach_shortens_nothing(_: Versions) -> Outcome {
    // On a server like ZooKeeper the client keeps each of its handles.
    let scenario = Scenario::new(2, Versions::Lasting);
    let (ours, theirs, server, at) =
        (scenario.store(0), scenario.store(1), scenario.server.clone(), scenario.at(0));
    scenario.spawn(0, async move {
        let (name, spec) = (LockName::new("x").expect("a name"), LockSpec::Reentrant);
        ours.request(acquire(&name, spec, 1, 60_000), SECONDS(2)).await.map_err(text)?;
        let bound = |ttl_ms, bind| {
            let verb = Verb::Renew { ttl_ms, hold: 1, bind: Some(bind), weight: None };
            ours.request(op(&name, spec, 1, verb), SECONDS(2))
        };
        server.delay_next_write(MILLIS(1));
        let detached = bound(60_000, Liveness::Lease).await;
        at(5_000).await;
        let undone = bound(1, Liveness::Process).await.map_err(text)?;
        at(30_000).await;
        match (
            detached,
            undone,
            theirs.request(acquire(&name, spec, 2, 9_000), SECONDS(2)).await.map_err(text)?,
        ) {
            (Err(_), Answer::Held { .. }, Answer::Busy { .. }) => Ok(()),
            answers => Err(format!("a detach, its undo, and another owner: {answers:?}")),
        }
    });
    scenario.run(60)
}

/// A client asks for a hold of a process that has died, beside a detached hold of the same owner: it does not get
/// the detached one.
fn a_dead_hold_takes_no_other_over(versions: Versions) -> Outcome {
    let scenario = Scenario::new(2, versions);
    let (ours, theirs, server) = (scenario.store(0), scenario.store(1), scenario.server.clone());
    let (at, process) = (scenario.at(0), scenario.processes[1].id());
    scenario.spawn(0, async move {
        let (name, spec) = (LockName::new("x").expect("a name"), LockSpec::Reentrant);
        theirs.request(acquire(&name, spec, 1, 60_000), SECONDS(2)).await.map_err(text)?;
        let (fence, bind) = (Fence::Assign, Liveness::Process);
        let verb = Verb::Acquire { ttl_ms: 60_000, hold: 2, fence, wait_ms: None, listens: None, bind };
        ours.request(op(&name, spec, 1, verb), SECONDS(2)).await.map_err(text)?;
        let moved = |hold, bind| {
            let verb = Verb::Renew { ttl_ms: 60_000, hold, bind: Some(bind), weight: None };
            ours.request(op(&name, spec, 1, verb), SECONDS(2))
        };
        moved(2, Liveness::Lease).await.map_err(text)?;
        server.revoke(process);
        at(2_000).await;
        let resume = |hold| moved(hold, Liveness::Process);
        match (resume(1).await.map_err(text)?, resume(3).await.map_err(text)?) {
            (Answer::Free, Answer::Held { .. }) => Ok(()),
            answers => Err(format!("a dead hold, and then the detached one: {answers:?}")),
        }
    });
    scenario.run(10)
}

/// A server that answers late gets a few keep-alives, and not one for each hold.
#[test]
fn a_slow_server_is_not_asked_once_for_each_hold() {
    const HOLDS: usize = 100;
    let scenario = Scenario::new(1, Versions::Lasting);
    let (locks, server, at) = (scenario.client(0), scenario.server.clone(), scenario.at(0));
    let process = scenario.processes[0].id();
    scenario.spawn(0, async move {
        let lock = |hold| {
            let mutex = locks.mutex(format!("x{hold}")).expect("a name");
            async move { mutex.lock().await }
        };
        let guards = try_join_all((0..HOLDS).map(lock)).await.map_err(text)?;
        at(2_000).await;
        server.part(process, Parting { replies: 6_000 * MS, ..Parting::default() });
        server.requests();
        at(9_000).await;
        let asked = server.requests();
        let keeps =
            asked.iter().filter(|(sort, _)| matches!(**sort, "keep" | "touch")).map(|(_, count)| count);
        match (keeps.sum::<u32>(), guards.iter().all(Guard::is_held)) {
            (2..=20, true) => Ok(()),
            _ => Err(format!("{asked:?}")),
        }
    });
    assert_eq!(scenario.run(10), Ok(()));
}

/// One change grants many permits, so their tokens are ahead of the versions of the lock. Their process dies, and
/// the lock becomes free: the tokens go on growing.
fn tokens_grow_though_one_change_granted_many(versions: Versions) -> Outcome {
    let scenario = Scenario::new(2, versions);
    let semaphore = |process: usize| scenario.client(process).semaphore("x", 50).expect("a name");
    let (many, one) = (semaphore(0), semaphore(1));
    let (at, server, process) = (scenario.at(0), scenario.server.clone(), scenario.processes[0].id());
    scenario.spawn(0, async move {
        let _permits = try_join_all((0..40).map(|_| many.acquire())).await.map_err(text)?;
        server.revoke(process);
        at(10_000).await;
        Ok(())
    });
    let at = scenario.at(1);
    scenario.spawn(1, async move {
        at(2_000).await;
        let mut tokens = Vec::new();
        for _ in 0..3 {
            let permit = one.acquire().await.map_err(text)?;
            tokens.push(permit.fence());
            permit.release().await.map_err(text)?;
        }
        if tokens.is_sorted_by(|a, b| a < b) { Ok(()) } else { Err(format!("{tokens:?}")) }
    });
    scenario.run(20)
}

/// Fails where a promise is broken.
pub(super) type Play = fn(Versions) -> Outcome;

pub(super) const SCENARIOS: [(Bug, Play); 5] = [
    (Bug::CasCountForgotten, tokens_grow_though_one_change_granted_many),
    (Bug::CasLapsedConfirmed, a_late_answer_revives_nothing),
    (Bug::CasDeathBeforeWatch, a_death_before_a_watch_is_seen),
    (Bug::CasDetachedIsPlace, an_undone_detach_shortens_nothing),
    (Bug::CasExpiredTakesDetached, a_dead_hold_takes_no_other_over),
];

#[test]
fn a_process_that_waits_for_a_mutex_costs_little() {
    for versions in [Versions::Lasting, Versions::OfCreations] {
        assert_eq!(a_waiter_for_a_mutex_sends_few_requests(versions), Ok(()), "{versions:?}");
    }
}

#[test]
fn a_turn_costs_each_other_waiter_no_read() {
    for versions in [Versions::Lasting, Versions::OfCreations] {
        assert_eq!(a_grant_makes_one_waiter_read(versions), Ok(()), "{versions:?}");
    }
}

#[test]
fn each_scenario_on_a_store_by_compare_and_swap_fails_with_its_bug() {
    for (bug, scenario) in SCENARIOS {
        for versions in [Versions::Lasting, Versions::OfCreations] {
            assert_eq!(scenario(versions), Ok(()), "{versions:?} without {bug:?}");
            plant(Some(bug));
            let outcome = scenario(versions);
            plant(None);
            assert!(outcome.is_err(), "{bug:?} is not seen in its scenario on {versions:?}");
        }
    }
}
