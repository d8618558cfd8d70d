//! Signals reach the command once, at any moment.

use std::thread::sleep;
use std::time::Duration;

use rustix::process::Signal;
use tenure_testkit::servers::eventually;

use crate::env::{TestEnv, UNTIL_END, is_alive, now, random};

const FORWARDED: [(&str, Signal); 6] = [
    ("INT", Signal::INT),
    ("TERM", Signal::TERM),
    ("HUP", Signal::HUP),
    ("QUIT", Signal::QUIT),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
];

#[test]
fn a_command_that_obeys_ends_by_the_signal() {
    let env = TestEnv::new();
    for (name, signal) in FORWARDED {
        let running = env.start_script(&[], "x", "ulimit -c 0; READY; exec sleep 30");
        running.signal(signal);
        let code = 128 + signal.as_raw();
        assert_eq!(running.wait().exits_with(code).says_nothing().stdout, "", "{name}");
        env.tenure_run(["-n", "x", "--", "true"]).exits_with(0);
    }
}

#[test]
fn a_command_that_ignores_a_signal_keeps_the_lock_until_it_ends() {
    let env = TestEnv::new();
    let ignore = |(name, signal)| {
        let script = format!("trap '' {name}; READY; while [ ! -e end ]; do sleep 0.02; done; exit 3");
        let running = env.start_script(&["--ttl", "2s"], name, &script);
        running.signal(signal);
        (name, running)
    };
    let all = FORWARDED.map(ignore);
    sleep(Duration::from_millis(2_100)); // longer than a lease, so it must have been renewed
    for (name, running) in &all {
        assert!(!running.has_ended(), "{running:?}");
        env.tenure_run(["-n", name, "--", "true"]).exits_with(75);
    }
    env.end();
    for (_, running) in all {
        running.wait().exits_with(3).says_nothing();
    }
}

#[test]
fn each_signal_reaches_the_command_exactly_once() {
    let env = TestEnv::new();
    let traps: String =
        FORWARDED.iter().map(|(name, _)| format!("trap 'echo {name} >> got' {name}; ")).collect();
    let running = env.start_script(
        &[],
        "x",
        &format!("{traps} READY; while [ ! -e end ]; do sleep 0.02; done; exit 0"),
    );
    let mut sent = String::new();
    for (name, signal) in FORWARDED {
        running.signal(signal);
        sent += &format!("{name}\n");
        running.eventually("the signal arrives", || env.read("got") == sent);
    }
    env.end();
    running.wait().exits_with(0);
    assert_eq!(env.read("got"), sent);
}

#[test]
fn what_the_command_has_forked_gets_the_signal_too() {
    let env = TestEnv::new();
    let script = "sleep 30 & echo $! > a; (sleep 31 & echo $! > b; wait) & READY; wait; wait";
    let running = env.start_script(&[], "x", script);
    running.eventually("both are there", || !env.read("a").is_empty() && !env.read("b").is_empty());
    running.signal(Signal::TERM);
    running.wait().exits_with(143);
    for file in ["a", "b"] {
        eventually(file, Duration::from_secs(2), || !is_alive(env.pid(file)));
    }
}

#[test]
fn a_signal_ends_the_wait_for_the_lock_and_leaves_nothing_behind() {
    let env = TestEnv::new();
    let holder = env.start_script(&[], "x", UNTIL_END);
    let mut waiters = Vec::new();
    for (name, signal) in &FORWARDED[..4] {
        let waiter = env.start(env.tenure_run_command(["-v", "x", "--", "touch", "ran"]));
        waiter.eventually("it waits", || waiter.stderr().contains("waiting"));
        waiters.push((name, *signal, waiter));
    }
    for (name, signal, waiter) in waiters {
        // These do not end the wait.
        waiter.signal(Signal::USR1);
        waiter.signal(Signal::USR2);
        waiter.signal(signal);
        let told = now();
        waiter.wait().exits_with(128 + signal.as_raw());
        assert!(now() - told < Duration::from_secs(4), "{name}: {:?}", now() - told);
    }
    env.end();
    holder.wait().exits_with(0);
    env.tenure_run(["-n", "x", "--", "true"]).exits_with(0);
    assert!(!env.path("ran").exists());
}

#[test]
fn no_signal_is_lost_while_the_command_starts() {
    let env = TestEnv::new();
    for round in 0..60 {
        let running = env.start(env.tenure_run_command(["x", "--", "sleep", "30"]));
        sleep(Duration::from_micros(random(25_000)));
        running.signal(Signal::TERM);
        let outcome = running.wait();
        // Before `main` the kernel ends the process, and nothing is held.
        assert!(matches!(outcome.code(), None | Some(143)), "round {round}: {outcome:?}");
        env.tenure_run(["-n", "x", "--", "true"]).exits_with(0);
    }
}

#[test]
fn what_was_ignored_from_the_start_stays_ignored() {
    let env = TestEnv::new();
    let mut command = env.program("sh");
    let inner = "READY; while [ ! -e end ]; do sleep 0.02; done; exit 3"
        .replace("READY", "echo $$ > up.new && mv up.new up");
    command.args(["-c", r#"trap '' HUP; exec "$0" run x -- sh -c "$1""#, crate::env::BINARY, &inner]);
    let running = env.start(command);
    running.eventually("the command is up", || env.path("up").exists());
    running.signal(Signal::HUP);
    rustix::process::kill_process(env.pid("up"), Signal::HUP).unwrap();
    sleep(Duration::from_millis(100));
    assert!(!running.has_ended(), "{running:?}");
    env.end();
    running.wait().exits_with(3).says_nothing();
}

#[test]
fn a_command_that_was_stopped_keeps_its_lock() {
    let env = TestEnv::new();
    let running =
        env.start_script(&["--ttl", "300ms"], "x", "READY; while [ ! -e end ]; do sleep 0.02; done; exit 3");
    let command = env.pid("up");
    rustix::process::kill_process(command, Signal::STOP).unwrap();
    env.tenure_run(["-w", "0.7", "x", "--", "true"]).exits_with(75);
    rustix::process::kill_process(command, Signal::CONT).unwrap();
    env.end();
    running.wait().exits_with(3).says_nothing();
}
