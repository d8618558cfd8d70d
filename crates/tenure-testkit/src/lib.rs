//! Test kit of tenure: the conformance suite that every store passes, and real servers and networks that fail on demand.

pub mod conformance;
pub mod interop;
pub mod proxy;
pub mod servers;
