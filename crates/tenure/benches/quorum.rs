//! The cost of a lock on a majority of five servers, compared with the two bare commands sent to all five at
//! once in the same run.
//!
//! `cargo bench -p tenure --bench quorum` starts its servers, and waits until they are old enough to vote.
//! Rounds of both sides alternate; a row is the median of its rounds. Then one connected server of the five
//! is black-holed, and the quorum is compared with a healthy one.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark reads the clock, sleeps and spawns"
)]

use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tenure::{Locks, Mutex, block_on};
use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::servers::Server;
use tokio::runtime::Builder;

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(700);
const TTL: Duration = Duration::from_secs(2);
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

fn main() {
    let servers: [Server; 5] = Server::several();
    // Servers do not vote before.
    thread::sleep(TTL + Duration::from_millis(1_100));
    let at = |address: String| address.trim_start_matches("redis://").to_owned();
    let healthy: Vec<String> = servers.iter().map(|server| at(server.url())).collect();
    header();
    let bare = Bare::connect(&servers);
    let mutex = mutex(&healthy);
    let beside = compare(|| rate(|| pair(&mutex)), || rate(|| bare.pair()));
    row_of("quorum of five: uncontended pairs/s", beside, ">= 0.75");

    // Both reach the fifth server through a proxy, so that only its silence differs.
    let proxies = [(); 2].map(|()| Proxy::start(servers[4].address()));
    let behind = |proxy: &Proxy| [&healthy[..4], &[at(proxy.url())]].concat();
    let [well, ill] = proxies.each_ref().map(|proxy| self::mutex(&behind(proxy)));
    pair(&well);
    pair(&ill);
    proxies[1].set(Fault::BlackHole);
    let started = Instant::now();
    pair(&ill);
    println!(
        "    the first pair after one of them was black-holed: {:.1} ms",
        1e3 * started.elapsed().as_secs_f64()
    );
    let (ours, other, ratio) = compare(|| 1e6 / rate(|| pair(&ill)), || 1e6 / rate(|| pair(&well)));
    row_of("one of five black-holed: us a pair, beside all five healthy", (ours, other, ratio), "<= 1.2");
}

/// The medians of both sides and of their ratio, round by round.
fn compare(one: impl Fn() -> f64, other: impl Fn() -> f64) -> (f64, f64, f64) {
    one();
    other();
    let rounds: Vec<(f64, f64)> = (0..ROUNDS).map(|_| (one(), other())).collect();
    let of = |what: fn(&(f64, f64)) -> f64| median(rounds.iter().map(what).collect());
    (of(|round| round.0), of(|round| round.1), of(|round| round.0 / round.1))
}

fn mutex(at: &[String]) -> Mutex {
    let url = format!("redis-quorum://{}", at.join(","));
    let locks = block_on(Locks::connect(&url))
        .expect("a majority")
        .with(|options| options.ttl(TTL))
        .expect("options");
    locks.mutex("ours").expect("a name")
}

fn pair(mutex: &Mutex) {
    block_on(async { mutex.lock().await.expect("a free lock").release().await }).expect("a release");
}

/// Connections to all five, driven by a separate thread like ours.
struct Bare {
    connections: Vec<MultiplexedConnection>,
    sha: String,
}

impl Bare {
    fn connect(servers: &[Server]) -> Self {
        let urls: Vec<String> = servers.iter().map(Server::url).collect();
        let (sender, receiver) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                for url in urls {
                    let config = AsyncConnectionConfig::new()
                        .set_response_timeout(None)
                        .set_pipeline_buffer_size(1_024);
                    let client = redis::Client::open(url).expect("a URL");
                    let connection = client.get_multiplexed_async_connection_with_config(&config).await;
                    sender.send(connection.expect("a connection")).expect("a client waits");
                }
                drop(sender);
                std::future::pending::<()>().await;
            });
        });
        let connections: Vec<_> = receiver.iter().collect();
        let load = |mut connection: MultiplexedConnection| async move {
            let mut command = redis::cmd("SCRIPT");
            let sha: String = command
                .arg("LOAD")
                .arg(COMPARE_AND_DELETE)
                .query_async(&mut connection)
                .await
                .expect("a SHA");
            sha
        };
        let sha = block_on(join_all(connections.iter().cloned().map(load))).remove(0);
        Self { connections, sha }
    }

    /// Both commands are sent to all five, and all five replies are awaited.
    fn pair(&self) {
        block_on(async {
            let set = |mut connection: MultiplexedConnection| async move {
                let mut command = redis::cmd("SET");
                command.arg("bare").arg("b4re0wner").arg("NX").arg("PX").arg(15_000);
                let set: Option<String> = command.query_async(&mut connection).await.expect("an answer");
                assert!(set.is_some(), "no other client takes it");
            };
            join_all(self.connections.iter().cloned().map(set)).await;
            let delete = |mut connection: MultiplexedConnection| async move {
                let mut command = redis::cmd("EVALSHA");
                command.arg(&self.sha).arg(1).arg("bare").arg("b4re0wner");
                let deleted: i64 = command.query_async(&mut connection).await.expect("an answer");
                assert_eq!(deleted, 1);
            };
            join_all(self.connections.iter().cloned().map(delete)).await;
        });
    }
}

fn header() {
    println!("{:<66} {:>10} {:>10} {:>8} {:>9}", "", "ours", "bare", "ratio", "reach");
}

/// A row with a ratio that is not that of the two values.
fn row_of(what: &str, (ours, bare, ratio): (f64, f64, f64), reach: &str) {
    println!("{what:<66} {ours:>10.1} {bare:>10.1} {ratio:>8.2} {reach:>9}");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Operations per second in one round.
fn rate(mut operation: impl FnMut()) -> f64 {
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < ROUND {
        operation();
        count += 1;
    }
    f64::from(count) / start.elapsed().as_secs_f64()
}
