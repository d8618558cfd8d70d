//! An uncontended lock, acquired and released repeatedly.

use std::thread;
use std::time::Instant;

use futures_util::future::join_all;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tenure::{Locks, block_on};
use tenure_testkit::servers::Server;
use tokio::runtime::Builder;

use crate::{Lock, ROUND, ROUNDS, median, row};

const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// A bare connection whose driver runs on its own thread, or on the caller's.
pub(crate) fn bare(url: &str) -> MultiplexedConnection {
    let client = redis::Client::open(url).expect("a URL");
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let config =
                AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(1_024);
            let connection =
                client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection");
            sender.send(connection).expect("a client waits");
            std::future::pending::<()>().await;
        });
    });
    receiver.recv().expect("a connection")
}

async fn bare_pair(connection: &mut MultiplexedConnection, key: &str, sha: &str) {
    let set: Option<String> = redis::cmd("SET")
        .arg(key)
        .arg("b4re0wner")
        .arg("NX")
        .arg("PX")
        .arg(15_000)
        .query_async(connection)
        .await
        .expect("an answer");
    assert!(set.is_some(), "no other client takes it");
    let deleted: i64 = redis::cmd("EVALSHA")
        .arg(sha)
        .arg(1)
        .arg(key)
        .arg("b4re0wner")
        .query_async(connection)
        .await
        .expect("an answer");
    assert_eq!(deleted, 1);
}

/// Pairs on its own key until this time.
async fn bare_pairs(mut connection: MultiplexedConnection, sha: String, task: usize, until: Instant) -> u32 {
    let key = format!("bare:{task}");
    let mut pairs = 0;
    while Instant::now() < until {
        bare_pair(&mut connection, &key, &sha).await;
        pairs += 1;
    }
    pairs
}

pub(crate) async fn load(connection: &mut MultiplexedConnection) -> String {
    redis::cmd("SCRIPT").arg("LOAD").arg(COMPARE_AND_DELETE).query_async(connection).await.expect("a SHA")
}

/// Alternates both sides, and prints the medians.
pub(crate) fn compare(what: &str, ours: impl Fn() -> f64, theirs: impl Fn() -> f64, reach: f64) {
    // Warms up both sides.
    ours();
    theirs();
    let (mut all_ours, mut all_bare, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (one, other) = (ours(), theirs());
        all_ours.push(one);
        all_bare.push(other);
        ratios.push(one / other);
    }
    row(what, median(all_ours), median(all_bare), median(ratios), &format!(">= {reach}"));
}

pub(crate) fn pairs(what: &str, server: &Server, kind: &str, tasks: usize, reach: f64) {
    let url = server.url();
    let (locks, by_thread) = (Locks::open(&url).expect("a store"), Locks::open(&url).expect("a store"));
    let runtime = || Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (ours, theirs) = (runtime(), runtime());
    let (mut connection, sha) = theirs.block_on(async {
        let client = redis::Client::open(&*url).expect("a URL");
        let mut connection = client.get_multiplexed_async_connection().await.expect("a connection");
        let sha = load(&mut connection).await;
        (connection, sha)
    });
    compare(
        what,
        || ours.block_on(count(tasks, |task, until| our_pairs(&locks, kind, task, until))),
        || {
            theirs.block_on(count(tasks, |task, until| {
                bare_pairs(connection.clone(), sha.clone(), task, until)
            }))
        },
        reach,
    );
    // A program without a runtime, whose requests cross to our thread.
    connection = bare(&url);
    compare(
        "    the same by block_on; both clients have a thread of their own",
        || block_on(count(tasks, |task, until| our_pairs(&by_thread, kind, task, until))),
        || block_on(count(tasks, |task, until| bare_pairs(connection.clone(), sha.clone(), task, until))),
        0.0,
    );
}

fn our_pairs(locks: &Locks, kind: &str, task: usize, until: Instant) -> impl Future<Output = u32> + use<> {
    let lock = Lock::new(locks, kind, &format!("ours:{task}"));
    async move {
        let mut pairs = 0_u32;
        while Instant::now() < until {
            lock.lock().await.release().await.expect("a release");
            pairs += 1;
        }
        pairs
    }
}

/// Pairs per second of this many tasks.
pub(crate) async fn count<F: Future<Output = u32>>(tasks: usize, task: impl Fn(usize, Instant) -> F) -> f64 {
    let started = Instant::now();
    let until = started + ROUND;
    let pairs: u32 = join_all((0..tasks).map(|number| task(number, until))).await.into_iter().sum();
    f64::from(pairs) / started.elapsed().as_secs_f64()
}
