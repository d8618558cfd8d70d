//! What a lock on etcd and on ZooKeeper costs, beside their bare requests in the same run.
//!
//! `cargo bench -p tenure --features etcd,zookeeper --bench consensus` starts one server of each, whose
//! files are in memory. Rounds of both sides take turns, so that a machine that slows down slows both; a
//! row is the median of its rounds. The bare side speaks to the same server from a thread that waits for
//! each answer: to etcd by gRPC (a transaction that puts a key which is not there, and a delete), to
//! ZooKeeper by its own messages (create and delete).
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark reads the clock, sleeps and spawns"
)]

#[path = "consensus/bare.rs"]
mod bare;

use std::thread;
use std::time::{Duration, Instant};

use tenure::{Locks, block_on};
use tenure_testkit::servers::{Etcd, ZooKeeper};

use bare::{BareEtcd, BareZooKeeper, Counted};

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(700);

fn main() {
    println!("{:<66} {:>10} {:>10} {:>8} {:>9}", "", "ours", "bare", "ratio", "reach");
    let etcd = Etcd::start();
    let bare = BareEtcd::connect(&etcd.url());
    measure("etcd", &etcd.url(), || bare.pair());
    // Mutex.Lock of clientv3/concurrency: put-if-absent with a range, and a delete; where it waits, a
    // watch and a range more.
    println!("{:<66} {:>10} {:>10}", "etcd: requests of a pair, beside concurrency.Mutex", requests(&etcd.url()), 2);
    drop(etcd);
    let zookeeper = ZooKeeper::start();
    let bare = BareZooKeeper::connect(&zookeeper.url());
    measure("ZooKeeper", &zookeeper.url(), || bare.pair());
    // The recipe of its documentation and of Curator: create, getChildren, delete.
    println!("{:<66} {:>10} {:>10}", "ZooKeeper: requests of a pair, beside its recipe", requests(&zookeeper.url()), 3);
}
