//! The time by which the command must be told to end: a timer that this program sets and its
//! [`watchdog`](crate::watchdog) waits for.
//!
//! Each renewal moves it, on the renewing thread and in the same step that extends the lease, so it is right
//! whatever the rest of this program does. A message to the watchdog could be late, or stay unread while the
//! watchdog is stopped. The timer uses the clock of leases, which keeps running while the machine sleeps.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fd::OwnedFd;
use tenure::Guard;

use crate::planted::{Bug, planted};
use crate::platform::Timer;

/// How long before the end of the lease the command is killed.
pub(crate) fn margin(grace: Duration) -> Duration {
    (grace / 4).min(Duration::from_millis(500))
}

/// Delay of the watchdog relative to this program, so that only one of them acts.
fn lag(grace: Duration) -> Duration {
    margin(grace) / 2
}

/// Shared with the threads that renew.
#[derive(Clone, Debug)]
pub(crate) struct Deadline(Arc<Mutex<Moments>>);

#[derive(Debug)]
struct Moments {
    timer: Timer,
    /// When each lock is lost unless it is renewed.
    lost_at: Vec<Duration>,
    grace: Duration,
    is_final: bool,
}

impl Deadline {
    /// The watchdog tells the command to end at the first expiry, and kills it at the second.
    pub(crate) fn following(guards: &[Guard], grace: Duration) -> io::Result<Self> {
        let deadline = Self::never()?;
        {
            let mut moments = deadline.moments();
            (moments.grace, moments.lost_at) = (grace, vec![Duration::ZERO; guards.len()]);
        }
        for (number, guard) in guards.iter().enumerate() {
            let follower = deadline.clone();
            guard.on_renewal(move |lost_at| follower.moments().follow(number, lost_at));
            deadline.moments().follow(number, guard.lost_at());
        }
        Ok(deadline)
    }

    /// For a command that runs on after a loss.
    pub(crate) fn never() -> io::Result<Self> {
        let moments =
            Moments { timer: Timer::new()?, lost_at: Vec::new(), grace: Duration::ZERO, is_final: false };
        Ok(Self(Arc::new(Mutex::new(moments))))
    }

    /// This program kills the command then; the watchdog only makes sure of it.
    pub(crate) fn kill_at(&self, at: Duration) {
        let mut moments = self.moments();
        moments.is_final = true;
        let at = at + lag(moments.grace);
        moments.timer.set(at, Duration::ZERO);
    }

    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.moments().timer.descriptor()
    }

    fn moments(&self) -> MutexGuard<'_, Moments> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Moments {
    fn follow(&mut self, number: usize, lost_at: Duration) {
        let is_first = self.lost_at[number].is_zero();
        if self.is_final || planted(Bug::DeadlineKept) || planted(Bug::FirstDeadlineTrusted) && !is_first {
            return;
        }
        self.lost_at[number] = self.lost_at[number].max(lost_at);
        let first = self.lost_at.iter().min().copied().unwrap_or_default();
        let lag = lag(self.grace);
        self.timer.set(first + lag, self.grace.saturating_sub(2 * lag));
    }
}
