//! A future that resolves at the end of a hold.

use std::fmt;
use std::future::Future;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::Engine;
use super::grant::Lease;
pub use super::hold_end::HoldEnd;

/// A future that resolves when a lock is no longer held: see [`Guard::lost`](crate::Guard::lost).
///
/// Use it to stop work that [`Guard::run`](crate::Guard::run) cannot stop: a child process, a thread, a
/// spawned task. To check once, use [`Guard::is_held`](crate::Guard::is_held).
///
/// - [`HoldEnd::Lost`] comes [`Options::grace`](crate::Options::grace) before another client can get the
///   lock. In a process that was stopped for longer than its lease, it comes at the first poll.
/// - [`HoldEnd::Released`] comes when the guard is released, dropped or detached, so that a task that waits
///   for the loss ends.
///
/// Clone it into every task that works under the lock.
///
/// # Cancel safety
/// Nothing is lost: later futures resolve to the same end.
///
/// # Examples
/// ```
/// # tenure::block_on(async {
/// let locks = tenure::Locks::memory();
/// let guard = locks.mutex("nightly")?.lock().await?;
/// let lost = guard.lost();
/// locks.force_release("nightly").await?;
/// assert!(guard.verify().await.is_err());
/// assert!(lost.await.is_lost());
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct Lost {
    /// One per guard that it covers.
    listeners: Vec<LossListener>,
}

/// Listens for the end of one hold.
pub(super) struct LossListener {
    engine: Arc<Engine>,
    lease: Arc<Lease>,
    id: u64,
}

/// As for [`Locks`](crate::Locks).
impl UnwindSafe for Lost {}
impl RefUnwindSafe for Lost {}

impl Lost {
    pub(crate) fn new(engine: &Arc<Engine>, lease: &Arc<Lease>) -> Self {
        Self { listeners: vec![LossListener::new(engine, lease)] }
    }

    pub(crate) fn never() -> Self {
        Self { listeners: Vec::new() }
    }

    /// Time until this resolves if no further renewal succeeds; zero once it has resolved: see
    /// [`Guard::remaining`](crate::Guard::remaining).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// # let guard = locks.mutex("nightly")?.lock().await?;
    /// let lost = guard.lost();
    /// assert!(lost.remaining() > std::time::Duration::ZERO);
    /// guard.release().await?;
    /// assert!(lost.remaining().is_zero());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn remaining(&self) -> Duration {
        let all = self.listeners.iter().map(|listener| listener.lease.remaining(&listener.engine));
        all.min().unwrap_or_default()
    }

    /// Resolves with whichever comes first.
    pub(crate) fn or(mut self, mut other: Self) -> Self {
        self.listeners.append(&mut other.listeners);
        self
    }
}

impl Future for Lost {
    type Output = HoldEnd;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<HoldEnd> {
        match self.listeners.iter().find_map(|listener| listener.listen(context)) {
            Some(outcome) => Poll::Ready(outcome),
            None => Poll::Pending,
        }
    }
}

impl Clone for Lost {
    fn clone(&self) -> Self {
        Self {
            listeners: self
                .listeners
                .iter()
                .map(|listener| LossListener::new(&listener.engine, &listener.lease))
                .collect(),
        }
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.listeners.iter().map(|listener| &listener.lease.name)).finish()
    }
}

impl LossListener {
    pub(super) fn new(engine: &Arc<Engine>, lease: &Arc<Lease>) -> Self {
        let id = lease.state().next_listener();
        Self { engine: Arc::clone(engine), lease: Arc::clone(lease), id }
    }

    pub(super) fn listen(&self, context: &Context<'_>) -> Option<HoldEnd> {
        if let Some(outcome) = self.lease.outcome(&self.engine) {
            return Some(outcome);
        }
        let waker = context.waker().clone();
        // The replaced waker is dropped outside the lock, because dropping it may drop anything.
        let before = self.lease.state().listen(self.id, waker);
        before.err()
    }
}

impl Drop for LossListener {
    fn drop(&mut self) {
        // Dropped outside the lock, because dropping a waker may drop anything.
        let waker = self.lease.state().forget_listener(self.id);
        drop(waker);
    }
}
