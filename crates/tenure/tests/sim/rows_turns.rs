//! Small schedules on PostgreSQL, for what no regime draws, or draws rarely: the turns of a queue.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::LockName;
use tenure::internals::protocol::{Answer, Listening, LockSpec, Op, Place, QueueSpec, ReleaseScope, Verb};
use tenure::internals::store::StoreExt;
use tenure::internals::{Moment, Runtime};
use tenure_testkit::setting;
use tenure_testkit::sim::clock::MS;
use tenure_testkit::sim::rows::{Mistake, Server};
use tenure_testkit::sim::scenarios::{Failed, Outcome};

use super::dead_waiters::{LINES, next_after};
use super::scenario::{MILLIS, SECONDS, Scenario, acquire, op};

pub(super) fn dead_waiters_are_passed_at_once(_: Mistake) -> Outcome {
    for line in LINES {
        for dead in [1, 10, setting("TENURE_DEAD").unwrap_or(100) as usize] {
            let after = next_after(Scenario::rows(dead + 2, Mistake::Nothing), line)?;
            println!("{line:?}, {dead} dead: {after:?}");
            if after > MILLIS(300) {
                return Err(format!("{line:?}: the next one enters {after:?} after {dead} dead").into());
            }
        }
    }
    Ok(())
}

/// A fair mutex is held; process 1 and then process 2 wait, and both enter in this order after `released` s.
fn two_enter_in_order(scenario: Scenario<Server>, released: u64, joins: [u64; 2]) -> Outcome {
    let order = Arc::new(Mutex::new(Vec::new()));
    for process in 0..3 {
        let (locks, at) = (scenario.client(process, SECONDS(15)), scenario.at(process));
        let order = Arc::clone(&order);
        let joins = [0, joins[0], joins[1]][process];
        scenario.spawn(process, async move {
            at(joins).await;
            let guard = locks.fair_mutex("x").expect("a name").lock().await?;
            if process == 0 {
                at(released).await;
            } else {
                order.lock().expect("one thread").push(process);
            }
            Ok(guard.release().await?)
        });
    }
    scenario.run(120)?;
    let order = order.lock().expect("one thread");
    if *order == [1, 2] { Ok(()) } else { Err(format!("they entered in the order {order:?}").into()) }
}

/// A waiter that has a new session by the time of the grant keeps its turn.
pub(super) fn a_new_session_keeps_the_turn(_: Mistake) -> Outcome {
    let scenario = Scenario::rows(3, Mistake::Nothing);
    let server = scenario.server.clone();
    scenario.sim.at(9_999 * MS, move || {
        server.cut_listeners();
        // The look finds no session, and the grant comes when there is one again.
        server.delay_next("read", MILLIS(1), false);
        server.delay_next("read", MILLIS(700), false);
    });
    two_enter_in_order(scenario, 10_000, [9_200, 9_300])
}

/// A client whose session has been closed keeps the turn of its next place, for which it does not listen yet.
pub(super) fn a_closed_session_is_not_held_against_a_client(_: Mistake) -> Outcome {
    let scenario = Scenario::rows(3, Mistake::Nothing);
    let (locks, server) = (scenario.client(1, SECONDS(15)), scenario.server.clone());
    let (holder, at) = (scenario.client(0, SECONDS(15)), scenario.at(0));
    scenario.spawn(0, async move {
        let guard = holder.fair_mutex("before").expect("a name").lock().await?;
        at(500).await;
        Ok(guard.release().await?)
    });
    let (at, order) = (scenario.at(1), Arc::new(Mutex::new(Vec::new())));
    let ours = Arc::clone(&order);
    scenario.spawn(1, async move {
        at(100).await;
        let guard = locks.fair_mutex("before").expect("a name").lock().await?;
        guard.release().await?;
        // Its session is closed meanwhile, and the next one opens late.
        at(20_000).await;
        server.delay_next("listen", MILLIS(1_500), false);
        let guard = locks.fair_mutex("x").expect("a name").lock().await?;
        ours.lock().expect("one thread").push(1);
        Ok(guard.release().await?)
    });
    for process in [0, 2] {
        let (locks, at, order) =
            (scenario.client(process, SECONDS(15)), scenario.at(process), Arc::clone(&order));
        scenario.spawn(process, async move {
            // The holder begins to listen a second after its grant.
            at(if process == 0 { 18_000 } else { 20_200 }).await;
            let guard = locks.fair_mutex("x").expect("a name").lock().await?;
            if process == 0 {
                at(20_500).await;
            } else {
                order.lock().expect("one thread").push(2);
            }
            Ok(guard.release().await?)
        });
    }
    scenario.run(120)?;
    let order = order.lock().expect("one thread");
    if *order == [1, 2] { Ok(()) } else { Err(format!("they entered in the order {order:?}").into()) }
}

/// When the second of two waiters enters, if the first has stood still since before its grant, until it holds
/// for some time; fails if both hold at once.
fn second_enters(stands_until: u64) -> Result<Duration, Failed> {
    let scenario = Scenario::rows(3, Mistake::Nothing);
    let entered = Arc::new(Mutex::new((false, None)));
    for process in 0..3 {
        let (locks, at) = (scenario.client(process, SECONDS(15)), scenario.at(process));
        let (runtime, entered) = (Arc::clone(&scenario.processes[process]), Arc::clone(&entered));
        scenario.spawn(process, async move {
            at(process as u64 * 100).await;
            let guard = locks.fair_mutex("x").expect("a name").lock().await?;
            if process == 0 {
                at(10_000).await;
                return Ok(guard.release().await?);
            }
            if std::mem::replace(&mut entered.lock().expect("one thread").0, true) {
                return Err("two hold at once".into());
            }
            if process == 2 {
                entered.lock().expect("one thread").1 = Some(runtime.now());
            }
            runtime.sleep_until(runtime.now() + SECONDS(5)).await;
            entered.lock().expect("one thread").0 = false;
            Ok(guard.release().await?)
        });
    }
    let (sim, still) = (scenario.sim.clone(), scenario.id(1));
    let resumed = sim.clone();
    scenario.sim.at(9_900 * MS, move || sim.pause(still));
    scenario.sim.at(stands_until * MS, move || resumed.resume(still));
    scenario.run(120)?;
    let entered = entered.lock().expect("one thread").1.ok_or("the second has not entered")?;
    Ok(entered.since(Moment(10_000 * MS)))
}

/// A waiter that is granted the lock and does not renew costs the others as much as one without a session.
pub(super) fn a_granted_place_is_short(_: Mistake) -> Outcome {
    let after = second_enters(100_000)?;
    if after < MILLIS(5_500) { Ok(()) } else { Err(format!("the second enters after {after:?}").into()) }
}

/// A waiter does not take the time for which its place is kept for the lease of its grant.
pub(super) fn a_late_grant_is_not_believed(_: Mistake) -> Outcome {
    second_enters(17_000).map(drop)
}

/// A holder and the first waiter that die together cost the next waiter the holder's lease.
pub(super) fn two_that_die_cost_a_lease(_: Mistake) -> Outcome {
    let scenario = Scenario::rows(3, Mistake::Nothing);
    let entered = Arc::new(Mutex::new(None));
    for process in 0..3 {
        let (locks, at) = (scenario.client(process, SECONDS(15)), scenario.at(process));
        let (runtime, entered) = (Arc::clone(&scenario.processes[process]), Arc::clone(&entered));
        scenario.spawn(process, async move {
            at(process as u64 * 100).await;
            let guard = locks.fair_mutex("x").expect("a name").lock().await?;
            if process == 0 {
                at(100_000).await;
            }
            *entered.lock().expect("one thread") = Some(runtime.now());
            Ok(guard.release().await?)
        });
    }
    // The lease ends after 25 to 27 s, and the waiter refreshes its place after 22 and 42 s.
    scenario.kill_at(12_000, [0, 1]);
    scenario.run(120)?;
    let entered = entered.lock().expect("one thread").ok_or("the last has not entered")?;
    let late = entered.since(Moment(28_000 * MS));
    if late.is_zero() { Ok(()) } else { Err(format!("the last enters {late:?} too late").into()) }
}

/// A waiter that receives no messages any more keeps its turn.
pub(super) fn a_waiter_that_no_longer_listens_keeps_its_turn(_: Mistake) -> Outcome {
    let scenario = Scenario::rows(3, Mistake::Nothing);
    let server = scenario.server.clone();
    scenario.sim.at(8_000 * MS, move || {
        server.refuse_connections(Moment(60_000 * MS));
        server.cut_listeners();
    });
    two_enter_in_order(scenario, 10_000, [100, 200])
}

/// A place whose client no longer names a session ends as if it never had.
pub(super) fn a_place_without_its_session_is_short(_: Mistake) -> Outcome {
    let scenario = Scenario::rows(1, Mistake::Nothing);
    let (store, at) = (scenario.store(0), scenario.at(0));
    scenario.spawn(0, async move {
        let (name, spec) = (LockName::new("x").expect("a name"), LockSpec::Queue(QueueSpec::FAIR));
        let ask = |op| store.request(op, SECONDS(2));
        let mut waits = acquire(&name, spec, 2, 60_000);
        if let Verb::Acquire { wait_ms, .. } = &mut waits.verb {
            *wait_ms = Some(5_000);
        }
        ask(acquire(&name, spec, 1, 60_000)).await?;
        ask(waits.clone()).await?;
        let refresh = |listens| {
            let owners = Arc::new([waits.owner.clone()]);
            ask(Op { verb: Verb::Refresh { owners, wait_ms: 5_000, listens }, ..waits.clone() })
        };
        refresh(Listening::new(1)).await?;
        at(10_000).await;
        let kept = refresh(None).await?;
        at(20_000).await;
        let lost = refresh(None).await?;
        let is_at = |answer: &Answer, is_there: bool| {
            matches!(answer, Answer::Places { places, .. } if matches!(places[..], [Place::Gone]) != is_there)
        };
        match is_at(&kept, true) && is_at(&lost, false) {
            true => Ok(()),
            false => Err(format!("{kept:?}, then {lost:?}").into()),
        }
    });
    scenario.run(60)
}

/// A place of a client that names no session, as those of older clients, ends with its lease.
#[test]
fn a_place_without_a_session_is_not_passed() {
    let scenario = Scenario::rows(1, Mistake::Nothing);
    let store = scenario.store(0);
    scenario.spawn(0, async move {
        let (name, spec) = (LockName::new("x").expect("a name"), LockSpec::Queue(QueueSpec::FAIR));
        let ask = |op| store.request(op, SECONDS(2));
        ask(acquire(&name, spec, 1, 60_000)).await?;
        let Op { owner, verb: Verb::Acquire { ttl_ms, hold, fence, bind, .. }, .. } =
            acquire(&name, spec, 2, 60_000)
        else {
            unreachable!()
        };
        // An owner of another client.
        let owner = format!("{}f{}", &owner.as_str()[..18], &owner.as_str()[19..]).parse().expect("an owner");
        let verb = Verb::Acquire { ttl_ms, hold, fence, wait_ms: Some(5_000), listens: None, bind };
        let waits = Op { name: name.clone(), spec, owner, request: 1, verb };
        let renews = Op { verb: Verb::Renew { ttl_ms, hold, bind: None, weight: None }, ..waits.clone() };
        let waiting = ask(waits).await?;
        let whose = ReleaseScope::Own;
        let released = ask(op(&name, spec, 1, Verb::Release { hold, fence, whose })).await?;
        match (waiting, released, ask(renews).await?) {
            (Answer::Waiting { .. }, Answer::Released { .. }, Answer::Held { .. }) => Ok(()),
            answers => Err(format!("{answers:?}").into()),
        }
    });
    assert_eq!(scenario.run(60), Ok(()));
}
