//! One grant, on its way to the caller or in its guard.

use std::sync::Arc;
use std::time::Duration;

use super::lease::{Granting, Lease, LeaseTerms, Role};
use super::lost::HoldEnd;
use super::release::{Release, announce};
use super::{Engine, backoff};
use crate::error::{Cause, Result};
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, LockSpec};
use crate::store::Failure;

/// A granted lock, on its way to the caller or in its guard. Dropping it releases the lock in the
/// background.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) engine: Arc<Engine>,
    pub(crate) lease: Arc<Lease>,
    armed: bool,
}

impl Hold {
    pub(super) fn granted(engine: &Arc<Engine>, terms: LeaseTerms, request: Granting) -> Self {
        let lease = match terms.rule {
            LockSpec::Reentrant => Lease::first_share(terms, request),
            LockSpec::Mutex | LockSpec::Queue(_) => Arc::new(Lease::granted(terms, Role::Alone, request)),
        };
        Self { engine: Arc::clone(engine), lease, armed: true }
    }

    /// One more of an owner who has the lock, unless that was lost just now. It is in the caller's
    /// hands.
    pub(super) fn reentered(engine: &Arc<Engine>, lease: Arc<Lease>) -> Option<Self> {
        let held = Self { engine: Arc::clone(engine), lease, armed: true };
        // A loss tells those that it finds: it came before, or it tells this one too. The loss of
        // one that it found before this counts for no guard.
        let is_live = held.lease.term().known_outcome().is_none() && held.lease.keep(engine.now());
        is_live.then_some(held)
    }

    /// Whether anything of it is left.
    pub(super) fn is_live(&self) -> bool {
        self.engine.now() < self.lease.lost_at()
    }

    /// From now on it is renewed, and its loss announced: it is in the caller's hands.
    pub(crate) fn keep(&self) {
        let (engine, lease, now) = (&self.engine, &self.lease, self.engine.now());
        lease.keep(now);
        let term = match lease.shared_term() {
            // Another hold of its owner has it renewed.
            Some(term) if !term.keep(now) => return,
            Some(term) => {
                engine.reentries.add(term);
                term
            }
            None => lease,
        };
        engine.renewer.keep(engine, term);
        // In the schedule first: an interruption is noticed there from then on, and here if it came
        // before.
        if engine.store.interruptions() != lease.interruptions && !planted(Bug::GrantUnverified) {
            engine.renewer.verify_soon(engine, term);
        }
    }

    /// Releases a lock and says how it went.
    ///
    /// A first attempt that does not find this hold means that the lock was lost. For an attempt
    /// that is repeated after an unknown outcome it means, before the deadline, that the first one
    /// released it. After the deadline the outcome cannot be known.
    pub(crate) async fn release(self) -> Result<()> {
        let engine = Arc::clone(&self.engine);
        let lost = self.lease.outcome(&engine).and_then(HoldEnd::into_error);
        let lost = lost.filter(|_| !planted(Bug::LossTakenForRelease));
        let (deadline, op_timeout) = (self.lease.lost_at(), self.lease.op_timeout);
        let (lease, left) = self.disarm();
        if left > 0 {
            announce(&engine, &lease, left);
            return lost.map_or(Ok(()), Err);
        }
        let mut pending = Release::to(&engine, &lease);
        let until = engine.now() + op_timeout;
        loop {
            let left = until.since(engine.now()).max(Duration::from_millis(1));
            let failure = match pending.attempt(left).await {
                Ok(_) if lost.is_some() => return lost.map_or(Ok(()), Err),
                Ok(Answer::Released { .. }) => return Ok(()),
                Ok(answer) => match lease.refusal(&answer) {
                    Some(_) if pending.was_repeated() && engine.now() < deadline => return Ok(()),
                    Some(_) if planted(Bug::LossTakenForRelease) => return Ok(()),
                    Some(_) if pending.was_repeated() => {
                        let cause = Failure::cause(
                            "the release was repeated, and the lease may have ended before it",
                        );
                        return Err(engine.failed(&lease.name, Failure::Unknown(cause)));
                    }
                    Some(loss) => return Err(lease.found_lost(&engine, &loss)),
                    None => return Err(engine.nonsense(&lease.name, &answer)),
                },
                Err(failure) => failure,
            };
            // From here on it goes on in the background, also if this call returns an error.
            if lost.is_some() {
                return lost.map_or(Ok(()), Err);
            }
            let pause = engine.jittered(backoff(pending.attempts));
            if matches!(failure, Failure::Refused(_)) {
                pending.cancel();
                return Err(engine.failed(&lease.name, failure));
            }
            if engine.now() + pause >= until {
                return Err(engine.failed(&lease.name, Failure::Unknown(cause_of(failure))));
            }
            engine.runtime.sleep_until(engine.now() + pause).await;
        }
    }

    /// Lets go without releasing, and says how many others of the owner share the hold. What was
    /// not lost before counts as released from here on.
    pub(crate) fn disarm(mut self) -> (Arc<Lease>, usize) {
        self.armed = false;
        let left = self.settle();
        (Arc::clone(&self.lease), left)
    }

    fn settle(&self) -> usize {
        let left = self.lease.leave().filter(|_| !planted(Bug::OneEndsAll)).unwrap_or(0);
        if left == 0 {
            self.engine.renewer.forget(self.lease.term());
            if let Some(term) = self.lease.shared_term() {
                self.engine.reentries.remove(term);
                // Those who listen for its loss are done.
                term.settle(&self.engine, HoldEnd::Released, None);
            }
        }
        self.lease.settle(&self.engine, HoldEnd::Released, None);
        left
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        match self.settle() {
            0 => drop(Release::to(&self.engine, &self.lease)),
            left => announce(&self.engine, &self.lease, left),
        }
    }
}

fn cause_of(failure: Failure) -> Cause {
    match failure {
        Failure::NotSent(cause) | Failure::Unknown(cause) | Failure::Refused(cause) => cause,
    }
}
