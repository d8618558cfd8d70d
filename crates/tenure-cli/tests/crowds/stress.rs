//! `tenure stress` finds the violations of a faulty store, and none elsewhere.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use tenure_testkit::servers::{Config, Server, eventually};

use crate::env::{BINARY, Outcome, Running, TestEnv};

/// Generous for a busy machine, because none of these tests measures time.
const LIMIT: Duration = Duration::from_secs(60);

fn stress(env: &TestEnv, store: &str, args: &[&str]) -> Command {
    let mut command = env.tenure(["stress", "--store", store, "--ttl", "1s"]);
    command.args(args);
    command
}

/// The rest of a line of the verdict, by its label.
fn line(outcome: &Outcome, name: &str) -> String {
    let found = outcome.stdout.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    found.unwrap_or_else(|| panic!("no {name}: {outcome:?}")).to_owned()
}

fn checked(outcome: &Outcome) -> u64 {
    let line = line(outcome, "acquisitions checked");
    line.split(' ').next().and_then(|count| count.parse().ok()).expect("a number")
}

#[track_caller]
fn is_fine(running: Running, kinds: &[&str]) -> Outcome {
    let outcome = running.wait_for(LIMIT).exits_with(0);
    assert_eq!(line(&outcome, "violations"), "0", "{outcome:?}");
    assert_eq!(line(&outcome, "left behind"), "0", "{outcome:?}");
    for kind in kinds {
        assert!(line(&outcome, "acquisitions checked").contains(kind), "{kind}: {outcome:?}");
    }
    assert!(checked(&outcome) >= 50, "this showed nothing: {outcome:?}");
    outcome
}

const ALL: [&str; 5] = ["mutex", "fair", "rwlock", "semaphore", "reentrant"];

#[test]
fn a_store_that_keeps_what_it_said_passes_while_processes_are_killed_and_stopped() {
    let (env, server) = (TestEnv::new(), Server::start());
    let broken = ["--for", "3s", "--kill", "--pause", "--every", "600ms"];
    thread::scope(|scope| {
        for store in [server.url(), env.url()] {
            let env = &env;
            scope.spawn(move || {
                let outcome = is_fine(env.start(stress(env, &store, &broken)), &ALL);
                let faults = line(&outcome, "faults");
                assert!(!faults.starts_with("0 killed") && !faults.contains(" 0 stopped"), "{outcome:?}");
                assert!(outcome.stderr.contains("tenure: 1.0s of 3.0s: "), "{outcome:?}");
            });
        }
    });
    // The key of a queue outlives its last ticket by a second.
    eventually("only counters are left", Duration::from_secs(5), || {
        let keys = server.command(&["KEYS", "*"]);
        keys.items().iter().all(|key| key.text().starts_with("tenure:fence"))
    });
}

#[test]
fn every_second_process_may_be_of_another_version() {
    let env = TestEnv::new();
    // It writes a line whenever it is started.
    let other = env.path("other");
    let script = format!("#!/bin/sh\necho >>{}\nexec {BINARY} \"$@\"\n", env.path("started").display());
    fs::write(&other, script).unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o700)).unwrap();
    let other = other.to_str().unwrap();
    let args = ["--for", "3s", "--kill", "--every", "600ms", "--processes", "4", "--with", other];
    let outcome = is_fine(env.start(stress(&env, &env.url(), &args)), &ALL);
    // Asked for its version, then two of the first four, and the second of each two that follow.
    let started = fs::read_to_string(env.path("started")).unwrap().lines().count();
    let killed: usize = line(&outcome, "faults").split(' ').next().unwrap().parse().unwrap();
    assert_eq!(started, 1 + 2 + killed / 2, "{outcome:?}");
    assert!(line(&outcome, "versions").matches("formats 1").count() == 2, "{outcome:?}");
    for (program, says) in [("/bin/true", "is not tenure"), ("/nowhere", "cannot run /nowhere")] {
        env.run(stress(&env, &env.url(), &["--with", program])).exits_with(64).says(says);
    }
}

/// The negative control: a judge that finds nothing here would find nothing anywhere.
#[test]
fn a_hook_that_fails_is_no_success_and_is_told() {
    let env = TestEnv::new();
    let args = ["--for", "2s", "--kind", "mutex", "--every", "100ms", "--hook", "exit 7"];
    let outcome = env.start(stress(&env, &env.url(), &args)).wait_for(LIMIT).exits_with(125);
    assert_eq!(line(&outcome, "violations"), "0", "{outcome:?}");
    let last = outcome.stderr.lines().last().unwrap_or_default();
    assert!(last.contains("failed, the last with exit status: 7"), "{outcome:?}");
}

#[test]
fn a_store_that_is_emptied_by_the_hook_is_found_out_with_both_histories() {
    let (env, server) = (TestEnv::new(), Server::start());
    // The hook signals this test, which empties the server, and waits until it has.
    let hook = "touch empty; while [ -e empty ]; do sleep 0.02; done";
    let args = ["--for", "3s", "--kind", "mutex", "--names", "1", "--every", "100ms", "--hook", hook];
    let running = env.start(stress(&env, &server.url(), &args));
    while !running.has_ended() {
        if env.path("empty").exists() {
            for _ in 0..50 {
                server.command(&["FLUSHALL"]);
                thread::sleep(Duration::from_millis(2));
            }
            fs::remove_file(env.path("empty")).unwrap();
        }
        thread::sleep(Duration::from_millis(2));
    }
    let outcome = running.wait_for(LIMIT).exits_with(1);
    assert_ne!(line(&outcome, "violations"), "0", "{outcome:?}");
    let mut after = outcome.stdout.lines().skip_while(|line| !line.starts_with("exclusion: mutex-0"));
    assert!(after.next().is_some(), "{outcome:?}");
    for _ in 0..2 {
        let one = after.next().unwrap_or_default();
        assert!(one.starts_with("  process ") && one.contains("held 1 from"), "{outcome:?}");
    }
}

#[test]
fn a_failing_server_fails_requests_and_no_lock() {
    let persistent = Config::new().set("appendonly", "yes").set("appendfsync", "always").keep_data();
    let (env, server) = (TestEnv::new(), Server::start_with(persistent));
    let hook = "touch restart; while [ -e restart ]; do sleep 0.02; done";
    let args = ["--for", "3s", "--every", "500ms", "--hook", hook];
    let running = env.start(stress(&env, &server.url(), &args));
    while !running.has_ended() {
        if env.path("restart").exists() {
            server.restart();
            fs::remove_file(env.path("restart")).unwrap();
        }
        thread::sleep(Duration::from_millis(2));
    }
    let outcome = is_fine(running, &["mutex"]);
    assert!(!line(&outcome, "faults").contains(" 0 hooks"), "{outcome:?}");
}

#[test]
fn a_signal_ends_it_with_the_verdict_so_far() {
    let env = TestEnv::new();
    let running = env.start(stress(&env, &env.url(), &["--for", "1h", "--kind", "fair", "--names", "1"]));
    running.eventually("it tells how it goes, or has begun", || env.store().join("guard").exists());
    thread::sleep(Duration::from_millis(500));
    running.signal(Signal::INT);
    let outcome = running.wait_for(LIMIT).exits_with(0);
    assert_eq!(line(&outcome, "violations"), "0");
    assert!(outcome.stderr.contains("ended early"), "{outcome:?}");
}

#[test]
fn what_cannot_be_stressed_is_said_before_anything_is_started() {
    let env = TestEnv::new();
    for (args, says) in [
        (&["--for", "0s"][..], "more than 0"),
        (&["--for", "soon"], "30s"),
        (&["--every", "-1s"], "30s"),
        (&["--ttl", "1ms"], "50ms"),
        (&["--kind", "umbrella"], "reentrant"),
        (&["--names", "0"], "1..=1000"),
        (&["--tasks", "-1"], "-1"),
        (&["--store", "memory:x"], "not shared between processes"),
        (&["--store", "gopher:x"], "gopher"),
        (&["--store", "redis-quorum://h1,h2,h3", "--kind", "fair"], "fair"),
        (&["x"], "x"),
    ] {
        let mut command = env.tenure(["stress"]);
        command.args(args);
        env.run(command).exits_with(64).says(says);
    }
    assert!(!env.store().exists(), "nothing was started");
    let nobody = env.tenure(["stress", "--store", "redis://127.0.0.1:1", "--for", "1s"]);
    env.run(nobody).exits_with(69).says("cannot reach store");
}
