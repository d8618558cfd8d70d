//! A once-per-second job requested by twenty processes with different clocks. Some of them are killed or
//! paused, most of them during a run.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use tenure::{Locks, Options, Outcome, block_on};
use tenure_testkit::servers::Server;
use tenure_testkit::{setting, skewed};
use tokio::runtime::Builder;

/// The first argument of a process that asks for the job.
pub(crate) const MARK: &str = "--runner-of-a-job";

const PROCESSES: i64 = 20;
const WINDOW: Duration = Duration::from_secs(1);
const JOB: Duration = Duration::from_millis(250);
/// Longer than two windows, so a killed runner costs some.
const TTL: Duration = Duration::from_millis(2_500);
/// How far the first clock is behind and the last one ahead.
const APART_MS: i64 = 400;

/// The process: tries to run the job until it is killed.
pub(crate) fn run(args: &[String]) {
    let [url, log, by_ms] = args else { panic!("not started by a crowd: {args:?}") };
    let log = OpenOptions::new().append(true).create(true).open(log).expect("a log");
    let by_ms = by_ms.parse().expect("a number");
    let job = skewed::client(url, by_ms, Options::new().ttl(TTL)).once_per("windows", WINDOW);
    let job = job.expect("a name");
    Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(async {
        loop {
            let ran = job.run(async |turn| {
                let line = format!("{} {}\n", micros(turn.window().start), turn.fence());
                (&log).write_all(line.as_bytes()).expect("a line in the log");
                tokio::time::sleep(JOB).await;
                Ok::<_, fmt::Error>(())
            });
            // A runner that was paused for longer than its lease learns that it lost the lock.
            if let Err(error) = ran.await {
                assert!(error.is_lost() || error.is_unreachable() || error.is_unknown(), "{error:?}");
            }
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
    });
}

/// The last record of a window, and the disturbance of its runner.
#[derive(Debug)]
struct Told {
    pid: u32,
    is_done: bool,
}

struct Crowd {
    url: String,
    dir: tempfile::TempDir,
    processes: Vec<(Child, i64)>,
}

impl Crowd {
    fn add(&mut self, by_ms: i64) {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args([MARK, &self.url]).arg(self.dir.path().join("log")).arg(by_ms.to_string());
        self.processes.push((command.stdout(Stdio::null()).spawn().expect("a process"), by_ms));
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for (process, _) in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Runs for 8 s; `TENURE_WINDOWS` overrides it.
pub(crate) fn crowd() {
    let total = Duration::from_secs(setting("TENURE_WINDOWS").unwrap_or(8));
    let server = Server::start();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut crowd = Crowd { url: server.url(), dir, processes: Vec::new() };
    for at in 0..PROCESSES {
        crowd.add(-APART_MS + 2 * APART_MS * at / (PROCESSES - 1));
    }
    let job = Locks::open(&server.url()).and_then(|locks| locks.once_per("windows", WINDOW)).expect("a job");
    let mut told: BTreeMap<u64, Told> = BTreeMap::new();
    // Killed or paused runners, and the time in which that may cost windows.
    let mut harmed: Vec<(u32, u64, u64)> = Vec::new();
    let mut paused: Option<(Pid, u64)> = None;
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let (mut killed, mut stopped) = (0, 0);
    let (begun, mut next_fault) = (micros(SystemTime::now()), 0);
    while micros(SystemTime::now()) < begun + us(total) {
        let last = match block_on(job.last()) {
            Err(error) if error.is_unreachable() || error.is_unknown() => continue, // CPU starvation
            last => last.expect("an answer"),
        };
        if let Some(last) = &last {
            let of = Told { pid: last.owner.pid(), is_done: last.outcome == Outcome::Done };
            told.insert(micros(last.window.start), of);
        }
        let now = micros(SystemTime::now());
        if let Some((pid, until)) = paused
            && now >= until
        {
            kill_process(pid, Signal::CONT).expect("a child that no client waited for");
            paused = None;
        }
        if now >= next_fault && paused.is_none() && !told.is_empty() {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // Two of three victims run the job at that moment; the others are arbitrary.
            let runner = last.filter(|last| last.outcome == Outcome::Running).map(|last| last.owner.pid());
            let victim = if random.is_multiple_of(3) {
                Some((random >> 8) as usize % crowd.processes.len())
            } else {
                crowd.processes.iter().position(|(process, _)| Some(process.id()) == runner)
            };
            let Some(victim) = victim else { continue };
            let pid = crowd.processes[victim].0.id();
            if random & 16 == 0 {
                killed += 1;
                let (mut process, by_ms) = crowd.processes.swap_remove(victim);
                process.kill().and_then(|()| process.wait()).expect("a killed process");
                crowd.add(by_ms);
                harmed.push((pid, now, now + us(TTL)));
            } else {
                stopped += 1;
                let pause = us(Duration::from_millis(200 + (random >> 16) % 3_000));
                let process = Pid::from_child(&crowd.processes[victim].0);
                kill_process(process, Signal::STOP).expect("a child that no client waited for");
                paused = Some((process, now + pause));
                harmed.push((pid, now, now + pause + us(TTL)));
            }
            next_fault = now + 1_000_000 + (random >> 24) % 3_000_000;
        }
        thread::sleep(Duration::from_millis(15));
    }
    let log = fs::read_to_string(crowd.dir.path().join("log")).expect("a log");
    judge(&log, &told, &harmed);
    println!("{killed} processes killed, {stopped} paused");
}

fn judge(log: &str, told: &BTreeMap<u64, Told>, harmed: &[(u32, u64, u64)]) {
    let mut runs: BTreeMap<u64, u64> = BTreeMap::new();
    for line in log.lines() {
        let (window, token) = line.split_once(' ').expect("a window and a token");
        let (window, token) = (window.parse().expect("a time"), token.parse().expect("a token"));
        assert_eq!(runs.insert(window, token), None, "two runs in the window {window}");
    }
    assert!(runs.values().is_sorted_by(|one, next| one < next), "tokens fell: {runs:?}");
    let (first, last) = (*runs.keys().next().expect("runs"), *runs.keys().last().expect("runs"));
    let windows = (first..=last).step_by(us(WINDOW) as usize);
    let missed: Vec<u64> = windows.filter(|window| !runs.contains_key(window)).collect();
    for window in &missed {
        // Its own runner was disturbed, or that of an earlier window was and kept the lock.
        let runner = told.range(..=*window).next_back();
        let (begun, runner) = runner.unwrap_or_else(|| panic!("no record before the window {window}"));
        let is_excused = harmed.iter().any(|(pid, from, to)| {
            *pid == runner.pid && *from >= *begun && *from < begun + us(WINDOW) && to + us(WINDOW) > *window
        });
        assert!(is_excused, "the window {window} was missed, and the runner of {begun} lived: {runner:?}");
        assert!(!runner.is_done || begun != window, "a window without a run was told to be done");
    }
    let spread = (runs.len() + missed.len()) as u64;
    println!(
        "{spread} windows: {} run once, {} missed by runners that were harmed",
        runs.len(),
        missed.len()
    );
    assert!(runs.len() >= 3, "{} runs", runs.len());
}

fn micros(time: SystemTime) -> u64 {
    us(time.duration_since(UNIX_EPOCH).expect("after 1970"))
}

fn us(time: Duration) -> u64 {
    time.as_micros() as u64
}
