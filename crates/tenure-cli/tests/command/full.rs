//! More commands than the server has connections.

use tenure_testkit::servers::{Config, Ensemble, Postgres, Server, ZooKeeper};

use crate::env::TestEnv;

const WARNING: &str = "accepts no more connections";

/// All get their turns, and report at most once that they waited for a connection.
fn all_run(url: &str) {
    const COMMANDS: usize = 20;
    let env = TestEnv::new();
    let start = |_| env.start(env.tenure(["run", "--store", url, "full", "--", "true"]));
    let said: Vec<_> = (0..COMMANDS).map(start).collect::<Vec<_>>().into_iter().map(|it| it.wait()).collect();
    for outcome in &said {
        let count = outcome.stderr.matches(WARNING).count();
        assert!(outcome.code() == Some(0) && count <= 1, "{outcome:?}");
    }
    assert!(said.iter().any(|outcome| outcome.stderr.contains(WARNING)), "the server was never full");
}

#[test]
fn commands_wait_for_a_full_postgresql() {
    let mut server = Postgres::start();
    server.limit_connections(8);
    server.run("CREATE ROLE app LOGIN; CREATE SCHEMA crowd AUTHORIZATION app");
    all_run(&server.url_as("app", "crowd"));
}

#[test]
fn commands_wait_for_a_full_redis() {
    let server = Server::start_with(Config::new().set("maxclients", "6"));
    all_run(&server.url());
}

#[test]
fn commands_wait_for_a_full_zookeeper() {
    let server = ZooKeeper::with_clients(4);
    all_run(&server.url());
}

/// Also one that does not wait for the lock.
#[test]
fn a_command_that_does_not_wait_gets_the_connection_that_becomes_free() {
    let (env, server) = (TestEnv::new(), ZooKeeper::with_clients(1));
    let other = server.client();
    let command = env.start(env.tenure(["run", "-n", "--store", &server.url(), "full", "--", "true"]));
    command.eventually("it says why it waits", || command.stderr().contains(WARNING));
    drop(other);
    command.wait().exits_with(0);
}
