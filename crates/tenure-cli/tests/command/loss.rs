//! The lease is lost while the command runs: it is stopped, and gone before another client can hold.

use std::fs;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::Signal;
use tenure::{Locks, block_on};
use tenure_testkit::servers::eventually;

use crate::env::{LIMIT, TestEnv, UNTIL_END, is_alive, now, until_gone};

const TTL: &[&str] = &["--ttl", "900ms"];

/// Forces the lock open.
fn force(env: &TestEnv, name: &str) {
    let locks = block_on(Locks::connect(&env.url())).expect("the store");
    let whose = block_on(locks.force_release(name)).expect("an answer");
    assert!(whose.is_some(), "it was held");
}

#[test]
fn a_command_that_obeys_is_told_to_end_and_may_tidy_up() {
    let env = TestEnv::new();
    let script = "trap 'echo tidy > tidied; exit 0' TERM; READY; while :; do sleep 0.02; done";
    let running = env.start_script(TTL, "x", script);
    force(&env, "x");
    running.wait().exits_with(79).says_among_others("lost");
    assert_eq!(env.read("tidied"), "tidy\n");
}

#[test]
fn a_command_that_ignores_term_is_killed_with_everything_it_has_started() {
    let env = TestEnv::new();
    let stubborn = "trap '' TERM; sh -c 'echo $$ > inner; while :; do sleep 0.02; done' & READY; while :; do sleep 0.02; done";
    let running = env.start_script(TTL, "x", stubborn);
    running.eventually("both are there", || !env.read("inner").is_empty());
    let pids = [env.pid("up"), env.pid("inner")];
    force(&env, "x");
    running.wait().exits_with(79).says("lost");
    assert!(pids.iter().all(|pid| !is_alive(*pid)), "all gone before the wrapper is");
}

#[test]
fn what_a_command_that_obeyed_left_running_is_killed_too() {
    let env = TestEnv::new();
    let script = "(trap '' TERM; sh -c 'echo $$ > inner; while :; do sleep 0.02; done') & READY; wait";
    let running = env.start_script(TTL, "x", script);
    running.eventually("both are there", || !env.read("inner").is_empty());
    let inner = env.pid("inner");
    force(&env, "x");
    running.wait().exits_with(79).says("lost");
    assert!(!is_alive(inner));
}

#[test]
fn a_stopped_command_is_killed_too() {
    let env = TestEnv::new();
    let running = env.start_script(TTL, "x", "trap '' TERM; READY; while :; do sleep 0.02; done");
    let command = env.pid("up");
    rustix::process::kill_process(command, Signal::STOP).unwrap();
    force(&env, "x");
    running.wait().exits_with(79).says("lost");
    assert!(!is_alive(command));
}

#[test]
fn without_its_store_the_command_is_gone_before_the_lease_is_over() {
    let env = TestEnv::new();
    let running =
        env.start_script(&["--ttl", "1500ms"], "x", "trap '' TERM; READY; while :; do sleep 0.02; done");
    let command = env.pid("up");
    fs::rename(env.store(), env.path("away")).unwrap();
    fs::write(env.store(), "no directory").unwrap();
    let taken = now();
    until_gone(command);
    let took = now() - taken;
    assert!(took < Duration::from_millis(1500), "the lease was over: {took:?}");
    assert!(took > Duration::from_millis(400), "it was given up too soon: {took:?}");
    running.wait().exits_with(79).says("lost");
}

#[test]
fn a_loss_that_is_noticed_only_at_the_release_is_a_loss() {
    let env = TestEnv::new();
    let running = env.start_script(&["--ttl", "1h"], "x", UNTIL_END);
    force(&env, "x");
    env.end();
    running.wait().exits_with(79).says("lost");
}

#[test]
fn the_command_is_stopped_also_while_standard_error_is_not_read() {
    let env = TestEnv::new();
    let script =
        "yes >&2 & trap '' TERM; sleep 0.1; echo $$ > up.new; mv up.new up; while :; do sleep 0.02; done";
    let mut command = env.tenure_run_command(TTL);
    command.args(["x", "--", "sh", "-c", script]).stderr(Stdio::piped());
    let mut wrapper = command.spawn().unwrap();
    eventually("the command is up", LIMIT, || env.path("up").exists());
    let pid = env.pid("up");
    force(&env, "x");
    until_gone(pid);
    wrapper.kill().unwrap();
    wrapper.wait().unwrap();
}

#[test]
fn a_release_that_fails_keeps_the_code_of_the_command() {
    let env = TestEnv::new();
    let running = env.start_script(&[], "x", "READY; while [ ! -e end ]; do sleep 0.02; done; exit 3");
    let _silence = env.silence_the_store();
    env.end();
    running.wait().exits_with(3).says("not released");
}

#[test]
fn a_store_that_does_not_answer_is_told_in_time() {
    let env = TestEnv::new();
    env.tenure_run(["x", "--", "true"]).exits_with(0);
    let _silence = env.silence_the_store();
    let run = |options: &[&str]| env.tenure_run_command([options, &["x", "--", "touch", "ran"]].concat());
    for options in [&["-w", "0.5"][..], &["-v", "-w", "0.5"]] {
        env.within(Duration::from_millis(1_000), || {
            env.run(run(options)).exits_with(69).says("cannot reach store")
        });
    }
    env.within(Duration::from_millis(1500), || {
        let waiter = env.start(env.tenure_run_command(["-w", "10", "x", "--", "touch", "ran"]));
        sleep(Duration::from_millis(100));
        waiter.signal(Signal::TERM);
        waiter.wait().exits_with(143)
    });
    assert!(!env.path("ran").exists());
}
