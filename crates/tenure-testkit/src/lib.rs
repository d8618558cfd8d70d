//! Test kit of tenure: the conformance suite for stores, real servers, networks that fail on demand, and a
//! deterministic simulation.
//!
//! | module | what it holds |
//! |---|---|
//! | [`asker`] | direct requests to a Redis store, without the engine's retries |
//! | [`mod@conformance`] | the suite that every store passes |
//! | [`fake_redis`] | a fake Redis server that runs the real scripts |
//! | [`fuzz`] | fuzzing of parsers with a stored corpus |
//! | [`interop`] | other clients that interoperability tests run against |
//! | [`proxy`] | a TCP proxy with faults |
//! | [`servers`] | real servers, each started for one test |
//! | [`sim`] | schedules of the real locks in virtual time, with an oracle |
//! | [`sim_transport`] | the fake Redis server behind a simulated network |
//! | [`skewed`] | clients with a wrong wall clock |
//! | [`timed`] | assertions about elapsed time |

pub mod asker;
pub mod conformance;
pub mod fake_redis;
#[cfg(unix)]
pub mod fuzz;
pub mod interop;
#[cfg(unix)]
pub mod proxy;
#[cfg(unix)]
pub mod servers;
pub mod sim;
pub mod sim_transport;
pub mod skewed;
pub mod timed;

use tenure::internals::planted::Bug;

/// A number from an environment variable. `scripts/soak` sets some of them for longer hunts.
///
/// # Panics
/// If the value is not a number.
pub fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, got {text}")))
}

/// Enables one planted bug on this thread, or disables all.
///
/// # Panics
/// If a bug is given in a build without `--cfg tenure_planted`.
pub fn plant(bug: Option<Bug>) {
    #[cfg(tenure_planted)]
    tenure::internals::planted::plant(bug);
    #[cfg(not(tenure_planted))]
    assert_eq!(bug, None, "this build has no planted bugs: use scripts/test");
}
