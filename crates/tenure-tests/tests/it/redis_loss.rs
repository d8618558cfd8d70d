//! A server that is stopped, cut off, killed or emptied while a lock is held: its holder knows before any
//! other client can hold, or, if the lock itself is gone, as soon as it can learn of it.
#![expect(clippy::disallowed_methods, reason = "tests against real servers measure real time")]

use std::fs;
use std::path::PathBuf;
use std::sync::Barrier;
use std::thread::{scope, sleep};
use std::time::Duration;

use tenure::{Guard, Locks, Options, block_on};
use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::servers::{Client, Config, Server, eventually};

use crate::common::ms;
use crate::overlap::now;

/// Long enough for a busy machine.
const TTL: Duration = ms(2_400);
const GRACE: Duration = ms(800);
/// The allowance of the deadline for clock errors.
const MARGIN: Duration = ms(26);
/// The maximum backoff.
const RECONNECT: Duration = ms(1_000);
/// Scheduling delay on a busy machine.
const BUSY: Duration = ms(500);
const SOON: Duration = Duration::from_secs(5);

fn locks(url: &str) -> Locks {
    Locks::open(url).expect("a store").with(|options| options.ttl(TTL).grace(GRACE)).expect("options")
}

fn held(locks: &Locks) -> Guard {
    block_on(locks.mutex("x").expect("a name").lock()).expect("a free lock")
}

/// The remaining lease on the server.
fn left(server: &Server) -> Duration {
    ms(u64::try_from(server.command(&["PTTL", "x"]).int()).expect("a lease"))
}

/// Waits for a renewal, so that nothing is in flight.
fn just_renewed(server: &Server) {
    eventually("a renewal", SOON, || left(server) > TTL - ms(40));
}

/// The observations of a holder.
struct Seen {
    /// The last time at which it certainly believed that it held: taken before each query.
    last_held: Duration,
    /// When `lost()` resolved.
    told: Duration,
    why: String,
}

/// Observes a guard until its loss, by polling and by waiting for `lost()`.
fn watch(guard: &Guard) -> Seen {
    scope(|scope| {
        let told = scope.spawn(|| {
            let why = block_on(guard.lost());
            assert!(why.is_lost(), "{why}");
            (now(), why.to_string())
        });
        let mut last_held = now();
        loop {
            let asked = now();
            if !guard.is_held() {
                break;
            }
            last_held = asked;
            sleep(Duration::from_micros(200));
        }
        let (told, why) = told.join().expect("no panic");
        Seen { last_held, told, why }
    })
}

/// The fault between the holder and the server.
enum Trouble<'a> {
    Stop,
    Network(&'a Proxy, Fault),
}

/// During the fault, the holder is notified `grace` before the lease ends on the server, and not much sooner.
/// The waiting client, which has a connection of its own, gets the lock after that.
fn nobody_overlaps(what: &str, server: &Server, trouble: &Trouble<'_>) {
    let url = if let Trouble::Network(proxy, _) = trouble { proxy.url() } else { server.url() };
    let (holders, rivals) = (locks(&url), locks(&server.url()));
    let (mut early, mut gaps) = (Vec::new(), Vec::new());
    for round in 0..3 {
        // Wait for a working connection, because a lease counts from before its request, even while that
        // waits to be sent.
        eventually("it is connected", SOON, || block_on(holders.inspect("x")).is_ok());
        let guard = held(&holders);
        just_renewed(server);
        sleep(ms(round * 100));
        let waits = Barrier::new(2);
        let (seen, granted, lease_end) = scope(|scope| {
            let rival = scope.spawn(|| {
                waits.wait();
                let guard = held(&rivals);
                (now(), guard)
            });
            waits.wait();
            sleep(ms(20)); // until it has sent its request
            // Both are lower bounds: the lease ends no sooner.
            let (asked, believed) = (now(), now() + guard.remaining());
            let lease_end = asked + left(server);
            match trouble {
                Trouble::Stop => server.stop(),
                Trouble::Network(proxy, fault) => {
                    proxy.set(*fault);
                    if *fault == Fault::Refuse {
                        proxy.reset(); // it refuses new connections only
                    }
                }
            }
            // On a busy machine another renewal may have come in between, with its answer still in flight.
            let lease_end = lease_end + (now() + guard.remaining()).saturating_sub(believed);
            let lease_end = match trouble {
                Trouble::Stop => lease_end,
                Trouble::Network(..) => {
                    let asked = now();
                    lease_end.max(asked + left(server))
                }
            };
            let seen = watch(&guard);
            // A resumed server processes what was sent to it meanwhile; the network delivers it later.
            if let Trouble::Stop = trouble {
                server.cont();
            }
            let (granted, rival) = rival.join().expect("no panic");
            if let Trouble::Network(proxy, _) = trouble {
                proxy.set(Fault::None);
            }
            sleep(ms(50));
            block_on(rival.verify()).expect("what the lost holder had still sent harms no client");
            block_on(rival.release()).expect("a release");
            (seen, granted, lease_end)
        });
        assert!(seen.why.contains("expired"), "{}", seen.why);
        let safe = seen.last_held + GRACE;
        assert!(safe < lease_end, "{what}: held {:?} too long", safe - lease_end);
        assert!(safe + MARGIN + BUSY > lease_end, "{what}: given up {:?} too soon", lease_end - safe);
        assert!(seen.told < lease_end, "{what}: told {:?} too late", seen.told - lease_end);
        assert!(seen.told < granted, "{what}: told {:?} after another client held", seen.told - granted);
        early.push(lease_end.saturating_sub(seen.told));
        gaps.push(granted - seen.told);
        assert!(!guard.is_held());
    }
    print("told before the lease could be another client's", what, &mut early);
    print("from there until another client held", what, &mut gaps);
}

fn print(measured: &str, what: &str, times: &mut [Duration]) {
    times.sort();
    let in_ms = |time: &Duration| time.as_secs_f64() * 1_000.0;
    let (least, median, most) = (&times[0], &times[times.len() / 2], &times[times.len() - 1]);
    let (least, median, most) = (in_ms(least), in_ms(median), in_ms(most));
    println!(
        "{what}: {measured}: {median:.1} ms median, {least:.1} to {most:.1} ms in {} rounds",
        times.len()
    );
}

#[test]
fn a_stopped_server_costs_the_lease_and_nobody_overlaps() {
    nobody_overlaps("stopped", &Server::start(), &Trouble::Stop);
}

#[test]
fn a_network_that_swallows_everything_costs_the_lease_and_nobody_overlaps() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    nobody_overlaps("black hole", &server, &Trouble::Network(&proxy, Fault::BlackHole));
}

#[test]
fn a_network_that_refuses_costs_the_lease_and_nobody_overlaps() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    nobody_overlaps("refused", &server, &Trouble::Network(&proxy, Fault::Refuse));
}

#[test]
fn a_server_that_goes_on_in_time_costs_nothing() {
    let server = Server::start();
    let guard = held(&locks(&server.url()));
    just_renewed(&server);
    server.stop();
    sleep(TTL / 3 + ms(20)); // so that a renewal is due meanwhile
    server.cont();
    sleep(TTL * 2);
    assert!(guard.is_held());
    block_on(guard.release()).expect("it was held all the time");
}

/// Kills the server under a holder and restarts it empty, while another client keeps trying to take the lock.
fn overlaps(what: &str, down: Duration) {
    let server = Server::start();
    // With a lease that outlasts any restart.
    let patient = |options: Options| options.ttl(Duration::from_secs(600));
    let holders = Locks::open(&server.url()).and_then(|locks| locks.with(patient)).expect("a store");
    let (mut overlaps, mut late) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        let guard = held(&holders);
        let (seen, grabbed) = scope(|scope| {
            let seen = scope.spawn(|| watch(&guard));
            server.kill();
            sleep(down);
            let rival = scope.spawn(|| grab(&server));
            server.restart();
            (seen.join().expect("no panic"), rival.join().expect("no panic"))
        });
        // A client that reaches the server first.
        let is_loss =
            ["taken by a foreign client", "gone from the store"].iter().any(|why| seen.why.contains(why));
        assert!(is_loss, "{}", seen.why);
        overlaps.push(seen.last_held.saturating_sub(grabbed));
        late.push(seen.told.saturating_sub(grabbed));
        assert!(seen.told < grabbed + RECONNECT + BUSY, "{what}: told {:?} late", seen.told - grabbed);
        drop(guard);
        server.command(&["DEL", "x"]);
    }
    print("overlap of the holder and a client who took the lock at once", what, &mut overlaps);
    print("told after the lock was another client's", what, &mut late);
}

/// Takes the lock as soon as a server grants it; returns an upper bound of that time.
fn grab(server: &Server) -> Duration {
    let given_up = now() + 10 * SOON;
    loop {
        assert!(now() < given_up, "the lock was never to be had");
        let taken = Client::dial_unix(&server.socket())
            .and_then(|mut client| client.command(&["SET", "x", "rival", "NX", "PX", "60000"]));
        if taken.is_ok_and(|reply| reply == "OK") {
            return now();
        }
        sleep(Duration::from_micros(200));
    }
}

#[test]
fn the_overlap_that_a_restarted_empty_server_costs_is_small() {
    overlaps("restarted empty", Duration::ZERO);
}

#[test]
fn the_overlap_that_a_killed_server_costs_is_a_pause_of_the_reconnect() {
    overlaps("killed, and empty after 300 ms", ms(300));
}

#[test]
fn the_first_round_trip_of_a_reconnect_tells_the_loss() {
    let server = Server::start();
    // They are renewed after 20 s.
    let options = Options::new().ttl(Duration::from_secs(60));
    let holders = Locks::open(&server.url()).expect("a store").with(|_| options).expect("options");
    let guards: Vec<Guard> = (0..10)
        .map(|number| block_on(holders.mutex(format!("x{number}")).expect("a name").lock()))
        .collect::<Result<_, _>>()
        .expect("free locks");
    server.restart_with(Config::new().set("slowlog-log-slower-than", "0").set("slowlog-max-len", "1000"));
    let restarted = now();
    for guard in &guards {
        assert!(block_on(guard.lost()).is_lost());
    }
    assert!(now() - restarted < Duration::from_secs(10), "{:?}", now() - restarted);
    let log = server.command(&["SLOWLOG", "GET", "1000"]);
    // Oldest first: the command, and its connection.
    let said = log.items().iter().rev().map(|entry| {
        let entry = entry.items();
        (entry[3].items()[0].text().to_lowercase(), entry[4].text().to_owned())
    });
    let said: Vec<(String, String)> = said.collect();
    let holder = said.iter().find(|(command, _)| command.starts_with("eval")).expect("a question").1.clone();
    let asked: Vec<&str> =
        said.iter().filter(|(_, from)| *from == holder).map(|(command, _)| &**command).collect();
    assert_eq!(asked[..5], ["hello", "client", "client", "info", "hello"], "the login");
    // The first verification covers all locks and includes its script, so it is not sent twice. Valkey 9 also
    // logs the commands of a script.
    let asked: Vec<&str> = asked[5..].iter().copied().filter(|command| *command != "get").collect();
    assert_eq!(asked, ["eval"]);
}

#[test]
fn a_killed_server_that_stays_away_costs_the_lease() {
    let server = Server::start();
    let guard = held(&locks(&server.url()));
    just_renewed(&server);
    let lease_end = now() + left(&server);
    server.kill();
    let seen = watch(&guard);
    assert!(seen.last_held + GRACE < lease_end && seen.why.contains("expired"), "{}", seen.why);
}

/// Kills a server if the test fails, so that clients stop holding there: a scope waits for its threads.
struct KillsInPanic<'a>(&'a Server);

impl Drop for KillsInPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.kill();
        }
    }
}

/// Removes the lock from a running server: the holder learns of it at its next renewal, at most a third of
/// the lease later.
fn vanishes(what: &str, server: &Server, take: impl Fn()) {
    let holders = locks(&server.url());
    let mut overlaps = Vec::new();
    for round in 0..3 {
        let guard = held(&holders);
        just_renewed(server);
        sleep(ms(round * 200));
        let (seen, grabbed) = scope(|scope| {
            let _kills = KillsInPanic(server);
            let seen = scope.spawn(|| watch(&guard));
            let rival = scope.spawn(|| grab(server));
            take();
            (seen.join().expect("no panic"), rival.join().expect("no panic"))
        });
        let overlap = seen.last_held.saturating_sub(grabbed);
        assert!(overlap < TTL / 3 + BUSY, "{what}: an overlap of {overlap:?}");
        overlaps.push(overlap);
        server.command(&["DEL", "x"]);
    }
    print(&format!("overlap, with a lease of {TTL:?}"), what, &mut overlaps);
}

#[test]
fn an_eviction_costs_an_overlap_until_the_next_renewal() {
    let server = Server::start();
    // Locks have an expiry, so this policy evicts them before keys without one.
    server.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    vanishes("evicted", &server, || {
        server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        eventually("the lock is evicted", SOON, || server.command(&["EXISTS", "x"]).int() == 0);
        server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    });
}

#[test]
fn a_step_of_the_clock_ahead_costs_an_overlap_until_the_next_renewal() {
    let server = Server::with_clock();
    vanishes("clock stepped ahead", &server, || server.clock().forward(TTL * 2));
}

#[test]
fn a_step_of_the_clock_back_costs_no_lock_and_keeps_that_of_a_holder_that_is_gone() {
    let server = Server::with_clock();
    let locks = locks(&server.url());
    let guard = held(&locks);
    let fence = guard.fence();
    server.clock().back(Duration::from_secs(60));
    sleep(TTL * 2);
    block_on(guard.verify()).expect("it is held as before");
    assert!(left(&server) > Duration::from_secs(50), "no client would get it for so long if its holder died");
    block_on(guard.release()).expect("a release");
    let guard = held(&locks);
    assert!(guard.fence() > fence, "tokens grow over a step back");
}

/// The AOF of a server with `appendfsync always`.
fn log_of(server: &Server) -> PathBuf {
    let dir = server.socket().with_file_name("appendonlydir");
    let files = fs::read_dir(dir).expect("a log").map(|file| file.expect("a file").path());
    files.filter(|path| path.to_string_lossy().ends_with(".incr.aof")).last().expect("what was changed")
}

/// The offsets of the records in an AOF, and its end.
fn records(log: &[u8]) -> Vec<usize> {
    let line = |at: usize| {
        let length = log[at..].windows(2).position(|two| two == b"\r\n").expect("a line");
        let number = std::str::from_utf8(&log[at + 1..at + length]).expect("text").parse::<usize>();
        (number.expect("a number"), at + length + 2)
    };
    let (mut starts, mut at) = (vec![0], 0);
    while at < log.len() {
        let (words, mut next) = line(at);
        for _ in 0..words {
            let (length, data) = line(next);
            next = data + length + 2;
        }
        at = next;
        starts.push(at);
    }
    starts
}

/// After a power failure, the disk has less of the AOF than was acknowledged: cut off between any two
/// records, or within one.
#[test]
fn a_server_that_lost_the_tail_of_its_log_invents_no_holder_and_repeats_no_token() {
    let config = Config::new().set("appendonly", "yes").set("appendfsync", "always").keep_data();
    let server = Server::start_with(config);
    let options = Options::new().ttl(Duration::from_secs(60));
    let locks = Locks::open(&server.url()).and_then(|locks| locks.with(|_| options)).expect("a store");
    let first = held(&locks);
    let mut known = vec![first.owner().clone()];
    block_on(first.release()).expect("a release");
    let second = held(&locks);
    let last = second.fence();
    known.push(second.owner().clone());
    drop(block_on(second.detach()).expect("no client renews it"));
    server.kill();

    let path = log_of(&server);
    let whole = fs::read(&path).expect("a log");
    let records = records(&whole);
    let mut kept = 0;
    for cut in records.iter().rev().flat_map(|end| [*end, end.saturating_sub(1), end + 1]) {
        fs::write(&path, &whole[..cut.min(whole.len())]).expect("a log");
        server.restart();
        let mut seen = None;
        eventually("it has read its log", SOON, || {
            block_on(locks.inspect("x")).is_ok_and(|status| {
                seen = status;
                true
            })
        });
        if let Some(status) = seen {
            let [holder] = &status.holders[..] else { panic!("{cut}: {status:?}") };
            let who = holder.owner.clone().expect("one of ours");
            assert!(known.contains(&who), "{cut}: {status:?}");
            assert!(holder.remaining.is_some(), "{cut}: without an end: {status:?}");
            block_on(locks.force_release("x")).expect("an answer");
            kept += 1;
        }
        let next = held(&locks);
        assert!(next.fence() > last, "{cut}: token {} after {last}", next.fence());
        block_on(next.release()).expect("a release");
        server.kill();
    }
    println!("log cut at {} places, the lock kept at {kept}", 3 * records.len());
    assert!(0 < kept && kept < 3 * records.len(), "this showed nothing");
}
