//! Small schedules that each show one bug.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use tenure::internals::planted::Bug;
use tenure::internals::protocol::{Answer, Fence, Liveness, LockSpec, Op, QueueSpec, Verb};
use tenure::internals::store::StoreExt;
use tenure::internals::{Moment, Runtime};
use tenure::{LockName, Locks, Owner};
use tenure_testkit::plant;
use tenure_testkit::sim::clock::{MS, SECOND};

use super::World;
use super::model::Faults;
use super::table::Mistake;

const SECONDS: fn(u64) -> Duration = Duration::from_secs;
const MILLIS: fn(u64) -> Duration = Duration::from_millis;

fn text(error: impl ToString) -> String {
    error.to_string()
}

fn with(mistake: Mistake) -> Faults {
    Faults { mistake, ..Faults::default() }
}

/// Sleeps until a time of the schedule.
fn until(
    world: &World,
    process: usize,
) -> impl Fn(u64) -> futures_util::future::BoxFuture<'static, ()> + use<> {
    let runtime = Arc::clone(&world.processes[process]);
    move |ms| runtime.sleep_until(Moment(ms * MS))
}

/// A request whose connection was lost leaves nothing behind that blocks others.
fn an_undo_is_final(_: Mistake) -> Result<(), String> {
    let world = World::new(1, 2, Faults::default());
    let (ours, theirs) = (world.client(0, SECONDS(60)), world.client(1, SECONDS(60)));
    let (model, sleep) = (world.model.clone(), world.sleep(0));
    world.spawn(0, "first", async move {
        ours.ping().await.map_err(text)?;
        // It arrives long after the release that undoes it was answered.
        model.delay_next("acquire", SECONDS(2), true);
        drop(ours.mutex("x").expect("a name").try_lock().await);
        sleep(SECONDS(20)).await;
        Ok(())
    });
    let sleep = world.sleep(1);
    world.spawn(1, "second", async move {
        sleep(SECONDS(8)).await;
        let got = theirs.mutex("x").expect("a name").try_lock().await.map_err(text)?;
        got.map(drop).ok_or_else(|| "a request that was undone keeps others out".into())
    });
    world.run(60 * SECOND)
}

/// A free permit is granted even if others write at that moment.
fn a_conflict_is_not_busy(_: Mistake) -> Result<(), String> {
    let world = World::new(3, 4, Faults::default());
    for process in 0..4 {
        let (locks, sleep) = (world.client(process, SECONDS(5)), world.sleep(process));
        world.spawn(process, "one of many", async move {
            for turn in 1..20 {
                sleep(MILLIS(turn)).await;
                let permit = locks.semaphore("s", 4).expect("a name").try_acquire().await;
                let permit = permit.map_err(text)?.ok_or("a free permit was busy")?;
                permit.release().await.map_err(text)?;
            }
            Ok(())
        });
    }
    world.run(60 * SECOND)
}

/// A release at any moment wakes a client that is starting to wait.
fn a_release_is_heard(mistake: Mistake) -> Result<(), String> {
    let world = World::new(4, 2, with(mistake));
    let (ours, theirs) = (world.client(0, SECONDS(60)), world.client(1, SECONDS(60)));
    let at = until(&world, 0);
    world.spawn(0, "first", async move {
        for turn in 0..60 {
            at(turn * 1_000).await;
            let guard = ours.mutex(format!("x{turn}")).expect("a name").lock().await.map_err(text)?;
            at(turn * 1_000 + 500 + turn).await;
            guard.release().await.map_err(text)?;
        }
        Ok(())
    });
    let (at, model) = (until(&world, 1), world.model.clone());
    world.spawn(1, "second", async move {
        for turn in 0..60 {
            at(turn * 1_000 + 500).await;
            model.delay_next("note_listeners", MILLIS(30), false);
            let mutex = theirs.mutex(format!("x{turn}")).expect("a name");
            if mutex.try_lock_for(MILLIS(450)).await.map_err(text)?.is_none() {
                return Err(format!("a release was not heard in turn {turn}"));
            }
        }
        Ok(())
    });
    world.run(120 * SECOND)
}

/// A client that waits for longer than the row stays marked as having listeners still learns of a release.
fn a_release_is_heard_after_a_long_wait(mistake: Mistake) -> Result<(), String> {
    let world = World::new(5, 2, with(mistake));
    let (ours, theirs) = (world.client(0, SECONDS(60)), world.client(1, SECONDS(60)));
    let at = until(&world, 0);
    world.spawn(0, "first", async move {
        let guard = ours.mutex("x").expect("a name").lock().await.map_err(text)?;
        at(1_000_000).await;
        guard.release().await.map_err(text)
    });
    let at = until(&world, 1);
    let runtime = Arc::clone(&world.processes[1]);
    world.spawn(1, "second", async move {
        at(1_000).await;
        let guard = theirs.mutex("x").expect("a name").lock().await.map_err(text)?;
        let late = runtime.now().since(Moment(1_000_000 * MS));
        drop(guard);
        if late > MILLIS(100) { Err(format!("a release was heard after {late:?}")) } else { Ok(()) }
    });
    world.run(1_200 * SECOND)
}

/// A release while the listening connection is down is noticed after the reconnect.
fn what_was_missed_is_asked_about(_: Mistake) -> Result<(), String> {
    let world = World::new(6, 2, Faults::default());
    let (ours, theirs) = (world.client(0, SECONDS(60)), world.client(1, SECONDS(60)));
    let (at, model) = (until(&world, 0), world.model.clone());
    world.spawn(0, "first", async move {
        let guard = ours.mutex("x").expect("a name").lock().await.map_err(text)?;
        at(5_000).await;
        model.cut_listeners();
        guard.release().await.map_err(text)
    });
    let at = until(&world, 1);
    world.spawn(1, "second", async move {
        at(1_000).await;
        let got = theirs.mutex("x").expect("a name").try_lock_for(SECONDS(9)).await.map_err(text)?;
        got.map(drop).ok_or_else(|| "what was said while no client listened is missed".into())
    });
    world.run(60 * SECOND)
}

/// A request that was read when its connection ended is not written on that connection, which would end the
/// next one too.
#[test]
fn a_lost_connection_costs_no_other() {
    let world = World::new(10, 1, Faults::default());
    let (locks, model, at) = (world.client(0, SECONDS(9)), world.model.clone(), until(&world, 0));
    let (sim, seen, process) = (world.sim.clone(), model.clone(), world.processes[0].id());
    let asks = locks.clone();
    world.spawn(0, "first", async move {
        asks.ping().await.map_err(text)?;
        // The row of the permit arrives while the process is stopped; the acquire does not.
        seen.delay_next("read", MILLIS(10), false);
        seen.delay_next("acquire", MILLIS(500), false);
        at(100).await;
        let (permits, mutex) = (asks.semaphore("s", 4).expect("a name"), asks.mutex("x").expect("a name"));
        let next = async {
            at(101).await;
            mutex.try_lock().await
        };
        let _ = join(permits.try_acquire(), next).await;
        at(5_000).await;
        Ok(())
    });
    let stopped = sim.clone();
    world.sim.at(105 * MS, move || stopped.pause(process));
    let cut = model.clone();
    world.sim.at(150 * MS, move || {
        cut.cut_all();
        sim.resume(process);
    });
    assert_eq!(world.run(60 * SECOND), Ok(()));
    assert_eq!(model.connects(), 2);
}

/// A silent connection is given up, even by a process that requests a single lock and whose first request was
/// queued when another was answered.
fn a_silent_connection_is_given_up(_: Mistake) -> Result<(), String> {
    let world = World::new(11, 1, Faults::default());
    let (locks, model, at) = (world.client(0, SECONDS(9)), world.model.clone(), until(&world, 0));
    world.spawn(0, "asks", async move {
        let mutex = locks.fair_mutex("x").expect("a name");
        locks.ping().await.map_err(text)?;
        at(100).await;
        model.delay_next("ping", MILLIS(50), false);
        model.delay_next("read", MILLIS(300), false);
        let silence = async {
            at(250).await;
            model.silence();
        };
        let _ = join(join(locks.ping(), mutex.try_lock()), silence).await;
        let got = mutex.try_lock_for(SECONDS(10)).await.map_err(text)?;
        got.map(drop).ok_or_else(|| "the process goes on with a dead connection".into())
    });
    world.run(60 * SECOND)
}

/// A renewal written after the end of the lease has no effect.
fn a_late_write_is_refused(mistake: Mistake) -> Result<(), String> {
    let world = World::new(7, 1, with(mistake));
    let (store, model, at) = (world.store(0), world.model.clone(), until(&world, 0));
    world.spawn(0, "first", async move {
        let owner: Owner = "o@h:1/00000000000000000000000000000001".parse().expect("an owner");
        let (name, spec) = (LockName::new("x").expect("a name"), LockSpec::Queue(QueueSpec::FAIR));
        let op = |verb| Op { name: name.clone(), spec, owner: owner.clone(), request: 1, verb };
        let (ttl_ms, hold, fence, bind) = (500, 1, Fence::Assign, Liveness::Process);
        let acquire = Verb::Acquire { ttl_ms, hold, fence, wait_ms: None, listens: None, bind };
        store.request(op(acquire), SECONDS(2)).await.map_err(text)?;
        at(300).await;
        model.delay_next("write", MILLIS(400), false);
        let renewal = Verb::Renew { ttl_ms, hold, bind: None, weight: None };
        match store.request(op(renewal), SECONDS(2)).await.map_err(text)? {
            Answer::Free => Ok(()),
            answer => Err(format!("a lease that was over is renewed: {answer:?}")),
        }
    });
    world.run(60 * SECOND)
}

/// Tokens increase across the deletion of a row, even if the server's clock is set back.
fn a_row_that_is_deleted_leaves_its_token(mistake: Mistake) -> Result<(), String> {
    let world = World::new(8, 1, with(mistake));
    let (locks, model, sleep) = (world.client(0, SECONDS(9)), world.model.clone(), world.sleep(0));
    let take = |locks: Locks| async move {
        let guard = locks.mutex("x").expect("a name").lock().await.map_err(text)?;
        let token = guard.fence();
        guard.release().await.map_err(text).map(|()| token)
    };
    world.spawn(0, "first", async move {
        let before = take(locks.clone()).await?;
        sleep(SECONDS(3 * 3_600)).await;
        if model.rows() > 0 {
            return Err("a row of no use is kept".into());
        }
        model.set_back(SECONDS(4 * 3_600));
        let after = take(locks).await?;
        if after > before { Ok(()) } else { Err(format!("tokens: {after} after {before}")) }
    });
    world.run(4 * 3_600 * SECOND)
}

/// Fails if a guarantee is violated.
type Scene = fn(Mistake) -> Result<(), String>;

const OF_CODE: [(Bug, Scene); 6] = [
    (Bug::PostgresSilenceUnseen, a_silent_connection_is_given_up),
    (Bug::PostgresBeforeNotEnded, an_undo_is_final),
    (Bug::PostgresConflictIsBusy, a_conflict_is_not_busy),
    (Bug::PostgresHeardTooSoon, a_release_is_heard),
    (Bug::PostgresListensOnce, a_release_is_heard_after_a_long_wait),
    (Bug::PostgresMissedUnsaid, what_was_missed_is_asked_about),
];

const OF_STATEMENTS: [(Mistake, Scene); 4] = [
    (Mistake::LateWriteTaken, a_late_write_is_refused),
    (Mistake::TokenSwept, a_row_that_is_deleted_leaves_its_token),
    (Mistake::NothingSaid, a_release_is_heard),
    (Mistake::NothingSaid, a_release_is_heard_after_a_long_wait),
];

#[test]
fn each_scene_goes_well_and_fails_with_its_bug() {
    for (bug, scene) in OF_CODE {
        assert_eq!(scene(Mistake::Nothing), Ok(()), "without {bug:?}");
        plant(Some(bug));
        let outcome = scene(Mistake::Nothing);
        plant(None);
        assert!(outcome.is_err(), "{bug:?} is not seen in its scene");
    }
}

#[test]
fn each_scene_fails_with_its_mistake_in_a_statement() {
    for (mistake, scene) in OF_STATEMENTS {
        assert_eq!(scene(Mistake::Nothing), Ok(()), "without {mistake:?}");
        assert!(scene(mistake).is_err(), "{mistake:?} is not seen in its scene");
    }
}

/// An uncontended acquire and release take one statement each, and renewals do not grow with the number of
/// holds.
#[test]
fn a_pair_is_two_statements_and_one_renews_all_holds() {
    let world = World::new(9, 1, Faults::default());
    let (locks, model, sleep) = (world.client(0, SECONDS(30)), world.model.clone(), world.sleep(0));
    world.spawn(0, "first", async move {
        locks.ping().await.map_err(text)?;
        model.statements();
        for turn in 0..10 {
            let guard = locks.mutex(format!("{turn}")).expect("a name").lock().await.map_err(text)?;
            guard.release().await.map_err(text)?;
        }
        let pairs = model.statements();
        if pairs.values().sum::<u32>() != 20 {
            return Err(format!("ten pairs: {pairs:?}"));
        }
        let mut guards = Vec::new();
        for name in 0..200 {
            let name = format!("held{name}");
            guards.push(locks.mutex(name).expect("a name").lock().await.map_err(text)?);
        }
        // Until they have subscribed to forced releases, and the first renewals have spread them over time.
        sleep(SECONDS(20)).await;
        model.statements();
        sleep(SECONDS(10)).await;
        let renewals = model.statements();
        if renewals.values().sum::<u32>() > 30 || !guards.iter().all(tenure::Guard::is_held) {
            return Err(format!("a third of a lease of 200 holds: {renewals:?}"));
        }
        Ok(())
    });
    assert_eq!(world.run(120 * SECOND), Ok(()));
}
