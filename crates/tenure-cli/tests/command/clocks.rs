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
