//! Locks on a real server: their cost, what they show of other programs, and how long they wait for a server
//! that is gone.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real servers measure real time"
)]

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tenure::{ForcedRelease, Guard, Locks, Owner, block_on};
use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::servers::{Server, Value, eventually};
use tenure_testkit::timed::in_time;

use crate::common::ms;
use crate::no_scripts::knows;

fn locks(url: &str) -> Locks {
    Locks::open(url).expect("a store")
}

#[test]
fn an_uncontended_pair_costs_three_commands_and_a_short_script() {
    for is_fair in [false, true] {
        pair_costs_three_commands_and_a_short_script(is_fair);
    }
}

fn pair_costs_three_commands_and_a_short_script(is_fair: bool) {
    let server = Server::start();
    let locks = locks(&server.url());
    let (mutex, fair) = (locks.mutex("x").expect("a name"), locks.fair_mutex("x").expect("a name"));
    let pair = || {
        let asked = async { if is_fair { fair.try_lock().await } else { mutex.try_lock().await } };
        let guard = block_on(asked).expect("an answer").expect("a free lock");
        block_on(guard.release()).expect("a release");
    };
    // The first uses a script, and the second queries which other commands the server has.
    (0..2).for_each(|_| pair());
    server.command(&["CONFIG", "RESETSTAT"]);
    (0..10).for_each(|_| pair());
    let mut calls = server.info_commandstats();
    calls.retain(|name, _| !name.starts_with("config") && !name.starts_with("info"));
    let expected: &[_] = match knows(&server, "DELIFEQ") {
        true => &[("delifeq", 10), ("get", 10), ("incr", 10), ("publish", 10), ("set", 10)],
        false => &[("del", 10), ("evalsha", 10), ("get", 20), ("incr", 10), ("publish", 10), ("set", 10)],
    };
    // Nobody waits for a fair mutex that has no queue.
    let expected = expected.iter().filter(|(name, _)| !is_fair || *name != "publish");
    assert_eq!(calls, expected.map(|(name, calls)| ((*name).to_owned(), *calls)).collect());
}

/// Closes the newest connection instead of forwarding the next reply.
fn cut(proxy: &Proxy) {
    proxy.set_on(proxy.connections(), Fault::CutAfterReplies(0));
}

/// The result of a request whose first connection is closed before the reply.
async fn cut_under<T>(proxy: &Proxy, asked: impl Future<Output = T>) -> T {
    let before = proxy.connections();
    cut(proxy);
    let answer = asked.await;
    assert!(proxy.connections() > before, "no connection has ended");
    answer
}

#[test]
fn what_may_be_asked_twice_is_asked_again_where_its_connection_ends() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let ttls = |options: tenure::Options| options.ttl(ms(60_000)).op_timeout(ms(20_000));
    let locks = locks(&proxy.url()).with(ttls).expect("options");
    let me = Owner::new("me").expect("an owner");
    let entered = locks.reentrant_mutex("entered", &me).expect("a name");
    let guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a free lock");
    let _entered = block_on(entered.lock()).expect("a free lock");
    block_on(cut_under(&proxy, guard.verify())).expect("still held");
    block_on(cut_under(&proxy, guard.renew())).expect("still held");
    assert_eq!(block_on(cut_under(&proxy, entered.hold_count())).expect("an answer"), 1);
    assert!(block_on(cut_under(&proxy, locks.inspect("x"))).expect("an answer").is_some());
    let owner = block_on(cut_under(&proxy, guard.detach())).expect("detached");
    assert!(block_on(cut_under(&proxy, locks.renew_detached("x", &owner))).expect("an answer").is_some());

    // A request that ends a hold is not retried, because another client may hold by then.
    cut(&proxy);
    assert!(block_on(locks.force_release("x")).expect_err("no answer").is_unknown());
    assert!(block_on(locks.inspect("x")).expect("an answer").is_none());
}

#[test]
fn since_when_a_holder_holds_is_told_with_and_without_a_token() {
    let server = Server::start();
    let (first, second) = (locks(&server.url()), locks(&server.url()));
    let since = |wants_token| {
        let status = block_on(first.inspect("x")).expect("an answer").expect("it is held");
        assert_eq!(status.holders[0].fence > 0, wants_token);
        status.holders[0].since().expect("a time").elapsed().unwrap_or_default()
    };
    let mutex = first.mutex("x").expect("a name");
    // The first uses a script.
    block_on(block_on(mutex.lock()).expect("a grant").release()).expect("a release");
    let held = block_on(mutex.lock()).expect("a grant");
    // Plain commands store only the owner.
    in_time(since(false), ms(2_000));
    // A waiter holds since its grant, not since it began to wait.
    let waiting = second.mutex("x").expect("a name");
    let waiter = std::thread::spawn(move || block_on(waiting.lock()).expect("a grant"));
    std::thread::sleep(ms(2_500));
    block_on(held.release()).expect("a release");
    let held = waiter.join().expect("no panic");
    in_time(since(true), ms(2_000));
    drop(held);
}

#[test]
fn however_many_wait_in_a_process_they_ask_at_most_twice_a_lease() {
    let mutex = |locks: &Locks, wait| {
        let mutex = locks.mutex("x").expect("a name");
        block_on(mutex.try_lock_for(wait)).expect("an answer")
    };
    // Each caller is a different owner.
    let reentrant = |locks: &Locks, wait| {
        let owner = Owner::new("waiter").expect("an owner");
        let reentrant = locks.reentrant_mutex("x", &owner).expect("a name");
        block_on(reentrant.try_lock_for(wait)).expect("an answer")
    };
    std::thread::scope(|scope| {
        scope.spawn(|| fifty_wait(mutex));
        scope.spawn(|| fifty_wait(reentrant));
    });
}

fn fifty_wait(lock: impl Fn(&Locks, Duration) -> Option<Guard> + Sync) {
    let server = Server::start();
    let holder = locks(&server.url()).with(|options| options.ttl(ms(1_000))).expect("options");
    let waiters = locks(&server.url());
    let guard = lock(&holder, ms(0)).expect("a free lock");
    std::thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| assert!(lock(&waiters, ms(4_500)).is_none()));
        }
        std::thread::sleep(ms(500));
        server.command(&["CONFIG", "RESETSTAT"]);
        std::thread::sleep(ms(3_000));
        let asked = server.info_commandstats()["evalsha"];
        // The holder renews three times per lease, in at most ten queries; the rest are the waiters'.
        assert!(asked <= 10 + 2 * 3, "{asked}");
    });
    drop(guard);
}

#[test]
fn a_thousand_guards_are_renewed_over_a_slow_network_in_little_more_than_one_trip() {
    const DELAY: Duration = Duration::from_millis(20);
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let locks = locks(&proxy.url()).with(|options| options.ttl(ms(3_000))).expect("options");
    let mutexes: Vec<_> =
        (0..1_000).map(|number| locks.mutex(format!("x{number}")).expect("a name")).collect();
    proxy.set(Fault::Delay(DELAY));
    let guards = block_on(try_join_all(mutexes.iter().map(|mutex| mutex.lock()))).expect("free locks");
    // After a reconnect all are renewed at once. A busy machine may take longer over a round, and each
    // includes the round trip.
    let mut rounds = Vec::new();
    while rounds.len() < 15 && rounds.last().is_none_or(|round| *round > ms(200)) {
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        rounds.push(next_round(&server, guards.len()) + 2 * DELAY);
    }
    println!("rounds of 1,000 renewals over a network with 20 ms of delay each way: {rounds:?}");
    assert!(rounds.iter().any(|round| *round <= ms(200)), "{rounds:?}");
    assert!(guards.iter().all(Guard::is_held));
}

/// Waits until each of these locks was renewed once more; returns the time between the first and the last.
fn next_round(server: &Server, locks: usize) -> Duration {
    let (_, before) = leases_end(server, locks);
    let mut round = (0, 0);
    eventually("all are renewed", Duration::from_secs(5), || {
        round = leases_end(server, locks);
        round.0 > before
    });
    Duration::from_millis(round.1 - round.0)
}

/// The first and the last end of these leases, by the server's clock in ms. All have the same length, so the
/// differences are those of the renewals.
fn leases_end(server: &Server, locks: usize) -> (u64, u64) {
    const ENDS: &str = "local first, last = math.huge, 0
        for i = 0, ARGV[1] - 1 do
            local ends = redis.call('PEXPIRETIME', 'x' .. i)
            first, last = math.min(first, ends), math.max(last, ends)
        end
        return {first, last}";
    let ends = server.command(&["EVAL", ENDS, "0", &locks.to_string()]);
    let [first, last] = ends.items() else { panic!("no two: {ends:?}") };
    let moment = |end: &Value| u64::try_from(end.int()).expect("a key that ends");
    (moment(first), moment(last))
}

#[test]
fn foreign_holders_are_shown() {
    let server = Server::start();
    let locks = locks(&server.url());
    server.command(&["SET", "app:foreign", "550e8400", "PX", "60000"]);
    server.command(&["SET", "app:for*ever", "token"]);
    server.command(&["HSET", "app:hash", "field", "1", "another", "2"]);
    server.command(&["HSET", "app:redisson", "550e8400:1", "1"]);
    server.command(&["SET", "elsewhere", "token"]);
    let own = block_on(locks.mutex("app:own").expect("a name").lock()).expect("a free lock");
    let names = |prefix: &str| {
        let mut listing = locks.list(prefix).expect("a prefix");
        let mut names = Vec::new();
        while let Some(status) = block_on(listing.next()).expect("an answer") {
            names.push(status.name.as_str().to_owned());
        }
        names.sort();
        names
    };
    assert_eq!(names("app:"), ["app:for*ever", "app:foreign", "app:own", "app:redisson"]);
    assert_eq!(names("app:for*"), ["app:for*ever"]);
    assert_eq!(names(""), ["app:own"]);
    let held = block_on(locks.mutex("app:foreign").expect("a name").try_lock()).expect("an answer");
    assert!(held.is_none());
    let status = block_on(locks.inspect("app:foreign")).expect("an answer").expect("a holder");
    assert!(format!("{status:?}").contains("550e8400"), "{status:?}");
    assert_eq!(status.foreign().as_deref(), Some("a string of 8 bytes"));
    // Values that no lock has: too long a name, and too large a number.
    let long = "x".repeat(5_000);
    let made = || server.info("stats")["total_connections_received"].clone();
    let before = made();
    server.command(&["HSET", "app:odd", &long, "123456789012345678901"]);
    let status = block_on(locks.inspect("app:odd")).expect("an answer").expect("a holder");
    assert!(format!("{status:?}").len() < 2_000, "{status:?}");
    assert!(block_on(locks.fair_mutex("app:odd").expect("a name").try_lock()).expect("an answer").is_none());
    assert!(block_on(locks.force_release_foreign("app:odd")).expect_err("no lock").is_mismatch());
    assert_eq!(made(), before, "no connection was given up for that");
    drop(own);
}

#[test]
fn a_forced_release_leaves_what_is_no_lock_of_this_library() {
    let server = Server::start();
    let locks = locks(&server.url());
    let me = Owner::new("me").expect("an owner");
    let hash = |name: &str, owner: &str, count: &str| {
        server.command(&["HSET", name, "#fence", "7", owner, count]);
    };
    server.command(&["SET", "text", "a secret", "PX", "60000"]);
    server.command(&["SET", "bytes", &"x".repeat(5_000)]);
    server.command(&["RPUSH", "list", "a", "b", "c"]);
    server.command(&["SADD", "set", "a"]);
    server.command(&["ZADD", "zset", "1", "a"]);
    server.command(&["XADD", "stream", "*", "a", "b"]);
    server.command(&["HSET", "hash", "a", "b"]);
    server.command(&["HSET", "redisson", "550e8400-e29b-41d4-a716-446655440000:1", "1"]);
    hash("no owner", "somebody", "1");
    hash("no count", me.as_str(), "many");
    hash("two owners", me.as_str(), "1");
    server.command(&["HSET", "two owners", "another", "1"]);
    for (name, what) in [
        ("text", "a string of 8 bytes"),
        ("bytes", "a string of 1024 bytes or more"),
        ("list", "a list"),
        ("set", "a set"),
        ("zset", "a sorted set"),
        ("stream", "a stream"),
        ("hash", "a hash"),
        ("redisson", "a hash"),
        ("no owner", "a hash"),
        ("no count", "a hash"),
        ("two owners", "a hash"),
    ] {
        let before = format!("{:?}", server.command(&["DUMP", name]));
        let error = block_on(locks.force_release(name)).expect_err(name);
        let said = error.to_string();
        assert!(error.is_mismatch() && said.ends_with(what) && !said.contains("secret"), "{said}");
        let is_text = name == "text" || name == "bytes";
        if !is_text {
            let error = block_on(locks.force_release_foreign(name)).expect_err(name);
            assert!(error.is_mismatch() && error.to_string() == said, "{error}");
        }
        assert_eq!(format!("{:?}", server.command(&["DUMP", name])), before, "{name}");
        if is_text {
            let ended = block_on(locks.force_release_foreign(name)).expect("an answer").expect("a holder");
            assert_eq!(ended.foreign().as_deref(), Some(what));
            assert_eq!(server.command(&["EXISTS", name]).int(), 0);
        }
    }
    // Locks of this library are ended in both cases.
    for foreign in [false, true] {
        let all = [
            block_on(locks.mutex("a").expect("a name").lock()).expect("a free lock"),
            block_on(locks.reentrant_mutex("b", &me).expect("a name").lock()).expect("a free lock"),
            block_on(locks.fair_mutex("c").expect("a name").lock()).expect("a free lock"),
        ];
        for (name, guard) in ["a", "b", "c"].iter().zip(&all) {
            let ended = match foreign {
                false => block_on(locks.force_release(name)),
                true => block_on(locks.force_release_foreign(name)),
            };
            let ended = ended.expect("an answer").expect("a holder");
            assert_eq!(ended.holders[0].owner.as_ref(), Some(guard.owner()));
            assert_eq!(server.command(&["EXISTS", name]).int(), 0);
        }
    }
}

#[test]
fn keys_that_are_no_locks_are_not_waited_for() {
    let server = Server::start();
    let locks = locks(&server.url());
    server.command(&["RPUSH", "list", "a"]);
    server.command(&["SADD", "set", "a"]);
    server.command(&["ZADD", "zset", "1", "a"]);
    server.command(&["XADD", "stream", "*", "a", "b"]);
    let me = Owner::new("me").expect("an owner");
    for (name, what) in
        [("list", "a list"), ("set", "a set"), ("zset", "a sorted set"), ("stream", "a stream")]
    {
        let before = server.command(&["DUMP", name]);
        for error in [
            block_on(locks.mutex(name).expect("a name").lock()).map(drop),
            block_on(locks.reentrant_mutex(name, &me).expect("a name").lock()).map(drop),
            block_on(locks.fair_mutex(name).expect("a name").lock()).map(drop),
            block_on(locks.rwlock(name).expect("a name").write()).map(drop),
            block_on(locks.semaphore(name, 2).expect("a name").acquire()).map(drop),
        ] {
            let error = error.expect_err(name);
            let expected = format!("`{name}` is not a lock of tenure: it is {what}");
            assert!(error.is_mismatch() && error.to_string().ends_with(&expected), "{error}");
        }
        assert_eq!(server.command(&["DUMP", name]), before);
    }
    // A lock that becomes such a key while it is awaited.
    server.command(&["SET", "x", "another client", "PX", "60000"]);
    let waiting = std::thread::spawn({
        let mutex = locks.mutex("x").expect("a name");
        move || block_on(mutex.try_lock_for(Duration::from_secs(30))).map(drop)
    });
    eventually("it waits", Duration::from_secs(10), || locks.metrics().total().waiting == 1);
    server.command(&["RPUSH", "list", "a"]);
    server.command(&["RENAME", "list", "x"]);
    assert!(waiting.join().expect("no panic").expect_err("no lock").is_mismatch());
}

#[test]
fn a_listing_walks_over_thousands_of_keys() {
    let server = Server::start();
    server.command(&["EVAL", "for i = 1, 3000 do redis.call('SET', 'many:' .. i, 'token') end", "0"]);
    let locks = locks(&server.url());
    let mut listing = locks.list("many:").expect("a prefix");
    let mut names = std::collections::BTreeSet::new();
    while let Some(status) = block_on(listing.next()).expect("an answer") {
        names.insert(status.name.as_str().to_owned());
    }
    assert_eq!(names.len(), 3_000);
}

#[test]
fn a_wait_ends_in_time_also_when_the_server_is_down_or_black_holed() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let locks = locks(&proxy.url());
    let mutex = locks.mutex("x").expect("a name");
    let wait = |limit: Duration| {
        let started = Instant::now();
        let error = block_on(mutex.try_lock_for(limit)).expect_err("no server answers");
        assert!(error.is_unreachable(), "{error}");
        in_time(started.elapsed(), limit + ms(900));
    };
    proxy.set(Fault::BlackHole);
    wait(ms(500));
    proxy.set(Fault::None);
    let guard = block_on(mutex.lock()).expect("it is there");
    block_on(guard.release()).expect("a release");
    proxy.set(Fault::BlackHole);
    wait(ms(500));
    proxy.set(Fault::None);
    server.kill();
    wait(ms(500));
    let started = Instant::now();
    assert!(block_on(Locks::connect(&server.url())).expect_err("it is down").is_unreachable());
    in_time(started.elapsed(), ms(3_000));
}

#[test]
fn a_short_wait_says_why_nobody_can_be_asked() {
    let server = Server::start();
    server.kill();
    let mutex = locks(&server.url()).mutex("x").expect("a name");
    let error = block_on(mutex.try_lock_for(ms(500))).expect_err("no server answers");
    let why = std::error::Error::source(&error).expect("a reason").to_string();
    assert!(error.is_unreachable() && why.contains("refused"), "{error}: {why}");
}

#[test]
fn a_guard_hears_of_an_emptied_server_within_a_round_trip_of_the_reconnect() {
    let server = Server::start();
    let locks = locks(&server.url());
    let guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a free lock");
    server.restart();
    let restarted = Instant::now();
    let lost = block_on(guard.lost());
    assert!(lost.is_lost(), "{lost}");
    in_time(restarted.elapsed(), ms(5_000));
    println!("told {:?} after the server was back", restarted.elapsed());
}

#[test]
fn a_release_that_is_overtaken_by_the_next_question_wakes_who_asked() {
    let server = Server::start();
    let locks = locks(&server.url());
    let mutex = locks.mutex("x").expect("a name");
    for round in 0..24 {
        let guard = block_on(mutex.try_lock_for(ms(5_000))).expect("an answer").expect("a free lock");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let started = Instant::now();
                let guard = block_on(mutex.try_lock_for(ms(5_000))).expect("an answer").expect("a turn");
                block_on(guard.release()).expect("a release");
                started.elapsed()
            });
            std::thread::sleep(ms(30));
            match round % 2 {
                0 => server.command(&["SCRIPT", "FLUSH"]),
                _ => server.command(&["CLIENT", "KILL", "TYPE", "normal"]),
            };
            block_on(guard.release()).expect("a release");
            let waited = waiter.join().expect("no panic");
            in_time(waited, ms(4_000));
        });
    }
}

#[test]
fn who_cannot_be_told_asks_meanwhile() {
    let server = Server::start();
    let (ours, theirs) = (locks(&server.url()), locks(&server.url()));
    let (a, b) = (ours.mutex("x").expect("a name"), theirs.mutex("x").expect("a name"));
    let guard = block_on(a.lock()).expect("a free lock");
    drop(block_on(theirs.mutex("y").expect("a name").lock()).expect("a free lock"));
    // The two clients and this one: there is no room for a subscription.
    server.command(&["CONFIG", "SET", "maxclients", "3"]);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| block_on(b.try_lock_for(ms(900))).expect("an answer"));
        std::thread::sleep(ms(200));
        block_on(guard.release()).expect("a release");
        assert!(waiter.join().expect("no panic").is_some(), "it was free for 700 ms");
    });
}

#[test]
fn who_hears_nothing_any_more_asks_again_and_again() {
    let server = Server::start();
    let (ours, theirs) = (locks(&server.url()), locks(&server.url()));
    let (a, b) = (ours.mutex("x").expect("a name"), theirs.mutex("x").expect("a name"));
    let guard = block_on(a.lock()).expect("a free lock");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = block_on(b.try_lock_for(ms(12_000))).expect("an answer").expect("a turn");
            drop(guard);
            Instant::now()
        });
        while server.command(&["PUBSUB", "CHANNELS"]).items().is_empty() {
            std::thread::sleep(ms(10));
        }
        server.command(&["CONFIG", "SET", "maxclients", "1"]);
        server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        std::thread::sleep(ms(1_000));
        let released = Instant::now();
        block_on(guard.release()).expect("a release");
        let late = waiter.join().expect("no panic").duration_since(released);
        // Half a lease, and a backoff of at most a second.
        in_time(late, ms(6_000));
    });
}

#[test]
fn a_forced_release_with_a_token_ends_that_grant_and_no_later_one() {
    let server = Server::start();
    let locks = locks(&server.url());
    let me = Owner::new("me").expect("an owner");
    for kind in ["mutex", "reentrant", "fair", "semaphore"] {
        // Whose first grant is by script.
        let locks = self::locks(&server.url());
        let take = || {
            let taken = match kind {
                "mutex" => block_on(locks.mutex(kind).expect("a name").lock()),
                "reentrant" => block_on(locks.reentrant_mutex(kind, &me).expect("a name").lock()),
                "fair" => block_on(locks.fair_mutex(kind).expect("a name").lock()),
                _ => block_on(locks.semaphore(kind, 2).expect("a name").acquire_many(2)),
            };
            taken.expect("a free lock")
        };
        let force = |token| block_on(locks.force_release_token(kind, token)).expect("an answer");
        let first = take();
        let ForcedRelease::Ended(ended) = force(first.fence()) else { panic!("{kind}: it was held") };
        assert_eq!((ended.holders.len(), ended.holders[0].fence), (1, first.fence()), "{kind}");
        assert_eq!(force(first.fence()), ForcedRelease::Free, "{kind}");
        // The reentrant lock has the same owner as before.
        let second = take();
        if kind != "reentrant" {
            // Granted by plain commands, so its token is not on the server.
            let error = block_on(locks.force_release_token(kind, second.fence())).expect_err("no token");
            assert!(error.is_unsupported() && error.to_string().contains("owner"), "{error}");
        } else {
            let ForcedRelease::Other(other) = force(first.fence()) else { panic!("{kind}: another holds") };
            assert_eq!(other.holders[0].fence, second.fence(), "{kind}");
            assert!(matches!(force(0), ForcedRelease::Other(_)), "{kind}");
        }
        block_on(second.verify()).expect("it is still held");
    }
    server.command(&["SET", "text", "another program"]);
    assert!(block_on(locks.force_release_token("text", 1)).expect_err("no lock").is_mismatch());
}

/// As text they would look like another client's value.
#[test]
fn the_value_of_a_foreign_client_is_shown_byte_by_byte() {
    let server = Server::start();
    let locks = locks(&server.url());
    let bytes: &[u8] = b"\xff\x00\xc3#1";
    server.command(&["EVAL", r"return redis.call('SET', 'x', '\255\000\195#1', 'PX', '60000')", "0"]);
    let found = block_on(locks.inspect("x")).expect("an answer").expect("a holder");
    assert_eq!((&found.holders[0].owner, &*found.holders[0].value), (&None, bytes));
    let mut listing = locks.list("x").expect("a prefix");
    let listed = block_on(listing.next()).expect("an answer").expect("a lock");
    assert_eq!(&*listed.holders[0].value, bytes);

    server.command(&["ACL", "SETUSER", "plain", "on", ">pw", "~*", "&*", "+@all", "-@scripting"]);
    let url = server.url().replace("redis://", "redis://plain:pw@");
    let plain = Locks::open(&url).expect("a store").with(|options| options.unfenced(true));
    let found = block_on(plain.expect("options").inspect("x")).expect("an answer").expect("a holder");
    assert_eq!(&*found.holders[0].value, bytes);
}

#[test]
fn a_lock_that_is_kept_for_a_time_is_taken_until_then() {
    let server = Server::start();
    let locks = locks(&server.url()).with(|options| options.ttl(ms(300))).expect("options");
    let guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a free lock");
    let from = std::time::Instant::now();
    block_on(guard.keep_for(ms(1_500))).expect("an answer");
    let next = block_on(locks.mutex("x").expect("a name").lock()).expect("a grant");
    assert!(from.elapsed() >= ms(1_400), "{:?}", from.elapsed());
    assert!(block_on(next.keep_for(ms(1))).expect_err("too short").is_invalid());
    eventually("the error gives it back", ms(10_000), || {
        block_on(locks.inspect("x")).expect("an answer").is_none()
    });
}
