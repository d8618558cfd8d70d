//! `tenure acquire --fd`: a lock that lasts as long as a script's descriptor is open.

use std::fs;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use tenure_testkit::servers::Server;

use crate::env::{BINARY, Running, TestEnv};

/// Starts a shell script that can call `tenure`.
fn script(env: &TestEnv, shell: &str, text: &str) -> Running {
    let mut command = env.program(shell);
    let text = format!("tenure() {{ {BINARY} \"$@\"; }}\n{text}");
    command.args(["-c", &text]);
    env.start(command)
}

/// Runs while a shell holds the lock, until the test creates `go`.
const HELD: &str = "touch held; while [ ! -e go ]; do sleep 0.02; done";

#[test]
fn a_lock_lasts_until_its_descriptor_is_closed_on_every_store() {
    let server = Server::start();
    for store in [None, Some(server.url())] {
        let env = TestEnv::new();
        let store = store.unwrap_or_else(|| env.url());
        let text = format!(
            "export TENURE_STORE={store}; exec 9>file; tenure acquire --fd 9 --ttl 1h x || exit; {HELD}
            exec 9>&-; touch closed; exec sleep 60"
        );
        let running = script(&env, "sh", &text);
        running.eventually("it is held", || env.path("held").exists());
        env.tenure_run(["-n", "--store", &store, "x", "--", "true"]).exits_with(75).says("busy");
        assert_eq!(running.stdout(), "", "nothing is printed");
        let waiter = env.start(env.tenure_run_command(["--store", &store, "x", "--", "touch", "next"]));
        fs::write(env.path("go"), "").expect("a file");
        // Its lease is an hour: only the closed descriptor frees it, although the script continues.
        waiter.wait().exits_with(0);
        running.eventually("it went on", || env.path("closed").exists());
        assert!(env.path("next").exists() && !running.has_ended());
    }
}

#[test]
fn a_subshell_takes_its_lock_as_with_flock_and_the_next_one_is_busy() {
    let env = TestEnv::new();
    let text = format!("( tenure acquire --fd 9 -n x || exit; {HELD} ) 9>file; echo code $?");
    let first = script(&env, "sh", &text);
    first.eventually("it is held", || env.path("held").exists());
    let second = script(&env, "sh", "( tenure acquire --fd 9 -n x || exit; echo in ) 9>file; echo code $?");
    assert_eq!(second.wait().exits_with(0).says("busy").stdout, "code 75\n");
    let third = script(&env, "sh", "( tenure acquire --fd 9 x || exit; echo in ) 9>file; echo code $?");
    third.eventually("it waits", || env.run(env.tenure(["status", "x"])).code() == Some(0));
    fs::write(env.path("go"), "").expect("a file");
    assert_eq!(first.wait().exits_with(0).stdout, "code 0\n");
    assert_eq!(third.wait().exits_with(0).stdout, "in\ncode 0\n");
}

#[test]
fn a_killed_script_frees_its_lock_and_what_inherits_the_descriptor_keeps_it() {
    let env = TestEnv::new();
    // bash chooses the number, which has two digits.
    let text = "exec {lock}>file; tenure acquire --fd $lock --ttl 1h x || exit
        sleep 60 & echo $! > left; touch held; exec sleep 60";
    let running = script(&env, "bash", text);
    running.eventually("it is held", || env.path("held").exists());
    running.signal(Signal::KILL);
    let _ = running.wait();
    env.tenure_run(["-w", "0.5", "x", "--", "true"]).exits_with(75);
    kill_process(env.pid("left"), Signal::KILL).expect("it runs");
    env.tenure_run(["-w", "10", "x", "--", "true"]).exits_with(0);
}

#[test]
fn two_locks_of_one_descriptor_end_together_and_json_tells_the_owner() {
    let env = TestEnv::new();
    let text = format!(
        "exec 9>file; tenure acquire --fd 9 x && tenure acquire --fd 9 --json y > y.json && {HELD}
        tenure release --owner \"$(sed 's/.*\"owner\":\"\\([^\"]*\\).*/\\1/' y.json)\" y; touch released
        rm go; {HELD}"
    );
    let running = script(&env, "sh", &text);
    running.eventually("both are held", || env.path("held").exists());
    for name in ["x", "y"] {
        env.run(env.tenure(["status", name])).exits_with(0);
    }
    fs::write(env.path("go"), "").expect("a file");
    running.eventually("one is released", || env.path("released").exists());
    env.run(env.tenure(["status", "y"])).exits_with(1);
    env.run(env.tenure(["status", "x"])).exits_with(0);
    running.signal(Signal::TERM);
    let _ = running.wait();
    env.tenure_run(["-w", "10", "x", "--", "true"]).exits_with(0);
}

#[test]
fn what_is_no_descriptor_of_a_file_is_refused_and_leaves_no_lock() {
    let env = TestEnv::new();
    let refused = |text: &str, says: &str| {
        let said = script(&env, "sh", text).wait().exits_with(64).says(says);
        assert_eq!((said.stdout.as_str(), said.stderr.lines().count()), ("", 1), "{said:?}");
        env.run(env.tenure(["status", "x"])).exits_with(1);
    };
    refused("tenure acquire --fd 9 x", "exec 9>FILE");
    refused("true | tenure acquire --fd 0 x", "not a regular file");
    refused("tenure acquire --fd -1 x", "--fd");
    refused("tenure acquire --fd nine x", "--fd");
    refused("tenure acquire --hold --fd 9 --while-pid $$ x 9>file", "--while-pid");
    let other = "exec 8>file; flock 8; tenure acquire --fd 9 x 8>&- 9>file";
    refused(other, "a separate file");
}

#[test]
fn what_keeps_a_lock_in_the_background_keeps_no_descriptor_of_the_script() {
    let env = TestEnv::new();
    let text = "exec 7>inherited; flock 7; tenure acquire --hold --ttl 1h x > owner || exit
        tenure acquire --fd 9 y 9>file || exit; exec 7>&-; flock -w 10 inherited true; echo code $?";
    assert_eq!(script(&env, "sh", text).wait().exits_with(0).stdout, "code 0\n");
    // Descriptor 9 of y was open for one command only.
    env.tenure_run(["-w", "10", "y", "--", "true"]).exits_with(0);
    let file = env.path("inherited").canonicalize().expect("a file");
    for process in fs::read_dir("/proc").expect("processes").flatten() {
        let open = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        let keeps = |entry: fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|found| found == file);
        assert!(!open.into_iter().any(keeps), "{:?}", process.path());
    }
    let owner = env.read("owner");
    env.run(env.tenure(["release", "--owner", owner.trim(), "x"])).exits_with(0);
    env.tenure_run(["-w", "10", "x", "--", "true"]).exits_with(0);
}

#[test]
fn a_hundred_scripts_at_once_are_under_one_lock_in_turn() {
    let env = TestEnv::new();
    let text = "( tenure acquire --fd 9 x || exit; echo begin >> log; echo end >> log ) 9>file";
    let all: Vec<_> = (0..100).map(|_| script(&env, "sh", text)).collect();
    for one in all {
        one.wait_for(Duration::from_secs(60)).exits_with(0).says_nothing();
    }
    assert_eq!(env.read("log"), "begin\nend\n".repeat(100));
}
