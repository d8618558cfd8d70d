//! The number of processes that wait for a lock without a queue: known where the store can tell, otherwise unknown.

use std::time::Duration;

use tenure::{Guard, Locks, Owner, Result, Status, block_on};
use tenure_testkit::servers::{Cluster, Ensemble, Etcd, MariaDb, Postgres, Server, ZooKeeper, eventually};

use crate::common::locks;

const SOON: Duration = Duration::from_secs(20);

/// A mutex and a reentrant mutex, by name.
fn take(locks: &Locks, name: &str) -> Result<Guard> {
    match name {
        "mutex" => block_on(locks.mutex(name)?.lock()),
        _ => block_on(locks.reentrant_mutex(name, &Owner::new("")?)?.lock()),
    }
}

fn inspected(locks: &Locks, name: &str) -> Status {
    block_on(locks.inspect(name)).expect("an answer").expect("a holder")
}

fn listed(locks: &Locks, name: &str) -> Status {
    let mut listing = locks.list(name).expect("a prefix");
    block_on(listing.next()).expect("an answer").expect("a holder")
}

/// Checks what `inspect` and `list` tell of two processes that wait, and after these have left.
fn two_wait(url: &str, expected: [Option<u64>; 2]) {
    ["mutex", "reentrant"].iter().for_each(|name| two_wait_for(url, name, expected));
}

fn two_wait_for(url: &str, name: &str, expected: [Option<u64>; 2]) {
    let [holder, observer] = [(); 2].map(|()| locks(url, Duration::from_secs(15)));
    let guard = take(&holder, name).expect("free");
    let tells = |expected: Option<u64>| {
        let is_told = || [inspected, listed].iter().all(|look| look(&observer, name).waiting == expected);
        eventually(&format!("{url}, {name}: {expected:?} wait"), SOON, is_told);
    };
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                let turn = take(&locks(url, Duration::from_secs(15)), name).expect("a turn");
                block_on(turn.release()).expect("held");
            });
        }
        tells(expected[0]);
        block_on(guard.release()).expect("held");
    });
    let guard = take(&holder, name).expect("free");
    tells(expected[1]);
    drop(guard);
}

#[test]
fn redis_counts_the_processes_that_wait() {
    two_wait(&Server::start().url(), [Some(2), Some(0)]);
}

#[test]
fn a_cluster_counts_the_processes_that_wait() {
    two_wait(&Cluster::start().url(), [Some(2), Some(0)]);
}

#[test]
fn a_quorum_counts_the_processes_that_wait_also_without_a_member() {
    let [one, two, three] = [(); 3].map(|()| Server::start());
    let hosts = [&one, &two, &three].map(|server| server.url().replace("redis://", ""));
    let url = format!("redis-quorum://{}", hosts.join(","));
    two_wait_for(&url, "mutex", [Some(2), Some(0)]);
    drop(three);
    two_wait_for(&url, "mutex", [Some(2), Some(0)]);
}

#[test]
fn a_directory_counts_the_processes_that_wait() {
    let directory = tempfile::tempdir().expect("a directory");
    two_wait(&format!("file:{}", directory.path().display()), [Some(2), Some(0)]);
}

#[test]
fn the_store_in_memory_counts_the_clients_that_wait() {
    two_wait("memory:two-wait", [Some(2), Some(0)]);
}

#[test]
fn what_cannot_be_counted_is_unknown() {
    let (postgres, mariadb) = (Postgres::start(), MariaDb::start());
    let (etcd, zookeeper) = (Etcd::start(), ZooKeeper::start());
    for url in [postgres.url("waiting"), mariadb.url("waiting"), etcd.url(), zookeeper.url()] {
        two_wait(&url, [None, None]);
        let locks = locks(&url, Duration::from_secs(15));
        let _held = block_on(locks.fair_mutex("fair").expect("a name").lock()).expect("free");
        assert_eq!(inspected(&locks, "fair").waiting, Some(0), "{url}");
    }
}

#[test]
fn another_programs_waiters_are_counted_by_their_subscriptions() {
    let server = Server::start();
    server.command(&["SET", "mutex", "theirs", "PX", "60000"]);
    let [waiter, observer] = [(); 2].map(|()| locks(&server.url(), Duration::from_secs(15)));
    std::thread::scope(|threads| {
        let waits = threads.spawn(|| take(&waiter, "mutex"));
        eventually("it waits", SOON, || inspected(&observer, "mutex").waiting == Some(1));
        server.command(&["DEL", "mutex"]);
        drop(waits.join().expect("no panic").expect("a turn"));
    });
}
