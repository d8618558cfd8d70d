//! Locks on a majority of independent servers.

mod conformance;
mod faults;
mod masks;
pub(crate) mod nodes;
