//! The clock of one machine. True time exists only in the simulation, and only the oracle reads it.

use std::time::Duration;

/// True time: nanoseconds since the schedule began.
pub type TrueTime = u64;

/// Clock errors are in parts per million.
const MILLION: u128 = 1_000_000;

/// A millisecond of true time.
pub const MS: TrueTime = 1_000_000;
/// A second of true time.
pub const SECOND: TrueTime = 1_000 * MS;

/// A clock with an offset that runs slightly fast or slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// Its value at the start of the schedule, in nanoseconds.
    pub offset: u64,
    /// Its rate error in parts per million; positive is fast.
    pub ppm: i32,
}

impl Clock {
    fn rate(self) -> u128 {
        (MILLION as i128 + i128::from(self.ppm)) as u128
    }

    /// The same clock after a step by `by` nanoseconds.
    pub fn stepped(self, by: i64) -> Self {
        Self { offset: self.offset.saturating_add_signed(by), ..self }
    }

    /// Its value at a true time.
    pub fn shows(self, at: TrueTime) -> u64 {
        if self.ppm == 0 {
            return self.offset + at;
        }
        self.offset + (u128::from(at) * self.rate() / MILLION) as u64
    }

    /// The first true time at which it shows at least `shown`.
    pub fn when(self, shown: u64) -> TrueTime {
        let passed = shown.saturating_sub(self.offset);
        if self.ppm == 0 {
            return passed;
        }
        u64::try_from((u128::from(passed) * MILLION).div_ceil(self.rate())).unwrap_or(u64::MAX)
    }

    /// The true time that passes while this clock measures a duration.
    pub fn lasts(self, duration: Duration) -> TrueTime {
        let shown = duration.as_nanos();
        u64::try_from((shown * MILLION).div_ceil(self.rate())).unwrap_or(u64::MAX)
    }
}
