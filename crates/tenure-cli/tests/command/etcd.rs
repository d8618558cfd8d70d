//! The command with locks on etcd.

use tenure_testkit::servers::{Ensemble, Etcd};

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
