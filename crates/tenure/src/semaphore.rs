use std::fmt;
use std::time::Duration;

use crate::engine::acquire::Wait;
use crate::engine::call::Call;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::handle::LockHandle;
use crate::multi::Part;
use crate::name::LockName;
use crate::options::Options;
use crate::owner::Owner;
use crate::protocol::{Answer, Kind, LockSpec, QueueSpec, Verb};
use crate::status::foreign;

/// A fixed number of permits, shared by holders that have one or more each.
///
/// Use it to limit how many processes do the same thing at once. It is not a rate limiter: a permit is held
/// until it is released. For a single permit, a [`FairMutex`](crate::FairMutex) states the intent better. A
/// quorum does not support semaphores.
///
/// All users of a name must agree on the number of permits. Using another number while the semaphore is held
/// or waited for is an error that names the number in force. [`set_permits`](Self::set_permits) changes the
/// number for all users.
///
/// # Guarantees
/// - *Limit*: permits are granted only while the total held stays within the number of permits.
/// - *Order*: first come, first served, for any number of permits: smaller requests do not overtake a larger
///   one.
/// - *A crash* costs the holder's own lease, and nothing on the `file:` store. Other holders are unaffected.
/// - *Tokens* order the grants. **A resource must not compare them** if there is more than one permit,
///   because it would reject earlier holders.
///
/// # Examples
/// ```
/// # tenure::block_on(async {
/// let locks = tenure::Locks::memory();
/// let render = locks.semaphore("render", 5)?;
/// let four = render.acquire_many(4).await?;
/// assert!(render.try_acquire_many(2).await?.is_none());
/// let one = render.acquire().await?;
/// assert!(locks.semaphore("render", 6)?.try_acquire().await.unwrap_err().is_mismatch());
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Semaphore {
    handle: LockHandle,
    permits: u32,
}

impl Semaphore {
    /// Maximum number of permits of a semaphore.
    pub const MAX_PERMITS: u32 = 1 << 20;

    pub(crate) fn new(handle: LockHandle, permits: u32) -> Self {
        Self { handle, permits }
    }

    /// The lock's name, without the prefix.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// assert_eq!(locks.semaphore("render", 5)?.name().as_str(), "render");
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn name(&self) -> &LockName {
        &self.handle.name
    }

    /// Returns the same lock with changed options: see [`Locks::with`](crate::Locks::with).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = tenure::Locks::memory();
    /// let slow = locks.semaphore("render", 5)?
    ///     .with(|options| options.ttl(Duration::from_secs(60)))?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Locks::with`](crate::Locks::with) and [`Locks::semaphore`](crate::Locks::semaphore).
    pub fn with(&self, change: impl FnOnce(Options) -> Options) -> Result<Self> {
        Ok(Self { handle: self.handle.configured(change)?, permits: self.permits })
    }

    /// Number of permits this handle was opened with. [`set_permits`](Self::set_permits) does not change it.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// assert_eq!(locks.semaphore("render", 5)?.permits(), 5);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn permits(&self) -> u32 {
        self.permits
    }

    fn of(&self, permits: u32) -> Result<LockHandle> {
        if permits == 0 || permits > self.permits {
            let (name, most) = (self.handle.name.quoted(), self.permits);
            return Err(Error::invalid(format!(
                "requested permits of {name}: got {permits}, expected 1 to {most}"
            )));
        }
        Ok(self.handle.with(LockSpec::Queue(QueueSpec::permits(self.permits, permits))))
    }

    /// Changes the number of permits, whether the semaphore is in use or free. No client needs a restart:
    /// clients that were opened with another number follow from their next request on.
    ///
    /// Raising the number grants waiters that now fit at once. Lowering it revokes no guard: new permits are
    /// granted once enough guards have been released.
    ///
    /// # Guarantees
    /// - *Retention*: the number is in force for at least 30 days, even while no client holds a permit, and
    ///   after that until the semaphore is free. The `file:` store keeps it until the machine restarts. Whatever
    ///   makes a server lose locks makes it lose the number too: see `guarantees.md`.
    /// - *Existing clients* may request at most as many permits as they were opened with. A request for more
    ///   than the current number fails with [`is_mismatch`](Error::is_mismatch). A request that has been
    ///   waiting since before the number was lowered is granted once no other client holds a permit.
    ///
    /// # Cancel safety
    /// The request may still be carried out. It is safe to repeat.
    ///
    /// # Errors
    /// `is_invalid` for 0 and for more than [`MAX_PERMITS`](Self::MAX_PERMITS); `is_unknown` if no answer
    /// came within [`op_timeout`](Options::op_timeout); the others as for [`acquire`](Self::acquire).
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let locks = tenure::Locks::memory();
    /// let render = locks.semaphore("render", 5)?;
    /// let five = render.acquire_many(5).await?;
    /// render.set_permits(8).await?;
    /// let three = render.try_acquire_many(3).await?;
    /// assert!(three.is_some());
    /// assert!(locks.semaphore("render", 8)?.try_acquire().await?.is_none());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn set_permits(&self, permits: u32) -> Result<()> {
        check(permits)?;
        let LockHandle { shared, options, name, full, .. } = &self.handle;
        let (engine, spec) = (&shared.engine, LockSpec::Queue(QueueSpec::permits(permits, 1)));
        let owner = Owner::fresh(&options.label, &*engine.runtime);
        let call = Call::new(full, spec, &owner, Verb::Resize);
        match engine.call(&call, engine.now(), options.op_timeout).await {
            Ok(Answer::Resized) => Ok(()),
            Ok(Answer::Mismatch { kind, capacity }) => Err(engine.mismatch(name, spec, kind, capacity)),
            Ok(Answer::Busy { holder, .. }) => {
                let what = foreign(Kind::Semaphore, holder.as_bytes());
                Err(Error::no_lock(name, engine.store.url(), &what))
            }
            Ok(answer) => Err(engine.unexpected_answer(name, &answer)),
            Err(failure) => Err(engine.failed(name, failure)),
        }
    }

    /// Waits until one permit is available and all earlier waiters have theirs.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let permit = locks.semaphore("render", 5)?.acquire().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue and gives up the place in it.
    ///
    /// # Errors
    /// `is_unreachable` and `is_refused`; `is_mismatch` if the name is in use by another kind of lock or with
    /// another number of permits; `is_unsupported` if the server forbids scripts, which this lock requires,
    /// or cannot provide the `acks` in its URL.
    pub async fn acquire(&self) -> Result<Guard> {
        self.acquire_many(1).await
    }

    /// Waits until this many permits are available and all earlier waiters have theirs. One guard holds them
    /// all.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let render = locks.semaphore("render", 5)?;
    /// let four = render.acquire_many(4).await?;
    /// assert!(render.try_acquire_many(2).await?.is_none());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire); also `is_invalid` for 0 permits or more than there are.
    pub async fn acquire_many(&self, permits: u32) -> Result<Guard> {
        self.of(permits)?.lock().await
    }

    /// Asks once for one permit. Returns `None` if none is available or another caller waits.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let Some(permit) = locks.semaphore("render", 5)?.try_acquire().await? else {
    ///     return Ok(());
    /// };
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.try_acquire_many(1).await
    }

    /// Asks once for this many permits. Returns `None` if fewer are available or another caller waits.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let Some(two) = locks.semaphore("render", 5)?.try_acquire_many(2).await? else {
    ///     return Ok(());
    /// };
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As [`acquire_many`](Self::acquire_many).
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Option<Guard>> {
        self.of(permits)?.acquire(Wait::Once).await
    }

    /// Waits for at most `limit` for one permit. Returns `None` if it was not granted by then.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use std::time::Duration;
    /// # let locks = tenure::Locks::memory();
    /// let render = locks.semaphore("render", 5)?;
    /// let Some(permit) = render.try_acquire_for(Duration::from_secs(2)).await? else {
    ///     return Ok(());
    /// };
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire); also `is_unreachable` if the store is not answering when the limit is
    /// reached.
    pub async fn try_acquire_for(&self, limit: Duration) -> Result<Option<Guard>> {
        self.try_acquire_many_for(1, limit).await
    }

    /// Waits for at most `limit` for this many permits. Returns `None` if they were not granted by then.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use std::time::Duration;
    /// # let locks = tenure::Locks::memory();
    /// let render = locks.semaphore("render", 5)?;
    /// let Some(two) = render.try_acquire_many_for(2, Duration::from_secs(2)).await? else {
    ///     return Ok(());
    /// };
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As [`acquire_many`](Self::acquire_many); also `is_unreachable` if the store is not answering when the
    /// limit is reached.
    pub async fn try_acquire_many_for(&self, permits: u32, limit: Duration) -> Result<Option<Guard>> {
        self.of(permits)?.acquire(Wait::For(limit)).await
    }

    /// This many permits, as a part of a [`Multi`](crate::Multi).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// use tenure::{Multi, Part};
    ///
    /// let both = Multi::new([locks.semaphore("render", 5)?.for_permits(2)?, locks.mutex("disk")?.into()] as [Part; 2])?;
    /// let guards = both.lock().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `is_invalid` for 0 permits or more than there are.
    pub fn for_permits(&self, permits: u32) -> Result<Part> {
        self.of(permits).map(Part)
    }
}

/// Rejects a number of permits outside the valid range.
pub(crate) fn check(permits: u32) -> Result<()> {
    const MOST: u32 = Semaphore::MAX_PERMITS;
    match permits {
        1..=MOST => Ok(()),
        _ => Err(Error::invalid(format!("semaphore permits: got {permits}, expected 1 to {MOST}"))),
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("name", &self.handle.name).field("permits", &self.permits).finish()
    }
}
