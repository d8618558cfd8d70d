//! Requests on the callers' runtime: other callers, leases and the order of requests do not depend on it.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "these tests block and drop runtimes on purpose, and read the clock"
)]

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use tenure::{Guard, Locks, block_on};
use tenure_testkit::servers::{Client, Server, eventually};
use tokio::runtime::{Builder, Runtime};

const SOON: Duration = Duration::from_secs(10);
/// Longer than a test waits for anything.
const TTL: Duration = Duration::from_secs(60);

fn locks(server: &Server) -> Locks {
    Locks::open(&server.url()).expect("a store").with(|options| options.ttl(TTL)).expect("options")
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

async fn lock(locks: &Locks, name: &str) -> Guard {
    locks.mutex(name).expect("a name").lock().await.expect("a free lock")
}

async fn used(locks: &Locks, name: &str) {
    lock(locks, name).await.release().await.expect("a release");
}

/// Locks often until the runtime's tasks have their own connection; the first requests use the store's.
fn connected(runtime: &Runtime, locks: &Locks, server: &Server) {
    let mut monitor = watching(server);
    eventually("a connection of the runtime's own", SOON, || {
        (0..8).for_each(|_| runtime.block_on(used(locks, "often")));
        runtime.block_on(used(locks, "a task's"));
        block_on(used(locks, "a thread's"));
        set(&mut monitor, "a task's") != set(&mut monitor, "a thread's")
    });
}

fn connections(server: &Server) -> usize {
    server.command(&["CLIENT", "LIST"]).text().matches(" name=tenure-").count()
}

fn watching(server: &Server) -> Client {
    let mut monitor = server.client().expect("a connection").with_timeout(SOON);
    monitor.command(&["MONITOR"]).expect("an answer");
    monitor
}

/// The connection that sets this key.
fn set(monitor: &mut Client, key: &str) -> String {
    loop {
        let line = monitor.receive().expect("a command");
        let line = line.text();
        if line.contains("\"SET\"") && line.contains(&format!("\"{key}\"")) {
            let from = line.split_once('[').and_then(|(_, rest)| rest.split_once(']')).expect("an address");
            return from.0.to_owned();
        }
    }
}

/// Polls once. Returns whether the request was sent and is unanswered. A runtime without CPU time counts as
/// blocked; its requests then use the store's connection, and may be answered immediately.
#[must_use]
fn begun(future: impl Future) -> bool {
    let mut future = pin!(future);
    future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// Starts requests until one is in flight.
async fn until_begun(mut begin: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !begin().await {
        assert!(Instant::now() < until, "each is answered at once");
    }
}

#[test]
fn tasks_have_a_connection_on_their_runtime_and_other_callers_use_ours() {
    let server = Server::start();
    let (locks, runtime, other) = (locks(&server), runtime(), runtime());
    connected(&runtime, &locks, &server);
    let mut monitor = watching(&server);
    let mut from = BTreeMap::new();
    for (name, runtime) in [("a task", Some(&runtime)), ("another runtime", Some(&other)), ("a thread", None)]
    {
        match runtime {
            Some(runtime) => runtime.block_on(used(&locks, name)),
            None => block_on(used(&locks, name)),
        }
        from.insert(name, set(&mut monitor, name));
    }
    assert_ne!(from["a task"], from["a thread"]);
    assert_eq!(from["another runtime"], from["a thread"]);
}

#[test]
fn callers_on_other_runtimes_do_not_wait_for_a_runtime_that_blocks() {
    let server = Server::start();
    let (locks, runtime) = (locks(&server), runtime());
    connected(&runtime, &locks, &server);
    let (blocked, is_blocked) = mpsc::channel();
    let (unblock, unblocked) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let (runtime, locks, unblocked) = (&runtime, &locks, unblocked);
        scope.spawn(move || {
            runtime.block_on(async {
                // Dropped before it is written; afterwards nothing polls this runtime.
                until_begun(async || begun(lock(locks, "x").await.release())).await;
                blocked.send(()).expect("a listener");
                unblocked.recv().expect("a word");
            });
        });
        is_blocked.recv().expect("a word");
        let began = Instant::now();
        block_on(used(locks, "y"));
        let other = began.elapsed();
        block_on(used(locks, "x"));
        println!("another name after {other:?}, the same name after {:?}", began.elapsed());
        unblock.send(()).expect("a listener");
    });
    connected(&runtime, &locks, &server);
}

#[test]
fn a_release_does_not_overtake_the_acquisition_that_it_undoes() {
    let server = Server::start();
    let (locks, runtime) = (locks(&server), runtime());
    connected(&runtime, &locks, &server);
    let released = || {
        let requests = locks.metrics().requests;
        let releases = requests.iter().filter(|asked| asked.verb == "release" && asked.result == "answered");
        releases.map(|asked| asked.count).sum::<u64>()
    };
    runtime.block_on(async {
        until_begun(async || {
            let before = released();
            let is_begun = begun(locks.mutex("x").expect("a name").lock());
            eventually("its release", SOON, || released() > before);
            is_begun
        })
        .await;
        // Flushes pending writes, if that connection still exists.
        used(&locks, "y").await;
    });
    assert!(!server.has("x"), "it was acquired after its release");
}

#[test]
fn leases_are_renewed_while_the_runtime_blocks() {
    let server = Server::start();
    let locks = locks(&server).with(|options| options.ttl(Duration::from_millis(1500))).expect("options");
    let runtime = runtime();
    connected(&runtime, &locks, &server);
    let is_held = runtime.block_on(async {
        let guard = lock(&locks, "x").await;
        let renewed = || server.info_commandstats().get("pexpire").copied().unwrap_or(0);
        let before = renewed();
        eventually("renewals", SOON, || renewed() >= before + 6);
        guard.is_held()
    });
    assert!(is_held);
}

#[test]
fn a_runtime_that_is_dropped_leaves_its_locks_to_the_others() {
    let server = Server::start();
    let (locks, runtime) = (locks(&server), runtime());
    connected(&runtime, &locks, &server);
    let guard = runtime.block_on(lock(&locks, "x"));
    runtime.block_on(until_begun(async || begun(locks.mutex("y").expect("a name").lock())));
    drop(runtime);
    assert!(guard.is_held());
    block_on(async {
        guard.release().await.expect("a release");
        used(&locks, "x").await;
        used(&locks, "y").await;
    });
    let another = self::runtime();
    another.block_on(used(&locks, "z"));
    eventually("the end of its connection", SOON, || connections(&server) == 1);
}

#[test]
fn a_runtime_without_io_locks_all_the_same() {
    let server = Server::start();
    let locks = locks(&server);
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
    for _ in 0..20 {
        runtime.block_on(async {
            used(&locks, "x").await;
            tokio::task::yield_now().await;
        });
    }
    assert_eq!(connections(&server), 1);
}

/// A failover and `CLIENT PAUSE` postpone writes, and answer PING.
#[test]
fn a_pause_of_the_server_is_waited_for() {
    let server = Server::start();
    let (locks, runtime) = (locks(&server), runtime());
    connected(&runtime, &locks, &server);
    let cache = locks.cache("rates").expect("a name");
    let connected = || server.info("stats")["total_connections_received"].clone();
    runtime.block_on(cache.invalidate()).expect("an answer");
    let before = connected();
    server.command(&["CLIENT", "PAUSE", "500", "WRITE"]);
    let began = Instant::now();
    runtime.block_on(cache.invalidate()).expect("the server goes on");
    assert!(began.elapsed() >= Duration::from_millis(300), "it was paused");
    assert_eq!(connected(), before, "no connection is given up");
}
