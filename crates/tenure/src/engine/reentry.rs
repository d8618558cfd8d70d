//! Re-entry without a request: the holds that an owner has through one `Locks` share one hold on the store,
//! which ends with the last of them.
//!
//! The hold on the store is a separate [`Lease`], the *term*. It is renewed, and its loss is the loss of all.
//! Each caller has a share of it, with an end and listeners of its own.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use super::lease::{Granting, Lease, LeaseTerms, Role, Shares};
use crate::metrics::Meter;
use crate::name::LockName;
use crate::options::{HoldOptions, Options};
use crate::owner::Owner;
use crate::protocol::lease;
use crate::sync::Locked;

/// The terms of an engine, each with at least one share.
#[derive(Default)]
pub(super) struct Reentries(Locked<BTreeMap<(LockName, Owner, u64), Arc<Lease>>>);

impl Reentries {
    /// Makes a term available for sharing.
    pub(super) fn add(&self, term: &Arc<Lease>) {
        self.0.lock().insert(key(term), Arc::clone(term));
    }

    /// Closes the terms of a lock that was released by force. Their shares count until they leave, because
    /// the release may have failed.
    pub(super) fn forced(&self, name: &LockName) {
        self.0.lock().values().filter(|term| term.name == *name).for_each(|term| term.close());
    }

    pub(super) fn remove(&self, term: &Lease) {
        self.0.lock().remove(&key(term));
    }

    /// Adds a share for an owner that has the lock, if one of its terms covers these options.
    pub(super) fn enter(
        &self,
        engine: &Engine,
        name: &LockName,
        owner: &Owner,
        meter: Meter,
        options: &Options,
    ) -> Option<Arc<Lease>> {
        let terms = self.of(name, owner);
        let term = terms.iter().rev().find(|term| term.covers(engine, options))?;
        term.share(meter, options)
    }

    /// The owner's holds that the store does not know of.
    pub(super) fn more(&self, engine: &Engine, name: &LockName, owner: &Owner) -> usize {
        let live = |term: &Arc<Lease>| term.outcome(engine).is_none();
        self.of(name, owner).iter().filter(|term| live(term)).map(|term| term.others()).sum()
    }

    fn of(&self, name: &LockName, owner: &Owner) -> Vec<Arc<Lease>> {
        let key = |hold| (name.clone(), owner.clone(), hold);
        self.0.lock().range(key(0)..=key(u64::MAX)).map(|(_, term)| Arc::clone(term)).collect()
    }
}

fn key(term: &Lease) -> (LockName, Owner, u64) {
    (term.name.clone(), term.owner.clone(), term.hold)
}

impl Lease {
    /// The first share of a grant.
    pub(super) fn first_share(terms: LeaseTerms, request: Granting) -> Arc<Self> {
        let (meter, op_timeout) = (terms.meter, terms.options.op_timeout);
        let term = Arc::new(Self::granted(terms, Role::Term(Box::default()), request));
        term.share_if(meter, op_timeout, |_| true).expect("it is not closed yet")
    }

    /// Another share, unless the last one has left or the term is closed.
    fn share(self: &Arc<Self>, meter: Meter, options: &Options) -> Option<Arc<Self>> {
        let is_open = |shares: &Shares| !shares.leases.is_empty() && !shares.is_closed;
        self.share_if(meter, options.op_timeout, is_open)
    }

    fn share_if(
        self: &Arc<Self>,
        meter: Meter,
        op_timeout: Duration,
        may: impl FnOnce(&Shares) -> bool,
    ) -> Option<Arc<Self>> {
        let Role::Term(shares) = &self.role else { return None };
        let mut shares = shares.lock();
        if !may(&shares) {
            return None;
        }
        let share = Arc::new(Self::share_of(self, meter, op_timeout));
        shares.leases.push(Arc::clone(&share));
        Some(share)
    }

    /// Whether a hold with these options needs no request: it would be renewed the same way, as much time is
    /// left as in a fresh grant, and the store has not been interrupted since.
    fn covers(&self, engine: &Engine, options: &Options) -> bool {
        let is_alike = self.options.covers(HoldOptions::of(options));
        let is_sure = engine.store.signals().interruptions() == self.interruptions;
        let ttl = options.lease();
        let least = (ttl - ttl / 3).saturating_sub(lease::margin(ttl) + self.options.grace);
        is_alike && is_sure && self.remaining(engine) >= least
    }

    /// Removes it from its term and returns how many shares are left; `None` if it has no term or was removed
    /// before.
    pub(super) fn leave(&self) -> Option<usize> {
        let Role::Share(term) = &self.role else { return None };
        let Role::Term(shares) = &term.role else { return None };
        let mut shares = shares.lock();
        let before = shares.leases.len();
        shares.leases.retain(|share| !ptr::eq(&**share, self));
        (shares.leases.len() < before).then_some(shares.leases.len())
    }

    /// Whether no other hold shares the term. If so, closes the term.
    pub(crate) fn is_alone(&self) -> bool {
        let Role::Share(term) = &self.role else { return true };
        let Role::Term(shares) = &term.role else { return true };
        let mut shares = shares.lock();
        let is_alone = shares.leases.len() <= 1;
        shares.is_closed |= is_alone;
        is_alone
    }

    /// Lets no more holds share it.
    fn close(&self) {
        if let Role::Term(shares) = &self.role {
            shares.lock().is_closed = true;
        }
    }

    fn others(&self) -> usize {
        let Role::Term(shares) = &self.role else { return 0 };
        shares.lock().leases.len().saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_on;
    use crate::engine::acquire::{Wait, acquire};
    use crate::engine::acquisition::{Acquisition, Wanted};
    use crate::engine::hold::Hold;
    use crate::engine::lease::Loss;
    use crate::metrics::LossReason;
    use crate::protocol::LockSpec;
    use crate::runtime::{Driver, Runtime};
    use crate::store::memory::Memory;

    /// An owner that requests a lock repeatedly.
    struct ReentryBench {
        driver: Arc<Driver>,
        engine: Arc<Engine>,
        name: LockName,
        owner: Owner,
        options: Arc<Options>,
    }

    impl ReentryBench {
        fn new() -> Self {
            let driver = Driver::start().expect("a thread");
            let runtime = Arc::clone(&driver) as Arc<dyn Runtime>;
            let store = Arc::new(Memory::new(Arc::clone(&runtime), "memory:"));
            let (name, owner) = (LockName::new("x").expect("a name"), Owner::new("me").expect("an owner"));
            let options = Arc::new(Options::new().ttl(Duration::from_secs(30)));
            Self { engine: Engine::new(store, runtime), driver, name, owner, options }
        }

        fn meter(&self) -> Meter {
            self.engine.metrics.meter(&self.options.groups, &self.name, &self.name, LockSpec::Reentrant)
        }

        fn ask(&self) -> Acquisition {
            Acquisition::new(self.wanted())
        }

        fn wanted(&self) -> Wanted<'_> {
            let Self { engine, name, owner, options, .. } = self;
            let (spec, owner, meter) = (LockSpec::Reentrant, Some(owner), self.meter());
            Wanted { engine, name, spec, owner, options, meter, wait: Wait::Once }
        }

        fn acquire(&self) -> Hold {
            block_on(acquire(&self.wanted())).expect("an answer").expect("a free lock")
        }

        /// The steps between a re-entry and its guard.
        fn hand_over(&self, held: &Hold) {
            self.engine.metrics.granted(self.meter(), Duration::ZERO, false);
            held.keep(self.engine.now());
        }

        fn held(&self) -> u64 {
            self.engine.metrics.snapshot(0, 0).total().held
        }
    }

    impl Drop for ReentryBench {
        fn drop(&mut self) {
            self.driver.stop();
        }
    }

    /// Another thread may force the release at any moment.
    #[test]
    fn a_forced_release_within_a_reentry_has_nothing_renewed_twice() {
        let bench = ReentryBench::new();
        let first = bench.acquire();
        let again = bench.ask().reenter().expect("our own");
        bench.engine.reentries.forced(&bench.name);
        bench.hand_over(&again);
        assert_eq!(bench.engine.renewer.scheduled(), 1, "a hold stands twice in the schedule");
        assert!(bench.ask().reenter().is_none(), "what was released by force is entered again");
        assert_eq!(bench.engine.more_holds(&bench.name, &bench.owner), 1, "it may be held still");
        drop((first, again));
        assert_eq!(bench.engine.renewer.scheduled(), 0);
    }

    #[test]
    fn a_loss_within_a_reentry_is_counted_and_nothing_is_left() {
        let bench = ReentryBench::new();
        let first = bench.acquire();
        let again = bench.ask().reenter().expect("our own");
        first.lease.lose(&bench.engine, &Loss::new(LossReason::Gone, "it is gone"));
        bench.hand_over(&again);
        assert!(again.lease.outcome(&bench.engine).is_some());
        assert!(bench.ask().reenter().is_none());
        drop((first, again));
        assert_eq!(bench.held(), 0, "a hold that was lost counts as held for ever");
        assert!(bench.engine.reentries.of(&bench.name, &bench.owner).is_empty());
    }

    /// The loss comes after the share exists and before it reaches the caller.
    #[test]
    fn what_is_lost_before_it_is_handed_over_is_not() {
        let bench = ReentryBench::new();
        let first = bench.acquire();
        let engine = &bench.engine;
        let (name, owner, options) = (&bench.name, &bench.owner, &*bench.options);
        let share = engine.reentries.enter(engine, name, owner, bench.meter(), options);
        let share = share.expect("our own");
        first.lease.lose(engine, &Loss::new(LossReason::Gone, "it is gone"));
        // The last other share leaves before the re-entry continues.
        drop(first);
        assert!(Hold::reentered(engine, share).is_none());
        assert_eq!(bench.held(), 0);
        assert!(engine.reentries.of(&bench.name, &bench.owner).is_empty(), "it is kept for ever");
    }
}
