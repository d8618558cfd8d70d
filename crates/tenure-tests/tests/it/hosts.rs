//! Lone requests to databases, which their callers' runtime sends and receives.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "these tests count the work of threads, block runtimes on purpose, and read the clock"
)]

use std::env;
use std::fs;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::poll;
use tenure::{Locks, block_on};
use tenure_testkit::servers::eventually;
use tokio::runtime::{Builder, Runtime};

use crate::{mysql, postgres};

const STORE: &str = "TENURE_TEST_STORE";
const SOON: Duration = Duration::from_secs(10);

fn urls() -> [String; 2] {
    [postgres::SERVER.url(&postgres::schema()), mysql::database().1]
}

fn locks(url: &str) -> Locks {
    Locks::open(url).and_then(|locks| locks.with(|options| options.ttl(2 * SOON))).expect("a store")
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

async fn pairs(locks: &Locks, name: &str, count: u32) {
    for _ in 0..count {
        locks.mutex(name).expect("a name").lock().await.expect("a guard").release().await.expect("a release");
    }
}

/// How often the threads of this library in this process have waited.
fn waits() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").expect("the threads");
    let statuses = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
    let ours = statuses.filter(|status| status.starts_with("Name:\ttenure\n"));
    let waits = |status: String| {
        status.split_once("\nvoluntary_ctxt_switches:")?.1.lines().next()?.trim().parse().ok()
    };
    ours.map(|status| waits(status).unwrap_or(0)).sum()
}

#[test]
#[ignore = "a process of the test below"]
fn a_process_that_locks() {
    const PAIRS: u32 = 50;
    let url = env::var(STORE).expect("a store");
    let (locks, runtime) = (locks(&url), runtime());
    // Beside other load some take longer than a host is waited for.
    eventually("pairs that wake no thread", 3 * SOON, || {
        let before = waits();
        runtime.block_on(pairs(&locks, "x", PAIRS));
        waits() - before < u64::from(PAIRS) / 4
    });
}

#[test]
fn a_pair_of_one_task_needs_no_second_thread() {
    for url in urls() {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.args(["--exact", "hosts::a_process_that_locks", "--ignored", "--nocapture"]);
        let status = command.env(STORE, url).stdout(Stdio::null()).status().expect("a process");
        assert!(status.success(), "{status}");
    }
}

#[test]
fn a_runtime_that_blocks_with_a_request_under_way_holds_up_nobody() {
    for url in urls() {
        let locks = locks(&url);
        let (blocked, is_blocked) = mpsc::channel();
        let (unblock, unblocked) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let (locks, unblocked) = (&locks, unblocked);
            scope.spawn(move || {
                runtime().block_on(async {
                    pairs(locks, "x", 50).await;
                    let mutex = locks.mutex("y").expect("a name");
                    let mut request = pin!(mutex.lock());
                    let _ = poll!(&mut request);
                    blocked.send(()).expect("a listener");
                    unblocked.recv().expect("a word");
                    request.await.expect("a guard").release().await.expect("a release");
                });
            });
            is_blocked.recv().expect("a word");
            let began = Instant::now();
            block_on(pairs(locks, "z", 3));
            let is_held = block_on(locks.inspect("y")).expect("an answer").is_some();
            let took = began.elapsed();
            unblock.send(()).expect("a listener");
            assert!(is_held && took < SOON, "{took:?}");
        });
    }
}

#[test]
fn a_runtime_that_ends_with_a_request_under_way_holds_up_nobody() {
    for url in urls() {
        let locks = locks(&url);
        for _ in 0..10 {
            let runtime = runtime();
            runtime.block_on(async {
                pairs(&locks, "x", 20).await;
                let mutex = locks.mutex("y").expect("a name");
                let _ = poll!(pin!(mutex.lock()));
            });
            drop(runtime);
            // The lock that nobody waits for any more is released.
            block_on(pairs(&locks, "y", 3));
        }
    }
}
