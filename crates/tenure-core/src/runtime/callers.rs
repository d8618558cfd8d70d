//! The caller's own tokio runtime and its clock, for tests of programs that lock.
//!
//! If that clock is paused, time passes only while all tasks wait, and leases follow it.

use std::collections::BTreeSet;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use futures_util::future::{BoxFuture, select};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Runtime, random_long};
use crate::moment::Moment;
use crate::platform::boot_clock;
use crate::sync::Locked;

/// Initial reading of the clock. Not zero, so that earlier moments can be represented.
const START: Duration = Duration::from_secs(86_400);
/// Longer sleeps get no timer, because a paused clock would jump to its end.
const NEVER: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Time given to other tasks between two steps if the clock is not paused.
const STEP: Duration = Duration::from_millis(1);

/// The runtime in which it was created. Clones share it.
#[derive(Clone)]
pub struct Callers(Arc<CallersInner>);

struct CallersInner {
    handle: Handle,
    start: Instant,
    unix_us: u64,
    /// Offset of this clock from tokio's, in nanoseconds.
    ahead: AtomicU64,
    /// Wakes sleepers when the offset changes.
    moved: Notify,
    /// Deadlines of the sleepers.
    timers: Locked<BTreeSet<(Moment, u64)>>,
    next: AtomicU64,
}

impl Callers {
    /// The caller's runtime, with a wall clock that now shows this time since 1970; `None` outside tokio.
    pub fn at(unix: Duration) -> Option<Self> {
        let handle = Handle::try_current().ok()?;
        Some(Self(Arc::new(CallersInner {
            handle,
            start: Instant::now(),
            unix_us: unix.as_micros() as u64,
            ahead: AtomicU64::new(0),
            moved: Notify::new(),
            timers: Locked::default(),
            next: AtomicU64::new(0),
        })))
    }

    /// Time since creation.
    pub fn elapsed(&self) -> Duration {
        // On a thread outside the runtime, its clock is available only in its context.
        let _context = self.0.handle.enter();
        self.0.start.elapsed() + Duration::from_nanos(self.0.ahead.load(Ordering::Acquire))
    }

    /// Advances the clock. Timers that fall due on the way fire in order.
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

    /// Moves the clock forward at once, as after a suspend of the machine.
    pub fn jump(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.0.ahead.fetch_add(by, Ordering::AcqRel);
        self.0.moved.notify_waiters();
    }

    /// Whether tokio's clock stands still while the machine's advances.
    fn is_paused(&self) -> bool {
        let (real, shown) = (boot_clock(), self.elapsed());
        while boot_clock().since(real) < Duration::from_micros(1) {}
        self.elapsed() == shown
    }

    fn timers(&self) -> MutexGuard<'_, BTreeSet<(Moment, u64)>> {
        self.0.timers.lock()
    }
}

/// A sleep registered with [`Callers::advance`].
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
                // Subscribe before reading the clock, so that a later jump wakes this sleep.
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
