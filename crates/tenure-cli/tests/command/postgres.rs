//! The command with locks on PostgreSQL.

use std::thread::sleep;
use std::time::Duration;

use tenure_testkit::servers::Postgres;

use crate::doctor::{checks, found};
use crate::env::{TestEnv, now};
use crate::stands_still::{killed, stopped};
use crate::uses::a_job_and_a_leader;

/// Servers of tests run without fsync.
#[test]
fn the_doctor_finds_what_a_server_on_postgresql_may_forget() {
    let (env, server) = (TestEnv::new(), Postgres::start());
    assert_eq!(found(&env, &server.url("doctor"), &[]), checks(["fsync"]));
}

#[test]
fn the_doctor_compares_connections_of_postgresql_with_what_locks_need() {
    let (env, mut server) = (TestEnv::new(), Postgres::start());
    server.limit_connections(20);
    server.run("ALTER SYSTEM SET idle_session_timeout = '10s'");
    server.run("SELECT pg_reload_conf()");
    let url = server.url("doctor");
    assert_eq!(found(&env, &url, &[]), checks(["fsync", "idle-sessions"]));
    let said = env.run(env.tenure(["doctor", "--store", &url])).exits_with(1).stdout;
    assert!(said.contains("leaves 17 connections") && said.contains("max_connections = 203"), "{said}");
    server.run("ALTER ROLE postgres SET idle_session_timeout = '1min'");
    assert_eq!(found(&env, &url, &[]), checks(["fsync"]));
}

#[test]
fn locks_jobs_and_leaders_work_on_postgresql() {
    let (env, server) = (TestEnv::new(), Postgres::start());
    let url = server.url("command");
    is_held_shown_and_listed(&env, &url);
    a_job_and_a_leader(&env, &url);
}

/// A run on this store holds its lock, which is shown and listed until it ends, and no two of a crowd overlap.
/// Returns what was shown.
#[track_caller]
pub(crate) fn is_held_shown_and_listed(env: &TestEnv, url: &str) -> String {
    let script = "\"$0\" list --store \"$1\"; \"$0\" status --store \"$1\" nightly; true";
    let program = env!("CARGO_BIN_EXE_tenure");
    let said =
        env.run(env.tenure(["run", "--store", url, "nightly", "--", "sh", "-c", script, program, url]));
    let has_both = ["nightly\tmutex", "held as a mutex"].iter().all(|text| said.stdout.contains(text));
    assert!(said.code() == Some(0) && has_both, "{said:?}");
    let listed = env.run(env.tenure(["list", "--store", url]));
    assert!(listed.code() == Some(0) && !listed.stdout.contains("nightly"), "{listed:?}");
    env.run(env.tenure(["stress", "--store", url, "--for", "2s"])).exits_with(0);
    said.stdout
}

#[test]
fn a_wrapper_on_postgresql_that_stops_or_is_killed_leaves_neither_command_nor_lock() {
    let server = Postgres::start();
    let url = server.url("stops");
    let jobs: [&[&str]; 3] = [&["run"], &["elect"], &["run", "--once-per", "1d", "--retry-lost"]];
    jobs.into_iter().for_each(|words| killed(&url, words));
    stopped(&url, &["run"]);
}

/// Statements of processes that wait and hold, by `application_name`, which ends with the process.
#[test]
fn processes_that_wait_and_hold_on_postgresql_send_few_statements() {
    let (env, server) = (TestEnv::new(), Postgres::start());
    for setting in ["log_statement = 'all'", "log_line_prefix = '%a|'", "log_parameter_max_length = 0"] {
        server.run(&format!("ALTER SYSTEM SET {setting}"));
    }
    server.run("SELECT pg_reload_conf()");
    let url = server.url("rates");
    let store = ["--store", &url];
    let mut running = Vec::new();
    for kind in [&[][..], &["--fair"]] {
        let words = [&store[..], kind].concat();
        let name = if kind.is_empty() { "x" } else { "y" };
        let holder = env.start_script(&words, name, "READY; exec sleep 300");
        // A hold in a queue is read for each renewal while others wait.
        running.push(if kind.is_empty() { ("holds a mutex", 0.4, holder) } else { ("holds", 0.55, holder) });
        for _ in 0..2 {
            let waits = env.start(env.tenure_run_command([&words[..], &[name, "--", "true"]].concat()));
            running.push(("waits", 0.3, waits));
        }
    }
    let leads = env.tenure(["elect", "--store", &url, "z", "--", "sleep", "300"]);
    running.push(("leads", 0.4, env.start(leads)));
    // What begins a wait or a hold is over.
    sleep(Duration::from_secs(15));
    let before = server.log().len();
    let begun = now();
    sleep(Duration::from_secs(40));
    let (log, took) = (server.log().split_off(before), now() - begun);
    for (what, most, process) in &running {
        let label = format!(":{}|LOG:  ", process.pid().as_raw_nonzero());
        let statements = log.lines().filter(|line| line.contains(&label)).count();
        let each = statements as f64 / took.as_secs_f64();
        println!("{what}: {each:.3} statements a second");
        assert!(statements > 0 && each <= *most, "{what}: {each:.3} statements a second");
    }
}
