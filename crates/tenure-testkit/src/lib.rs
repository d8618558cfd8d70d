//! Test kit of tenure.
