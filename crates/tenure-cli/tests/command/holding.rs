//! How long a run holds its lock, and how its command ends: `--min-hold`, `--max-hold`, `--splay`,
//! `--on-lost`, `--kill-after` and `-c`.

use std::fs;

use rustix::process::Signal;

use crate::env::{Outcome, TestEnv, is_alive, ms, now};

const TTL: &[&str] = &["--ttl", "900ms"];
const FOREVER: &str = "while :; do sleep 0.02; done";

/// Forces the lock open.
fn force(env: &TestEnv) -> Outcome {
    env.run(env.tenure(["release", "--force", "x"])).exits_with(0)
}

#[test]
fn a_script_is_run_by_a_shell() {
    let env = TestEnv::new();
    let script = r#"echo "$TENURE_NAME" | tr x y; exit 7"#;
    for args in [["x", "-c", script], ["-c", script, "x"]] {
        assert_eq!(env.tenure_run(args).exits_with(7).says_nothing().stdout, "y\n");
    }
    env.tenure_run(["x", "-c", "-odd"]).exits_with(127);
}

#[test]
fn a_command_that_ends_soon_keeps_the_lock_for_the_least_hold() {
    let env = TestEnv::new();
    for (script, code) in [("touch done", 0), ("touch done; exit 7", 7)] {
        let _ = fs::remove_file(env.path("done"));
        fs::write(env.path("before"), "").unwrap();
        let running = env.start(env.tenure_run_command(["--min-hold", "800ms", "x", "-c", script]));
        running.eventually("the command has run", || env.path("done").exists());
        env.tenure_run(["x", "-c", "touch next"]).exits_with(0);
        let written = |name| fs::metadata(env.path(name)).and_then(|file| file.modified()).unwrap();
        let until_next = written("next").duration_since(written("before")).unwrap();
        let said = running.wait().exits_with(code).says_nothing();
        assert!(said.took >= ms(800) && until_next >= ms(800), "{until_next:?}, {said:?}");
    }
    // A longer command is not delayed.
    env.within(ms(2_000), || env.tenure_run(["--min-hold", "1ms", "x", "true"]).exits_with(0));
}

#[test]
fn a_signal_ends_the_least_hold_and_the_lock_is_released() {
    let env = TestEnv::new();
    let command = env.tenure_run_command(["--min-hold", "1h", "x", "-c", "touch done; exit 3"]);
    let running = env.start(command);
    running.eventually("the command has run", || env.path("done").exists());
    // For a moment it may still be a process that would get the signal.
    running.command_has_ended();
    running.signal(Signal::TERM);
    running.wait().exits_with(3).says_nothing();
    env.tenure_run(["-n", "x", "true"]).exits_with(0);
}

#[test]
fn a_request_to_stop_ends_the_least_hold() {
    let env = TestEnv::new();
    let running = env.start(env.tenure_run_command(["--min-hold", "1h", "x", "-c", "touch done; exit 3"]));
    running.eventually("the command has run", || env.path("done").exists());
    env.run(env.tenure(["stop", "-w", "20s", "x"])).exits_with(0);
    running.wait().exits_with(3).says("asked to stop by");
}

#[test]
fn a_command_that_was_told_to_end_does_not_keep_the_lock() {
    let env = TestEnv::new();
    let running = env.start_script(&["--min-hold", "1h"], "x", "READY; exec sleep 30");
    running.signal(Signal::TERM);
    running.wait().exits_with(143).says_nothing();
    env.tenure_run(["-n", "x", "true"]).exits_with(0);
}

#[test]
fn a_lock_that_is_lost_after_the_command_leaves_its_exit_status() {
    let env = TestEnv::new();
    let options = ["--ttl", "900ms", "--min-hold", "1h", "x", "-c", "touch done; exit 3"];
    let running = env.start(env.tenure_run_command(options));
    running.eventually("the command has run", || env.path("done").exists());
    running.command_has_ended();
    force(&env);
    running.wait().exits_with(3).says("had ended before");
}

#[test]
fn a_command_is_stopped_at_the_end_of_the_longest_hold() {
    let env = TestEnv::new();
    let script = format!("trap 'echo tidy > tidied; exit 0' TERM; READY; {FOREVER}");
    let running = env.start_script(&["--max-hold", "1s", "--grace", "300ms"], "x", &script);
    let said = running.wait().exits_with(79).says_among_others("max_hold");
    assert!((ms(650)..ms(5_000)).contains(&said.took), "{said:?}");
    assert_eq!(env.read("tidied"), "tidy\n");
    env.tenure_run(["-n", "x", "true"]).exits_with(0);
}

#[test]
fn the_lock_is_asked_for_after_a_random_part_of_the_splay() {
    let env = TestEnv::new();
    env.within(ms(2_000), || env.tenure_run(["--splay", "200ms", "x", "true"]).exits_with(0).says_nothing());
    let waiter = env.start(env.tenure_run_command(["--splay", "10000d", "x", "touch", "ran"]));
    waiter.eventually("it catches signals", || {
        let status = format!("/proc/{}/status", waiter.pid().as_raw_nonzero());
        let caught = fs::read_to_string(status).unwrap_or_default();
        let mask = caught.lines().find_map(|line| line.strip_prefix("SigCgt:").map(str::trim));
        mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).is_some_and(|mask| mask & (1 << 14) != 0)
    });
    waiter.signal(Signal::TERM);
    waiter.wait().exits_with(143).says_nothing();
    assert!(!env.path("ran").exists());
}

#[test]
fn a_lost_lock_is_told_by_the_signal_that_was_chosen() {
    let env = TestEnv::new();
    let script =
        format!("trap 'echo usr1 > told; exit 0' USR1; trap 'echo term > told' TERM; READY; {FOREVER}");
    let options = ["--ttl", "6s", "--grace", "2s", "--on-lost", "signal:USR1"];
    let running = env.start_script(&options, "x", &script);
    force(&env);
    running.wait().exits_with(79).says_among_others("lost");
    assert_eq!(env.read("told"), "usr1\n");
}

#[test]
fn a_lost_lock_kills_at_once_where_that_was_chosen() {
    let env = TestEnv::new();
    let script = format!("trap 'echo term > told; exit 0' TERM; READY; {FOREVER}");
    let options = ["--ttl", "6s", "--grace", "2s", "--on-lost", "kill"];
    let running = env.start_script(&options, "x", &script);
    let child = env.pid("up");
    force(&env);
    let said = running.wait().exits_with(79).says_among_others("lost");
    assert!(!is_alive(child) && said.took < ms(5_000), "{said:?}");
    assert_eq!(env.read("told"), "");
}

#[test]
fn a_lost_lock_is_only_said_where_it_is_ignored() {
    let env = TestEnv::new();
    let script = "READY; while [ ! -e end ]; do sleep 0.02; done; exit 7";
    let running = env.start_script(&[TTL, &["--on-lost", "ignore"]].concat(), "x", script);
    force(&env);
    // After the moment at which it is told to end, and its whole lease.
    let end = now() + ms(1_200);
    running.eventually("it runs on", || now() > end);
    env.tenure_run(["-n", "x", "true"]).exits_with(0);
    env.end();
    running.wait().exits_with(7).says("ran on without the lock");
}

#[test]
fn a_command_that_does_not_end_when_told_to_is_killed_after_the_time() {
    let env = TestEnv::new();
    let script = format!("trap '' TERM INT; READY; {FOREVER}");
    for signal in [Signal::TERM, Signal::INT] {
        let running = env.start_script(&["--kill-after", "300ms"], "x", &script);
        let told = now();
        running.signal(signal);
        running.wait().exits_with(137).says_nothing();
        assert!((ms(300)..ms(3_000)).contains(&(now() - told)), "{:?}", now() - told);
        env.tenure_run(["-n", "x", "true"]).exits_with(0);
    }
    // USR1 does not ask it to end.
    let script = "trap : USR1; READY; while [ ! -e end ]; do sleep 0.02; done";
    let running = env.start_script(&["--kill-after", "1ms"], "x", script);
    running.signal(Signal::USR1);
    let end = now() + ms(300);
    running.eventually("it runs on", || now() > end);
    env.end();
    running.wait().exits_with(0);
}
