//! Locks on the master that the sentinels name, while that changes.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real servers measure real time"
)]

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::thread::scope;
use std::time::{Duration, Instant};

use tenure::internals::protocol::Verb;
use tenure::{Guard, Locks, Options, Owner, block_on};
use tenure_testkit::asker::{Asker, held, not_sent, refusal};
use tenure_testkit::conformance::{Case, Fixture, Flavour};
use tenure_testkit::fake_redis::FakeRedis;
use tenure_testkit::servers::{Authority, Config, Sentinels, Server, eventually};
use tenure_testkit::timed::in_time;

const SOON: Duration = Duration::from_secs(5);
/// Sentinels need one second to detect the loss of a master, and one or two to agree on another; a busy
/// machine takes longer.
const FAILED_OVER: Duration = Duration::from_secs(20);

/// Every case, each on a set of servers of its own.
mod conformance {
    use super::*;

    static IDLE: Mutex<Vec<Sentinels>> = Mutex::new(Vec::new());

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        let idle = IDLE.lock().expect("no panic while it is taken").pop();
        let sentinels = idle.unwrap_or_else(|| Sentinels::start().calm().until_exit());
        sentinels.master().command(&["FLUSHALL"]);
        let url = sentinels.url();
        let open = move || Locks::open(&url).expect("a store");
        let fixture = Fixture::in_real_time(open).with(flavour);
        block_on(case(&fixture));
        drop(fixture);
        IDLE.lock().expect("no panic while it is taken").push(sentinels);
    }

    tenure_testkit::conformance!(crate::sentinel::conformance::run);
}

/// Holds and awaits locks of every kind while another server becomes the master. Returns how many holds
/// survived.
fn survives(what: &str, sentinels: &Sentinels, change: impl FnOnce()) -> usize {
    let url = sentinels.url();
    // A lease that outlasts the failover: locks that the new master has stay held, the others are lost.
    let options = || Options::new().ttl(Duration::from_secs(12)).op_timeout(Duration::from_secs(2));
    let client = || Locks::open(&url).expect("a store").with(|_| options()).expect("options");
    let (ours, theirs) = (client(), client());
    let (me, other) = (Owner::new("me").expect("an owner"), Owner::new("other").expect("an owner"));

    let mutex = block_on(ours.mutex("mutex").expect("a name").lock()).expect("free");
    let fair = block_on(ours.fair_mutex("fair").expect("a name").lock()).expect("free");
    let reentrant = block_on(ours.reentrant_mutex("reentrant", &me).expect("a name").lock()).expect("free");
    let writer = Guard::from(block_on(ours.rwlock("rwlock").expect("a name").write()).expect("free"));
    let permits = block_on(ours.semaphore("semaphore", 3).expect("a name").acquire_many(3)).expect("free");
    let guards = [mutex, fair, reentrant, writer, permits];
    let tokens: Vec<_> = guards.iter().map(|guard| guard.fence()).collect();

    scope(|threads| {
        let waits: Vec<_> = ["mutex", "fair", "reentrant", "rwlock", "semaphore"]
            .into_iter()
            .map(|kind| {
                let (locks, other) = (&theirs, &other);
                threads.spawn(move || {
                    let wait = async {
                        match kind {
                            "mutex" => locks.mutex(kind)?.lock().await,
                            "fair" => locks.fair_mutex(kind)?.lock().await,
                            "reentrant" => locks.reentrant_mutex(kind, other)?.lock().await,
                            "rwlock" => locks.rwlock(kind)?.read().await.map(Guard::from),
                            _ => locks.semaphore(kind, 3)?.acquire().await,
                        }
                    };
                    let guard = block_on(wait).unwrap_or_else(|error| panic!("{kind}: {error:?}"));
                    (Instant::now(), guard)
                })
            })
            .collect();
        for name in ["fair", "rwlock", "semaphore"] {
            eventually("a client waits", SOON, || {
                block_on(ours.inspect(name)).ok().flatten().is_some_and(|status| !status.waiters.is_empty())
            });
        }
        let changed = Instant::now();
        change();
        println!("{what}: another master after {:?}", changed.elapsed());
        // The same server answers all of them, and each guard has been verified by now.
        let verified = Instant::now();
        let mut held_until = Vec::new();
        for guard in guards {
            let name = guard.name().to_owned();
            eventually("the holder knows", SOON, || match block_on(guard.verify()) {
                Ok(()) => true,
                Err(error) if error.is_lost() => {
                    println!("{what}: {error}");
                    true
                }
                Err(error) => {
                    assert!(error.is_unreachable() || error.is_unknown(), "{name}: {error:?}");
                    false
                }
            });
            held_until.push(guard.is_held().then(Instant::now));
            if guard.is_held() {
                block_on(guard.release()).unwrap_or_else(|error| panic!("{name}: {error:?}"));
            }
        }
        let released = Instant::now();
        let kept = held_until.iter().flatten().count();
        println!("{what}: {kept} of 5 kept; known after {:?}", released - verified);
        for ((wait, token), held_until) in waits.into_iter().zip(tokens).zip(held_until) {
            let (granted, guard) = wait.join().expect("no panic");
            assert!(held_until.is_none_or(|until| granted >= until), "{what}: {}: two held", guard.name());
            let took = granted.saturating_duration_since(released);
            println!("{what}: {} went on after {took:?}", guard.name());
            assert!(took < Duration::from_secs(8), "{what}: {} waited for {took:?}", guard.name());
            assert!(guard.fence() > token, "{what}: {} {} after {token}", guard.name(), guard.fence());
            block_on(guard.release()).expect("it is held");
        }
        kept
    })
}

#[test]
fn a_master_that_is_killed_costs_waiters_seconds_and_holders_at_most_their_locks() {
    let sentinels = Sentinels::start();
    survives("killed", &sentinels, || {
        let old = sentinels.master();
        old.kill();
        sentinels.fails_over_from(old);
    });
}

#[test]
fn a_master_that_is_stopped_is_left_and_not_believed_when_it_comes_back() {
    let sentinels = Sentinels::start();
    let old = sentinels.master();
    survives("stopped", &sentinels, || {
        old.stop();
        sentinels.fails_over_from(old);
    });
    old.cont();
    let url = sentinels.url();
    let asker = Asker::new(&url);
    assert!(held(&asker.acquire("after")));
    sentinels.settles();
    assert!(held(&asker.renew("after")));
    assert_eq!(sentinels.master().command(&["EXISTS", "after"]).int(), 1);
}

#[test]
fn a_failover_that_was_asked_for_costs_no_lock() {
    let sentinels = Sentinels::start();
    let kept = survives("asked for", &sentinels, || {
        sentinels.fail_over();
    });
    assert_eq!(kept, 5);
}

#[test]
fn a_master_that_was_demoted_without_a_word_is_left_at_its_first_refusal() {
    let sentinels = Sentinels::start().calm();
    let asker = Asker::new(&sentinels.url()).within(Duration::from_secs(1));
    assert!(held(&asker.acquire("x")));
    let old = sentinels.master();
    let mut servers = sentinels.servers().iter();
    let new = servers.find(|server| server.address() != old.address()).expect("a replica");
    // Like an operator, so nobody closes our connection. The sentinels, which would undo it or close it, are
    // stopped.
    for sentinel in sentinels.sentinels() {
        sentinel.stop();
    }
    let port = new.address().port().to_string();
    assert_eq!(old.command(&["REPLICAOF", "127.0.0.1", &port]), "OK");
    // Longer than at the acquisition, because a renewal within the same millisecond writes nothing.
    let longer = Verb::Renew { ttl_ms: 60_000, hold: 1, bind: None, weight: None };
    let why = not_sent(asker.ask("x", longer));
    assert!(why.contains("READONLY"), "{why}");
    // There is no connection, however far the dial of the next one got.
    let why = not_sent(asker.renew("x"));
    assert!(!why.contains("READONLY"), "{why}");
    for sentinel in sentinels.sentinels() {
        sentinel.cont();
    }
    // They undo it, or choose another master.
    sentinels.down_after(Duration::from_secs(1));
    eventually("the lock is held or gone", FAILED_OVER, || asker.renew("x").is_ok());
}

#[test]
fn sentinels_that_are_down_or_silent_are_passed_over_and_asked_last() {
    let sentinels = Sentinels::start().calm();
    let [first, second, third] = sentinels.sentinels() else { panic!("three") };
    first.kill();
    second.stop();
    let url = sentinels.url();
    let asker = Asker::new(&url).within(SOON);
    assert!(held(&asker.acquire("x")));
    // The responsive sentinel is now known, so a reconnect costs nothing.
    let started = Instant::now();
    sentinels.master().command(&["CLIENT", "KILL", "TYPE", "normal"]);
    eventually("the lock is renewed", SOON, || held(&asker.renew("x")));
    in_time(started.elapsed(), Duration::from_millis(400));
    // If no sentinel is left, the error names each.
    let master = sentinels.master();
    third.kill();
    master.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    let mut why = String::new();
    eventually("the connection is gone", SOON, || match asker.renew("x") {
        Ok(_) => false,
        Err(failure) => {
            why = failure.to_string();
            why.contains("no master")
        }
    });
    for sentinel in sentinels.sentinels() {
        assert!(why.contains(&sentinel.address().to_string()), "{why}");
    }
}

#[test]
fn a_service_that_no_sentinel_knows_is_refused_at_once() {
    let sentinels = Sentinels::start().calm();
    let url = sentinels.url().replace("/locks", "/docks");
    let started = Instant::now();
    let why = refusal(Asker::new(&url).acquire("x"));
    assert!(why.contains("`docks`"), "{why}");
    in_time(started.elapsed(), Duration::from_secs(5));
    let error = block_on(Locks::connect(&url)).expect_err("no such service");
    assert!(error.is_refused() && error.source().is_some(), "{error:?}");
}

/// A fake sentinel that sends this reply to each query.
fn liar(says: String) -> SocketAddr {
    let fake = FakeRedis::start(move |words| match words {
        ["HELLO", ..] => Some("%1\r\n$4\r\nrole\r\n$8\r\nsentinel\r\n".to_owned()),
        ["SENTINEL", ..] => Some(says.clone()),
        _ => Some("+OK\r\n".to_owned()),
    });
    fake.address()
}

fn naming(address: SocketAddr) -> String {
    let port = address.port().to_string();
    format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len())
}

#[test]
fn a_sentinel_that_lies_is_not_believed() {
    let sentinels = Sentinels::start().calm();
    let master = sentinels.master();
    let mut servers = sentinels.servers().iter();
    let replica = servers.find(|server| server.address() != master.address()).expect("a replica");
    let (stale, mad) = (liar(naming(replica.address())), liar("*2\r\n$1\r\nx\r\n$1\r\n0\r\n".to_owned()));
    let url = sentinels.url().replace("redis-sentinel://", &format!("redis-sentinel://{stale},{mad},"));
    assert!(held(&Asker::new(&url).acquire("x")));
    assert_eq!(master.command(&["EXISTS", "x"]).int(), 1);
    let dead = Server::start();
    dead.kill();
    // If no other sentinel can be asked, the error says which one replied what.
    for (liar, said) in [
        (stale, "it is now a replica"),
        (mad, "without an address"),
        (liar("*-1\r\n".to_owned()), "does not know the service"),
        (liar("+OK\r\n".to_owned()), "is it a sentinel"),
        (liar("-NOPERM this user has no permissions\r\n".to_owned()), "NOPERM"),
        (liar(naming(dead.address())), "refused"),
        (master.address(), "unknown command"),
    ] {
        let url = format!("redis-sentinel://{liar}/locks");
        let failure = Asker::new(&url)
            .within(Duration::from_millis(800))
            .acquire("y")
            .expect_err("no master")
            .to_string();
        assert!(failure.contains("`locks`") && failure.contains(said), "{failure}");
    }
    assert_eq!(master.command(&["EXISTS", "y"]).int(), 0);
}

#[test]
fn servers_and_sentinels_may_ask_for_passwords_and_encrypt() {
    let authority = Authority::new();
    let certificate = authority.certify("127.0.0.1");
    let config = Config::new().tls(&authority, &certificate).set("tls-replication", "yes");
    let servers = config.clone().password("p1");
    let watchers = config.password("p2").set("sentinel sentinel-pass", "p2");
    let sentinels = Sentinels::start_with(&servers, &watchers, "p1");
    let url = |password: &str, sentinel: &str| {
        let url = sentinels.url().replace("://", &format!("://:{password}@"));
        let (ca, cert, key) = (authority.ca(), certificate.cert.display(), certificate.key.display());
        format!("{url}?ca={}&cert={cert}&key={key}&sentinel-password={sentinel}", ca.display())
    };
    assert!(url("p1", "p2").starts_with("rediss-sentinel://"));
    assert!(held(&Asker::new(&url("p1", "p2")).acquire("x")));
    for (password, sentinel) in [("hush", "p2"), ("p1", "hush")] {
        let why = refusal(Asker::new(&url(password, sentinel)).acquire("y"));
        assert!(why.contains("WRONGPASS") && !why.contains("hush"), "{why}");
    }
}
