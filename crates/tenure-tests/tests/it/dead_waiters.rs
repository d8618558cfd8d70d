//! Processes that are killed while they wait, on servers that notice when a client dies.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "these tests use real time, processes and threads as their callers do"
)]

use std::env;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tenure::{Locks, block_on};
use tenure_testkit::servers::{Ensemble, Etcd, Postgres, Server, ZooKeeper, eventually};
use tenure_testkit::setting;
use tenure_testkit::timed::in_time;

use crate::wake::listening;

/// The store of a process that waits, and the kind of its lock.
const STORE: &str = "TENURE_WAITS_AT";
const KIND: &str = "TENURE_WAITS_FOR";

/// The kinds that keep a queue. Of `writer`, the dead write, and those before and after them read.
const KINDS: [&str; 3] = ["fair", "slots", "writer"];

#[test]
#[ignore = "a process of those below"]
fn a_process_that_waits() {
    let Ok(url) = env::var(STORE) else { return };
    let locks = Locks::open(&url).expect("a store");
    let _guard = enter(&locks, &env::var(KIND).expect("a kind"), true);
    loop {
        thread::park();
    }
}

/// Waits for the lock of this kind, which is also its name.
fn enter(locks: &Locks, kind: &str, is_dead: bool) -> Box<dyn Send> {
    let entered: tenure::Result<Box<dyn Send>> = block_on(async {
        let guard: Box<dyn Send> = match kind {
            "fair" => Box::new(locks.fair_mutex(kind)?.lock().await?),
            "slots" => Box::new(locks.semaphore(kind, 1)?.acquire().await?),
            _ if is_dead => Box::new(locks.rwlock(kind)?.write().await?),
            _ => Box::new(locks.rwlock(kind)?.read().await?),
        };
        Ok(guard)
    });
    entered.expect("a turn")
}

fn waiting_process(url: &str, kind: &str) -> Child {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["--exact", "dead_waiters::a_process_that_waits", "--ignored", "--nocapture"]);
    command.env(STORE, url).env(KIND, kind).stdout(Stdio::null()).spawn().expect("a process")
}

/// How long after the release the next one enters, if so many processes before it were killed. `settles` waits
/// until the server knows of so many that wait.
fn next_after(url: &str, kind: &'static str, dead: usize, settles: impl Fn(usize)) -> Duration {
    let locks = Locks::open(url).expect("a store");
    let guard = enter(&locks, kind, false);
    let waits = |count: usize| {
        eventually("all wait", Duration::from_secs(60), || {
            block_on(locks.inspect(kind))
                .is_ok_and(|found| found.is_some_and(|found| found.waiters.len() == count))
        });
    };
    let mut processes: Vec<Child> = (0..dead).map(|_| waiting_process(url, kind)).collect();
    waits(dead);
    let others = locks.clone();
    let next = thread::spawn(move || {
        let _guard = enter(&others, kind, false);
        Instant::now()
    });
    waits(dead + 1);
    settles(dead + 1);
    processes.iter_mut().for_each(|process| process.kill().expect("a process"));
    processes.iter_mut().for_each(|process| assert!(process.wait().is_ok()));
    settles(1);
    let released = Instant::now();
    drop(guard);
    next.join().expect("no panic") - released
}

fn is_soon(name: &str, server: &impl Ensemble, most: Duration) {
    for dead in [1, setting("TENURE_DEAD").unwrap_or(4)] {
        let after = next_after(&server.url(), "fair", dead as usize, |_| ());
        println!("{name}: after {dead} dead waiters the next one enters {after:?} after the release");
        in_time(after, most);
    }
}

/// The lease of 3 s of a place, and the half second in which etcd notices its end.
#[test]
fn on_etcd_a_killed_waiter_costs_a_few_seconds() {
    is_soon("etcd", &Etcd::start(), Duration::from_secs(4));
}

/// The session of 4 s of a place, and a tick.
#[test]
fn on_zookeeper_a_killed_waiter_costs_a_few_seconds() {
    is_soon("ZooKeeper", &ZooKeeper::start(), Duration::from_secs(5));
}

/// Their subscriptions have ended, and their places are kept for longer than this. The bound is half a second and the
/// delays of a busy machine.
#[test]
fn on_redis_killed_waiters_cost_next_to_nothing() {
    let server = Server::start();
    for kind in KINDS {
        let settles = |count: usize| {
            let subscribed = || server.command(&["PUBSUB", "CHANNELS", "tenure:wake:*"]).items().len();
            // A client that is killed before its place says that it listens has not proved its life.
            let is_known = || listening(&server, kind).len() >= count && subscribed() == count;
            eventually("subscriptions", Duration::from_secs(30), is_known);
        };
        for dead in [1, setting("TENURE_DEAD").unwrap_or(10)] {
            let after = next_after(&server.url(), kind, dead as usize, settles);
            println!(
                "Redis, {kind}: after {dead} dead waiters the next one enters {after:?} after the release"
            );
            in_time(after, Duration::from_secs(2));
        }
    }
}

/// Their sessions have ended. The bound is half a second and the delays of a busy machine.
#[test]
fn on_postgres_killed_waiters_cost_next_to_nothing() {
    let server = Postgres::start();
    let settles = |count: usize| {
        let living = "SELECT count(*) FROM waits.tenure_lock JOIN pg_locks ON locktype = 'advisory'
            AND (classid::bigint << 32 | objid::bigint) = hashtextextended(whole, 0) WHERE name LIKE '\\\\!%'";
        eventually("sessions", Duration::from_secs(30), || server.run(living) == count.to_string());
    };
    for kind in KINDS {
        for dead in [1, setting("TENURE_DEAD").unwrap_or(10)] {
            let after = next_after(&server.url("waits"), kind, dead as usize, settles);
            println!(
                "PostgreSQL, {kind}: after {dead} dead waiters the next one enters {after:?} after the release"
            );
            in_time(after, Duration::from_secs(2));
        }
    }
}
