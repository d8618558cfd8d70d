//! What many tests need.

use std::time::Duration;

use tenure::{Locks, Options};

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A client with these options.
pub(crate) fn with(url: &str, options: Options) -> Locks {
    Locks::open(url).and_then(|locks| locks.with(|_| options)).expect("a store")
}

/// A client with leases of this length.
pub(crate) fn locks(url: &str, ttl: Duration) -> Locks {
    with(url, Options::new().ttl(ttl))
}

/// An error with its causes.
pub(crate) fn said(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |all, cause| format!("{all}: {cause}"))
}
