use std::fs;
use std::time::Duration;

use tenure_testkit::servers::Server;

use crate::env::{TestEnv, UNTIL_END};

#[test]
fn a_stop_ends_the_commands_that_hold_and_says_who_asked() {
    let env = TestEnv::new();
    env.tenure_run(["x", "true"]).exits_with(0);
    let server = Server::start();
    for store in [env.url(), server.url()] {
        let store = ["--store", &store];
        let stop = |args: &[&str]| env.run(env.tenure([&["stop"], &store[..], args].concat()));
        assert_eq!(stop(&["x"]).exits_with(1).says_nothing().stdout, "free\n");
        let slots = [&store[..], &["--slots", "3", "--label", "job 7"]].concat();
        let holders = [0, 1].map(|_| env.start_script(&slots, "x", "READY; exec sleep 30"));
        let said = stop(&["--reason", "deploy at 9", "x"]).exits_with(0).says_nothing().stdout;
        assert!(said.starts_with("stopped: alice@") && said.contains("\"job 7\""), "{said}");
        for holder in holders {
            holder.wait().exits_with(143).says("asked to stop by alice@").says(": deploy at 9");
        }
        // The request does not apply to later holders.
        let script = UNTIL_END;
        let (later, start) = (env.start_script(&store, "x", script), crate::env::now());
        later.eventually("it has looked twice", || (crate::env::now() - start).as_secs() >= 5);
        env.end();
        later.wait().exits_with(0).says_nothing();
        fs::remove_file(env.path("end")).expect("a file");
    }
}

#[test]
fn a_leader_and_a_job_are_asked_too() {
    let env = TestEnv::new();
    let server = Server::start();
    let store = ["--store", &server.url()];
    let stop = |args: &[&str]| env.run(env.tenure([&["stop"], &store[..], args].concat()));
    let script = "touch up; exec sleep 30";
    for (of, holds) in [("--election", &["elect"][..]), ("--job", &["run", "--once-per", "1d"])] {
        assert_eq!(stop(&[of, "x"]).exits_with(1).says_nothing().stdout, "free\n");
        let holder = env.start(env.tenure([holds, &store[..], &["x", "-c", script]].concat()));
        holder.eventually("it holds", || env.path("up").exists());
        // A lock of this name is something else.
        stop(&["x"]).exits_with(1);
        let said = stop(&[of, "--reason", "it hangs", "x"]).exits_with(0).says_nothing().stdout;
        assert!(said.starts_with("stopped: alice@"), "{said}");
        holder.wait().exits_with(143).says("asked to stop by alice@").says(": it hangs");
        fs::remove_file(env.path("up")).expect("a file");
    }
}

#[test]
fn a_command_that_does_not_stop_keeps_its_lock() {
    let env = TestEnv::new();
    let script = "trap '' TERM; READY; while [ ! -e end ]; do sleep 0.02; done";
    let holder = env.start_script(&["--also", "y"], "x", script);
    let said = env.run(env.tenure(["stop", "--wait", "3s", "y"])).exits_with(75);
    said.says("lock `y` is still held by alice@").says("release --force");
    assert!(env.run(env.tenure(["stop", "-w", "0", "x"])).exits_with(0).stdout.starts_with("asked: alice@"));
    env.end();
    holder.wait().exits_with(0).says("asked to stop by alice@");
    // With --kill-after it is killed.
    let holder = env.start_script(&["--kill-after", "100ms"], "x", "trap '' TERM; READY; sleep 30");
    env.run(env.tenure(["stop", "x"])).exits_with(0);
    holder.wait().exits_with(137);
}

#[test]
fn a_stop_outlasts_a_silent_store() {
    let (env, server) = (TestEnv::new(), Server::start());
    let url = server.url();
    let store = ["--store", url.as_str()];
    let script = "trap 'touch asked' TERM; READY; while [ ! -e end ]; do sleep 0.02; done";
    let holder = env.start_script(&[&store[..], &["--ttl", "2m"]].concat(), "x", script);
    let stop = env.start(env.tenure([&["stop"], &store[..], &["x"]].concat()));
    holder.eventually("it is asked", || env.path("asked").exists());
    server.stop();
    stop.eventually("it says so", || stop.stderr().contains("; still waiting"));
    server.cont();
    env.end();
    stop.wait().exits_with(0);
    holder.wait().exits_with(0);
}

#[test]
fn a_forced_release_reaches_the_command_long_before_its_renewal() {
    let env = TestEnv::new();
    env.tenure_run(["x", "true"]).exits_with(0);
    let server = Server::start();
    for store in [env.url(), server.url()] {
        // Its first renewal would be after a minute.
        let holder = env.start_script(&["--store", &store, "--ttl", "1h"], "x", "READY; exec sleep 60");
        let forced = env.run(env.tenure(["release", "--store", &store, "--force", "x"])).exits_with(0);
        assert!(forced.stdout.ends_with("if it cannot reach the store\n"), "{forced:?}");
        // The request does not apply to the next holder.
        let next = env.start_script(&["--store", &store], "x", UNTIL_END);
        let said = holder.wait_for(Duration::from_secs(30)).exits_with(79);
        said.says("lost").says("the command was stopped");
        env.end();
        next.wait().exits_with(0).says_nothing();
        fs::remove_file(env.path("end")).expect("a file");
    }
}

#[test]
fn what_cannot_be_asked_to_stop_is_refused() {
    let env = TestEnv::new();
    let servers = [Server::start(), Server::start(), Server::start()];
    servers[0].command(&["SET", "x", "theirs"]);
    let at = servers[0].url();
    env.run(env.tenure(["stop", "--store", &at, "x"])).exits_with(65).says("not a lock");
    let places = servers.each_ref().map(|server| server.url().replace("redis://", "")).join(",");
    let quorum = format!("redis-quorum://{places}");
    env.run(env.tenure(["stop", "--store", &quorum, "q"])).exits_with(64).says("keeps no record");
    env.run(env.tenure(["stop", "--reason", "a\nb", "x"])).exits_with(64).says("control characters");
}
