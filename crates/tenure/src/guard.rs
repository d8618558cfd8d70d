use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::engine::Client;
use crate::engine::acquisition::part;
use crate::engine::call::Call;
use crate::engine::hold::Hold;
use crate::engine::lease::Lease;
use crate::engine::lost::{HoldEnd, Lost};
use crate::engine::upgrade::upgrade;
use crate::error::{Error, Result};
use crate::hold_id::HoldId;
use crate::moment::Moment;
use crate::name::LockName;
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Liveness, LockSpec, QueueSpec, Verb, lease};
use crate::run_error::RunError;

/// A lock that is held: what `lock`, `acquire` and their like give.
///
/// Keep it for as long as the work takes, and [`release`](Self::release) it to hear whether the
/// lock was held to the end. Where a crash of the holder is normal, do not rely on the guard alone:
/// let the resource compare [`fence`](Self::fence).
///
/// Dropping it releases the lock in the background: without a wait, unless it was the last handle
/// of its
/// [`Locks`](crate::Locks), as is said there. One that is leaked ([`std::mem::forget`]) is renewed
/// until the process ends, or [`max_hold`](crate::Options::max_hold) is over.
///
/// `let _ = mutex.lock().await?` holds nothing: the guard is dropped, and the lock released, at
/// once. Give it a name:
///
/// ```
/// # tenure::block_on(async {
/// let locks = tenure::Locks::memory();
/// let _ = locks.mutex("nightly")?.lock().await?;
/// let guard = locks.mutex("nightly")?.lock().await?; // not held by the line above
/// assert!(locks.mutex("nightly")?.try_lock().await?.is_none());
/// guard.release().await?;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
///
/// # Guarantees
/// While [`is_held`](Self::is_held), no client else holds the lock, as long as the store loses no
/// write that it acknowledged and its clock does not jump. A guard that is renewed is good until it
/// is released, lost, or held for
/// [`max_hold`](crate::Options::max_hold). Where that is not enough, let the resource compare
/// [`fence`](Self::fence).
#[must_use = "the lock is released when its guard is dropped"]
pub struct Guard {
    /// `None` only in the moment in which it is released, detached or dropped.
    held: Option<Hold>,
    name: LockName,
    home: Arc<Client>,
}

/// As [`Locks`](crate::Locks).
impl UnwindSafe for Guard {}
impl RefUnwindSafe for Guard {}

impl Guard {
    pub(crate) fn new(home: &Arc<Client>, name: &LockName, held: Hold) -> Self {
        Self { held: Some(held), name: name.clone(), home: Arc::clone(home) }
    }

    fn lease(&self) -> &Arc<Lease> {
        &self.held.as_ref().expect("a guard has its hold until it is consumed").lease
    }

    /// The lock's name, without the prefix.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// # let guard = locks.mutex("nightly")?.lock().await?;
    /// assert_eq!(guard.name().as_str(), "nightly");
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// The owner: fresh for this acquisition, unless the caller chose it, for a
    /// [`ReentrantMutex`](crate::ReentrantMutex) or to
    /// [resume](crate::Locks::resume) a hold.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// # let guard = locks.mutex("nightly")?.lock().await?;
    /// assert_eq!(guard.owner().pid(), std::process::id());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn owner(&self) -> &Owner {
        &self.lease().owner
    }

    /// The fencing token: greater than that of every earlier grant of this name, and the same for
    /// as long as this guard lives. A resource that stores the greatest token it has seen, and
    /// refuses smaller ones together with the write they come with, is safe even from a holder that
    /// does not know yet that it has lost the lock. [`fence`](crate::fence) has what makes
    /// databases do that.
    ///
    /// Where several hold at once only a writer's token may be compared. That of a reader, or of a
    /// semaphore with more than one permit, tells its grant from others; a resource that compared
    /// it would lock out those who came before and hold still. All holds of one owner of a
    /// [`ReentrantMutex`](crate::ReentrantMutex) share the token of the first.
    ///
    /// 0 where the store can give none, which only [`Options::unfenced`](crate::Options::unfenced)
    /// allows.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// # let guard = locks.mutex("nightly")?.lock().await?;
    /// # async fn write_unless_newer(token: u64) {}
    /// write_unless_newer(guard.fence()).await; // the resource refuses a lower one
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn fence(&self) -> u64 {
        self.lease().fence
    }

    /// How long until [`lost`](Self::lost) would resolve if nothing were renewed any more; zero
    /// once it has.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// # let guard = locks.mutex("nightly")?.lock().await?;
    /// assert!(guard.remaining() > std::time::Duration::from_secs(10)); // of 15 s
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn remaining(&self) -> Duration {
        self.lease().remaining(&self.home.engine)
    }

    /// When [`lost`](Self::lost) resolves if nothing is renewed any more, as the time since the
    /// machine booted, sleep included: what `CLOCK_BOOTTIME` reads on Linux.
    ///
    /// All processes of a machine share that clock, so a supervisor can compare this value with its
    /// own reading. [`remaining`](Self::remaining) is relative to a moment that only this process
    /// knows.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// # let guard = locks.mutex("nightly")?.lock().await?;
    /// let before = guard.lost_at();
    /// guard.renew().await?;
    /// assert!(guard.lost_at() > before);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn lost_at(&self) -> Duration {
        Duration::from_nanos(self.lease().lost_at().0)
    }

    /// Calls a function with the new [`lost_at`](Self::lost_at) whenever a renewal is answered. A
    /// later call replaces the function.
    ///
    /// The thread of the [`Locks`](crate::Locks) calls it, in the step that moves the deadline, so a
    /// supervisor in another process learns of each renewal even if all other threads of this
    /// process are busy. The function must not block, because every other renewal waits for it.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// # let guard = locks.mutex("nightly")?.lock().await?;
    /// guard.on_renewal(|lost_at| println!("held until {lost_at:?} after boot"));
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn on_renewal(&self, tell: impl Fn(Duration) + Send + Sync + 'static) {
        self.lease().on_renewal(Arc::new(move |at: Moment| tell(Duration::from_nanos(at.0))));
    }

    /// Identifies this hold, for a process that releases it with
    /// [`Locks::release_hold`](crate::Locks::release_hold) if this one dies.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("nightly")?.lock().await?;
    /// let line = guard.hold_id().to_string(); // to the supervisor
    /// locks.release_hold(&line.parse()?).await?; // in the supervisor, once this process has died
    /// assert!(guard.verify().await.unwrap_err().is_lost());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn hold_id(&self) -> HoldId {
        // What the store knows, also where several guards share it.
        let term = self.lease().term();
        HoldId { name: term.name.clone(), rule: term.rule, owner: term.owner.clone(), hold: term.hold }
    }

    /// The loss, if it is known. As long as there is a guard, its hold has not been released.
    pub(crate) fn outcome(&self) -> Option<Error> {
        self.lease().outcome(&self.home.engine).and_then(HoldEnd::into_error)
    }

    /// Whether the lock is still held, as far as can be known without asking: `remaining() > 0`.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// # let guard = locks.mutex("nightly")?.lock().await?;
    /// assert!(guard.is_held());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// A future that resolves when the lock is no longer held, and says whether it was lost or
    /// released.
    ///
    /// In a `select!`, poll it first (`biased`), so that work that is ready too does not go on
    /// after a loss:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> tenure::Result<()> {
    /// # let locks = tenure::Locks::memory();
    /// # let mut rows = (0..3).collect::<std::collections::VecDeque<u32>>();
    /// # async fn write(row: u32, token: u64) {}
    /// let guard = locks.mutex("import")?.lock().await?;
    /// let mut lost = guard.lost();
    /// while let Some(row) = rows.pop_front() {
    ///     tokio::select! {
    ///         biased;
    ///         end = &mut lost => return end.into_error().map_or(Ok(()), Err),
    ///         () = write(row, guard.fence()) => {}
    ///     }
    /// }
    /// guard.release().await
    /// # }
    /// ```
    pub fn lost(&self) -> Lost {
        Lost::new(&self.home.engine, self.lease())
    }

    /// Asks the store whether the lock is still held: for the moment before a write that cannot be
    /// fenced.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// # let guard = locks.mutex("nightly")?.lock().await?;
    /// guard.verify().await?; // and at once afterwards the write that cannot be fenced
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Nothing is lost; it asks and changes nothing.
    ///
    /// # Errors
    /// `is_lost` when it is not held; `is_unreachable` or `is_refused` when the store did not say,
    /// within
    /// [`op_timeout`](crate::Options::op_timeout) or what is left of the lease.
    pub async fn verify(&self) -> Result<()> {
        self.ask(self.lease().question()).await?;
        self.still()
    }

    /// Makes a transaction on PostgreSQL commit only if this lock is held until then.
    ///
    /// The lock's table and what the transaction changes are in one database. So the database
    /// itself checks the hold, in the transaction, and no margin for clocks or pauses is needed.
    /// Call it at any point of the transaction. [`postgres::check_sql`](crate::postgres::check_sql)
    /// is the same for other drivers.
    ///
    /// ```no_run
    /// # async fn f(guard: tenure::Guard, client: &mut tokio_postgres::Client)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let transaction = client.transaction().await?;
    /// guard.check_in(&transaction).await?;
    /// transaction.execute("UPDATE stock SET pieces = pieces - 1", &[]).await?;
    /// transaction.commit().await?; // the lock is still held here
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Guarantees
    /// From the answer until the transaction ends, no other client gets this lock, also if its
    /// lease is over and this process stands still. Renewals go on. If the lock is not held any
    /// more, the transaction is in a failed state and cannot commit.
    ///
    /// The check keeps the lock's row from being taken over, with `FOR KEY SHARE`. So it costs
    /// waiters time: where a lease ends while a transaction is open, the lock is free once that
    /// has ended, and up to 100 ms later. `idle_in_transaction_session_timeout` of the server
    /// limits that. Where several hold a lock, no lapsed hold of any is taken over meanwhile.
    ///
    /// Commit first, then release: a release waits for the transaction. Where other clients hold
    /// the lock too (readers, permits of a semaphore), a release of this hold does not wait for it.
    ///
    /// # Cancel safety
    /// The transaction may be checked in or in a failed state: roll it back.
    ///
    /// # Errors
    /// `is_lost` when the lock is not held any more. `is_unsupported` where the lock is in another
    /// store than PostgreSQL. `is_unreachable` or `is_refused` with what the server said; the
    /// isolation levels above `READ COMMITTED` may also say that the row has changed.
    #[cfg(feature = "postgres")]
    pub async fn check_in(&self, transaction: &tokio_postgres::Transaction<'_>) -> Result<()> {
        if let Some(lost) = self.outcome() {
            return Err(lost);
        }
        let (store, lease) = (&self.home.engine.store, self.lease());
        let checked =
            tenure_postgres::check_in(store.url(), &lease.name, &lease.owner, lease.fence, transaction).await;
        match checked {
            Ok(true) => Ok(()),
            Ok(false) => {
                let reason = "the transaction found it with another owner, or its lease over";
                Err(Error::lost(&self.name, store.url(), reason))
            }
            Err(failure) => Err(self.home.engine.silent(&self.name, failure)),
        }
    }

    /// Extends the lease to a whole [`ttl`](crate::Options::ttl) from now. Only needed with
    /// [`Renewal::Off`](crate::Renewal::Off).
    ///
    /// A lease is never shortened: if more than a ttl is left of it, as after a
    /// [`resume`](crate::Locks::resume) with a shorter ttl, it stays as it is.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// use tenure::Renewal;
    ///
    /// let by_hand = locks.with(|options| options.renewal(Renewal::Off))?;
    /// let guard = by_hand.mutex("import")?.lock().await?;
    /// guard.renew().await?; // before each part of the work
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// The request may still be carried out; the lease is then longer than
    /// [`remaining`](Self::remaining) says.
    ///
    /// # Errors
    /// `is_lost` when it is not held any more. Otherwise it may still be, and can be asked again:
    /// `is_unreachable` when the request was not sent; `is_unknown` when no answer came;
    /// `is_refused` when the store said no, `is_unsupported` when it cannot do what the options ask
    /// for. It takes [`op_timeout`](crate::Options::op_timeout) at most, and no longer than is left
    /// of the lease.
    pub async fn renew(&self) -> Result<()> {
        self.set_lease(None, None).await
    }

    pub(crate) async fn set_lease(&self, bind: Option<Liveness>, weight: Option<u32>) -> Result<()> {
        let (engine, lease) = (&self.home.engine, self.lease());
        let sent = engine.now();
        let ttl = lease.ask(sent);
        self.ask(lease.renewal(ttl, bind, weight)).await?;
        lease.renewed(sent, engine.now(), ttl);
        self.still()
    }

    /// Whether it was acquired to read and perhaps to write.
    pub(crate) fn is_upgradeable(&self) -> bool {
        self.lease().rule == LockSpec::Queue(QueueSpec::UPGRADEABLE)
    }

    /// Makes a reader the writer: false if it is not at the limit.
    pub(crate) async fn upgrade(&self, limit: Option<Duration>) -> Result<bool> {
        let engine = &self.home.engine;
        upgrade(engine, self.lease(), limit.map(|limit| engine.now() + limit)).await
    }

    /// An answer that was looked at too late is worth nothing: the loss was announced, or should
    /// have been.
    fn still(&self) -> Result<()> {
        self.outcome().map_or(Ok(()), Err)
    }

    /// Asks about this hold, within what is left of it.
    async fn ask(&self, verb: Verb) -> Result<Answer> {
        let (engine, lease) = (&self.home.engine, self.lease());
        if let Some(lost) = self.outcome() {
            return Err(lost);
        }
        let within = lease.op_timeout.min(lease.remaining(engine)).max(Duration::from_millis(1));
        let changes = matches!(verb, Verb::Renew { .. });
        match engine.call(&Call::of(lease, verb).idempotent(), engine.now(), within).await {
            Ok(answer) => match lease.refusal(&answer) {
                Some(loss) => {
                    lease.lose(engine, &loss);
                    Err(self.outcome().expect("a lease that was just lost has an outcome"))
                }
                None => Ok(answer),
            },
            Err(failure) if !changes => Err(engine.silent(&self.name, failure)),
            Err(failure) => Err(engine.failed(&self.name, failure)),
        }
    }

    /// Releases the lock and says how it went.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// # let guard = locks.mutex("nightly")?.lock().await?;
    /// guard.release().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Dropped, it goes on in the background.
    ///
    /// # Errors
    /// `is_lost` when it was not held any more, so that another client may have held it meanwhile;
    /// `is_unknown` when the store did not answer within
    /// [`op_timeout`](crate::Options::op_timeout): the release goes on in the background until the
    /// lease is over, and for a minute at least; `is_refused` when it said no, after which nothing
    /// goes on: the lock stays until its lease ends.
    pub async fn release(mut self) -> Result<()> {
        match self.held.take() {
            Some(held) => held.release().await,
            None => Ok(()),
        }
    }

    /// The store has ended the hold with another request of this holder's.
    pub(crate) fn ended(mut self) {
        if let Some(held) = self.held.take() {
            held.disarm();
        }
    }

    /// Lets go without releasing, so that [`Locks::resume`](crate::Locks::resume) can take over in
    /// another process: renews once, for a whole ttl, and stops renewing. From here on only the
    /// lease ends the hold.
    ///
    /// A lease is never shortened: if more than a ttl is left of it, it stays as it is.
    ///
    /// # Cancel safety
    /// Dropped, the lock is released, as when the guard is dropped.
    ///
    /// # Errors
    /// As [`renew`](Self::renew); the lock is then released.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let locks = tenure::Locks::memory();
    /// let owner = locks.mutex("deploy")?.lock().await?.detach().await?;
    /// let line = owner.to_string(); // to the other process
    /// let guard = locks.resume("deploy", &line.parse()?).await?.expect("it is not over yet");
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn detach(mut self) -> Result<Owner> {
        self.part().await?;
        self.lease().set_detaching();
        self.set_lease(Some(Liveness::Lease), None).await?;
        let owner = self.owner().clone();
        if let Some(held) = self.held.take() {
            held.disarm();
        }
        Ok(owner)
    }

    /// Where other guards of its owner share the hold on the store, gets one for this guard alone.
    async fn part(&mut self) -> Result<()> {
        if let Some(lost) = self.outcome() {
            return Err(lost);
        }
        if self.lease().is_alone() || planted(Bug::SharedDetached) {
            return Ok(());
        }
        self.held = Some(part(&self.home.engine, self.lease()).await?);
        Ok(())
    }

    /// Lets go of the lock, which stays taken for this long and is then free by itself: so that
    /// what was done is not done again at once.
    ///
    /// `time` is from 50 ms to 365 days. A lease is never shortened: if more is left of it, the
    /// lock stays taken until that is over.
    ///
    /// # Cancel safety
    /// Dropped, the lock is released, as when the guard is dropped.
    ///
    /// # Errors
    /// As [`renew`](Self::renew); `is_invalid` when `time` is out of range, or longer than the
    /// `restart-grace` of the store. The lock is then released.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// # use std::time::Duration;
    /// let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("report")?.lock().await?;
    /// // … send the report …
    /// guard.keep_for(Duration::from_secs(3_600)).await?;
    /// assert!(locks.mutex("report")?.try_lock().await?.is_none());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn keep_for(mut self, time: Duration) -> Result<()> {
        let store = &self.home.engine.store;
        let grace = store.capabilities().restart_grace.unwrap_or(lease::TTL_MAX);
        if !(lease::TTL_MIN..=grace).contains(&time) {
            let (least, most) = (lease::TTL_MIN, grace);
            return Err(Error::invalid(format!("a lock is kept for {least:?} to {most:?}, got {time:?}")));
        }
        store.declare_ttl(time);
        self.part().await?;
        self.lease().set_detaching();
        self.ask(self.lease().renewal(time, Some(Liveness::Lease), None)).await?;
        self.still()?;
        if let Some(held) = self.held.take() {
            held.disarm();
        }
        Ok(())
    }

    /// Does `work` under the lock, and releases it. The work is an async closure that gets the
    /// guard.
    ///
    /// The work is dropped at its next await when the lock is lost. That does not stop a thread, a
    /// task it has spawned, or a loop that never awaits: that is what
    /// [`Options::grace`](crate::Options::grace), [`verify`](Self::verify) and
    /// [`fence`](Self::fence) are for.
    ///
    /// In generic code, and in a task that is spawned, use [`run_future`](Self::run_future): the
    /// compiler must know there that the future of the work is `Send`, which the bounds of an async
    /// closure cannot say.
    ///
    /// # Cancel safety
    /// The work is dropped first, then the lock released.
    ///
    /// # Errors
    /// The error [`is_lost`](Error::is_lost). [`RunError::value`] has the value of the work if the
    /// work was done and the release then heard of the loss; otherwise the work was dropped. A
    /// release that the store does not answer is no error: the value is returned, and the release
    /// goes on in the background.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("draw:noon")?.lock().await?;
    /// let token = guard.run(async |guard| guard.fence()).await?;
    /// assert!(token > 0);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn run<T>(self, work: impl AsyncFnOnce(&Self) -> T) -> Result<T, RunError<T>> {
        let value = unless_lost(self.lost(), work(&self)).await?;
        settled(value, self.release().await)
    }

    /// Does `work` under the lock, and releases it: as [`run`](Self::run), with a plain future as
    /// the work.
    ///
    /// The future that this returns is `Send` if the work and its value are, so it can be spawned,
    /// and generic code can name the bounds. The work does not get the guard: take from it before
    /// what the work needs.
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// use tenure::{Mutex, Result};
    ///
    /// async fn locked<F>(mutex: Mutex, work: F) -> Result<F::Output>
    /// where
    ///     F: Future<Output: Send> + Send,
    /// {
    ///     Ok(mutex.lock().await?.run_future(work).await?)
    /// }
    ///
    /// let mutex = tenure::Locks::memory().mutex("draw:noon")?;
    /// assert_eq!(locked(mutex, async { 17 }).await?, 17);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn run_future<F: Future>(self, work: F) -> Result<F::Output, RunError<F::Output>> {
        let value = unless_lost(self.lost(), work).await?;
        settled(value, self.release().await)
    }
}

/// The value of the work, unless the lock is lost before.
pub(crate) async fn unless_lost<T>(lost: Lost, work: impl Future<Output = T>) -> Result<T, RunError<T>> {
    let mut work = pin!(work);
    let mut lost = Some(lost);
    poll_fn(|context| {
        if let Some(signal) = &mut lost
            && let Poll::Ready(end) = pin!(signal).poll(context)
        {
            match end.into_error() {
                Some(error) => return Poll::Ready(Err(RunError { error, value: None })),
                None => lost = None, // released: there is nothing to lose any more
            }
        }
        work.as_mut().poll(context).map(Ok)
    })
    .await
}

/// The value of work that is done, unless its release heard that the lock was lost before.
pub(crate) fn settled<T>(value: T, released: Result<()>) -> Result<T, RunError<T>> {
    match released {
        Err(error) if error.is_lost() => Err(RunError { error, value: Some(value) }),
        _ => Ok(value),
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("name", &self.name).field("held", &self.held).finish_non_exhaustive()
    }
}
