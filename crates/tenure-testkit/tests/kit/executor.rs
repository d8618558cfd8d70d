//! The executor alone.

use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tenure::internals::Runtime;
use tenure_testkit::sim::chooser::Chooser;
use tenure_testkit::sim::clock::{Clock, MS, SECOND, TrueTime};
use tenure_testkit::sim::executor::{OUTSIDE, Sim, Stop};

/// Three processes whose tasks sleep, spawn, wake one another, and are paused and killed. Returns the hash
/// and the order of events.
fn run(seed: u64) -> (u64, Vec<(TrueTime, u32)>) {
    let sim = Sim::new(Chooser::seeded(seed));
    let seen: Arc<Mutex<Vec<(TrueTime, u32)>>> = Arc::default();
    let notify = Arc::new(tokio::sync::Notify::new());
    let processes: Vec<_> = (0..3)
        .map(|index| sim.process(Clock { offset: index * 77 * SECOND, ppm: index as i32 * 900 - 900 }, seed))
        .collect();
    for index in 0..9 {
        let (process, seen, notify, sim) =
            (Arc::clone(&processes[index % 3]), Arc::clone(&seen), Arc::clone(&notify), sim.clone());
        let task = {
            let process = Arc::clone(&process);
            async move {
                for round in 0..4 {
                    let pause = Duration::from_nanos(process.random() % 50_000_000);
                    process.sleep_until(process.now() + pause).await;
                    notify.notify_waiters();
                    seen.lock().expect("no panic").push((sim.now(), index as u32 * 10 + round));
                }
            }
        };
        process.spawn(Box::pin(task));
    }
    sim.at(30 * MS, {
        let sim = sim.clone();
        move || sim.pause(1)
    });
    sim.at(90 * MS, {
        let sim = sim.clone();
        move || sim.resume(1)
    });
    sim.at(50 * MS, {
        let sim = sim.clone();
        move || sim.kill(2)
    });
    assert_eq!(sim.run(SECOND, 10_000), Stop::Idle);
    sim.end();
    let seen = seen.lock().expect("no panic").clone();
    (sim.hash(), seen)
}

#[test]
fn the_same_seed_gives_the_same_schedule() {
    let hashes: Vec<u64> = (0..200).map(|seed| run(seed).0).collect();
    for (seed, hash) in hashes.iter().enumerate() {
        assert_eq!(run(seed as u64).0, *hash, "seed {seed}");
    }
    let mut distinct = hashes;
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 200);
}

#[test]
fn a_paused_process_runs_nothing_and_a_killed_one_nothing_more() {
    let (_, seen) = run(3);
    let in_pause = |at: TrueTime| at > 30 * MS && at < 90 * MS;
    assert!(seen.iter().all(|(at, task)| task / 10 % 3 != 0 || !in_pause(*at)));
    assert!(seen.iter().all(|(at, task)| task / 10 % 3 != 1 || *at <= 50 * MS));
    assert!(seen.iter().any(|(at, task)| task / 10 % 3 == 0 && *at >= 90 * MS), "it goes on");
}

#[test]
fn a_dropped_sleep_does_not_move_time() {
    let sim = Sim::new(Chooser::seeded(0));
    let process = sim.process(Clock::default(), 0);
    let long = process.sleep_until(process.now() + Duration::from_secs(3_600));
    process.spawn(Box::pin(async move {
        let mut long = long;
        assert!(futures_util::poll!(&mut long).is_pending());
    }));
    assert_eq!(sim.run(u64::MAX, 100), Stop::Idle);
    assert!(sim.now() < MS);
}

#[test]
fn a_task_that_never_rests_is_stopped() {
    let sim = Sim::new(Chooser::seeded(0));
    let turn = std::future::poll_fn(|cx| {
        cx.waker().wake_by_ref();
        Poll::<()>::Pending
    });
    sim.spawn(OUTSIDE, Box::pin(turn));
    assert_eq!(sim.run(u64::MAX, 1_000), Stop::Steps);
}

#[test]
fn a_number_between_two_bounds_is_within_them() {
    let sim = Sim::new(Chooser::seeded(0));
    for (low, high) in [(0, 0), (0, 1), (3, 10), (7, 1_000_000_007), (0, u64::MAX / 2)] {
        for _ in 0..1_000 {
            assert!((low..=high).contains(&sim.between(low, high)), "{low} {high}");
        }
    }
}
