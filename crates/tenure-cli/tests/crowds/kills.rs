//! The wrapper is killed: its command goes with it, and only then is the lock free.

use std::fs;
use std::thread::{self, sleep};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tenure_testkit::servers::eventually;

use crate::env::{LIMIT, Running, TestEnv, is_alive, now, random};

/// Holds another flock for its lifetime. A process that does not get it immediately overlaps with another, if
/// that one still runs. A dying process closes its descriptors in no specified order, so its liveness may end
/// a moment before this flock, when its program has already ended.
const ALONE: &str = "exec 8>>alone
    flock -n 8 || { readlink /proc/$(tail -n 1 ran)/exe >/dev/null 2>&1 && echo overlap >> bad; flock 8; }
    echo $$ >> ran
    exec sleep 30";

#[test]
fn a_killed_wrapper_takes_its_command_along_and_no_two_overlap_in_200_kills() {
    // Four names concurrently, fifty kills each, always with another contender waiting or starting.
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(fifty_kills);
        }
    });
}

fn fifty_kills() {
    let env = TestEnv::new();
    let start = || env.start(env.tenure_run_command(["x", "--", "sh", "-c", ALONE]));
    let mut contenders: Vec<Running> = vec![start(), start()];
    for round in 0..50 {
        // Alternately the holder, and any of them.
        let victim = match round % 2 {
            0 => the_one_that_runs(&env, &contenders),
            _ => random(2) as usize,
        };
        sleep(Duration::from_micros(random(60_000)));
        let victim = contenders.remove(victim);
        victim.signal(Signal::KILL);
        drop(victim);
        contenders.push(start());
    }
    // The remaining waiter gets the lock.
    let before = env.read("ran").lines().count();
    let last = contenders.pop().expect("two of them");
    drop(contenders);
    last.eventually("the last one gets in", || {
        env.read("ran").lines().count() > before || holds(&env, &last)
    });
    drop(last);
    let commands: Vec<Pid> =
        env.read("ran").lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect();
    eventually("no command outlives its wrapper", Duration::from_secs(2), || {
        !commands.iter().any(|pid| is_alive(*pid))
    });
    assert_eq!(env.read("bad"), "", "of {before} turns");
    assert!(before >= 10, "only {before} turns: this showed nothing");
}

/// Waits until one of them has started its command; returns its index.
fn the_one_that_runs(env: &TestEnv, contenders: &[Running]) -> usize {
    let end = now() + LIMIT;
    loop {
        let last = env.read("ran").lines().last().map(str::to_owned).unwrap_or_default();
        let status = fs::read_to_string(format!("/proc/{last}/status")).unwrap_or_default();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
        let parent = parent.and_then(Pid::from_raw);
        if let Some(found) = contenders.iter().position(|one| Some(one.pid()) == parent) {
            return found;
        }
        assert!(now() < end, "no command runs");
        sleep(Duration::from_millis(1));
    }
}

fn holds(env: &TestEnv, running: &Running) -> bool {
    let children = format!("/proc/{0}/task/{0}/children", running.pid().as_raw_nonzero());
    !fs::read_to_string(children).unwrap_or_default().is_empty() && !env.read("ran").is_empty()
}

#[test]
fn a_killed_wrapper_frees_the_lock_without_waiting_for_the_lease() {
    let env = TestEnv::new();
    let holder = env.start_script(&["--ttl", "1h"], "x", "READY; exec sleep 30");
    let command = env.pid("up");
    let waiter = env.start(env.tenure_run_command(["-v", "x", "--", "true"]));
    waiter.eventually("it waits", || waiter.stderr().contains("waiting"));
    let killed = now();
    drop(holder); // kills it
    waiter.wait().exits_with(0);
    assert!(now() - killed < Duration::from_secs(2), "{:?}", now() - killed);
    assert!(!is_alive(command));
}
