//! Test kit of tenure: the conformance suite that every store passes.

pub mod conformance;
