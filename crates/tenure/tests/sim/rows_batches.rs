//! Small schedules on PostgreSQL: requests that leave together, and changes that need no disk.

use std::collections::BTreeMap;

use futures_util::future::{join, join_all};
use tenure::LockName;
use tenure::internals::Runtime;
use tenure::internals::protocol::{Answer, Fence, LockSpec, QueueSpec, ReleaseScope, Verb};
use tenure::internals::store::{Failure, StoreExt};
use tenure_testkit::sim::rows::{Mistake, Server};
use tenure_testkit::sim::scenarios::{Failed, Outcome};

use super::scenario::{MILLIS, SECONDS, Scenario, acquire, op};

const TASKS: u32 = 64;

fn names() -> Vec<LockName> {
    (0..TASKS).map(|task| LockName::new(&format!("x{task:02}")).expect("a name")).collect()
}

/// Requests that wait for a statement in flight leave in the next one, and a lone one at once.
#[test]
fn sixty_four_tasks_share_their_statements() {
    let scenario = Scenario::rows(1, Mistake::Nothing);
    let (locks, server, at) = (scenario.client(0, SECONDS(60)), scenario.server.clone(), scenario.at(0));
    scenario.spawn(0, async move {
        locks.ping().await?;
        server.statements();
        let pair = async |name: LockName| {
            locks.mutex(name.as_str()).expect("a name").lock().await?.release().await?;
            Ok::<(), Failed>(())
        };
        at(1_000).await;
        for done in join_all(names().into_iter().map(pair)).await {
            done?;
        }
        let sent = server.statements();
        match (sent.get("acquire"), sent.get("release"), sent.values().sum::<u32>()) {
            (Some(1..=2), Some(1..=4), ..=6) => Ok(()),
            _ => Err(format!("64 pairs took {sent:?}").into()),
        }
    });
    assert_eq!(scenario.run(60), Ok(()));
}

/// Each kind takes one statement each way while nobody waits, and one for a renewal.
#[test]
fn every_kind_takes_one_statement_each_way() {
    let permits = LockSpec::Queue(QueueSpec::permits(5, 2));
    let specs = [LockSpec::Mutex, LockSpec::Reentrant, permits, LockSpec::Queue(QueueSpec::FAIR)];
    let specs = specs.into_iter().chain([QueueSpec::READER, QueueSpec::WRITER].map(LockSpec::Queue));
    for spec in specs {
        let scenario = Scenario::rows(1, Mistake::Nothing);
        let (store, server) = (scenario.store(0), scenario.server.clone());
        scenario.spawn(0, async move {
            let name = LockName::new("x").expect("a name");
            let ask = |op| store.request(op, SECONDS(2));
            let (hold, fence, whose) = (1, Fence::Assign, ReleaseScope::Own);
            let renew = Verb::Renew { ttl_ms: 60_000, hold, bind: None, weight: None };
            store.ready(SECONDS(2)).await?;
            server.statements();
            for turn in 0..3 {
                let held = ask(acquire(&name, spec, turn, 60_000)).await?;
                let renewed = ask(op(&name, spec, turn, renew.clone())).await?;
                let released = ask(op(&name, spec, turn, Verb::Release { hold, fence, whose })).await?;
                let is_right = matches!(held, Answer::Held { fence: 1.. })
                    && held == renewed
                    && released == Answer::Released { left: 0 };
                if !is_right {
                    return Err(format!("{held:?}, {renewed:?}, {released:?}").into());
                }
            }
            let sent = server.statements();
            let once = BTreeMap::from([("acquire", 3), ("renew", 3), ("release", 3)]);
            if sent == once { Ok(()) } else { Err(format!("{spec:?}: three turns took {sent:?}").into()) }
        });
        assert_eq!(scenario.run(60), Ok(()));
    }
}

/// A request that meets a row which another transaction has holds up none that left with it.
#[test]
fn a_stuck_row_holds_up_no_other_of_its_batch() {
    let scenario = Scenario::rows(1, Mistake::Nothing);
    let (locks, server, at) = (scenario.client(0, SECONDS(60)), scenario.server.clone(), scenario.at(0));
    let runtime = std::sync::Arc::clone(&scenario.processes[0]);
    scenario.spawn(0, async move {
        let stuck = locks.mutex("x07").expect("a name").lock().await?;
        let hold = server.check_in("x07", stuck.owner().as_str(), stuck.fence());
        let hold = hold.ok_or("it is not checked in")?;
        let others = names().into_iter().filter(|name| name.as_str() != "x07");
        let locks = &locks;
        let taken =
            others.map(|name| async move { locks.mutex(name.as_str()).expect("a name").lock().await });
        let guards = join_all(taken).await;
        let began = runtime.now();
        let releases =
            guards.into_iter().map(|guard| async move { Ok::<(), Failed>(guard?.release().await?) });
        let all = async {
            let released = join_all(releases).await;
            (released.into_iter().collect::<Result<Vec<_>, _>>(), runtime.now().since(began))
        };
        let ends = async {
            at(5_000).await;
            drop(hold);
        };
        let ((released, took), _) = join(all, join(stuck.release(), ends)).await;
        released?;
        if took < MILLIS(200) {
            Ok(())
        } else {
            Err(format!("releases beside a stuck row took {took:?}").into())
        }
    });
    assert_eq!(scenario.run(60), Ok(()));
}

/// Each request of a batch whose reply is lost has an unknown outcome.
pub(super) fn a_lost_reply_leaves_a_batch_unknown(_: Mistake) -> Outcome {
    let scenario = Scenario::rows(1, Mistake::Nothing);
    let (store, server, at) = (scenario.store(0), scenario.server.clone(), scenario.at(0));
    scenario.spawn(0, async move {
        store.ready(SECONDS(2)).await?;
        // The others gather while the first statement is in flight; the next one has them all.
        server.delay_next("acquire", MILLIS(100), false);
        let of_task = |task: u32| acquire(&names()[task as usize], LockSpec::Mutex, task, 60_000);
        let first = store.request(of_task(0), SECONDS(2));
        let others = async {
            at(10).await;
            server.delay_next("acquire", MILLIS(10), true);
            join_all((1..TASKS).map(|task| store.request(of_task(task), SECONDS(2)))).await
        };
        let (first, others) = join(first, others).await;
        first?;
        match others.iter().all(|said| matches!(said, Err(Failure::Unknown(_)))) {
            true => Ok(()),
            false => Err(format!("a lost batch: {others:?}").into()),
        }
    });
    scenario.run(60)
}

/// A crash of the server may forget a release, which costs a lease, but no grant.
pub(super) fn a_crash_forgets_no_grant(_: Mistake) -> Outcome {
    let scenario = Scenario::rows(2, Mistake::Nothing);
    let (ours, theirs) = (scenario.store(0), scenario.store(1));
    let server: Server = scenario.server.clone();
    server.may_crash();
    let at = scenario.at(0);
    scenario.spawn(0, async move {
        let (name, fair) = (LockName::new("x").expect("a name"), LockSpec::Queue(QueueSpec::FAIR));
        let (hold, fence, whose) = (1, Fence::Assign, ReleaseScope::Own);
        let release = |owner| op(&name, fair, owner, Verb::Release { hold, fence, whose });
        let mut waits = acquire(&name, fair, 2, 15_000);
        if let Verb::Acquire { wait_ms, .. } = &mut waits.verb {
            *wait_ms = Some(5_000);
        }
        ours.request(acquire(&name, fair, 1, 15_000), SECONDS(2)).await?;
        theirs.request(waits, SECONDS(2)).await?;
        ours.request(release(1), SECONDS(2)).await?;
        server.restart();
        at(1_000).await;
        let Answer::Found(found) = theirs.request(op(&name, fair, 2, Verb::Inspect), SECONDS(2)).await?
        else {
            return Err("a grant is forgotten".into());
        };
        let of_next = acquire(&name, fair, 2, 15_000).owner;
        if !found
            .holders
            .iter()
            .any(|holder| String::from_utf8_lossy(&holder.value).contains(of_next.as_str()))
        {
            return Err(format!("a grant is forgotten: {found:?}").into());
        }
        // The release of the second one is alone, and is forgotten.
        theirs.request(release(2), SECONDS(2)).await?;
        server.restart();
        at(2_000).await;
        match ours.request(acquire(&name, fair, 3, 15_000), SECONDS(2)).await? {
            Answer::Busy { left_ms: Some(..=15_000), .. } => {}
            answer => return Err(format!("after a release that was forgotten: {answer:?}").into()),
        }
        at(20_000).await;
        match ours.request(acquire(&name, fair, 3, 15_000), SECONDS(2)).await? {
            Answer::Held { .. } => Ok(()),
            answer => Err(format!("after the lease: {answer:?}").into()),
        }
    });
    scenario.run(60)
}

/// The release of a mutex and the acquire of the next local waiter leave as one change.
#[test]
fn a_hand_over_between_tasks_is_one_statement() {
    const TURNS: u32 = 80;
    let scenario = Scenario::rows(1, Mistake::Nothing);
    let (locks, server) = (scenario.client(0, SECONDS(60)), scenario.server.clone());
    let runtime = std::sync::Arc::clone(&scenario.processes[0]);
    scenario.spawn(0, async move {
        let mutex = locks.mutex("x").expect("a name");
        let turns = async || {
            let mut tokens = Vec::new();
            for _ in 0..TURNS / 8 {
                let guard = mutex.lock().await?;
                tokens.push(guard.fence());
                runtime.sleep_until(runtime.now() + MILLIS(5)).await;
                guard.release().await?;
            }
            Ok::<_, Failed>(tokens)
        };
        // They join the queue and listen.
        let first = mutex.lock().await?;
        let counted = async {
            runtime.sleep_until(runtime.now() + MILLIS(1_000)).await;
            server.statements();
            first.release().await?;
            Ok::<_, Failed>(())
        };
        let (tokens, counted) = join(join_all((0..8).map(|_| turns())), counted).await;
        counted?;
        let tokens: Vec<u64> = tokens.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
        let distinct: std::collections::BTreeSet<u64> = tokens.iter().copied().collect();
        let sent = server.statements();
        match (distinct.len() as u32, sent.values().sum::<u32>()) {
            // Other processes get a turn now and then, which a lone release offers them.
            (TURNS, ..=110) => Ok(()),
            _ => Err(format!("{} tokens in {TURNS} turns, which took {sent:?}", distinct.len()).into()),
        }
    });
    assert_eq!(scenario.run(60), Ok(()));
}
