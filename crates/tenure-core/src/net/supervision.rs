//! What keeping a connection open takes, whatever its protocol: the pace of reconnects, their announcement, the
//! detection of a silent connection, and the stage of a connection attempt.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::{by, pause};
use crate::events::{event, text};
use crate::moment::Moment;
use crate::runtime::Runtime;
use crate::store::{Failure, Signals};
use crate::sync::Locked;

/// A connection that lasted this long was good, whether or not it was used.
const STEADY: Duration = Duration::from_secs(1);
/// Maximum consecutive short connections that are followed by an immediate reconnect.
const SHORT: u32 = 3;
/// A connection is dead if a request is past its deadline and nothing arrived for this long since it was sent.
/// With less, one impatient caller on a slow network would cost all callers the connection.
pub const SILENCE: Duration = Duration::from_millis(200);

/// Decides when a lost connection is opened again, and announces that it was.
#[derive(Debug)]
pub struct Supervision {
    runtime: Arc<dyn Runtime>,
    signals: Signals,
    has_connected: bool,
    /// When the last connection was opened.
    since: Moment,
    /// Consecutive failures, each followed by a longer pause.
    tries: u32,
    /// Consecutive short connections.
    short: u32,
}

impl Supervision {
    /// Of a connection whose reconnects interrupt these signals.
    pub fn new(runtime: Arc<dyn Runtime>, signals: Signals) -> Self {
        Self { runtime, signals, has_connected: false, since: Moment(0), tries: 0, short: 0 }
    }

    /// A connection was opened. The first one interrupts nothing.
    pub fn connected(&mut self) {
        self.since = self.runtime.now();
        if mem::replace(&mut self.has_connected, true) {
            self.signals.interrupt();
        }
    }

    /// The connection has ended. After one that `was_of_use`, reconnect at once, because a lease may depend on
    /// it, but only `SHORT` times in a row: otherwise a server that closes each connection after one answer
    /// would be dialled without pause.
    pub fn ended(&mut self, was_of_use: bool) {
        if self.runtime.now().since(self.since) >= STEADY {
            (self.tries, self.short) = (0, 0);
            return;
        }
        self.short += 1;
        self.tries = if was_of_use && self.short <= SHORT { 0 } else { self.tries + 1 };
    }

    /// A connection attempt has failed.
    pub fn failed(&mut self) {
        self.tries += 1;
    }

    /// When to connect again; `None` for at once.
    pub fn retry_at(&self) -> Option<Moment> {
        (self.tries > 0).then(|| self.retry_later())
    }

    /// When to connect again after at least the shortest pause, for a connection that no lease depends on.
    pub fn retry_later(&self) -> Moment {
        self.runtime.now() + pause(self.tries.max(1), self.runtime.random())
    }
}

/// Logs that a connection is closed because it is silent.
pub fn warn_of_silence(server: impl fmt::Display) {
    event!(
        WARN,
        target: "tenure",
        "connection_silent",
        "no reply from the store: closing its connection",
        server = text(server),
    );
}

/// What the current connection attempt is waiting for, for the messages of timeouts.
#[derive(Debug)]
pub struct DialStage(Locked<String>);

impl Default for DialStage {
    fn default() -> Self {
        Self(Locked::new("no server has been dialled".to_owned()))
    }
}

impl DialStage {
    /// Sets the stage.
    pub fn set(&self, stage: String) {
        *self.0.lock() = stage;
    }

    /// The failure of a request for which no connection was opened in time.
    pub fn no_connection(&self) -> Failure {
        Failure::NotSent(Failure::cause(format!("no connection in time: {}", self.0.lock())))
    }

    /// The output of a step of the attempt.
    ///
    /// # Errors
    /// The failure of the attempt if the deadline passes first.
    pub async fn by<F: Future>(
        &self,
        runtime: &dyn Runtime,
        deadline: Moment,
        step: F,
    ) -> Result<F::Output, Failure> {
        by(runtime, deadline, step).await.ok_or_else(|| {
            Failure::NotSent(Failure::cause(format!("it could not be reached in time: {}", self.0.lock())))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures_util::future::{BoxFuture, FutureExt, pending};

    use super::*;

    /// Virtual time in milliseconds, and no jitter.
    #[derive(Debug, Default)]
    struct Virtual(AtomicU64);

    impl Runtime for Virtual {
        fn now(&self) -> Moment {
            Moment(0) + Duration::from_millis(self.0.load(Ordering::Relaxed))
        }
        fn unix_micros(&self) -> u64 {
            0
        }
        fn random(&self) -> u64 {
            u64::MAX
        }
        fn sleep_until(&self, _: Moment) -> BoxFuture<'static, ()> {
            pending().boxed()
        }
        fn spawn(&self, _: BoxFuture<'static, ()>) {}
    }

    #[test]
    fn reconnects_pause_after_failures_and_short_connections_in_a_row() {
        let (time, signals) = (Arc::<Virtual>::default(), Signals::default());
        let runtime: Arc<dyn Runtime> = Arc::clone(&time) as _;
        let mut supervision = Supervision::new(Arc::clone(&runtime), signals.clone());
        let mut lasting = |ms, was_of_use| {
            supervision.connected();
            time.0.fetch_add(ms, Ordering::Relaxed);
            supervision.ended(was_of_use);
            supervision.retry_at().map(|at| at.since(runtime.now()).as_millis())
        };
        let pauses: Vec<_> = (0..6).map(|_| lasting(999, true)).collect();
        assert_eq!(pauses, [None, None, None, Some(20), Some(40), Some(80)]);
        assert_eq!((lasting(1_000, false), lasting(999, true), lasting(999, false)), (None, None, Some(20)));
        assert_eq!(signals.interruptions(), 8, "all connections but the first");
        supervision.failed();
        let pause = supervision.retry_later().since(runtime.now());
        assert_eq!((pause.as_millis(), signals.interruptions()), (40, 8));
    }
}
