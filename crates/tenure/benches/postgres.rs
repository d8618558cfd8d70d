//! The cost of a lock on PostgreSQL, compared with bare statements through the same driver in the same run.
//!
//! `cargo bench -p tenure --features postgres --bench postgres` starts servers: with fsync, with a fsync that
//! takes 1 ms longer, as in a cloud, and without. Rounds of all sides alternate, so that a slow phase of the
//! machine affects all; a row is the median of its rounds. Like ours, the bare connection has its own thread.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark reads the clock, sleeps and spawns"
)]

mod measured;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tenure::{Locks, Options, block_on};
use tenure_testkit::servers::{Disk, Postgres};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Mutex, mpsc};
use tokio_postgres::{Client, NoTls, Statement};

use measured::{header, medians, rate_of_tasks, rates, row};

const OWNER: &str = "user/label@host:1234/0123456789abcdef0123456789abcdef";

fn main() {
    header();
    let only = std::env::args().find_map(|argument| argument.strip_prefix("only=").map(str::to_owned));
    let disks = [("fsync", Disk::Synced), ("fsync + 1 ms", Disk::Slow(Duration::from_millis(1)))];
    for (what, disk) in disks.into_iter().chain([("no fsync", Disk::Unused)]) {
        if only.as_deref().is_none_or(|only| only == what) {
            let server = Postgres::start_on(disk);
            tasks(&server, what);
            turns(&server, what);
        }
    }
    if only.is_some() {
        return;
    }
    let server = Postgres::start();
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

const TABLE: &str = "CREATE TABLE bare (name text PRIMARY KEY, owner text, ends timestamptz)";
const INSERT: &str = "INSERT INTO bare AS b VALUES ($1, $2, clock_timestamp() + interval '15 s') ON CONFLICT (name)
    DO UPDATE SET owner = excluded.owner, ends = excluded.ends WHERE b.ends < clock_timestamp() RETURNING ends";
const DELETE: &str = "DELETE FROM bare WHERE name = $1 AND owner = $2";

/// A connection of a pool, and its statements.
struct Pooled {
    client: Client,
    insert: Statement,
    delete: Statement,
}

/// Connections whose drivers run on the runtime of their callers.
fn pool(server: &Postgres, runtime: &Runtime, count: usize) -> Vec<Pooled> {
    let connect = async || {
        let (client, connection) =
            tokio_postgres::connect(&server.config(), NoTls).await.expect("a connection");
        tokio::spawn(connection);
        let insert = client.prepare(INSERT).await.expect("a statement");
        let delete = client.prepare(DELETE).await.expect("a statement");
        Pooled { client, insert, delete }
    };
    (0..count).map(|_| runtime.block_on(connect())).collect()
}

/// Pairs of tasks with locks of their own, of one `Locks` and of a pool of 16 connections.
fn tasks(server: &Postgres, what: &str) {
    const POOL: usize = 16;
    server.run(TABLE);
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let (give, take) = mpsc::channel(POOL);
    for pooled in pool(server, &runtime, POOL) {
        give.try_send(pooled).map_err(drop).expect("room");
    }
    let take = Arc::new(Mutex::new(take));
    let locks = Locks::open(&server.url("bench")).expect("a store");
    for (count, reach) in [(1, ">= 0.8"), (16, "-"), (64, ">= 2"), (256, "-")] {
        let ours = || {
            let locks = locks.clone();
            rate_of_tasks(&runtime, count, move |task| {
                let mutex = locks.mutex(format!("own{task}")).expect("a name");
                async move { mutex.lock().await.expect("a guard").release().await.expect("a release") }
            })
        };
        let theirs = || {
            let (give, take) = (give.clone(), Arc::clone(&take));
            rate_of_tasks(&runtime, count, move |task| {
                let (give, take) = (give.clone(), Arc::clone(&take));
                async move {
                    let name = format!("own{task}");
                    // A connection for each statement, as a pool gives it.
                    let pooled = take.lock().await.recv().await.expect("a connection");
                    let taken = pooled.client.query(&pooled.insert, &[&name, &OWNER]).await.expect("rows");
                    assert_eq!(taken.len(), 1);
                    let freed = pooled.client.execute(&pooled.delete, &[&name, &OWNER]).await;
                    assert_eq!(freed.expect("a row"), 1);
                    give.try_send(pooled).map_err(drop).expect("room");
                }
            })
        };
        let [ours, theirs] = medians([&ours, &theirs]);
        row(&format!("{what}: pairs/s of {count} tasks beside a pool of {POOL}"), ours, theirs, reach);
    }
}

/// Hand-overs of 16 tasks on one lock with a hold of 1 ms, beside `pg_advisory_lock` on a connection each.
fn turns(server: &Postgres, what: &str) {
    const TASKS: usize = 16;
    const HOLD: Duration = Duration::from_millis(1);
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let locks = Locks::open(&server.url("bench")).expect("a store");
    let clients: Arc<[Pooled]> = pool(server, &runtime, TASKS).into();
    let mutex = || {
        let mutex = locks.mutex("turns").expect("a name");
        rate_of_tasks(&runtime, TASKS, move |_| {
            let mutex = mutex.clone();
            async move {
                let guard = mutex.lock().await.expect("a guard");
                tokio::time::sleep(HOLD).await;
                guard.release().await.expect("a release");
            }
        })
    };
    let fair = || {
        let mutex = locks.fair_mutex("fair turns").expect("a name");
        rate_of_tasks(&runtime, TASKS, move |_| {
            let mutex = mutex.clone();
            async move {
                let guard = mutex.lock().await.expect("a guard");
                tokio::time::sleep(HOLD).await;
                guard.release().await.expect("a release");
            }
        })
    };
    let session = || {
        let clients = Arc::clone(&clients);
        rate_of_tasks(&runtime, TASKS, move |task| {
            let clients = Arc::clone(&clients);
            async move {
                let client = &clients[task].client;
                client.query("SELECT pg_advisory_lock(43)", &[]).await.expect("a lock");
                tokio::time::sleep(HOLD).await;
                client.query("SELECT pg_advisory_unlock(43)", &[]).await.expect("no lock");
            }
        })
    };
    let [mutex, fair, session] = medians([&mutex, &fair, &session]);
    row(
        &format!("{what}: turns/s of 1 ms of {TASKS} tasks beside pg_advisory_lock"),
        mutex,
        session,
        ">= 0.9",
    );
    row("the same of a fair mutex", fair, session, "-");
    let pairs = |fair: bool| {
        let locks = locks.clone();
        rate_of_tasks(&runtime, 64, move |task| {
            let locks = locks.clone();
            async move {
                let name = format!("own{task}");
                let guard = match fair {
                    true => locks.fair_mutex(format!("fair {name}")).expect("a name").lock().await,
                    false => locks.mutex(name).expect("a name").lock().await,
                };
                guard.expect("a guard").release().await.expect("a release");
            }
        })
    };
    let [fair, mutex] = medians([&|| pairs(true), &|| pairs(false)]);
    row(&format!("{what}: pairs/s of 64 tasks, fair beside mutex"), fair, mutex, ">= 0.9");
}

fn pairs(server: &Postgres) {
    server.run(TABLE);
    let client = bare(server);
    let insert = block_on(client.prepare(INSERT)).expect("a statement");
    let delete = block_on(client.prepare(DELETE)).expect("a statement");
    let lock = block_on(client.prepare("SELECT pg_advisory_lock(42)")).expect("a statement");
    let unlock = block_on(client.prepare("SELECT pg_advisory_unlock(42)")).expect("a statement");
    let owner = OWNER;
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
