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

/// A number of permits, of which each holder has some.
///
/// Use it to limit how many processes do the same at once. It is no rate limiter: a permit is held
/// until it is released. For one permit a [`FairMutex`](crate::FairMutex) says what is meant. A
/// quorum has no semaphore.
///
/// All who use the name must agree on the number; another number at a name that is held or waited
/// for is an error that says which one is in force. [`set_permits`](Self::set_permits) changes it
/// for all of them.
///
/// # Guarantees
/// - *At most so many*: a permit is granted only if, with those that are held, it is not more than
///   there are.
/// - *Order*: first come, first served, for any number of permits: a request for many is not
///   overtaken by those who ask for few.
/// - *A crash* costs the holder's own lease, and on the `file:` store nothing; the others go on.
/// - *Tokens* order the grants. **A resource must not compare them** when there is more than one
///   permit: it would lock out those who came before.
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
    face: LockHandle,
    permits: u32,
}

impl Semaphore {
    /// The most permits that a semaphore can have.
    pub const MAX_PERMITS: u32 = 1 << 20;

    pub(crate) fn new(face: LockHandle, permits: u32) -> Self {
        Self { face, permits }
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
        &self.face.name
    }

    /// The same lock with changed options: see [`Locks::with`](crate::Locks::with).
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
        Ok(Self { face: self.face.configured(change)?, permits: self.permits })
    }

    /// How many permits it was opened with. [`set_permits`](Self::set_permits) does not change
    /// what this returns.
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
            let (name, most) = (self.face.name.quoted(), self.permits);
            return Err(Error::invalid(format!(
                "1 to {most} permits of {name} can be asked for, and this is {permits}"
            )));
        }
        Ok(self.face.with(LockSpec::Queue(QueueSpec::permits(self.permits, permits))))
    }

    /// Sets how many permits there are, while the semaphore is in use or free. No client needs to
    /// be restarted: those that were opened with another number follow from the next request on.
    ///
    /// Where it raises the number, waiters that fit are let in at once. Where it lowers the number,
    /// no guard is lost: clients are let in again once enough of them were released.
    ///
    /// # Guarantees
    /// - *Kept*: the number is in force for 30 days at least, also while no client holds a permit,
    ///   and then until the semaphore is free. A directory keeps it until the machine restarts.
    ///   What makes a server forget locks makes it forget the number: see `guarantees.md`.
    /// - *Clients that follow* ask for at most as many permits as they were opened with. A request
    ///   for more than there are is an error that [`is_mismatch`](Error::is_mismatch). One that
    ///   waits since before the number was lowered is served when no other client holds any.
    ///
    /// # Cancel safety
    /// Dropped, it may still be carried out. It can be repeated.
    ///
    /// # Errors
    /// `is_invalid` for 0 and for more than [`MAX_PERMITS`](Self::MAX_PERMITS); `is_unknown` when
    /// no answer came within [`op_timeout`](Options::op_timeout); the others as of
    /// [`acquire`](Self::acquire).
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
        let LockHandle { home, options, name, full, .. } = &self.face;
        let (engine, rule) = (&home.engine, LockSpec::Queue(QueueSpec::permits(permits, 1)));
        let owner = Owner::fresh(&options.label, &*engine.runtime);
        let call = Call::new(full, rule, &owner, Verb::Resize);
        match engine.call(&call, engine.now(), options.op_timeout).await {
            Ok(Answer::Resized) => Ok(()),
            Ok(Answer::Mismatch { kind, capacity }) => Err(engine.mismatch(name, rule, kind, capacity)),
            Ok(Answer::Busy { holder, .. }) => {
                let what = foreign(Kind::Semaphore, holder.as_bytes());
                Err(Error::no_lock(name, engine.store.url(), &what))
            }
            Ok(answer) => Err(engine.nonsense(name, &answer)),
            Err(failure) => Err(engine.failed(name, failure)),
        }
    }

    /// Waits until one permit is left, and all who came before have theirs.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let permit = locks.semaphore("render", 5)?.acquire().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Dropped, it leaves the queue; a place, once left, is gone.
    ///
    /// # Errors
    /// `is_unreachable`, `is_refused`; `is_mismatch` when the name is in use as another kind or
    /// with another number of permits; `is_unsupported` when the server forbids scripts, without
    /// which there is no such lock, or cannot do what
    /// `acks` in its URL asks for.
    pub async fn acquire(&self) -> Result<Guard> {
        self.acquire_many(1).await
    }

    /// Waits until so many permits are left, and all who came before have theirs. One guard holds
    /// them all.
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
    /// As [`acquire`](Self::acquire); `is_invalid` for 0 permits or more than there are.
    pub async fn acquire_many(&self, permits: u32) -> Result<Guard> {
        self.of(permits)?.lock().await
    }

    /// Asks once for one permit: `None` when none is left or another caller waits.
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

    /// Asks once for so many permits: `None` when fewer are left or another caller waits.
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

    /// Waits at most this long for one permit: `None` when the turn of this caller does not come.
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
    /// As [`acquire`](Self::acquire); `is_unreachable` too when the store is silent at the limit.
    pub async fn try_acquire_for(&self, limit: Duration) -> Result<Option<Guard>> {
        self.try_acquire_many_for(1, limit).await
    }

    /// Waits at most this long for so many permits: `None` when the turn of this caller does not
    /// come.
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
    /// As [`acquire_many`](Self::acquire_many); `is_unreachable` too when the store is silent at
    /// the limit.
    pub async fn try_acquire_many_for(&self, permits: u32, limit: Duration) -> Result<Option<Guard>> {
        self.of(permits)?.acquire(Wait::For(limit)).await
    }

    /// So many permits, as a part of a [`Multi`](crate::Multi).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// use tenure::Multi;
    ///
    /// let both = Multi::new([locks.semaphore("render", 5)?.for_permits(2)?, locks.mutex("disk")?.into()])?;
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

/// Whether there can be so many permits.
pub(crate) fn check(permits: u32) -> Result<()> {
    const MOST: u32 = Semaphore::MAX_PERMITS;
    match permits {
        1..=MOST => Ok(()),
        _ => Err(Error::invalid(format!("a semaphore has 1 to {MOST} permits, and this one has {permits}"))),
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("name", &self.face.name).field("permits", &self.permits).finish()
    }
}
