//! Cron lines, zones and the scheduler of `tenure run`.

use std::collections::BTreeMap;
use std::thread::scope;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use tenure_testkit::servers::{Server, eventually};

use crate::env::TestEnv;

fn unix() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

/// A daily cron line whose window began about twelve hours ago.
fn twelve_hours_ago() -> String {
    format!("0 {} * * *", (unix() / 3_600 + 12) % 24)
}

#[test]
fn a_wrong_schedule_or_zone_is_told_what_is_expected() {
    let env = TestEnv::shared();
    for (options, expected) in [
        (
            &["--schedule", "61 2 * * *"][..],
            "minute of cron expression \"61 2 * * *\": got \"61\", expected 0 to 59",
        ),
        (&["--schedule", "@reboot"], "got \"@reboot\", expected five fields"),
        (
            &["--schedule", "0 2 * * *", "--zone", "Berlin"],
            "time zone: got \"Berlin\", expected a name such as",
        ),
        (&["--once-per", "6h", "--zone", "UTC"], "got every 6h, expected a cron expression, or a daily"),
        (&["--once-per", "2w"], "or 1w or 1mo"),
        (&["--once-per", "1d", "--missed", "soon"], "expected run, skip, or a duration such as 10m"),
        (&["--once-per", "1d", "--schedule", "@daily"], "cannot be used with"),
        (&["--once-per", "1d", "--forever", "--again"], "cannot be used with"),
        (&["--zone", "UTC"], "--once-per <PERIOD>"),
        (&["--forever"], "--once-per <PERIOD>"),
        (&["--missed", "skip"], "--once-per <PERIOD>"),
    ] {
        let said = env.tenure_run(options.iter().chain(&["x", "true"])).exits_with(64);
        assert!(said.stderr.contains(expected), "{said:?}");
    }
}

#[test]
fn a_cron_line_runs_a_job_once_in_its_window() {
    let (env, server) = (TestEnv::shared(), Server::start());
    let window = |url: &str, name: &str, options: &[&str]| {
        let options =
            [&["--store", url], options, &[name, "-c", "echo $TENURE_WINDOW $TENURE_LATE_MS"]].concat();
        let said = env.tenure_run(&options).exits_with(0).stdout;
        let words: Vec<_> =
            said.split_whitespace().map(|word| word.parse::<u64>().expect("a time")).collect();
        let [from, late] = words[..] else { panic!("{said:?}") };
        assert!((from + late / 1_000).abs_diff(unix()) < 60, "{said:?}");
        env.tenure_run(&options).exits_with(75).says("has run in this window");
        from
    };
    for url in [env.url(), server.url()] {
        let day = 86_400;
        assert_eq!(window(&url, "day", &["--schedule", "@daily"]) % day, 0);
        assert_eq!(
            window(&url, "kolkata", &["--schedule", "@daily", "--zone", "Asia/Kolkata"]) % day,
            66_600
        );
        assert_eq!(window(&url, "hour", &["--schedule", "5 * * * *"]) % 3_600, 300);
        assert_eq!(window(&url, "tokyo", &["--once-per", "1d", "--zone", "Asia/Tokyo"]) % day, 54_000);
        // 5 January 1970 was a Monday.
        assert_eq!(window(&url, "week", &["--once-per", "1w"]) / day % 7, 4);
        assert_eq!(window(&url, "monday", &["--schedule", "0 0 * * MON"]) / day % 7, 4);
        let month = window(&url, "month", &["--once-per", "1mo"]);
        assert_eq!(month, window(&url, "first", &["--schedule", "@monthly"]));
        assert!(month % day == 0 && unix() - month < 31 * day);
    }
    // The zone of the configuration file counts for a period that has one.
    let settings = env.read("config/tenure.toml") + "[run]\nzone = \"Asia/Tokyo\"\n";
    std::fs::write(env.path("config/tenure.toml"), settings).expect("a file");
    for (options, day, from) in [
        (&["--once-per", "1d"][..], 86_400, 54_000),
        (&["--once-per", "1d", "--zone", "UTC"], 86_400, 0),
        (&["--once-per", "6h"], 21_600, 0),
    ] {
        assert_eq!(window(&env.url(), &format!("{from}/{day}"), options) % day, from, "{options:?}");
    }
}

#[test]
fn a_missed_window_is_skipped_if_wanted() {
    let env = TestEnv::shared();
    let cron = twelve_hours_ago();
    let run = |missed: &str| {
        env.tenure_run(["--schedule", &cron, "--missed", missed, "job", "-c", "echo $TENURE_LATE_MS"])
    };
    run("skip").exits_with(75).says("job `job` missed its window (--missed)");
    run("10m").exits_with(75).says("missed its window");
    let late = run("20h").exits_with(0).stdout.trim().parse::<u64>().expect("a time");
    assert!((11 * 3_600_000..14 * 3_600_000).contains(&late), "{late}");
    run("run").exits_with(75).says("has run in this window");
}

#[test]
fn schedulers_run_each_window_once_although_one_is_killed_and_one_frozen() {
    scope(|scope| {
        let redis = Server::start();
        let url = redis.url();
        let on_redis = scope.spawn(move || kill_and_freeze(&TestEnv::shared(), &url));
        let env = TestEnv::shared();
        kill_and_freeze(&env, &env.url());
        on_redis.join().expect("no panic");
    });
}

/// Kills one of five schedulers while its job runs, freezes the next, and ends the others with a signal.
fn kill_and_freeze(env: &TestEnv, url: &str) {
    let script = "echo $TENURE_WINDOW $PPID >> runs; sleep 0.3";
    let options = ["--store", url, "--ttl", "1s", "--once-per", "1s", "--forever", "-q", "job", "-c", script];
    let mut hosts: Vec<_> = (0..5).map(|_| env.start(env.tenure_run_command(options))).collect();
    let runs = || env.read("runs").lines().count();
    let more = |count: usize| {
        let until = runs() + count;
        eventually("further runs", Duration::from_secs(60), || runs() >= until);
    };
    more(2);
    for signal in [Signal::KILL, Signal::STOP] {
        let before = runs();
        let mut by = None;
        eventually("one runs the job", Duration::from_secs(60), || {
            let runs = env.read("runs");
            by = runs.lines().nth(before).and_then(|run| run.split_once(' ')?.1.parse::<i32>().ok());
            by.is_some()
        });
        let at = hosts.iter().position(|host| Some(host.pid().as_raw_nonzero().get()) == by);
        let host = hosts.swap_remove(at.expect("a host has it"));
        host.signal(signal);
        more(2);
        if signal == Signal::STOP {
            host.signal(Signal::CONT);
            more(2);
            hosts.push(host);
        }
    }
    for host in hosts {
        host.signal(Signal::TERM);
        let said = host.wait();
        assert!(matches!(said.code(), Some(0 | 79 | 143)), "{said:?}");
    }
    let mut windows = BTreeMap::<_, u32>::new();
    for run in env.read("runs").lines() {
        *windows.entry(run.split(' ').next().expect("a window").to_owned()).or_default() += 1;
    }
    assert!(windows.values().all(|count| *count == 1), "{windows:?}");
}

#[test]
fn a_scheduler_repeats_a_failed_job_and_ends_with_the_job_it_was_told_to_end() {
    let env = TestEnv::shared();
    let script = "echo >> tries; test $(wc -l < tries) = 3 || exit 3; touch works; exec sleep 60";
    let options = ["--once-per", "30s", "--forever", "job", "-c", script];
    let host = env.start(env.tenure_run_command(options));
    host.eventually("the third try", || env.path("works").exists());
    host.signal(Signal::TERM);
    let said = host.wait().exits_with(143);
    let failures = said.stderr.matches("job `job` failed: exit code 3").count();
    assert_eq!(failures, 2, "{said:?}");
}
