//! The uses of locks (caches, jobs that run once, elections) on each store that keeps records.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "these tests use real time and tasks as their callers do"
)]

mod cache;
mod each;
mod election;
mod fill;
mod jobs;
mod once;
mod second_request;
mod stop;
mod summer;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tenure::{Locks, Options};
use tenure_testkit::servers::{Cluster, Ensemble, Etcd, MariaDb, Postgres, Server, ZooKeeper};

/// A store and its clients, each with its own thread and connections.
struct Store {
    name: &'static str,
    url: String,
}

impl Store {
    fn client(&self) -> Locks {
        self.client_with(|options| options)
    }

    /// With long timeouts, because a slow answer on a busy machine must not count as a silent store, without
    /// which each client computes.
    fn client_with(&self, change: impl FnOnce(Options) -> Options) -> Locks {
        let patient = |options: Options| change(options.op_timeout(Duration::from_secs(20)));
        Locks::open(&self.url).and_then(|locks| locks.with(patient)).expect("a store")
    }
}

fn everywhere(test: impl Fn(&Store) -> BoxFuture<'_, ()>) {
    static ETCD: LazyLock<Etcd> = LazyLock::new(|| Etcd::start().until_exit());
    static ZOOKEEPER: LazyLock<ZooKeeper> = LazyLock::new(crate::zookeeper::warmed);
    where_values_are_kept(&test);
    for (name, server) in [("etcd", ETCD.url()), ("zookeeper", ZOOKEEPER.url())] {
        on_store(name, format!("{server}/uses{}", NEXT.fetch_add(1, Ordering::Relaxed)), &test);
    }
}

/// Numbers the stores of the tests.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Runs a test on memory, on files, on one server, on a cluster, on PostgreSQL and on MariaDB.
fn where_values_are_kept(test: impl Fn(&Store) -> BoxFuture<'_, ()>) {
    static CLUSTER: LazyLock<Mutex<Cluster>> =
        LazyLock::new(|| Mutex::new(Cluster::start().calm().until_exit()));
    let dir = tempfile::tempdir().expect("a directory");
    let server = Server::start();
    let cluster = CLUSTER.lock().unwrap_or_else(PoisonError::into_inner);
    for node in cluster.nodes() {
        node.command(&["FLUSHALL"]);
    }
    let memory = format!("memory:uses-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let file = format!("file:{}", dir.path().display());
    static POSTGRES: LazyLock<Postgres> = LazyLock::new(|| Postgres::start().until_exit());
    let postgres = POSTGRES.url(&format!("uses{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    static MARIADB: LazyLock<MariaDb> = LazyLock::new(|| MariaDb::start().until_exit());
    let mysql = MARIADB.url(&format!("uses{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    for (name, url) in [
        ("memory", memory),
        ("file", file),
        ("redis", server.url()),
        ("cluster", cluster.url()),
        ("postgres", postgres),
        ("mysql", mysql),
    ] {
        on_store(name, url, &test);
    }
}

fn on_store(name: &'static str, url: String, test: impl Fn(&Store) -> BoxFuture<'_, ()>) {
    println!("on {name}");
    let store = Store { name, url };
    // A store in memory exists as long as a client.
    let _first = store.client();
    on(test(&store));
}

/// Runs a future on a multi-threaded runtime.
fn on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// Waits until a condition holds, for at most ten seconds.
async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let until = Instant::now() + Duration::from_secs(10);
    while !holds().await {
        assert!(Instant::now() < until, "{what} did not come to hold");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
