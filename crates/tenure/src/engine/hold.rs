//! A hold, on its way to the caller or in its guard.

use std::sync::Arc;
use std::time::Duration;

use super::grant::{Grant, Granting, Lease, Role};
use super::hold_end::HoldEnd;
use super::release::{Release, announce};
use super::{Engine, backoff};
use crate::error::Result;
use crate::moment::Moment;
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, LockSpec};
use crate::store::Failure;

/// A granted lock, on its way to the caller or in its guard. Dropping it releases the lock in the background.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) engine: Arc<Engine>,
    pub(crate) lease: Arc<Lease>,
    armed: bool,
}

impl Hold {
    pub(super) fn granted(engine: &Arc<Engine>, grant: Grant, request: Granting) -> Self {
        let lease = match grant.spec {
            LockSpec::Reentrant => Lease::first_share(grant, request),
            LockSpec::Mutex | LockSpec::Queue(_) => Arc::new(Lease::granted(grant, Role::Alone, request)),
        };
        Self { engine: Arc::clone(engine), lease, armed: true }
    }

    /// A re-entry, unless the lock was just lost.
    pub(super) fn reentered(engine: &Arc<Engine>, lease: Arc<Lease>) -> Option<Self> {
        let held = Self { engine: Arc::clone(engine), lease, armed: true };
        // A loss settles all shares it finds, so it either came before or settles this one too. A share
        // settled before `keep` does not count as held.
        let is_live = held.lease.root().known_outcome().is_none() && held.lease.keep(engine.now());
        is_live.then_some(held)
    }

    /// Hands the lock to the caller: from now on it is renewed, and its loss announced.
    pub(crate) fn keep(&self, now: Moment) {
        let (engine, lease) = (&self.engine, &self.lease);
        lease.keep(now);
        let root = match lease.shared_root() {
            // It is already renewed for another share.
            Some(root) if !root.keep(now) => return,
            Some(root) => {
                engine.reentries.add(root);
                root
            }
            None => lease,
        };
        engine.renewer.keep(engine, root);
        // Checked after the lease is in the schedule, which notices later interruptions.
        if engine.store.signals().interruptions() != lease.interruptions && !planted(Bug::GrantUnverified) {
            engine.renewer.verify_soon(engine, root);
        }
    }

    /// Releases the lock. Fails if it was not held to the end.
    ///
    /// If the first attempt does not find this hold, the lock was lost. If a repeated attempt does not find
    /// it, an earlier attempt released it, provided the deadline has not passed; after the deadline the
    /// outcome is unknown.
    pub(crate) async fn release(self) -> Result<()> {
        let (engine, mut now) = (Arc::clone(&self.engine), self.engine.now());
        let lost = self.lease.outcome_at(&engine, now).and_then(HoldEnd::into_error);
        let lost = lost.filter(|_| !planted(Bug::LossTakenForRelease));
        let (deadline, op_timeout) = (self.lease.lost_at(), self.lease.options.op_timeout);
        let (lease, left) = self.disarm_at(now);
        // A reentrant owner has other guards of the same grant: the last one releases it.
        if left > 0 {
            announce(&engine, &lease, left);
            return lost.map_or(Ok(()), Err);
        }
        let mut pending = Release::to(&engine, &lease, now);
        let until = now + op_timeout;
        loop {
            let left = until.since(now).max(Duration::from_millis(1));
            let failure = match pending.attempt(now, left).await {
                // The deadline had passed before: the release only tidies up.
                Ok(_) if lost.is_some() => return lost.map_or(Ok(()), Err),
                Ok(Answer::Released { .. }) => return Ok(()),
                Ok(answer) => match lease.refusal(&answer) {
                    // An earlier attempt without an answer has released it.
                    Some(_) if pending.was_repeated() && engine.now() < deadline => return Ok(()),
                    Some(_) if planted(Bug::LossTakenForRelease) => return Ok(()),
                    Some(_) if pending.was_repeated() => {
                        let cause =
                            Failure::cause("the release was retried, and the lease may have ended before");
                        return Err(engine.failed(&lease.name, Failure::Unknown(cause)));
                    }
                    // The first attempt: somebody else ended the hold.
                    Some(loss) => return Err(lease.found_lost(&engine, &loss)),
                    None => return Err(engine.unexpected_answer(&lease.name, &answer)),
                },
                Err(failure) => failure,
            };
            // From here on, the release continues in the background when this call returns.
            if lost.is_some() {
                return lost.map_or(Ok(()), Err);
            }
            let pause = engine.jittered(backoff(pending.attempts));
            // Repeating would be rejected again.
            if matches!(failure, Failure::Refused(_)) {
                pending.cancel();
                return Err(engine.failed(&lease.name, failure));
            }
            // `op_timeout` is over.
            if engine.now() + pause >= until {
                return Err(engine.failed(&lease.name, Failure::Unknown(Arc::clone(failure.why()))));
            }
            engine.runtime.sleep_until(engine.now() + pause).await;
            now = engine.now();
        }
    }

    /// Ends the hold locally without a request, and returns how many of the owner's holds still share the
    /// grant.
    pub(crate) fn disarm(self) -> (Arc<Lease>, usize) {
        let now = self.engine.now();
        self.disarm_at(now)
    }

    fn disarm_at(mut self, now: Moment) -> (Arc<Lease>, usize) {
        self.armed = false;
        let left = self.settle(now);
        (Arc::clone(&self.lease), left)
    }

    fn settle(&self, now: Moment) -> usize {
        let left = self.lease.leave().filter(|_| !planted(Bug::OneEndsAll)).unwrap_or(0);
        if left == 0 {
            self.engine.renewer.forget(self.lease.root());
            if let Some(root) = self.lease.shared_root() {
                self.engine.reentries.remove(root);
                root.settle(&self.engine, now, HoldEnd::Released, None);
            }
        }
        self.lease.settle(&self.engine, now, HoldEnd::Released, None);
        left
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let now = self.engine.now();
        match self.settle(now) {
            0 => drop(Release::to(&self.engine, &self.lease, now)),
            left => announce(&self.engine, &self.lease, left),
        }
    }
}
