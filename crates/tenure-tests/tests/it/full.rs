//! Servers without room for another connection: a wait outlasts that, whatever its patience.
#![expect(clippy::disallowed_methods, reason = "these tests wait as their callers do, in real time")]

use std::time::Duration;

use tenure::{Locks, Options};
use tenure_testkit::servers::{Ensemble, MariaDb, Postgres, Server, ZooKeeper};
use tokio::time::{sleep, timeout};
use tokio_postgres::NoTls;
use tokio_postgres::error::SqlState;

const PATIENCE: Duration = Duration::from_secs(3);
const LIMIT: Duration = Duration::from_secs(30);

/// Waits for a lock of each family while the server is full, until `make_room`.
async fn outlasts_full(url: &str, make_room: impl AsyncFnOnce()) {
    let locks =
        Locks::open(url).expect("a store").with(|_| Options::new().patience(PATIENCE)).expect("options");
    let (mutex, fair) = (locks.mutex("x").expect("a name"), locks.fair_mutex("y").expect("a name"));
    let mut waits =
        [tokio::spawn(async move { mutex.lock().await }), tokio::spawn(async move { fair.lock().await })];
    let brief = locks.with(|options| options.op_timeout(Duration::from_secs(1))).expect("options");
    let error = timeout(LIMIT, async {
        loop {
            match brief.mutex("x").expect("a name").try_lock().await {
                Err(error) if error.is_full() => return error,
                asked => drop(asked),
            }
        }
    });
    let error = error.await.expect("the server is full");
    assert!(error.is_unreachable(), "{error}");
    sleep(PATIENCE + PATIENCE / 2).await;
    for wait in &mut waits {
        assert!(!wait.is_finished(), "{:?}", wait.await);
    }
    make_room().await;
    for wait in waits {
        let guard = timeout(LIMIT, wait).await.expect("there is room").expect("no panic");
        guard.expect("a guard").release().await.expect("a release");
    }
}

fn on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(test);
}

#[test]
fn a_wait_outlasts_a_full_postgresql() {
    on(async {
        let mut server = Postgres::start();
        server.limit_connections(6);
        server.run("CREATE ROLE app LOGIN; CREATE SCHEMA crowd AUTHORIZATION app");
        let mut others = Vec::new();
        // Three connections are reserved for superusers.
        let config = server.config().replace("user=postgres", "user=app");
        let fill = async {
            while others.len() < 3 {
                match tokio_postgres::connect(&config, NoTls).await {
                    Ok((client, connection)) => others.push((client, tokio::spawn(connection))),
                    // The session that created the role may not have ended yet.
                    Err(error) if error.code() == Some(&SqlState::TOO_MANY_CONNECTIONS) => {
                        sleep(Duration::from_millis(20)).await;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        };
        timeout(LIMIT, fill).await.expect("three connections");
        outlasts_full(&server.url_as("app", "crowd"), async || drop(others)).await;
    });
}

/// One connection is room enough.
#[test]
fn a_wait_outlasts_a_full_mariadb() {
    on(async {
        let server = MariaDb::start_with(&["--max-user-connections=1"]);
        server.run("CREATE USER app; GRANT ALL ON app.* TO app");
        let url = server.url_as("app", "app");
        let other = Locks::open(&url).expect("a store");
        other.mutex("z").expect("a name").lock().await.expect("a guard").release().await.expect("a release");
        outlasts_full(&url, async || drop(other)).await;
    });
}

#[test]
fn a_wait_outlasts_a_full_redis() {
    on(async {
        let server = Server::start();
        // The connection of this test fills it.
        server.command(&["CONFIG", "SET", "maxclients", "1"]);
        let room = async || drop(server.command(&["CONFIG", "SET", "maxclients", "100"]));
        outlasts_full(&server.url(), room).await;
    });
}

#[test]
fn a_wait_outlasts_a_full_zookeeper() {
    on(async {
        let server = ZooKeeper::with_clients(1);
        let other = server.client();
        outlasts_full(&server.url(), async || drop(other)).await;
    });
}
