//! Renews a hold in a queue without reading its row again, if nobody waits.
//!
//! A write compares the row's serial, so a renewal may start from the row that the last one has written. Only
//! the server's clock is missing. It is estimated, and a little too high, so that the lease is no shorter than
//! the client believes; the write does not apply if the clock has been set forward beyond the estimate.

use std::time::Duration;

use super::inbox::{QueuedOp, QueuedRequest};
use super::server::{Row, RowChange};
use super::sessions::EndedSessions;
use super::state::{SeenRow, signed};
use crate::moment::Moment;
use crate::protocol::{Data, Op, Verb};

/// By how much the estimate of the clock is too high, at least; twice as much at most.
const AHEAD: Duration = Duration::from_millis(200);
/// Interval at which the row is read again, because clocks drift.
const KNOWN: Duration = Duration::from_secs(60);

/// A row as a write of this client has left it, with the server's clock of an earlier read.
#[derive(Clone)]
pub(super) struct KnownRow {
    row: Row,
    /// When that read was sent.
    sent: Moment,
}

/// Where a row and its clock come from.
#[derive(Clone, Copy)]
pub(super) enum RowSource {
    /// From a read that was sent at this time.
    Read(Moment),
    /// From memory: the clock that was read, and when that read was sent.
    Memory(i64, Moment),
}

impl KnownRow {
    /// The row after a change that renews a hold.
    pub(super) fn after(row: &Row, change: &RowChange, source: RowSource, now: Moment) -> Option<Self> {
        let (clock_us, sent) = match source {
            RowSource::Read(sent) if now.since(sent) < AHEAD => (row.clock_us, sent),
            RowSource::Read(_) => return None,
            RowSource::Memory(clock_us, sent) => (clock_us, sent),
        };
        let (kind, value) = change.lock.clone()?;
        let row = Row {
            kind: Some(kind.to_owned()),
            value: Some(value),
            ends_ms: Some(signed(change.ends_ms)),
            fence: signed(change.fence),
            serial: Some(change.serial? + 1),
            clock_us,
            ..row.clone()
        };
        Some(Self { row, sent })
    }

    /// The row for a renewal, unless it has to be read.
    pub(super) fn recall(mut self, now: Moment, running: &[QueuedRequest]) -> Option<(Row, RowSource)> {
        let source = RowSource::Memory(self.row.clock_us, self.sent);
        let elapsed = now.since(self.sent);
        self.row.clock_us += i64::try_from((elapsed + AHEAD).as_micros()).ok()?;
        let seen = SeenRow::of(&self.row, &EndedSessions::new()).ok()?;
        let lives = match seen.state.lock?.value {
            Data::Queue(queue) => queue.tickets().all(|(_, ticket)| ticket.deadline_ms > seen.now.ms),
            Data::Text(_) | Data::Hash(_) => false,
        };
        (lives && elapsed < KNOWN && is_renewal(running)).then_some((self.row, source))
    }
}

/// Whether the only request is the renewal of a hold.
pub(super) fn is_renewal(running: &[QueuedRequest]) -> bool {
    let verb = match running {
        [QueuedRequest { ask: QueuedOp::Lock(Op { verb, .. }, _), .. }] => verb,
        _ => return false,
    };
    matches!(verb, Verb::Renew { weight: None, .. })
}
