//! The wrapper is stopped or killed, and its watchdog takes over.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure_testkit::servers::{Server, eventually};
use tenure_testkit::timed::in_time;

use crate::env::{Running, SOON, TestEnv, UNTIL_END, is_alive, ms, now, random};
use crate::killed::{another_user, with_rights_for_all};

const STUBBORN: &str = "trap 'echo > told' TERM; READY; while :; do sleep 0.01; done";
/// A lease whose end the watchdog precedes by more than most stalls of a busy machine.
const TTL: Duration = Duration::from_millis(2_400);
const TERMS: [&str; 4] = ["--ttl", "2400ms", "--grace", "800ms"];

/// The child of a wrapper that is not its command.
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

/// An upper bound of when it was gone.
fn gone(pid: Pid) -> Duration {
    eventually("the command is gone", SOON, || !is_alive(pid));
    now()
}

/// Starts `tenure` with these arguments; returns once the script run by `sh` has written its pid.
fn start(env: &TestEnv, words: &[&str], script: &str) -> Running {
    env.start_script_by(env.tenure(words), "x", script)
}

/// Stops a wrapper; returns whether its command was gone before its lease could end.
fn ends_in_time(env: &TestEnv, running: &Running) -> bool {
    let command = env.pid("up");
    // A renewal was answered, so the first deadline has moved.
    sleep(TTL / 2);
    running.signal(Signal::STOP);
    // From here on nothing renews it.
    let stopped = now();
    sleep(TTL.saturating_sub(now() - stopped));
    !is_alive(command)
}

/// Arguments with a prefix of their own in a shared store.
fn words_on<'a>(store: &'a str, prefix: &'a str, words: &[&'a str]) -> Vec<&'a str> {
    [&words[..1], &["--store", store, "--prefix", prefix], &words[1..]].concat()
}

/// A wrapper with these arguments is stopped: its command ends within its lease, the next holder begins, and
/// the wrapper reports the loss when it resumes.
#[track_caller]
pub(crate) fn stopped(store: &str, words: &[&str]) {
    let env = TestEnv::new();
    let store = if store.is_empty() { env.url() } else { store.to_owned() };
    let prefix = format!("stopped{}:", words.concat());
    let words = words_on(&store, &prefix, words);
    let script =
        "trap 'echo USR1 > told' USR1; trap 'echo TERM > told' TERM; READY; while :; do sleep 0.01; done";
    let running = start(&env, &[&words[..], &TERMS].concat(), script);
    assert!(ends_in_time(&env, &running), "{words:?}: it outlived its lease");
    let told = match () {
        () if words.contains(&"kill") => "",
        () if words.contains(&"signal:USR1") => "USR1\n",
        () => "TERM\n",
    };
    assert_eq!(env.read("told"), told, "{words:?}");
    // The wrapper is still stopped, so only the end of its lease can admit the next.
    let next = [&words[..], &["x", "--", "true"]].concat();
    let next = env.run(env.tenure(next));
    match words.contains(&"--once-per") {
        false => next.exits_with(0),
        true => next.exits_with(75).says("died or lost its lock"),
    };
    running.signal(Signal::CONT);
    running.wait().exits_with(79);
}

#[test]
fn a_command_whose_wrapper_stands_still_ends_within_its_lease() {
    let server = Server::start();
    let store = server.url();
    let cases: [(&str, &[&str]); 8] = [
        ("", &["run"]),
        ("", &["run", "--on-lost", "signal:USR1"]),
        ("", &["run", "--on-lost", "kill"]),
        ("", &["run", "--foreground"]),
        (&store, &["run"]),
        (&store, &["run", "--also", "y"]),
        (&store, &["run", "--once-per", "1d"]),
        (&store, &["elect"]),
    ];
    std::thread::scope(|scope| {
        for (store, words) in cases {
            scope.spawn(move || stopped(store, words));
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
    env.end();
    running.wait().exits_with(3).says("ran on without the lock");
}

#[test]
fn nothing_is_killed_while_one_of_both_stands_still_at_a_time() {
    let env = TestEnv::new();
    let script = "READY; while [ ! -e end ]; do sleep 0.02; done; exit 3";
    let running = start(&env, &["run", "--ttl", "1500ms"], script);
    let watchdog = watchdog_of(&running);
    // Longer than a lease.
    stop(watchdog);
    sleep(ms(2_000));
    for pid in [running.pid(), watchdog].repeat(2) {
        stop(pid);
        cont(if pid == watchdog { running.pid() } else { watchdog });
        sleep(ms(350));
    }
    cont(watchdog);
    env.end();
    running.wait().exits_with(3).says_nothing();
}

/// A service manager sends a signal to every process of a unit, and the wrapper is then killed.
#[test]
fn a_watchdog_outlives_the_signals_of_a_unit() {
    let env = TestEnv::new();
    let script = "trap 'echo usr1 > told' USR1; READY; while :; do sleep 0.01; done";
    let running = start(&env, &["run", "--ttl", "5s"], script);
    let watchdog = watchdog_of(&running);
    for signal in [Signal::USR1, Signal::HUP, Signal::TERM] {
        kill_process(watchdog, signal).expect("it runs");
    }
    let command = env.pid("up");
    running.signal(Signal::KILL);
    running.wait();
    eventually("its command is killed", Duration::from_secs(20), || {
        kill_process(command, Signal::CONT).is_err()
    });
    env.tenure_run(["-w", "20", "x", "--", "true"]).exits_with(0);
}

/// The wrapper, its watchdog and its command are stopped past the lease, and then resumed.
fn stand_still_together(freeze: impl FnOnce(&[Pid]), thaw: impl FnOnce(&[Pid])) {
    let env = TestEnv::new();
    let running =
        start(&env, &["run", "--ttl", "900ms"], "trap '' TERM; READY; while :; do sleep 0.01; done");
    let (command, watchdog) = (env.pid("up"), watchdog_of(&running));
    let all = [running.pid(), watchdog, command];
    freeze(&all);
    env.tenure_run(["-w", "20", "x", "--", "true"]).exits_with(0);
    assert!(is_alive(command));
    let woken = now();
    thaw(&all);
    let took = gone(command) - woken;
    println!("the command was gone {took:?} after the thaw");
    in_time(took, ms(5_000));
    running.wait().exits_with(79).says("lost");
}

#[test]
fn what_stood_still_together_is_judged_first_when_it_goes_on() {
    stand_still_together(
        |all| all.iter().copied().for_each(stop),
        |all| all.iter().rev().copied().for_each(cont),
    );
}

/// A cgroup of version 2, removed on drop.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Self {
        let read = |path: &str| fs::read_to_string(path).expect("proc");
        let mounts = read("/proc/self/mounts");
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let root = mounts.find(|mount| mount[2] == "cgroup2").expect("cgroups of version 2");
        let own = read("/proc/self/cgroup");
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).expect("a cgroup");
        let path = Path::new(root[1]).join(own).join(format!("tenure-{}", std::process::id()));
        fs::create_dir(&path).unwrap_or_else(|error| panic!("cannot create {}: {error}", path.display()));
        Self(path)
    }

    fn set(&self, file: &str, value: i32) {
        fs::write(self.0.join(file), value.to_string()).expect("written");
    }

    fn freeze(&self) {
        self.set("cgroup.freeze", 1);
        let events = self.0.join("cgroup.events");
        eventually("it is frozen", SOON, || {
            fs::read_to_string(&events).expect("events").contains("frozen 1")
        });
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        eventually("its processes are gone", SOON, || fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
#[ignore = "needs the right to create cgroups; scripts/soak runs it"]
fn a_frozen_cgroup_is_judged_first_when_it_goes_on() {
    let cgroup = Cgroup::new();
    stand_still_together(
        |all| {
            all.iter().for_each(|pid| cgroup.set("cgroup.procs", pid.as_raw_pid()));
            cgroup.freeze();
        },
        |_| cgroup.set("cgroup.freeze", 0),
    );
}

/// As on a machine that has slept for some minutes, by which its two clocks differ.
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
    let running = env.start_script_by(on_a_machine_that_slept(&env, &words), "x", STUBBORN);
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
        let running = env.start_script_by(command, "x", STUBBORN);
        (env, running)
    };
    for (bug, slept) in [("DeadlineKept", false), ("ClockStops", true)] {
        let (env, running) = with(bug, slept);
        assert!(!ends_in_time(&env, &running), "{bug} is not caught");
    }
    let (_env, running) = with("FirstDeadlineTrusted", false);
    running.wait().exits_with(79);
}

/// Wrappers of eight hosts contend for one lock, while one process of each is stopped at times. Commands log
/// when they ran, and no two overlap.
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
    // The stopped process of each, and until when.
    let mut stopped: Vec<Option<(Pid, Duration)>> = vec![None; wrappers.len()];
    let marks = || -> Vec<String> {
        let files = fs::read_dir(env.path("")).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("at-")).collect()
    };
    let (end, mut lost) = (now() + time, 0);
    // The stops are random, so at times it takes longer until something has happened.
    while now() < end || ((marks().len() <= 2 || lost == 0) && now() < end + 6 * SOON) {
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
                // Only a wrapper that holds has a watchdog. Others are stopped at times.
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
    let mut times: Vec<(u64, u64)> = marks()
        .iter()
        .filter_map(|name| {
            let text = env.read(name);
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

/// `TENURE_STOPS` sets the duration in seconds.
#[test]
#[ignore = "takes minutes; scripts/soak runs it"]
fn commands_never_overlap_for_minutes() {
    let seconds = std::env::var("TENURE_STOPS").map_or(300, |seconds| seconds.parse().expect("seconds"));
    hunt(Duration::from_secs(seconds));
}

/// A wrapper with these arguments is killed, and the next one, with the same arguments, begins soon.
#[track_caller]
pub(crate) fn killed(store: &str, words: &[&str]) {
    let env = TestEnv::new();
    let store = if store.is_empty() { env.url() } else { store.to_owned() };
    let prefix = format!("killed{}:", words.concat());
    let words = words_on(&store, &prefix, words);
    let running = start(&env, &words, "trap '' TERM; READY; while :; do sleep 0.01; done");
    let command = env.pid("up");
    let next = |more: &[&str]| env.tenure([&words[..], more, &["x", "--", "touch", "next"]].concat());
    // A job does not wait, so it is retried.
    let waits = !words.contains(&"--once-per");
    let waiter = waits.then(|| {
        let waiter = env.start(next(&["-v"]));
        waiter.eventually("it waits", || {
            ["waiting for", "a candidate of"].iter().any(|text| waiter.stderr().contains(text))
        });
        waiter
    });
    running.signal(Signal::KILL);
    let killed = now();
    let retry = || env.run(next(&[])).code() == Some(0);
    eventually("the next begins", SOON, || (waits || retry()) && env.path("next").exists());
    let took = now() - killed;
    assert!(!is_alive(command), "the command lives on");
    println!("{words:?}: the next began {took:?} after the kill");
    // A fraction of a second on an idle machine. If nobody gives the hold back, it lasts for its ttl of 15 s.
    in_time(took, ms(3_000));
    waiter.into_iter().for_each(|waiter| drop(waiter.wait().exits_with(0)));
}

#[test]
fn the_next_begins_soon_after_a_wrapper_was_killed() {
    let server = Server::start();
    let cases: [&[&str]; 6] = [
        &["run"],
        &["run", "--also", "y"],
        &["run", "--slots", "1"],
        &["run", "--reentrant"],
        &["elect"],
        &["run", "--once-per", "1d", "--retry-lost"],
    ];
    cases.into_iter().for_each(|words| killed(&server.url(), words));
    killed("", &["run"]);
}

/// Holds of a fleet that share an owner are released one by one.
#[test]
fn a_killed_wrapper_gives_back_its_own_hold_alone() {
    let (env, server) = (TestEnv::new(), Server::start());
    let owner = tenure::Owner::new("").expect("an owner").to_string();
    let words = ["run", "--store", &server.url(), "--reentrant", "--owner", &owner];
    let outer = start(&env, &words, UNTIL_END);
    let outer_command = env.pid("up");
    let inner = start(&env, &words, "READY; exec sleep 60");
    inner.signal(Signal::KILL);
    eventually("one hold is left", SOON, || {
        let fields = server.command(&["HGET", "x", owner.as_str()]);
        fields == "1"
    });
    assert!(is_alive(outer_command));
    env.end();
    outer.wait().exits_with(0);
}
