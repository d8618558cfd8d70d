use std::fmt;
use std::ops::Deref;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, join_all, select};

use crate::engine::Engine;
use crate::engine::acquire::Wait;
use crate::engine::lost::Lost;
use crate::error::{Error, Result};
use crate::fair::FairMutex;
use crate::guard::{Guard, settled, unless_lost};
use crate::handle::LockHandle;
use crate::moment::Moment;
use crate::mutex::Mutex;
use crate::reentrant::ReentrantMutex;
use crate::run_error::RunError;

/// Several locks acquired together, all or none. They may be of any kind and on any store.
///
/// Use it if work needs several locks, such as those of two accounts: it cannot deadlock. For locks that are
/// always taken together, a single lock is cheaper.
///
/// The locks are acquired one by one in the byte order of their names, regardless of the order of the parts,
/// so two processes that want the same locks cannot wait for each other.
///
/// # Guarantees
/// - *All or none*: a caller with a guard holds every part; a caller without one holds none. Locks acquired
///   along the way are renewed, and released in reverse order if the acquisition fails.
/// - *Loss*: the loss of one part is the loss of the whole guard.
///
/// # Examples
/// ```
/// # tenure::block_on(async {
/// use std::time::Duration;
/// use tenure::Locks;
///
/// let locks = Locks::memory();
/// let both = locks.multi(["account:7", "account:3"])?;
/// let Some(guards) = both.try_lock_for(Duration::from_secs(2)).await? else { return Ok(()) };
/// assert_eq!(guards[0].name().as_str(), "account:7"); // as given, not as sorted
/// guards.release().await?;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Multi {
    parts: Vec<Part>,
    /// Indexes of the parts in the order of acquisition.
    order: Vec<usize>,
}

/// A lock as a part of a [`Multi`].
///
/// Convert a mutex of any kind with `into()`, and other locks with
/// [`RwLock::for_read`](crate::RwLock::for_read), [`RwLock::for_write`](crate::RwLock::for_write) and
/// [`Semaphore::for_permits`](crate::Semaphore::for_permits).
///
/// ```
/// # tenure::block_on(async {
/// # let locks = tenure::Locks::memory();
/// use tenure::{Multi, Part};
///
/// let parts: Vec<Part> = vec![locks.mutex("a")?.into(), locks.rwlock("b")?.for_read()];
/// let guards = Multi::new(parts)?.lock().await?;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Part(pub(crate) LockHandle);

impl From<Mutex> for Part {
    fn from(mutex: Mutex) -> Self {
        Self(mutex.0)
    }
}

impl From<FairMutex> for Part {
    fn from(mutex: FairMutex) -> Self {
        Self(mutex.0)
    }
}

impl From<ReentrantMutex> for Part {
    fn from(mutex: ReentrantMutex) -> Self {
        Self(mutex.0)
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Part").field(&self.0.spec.kind()).field(&self.0.name).finish()
    }
}

impl fmt::Debug for Multi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.parts).finish()
    }
}

impl Multi {
    /// Combines these locks. Locks of several kinds are [parts](Part); for mutexes there is
    /// [`Locks::multi`](crate::Locks::multi).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// use tenure::Multi;
    ///
    /// let both = Multi::new([locks.mutex("a")?, locks.mutex("b")?])?;
    /// let twice = [locks.mutex("a")?, locks.mutex("a")?];
    /// assert!(Multi::new(twice).unwrap_err().is_invalid());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `is_invalid` if the list is empty or two locks have the same name, even on different stores, because
    /// two handles may refer to the same store.
    pub fn new(parts: impl IntoIterator<Item: Into<Part>>) -> Result<Self> {
        let parts: Vec<Part> = parts.into_iter().map(Into::into).collect();
        if parts.is_empty() {
            return Err(Error::invalid("a multi-lock needs at least one lock"));
        }
        let mut order: Vec<usize> = (0..parts.len()).collect();
        order.sort_by(|a, b| parts[*a].0.full.cmp(&parts[*b].0.full));
        if let Some(twice) = order.windows(2).find(|pair| parts[pair[0]].0.full == parts[pair[1]].0.full) {
            let name = parts[twice[0]].0.full.quoted();
            return Err(Error::invalid(format!("lock {name} appears twice and would deadlock")));
        }
        Ok(Self { parts, order })
    }

    /// Waits until all locks are held.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::Locks;
    /// # let locks = Locks::memory();
    /// # let both = locks.multi(["a", "b"])?;
    /// let guards = both.lock().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future releases the locks acquired so far.
    ///
    /// # Errors
    /// The errors of the parts; `is_lost` if one lock was lost while waiting for another. No lock is held
    /// after an error.
    pub async fn lock(&self) -> Result<MultiGuard> {
        match self.acquire(Wait::Forever).await? {
            Some(guards) => Ok(guards),
            None => unreachable!("a wait without a limit ends with a grant or an error"),
        }
    }

    /// Asks for each lock once. Returns `None` if one of them is busy.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::Locks;
    /// # let locks = Locks::memory();
    /// # let both = locks.multi(["a", "b"])?;
    /// let Some(guards) = both.try_lock().await? else { return Ok(()) }; // one is busy
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<MultiGuard>> {
        self.acquire(Wait::Once).await
    }

    /// Waits for at most `limit` in total. Returns `None` if one of the locks was still busy by then.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::Locks;
    /// # let locks = Locks::memory();
    /// # let both = locks.multi(["a", "b"])?;
    /// use std::time::Duration;
    ///
    /// let guards = both.try_lock_for(Duration::from_secs(2)).await?;
    /// assert!(guards.is_some());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn try_lock_for(&self, limit: Duration) -> Result<Option<MultiGuard>> {
        self.acquire(Wait::For(limit)).await
    }

    async fn acquire(&self, wait: Wait) -> Result<Option<MultiGuard>> {
        let started = self.now();
        let mut taken = Taken(Vec::with_capacity(self.parts.len()));
        for index in &self.order {
            let part = &self.parts[*index].0;
            let wait = match wait {
                Wait::For(limit) => Wait::For(limit.saturating_sub(self.now().since(started))),
                wait => wait,
            };
            // Stop waiting for the next lock if one that is already held gets lost.
            let next =
                match select(pin!(part.acquire(wait)), lost(taken.0.iter().map(|(_, guard)| guard))).await {
                    Either::Left((next, _)) => next,
                    Either::Right((end, _)) => Err(end.into_error().expect("these guards are not released")),
                };
            match next {
                Ok(Some(guard)) => taken.0.push((*index, guard)),
                Ok(None) => {
                    taken.give_back(self.engine()).await;
                    return Ok(None);
                }
                // A silent store would cost another timeout for each release, so the drop releases in the
                // background.
                Err(error) if error.is_unreachable() => return Err(error),
                Err(error) => {
                    taken.give_back(self.engine()).await;
                    return Err(error);
                }
            }
        }
        let mut taken = std::mem::take(&mut taken.0);
        taken.sort_by_key(|(index, _)| *index);
        let mut guards = MultiGuard {
            guards: taken.into_iter().map(|(_, guard)| guard).collect(),
            order: self.order.clone(),
        };
        if let Some(error) = guards.outcome() {
            // The loss is the error to report, whether or not the releases succeed.
            guards.take().give_back(self.engine()).await;
            return Err(error);
        }
        Ok(Some(guards))
    }

    /// The clock of the first part, so that one limit covers all parts.
    fn now(&self) -> Moment {
        self.engine().now()
    }

    fn engine(&self) -> &Engine {
        &self.parts[0].0.shared.engine
    }
}

/// How long a failed acquisition waits for the release of the locks it got; the rest is released in the
/// background. Without this limit, a silent store would cost one request timeout per lock.
const GIVE_BACK: Duration = Duration::from_millis(500);

/// Guards in the order of acquisition. Dropping releases them in reverse order.
struct Taken(Vec<(usize, Guard)>);

impl Taken {
    async fn give_back(mut self, engine: &Engine) {
        let late = engine.runtime.sleep_until(engine.now() + GIVE_BACK);
        let given_back = async {
            while let Some((_, guard)) = self.0.pop() {
                // The release of a lost lock, or on a store that is silent now, may fail; it is retried in
                // the background where that makes sense.
                let _ = guard.release().await;
            }
        };
        select(pin!(given_back), late).await;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        while let Some((_, guard)) = self.0.pop() {
            drop(guard);
        }
    }
}

/// Resolves when one of these guards is lost; never if there are none.
fn lost<'a>(guards: impl Iterator<Item = &'a Guard>) -> Lost {
    guards.map(Guard::lost).fold(Lost::never(), Lost::or)
}

/// Several held locks, returned by a [`Multi`]. Dropping it releases them in the background, in reverse order
/// of acquisition.
///
/// It derefs to a slice of guards in the order of the parts. Each guard has its own token, for its own
/// resource.
///
/// ```
/// # tenure::block_on(async {
/// # use tenure::{Locks, Multi};
/// # let locks = Locks::memory();
/// # let both = locks.multi(["a", "b"])?;
/// let guards = both.lock().await?;
/// let tokens: Vec<u64> = guards.iter().map(|guard| guard.fence()).collect();
/// guards.release().await?;
/// # assert_eq!(tokens.len(), 2);
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[must_use = "the locks are released when their guard is dropped"]
pub struct MultiGuard {
    guards: Vec<Guard>,
    order: Vec<usize>,
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.guards).finish()
    }
}

impl Deref for MultiGuard {
    type Target = [Guard];

    fn deref(&self) -> &[Guard] {
        &self.guards
    }
}

impl MultiGuard {
    /// Resolves once any of the locks is no longer held.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::Locks;
    /// # let locks = Locks::memory();
    /// # let both = locks.multi(["a", "b"])?;
    /// # let guards = both.lock().await?;
    /// let lost = guards.lost();
    /// guards.release().await?;
    /// assert!(!lost.await.is_lost());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn lost(&self) -> Lost {
        lost(self.guards.iter())
    }

    /// Time until [`lost`](Self::lost) would resolve if no further renewal succeeded; zero once it has
    /// resolved.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::Locks;
    /// # let locks = Locks::memory();
    /// # let both = locks.multi(["a", "b"])?;
    /// # let guards = both.lock().await?;
    /// assert!(guards.remaining() > std::time::Duration::ZERO);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or_default()
    }

    /// Whether all locks are still held, as far as can be known without a request.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::Locks;
    /// # let locks = Locks::memory();
    /// # let both = locks.multi(["a", "b"])?;
    /// # let guards = both.lock().await?;
    /// assert!(guards.is_held());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    fn outcome(&self) -> Option<Error> {
        self.guards.iter().find_map(Guard::outcome)
    }

    /// Asks the stores concurrently whether all locks are still held.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::Locks;
    /// # let locks = Locks::memory();
    /// # let both = locks.multi(["a", "b"])?;
    /// # let guards = both.lock().await?;
    /// guards.verify().await?; // all are still held
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Safe to drop: the requests change nothing.
    ///
    /// # Errors
    /// As [`Guard::verify`], for the first part in the given order that failed.
    pub async fn verify(&self) -> Result<()> {
        join_all(self.guards.iter().map(Guard::verify)).await.into_iter().collect()
    }

    /// Releases all locks in reverse order of acquisition and reports the outcome.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::Locks;
    /// # let locks = Locks::memory();
    /// # let both = locks.multi(["a", "b"])?;
    /// # let guards = both.lock().await?;
    /// guards.release().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// If the future is dropped, the releases continue in the background.
    ///
    /// # Errors
    /// As [`Guard::release`], for the first release that failed. The other locks are released regardless.
    pub async fn release(mut self) -> Result<()> {
        let mut taken = self.take();
        let mut result = Ok(());
        while let Some((_, guard)) = taken.0.pop() {
            result = result.and(guard.release().await);
        }
        result
    }

    /// Splits this into its guards, in the order of the parts, to be released or detached one by one.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::Locks;
    /// # let locks = Locks::memory();
    /// # let both = locks.multi(["a", "b"])?;
    /// let mut guards = both.lock().await?.into_guards();
    /// drop(guards.remove(0)); // the first is released, the second is held
    /// assert_eq!(guards[0].name().as_str(), "b");
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn into_guards(mut self) -> Vec<Guard> {
        std::mem::take(&mut self.guards)
    }

    fn take(&mut self) -> Taken {
        let mut guards: Vec<_> = std::mem::take(&mut self.guards).into_iter().map(Some).collect();
        let taken = self.order.iter().filter_map(|index| Some((*index, guards.get_mut(*index)?.take()?)));
        Taken(taken.collect())
    }

    /// Runs `work` under the locks, then releases them: as [`Guard::run`].
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::Locks;
    /// # let locks = Locks::memory();
    /// let both = locks.multi(["a", "b"])?;
    /// let both = both.lock().await?;
    /// let tokens = both.run(async |guards| [guards[0].fence(), guards[1].fence()]).await?;
    /// # assert!(tokens.iter().all(|token| *token > 0));
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// The work is dropped first, then the locks are released.
    ///
    /// # Errors
    /// As [`Guard::run`], if any of the locks was lost.
    pub async fn run<T>(self, work: impl AsyncFnOnce(&Self) -> T) -> Result<T> {
        let value = unless_lost(self.lost(), work(&self)).await?;
        Ok(settled(value, self.release().await)?)
    }

    /// Runs `work` under the locks, then releases them: as [`Guard::run_future`].
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::Locks;
    /// # let locks = Locks::memory();
    /// let both = locks.multi(["a", "b"])?;
    /// assert_eq!(both.lock().await?.run_future(async { 17 }).await?, 17);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_future<F: Future>(self, work: F) -> Result<F::Output> {
        Ok(self.run_recoverable(work).await?)
    }

    /// Runs `work` under the locks, then releases them: as [`Guard::run_recoverable`].
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::Locks;
    /// # let locks = Locks::memory();
    /// let both = locks.multi(["a", "b"])?;
    /// assert_eq!(both.lock().await?.run_recoverable(async { 17 }).await?, 17);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_recoverable<F: Future>(self, work: F) -> Result<F::Output, RunError<F::Output>> {
        let value = unless_lost(self.lost(), work).await?;
        settled(value, self.release().await)
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        drop(self.take());
    }
}
