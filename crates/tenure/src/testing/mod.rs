//! For the tests of programs that lock: a store without a server, whose faults a test chooses, and
//! leases that follow tokio's clock. With the feature `testing`.
//!
//! [`store`] gives a [`Locks`] for the program and a [`Control`] for the test. All runs on the
//! test's own tokio runtime. Under `#[tokio::test(start_paused = true)]` a wait of an hour takes no
//! time, and each run is the same.
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
mod request;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;

use crate::guard::Guard;
use crate::locks::Locks;
use crate::name::LockName;
use crate::protocol::record::lock_name;
use crate::runtime::{Callers, Runtime};
use crate::store::memory::Memory;

use faulty::Faulty;

pub use request::Request;

/// A store of its own, and the control of it.
///
/// The store is in memory, and knows all kinds of locks and uses. Its `Locks` has no thread: its
/// tasks run on the caller's tokio runtime. A guard that is dropped is released by such a task, so
/// let it run (`tokio::task::yield_now`), or use [`Guard::release`].
///
/// # Panics
/// Outside of a tokio runtime, and in one without time (`enable_time`).
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
    let runtime = Callers::current().expect("`tenure::testing::store` needs a tokio runtime around it");
    let memory = Memory::new(Arc::new(runtime.clone()), "testing:");
    let faulty = Arc::new(Faulty::new(memory.clone(), runtime.clone()));
    let elsewhere = Locks::on(Arc::new(memory), Arc::new(runtime.clone()), None);
    let control = Control { faulty, elsewhere, runtime };
    (control.client().0, control)
}

/// What a test does to the store of [`store`]. Clones control the same store.
#[derive(Clone)]
pub struct Control {
    faulty: Arc<Faulty>,
    elsewhere: Locks,
    runtime: Callers,
}

impl Control {
    /// Ends all holds of this name, as an operator or a server that has forgotten them. Returns
    /// whether there were any.
    ///
    /// The holder hears of it at once: [`Guard::lost`] resolves when its task runs next. The name
    /// is that of a lock, a cache, a job or an election, with the prefix of its `Locks`.
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
    /// If it is no name of a lock.
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

    /// Holds a mutex as another process would, until what is returned is dropped.
    ///
    /// The lock is renewed meanwhile, also while the store is out or slow for the program. For
    /// other kinds and uses there is [`elsewhere`](Self::elsewhere).
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
    /// If it is held already, or no name of a lock.
    pub fn hold_elsewhere(&self, name: &str) -> Held {
        let mutex = self.elsewhere.mutex(name).expect("a name of a lock");
        let guard = at_once(mutex.try_lock()).expect("a store in memory answers");
        Held(Some(guard.unwrap_or_else(|| panic!("{name} is held already"))))
    }

    /// A `Locks` of another process on the same store, which no fault concerns and whose requests
    /// are not recorded.
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

    /// The store cannot be reached until what is returned is dropped: requests are not carried out
    /// and fail at once, and messages are lost. Then it is as after a reconnect: every hold is
    /// verified.
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

    /// From now on each request is carried out at once and answered only after `delay`. One whose
    /// caller waits for less has no answer: it is unknown whether it was carried out. Zero ends
    /// that.
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

    /// Lets time pass. Leases are renewed meanwhile, and end, each when it is due.
    ///
    /// Where tokio's clock is paused this is `tokio::time::sleep`. Where it is not, only the clock
    /// of this store is set ahead, from timer to timer, with a millisecond between for the tasks.
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
    /// The time that has passed stays passed.
    pub async fn advance(&self, by: Duration) {
        self.runtime.advance(by).await;
    }

    /// Sets the clock of this store ahead at once, as for a machine that was suspended: nothing is
    /// renewed meanwhile. Other processes are suspended with it.
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

    /// What the program has asked of the store so far, in order: the last 10,000 requests.
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

    /// Forgets the requests so far.
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
    /// A further client, which the faults concern too, and the runtime of all.
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

/// A mutex that another process holds: see [`Control::hold_elsewhere`]. It is released when this is
/// dropped.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct Held(Option<Guard>);

impl Drop for Held {
    fn drop(&mut self) {
        // It may be lost by now.
        if let Some(guard) = self.0.take() {
            let _ = at_once(guard.release());
        }
    }
}

/// A time in which the store cannot be reached: see [`Control::outage`]. It ends when this is
/// dropped.
#[derive(Debug)]
#[must_use = "the outage ends when this is dropped"]
pub struct OutageGuard(Arc<Faulty>);

impl Drop for OutageGuard {
    fn drop(&mut self) {
        self.0.end_outage();
    }
}

/// What a store in memory answers at once.
fn at_once<F: Future>(future: F) -> F::Output {
    future.now_or_never().expect("a store in memory answers at once")
}

/// The examples of the page run with those of this crate.
#[cfg(doctest)]
#[doc = include_str!("../../../../book/use/testing.md")]
struct TestingPage;
