//! Measures whether two clients hold at once: a holder that may lose its lock, and a rival that waits for it.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real servers measure real time"
)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tenure::Guard;

/// How long the holder is observed after the rival's grant.
const LOOK: Duration = Duration::from_millis(300);

pub(crate) fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).expect("a time")
}

/// How long, at least, the holder believed that it held after the rival was granted the lock; zero without a
/// holder.
pub(crate) fn overlap(holder: Option<&Guard>, rival: impl FnOnce() -> Guard) -> Duration {
    let over = AtomicBool::new(false);
    scope(|scope| {
        // Also if the rival panics, because a scope waits for its threads.
        let ends = Ends(&over);
        let held = scope.spawn(|| holder.map_or(Duration::ZERO, |guard| last_held(guard, &over)));
        let rival = rival();
        let granted = now();
        let until = Instant::now() + LOOK;
        while Instant::now() < until && rival.is_held() {
            sleep(Duration::from_millis(1));
        }
        drop(ends);
        held.join().expect("no panic").saturating_sub(granted)
    })
}

/// Stops the observer on drop.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The last time at which the holder certainly believed that it held: taken before each query.
fn last_held(guard: &Guard, over: &AtomicBool) -> Duration {
    let mut last = Duration::ZERO;
    while !over.load(Ordering::Relaxed) {
        let asked = now();
        if !guard.is_held() {
            break;
        }
        last = asked;
        sleep(Duration::from_micros(500));
    }
    last
}
