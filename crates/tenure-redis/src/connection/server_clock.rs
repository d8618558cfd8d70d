//! The server's clock, as last observed by a connection.

use std::time::Duration;

use tenure_core::moment::Moment;

/// How long one observation is extrapolated.
const CLOCK_KEPT: Duration = Duration::from_secs(60);

/// One observation of the server's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerClock {
    pub(crate) at: Moment,
    /// Microseconds since 1970.
    pub(crate) unix_us: u64,
}

impl ServerClock {
    /// The extrapolated server time in microseconds since 1970; `None` if the observation is older than
    /// `CLOCK_KEPT`.
    pub(crate) fn read(self, now: Moment) -> Option<u64> {
        let since = now.since(self.at);
        (since < CLOCK_KEPT).then(|| self.unix_us.saturating_add(since.as_micros() as u64))
    }
}
