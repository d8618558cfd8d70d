//! Locks on a majority of independent servers.

mod conformance;
mod nodes;
