//! What a lock on a server costs, beside the bare commands of the same client library in the same run.
//!
//! `cargo bench -p tenure --bench redis` starts a `redis-server` of its own. The bare client's driver has a thread of its own too,
//! as ours has: the other way to run it, on the caller's thread, is printed beside it. Rounds of both sides take turns, so that a
//! machine that slows down slows both; a row is the median of its rounds.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark reads the clock, sleeps and spawns"
)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use rustix::time::{ClockId, clock_gettime};
use tenure::{Locks, Options, block_on};
use tenure_testkit::servers::Server;
use tokio::runtime::Builder;

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(700);
/// What every compare-and-delete looks like.
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "turns", url, tasks] => return turns_of_a_process(url, tasks.parse().expect("a number")),
        [_, "waiter", url] => return waiter(url),
        [_, "hop", url] => return hop(url),
        _ => {}
    }
    let server = Server::start();
    let url = server.url();
    println!("{:<66} {:>10} {:>10} {:>8} {:>9}", "", "ours", "bare", "ratio", "reach");
    pairs("uncontended pairs/s, one task", &url, 1, 0.95);
    pairs("uncontended pairs/s, 64 tasks", &url, 64, 0.8);
    hand_overs("16 tasks, 1 ms hold, one process: share of the ideal", &url, 1, 16, 0.85);
    hand_overs("4 processes x 4 tasks, 1 ms hold: share of the ideal", &url, 4, 4, 0.7);
    wake_up(&url);
    waiting(&server);
    renewal(&url);
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn row(what: &str, ours: f64, bare: f64, ratio: f64, reach: &str) {
    println!("{what:<66} {ours:>10.1} {bare:>10.1} {ratio:>8.2} {reach:>9}");
}

// -- uncontended ---------------------------------------------------------------------------------------------------------

/// A bare connection whose driver runs on a thread of its own, or on the caller's.
fn bare(url: &str) -> MultiplexedConnection {
    let client = redis::Client::open(url).expect("a URL");
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let config =
                AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(1_024);
            let connection =
                client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection");
            sender.send(connection).expect("somebody waits");
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
    assert!(set.is_some(), "nobody else takes it");
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

/// Pairs on a key of its own until then.
async fn bare_pairs(mut connection: MultiplexedConnection, sha: String, task: usize, until: Instant) -> u32 {
    let key = format!("bare:{task}");
    let mut pairs = 0;
    while Instant::now() < until {
        bare_pair(&mut connection, &key, &sha).await;
        pairs += 1;
    }
    pairs
}

async fn load(connection: &mut MultiplexedConnection) -> String {
    redis::cmd("SCRIPT").arg("LOAD").arg(COMPARE_AND_DELETE).query_async(connection).await.expect("a SHA")
}

fn pairs(what: &str, url: &str, tasks: usize, reach: f64) {
    let locks = Locks::open(url).expect("a store");
    let mut connection = bare(url);
    let sha = block_on(load(&mut connection));
    let ours = || {
        count(tasks, |task, until| {
            let mutex = locks.mutex(&format!("ours:{task}")).expect("a name");
            async move {
                let mut pairs = 0_u32;
                while Instant::now() < until {
                    mutex.lock().await.expect("a free lock").release().await.expect("a release");
                    pairs += 1;
                }
                pairs
            }
        })
    };
    let theirs = || count(tasks, |task, until| bare_pairs(connection.clone(), sha.clone(), task, until));
    // Warms both sides up.
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
    println!(
        "{:<66} {:>10} {:>10.1}",
        "    the bare client on the caller's own thread",
        "",
        on_one_thread(url, tasks)
    );
}

/// Pairs a second of so many tasks on the calling thread.
fn count<F: Future<Output = u32>>(tasks: usize, task: impl Fn(usize, Instant) -> F) -> f64 {
    let started = Instant::now();
    let until = started + ROUND;
    let pairs: u32 = block_on(join_all((0..tasks).map(|number| task(number, until)))).into_iter().sum();
    f64::from(pairs) / started.elapsed().as_secs_f64()
}

fn on_one_thread(url: &str, tasks: usize) -> f64 {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = redis::Client::open(url).expect("a URL");
    runtime.block_on(async {
        let mut connection = client.get_multiplexed_async_connection().await.expect("a connection");
        let sha = load(&mut connection).await;
        let started = Instant::now();
        let until = started + ROUND;
        let all = (0..tasks).map(|number| bare_pairs(connection.clone(), sha.clone(), number, until));
        let pairs: u32 = join_all(all).await.into_iter().sum();
        f64::from(pairs) / started.elapsed().as_secs_f64()
    })
}

// -- contended -----------------------------------------------------------------------------------------------------------

/// One turn: when it began and ended, and whose it was.
type Turn = (u64, u64, String);

fn now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// So many tasks of this process take turns for two seconds; every turn is printed.
fn turns_of_a_process(url: &str, tasks: usize) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let locks = Locks::open(url).expect("a store");
    let turns: Arc<Mutex<Vec<Turn>>> = Arc::default();
    let pid = std::process::id();
    runtime.block_on(async {
        let until = Instant::now() + Duration::from_secs(2);
        let all = (0..tasks).map(|task| {
            let (mutex, turns) = (locks.mutex("contended").expect("a name"), Arc::clone(&turns));
            tokio::spawn(async move {
                while Instant::now() < until {
                    let guard = mutex.lock().await.expect("a grant");
                    let began = now();
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    turns.lock().expect("nobody panicked").push((began, now(), format!("{pid}.{task}")));
                    guard.release().await.expect("a release");
                }
            })
        });
        for task in all.collect::<Vec<_>>() {
            task.await.expect("a task ends");
        }
    });
    let mut text = String::new();
    for (began, ended, who) in turns.lock().expect("nobody panicked").iter() {
        text.push_str(&format!("{began} {ended} {who}\n"));
    }
    print!("{text}");
}

fn hand_overs(what: &str, url: &str, processes: usize, tasks: usize, reach: f64) {
    let (mut shares, mut spreads) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let children: Vec<Child> =
            (0..processes).map(|_| start(&["turns", url, &tasks.to_string()])).collect();
        let mut turns: Vec<Turn> = Vec::new();
        for child in children {
            let output = child.wait_with_output().expect("an end");
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                let words: Vec<&str> = line.split(' ').collect();
                let [began, ended, who] = words[..] else { continue };
                turns.push((began.parse().expect("a time"), ended.parse().expect("a time"), who.to_owned()));
            }
        }
        turns.sort();
        // Only while all of them are there.
        let (from, to) = (turns[0].0 + 300_000_000, turns[0].0 + 1_800_000_000);
        turns.retain(|(began, ended, _)| *began >= from && *ended <= to);
        let holds: f64 = turns.iter().map(|(began, ended, _)| (ended - began) as f64 / 1e9).sum::<f64>()
            / turns.len() as f64;
        let moved = turns.windows(2).filter(|pair| pair[0].2 != pair[1].2).count() as f64;
        shares.push(moved * holds / ((to - from) as f64 / 1e9));
        let mut each: BTreeMap<&str, f64> = BTreeMap::new();
        for (_, _, who) in &turns {
            *each.entry(who).or_default() += 1.0;
        }
        let mean = turns.len() as f64 / (processes * tasks) as f64;
        let least = if each.len() < processes * tasks {
            0.0
        } else {
            each.values().copied().fold(f64::MAX, f64::min)
        };
        let most = each.values().copied().fold(0.0, f64::max);
        spreads.push((most / mean - 1.0).max(1.0 - least / mean) * 100.0);
    }
    let share = median(shares);
    row(what, share, 1.0, share, &format!(">= {reach}"));
    println!(
        "{:<66} {:>9.0}%",
        "    the share of each task differs from the mean by at most",
        median(spreads)
    );
}

fn start(args: &[&str]) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

// -- waking --------------------------------------------------------------------------------------------------------------

/// Another process with one line in and one line out.
struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    fn start(args: &[&str]) -> Self {
        let mut child = start(args);
        let (input, output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        Self { child, input, output: BufReader::new(output) }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("a reader");
    }

    fn hear(&mut self) -> u64 {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line.trim().parse().expect("a number")
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for the lock each time it is told to, and says when it had it.
fn waiter(url: &str) {
    let locks = Locks::open(url).expect("a store");
    let mutex = locks.mutex("wake").expect("a name");
    for _ in std::io::stdin().lines() {
        let guard = block_on(mutex.lock()).expect("a grant");
        let had = now();
        block_on(guard.release()).expect("a release");
        println!("{had}");
    }
}

/// The bare hop: hears a message, sends one command, and says when it was answered.
fn hop(url: &str) {
    let client = redis::Client::open(url).expect("a URL");
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut connection = client.get_multiplexed_async_connection().await.expect("a connection");
        let mut messages = client.get_async_pubsub().await.expect("a connection");
        messages.subscribe("hop").await.expect("a subscription");
        let mut messages = messages.into_on_message();
        println!("0");
        loop {
            if futures_util::StreamExt::next(&mut messages).await.is_none() {
                return;
            }
            let _: Option<String> =
                redis::cmd("GET").arg("hop").query_async(&mut connection).await.expect("an answer");
            println!("{}", now());
        }
    });
}

fn wake_up(url: &str) {
    const TIMES: usize = 300;
    let locks = Locks::open(url).expect("a store");
    let mutex = locks.mutex("wake").expect("a name");
    let mut peer = Peer::start(&["waiter", url]);
    let mut bare_peer = Peer::start(&["hop", url]);
    let mut connection = bare(url);
    bare_peer.hear();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        let guard = block_on(mutex.lock()).expect("a grant");
        peer.say("wait");
        thread::sleep(Duration::from_millis(4));
        let began = now();
        block_on(guard.release()).expect("a release");
        ours.push((peer.hear().saturating_sub(began)) as f64 / 1e3);
        let began = now();
        let _: i64 = block_on(redis::cmd("PUBLISH").arg("hop").arg("x").query_async(&mut connection))
            .expect("an answer");
        theirs.push((bare_peer.hear().saturating_sub(began)) as f64 / 1e3);
    }
    let (ours, theirs) = (median(ours), median(theirs));
    row("release to the waiter's return in another process, µs", ours, theirs, ours / theirs, "<= 1.5");
}

// -- holding and waiting ---------------------------------------------------------------------------------------------------

fn waiting(server: &Server) {
    let locks = Locks::open(&server.url()).expect("a store");
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let guard = block_on(locks.mutex("held").expect("a name").lock()).expect("a free lock");
    for _ in 0..100 {
        let mutex = locks.mutex("held").expect("a name");
        runtime.spawn(async move { drop(mutex.lock().await) });
    }
    thread::sleep(Duration::from_secs(1));
    // The renewals of the holder and the pings of the two connections are not what waiting costs.
    let commands = || -> f64 {
        let stats = server.info_commandstats();
        stats
            .iter()
            .filter(|(name, _)| !matches!(name.as_str(), "ping" | "info" | "pexpire"))
            .map(|(_, calls)| *calls as f64)
            .sum()
    };
    let (before, started) = (commands(), Instant::now());
    thread::sleep(Duration::from_secs(20));
    let each = (commands() - before) / started.elapsed().as_secs_f64();
    row("100 waiters on a held lock: server commands/s, all of them", each, 0.0, each, "<= 1");
    drop(guard);
    runtime.shutdown_background();
}

fn renewal(url: &str) {
    let locks = Locks::open(url)
        .and_then(|locks| locks.with(Options::new().ttl(Duration::from_secs(3))))
        .expect("a store");
    drop(block_on(locks.mutex("first").expect("a name").lock()).expect("a free lock"));
    let before = resident_bytes();
    let mut guards = Vec::with_capacity(1_000);
    for number in 0..1_000 {
        guards.push(
            block_on(locks.mutex(&format!("renewed:{number}")).expect("a name").lock()).expect("a free lock"),
        );
    }
    let bytes = (resident_bytes() - before) / 1_000.0;
    thread::sleep(Duration::from_secs(4));
    let before = cpu_seconds();
    thread::sleep(Duration::from_secs(10));
    let cpu = cpu_seconds() - before;
    assert!(guards.iter().all(tenure::Guard::is_held));
    println!(
        "{:<66} {cpu:>10.3} {:>29}",
        "1,000 locks of 3 s renewed: client CPU seconds in 10 s", "<= 0.05"
    );
    println!("{:<66} {bytes:>10.0} {:>29}", "    memory per held guard, bytes", "<= 2048");
}

fn cpu_seconds() -> f64 {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux tells");
    let nanoseconds = tasks.filter_map(|task| {
        let text = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    nanoseconds.sum::<f64>() / 1e9
}

fn resident_bytes() -> f64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line about memory");
    let kib: f64 = line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a number");
    kib * 1024.0
}
