//! What locks cost on a compare-and-swap server: requests of an uncontended pair, of holders and of waiters.

use std::sync::Arc;
use std::sync::mpsc::channel;

use futures_util::future::try_join_all;
use tenure::Guard;
use tenure::internals::{Moment, Runtime};
use tenure_testkit::sim::cas::Versions;
use tenure_testkit::sim::clock::MS;
use tenure_testkit::sim::network::Parting;
use tenure_testkit::sim::scenarios::Outcome;

use super::scenario::{MILLIS, SECONDS, Scenario};

/// An uncontended acquire and release take one request each, and renewals do not grow with the number of
/// holds.
#[test]
fn a_pair_is_two_requests_and_a_session_serves_all_holds() {
    let scenario = Scenario::cas(1, Versions::Lasting);
    let locks = scenario.client(0, SECONDS(9));
    let (server, sleep) = (scenario.server.clone(), scenario.sleep(0));
    scenario.spawn(0, async move {
        let first = locks.mutex("first").expect("a name").lock().await.expect("a free lock");
        first.release().await.expect("a release");
        server.requests();
        for turn in 0..10 {
            let guard = locks.mutex(format!("{turn}")).expect("a name").lock().await.expect("a free lock");
            guard.release().await.expect("a release");
        }
        let pairs = server.requests();
        if pairs.values().sum::<u32>() != 20 {
            return Err(format!("ten pairs: {pairs:?}").into());
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
            return Err(format!("200 holds listen: {listening:?}").into());
        }
        sleep(SECONDS(9)).await;
        let renewals = server.requests();
        if renewals.values().sum::<u32>() > 10 || !guards.iter().all(Guard::is_held) {
            return Err(format!("a lease of 200 holds: {renewals:?}").into());
        }
        for guard in guards {
            guard.release().await.expect("a release");
        }
        Ok(())
    });
    assert_eq!(scenario.run_out(), Ok(()));
}

#[test]
fn holders_of_one_lock_share_a_watch_and_all_hear_that_it_is_ended_by_force() {
    const HOLDS: usize = 200;
    let scenario = Scenario::cas(2, Versions::Lasting);
    let (ours, theirs) = (scenario.client(0, SECONDS(9)), scenario.client(1, SECONDS(9)));
    let (server, sleep) = (scenario.server.clone(), scenario.sleep(0));
    scenario.spawn(0, async move {
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
                return Err(format!("{HOLDS} holds listen: {listening:?}").into());
            }
            theirs.force_release("s").await.expect("an answer").expect("it was held");
            sleep(MILLIS(500)).await;
            let held = permits.iter().filter(|permit| permit.is_held()).count();
            if held > 0 {
                return Err(format!("{held} were not told").into());
            }
        }
        Ok(())
    });
    assert_eq!(scenario.run_out(), Ok(()));
}

/// Requests for each second of each process that waits, without keep-alives and pings.
fn waiting(count: usize, versions: Versions) -> f64 {
    let scenario = Scenario::cas(count + 1, versions);
    let locks = scenario.client(count, SECONDS(15));
    let (sleep, server) = (scenario.sleep(count), scenario.server.clone());
    let (tell, told) = channel();
    scenario.spawn(count, async move {
        let guard = locks.fair_mutex("line").expect("a name").lock().await.expect("a free lock");
        sleep(SECONDS(20)).await;
        server.requests();
        sleep(SECONDS(60)).await;
        let _ = tell.send(server.requests());
        drop(guard);
        Ok(())
    });
    for at in 0..count {
        let (locks, sleep) = (scenario.client(at, SECONDS(15)), scenario.sleep(at));
        scenario.spawn(at, async move {
            sleep(SECONDS(1)).await;
            let guard: Guard = locks.fair_mutex("line").expect("a name").lock().await.expect("a turn");
            Ok(guard.release().await?)
        });
    }
    assert_eq!(scenario.run(100), Ok(()));
    let mut asked = told.recv().expect("they were counted");
    println!("{count} waiting, {versions:?}: {asked:?}");
    // The holder renews.
    asked.retain(|what, _| !["touch", "ping"].contains(what));
    let sum: u32 = asked.values().sum();
    f64::from(sum.saturating_sub(24)) / 60.0 / count as f64
}

#[test]
fn processes_that_wait_ask_next_to_nothing_however_many_they_are() {
    for versions in [Versions::Lasting, Versions::OfCreations] {
        for count in [10, 40] {
            let asked = waiting(count, versions);
            assert!(asked <= 0.3, "{count} of them, {versions:?}: {asked} times a second");
        }
    }
}

/// Requests of a hand-over from one living process to the next.
#[test]
fn a_hand_over_between_living_waiters_is_two_requests() {
    for versions in [Versions::Lasting, Versions::OfCreations] {
        let scenario = Scenario::cas(2, versions);
        let (tell, told) = channel();
        for at in 0..2 {
            let (locks, sleep, server, tell) =
                (scenario.client(at, SECONDS(15)), scenario.sleep(at), scenario.server.clone(), tell.clone());
            scenario.spawn(at, async move {
                let mutex = locks.fair_mutex("line").expect("a name");
                for turn in 0..40 {
                    let guard = mutex.lock().await?;
                    if (at, turn) == (0, 19) {
                        server.requests();
                    }
                    if (at, turn) == (0, 39) {
                        let _ = tell.send(server.requests());
                    }
                    sleep(MILLIS(20)).await;
                    guard.release().await?;
                }
                Ok(())
            });
        }
        assert_eq!(scenario.run_out(), Ok(()));
        let mut asked = told.recv().expect("they were counted");
        println!("{versions:?}: {asked:?}");
        asked.retain(|what, _| !["touch", "ping"].contains(what));
        // Of twenty turns of each: one write to wait, and one to release.
        let writes = asked.get("commit").copied().unwrap_or_default();
        assert!(writes <= 125, "{asked:?}");
    }
}

/// A process that waits for a mutex relies on its watch, and retries twice a minute beside it. The holder dies: the
/// waiter is let in at once.
fn a_waiter_for_a_mutex_sends_few_requests(versions: Versions) -> Outcome {
    let scenario = Scenario::cas(2, versions);
    let mutex = |process: usize| scenario.client(process, SECONDS(10)).mutex("x").expect("a name");
    let (holds, waits) = (mutex(0), mutex(1));
    let (at, server, process) = (scenario.at(0), scenario.server.clone(), scenario.id(0));
    scenario.spawn(0, async move {
        let _guard = holds.lock().await?;
        at(10_000).await;
        server.requests();
        at(70_000).await;
        let mut requests = server.requests();
        // The holder's renewals, and the pings of both.
        requests.retain(|sort, _| !["keep", "ping"].contains(sort));
        server.revoke(process);
        at(80_000).await;
        let count: u32 = requests.values().sum();
        if count <= 2 * 3 { Ok(()) } else { Err(format!("requests in a minute: {requests:?}").into()) }
    });
    let (at, runtime) = (scenario.at(1), Arc::clone(&scenario.processes[1]));
    scenario.spawn(1, async move {
        at(1_000).await;
        let _guard = waits.lock().await?;
        let waited = runtime.now().since(Moment(70_000 * MS));
        if waited > MILLIS(500) { Err(format!("a death is seen after {waited:?}").into()) } else { Ok(()) }
    });
    scenario.run(100)
}

/// Processes take turns at a fair mutex: a grant to one makes no other read the lock.
fn a_grant_makes_one_waiter_read(versions: Versions) -> Outcome {
    const PROCESSES: usize = 10;
    const TURNS: u32 = 6;
    let scenario = Scenario::cas(PROCESSES, versions);
    for process in 0..PROCESSES {
        let (at, mutex) =
            (scenario.at(process), scenario.client(process, SECONDS(10)).fair_mutex("x").expect("a name"));
        let (runtime, server) = (Arc::clone(&scenario.processes[process]), scenario.server.clone());
        scenario.spawn(process, async move {
            at(process as u64 * 100).await;
            let guard = mutex.lock().await?;
            if process == 0 {
                at(3_000).await;
                server.requests();
            }
            runtime.sleep_until(runtime.now() + MILLIS(900)).await;
            if process == TURNS as usize {
                let requests = server.requests();
                let reads = ["read", "living"].map(|sort| requests.get(sort).copied().unwrap_or(0));
                if reads.iter().sum::<u32>() > 3 * TURNS {
                    return Err(format!("requests in {TURNS} turns: {requests:?}").into());
                }
            }
            Ok(guard.release().await?)
        });
    }
    scenario.run(100)
}

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

/// A server that answers late gets a few keep-alives, and not one for each hold.
#[test]
fn a_slow_server_is_not_asked_once_for_each_hold() {
    const HOLDS: usize = 100;
    let scenario = Scenario::cas(1, Versions::Lasting);
    let (locks, server, at) = (scenario.client(0, SECONDS(10)), scenario.server.clone(), scenario.at(0));
    let process = scenario.id(0);
    scenario.spawn(0, async move {
        let lock = |hold| {
            let mutex = locks.mutex(format!("x{hold}")).expect("a name");
            async move { mutex.lock().await }
        };
        let guards = try_join_all((0..HOLDS).map(lock)).await?;
        at(2_000).await;
        server.part(process, Parting { replies: 6_000 * MS, ..Parting::default() });
        server.requests();
        at(9_000).await;
        let asked = server.requests();
        let keeps =
            asked.iter().filter(|(sort, _)| matches!(**sort, "keep" | "touch")).map(|(_, count)| count);
        match (keeps.sum::<u32>(), guards.iter().all(Guard::is_held)) {
            (2..=20, true) => Ok(()),
            _ => Err(format!("{asked:?}").into()),
        }
    });
    assert_eq!(scenario.run(10), Ok(()));
}
