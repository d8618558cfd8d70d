//! The command with locks on etcd.

use tenure_testkit::servers::Etcd;

use crate::stands_still::{killed, stopped};

#[test]
fn a_wrapper_on_etcd_that_stops_or_is_killed_leaves_neither_command_nor_lock() {
    let server = Etcd::start();
    let url = format!("{}/command", server.url());
    killed(&url, &["run"]);
    stopped(&url, &["run"]);
}
