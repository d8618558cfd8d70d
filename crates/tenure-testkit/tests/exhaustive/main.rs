//! Complete explorations: the machines in every order of requests, the tokens of a quorum in every order of
//! messages, and the real engine in every schedule of a small world. Each check is shown to be able to fail.
//!
//! `TENURE_STATES=large scripts/test --release --test exhaustive -- --nocapture --test-threads 1`
//! goes further: tens of millions of states and a million schedules, for minutes and gigabytes.

mod ballots;
mod machines;
mod schedules;
mod solo;

/// Whether to explore more than the test suite has time for.
fn is_large() -> bool {
    match std::env::var("TENURE_STATES").as_deref() {
        Err(_) => false,
        Ok("large") => true,
        Ok(other) => panic!("TENURE_STATES is `large` or not set, not {other}"),
    }
}
