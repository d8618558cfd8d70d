//! The cost of a lock on etcd and on ZooKeeper, compared with their bare requests in the same run.
//!
//! `cargo bench -p tenure --features etcd,zookeeper --bench consensus` starts one server of each, with its
//! files in memory. Rounds of both sides alternate, so that a slow phase of the machine affects both; a row
//! is the median of its rounds. Like ours, the bare connection has its own thread. On etcd it puts a key in a
//! transaction, unless the key exists, and deletes it. On ZooKeeper it creates and deletes a node.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark reads the clock, sleeps and spawns"
)]

#[path = "consensus/bare.rs"]
mod bare;
mod measured;

use std::thread;
use std::time::{Duration, Instant};

use tenure::{Locks, block_on};
use tenure_testkit::servers::{Ensemble, Etcd, ZooKeeper};

use bare::Bare;
use measured::{header, rates, row};

fn main() {
    header();
    let etcd = Etcd::start();
    let count = || {
        let said = etcd.get(0, "metrics").expect("its metrics");
        let handled = said.lines().filter(|line| line.starts_with("grpc_server_handled_total{"));
        handled.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    };
    measure("etcd", &etcd.url(), &Bare::etcd(etcd.address()), count);
    drop(etcd);
    let zookeeper = ZooKeeper::start();
    let count = || {
        let said = zookeeper.command(0, "srvr").expect("an answer");
        let received = said.lines().find_map(|line| line.strip_prefix("Received: "));
        received.and_then(|count| count.parse().ok()).expect("a number")
    };
    measure("ZooKeeper", &zookeeper.url(), &Bare::zookeeper(zookeeper.address()), count);
}

fn measure(store: &str, url: &str, bare: &Bare, requests: impl Fn() -> f64) {
    pairs(store, url, bare);
    requests_of_a_pair(store, url, &requests);
    hand_over(store, url);
    waiters(store, url, &requests);
}

fn pairs(store: &str, url: &str, bare: &Bare) {
    let locks = Locks::open(url).expect("a store");
    let mutex = locks.mutex("pair").expect("a name");
    let ours = || {
        block_on(async { mutex.lock().await.expect("a guard").release().await.expect("a release") });
    };
    let [ours, theirs] = rates([&ours, &|| bare.pair()]);
    let what = format!("{store}: uncontended pairs/s, one task, beside the bare requests");
    row(&what, ours, theirs, ">= 0.9");
}

/// Requests of one pair, without those of an idle client, compared with those of the server's own recipe.
/// etcd's `concurrency.Mutex` puts and reads in one transaction, and deletes. ZooKeeper's recipe creates a
/// node, lists its siblings, and deletes it.
fn requests_of_a_pair(store: &str, url: &str, requests: &impl Fn() -> f64) {
    const PAIRS: u32 = 200;
    let locks = Locks::open(url).expect("a store");
    let mutex = locks.mutex("counted").expect("a name");
    let pair =
        || block_on(async { mutex.lock().await.expect("a guard").release().await.expect("a release") });
    pair();
    let before = requests();
    (0..PAIRS).for_each(|_| pair());
    let each = (requests() - before) / f64::from(PAIRS);
    let recipe = if store == "etcd" { 2.0 } else { 3.0 };
    row(&format!("{store}: requests of a pair, beside the recipe"), each, recipe, "-");
}

/// Tasks of two clients take turns of 1 ms; measures the share of the ideal rate.
fn hand_over(store: &str, url: &str) {
    const TURN: Duration = Duration::from_millis(1);
    let (start, length) = (Instant::now(), Duration::from_secs(5));
    let threads: Vec<_> = (0..2)
        .flat_map(|_| {
            let locks = Locks::open(url).expect("a store");
            (0..4).map(move |_| locks.clone())
        })
        .map(|locks| {
            thread::spawn(move || {
                let mut turns = 0;
                while start.elapsed() < length {
                    block_on(async {
                        let guard = locks.mutex("turns").expect("a name").lock().await.expect("a guard");
                        thread::sleep(TURN);
                        guard.release().await.expect("a release");
                    });
                    turns += 1;
                }
                turns
            })
        })
        .collect();
    let turns: u32 = threads.into_iter().map(|thread| thread.join().expect("turns")).sum();
    let ideal = start.elapsed().as_secs_f64() / TURN.as_secs_f64();
    let what = format!("{store}: turns of 1 ms, 2 clients x 4 tasks: share of the ideal");
    row(&what, f64::from(turns), ideal, ">= 0.8");
}

/// Requests per second of waiting clients, without those of the holder. On ZooKeeper they include the pings
/// of the sessions.
fn waiters(store: &str, url: &str, requests: &impl Fn() -> f64) {
    const LENGTH: Duration = Duration::from_secs(10);
    let holder = Locks::open(url).expect("a store");
    let guard = block_on(holder.mutex("held").expect("a name").lock()).expect("a guard");
    let rate = || {
        let before = requests();
        thread::sleep(LENGTH);
        (requests() - before) / LENGTH.as_secs_f64()
    };
    let idle = rate();
    let waiting = Locks::open(url).expect("a store");
    let waiters: Vec<_> = (0..100)
        .map(|_| {
            let mutex = waiting.mutex("held").expect("a name");
            thread::spawn(move || block_on(mutex.try_lock_for(Duration::from_secs(60))).is_ok())
        })
        .collect();
    thread::sleep(Duration::from_secs(2));
    let busy = rate() - idle;
    let what = format!("{store}: 100 waiters on a held lock: requests/s");
    println!("{what:<66} {busy:>10.2} {:>10} {:>8} {:>9}", "-", "-", "<= 1");
    drop(guard);
    drop(waiters);
    block_on(waiting.flush()).expect("an end");
}
