//! The command with locks on PostgreSQL.

use tenure_testkit::servers::Postgres;

use crate::doctor::{checks, found};
use crate::env::TestEnv;
use crate::stands_still::{killed, stopped};

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
fn a_lock_on_postgresql_is_held_shown_and_listed_and_its_stress_has_no_overlap() {
    let (env, server) = (TestEnv::new(), Postgres::start());
    let url = server.url("command");
    is_held_shown_and_listed(&env, &url);
}

/// A run on this store holds its lock, which is shown and listed until it ends, and no two of a crowd overlap.
#[track_caller]
pub(crate) fn is_held_shown_and_listed(env: &TestEnv, url: &str) {
    let script = "\"$0\" list --store \"$1\"; \"$0\" status --store \"$1\" nightly; true";
    let program = env!("CARGO_BIN_EXE_tenure");
    let said =
        env.run(env.tenure(["run", "--store", url, "nightly", "--", "sh", "-c", script, program, url]));
    let has_both = ["nightly\tmutex", "held as a mutex"].iter().all(|text| said.stdout.contains(text));
    assert!(said.code() == Some(0) && has_both, "{said:?}");
    let said = env.run(env.tenure(["list", "--store", url]));
    assert!(said.code() == Some(0) && !said.stdout.contains("nightly"), "{said:?}");
    env.run(env.tenure(["stress", "--store", url, "--for", "2s"])).exits_with(0);
}

#[test]
fn a_wrapper_on_postgresql_that_stops_or_is_killed_leaves_neither_command_nor_lock() {
    let server = Postgres::start();
    let url = server.url("stops");
    let jobs: [&[&str]; 3] = [&["run"], &["elect"], &["run", "--once-per", "1d", "--retry-lost"]];
    jobs.into_iter().for_each(|words| killed(&url, words));
    stopped(&url, &["run"]);
}
