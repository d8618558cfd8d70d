//! Processes that contend for one mutex, with tasks that reacquire it after each release.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tenure::Options;

use super::{Outcome, Scene, begin};
use crate::sim::clock::{MS, SECOND};

const PROCESSES: usize = 4;
const TASKS: usize = 2;

/// Holds the mutex for `hold`, again and again.
async fn turns(scene: Scene, hold: u64, count: Arc<AtomicU32>) -> Outcome {
    let mutex = scene.locks.mutex("x")?;
    loop {
        let guard = mutex.lock().await?;
        count.fetch_add(1, Ordering::Relaxed);
        scene.sleep(hold).await;
        guard.release().await?;
    }
}

pub(super) fn processes_share_a_mutex() -> Outcome {
    Scene::new(Options::new()).play(|scene| async move {
        let counts: Vec<_> = (0..PROCESSES).map(|_| Arc::<AtomicU32>::default()).collect();
        for count in &counts {
            let other = scene.other(Options::new());
            for _ in 0..TASKS {
                let turns = turns(other.clone(), MS, Arc::clone(count));
                other.sim.spawn(other.process.id(), Box::pin(async move { turns.await.expect("turns") }));
            }
        }
        scene.sleep(5 * SECOND).await;
        let counts: Vec<_> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let mean = counts.iter().sum::<u32>() / PROCESSES as u32;
        match counts.iter().all(|count| *count > mean / 2) {
            true => Ok(()),
            false => Err(format!("of {PROCESSES} processes some got few turns: {counts:?}").into()),
        }
    })
}

/// No other process waits, so turns left to others are wasted.
pub(super) fn a_process_alone_leaves_few_turns() -> Outcome {
    has_most_turns(60 * MS, 90)?;
    has_most_turns(500 * MS, 98)
}

/// A process that knows that it waits alone leaves no turn, and one that comes later soon gets one.
pub(super) fn a_newcomer_gets_a_turn_of_a_process_that_was_alone() -> Outcome {
    const HOLD: u64 = 60 * MS;
    Scene::new(Options::new()).play(|scene| async move {
        let count = Arc::<AtomicU32>::default();
        for _ in 0..TASKS {
            let turns = turns(scene.clone(), HOLD, Arc::clone(&count));
            scene.sim.spawn(scene.process.id(), Box::pin(async move { turns.await.expect("turns") }));
        }
        scene.sleep(HOLD / 2).await;
        scene.network.tell_alone(true);
        // A hand-over takes one round trip, of 2 ms.
        scene.sleep(100 * (HOLD + 2 * MS)).await;
        let alone = count.load(Ordering::Relaxed);
        if alone < 100 {
            return Err(format!("{alone} turns in the time of a hundred").into());
        }
        let newcomer = scene.other(Options::new()).locks.mutex("x")?;
        let mut waits = std::pin::pin!(newcomer.lock());
        if begin(&mut waits).await.is_some() {
            return Err("the lock is held".into());
        }
        scene.network.tell_alone(false);
        drop(waits.await?);
        match count.load(Ordering::Relaxed) - alone {
            ..=3 => Ok(()),
            more => Err(format!("a newcomer waited for {more} turns").into()),
        }
    })
}

/// Takes more than `least` turns in the time of a hundred.
fn has_most_turns(hold: u64, least: u32) -> Outcome {
    Scene::new(Options::new()).play(move |scene| async move {
        let count = Arc::<AtomicU32>::default();
        for _ in 0..TASKS {
            let turns = turns(scene.clone(), hold, Arc::clone(&count));
            scene.sim.spawn(scene.process.id(), Box::pin(async move { turns.await.expect("turns") }));
        }
        scene.sleep(100 * hold).await;
        match count.load(Ordering::Relaxed) {
            count if count > least => Ok(()),
            count => Err(format!("{count} turns in the time of a hundred").into()),
        }
    })
}
