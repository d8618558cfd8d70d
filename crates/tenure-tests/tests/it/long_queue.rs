//! The cost of a turn with many waiters in one queue, on servers whose clients run the state machine.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "these tests use real time, processes and threads as their callers do"
)]

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use tenure::{Locks, Options, block_on};
use tenure_testkit::servers::{Ensemble, Etcd, Postgres, ZooKeeper, eventually};
use tenure_testkit::setting;

/// Processes that share the waiters.
const PROCESSES: u64 = 4;
/// Arguments of such a process: its number of waiters, its ttl in seconds, and its store.
const PART: &str = "TENURE_LINE";

/// The ttl in seconds where no process dies.
const LONG: u64 = 300;

/// `TENURE_WAITERS` overrides it.
fn waiters() -> u64 {
    setting("TENURE_WAITERS").unwrap_or(1_000)
}

/// Number of measured turns; `TENURE_TURNS` overrides it.
fn turns() -> u64 {
    setting("TENURE_TURNS").unwrap_or(100)
}

fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

fn client(url: &str, ttl: u64) -> Locks {
    let options = Options::new().ttl(Duration::from_secs(ttl)).op_timeout(Duration::from_secs(250));
    Locks::open(url).expect("a store").with(|_| options).expect("options")
}

/// A waiting process, and its memory before.
struct Waits {
    process: Child,
    before: u64,
}

impl Drop for Waits {
    fn drop(&mut self) {
        let _ = (self.process.kill(), self.process.wait());
    }
}

/// Starts processes that queue up, and continue once all are in the queue.
fn line_up(url: &str, all: u64, ttl: u64) -> (Vec<Waits>, Receiver<u64>) {
    let (tell, told) = channel();
    let (ready, is_ready) = channel();
    let begin = |at: u64| {
        let count = all / PROCESSES + u64::from(at < all % PROCESSES);
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.args(["--exact", "long_queue::part_of_a_line", "--ignored", "--nocapture"]);
        command.env(PART, format!("{count} {ttl} {url}")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a process");
        let (said, tell, ready) = (process.stdout.take().expect("its output"), tell.clone(), ready.clone());
        thread::spawn(move || {
            for line in BufReader::new(said).lines().map_while(Result::ok) {
                match line.rsplit_once(' ').map_or(line.as_str(), |(_, last)| last) {
                    "ready" => drop(ready.send(())),
                    token => drop(token.parse().map(|token| tell.send(token))),
                }
            }
        });
        process
    };
    let processes: Vec<Child> = (0..PROCESSES).map(begin).collect();
    processes.iter().for_each(|_| is_ready.recv().expect("a process that is ready"));
    let waits = processes.into_iter().map(|mut process| {
        let before = resident(process.id());
        writeln!(process.stdin.as_ref().expect("its input"), "begin").expect("it reads");
        // It exits when its standard input is closed.
        process.stdin.as_mut().expect("its input").flush().expect("it reads");
        Waits { process, before }
    });
    (waits.collect(), told)
}

#[test]
#[ignore = "a process of those below"]
fn part_of_a_line() {
    let Ok(part) = env::var(PART) else { return };
    let words: Vec<&str> = part.splitn(3, ' ').collect();
    let [count, ttl, url] = words[..] else { panic!("{part}") };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let locks = client(url, ttl.parse().expect("a number"));
    block_on(locks.ping()).expect("a server");
    println!("\nis ready");
    let mut line = String::new();
    let _ = stdin().read_line(&mut line);
    for _ in 0..count.parse::<u64>().expect("a number") {
        let lock = locks.fair_mutex("line").expect("a name");
        runtime.spawn(async move {
            let guard = lock.lock().await.expect("a turn");
            println!("token {}", guard.fence());
            guard.release().await.expect("a release");
        });
    }
    while stdin().read_line(&mut line).is_ok_and(|count| count > 0) {}
}

/// Waiters in several processes queue for one fair lock, and some get it. `requests` and `memory` are those
/// of the server.
fn takes_turns(store: &str, url: &str, requests: impl Fn() -> u64, memory: impl Fn() -> u64) {
    let (all, count) = (waiters(), turns());
    let first = client(url, LONG);
    let guard = block_on(first.fair_mutex("line").expect("a name").lock()).expect("a free lock");
    let server = memory();
    let begun = Instant::now();
    let (waits, told) = line_up(url, all, LONG);
    let mut held = guard.fence();
    are_in_line(&first, all);
    let came = begun.elapsed();
    let here =
        waits.iter().map(|waits| resident(waits.process.id()).saturating_sub(waits.before)).sum::<u64>();
    let there = memory().saturating_sub(server);
    let before = requests();
    let begun = Instant::now();
    block_on(guard.release()).expect("a release");
    // Lines of two processes may arrive in another order than their turns.
    let mut tokens = Vec::new();
    for _ in 0..count {
        let token = told.recv_timeout(Duration::from_secs(60)).expect("a turn");
        assert!(!tokens.contains(&token), "{token} twice");
        tokens.push(token);
    }
    let took = begun.elapsed();
    let asked = requests() - before;
    tokens.sort_unstable();
    let least = tokens.first().copied().expect("turns");
    assert!(held < least, "{least} after {held}");
    held = tokens.last().copied().expect("turns");
    let each = |of: f64| of / count as f64;
    println!(
        "{store}: {all} waiters came in {came:.2?}, with {} bytes each in {PROCESSES} processes and {} at the \
         server; a turn took {:.2?} and {:.1} requests at the server ({count} turns, up to {held})",
        here / all,
        there / all,
        took / count as u32,
        each(asked as f64),
    );
    // A turn is a release and its successor's request. Places are refreshed in batches.
    let refreshes = (took.as_secs_f64() + 2.0) * (all as f64 / 256.0 + PROCESSES as f64 * 2.0) * 2.0;
    assert!(asked as f64 <= 5.0 * count as f64 + refreshes, "{asked} requests for {count} turns in {took:?}");
}

fn are_in_line(locks: &Locks, all: u64) {
    eventually("all are in line", Duration::from_secs(250), || {
        let status = block_on(locks.inspect("line")).expect("an answer").expect("it is held");
        status.waiters.len() as u64 + status.unlisted == all
    });
}

/// A process with a quarter of the places dies. The others wait for its lease once, not for each of its
/// places.
fn one_dies(url: &str) {
    let (all, ttl) = (400, 2);
    let first = client(url, LONG);
    let guard = block_on(first.fair_mutex("line").expect("a name").lock()).expect("a free lock");
    let (mut waits, told) = line_up(url, all, ttl);
    are_in_line(&first, all);
    drop(waits.remove(0));
    let begun = Instant::now();
    block_on(guard.release()).expect("a release");
    let mut tokens: Vec<u64> = (0..all - all / PROCESSES)
        .map(|_| told.recv_timeout(Duration::from_secs(60)).expect("a turn"))
        .collect();
    let took = begun.elapsed();
    println!("{} turns in {took:?}", tokens.len());
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len() as u64, all - all / PROCESSES, "no token was given twice");
    let status = || block_on(first.inspect("line")).expect("an answer");
    eventually("nothing is left", Duration::from_secs(20), || status().is_none());
    // The dead process has a hundred places, with leases of seconds.
    assert!(took < Duration::from_secs(40), "{took:?}");
}

#[test]
fn a_process_that_dies_in_a_long_queue_on_etcd_costs_the_others_one_lease() {
    one_dies(&Etcd::start().url());
}

#[test]
fn a_process_that_dies_in_a_long_queue_on_zookeeper_costs_the_others_one_lease() {
    one_dies(&ZooKeeper::start().url());
}

#[test]
fn a_process_that_dies_in_a_long_queue_on_postgresql_costs_the_others_one_lease() {
    one_dies(&Postgres::start().url("line"));
}

#[test]
fn a_long_queue_on_postgresql_takes_its_turns_in_order() {
    let server = Postgres::start();
    server.run("ALTER SYSTEM SET log_statement = 'all'");
    // Without the parameters, which are as long as the queue.
    server.run("ALTER SYSTEM SET log_parameter_max_length = 0");
    server.run("SELECT pg_reload_conf()");
    let requests = || server.log().lines().filter(|line| line.contains("LOG:  execute ")).count() as u64;
    takes_turns("PostgreSQL", &server.url("line"), requests, || server.memory());
}

#[test]
fn a_long_queue_on_etcd_takes_its_turns_in_order() {
    let etcd = Etcd::start();
    let requests = || {
        let said = etcd.get(0, "metrics").expect("its metrics");
        let handled = said.lines().filter(|line| line.starts_with("grpc_server_handled_total{"));
        handled.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum::<f64>() as u64
    };
    takes_turns("etcd", &etcd.url(), requests, || etcd.memory());
}

#[test]
fn a_long_queue_on_zookeeper_takes_its_turns_in_order() {
    let server = ZooKeeper::start();
    let requests = || {
        let said = server.command(0, "srvr").expect("an answer");
        let received = said.lines().find_map(|line| line.strip_prefix("Received: "));
        received.and_then(|count| count.parse().ok()).expect("a number")
    };
    takes_turns("ZooKeeper", &server.url(), requests, || server.memory());
}
