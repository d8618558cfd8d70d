//! Hand-overs per second of one mutex among many tasks of this process, and the cost of their waiting.
//!
//! `cargo run --release -p tenure --example waiters -- redis://HOST 100000`
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "it measures real time")]

#[path = "costs/mod.rs"]
mod costs;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use costs::Costs;
use tenure::Locks;

const MEASURED: Duration = Duration::from_secs(5);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "memory:".into());
    let waiters: u32 = args.next().map_or(Ok(100_000), |count| count.parse())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let locks = Locks::connect(&url).await?;
        let mutex = locks.mutex("waiters")?;
        let first = mutex.lock().await?;
        let before = Costs::now(&url)?;
        let (waiting, turns) = (Arc::<AtomicU32>::default(), Arc::<AtomicU32>::default());
        for _ in 0..waiters {
            let (mutex, waiting, turns) = (mutex.clone(), Arc::clone(&waiting), Arc::clone(&turns));
            tokio::spawn(async move {
                waiting.fetch_add(1, Ordering::Relaxed);
                let guard = mutex.lock().await.expect("a grant");
                turns.fetch_add(1, Ordering::Relaxed);
                guard.release().await.expect("a release");
            });
        }
        while waiting.load(Ordering::Relaxed) < waiters {
            tokio::task::yield_now().await;
        }
        // By then the last ones have sent their request and are in the queue.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (in_line, started) = (Costs::now(&url)?, Instant::now());
        tokio::time::sleep(MEASURED).await;
        let (end, seconds) = (Costs::now(&url)?, started.elapsed().as_secs_f64());
        println!(
            "a waiter: {:.0} bytes here, {:.0} on the server; all of them: {:.1} commands/s, {:.1} ms/s of the \
             server's processor",
            (in_line.memory_here - before.memory_here) / f64::from(waiters),
            (in_line.memory_there - before.memory_there) / f64::from(waiters),
            (end.commands - in_line.commands) / seconds,
            (end.cpu_there - in_line.cpu_there) / seconds * 1e3,
        );
        first.release().await?;
        let started = Instant::now();
        while started.elapsed() < MEASURED && turns.load(Ordering::Relaxed) < waiters {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let turns = turns.load(Ordering::Relaxed);
        let rate = f64::from(turns) / started.elapsed().as_secs_f64();
        println!("{url}, {waiters} waiters: {rate:.0} hand-overs/s ({turns} of them)");
        // The rest need not get the lock.
        std::process::exit(0);
    })
}
