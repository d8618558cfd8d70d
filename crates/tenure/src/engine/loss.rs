//! The end of a grant: by its deadline, as lost, or with its hold; and what follows in the engine.

use std::task::Waker;
use std::time::Duration;

use super::Engine;
use super::grant::{Lease, Loss, Role};
use super::hold_end::HoldEnd;
use crate::error::Error;
use crate::events::{event, millis, text};
use crate::metrics::LossReason;
use crate::moment::Moment;
use crate::planted::{Bug, planted};
use crate::protocol::lease;

impl Lease {
    /// How the lease ended, if it has. Checks the clock first, so that a process that was stopped for longer
    /// than its lease reports the loss immediately.
    pub(crate) fn outcome(&self, engine: &Engine) -> Option<HoldEnd> {
        self.outcome_at(engine, engine.now())
    }

    pub(super) fn outcome_at(&self, engine: &Engine, now: Moment) -> Option<HoldEnd> {
        let known = self.known_outcome();
        if known.is_none() && now >= self.lost_at() && !planted(Bug::LossUnannounced) {
            self.expire(engine);
            return self.known_outcome();
        }
        known
    }

    pub(crate) fn remaining(&self, engine: &Engine) -> Duration {
        let now = engine.now();
        match self.outcome_at(engine, now) {
            Some(_) => Duration::ZERO,
            None => self.lost_at().since(now),
        }
    }

    /// Ends the lease locally because its time is over, even if the store still has it.
    pub(super) fn expire(&self, engine: &Engine) {
        let deadline = self.root().state().deadline;
        let (reason, text) = match self.end {
            Some(end) if deadline + lease::margin(self.options.ttl) >= end => {
                (LossReason::MaxHold, "max_hold was reached")
            }
            _ => (LossReason::Expired, "its lease expired before it could be renewed"),
        };
        self.lose(engine, &Loss::new(reason, text));
    }

    /// Ends it as lost and wakes all listeners.
    pub(crate) fn lose(&self, engine: &Engine, loss: &Loss) {
        let error = Error::lost(&self.name, engine.store.url(), &loss.text);
        let (root, now) = (self.root(), engine.now());
        if root.settle(engine, now, HoldEnd::Lost(error.clone()), Some(loss.reason)) {
            engine.renewer.forget(root);
            engine.ask_soon(&self.name, None);
            if matches!(root.role, Role::Alone) {
                root.tell_loss(engine, loss);
            }
        }
        for share in root.shares() {
            if share.settle(engine, now, HoldEnd::Lost(error.clone()), Some(loss.reason)) {
                share.tell_loss(engine, loss);
            }
        }
    }

    /// The error of a release that finds the lock lost.
    pub(super) fn found_lost(&self, engine: &Engine, loss: &Loss) -> Error {
        engine.metrics.lost(self.meter, loss.reason);
        self.tell_loss(engine, loss);
        Error::lost(&self.name, engine.store.url(), &loss.text)
    }

    fn tell_loss(&self, engine: &Engine, loss: &Loss) {
        event!(
            WARN,
            target: "tenure",
            "lock_lost",
            "lost",
            lock = text(&self.name),
            kind = self.meter.kind(),
            store = text(engine.store.url()),
            owner = text(&self.owner),
            fence = self.fence,
            held_ms = self.held_for(engine.now()).map(millis),
            cause = loss.reason.as_str(),
            reason = text(&loss.text),
        );
    }

    /// Ends it unless it has ended already. Counted before any listener runs.
    pub(super) fn settle(
        &self,
        engine: &Engine,
        now: Moment,
        end: HoldEnd,
        loss: Option<LossReason>,
    ) -> bool {
        let count = |since| {
            engine.metrics.ended(self.meter, now.since(since));
            if let Some(reason) = loss {
                engine.metrics.lost(self.meter, reason);
            }
        };
        let Some(listeners) = self.end(end, count) else { return false };
        // Outside the lock, because a woken task may drop a listener.
        listeners.into_iter().for_each(Waker::wake);
        true
    }
}
