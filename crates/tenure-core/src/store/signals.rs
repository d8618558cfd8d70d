//! What a store reports by itself, outside the answers to requests.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::Notify;

use crate::moment::Moment;
use crate::protocol::lease;
use crate::sync::{Locked, wait_for};

/// What a store reports by itself: interruptions, what is known about the uptime of its server, and work that
/// continues after its answer. In the other direction it carries the ttl that the clients use. Clones share
/// the state.
#[derive(Clone)]
pub struct Signals(Arc<SignalsInner>);

struct SignalsInner {
    interruptions: AtomicU64,
    interrupted: Notify,
    incarnation: Locked<Incarnation>,
    // Relaxed: only a maximum; a task reads at least what it has declared itself.
    longest_ms: AtomicU64,
    /// Number of releases that continue in the background.
    background: AtomicUsize,
    settled: Notify,
    /// Signals that are interrupted with these.
    relays: Locked<Vec<Weak<Self>>>,
}

impl Signals {
    /// Signals of a store whose server is of this incarnation.
    pub fn new(incarnation: Incarnation) -> Self {
        Self(Arc::new(SignalsInner {
            interruptions: AtomicU64::new(0),
            interrupted: Notify::new(),
            incarnation: Locked::new(incarnation),
            longest_ms: AtomicU64::new(0),
            background: AtomicUsize::new(0),
            settled: Notify::new(),
            relays: Locked::default(),
        }))
    }

    /// Reports that the store may have lost state or missed a request, for example after a reconnect. The
    /// engine then verifies every held lock at once. The first connection interrupts nothing.
    pub fn interrupt(&self) {
        self.0.interruptions.fetch_add(1, Ordering::AcqRel);
        self.0.interrupted.notify_waiters();
        let relays = self.0.relays.lock().clone();
        relays.iter().filter_map(Weak::upgrade).for_each(|above| Self(above).interrupt());
    }

    /// Interrupts `above`, too, whenever these signals are interrupted, for a store made of other stores.
    pub fn relay_to(&self, above: &Self) {
        let mut relays = self.0.relays.lock();
        relays.retain(|known| known.strong_count() > 0);
        relays.push(Arc::downgrade(&above.0));
    }

    /// Number of interruptions. A grant that was requested before an interruption and is handed out after it
    /// is verified at once.
    pub fn interruptions(&self) -> u64 {
        self.0.interruptions.load(Ordering::Acquire)
    }

    /// Completes at the first interruption after this call.
    pub fn interrupted(&self) -> BoxFuture<'static, ()> {
        let (signals, before) = (self.clone(), self.interruptions());
        async move {
            let is_later = || (signals.interruptions() != before).then_some(());
            wait_for(&signals.0.interrupted, is_later).await
        }
        .boxed()
    }

    /// Reports what is known about the uptime of the server.
    pub fn set_incarnation(&self, incarnation: Incarnation) {
        *self.0.incarnation.lock() = incarnation;
    }

    /// What is known about the uptime of the server. A member of a quorum that restarted may have forgotten
    /// leases that have not expired yet.
    pub fn incarnation(&self) -> Incarnation {
        self.0.incarnation.lock().clone()
    }

    /// Reports a release that continues in the background until the result is dropped.
    pub fn background(&self) -> BackgroundRelease {
        self.0.background.fetch_add(1, Ordering::AcqRel);
        BackgroundRelease(self.clone())
    }

    /// Completes when no release continues in the background.
    pub async fn settled(&self) {
        let is_settled = || (self.0.background.load(Ordering::Acquire) == 0).then_some(());
        wait_for(&self.0.settled, is_settled).await;
    }

    /// Declares the ttl of leases that this client will request. A single request may ask for less, because
    /// `max_hold` caps it. A quorum needs the ttl because a member that restarts may have forgotten the lease
    /// of another client.
    pub fn declare_ttl(&self, ttl: Duration) {
        let ttl = lease::millis(ttl);
        // Every acquisition declares its ttl, which is rarely the longest yet.
        if self.0.longest_ms.load(Ordering::Relaxed) < ttl {
            self.0.longest_ms.fetch_max(ttl, Ordering::Relaxed);
        }
    }

    /// The longest declared ttl; zero if none was declared.
    pub fn longest_ttl(&self) -> Duration {
        Duration::from_millis(self.0.longest_ms.load(Ordering::Relaxed))
    }
}

impl Default for Signals {
    /// Signals of a store whose server is not known yet, or does not report its uptime.
    fn default() -> Self {
        Self::new(Incarnation::Unknown)
    }
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (interruptions, incarnation) = (self.interruptions(), self.incarnation());
        f.debug_struct("Signals")
            .field("interruptions", &interruptions)
            .field("incarnation", &incarnation)
            .finish_non_exhaustive()
    }
}

/// A release that continues in the background, until dropped.
#[derive(Debug)]
pub struct BackgroundRelease(Signals);

impl Drop for BackgroundRelease {
    fn drop(&mut self) {
        let signals = &self.0.0;
        if signals.background.fetch_sub(1, Ordering::AcqRel) == 1 {
            signals.settled.notify_waiters();
        }
    }
}

/// How long a store is known to have kept its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incarnation {
    /// Forever: there is no server that could lose it in a restart.
    Lasting,
    /// Unknown: there was no connection yet, or the server does not report its uptime.
    Unknown,
    /// Since this server started.
    Since {
        /// Identifies the server and its start.
        id: Arc<str>,
        /// Minimum uptime at the moment `at`.
        up: Duration,
        /// When `up` was determined.
        at: Moment,
    },
}

impl Incarnation {
    /// Whether they are known to be of two servers, or of two starts of one.
    #[must_use]
    pub fn differs(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Since { id, .. }, Self::Since { id: other, .. }) if id != other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interruption_completes_those_that_waited_for_it() {
        let (member, quorum) = (Signals::default(), Signals::default());
        member.relay_to(&quorum);
        let (mut direct, mut relayed) = (member.interrupted(), quorum.interrupted());
        assert!((&mut direct).now_or_never().is_none() && (&mut relayed).now_or_never().is_none());
        member.interrupt();
        assert!(direct.now_or_never().is_some() && relayed.now_or_never().is_some());
        assert_eq!((member.interruptions(), quorum.interruptions()), (1, 1));
        assert!(member.interrupted().now_or_never().is_none(), "it was before");
        drop(quorum);
        member.interrupt();
        assert_eq!(member.interruptions(), 2);
    }

    #[test]
    fn a_store_is_settled_after_its_last_background_release() {
        let signals = Signals::default();
        let (one, two) = (signals.background(), signals.background());
        let mut settled = signals.settled().boxed();
        assert!((&mut settled).now_or_never().is_none());
        drop(one);
        assert!((&mut settled).now_or_never().is_none());
        drop(two);
        assert!(settled.now_or_never().is_some());
    }

    #[test]
    fn the_longest_declared_ttl_counts() {
        let signals = Signals::default();
        for (seconds, longest) in [(30, 30), (5, 30), (60, 60)] {
            signals.declare_ttl(Duration::from_secs(seconds));
            assert_eq!(signals.longest_ttl(), Duration::from_secs(longest));
        }
    }
}
