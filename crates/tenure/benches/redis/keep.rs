//! The cost of waiting and holding.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use tenure::{Locks, block_on};
use tenure_testkit::servers::Server;
use tokio::runtime::Builder;

use crate::row;

pub(crate) fn keep(_what: &str, server: &Server) {
    waiting(server);
    renewal(&server.url());
}

fn waiting(server: &Server) {
    let locks = Locks::open(&server.url()).expect("a store");
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let guard = block_on(locks.mutex("held").expect("a name").lock()).expect("a free lock");
    for _ in 0..100 {
        let mutex = locks.mutex("held").expect("a name");
        runtime.spawn(async move { drop(mutex.lock().await) });
    }
    thread::sleep(Duration::from_secs(1));
    // Without the holder's renewals and the pings of the two connections.
    let commands = || -> f64 {
        let stats = server.info_commandstats();
        stats
            .iter()
            .filter(|(name, _)| !matches!(name.as_str(), "ping" | "info" | "pexpire"))
            .map(|(_, calls)| *calls as f64)
            .sum()
    };
    let (before, started) = (commands(), Instant::now());
    thread::sleep(Duration::from_secs(20));
    let each = (commands() - before) / started.elapsed().as_secs_f64();
    row("100 waiters on a held lock: server commands/s, all of them", each, 0.0, each, "<= 1");
    drop(guard);
    runtime.shutdown_background();
}

fn renewal(url: &str) {
    let locks = Locks::open(url)
        .and_then(|locks| locks.with(|options| options.ttl(Duration::from_secs(3))))
        .expect("a store");
    drop(block_on(locks.mutex("first").expect("a name").lock()).expect("a free lock"));
    let before = resident_bytes();
    let mut guards = Vec::with_capacity(1_000);
    for number in 0..1_000 {
        guards.push(
            block_on(locks.mutex(format!("renewed:{number}")).expect("a name").lock()).expect("a free lock"),
        );
    }
    let bytes = (resident_bytes() - before) / 1_000.0;
    thread::sleep(Duration::from_secs(4));
    let before = cpu_seconds();
    thread::sleep(Duration::from_secs(10));
    let cpu = cpu_seconds() - before;
    assert!(guards.iter().all(tenure::Guard::is_held));
    println!(
        "{:<66} {cpu:>10.3} {:>29}",
        "1,000 locks of 3 s renewed: client CPU seconds in 10 s", "<= 0.05"
    );
    println!("{:<66} {bytes:>10.0} {:>29}", "    memory per held guard, bytes", "<= 2048");
}

fn cpu_seconds() -> f64 {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux tells");
    let nanoseconds = tasks.filter_map(|task| {
        let text = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    nanoseconds.sum::<f64>() / 1e9
}

fn resident_bytes() -> f64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line about memory");
    let kib: f64 = line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a number");
    kib * 1024.0
}
