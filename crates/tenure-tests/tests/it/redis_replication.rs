//! A master and its replicas: the guarantees of `acks` and `restart-grace` in a failover, the loss with
//! weaker settings, and their cost. `TENURE_FAILOVERS=50` makes it a soak.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real servers measure real time"
)]

use std::error::Error as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use crate::common::ms;
use crate::overlap::{now, overlap};
use tenure::{Error, Locks, Options, block_on};
use tenure_testkit::conformance::{Case, Fixture, Flavour};
use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::servers::{Config, Server, eventually, with_query};
use tenure_testkit::timed::in_time;

/// Long enough for a busy machine.
const TTL: Duration = ms(1_500);
const SOON: Duration = Duration::from_secs(20);

/// Servers that start and fail together must not disturb cases that measure milliseconds.
static CROWD: RwLock<()> = RwLock::new(());

/// As long as a lease.
const GRACE: &str = "restart-grace=1500ms";

fn locks(url: &str, guarantees: &str) -> Locks {
    Locks::open(&with_query(url, guarantees))
        .expect("a store")
        .with(|options| options.ttl(TTL))
        .expect("options")
}

/// With a lease that outlasts the test.
fn patient(url: &str, guarantees: &str) -> Locks {
    locks(url, guarantees).with(|_| Options::new()).expect("options")
}

fn why(error: &Error) -> String {
    error.source().map_or_else(String::new, ToString::to_string)
}

fn config() -> Config {
    Config::new().set("repl-diskless-sync-delay", "0").set("databases", "256")
}

fn replica_of(port: u16) -> Server {
    Server::start_with(config().set("replicaof", &format!("127.0.0.1 {port}")))
}

fn follows(replica: &Server) -> bool {
    let info = replica.info("replication");
    info.get("master_link_status").is_some_and(|status| status == "up")
}

/// A master and two replicas, each with its own link.
struct Trio {
    master: Server,
    links: [Proxy; 2],
    replicas: [Server; 2],
}

impl Trio {
    fn start() -> Self {
        let master = Server::start_with(config());
        let links = [(); 2].map(|()| Proxy::start(master.address()));
        let replicas = [&links[0], &links[1]].map(|link| replica_of(link.address().port()));
        eventually("the replicas follow", SOON, || replicas.iter().all(follows));
        master.replicates(2, "told");
        Self { master, links, replicas }
    }

    fn cut(&self, links: &[usize]) {
        links.iter().for_each(|link| self.links[*link].set(Fault::BlackHole));
    }

    /// Promotes the first replica; the second follows it if the old master has lost it.
    fn promote(&self, with_second: bool) {
        self.replicas[0].command(&["REPLICAOF", "NO", "ONE"]);
        if with_second {
            let port = self.replicas[0].address().port().to_string();
            self.replicas[1].command(&["REPLICAOF", "127.0.0.1", &port]);
        }
    }
}

/// A failover, and the guarantees of both sides.
struct Failover {
    ours: &'static str,
    theirs: &'static str,
    cut: &'static [usize],
    /// Otherwise the old master continues, alone with the clients that reach it.
    kill: bool,
    pause: Duration,
}

/// The observations.
struct Seen {
    /// Lower bounds of the overlap of `x`, held before the cut, and `y`, requested after it.
    overlaps: [Duration; 2],
    /// The result of requesting `y`.
    late: Result<(), Error>,
}

impl Failover {
    fn run(self) -> Seen {
        let trio = Trio::start();
        let ours = locks(&trio.master.url(), self.ours);
        // The very first use starts a grace too.
        block_on(block_on(ours.mutex("first").expect("a name").lock()).expect("a grant").release())
            .expect("a release");
        let x = block_on(ours.mutex("x").expect("a name").lock()).expect("a free lock");
        for replica in &trio.replicas {
            eventually("a replica has it", SOON, || replica.has("x"));
        }
        trio.cut(self.cut);
        let (y, late) = match block_on(ours.mutex("y").expect("a name").try_lock()) {
            Ok(guard) => (guard, Ok(())),
            Err(error) => (None, Err(error)),
        };
        sleep(self.pause);
        if self.kill {
            trio.master.kill();
        }
        trio.promote(self.cut.len() == 2);
        let theirs = locks(&trio.replicas[0].url(), self.theirs);
        let overlaps = scope(|scope| {
            let pairs = [("x", Some(x)), ("y", y)].map(|(name, guard)| {
                let theirs = &theirs;
                scope.spawn(move || {
                    overlap(guard.as_ref(), || {
                        block_on(theirs.mutex(name).expect("a name").lock()).expect("a grant")
                    })
                })
            });
            pairs.map(|pair| pair.join().expect("no panic"))
        });
        Seen { overlaps, late }
    }
}

/// Runs them a few at a time, because they mostly wait.
fn all(failovers: Vec<Failover>) -> Vec<Seen> {
    let _alone = CROWD.write().unwrap_or_else(PoisonError::into_inner);
    let queue = Mutex::new(failovers);
    let seen = Mutex::new(Vec::new());
    scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let Some(next) = queue.lock().expect("no panic").pop() else { return };
                    let one = next.run();
                    seen.lock().expect("no panic").push(one);
                }
            });
        }
    });
    seen.into_inner().expect("no panic")
}

fn overlapping(seen: &[Seen]) -> Vec<Duration> {
    seen.iter().flat_map(|seen| seen.overlaps).filter(|overlap| !overlap.is_zero()).collect()
}

#[test]
fn with_the_acks_of_all_replicas_and_a_grace_nobody_overlaps_in_a_failover() {
    let failovers = std::env::var("TENURE_FAILOVERS").map_or(5, |count| count.parse().expect("a number"));
    let each = |at: u64| Failover {
        ours: "acks=2&restart-grace=1500ms",
        // One of the two replicas is the master by then.
        theirs: "acks=1&restart-grace=1500ms",
        cut: &[0, 1],
        kill: at.is_multiple_of(2),
        pause: ms(at * 173 % 700),
    };
    let seen = all((0..failovers).map(each).collect());
    let overlaps = overlapping(&seen);
    println!("acks of all, and a grace: {} failovers, {} overlaps", seen.len(), overlaps.len());
    assert!(overlaps.is_empty(), "{overlaps:?}");
    for seen in seen {
        let error = seen.late.expect_err("no client can confirm it");
        assert!(
            error.is_unreachable() && why(&error).contains("0 of 2 replicas"),
            "{error}: {}",
            why(&error)
        );
    }
}

#[test]
fn a_grace_alone_keeps_exclusion_if_the_old_master_is_dead() {
    let killed = Failover { ours: GRACE, theirs: GRACE, cut: &[0, 1], kill: true, pause: Duration::ZERO };
    let seen = all(vec![killed]);
    assert!(seen[0].late.is_ok(), "granted without a replica");
    assert!(overlapping(&seen).is_empty(), "{:?}", seen[0].overlaps);
}

/// The controls: settings with which the test above fails, and the cost of weaker settings than both.
#[test]
fn with_less_than_that_failovers_overlap() {
    let rows: [(&str, &str, &str, &'static [usize]); 3] = [
        ("neither", "", "", &[0, 1]),
        ("a grace without acks", GRACE, GRACE, &[0, 1]),
        // The second replica confirms writes that the first, which is promoted, never receives.
        ("acks of one of two, and a grace", "acks=1&restart-grace=1500ms", GRACE, &[0]),
    ];
    let _alone = CROWD.write().unwrap_or_else(PoisonError::into_inner);
    scope(|scope| {
        for (what, ours, theirs, cut) in rows {
            scope.spawn(move || {
                let seen = Failover { ours, theirs, cut, kill: false, pause: Duration::ZERO }.run();
                assert!(seen.late.is_ok(), "{what}: {:?}", seen.late);
                let overlaps = overlapping(&[seen]);
                println!(
                    "{what}: 2 locks in 1 failover, {} overlaps, for as long as was looked: {overlaps:?}",
                    overlaps.len()
                );
                assert_eq!(overlaps.len(), 2, "{what}");
            });
        }
    });
}

#[test]
fn a_server_that_comes_back_empty_grants_nothing_until_every_lease_is_over() {
    for (guarantees, overlaps) in [("", true), (GRACE, false)] {
        let server = Server::start();
        let (ours, theirs) = (locks(&server.url(), guarantees), locks(&server.url(), guarantees));
        let guard = block_on(ours.mutex("x").expect("a name").lock()).expect("a free lock");
        // So that the holder does not learn of it before its lease ends.
        server.stop();
        let stopped = now();
        server.restart();
        let rival = block_on(theirs.mutex("x").expect("a name").lock()).expect("a grant");
        let granted = now();
        assert_eq!(granted - stopped < TTL, overlaps, "{:?}", granted - stopped);
        drop((guard, rival));
    }
}

#[test]
fn a_grace_that_began_when_the_clock_was_ahead_begins_again() {
    let server = Server::with_clock();
    let hour = Duration::from_secs(3_600);
    server.clock().forward(hour);
    let mutex = locks(&server.url(), GRACE).mutex("x").expect("a name");
    let take = || block_on(mutex.try_lock_for(Duration::from_secs(10))).expect("an answer");
    assert!(take().is_some());
    server.clock().back(hour);
    server.command(&["DEL", "x"]);
    assert!(take().is_some(), "after another grace");
}

#[test]
fn a_promoted_server_renews_what_is_held_and_grants_nothing_for_a_while() {
    let server = Server::start();
    let (ours, theirs) = (locks(&server.url(), GRACE), locks(&server.url(), GRACE));
    let held = block_on(ours.mutex("held").expect("a name").lock()).expect("a grant");
    let queued = block_on(ours.fair_mutex("queued").expect("a name").lock()).expect("a grant");
    scope(|scope| {
        let next = scope.spawn(|| {
            let guard = block_on(theirs.fair_mutex("queued").expect("a name").lock()).expect("a grant");
            (now(), guard.fence())
        });
        eventually("it waits", SOON, || {
            let status = block_on(theirs.inspect("queued")).expect("an answer");
            status.is_some_and(|status| status.waiters.len() == 1)
        });
        let epoch = server.command(&["GET", "tenure:epoch"]).text().to_owned();
        server.command(&["REPLICAOF", "127.0.0.1", "1"]);
        server.command(&["REPLICAOF", "NO", "ONE"]);
        let mutex = theirs.mutex("free").expect("a name");
        let asked = now();
        assert!(block_on(mutex.try_lock()).expect("an answer").is_none());
        assert_ne!(server.command(&["GET", "tenure:epoch"]).text(), epoch);
        assert!(
            block_on(theirs.fair_mutex("other").expect("a name").try_lock()).expect("an answer").is_none()
        );
        block_on(queued.release()).expect("a release");
        let free = block_on(mutex.lock()).expect("a grant");
        // The server counts whole milliseconds.
        let least = TTL - Duration::from_millis(2);
        assert!(now() - asked >= least, "{:?}", now() - asked);
        let (granted, ticket) = next.join().expect("no panic");
        assert!(granted - asked >= least, "{:?}", granted - asked);
        // Its place was kept, ahead of clients that came later.
        let after = block_on(theirs.fair_mutex("queued").expect("a name").lock()).expect("a grant");
        assert!(ticket < after.fence());
        drop(free);
    });
    assert!(held.is_held());
    block_on(held.verify()).expect("still held");
}

/// As after a failover that has forgotten a reader: the epoch is missing, so that a grace begins.
#[test]
fn a_reader_does_not_become_the_writer_in_a_grace() {
    let server = Server::start();
    let ours = patient(&server.url(), "restart-grace=20s");
    block_on(ours.mutex("before").expect("a name").try_lock()).expect("an answer");
    // Past the grace of the server's start.
    let long_ago = format!("{}:1", server.info("replication")["master_replid"]);
    server.command(&["SET", "tenure:epoch", &long_ago]);
    let reader = block_on(ours.rwlock("x").expect("a name").upgradeable_read()).expect("a grant");
    server.command(&["DEL", "tenure:epoch"]);
    let reader = block_on(reader.try_upgrade_for(ms(300))).expect("an answer").expect_err("it is no grant");
    assert!(reader.is_held());
    server.command(&["SET", "tenure:epoch", &long_ago]);
    let writer = block_on(reader.try_upgrade_for(SOON)).expect("an answer").expect("the grace is over");
    block_on(writer.release()).expect("a release");
}

#[test]
fn a_server_that_cannot_says_so() {
    let server = Server::start_with(
        Config::new()
            .user("waitless on >pw ~* &* +@all -wait")
            .user("mute on >pw ~* resetchannels +@all")
            .user("blind on >pw ~* &* +@all -info"),
    );
    let url = |user: &str| server.url().replace("redis://", &format!("redis://{user}:pw@"));
    let ask =
        |url: &str, guarantees: &str| block_on(locks(url, guarantees).mutex("x").expect("a name").try_lock());

    let error = ask(&server.url(), "acks=1").expect_err("no connected replicas");
    assert!(
        error.is_unreachable() && why(&error).contains("no connected replicas"),
        "{error}: {}",
        why(&error)
    );
    let error = ask(&url("waitless"), "acks=1").expect_err("no WAIT");
    assert!(error.is_unsupported() && error.to_string().contains("WAIT"), "{error}");
    let error = ask(&url("mute"), "acks=1").expect_err("no PUBLISH");
    assert!(error.is_unsupported() && error.to_string().contains("tenure:wake:acks"), "{error}");
    let error = ask(&url("blind"), GRACE).expect_err("no INFO");
    assert!(error.is_refused(), "{error}");
    assert_eq!(server.command(&["EXISTS", "x"]).int(), 0);
}

/// Clients may verify a lock before each write, and several do: requests that need no confirmation must not
/// delay its renewals.
#[test]
fn however_much_is_asked_about_a_lock_its_renewals_leave() {
    let trio = Trio::start();
    let locks = locks(&trio.master.url(), "acks=2");
    let guard = block_on(locks.mutex("busy").expect("a name").lock()).expect("a grant");
    let until = Instant::now() + 3 * TTL;
    scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while Instant::now() < until {
                    block_on(guard.verify()).expect("still held");
                }
            });
        }
    });
    block_on(guard.release()).expect("still held");
}

#[test]
fn a_dead_replica_delays_what_needs_no_confirmation_by_one_wait() {
    let trio = Trio::start();
    let acked = patient(&trio.master.url(), "acks=2");
    let held = block_on(acked.mutex("held").expect("a name").lock()).expect("a grant");
    trio.replicas[1].stop();
    scope(|scope| {
        let short = scope.spawn(|| block_on(acked.mutex("late").expect("a name").try_lock()));
        eventually("it is waited for", SOON, || trio.master.has("late"));
        let started = Instant::now();
        block_on(held.release()).expect("a release");
        let release = started.elapsed();
        let mut questions = Vec::new();
        while !short.is_finished() {
            let started = Instant::now();
            assert!(block_on(acked.inspect("another")).expect("an answer").is_none());
            questions.push(started.elapsed());
        }
        let error = short.join().expect("no panic").expect_err("one of two");
        assert!(
            error.is_unreachable() && why(&error).contains("1 of 2 replicas"),
            "{error}: {}",
            why(&error)
        );
        questions.sort();
        println!(
            "beside a WAIT that takes 875 ms: a release {release:?}, {} questions, the longest {:?}",
            questions.len(),
            questions[questions.len() - 1]
        );
        in_time(release, ms(1_500));
        in_time(questions[questions.len() - 1], ms(1_500));
    });
    eventually("it was given back", SOON, || !trio.master.has("late"));
    trio.replicas[1].cont();
    drop(block_on(acked.mutex("late").expect("a name").lock()).expect("a grant"));
}

/// `CLIENT UNBLOCK` or a change of role ends a WAIT with an error, or early.
#[test]
fn a_wait_that_is_broken_off_confirms_nothing_and_is_begun_again() {
    let trio = Trio::start();
    let ours = patient(&trio.master.url(), "acks=2");
    block_on(block_on(ours.mutex("first").expect("a name").lock()).expect("a grant").release())
        .expect("a release");
    trio.replicas[1].stop();
    let errors = || trio.master.info("errorstats").get("errorstat_UNBLOCKED").cloned().unwrap_or_default();
    let break_off = |how: &str| {
        let clients = trio.master.command(&["CLIENT", "LIST"]);
        let waits = clients.text().lines().find(|client| client.contains(" cmd=wait "));
        let id = waits.and_then(|client| client.strip_prefix("id=")?.split(' ').next());
        id.is_some_and(|id| trio.master.command(&["CLIENT", "UNBLOCK", id, how]) == 1)
    };
    scope(|scope| {
        let waiter = scope.spawn(|| block_on(ours.mutex("x").expect("a name").try_lock_for(2 * SOON)));
        for how in ["ERROR", "TIMEOUT", "ERROR"] {
            eventually("a WAIT is broken off", SOON, || break_off(how));
        }
        eventually("the error was said", SOON, || errors().contains("count=2"));
        assert!(!waiter.is_finished(), "{:?}", waiter.join());
        trio.replicas[1].cont();
        let guard = waiter.join().expect("no panic").expect("an answer").expect("a grant");
        assert!(trio.replicas.iter().all(|replica| replica.has("x")));
        drop(guard);
    });
}

/// A mutex and a queue keep their promises with these guarantees.
mod acked {
    use super::*;

    struct Pair {
        master: Server,
        _replica: Server,
        databases: AtomicU32,
    }

    /// Shared by all cases that run concurrently, with a database for each.
    fn pair() -> Arc<Pair> {
        static PAIR: Mutex<Weak<Pair>> = Mutex::new(Weak::new());
        let mut known = PAIR.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = |pair: &Arc<Pair>| pair.databases.load(Ordering::Relaxed) < 250;
        known.upgrade().filter(fresh).unwrap_or_else(|| {
            let master = Server::start_with(config());
            let replica = replica_of(master.address().port());
            eventually("the replica follows", SOON, || follows(&replica));
            master.replicates(1, "told");
            let pair = Arc::new(Pair { master, _replica: replica, databases: AtomicU32::new(0) });
            *known = Arc::downgrade(&pair);
            pair
        })
    }

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        let _company = CROWD.read().unwrap_or_else(PoisonError::into_inner);
        let pair = pair();
        let database = pair.databases.fetch_add(1, Ordering::Relaxed);
        let url = format!("{}/{database}?acks=1", pair.master.url());
        let open = move || Locks::open(&url).expect("a store");
        block_on(case(&Fixture::in_real_time(open).with(flavour)));
    }

    tenure_testkit::conformance_mutex!(crate::redis_replication::acked::run);
    tenure_testkit::conformance_exclusive!(crate::redis_replication::acked::run, fair_mutex, Fair);
    tenure_testkit::conformance_cases!(crate::redis_replication::acked::run, Mutex, queue, queue:
        callers_of_several_clients_are_served_in_the_order_in_which_they_came,
        a_head_that_died_costs_its_short_lease,
        a_forced_release_lets_the_next_in,
        whoever_is_called_gets_a_whole_lease,
    );
}
