//! The wrapper stands still or is killed, and its watchdog does what is left to do.

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure_testkit::servers::{Server, eventually};
use tenure_testkit::timed::in_time;

use crate::env::{Running, TestEnv, is_alive, now, random};
use crate::killed::{another_user, with_rights_for_all};

const STUBBORN: &str = "trap 'echo > told' TERM; READY; while :; do sleep 0.01; done";
/// A lease whose end the watchdog precedes by more than most stalls of a busy machine.
const TTL: Duration = Duration::from_millis(2_400);
const TERMS: [&str; 4] = ["--ttl", "2400ms", "--grace", "800ms"];
const SOON: Duration = Duration::from_secs(20);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The other process of a wrapper, which is not its command.
pub(crate) fn watchdog_of(wrapper: &Running) -> Pid {
    let mut found = None;
    wrapper.eventually("its watchdog is there", || {
        found = children_of(wrapper.pid()).into_iter().find(|child| is_watchdog(*child));
        found.is_some()
    });
    found.expect("it was found")
}

fn children_of(parent: Pid) -> Vec<Pid> {
    let parent = parent.as_raw_nonzero().to_string();
    let entries = fs::read_dir("/proc").expect("processes").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)) == Some(&*parent)
    };
    pids.filter(is_child).filter_map(Pid::from_raw).collect()
}

fn is_watchdog(pid: Pid) -> bool {
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(1) == Some(b"__watchdog")
}

fn stop(pid: Pid) {
    kill_process(pid, Signal::STOP).expect("it runs");
}

fn cont(pid: Pid) {
    kill_process(pid, Signal::CONT).expect("it runs");
}

/// When it was gone, from above.
fn gone(pid: Pid) -> Duration {
    eventually("the command is gone", SOON, || !is_alive(pid));
    now()
}

/// `tenure` with these words, once a script that `sh` runs has written its number.
fn start(env: &TestEnv, words: &[&str], script: &str) -> Running {
    start_with(env, env.tenure(words), script)
}

fn start_with(env: &TestEnv, mut command: Command, script: &str) -> Running {
    let _ = fs::remove_file(env.path("up"));
    let script = script.replace("READY", "echo $$ > up.new && mv up.new up");
    command.args(["x", "--", "sh", "-c", &script]);
    let running = env.start(command);
    running.eventually("the command is up", || env.path("up").exists());
    running
}

/// Stops a wrapper; returns whether its command was gone when its lease could end at the earliest.
fn ends_in_time(env: &TestEnv, running: &Running) -> bool {
    let command = env.pid("up");
    // A renewal was answered, so the first deadline is not the last.
    sleep(TTL / 2);
    running.signal(Signal::STOP);
    // Nothing renews it after this.
    let stopped = now();
    sleep(TTL.saturating_sub(now() - stopped));
    !is_alive(command)
}

#[test]
fn a_command_whose_wrapper_stands_still_ends_within_its_lease() {
    let server = Server::start();
    let store = server.url();
    let cases: &[&[&str]] = &[
        &["run"],
        &["run", "--store", &store],
        &["run", "--store", &store, "--also", "y"],
        &["run", "--store", &store, "--once-per", "1d"],
        &["run", "--on-lost", "signal:USR1"],
        &["run", "--on-lost", "kill"],
        &["run", "--foreground"],
        &["elect", "--store", &store],
    ];
    std::thread::scope(|scope| {
        let (server, store) = (&server, &store);
        for words in cases {
            scope.spawn(move || {
                    let env = TestEnv::new();
                    let script = "trap 'echo USR1 > told' USR1; trap 'echo TERM > told' TERM; READY; while :; do sleep 0.01; done";
                    let running = start(&env, &[*words, &TERMS].concat(), script);
                    assert!(ends_in_time(&env, &running), "{words:?}: it outlived its lease");
                    let told = if words.contains(&"kill") {
                        ""
                    } else if words.contains(&"signal:USR1") {
                        "USR1\n"
                    } else {
                        "TERM\n"
                    };
                    assert_eq!(env.read("told"), told, "{words:?}");
                    running.signal(Signal::CONT);
                    running.wait().exits_with(79);
                    if words.contains(&"--once-per") {
                        let again = env.tenure(["run", "--store", store, "--once-per", "1d", "x", "true"]);
                        env.run(again).exits_with(75).says("died or lost its lock");
                        server.command(&["FLUSHALL"]);
                    }
            });
        }
    });
}

#[test]
fn a_command_of_another_user_ends_within_its_lease() {
    let env = TestEnv::new();
    with_rights_for_all(&env);
    let words = [&["run"][..], &TERMS, &["x", "--"], another_user()].concat();
    let mut command = env.tenure(words);
    command.args(["sh", "-c", "echo $$ > up.new; mv up.new up; exec sleep 60"]);
    let running = env.start(command);
    running.eventually("the command is up", || env.path("up").exists());
    assert!(ends_in_time(&env, &running), "it outlived its lease");
    running.signal(Signal::CONT);
    running.wait().exits_with(79);
}

#[test]
fn with_on_lost_ignore_a_command_outlives_a_stopped_wrapper() {
    let env = TestEnv::new();
    let words = ["run", "--on-lost", "ignore", "--ttl", "600ms"];
    let running = start(&env, &words, "READY; while [ ! -e end ]; do sleep 0.02; done; exit 3");
    running.signal(Signal::STOP);
    env.tenure_run(["-w", "20", "x", "--", "true"]).exits_with(0);
    assert!(is_alive(env.pid("up")));
    running.signal(Signal::CONT);
    fs::write(env.path("end"), "").unwrap();
    running.wait().exits_with(3).says("ran on without the lock");
}

#[test]
fn nothing_is_killed_while_one_of_both_stands_still_at_a_time() {
    let env = TestEnv::new();
    let script = "READY; while [ ! -e end ]; do sleep 0.02; done; exit 3";
    let running = start(&env, &["run", "--ttl", "1500ms"], script);
    let watchdog = watchdog_of(&running);
    // Longer than a lease, and than what is told to it in one.
    stop(watchdog);
    sleep(ms(2_000));
    for pid in [running.pid(), watchdog].repeat(2) {
        stop(pid);
        cont(if pid == watchdog { running.pid() } else { watchdog });
        sleep(ms(350));
    }
    cont(watchdog);
    fs::write(env.path("end"), "").unwrap();
    running.wait().exits_with(3).says_nothing();
}

/// As a container does that is frozen.
#[test]
fn what_stood_still_together_is_judged_first_when_it_goes_on() {
    let env = TestEnv::new();
    let running =
        start(&env, &["run", "--ttl", "900ms"], "trap '' TERM; READY; while :; do sleep 0.01; done");
    let (command, watchdog) = (env.pid("up"), watchdog_of(&running));
    let all = [running.pid(), watchdog, command];
    all.into_iter().for_each(stop);
    env.tenure_run(["-w", "20", "x", "--", "true"]).exits_with(0);
    assert!(is_alive(command));
    let woken = now();
    all.into_iter().rev().for_each(cont);
    assert!(gone(command) - woken < ms(5_000));
    running.wait().exits_with(79).says("lost");
}

/// On a machine that has slept for some minutes: its two clocks differ by that.
fn on_a_machine_that_slept(env: &TestEnv, words: &[&str]) -> Command {
    let mut command = env.program("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--time", "--boottime", "600", "--", crate::env::BINARY]).args(words);
    command
}

#[test]
fn the_deadline_counts_on_the_clock_that_counts_sleep() {
    let env = TestEnv::new();
    let words = [&["run"][..], &TERMS].concat();
    let running = start_with(&env, on_a_machine_that_slept(&env, &words), STUBBORN);
    assert!(ends_in_time(&env, &running), "it outlived its lease");
}

#[cfg(tenure_planted)]
#[test]
fn planted_bugs_of_the_deadline_are_caught() {
    let words = [&["run"][..], &TERMS].concat();
    let with = |bug: &str, slept: bool| {
        let env = TestEnv::new();
        let mut command = if slept { on_a_machine_that_slept(&env, &words) } else { env.tenure(&words) };
        command.env("TENURE_BUG", bug);
        let running = start_with(&env, command, STUBBORN);
        (env, running)
    };
    for (bug, slept) in [("DeadlineKept", false), ("ClockStops", true)] {
        let (env, running) = with(bug, slept);
        assert!(!ends_in_time(&env, &running), "{bug} is not caught");
    }
    let (_env, running) = with("FirstDeadlineTrusted", false);
    running.wait().exits_with(79);
}

/// Eight hosts' worth of wrappers want one lock, while one process of each stands still at times. A
/// command writes when it was there, and two of them never were at once.
fn hunt(time: Duration) {
    let (env, server) = (TestEnv::new(), Server::start());
    let script = r#"
import os, signal, sys, time
if os.getpid() % 2: signal.signal(signal.SIGTERM, signal.SIG_IGN)
began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
until = began + int(1e9 * (0.2 + os.getpid() % 7 / 2))
while (now := time.clock_gettime_ns(time.CLOCK_BOOTTIME)) < until:
    open(f"at-{began}-{os.getpid()}", "w").write(f"{began} {now}\n")
    time.sleep(0.001)
"#;
    let url = server.url();
    let wrapper = || {
        let words = [
            "--store", &url, "--ttl", "1500ms", "--grace", "500ms", "-q", "x", "--", "python3", "-c", script,
        ];
        env.start(env.tenure_run_command(words))
    };
    let mut wrappers: Vec<Running> = (0..8).map(|_| wrapper()).collect();
    // Which process of each stands still, and until when.
    let mut stopped: Vec<Option<(Pid, Duration)>> = vec![None; wrappers.len()];
    let (end, mut lost) = (now() + time, 0);
    while now() < end {
        let at = random(8) as usize;
        if wrappers[at].has_ended() {
            let ended = std::mem::replace(&mut wrappers[at], wrapper()).wait();
            assert!(matches!(ended.code(), Some(0 | 69 | 79)), "{ended:?}");
            lost += u32::from(ended.code() == Some(79));
            stopped[at] = None;
        }
        match stopped[at] {
            Some((pid, until)) if until <= now() => {
                // It may have ended with its wrapper.
                let _ = kill_process(pid, Signal::CONT);
                stopped[at] = None;
            }
            Some(_) => {}
            None => {
                // Only one that holds the lock has a watchdog. Others are stopped at times.
                let watchdog = children_of(wrappers[at].pid()).into_iter().find(|child| is_watchdog(*child));
                if watchdog.is_some() || random(200) == 0 {
                    let pid = watchdog.filter(|_| random(3) == 0).unwrap_or_else(|| wrappers[at].pid());
                    let until = now() + ms(random(2_000));
                    stopped[at] = kill_process(pid, Signal::STOP).is_ok().then_some((pid, until));
                }
            }
        }
        sleep(ms(random(20)));
    }
    for (pid, _) in stopped.into_iter().flatten() {
        let _ = kill_process(pid, Signal::CONT);
    }
    drop(wrappers);
    let is_mark = |name: &str| name.starts_with("at-");
    let names =
        fs::read_dir(env.path("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut times: Vec<(u64, u64)> = names
        .filter(|name| is_mark(name))
        .filter_map(|name| {
            let text = env.read(&name);
            let (began, last) = text.trim().split_once(' ')?;
            Some((began.parse().ok()?, last.parse().ok()?))
        })
        .collect();
    times.sort_unstable();
    let closest = times.windows(2).map(|two| two[1].0 as i64 - two[0].1 as i64).min();
    println!("{} commands, {lost} lost, the closest two {:?} ns apart", times.len(), closest);
    assert!(times.len() > 2 && lost > 0, "{} commands, {lost} lost", times.len());
    assert!(closest > Some(0), "two commands at once: {closest:?} ns");
}

#[test]
fn commands_of_wrappers_that_stand_still_at_random_never_overlap() {
    hunt(ms(9_000));
}

/// `TENURE_STOPS` says for how many seconds.
#[test]
#[ignore = "takes minutes; scripts/soak runs it"]
fn commands_never_overlap_for_minutes() {
    let seconds = std::env::var("TENURE_STOPS").map_or(300, |seconds| seconds.parse().expect("seconds"));
    hunt(Duration::from_secs(seconds));
}

/// The wrapper of these words is killed, and the next that waits with the same words begins soon.
#[track_caller]
pub(crate) fn killed(store: &str, words: &[&str]) {
    let env = TestEnv::new();
    let words = [&words[..1], &["--store", store], &words[1..]].concat();
    let mut next = env.tenure(&words);
    let running = start(&env, &words, "trap '' TERM; READY; while :; do sleep 0.01; done");
    let command = env.pid("up");
    next.args(["x", "--", "sh", "-c", "touch next"]);
    // A job is not waited for: it is tried again.
    let waits = !words.contains(&"--once-per");
    let waiter = waits.then(|| {
        let waiter = env.start(next);
        waiter.eventually("it waits", || {
            env.run(env.tenure(["status", "--store", store, "x"])).code().is_some()
        });
        sleep(ms(300));
        waiter
    });
    running.signal(Signal::KILL);
    let killed = now();
    let retry = || env.run(env.tenure(words.iter().copied().chain(["x", "--", "touch", "next"])));
    eventually("the next begins", SOON, || (waits || retry().code() == Some(0)) && env.path("next").exists());
    let took = now() - killed;
    assert!(!is_alive(command), "the command lives on");
    println!("{words:?}: the next began {took:?} after the kill");
    in_time(took, ms(if waits { 500 } else { 1_000 }));
    waiter.into_iter().for_each(|waiter| drop(waiter.wait().exits_with(0)));
}

#[test]
fn the_next_begins_soon_after_a_wrapper_was_killed() {
    let (env, server) = (TestEnv::new(), Server::start());
    for words in
        [&["run"][..], &["run", "--also", "y"], &["run", "--slots", "1"], &["run", "--reentrant"], &["elect"]]
    {
        killed(&server.url(), words);
    }
    killed(&server.url(), &["run", "--once-per", "1d", "--retry-lost"]);
    killed(&env.url(), &["run"]);
}

/// Holds of a fleet that share an owner are given back one by one.
#[test]
fn a_killed_wrapper_gives_back_its_own_hold_alone() {
    let (env, server) = (TestEnv::new(), Server::start());
    let owner = tenure::Owner::new("").expect("an owner").to_string();
    let words = ["run", "--store", &server.url(), "--reentrant", "--owner", &owner];
    let outer = start(&env, &words, "READY; while [ ! -e end ]; do sleep 0.01; done");
    let outer_command = env.pid("up");
    let inner = start(&env, &words, "READY; exec sleep 60");
    inner.signal(Signal::KILL);
    eventually("one hold is left", SOON, || {
        let fields = server.command(&["HGET", "x", owner.as_str()]);
        fields == "1"
    });
    assert!(is_alive(outer_command));
    fs::write(env.path("end"), "").unwrap();
    outer.wait().exits_with(0);
}
