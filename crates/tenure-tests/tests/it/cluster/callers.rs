//! Requests of tokio tasks use connections on their runtime, one per node.

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::thread::scope;
use std::time::Duration;

use tenure::{Locks, block_on};
use tenure_testkit::servers::{Cluster, Server, eventually};
use tokio::runtime::{Builder, Runtime};

use super::{SOON, locks, runtime};

fn connections(server: &Server) -> usize {
    server.command(&["CLIENT", "LIST"]).text().matches(" name=tenure-").count()
}

async fn used(locks: &Locks, name: &str) {
    let guard = locks.mutex(name).expect("a name").lock().await.expect("a free lock");
    guard.release().await.expect("a release");
}

/// Locks until the runtime's tasks have their own connection to each of these nodes.
fn connected(runtime: &Runtime, locks: &Locks, cluster: &Cluster, names: &[String]) {
    eventually("a connection of the runtime's own to each node", SOON, || {
        for name in names {
            (0..8).for_each(|_| runtime.block_on(used(locks, name)));
        }
        cluster.masters().iter().all(|node| connections(node) == 2)
    });
}

#[test]
fn tasks_have_a_connection_to_each_node_and_the_end_of_their_runtime_costs_no_lock() {
    let cluster = Cluster::without_replicas();
    let (locks, runtime) = (locks(&cluster.url(), Duration::from_secs(60)), runtime());
    let names: Vec<_> = (0..cluster.masters().len()).map(|node| cluster.key_at(node, "k")).collect();
    connected(&runtime, &locks, &cluster, &names);
    let guards: Vec<_> = names
        .iter()
        .map(|name| {
            let mutex = locks.mutex(name.as_str()).expect("a name");
            runtime.block_on(mutex.lock()).expect("a free lock")
        })
        .collect();
    drop(runtime);
    for (guard, name) in guards.into_iter().zip(&names) {
        block_on(guard.release()).expect("a release");
        block_on(used(&locks, name));
    }
    eventually("the end of its connections", SOON, || {
        cluster.masters().iter().all(|node| connections(node) == 1)
    });
}

/// Its release was dropped in a blocked runtime before it was written.
#[test]
fn other_callers_have_a_lock_of_a_runtime_that_stands_still() {
    let cluster = Cluster::without_replicas();
    let locks = locks(&cluster.url(), Duration::from_secs(60));
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let names: Vec<_> = (0..cluster.masters().len()).map(|node| cluster.key_at(node, "k")).collect();
    connected(&runtime, &locks, &cluster, &names);
    let mutex = locks.mutex(names[0].as_str()).expect("a name");
    let guard = runtime.block_on(mutex.lock()).expect("a free lock");
    let (stands, is_standing) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    scope(|scope| {
        let (runtime, goes_on) = (&runtime, goes_on);
        scope.spawn(move || {
            runtime.block_on(async {
                {
                    let mut release = pin!(guard.release());
                    assert!(release.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
                }
                stands.send(()).expect("a listener");
                goes_on.recv().expect("a word");
            });
        });
        is_standing.recv().expect("a word");
        names.iter().for_each(|name| block_on(used(&locks, name)));
        go_on.send(()).expect("a listener");
    });
}
