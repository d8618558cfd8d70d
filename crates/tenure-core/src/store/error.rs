//! Conversion of a store's failures and mismatches into the caller's error.

use std::sync::Arc;

use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::protocol::{Kind, LockSpec};
use crate::store::{Failure, Unsupported};

impl Error {
    #[doc(hidden)]
    pub fn mismatch(
        lock: &LockName,
        store: &Arc<str>,
        asked: LockSpec,
        kind: Kind,
        capacity: Option<u32>,
    ) -> Self {
        let of = |kind, capacity| match (kind, capacity) {
            (Kind::Semaphore, Some(permits)) => format!("{kind} of {permits}"),
            (kind, _) => format!("{kind}"),
        };
        if let (LockSpec::Queue(queue_spec), Kind::Semaphore, Some(capacity)) = (asked, kind, capacity)
            && queue_spec.kind == kind
            && queue_spec.weight > capacity
        {
            let (name, weight) = (lock.quoted(), queue_spec.weight);
            let message = format!("semaphore {name} has {capacity} permits, got a request for {weight}");
            return Self::new(ErrorKind::Mismatch, Some(lock), Some(store), message, None);
        }
        let (found, asked) = (of(kind, capacity), of(asked.kind(), asked.capacity()));
        let message = format!(
            "lock {} is in use as a {found} and cannot be used as a {asked} until it is free",
            lock.quoted()
        );
        Self::new(ErrorKind::Mismatch, Some(lock), Some(store), message, None)
    }

    /// For acquisitions and inspections, which leave nothing behind: every failure but a refusal reads as
    /// unreachable.
    #[doc(hidden)]
    pub fn silent(lock: Option<&LockName>, store: &Arc<str>, failure: Failure) -> Self {
        match failure {
            Failure::Refused(_) => Self::failed(lock, store, failure),
            Failure::NotSent(cause) | Failure::Unknown(cause) => {
                Self::failed(lock, store, Failure::NotSent(cause))
            }
        }
    }

    /// For a reachability check. The message includes the cause, because this is what a program prints when
    /// it cannot start.
    #[doc(hidden)]
    pub fn unreached(store: &Arc<str>, failure: Failure) -> Self {
        match failure {
            Failure::Refused(_) => Self::failed(None, store, failure),
            Failure::NotSent(cause) | Failure::Unknown(cause) => {
                let message = format!("cannot reach store {store}: {cause}");
                Self::new(ErrorKind::Unreachable, None, Some(store), message, Some(cause))
            }
        }
    }

    #[doc(hidden)]
    pub fn failed(lock: Option<&LockName>, store: &Arc<str>, failure: Failure) -> Self {
        let about = lock.map_or(String::new(), |lock| format!(" (lock {})", lock.quoted()));
        let (kind, message, cause) = match failure {
            Failure::NotSent(cause) => {
                (ErrorKind::Unreachable, format!("cannot reach store {store}{about}"), cause)
            }
            Failure::Unknown(cause) => (
                ErrorKind::Unknown,
                format!("store {store} may or may not have carried out the request{about}"),
                cause,
            ),
            Failure::Refused(cause) if cause.is::<Unsupported>() => (
                ErrorKind::Unsupported,
                format!("store {store} does not support this{about}: {cause}"),
                cause,
            ),
            Failure::Refused(cause) => {
                (ErrorKind::Refused, format!("store {store} refused the request{about}: {cause}"), cause)
            }
        };
        Self::new(kind, lock, Some(store), message, Some(cause))
    }
}
