//! Crowds of real processes at one lock on a real server, with some of them killed: what each was told goes into a log, and the logs
//! are judged when all is over. A hunt, not a measurement: it ends with a panic when anything is wrong.
//!
//! `cargo bench -p tenure --bench crowd`
#![expect(clippy::disallowed_methods, reason = "real processes take real time")]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use rustix::time::{ClockId, clock_gettime};
use tenure::{Guard, Locks, Options, Owner, Result, block_on};
use tenure_testkit::servers::Server;

const PROCESSES: usize = 4;
const TASKS: usize = 25;
const ACQUISITIONS: u64 = 25_000;
const KILLS: u32 = 12;
const TTL: Duration = Duration::from_millis(400);
const CAPACITY: u32 = 5;

const KINDS: [&str; 5] = ["mutex", "fair", "reentrant", "rwlock", "semaphore"];

fn main() {
    match std::env::var("TENURE_CROWD_KIND") {
        Ok(kind) => member(&kind),
        Err(_) => KINDS.into_iter().for_each(crowd),
    }
}

/// A process of the crowd: this same program, started again by [`crowd`].
fn member(kind: &str) {
    let url = std::env::var("TENURE_CROWD_URL").expect("a store");
    let log = std::env::var("TENURE_CROWD_LOG").expect("a log");
    let stop = PathBuf::from(std::env::var("TENURE_CROWD_STOP").expect("a file to stop at"));
    let locks = Locks::open(&url).and_then(|locks| locks.with(Options::new().ttl(TTL))).expect("a store");
    let log = OpenOptions::new().append(true).create(true).open(log).expect("a log");
    block_on(join_all((0..TASKS).map(|task| visit(&locks, kind, task, &log, &stop))));
    block_on(locks.shutdown()).expect("all released");
}

/// One task: takes its turn again and again, and writes down each time what it was told.
async fn visit(locks: &Locks, kind: &str, task: usize, log: &File, stop: &Path) {
    while !stop.exists() {
        let (weight, guard) = take(locks, kind, task).await;
        let guard = guard.expect("a grant");
        note(log, 'G', task, weight, guard.fence());
        if !guard.is_held() {
            // Lost before it could be used, in a process that had to wait for a processor.
            note(log, 'L', task, weight, guard.fence());
            continue;
        }
        note(log, if guard.is_held() { 'R' } else { 'L' }, task, weight, guard.fence());
        match guard.release().await {
            Ok(()) => {}
            Err(error) => assert!(error.is_lost(), "{error:?}"),
        }
    }
}

async fn take(locks: &Locks, kind: &str, task: usize) -> (u32, Result<Guard>) {
    match kind {
        "mutex" => (CAPACITY, locks.mutex("crowd").expect("a name").lock().await),
        "fair" => (CAPACITY, locks.fair("crowd").expect("a name").lock().await),
        "reentrant" => {
            let owner = Owner::new("crowd").expect("an owner");
            (CAPACITY, locks.reentrant("crowd", &owner).expect("a name").lock().await)
        }
        "rwlock" if task.is_multiple_of(5) => {
            (CAPACITY, locks.rwlock("crowd").expect("a name").write().await)
        }
        // Any number of readers: they weigh nothing but beside a writer.
        "rwlock" => (0, locks.rwlock("crowd").expect("a name").read().await),
        "semaphore" => {
            let permits = 1 + task as u32 % 3;
            (permits, locks.semaphore("crowd", CAPACITY).expect("a name").acquire(permits).await)
        }
        other => panic!("no kind: {other}"),
    }
}

const LINE: usize = 64;

/// One line of a fixed length, written at once: a killed process leaves whole lines, so they can be counted by the file's size.
fn note(mut log: &File, what: char, task: usize, weight: u32, fence: u64) {
    let line = format!("{what} {:>20} {task:>4} {weight:>4} {fence:>20}", now());
    writeln!(log, "{line:<width$}", width = LINE - 1).expect("a line in the log");
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

struct Member {
    child: Child,
    log: PathBuf,
    /// When it was killed.
    killed: Option<u64>,
}

fn crowd(kind: &str) {
    let server = Server::start();
    let dir = tempfile::tempdir().expect("a directory");
    let stop = dir.path().join("stop");
    let mut started = 0;
    let mut start = || {
        let log = dir.path().join(format!("log-{started}"));
        started += 1;
        let child = Command::new(std::env::current_exe().expect("this program"))
            .env("TENURE_CROWD_KIND", kind)
            .env("TENURE_CROWD_URL", server.url())
            .env("TENURE_CROWD_LOG", &log)
            .env("TENURE_CROWD_STOP", &stop)
            .stdout(Stdio::null())
            .spawn()
            .expect("a process");
        Member { child, log, killed: None }
    };
    let mut members: Vec<Member> = (0..PROCESSES).map(|_| start()).collect();
    let begun = now();
    for kill in 0..=u64::from(KILLS) {
        let until = ACQUISITIONS * (kill + 1) / u64::from(KILLS + 1);
        while taken(&members) < until {
            let minutes = Duration::from_nanos(now() - begun).as_secs() / 60;
            assert!(minutes < 4, "{kind}: {} of {ACQUISITIONS} in {minutes} minutes", taken(&members));
            thread::sleep(Duration::from_millis(5));
        }
        if kill < u64::from(KILLS) {
            let victim = members.len() - 1 - (kill as usize % PROCESSES);
            let victim = &mut members[victim];
            // Before the kill: until then at least it believed what it was told.
            if victim.killed.is_none() {
                victim.killed = Some(now());
                victim.child.kill().and_then(|()| victim.child.wait()).expect("a killed process");
                members.push(start());
            }
        }
    }
    File::create(&stop).expect("a file");
    for member in members.iter_mut().filter(|member| member.killed.is_none()) {
        assert!(member.child.wait().expect("an end").success(), "{kind}: a survivor failed");
    }
    let ended = now();
    judge(kind, &members);
    left_behind(kind, &server);
    let seconds = Duration::from_nanos(ended - begun).as_secs_f64();
    println!(
        "{kind}: {} acquisitions in {seconds:.1} s, {} kills",
        taken(&members),
        members.len() - PROCESSES
    );
}

fn taken(members: &[Member]) -> u64 {
    let lines = |member: &Member| fs::metadata(&member.log).map_or(0, |log| log.len()) / LINE as u64;
    members.iter().map(lines).sum::<u64>() / 2
}

/// Nobody overlaps, tokens grow, everybody who survives gets a turn, and no turn is lost for longer than a dead holder costs.
fn judge(kind: &str, members: &[Member]) {
    // (time, weight change, token): the end of one turn sorts before the beginning of the next.
    let mut events: Vec<(u64, i64, u64)> = Vec::new();
    for member in members {
        let text = fs::read_to_string(&member.log).expect("a log");
        let mut turns = [0_u32; TASKS];
        let mut inside: [Option<(i64, u64)>; TASKS] = [None; TASKS];
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [what, time, task, weight, fence] = words[..] else { continue };
            let (time, fence): (u64, u64) = (time.parse().expect("a time"), fence.parse().expect("a token"));
            let (task, weight): (usize, i64) =
                (task.parse().expect("a task"), weight.parse().expect("a weight"));
            if what == "G" {
                events.push((time, weight + 1, fence));
                inside[task] = Some((weight, fence));
                turns[task] += 1;
            } else {
                events.push((time, -weight - 1, fence));
                inside[task] = None;
            }
        }
        for (weight, fence) in inside.into_iter().flatten() {
            let killed = member.killed.expect("a survivor says when its turn ends");
            events.push((killed, -weight - 1, fence));
        }
        if member.killed.is_none() && text.len() > LINE * TASKS * 40 {
            assert!(turns.iter().all(|turns| *turns > 0), "{kind}: somebody starved: {turns:?}");
        }
    }
    events.sort_unstable();
    let (mut used, mut sharing, mut last, mut idle_since, mut longest) = (0, 0, 0, None, 0);
    for (time, change, fence) in events {
        // One was added to each weight, so that an event always says whether somebody came or went.
        let came = change > 0;
        let weight = change.abs() - 1;
        if came {
            used += weight;
            sharing += 1;
            assert!(used <= i64::from(CAPACITY), "{kind}: overlap at {time}: {used} of {CAPACITY}");
            let is_alone = weight == i64::from(CAPACITY);
            assert!(!is_alone || sharing == 1, "{kind}: {sharing} at {time} beside one that has all");
            assert!(
                used < i64::from(CAPACITY) || sharing == 1 || kind == "semaphore",
                "{kind}: beside a writer at {time}"
            );
            if is_alone && kind != "rwlock" {
                assert!(fence > last, "{kind}: token {fence} after {last}");
                last = fence;
            }
            if let Some(since) = idle_since.take() {
                longest = longest.max(time - since);
            }
        } else {
            used -= weight;
            sharing -= 1;
            if sharing == 0 {
                idle_since = Some(time);
            }
        }
    }
    let longest = Duration::from_nanos(longest);
    println!("{kind}: longest pause {longest:?}");
    // A killed holder costs its lease; everything else is a wake-up that was lost. Twice as much for a busy machine.
    assert!(longest < 2 * TTL + Duration::from_secs(1), "{kind}: nobody for {longest:?}");
}

/// Only counters, and they end by themselves.
fn left_behind(kind: &str, server: &Server) {
    thread::sleep(TTL + Duration::from_millis(1_200));
    for key in server.command(&["KEYS", "*"]).items() {
        let key = key.text();
        assert!(key.starts_with("tenure:fence:"), "{kind}: {key} is left behind");
        assert!(server.command(&["PTTL", key]).int() > 0, "{kind}: {key} has no end");
    }
}
