//! Readers of one cached value in several processes: how often it is computed, and how long they wait.
//! Computing processes are killed, and the server is stopped for a while.

use std::convert::Infallible;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tenure::{Cache, Locks};
use tenure_testkit::servers::{Server, eventually};
use tenure_testkit::setting;
use tokio::runtime::Builder;

use crate::log::now;

/// The first argument of a process of readers.
pub(crate) const MARK: &str = "--readers-of-a-cache";

const PROCESSES: usize = 4;
const READERS: usize = 250;
const LASTS: Duration = Duration::from_secs(1);
const COMPUTES: Duration = Duration::from_millis(200);
/// A reader waits up to 5 s for another computation, and as long again for that of its own process.
const STATED: Duration = Duration::from_millis(10_500);
/// The lease of a computation; after a kill, the next one begins when it ends.
const LEASE: Duration = Duration::from_secs(3);
/// By then each process has reconnected and sent a request; both are tried about once a second.
const NOTICED: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(20);

/// The process: reads until it is killed.
pub(crate) fn read(args: &[String]) {
    let [url, dir] = args else { panic!("not started by a crowd: {args:?}") };
    let open = |name: &str| {
        let file = Path::new(dir).join(name);
        Arc::new(OpenOptions::new().append(true).create(true).open(file).expect("a log"))
    };
    let (computed, reads) = (open("computed"), open("reads"));
    let note = move |what: &str, ns: u64| {
        let file = if matches!(what, "begin" | "end") { &computed } else { &reads };
        let line = format!("{what} {} {ns}\n", std::process::id());
        (&**file).write_all(line.as_bytes()).expect("a line in the log");
    };
    let locks = Locks::open(url).expect("a store");
    let cache = locks.cache("stampede").expect("a name").jitter(0.0).early(0.0);
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime").block_on(async {
        let readers: Vec<_> =
            (0..READERS).map(|_| tokio::spawn(read_on(cache.clone(), note.clone()))).collect();
        for reader in readers {
            reader.await.expect("no reader panics");
        }
    });
}

async fn read_on(cache: Cache, note: impl Fn(&str, u64)) {
    loop {
        let asked = now();
        let computes = async || {
            note("begin", now());
            tokio::time::sleep(COMPUTES).await;
            note("end", now());
            Ok::<_, Infallible>(now().to_string())
        };
        match cache.get_or_compute(LASTS, computes).await {
            Ok(Ok(value)) => {
                let (computed, now): (u64, u64) = (value.parse().expect("a time"), now());
                note("read", now - asked);
                if now > computed + ns(LASTS) + ns(Duration::from_millis(500)) && computed < asked {
                    note("old", now);
                }
            }
            Ok(Err(never)) => match never {},
            Err(error) if error.is_overdue() => note("overdue", now()),
            Err(error) => panic!("{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
}

#[derive(Clone, Copy, Debug)]
struct Computation {
    pid: u32,
    begun: u64,
    /// When it ended, unless its process was killed.
    ended: Option<u64>,
}

struct Crowd {
    server: Server,
    dir: tempfile::TempDir,
    processes: Vec<Child>,
    /// Killed processes, and when.
    killed: Vec<(u32, u64)>,
}

impl Crowd {
    fn computations(&self) -> Vec<Computation> {
        computations(&fs::read_to_string(self.dir.path().join("computed")).unwrap_or_default())
    }

    fn add(&mut self) {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args([MARK, &self.server.url()]).arg(self.dir.path()).stdout(Stdio::null());
        self.processes.push(command.spawn().expect("a process"));
    }

    /// Kills the computing process, and starts another.
    fn kill_the_computing(&mut self) {
        let mut computing = None;
        eventually("one computes", LIMIT, || {
            let last = self.computations().last().copied().filter(|last| last.ended.is_none());
            // Not one that was killed already and whose lease still runs.
            let process = |last: Computation| self.processes.iter().position(|one| one.id() == last.pid);
            computing = last.and_then(process);
            computing.is_some()
        });
        let at = computing.expect("waited for");
        let pid = self.processes[at].id();
        self.killed.push((pid, now()));
        let mut process = self.processes.swap_remove(at);
        process.kill().and_then(|()| process.wait()).expect("a killed process");
        self.add();
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A crowd of readers for 15 s; `TENURE_STAMPEDE` overrides it.
pub(crate) fn crowd() {
    let total = Duration::from_secs(setting("TENURE_STAMPEDE").unwrap_or(15));
    let outage = (total / 12).min(Duration::from_secs(5));
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut crowd = Crowd { server: Server::start(), dir, processes: Vec::new(), killed: Vec::new() };
    for _ in 0..PROCESSES {
        crowd.add();
    }
    eventually("the first value", LIMIT, || crowd.computations().iter().any(|one| one.ended.is_some()));
    let begun = now();
    let sleep_until = |part: Duration| {
        let until = begun + ns(part);
        thread::sleep(Duration::from_nanos(until.saturating_sub(now())));
    };
    for part in [total / 15, total / 3] {
        sleep_until(part);
        crowd.kill_the_computing();
    }
    sleep_until(total * 3 / 5);
    let stopped = now();
    crowd.server.stop();
    thread::sleep(outage);
    crowd.server.cont();
    let answers = now();
    sleep_until(total);
    let took = Duration::from_nanos(now() - begun);
    judge(&crowd, stopped, answers, took);
}

fn judge(crowd: &Crowd, stopped: u64, answers: u64, took: Duration) {
    let all = crowd.computations();
    // During the outage each process computes for itself, until it notices that the server is back.
    let back = answers + ns(NOTICED);
    let is_excused = |one: &Computation| (stopped..back).contains(&one.begun);
    let (excused, judged): (Vec<Computation>, Vec<Computation>) = all.iter().partition(|one| is_excused(one));
    let since = |at: u64| (at as f64 - answers as f64) / 1e9;
    for pair in judged.windows(2) {
        let (one, next) = (pair[0], pair[1]);
        let killed =
            crowd.killed.iter().find(|(pid, at)| *pid == one.pid && one.ended.is_none() && *at > one.begun);
        let across_the_outage = one.begun < stopped && next.begun >= back;
        match (one.ended, killed) {
            _ if across_the_outage => {}
            (Some(ended), _) => {
                let fresh = ns(LASTS) * 9 / 10;
                let at = [one.begun, ended, next.begun].map(since);
                assert!(
                    next.begun >= ended + fresh,
                    "computed while it was fresh, {at:?} s after the outage"
                );
            }
            (None, Some((_, at))) => {
                let most = at + ns(LEASE) + ns(LASTS);
                assert!(next.begun >= *at && next.begun <= most, "after the kill at {at}: {next:?}");
            }
            (None, None) => panic!("it neither ended nor was killed: {one:?}"),
        }
    }
    for process in crowd.processes.iter().map(Child::id) {
        let own: Vec<_> = excused.iter().filter(|one| one.pid == process).collect();
        let in_turn = own.windows(2).all(|pair| pair[0].ended.is_some_and(|ended| pair[1].begun >= ended));
        assert!(in_turn, "two at once in one process during the outage: {own:?}");
    }
    let noticed = all.windows(2).filter(|pair| is_excused(&pair[1]) && pair[0].ended > Some(pair[1].begun));
    let noticed = noticed.map(|pair| pair[1].begun).max().map_or(0.0, since);
    let text = fs::read_to_string(crowd.dir.path().join("reads")).expect("a log");
    let old = text.lines().filter(|line| line.starts_with("old")).count();
    assert_eq!(old, 0, "values were read after their time");
    let overdue = |line: &str| line.strip_prefix("overdue ").map(number);
    let early = text.lines().filter_map(overdue).filter(|at| !(stopped..answers + ns(STATED)).contains(at));
    assert_eq!(early.count(), 0, "readers were overdue while the server answered");
    let mut waits: Vec<u64> =
        text.lines().filter_map(|line| line.strip_prefix("read ").map(number)).collect();
    waits.sort_unstable();
    let longest = Duration::from_nanos(*waits.last().expect("reads"));
    assert!(longest <= STATED, "a reader waited for {longest:?}");
    let least = (took.as_secs() as usize).saturating_sub(8) / 2;
    assert!(judged.len() >= least, "{} computations in {took:?}", judged.len());
    println!(
        "{PROCESSES} processes of {READERS} readers, {took:.1?}: {} reads, {} computations, and {} from when \
         the server stood still for {:.1?}, the last two at once {noticed:.1} s after it was back; {} killed; \
         waits: {:.1?} at 99 %, {longest:.1?} at most",
        waits.len(),
        judged.len(),
        excused.len(),
        Duration::from_nanos(answers - stopped),
        crowd.killed.len(),
        Duration::from_nanos(waits[waits.len() * 99 / 100]),
    );
}

/// The computations so far, ordered by their beginning.
fn computations(text: &str) -> Vec<Computation> {
    let mut all: Vec<Computation> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [what @ ("begin" | "end"), pid, at] = words[..] else { continue };
        let (pid, at) = (pid.parse().expect("a pid"), at.parse().expect("a time"));
        if what == "begin" {
            all.push(Computation { pid, begun: at, ended: None });
        } else {
            let open = all.iter_mut().rev().find(|one| one.pid == pid && one.ended.is_none());
            open.expect("it began").ended = Some(at);
        }
    }
    all
}

/// The last word of a line.
fn number(line: &str) -> u64 {
    line.rsplit(' ').next().and_then(|word| word.parse().ok()).expect("a number")
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}
