//! Locks on MariaDB: what the conformance suite does not ask.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "these tests use real time, threads and connections as their callers do"
)]

mod check_in;
mod errors;
mod failover;
mod faults;
mod hostile;
pub(crate) mod login;
mod own;
mod rows;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use tenure_testkit::servers::MariaDb;

use crate::common::locks;

/// One server for all tests that leave it alone.
static SERVER: LazyLock<MariaDb> = LazyLock::new(|| MariaDb::start().until_exit());

/// A database that no other test uses, and the URL of a store there.
pub(crate) fn database() -> (String, String) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("test{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let url = SERVER.url(&name);
    (name, url)
}
