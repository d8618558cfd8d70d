use std::fmt;
use std::time::Duration;

use crate::name::LockName;
use crate::protocol::Answer;
use crate::protocol::record::RecordAnswer;
use crate::store::{Failure, StoreReply};

/// A request of the program to the store: see [`Control::requests`](super::Control::requests).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// The lock, by its name in the store: with the prefix. The locks of caches, jobs and elections
    /// have names of their own, which contain those of the uses.
    pub name: LockName,
    /// What was asked: `acquire`, `renew`, `refresh` (places in a queue), `release`, `resize`,
    /// `inspect`; of a record `read`, `put`, `void`.
    pub verb: &'static str,
    /// What came back. `held`, `growing`, `busy`, `waiting`, `free`, `released`, `resized`,
    /// `places`,
    /// `found`, `mismatch`. Of a record `read`, `stored`, `not_held`, `outside_window`, `voided`.
    /// Without an answer `not_sent` or `unknown`. `pending` while there is none, and for good if
    /// the caller has left.
    pub answer: &'static str,
    /// When it was asked, since the store was made, on the store's clock.
    pub at: Duration,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.verb, self.name, self.answer)
    }
}

/// The answer in a word.
pub(super) fn of_reply(reply: &StoreReply) -> &'static str {
    match reply {
        StoreReply::Lock(answer) => of_lock(answer),
        StoreReply::Record(answer) => of_record(answer),
        StoreReply::Renewals(_) => "held",
    }
}

fn of_lock(answer: &Answer) -> &'static str {
    match answer {
        Answer::Held { .. } => "held",
        Answer::Busy { .. } => "busy",
        Answer::Free => "free",
        Answer::Waiting { .. } => "waiting",
        Answer::Released { .. } => "released",
        Answer::Growing { .. } => "growing",
        Answer::Resized => "resized",
        Answer::Places { .. } => "places",
        Answer::Found(_) => "found",
        Answer::Mismatch { .. } | Answer::NoLock { .. } => "mismatch",
        Answer::More(answer) | Answer::Late(_, answer) => of_lock(answer),
        // Only members of quorums answer so.
        Answer::Behind { .. } | Answer::Ahead => "refused",
    }
}

fn of_record(answer: &RecordAnswer) -> &'static str {
    match answer {
        RecordAnswer::Read { .. } => "read",
        RecordAnswer::Stored { .. } => "stored",
        RecordAnswer::NotHeld => "not_held",
        RecordAnswer::OutsideWindow { .. } => "outside_window",
        RecordAnswer::Voided => "voided",
    }
}

pub(super) fn of_failure(failure: &Failure) -> &'static str {
    match failure {
        Failure::NotSent(_) => "not_sent",
        Failure::Unknown(_) => "unknown",
        Failure::Refused(_) => "refused",
    }
}
