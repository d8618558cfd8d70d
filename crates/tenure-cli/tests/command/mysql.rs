//! The command with locks on MariaDB.

use tenure_testkit::servers::MariaDb;

use crate::doctor::{checks, found};
use crate::env::TestEnv;
use crate::postgres::is_held_shown_and_listed;
use crate::stands_still::killed;
use crate::uses::a_job_and_a_leader;

/// Servers of tests do not flush their log.
#[test]
fn the_doctor_finds_what_a_server_on_mariadb_may_forget_and_its_connections() {
    let (env, server) = (TestEnv::new(), MariaDb::start_with(&["--max-connections=20", "--log-bin"]));
    let url = server.url_as("root", "app");
    assert_eq!(found(&env, &url, &[]), checks(["flush-log", "sync-binlog"]));
    server.run("SET GLOBAL innodb_flush_log_at_trx_commit = 1; SET GLOBAL sync_binlog = 1");
    assert_eq!(found(&env, &url, &[]), checks([]));
    let said = env.run(env.tenure(["doctor", "--store", &url])).exits_with(0).stdout;
    let version = server.run("SELECT VERSION()");
    assert!(said.contains(&version) && said.contains("max_connections = 100"), "{said}");
}

#[test]
fn locks_jobs_and_leaders_work_on_mariadb() {
    let (env, server) = (TestEnv::new(), MariaDb::start());
    let url = server.url_as("root", "app").replace("mysql:", "mariadb:");
    is_held_shown_and_listed(&env, &url);
    a_job_and_a_leader(&env, &url);
    killed(&url, &["run", "--once-per", "1d", "--retry-lost"]);
}
