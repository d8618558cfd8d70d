//! Requests that one statement carries out without a read, if their lock has no holder or a single one.

use super::inbox::{QueuedOp, QueuedRequest};
use super::lock_queue::LockQueue;
use super::server::{SoleChange, SoleVerb};
use super::state::{messages, signed};
use crate::protocol::{Answer, Fence, LockSpec, Notification, Op, QueueSpec, ReleaseScope, Verb};

/// The statement that may carry out the running requests of a lock.
pub(super) fn sole(lock: &LockQueue) -> Option<SoleChange> {
    // With two requests, a release and the acquire of the next local waiter.
    let (before, last) = match &lock.running[..] {
        [request] => (None, request),
        [first, next] => (Some(op(first)?), next),
        _ => return None,
    };
    let op = op(last)?;
    let (verb, ttl_ms, hold) = parts(op)?;
    if let Some(before) = before {
        let is_hand_over = parts(before)?.0 == SoleVerb::Release && verb == SoleVerb::Acquire;
        // Of a reentrant mutex, the number of the released hold is another.
        (is_hand_over && [before.spec, op.spec] == [LockSpec::Mutex; 2]).then_some(())?;
    }
    let released = if verb == SoleVerb::Release { Some(op) } else { before };
    let message = released.filter(|op| !matches!(op.spec, LockSpec::Queue(_)));
    let message = message.map(|op| messages(&lock.key, &Notification::Free { by: Some(op.owner.clone()) }));
    Some(SoleChange {
        verb,
        key: lock.key.clone(),
        spec: op.spec,
        owner: op.owner.clone(),
        hold,
        ttl_ms: signed(ttl_ms),
        before: before.map(|before| before.owner.clone()),
        message: message.unwrap_or_default().concat(),
    })
}

/// The answer to a request that such a statement has carried out.
pub(super) fn sole_answer(request: &QueuedRequest, fence: u64) -> Answer {
    match op(request).map(|op| &op.verb) {
        Some(Verb::Release { .. }) => Answer::Released { left: 0 },
        _ => Answer::Held { fence },
    }
}

fn op(request: &QueuedRequest) -> Option<&Op> {
    match &request.ask {
        QueuedOp::Lock(op, _) => Some(op),
        _ => None,
    }
}

/// The statement for a request, the lease, and the number of the hold.
fn parts(op: &Op) -> Option<(SoleVerb, u64, u64)> {
    if let LockSpec::Queue(QueueSpec { capacity, weight, .. }) = op.spec
        && weight > capacity
    {
        return None;
    }
    match op.verb {
        Verb::Acquire { ttl_ms, hold, fence: Fence::Assign | Fence::Optional, .. } => {
            Some((SoleVerb::Acquire, ttl_ms, hold))
        }
        Verb::Release { hold, whose: ReleaseScope::Own, fence: Fence::Assign | Fence::Optional } => {
            Some((SoleVerb::Release, 0, hold))
        }
        // Rebinding a hold changes only a reentrant mutex in this store, whose holds end only with their lease.
        Verb::Renew { ttl_ms, hold, weight: None, bind }
            if bind.is_none() || op.spec != LockSpec::Reentrant =>
        {
            Some((SoleVerb::Renew, ttl_ms, hold))
        }
        _ => None,
    }
}
