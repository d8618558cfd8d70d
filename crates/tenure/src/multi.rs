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

/// Several locks at once, of any kinds and on any stores: all or none.
///
/// Use it if a piece of work needs several locks, for example of two accounts: it cannot deadlock.
/// For locks that are always taken together one lock with one name is cheaper.
///
/// They are taken one after the other in the order of their names, byte by byte, and not in
/// the order in which they are given. So two processes that want the same locks cannot wait for
/// each other.
///
/// # Guarantees
/// - *All or none*: the client that gets a guard holds every part; the client that does not holds
///   none. What was taken meanwhile is renewed, and given back in reverse order.
/// - *One loss*: when one part is lost, the guard is.
///
/// # Examples
/// ```
/// # tenure::block_on(async {
/// use std::time::Duration;
/// use tenure::{Locks, Multi};
///
/// let locks = Locks::memory();
/// let both = Multi::new([locks.mutex("account:7")?.into(), locks.mutex("account:3")?.into()])?;
/// let Some(guards) = both.try_lock_for(Duration::from_secs(2)).await? else { return Ok(()) };
/// assert_eq!(guards[0].name().as_str(), "account:7"); // as given, not as sorted
/// guards.release().await?;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Multi {
    parts: Vec<Part>,
    /// The parts in the order in which they are taken.
    order: Vec<usize>,
}

/// A lock that can be a part of a [`Multi`]: of a mutex by `into()`, of the others by
/// [`RwLock::for_read`](crate::RwLock::for_read), [`RwLock::for_write`](crate::RwLock::for_write)
/// and [`Semaphore::for_permits`](crate::Semaphore::for_permits).
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
        f.debug_tuple("Part").field(&self.0.rule.kind()).field(&self.0.name).finish()
    }
}

impl Multi {
    /// These locks at once.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// use tenure::Multi;
    ///
    /// let both = Multi::new([locks.mutex("a")?.into(), locks.mutex("b")?.into()])?;
    /// let twice = [locks.mutex("a")?.into(), locks.mutex("a")?.into()];
    /// assert!(Multi::new(twice).unwrap_err().is_invalid());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `is_invalid` when the list is empty, or when two have the same name, also on different
    /// stores: which store is which cannot be told from here.
    pub fn new(parts: impl IntoIterator<Item = Part>) -> Result<Self> {
        let parts: Vec<Part> = parts.into_iter().collect();
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

    /// Waits until all are held.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::{Locks, Multi};
    /// # let locks = Locks::memory();
    /// # let both = Multi::new([locks.mutex("a")?.into(), locks.mutex("b")?.into()])?;
    /// let guards = both.lock().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Dropped, it gives back what it has.
    ///
    /// # Errors
    /// As the parts' own; `is_lost` when one was lost while the wait for another went on. None is
    /// held then.
    pub async fn lock(&self) -> Result<MultiGuard> {
        match self.acquire(Wait::Forever).await? {
            Some(guards) => Ok(guards),
            None => unreachable!("a wait without a limit ends with a grant or an error"),
        }
    }

    /// Asks each once: `None` when one of them is busy.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::{Locks, Multi};
    /// # let locks = Locks::memory();
    /// # let both = Multi::new([locks.mutex("a")?.into(), locks.mutex("b")?.into()])?;
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

    /// Waits for this long in all: `None` when one of them was busy then.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::{Locks, Multi};
    /// # let locks = Locks::memory();
    /// # let both = Multi::new([locks.mutex("a")?.into(), locks.mutex("b")?.into()])?;
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
            // What is held already may be lost while the next is waited for: then waiting on is for
            // nothing.
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
                // Where a store is silent, what it has is given back in the background: each would
                // take its time once more.
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
            // That is what the caller is told, also if releases fail.
            guards.take().give_back(self.engine()).await;
            return Err(error);
        }
        Ok(Some(guards))
    }

    /// On the first part's clock: one limit for all.
    fn now(&self) -> Moment {
        self.engine().now()
    }

    fn engine(&self) -> &Engine {
        &self.parts[0].0.home.engine
    }
}

/// A call that ends without the locks waits this long until what it had is given back; the rest
/// goes on in the background. A store that is silent by then would take the time of one request for
/// each.
const GIVE_BACK: Duration = Duration::from_millis(500);

/// Guards in the order in which they were taken. Dropped, they are released in reverse.
struct Taken(Vec<(usize, Guard)>);

impl Taken {
    async fn give_back(mut self, engine: &Engine) {
        let late = engine.runtime.sleep_until(engine.now() + GIVE_BACK);
        let given_back = async {
            while let Some((_, guard)) = self.0.pop() {
                // One that was lost meanwhile, or whose store is silent now, is given back in the
                // background or not at all.
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

/// Resolves when one of these guards is lost; never when there are none.
fn lost<'a>(guards: impl Iterator<Item = &'a Guard>) -> Lost {
    guards.map(Guard::lost).fold(Lost::never(), Lost::or)
}

/// Several locks that are held: what a [`Multi`] gives. Dropping it releases them in the
/// background, in the reverse of the order in which they were taken.
///
/// It is a slice of guards in the order of the parts as given: each has its own token, for its
/// own resource.
///
/// ```
/// # tenure::block_on(async {
/// # use tenure::{Locks, Multi};
/// # let locks = Locks::memory();
/// # let both = Multi::new([locks.mutex("a")?.into(), locks.mutex("b")?.into()])?;
/// let guards = both.lock().await?;
/// let tokens: Vec<u64> = guards.iter().map(|guard| guard.fence()).collect();
/// guards.release().await?;
/// # assert_eq!(tokens.len(), 2);
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "the locks are released when their guard is dropped"]
pub struct MultiGuard {
    guards: Vec<Guard>,
    order: Vec<usize>,
}

impl Deref for MultiGuard {
    type Target = [Guard];

    fn deref(&self) -> &[Guard] {
        &self.guards
    }
}

impl MultiGuard {
    /// Resolves when the first of the locks is no longer held.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::{Locks, Multi};
    /// # let locks = Locks::memory();
    /// # let both = Multi::new([locks.mutex("a")?.into(), locks.mutex("b")?.into()])?;
    /// # let guards = both.lock().await?;
    /// let lost = guards.lost();
    /// guards.release().await?;
    /// assert!(!lost.await.is_lost());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn lost(&self) -> Lost {
        lost(self.guards.iter())
    }

    /// How long until [`lost`](Self::lost) would resolve if nothing were renewed any more; zero
    /// once it has.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::{Locks, Multi};
    /// # let locks = Locks::memory();
    /// # let both = Multi::new([locks.mutex("a")?.into(), locks.mutex("b")?.into()])?;
    /// # let guards = both.lock().await?;
    /// assert!(guards.remaining() > std::time::Duration::ZERO);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or_default()
    }

    /// Whether all are still held, as far as can be known without asking.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::{Locks, Multi};
    /// # let locks = Locks::memory();
    /// # let both = Multi::new([locks.mutex("a")?.into(), locks.mutex("b")?.into()])?;
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

    /// Asks the stores, side by side, whether all are still held.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::{Locks, Multi};
    /// # let locks = Locks::memory();
    /// # let both = Multi::new([locks.mutex("a")?.into(), locks.mutex("b")?.into()])?;
    /// # let guards = both.lock().await?;
    /// guards.verify().await?; // all are still held
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Nothing is lost; it asks and changes nothing.
    ///
    /// # Errors
    /// As [`Guard::verify`], of the first part that is not, in the order given.
    pub async fn verify(&self) -> Result<()> {
        join_all(self.guards.iter().map(Guard::verify)).await.into_iter().collect()
    }

    /// Releases all, in the reverse of the order in which they were taken, and says how it went.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::{Locks, Multi};
    /// # let locks = Locks::memory();
    /// # let both = Multi::new([locks.mutex("a")?.into(), locks.mutex("b")?.into()])?;
    /// # let guards = both.lock().await?;
    /// guards.release().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Dropped, it goes on in the background.
    ///
    /// # Errors
    /// As [`Guard::release`], of the first that failed; the others are released all the same.
    pub async fn release(mut self) -> Result<()> {
        let mut taken = self.take();
        let mut result = Ok(());
        while let Some((_, guard)) = taken.0.pop() {
            result = result.and(guard.release().await);
        }
        result
    }

    /// The guards, in the order of the parts as given: from here on each is released or detached
    /// alone.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::{Locks, Multi};
    /// # let locks = Locks::memory();
    /// # let both = Multi::new([locks.mutex("a")?.into(), locks.mutex("b")?.into()])?;
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

    /// Does `work` under the locks, and releases them: as [`Guard::run`].
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::{Locks, Multi};
    /// # let locks = Locks::memory();
    /// let both = Multi::new([locks.mutex("a")?.into(), locks.mutex("b")?.into()])?;
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
    /// As [`Guard::run`], when one of the locks was lost.
    pub async fn run<T>(self, work: impl AsyncFnOnce(&Self) -> T) -> Result<T, RunError<T>> {
        let value = unless_lost(self.lost(), work(&self)).await?;
        settled(value, self.release().await)
    }

    /// Does `work` under the locks, and releases them: as [`Guard::run_future`].
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::{Locks, Multi};
    /// # let locks = Locks::memory();
    /// let both = Multi::new([locks.mutex("a")?.into(), locks.mutex("b")?.into()])?;
    /// assert_eq!(both.lock().await?.run_future(async { 17 }).await?, 17);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_future<F: Future>(self, work: F) -> Result<F::Output, RunError<F::Output>> {
        let value = unless_lost(self.lost(), work).await?;
        settled(value, self.release().await)
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        drop(self.take());
    }
}
