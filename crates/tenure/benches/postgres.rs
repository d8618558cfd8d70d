//! The cost of a lock on PostgreSQL, compared with bare statements through the same driver in the same run.
//!
//! `cargo bench -p tenure --features postgres --bench postgres` starts a server without fsync. Rounds of both
//! sides alternate, so that a slow phase of the machine affects both; a row is the median of its rounds. Like
//! ours, the bare connection has its own thread.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark reads the clock, sleeps and spawns"
)]

mod measured;

use std::thread;
use std::time::{Duration, Instant};

use tenure::{Locks, Options, block_on};
use tenure_testkit::servers::Postgres;
use tokio::runtime::Builder;
use tokio_postgres::{Client, NoTls};

use measured::{header, rates, row};

fn main() {
    let server = Postgres::start();
    header();
    pairs(&server);
    hand_over(&server);
    waiters(&server);
    renewals(&server);
}

/// A connection whose driver runs on its own thread.
fn bare(server: &Postgres) -> Client {
    let config = server.config();
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&config, NoTls).await.expect("a connection");
            sender.send(client).expect("a client waits");
            let _ = connection.await;
        });
    });
    receiver.recv().expect("a connection")
}

fn pairs(server: &Postgres) {
    server.run("CREATE TABLE bare (name text PRIMARY KEY, owner text, ends timestamptz)");
    let client = bare(server);
    let insert = "INSERT INTO bare AS b VALUES ($1, $2, clock_timestamp() + interval '15 s') ON CONFLICT (name)
        DO UPDATE SET owner = excluded.owner, ends = excluded.ends WHERE b.ends < clock_timestamp() RETURNING ends";
    let insert = block_on(client.prepare(insert)).expect("a statement");
    let delete =
        block_on(client.prepare("DELETE FROM bare WHERE name = $1 AND owner = $2")).expect("a statement");
    let lock = block_on(client.prepare("SELECT pg_advisory_lock(42)")).expect("a statement");
    let unlock = block_on(client.prepare("SELECT pg_advisory_unlock(42)")).expect("a statement");
    let owner = "user/label@host:1234/0123456789abcdef0123456789abcdef";
    let locks = Locks::open(&server.url("bench")).expect("a store");
    let mutex = locks.mutex("pair").expect("a name");
    let ours = || {
        block_on(async { mutex.lock().await.expect("a guard").release().await.expect("a release") });
    };
    let theirs = || {
        block_on(async {
            assert_eq!(client.query(&insert, &[&"pair", &owner]).await.expect("rows").len(), 1);
            assert_eq!(client.execute(&delete, &[&"pair", &owner]).await.expect("a row"), 1);
        });
    };
    let advisory = || {
        block_on(async {
            client.query(&lock, &[]).await.expect("a lock");
            client.query(&unlock, &[]).await.expect("no lock");
        });
    };
    let [ours, statements, session] = rates([&ours, &theirs, &advisory]);
    row("uncontended pairs/s, one task, beside INSERT and DELETE", ours, statements, ">= 0.9");
    row("the same beside pg_advisory_lock and pg_advisory_unlock", ours, session, "-");
}

/// Tasks of two clients take turns of 1 ms; measures the share of the time in which the lock is held.
fn hand_over(server: &Postgres) {
    const TURN: Duration = Duration::from_millis(1);
    let url = server.url("bench");
    let (start, length) = (Instant::now(), Duration::from_secs(5));
    let threads: Vec<_> = (0..2)
        .flat_map(|_| {
            let locks = Locks::open(&url).expect("a store");
            (0..4).map(move |_| locks.clone())
        })
        .map(|locks| {
            thread::spawn(move || {
                let mut held = Duration::ZERO;
                while start.elapsed() < length {
                    block_on(async {
                        let guard = locks.mutex("turns").expect("a name").lock().await.expect("a guard");
                        let began = Instant::now();
                        thread::sleep(TURN);
                        held += began.elapsed();
                        guard.release().await.expect("a release");
                    });
                }
                held
            })
        })
        .collect();
    let held: Duration = threads.into_iter().map(|thread| thread.join().expect("turns")).sum();
    let share = held.as_secs_f64() / start.elapsed().as_secs_f64();
    row("turns of 1 ms, 2 clients x 4 tasks: share of the ideal", share, 1.0, ">= 0.8");
}

fn transactions(server: &Postgres) -> f64 {
    // A backend reports its statistics once a second.
    thread::sleep(Duration::from_millis(1_500));
    let sql = "SELECT sum(xact_commit) FROM pg_stat_database WHERE datname = 'postgres'";
    server.run(sql).parse().expect("a number")
}

/// An idle backend reports its statistics after ten seconds; statements are prepared only once.
const SETTLES: Duration = Duration::from_secs(12);

/// Number of transactions within this time.
fn within(server: &Postgres, length: Duration) -> f64 {
    let before = transactions(server);
    thread::sleep(length);
    transactions(server) - before
}

fn count(what: &str, count: f64, reach: &str) {
    println!("{what:<66} {count:>10.2} {:>10} {:>8} {reach:>9}", "-", "-");
}

/// Transactions per second of waiting clients, without those of an idle server.
fn waiters(server: &Postgres) {
    const LENGTH: Duration = Duration::from_secs(20);
    let url = server.url("bench");
    let holder = Locks::open(&url).expect("a store");
    let guard = block_on(holder.mutex("held").expect("a name").lock()).expect("a guard");
    let idle = within(server, LENGTH);
    let waiting = Locks::open(&url).expect("a store");
    let waiters: Vec<_> = (0..100)
        .map(|_| {
            let mutex = waiting.mutex("held").expect("a name");
            thread::spawn(move || block_on(mutex.try_lock_for(Duration::from_secs(120))).is_ok())
        })
        .collect();
    thread::sleep(SETTLES);
    let busy = within(server, LENGTH);
    let rate = (busy - idle) / LENGTH.as_secs_f64();
    count("100 waiters on a held lock: transactions/s", rate, "<= 1");
    drop(guard);
    drop(waiters);
    block_on(waiting.flush()).expect("an end");
}

/// A thousand holds of one client for the time of two leases.
fn renewals(server: &Postgres) {
    const TTL: Duration = Duration::from_secs(6);
    let idle = within(server, 2 * TTL);
    let locks = Locks::open(&server.url("bench")).expect("a store");
    let locks = locks.with(|_| Options::new().ttl(TTL)).expect("options");
    let guards: Vec<_> = (0..1_000)
        .map(|at| block_on(locks.mutex(format!("kept{at}")).expect("a name").lock()).expect("a guard"))
        .collect();
    thread::sleep(SETTLES);
    let leases = (2.0 * TTL.as_secs_f64() + 1.5) / TTL.as_secs_f64();
    let each = (within(server, 2 * TTL) - idle) / leases;
    // The client renews at a third of the lease.
    count("1,000 holds: transactions for each renewal of all", each / 3.0, "<= 2");
    count("the same for each lease", each, "-");
    assert!(guards.iter().all(|guard| guard.is_held()));
}
