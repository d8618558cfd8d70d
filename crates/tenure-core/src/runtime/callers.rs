//! The caller's own tokio runtime, with its clock: for tests of programs that lock.
//!
//! Where that clock is paused, time passes only when all tasks wait, and leases move with it.

use std::collections::BTreeSet;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::{BoxFuture, select};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Runtime, boottime, random_long};
use crate::moment::Moment;

/// What the clock shows when it starts: not zero, so that moments before it can be told.
const START: Duration = Duration::from_secs(86_400);
/// A sleep that is longer has no timer: a paused clock would jump to its end.
const NEVER: Duration = Duration::from_secs(10 * 365 * 86_400);
/// So long other tasks get, where the clock is not paused, between two steps.
const STEP: Duration = Duration::from_millis(1);

/// The runtime in which it was made. Clones are the same one.
#[derive(Clone)]
pub struct Callers(Arc<Inner>);

struct Inner {
    handle: Handle,
    start: Instant,
    unix_us: u64,
    /// How far this clock was set ahead of tokio's, in nanoseconds.
    ahead: AtomicU64,
    /// Tells those who sleep that it was.
    moved: Notify,
    /// When those who sleep wake up.
    timers: Mutex<BTreeSet<(Moment, u64)>>,
    next: AtomicU64,
}

impl Callers {
    /// That of the caller; `None` outside of every tokio runtime.
    pub fn current() -> Option<Self> {
        let handle = Handle::try_current().ok()?;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Some(Self(Arc::new(Inner {
            handle,
            start: Instant::now(),
            unix_us: unix.as_micros() as u64,
            ahead: AtomicU64::new(0),
            moved: Notify::new(),
            timers: Mutex::default(),
            next: AtomicU64::new(0),
        })))
    }

    /// Since it was made.
    pub fn elapsed(&self) -> Duration {
        // On another thread than the runtime's, only its context has its clock.
        let _context = self.0.handle.enter();
        self.0.start.elapsed() + Duration::from_nanos(self.0.ahead.load(Ordering::Acquire))
    }

    /// Lets time pass. What is due meanwhile happens in order.
    pub async fn advance(&self, by: Duration) {
        let until = self.now() + by;
        if self.is_paused() {
            return self.sleep_until(until).await;
        }
        loop {
            tokio::time::sleep(STEP).await;
            let first = self.timers().first().map(|(at, _)| *at);
            let next = first.filter(|at| *at < until).unwrap_or(until);
            self.jump(next.since(self.now()));
            if self.now() >= until {
                return tokio::time::sleep(STEP).await;
            }
        }
    }

    /// Sets the clock ahead at once, as for a machine that was suspended.
    pub fn jump(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.0.ahead.fetch_add(by, Ordering::AcqRel);
        self.0.moved.notify_waiters();
    }

    /// Whether tokio's clock stands still while that of the machine goes on.
    fn is_paused(&self) -> bool {
        let (real, shown) = (boottime(), self.elapsed());
        while boottime().since(real) < Duration::from_micros(1) {}
        self.elapsed() == shown
    }

    fn timers(&self) -> MutexGuard<'_, BTreeSet<(Moment, u64)>> {
        self.0.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sleep that is known to [`Callers::advance`].
struct Timer {
    runtime: Callers,
    entry: (Moment, u64),
}

impl Timer {
    fn new(runtime: &Callers, at: Moment) -> Self {
        let entry = (at, runtime.0.next.fetch_add(1, Ordering::Relaxed));
        runtime.timers().insert(entry);
        Self { runtime: runtime.clone(), entry }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.runtime.timers().remove(&self.entry);
    }
}

impl Runtime for Callers {
    fn now(&self) -> Moment {
        Moment(0) + START + self.elapsed()
    }

    fn unix_micros(&self) -> u64 {
        self.0.unix_us + self.elapsed().as_micros() as u64
    }

    fn random(&self) -> u64 {
        random_long() as u64
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        let runtime = self.clone();
        Box::pin(async move {
            let _timer = Timer::new(&runtime, at);
            loop {
                // Before the clock is read: what is set ahead later is heard of.
                let moved = runtime.0.moved.notified();
                let left = at.since(runtime.now());
                if left.is_zero() {
                    return;
                }
                if left > NEVER {
                    moved.await;
                    continue;
                }
                let timer = {
                    let _context = runtime.0.handle.enter();
                    tokio::time::sleep(left)
                };
                select(pin!(timer), pin!(moved)).await;
            }
        })
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.0.handle.spawn(task);
    }
}

impl fmt::Debug for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callers").finish_non_exhaustive()
    }
}
