//! The conformance suite in real time on systems where the test kit starts no servers: on `memory:`, on `file:`, and on
//! the Redis server at `TENURE_REDIS`. On Linux, `tests/it` of `tenure-tests` runs it on every store, and
//! `scripts/targets arm64` this suite.
#![cfg(any(not(target_os = "linux"), tenure_no_servers))]

use std::sync::atomic::{AtomicU32, Ordering};

use tenure::{Locks, block_on};
use tenure_testkit::conformance::{Case, Fixture, Flavour};

/// Runs a case on a store of its own: the URL followed by a number.
fn run_numbered(url: &str, flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    run_on(format!("{url}{}", NEXT.fetch_add(1, Ordering::Relaxed)), flavour, case);
}

fn run_on(url: String, flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
    let fixture = Fixture::in_real_time(move || Locks::open(&url).expect("a store"));
    block_on(case(&fixture.with(flavour)));
}

mod memory {
    use super::*;

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        run_numbered("memory:", flavour, case);
    }

    tenure_testkit::conformance!(crate::memory::run);
}

#[cfg(unix)]
mod file {
    use super::*;

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        let dir = tempfile::tempdir().expect("a directory");
        run_on(format!("file:{}", dir.path().display()), flavour, case);
    }

    tenure_testkit::conformance!(crate::file::run);
}

/// A database for each case: `redis-server --databases 1000`.
mod redis {
    use super::*;

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        let url =
            std::env::var("TENURE_REDIS").expect("TENURE_REDIS must be the URL of an empty Redis server");
        run_numbered(&format!("{url}/"), flavour, case);
    }

    tenure_testkit::conformance!(crate::redis::run);
}
