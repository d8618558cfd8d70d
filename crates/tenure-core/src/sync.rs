//! A mutex without poisoning, and waits for a change of what it guards.

use std::fmt;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A [`Mutex`] whose `lock` always succeeds: code that panics while it holds one leaves nothing half done.
#[derive(Default)]
pub struct Locked<T: ?Sized>(Mutex<T>);

impl<T> Locked<T> {
    /// A value behind a mutex.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }
}

impl<T: ?Sized> Locked<T> {
    /// Blocks until no other thread holds the value.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Locked<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The value of `check`, which is called at once and again whenever all waiters are notified, until it returns
/// one.
pub async fn wait_for<T>(changed: &Notify, mut check: impl FnMut() -> Option<T>) -> T {
    loop {
        let mut next = pin!(changed.notified());
        next.as_mut().enable();
        if let Some(value) = check() {
            return value;
        }
        next.await;
    }
}
