//! Many waiters in one queue, on servers whose clients run the machine: what a turn costs.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "these tests use real time, threads and connections as their callers do"
)]

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure::{Locks, Options};
use tenure_testkit::servers::{Etcd, Postgres};
use tenure_testkit::setting;
use tokio::sync::mpsc;

/// So many turns are measured.
const TURNS: u64 = 40;

/// Unless `TENURE_WAITERS` says another number. One that waits has about 110 bytes of the value.
fn waiters() -> u64 {
    setting("TENURE_WAITERS").unwrap_or(1_000)
}

/// The memory of this process.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// So many wait in four clients for one fair lock; then some have their turns.
fn line_up(url: &str) -> Result<(), tenure::Error> {
    let all = waiters();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let open = || {
            let options = Options::new().ttl(Duration::from_secs(300)).op_timeout(Duration::from_secs(250));
            Locks::open(url).expect("a store").with(|_| options).expect("options")
        };
        let first = open();
        let guard = first.fair_mutex("line").expect("a name").lock().await?;
        let clients: Vec<Locks> = (0..4).map(|_| open()).collect();
        let before = resident();
        let (tell, mut told) = mpsc::unbounded_channel();
        let held = Arc::new(AtomicU64::new(guard.fence()));
        let begun = Instant::now();
        for at in 0..all {
            let lock = clients[at as usize % clients.len()].fair_mutex("line").expect("a name");
            let (tell, held) = (tell.clone(), Arc::clone(&held));
            tokio::spawn(async move {
                let turn = async {
                    let guard = lock.lock().await?;
                    let last = held.swap(guard.fence(), Ordering::SeqCst);
                    assert!(last < guard.fence(), "{} after {last}", guard.fence());
                    guard.release().await
                };
                let _ = tell.send(turn.await.map(|_| ()));
            });
        }
        loop {
            let status = first.inspect("line").await?.expect("it is held");
            if status.waiters.len() as u64 + status.unlisted == all {
                break;
            }
            if let Ok(early) = told.try_recv() {
                early?;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (came, memory) = (begun.elapsed(), resident().saturating_sub(before));
        let requests = || -> u64 {
            let counted = clients
                .iter()
                .map(|locks| locks.metrics().requests.iter().map(|requests| requests.count).sum::<u64>());
            counted.sum()
        };
        let (before, begun) = (requests(), Instant::now());
        guard.release().await?;
        for _ in 0..TURNS {
            told.recv().await.expect("a turn")?;
        }
        let (asked, took) = (requests() - before, begun.elapsed());
        println!(
            "{all} waiters came in {came:?}, with {} bytes of memory each; {:.1} requests and {:?} a turn",
            memory / all,
            asked as f64 / TURNS as f64,
            took / TURNS as u32
        );
        // A turn is a release and what its successor asks; places are refreshed in parts.
        assert!(asked <= 4 * TURNS + all / 8, "{asked} requests for {TURNS} turns");
        Ok(())
    })
}

#[test]
fn a_long_queue_on_postgresql_takes_its_turns_in_order() {
    line_up(&Postgres::start().url("line")).expect("turns");
}

#[test]
fn a_long_queue_on_etcd_takes_its_turns_in_order() {
    line_up(&Etcd::start().url()).expect("turns");
}
