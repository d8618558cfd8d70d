//! Processes that are killed while they wait, on servers that notice when a client dies.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "these tests use real time, processes and threads as their callers do"
)]

use std::env;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tenure::{Locks, block_on};
use tenure_testkit::servers::{Ensemble, Etcd, ZooKeeper, eventually};
use tenure_testkit::setting;
use tenure_testkit::timed::in_time;

/// The store of a process that waits.
const STORE: &str = "TENURE_WAITS_AT";

#[test]
#[ignore = "a process of those below"]
fn a_process_that_waits() {
    let Ok(url) = env::var(STORE) else { return };
    let locks = Locks::open(&url).expect("a store");
    let _guard = block_on(locks.fair_mutex("line").expect("a name").lock()).expect("a turn");
    loop {
        thread::park();
    }
}

fn waiting_process(url: &str) -> Child {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["--exact", "dead_waiters::a_process_that_waits", "--ignored", "--nocapture"]);
    command.env(STORE, url).stdout(Stdio::null()).spawn().expect("a process")
}

/// How long after the release the next one enters, if so many processes before it were killed.
fn next_after(url: &str, dead: usize) -> Duration {
    let locks = Locks::open(url).expect("a store");
    let fair = locks.fair_mutex("line").expect("a name");
    let guard = block_on(fair.lock()).expect("a free lock");
    let waits = |count: usize| {
        eventually("all wait", Duration::from_secs(60), || {
            block_on(locks.inspect("line"))
                .is_ok_and(|found| found.is_some_and(|found| found.waiters.len() == count))
        });
    };
    let mut processes: Vec<Child> = (0..dead).map(|_| waiting_process(url)).collect();
    waits(dead);
    let next = thread::spawn(move || {
        let guard = block_on(fair.lock()).expect("a turn");
        let entered = Instant::now();
        block_on(guard.release()).expect("a release");
        entered
    });
    waits(dead + 1);
    processes.iter_mut().for_each(|process| process.kill().expect("a process"));
    processes.iter_mut().for_each(|process| assert!(process.wait().is_ok()));
    let released = Instant::now();
    block_on(guard.release()).expect("a release");
    next.join().expect("no panic") - released
}

fn is_soon(name: &str, server: &impl Ensemble, most: Duration) {
    for dead in [1, setting("TENURE_DEAD").unwrap_or(4)] {
        let after = next_after(&server.url(), dead as usize);
        println!("{name}: after {dead} dead waiters the next one enters {after:?} after the release");
        in_time(after, most);
    }
}

/// The lease of 3 s of a place, and the half second in which etcd notices its end.
#[test]
fn on_etcd_a_killed_waiter_costs_a_few_seconds() {
    is_soon("etcd", &Etcd::start(), Duration::from_secs(4));
}

/// The session of 4 s of a place, and a tick.
#[test]
fn on_zookeeper_a_killed_waiter_costs_a_few_seconds() {
    is_soon("ZooKeeper", &ZooKeeper::start(), Duration::from_secs(5));
}
