//! Processes that contend for one mutex, with tasks that reacquire it after each release.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tenure::Options;

use super::{Outcome, Scene, fails};
use crate::sim::clock::{MS, SECOND};

const PROCESSES: usize = 4;
const TASKS: usize = 2;

/// Holds the mutex for `hold`, again and again.
async fn turns(scene: Scene, hold: u64, count: Arc<AtomicU32>) -> Outcome {
    let mutex = scene.locks.mutex("x").map_err(fails)?;
    loop {
        let guard = mutex.lock().await.map_err(fails)?;
        count.fetch_add(1, Ordering::Relaxed);
        scene.sleep(hold).await;
        guard.release().await.map_err(fails)?;
    }
}

pub(super) fn processes_share_a_mutex() -> Outcome {
    Scene::new(Options::new()).play(|scene| {
        Box::pin(async move {
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
                false => Err(format!("of {PROCESSES} processes some got few turns: {counts:?}")),
            }
        })
    })
}

/// No other process waits, so turns left to others are wasted.
pub(super) fn a_process_alone_leaves_few_turns() -> Outcome {
    has_most_turns(60 * MS, 90)?;
    has_most_turns(500 * MS, 98)
}

/// Takes more than `least` turns in the time of a hundred.
fn has_most_turns(hold: u64, least: u32) -> Outcome {
    Scene::new(Options::new()).play(move |scene| {
        Box::pin(async move {
            let count = Arc::<AtomicU32>::default();
            for _ in 0..TASKS {
                let turns = turns(scene.clone(), hold, Arc::clone(&count));
                scene.sim.spawn(scene.process.id(), Box::pin(async move { turns.await.expect("turns") }));
            }
            scene.sleep(100 * hold).await;
            match count.load(Ordering::Relaxed) {
                count if count > least => Ok(()),
                count => Err(format!("{count} turns in the time of a hundred")),
            }
        })
    })
}
