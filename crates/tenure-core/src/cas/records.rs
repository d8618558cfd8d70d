//! Records beside locks.
//!
//! A record is a key of its own, which outlives the lock. A put is one write with the lock: it compares the
//! version at which its owner holds, so only a holder writes, and only while it holds. The text is
//! `tenure 1 TIME`, with the time of the write in microseconds since 1970, and the value after the first
//! line.
//!
//! The server has no clock for a request. The clock of the client that writes dates the record and judges the
//! window of a put, and a record does not expire.

use std::sync::Arc;

use super::WriteState;
use super::backend::ValueChange;
use super::client::{CasClient, abandoned};
use super::leases::About;
use crate::name::LockName;
use crate::owner::Owner;
use crate::protocol::codec::{self, number};
use crate::protocol::record::{self, Record, RecordAnswer, RecordOp, RecordVerb, Then};
use crate::protocol::{Answer, ExpiringValue, Fence, Now, Op, ReleaseScope, State, Verb};
use crate::store::{Cursor, Failure, RecordPage};
use crate::sync::Locked;

/// A request about a record, as part of one about its lock.
#[derive(Clone, Copy)]
pub(super) struct RecordPart<'a> {
    op: &'a RecordOp,
    answer: &'a Locked<Option<RecordAnswer>>,
}

impl RecordPart<'_> {
    /// Runs the machine. Returns the answer about the lock, and the change of the record.
    pub(super) fn apply(self, state: &mut State, now: Now) -> (Answer, ValueChange) {
        let (mut record, mut change) = (None, ValueChange::Keep);
        let (answer, _) = record::apply(state, &mut record, now, self.op);
        if let RecordAnswer::Stored { .. } | RecordAnswer::Voided = answer {
            change = ValueChange::to(record.map(text));
        }
        let about_lock = match answer {
            RecordAnswer::Stored { .. } if self.releases() => Answer::Released { left: 0 },
            RecordAnswer::NotHeld | RecordAnswer::Voided => Answer::Free,
            // The lock stays as it is.
            _ => Answer::Resized,
        };
        *self.answer.lock() = Some(answer);
        (about_lock, change)
    }

    fn releases(self) -> bool {
        matches!(&self.op.verb, RecordVerb::Put(put) if put.then == Then::Release)
    }
}

impl CasClient {
    /// Carries out one request about a record.
    pub(super) async fn record(
        self: &Arc<Self>,
        op: &RecordOp,
        sent: &WriteState,
    ) -> Result<RecordAnswer, Failure> {
        let (owner, whose) = match &op.verb {
            RecordVerb::Read => {
                let text = match op.granted.as_ref().and_then(|owner| self.at_grant(&op.lock, owner)) {
                    Some(text) => text,
                    None => {
                        self.write_barrier(None).await?;
                        self.backend.record(&op.lock).await.map_err(Failure::not_sent)?
                    }
                };
                let record = text.map(|text| read(&text).ok_or_else(unreadable)).transpose()?;
                return Ok(RecordAnswer::Read { record, now_us: self.runtime.unix_micros() });
            }
            RecordVerb::Put(put) if std::str::from_utf8(&put.value).is_err() => {
                return Err(Failure::impossible("a record on this server must be text"));
            }
            RecordVerb::Put(put) => (put.owner.clone(), ReleaseScope::Own),
            RecordVerb::Void => (Owner::fresh("", &*self.runtime), ReleaseScope::Any),
        };
        let verb = Verb::Release { hold: 0, fence: Fence::Assign, whose };
        let release = Op { verb, ..record::release(&op.lock, &owner) };
        let answer = Locked::default();
        let beside = RecordPart { op, answer: &answer };
        if beside.releases() {
            self.touch(&release);
        }
        self.call_about(&release, sent, About::Request, Some(beside)).await?;
        answer.lock().take().ok_or_else(abandoned)
    }

    /// One page of the records. Keys that are none of this version are reported by requests for them.
    pub(super) async fn records(&self, prefix: &str, from: Cursor) -> Result<RecordPage, Failure> {
        let listed = self.backend.records(prefix, from).await?;
        let records = listed.records.into_iter().filter_map(|(name, text)| Some((name, read(&text)?)));
        Ok(RecordPage { records: records.collect(), now_us: self.runtime.unix_micros(), next: listed.next })
    }

    /// The record as it was when this owner was granted the lock. Since then, only this owner can have
    /// written it.
    fn at_grant(&self, lock: &LockName, owner: &Owner) -> Option<Option<String>> {
        self.table.lock().hold(lock, &(owner.clone(), 0))?.record.take()
    }

    /// The time for the record machine.
    pub(super) fn dated(&self, now: Now) -> Now {
        Now { unix_us: self.runtime.unix_micros(), ..now }
    }
}

fn text(ExpiringValue { value: Record { at_us, value }, .. }: ExpiringValue<Record>) -> String {
    format!("tenure {} {at_us}\n{}", codec::VERSION, String::from_utf8_lossy(&value))
}

fn read(text: &str) -> Option<Record> {
    let (head, value) = text.split_once('\n')?;
    let at_us = head.strip_prefix("tenure ")?.strip_prefix(codec::VERSION)?.strip_prefix(' ')?;
    Some(Record { at_us: number(at_us)?, value: value.as_bytes().into() })
}

fn unreadable() -> Failure {
    Failure::Refused(Failure::cause("its key holds something other than a record of this version of tenure"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_other_texts_do_not() {
        let record = Record { at_us: 7, value: "two\nlines \u{e4}".as_bytes().into() };
        let written = text(ExpiringValue { value: record.clone(), expires_ms: Some(1) });
        assert_eq!(read(&written), Some(record));
        for other in ["", "tenure 1 7", "tenure 1 x\n", "tenure 2 7\nv", "tenure 11 7\nv", "tenure 1 07\nv"] {
            assert_eq!(read(other), None, "{other:?}");
        }
    }
}
