//! A request in flight between a process and a server.

use std::fmt;
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;

use tenure::internals::protocol::{Answer, Op, Verb};
use tenure::internals::store::Failure;

use super::clock::TrueTime;
use super::executor::lock;

/// Receives the answer to one request.
#[derive(Default)]
pub(super) struct Slot(pub(super) Mutex<Arrival>);

#[derive(Default)]
pub(super) struct Arrival {
    pub(super) answer: Option<Result<Answer, Failure>>,
    /// When a connection to send it on is available.
    pub(super) leaves_at: TrueTime,
    /// When the caller gives up.
    pub(super) until: TrueTime,
    pub(super) is_out_of_time: bool,
    pub(super) is_executed: bool,
    /// Abandoned before it was sent.
    pub(super) is_withdrawn: bool,
    /// The caller no longer waits.
    pub(super) is_over: bool,
    /// It was sent a second time, in full, because the server did not have its script.
    pub(super) is_again: bool,
    pub(super) waker: Option<Waker>,
}

impl Slot {
    /// Sets when the request is sent and when it is given up.
    pub(super) fn leave(&self, leaves_at: TrueTime, until: TrueTime) {
        let mut arrival = lock(&self.0);
        (arrival.leaves_at, arrival.until) = (leaves_at, until);
    }

    pub(super) fn until(&self) -> TrueTime {
        lock(&self.0).until
    }

    /// Whether this is the first attempt; marks it as repeated.
    pub(super) fn is_first(&self) -> bool {
        !std::mem::replace(&mut lock(&self.0).is_again, true)
    }

    /// Whether it is still worth a second attempt.
    pub(super) fn leaves_again(&self) -> bool {
        let arrival = lock(&self.0);
        !arrival.is_over && !arrival.is_out_of_time
    }

    /// The request arrives at the server. Returns `false` if it is not to be carried out.
    pub(super) fn arrive(&self) -> bool {
        let mut arrival = lock(&self.0);
        arrival.is_executed = !arrival.is_withdrawn;
        arrival.is_executed
    }

    /// Its deadline passes.
    pub(super) fn end(&self) {
        let mut arrival = lock(&self.0);
        arrival.is_out_of_time = true;
        wake(arrival);
    }

    pub(super) fn fill(&self, answer: Result<Answer, Failure>) {
        let mut arrival = lock(&self.0);
        arrival.answer.get_or_insert(answer);
        wake(arrival);
    }
}

fn wake(mut arrival: MutexGuard<'_, Arrival>) {
    let waker = arrival.waker.take();
    drop(arrival);
    if let Some(waker) = waker {
        waker.wake();
    }
}

pub(super) fn unknown() -> Failure {
    Failure::Unknown(Failure::cause("the connection ended before the answer came"))
}

/// A request as it appears in a log.
pub(super) struct Shown<'a>(pub(super) &'a Op);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Op { name, owner, request, verb, .. } = self.0;
        let owner = &owner.as_str()[owner.as_str().len() - 6..];
        let (name, request) = (name.as_str(), request & 0xffff);
        match verb {
            Verb::Acquire { ttl_ms, wait_ms, hold, .. } => {
                let hold = hold & 0xffff;
                write!(f, "acquire {name} by …{owner} for {ttl_ms} ms, hold {hold} [{request}]")?;
                wait_ms.map_or(Ok(()), |wait_ms| write!(f, ", or a place for {wait_ms} ms"))
            }
            Verb::Renew { ttl_ms, hold, bind, weight } => {
                let hold = hold & 0xffff;
                write!(f, "renew {name} by …{owner} for {ttl_ms} ms, hold {hold} [{request}]")?;
                bind.map_or(Ok(()), |bind| write!(f, " bound to {bind:?}"))?;
                weight.map_or(Ok(()), |weight| write!(f, " at weight {weight}"))
            }
            Verb::Release { whose, hold, .. } => {
                let hold = hold & 0xffff;
                write!(f, "release {name} by …{owner} of {whose:?}, hold {hold} [{request}]")
            }
            Verb::Refresh { owners, wait_ms, .. } => {
                write!(f, "refresh {name} by {} for {wait_ms} ms [{request}]", owners.len())
            }
            Verb::Resize => write!(f, "resize {name} to {:?} [{request}]", self.0.spec.capacity()),
            Verb::Inspect => write!(f, "inspect {name} by …{owner} [{request}]"),
        }
    }
}
