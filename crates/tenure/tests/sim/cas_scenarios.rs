//! Small schedules on a compare-and-swap store, for what no regime draws often: each shows one bug.

use std::sync::Arc;

use futures_util::future::{FutureExt, join, select, try_join_all};
use tenure::internals::Runtime;
use tenure::internals::planted::Bug;
use tenure::internals::protocol::{Answer, Fence, Liveness, LockSpec, ReleaseScope, Verb};
use tenure::internals::store::StoreExt;
use tenure::{LockName, Locks};
use tenure_testkit::plant;
use tenure_testkit::sim::cas::{Server, Versions};
use tenure_testkit::sim::clock::MS;
use tenure_testkit::sim::network::Parting;
use tenure_testkit::sim::scenarios::Outcome;

use super::scenario::{MILLIS, SECONDS, Scenario, acquire, op, renew};

impl Scenario<Server> {
    /// With as many places in one part of a queue as on real servers.
    pub(super) fn cas(processes: usize, versions: Versions) -> Self {
        Self::of_parts(processes, versions, 128)
    }

    pub(super) fn of_parts(processes: usize, versions: Versions, part: usize) -> Self {
        Self::with(processes, |process| Server::with(process, versions, part))
    }

    /// Runs to the end, after which nothing is left on the server.
    pub(super) fn run_out(self) -> Outcome {
        let server = self.server.clone();
        self.run(120)?;
        if server.is_empty() { Ok(()) } else { Err("something is left".into()) }
    }
}

/// The answer to an acquisition arrives when its hold has expired and another request of the same client has
/// removed it: the hold stays gone.
fn a_late_answer_revives_nothing(versions: Versions) -> Outcome {
    let scenario = Scenario::cas(2, versions);
    let (ours, theirs, server) = (scenario.store(0), scenario.store(1), scenario.server.clone());
    let (name, spec, process) = (LockName::new("x").expect("a name"), LockSpec::Mutex, scenario.id(0));
    let (at, store, lock) = (scenario.at(0), Arc::clone(&ours), name.clone());
    scenario.spawn(0, async move {
        // Opens the session.
        store.request(acquire(&LockName::new("y").expect("a name"), spec, 1, 1_000), SECONDS(2)).await?;
        at(100).await;
        server.part(process, Parting { replies: 1_600 * MS, ..Parting::default() });
        let acquired = store.request(acquire(&lock, spec, 2, 1_000), SECONDS(5)).await?;
        let renewed = store.request(renew(&lock, spec, 2, 1_000), SECONDS(2)).await?;
        match (acquired, renewed) {
            (Answer::Held { .. }, Answer::Busy { .. }) => Ok(()),
            answers => Err(format!("a removed hold is renewed: {answers:?}").into()),
        }
    });
    let (at, server, lock) = (scenario.at(0), scenario.server.clone(), name.clone());
    scenario.spawn(0, async move {
        at(200).await;
        server.part(process, Parting::default());
        at(1_300).await;
        let release = Verb::Release { hold: 1, fence: Fence::Assign, whose: ReleaseScope::Own };
        ours.request(op(&lock, spec, 3, release), SECONDS(2)).await?;
        Ok(())
    });
    let at = scenario.at(1);
    scenario.spawn(1, async move {
        at(1_400).await;
        match theirs.request(acquire(&name, spec, 4, 9_000), SECONDS(2)).await? {
            Answer::Held { .. } => Ok(()),
            answer => Err(format!("an expired hold keeps others out: {answer:?}").into()),
        }
    });
    scenario.run(60)
}

/// A client has just seen that a holder lives, and begins to wait. The holder dies before, while or after the
/// watch of the waiter opens: the waiter is let in at once.
fn a_death_before_a_watch_is_seen(versions: Versions) -> Outcome {
    const TURNS: usize = 60;
    let scenario = Scenario::cas(1 + TURNS, versions);
    for turn in 0..TURNS {
        let begins = turn as u64 * 20_000;
        let mutex = |process: usize| {
            scenario.client(process, SECONDS(10)).fair_mutex(format!("x{turn}")).expect("a name")
        };
        let (holds, waits) = (mutex(1 + turn), mutex(0));
        let (at, server, process) = (scenario.at(1 + turn), scenario.server.clone(), scenario.id(1 + turn));
        scenario.spawn(1 + turn, async move {
            at(begins).await;
            let _guard = holds.lock().await?;
            at(begins + 400 + turn as u64).await;
            server.revoke(process);
            at(begins + 10_000).await;
            Ok(())
        });
        let (at, runtime) = (scenario.at(0), Arc::clone(&scenario.processes[0]));
        scenario.spawn(0, async move {
            at(begins + 300).await;
            drop(waits.try_lock().await?);
            at(begins + 400).await;
            let begun = runtime.now();
            let guard = waits.lock().await?;
            let waited = runtime.now().since(begun);
            drop(guard);
            if waited > MILLIS(500) {
                Err(format!("a death is seen after {waited:?}").into())
            } else {
                Ok(())
            }
        });
    }
    scenario.run(TURNS as u64 * 20 + 60)
}

/// The answer to a detach is lost, and its undo asks for a millisecond: the hold keeps its lease.
fn an_undone_detach_shortens_nothing(_: Versions) -> Outcome {
    // On a server like ZooKeeper the client keeps each of its sessions.
    let scenario = Scenario::cas(2, Versions::Lasting);
    let (ours, theirs, server, at) =
        (scenario.store(0), scenario.store(1), scenario.server.clone(), scenario.at(0));
    scenario.spawn(0, async move {
        let (name, spec) = (LockName::new("x").expect("a name"), LockSpec::Reentrant);
        ours.request(acquire(&name, spec, 1, 60_000), SECONDS(2)).await?;
        let bound = |ttl_ms, bind| {
            let verb = Verb::Renew { ttl_ms, hold: 1, bind: Some(bind), weight: None };
            ours.request(op(&name, spec, 1, verb), SECONDS(2))
        };
        server.delay_next_write(MILLIS(1));
        let detached = bound(60_000, Liveness::Lease).await;
        at(5_000).await;
        let undone = bound(1, Liveness::Process).await?;
        at(30_000).await;
        match (detached, undone, theirs.request(acquire(&name, spec, 2, 9_000), SECONDS(2)).await?) {
            (Err(_), Answer::Held { .. }, Answer::Busy { .. }) => Ok(()),
            answers => Err(format!("a detach, its undo, and another owner: {answers:?}").into()),
        }
    });
    scenario.run(60)
}

/// A client asks for a hold of a process that has died, beside a detached hold of the same owner: it does not get
/// the detached one.
fn a_dead_hold_takes_no_other_over(versions: Versions) -> Outcome {
    let scenario = Scenario::cas(2, versions);
    let (ours, theirs, server) = (scenario.store(0), scenario.store(1), scenario.server.clone());
    let (at, process) = (scenario.at(0), scenario.id(1));
    scenario.spawn(0, async move {
        let (name, spec) = (LockName::new("x").expect("a name"), LockSpec::Reentrant);
        theirs.request(acquire(&name, spec, 1, 60_000), SECONDS(2)).await?;
        let (fence, bind) = (Fence::Assign, Liveness::Process);
        let verb = Verb::Acquire { ttl_ms: 60_000, hold: 2, fence, wait_ms: None, listens: None, bind };
        ours.request(op(&name, spec, 1, verb), SECONDS(2)).await?;
        let moved = |hold, bind| {
            let verb = Verb::Renew { ttl_ms: 60_000, hold, bind: Some(bind), weight: None };
            ours.request(op(&name, spec, 1, verb), SECONDS(2))
        };
        moved(2, Liveness::Lease).await?;
        server.revoke(process);
        at(2_000).await;
        let resume = |hold| moved(hold, Liveness::Process);
        match (resume(1).await?, resume(3).await?) {
            (Answer::Free, Answer::Held { .. }) => Ok(()),
            answers => Err(format!("a dead hold, and then the detached one: {answers:?}").into()),
        }
    });
    scenario.run(10)
}

/// A client takes a hold over from a process whose session ends before the write, whose answer is lost: the lock is
/// free.
fn a_hold_that_ends_during_its_take_over_stays_gone(versions: Versions) -> Outcome {
    let scenario = Scenario::cas(3, versions);
    let [ours, theirs, others] = [0, 1, 2].map(|process| scenario.store(process));
    let (at, server, process) = (scenario.at(0), scenario.server.clone(), scenario.id(1));
    scenario.spawn(0, async move {
        let (name, spec) = (LockName::new("x").expect("a name"), LockSpec::Mutex);
        // Opens the session.
        ours.request(acquire(&LockName::new("y").expect("a name"), spec, 2, 60_000), SECONDS(2)).await?;
        theirs.request(acquire(&name, spec, 1, 60_000), SECONDS(2)).await?;
        at(1_000).await;
        server.delay_next_write(MILLIS(500));
        let verb = Verb::Renew { ttl_ms: 60_000, hold: 1, bind: Some(Liveness::Process), weight: None };
        let ends = async {
            at(1_250).await;
            server.revoke(process);
        };
        let (taken, ()) = join(ours.request(op(&name, spec, 1, verb), SECONDS(2)), ends).await;
        at(4_000).await;
        match (taken, others.request(acquire(&name, spec, 3, 9_000), SECONDS(2)).await?) {
            (Err(_), Answer::Held { .. }) => Ok(()),
            answers => Err(format!("a take-over, and then another owner: {answers:?}").into()),
        }
    });
    scenario.run(10)
}

/// One change grants many permits, so their tokens are ahead of the versions of the lock. Their process dies, and
/// the lock becomes free: the tokens go on growing.
fn tokens_grow_though_one_change_granted_many(versions: Versions) -> Outcome {
    let scenario = Scenario::cas(2, versions);
    let semaphore =
        |process: usize| scenario.client(process, SECONDS(10)).semaphore("x", 50).expect("a name");
    let (many, one) = (semaphore(0), semaphore(1));
    let (at, server, process) = (scenario.at(0), scenario.server.clone(), scenario.id(0));
    scenario.spawn(0, async move {
        let _permits = try_join_all((0..40).map(|_| many.acquire())).await?;
        server.revoke(process);
        at(10_000).await;
        Ok(())
    });
    let at = scenario.at(1);
    scenario.spawn(1, async move {
        at(2_000).await;
        let mut tokens = Vec::new();
        for _ in 0..3 {
            let permit = one.acquire().await?;
            tokens.push(permit.fence());
            permit.release().await?;
        }
        if tokens.is_sorted_by(|a, b| a < b) { Ok(()) } else { Err(format!("{tokens:?}").into()) }
    });
    scenario.run(20)
}

/// A request whose answer was lost leaves nothing behind that blocks others.
fn an_undo_is_final(versions: Versions) -> Outcome {
    let scenario = Scenario::cas(2, versions);
    let (ours, theirs) = (scenario.client(0, SECONDS(10)), scenario.client(1, SECONDS(10)));
    let (server, sleep) = (scenario.server.clone(), scenario.sleep(0));
    scenario.spawn(0, async move {
        // Keeps the process's session alive.
        let kept = ours.mutex("y").expect("a name").lock().await.expect("a free lock");
        server.delay_next_write(MILLIS(900));
        let asked = ours.mutex("x").expect("a name").try_lock().await;
        drop(asked);
        sleep(SECONDS(20)).await;
        Ok(kept.release().await?)
    });
    let sleep = scenario.sleep(1);
    scenario.spawn(1, async move {
        sleep(SECONDS(3)).await;
        let got = theirs.mutex("x").expect("a name").try_lock().await?;
        got.map(drop).ok_or_else(|| "a request that was undone keeps others out".into())
    });
    scenario.run_out()
}

/// A caller gives up while its write is on its way, and the undo finds the lock free: the write leaves nothing.
fn a_write_after_its_undo_leaves_nothing(versions: Versions) -> Outcome {
    let scenario = Scenario::cas(2, versions);
    let (ours, theirs) = (scenario.client(0, SECONDS(10)), scenario.client(1, SECONDS(10)));
    let (server, sleep) = (scenario.server.clone(), scenario.sleep(0));
    scenario.spawn(0, async move {
        // Keeps the process's session alive.
        let kept = ours.mutex("y").expect("a name").lock().await.expect("a free lock");
        server.delay_next_write(MILLIS(900));
        let mutex = ours.mutex("x").expect("a name");
        drop(select(mutex.try_lock().boxed(), sleep(MILLIS(100))).await);
        sleep(SECONDS(20)).await;
        Ok(kept.release().await?)
    });
    let sleep = scenario.sleep(1);
    scenario.spawn(1, async move {
        sleep(SECONDS(3)).await;
        let got = theirs.mutex("x").expect("a name").try_lock().await?;
        got.map(drop).ok_or_else(|| "a write after its undo keeps others out".into())
    });
    scenario.run_out()
}

/// Fails where a promise is broken.
pub(super) type Play = fn(Versions) -> Outcome;

pub(super) const SCENARIOS: [(Bug, Play); 7] = [
    (Bug::CasNoBarrier, an_undo_is_final),
    (Bug::CasCountForgotten, tokens_grow_though_one_change_granted_many),
    (Bug::CasLapsedConfirmed, a_late_answer_revives_nothing),
    (Bug::CasDeathBeforeWatch, a_death_before_a_watch_is_seen),
    (Bug::CasDetachedIsPlace, an_undone_detach_shortens_nothing),
    (Bug::CasExpiredTakesDetached, a_dead_hold_takes_no_other_over),
    (Bug::CasExpiredMoved, a_hold_that_ends_during_its_take_over_stays_gone),
];

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

/// A server that cannot compare several keys keeps what it can: a late write is ruled out by another write of its
/// lock, and tokens begin above the versions of its key.
#[test]
fn scenarios_go_well_with_one_key_and_fail_with_their_bugs() {
    for versions in [true, false].map(|expires| Versions::OneKey { expires }) {
        for (bug, scenario) in [
            (Bug::CasNoBarrier, a_write_after_its_undo_leaves_nothing as Play),
            (Bug::CasCountForgotten, tokens_grow_though_one_change_granted_many),
        ] {
            assert_eq!(scenario(versions), Ok(()), "{versions:?} without {bug:?}");
            plant(Some(bug));
            let outcome = scenario(versions);
            plant(None);
            assert!(outcome.is_err(), "{bug:?} is not seen in its scenario on {versions:?}");
        }
    }
}

#[test]
fn a_renewal_by_hand_notices_a_forced_release() {
    a_renewal_notices_a_forced_release(Versions::Lasting);
}

/// The process that ended the hold by force has nothing to tell its client: each renewal reads the lock.
#[test]
fn a_renewal_with_one_key_notices_a_forced_release() {
    a_renewal_notices_a_forced_release(Versions::OneKey { expires: true });
}

/// The keep-alive of another hold has just renewed their shared lease.
fn a_renewal_notices_a_forced_release(versions: Versions) {
    let scenario = Scenario::cas(2, versions);
    let (ours, theirs) = (scenario.client(0, SECONDS(30)), scenario.client(1, SECONDS(30)));
    scenario.spawn(0, async move {
        let guard = ours.mutex("x").expect("a name").lock().await?;
        let ended = theirs.force_release("x").await?;
        match (ended, guard.renew().await) {
            (Some(_), Err(error)) if error.is_lost() => Ok(()),
            outcome => Err(format!("{outcome:?}").into()),
        }
    });
    assert_eq!(scenario.run_out(), Ok(()));
}

/// An operator has revoked the lease of a process.
#[test]
fn holders_notice_that_their_lease_was_revoked() {
    let scenario = Scenario::cas(2, Versions::Lasting);
    let (ours, theirs) = (scenario.client(0, SECONDS(6)), scenario.client(1, SECONDS(6)));
    let (server, sleep, process) = (scenario.server.clone(), scenario.sleep(0), scenario.id(0));
    scenario.spawn(0, async move {
        let mutex = ours.mutex("x").expect("a name").lock().await?;
        let fair = ours.fair_mutex("y").expect("a name").lock().await?;
        server.revoke(process);
        sleep(SECONDS(3)).await;
        match (mutex.is_held(), fair.is_held()) {
            (false, false) => Ok(()),
            held => Err(format!("{held:?}").into()),
        }
    });
    let sleep = scenario.sleep(1);
    scenario.spawn(1, async move {
        sleep(SECONDS(1)).await;
        let got = theirs.mutex("x").expect("a name").try_lock().await?;
        got.map(drop).ok_or_else(|| "a hold without a lease keeps others out".into())
    });
    assert_eq!(scenario.run_out(), Ok(()));
}

/// A dead client's permits become available immediately, beside a busy client with many permits.
#[test]
fn permits_of_a_dead_process_are_found_beside_those_of_a_busy_one() {
    let scenario = Scenario::cas(3, Versions::Lasting);
    let permits = |locks: &Locks| locks.semaphore("x", 41).expect("a name");
    let clients = [0, 1, 2].map(|process| scenario.client(process, SECONDS(2)));
    let [many, dead, third] = clients.each_ref().map(permits);
    let [also_held, _, also_wanted] = clients.map(|locks| locks.mutex("y").expect("a name"));
    let hold = scenario.sleep(0);
    scenario.spawn(0, async move {
        let mut held = Vec::new();
        for _ in 0..40 {
            held.push(many.acquire().await.expect("a permit"));
        }
        let _also = also_held.lock().await.expect("a free lock");
        hold(SECONDS(15)).await;
        Ok(())
    });
    let sleep = scenario.sleep(1);
    scenario.spawn(1, async move {
        sleep(SECONDS(1)).await;
        let _held = dead.acquire().await.expect("a permit");
        std::future::pending().await
    });
    let sleep = scenario.sleep(2);
    scenario.spawn(2, async move {
        // The dead client is long gone, and the busy one was seen a moment ago.
        sleep(SECONDS(10)).await;
        let busy = also_wanted.try_lock().await?;
        assert!(busy.is_none(), "the busy one holds it");
        let got = third.try_acquire().await?;
        got.map(drop).ok_or_else(|| "the dead hold on".into())
    });
    scenario.kill_at(3_000, [1]);
    assert_eq!(scenario.run_out(), Ok(()));
}
