//! A member of a quorum: a store, and whether it answered the last request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, ready};

use crate::moment::Moment;
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Op};
use crate::store::{Failure, Incarnation, Store, StoreExt};

/// Maximum requests in flight to a silent member; further ones fail at once.
const MOST_UNANSWERED: usize = 64;
/// A timeout shorter than this does not mark a member as silent.
const HASTE: Duration = Duration::from_millis(50);

pub(super) type MemberAnswer = Result<Answer, Failure>;

pub(super) struct Member {
    pub(super) store: Arc<dyn Store>,
    /// Whether the last request got no answer.
    is_silent: AtomicBool,
    unanswered: AtomicUsize,
}

impl Member {
    pub(super) fn new(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { store, is_silent: AtomicBool::new(false), unanswered: AtomicUsize::new(0) })
    }

    /// Whether requests are sent to this member without waiting for the answers.
    pub(super) fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Relaxed)
    }

    /// Sends a request when first polled.
    pub(super) fn ask(self: &Arc<Self>, op: Op, within: Duration) -> BoxFuture<'static, MemberAnswer> {
        if self.is_silent() && self.unanswered.load(Ordering::Relaxed) >= MOST_UNANSWERED {
            let cause = Failure::cause("it has too many unanswered requests");
            return ready(Err(Failure::NotSent(cause))).boxed();
        }
        let unanswered = UnansweredCount::one(self);
        let call = self.store.request(op, within);
        async move {
            // Its lease counts from the first request to any member.
            let said = call.await.map(|answer| answer.timed().0);
            let is_silent = matches!(said, Err(Failure::NotSent(_) | Failure::Unknown(_)));
            if !is_silent || within >= HASTE {
                unanswered.0.is_silent.store(is_silent, Ordering::Relaxed);
            }
            said
        }
        .boxed()
    }

    /// What is known about the member's server. [`Quorum::new`](super::Quorum::new) accepts only stores that
    /// report it.
    pub(super) fn incarnation(&self) -> Incarnation {
        self.store.signals().incarnation()
    }

    /// Checks that the member has been up for longer than any lease it can have forgotten. The error states
    /// why it does not vote.
    pub(super) fn votes(&self, now: Moment, longest: Duration) -> Result<(), Failure> {
        let why = match self.incarnation() {
            _ if planted(Bug::NewcomersVote) => return Ok(()),
            Incarnation::Lasting => return Ok(()),
            Incarnation::Since { up, at, .. } if up + now.since(at) >= longest => return Ok(()),
            Incarnation::Since { up, at, .. } => format!(
                "it started {} s ago and does not vote before {} s: leases that it lost may still run",
                (up + now.since(at)).as_secs(),
                longest.as_secs_f64()
            ),
            Incarnation::Unknown => "it does not report its uptime (INFO), so it does not vote".into(),
        };
        Err(Failure::NotSent(Failure::cause(why)))
    }

    /// Whether the member is known not to vote. It is not even asked then, so that its copy stays free for
    /// the previous holder.
    pub(super) fn is_too_young(&self, now: Moment, longest: Duration) -> bool {
        matches!(self.incarnation(), Incarnation::Since { .. }) && self.votes(now, longest).is_err()
    }
}

/// Counts a request in flight.
struct UnansweredCount(Arc<Member>);

impl UnansweredCount {
    fn one(member: &Arc<Member>) -> Self {
        member.unanswered.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(member))
    }
}

impl Drop for UnansweredCount {
    fn drop(&mut self) {
        self.0.unanswered.fetch_sub(1, Ordering::Relaxed);
    }
}
