//! The command with locks on ZooKeeper.

use std::time::Duration;

use tenure_testkit::servers::{Ensemble, ZooKeeper};

use crate::doctor::{checks, found};
use crate::env::{TestEnv, now};
use crate::postgres::is_held_shown_and_listed;
use crate::stands_still::{killed, stopped};
use crate::uses::a_job_and_a_leader;

/// One server for all, because starting it takes seconds.
#[test]
fn the_verbs_work_on_zookeeper() {
    let (env, server) = (TestEnv::new(), ZooKeeper::start());
    let url = format!("{}/command", server.url());
    let shown = is_held_shown_and_listed(&env, &url);
    // Its tokens are not times.
    assert!(!shown.contains(", for "), "{shown}");

    // A hold without a process is a session without a connection, which ends with its ttl.
    let said = env.run(env.tenure(["acquire", "--store", &url, "--ttl", "30s", "kept"]));
    assert!(said.code() == Some(0), "{said:?}");
    let said = env.run(env.tenure(["status", "--store", &url, "kept"]));
    assert!(said.code() == Some(0) && said.stdout.contains("held"), "{said:?}");
    let said = env.run(env.tenure(["list", "--json", "--store", &url])).exits_with(0);
    assert!(said.stdout.contains("\"since_ms\":null"), "{said:?}");
    let said = env.run(env.tenure(["release", "--force", "--store", &url, "kept"]));
    assert!(said.code() == Some(0), "{said:?}");
    env.run(env.tenure(["status", "--store", &url, "kept"])).exits_with(1);

    let begun = now();
    let said = env.run(env.tenure(["acquire", "--store", &url, "--ttl", "1s", "short"]));
    assert!(said.code() == Some(0), "{said:?}");
    let wait = ["run", "--store", &url, "--ttl", "1s", "--wait", "20s", "short", "--", "true"];
    env.run(env.tenure(wait)).exits_with(0);
    let took = now() - begun;
    assert!(took < Duration::from_secs(10), "{took:?}");

    // One server is no ensemble. The doctor also reports why a lock cannot be acquired.
    assert_eq!(found(&env, &url, &[]), checks(["members"]));
    let said = env.run(env.tenure(["doctor", "--store", "zookeeper://127.0.0.1:1"]));
    assert!(said.code() == Some(69) && said.stderr.contains("127.0.0.1:1"), "{said:?}");
    let said = env.run(env.tenure(["doctor", "--store", "zookeeper://127.0.0.1:0"]));
    assert!(said.code() == Some(64) && said.stderr.contains("port"), "{said:?}");

    a_job_and_a_leader(&env, &url);
    killed(&url, &["run"]);
    stopped(&url, &["run"]);
}

#[test]
fn the_doctor_tells_how_many_processes_of_a_host_zookeeper_takes() {
    let env = TestEnv::new();
    let server = ZooKeeper::with_clients(60);
    let doctor = || env.run(env.tenure(["doctor", "--store", &server.url()])).exits_with(1).stdout;
    assert!(doctor().contains(": ZooKeeper 3.") && doctor().contains(", standalone\n"), "{}", doctor());
    assert!(doctor().contains("1 member: while one is down, no lock is granted"), "{}", doctor());
    assert!(doctor().contains("maxClientCnxns is 60"), "{}", doctor());
    let silent = ZooKeeper::start();
    let said = env.run(env.tenure(["doctor", "--store", &silent.url()])).exits_with(1).stdout;
    assert!(said.contains("4lw.commands.whitelist"), "{said}");
}
