//! The Rust sides of `scripts/peers`, which passes the arguments
//! `SIDE ACTION PORT SECONDS TASKS SHARE TTL HOLD SPREAD REST`, with times after SECONDS in milliseconds.
//!
//! The program connects, prints `ready`, awaits a line, works, prints its results as JSON, and stays until
//! its input ends. `locks.py`, `tasks.py` and `tasks.mjs` do the same for their libraries.

#[cfg(feature = "stores")]
mod servers;
mod sides;
#[cfg(feature = "stores")]
mod stores;

use std::io::{Write, stdin, stdout};
use std::sync::{LazyLock, Mutex};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_timer::Delay;
use rustix::time::{ClockId, clock_gettime};
use sides::{Bare, BareTurns, Kind, Rslock, Side, Tenure};

/// Completed turns; in `keep`, held locks.
static TURNS: AtomicU64 = AtomicU64::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);
/// The task, and the times of its grant and release.
static ROWS: Mutex<Vec<[u64; 3]>> = Mutex::new(Vec::new());

struct Run {
    action: String,
    seconds: f64,
    tasks: u64,
    share: u64,
    hold: u64,
    spread: u64,
    rest: u64,
}

#[tokio::main]
async fn main() {
    let hook = std::panic::take_hook();
    // An error in any task ends the run.
    std::panic::set_hook(Box::new(move |panic| {
        hook(panic);
        std::process::abort();
    }));
    let mut words = std::env::args().skip(1);
    let mut word = || words.next().expect("ten words; see the head of main.rs");
    let (side, action) = (word(), word());
    #[cfg(feature = "stores")]
    if action == "serve" || action == "relay" {
        return servers::run(&action, &side, &word()).await;
    }
    let mut number = || word().parse::<u64>().expect("a number");
    let (port, seconds) = (number(), number() as f64);
    let (tasks, share, ttl) = (number(), number(), Duration::from_millis(number()));
    let run = Run { action, seconds, tasks, share, hold: number(), spread: number(), rest: number() };
    #[cfg(feature = "stores")]
    if let Some((store, side)) = side.split_once(": ") {
        return stores::run(&run, store, side, port, ttl).await;
    }
    let url = format!("redis://127.0.0.1:{port}");
    match side.as_str() {
        "bare" if run.hold == 0 && run.action != "wait" => run.on(Bare::new(&url, ttl).await).await,
        "bare" => run.on(BareTurns::new(&url).await).await,
        "tenure" => run.on(Tenure::new(&url, ttl, Kind::Mutex)).await,
        "tenure fair" => run.on(Tenure::new(&url, ttl, Kind::Fair)).await,
        "tenure write" => run.on(Tenure::new(&url, ttl, Kind::Write)).await,
        "tenure read" => run.on(Tenure::new(&url, ttl, Kind::Read)).await,
        "tenure permit" => run.on(Tenure::new(&url, ttl, Kind::Permit)).await,
        "rslock" => run.on(Rslock::new(url, ttl)).await,
        other => panic!("no side {other:?}"),
    }
}

impl Run {
    async fn on<S: Side>(&self, side: S) {
        match self.action.as_str() {
            "turns" => {
                if self.hold == 0 {
                    self.turns(&side, 0.5).await; // scripts are loaded, connections made
                }
                ready();
                let seconds = self.turns(&side, self.seconds).await;
                finish(seconds);
            }
            // In `crowd`, another program holds the lock.
            "wait" | "crowd" => {
                let mut _held = None;
                if self.action == "wait" {
                    _held = Some(side.of_task().await.lock(&key(0, 0)).await);
                }
                for _ in 0..self.tasks {
                    let side = side.of_task().await;
                    tokio::spawn(async move {
                        let _held = side.lock(&key(0, 0)).await;
                        TURNS.fetch_add(1, Relaxed); // two holders: scripts/peers fails the run
                    });
                }
                self.look_on().await;
            }
            "keep" => {
                side.keep((0..self.tasks).map(|task| key(task, 0)).collect()).await;
                while TURNS.load(Relaxed) < self.tasks {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                self.look_on().await;
            }
            // Holds a lock until its side hears of a loss, and prints when.
            "hold" => {
                let side = side.of_task().await;
                let held = side.lock(&key(0, 0)).await;
                tokio::spawn(async move {
                    side.lost(held).await;
                    LOST.store(now(), Relaxed);
                });
                ready();
                say(&LOST.load(Relaxed).to_string());
            }
            // Waits for the lock, and prints when it has it.
            "next" => {
                let side = side.of_task().await;
                ready();
                let _held = side.lock(&key(0, 0)).await;
                say(&now().to_string());
            }
            other => panic!("no action {other:?}"),
        }
    }

    async fn look_on(&self) {
        tokio::time::sleep(Duration::from_secs(1)).await;
        ready();
        let start = now();
        tokio::time::sleep(Duration::from_secs_f64(self.seconds)).await;
        finish((now() - start) as f64 / 1e9);
    }

    /// Each task locks, holds, unlocks and pauses until the time is over; returns the time taken.
    async fn turns<S: Side>(&self, side: &S, seconds: f64) -> f64 {
        let mut sides = Vec::new();
        for _ in 0..self.tasks {
            sides.push(side.of_task().await);
        }
        TURNS.store(0, Relaxed);
        let start = now();
        let end = start + (seconds * 1e9) as u64;
        let mut running = Vec::new();
        for (task, side) in (0..).zip(sides) {
            let &Self { share, hold, spread, rest, .. } = self;
            running.push(tokio::spawn(async move {
                for turn in 0.. {
                    let held = side.lock(&key(task / share, if hold == 0 { turn % 256 } else { 0 })).await;
                    if hold > 0 {
                        let taken = now();
                        let longer = if spread > 0 { (taken >> 8) % (spread * 1000) } else { 0 };
                        Delay::new(Duration::from_micros(hold * 1000 + longer)).await;
                        ROWS.lock().expect("no panic").push([task, taken, now()]);
                    }
                    side.unlock(held).await;
                    if now() >= end {
                        break;
                    }
                    TURNS.fetch_add(1, Relaxed);
                    if rest > 0 {
                        tokio::time::sleep(Duration::from_millis(rest)).await;
                    }
                }
            }));
        }
        tokio::time::sleep(Duration::from_nanos(end.saturating_sub(now()))).await;
        let took = (now() - start) as f64 / 1e9;
        // No lock stays held for the next run.
        let ended = async {
            for task in running {
                task.await.expect("no panic");
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(10), ended).await;
        took
    }
}

fn key(group: u64, turn: u64) -> String {
    static RUN: LazyLock<String> = LazyLock::new(|| std::env::var("PEERS_RUN").unwrap_or_default());
    format!("peers:{}{group}:{turn}", *RUN)
}

/// Nanoseconds of the monotonic clock, which all processes of the machine share.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn ready() {
    say("ready");
    if stdin().read_line(&mut String::new()).expect("a line") == 0 {
        std::process::exit(1);
    }
}

fn finish(seconds: f64) -> ! {
    let (turns, lost) = (TURNS.load(Relaxed), LOST.load(Relaxed));
    let rows = ROWS.lock().expect("no panic").clone();
    say(&format!(r#"{{"seconds": {seconds:.6}, "turns": {turns}, "lost": {lost}, "rows": {rows:?}}}"#));
    stdin().read_line(&mut String::new()).expect("the end"); // scripts/peers reads /proc until then
    std::process::exit(0)
}

fn say(line: &str) {
    writeln!(stdout(), "{line}").and_then(|()| stdout().flush()).expect("scripts/peers reads");
}
