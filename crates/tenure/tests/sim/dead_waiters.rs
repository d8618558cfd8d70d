//! For how long dead waiters hold the next one up.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{join, join_all};
use tenure::Locks;
use tenure::internals::{Moment, Runtime};
use tenure_testkit::setting;
use tenure_testkit::sim::cas::Versions;
use tenure_testkit::sim::clock::MS;
use tenure_testkit::sim::driver::Driver;
use tenure_testkit::sim::scenarios::Failed;

use super::scenario::{SECONDS, Scenario};

/// The kinds that keep a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Fair,
    Slots,
    /// The first holder and the next one read; the dead write.
    Writer,
}

pub(super) const LINES: [Line; 3] = [Line::Fair, Line::Slots, Line::Writer];

/// Waits for the lock; the dead ones as writers before readers.
async fn enter(locks: &Locks, line: Line, is_dead: bool) -> Result<Box<dyn Send>, Failed> {
    Ok(match line {
        Line::Fair => Box::new(locks.fair_mutex("x")?.lock().await?),
        Line::Slots => Box::new(locks.semaphore("x", 1)?.acquire().await?),
        Line::Writer if is_dead => Box::new(locks.rwlock("x")?.write().await?),
        Line::Writer => Box::new(locks.rwlock("x")?.read().await?),
    })
}

/// Sends a request that takes no place.
async fn try_to_enter(locks: &Locks, line: Line) -> tenure::Result<()> {
    match line {
        Line::Fair => locks.fair_mutex("x")?.try_lock().await.map(drop),
        Line::Slots => locks.semaphore("x", 1)?.try_acquire().await.map(drop),
        Line::Writer => locks.rwlock("x")?.try_write().await.map(drop),
    }
}

/// How long after a release the last process of a scenario enters. All between it and the holder waited before
/// it, and were killed.
pub(super) fn next_after<S: Driver + 'static>(scenario: Scenario<S>, line: Line) -> Result<Duration, Failed> {
    let dead = scenario.processes.len() - 2;
    let entered = Arc::new(Mutex::new(None));
    let (locks, at) = (scenario.client(0, SECONDS(15)), scenario.at(0));
    scenario.spawn(0, async move {
        let guard = enter(&locks, line, false).await?;
        at(8_000).await;
        drop(guard);
        Ok(())
    });
    for process in 1..dead + 2 {
        // They join one after the other within four seconds.
        let joins = 100 + process as u64 * 4_000 / (dead as u64 + 1);
        let is_dead = process <= dead;
        let (locks, at) = (scenario.client(process, SECONDS(15)), scenario.at(process));
        let (runtime, entered) = (Arc::clone(&scenario.processes[process]), Arc::clone(&entered));
        scenario.spawn(process, async move {
            at(joins).await;
            // Some stores send these together with the request for a place.
            let tries = (0..if is_dead { 2 } else { 0 }).map(|_| try_to_enter(&locks, line));
            let (_, guard) = join(join_all(tries), enter(&locks, line, is_dead)).await;
            let _guard = guard?;
            *entered.lock().expect("one thread") = Some(runtime.now());
            Ok(())
        });
    }
    scenario.kill_at(7_900, 1..=dead);
    scenario.run(120)?;
    let entered = entered.lock().expect("one thread").ok_or("the next one has not entered")?;
    Ok(entered.since(Moment(8_000 * MS)))
}

#[test]
fn a_dead_waiter_holds_the_next_up_for_three_seconds() {
    for versions in [Versions::Lasting, Versions::OfCreations] {
        for line in LINES {
            for dead in [1, 10] {
                let after = next_after(Scenario::cas(dead + 2, versions), line).expect("its turn");
                println!("{versions:?}, {line:?}, {dead} dead: {after:?}");
                assert!(after < Duration::from_millis(3_200), "{after:?}");
            }
        }
    }
}

/// They go in one change. `TENURE_DEAD` sets their number.
#[test]
fn many_dead_waiters_hold_the_next_up_no_longer() {
    let dead = setting("TENURE_DEAD").unwrap_or(100) as usize;
    for versions in [Versions::Lasting, Versions::OfCreations] {
        let after = next_after(Scenario::cas(dead + 2, versions), Line::Fair).expect("its turn");
        println!("{versions:?}: {after:?}");
        assert!(after < Duration::from_secs(4), "{after:?}");
    }
}
