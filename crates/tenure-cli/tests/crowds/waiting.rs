//! Processes started at once: five hundred that wait for one fair lock, and as many on a silent store.
//! `TENURE_CROWD` sets another number.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use tenure_testkit::servers::Server;

use crate::env::{Running, TestEnv, now};

fn crowd() -> usize {
    std::env::var("TENURE_CROWD").map_or(500, |count| count.parse().expect("a number"))
}

/// Generous for a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// Number of waiters in the record of the only lock.
fn waiting(env: &TestEnv) -> usize {
    let records = fs::read_dir(env.store()).expect("a store").filter_map(Result::ok);
    let texts = records.filter(|entry| entry.file_name().to_string_lossy().starts_with("lock-"));
    let text = texts.filter_map(|entry| fs::read_to_string(entry.path()).ok()).next().unwrap_or_default();
    // A line for each ticket ends with its owner, and one of them holds.
    text.lines().filter(|line| line.contains('@')).count().saturating_sub(1)
}

/// CPU time of a process, in hundredths of a second.
fn ticks(running: &Running) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", running.pid().as_raw_nonzero()));
    let stat = stat.expect("it waits");
    let fields: Vec<_> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum()
}

#[test]
fn of_a_crowd_that_waits_in_one_queue_none_fails() {
    let (env, count) = (TestEnv::new(), crowd());
    // Five hundred starting processes leave it little CPU time.
    let holder =
        env.start_script(&["--fair", "--ttl", "5m"], "x", "READY; while [ ! -e go ]; do sleep 0.1; done");
    let crowd: Vec<Running> =
        (0..count).map(|_| env.start(env.tenure_run_command(["--fair", "x", "--", "true"]))).collect();
    let end = now() + LIMIT;
    while waiting(&env) < count {
        assert!(now() < end, "{} wait", waiting(&env));
        for running in &crowd {
            assert!(!running.has_ended(), "{running:?}");
        }
        sleep(Duration::from_millis(50));
    }
    let used = || crowd.iter().map(ticks).sum::<u64>();
    // The last waiters have yet to learn whether they are first.
    sleep(Duration::from_secs(2));
    let (before, begun) = (used(), now());
    sleep(Duration::from_secs(10));
    let (used, took) = (used() - before, now() - begun);
    let share = used as f64 / 100.0 / took.as_secs_f64();
    println!("{count} that wait use {:.1} % of a core", 100.0 * share);
    let begun = now();
    fs::write(env.path("go"), "").expect("written");
    holder.wait().exits_with(0);
    for running in crowd {
        running.wait_for(LIMIT).exits_with(0);
    }
    println!("{count} turns took {:?}", now() - begun);
}

/// The store is silent for longer than a lone command needs for an answer.
fn at_once(env: &TestEnv, words: &[&str], code: i32, silence: impl FnOnce(Duration)) {
    let (begun, count) = (now(), crowd());
    let words = [words, &["-q", "x", "--", "true"]].concat();
    let crowd: Vec<Running> = (0..count).map(|_| env.start(env.tenure_run_command(&words))).collect();
    silence(Duration::from_millis(1_500).saturating_sub(now() - begun));
    for running in crowd {
        running.wait_for(LIMIT).exits_with(code);
    }
    println!("{count} answers took {:?}", now() - begun);
}

#[test]
fn of_a_crowd_that_asks_a_silent_server_at_once_none_fails() {
    let (env, server) = (TestEnv::new(), Server::start());
    let url = server.url();
    let holder = env.start_script(&["--store", &url, "--ttl", "2m"], "x", "READY; exec sleep 300");
    server.stop();
    at_once(&env, &["--store", &url, "-n"], 75, |rest| {
        sleep(rest);
        server.cont();
    });
    drop(holder);
}

#[test]
fn of_a_crowd_that_asks_a_silent_directory_at_once_none_fails() {
    let env = TestEnv::new();
    env.tenure_run(["x", "--", "true"]).exits_with(0);
    let silent = env.silence_the_store();
    at_once(&env, &[], 0, |rest| {
        sleep(rest);
        drop(silent);
    });
}
