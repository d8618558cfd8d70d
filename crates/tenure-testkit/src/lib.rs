//! Test kit of tenure: the conformance suite that every store passes, real servers and networks that fail on demand, and a
//! simulation in which the real locks live through anything that a seed thinks of.

pub mod conformance;
pub mod fuzz;
pub mod interop;
pub mod mini;
pub mod proxy;
pub mod servers;
pub mod sim;
pub mod wire;
