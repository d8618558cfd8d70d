//! How a hold ended.

use std::fmt;

use crate::error::Error;

/// How a hold ended: what [`Lost`](crate::Lost) resolves to.
///
/// ```
/// # tenure::block_on(async {
/// use tenure::{HoldEnd, Locks};
///
/// let guard = Locks::memory().mutex("nightly")?.lock().await?;
/// let lost = guard.lost();
/// guard.release().await?;
/// match lost.await {
///     HoldEnd::Lost(error) => panic!("stop the work: {error}"),
///     _ => println!("the work is done"),
/// }
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum HoldEnd {
    /// The lease has expired, or is about to. The error says why: expired, taken by another client, gone from
    /// the store, or held for [`max_hold`](crate::Options::max_hold). It [`is_lost`](Error::is_lost).
    Lost(Error),
    /// The guard was released, dropped or detached.
    Released,
}

impl HoldEnd {
    /// Whether the lock was lost.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// let guard = tenure::Locks::memory().mutex("nightly")?.lock().await?;
    /// let lost = guard.lost();
    /// drop(guard);
    /// assert!(!lost.await.is_lost());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost(_))
    }

    /// The loss as an error; `None` if the guard was released.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// let guard = tenure::Locks::memory().mutex("nightly")?.lock().await?;
    /// let lost = guard.lost();
    /// drop(guard);
    /// assert!(lost.await.into_error().is_none());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn into_error(self) -> Option<Error> {
        match self {
            Self::Lost(error) => Some(error),
            Self::Released => None,
        }
    }
}

impl fmt::Display for HoldEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(error) => fmt::Display::fmt(error, f),
            Self::Released => f.write_str("the lock was released"),
        }
    }
}
