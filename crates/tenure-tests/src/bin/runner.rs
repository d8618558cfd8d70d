//! Runs a test binary for cargo (`target.TRIPLE.runner`) while a thread watches for stalls: times in which
//! the machine ran nothing, or had no processor for a thread of the tests. A failed test that a stall fell
//! into says nothing about the code: it goes to the list of tests that `scripts/test` runs again,
//! alone. Every other failure is one.
//!
//! ```text
//! runner BINARY [ARGUMENT]...
//! ```
//!
//! `TENURE_RERUN` names the list. Each line of it has the working directory, the binary and the
//! test, separated by tabs.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a stall is seen in real time, by a thread"
)]

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Tick interval of the watch.
const TICK: Duration = Duration::from_millis(10);
/// A tick this late is a stall, which can cost a test its shortest lease.
const STALL: Duration = Duration::from_millis(50);
/// Ticks between two checks of how long each thread waited for a processor.
const LOOK: u32 = 10;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let Some(binary) = words.next() else {
        eprintln!("usage: runner BINARY [ARGUMENT]...");
        return ExitCode::from(64);
    };
    let arguments: Vec<OsString> = words.collect();
    match run(&binary, &arguments) {
        Ok(code) => u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from),
        Err(error) => {
            eprintln!("cannot run {}: {error}", Path::new(&binary).display());
            ExitCode::FAILURE
        }
    }
}

fn run(binary: &OsStr, arguments: &[OsString]) -> io::Result<i32> {
    // Start before the first test, because a stall may come in between.
    let mut log = Log::new(Instant::now());
    let tests = Arc::<AtomicU32>::default();
    let stalls = watch(&tests);
    let mut child = Command::new(binary).args(arguments).stdout(Stdio::piped()).spawn()?;
    tests.store(child.id(), Ordering::Relaxed);
    let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
    let (mut line, mut stdout) = (Vec::new(), io::stdout());
    while output.read_until(b'\n', &mut line)? > 0 {
        log.line(&String::from_utf8_lossy(&line), Instant::now());
        stdout.write_all(&line)?;
        stdout.flush()?;
        line.clear();
    }
    let status = child.wait()?;
    let code = status.code().unwrap_or(1); // killed by a signal
    let Some(list) = std::env::var_os("TENURE_RERUN").filter(|_| !log.failed.is_empty()) else {
        return Ok(code);
    };

    // A stall is noticed when it ends.
    thread::sleep(2 * STALL);
    let listed = Command::new(binary).args(arguments).args(["--list", "--format", "terse"]).output()?;
    let order = in_order(&String::from_utf8_lossy(&listed.stdout));
    let stalls = stalls.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let stalled = log.stalled(&order, threads(arguments), &stalls);
    if stalled.is_empty() {
        return Ok(code);
    }
    let mut list = OpenOptions::new().create(true).append(true).open(list)?;
    let directory = std::env::current_dir()?;
    for (test, stall) in &stalled {
        let ms = stall.as_millis();
        println!("the machine stalled for {ms} ms during {test}: it runs again, alone, after all others");
        writeln!(list, "{}\t{}\t{test}", directory.display(), Path::new(binary).display())?;
    }
    println!();
    // Cargo continues with the next binary unless a test failed without a stall.
    Ok(if log.failures == Some(stalled.len()) { 0 } else { code })
}

/// A time in which the machine did not run what was due.
#[derive(Clone, Copy, Debug)]
struct Stall {
    from: Instant,
    to: Instant,
}

/// Starts the thread that records stalls of the machine and of the threads of this process; the pid is 0
/// until it runs.
fn watch(pid: &Arc<AtomicU32>) -> Arc<Mutex<Vec<Stall>>> {
    let stalls = Arc::<Mutex<Vec<Stall>>>::default();
    let (noted, pid) = (Arc::clone(&stalls), Arc::clone(pid));
    let mut due = Instant::now() + TICK; // the thread may not run yet
    thread::spawn(move || {
        let mut waits = BTreeMap::new();
        for tick in 1_u32.. {
            thread::sleep(TICK);
            let now = Instant::now();
            let note =
                |from| noted.lock().unwrap_or_else(PoisonError::into_inner).push(Stall { from, to: now });
            if now.saturating_duration_since(due) >= STALL {
                note(due);
            }
            if tick.is_multiple_of(LOOK) {
                let before = std::mem::replace(&mut waits, waits_of(pid.load(Ordering::Relaxed)));
                let waited = |(thread, total): (&u64, &Duration)| {
                    total.saturating_sub(*before.get(thread).unwrap_or(&Duration::ZERO))
                };
                let longest = waits.iter().map(waited).max().unwrap_or_default();
                if longest >= STALL {
                    note(now.checked_sub(longest.max(LOOK * TICK)).unwrap_or(now));
                }
            }
            due = Instant::now() + TICK;
        }
    });
    stalls
}

/// How long each thread of a process has waited for a processor: the second field of `schedstat`.
fn waits_of(pid: u32) -> BTreeMap<u64, Duration> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let wait_of = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        let nanos = text.split_whitespace().nth(1)?.parse().ok()?;
        Some((thread.file_name().to_str()?.parse().ok()?, Duration::from_nanos(nanos)))
    };
    threads.filter_map(wait_of).collect()
}

/// The tests in a list of libtest, in the order in which they start.
fn in_order(list: &str) -> Vec<String> {
    list.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// Number of tests that libtest runs concurrently.
fn threads(arguments: &[OsString]) -> usize {
    let words: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
    let flag = words.iter().enumerate().find_map(|(at, word)| match word.strip_prefix("--test-threads") {
        Some("") => words.get(at + 1)?.parse().ok(),
        Some(count) => count.strip_prefix('=')?.parse().ok(),
        None => None,
    });
    let variable = || std::env::var("RUST_TEST_THREADS").ok()?.parse().ok();
    flag.or_else(variable).unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from))
}

/// The output of libtest, with times.
struct Log {
    started: Instant,
    /// When each test ended, in order.
    ends: Vec<Instant>,
    failed: BTreeMap<String, Instant>,
    /// The number of failures in libtest's summary.
    failures: Option<usize>,
}

impl Log {
    fn new(started: Instant) -> Self {
        Self { started, ends: Vec::new(), failed: BTreeMap::new(), failures: None }
    }

    fn line(&mut self, line: &str, at: Instant) {
        let Some(line) = line.trim_end().strip_prefix("test ") else { return };
        if let Some(summary) = line.strip_prefix("result: FAILED. ") {
            let count = summary.split("; ").find_map(|part| part.strip_suffix(" failed"));
            self.failures = count.and_then(|count| count.parse().ok());
        } else if let Some((name, outcome)) = line.split_once(" ... ") {
            self.ends.push(at);
            if outcome == "FAILED" {
                let name = name.strip_suffix(" - should panic").unwrap_or(name);
                self.failed.insert(name.to_owned(), at);
            }
        }
    }

    /// When a test started: the first ones immediately, every other when an earlier one ended.
    fn start(&self, order: &[String], threads: usize, test: &str) -> Option<Instant> {
        let place = order.iter().position(|name| name == test)?;
        match place.checked_sub(threads) {
            None => Some(self.started),
            Some(end) => self.ends.get(end).copied(),
        }
    }

    /// The failed tests that overlap a stall, and the longest stall of each.
    fn stalled(&self, order: &[String], threads: usize, stalls: &[Stall]) -> Vec<(String, Duration)> {
        let longest = |(test, end): (&String, &Instant)| {
            let start = self.start(order, threads, test)?;
            let within = stalls.iter().filter(|stall| stall.from <= *end && stall.to >= start);
            Some((test.clone(), within.map(|stall| stall.to - stall.from).max()?))
        };
        let mut stalled: Vec<_> = self.failed.iter().filter_map(longest).collect();
        stalled.sort();
        stalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Four tests, two at a time: `b` ends after 10 ms and `a` after 40 ms. Each fails.
    fn log(begin: Instant) -> (Log, Vec<String>) {
        let mut log = Log::new(begin);
        for (line, at) in [
            ("running 4 tests\n", 0),
            ("test b ... FAILED\n", 10),
            ("test a - should panic ... FAILED\n", 40),
            ("test c ... ok\n", 60),
            ("test d ... FAILED\n", 90),
            ("test result: FAILED. 1 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out\n", 95),
        ] {
            log.line(line, begin + ms(at));
        }
        (log, in_order("a: test\nb: test\nc: test\nd: test\n\n4 tests, 0 benchmarks\n"))
    }

    #[test]
    fn only_failures_with_a_stall_in_their_time_run_again() {
        let begin = Instant::now();
        let (log, order) = log(begin);
        let during = |from, to| {
            let stall = Stall { from: begin + ms(from), to: begin + ms(to) };
            log.stalled(&order, 2, &[stall]).into_iter().map(|(test, _)| test).collect::<Vec<_>>()
        };
        assert_eq!(log.failures, Some(3));
        assert_eq!(during(2, 5), ["a", "b"]);
        assert_eq!(during(20, 30), ["a"]);
        assert_eq!(during(35, 45), ["a", "d"], "d starts when a ends");
        assert_eq!(during(91, 99), [""; 0]);
        assert!(log.stalled(&order, 2, &[]).is_empty(), "a failure without a stall is one");
    }

    #[test]
    fn a_test_whose_start_is_unknown_does_not_run_again() {
        let begin = Instant::now();
        let (log, order) = log(begin);
        let stall = Stall { from: begin, to: begin + ms(99) };
        assert!(log.stalled(&order[..0], 2, &[stall]).is_empty());
    }

    #[test]
    fn the_number_of_threads_is_libtests() {
        let threads = |words: &[&str]| threads(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(threads(&["--test-threads", "3"]), 3);
        assert_eq!(threads(&["--exact", "--test-threads=7"]), 7);
    }

    #[test]
    fn the_watch_notes_a_late_tick() {
        let stalls = watch(&Arc::default());
        // Stopping this process looks like a stall of the machine.
        let script = format!("kill -STOP {0}; sleep 0.3; kill -CONT {0}", std::process::id());
        let status = Command::new("sh").args(["-c", &script]).status().expect("a shell");
        assert!(status.success());
        let limit = Instant::now() + Duration::from_secs(30);
        let noted = || stalls.lock().expect("no panic").iter().any(|stall| stall.to - stall.from > ms(200));
        while !noted() {
            assert!(Instant::now() < limit, "the stall is not noted");
            thread::sleep(TICK);
        }
    }

    /// The lowest priority, beside programs that use all processors.
    #[test]
    fn a_thread_that_gets_no_processor_has_waited() {
        let spin = "while :; do :; done";
        let all = thread::available_parallelism().map_or(1, usize::from);
        let mut loops: Vec<_> =
            (0..all).map(|_| Command::new("sh").args(["-c", spin]).spawn().expect("a shell")).collect();
        let idle = ["--idle", "0", "sh", "-c", spin];
        let mut starved = Command::new("chrt").args(idle).spawn().expect("chrt of util-linux");
        let limit = Instant::now() + Duration::from_secs(30);
        let has_waited = || waits_of(starved.id()).values().any(|waited| *waited >= STALL);
        while !has_waited() && Instant::now() < limit {
            thread::sleep(TICK);
        }
        let seen = has_waited();
        for process in loops.iter_mut().chain([&mut starved]) {
            process.kill().and_then(|()| process.wait()).expect("it ends");
        }
        assert!(seen, "the wait of a thread without a processor is not seen");
    }
}
