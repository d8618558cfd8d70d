//! The conformance suite for stores: what callers were promised, tested from the outside.
//!
//! A case is an async function over a [`Fixture`], named after the claim that it tests. `conformance!` turns
//! all cases into tests of one store, in virtual time or against real processes and servers, so that none can
//! be forgotten. A store outside this workspace is tested with [`on_store`].
//!
//! | module | what it holds |
//! |---|---|
//! | [`exclusion`] | exclusion, waiting and cancellation, for every kind with one holder |
//! | `flavour` | all kinds with one holder behind one interface |
//! | [`guard`] | guards, and the remaining calls of `Locks` |
//! | [`lease`] | renewal, expiry, notification of the loss |
//! | [`multi`] | several locks at once |
//! | [`mutex`] | names, and the order within a client |
//! | [`queue`] | queue order across clients |
//! | [`reentrant`] | counted holds |
//! | [`rwlock`] | readers, writers, upgrades and downgrades |
//! | [`semaphore`] | permits |

pub mod exclusion;
mod flavour;
pub mod guard;
pub mod lease;
pub mod multi;
pub mod mutex;
pub mod queue;
pub mod reentrant;
pub mod rwlock;
pub mod semaphore;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, select};
use tenure::internals::{Driver, Moment, Runtime, Store};
use tenure::{Locks, Options, Result, block_on};

use crate::sim::chooser::Chooser;
use crate::sim::clock::{Clock, SECOND};
use crate::sim::executor::Sim;

pub use flavour::{Flavour, Lock};

/// The environment of a case: a store that several clients can open, and its time.
pub struct Fixture {
    runtime: Arc<dyn Runtime>,
    open: Box<dyn Fn() -> Locks + Send + Sync>,
    flavour: Flavour,
    refuses: &'static [&'static str],
    /// Adds options to those of every client.
    adds: fn(Options) -> Options,
    /// Permits held on behalf of a flavour.
    taken: flavour::Taken,
    /// Factor by which [`Fixture::within`] stretches its limit.
    slack: u32,
    /// Lease of the cases that do not set their own.
    ttl: Duration,
}

/// A running case.
pub type Case<'a> = std::pin::Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Runs a case in virtual time under five seeds, which vary the order of its tasks. `open` receives each
/// world's runtime and returns a function that opens clients of one store in it.
///
/// # Panics
/// If the case does, or takes more than ten virtual minutes.
pub fn in_virtual_time<O>(
    flavour: Flavour,
    case: for<'a> fn(&'a Fixture) -> Case<'a>,
    open: impl Fn(Arc<dyn Runtime>) -> O,
) where
    O: Fn() -> Locks + Send + Sync + 'static,
{
    for seed in 0..5 {
        let sim = Sim::new(Chooser::seeded(seed));
        let process = sim.process(Clock::default(), seed);
        let (id, runtime) = (process.id(), process as Arc<dyn Runtime>);
        let done = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&done);
        let fixture = Fixture::new(Arc::clone(&runtime), open(runtime)).with(flavour);
        let task = async move {
            case(&fixture).await;
            told.store(true, Ordering::Relaxed);
        };
        sim.spawn(id, Box::pin(task));
        let stop = sim.run(600 * SECOND, 10_000_000);
        assert!(done.load(Ordering::Relaxed), "not done with seed {seed}: {stop:?}");
        sim.end();
    }
}

/// Runs a case in real time on a store of your own. `open` opens another client of one store, as another
/// process would.
///
/// # Panics
/// If the case does, or the store cannot be opened.
pub fn on_store(
    flavour: Flavour,
    case: for<'a> fn(&'a Fixture) -> Case<'a>,
    open: impl Fn(Arc<dyn Runtime>) -> Result<Arc<dyn Store>> + Send + Sync + 'static,
) {
    let fixture = Fixture::in_real_time(move || Locks::with_store(&open).expect("a store"));
    block_on(case(&fixture.with(flavour)));
}

/// The default lease of a fixture: short, because some cases outlive it in real time.
const TTL: Duration = Duration::from_millis(400);

impl Fixture {
    /// `open` opens another client of one store, as another process would.
    pub fn new(runtime: Arc<dyn Runtime>, open: impl Fn() -> Locks + Send + Sync + 'static) -> Self {
        let (open, flavour, taken) = (Box::new(open), Flavour::Mutex, flavour::Taken::default());
        Self { runtime, open, flavour, refuses: &[], adds: |options| options, taken, slack: 1, ttl: TTL }
    }

    /// Like `new`, in real time: limits are stretched eightfold, because the machine may be busy.
    ///
    /// # Panics
    /// If no thread can be started.
    pub fn in_real_time(open: impl Fn() -> Locks + Send + Sync + 'static) -> Self {
        let driver = Driver::start().expect("a thread");
        Self { slack: 8, ..Self::new(driver, open) }
    }

    /// Changes the kind of lock under test.
    #[must_use]
    pub fn with(self, flavour: Flavour) -> Self {
        Self { flavour, ..self }
    }

    /// Declares names that the store does not accept.
    #[must_use]
    pub fn without(self, refuses: &'static [&'static str]) -> Self {
        Self { refuses, ..self }
    }

    /// Whether the store does not accept this name.
    pub fn refuses(&self, name: &str) -> bool {
        self.refuses.contains(&name)
    }

    /// Changes the lease, for a store that may take longer than a third of the default to reply.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    /// Adds options to those of every client.
    #[must_use]
    pub fn on(self, adds: fn(Options) -> Options) -> Self {
        Self { adds, ..self }
    }

    /// Whether a token may follow another one; with unfenced clients, whether both are 0.
    pub fn is_later(&self, fence: u64, than: u64) -> bool {
        if (self.adds)(Options::new()).unfenced { (fence, than) == (0, 0) } else { fence > than }
    }

    /// Another client, with a short lease.
    pub fn client(&self) -> Locks {
        self.client_with(self.options())
    }

    /// Another client with these options.
    pub fn client_with(&self, options: Options) -> Locks {
        (self.open)().with(|_| (self.adds)(options)).expect("options that can be right")
    }

    /// Options with the fixture's lease.
    pub fn options(&self) -> Options {
        Options::new().ttl(self.ttl)
    }

    /// The time by which leases are judged.
    pub fn now(&self) -> Moment {
        self.runtime.now()
    }

    /// Sleeps.
    pub fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.runtime.sleep_until(self.now() + duration)
    }

    /// The limit for something that takes at most `limit` on an idle machine.
    pub fn limit(&self, limit: Duration) -> Duration {
        self.slack * limit
    }

    /// Waits for `what` within the stretched limit.
    ///
    /// # Panics
    /// If it takes longer.
    pub async fn within<T>(&self, limit: Duration, what: impl Future<Output = T>) -> T {
        let limit = self.limit(limit);
        match self.unless_late(limit, what).await {
            Some(output) => output,
            None => panic!("it did not happen within {limit:?}"),
        }
    }

    /// Waits until `count` callers wait in the queue of lock `x`.
    pub async fn until_queued(&self, locks: &Locks, count: usize) {
        let waiting =
            async || locks.inspect("x").await.expect("an answer").map_or(0, |status| status.waiters.len());
        while waiting().await < count {
            self.sleep(Duration::from_millis(1)).await;
        }
    }

    /// The same, where `what` is the last to come.
    pub async fn until_waiting(&self, locks: &Locks, count: usize, what: impl Future + Unpin) {
        let queued = self.within(Duration::from_secs(10), self.until_queued(locks, count));
        assert!(matches!(select(what, std::pin::pin!(queued)).await, Either::Right(_)), "it did not wait");
    }

    /// Waits for `what`; drops it and returns `None` if it takes longer than `limit`.
    pub async fn unless_late<T>(&self, limit: Duration, what: impl Future<Output = T>) -> Option<T> {
        match select(std::pin::pin!(what), self.sleep(limit)).await {
            Either::Left((output, _)) => Some(output),
            Either::Right(_) => None,
        }
    }
}

impl fmt::Debug for Fixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fixture").field("runtime", &self.runtime).finish_non_exhaustive()
    }
}

/// Makes a test of each case: `conformance!(run)`, where `run` is a `fn(Flavour, for<'a> fn(&'a Fixture) ->
/// Case<'a>)`, which gives each case a store of its own, for example with [`on_store`](crate::conformance::on_store).
///
/// Cases about one holder at a time run for every kind that has one.
#[macro_export]
macro_rules! conformance {
    ($run:path) => {
        $crate::conformance_mutex!($run);
        $crate::conformance_exclusive!($run, fair_mutex, Fair);
        $crate::conformance_exclusive!($run, writer, Write);
        $crate::conformance_exclusive!($run, one_permit, OnePermit);
        $crate::conformance_exclusive!($run, last_of_five_permits, LastPermit);
        $crate::conformance_exclusive!($run, reentrant_mutex, Reentrant);
        $crate::conformance_cases!($run, Mutex, kinds, guard:
            a_name_in_use_as_another_kind_is_a_mismatch_that_names_both,
        );
        $crate::conformance_cases!($run, Mutex, queue, queue:
            callers_of_several_clients_are_served_in_the_order_in_which_they_came,
            a_try_overtakes_nobody,
            a_head_that_died_costs_its_short_lease,
            a_long_grace_keeps_nobody_out,
            a_forced_release_lets_the_next_in,
            whoever_is_called_gets_a_whole_lease,
        );
        $crate::conformance_cases!($run, Mutex, reentrant, reentrant:
            an_owner_holds_as_often_as_it_likes_and_others_wait_for_the_last_release,
            a_reentry_keeps_the_token_and_shortens_nothing,
            holds_of_one_owner_end_one_by_one,
            release_hold_leaves_the_holds_of_another_process,
            a_detached_hold_of_two_is_resumed_as_one_of_two,
            a_resume_that_is_dropped_anywhere_takes_nothing,
        );
        $crate::conformance_cases!($run, Mutex, rwlock, rwlock:
            readers_hold_together_and_a_writer_alone,
            a_waiting_writer_stops_new_readers,
            a_release_of_one_reader_touches_no_other,
            a_lapsed_reader_blocks_a_writer_no_longer_than_its_own_lease,
            a_downgrade_lets_readers_in_at_once,
            a_downgrade_touches_no_other_lock,
            one_of_the_readers_may_become_the_writer,
            an_upgrade_that_is_given_up_lets_readers_in,
            an_upgrade_that_is_dropped_leaves_nothing,
            an_upgrade_waits_for_a_dead_reader_no_longer_than_its_lease,
        );
        $crate::conformance_cases!($run, Mutex, semaphore, semaphore:
            permits_never_add_up_to_more_than_there_are,
            who_asks_for_many_is_not_overtaken,
            all_who_are_let_in_at_once_come_in_at_once,
            another_number_is_a_mismatch_that_says_which_is_in_force,
            permits_that_cannot_be_are_refused,
            a_number_that_is_set_is_in_force_for_all,
            a_number_that_is_raised_lets_waiters_in_at_once,
            a_number_is_set_of_a_semaphore_only,
        );
        $crate::conformance_cases!($run, Mutex, multi, multi:
            all_or_none_are_held,
            a_wait_for_several_ends_at_its_limit,
            two_that_want_the_same_in_another_order_both_get_it,
            the_loss_of_one_is_the_loss_of_all,
            the_same_name_twice_is_refused,
        );
    };
}

/// Like `conformance!`, for a store that supports mutexes only.
#[macro_export]
macro_rules! conformance_mutex {
    ($run:path) => {
        $crate::conformance_exclusive!($run, mutex, Mutex);
        $crate::conformance_cases!($run, Mutex, names, mutex:
            names_differ_in_every_byte_and_may_hold_anything,
            prefixes_keep_names_apart,
            waiters_of_one_client_are_served_in_the_order_in_which_they_came,
        );
        $crate::conformance_cases!($run, Mutex, renewals, lease:
            a_renewal_is_told_with_its_deadline,
        );
        $crate::conformance_cases!($run, Mutex, handle, guard:
            a_forced_release_says_whose_it_was_and_the_holder_is_told,
            a_released_name_was_not_forced,
            inspect_shows_the_holder_and_list_the_names,
            flush_waits_for_dropped_guards_and_closes_nothing,
        );
    };
}

/// The cases for every kind with one holder.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_exclusive {
    ($run:path, $name:ident, $flavour:ident) => {
        mod $name {
            $crate::conformance_cases!($run, $flavour, exclusion, exclusion:
                a_free_lock_is_granted_and_a_held_one_is_busy_to_everybody_else,
                two_locks_of_one_face_exclude_each_other,
                a_waiter_of_another_client_is_woken_by_the_release,
                a_wait_ends_at_its_limit,
                a_wait_of_no_time_asks_once,
                a_wait_that_is_dropped_leaves_the_queue,
                a_wait_that_is_dropped_anywhere_leaves_no_place,
                an_acquisition_that_is_dropped_anywhere_leaves_nothing,
                a_future_that_was_granted_and_is_never_polled_again_loses_its_turn,
                a_hundred_tasks_of_four_clients_never_overlap,
            );
            $crate::conformance_cases!($run, $flavour, lease, lease:
                a_lease_is_renewed_for_as_long_as_its_guard_lives,
                a_lease_that_is_not_renewed_ends_and_is_told_before_anybody_else_can_hold,
                a_lease_that_is_renewed_by_hand_lives_on,
                an_expired_holders_release_never_frees_the_next,
                a_lapsed_lease_cannot_be_renewed,
                max_hold_ends_a_hold_however_often_it_is_renewed,
                grace_announces_the_loss_early,
                the_shortest_lease_can_be_held,
            );
            $crate::conformance_cases!($run, $flavour, guard, guard:
                a_released_lock_is_free_and_its_signal_says_released,
                a_holder_is_told_at_once_that_its_hold_was_ended_by_force,
                release_hold_ends_one_hold_and_wakes_a_waiter,
                a_dropped_guard_releases,
                tokens_grow_from_grant_to_grant,
                a_detached_hold_is_resumed_with_its_token,
                a_detached_hold_ends_with_its_lease,
                only_the_owner_can_resume,
                run_returns_what_the_work_returns_and_releases,
                run_stops_the_work_when_the_lock_is_lost,
            );
        }
    };
}

/// A module with a test per case.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($run:path, $flavour:ident, $name:ident, $group:ident: $($case:ident),* $(,)?) => {
        mod $name {
            $(
                #[test]
                fn $case() {
                    let flavour = $crate::conformance::Flavour::$flavour;
                    $run(flavour, |fixture| Box::pin($crate::conformance::$group::$case(fixture)));
                }
            )*
        }
    };
}
