//! Queues at a limit: of the server's memory, and of the places that one script may examine.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real servers measure real time"
)]

use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, Either, join, join_all, select, try_join_all};
use tenure::{Guard, Locks, Options, block_on};
use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::servers::{Server, eventually};

const SOON: Duration = Duration::from_secs(10);
const TTL: Duration = Duration::from_millis(1_500);

fn locks(url: &str, options: Options) -> Locks {
    Locks::open(url).expect("a store").with(|_| options).expect("options")
}

/// One hold of each kind.
fn one_of_each(locks: &Locks) -> Vec<Guard> {
    let owner = tenure::Owner::new("a").expect("an owner");
    block_on(try_join_all([
        Box::pin(locks.mutex("mutex").expect("a name").lock()) as BoxFuture<'_, _>,
        Box::pin(async { locks.reentrant_mutex("reentrant", &owner).expect("a name").lock().await }),
        Box::pin(async { locks.fair_mutex("fair").expect("a name").lock().await }),
        Box::pin(async { locks.rwlock("read").expect("a name").read().await.map(Guard::from) }),
        Box::pin(async { locks.rwlock("write").expect("a name").write().await.map(Guard::from) }),
        Box::pin(async { locks.semaphore("semaphore", 3).expect("a name").acquire_many(2).await }),
    ]))
    .expect("free locks")
}

#[test]
fn a_server_without_memory_keeps_every_hold_and_every_place() {
    let server = Server::start();
    let holder = locks(&server.url(), Options::new().ttl(TTL));
    let waiter = locks(&server.url(), Options::new().ttl(TTL));
    let guards = one_of_each(&holder);
    let fair = waiter.fair_mutex("fair").expect("a name");
    std::thread::scope(|scope| {
        let next = scope.spawn(|| block_on(fair.try_lock_for(SOON)));
        eventually("it waits", SOON, || {
            block_on(holder.inspect("fair")).expect("an answer").is_some_and(|found| found.waiters.len() == 1)
        });
        server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        let refused = block_on(holder.fair_mutex("new").expect("a name").try_lock());
        assert!(refused.is_err_and(|error| error.is_refused()), "a server without memory grants nothing new");
        // Two leases: each hold is renewed several times, and the place is refreshed.
        let until = Instant::now() + 2 * TTL;
        while Instant::now() < until {
            let lost: Vec<_> = guards.iter().filter(|guard| !guard.is_held()).map(Guard::name).collect();
            assert!(lost.is_empty(), "lost for want of memory: {lost:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        // A release needs no memory, and admits the next waiter.
        for guard in guards {
            let name = guard.name().clone();
            block_on(guard.release()).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let next = next.join().expect("no panic").expect("an answer").expect("its turn");
        block_on(next.verify()).expect("it holds");
    });
}

/// Like a killed `tenure run`: its places remain until they expire, and delay the next waiter no longer than
/// that.
#[test]
fn thousands_of_dead_waiters_keep_nobody_waiting() {
    const DEAD: usize = 3_000;
    let server = Server::start();
    let living = locks(&server.url(), Options::new().ttl(TTL));
    let held = block_on(living.fair_mutex("x").expect("a name").lock()).expect("a free lock");
    let proxy = Proxy::start(server.address());
    let gone = locks(&proxy.url(), Options::new().ttl(TTL));
    let waits = (0..DEAD).map(|_| {
        let lock = gone.fair_mutex("x").expect("a name");
        async move { lock.lock().await }
    });
    let all_wait = async {
        loop {
            let found = living.inspect("x").await.expect("an answer").expect("it is held");
            if found.waiters.len() + found.unlisted as usize == DEAD {
                return;
            }
        }
    };
    let waits = Box::pin(join_all(waits));
    let all_wait = Box::pin(all_wait);
    match block_on(select(all_wait, waits)) {
        Either::Left(((), waits)) => {
            proxy.set(Fault::BlackHole);
            proxy.reset();
            std::mem::forget(waits);
        }
        Either::Right(_) => panic!("no other client gets it"),
    }
    block_on(held.release()).expect("a release");
    let started = Instant::now();
    let next = block_on(living.fair_mutex("x").expect("a name").try_lock_for(SOON)).expect("an answer");
    let waited = started.elapsed();
    println!("behind {DEAD} dead waiters: {waited:?}");
    // Their places expire after a lease; a place whose wake-up was lost is kept as long.
    assert!(next.is_some(), "not within {SOON:?}");
    assert!(waited < 3 * TTL, "{waited:?}");
}

#[test]
fn two_hundred_readers_are_let_in_at_once() {
    const READERS: usize = 200;
    let server = Server::start();
    let (writer, readers) = (locks(&server.url(), Options::new()), locks(&server.url(), Options::new()));
    let held = block_on(writer.rwlock("x").expect("a name").write()).expect("a free lock");
    let lock = readers.rwlock("x").expect("a name");
    let waits = Box::pin(join_all((0..READERS).map(|_| async {
        let guard = lock.read().await.expect("its turn");
        (Instant::now(), guard)
    })));
    let all_wait = Box::pin(async {
        loop {
            let found = writer.inspect("x").await.expect("an answer").expect("it is held");
            if found.waiters.len() == READERS {
                break;
            }
        }
        server.command(&["CONFIG", "RESETSTAT"]);
        held.release().await.expect("a release");
        Instant::now()
    });
    let (released, guards) = block_on(join(all_wait, waits));
    let last = guards.iter().map(|(at, _)| at.saturating_duration_since(released)).max();
    let scripts = server.info_commandstats().get("evalsha").copied().unwrap_or(0);
    println!("{READERS} readers hold {last:?} after the release, by {scripts} scripts");
    // Otherwise some of them wait for the next refresh, half a second later or more.
    assert!(last < Some(Duration::from_millis(400)), "{last:?}");
}

/// Creates places at `x`, of which the first `holds` hold, with leases of an hour: 10,000 per script.
fn crowd(server: &Server, kind: &str, capacity: usize, holds: usize, places: usize) {
    const FILL: &str = "
        local time, members = redis.call('TIME'), {}
        local first, ends = 1.7e15, time[1] * 1000 + 3600000
        for i = tonumber(ARGV[3]) + 1, tonumber(ARGV[3]) + tonumber(ARGV[4]) do
          local owner = string.format('o@h:1/%032x', i)
          redis.call('ZADD', KEYS[1], string.format('%.0f', first + i), owner, string.format('%.0f', ends), '!' .. owner)
        end
        local mark = string.format('%.0f', -(first + tonumber(ARGV[2])))
        redis.call('ZADD', KEYS[1], mark, ARGV[1], -tonumber(ARGV[2]), '#used')
        redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', ends))";
    let header = format!("#1:{kind}:{capacity}");
    for from in (0..places).step_by(10_000) {
        let (holds, from) = (holds.to_string(), from.to_string());
        let reply = server.command(&["EVAL", FILL, "1", "x", &header, &holds, &from, "10000"]);
        assert_eq!(reply.error_code(), None, "{reply:?}");
    }
}

/// Median duration of the scripts since the statistics were reset, as measured by the server.
fn median(server: &Server) -> Duration {
    let latency = server.info("latencystats");
    let of_scripts = latency.get("latency_percentiles_usec_evalsha").expect("scripts ran");
    let median = of_scripts.split(',').next().and_then(|first| first.strip_prefix("p50="));
    Duration::from_secs_f64(median.expect("a percentile").parse::<f64>().expect("a number") / 1e6)
}

#[test]
fn two_hundred_thousand_waiters_are_counted_and_not_all_listed() {
    const WAITERS: usize = 199_999;
    let server = Server::start();
    crowd(&server, "fair mutex", 1, 1, WAITERS + 1);
    let locks = locks(&server.url(), Options::new());
    let found = block_on(locks.inspect("x")).expect("an answer").expect("it is held");
    assert_eq!((found.holders.len(), found.waiters.len()), (1, 999));
    assert_eq!(found.unlisted as usize, WAITERS - 999);
    server.command(&["CONFIG", "RESETSTAT"]);
    for _ in 0..5 {
        block_on(locks.inspect("x")).expect("an answer");
    }
    println!("looking at {WAITERS} waiters takes the server {:?}", median(&server));
    let ended = block_on(locks.force_release("x")).expect("an answer").expect("it was held");
    assert_eq!(ended.holders[0].value, found.holders[0].value);
    let next = block_on(locks.inspect("x")).expect("an answer").expect("the next holds");
    assert_eq!(next.holders[0].value, found.waiters[0].value);
}

#[test]
fn a_hundred_thousand_holders_are_ended_by_force_in_short_scripts() {
    const HOLDERS: usize = 100_000;
    let server = Server::start();
    crowd(&server, "semaphore", HOLDERS, HOLDERS, HOLDERS);
    let locks = locks(&server.url(), Options::new().op_timeout(Duration::from_secs(60)));
    server.command(&["CONFIG", "RESETSTAT"]);
    let ended = block_on(locks.force_release("x")).expect("an answer").expect("it was held");
    assert_eq!(ended.holders.len() + ended.unlisted as usize, HOLDERS);
    assert_eq!(block_on(locks.inspect("x")).expect("an answer"), None);
    println!(
        "ending {HOLDERS} holders: {} scripts, the median {:?}",
        server.info_commandstats()["evalsha"],
        median(&server)
    );
}
