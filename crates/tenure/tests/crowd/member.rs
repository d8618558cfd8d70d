//! A process of a crowd, seen by itself and by the test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use tenure::{Guard, Locks, Owner, block_on};
use tenure_testkit::servers;

use crate::log::{Line, Log, What, now};

/// The first argument of a process of a crowd.
pub(crate) const MARK: &str = "--member-of-a-crowd";

/// Tasks per process.
pub(crate) const TASKS: usize = 25;
pub(crate) const TTL: Duration = Duration::from_millis(1_200);
const PERMITS: u32 = 5;

/// Maximum concurrent holds.
pub(crate) fn capacity(kind: &str) -> u32 {
    match kind {
        "semaphore" => PERMITS,
        "rwlock" => 1 << 20,
        _ => 1,
    }
}

/// A process that was started.
pub(crate) struct Member {
    child: Child,
    pub(crate) log: PathBuf,
    /// When it was killed.
    pub(crate) killed: Option<u64>,
}

impl Member {
    pub(crate) fn start(log: PathBuf, args: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.arg(MARK).arg(&log).args(args).stdout(Stdio::null());
        Self { child: command.spawn().expect("a process"), log, killed: None }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGSTOP, and waits until it has taken effect.
    pub(crate) fn stop(&self) {
        servers::stop(&self.child);
    }

    pub(crate) fn cont(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a child that no client waited for");
    }

    pub(crate) fn kill(&mut self) {
        // Take the time before the kill: until then at least, it believed that it held.
        self.killed = Some(now());
        self.child.kill().and_then(|()| self.child.wait()).expect("a killed process");
    }

    /// Waits until it has exited.
    pub(crate) fn ends_within(&mut self, most: Duration) {
        let until = now() + most.as_nanos() as u64;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            assert!(now() < until, "a client still waits after {most:?}");
            thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success(), "a survivor failed: {status}");
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process itself.
pub(crate) fn run(args: &[String]) {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [log, "turns", kind, url, stop] => {
            let locks =
                Locks::open(url).and_then(|locks| locks.with(|options| options.ttl(TTL))).expect("a store");
            let (log, stop) = (Log::open(Path::new(log)), Path::new(stop));
            block_on(join_all((0..TASKS).map(|task| take_turns(&locks, kind, task, &log, stop))));
            block_on(locks.flush()).expect("all released");
        }
        [log, "once", tasks, url] => {
            let (locks, log) = (Locks::open(url).expect("a store"), Log::open(Path::new(log)));
            let tasks: usize = tasks.parse().expect("a number");
            block_on(join_all((0..tasks).map(|task| take_one_turn(&locks, task, &log))));
        }
        _ => panic!("not started by a crowd: {args:?}"),
    }
}

async fn take_turns(locks: &Locks, kind: &str, task: usize, log: &Log, stop: &Path) {
    while !stop.exists() {
        let (weight, guard) = lock(locks, kind, task).await;
        turn(guard, task, weight, log).await;
    }
}

async fn take_one_turn(locks: &Locks, task: usize, log: &Log) {
    let guard = locks.fair_mutex("crowd").expect("a name").lock().await.expect("a grant");
    turn(guard, task, 1, log).await;
}

/// Records only times at which the guard, queried afterwards, reported that it held.
async fn turn(guard: Guard, task: usize, weight: u32, log: &Log) {
    let note = |what| {
        let (time, fence) = (now(), guard.fence());
        let is_held = guard.is_held();
        log.note(Line { what: if is_held { what } else { What::Lost }, time, task, weight, fence });
        is_held
    };
    if note(What::Held) {
        note(What::Released);
    }
    if let Err(error) = guard.release().await {
        assert!(error.is_lost(), "{error:?}");
    }
}

async fn lock(locks: &Locks, kind: &str, task: usize) -> (u32, Guard) {
    let (weight, guard) = match kind {
        "mutex" => (1, locks.mutex("crowd").expect("a name").lock().await),
        "fair" => (1, locks.fair_mutex("crowd").expect("a name").lock().await),
        "reentrant" => {
            let owner = Owner::new("crowd").expect("an owner");
            (1, locks.reentrant_mutex("crowd", &owner).expect("a name").lock().await)
        }
        "rwlock" if task.is_multiple_of(5) => {
            (capacity(kind), locks.rwlock("crowd").expect("a name").write().await.map(Guard::from))
        }
        "rwlock" => (1, locks.rwlock("crowd").expect("a name").read().await.map(Guard::from)),
        "semaphore" => {
            let permits = 1 + task as u32 % 3;
            (permits, locks.semaphore("crowd", PERMITS).expect("a name").acquire_many(permits).await)
        }
        other => panic!("no kind: {other}"),
    };
    (weight, guard.expect("a grant"))
}
