//! The cost of a lock on a server, compared with bare commands through redis-rs in the same run.
//!
//! `cargo bench -p tenure --bench redis` starts a `redis-server`. Like ours, the bare client's driver has its
//! own thread; figures with the driver on the caller's thread are printed beside. Rounds of both sides
//! alternate, so that a slow phase of the machine affects both; a row is the median of its rounds.
//!
//! Arguments select rows by parts of their names: `-- pairs` measures only uncontended pairs.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark reads the clock, sleeps and spawns"
)]

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tenure::{FairMutex, Guard, Locks, Mutex, Owner, ReentrantMutex};
use tenure_testkit::servers::Server;

mod confirmed;
mod keep;
mod pairs;
mod queue;
mod reads;
mod turns;
mod wake;

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(700);

/// The title of a measurement, and its function.
type Row = (&'static str, fn(&str, &Server));

const ROWS: [Row; 16] = [
    ("uncontended pairs/s, one task", |what, at| pairs::pairs(what, at, "mutex", 1, 0.95)),
    ("uncontended pairs/s, 64 tasks", |what, at| pairs::pairs(what, at, "mutex", 64, 0.8)),
    ("uncontended pairs/s, 64 tasks, reentrant", |what, at| pairs::pairs(what, at, "reentrant", 64, 0.5)),
    ("uncontended pairs/s, 64 tasks, fair", |what, at| pairs::pairs(what, at, "fair", 64, 0.35)),
    ("turns of 1 ms, 16 tasks: share of the ideal", |what, at| turns::turns(what, at, "mutex", 1, 16, 0.85)),
    ("turns of 1 ms, 4 processes x 4 tasks: the same", |what, at| turns::turns(what, at, "mutex", 4, 4, 0.7)),
    ("turns of 1 ms, 16 tasks, fair: the same", |what, at| turns::turns(what, at, "fair", 1, 16, 0.85)),
    ("release to return in another process, µs", wake::mutex),
    ("release to return in another process, fair, µs", wake::fair),
    ("resign to lead in another process, µs", wake::election),
    ("server time of an acquire of a queue, µs", queue::server_time),
    ("waiting and holding", keep::keep),
    ("reads/s of a fresh value, one task", |what, at| reads::reads(what, at, 1, false)),
    ("reads/s of a fresh value, 64 tasks", |what, at| reads::reads(what, at, 64, false)),
    ("reads/s of a stale value, 64 tasks", |what, at| reads::reads(what, at, 64, true)),
    ("pairs/s, 64 tasks, acks=1, beside a WAIT for each", |what, _| confirmed::pairs(what, 64, 4.0)),
];

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "turns-of-a-process", url, kind, tasks] => {
            return turns::process(url, kind, tasks.parse().expect("a number"));
        }
        [_, "waiter", url, kind] => return wake::waiter(url, kind),
        [_, "candidate", url] => return wake::candidate(url),
        [_, "hop", url, then] => return wake::hop(url, then),
        _ => {}
    }
    println!("{:<66} {:>10} {:>10} {:>8} {:>9}", "", "ours", "bare", "ratio", "reach");
    let parts: Vec<&String> = args[1..].iter().filter(|arg| !arg.starts_with('-')).collect();
    for (what, measure) in ROWS {
        if parts.is_empty() || parts.iter().any(|part| what.contains(&**part)) {
            measure(what, &Server::start());
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn row(what: &str, ours: f64, bare: f64, ratio: f64, reach: &str) {
    println!("{what:<66} {ours:>10.1} {bare:>10.1} {ratio:>8.2} {reach:>9}");
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Starts another process of this program.
fn start(args: &[&str]) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

/// A lock of any kind that has one holder at a time.
enum Lock {
    Mutex(Mutex),
    Reentrant(ReentrantMutex),
    Fair(FairMutex),
}

impl Lock {
    fn new(locks: &Locks, kind: &str, name: &str) -> Self {
        match kind {
            "mutex" => locks.mutex(name).map(Self::Mutex),
            "reentrant" => {
                Owner::new("bench").and_then(|owner| locks.reentrant_mutex(name, &owner)).map(Self::Reentrant)
            }
            "fair" => locks.fair_mutex(name).map(Self::Fair),
            other => panic!("no kind: {other}"),
        }
        .expect("a name")
    }

    async fn lock(&self) -> Guard {
        match self {
            Self::Mutex(mutex) => mutex.lock().await,
            Self::Reentrant(mutex) => mutex.lock().await,
            Self::Fair(mutex) => mutex.lock().await,
        }
        .expect("a grant")
    }
}
