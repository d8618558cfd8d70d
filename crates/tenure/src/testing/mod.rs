//! Tools for testing programs that use locks: a store without a server, faults that the test injects, and
//! leases that follow tokio's clock. Needs the feature `testing`.
//!
//! [`store`] returns a [`Locks`] for the program and a [`Control`] for the test. Everything runs on the
//! test's own tokio runtime. Under `#[tokio::test(start_paused = true)]` a wait of an hour takes no time, and
//! runs are deterministic.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> tenure::Result<()> {
//! use std::time::Duration;
//!
//! let (locks, control) = tenure::testing::store();
//! let other = control.hold_elsewhere("nightly");
//! let limit = Duration::from_secs(3600);
//! assert!(locks.mutex("nightly")?.try_lock_for(limit).await?.is_none()); // at once
//!
//! drop(other);
//! let guard = locks.mutex("nightly")?.lock().await?;
//! control.lose("nightly");
//! assert!(guard.lost().await.is_lost());
//! # Ok(()) }
//! ```
//!
//! `book/use/testing.md` has a recipe for each kind of lock and use.

mod faulty;
mod recorded;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::FutureExt;

use crate::guard::Guard;
use crate::locks::Locks;
use crate::name::LockName;
use crate::protocol::record::lock_name;
use crate::runtime::{Callers, Runtime};
use crate::store::memory::Memory;

use faulty::Faulty;

pub use recorded::Request;

/// Creates a store and the control of it.
///
/// The store is in memory and supports every kind of lock and every use. Its wall clock begins at the year 2000,
/// in UTC, so that windows do not depend on when the test runs; see [`store_at`]. Its `Locks` has no thread: its tasks
/// run on the caller's tokio runtime. Such a task also releases a dropped guard, so let it run
/// (`tokio::task::yield_now`), or use [`Guard::release`].
///
/// # Panics
/// Outside a tokio runtime, or in one without time (`enable_time`).
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let (locks, control) = tenure::testing::store();
/// locks.mutex("nightly")?.lock().await?.release().await?;
/// assert_eq!(control.requests().len(), 2);
/// # Ok(()) }
/// ```
pub fn store() -> (Locks, Control) {
    store_at(UNIX_EPOCH + YEAR_2000)
}

/// The beginning of the year 2000, since 1970.
const YEAR_2000: Duration = Duration::from_secs(946_684_800);

/// As [`store`], with a wall clock that begins at `time` and advances with the clock of the test. It decides
/// which window of a [`Period`](crate::Period) is current.
///
/// # Panics
/// As [`store`]; also if `time` is before 1970.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> tenure::Result<()> {
/// use std::time::{Duration, UNIX_EPOCH};
/// use tenure::Period;
///
/// let hour = Duration::from_secs(3_600);
/// let (locks, control) = tenure::testing::store_at(UNIX_EPOCH + 24 * 20_000 * hour + hour); // 01:00 UTC
/// let nightly = locks.once_per("nightly", Period::daily(2 * hour).open_for(hour))?;
/// let run = async || nightly.run(async |_| Ok::<_, String>(())).await;
/// assert!(run().await?.is_none()); // the window of the day before is closed
/// control.advance(hour).await;
/// assert!(run().await?.is_some());
/// # Ok(()) }
/// ```
pub fn store_at(time: SystemTime) -> (Locks, Control) {
    let since = time.duration_since(UNIX_EPOCH).expect("`tenure::testing::store_at` begins in 1970");
    let runtime = Callers::at(since).expect("`tenure::testing::store` needs a tokio runtime around it");
    let memory = Memory::new(Arc::new(runtime.clone()), "testing:");
    let faulty = Arc::new(Faulty::new(memory.clone(), runtime.clone()));
    let elsewhere = Locks::on(Arc::new(memory), Arc::new(runtime.clone()), None);
    let control = Control { faulty, elsewhere, runtime };
    (control.client().0, control)
}

/// Controls the store created by [`store`]. Clones control the same store.
#[derive(Clone)]
pub struct Control {
    faulty: Arc<Faulty>,
    elsewhere: Locks,
    runtime: Callers,
}

impl Control {
    /// Ends all holds of this name, as an operator or a server that lost its data would. Returns whether
    /// there were any.
    ///
    /// [`Guard::lost`] resolves when the holder's task runs next. The name is that of a lock, a cache, a job
    /// or an election, with the prefix of its `Locks`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> tenure::Result<()> {
    /// let (locks, control) = tenure::testing::store();
    /// let guard = locks.mutex("nightly")?.lock().await?;
    /// assert!(control.lose("nightly"));
    /// assert!(guard.lost().await.is_lost());
    /// assert!(guard.release().await.unwrap_err().is_lost());
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    /// If the name is invalid.
    pub fn lose(&self, name: &str) -> bool {
        let name = LockName::new(name).expect("a name of a lock");
        let uses = ["cache", "fill", "once", "elect"].map(|kind| lock_name(kind, &name));
        let mut was_held = false;
        for name in uses.iter().chain([&name]) {
            let ended = at_once(self.elsewhere.force_release(name));
            was_held |= ended.expect("a store in memory answers").is_some();
        }
        self.faulty.interrupt();
        was_held
    }

    /// Holds a mutex as another process would, until the result is dropped.
    ///
    /// The lock is renewed meanwhile, also while the store is slow or unreachable for the program. For other
    /// kinds and uses there is [`elsewhere`](Self::elsewhere).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> tenure::Result<()> {
    /// let (locks, control) = tenure::testing::store();
    /// let other = control.hold_elsewhere("nightly");
    /// assert!(locks.mutex("nightly")?.try_lock().await?.is_none());
    /// drop(other);
    /// assert!(locks.mutex("nightly")?.try_lock().await?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    /// If the mutex is held already, or the name is invalid.
    pub fn hold_elsewhere(&self, name: &str) -> Held {
        let mutex = self.elsewhere.mutex(name).expect("a name of a lock");
        let guard = at_once(mutex.try_lock()).expect("a store in memory answers");
        Held(Some(guard.unwrap_or_else(|| panic!("{name} is held already"))))
    }

    /// A `Locks` of another process on the same store. Faults do not affect it, and its requests are not
    /// recorded.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> tenure::Result<()> {
    /// let (locks, control) = tenure::testing::store();
    /// let reader = control.elsewhere().rwlock("table")?.read().await?;
    /// assert!(locks.rwlock("table")?.try_write().await?.is_none());
    /// # drop(reader);
    /// # Ok(()) }
    /// ```
    pub fn elsewhere(&self) -> &Locks {
        &self.elsewhere
    }

    /// Makes the store unreachable until the result is dropped: requests are not carried out and fail
    /// immediately, and messages are lost. Afterwards every hold is verified, as after a reconnect.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> tenure::Result<()> {
    /// let (locks, control) = tenure::testing::store();
    /// let guard = locks.mutex("nightly")?.lock().await?;
    /// let outage = control.outage();
    /// assert!(locks.mutex("other")?.try_lock().await.unwrap_err().is_unreachable());
    /// assert!(guard.lost().await.is_lost()); // its lease is over before it could be renewed
    /// drop(outage);
    /// assert!(locks.mutex("other")?.try_lock().await?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn outage(&self) -> OutageGuard {
        self.faulty.begin_outage();
        OutageGuard(Arc::clone(&self.faulty))
    }

    /// From now on, carries out requests immediately and answers them after `delay`. A request with a shorter
    /// timeout ends without an answer: its outcome is unknown. Zero turns this off.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> tenure::Result<()> {
    /// # use std::time::Duration;
    /// let (locks, control) = tenure::testing::store();
    /// control.slow(Duration::from_millis(300));
    /// let begun = tokio::time::Instant::now();
    /// let guard = locks.mutex("nightly")?.lock().await?;
    /// assert!(begun.elapsed() >= Duration::from_millis(300));
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn slow(&self, delay: Duration) {
        self.faulty.slow(delay);
    }

    /// Lets time pass. Leases are renewed meanwhile, and expire when they are due.
    ///
    /// Where tokio's clock is paused, this is `tokio::time::sleep`. Otherwise only the clock of this store
    /// moves forward, from timer to timer, with a millisecond in between for the tasks.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> tenure::Result<()> {
    /// # use std::time::Duration;
    /// let (locks, control) = tenure::testing::store(); // tokio's clock goes on as always
    /// let guard = locks.mutex("nightly")?.lock().await?;
    /// control.advance(Duration::from_secs(60)).await;
    /// assert!(guard.is_held()); // renewed every 5 s
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// Time that has passed stays passed.
    pub async fn advance(&self, by: Duration) {
        self.runtime.advance(by).await;
    }

    /// Moves the clock of this store forward in one step, as after a suspend of the machine: nothing is
    /// renewed meanwhile. Other processes are suspended too.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> tenure::Result<()> {
    /// # use std::time::Duration;
    /// let (locks, control) = tenure::testing::store();
    /// let guard = locks.mutex("nightly")?.lock().await?;
    /// control.suspend(Duration::from_secs(60));
    /// assert!(!guard.is_held());
    /// # Ok(()) }
    /// ```
    pub fn suspend(&self, by: Duration) {
        self.runtime.jump(by);
    }

    /// The last 10,000 requests of the program, in order.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> tenure::Result<()> {
    /// let (locks, control) = tenure::testing::store();
    /// locks.mutex("nightly")?.lock().await?.release().await?;
    /// let asked: Vec<_> = control.requests().iter().map(|asked| asked.to_string()).collect();
    /// assert_eq!(asked, ["acquire nightly: held", "release nightly: released"]);
    /// # Ok(()) }
    /// ```
    pub fn requests(&self) -> Vec<Request> {
        self.faulty.requests()
    }

    /// Clears the record of requests.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> tenure::Result<()> {
    /// let (locks, control) = tenure::testing::store();
    /// let guard = locks.mutex("nightly")?.lock().await?;
    /// control.forget_requests();
    /// guard.verify().await?;
    /// assert_eq!(control.requests().len(), 1);
    /// # Ok(()) }
    /// ```
    pub fn forget_requests(&self) {
        self.faulty.forget_requests();
    }
}

impl Control {
    /// Another client under the same faults, and the runtime.
    pub(crate) fn client(&self) -> (Locks, Arc<dyn Runtime>) {
        let runtime: Arc<dyn Runtime> = Arc::new(self.runtime.clone());
        (Locks::on(Arc::clone(&self.faulty) as _, Arc::clone(&runtime), None), runtime)
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

/// A mutex held by another process: see [`Control::hold_elsewhere`]. Released on drop.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct Held(Option<Guard>);

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(guard) = self.0.take() {
            let _ = at_once(guard.release());
        }
    }
}

/// An outage of the store: see [`Control::outage`]. Ends on drop.
#[derive(Debug)]
#[must_use = "the outage ends when this is dropped"]
pub struct OutageGuard(Arc<Faulty>);

impl Drop for OutageGuard {
    fn drop(&mut self) {
        self.0.end_outage();
    }
}

fn at_once<F: Future>(future: F) -> F::Output {
    future.now_or_never().expect("a store in memory answers at once")
}

/// Runs the examples of that page as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../../book/use/testing.md")]
struct TestingPage;
