use std::fmt;
use std::time::Duration;

use crate::engine::acquire::Wait;
use crate::engine::call::Call;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::handle::{LockHandle, mutex};
use crate::name::LockName;
use crate::options::Options;
use crate::owner::Owner;
use crate::protocol::{Answer, LockSpec, Verb};

/// A lock with one owner at a time, who may hold it several times: code that holds the lock can call code
/// that acquires it.
///
/// Use it for such call chains, or to share locks with Redisson's `RLock`. If you can pass the guard down
/// instead, use a [`Mutex`](crate::Mutex): then the compiler knows which code holds the lock.
///
/// The caller passes the owner explicitly, like a span. All callers with the same [`Owner`] share the lock,
/// in any task, thread or process. Each guard is one hold, and the lock is free once the last of them is
/// released.
///
/// On Redis this lock uses the same format as Redisson's `RLock`, so it and a Java service exclude each other
/// and, outside a namespace, wake each other.
///
/// # Guarantees
/// - *Exclusion* between owners while a guard [`is_held`](Guard::is_held). Holds of one owner do not exclude
///   each other.
/// - *Order*: as [`Mutex`](crate::Mutex).
/// - *Re-entry* through the same [`Locks`](crate::Locks) sends no request if the owner's existing lease is
///   good enough: automatically renewed, with the same `grace`, at least as long a `ttl`, and no `max_hold`.
///   The guards then share one hold in the store, which is released with the last of them.
/// - *Counting*: each hold counts once, however often its requests were retried. No hold shortens the lease
///   of another.
/// - *A crash* of a holder costs that hold's lease (nothing on the `file:` store); the owner's other holds
///   continue to be renewed.
/// - *Tokens*: all holds of an owner have the token of the first; a re-entry gets no new one.
///
/// # Examples
/// ```
/// # tenure::block_on(async {
/// use tenure::{Locks, Owner};
///
/// async fn inner(locks: &Locks, me: &Owner) -> tenure::Result<u32> {
///     let lock = locks.reentrant_mutex("tree", me)?;
///     let _guard = lock.lock().await?;
///     lock.hold_count().await
/// }
///
/// let (locks, me) = (Locks::memory(), Owner::new("walker")?);
/// let _guard = locks.reentrant_mutex("tree", &me)?.lock().await?;
/// assert_eq!(inner(&locks, &me).await?, 2);
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct ReentrantMutex(pub(crate) LockHandle);

mutex! {
    ReentrantMutex from "Locks::reentrant_mutex", opened by
        "\n# let me = tenure::Owner::new(\"walker\")?;" "locks.reentrant_mutex(\"nightly\", &me)?";
    lock:
    /// Waits until no other owner holds the lock. If the store does not answer at all, the call fails after
    /// [`Options::patience`](crate::Options::patience).
    cancelled:
    /// Dropping the future leaves the queue. A grant that may be in flight is released in the background and
    /// does not count as a hold.
    unsupported:
    /// `is_unsupported` if the server forbids scripts, which this lock requires, or cannot provide the `acks`
    /// in its URL.
    busy: "another owner holds the lock";
    limited:
    /// Waits for at most `limit`. Returns `None` if other owners held the lock all that time.
}

impl ReentrantMutex {
    /// Number of holds of this owner; 0 if it does not hold the lock.
    ///
    /// Asks the store. Holds of another process may be undercounted: the store counts all holds that share a
    /// lease within one [`Locks`](crate::Locks) as one.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// # let me = tenure::Owner::new("walker")?;
    /// let lock = locks.reentrant_mutex("tree", &me)?;
    /// let _outer = lock.lock().await?;
    /// let _inner = lock.lock().await?;
    /// assert_eq!(lock.hold_count().await?, 2);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Safe to drop: the request changes nothing.
    ///
    /// # Errors
    /// `is_unreachable`, `is_refused` and `is_mismatch`; `is_unsupported` if the server forbids scripts.
    pub async fn hold_count(&self) -> Result<u32> {
        let LockHandle { shared, options, full, owner, .. } = &self.0;
        let (engine, Some(owner)) = (&shared.engine, owner) else { return Ok(0) };
        let call = Call::new(full, LockSpec::Reentrant, owner, Verb::Inspect).idempotent();
        match engine.call(&call, engine.now(), options.op_timeout).await {
            Ok(Answer::Found(found)) => {
                let mine = |value: &[u8]| {
                    crate::protocol::parse_value(value).is_some_and(|(holder, _)| holder == *owner)
                };
                let counted = found.holders.iter().find(|holder| mine(&holder.value));
                Ok(counted.map_or(0, |holder| holder.weight + engine.more_holds(full, owner)))
            }
            Ok(Answer::Free) => Ok(0),
            Ok(Answer::Mismatch { kind, capacity }) => {
                Err(engine.mismatch(full, LockSpec::Reentrant, kind, capacity))
            }
            Ok(answer) => Err(engine.unexpected_answer(full, &answer)),
            Err(failure) => Err(Error::silent(Some(full), engine.store.url(), failure)),
        }
    }

    /// The owner that this handle acquires the lock for.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// # let me = tenure::Owner::new("walker")?;
    /// assert_eq!(locks.reentrant_mutex("tree", &me)?.owner(), &me);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn owner(&self) -> &Owner {
        self.0.owner.as_ref().expect("a reentrant handle is made with an owner")
    }
}
