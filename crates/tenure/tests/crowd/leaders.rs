//! An election among processes with different clocks. Leaders and others are killed, paused, or cut off from
//! the server, and each process observes the leader.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use futures_util::future::join;
use rustix::process::{Pid, Signal, kill_process};
use tenure::{Change, Election, Locks, Options, block_on};
use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::servers::Server;
use tenure_testkit::{setting, skewed};
use tokio::runtime::Builder;
use tokio::time::sleep;

use crate::log::now;

/// The first argument of a process of this crowd.
pub(crate) const MARK: &str = "--candidate-of-an-election";

const PROCESSES: usize = 6;
const TTL: Duration = Duration::from_millis(1_200);
/// Length of most undisturbed terms.
const TERM: Duration = Duration::from_millis(300);
/// How far the first clock is behind and the last one ahead.
const APART_MS: i64 = 5_000;

/// The process: a candidate and an observer, until it is killed.
pub(crate) fn run(args: &[String]) {
    let [url, directory, by_ms] = args else { panic!("not started by a crowd: {args:?}") };
    let path = Path::new(directory).join(format!("log-{}", std::process::id()));
    let log = OpenOptions::new().append(true).create(true).open(path).expect("a log");
    let note = |line: String| (&log).write_all(line.as_bytes()).expect("a line in the log");
    let locks = skewed::client(url, by_ms.parse().expect("a number"), Options::new().ttl(TTL));
    let election = locks.election("crowd", std::process::id().to_string()).expect("a name");
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(join(lead(&election, note), observe(&election, note)));
}

/// Records each time that the term reported itself as current, with a time before and one after.
async fn lead(election: &Election, note: impl Fn(String)) {
    loop {
        let led = election.lead(async |term| {
            // One in three terms is long enough to be disturbed.
            let time = if term.fence().is_multiple_of(3) { TERM * 8 } else { TERM };
            let resigns = now() + time.as_nanos() as u64;
            loop {
                // Checked also after a pause that outlasted the term.
                let before = now();
                if term.is_current() {
                    note(format!("leads {} {before} {}\n", term.fence(), now()));
                }
                if now() >= resigns {
                    break;
                }
                sleep(Duration::from_millis(2)).await;
            }
        });
        if let Err(error) = led.await {
            assert!(error.is_lost() || error.is_unreachable() || error.is_unknown(), "{error:?}");
        }
        sleep(Duration::from_millis(5)).await;
    }
}

async fn observe(election: &Election, note: impl Fn(String)) {
    let mut observer = election.observe();
    loop {
        match observer.next().await {
            Ok(Change::Elected(leader)) => note(format!("elected {}\n", leader.fence)),
            Ok(Change::Missed(_)) => note("missed\n".into()),
            Ok(Change::Resigned(_) | Change::Updated(_)) => {}
            Ok(change) => panic!("no failover was: {change:?}"),
            Err(error) => assert!(error.is_unreachable() || error.is_unknown(), "{error:?}"),
        }
    }
}

struct Member {
    process: Child,
    proxy: Proxy,
    by_ms: i64,
}

struct Crowd {
    dir: tempfile::TempDir,
    members: Vec<Member>,
}

impl Crowd {
    fn add(&mut self, proxy: Proxy, by_ms: i64) {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args([MARK, &proxy.url()]).arg(self.dir.path()).arg(by_ms.to_string());
        let process = command.stdout(Stdio::null()).spawn().expect("a process");
        self.members.push(Member { process, proxy, by_ms });
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for Member { process, .. } in &mut self.members {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A disturbance, and its end.
enum Harm {
    Paused(Pid),
    CutOff(usize),
}

/// Leads for 8 s; `TENURE_LEADERS` overrides it.
pub(crate) fn crowd() {
    let end = now() + Duration::from_secs(setting("TENURE_LEADERS").unwrap_or(8)).as_nanos() as u64;
    let server = Server::start();
    let mut crowd = Crowd { dir: tempfile::tempdir().expect("a temporary directory"), members: Vec::new() };
    for at in 0..PROCESSES as i64 {
        let by_ms = -APART_MS + 2 * APART_MS * at / (PROCESSES as i64 - 1);
        crowd.add(Proxy::start(server.address()), by_ms);
    }
    let election = Locks::open(&server.url()).and_then(|locks| locks.election("crowd", "")).expect("a name");
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let (mut killed, mut paused, mut cut_off) = (0, 0, 0);
    let mut harm: Option<(Harm, u64)> = None;
    let mut next_fault = now() + 1_000_000_000;
    while now() < end || harm.is_some() {
        match &harm {
            Some((harmed, until)) if now() >= *until => {
                match harmed {
                    Harm::Paused(pid) => kill_process(*pid, Signal::CONT).expect("a child"),
                    Harm::CutOff(at) => crowd.members[*at].proxy.set(Fault::None),
                }
                harm = None;
                next_fault = now() + 300_000_000;
            }
            None if now() >= next_fault => {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                // Three of four victims are the leader, as far as the server knows.
                let leader = block_on(election.leader()).ok().flatten().map(|leader| leader.owner.pid());
                let any = (random >> 8) as usize % PROCESSES;
                let leads = crowd.members.iter().position(|member| Some(member.process.id()) == leader);
                let victim = if random.is_multiple_of(4) { any } else { leads.unwrap_or(any) };
                let until = now() + Duration::from_millis(100 + (random >> 16) % 2_500).as_nanos() as u64;
                match (random >> 40) % 3 {
                    0 => {
                        killed += 1;
                        let Member { mut process, proxy, by_ms } = crowd.members.swap_remove(victim);
                        process.kill().and_then(|()| process.wait()).expect("a killed process");
                        crowd.add(proxy, by_ms);
                        next_fault = now() + 800_000_000;
                    }
                    1 => {
                        paused += 1;
                        let pid = Pid::from_child(&crowd.members[victim].process);
                        kill_process(pid, Signal::STOP).expect("a child");
                        harm = Some((Harm::Paused(pid), until));
                    }
                    _ => {
                        cut_off += 1;
                        crowd.members[victim].proxy.set(Fault::BlackHole);
                        harm = Some((Harm::CutOff(victim), until));
                    }
                }
            }
            _ => {}
        }
        for Member { process, .. } in &mut crowd.members {
            assert!(process.try_wait().expect("a child").is_none(), "a process has ended by itself");
        }
        thread::sleep(Duration::from_millis(5));
    }
    let logs: Vec<PathBuf> =
        fs::read_dir(crowd.dir.path()).expect("logs").map(|entry| entry.expect("a log").path()).collect();
    let texts: Vec<String> = logs.iter().map(|path| fs::read_to_string(path).expect("a log")).collect();
    let terms = judge(&texts);
    println!("{terms} terms; {killed} processes killed, {paused} paused, {cut_off} cut off");
}

/// Returns the number of terms.
fn judge(logs: &[String]) -> usize {
    // For each term its leader, and the first and last time at which it was certainly current.
    let mut terms: BTreeMap<u64, (usize, u64, u64)> = BTreeMap::new();
    let mut elected: BTreeSet<u64> = BTreeSet::new();
    for (at, log) in logs.iter().enumerate() {
        // A killed process leaves half a line.
        for line in log.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().expect("a number");
            match words[0] {
                "leads" => {
                    let (fence, before, after) = (number(1), number(2), number(3));
                    let (who, first, last) = terms.entry(fence).or_insert((at, after, before));
                    assert_eq!(*who, at, "term {fence} was told to two");
                    (*first, *last) = ((*first).min(after), (*last).max(before));
                }
                "elected" => drop(elected.insert(number(1))),
                _ => {}
            }
        }
    }
    let mut latest = (0, 0);
    for (fence, (_, first, last)) in &terms {
        let (before, until) = latest;
        assert!(
            until <= *first,
            "term {before} was told that it led {} us after term {fence} was",
            (until - first) / 1_000
        );
        latest = if *last > until { (*fence, *last) } else { latest };
    }
    for log in logs {
        let mut last = None;
        let mut has_missed = true;
        for line in log.lines() {
            match line.split_once(' ') {
                Some(("elected", fence)) => {
                    let Ok(fence) = fence.parse::<u64>() else { continue };
                    if let Some(last) = last {
                        assert!(last < fence, "term {fence} was told after term {last}");
                        let between = elected.range(last + 1..fence).count();
                        assert!(has_missed || between == 0, "{between} terms before {fence} were not told");
                    }
                    (last, has_missed) = (Some(fence), false);
                }
                None if line == "missed" => has_missed = true,
                _ => {}
            }
        }
    }
    assert!(terms.len() >= 3 && elected.len() >= 3, "{} terms, {} told", terms.len(), elected.len());
    terms.len()
}
