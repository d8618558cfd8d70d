//! A cluster whose slots move, whose masters fail over, are killed or stopped, while locks are held and waited for.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real servers measure real time"
)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{Scope, ScopedJoinHandle, scope, sleep};
use std::time::{Duration, Instant};

use tenure::{Guard, Locks, Owner, block_on};
use tenure_testkit::servers::{Cluster, eventually};

const KINDS: [&str; 5] = ["mutex", "reentrant", "fair", "writer", "permit"];
/// What a busy machine may take for something that takes no time.
const SOON: Duration = Duration::from_secs(5);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn locks(url: &str, ttl: Duration) -> Locks {
    Locks::open(url).expect("a store").with(|options| options.ttl(ttl)).expect("options")
}

/// One lock of a kind, alone.
fn acquire(locks: &Locks, kind: &str, name: &str) -> tenure::Result<Guard> {
    match kind {
        "mutex" => block_on(locks.mutex(name)?.lock()),
        "reentrant" => block_on(locks.reentrant_mutex(name, &Owner::new("crowd")?)?.lock()),
        "fair" => block_on(locks.fair_mutex(name)?.lock()),
        "writer" => block_on(locks.rwlock(name)?.write()).map(Guard::from),
        "permit" => block_on(locks.semaphore(name, 1)?.acquire()),
        _ => unreachable!("a kind"),
    }
}

/// Several clients that hand on one lock of each kind all the time.
struct Crowd {
    names: Vec<(&'static str, String)>,
    over: AtomicBool,
    books: BTreeMap<&'static str, Mutex<Book>>,
}

/// What was seen of one lock.
struct Book {
    inside: u32,
    turns: u32,
    overlaps: u32,
    lost: u32,
    token: u64,
    last: Instant,
    /// The longest time in which nobody had a turn.
    pause: Duration,
}

impl Crowd {
    /// `key` names the slot.
    fn new(key: &str) -> Self {
        let names = KINDS.map(|kind| (kind, format!("{{{key}}}:{kind}"))).to_vec();
        let book = || Book {
            inside: 0,
            turns: 0,
            overlaps: 0,
            lost: 0,
            token: 0,
            last: Instant::now(),
            pause: Duration::ZERO,
        };
        let books = KINDS.into_iter().map(|kind| (kind, Mutex::new(book()))).collect();
        Self { names, over: AtomicBool::new(false), books }
    }

    fn book<T>(&self, kind: &str, with: impl FnOnce(&mut Book) -> T) -> T {
        with(&mut self.books[kind].lock().expect("no panic while it is taken"))
    }

    /// Each client takes turns at each lock, until the crowd is over.
    fn starts<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        clients: &'scope [Locks],
    ) -> Vec<ScopedJoinHandle<'scope, ()>> {
        let pairs = clients.iter().flat_map(|client| self.names.iter().map(move |name| (client, name)));
        pairs
            .map(|(client, (kind, name))| scope.spawn(move || self.takes_turns(client, kind, name)))
            .collect()
    }

    fn takes_turns(&self, client: &Locks, kind: &'static str, name: &str) {
        while !self.over.load(Ordering::Relaxed) {
            let guard = acquire(client, kind, name).unwrap_or_else(|error| panic!("{kind}: {error:?}"));
            self.book(kind, |book| {
                book.pause = book.pause.max(book.last.elapsed());
                book.last = Instant::now();
                book.inside += 1;
                book.turns += 1;
                book.overlaps += u32::from(book.inside > 1);
                assert!(guard.fence() > book.token, "{kind}: {} after {}", guard.fence(), book.token);
                book.token = guard.fence();
            });
            sleep(ms(3));
            let was_held = guard.is_held();
            self.book(kind, |book| book.inside -= 1);
            match block_on(guard.release()) {
                Ok(()) => {}
                Err(error) if error.is_lost() || error.is_unknown() || !was_held => {
                    self.book(kind, |book| book.lost += 1);
                }
                Err(error) => panic!("{kind}: a release: {error:?}"),
            }
        }
    }

    /// Waits until every lock had so many turns more.
    fn goes_on(&self, limit: Duration) {
        let turns: Vec<_> = KINDS.iter().map(|kind| self.book(kind, |book| book.turns) + 3).collect();
        eventually("every lock is handed on", limit, || {
            KINDS.iter().zip(&turns).all(|(kind, turns)| self.book(kind, |book| book.turns) >= *turns)
        });
    }

    /// Forgets the pauses so far.
    fn watches(&self) {
        for kind in KINDS {
            self.book(kind, |book| (book.pause, book.last) = (Duration::ZERO, Instant::now()));
        }
    }

    fn tells(&self, what: &str) {
        for kind in KINDS {
            self.book(kind, |book| {
                println!(
                    "{what}: {kind}: {} turns, {} overlaps, {} lost, longest pause {:?}",
                    book.turns, book.overlaps, book.lost, book.pause
                );
            });
        }
    }

    fn ends(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Ends it also if the test fails first: a scope waits for its threads.
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
    // Renewed every 200 ms, so also in the middle of each move.
    let guards = held(&locks(&cluster.url(), ms(600)), &key);
    scope(|scope| {
        let _ends = crowd.ends_with_the_test();
        let workers = crowd.starts(scope, &clients);
        crowd.goes_on(SOON);
        for round in 0..4 {
            let (from, to) = if round % 2 == 0 { (from, to) } else { (to, from) };
            cluster.begin_move(slot, from, to);
            sleep(ms(250));
            // One by one, so that a lock is here and its counter there.
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
        crowd.book(kind, |book| assert_eq!((book.overlaps, book.lost), (0, 0), "{kind}"));
    }
    for guard in guards {
        block_on(guard.release()).expect("it was held all the time");
    }
}

#[test]
fn while_a_slot_moves_key_by_key_a_lock_of_it_is_answered_in_time_and_granted_when_all_has_moved() {
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
    // Those that are held are busy, as ever, where lock and counter are on one node.
    let are_busy = || {
        for (kind, guard) in KINDS.into_iter().zip(&guards) {
            let (said, took) = try_acquire(kind, guard.name().as_str());
            assert!(said.expect("an answer").is_none() && took < op_timeout, "{kind}: {took:?}");
        }
    };
    // Of those that are free, the servers say nothing but that they should be asked later.
    let are_refused = || {
        for name in [&free, &used] {
            eventually("it is said why", 4 * SOON, || {
                let (said, took) = try_acquire("mutex", name);
                let error = said.expect_err("it cannot be granted yet");
                assert!(error.is_unreachable(), "{error:?}");
                assert!((op_timeout / 2..op_timeout + SOON).contains(&took), "{took:?}");
                // Unless the time was over while it was asked again.
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
    // Long leases: nobody who misses the message comes in time.
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
        // As a server that is too old to answer what Redisson asks.
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

/// The rights of these lines of the page, by their first word.
fn rights(lines: &[&str]) -> Vec<&'static str> {
    let page = include_str!("../../../docs/operations.md");
    let (_, page) = page.split_once("```acl\n").expect("a list of rights");
    let (page, _) = page.split_once("```").expect("its end");
    let mut rights: Vec<_> = page
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(what, _)| lines.contains(what))
        .flat_map(|(_, rights)| rights.split_whitespace())
        .collect();
    rights.sort_unstable();
    rights.dedup();
    rights
}

/// Lets the user `app` do this and nothing else, and forgets what was denied so far.
fn allow(cluster: &Cluster, rights: &[&str]) {
    let set = ["ACL", "SETUSER", "app", "reset", "on", ">pw", "resetkeys", "resetchannels", "-@all"];
    for node in cluster.nodes() {
        assert!(node.command(&[&set[..], rights].concat()) == "OK", "{rights:?}");
        assert!(node.command(&["ACL", "LOG", "RESET"]) == "OK");
    }
}

/// What was denied, anywhere.
fn denied(cluster: &Cluster) -> Vec<String> {
    let logs: Vec<_> = cluster.nodes().iter().map(|node| node.command(&["ACL", "LOG"])).collect();
    let entries = logs.iter().flat_map(|log| log.items());
    let objects = entries.filter_map(|entry| {
        let mut pairs = entry.items().chunks_exact(2);
        pairs.find(|pair| pair[0].text() == "object").map(|pair| pair[1].text().to_owned())
    });
    objects.collect()
}

/// A lock is held and waited for, its slot moves on, and it is released in the middle of that; then once more, in peace.
fn hand_over_while_it_moves(cluster: &Cluster, name: &str) -> tenure::Result<()> {
    let url = cluster.url().replace("://", "://app:pw@");
    let (from, to) = if cluster.owner_of(name) == 0 { (0, 1) } else { (1, 0) };
    let slot = cluster.slot(name);
    let [holders, waiters] = [(); 2].map(|()| locks(&url, Duration::from_secs(10)));
    let guard = acquire(&holders, "mutex", name)?;
    scope(|scope| {
        let waiter = scope.spawn(|| acquire(&waiters, "mutex", name));
        sleep(ms(100)); // it has asked, and waits
        cluster.begin_move(slot, from, to);
        while cluster.move_keys(slot, from, to, 100) > 0 {}
        let released = block_on(guard.release());
        cluster.end_move(slot, from, to);
        if released.is_err() {
            for node in cluster.nodes() {
                node.command(&["DEL", name]);
            }
        }
        let waited = waiter.join().expect("no panic");
        released?;
        block_on(waited?.release())
    })?;
    let guard = acquire(&holders, "mutex", name)?;
    scope(|scope| {
        let waiter = scope.spawn(|| acquire(&waiters, "mutex", name));
        sleep(ms(100));
        block_on(guard.release())?;
        block_on(waiter.join().expect("no panic")?.release())
    })?;
    Ok(())
}

#[test]
fn the_rights_that_a_cluster_asks_for_are_enough_and_each_is_needed() {
    let cluster = Cluster::without_replicas();
    let name = cluster.key_at(0, "app:");
    let all = rights(&["always", "mutex", "wake", "old", "quorum", "cluster"]);
    allow(&cluster, &all);
    hand_over_while_it_moves(&cluster, &name).expect("with all rights");
    assert_eq!(denied(&cluster), Vec::<String>::new());
    // To leave a channel is asked for ten seconds later, and only where others wait meanwhile.
    for right in rights(&["cluster"]).into_iter().filter(|right| *right != "+sunsubscribe") {
        let less: Vec<_> = all.iter().copied().filter(|other| *other != right).collect();
        allow(&cluster, &less);
        // Some are missed by a call, all by the server.
        let _ = hand_over_while_it_moves(&cluster, &name);
        assert!(denied(&cluster).contains(&right[1..].to_owned()), "{right}: {:?}", denied(&cluster));
    }
}

/// What happens to the master of a shard.
enum Blow {
    /// Its replica takes over, with all that it has.
    FailOver,
    Kill,
    Stop,
}

impl Blow {
    /// Strikes the node that serves a key, and says which that was.
    fn strikes(&self, cluster: &Cluster, key: &str) -> usize {
        let master = cluster.owner_of(key);
        match self {
            Self::FailOver => {
                cluster.fail_over(master);
            }
            Self::Kill => cluster.nodes()[master].kill(),
            Self::Stop => cluster.nodes()[master].stop(),
        }
        master
    }

    /// Repairs what was struck.
    fn heals(&self, cluster: &Cluster, struck: usize) {
        match self {
            Self::FailOver => {}
            Self::Kill => cluster.nodes()[struck].restart(),
            Self::Stop => cluster.nodes()[struck].cont(),
        }
        cluster.settles();
    }
}

#[test]
fn a_master_that_fails_over_costs_seconds_and_nobody_who_has_lost_is_not_told() {
    let cluster = Cluster::start();
    let key = cluster.key_at(0, "k");
    for (what, blow) in [("failed over", Blow::FailOver), ("killed", Blow::Kill), ("stopped", Blow::Stop)] {
        // A server that gives a failover up has kept its clients waiting for 5 s by then.
        let ttl = if let Blow::FailOver = blow { ms(15_000) } else { ms(2_000) };
        let (crowd, clients) = (Crowd::new(&key), [(); 2].map(|()| locks(&cluster.url(), ttl)));
        let holders = locks(&cluster.url(), Duration::from_secs(8));
        let mut guards = held(&holders, &key);
        let many = (0..200).map(|number| acquire(&holders, "mutex", &format!("many:{number}")));
        guards.extend(many.map(|guard| guard.expect("a free lock")));
        // A lock of another shard is none of its business.
        let elsewhere = held(&locks(&cluster.url(), ms(900)), &cluster.key_at(1, "e"));
        let owners: Vec<_> = guards.iter().map(|guard| (guard.owner().clone(), guard.fence())).collect();
        scope(|scope| {
            let _ends = crowd.ends_with_the_test();
            let workers = crowd.starts(scope, &clients);
            crowd.goes_on(SOON);
            cluster.replicates(&key);
            crowd.watches();
            let struck = blow.strikes(&cluster, &key);
            crowd.goes_on(Duration::from_secs(15));
            crowd.tells(what);
            blow.heals(&cluster, struck);
            crowd.goes_on(SOON);
            crowd.ends();
            workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
        });
        if let Blow::FailOver = blow {
            for kind in KINDS {
                crowd.book(kind, |book| assert_eq!((book.overlaps, book.lost), (0, 0), "{kind}"));
            }
        }
        for (guard, (owner, fence)) in guards.into_iter().zip(owners) {
            block_on(guard.verify()).unwrap_or_else(|error| panic!("{what}: {}: {error:?}", guard.name()));
            let status =
                block_on(holders.inspect(guard.name().as_str())).expect("an answer").expect("a holder");
            assert_eq!((status.holders[0].owner.as_ref(), status.holders[0].fence), (Some(&owner), fence));
            block_on(guard.release()).expect("it was held all the time");
        }
        for guard in elsewhere {
            block_on(guard.release()).expect("it was held all the time");
        }
    }
}

#[test]
fn of_a_thousand_locks_only_those_of_the_stopped_master_are_lost_and_in_time() {
    const TTL: Duration = ms(3_000);
    let cluster = Cluster::without_replicas();
    let holders = locks(&cluster.url(), TTL);
    let guards: Vec<_> = (0..1_000)
        .map(|number| {
            let name = format!("lock:{number}");
            let at = cluster.owner(cluster.slot(&name)).expect("an owner");
            (at, acquire(&holders, "mutex", &name).expect("a free lock"))
        })
        .collect();
    let on_the_dead = guards.iter().filter(|(at, _)| *at == 0).count();
    assert!((100..900).contains(&on_the_dead), "{on_the_dead}");
    let (key, other) = (cluster.key_at(1, "x"), locks(&cluster.url(), TTL));
    cluster.nodes()[0].stop();
    let stopped = Instant::now();
    // Meanwhile the others are served as always, to holders and newcomers.
    let mut longest = Duration::ZERO;
    while stopped.elapsed() < TTL * 3 {
        let began = Instant::now();
        let guard = acquire(&other, "mutex", &key).expect("a free lock");
        block_on(guard.release()).expect("a release");
        longest = longest.max(began.elapsed());
        for (at, guard) in &guards {
            assert!(*at == 0 || guard.is_held(), "{} of a shard that lives is lost", guard.name());
            assert!(*at != 0 || !guard.is_held() || stopped.elapsed() < TTL, "{} is not lost", guard.name());
        }
        sleep(ms(5));
    }
    println!("{on_the_dead} of 1,000 lost; a pair on another shard took {longest:?} at most");
    assert!(longest < ms(900), "a shard that lives was delayed by {longest:?}");
    cluster.nodes()[0].cont();
    eventually("the stopped shard is served again", SOON, || {
        let (_, lost) = guards.iter().find(|(at, _)| *at == 0).expect("some");
        block_on(holders.mutex(lost.name().as_str()).expect("a name").try_lock())
            .is_ok_and(|got| got.is_some())
    });
    for (at, guard) in guards {
        match (at, block_on(guard.release())) {
            (0, Err(error)) => assert!(error.is_lost() || error.is_unknown(), "{error:?}"),
            (0, Ok(())) => panic!("a lock that was lost is released"),
            (_, released) => released.expect("it was held all the time"),
        }
    }
}

#[test]
fn a_cluster_is_found_by_any_seed_that_answers_and_by_the_addresses_that_it_announces() {
    let cluster = Cluster::without_replicas();
    let port = cluster.nodes()[2].address().port();
    // Nobody listens at the first; the second is announced by another name.
    let url = format!("redis-cluster://127.0.0.1:1,localhost:{port}");
    let locks = block_on(Locks::connect(&url)).expect("a cluster");
    for node in 0..3 {
        for kind in KINDS {
            let guard = acquire(&locks, kind, &cluster.key_at(node, kind)).expect("a free lock");
            block_on(guard.release()).expect("a release");
        }
    }
    let error = block_on(Locks::connect("redis-cluster://127.0.0.1:1,127.0.0.1:2")).expect_err("nobody");
    assert!(error.is_unreachable(), "{error:?}");
    let alone = tenure_testkit::servers::Server::start();
    let error =
        block_on(Locks::connect(&format!("redis-cluster://{}", alone.address()))).expect_err("no cluster");
    assert!(error.is_refused() && format!("{error:?}").contains("cluster"), "{error:?}");
}

#[test]
fn who_only_waits_on_a_stopped_master_hears_of_a_release_on_its_replica() {
    let cluster = Cluster::start();
    let key = cluster.key_at(0, "k");
    let [holders, waiters] = [(); 2].map(|()| locks(&cluster.url(), Duration::from_secs(30)));
    // Those who keep a place in a queue refresh it, and find out sooner.
    let mut guards = held(&holders, &key);
    guards.truncate(2);
    let waited = scope(|scope| {
        let waiters: Vec<_> = guards
            .iter()
            .zip(KINDS)
            .map(|(guard, kind)| {
                let (name, waiters) = (guard.name().as_str().to_owned(), &waiters);
                scope.spawn(move || {
                    let guard = acquire(waiters, kind, &name).expect("a grant");
                    (Instant::now(), guard)
                })
            })
            .collect();
        eventually("a subscription each", SOON, || {
            cluster.nodes()[0].command(&["PUBSUB", "SHARDCHANNELS"]).items().len() == 2
        });
        cluster.nodes()[0].stop();
        let stopped = Instant::now();
        for guard in guards {
            // Where the first answer does not come, nobody knows whether it was released there.
            match block_on(guard.release()) {
                Ok(()) => {}
                Err(error) => assert!(error.is_unknown(), "{error:?}"),
            }
        }
        waiters.into_iter().map(|waiter| waiter.join().expect("no panic").0 - stopped).max()
    });
    println!("who only waited went on {waited:?} after the master was stopped");
    assert!(waited < Some(Duration::from_secs(15)), "{waited:?}");
}

/// A node of a cluster that exists only in what it says.
struct Fake {
    address: SocketAddr,
    /// What it was asked.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    /// `health` is its `cluster_state`, `slots` its reply to CLUSTER SLOTS; PORT in both, and in `answer`, is its own port.
    fn start(health: &str, slots: &str, answer: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let port = address.port().to_string();
        let health = format!("cluster_state:{health}\r\n");
        let replies = [
            format!("${}\r\n{health}\r\n", health.len()),
            slots.replace("PORT", &port),
            answer.replace("PORT", &port),
        ];
        let (replies, told) = (Arc::new(replies), Arc::clone(&asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (replies, told) = (Arc::clone(&replies), Arc::clone(&told));
                std::thread::spawn(move || serve(stream, &replies, &told));
            }
        });
        Self { address, asked }
    }

    fn locks(&self) -> Locks {
        let locks = Locks::open(&format!("redis-cluster://{}", self.address)).expect("a store");
        locks.with(|options| options.op_timeout(ms(600))).expect("options")
    }

    fn asked(&self, command: &str) -> usize {
        self.asked.lock().expect("no panic").iter().filter(|asked| asked.starts_with(command)).count()
    }
}

fn serve(stream: TcpStream, [health, slots, answer]: &[String; 3], told: &Mutex<Vec<String>>) -> Option<()> {
    let mut input = BufReader::new(stream.try_clone().ok()?);
    let mut output = stream;
    let line = |input: &mut BufReader<TcpStream>| -> Option<usize> {
        let mut line = String::new();
        input.read_line(&mut line).ok()?;
        line.get(1..)?.trim_end().parse().ok()
    };
    loop {
        let mut words = Vec::new();
        for _ in 0..line(&mut input)? {
            let mut word = vec![0; line(&mut input)? + 2];
            input.read_exact(&mut word).ok()?;
            word.truncate(word.len() - 2);
            words.push(String::from_utf8(word).ok()?);
        }
        let command = words.join(" ");
        told.lock().ok()?.push(command.clone());
        let reply = match command.as_str() {
            "CLUSTER INFO" => health,
            "CLUSTER SLOTS" => slots,
            command if command.starts_with("HELLO") => "%1\r\n$5\r\nproto\r\n:3\r\n",
            command if command.starts_with("EVAL") => answer,
            _ => "-ERR unknown command\r\n",
        };
        output.write_all(reply.as_bytes()).ok()?;
    }
}

const ALL_SLOTS: &str = "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:PORT\r\n";

fn try_lock(locks: &Locks) -> (tenure::Error, Duration) {
    let began = Instant::now();
    let error = block_on(locks.mutex("x").expect("a name").try_lock()).expect_err("no answer");
    (error, began.elapsed())
}

#[test]
fn who_is_sent_on_and_on_gives_up_in_time_and_asks_ever_more_seldom() {
    for answer in [
        "-MOVED 16287 127.0.0.1:PORT\r\n",
        "-ASK 16287 :PORT\r\n",
        "-MOVED 16287 ?:PORT\r\n",
        "-TRYAGAIN later\r\n",
    ] {
        let fake = Fake::start("ok", ALL_SLOTS, answer);
        let (error, took) = try_lock(&fake.locks());
        assert!(error.is_unreachable(), "{answer}: {error:?}");
        assert!(took < SOON, "{answer}: {took:?}");
        let (asked, looked) = (fake.asked("EVAL"), fake.asked("CLUSTER SLOTS"));
        assert!((2..40).contains(&asked) && looked < 40, "{answer}: asked {asked} times, looked {looked}");
    }
}

#[test]
fn a_name_whose_counter_cannot_be_in_its_slot_is_refused_before_anything_is_asked() {
    let nobody = locks("redis-cluster://127.0.0.1:1", ms(1_000));
    for (kind, name, is_kept) in [
        ("mutex", "a}b", false),
        ("mutex", "{}a}b", false),
        ("fair", "a}b", false),
        ("reentrant", "a{b", false),
        ("mutex", "{a}b}", true),
        ("reentrant", "{a}b", true),
        ("mutex", "a{b", true),
    ] {
        let error = match kind {
            "mutex" => nobody.mutex(name).err(),
            "fair" => nobody.fair_mutex(name).err(),
            _ => nobody.reentrant_mutex(name, &Owner::new("x").expect("an owner")).err(),
        };
        let said = error.as_ref().map(|error| (error.is_unsupported(), error.to_string()));
        let is_refused = said.is_some_and(|(is_unsupported, said)| {
            is_unsupported && said.contains(&format!("`{name}`")) && said.contains("share a slot")
        });
        assert_eq!(is_refused, !is_kept, "{kind} {name}: {error:?}");
    }
}

#[test]
fn what_is_no_table_of_slots_is_not_believed() {
    for (health, slots, why) in [
        ("ok", "*1\r\n:1\r\n", "a reply to CLUSTER SLOTS that is none"),
        (
            "ok",
            "*1\r\n*3\r\n:0\r\n:99999\r\n*2\r\n$1\r\nh\r\n:1\r\n",
            "a reply to CLUSTER SLOTS that is none",
        ),
        ("ok", "*0\r\n", "its cluster is down"),
        ("fail", ALL_SLOTS, "its cluster is down"),
        ("ok", "*1\r\n*3\r\n:0\r\n:9\r\n*2\r\n$0\r\n\r\n:PORT\r\n", "nobody is known to serve its slot"),
        ("ok", "-NOAUTH Authentication required.\r\n", "NOAUTH"),
    ] {
        let fake = Fake::start(health, slots, "-ERR not asked\r\n");
        let (error, took) = try_lock(&fake.locks());
        assert!(took < SOON && format!("{error:?}").contains(why), "{slots}: {error:?}");
        assert_eq!(
            (error.is_unreachable(), error.is_refused()),
            (why != "NOAUTH", why == "NOAUTH"),
            "{error:?}"
        );
        assert_eq!(fake.asked("EVAL"), 0);
    }
}
