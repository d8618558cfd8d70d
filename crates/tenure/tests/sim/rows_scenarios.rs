//! Small schedules on PostgreSQL, for what no regime draws, or draws rarely: each shows one bug or one mistake
//! in a statement.

use std::sync::{Arc, Mutex};

use futures_util::future::join;
use tenure::internals::planted::Bug;
use tenure::internals::protocol::{Answer, LockSpec, QueueSpec};
use tenure::internals::store::StoreExt;
use tenure::internals::{Moment, Runtime};
use tenure::{Kind, LockName, Locks};
use tenure_testkit::plant;
use tenure_testkit::sim::clock::{MS, SECOND};
use tenure_testkit::sim::rows::{Database, Mistake, POLLS, Server};
use tenure_testkit::sim::scenarios::{Failed, Outcome};

use super::scenario::{MILLIS, SECONDS, Scenario, acquire, renew};
use super::{rows_batches, rows_turns};

impl Scenario<Server> {
    pub(super) fn rows(processes: usize, mistake: Mistake) -> Self {
        Self::with(processes, |process| Server::new(process, mistake, Database::Postgres, 3))
    }
}

/// What a request may have left behind after its connection was lost does not keep others out.
fn an_undo_is_final(_: Mistake) -> Outcome {
    let scenario = Scenario::rows(2, Mistake::Nothing);
    let (ours, theirs) = (scenario.client(0, SECONDS(60)), scenario.client(1, SECONDS(60)));
    let (server, at) = (scenario.server.clone(), scenario.at(0));
    scenario.spawn(0, async move {
        ours.ping().await?;
        // It arrives when the release that undoes it is long answered.
        server.delay_next("acquire", SECONDS(2), true);
        drop(ours.mutex("x").expect("a name").try_lock().await);
        at(20_000).await;
        Ok(())
    });
    let at = scenario.at(1);
    scenario.spawn(1, async move {
        at(8_000).await;
        let got = theirs.mutex("x").expect("a name").try_lock().await?;
        got.map(drop).ok_or_else(|| "a request that was undone keeps others out".into())
    });
    scenario.run(60)
}

/// A release at any moment wakes a client that begins to wait.
fn a_release_is_heard(mistake: Mistake) -> Outcome {
    let scenario = Scenario::rows(2, mistake);
    let (ours, theirs) = (scenario.client(0, SECONDS(60)), scenario.client(1, SECONDS(60)));
    let at = scenario.at(0);
    scenario.spawn(0, async move {
        for turn in 0..60 {
            at(turn * 1_000).await;
            let guard = ours.mutex(format!("x{turn}")).expect("a name").lock().await?;
            at(turn * 1_000 + 500 + turn).await;
            guard.release().await?;
        }
        Ok(())
    });
    let (at, server) = (scenario.at(1), scenario.server.clone());
    scenario.spawn(1, async move {
        for turn in 0..60 {
            at(turn * 1_000 + 500).await;
            server.delay_next("note_listeners", MILLIS(30), false);
            let mutex = theirs.mutex(format!("x{turn}")).expect("a name");
            if mutex.try_lock_for(MILLIS(450)).await?.is_none() {
                return Err(format!("a release was not heard in turn {turn}").into());
            }
        }
        Ok(())
    });
    scenario.run(120)
}

/// A client that waits for longer than a row remembers it still hears a release.
fn a_release_is_heard_after_a_long_wait(mistake: Mistake) -> Outcome {
    let scenario = Scenario::rows(2, mistake);
    let (ours, theirs) = (scenario.client(0, SECONDS(60)), scenario.client(1, SECONDS(60)));
    let at = scenario.at(0);
    scenario.spawn(0, async move {
        let guard = ours.mutex("x").expect("a name").lock().await?;
        at(1_000_000).await;
        Ok(guard.release().await?)
    });
    let (at, runtime) = (scenario.at(1), Arc::clone(&scenario.processes[1]));
    scenario.spawn(1, async move {
        at(1_000).await;
        let guard = theirs.mutex("x").expect("a name").lock().await?;
        let late = runtime.now().since(Moment(1_000_000 * MS));
        drop(guard);
        if late > MILLIS(100) { Err(format!("a release was heard after {late:?}").into()) } else { Ok(()) }
    });
    scenario.run(1_200)
}

/// A release while the connection that listens is cut is made up for when the next one listens.
fn a_missed_release_is_asked_about(_: Mistake) -> Outcome {
    let scenario = Scenario::rows(2, Mistake::Nothing);
    let (ours, theirs) = (scenario.client(0, SECONDS(60)), scenario.client(1, SECONDS(60)));
    let (at, server) = (scenario.at(0), scenario.server.clone());
    scenario.spawn(0, async move {
        let guard = ours.mutex("x").expect("a name").lock().await?;
        at(5_000).await;
        server.cut_listeners();
        Ok(guard.release().await?)
    });
    let at = scenario.at(1);
    scenario.spawn(1, async move {
        at(1_000).await;
        let got = theirs.mutex("x").expect("a name").try_lock_for(SECONDS(9)).await?;
        got.map(drop).ok_or_else(|| "a release while no client listened is missed".into())
    });
    scenario.run(60)
}

/// The connection for messages stays open for a moment after the last listener, in which its rows would be marked
/// again.
#[test]
fn a_connection_without_listeners_waits_for_its_end() {
    let scenario = Scenario::rows(1, Mistake::Nothing);
    let (locks, at) = (scenario.client(0, SECONDS(60)), scenario.at(0));
    scenario.spawn(0, async move {
        for turn in 0..4 {
            at(turn * 200_000).await;
            let guard = locks.mutex("x").expect("a name").lock().await?;
            at(turn * 200_000 + 117_000 + turn * 500).await;
            guard.release().await?;
        }
        at(1_000_000).await;
        Ok(())
    });
    scenario.run(1_200).expect("it waits");
}

/// The oracle of progress relies on it. Jitter shortens the intervals by up to half.
#[test]
fn waiters_on_mysql_poll_as_often_as_the_oracle_expects() {
    let scenario = Scenario::with(2, |process| Server::new(process, Mistake::Nothing, Database::Mysql, 3));
    let (ours, theirs, server) =
        (scenario.store(0), scenario.client(1, SECONDS(60)), scenario.server.clone());
    let (name, spec) = (LockName::new("x").expect("a name"), LockSpec::Mutex);
    scenario.spawn(0, async move {
        ours.request(acquire(&name, spec, 1, 20_000), SECONDS(2)).await?;
        Ok(())
    });
    let at = scenario.at(1);
    scenario.spawn(1, async move {
        at(100).await;
        let mutex = theirs.mutex("x").expect("a name");
        let counts = async {
            at(5_000).await;
            server.statements();
            at(15_000).await;
            server.statements().get("read").copied().unwrap_or(0)
        };
        let (guard, polls) = join(mutex.lock(), counts).await;
        drop(guard?);
        let fewest = (10 * SECOND / POLLS) as u32;
        match (fewest..2 * fewest).contains(&polls) {
            true => Ok(()),
            false => {
                Err(format!("polls in ten seconds: got {polls}, expected {fewest} to {}", 2 * fewest).into())
            }
        }
    });
    assert_eq!(scenario.run(60), Ok(()));
}

/// What was read as a connection ended is not written on it while the next is used: that would end the next
/// one too.
#[test]
fn a_lost_connection_costs_no_other() {
    let scenario = Scenario::rows(1, Mistake::Nothing);
    let (asks, server, at) = (scenario.client(0, SECONDS(9)), scenario.server.clone(), scenario.at(0));
    let (sim, seen, process) = (scenario.sim.clone(), server.clone(), scenario.id(0));
    scenario.spawn(0, async move {
        let permits = asks.semaphore("s", 4).expect("a name");
        // The row of the permit is told while the process stands still; the acquire is not.
        seen.delay_next("read", MILLIS(10), false);
        seen.delay_next("acquire", MILLIS(500), false);
        at(100).await;
        let mutex = asks.mutex("x").expect("a name");
        let next = async {
            at(101).await;
            mutex.try_lock().await
        };
        // Requests of two tasks about one lock are carried out on its row, which is read first.
        let _ = join(join(permits.try_acquire(), permits.try_acquire()), next).await;
        at(5_000).await;
        Ok(())
    });
    let stopped = sim.clone();
    scenario.sim.at(105 * MS, move || stopped.pause(process));
    let cut = server.clone();
    scenario.sim.at(150 * MS, move || {
        cut.cut_all();
        sim.resume(process);
    });
    assert_eq!(scenario.run(60), Ok(()));
    assert_eq!(server.connects(), 2);
}

/// A connection that has become silent is given up, also by a process that asks about one lock, and whose
/// first request there was waiting as another was answered.
fn a_silent_connection_is_given_up(_: Mistake) -> Outcome {
    let scenario = Scenario::rows(1, Mistake::Nothing);
    let (locks, server, at) = (scenario.client(0, SECONDS(9)), scenario.server.clone(), scenario.at(0));
    scenario.spawn(0, async move {
        let mutex = locks.fair_mutex("x").expect("a name");
        locks.ping().await?;
        at(100).await;
        server.delay_next("ping", MILLIS(50), false);
        server.delay_next("acquire", MILLIS(300), false);
        let silence = async {
            at(250).await;
            server.silence_all();
        };
        let _ = join(join(locks.ping(), mutex.try_lock()), silence).await;
        let got = mutex.try_lock_for(SECONDS(10)).await?;
        got.map(drop).ok_or_else(|| "the process goes on with a dead connection".into())
    });
    scenario.run(60)
}

/// Tokens rise over the deletion of a row, also where the server's clock is set back.
fn a_row_that_is_deleted_leaves_its_token(mistake: Mistake) -> Outcome {
    let scenario = Scenario::rows(1, mistake);
    let (locks, server, at) = (scenario.client(0, SECONDS(9)), scenario.server.clone(), scenario.at(0));
    let take = |locks: Locks| async move {
        let guard = locks.mutex("x").expect("a name").lock().await?;
        let token = guard.fence();
        guard.release().await?;
        Ok::<_, Failed>(token)
    };
    scenario.spawn(0, async move {
        let before = take(locks.clone()).await?;
        at(3 * 3_600 * 1_000).await;
        if server.rows() > 0 {
            return Err("a row of no use is kept".into());
        }
        server.set_off(-4 * 3_600 * SECOND as i64, &[]);
        let after = take(locks).await?;
        if after > before { Ok(()) } else { Err(format!("tokens: {after} after {before}").into()) }
    });
    scenario.run(4 * 3_600)
}

/// A hold that an open transaction has checked in is not taken, although its lease is over.
fn a_hold_that_is_checked_in_is_not_taken(mistake: Mistake) -> Outcome {
    let scenario = Scenario::rows(2, mistake);
    let (ours, theirs) = (scenario.client(0, SECONDS(1)), scenario.client(1, SECONDS(1)));
    let (server, sim, at) = (scenario.server.clone(), scenario.sim.clone(), scenario.at(1));
    let process = scenario.id(0);
    scenario.spawn(1, async move {
        let guard = ours.fair_mutex("x").expect("a name").lock().await?;
        let hold = server.check_in("x", guard.owner().as_str(), guard.fence());
        let hold = hold.ok_or("it is not checked in")?;
        sim.pause(process);
        at(3_000).await;
        let mutex = theirs.fair_mutex("x").expect("a name");
        if let Ok(Some(_)) = mutex.try_lock_for(SECONDS(2)).await {
            return Err("a hold that is checked in was taken".into());
        }
        drop(hold);
        let got = mutex.try_lock_for(SECONDS(2)).await?;
        sim.resume(process);
        got.map(drop).ok_or_else(|| "a transaction that is over keeps others out".into())
    });
    scenario.run(60)
}

/// A release does not hand a lock on while an open transaction has checked it in.
fn a_release_waits_for_a_transaction(kind: Kind, mistake: Mistake) -> Outcome {
    let scenario = Scenario::rows(2, mistake);
    let (ours, theirs) = (scenario.client(0, SECONDS(60)), scenario.client(1, SECONDS(60)));
    let (server, at) = (scenario.server.clone(), scenario.at(0));
    let take = move |locks: Locks| async move {
        match kind {
            Kind::Mutex => locks.mutex("x").expect("a name").lock().await,
            _ => locks.fair_mutex("x").expect("a name").lock().await,
        }
    };
    let is_open = Arc::new(Mutex::new(true));
    let open = Arc::clone(&is_open);
    scenario.spawn(0, async move {
        let guard = take(ours).await?;
        let hold = server.check_in("x", guard.owner().as_str(), guard.fence());
        let hold = hold.ok_or("it is not checked in")?;
        at(2_000).await;
        let ends = async {
            at(4_000).await;
            *open.lock().expect("one thread") = false;
            drop(hold);
        };
        let _ = join(guard.release(), ends).await;
        Ok(())
    });
    let at = scenario.at(1);
    scenario.spawn(1, async move {
        at(1_000).await;
        drop(take(theirs).await?);
        match *is_open.lock().expect("one thread") {
            true => Err("a hold that is checked in was handed on".into()),
            false => Ok(()),
        }
    });
    scenario.run(60)
}

fn a_release_from_a_queue_waits_for_a_transaction(mistake: Mistake) -> Outcome {
    a_release_waits_for_a_transaction(Kind::Fair, mistake)
}

fn a_release_of_a_mutex_waits_for_a_transaction(mistake: Mistake) -> Outcome {
    a_release_waits_for_a_transaction(Kind::Mutex, mistake)
}

/// An expired hold that is renewed, because a transaction has checked in another hold of its lock, is held.
fn an_expired_hold_beside_a_transaction_is_renewed(mistake: Mistake) -> Outcome {
    let scenario = Scenario::rows(1, mistake);
    let (store, server, at) = (scenario.store(0), scenario.server.clone(), scenario.at(0));
    scenario.spawn(0, async move {
        let (name, spec) = (LockName::new("x").expect("a name"), LockSpec::Queue(QueueSpec::permits(2, 1)));
        let first = acquire(&name, spec, 1, 60_000);
        let owner = first.owner.clone();
        let Answer::Held { fence } = store.request(first, SECONDS(2)).await? else {
            return Err("a free permit was not granted".into());
        };
        store.request(acquire(&name, spec, 2, 500), SECONDS(2)).await?;
        let hold = server.check_in("x", owner.as_str(), fence).ok_or("it is not checked in")?;
        at(700).await;
        let renewed = store.request(renew(&name, spec, 2, 5_000), SECONDS(2)).await?;
        drop(hold);
        let taken = store.request(acquire(&name, spec, 3, 5_000), SECONDS(2)).await?;
        match (renewed, taken) {
            (Answer::Held { .. }, Answer::Busy { .. }) => Ok(()),
            answers => Err(format!("two of two permits are held: {answers:?}").into()),
        }
    });
    scenario.run(60)
}

/// A server whose writes take longer than the lease does not count as one with an open transaction.
fn late_writes_are_no_open_transaction(_: Mistake) -> Outcome {
    let scenario = Scenario::rows(2, Mistake::Nothing);
    let (ours, theirs, at) = (scenario.store(0), scenario.store(1), scenario.at(0));
    let server = scenario.server.clone();
    scenario.spawn(0, async move {
        let (name, spec) = (LockName::new("x").expect("a name"), LockSpec::Queue(QueueSpec::FAIR));
        theirs.request(acquire(&name, spec, 1, 500), SECONDS(2)).await?;
        at(1_000).await;
        (0..6).for_each(|_| server.delay_next("write", MILLIS(400), false));
        match ours.request(acquire(&name, spec, 2, 300), SECONDS(20)).await? {
            Answer::Held { .. } => Ok(()),
            answer => Err(format!("a free lock: {answer:?}").into()),
        }
    });
    scenario.run(60)
}

/// Fails where a promise is broken.
pub(super) type Play = fn(Mistake) -> Outcome;

pub(super) const OF_CODE: [(Bug, Play); 20] = [
    (Bug::RowsSilenceUnseen, a_silent_connection_is_given_up),
    (Bug::RowsBeforeNotEnded, an_undo_is_final),
    (Bug::RowsHeardTooSoon, a_release_is_heard),
    (Bug::RowsListensOnce, a_release_is_heard_after_a_long_wait),
    (Bug::RowsMissedUnsaid, a_missed_release_is_asked_about),
    (Bug::RowsCheckInForgotten, a_hold_that_is_checked_in_is_not_taken),
    (Bug::RowsHandOverUnseen, a_release_from_a_queue_waits_for_a_transaction),
    (Bug::RowsExtendedUnwritten, an_expired_hold_beside_a_transaction_is_renewed),
    (Bug::RowsSessionUnseen, rows_turns::dead_waiters_are_passed_at_once),
    (Bug::RowsSessionReplaced, rows_turns::a_new_session_keeps_the_turn),
    (Bug::RowsSessionKept, rows_turns::a_closed_session_is_not_held_against_a_client),
    (Bug::PlaceGrantedForLong, rows_turns::a_granted_place_is_short),
    (Bug::RowsLateTakenForCheckIn, late_writes_are_no_open_transaction),
    (Bug::RowsBatchLossRefused, rows_batches::a_lost_reply_leaves_a_batch_unknown),
    (Bug::RowsGrantNotDurable, rows_batches::a_crash_forgets_no_grant),
    (Bug::RowsHeadAloneAsks, rows_turns::two_that_die_cost_a_lease),
    (Bug::RowsFirstUntold, rows_turns::a_granted_place_is_short),
    (Bug::PlaceKeptUntold, rows_turns::a_place_without_its_session_is_short),
    (Bug::KeptPlaceBelieved, rows_turns::a_late_grant_is_not_believed),
    (Bug::PlaceRefreshedLateUnheard, rows_turns::a_waiter_that_no_longer_listens_keeps_its_turn),
];

const OF_STATEMENTS: [(Mistake, Play); 5] = [
    (Mistake::TokenSwept, a_row_that_is_deleted_leaves_its_token),
    (Mistake::NothingSaid, a_release_is_heard),
    (Mistake::NothingSaid, a_release_is_heard_after_a_long_wait),
    (Mistake::CheckInUnseen, a_hold_that_is_checked_in_is_not_taken),
    (Mistake::CheckInReleased, a_release_of_a_mutex_waits_for_a_transaction),
];

#[test]
fn each_scenario_goes_well_and_fails_with_its_bug() {
    for (bug, scenario) in OF_CODE {
        assert_eq!(scenario(Mistake::Nothing), Ok(()), "without {bug:?}");
        plant(Some(bug));
        let outcome = scenario(Mistake::Nothing);
        plant(None);
        assert!(outcome.is_err(), "{bug:?} is not seen in its scenario");
    }
}

#[test]
fn each_scenario_fails_with_its_mistake_in_a_statement() {
    for (mistake, scenario) in OF_STATEMENTS {
        assert_eq!(scenario(Mistake::Nothing), Ok(()), "without {mistake:?}");
        assert!(scenario(mistake).is_err(), "{mistake:?} is not seen in its scenario");
    }
}

/// An uncontended acquisition and its release are a statement each, and renewals do not grow with the holds.
#[test]
fn a_pair_is_two_statements_and_one_renews_all_holds() {
    let scenario = Scenario::rows(1, Mistake::Nothing);
    let (locks, server, at) = (scenario.client(0, SECONDS(30)), scenario.server.clone(), scenario.at(0));
    scenario.spawn(0, async move {
        locks.ping().await?;
        server.statements();
        for turn in 0..10 {
            let guard = locks.mutex(format!("{turn}")).expect("a name").lock().await?;
            guard.release().await?;
        }
        let pairs = server.statements();
        if pairs.values().sum::<u32>() != 20 {
            return Err(format!("ten pairs: {pairs:?}").into());
        }
        let mut guards = Vec::new();
        for name in 0..200 {
            let name = format!("held{name}");
            guards.push(locks.mutex(name).expect("a name").lock().await?);
        }
        // They begin to listen to whether they are ended by force, and are renewed for the first time, which
        // spreads them.
        at(22_000).await;
        server.statements();
        at(32_000).await;
        let renewals = server.statements();
        if renewals.values().sum::<u32>() > 30 || !guards.iter().all(tenure::Guard::is_held) {
            return Err(format!("a third of a lease of 200 holds: {renewals:?}").into());
        }
        Ok(())
    });
    assert_eq!(scenario.run(120), Ok(()));
}

/// What the holder of a lock and the processes that wait for it send in ten minutes, each second and process:
/// statements, and probes of connections.
fn requests_of_a_process(kind: Kind, processes: usize) -> f64 {
    let [from, to] = [60, 660];
    let scenario = Scenario::rows(processes + 1, Mistake::Nothing);
    let sent = Arc::new(Mutex::new(0));
    for process in 0..=processes {
        let (locks, at) = (scenario.client(process, SECONDS(15)), scenario.at(process));
        let (server, sent) = (scenario.server.clone(), Arc::clone(&sent));
        scenario.spawn(process, async move {
            at(process as u64 * 97).await;
            let guard = match kind {
                Kind::Mutex => locks.mutex("x").expect("a name").lock().await,
                _ => locks.fair_mutex("x").expect("a name").lock().await,
            };
            if process == 0 {
                at(from * 1_000).await;
                server.statements();
                at(to * 1_000).await;
                let statements = server.statements();
                println!("{kind}, {processes}: {statements:?}");
                *sent.lock().expect("one thread") = statements.values().sum::<u32>();
            }
            Ok(guard?.release().await?)
        });
    }
    assert_eq!(scenario.run(1_000), Ok(()));
    let sent = *sent.lock().expect("one thread");
    f64::from(sent) / (to - from) as f64 / (processes + 1) as f64
}

#[test]
fn processes_that_wait_and_hold_send_a_request_each_four_seconds() {
    for kind in [Kind::Mutex, Kind::Fair] {
        for processes in [0, 1, 10, 100] {
            let each = requests_of_a_process(kind, processes);
            println!("{kind}: beside {processes} that wait, {each:.3} requests a second each");
            // A row that others change is read for each renewal.
            let most = if processes == 1 { 0.35 } else { 0.3 };
            assert!(each <= most, "{kind}: beside {processes} that wait, {each:.3} requests a second each");
        }
    }
}
