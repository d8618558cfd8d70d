//! A mutex without poisoning.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

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
