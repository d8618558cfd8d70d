use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::engine::acquisition::part;
use crate::engine::call::Call;
use crate::engine::engine_handle::EngineHandle;
use crate::engine::grant::Lease;
use crate::engine::hold::Hold;
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
#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::store::{CheckedHold, Transaction};

/// A held lock, returned by `lock`, `acquire` and similar methods.
///
/// Keep the guard for as long as the work takes, then [`release`](Self::release) it to learn whether the lock
/// was held until the end. Where holders are expected to crash, do not rely on the guard alone: let the
/// resource compare [`fence`](Self::fence).
///
/// Dropping the guard releases the lock in the background. The drop does not block, unless this is the last
/// handle of its [`Locks`](crate::Locks) (see there). A leaked guard ([`std::mem::forget`]) is renewed until
/// the process ends or [`max_hold`](crate::Options::max_hold) is reached.
///
/// `let _ = mutex.lock().await?` does not hold the lock, because the guard is dropped at once. Bind it to a
/// name:
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
/// While [`is_held`](Self::is_held) is true, no other client holds the lock, provided that the store loses no
/// acknowledged write and its clock does not jump. A renewed guard is valid until it is released, lost, or
/// held for [`max_hold`](crate::Options::max_hold). Where that is not enough, let the resource compare
/// [`fence`](Self::fence).
#[must_use = "the lock is released when its guard is dropped"]
pub struct Guard {
    /// `None` only while the guard is being released, detached or dropped.
    held: Option<Hold>,
    name: LockName,
    shared: Arc<EngineHandle>,
}

/// As [`Locks`](crate::Locks).
impl UnwindSafe for Guard {}
impl RefUnwindSafe for Guard {}

impl Guard {
    pub(crate) fn new(shared: &Arc<EngineHandle>, name: &LockName, held: Hold) -> Self {
        Self { held: Some(held), name: name.clone(), shared: Arc::clone(shared) }
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

    /// The owner: new for each acquisition, unless the caller chose it for a
    /// [`ReentrantMutex`](crate::ReentrantMutex) or to [resume](crate::Locks::resume) a hold.
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

    /// The fencing token: greater than that of every earlier grant of this name, and constant for the life of
    /// the guard. A resource that stores the greatest token it has seen, and rejects writes with a smaller
    /// one, is safe even from a holder that does not know yet that it has lost the lock. The module
    /// [`fence`](crate::fence) has the statements for databases.
    ///
    /// If a lock can have several holders, a resource may compare only a writer's token. The token of a
    /// reader, or of a semaphore with more than one permit, merely identifies its grant; a resource that
    /// compared it would reject earlier holders that still hold the lock. All holds of one owner of a
    /// [`ReentrantMutex`](crate::ReentrantMutex) share the token of the first.
    ///
    /// 0 if the store cannot provide tokens, which only [`Options::unfenced`](crate::Options::unfenced)
    /// permits.
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

    /// The [token](Self::fence) as SQL drivers take it, for a column of type `BIGINT`. No store issues a token
    /// of 2^63 or more.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// # let guard = locks.mutex("nightly")?.lock().await?;
    /// assert_eq!(u64::try_from(guard.fence_i64()), Ok(guard.fence()));
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn fence_i64(&self) -> i64 {
        self.fence().cast_signed()
    }

    /// Time until [`lost`](Self::lost) would resolve if no further renewal succeeded; zero once it has
    /// resolved.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// # let guard = locks.mutex("nightly")?.lock().await?;
    /// assert!(guard.remaining() > std::time::Duration::from_secs(10)); // of 15 s
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn remaining(&self) -> Duration {
        self.lease().remaining(&self.shared.engine)
    }

    /// The time at which [`lost`](Self::lost) resolves if no further renewal succeeds, measured since the
    /// machine booted, including suspends: the clock `CLOCK_BOOTTIME` on Linux.
    ///
    /// All processes of a machine share that clock, so a supervisor can compare this value with its own
    /// reading. By contrast, [`remaining`](Self::remaining) is relative to a moment that only this process
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

    /// Calls `tell` with the new [`lost_at`](Self::lost_at) after each successful renewal. A later call
    /// replaces the function.
    ///
    /// The thread of the [`Locks`](crate::Locks) calls it in the same step that moves the deadline, so a
    /// supervisor in another process learns of each renewal even if all other threads of this process are
    /// busy. The function must not block, because all other renewals wait for it.
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

    /// Identifies this hold for another process, which can release it with
    /// [`Locks::release_hold`](crate::Locks::release_hold) if this process dies.
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
        // The root, not the share: several guards may share one hold in the store.
        let root = self.lease().root();
        HoldId { name: root.name.clone(), spec: root.spec, owner: root.owner.clone(), hold: root.hold }
    }

    /// The loss, if it is known. A guard's hold cannot have been released while the guard exists.
    pub(crate) fn outcome(&self) -> Option<Error> {
        self.lease().outcome(&self.shared.engine).and_then(HoldEnd::into_error)
    }

    /// Whether the lock is still held, as far as can be known without a request: `remaining() > 0`.
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

    /// [`is_held`](Self::is_held), of which the result keeps nothing alive.
    pub(crate) fn holds(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let (engine, lease) = (Arc::downgrade(&self.shared.engine), Arc::downgrade(self.lease()));
        move || {
            let both = engine.upgrade().zip(lease.upgrade());
            both.is_some_and(|(engine, lease)| !lease.remaining(&engine).is_zero())
        }
    }

    /// A future that resolves once the lock is no longer held, to whether it was lost or released.
    ///
    /// In a `select!`, poll it first (`biased`), so that work that is also ready does not continue after a
    /// loss:
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
        Lost::new(&self.shared.engine, self.lease())
    }

    /// Asks the store whether the lock is still held. Use it right before a write that cannot be fenced.
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
    /// Safe to drop: the request changes nothing.
    ///
    /// # Errors
    /// `is_lost` if the lock is not held; `is_unreachable` or `is_refused` if the store gave no answer within
    /// [`op_timeout`](crate::Options::op_timeout) or the rest of the lease.
    pub async fn verify(&self) -> Result<()> {
        self.ask(self.lease().question()).await?;
        self.still()
    }

    /// Makes a database transaction commit only if this lock is held until then.
    ///
    /// The lock's table and the rows that the transaction changes are in the same database, so the database
    /// itself verifies the hold within the transaction, and no margin for clocks or pauses is needed. Call it in
    /// a transaction that began after the lock was granted, at isolation levels above `READ COMMITTED` before its
    /// first read: on PostgreSQL with `&transaction` of the crate `tokio-postgres`, and on PostgreSQL and MySQL
    /// with `&mut *transaction` of `sqlx` (feature `sqlx`). `postgres::check_sql` and `mysql::check_sql` are the
    /// equivalents for other drivers.
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
    /// Once this returns, no other client gets the lock until the transaction ends, even if the lease expires
    /// while this process is paused. After any error, roll the transaction back. On PostgreSQL it is in a failed
    /// state and cannot commit; on MySQL a deadlock has ended it, and later statements would commit by themselves.
    /// A rollback to a savepoint from before the check takes the check with it.
    ///
    /// On PostgreSQL renewals continue. The check protects the lock's row from takeover with `FOR KEY SHARE`, which can delay waiters: if the
    /// lease expires while a transaction is open, the lock becomes free up to 100 ms after the transaction
    /// has ended. The server's `idle_in_transaction_session_timeout` bounds that delay. If several clients
    /// hold the lock, no lapsed hold of any of them is taken over meanwhile.
    ///
    /// On MySQL the lock's row does not change while the transaction is open, not even by a renewal. A
    /// transaction that outlasts the lease can commit safely, but this guard, and all others of the same lock,
    /// report a loss. Choose a [`ttl`](crate::Options::ttl) of more than twice the longest transaction.
    ///
    /// Commit first, then release, because a release waits for the transaction. If other clients hold the
    /// lock too (readers, permits of a semaphore), a release of this hold does not wait.
    ///
    /// # Cancel safety
    /// The transaction may be checked in or in a failed state: roll it back.
    ///
    /// # Errors
    /// `is_lost` if the lock is no longer held. `is_unsupported` if the lock is in another store, or a
    /// connection of `sqlx` is not in a transaction.
    /// `is_unreachable` or `is_refused` with the server's message; at isolation levels above `READ COMMITTED`
    /// the server may also report that the row has changed.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub async fn check_in<Database>(&self, transaction: impl Transaction<Database>) -> Result<()> {
        if let Some(lost) = self.outcome() {
            return Err(lost);
        }
        let (engine, lease) = (&self.shared.engine, self.lease());
        let store = &engine.store;
        let hold = CheckedHold {
            url: Arc::clone(store.url()),
            name: lease.name.clone(),
            owner: lease.owner.clone(),
            fence: lease.fence,
        };
        match transaction.run(&hold).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                // Its snapshot may be older than the grant, so this is no proof of a loss.
                lease.doubt(engine);
                let reason = "the transaction found another owner or an expired lease";
                Err(Error::lost(&self.name, store.url(), reason))
            }
            Err(failure) => Err(engine.silent(&self.name, failure)),
        }
    }

    /// Extends the lease to a full [`ttl`](crate::Options::ttl) from now. Needed only with
    /// [`Renewal::Off`](crate::Renewal::Off).
    ///
    /// A lease is never shortened: if more than the ttl is left, as after a [`resume`](crate::Locks::resume)
    /// with a shorter ttl, it stays unchanged.
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
    /// The request may still be carried out, in which case the lease is longer than
    /// [`remaining`](Self::remaining) reports.
    ///
    /// # Errors
    /// `is_lost` if the lock is no longer held. After any other error it may still be held, and the call can
    /// be repeated: `is_unreachable` if the request was not sent; `is_unknown` if no answer came;
    /// `is_refused` if the store rejected it; `is_unsupported` if the store does not support the options. The
    /// call takes at most [`op_timeout`](crate::Options::op_timeout), and no longer than the rest of the
    /// lease.
    pub async fn renew(&self) -> Result<()> {
        self.set_lease(None, None).await?;
        // Such a renewal may not have read the lock, which may have been released by force.
        match self.shared.engine.store.capabilities().shares_leases {
            true => self.verify().await,
            false => Ok(()),
        }
    }

    pub(crate) async fn set_lease(&self, bind: Option<Liveness>, weight: Option<u32>) -> Result<()> {
        let (engine, lease) = (&self.shared.engine, self.lease());
        let sent = engine.now();
        let ttl = lease.ask(sent);
        self.ask(lease.renewal(ttl, bind, weight)).await?;
        lease.renewed(sent, engine.now(), ttl);
        self.still()
    }

    /// Sets the end of a lease that is not renewed to `time` from now. In the store, a lease is never shortened.
    pub(crate) async fn renew_for(&self, time: Duration) -> Result<()> {
        self.check_kept(time)?;
        let (engine, lease) = (&self.shared.engine, self.lease());
        let sent = engine.now();
        let time = lease.ask_for(sent, time);
        self.ask(lease.renewal(time, Some(lease.options.bind), None)).await?;
        lease.set_end(engine, sent, time);
        self.still()
    }

    /// Makes a writer or an upgradeable reader a reader.
    pub(crate) async fn downgrade(&self) -> Result<()> {
        let before = self.lease().set_weakening(true);
        let done = self.set_lease(None, Some(QueueSpec::READER.weight)).await;
        if done.as_ref().is_err_and(|error| !error.is_unknown()) {
            self.lease().set_weakening(before);
        }
        done
    }

    /// Whether this is an upgradeable reader.
    pub(crate) fn is_upgradeable(&self) -> bool {
        self.lease().spec == LockSpec::Queue(QueueSpec::UPGRADEABLE)
    }

    /// Makes a reader the writer. Returns false if the limit is reached first.
    pub(crate) async fn upgrade(&self, limit: Option<Duration>) -> Result<bool> {
        let engine = &self.shared.engine;
        upgrade(engine, self.lease(), limit.map(|limit| engine.now() + limit)).await
    }

    /// Discards an answer that arrived too late: the loss was announced, or should have been.
    fn still(&self) -> Result<()> {
        self.outcome().map_or(Ok(()), Err)
    }

    /// Sends a request about this hold, with the rest of the lease as its limit.
    async fn ask(&self, verb: Verb) -> Result<Answer> {
        let (engine, lease) = (&self.shared.engine, self.lease());
        if let Some(lost) = self.outcome() {
            return Err(lost);
        }
        let within = lease.options.op_timeout.min(lease.remaining(engine)).max(Duration::from_millis(1));
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

    /// Releases the lock and reports the outcome.
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
    /// If the future is dropped, the release continues in the background.
    ///
    /// # Errors
    /// `is_lost` if the lock was no longer held, so another client may have held it meanwhile. `is_unknown`
    /// if the store did not answer within [`op_timeout`](crate::Options::op_timeout): the release continues
    /// in the background until the lease is over, and for at least a minute. `is_refused` if the store
    /// rejected the release: it is not retried, and the lock stays taken until its lease ends.
    pub async fn release(mut self) -> Result<()> {
        match self.held.take() {
            Some(held) => held.release().await,
            None => Ok(()),
        }
    }

    /// Call it before another request of this holder ends the hold, so that a renewal that is answered later
    /// does not count as a loss.
    pub(crate) fn set_ending(&self) {
        self.lease().set_ending();
    }

    /// Consumes the guard after another request of this holder has ended the hold.
    pub(crate) fn ended(mut self) {
        if let Some(held) = self.held.take() {
            held.disarm();
        }
    }

    /// Gives up the guard without releasing the lock, so that [`Locks::resume`](crate::Locks::resume) can
    /// take over in another process. Renews once, for a full ttl, and then stops renewing: from here on only
    /// the lease ends the hold.
    ///
    /// A lease is never shortened: if more than the ttl is left, it stays unchanged.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock, as dropping the guard does.
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

    /// If the owner's other guards share this hold in the store, acquires a separate hold for this guard.
    async fn part(&mut self) -> Result<()> {
        if let Some(lost) = self.outcome() {
            return Err(lost);
        }
        if self.lease().is_alone() || planted(Bug::SharedDetached) {
            return Ok(());
        }
        self.held = Some(part(&self.shared.engine, self.lease()).await?);
        Ok(())
    }

    /// Gives up the guard but leaves the lock taken for `time`, after which it becomes free by itself. Use it
    /// to prevent work from being repeated right away.
    ///
    /// `time` is from 50 ms to 365 days. A lease is never shortened: if more than `time` is left, the lock
    /// stays taken until the lease is over.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock, as dropping the guard does.
    ///
    /// # Errors
    /// As [`renew`](Self::renew); also `is_invalid` if `time` is out of range or longer than the
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
        self.check_kept(time)?;
        self.part().await?;
        self.lease().set_detaching();
        self.lease().set_asked_until(self.shared.engine.now() + time);
        self.ask(self.lease().renewal(time, Some(Liveness::Lease), None)).await?;
        self.still()?;
        if let Some(held) = self.held.take() {
            held.disarm();
        }
        Ok(())
    }

    /// Rejects a time that the store cannot keep a lock for, and announces another.
    fn check_kept(&self, time: Duration) -> Result<()> {
        let store = &self.shared.engine.store;
        let grace = store.capabilities().restart_grace.unwrap_or(lease::TTL_MAX);
        if !(lease::TTL_MIN..=grace).contains(&time) {
            let (least, most) = (lease::TTL_MIN, grace);
            return Err(Error::invalid(format!("a lock is kept for {least:?} to {most:?}, got {time:?}")));
        }
        store.signals().declare_ttl(time);
        Ok(())
    }

    /// Runs `work`, an async closure that gets the guard, and then releases the lock.
    ///
    /// If the lock is lost, the work is dropped at its next await. That does not stop a thread, a spawned
    /// task, or a loop that never awaits; use [`Options::grace`](crate::Options::grace),
    /// [`verify`](Self::verify) and [`fence`](Self::fence) for those.
    ///
    /// In generic code and in spawned tasks, use [`run_future`](Self::run_future): the compiler must know
    /// there that the future of the work is `Send`, which the bounds of an async closure cannot express.
    ///
    /// # Cancel safety
    /// The work is dropped first, then the lock is released.
    ///
    /// # Errors
    /// An error that [`is_lost`](Error::is_lost). If the work was complete and only the release found that the
    /// lock was lost, the message ends with `the work was done`, and its value is dropped; use
    /// [`run_recoverable`](Self::run_recoverable) to get it. Otherwise the work was dropped. A release that
    /// the store does not answer is no error: the value is returned, and the release continues in the
    /// background.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("draw:noon")?.lock().await?;
    /// let token = guard.run(async |guard| guard.fence()).await?;
    /// assert!(token > 0);
    ///
    /// // Work that can fail: the first `?` is for the lock, the second one for the work.
    /// let guard = locks.mutex("draw:noon")?.lock().await?;
    /// let winner = guard.run(async |_| "17".parse::<u32>()).await??;
    /// assert_eq!(winner, 17);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn run<T>(self, work: impl AsyncFnOnce(&Self) -> T) -> Result<T> {
        let value = unless_lost(self.lost(), work(&self)).await?;
        Ok(settled(value, self.release().await)?)
    }

    /// Runs `work`, a plain future, under the lock, and then releases it: as [`run`](Self::run).
    ///
    /// The returned future is `Send` if the work and its value are, so it can be spawned, and generic code
    /// can name the bounds. The work does not get the guard, so take what it needs from the guard first.
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
    ///     mutex.lock().await?.run_future(work).await
    /// }
    ///
    /// let mutex = tenure::Locks::memory().mutex("draw:noon")?;
    /// assert_eq!(locked(mutex, async { 17 }).await?, 17);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn run_future<F: Future>(self, work: F) -> Result<F::Output> {
        Ok(self.run_recoverable(work).await?)
    }

    /// As [`run_future`](Self::run_future), but the error has the value of work that was complete when the
    /// lock turned out to be lost. Use it for work with effects that must be recorded or undone then.
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
    /// let guard = tenure::Locks::memory().mutex("transfer")?.lock().await?;
    /// match guard.run_recoverable(async { "transfer 17" }).await {
    ///     Ok(done) => println!("{done} was made under the lock"),
    ///     Err(failed) if failed.value.is_some() => println!("check {:?}", failed.value),
    ///     Err(stopped) => return Err(stopped.into()),
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn run_recoverable<F: Future>(self, work: F) -> Result<F::Output, RunError<F::Output>> {
        let value = unless_lost(self.lost(), work).await?;
        settled(value, self.release().await)
    }
}

/// Returns the value of the work, or an error if the lock is lost first.
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

/// Returns the value of completed work, or an error if the release found that the lock was lost before.
pub(crate) fn settled<T>(value: T, released: Result<()>) -> Result<T, RunError<T>> {
    match released {
        Err(error) if error.is_lost() => Err(RunError { error, value: Some(value) }),
        _ => Ok(value),
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Guard");
        shown
            .field("name", &self.name)
            .field("kind", &self.lease().spec.kind())
            .field("fence", &self.fence());
        shown.field("remaining", &self.remaining()).finish()
    }
}
