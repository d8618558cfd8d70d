//! Assertions about elapsed time.

use std::time::Duration;

/// Asserts that something took less than `limit`.
///
/// A stalled machine makes anything late: `scripts/test` reruns a failed test if the machine stalled while it
/// ran.
///
/// # Panics
/// If it took `limit` or longer.
#[track_caller]
pub fn in_time(took: Duration, limit: Duration) {
    assert!(took < limit, "took too long: got {took:?}, expected less than {limit:?}");
}
