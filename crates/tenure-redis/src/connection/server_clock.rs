//! The clock of a server, as its connection last heard it.

use std::time::Duration;

use tenure_core::moment::Moment;

/// How long the server's clock is counted on from one answer of it.
const CLOCK_KEPT: Duration = Duration::from_secs(60);

/// The server's clock, as it answered at a moment of this machine's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerClock {
    pub(crate) at: Moment,
    /// In microseconds since 1970.
    pub(crate) unix_us: u64,
}

impl ServerClock {
    /// What the server's clock shows now, unless its answer is too old.
    pub(crate) fn read(self, now: Moment) -> Option<u64> {
        let since = now.since(self.at);
        (since < CLOCK_KEPT).then(|| self.unix_us.saturating_add(since.as_micros() as u64))
    }
}
