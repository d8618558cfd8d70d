//! Assertions about how long something took.

use std::time::Duration;

/// Asserts that something took less than `limit`.
///
/// A machine that stalls makes anything late: `scripts/test` runs a failed test a second time if
/// that happened while it ran.
///
/// # Panics
/// If it took `limit` or longer.
#[track_caller]
pub fn in_time(took: Duration, limit: Duration) {
    assert!(took < limit, "took too long: got {took:?}, expected less than {limit:?}");
}
