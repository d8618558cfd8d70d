//! Connections that are cut at every byte, and a server that crashes.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;
use tenure::Options;
use tenure_testkit::servers::{Disk, Postgres, eventually};
use tenure_testkit::setting;

use super::{SERVER, locks, on, schema};
use crate::common::with;
use crate::crowd::Crowd;

/// A relay in front of a server's socket that cuts connections after a number of bytes.
pub(crate) struct Relay {
    dir: TempDir,
    /// Bytes left to the server and to the client before all connections are cut; negative for no limit.
    left: Arc<[AtomicI64; 2]>,
    /// Bytes forwarded in each direction.
    passed: Arc<[AtomicU64; 2]>,
}

impl Relay {
    /// A relay to this socket, on a socket of this name in a directory of its own.
    pub(crate) fn start(to: PathBuf, name: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(dir.path().join(name)).expect("a socket");
        let left = Arc::new([AtomicI64::new(-1), AtomicI64::new(-1)]);
        let passed = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let (limits, counts) = (Arc::clone(&left), Arc::clone(&passed));
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = UnixStream::connect(&to) else { continue };
                let ends = [(&client, &server), (&server, &client)];
                for (way, (from, to)) in ends.into_iter().enumerate() {
                    let (from, to) = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
                    let (limits, counts) = (Arc::clone(&limits), Arc::clone(&counts));
                    thread::spawn(move || pass(from, to, &limits[way], &counts[way]));
                }
            }
        });
        Self { dir, left, passed }
    }

    /// Its directory, as a host in a URL.
    pub(crate) fn place(&self) -> String {
        self.dir.path().to_str().expect("UTF-8").replace('/', "%2F")
    }

    fn passed(&self, way: usize) -> u64 {
        self.passed[way].load(Ordering::SeqCst)
    }

    fn cut_after(&self, way: usize, bytes: u64) {
        self.left[way].store(bytes as i64, Ordering::SeqCst);
    }
}

fn pass(mut from: UnixStream, mut to: UnixStream, left: &AtomicI64, passed: &AtomicU64) {
    let mut bytes = [0; 4_096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let limit = left.load(Ordering::SeqCst);
        let whole = limit < 0 || count as i64 <= limit;
        let count = if whole { count } else { limit as usize };
        if limit >= 0 {
            left.fetch_sub(count as i64, Ordering::SeqCst);
        }
        passed.fetch_add(count as u64, Ordering::SeqCst);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
        if !whole {
            // Only once: the next connection is not cut.
            left.store(-1, Ordering::SeqCst);
            break;
        }
    }
    for end in [from, to] {
        let _ = end.shutdown(std::net::Shutdown::Both);
    }
}

#[test]
fn a_connection_that_is_cut_at_any_byte_leaves_no_lock_behind() {
    let relay = Relay::start(SERVER.socket(), ".s.PGSQL.5432");
    let schema = schema();
    let url = format!("postgres://postgres@{}/postgres?schema={schema}", relay.place());
    cut_everywhere(&relay, &url, &SERVER.url(&schema));
}

/// Acquires, renews and releases while the connection is cut somewhere. Afterwards the lock is free before
/// its lease has expired, and no other client held it meanwhile.
pub(crate) fn cut_everywhere(relay: &Relay, relayed: &str, direct: &str) {
    on(async {
        let ttl = Duration::from_secs(60);
        let other = locks(direct, ttl);
        let locks = locks(relayed, ttl);
        let locks = locks.with(|options| options.op_timeout(Duration::from_secs(5))).expect("options");
        for kind in ["mutex", "fair"] {
            let turn = async |name: &str| {
                let guard = match kind {
                    "mutex" => locks.mutex(name).expect("a name").lock().await,
                    _ => locks.fair_mutex(name).expect("a name").lock().await,
                };
                let Ok(guard) = guard else { return };
                let _ = guard.renew().await;
                let _ = guard.release().await;
            };
            turn("warm").await;
            for way in [0, 1] {
                let before = relay.passed(way);
                turn("warm").await;
                let bytes = relay.passed(way) - before;
                let step = (bytes / 8).max(1);
                for at in (0..bytes).step_by(usize::try_from(step).expect("few")) {
                    let name = format!("{kind}{way}-{at}");
                    relay.cut_after(way, at);
                    turn(&name).await;
                    // Its release is retried in the background until it is answered.
                    let free = async {
                        loop {
                            let guard = match kind {
                                "mutex" => other.mutex(&*name).expect("a name").try_lock().await,
                                _ => other.fair_mutex(&*name).expect("a name").try_lock().await,
                            };
                            match guard.expect("an answer") {
                                Some(guard) => break guard.release().await.expect("a release"),
                                None => tokio::time::sleep(Duration::from_millis(10)).await,
                            }
                        }
                    };
                    let waited = tokio::time::timeout(Duration::from_secs(20), free).await;
                    waited.unwrap_or_else(|_| panic!("{name} is held by no client"));
                }
            }
        }
    });
}

#[test]
fn cuts_under_a_crowd_cost_no_overlap_no_token_and_no_waiter() {
    let relay = Relay::start(SERVER.socket(), ".s.PGSQL.5432");
    cut_a_crowd(&relay, &format!("postgres://postgres@{}/postgres?schema={}", relay.place(), schema()));
}

/// Two threads of each of four clients at a mutex, and two at a fair mutex.
pub(crate) fn crowds(url: &str, ttl: Duration) -> [Crowd; 2] {
    let options = Options::new().ttl(ttl).op_timeout(Duration::from_secs(10));
    let clients = [(); 4].map(|()| with(url, options.clone()));
    [false, true].map(|is_fair| Crowd::start(clients.iter().chain(&clients).cloned(), is_fair))
}

pub(crate) fn cut_a_crowd(relay: &Relay, relayed: &str) {
    let crowds = crowds(relayed, Duration::from_secs(2));
    for cut in 0..8 {
        crowds.iter().for_each(Crowd::goes_on);
        relay.cut_after(cut % 2, 83 * cut as u64);
    }
    crowds.iter().for_each(Crowd::goes_on);
    crowds.into_iter().for_each(Crowd::end);
}

#[test]
fn a_server_that_crashes_under_a_crowd_costs_no_overlap_no_token_and_no_waiter() {
    let mut server = Postgres::start();
    let crowds = crowds(&server.url(&schema()), Duration::from_secs(2));
    for _ in 0..3 {
        crowds.iter().for_each(Crowd::goes_on);
        server.crash();
        server.restart();
    }
    crowds.iter().for_each(Crowd::goes_on);
    crowds.into_iter().for_each(Crowd::end);
}

/// The server loses the last releases, because those do not wait for the disk. With `TENURE_KILLS=500` this is the
/// run that book/trust/evidence.md records.
#[test]
fn a_server_that_loses_its_last_releases_costs_no_overlap_no_token_and_no_waiter() {
    const TASKS: u64 = 64;
    let mut server = Postgres::start_on(Disk::Synced);
    let url = server.url(&schema());
    let crowds = crowds(&url, Duration::from_secs(2));
    let options = Options::new().ttl(Duration::from_secs(2)).op_timeout(Duration::from_secs(10));
    let (locks, pairs, is_over) = (with(&url, options), Arc::new(AtomicU64::new(0)), Arc::default());
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (locks, pairs, is_over) =
                (locks.clone(), Arc::clone(&pairs), Arc::<AtomicBool>::clone(&is_over));
            thread::spawn(move || {
                let (mutex, mut last) = (locks.mutex(format!("own{task}")).expect("a name"), 0);
                while !is_over.load(Ordering::SeqCst) {
                    let Ok(guard) = tenure::block_on(mutex.lock()) else { continue };
                    assert!(guard.fence() > last, "token {} after {last}", guard.fence());
                    last = guard.fence();
                    // The server may be down.
                    let _ = tenure::block_on(guard.release());
                    pairs.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let go_on = || {
        crowds.iter().for_each(Crowd::goes_on);
        let wanted = pairs.load(Ordering::SeqCst) + 4 * TASKS;
        eventually("the tasks go on", Duration::from_secs(60), || pairs.load(Ordering::SeqCst) >= wanted);
    };
    for _ in 0..setting("TENURE_KILLS").unwrap_or(2) {
        go_on();
        server.kill();
        server.restart();
    }
    go_on();
    is_over.store(true, Ordering::SeqCst);
    tasks.into_iter().for_each(|task| task.join().expect("tokens that rise"));
    crowds.into_iter().for_each(Crowd::end);
}

/// A backend that hangs in a request is terminated before the next connection is used.
#[test]
fn a_request_that_hangs_in_the_server_takes_no_effect_after_a_later_one() {
    on(async {
        let schema = schema();
        let locks = locks(&SERVER.url(&schema), Duration::from_secs(60));
        let locks = locks.with(|options| options.op_timeout(Duration::from_millis(600))).expect("options");
        let mutex = locks.mutex("x").expect("a name");
        mutex.lock().await.expect("a guard").release().await.expect("a release");
        // A lock on the whole table makes the acquire hang in the server.
        let client = super::connect(&SERVER).await;
        client
            .batch_execute(&format!("BEGIN; LOCK TABLE {schema}.tenure_lock IN ACCESS EXCLUSIVE MODE"))
            .await
            .expect("a locked table");
        let error = mutex.try_lock().await.expect_err("no answer");
        assert!(error.is_unknown() || error.is_unreachable(), "{error}");
        client.batch_execute("COMMIT").await.expect("an unlocked table");
        // The hanging request was undone or terminated: the lock is free long before its lease would have
        // expired.
        let deadline = Duration::from_secs(20);
        let free = tokio::time::timeout(deadline, async {
            loop {
                match mutex.try_lock().await {
                    Ok(Some(guard)) => break guard,
                    _ => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        });
        free.await.expect("it is free").release().await.expect("a release");
    });
}
