//! `--once-per` on hosts with different clocks.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::Signal;
use tenure_testkit::servers::{Server, eventually};

use crate::env::{Running, TestEnv, random};

/// Shifts the wall clock of a program by the seconds in a variable.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    const char *offset = getenv("CLOCK_OFFSET");
    if (clock == CLOCK_REALTIME && offset) time->tv_sec += atoi(offset);
    return result;
}
"#;

fn shim(env: &TestEnv) -> PathBuf {
    let (source, library) = (env.path("clock.c"), env.path("clock.so"));
    fs::write(&source, SHIM).expect("a file");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(compiled.expect("cc").success());
    library
}

/// As on a host whose clock is off by this many seconds.
fn with_offset(library: &PathBuf, mut command: Command, seconds: i64) -> Command {
    command.env("LD_PRELOAD", library).env("CLOCK_OFFSET", seconds.to_string());
    command
}

#[test]
fn fifty_hosts_whose_clocks_differ_run_a_job_at_most_once_in_each_period() {
    const PERIOD: u64 = 3;
    let (env, server) = (TestEnv::new(), Server::start());
    let library = shim(&env);
    // Checks the shim: tokens of a directory are made from this machine's clock.
    let token = |seconds| {
        let command = env.tenure_run_command(["-q", "token", "-c", "echo $TENURE_FENCE"]);
        let said = env.run(with_offset(&library, command, seconds)).exits_with(0);
        said.stdout.trim().parse::<u64>().expect("a token")
    };
    let before = token(0);
    assert!(token(1_000) > before + 900_000_000);

    // The job prints the server's time of its beginning from the record, because a reading of its own could
    // fall into the next period.
    let port = server.address().port().to_string();
    let script = format!("redis-cli -p {port} GET 'tenure:rec:once:{{job}}' | head -1 >> runs");
    let period = format!("{PERIOD}s");
    let url = server.url();
    let host = |script: &str, seconds| {
        let options = ["-q", "-E", "0", "--store", &url, "--once-per", &period, "job", "-c", script];
        env.start(with_offset(&library, env.tenure_run_command(options), seconds))
    };
    // On a busy machine some requests time out.
    let ends = |host: Running| {
        let said = host.wait();
        assert!(matches!(said.code(), Some(0 | 69) | None), "{said:?}");
    };
    let started = server.command(&["TIME"]).items()[0].text().parse::<u64>().expect("a time");
    for _ in 0..4 {
        let mut hosts: Vec<_> = (0..50).map(|number| host(&script, number % 11 - 5)).collect();
        for _ in 0..10 {
            let host = random(hosts.len() as u64) as usize;
            if !hosts[host].has_ended() {
                hosts[host].signal(Signal::KILL);
            }
            sleep(Duration::from_millis(random(20)));
        }
        hosts.drain(..).for_each(ends);
        sleep(Duration::from_millis(random(1_000)));
    }
    let mut runs: BTreeMap<u64, u32> = BTreeMap::new();
    for line in env.read("runs").lines() {
        let (at, _) = line.split_once(' ').expect("a record");
        *runs.entry(at.parse::<u64>().expect("a time") / 1_000_000 / PERIOD).or_default() += 1;
    }
    assert!(runs.values().all(|count| *count == 1), "{runs:?}");
    assert!(!runs.is_empty() && *runs.keys().next().expect("a run") >= started / PERIOD, "{runs:?}");
    // It runs again in a later period, at the latest when a killed runner's lease has ended.
    eventually("another run", Duration::from_secs(60), || {
        ends(host("touch again", 0));
        env.path("again").exists()
    });
}

/// A zone file with one offset to the east of UTC, in hours.
fn zone_file(hours: i32) -> Vec<u8> {
    let block = |version: u8| {
        let mut block = [b"TZif".as_slice(), &[version], &[0; 15]].concat();
        // No leap seconds and transitions; one type with one name.
        [0_u32, 0, 0, 0, 1, 4].iter().for_each(|count| block.extend(count.to_be_bytes()));
        block.extend((hours * 3_600).to_be_bytes());
        block.extend([0, 0]);
        block.extend(b"XXX\0");
        block
    };
    [block(b'2'), block(b'2'), format!("\nXXX-{hours}\n").into_bytes()].concat()
}

#[test]
fn schedulers_on_hosts_with_other_clocks_and_zones_run_each_window_once() {
    let (env, server) = (TestEnv::new(), Server::start());
    let (library, url) = (shim(&env), server.url());
    for (zone, hours) in [("one", 1), ("two", 2)] {
        fs::create_dir_all(env.path(zone).join("Europe")).expect("a directory");
        fs::write(env.path(zone).join("Europe/Berlin"), zone_file(hours)).expect("a file");
    }
    // Hosts that are two hours behind and three ahead.
    let every =
        ["--store", &url, "--once-per", "2s", "--forever", "every", "-c", "echo $TENURE_WINDOW >> every"];
    let hosts: Vec<_> = [-7_200, 0, 10_800]
        .iter()
        .map(|seconds| env.start(with_offset(&library, env.tenure_run_command(every), *seconds)))
        .collect();
    // Windows that began six hours ago on one of them, and seven on the other, where it then has run too.
    let hour = (Duration::try_from(rustix::time::clock_gettime(rustix::time::ClockId::Realtime))
        .expect("after 1970")
        .as_secs()
        / 3_600
        + 20)
        % 24;
    let cron = format!("0 {hour} * * *");
    let nightly = |zone: &str| {
        let options = ["--store", &url, "--schedule", &cron, "--zone", "Europe/Berlin"];
        let mut command =
            env.tenure_run_command(options.iter().chain(&["nightly", "-c", "echo $TENURE_WINDOW"]));
        command.env("TZDIR", env.path(zone));
        env.run(command)
    };
    let window = nightly("one").exits_with(0).stdout.trim().parse::<u64>().expect("a time");
    assert_eq!((window / 3_600 + 1) % 24, hour, "the zone file of this host counts");
    nightly("two").exits_with(75).says("has run in this window");
    nightly("one").exits_with(75).says("has run in this window");

    eventually("five windows", Duration::from_secs(60), || env.read("every").lines().count() >= 5);
    for host in hosts {
        host.signal(Signal::TERM);
        let said = host.wait();
        assert!(matches!(said.code(), Some(0 | 143)), "{said:?}");
    }
    let mut runs = BTreeMap::<_, u32>::new();
    env.read("every").lines().for_each(|window| *runs.entry(window.to_owned()).or_default() += 1);
    assert!(runs.values().all(|count| *count == 1), "{runs:?}");
}
