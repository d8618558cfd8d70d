use std::fmt;
use std::time::Duration;

use crate::name::LockName;
use crate::protocol::Answer;
use crate::protocol::record::RecordAnswer;
use crate::store::{Failure, StoreReply};

/// A request that the program sent to the store: see [`Control::requests`](super::Control::requests).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// The lock's name in the store, with the prefix. Caches, jobs and elections have internal lock names
    /// that contain theirs.
    pub name: LockName,
    /// `acquire`, `renew`, `refresh` (places in a queue), `release`, `resize`, `inspect`; for a record
    /// `read`, `put`, `void`.
    pub verb: &'static str,
    /// The answer: `held`, `growing`, `busy`, `waiting`, `free`, `released`, `resized`, `places`, `found`,
    /// `mismatch`; for a record `read`, `stored`, `not_held`, `outside_window`, `voided`. Without an answer
    /// `not_sent` or `unknown`. `pending` until there is one, and forever if the caller dropped the request.
    pub answer: &'static str,
    /// Time of the request since the creation of the store, on the store's clock.
    pub at: Duration,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.verb, self.name, self.answer)
    }
}

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
        // Answered only by members of quorums.
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
