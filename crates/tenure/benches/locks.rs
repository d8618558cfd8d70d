//! The cost of a lock without a server.
//!
//! Prints the median, minimum and maximum of several rounds, which reveal a noisy machine.
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "a benchmark reads the clock")]

#[path = "../tests/common/subscriber.rs"]
mod subscriber;

use std::fs;
use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, openat, renameat, unlinkat};
use rustix::io::write;
use rustix::time::{ClockId, clock_gettime};
use subscriber::Hears;
use tenure::{Locks, block_on};
use tracing::subscriber::{NoSubscriber, with_default};

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(700);

fn main() {
    println!("{:<58} {:>10} {:>10} {:>10}", "", "median", "least", "greatest");
    // First, and only once, because later rounds would reuse the memory.
    let bytes = bytes_per_guard(&Locks::memory());
    println!("{:<58} {bytes:>10.0}", "memory: bytes per held guard, 10,000 held");
    report("memory: uncontended pairs/s, one task", || pairs_per_s(&Locks::memory()));
    on_files("on disk", &std::env::temp_dir());
    on_files("in memory", Path::new("/dev/shm"));
    report("memory: CPU of a pair in ns, no subscriber", || cpu_of_pair(&Locks::memory()));
    grouped();
    with_default(NoSubscriber::default(), || {
        report("the same, a subscriber that wants no event", || cpu_of_pair(&Locks::memory()));
    });
    with_default(Hears(|said| drop(black_box(said))), || {
        report("the same, a subscriber that takes all of them", || cpu_of_pair(&Locks::memory()));
    });
}

/// The file store compared with its unavoidable system calls, alternating.
fn on_files(place: &str, parent: &Path) {
    let Ok(dir) = tempfile::tempdir_in(parent) else { return println!("file, {place}: no directory there") };
    let locks = Locks::open(&format!("file:{}", dir.path().display())).expect("a store");
    let bare = Bare::new(dir.path());
    let rounds: Vec<[Rate; 2]> = (0..ROUNDS).map(|_| [rate_of(&locks), bare.rate()]).collect();
    let print = |what: &str, digits: usize, of: &dyn Fn(&[Rate; 2]) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        let what = format!("file, {place}: {what}");
        let [median, least, greatest] = [all[ROUNDS / 2], all[0], all[ROUNDS - 1]];
        println!("{what:<58} {median:>10.digits$} {least:>10.digits$} {greatest:>10.digits$}");
    };
    print("uncontended pairs/s, one task", 0, &|round| round[0].per_s);
    print("bare flock, write and rename", 0, &|round| round[1].per_s);
    print("share of the bare pairs", 2, &|round| round[0].per_s / round[1].per_s);
    print("pairs per second of processor", 0, &|round| round[0].per_cpu_s);
    print("bare pairs per second of processor", 0, &|round| round[1].per_cpu_s);
    print("share of the bare pairs, by processor", 2, &|round| round[0].per_cpu_s / round[1].per_cpu_s);
}

/// A handmade lock: writes and renames a file under a `flock`, and later unlinks it.
struct Bare {
    dir: OwnedFd,
    guard: OwnedFd,
}

impl Bare {
    const TEXT: [u8; 200] = [b'x'; 200];

    fn new(path: &Path) -> Self {
        let dir =
            rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).expect("a directory");
        let guard = Self::create(&dir, "bare-guard");
        Self { dir, guard }
    }

    fn create(dir: &OwnedFd, name: &str) -> OwnedFd {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        openat(dir, name, flags, Mode::from_raw_mode(0o600)).expect("a file")
    }

    fn under_guard(&self, change: impl FnOnce(&OwnedFd)) {
        flock(&self.guard, FlockOperation::LockExclusive).expect("a lock");
        change(&self.dir);
        flock(&self.guard, FlockOperation::Unlock).expect("an unlock");
    }

    fn rate(&self) -> Rate {
        per_s(|| {
            self.under_guard(|dir| {
                write(Self::create(dir, "bare-temp"), &Self::TEXT).expect("written");
                renameat(dir, "bare-temp", dir, "bare").expect("renamed");
            });
            self.under_guard(|dir| unlinkat(dir, "bare", AtFlags::empty()).expect("removed"));
        })
    }
}

/// With counters for groups of names.
fn grouped() {
    let by_prefix = |options: tenure::Options| options.groups(tenure::metrics::Groups::by_prefix('i'));
    let locks = Locks::memory().with(by_prefix).expect("options");
    report("the same, counted by a rule of groups", || cpu_of_pair(&locks));
}

/// CPU time of the thread for one acquire and release, in nanoseconds, which other programs affect less than
/// wall-clock time.
fn cpu_of_pair(locks: &Locks) -> f64 {
    const PAIRS: u32 = 200_000;
    let mutex = locks.mutex("pairs").expect("a name");
    let computed = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a time");
    let before = computed();
    block_on(async {
        for _ in 0..PAIRS {
            let guard = mutex.lock().await.expect("a free lock");
            guard.release().await.expect("a release");
        }
    });
    (computed() - before).as_secs_f64() * 1e9 / f64::from(PAIRS)
}

fn report(what: &str, mut measure: impl FnMut() -> f64) {
    let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| measure()).collect();
    rounds.sort_by(f64::total_cmp);
    println!("{what:<58} {:>10.0} {:>10.0} {:>10.0}", rounds[ROUNDS / 2], rounds[0], rounds[ROUNDS - 1]);
}

/// Pairs per second of wall-clock time and of CPU time; other programs affect the latter less.
struct Rate {
    per_s: f64,
    per_cpu_s: f64,
}

fn pairs_per_s(locks: &Locks) -> f64 {
    rate_of(locks).per_s
}

fn rate_of(locks: &Locks) -> Rate {
    let mutex = locks.mutex("pairs").expect("a name");
    per_s(|| {
        block_on(async {
            let guard = mutex.lock().await.expect("a free lock");
            guard.release().await.expect("a release");
        });
    })
}

fn per_s(mut pair: impl FnMut()) -> Rate {
    let computed = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).expect("a time");
    let (started, before) = (Instant::now(), computed());
    let mut pairs = 0_u32;
    while started.elapsed() < ROUND {
        (0..64).for_each(|_| pair());
        pairs += 64;
    }
    let pairs = f64::from(pairs);
    let (per_s, per_cpu_s) =
        (pairs / started.elapsed().as_secs_f64(), pairs / (computed() - before).as_secs_f64());
    Rate { per_s, per_cpu_s }
}

/// Memory per held lock, including the store's own.
fn bytes_per_guard(locks: &Locks) -> f64 {
    const GUARDS: usize = 10_000;
    let locks = locks.with(|options| options.label("bench").ttl(Duration::from_secs(60))).expect("options");
    let mut guards = Vec::with_capacity(GUARDS);
    let before = resident_bytes();
    for number in 0..GUARDS {
        let mutex = locks.mutex(format!("guard:{number}")).expect("a name");
        guards.push(block_on(mutex.lock()).expect("a free lock"));
    }
    (resident_bytes() - before) / GUARDS as f64
}

fn resident_bytes() -> f64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line about memory");
    let kib: f64 = line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a number");
    kib * 1024.0
}
