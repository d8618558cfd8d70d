//! The command with locks on etcd.

use tenure_testkit::servers::{Ensemble, Etcd};

use crate::doctor::{checks, found};
use crate::env::TestEnv;
use crate::stands_still::{killed, stopped};
use crate::uses::a_job_and_a_leader;

#[test]
fn a_wrapper_on_etcd_that_stops_or_is_killed_leaves_neither_command_nor_lock() {
    let server = Etcd::start();
    let url = format!("{}/command", server.url());
    killed(&url, &["run"]);
    stopped(&url, &["run"]);
}

#[test]
fn jobs_and_leaders_work_on_etcd() {
    a_job_and_a_leader(&TestEnv::new(), &Etcd::start().url());
}

#[test]
fn the_doctor_tells_the_version_of_etcd_and_what_a_lost_member_costs() {
    let (env, server) = (TestEnv::new(), Etcd::start());
    assert_eq!(found(&env, &server.url(), &[]), checks(["members"]));
    let said = env.run(env.tenure(["doctor", "--store", &server.url()])).exits_with(1).stdout;
    assert!(
        said.contains(": etcd 3.") && said.contains(", 1 member: while one is down, no lock is granted"),
        "{said}"
    );
    let cluster = Etcd::cluster();
    assert_eq!(found(&env, &cluster.url(), &[]), checks([]));
    let said = env.run(env.tenure(["doctor", "--store", &cluster.url()])).exits_with(0).stdout;
    assert!(
        said.contains(", 3 members: locks are granted and renewed while at most 1 of them is down"),
        "{said}"
    );
}
