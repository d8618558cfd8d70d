//! What the engine needs of the queues of waiters, which use the engine themselves.

use super::kept_subscription::KeptSubscription;
use crate::name::LockName;
use crate::owner::Owner;

/// The wait queues of one engine.
pub(super) trait Queues: Send + Sync {
    /// Lets the first waiter of a local queue try, because a hold of this name has ended in this process: released
    /// by `by`, or lost.
    fn ask_soon(&self, name: &LockName, by: Option<&Owner>);

    /// Announces a request for a ticket. If the lock has a subscription, it is kept until the returned value
    /// is dropped.
    fn subscribed(&self, name: &LockName) -> Option<KeptSubscription>;
}
