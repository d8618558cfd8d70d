//! The simulations: seeded schedules of faults on one server, on a quorum, in a directory and on a simulated
//! network, and the planted bugs that they catch.

mod callers;
#[cfg(tenure_planted)]
mod cas;
#[cfg(tenure_planted)]
mod cas_costs;
#[cfg(tenure_planted)]
mod cas_long_queues;
#[cfg(tenure_planted)]
mod cas_one_key;
#[cfg(tenure_planted)]
mod cas_scenarios;
#[cfg(tenure_planted)]
mod dead_waiters;
#[cfg(tenure_planted)]
mod directory;
mod grants;
mod one_server;
mod pair_bytes;
#[cfg(tenure_planted)]
mod planted;
mod quorum;
mod redis_bytes;
mod renewal_bytes;
#[cfg(tenure_planted)]
mod rows;
#[cfg(tenure_planted)]
mod rows_batches;
#[cfg(tenure_planted)]
mod rows_scenarios;
#[cfg(tenure_planted)]
mod rows_turns;
#[cfg(tenure_planted)]
mod scenario;
