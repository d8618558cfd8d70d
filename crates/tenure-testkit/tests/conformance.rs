//! The conformance suite in real time on systems where the test kit starts no servers: on `memory:`, and on the
//! Redis server at `TENURE_REDIS`. On Linux, `tests/it` of `tenure-tests` runs it on every store.
#![cfg(not(target_os = "linux"))]

use std::sync::atomic::{AtomicU32, Ordering};

use tenure::{Locks, block_on};
use tenure_testkit::conformance::{Case, Fixture, Flavour};

/// Runs a case on a store of its own: the URL followed by a number.
fn run_on(url: &str, flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let url = format!("{url}{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let fixture = Fixture::in_real_time(move || Locks::open(&url).expect("a store"));
    block_on(case(&fixture.with(flavour)));
}

mod memory {
    use super::*;

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        run_on("memory:", flavour, case);
    }

    tenure_testkit::conformance!(crate::memory::run);
}

/// A database for each case: `redis-server --databases 1000`.
mod redis {
    use super::*;

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        let url =
            std::env::var("TENURE_REDIS").expect("TENURE_REDIS must be the URL of an empty Redis server");
        run_on(&format!("{url}/"), flavour, case);
    }

    tenure_testkit::conformance!(crate::redis::run);
}
