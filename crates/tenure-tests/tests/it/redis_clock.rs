//! A server whose clock is moved back and forth ten times a second, while locks of each kind are held and
//! waited for.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real servers measure real time"
)]

use std::cell::Cell;
use std::sync::Barrier;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use tenure::{Guard, Locks, Owner, block_on};
use tenure_testkit::servers::Server;

use crate::common::ms;

const KINDS: [&str; 5] = ["mutex", "reentrant", "fair", "writer", "permit"];
/// How far the clock is ahead and behind, alternately.
const SWING_MS: i64 = 500;
const SWINGS: u32 = 50;
/// Scheduling delay on a busy machine.
const BUSY: Duration = ms(500);
const SOON: Duration = Duration::from_secs(20);

/// A client that takes turns at one lock.
struct Taker<'a> {
    locks: &'a Locks,
    kind: &'static str,
    owner: Owner,
    hold: Duration,
}

struct Turn {
    asked: Instant,
    granted: Instant,
    /// The last time at which it certainly believed that it held: taken before each query.
    last_held: Instant,
    token: u64,
    was_lost: bool,
}

impl Taker<'_> {
    fn acquire(&self) -> Guard {
        let (locks, kind) = (self.locks, self.kind);
        let asked = async {
            match kind {
                "mutex" => locks.mutex(kind)?.try_lock_for(SOON).await,
                "reentrant" => locks.reentrant_mutex(kind, &self.owner)?.try_lock_for(SOON).await,
                "fair" => locks.fair_mutex(kind)?.try_lock_for(SOON).await,
                "writer" => Ok(locks.rwlock(kind)?.try_write_for(SOON).await?.map(Guard::from)),
                _ => locks.semaphore(kind, 1)?.try_acquire_for(SOON).await,
            }
        };
        let granted = block_on(asked).unwrap_or_else(|error| panic!("{kind}: {error:?}"));
        granted.unwrap_or_else(|| panic!("{kind}: no turn within {SOON:?}"))
    }

    fn takes_turns(&self, until: Instant) -> Vec<Turn> {
        let mut turns = Vec::new();
        while Instant::now() < until {
            let asked = Instant::now();
            let guard = self.acquire();
            let granted = Instant::now();
            let mut last_held = granted;
            while granted.elapsed() < self.hold {
                let now = Instant::now();
                if !guard.is_held() {
                    break;
                }
                last_held = now;
                sleep(ms(1));
            }
            let token = guard.fence();
            let was_lost = match block_on(guard.release()) {
                Ok(()) => false,
                Err(error) => {
                    assert!(error.is_lost() || error.is_unknown(), "{}: {error:?}", self.kind);
                    true
                }
            };
            turns.push(Turn { asked, granted, last_held, token, was_lost });
        }
        turns
    }
}

/// The longest time for which both takers held.
fn overlap(takers: &[Vec<Turn>; 2]) -> Duration {
    let [one, other] = takers;
    let pairs = one.iter().flat_map(|one| other.iter().map(move |other| (one, other)));
    pairs
        .map(|(one, other)| {
            one.last_held.min(other.last_held).saturating_duration_since(one.granted.max(other.granted))
        })
        .max()
        .unwrap_or_default()
}

/// Moves the server's clock until the takers are done. Before each step back a client reads the keys, so that
/// expired ones are deleted.
fn strobe(server: &Server, start: &Barrier) {
    start.wait();
    server.clock().step_ms(SWING_MS);
    for swing in 0..SWINGS {
        sleep(ms(100));
        let is_ahead = swing % 2 == 0;
        if is_ahead {
            server.command(&[&["EXISTS"], &KINDS[..]].concat());
        }
        server.clock().step_ms(if is_ahead { -2 * SWING_MS } else { 2 * SWING_MS });
    }
    server.clock().reset();
}

/// Like a board without a battery-backed clock, before it has synchronized its time.
#[test]
fn a_queue_is_refused_where_the_clock_stands_at_the_beginning_of_time() {
    let server = Server::with_clock();
    server.clock().freeze_us(86_400_000_000);
    let locks = Locks::open(&server.url()).expect("a store");
    drop(block_on(locks.mutex("x").expect("a name").try_lock()).expect("an answer").expect("a free lock"));
    // Nobody waits: it is granted like a mutex.
    let held = block_on(locks.fair_mutex("y").expect("a name").try_lock()).expect("an answer");
    let other = Locks::open(&server.url()).expect("a store");
    let error = block_on(other.fair_mutex("y").expect("a name").try_lock()).expect_err("no clock");
    assert!(held.expect("a free lock").is_held());
    let why = std::error::Error::source(&error).expect("a reason").to_string();
    assert!(error.is_refused() && why.contains("before March 1973"), "{error}: {why}");
}

#[test]
fn a_swinging_server_clock_costs_no_lease_that_outlasts_a_swing() {
    takes_turns(ms(4_000), ms(150), |kind, lost, overlap| {
        assert_eq!((lost, overlap), (0, Duration::ZERO), "{kind}");
    });
}

#[test]
fn a_swinging_server_clock_costs_a_shorter_lease_and_its_holder_hears_in_time() {
    const TTL: Duration = ms(1_200);
    let all = Cell::new(0);
    takes_turns(TTL, ms(1_700), |kind, lost, overlap| {
        all.set(all.get() + lost);
        assert!(overlap < TTL / 3 + BUSY, "{kind}: {overlap:?}");
    });
    assert!(all.get() > 0, "none was lost");
}

/// Takes turns at a lock of each kind meanwhile: tokens increase in request order, and every client gets its
/// turn. `judge` gets the number of losses of each kind, and the longest overlap.
fn takes_turns(ttl: Duration, hold: Duration, judge: impl Fn(&str, usize, Duration)) {
    let server = Server::with_clock();
    let clients = [(); 2].map(|()| {
        Locks::open(&server.url()).expect("a store").with(|options| options.ttl(ttl)).expect("options")
    });
    let start = Barrier::new(1 + 2 * KINDS.len());
    let until = Instant::now() + ms(100) * SWINGS;
    let seen = scope(|scope| {
        scope.spawn(|| strobe(&server, &start));
        let taker = |locks, kind, hold| {
            let taker = Taker { locks, kind, owner: Owner::new("taker").expect("an owner"), hold };
            let start = &start;
            scope.spawn(move || {
                start.wait();
                taker.takes_turns(until)
            })
        };
        let takers: Vec<_> = KINDS
            .into_iter()
            // So that they are not all granted in one half of a swing.
            .zip((0..).map(|kind| hold + ms(40) * kind))
            .map(|(kind, hold)| (kind, [&clients[0], &clients[1]].map(|locks| taker(locks, kind, hold))))
            .collect();
        let turns = |(kind, takers): (_, [_; 2])| {
            (kind, takers.map(|taker: std::thread::ScopedJoinHandle<'_, _>| taker.join().expect("no panic")))
        };
        takers.into_iter().map(turns).collect::<Vec<_>>()
    });
    for (kind, takers) in seen {
        let all = || takers.iter().flatten();
        let (lost, overlap) = (all().filter(|turn| turn.was_lost).count(), overlap(&takers));
        println!("{ttl:?}, {kind}: {} turns, {lost} lost, {overlap:?} of overlap", all().count());
        for earlier in all() {
            let later = all().filter(|later| later.asked > earlier.granted);
            for later in later {
                assert!(later.token > earlier.token, "{kind}: {} after {}", later.token, earlier.token);
            }
        }
        judge(kind, lost, overlap);
    }
}
