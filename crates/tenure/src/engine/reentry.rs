//! Re-entry without a request: the holds that an owner has through one `Locks` share one hold on the store,
//! which ends with the last of them.
//!
//! The hold on the store is a separate [`Lease`], the *root*. It is renewed, and its loss is the loss of all.
//! Each caller has a share of it, with an end and listeners of its own.

use std::sync::Arc;

use super::Engine;
use super::grant::Lease;
use super::shares::Reentries;
use crate::metrics::Meter;
use crate::name::LockName;
use crate::options::{HoldOptions, Options};
use crate::owner::Owner;
use crate::protocol::lease;

impl Reentries {
    /// Adds a share for an owner that has the lock, if one of its roots covers these options.
    pub(super) fn enter(
        &self,
        engine: &Engine,
        name: &LockName,
        owner: &Owner,
        meter: Meter,
        options: &Options,
    ) -> Option<Arc<Lease>> {
        let roots = self.of(name, owner);
        let root = roots.iter().rev().find(|root| root.covers(engine, options))?;
        root.share(meter, options)
    }

    /// The owner's holds that the store does not know of.
    pub(super) fn more(&self, engine: &Engine, name: &LockName, owner: &Owner) -> usize {
        let live = |root: &Arc<Lease>| root.outcome(engine).is_none();
        self.of(name, owner).iter().filter(|root| live(root)).map(|root| root.others()).sum()
    }
}

impl Lease {
    /// Whether a hold with these options needs no request: it would be renewed the same way, as much time is
    /// left as in a fresh grant, and the store has not been interrupted since.
    fn covers(&self, engine: &Engine, options: &Options) -> bool {
        let is_alike = self.options.covers(HoldOptions::of(options));
        let is_sure = engine.store.signals().interruptions() == self.interruptions;
        let ttl = options.lease();
        let least = (ttl - ttl / 3).saturating_sub(lease::margin(ttl) + self.options.grace);
        is_alike && is_sure && self.remaining(engine) >= least
    }
}

impl Engine {
    /// How many more holds an owner has here than the store knows of.
    pub(crate) fn more_holds(&self, name: &LockName, owner: &Owner) -> u32 {
        u32::try_from(self.reentries.more(self, name, owner)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::block_on;
    use crate::engine::acquire::{Wait, acquire};
    use crate::engine::acquisition::{Acquisition, Wanted};
    use crate::engine::grant::Loss;
    use crate::engine::hold::Hold;
    use crate::engine::waiters::process_queues::ProcessQueues;
    use crate::metrics::LossReason;
    use crate::protocol::LockSpec;
    use crate::runtime::{Driver, Runtime};
    use crate::store::memory::Memory;

    /// An owner that requests a lock repeatedly.
    struct ReentryBench {
        driver: Arc<Driver>,
        engine: Arc<Engine>,
        queues: ProcessQueues,
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
            let engine = Engine::new(store, runtime);
            let queues = ProcessQueues::of(&engine);
            Self { engine, queues, driver, name, owner, options }
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
            block_on(acquire(&self.queues, &self.wanted())).expect("an answer").expect("a free lock")
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
