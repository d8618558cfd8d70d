//! A point in time as a plain number. It reads no clock.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time in nanoseconds, on a clock that keeps running while the machine sleeps (CLOCK_BOOTTIME).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

impl Moment {
    /// Whole milliseconds since the clock's zero.
    pub const fn millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Time since `earlier`; zero if this is not later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Nanoseconds, saturating at `u64::MAX`. `Duration::as_nanos` computes in 128 bits.
const fn nanos(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(duration.subsec_nanos() as u64)
}

impl Add<Duration> for Moment {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;
    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }
}
