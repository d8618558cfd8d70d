//! The cost of a lock on a cluster, compared with the bare commands through redis-rs' cluster client in the
//! same run.
//!
//! `cargo bench -p tenure-testkit --bench cluster` starts three masters. Each client's driver has its own
//! thread. Rounds of both sides alternate; a row is the median of its rounds.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark reads the clock and spawns"
)]

use std::future::Future;
use std::time::{Duration, Instant};
use std::{sync, thread};

use futures_util::future::join_all;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use tenure::{Locks, block_on};
use tenure_testkit::servers::Cluster;
use tokio::runtime::Builder;

const TASKS: usize = 64;
const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(700);
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

fn main() {
    let cluster = Cluster::without_replicas();
    let locks = block_on(Locks::connect(&cluster.url())).expect("a cluster");
    let connection = bare(&cluster);
    let shas = cluster
        .nodes()
        .iter()
        .map(|node| node.command(&["SCRIPT", "LOAD", COMPARE_AND_DELETE]).text().to_owned());
    let sha = shas.last().expect("a node");
    let theirs = || count(|task, until| bare_pairs(connection.clone(), &sha, task, until));
    println!("{:<50} {:>10} {:>10} {:>8} {:>9}", "", "ours", "bare", "ratio", "reach");
    for is_fair in [false, true] {
        let ours = || count(|task, until| pairs(&locks, is_fair, task, until));
        // Warms up both sides.
        ours();
        theirs();
        let mut rounds: Vec<_> = (0..ROUNDS).map(|_| (ours(), theirs())).collect();
        let mut median = |of: fn(&(f64, f64)) -> f64| {
            rounds.sort_by(|one, other| of(one).total_cmp(&of(other)));
            of(&rounds[ROUNDS / 2])
        };
        let (ours, bare, ratio) =
            (median(|round| round.0), median(|round| round.1), median(|round| round.0 / round.1));
        let what = if is_fair { "fair mutex" } else { "mutex" };
        let what = format!("{what} on three masters: pairs/s, 64 tasks");
        println!("{what:<50} {ours:>10.1} {bare:>10.1} {ratio:>8.2} {:>9}", ">= 0.95");
    }
}

/// Pairs on its own lock until this time.
async fn pairs(locks: &Locks, is_fair: bool, task: usize, until: Instant) -> u32 {
    let mutex = locks.mutex(format!("ours:{task}")).expect("a name");
    let fair = locks.fair_mutex(format!("fair:{task}")).expect("a name");
    let mut pairs = 0;
    while Instant::now() < until {
        let held = if is_fair { fair.lock().await } else { mutex.lock().await };
        held.expect("a free lock").release().await.expect("a release");
        pairs += 1;
    }
    pairs
}

/// A bare connection whose driver runs on its own thread.
fn bare(cluster: &Cluster) -> ClusterConnection {
    let nodes: Vec<_> = cluster.nodes().iter().map(tenure_testkit::servers::Server::url).collect();
    let (sender, receiver) = sync::mpsc::channel();
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let client = ClusterClient::new(nodes).expect("URLs");
            sender.send(client.get_async_connection().await.expect("a cluster")).expect("a client waits");
            std::future::pending::<()>().await;
        });
    });
    receiver.recv().expect("a connection")
}

/// Pairs on its own key until this time.
async fn bare_pairs(mut connection: ClusterConnection, sha: &str, task: usize, until: Instant) -> u32 {
    let key = format!("bare:{task}");
    let mut pairs = 0;
    while Instant::now() < until {
        let set = ["SET", &key, "b4re0wner", "NX", "PX", "15000"];
        let set: Option<String> = command(&set).query_async(&mut connection).await.expect("an answer");
        assert!(set.is_some(), "no other client takes it");
        let delete = ["EVALSHA", sha, "1", &key, "b4re0wner"];
        let deleted: i64 = command(&delete).query_async(&mut connection).await.expect("an answer");
        assert_eq!(deleted, 1);
        pairs += 1;
    }
    pairs
}

fn command(words: &[&str]) -> redis::Cmd {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command
}

/// Pairs per second of this many tasks on the calling thread.
fn count<F: Future<Output = u32>>(task: impl Fn(usize, Instant) -> F) -> f64 {
    let started = Instant::now();
    let until = started + ROUND;
    let pairs: u32 = block_on(join_all((0..TASKS).map(|number| task(number, until)))).into_iter().sum();
    f64::from(pairs) / started.elapsed().as_secs_f64()
}
