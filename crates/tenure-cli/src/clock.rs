//! The clock of leases, which keeps running while the machine is suspended, and other clocks.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use tenure::diagnosis::boot_clock;

/// Time since boot.
pub(crate) fn now() -> Duration {
    Duration::from_nanos(boot_clock().0)
}

/// Time since 1970, for display.
pub(crate) fn unix() -> Duration {
    let now = clock_gettime(ClockId::Realtime);
    Duration::try_from(now).unwrap_or(Duration::ZERO)
}

/// Processor time of this process.
pub(crate) fn processor() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(used).unwrap_or(Duration::ZERO)
}

pub(crate) fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}
