//! Locks on PostgreSQL, beyond the conformance suite.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "these tests use real time, threads and connections as their callers do"
)]

mod check_in;
pub(crate) mod errors;
mod failover;
pub(crate) mod faults;
mod machine;
mod pooled;
mod rows;
mod tls;
#[cfg(tenure_planted)]
mod twin;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use tenure_testkit::servers::Postgres;
use tokio_postgres::{Client, NoTls};

use crate::common::{locks, said};

/// Shared by all tests that do not disturb it.
pub(crate) static SERVER: LazyLock<Postgres> = LazyLock::new(|| Postgres::start().until_exit());

/// A schema that no other test uses.
pub(crate) fn schema() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Runs a test on a separate runtime.
pub(crate) fn on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(test);
}

/// Creates a schema with a table `work`.
fn work_in(schema: &str, columns: &str) {
    SERVER.run(&format!("CREATE SCHEMA IF NOT EXISTS {schema}"));
    SERVER.run(&format!("CREATE TABLE {schema}.work ({columns})"));
}

/// A database connection of a user's program.
pub(crate) async fn connect(server: &Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.config(), NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client
}
