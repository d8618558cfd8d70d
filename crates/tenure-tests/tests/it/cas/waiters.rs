//! What waiting costs, and for how long a dead waiter keeps the next one out.

use std::sync::mpsc::channel;
use std::time::Duration;

use futures_util::future::{FutureExt, join, join_all};
use tenure::internals::Runtime;
use tenure::{Guard, Locks};
use tenure_testkit::setting;
use tenure_testkit::sim::cas::Versions;
use tenure_testkit::sim::clock::{MS, SECOND};

use super::{PART, SECONDS, World};

/// A lock of ours is held for so long before it is released, while the others wait.
const HELD: u64 = 8;

/// The kinds that keep a queue.
const KINDS: [Kind; 3] = [Kind::Fair, Kind::Slots, Kind::Writer];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Fair,
    Slots,
    /// The first holder and the next one read; the dead write.
    Writer,
}

/// Waits for the lock; the dead ones as writers before readers.
async fn enter(locks: Locks, kind: Kind, is_dead: bool) -> Result<Box<dyn Send>, String> {
    let failed = |error: tenure::Error| error.to_string();
    let name = "line";
    Ok(match kind {
        Kind::Fair => Box::new(locks.fair_mutex(name).expect("a name").lock().await.map_err(failed)?),
        Kind::Slots => Box::new(locks.semaphore(name, 1).expect("a name").acquire().await.map_err(failed)?),
        Kind::Writer if is_dead => {
            Box::new(locks.rwlock(name).expect("a name").write().await.map_err(failed)?)
        }
        Kind::Writer => Box::new(locks.rwlock(name).expect("a name").read().await.map_err(failed)?),
    })
}

/// Requests that take no place; the dead have some in one write with the one that waits.
async fn try_to_enter(locks: Locks, kind: Kind) {
    let name = "line";
    let tried = match kind {
        Kind::Fair => locks.fair_mutex(name).expect("a name").try_lock().await.map(drop),
        Kind::Slots => locks.semaphore(name, 1).expect("a name").try_acquire().await.map(drop),
        Kind::Writer => locks.rwlock(name).expect("a name").try_write().await.map(drop),
    };
    drop(tried);
}

/// How long after the release the next one enters if so many waiting processes before it were killed.
fn next_after(dead: usize, versions: Versions, kind: Kind) -> Duration {
    let world = World::of(versions, 3, dead + 2, PART);
    let clients: Vec<Locks> = (0..dead + 2).map(|at| world.client(at, SECONDS(15))).collect();
    let [first, rest @ ..] = &clients[..] else { unreachable!() };
    let (tell, told) = channel();
    let (sleep, locks, released) = (world.sleep(0), first.clone(), tell.clone());
    let now = {
        let process = std::sync::Arc::clone(&world.processes[0]);
        move || process.now()
    };
    let at = now.clone();
    world.spawn(0, async move {
        let guard = enter(locks, kind, false).await?;
        sleep(SECONDS(HELD)).await;
        drop(guard);
        let _ = released.send(at());
        sleep(SECONDS(1)).await;
        Ok(())
    });
    for (at, locks) in rest.iter().enumerate() {
        let (process, is_dead, locks) = (at + 1, at < dead, locks.clone());
        let (sleep, entered, now) = (world.sleep(process), tell.clone(), now.clone());
        // They join one after the other within four seconds, the one that lives last.
        let joins = 100 + at as u64 * 4_000 / (dead as u64 + 1);
        world.spawn(process, async move {
            sleep(Duration::from_millis(joins)).await;
            let tried = (0..if is_dead { 2 } else { 0 }).map(|_| try_to_enter(locks.clone(), kind).boxed());
            let (_, guard) = join(join_all(tried), enter(locks.clone(), kind, is_dead)).await;
            let guard = guard?;
            let _ = entered.send(now());
            drop(guard);
            sleep(SECONDS(1)).await;
            Ok(())
        });
    }
    let (sim, dies) =
        (world.sim.clone(), world.processes[1..=dead].iter().map(|process| process.id()).collect::<Vec<_>>());
    world.sim.at(HELD * SECOND - 10 * MS, move || dies.iter().for_each(|id| sim.kill(*id)));
    assert_eq!(world.run(60 * SECOND), Ok(()));
    let times: Vec<_> = told.try_iter().collect();
    let [released, entered] = times[..] else { panic!("{times:?}: {dead} dead, {kind:?}, {versions:?}") };
    entered.since(released)
}

#[test]
fn a_dead_waiter_holds_the_next_up_for_three_seconds() {
    for versions in [Versions::Lasting, Versions::OfCreations] {
        for kind in KINDS {
            let after = [1, 10].map(|dead| next_after(dead, versions, kind));
            println!("{versions:?}, {kind:?}: {after:?}");
            assert!(after.iter().all(|after| *after < Duration::from_millis(3_200)), "{after:?}");
        }
    }
}

/// They go in one change. `TENURE_DEAD` sets their number.
#[test]
fn many_dead_waiters_hold_the_next_up_no_longer() {
    let dead = setting("TENURE_DEAD").unwrap_or(100) as usize;
    for versions in [Versions::Lasting, Versions::OfCreations] {
        let after = next_after(dead, versions, Kind::Fair);
        println!("{versions:?}: {after:?}");
        assert!(after < Duration::from_secs(4), "{after:?}");
    }
}

/// Requests for each second of each process that waits, without keep-alives and pings.
fn waiting(count: usize, versions: Versions) -> f64 {
    let world = World::of(versions, 4, count + 1, PART);
    let locks = world.client(count, SECONDS(15));
    let (sleep, server) = (world.sleep(count), world.server.clone());
    let (tell, told) = channel();
    world.spawn(count, async move {
        let guard = locks.fair_mutex("line").expect("a name").lock().await.expect("a free lock");
        sleep(SECONDS(20)).await;
        server.requests();
        sleep(SECONDS(60)).await;
        let _ = tell.send(server.requests());
        drop(guard);
        Ok(())
    });
    for at in 0..count {
        let (locks, sleep) = (world.client(at, SECONDS(15)), world.sleep(at));
        world.spawn(at, async move {
            sleep(SECONDS(1)).await;
            let guard: Guard = locks.fair_mutex("line").expect("a name").lock().await.expect("a turn");
            guard.release().await.map_err(|error| error.to_string())
        });
    }
    assert_eq!(world.run(100 * SECOND), Ok(()));
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
        let world = World::of(versions, 5, 2, PART);
        let (tell, told) = channel();
        for at in 0..2 {
            let (locks, sleep, server, tell) =
                (world.client(at, SECONDS(15)), world.sleep(at), world.server.clone(), tell.clone());
            world.spawn(at, async move {
                let mutex = locks.fair_mutex("line").expect("a name");
                for turn in 0..40 {
                    let guard = mutex.lock().await.map_err(|error| error.to_string())?;
                    if (at, turn) == (0, 19) {
                        server.requests();
                    }
                    if (at, turn) == (0, 39) {
                        let _ = tell.send(server.requests());
                    }
                    sleep(Duration::from_millis(20)).await;
                    guard.release().await.map_err(|error| error.to_string())?;
                }
                Ok(())
            });
        }
        assert_eq!(world.outcome(), Ok(()));
        let mut asked = told.recv().expect("they were counted");
        println!("{versions:?}: {asked:?}");
        asked.retain(|what, _| !["touch", "ping"].contains(what));
        // Of twenty turns of each: one write to wait, and one to release.
        let writes = asked.get("commit").copied().unwrap_or_default();
        assert!(writes <= 125, "{asked:?}");
    }
}
