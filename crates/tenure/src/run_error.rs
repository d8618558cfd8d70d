use std::fmt;

use crate::error::Error;

/// Why [`Guard::run_recoverable`](crate::Guard::run_recoverable) and its like failed, with the value of the
/// work if there is one.
///
/// `?` makes an [`Error`] of it and drops the value.
///
/// ```
/// # tenure::block_on(async {
/// let locks = tenure::Locks::memory();
/// let guard = locks.mutex("draw:noon")?.lock().await?;
/// let drawn = guard.run_recoverable(async {
///     locks.force_release("draw:noon").await.unwrap(); // another client breaks the lock
///     17
/// });
/// let failed = drawn.await.unwrap_err();
/// assert!(failed.error.is_lost());
/// assert_eq!(failed.value, Some(17)); // the work was done, perhaps beside another holder
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct RunError<T> {
    /// How the lock was lost.
    pub error: Error,
    /// What the work returned: `Some` if it was done before the loss was known. `None` if it was
    /// dropped unfinished.
    pub value: Option<T>,
}

impl<T> From<RunError<T>> for Error {
    fn from(failed: RunError<T>) -> Self {
        failed.error.followed_by(failed.work())
    }
}

impl<T> RunError<T> {
    fn work(&self) -> &'static str {
        if self.value.is_some() { "the work was done" } else { "the work was stopped" }
    }
}

impl<T> fmt::Display for RunError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.error, self.work())
    }
}

/// Shows only whether there is a value, whose type need not be `Debug`.
impl<T> fmt::Debug for RunError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunError")
            .field("error", &self.error)
            .field("has_value", &self.value.is_some())
            .finish_non_exhaustive()
    }
}

impl<T> std::error::Error for RunError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}
