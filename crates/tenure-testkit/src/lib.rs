//! Test kit of tenure: the conformance suite that every store passes, real servers and networks
//! that fail on demand, and a simulation in which the real locks live through anything that a seed
//! thinks of.

pub mod asker;
pub mod conformance;
pub mod fake_redis;
pub mod fuzz;
pub mod interop;
pub mod proxy;
pub mod servers;
pub mod sim;
pub mod sim_transport;
pub mod skewed;
pub mod timed;

use tenure::internals::planted::Bug;

/// The number that an environment variable sets. `scripts/soak` sets some, for longer hunts.
///
/// # Panics
/// If its value is not a number.
pub fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, got {text}")))
}

/// Switches one known bug on for this thread, or all off.
///
/// # Panics
/// If a bug is asked for in a build without `--cfg tenure_planted`.
pub fn plant(bug: Option<Bug>) {
    #[cfg(tenure_planted)]
    tenure::internals::planted::plant(bug);
    #[cfg(not(tenure_planted))]
    assert_eq!(bug, None, "this build has no planted bugs: use scripts/test");
}
