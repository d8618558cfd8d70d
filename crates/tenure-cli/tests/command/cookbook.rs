//! Each recipe of book/use/command.md, with small programs in place of the real ones.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use rustix::process::{Signal, kill_process};

use crate::env::{BINARY, Running, TestEnv};

const BOOK: &str = include_str!("../../../../book/use/command.md");

/// The text of a recipe.
fn recipe(name: &str) -> &'static str {
    let (_, rest) = BOOK.split_once(&format!("<!-- recipe: {name} -->\n```")).expect(name);
    let (_, text) = rest.split_once('\n').expect("a text");
    text.split_once("```").expect("its end").0
}

/// A shell script in place of a program that the recipes call.
pub(crate) fn program(env: &TestEnv, name: &str, script: &str) {
    fs::create_dir_all(env.path("bin")).expect("a directory");
    let _ = symlink(BINARY, env.path("bin/tenure"));
    let path = env.path(&format!("bin/{name}"));
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
}

/// A shell with these programs on its path.
pub(crate) fn shell(env: &TestEnv, script: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = env.program("sh");
    let path = format!("{}:{}", env.path("bin").display(), std::env::var("PATH").unwrap_or_default());
    command.args(["-c", script]).env("PATH", path).envs(variables.iter().copied());
    command
}

fn start(env: &TestEnv, name: &str, variables: &[(&str, &str)]) -> Running {
    env.start(shell(env, recipe(name), variables))
}

/// A script that logs its beginning and end, to reveal overlaps.
const SPAN: &str = "echo begin >> log; sleep 0.1; echo end >> log";

/// Maximum concurrent runs in the log of `SPAN`.
fn most_at_once(log: &str) -> i32 {
    let (mut now, mut most) = (0, 0);
    for line in log.lines() {
        now += if line == "begin" { 1 } else { -1 };
        most = most.max(now);
    }
    assert_eq!(now, 0, "{log}");
    most
}

#[test]
fn every_recipe_of_the_book_is_run_by_a_test() {
    let named: Vec<_> =
        BOOK.split("<!-- recipe: ").skip(1).filter_map(|rest| rest.split(' ').next()).collect();
    let tests = include_str!("cookbook.rs");
    for name in &named {
        let used =
            [format!("\"{name}\""), format!("recipe({name:?})")].iter().any(|text| tests.contains(text));
        assert!(used, "{name}");
    }
    assert!(named.len() >= 11, "{named:?}");
}

#[test]
fn cron_on_many_hosts_runs_a_job_once_in_an_hour() {
    let env = TestEnv::shared();
    program(&env, "report", "echo ran >> report.log");
    let line = recipe("cron").trim();
    let (_, command) = line.split_once("* * * * ").expect("five fields");
    let hosts: Vec<_> = (0..5).map(|_| env.start(shell(&env, command, &[]))).collect();
    for host in hosts {
        host.wait().exits_with(0).says_nothing();
    }
    assert_eq!(env.read("report.log"), "ran\n");
}

#[test]
fn a_scheduler_runs_the_job_of_its_night() {
    let env = TestEnv::shared();
    program(&env, "report", "echo ran >> report.log; echo $PPID > parent");
    let host = start(&env, "forever", &[]);
    host.eventually("it has run", || env.read("parent").ends_with('\n'));
    kill_process(env.pid("parent"), Signal::TERM).expect("it waits for the next night");
    let said = host.wait();
    assert!(matches!(said.code(), Some(0 | 143)), "{said:?}");
    assert_eq!(env.read("report.log"), "ran\n");
}

#[test]
fn one_pipeline_deploys_at_a_time_and_a_cancelled_one_ends() {
    let env = TestEnv::new();
    program(&env, "deploy", SPAN);
    let all: Vec<_> = (0..3).map(|_| start(&env, "deploy", &[("CI_COMMIT", "1")])).collect();
    for one in all {
        one.wait().exits_with(0).says_nothing();
    }
    assert_eq!((most_at_once(&env.read("log")), env.read("log").lines().count()), (1, 6));
    program(&env, "deploy", "echo $PPID > parent; exec sleep 100");
    let one = start(&env, "deploy", &[("CI_COMMIT", "1")]);
    one.eventually("it deploys", || env.read("parent").ends_with('\n'));
    kill_process(env.pid("parent"), Signal::TERM).expect("it runs");
    one.wait().exits_with(143);
}

#[test]
fn steps_in_separate_processes_are_under_one_lock() {
    // Only on Linux the closing of a descriptor can be detected.
    let recipes = if cfg!(tenure_portable) { &["steps"][..] } else { &["steps", "descriptor"] };
    for recipe in recipes {
        let env = TestEnv::new();
        program(&env, "build", "echo begin >> log");
        program(&env, "publish", "sleep 0.1; echo end >> log");
        let all: Vec<_> = (0..3).map(|_| start(&env, recipe, &[])).collect();
        for one in all {
            one.wait().exits_with(0).says_nothing();
        }
        assert_eq!((most_at_once(&env.read("log")), env.read("log").lines().count()), (1, 6));
        env.run(env.tenure(["wait", "-w", "10", "release"])).exits_with(0);
    }
}

#[test]
fn the_unit_in_the_book_is_the_one_of_the_package_and_runs_a_job_under_its_lock() {
    let env = TestEnv::shared();
    let unit = include_str!("../../../../packaging/systemd/tenure-run@.service");
    for line in recipe("unit").lines() {
        assert!(unit.contains(line), "{line}");
    }
    fs::create_dir(env.path("jobs")).expect("a directory");
    program(&env, "job", "echo $TENURE_NAME >> log; READY=1; sleep ${WAIT:-0}");
    fs::copy(env.path("bin/job"), env.path("jobs/cleanup")).expect("a copy");
    let elect = include_str!("../../../../packaging/systemd/tenure-elect@.service");
    let once = include_str!("../../../../packaging/systemd/tenure-job@.service");
    for (unit, busy) in [(unit, true), (elect, false), (once, false)] {
        let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/")).expect("a command");
        let jobs = format!("{}/", env.path("jobs").display());
        let line = line.replace("/etc/tenure/jobs/", &jobs).replace("%i", "cleanup");
        env.run(shell(&env, &line, &[])).exits_with(0).says_nothing();
        if busy {
            let running = env.start(shell(&env, &line, &[("WAIT", "100")]));
            running.eventually("it runs", || env.read("log").lines().count() == 2);
            env.run(shell(&env, &line, &[])).exits_with(75).says("busy");
            assert!(unit.contains("SuccessExitStatus=75"));
            drop(running);
        }
        let _ = fs::remove_file(env.path("log"));
    }
}

#[test]
fn the_job_of_kubernetes_runs_with_a_store_in_a_secret_file() {
    let env = TestEnv::new();
    program(&env, "job", "echo ran >> log; env > environment");
    let manifest = include_str!("../../../../packaging/kubernetes/cronjob.yaml");
    for line in recipe("kubernetes").lines() {
        assert!(manifest.contains(line), "{line}");
    }
    let command = recipe("kubernetes").lines().find_map(|line| line.trim().strip_prefix("command: "));
    let mut words: Vec<String> = serde_json::from_str(command.expect("a command")).expect("a list");
    assert_eq!(words[0], "/tenure", "where the image has it");
    words[0] = "tenure".into();
    fs::write(env.path("url"), format!("{}\n", env.url())).expect("a file");
    let url = env.path("url").display().to_string();
    for _ in 0..2 {
        let mut command = shell(&env, "exec \"$@\"", &[("TENURE_STORE_FILE", &url)]);
        command.arg("sh").args(&words);
        env.run(command).exits_with(0);
    }
    assert_eq!(env.read("log"), "ran\n");
    assert!(!env.read("environment").contains(&env.url()), "only the path of the file");
}

#[test]
fn one_instance_migrates_and_all_start() {
    let env = TestEnv::new();
    program(
        &env,
        "migrate",
        "echo begin >> log; test -e done || { sleep 0.2; echo migrated >> count; touch done; }; echo end >> log",
    );
    program(&env, "service", "test -e done && echo up >> services");
    let all: Vec<_> = (0..4).map(|_| start(&env, "migration", &[])).collect();
    for one in all {
        one.wait().exits_with(0).says_nothing();
    }
    assert_eq!((env.read("count").as_str(), env.read("services").lines().count()), ("migrated\n", 4));
    assert_eq!(most_at_once(&env.read("log")), 1);
}

#[test]
fn another_host_leads_when_the_leader_ends() {
    let env = TestEnv::shared();
    program(&env, "serve", "echo $$ > leader.new; mv leader.new leader; exec sleep 100");
    let hosts = ["a:1", "b:1"].map(|address| start(&env, "leader", &[("ADDRESS", address)]));
    hosts[0].eventually("one leads", || env.path("leader").exists());
    let told = || env.run(env.tenure(["leader", "api"])).stdout;
    let first = told();
    assert!(first.starts_with("a:1") || first.starts_with("b:1"), "{first}");
    kill_process(env.pid("leader"), Signal::TERM).expect("it runs");
    hosts[0].eventually("the other leads", || {
        let now = told();
        !now.is_empty() && now[..3] != first[..3]
    });
    for host in &hosts {
        host.signal(Signal::KILL);
    }
    // Each loop's own `tenure elect` survives it, and is ended too.
    env.run(env.tenure(["release", "--force", "api"]));
    let left = env.run(shell(&env, "ps -eo pid=,args=", &[])).stdout;
    let payloads = ["--payload a:1 api", "--payload b:1 api"];
    for line in left.lines().filter(|line| payloads.iter().any(|payload| line.contains(payload))) {
        let pid = line.split_whitespace().next().and_then(|pid| pid.parse().ok());
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

#[test]
fn a_switch_waits_for_those_who_use_the_release() {
    let env = TestEnv::new();
    program(
        &env,
        "smoke-test",
        "readlink \"$1\" > used; touch testing; while [ ! -e end ]; do sleep 0.02; done; readlink \"$1\" >> used",
    );
    fs::create_dir_all(env.path("releases/1")).expect("a directory");
    fs::create_dir_all(env.path("releases/2")).expect("a directory");
    symlink("releases/1", env.path("current")).expect("a link");
    let user = start(&env, "use", &[]);
    user.eventually("it uses the release", || env.path("testing").exists());
    let switch = start(&env, "switch", &[("NEW", "2")]);
    switch.eventually("it waits", || env.run(env.tenure(["status", "live"])).stdout.contains("waiter: "));
    env.end();
    user.wait().exits_with(0);
    switch.wait().exits_with(0).says_nothing();
    assert_eq!(env.read("used"), "releases/1\nreleases/1\n");
    assert_eq!(fs::read_link(env.path("current")).expect("a link").to_str(), Some("releases/2"));
}

#[test]
fn no_more_than_three_backups_run_at_once() {
    let env = TestEnv::new();
    program(&env, "backup", "echo begin >> log; sleep 0.3; echo end >> log");
    let all: Vec<_> = (0..7).map(|host| start(&env, "backup", &[("HOST", &host.to_string())])).collect();
    for one in all {
        one.wait().exits_with(0).says_nothing();
    }
    let log = env.read("log");
    assert!(log.lines().count() == 14 && (2..=3).contains(&most_at_once(&log)), "{log}");
}

#[test]
fn transfers_in_opposite_directions_do_not_wait_for_each_other() {
    let env = TestEnv::new();
    program(&env, "transfer", SPAN);
    let directions = [[("FROM", "1"), ("TO", "2")], [("FROM", "2"), ("TO", "1")]];
    let all: Vec<_> = (0..6).map(|number| start(&env, "transfer", &directions[number % 2])).collect();
    for one in all {
        one.wait().exits_with(0).says_nothing();
    }
    assert_eq!((most_at_once(&env.read("log")), env.read("log").lines().count()), (1, 12));
}
