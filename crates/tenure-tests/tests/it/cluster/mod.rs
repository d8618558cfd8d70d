//! A cluster whose slots migrate, and whose masters fail over or are killed or stopped, while locks are held
//! and waited for.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real servers measure real time"
)]

mod callers;
mod failover;
mod replies;
mod rights;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle, scope, sleep};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt, TryFutureExt};
use tenure::{Guard, Locks, Owner, block_on};
use tenure_testkit::fake_redis::FakeRedis;
use tenure_testkit::servers::{Cluster, eventually};
use tokio::runtime::{Builder, Runtime};

use crate::common::{locks, ms};

const KINDS: [&str; 5] = ["mutex", "reentrant", "fair", "writer", "permit"];
/// Tolerance for a busy machine.
const SOON: Duration = Duration::from_secs(5);

fn acquire(locks: &Locks, kind: &str, name: &str) -> tenure::Result<Guard> {
    block_on(acquired(locks, kind, name))
}

async fn acquired(locks: &Locks, kind: &str, name: &str) -> tenure::Result<Guard> {
    match kind {
        "mutex" => locks.mutex(name)?.lock().await,
        "reentrant" => locks.reentrant_mutex(name, &Owner::new("crowd")?)?.lock().await,
        "fair" => locks.fair_mutex(name)?.lock().await,
        "writer" => locks.rwlock(name)?.write().await.map(Guard::from),
        "permit" => locks.semaphore(name, 1)?.acquire().await,
        _ => unreachable!("a kind"),
    }
}

#[test]
fn an_uncontended_pair_on_a_cluster_costs_what_it_costs_on_a_server() {
    let cluster = Cluster::without_replicas();
    let (name, locks) = (cluster.key_at(1, "x"), locks(&cluster.url(), ms(30_000)));
    for (kind, messages) in [("mutex", 10), ("fair", 0)] {
        let pair = || block_on(acquire(&locks, kind, &name).expect("free").release()).expect("a release");
        // The first grant from a slot's counter uses a script.
        (0..2).for_each(|_| pair());
        let node = &cluster.nodes()[1];
        node.command(&["CONFIG", "RESETSTAT"]);
        (0..10).for_each(|_| pair());
        let calls = node.info_commandstats();
        let calls = |name: &str| calls.get(name).copied().unwrap_or(0);
        // Only the machines' scripts ask for the time.
        assert_eq!([calls("set"), calls("incr"), calls("time")], [10, 10, 0], "{kind}");
        assert_eq!(calls("publish") + calls("spublish"), messages, "{kind}");
    }
}

/// Several clients that keep handing over one lock of each kind. The first sends its requests from a tokio
/// runtime.
struct Crowd {
    runtime: Runtime,
    names: Vec<(&'static str, String)>,
    over: AtomicBool,
    tallies: BTreeMap<&'static str, Mutex<Tally>>,
}

/// Statistics of one lock.
struct Tally {
    inside: u32,
    turns: u32,
    overlaps: u32,
    lost: u32,
    token: u64,
    last: Instant,
    /// The longest time without a grant.
    pause: Duration,
}

impl Crowd {
    /// `key` selects the slot.
    fn new(key: &str) -> Self {
        let names = KINDS.map(|kind| (kind, format!("{{{key}}}:{kind}"))).to_vec();
        let tally = || Tally {
            inside: 0,
            turns: 0,
            overlaps: 0,
            lost: 0,
            token: 0,
            last: Instant::now(),
            pause: Duration::ZERO,
        };
        let tallies = KINDS.into_iter().map(|kind| (kind, Mutex::new(tally()))).collect();
        Self { runtime: runtime(), names, over: AtomicBool::new(false), tallies }
    }

    fn tally<T>(&self, kind: &str, with: impl FnOnce(&mut Tally) -> T) -> T {
        with(&mut self.tallies[kind].lock().expect("no panic while it is taken"))
    }

    /// Each client takes turns at each lock until the crowd is stopped.
    fn starts<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        clients: &'scope [Locks],
    ) -> Vec<ScopedJoinHandle<'scope, ()>> {
        let clients = clients.iter().enumerate().map(|(at, client)| (at == 0, client));
        let pairs = clients.flat_map(|client| self.names.iter().map(move |name| (client, name)));
        pairs
            .map(|((on_tokio, client), (kind, name))| {
                scope.spawn(move || match on_tokio {
                    true => self.takes_turns(client, kind, name, |task| self.runtime.block_on(task)),
                    false => self.takes_turns(client, kind, name, |task| block_on(task)),
                })
            })
            .collect()
    }

    fn takes_turns(
        &self,
        client: &Locks,
        kind: &'static str,
        name: &str,
        wait: impl Fn(BoxFuture<'_, tenure::Result<Option<Guard>>>) -> tenure::Result<Option<Guard>>,
    ) {
        while !self.over.load(Ordering::Relaxed) {
            let taken = wait(acquired(client, kind, name).map_ok(Some).boxed());
            let guard = taken
                .map(|guard| guard.expect("a grant"))
                .unwrap_or_else(|error| panic!("{kind}: {error:?}"));
            self.tally(kind, |tally| {
                tally.pause = tally.pause.max(tally.last.elapsed());
                tally.last = Instant::now();
                tally.inside += 1;
                tally.turns += 1;
                tally.overlaps += u32::from(tally.inside > 1);
                assert!(guard.fence() > tally.token, "{kind}: {} after {}", guard.fence(), tally.token);
                tally.token = guard.fence();
            });
            sleep(ms(3));
            let was_held = guard.is_held();
            self.tally(kind, |tally| tally.inside -= 1);
            match wait(guard.release().map_ok(|()| None).boxed()) {
                Ok(_) => {}
                Err(error) if error.is_lost() || error.is_unknown() || !was_held => {
                    self.tally(kind, |tally| tally.lost += 1);
                }
                Err(error) => panic!("{kind}: a release: {error:?}"),
            }
        }
    }

    /// Waits until every lock was granted this many times more.
    fn goes_on(&self, limit: Duration) {
        let turns: Vec<_> = KINDS.iter().map(|kind| self.tally(kind, |tally| tally.turns) + 3).collect();
        eventually("every lock is handed on", limit, || {
            KINDS.iter().zip(&turns).all(|(kind, turns)| self.tally(kind, |tally| tally.turns) >= *turns)
        });
    }

    /// Resets the longest pauses.
    fn watches(&self) {
        for kind in KINDS {
            self.tally(kind, |tally| (tally.pause, tally.last) = (Duration::ZERO, Instant::now()));
        }
    }

    fn tells(&self, what: &str) {
        for kind in KINDS {
            self.tally(kind, |tally| {
                println!(
                    "{what}: {kind}: {} turns, {} overlaps, {} lost, longest pause {:?}",
                    tally.turns, tally.overlaps, tally.lost, tally.pause
                );
            });
        }
    }

    fn ends(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Stops the crowd even if the test fails, because a scope waits for its threads.
    fn ends_with_the_test(&self) -> impl Drop {
        struct Ends<'a>(&'a Crowd);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.ends();
            }
        }
        Ends(self)
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// A guard of each kind.
fn held(locks: &Locks, key: &str) -> Vec<Guard> {
    let hold = |kind| acquire(locks, kind, &format!("{{{key}}}:held:{kind}")).expect("a free lock");
    KINDS.into_iter().map(hold).collect()
}

#[test]
fn a_slot_that_moves_costs_neither_a_held_lock_nor_a_turn() {
    let cluster = Cluster::without_replicas();
    let (key, [from, to]) = (cluster.key_at(0, "k"), [0, 1]);
    let slot = cluster.slot(&key);
    let (crowd, clients) = (Crowd::new(&key), [(); 3].map(|()| locks(&cluster.url(), SOON)));
    // Renewed every 200 ms, so also during each migration.
    let guards = held(&locks(&cluster.url(), ms(600)), &key);
    scope(|scope| {
        let _ends = crowd.ends_with_the_test();
        let workers = crowd.starts(scope, &clients);
        crowd.goes_on(SOON);
        for round in 0..4 {
            let (from, to) = if round % 2 == 0 { (from, to) } else { (to, from) };
            cluster.begin_move(slot, from, to);
            sleep(ms(250));
            // One key at a time, so that a lock and its counter are on different nodes.
            while cluster.move_keys(slot, from, to, 1) > 0 {
                sleep(ms(15));
            }
            sleep(ms(250));
            cluster.end_move(slot, from, to);
            crowd.goes_on(SOON);
        }
        crowd.ends();
        workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
    });
    crowd.tells("moved");
    for kind in KINDS {
        crowd.tally(kind, |tally| assert_eq!((tally.overlaps, tally.lost), (0, 0), "{kind}"));
    }
    for guard in guards {
        block_on(guard.release()).expect("it was held all the time");
    }
}

#[test]
fn while_a_slot_moves_its_lock_is_answered_in_time_and_granted_afterwards() {
    let cluster = Cluster::without_replicas();
    let key = cluster.key_at(0, "k");
    let slot = cluster.slot(&key);
    let [holders, others] = [(); 2].map(|()| locks(&cluster.url(), Duration::from_secs(60)));
    let op_timeout = others.options().op_timeout;
    let (free, used) = (format!("{{{key}}}:free"), format!("{{{key}}}:used"));
    block_on(acquire(&holders, "mutex", &used).expect("a free lock").release()).expect("a release");
    let guards = held(&holders, &key);
    let try_acquire = |kind: &str, name: &str| {
        let began = Instant::now();
        let asked = async {
            match kind {
                "mutex" => others.mutex(name)?.try_lock().await,
                "reentrant" => others.reentrant_mutex(name, &Owner::new("other")?)?.try_lock().await,
                "fair" => others.fair_mutex(name)?.try_lock().await,
                "writer" => Ok(others.rwlock(name)?.try_write().await?.map(Guard::from)),
                _ => others.semaphore(name, 1)?.try_acquire().await,
            }
        };
        (block_on(asked), began.elapsed())
    };
    // Held locks stay busy wherever the lock and its counter are on one node.
    let are_busy = || {
        for (kind, guard) in KINDS.into_iter().zip(&guards) {
            let (said, took) = try_acquire(kind, guard.name().as_str());
            assert!(said.expect("an answer").is_none() && took < op_timeout, "{kind}: {took:?}");
        }
    };
    // For free locks, the servers only ask to retry later.
    let are_refused = || {
        for name in [&free, &used] {
            eventually("it is said why", 4 * SOON, || {
                let (said, took) = try_acquire("mutex", name);
                let error = said.expect_err("it cannot be granted yet");
                assert!(error.is_unreachable(), "{error:?}");
                assert!((op_timeout / 2..op_timeout + SOON).contains(&took), "{took:?}");
                // Unless it timed out during a retry.
                format!("{error:?}").contains("its slot is moving")
            });
        }
    };
    cluster.begin_move(slot, 0, 1);
    are_busy();
    are_refused();
    scope(|scope| {
        let waits = [&free, &used].map(|name| {
            let others = &others;
            scope.spawn(move || acquire(others, "mutex", name).expect("a grant"))
        });
        eventually("all keys are moved", SOON, || cluster.move_keys(slot, 0, 1, 100) == 0);
        are_busy();
        assert!(waits.iter().all(|wait| !wait.is_finished()));
        cluster.end_move(slot, 0, 1);
        let moved = Instant::now();
        let granted = waits.map(|wait| wait.join().expect("no panic"));
        println!("those who waited had their locks {:?} after the slot had moved", moved.elapsed());
        assert!(moved.elapsed() < SOON, "{:?}", moved.elapsed());
        drop(granted);
    });
    are_busy();
    for guard in guards {
        block_on(guard.release()).expect("it was held all the time");
    }
}

#[test]
fn who_waits_hears_of_a_release_after_the_slot_has_moved_and_while_it_moves() {
    let cluster = Cluster::without_replicas();
    let key = cluster.key_at(0, "k");
    let slot = cluster.slot(&key);
    let subscribed = |at: usize, name: &str| {
        let channels = cluster.nodes()[at].command(&["PUBSUB", "SHARDCHANNELS"]);
        channels.items().iter().any(|channel| channel.text().contains(name))
    };
    // Leases so long that a client that misses the message would be late.
    let [holders, waiters] = [(); 2].map(|()| locks(&cluster.url(), Duration::from_secs(60)));
    for (kind, in_the_middle) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let name = format!("{{{key}}}:{kind}:{in_the_middle}");
        let (from, to) = if cluster.owner_of(&key) == 0 { (0, 1) } else { (1, 0) };
        let guard = acquire(&holders, kind, &name).expect("a free lock");
        scope(|scope| {
            let waiter = scope.spawn(|| acquire(&waiters, kind, &name).expect("a grant"));
            eventually("a subscription", SOON, || subscribed(from, &name));
            cluster.begin_move(slot, from, to);
            eventually("all keys are moved", SOON, || cluster.move_keys(slot, from, to, 100) == 0);
            if in_the_middle {
                block_on(guard.release()).expect("a release");
                sleep(ms(100));
                cluster.end_move(slot, from, to);
            } else {
                cluster.end_move(slot, from, to);
                eventually("a subscription at the new node", SOON, || subscribed(to, &name));
                block_on(guard.release()).expect("a release");
            }
            let released = Instant::now();
            block_on(waiter.join().expect("no panic").release()).expect("a release");
            assert!(released.elapsed() < SOON, "{kind}: {:?}", released.elapsed());
        });
    }
}

#[test]
fn where_messages_cannot_be_sharded_all_nodes_pass_them_on() {
    let cluster = Cluster::without_replicas();
    for node in cluster.nodes() {
        // Like a server too old for the query that Redisson uses.
        assert!(node.command(&["ACL", "SETUSER", "default", "-pubsub"]) == "OK");
    }
    let [holders, waiters] = [(); 2].map(|()| locks(&cluster.url(), Duration::from_secs(60)));
    for kind in KINDS {
        let name = cluster.key_at(1, kind);
        let guard = acquire(&holders, kind, &name).expect("a free lock");
        scope(|scope| {
            let waiter = scope.spawn(|| acquire(&waiters, kind, &name).expect("a grant"));
            eventually("a subscription", SOON, || {
                let channels = cluster.nodes()[1].command(&["PUBSUB", "CHANNELS"]);
                channels.items().iter().any(|channel| channel.text().contains(&name))
            });
            let released = Instant::now();
            block_on(guard.release()).expect("a release");
            block_on(waiter.join().expect("no panic").release()).expect("a release");
            assert!(released.elapsed() < SOON, "{kind}: {:?}", released.elapsed());
        });
    }
}
