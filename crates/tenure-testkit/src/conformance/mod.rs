//! One suite for every store: what a caller was promised, from the outside.
//!
//! A case is an async function over a [`Place`]; its name is a sentence that could be false. `conformance!` turns all of them
//! into tests of one store, in virtual time or against real processes and servers, so that none can be forgotten.

pub mod guard;
pub mod lease;
pub mod mutex;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, select};
use tenure::internals::{Moment, Runtime};
use tenure::{Locks, Options};

/// Where a case runs: a store that several clients can use, and the time it runs in.
pub struct Place {
    runtime: Arc<dyn Runtime>,
    open: Box<dyn Fn() -> Locks + Send + Sync>,
}

/// A running case.
pub type Case<'a> = std::pin::Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// The lease that cases use unless they say otherwise: short, because some cases outlive it in real time.
pub const TTL: Duration = Duration::from_millis(400);

impl Place {
    /// `open` makes a further client of one store, as a further process would.
    pub fn new(runtime: Arc<dyn Runtime>, open: impl Fn() -> Locks + Send + Sync + 'static) -> Self {
        Self { runtime, open: Box::new(open) }
    }

    /// A further client with a short lease.
    pub fn client(&self) -> Locks {
        self.client_with(options())
    }

    /// A further client.
    pub fn client_with(&self, options: Options) -> Locks {
        (self.open)().with(options).expect("options that can be right")
    }

    /// Now, where leases are judged.
    pub fn now(&self) -> Moment {
        self.runtime.now()
    }

    /// Waits.
    pub fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.runtime.sleep_until(self.now() + duration)
    }

    /// What comes out, if it comes out in time.
    ///
    /// # Panics
    /// When it does not.
    pub async fn within<T>(&self, limit: Duration, what: impl Future<Output = T>) -> T {
        match self.unless_late(limit, what).await {
            Some(output) => output,
            None => panic!("it did not happen within {limit:?}"),
        }
    }

    /// What comes out, or nothing if it takes longer; it is dropped then.
    pub async fn unless_late<T>(&self, limit: Duration, what: impl Future<Output = T>) -> Option<T> {
        match select(std::pin::pin!(what), self.sleep(limit)).await {
            Either::Left((output, _)) => Some(output),
            Either::Right(_) => None,
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("runtime", &self.runtime).finish_non_exhaustive()
    }
}

/// The options of a client with a short lease.
pub fn options() -> Options {
    Options::new().ttl(TTL)
}

/// Makes a test of each case: `conformance!(run)`, where `run` is a `fn(for<'a> fn(&'a Place) -> Case<'a>)`.
#[macro_export]
macro_rules! conformance {
    ($run:path) => {
        $crate::conformance_cases!($run, mutex:
            a_free_lock_is_granted_and_a_held_one_is_busy_to_everybody_else,
            two_locks_of_one_face_exclude_each_other,
            a_waiter_of_another_client_is_woken_by_the_release,
            a_wait_ends_at_its_limit,
            a_wait_of_no_time_asks_once,
            waiters_of_one_client_are_served_in_the_order_in_which_they_came,
            a_wait_that_is_dropped_leaves_the_queue,
            an_acquisition_that_is_dropped_anywhere_leaves_nothing,
            a_future_that_was_granted_and_is_never_polled_again_loses_its_turn,
            a_hundred_tasks_of_four_clients_never_overlap,
            names_differ_in_every_byte_and_may_hold_anything,
            prefixes_keep_names_apart,
        );
        $crate::conformance_cases!($run, lease:
            a_lease_is_renewed_for_as_long_as_its_guard_lives,
            a_lease_that_is_not_renewed_ends_and_is_told_before_anybody_else_can_hold,
            a_lease_that_is_renewed_by_hand_lives_on,
            an_expired_holders_release_never_frees_the_next,
            a_lapsed_lease_cannot_be_renewed,
            max_hold_ends_a_hold_however_often_it_is_renewed,
            grace_announces_the_loss_early,
            the_shortest_lease_can_be_held,
        );
        $crate::conformance_cases!($run, guard:
            a_released_lock_is_free_and_its_signal_says_released,
            a_dropped_guard_releases,
            tokens_grow_from_grant_to_grant,
            a_forced_release_says_whose_it_was_and_the_holder_is_told,
            a_released_name_was_not_forced,
            a_detached_hold_is_resumed_with_its_token,
            a_detached_hold_ends_with_its_lease,
            only_the_owner_can_resume,
            run_returns_what_the_work_returns_and_releases,
            run_stops_the_work_when_the_lock_is_lost,
            inspect_shows_the_holder_and_list_the_names,
            shutdown_waits_for_guards_that_were_dropped,
        );
    };
}

/// Used by `conformance!`.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($run:path, $group:ident: $($case:ident),* $(,)?) => {
        mod $group {
            $(
                #[test]
                fn $case() {
                    $run(|place| Box::pin($crate::conformance::$group::$case(place)));
                }
            )*
        }
    };
}
