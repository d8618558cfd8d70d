//! One member of a quorum: a store, and whether it answered when it was last asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, ready};

use crate::moment::Moment;
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Op};
use crate::store::{Failure, Incarnation, Store};

/// So many requests may be unanswered at a member that is silent before it gets no further ones.
const MOST_UNANSWERED: usize = 64;
/// That there was no answer within less than this says nothing of a member.
const HASTE: Duration = Duration::from_millis(50);

pub(super) type Said = Result<Answer, Failure>;

pub(super) struct Member {
    pub(super) store: Arc<dyn Store>,
    /// Its last request got no answer.
    is_silent: AtomicBool,
    unanswered: AtomicUsize,
}

impl Member {
    pub(super) fn new(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { store, is_silent: AtomicBool::new(false), unanswered: AtomicUsize::new(0) })
    }

    /// Whether it is asked without being waited for.
    pub(super) fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Relaxed)
    }

    /// Sends a request when it is first polled.
    pub(super) fn ask(self: &Arc<Self>, op: Op, within: Duration) -> BoxFuture<'static, Said> {
        if self.is_silent() && self.unanswered.load(Ordering::Relaxed) >= MOST_UNANSWERED {
            let cause = Failure::cause("it has not answered for a while");
            return ready(Err(Failure::NotSent(cause))).boxed();
        }
        let unanswered = Unanswered::one(self);
        let call = self.store.call(op, within);
        async move {
            let said = call.await;
            let is_silent = matches!(said, Err(Failure::NotSent(_) | Failure::Unknown(_)));
            if !is_silent || within >= HASTE {
                unanswered.0.is_silent.store(is_silent, Ordering::Relaxed);
            }
            said
        }
        .boxed()
    }

    /// What is known of its server. [`Quorum::new`](super::Quorum::new) admits only stores that
    /// tell.
    pub(super) fn incarnation(&self) -> Incarnation {
        self.store.member().map_or(Incarnation::Unknown, |member| member.incarnation())
    }

    /// Whether it has been up for longer than any lease that it can have forgotten, and why it does
    /// not vote if not.
    pub(super) fn votes(&self, now: Moment, longest: Duration) -> Result<(), Failure> {
        let why = match self.incarnation() {
            _ if planted(Bug::NewcomersVote) => return Ok(()),
            Incarnation::Lasting => return Ok(()),
            Incarnation::Since { up, at, .. } if up + now.since(at) >= longest => return Ok(()),
            Incarnation::Since { up, at, .. } => format!(
                "it has been up for {} s, and does not vote before {} s: it may have forgotten leases",
                (up + now.since(at)).as_secs(),
                longest.as_secs_f64()
            ),
            Incarnation::Unknown => {
                "it does not say how long it has been up (INFO), so it does not vote".into()
            }
        };
        Err(Failure::NotSent(Failure::cause(why)))
    }

    /// Whether it is known not to vote: it is not even asked then, so that its place is left to the
    /// one who had it before.
    pub(super) fn is_too_young(&self, now: Moment, longest: Duration) -> bool {
        matches!(self.incarnation(), Incarnation::Since { .. }) && self.votes(now, longest).is_err()
    }
}

/// A request that has no answer yet.
struct Unanswered(Arc<Member>);

impl Unanswered {
    fn one(member: &Arc<Member>) -> Self {
        member.unanswered.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(member))
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.0.unanswered.fetch_sub(1, Ordering::Relaxed);
    }
}
