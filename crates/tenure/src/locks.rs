mod detached;
mod listings;
mod operator;

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

#[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
use crate::credentials::{Credentials, Provider};
use crate::engine::Engine;
use crate::engine::call::Call;
use crate::engine::engine_handle::EngineHandle;
use crate::error::{Error, Result};
use crate::fair::FairMutex;
use crate::handle::{LockHandle, changed};
use crate::metrics::Snapshot;
use crate::multi::Multi;
use crate::mutex::Mutex;
use crate::name::LockName;
use crate::open::open;
use crate::options::Options;
use crate::owner::Owner;
use crate::protocol::{Answer, LockSpec, QueueSpec};
use crate::quorum::Quorum;
use crate::reentrant::ReentrantMutex;
use crate::runtime::{Driver, Runtime};
use crate::rwlock::RwLock;
use crate::semaphore::{self, Semaphore};
use crate::store::{Opening, Store};
use crate::uses::cache::Cache;
use crate::uses::election::Election;
use crate::uses::fill::Fill;
use crate::uses::once::OncePer;
use crate::uses::period::Period;

/// A handle to a store of locks, and the only one that a program needs. Cheap to clone.
///
/// Create one per store when the program starts, and clone it. A separate `Locks` per task or request would
/// dial each time, and its tasks could not share a queue.
///
/// It owns one thread, which dials, renews and releases. No future of this crate therefore needs an async
/// runtime, and nothing that the caller does to its own runtime can cost a lease. The thread ends with the
/// last handle: a `Locks`, a lock or a guard. After a `fork` the child has no such thread and must connect
/// again.
///
/// Requests of tokio tasks to Redis and SQL databases are carried out on their own runtime if they are frequent, which is
/// faster. That needs a runtime with I/O (`enable_io`): on one without, tokio panics at the first attempt, which prints a
/// message and ends a program that aborts on panics.
///
/// Dropping the very last handle waits briefly for releases in flight, because `main` may be about to return.
/// The drop blocks its thread for up to 100 ms while there are any, and for up to 1 s while a `tracing`
/// subscriber is busy with earlier events. Where that matters, as in an async task, await
/// [`flush`](Self::flush) first.
///
/// # Examples
/// ```
/// # tenure::block_on(async {
/// use tenure::Locks;
///
/// let locks = Locks::connect("memory:").await?;
/// let guard = locks.mutex("orders:42")?.lock().await?;
/// guard.release().await?;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "options are for the returned `Locks` only"]
pub struct Locks {
    shared: Arc<EngineHandle>,
    options: Arc<Options>,
}

/// The shared state is consistent at all times: a std mutex poisoned by a panic is used as it stands.
impl UnwindSafe for Locks {}
impl RefUnwindSafe for Locks {}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("url", &self.url()).field("options", &self.options).finish()
    }
}

impl Locks {
    /// Opens a store and checks that it answers.
    ///
    /// | URL | where the locks live |
    /// |---|---|
    /// | `memory:` | in this process; two connects are two stores |
    /// | `memory:NAME` | in this process; the same name is the same store |
    /// | `file:DIR` | in this directory, for all processes of this machine |
    /// | `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]`, also `valkey://` | on this server |
    /// | `rediss://…[?ca=FILE][&cert=FILE&key=FILE]`, also `valkeys://` | on this server, over TLS |
    /// | `redis+unix:///SOCKET[?db=…&user=…&password=…]`, also `valkey+unix://` | on this server, over a Unix socket |
    /// | `redis-sentinel://[[USER]:PASSWORD@]HOST[:PORT],…/SERVICE[/DATABASE]` | on the master named by these sentinels |
    /// | `redis-cluster://[[USER]:PASSWORD@]HOST[:PORT],…`, also `valkey-cluster://` | on the cluster that contains these nodes |
    /// | `redis-quorum://[[USER]:PASSWORD@]HOST[:PORT],…[/DATABASE]`, also `valkey-quorum://` | on a [majority](Self::quorum) of these servers |
    /// | `postgres://…`, with the feature `postgres` | in a table of this database |
    /// | `mysql://…`, also `mariadb://`, with the feature `mysql` | in a table of this database |
    /// | `etcd://…`, `etcds://…`, with the feature `etcd` | on this etcd |
    /// | `zookeeper://…`, `zookeepers://…`, with the feature `zookeeper` | on this ZooKeeper |
    ///
    /// In these schemes `+` and `-` are interchangeable (`redis+cluster://`), `sentinel://` is
    /// `redis-sentinel://`, and `postgresql://` is `postgres://`.
    ///
    /// `?acks=N` requires N replicas to confirm a grant and each renewal. With `?restart-grace=30s`, a server
    /// that restarted or was promoted grants nothing for that long. Both are explained
    /// [below](#guarantees-of-a-store).
    ///
    /// On servers, `?namespace=app:` puts a text before all keys and channels, so that a user with rights on that
    /// text alone can lock, and applications share nothing. Clients with different namespaces do not exclude each
    /// other. On PostgreSQL it is the schema. A directory has none.
    ///
    /// `?password-file=FILE` reads the password from a file with a single line; the URL then has `USER@`
    /// without a password. The file is read at each dial, so a changed password needs no restart.
    ///
    /// Sentinels have their own login, `?sentinel-user=…&sentinel-password=…`, and default to port 26379.
    /// They are queried at each dial, and the server that they name must itself report that it is a master.
    ///
    /// The files of a `rediss://` URL are in PEM format. `ca` contains the authorities to trust instead of
    /// the system's (whose location `SSL_CERT_FILE` and `SSL_CERT_DIR` override); `cert` and `key` are the
    /// client certificate. All of them are read at each dial.
    ///
    /// # Guarantees of a store
    ///
    /// All clients of a lock have to agree on these, so they are part of the URL.
    ///
    /// **`acks=N`**, N ≥ 1: for a single server with replicas, with or without Sentinel, or a cluster. A
    /// grant or renewal counts only once N replicas have confirmed it. A grant with fewer confirmations is
    /// retried for as long as the call waits, then released, and the call fails with an error
    /// ([`is_unreachable`](Error::is_unreachable)) whose source states the number of confirmations. A renewal
    /// with fewer confirmations has failed and is retried until the lease is lost. Releases wait for no
    /// replica. A server without replicas, or one that rejects `WAIT`, is an error too. Exclusion across a
    /// failover requires N to be the number of *all* replicas that may be promoted, and `restart-grace` to be
    /// set; anything less only makes an overlap rarer.
    ///
    /// **`restart-grace=DURATION`**, 50 ms to 365 days, such as `1500ms`, `30s`, `5m` or `2h`: for a single
    /// server, with or without Sentinel. A server that was promoted, has restarted, or has lost its data
    /// grants nothing for that long. It is the longest lease of any client, so no [`ttl`](Options::ttl) may
    /// be longer. Such a server has a new replication id, which each acquisition compares with the one stored
    /// in the key `tenure:epoch`. If that key is missing, as on first use, the grace begins as well. Until it
    /// is over, every lock is busy, because a client that the server has forgotten may hold it. Existing
    /// holds are renewed. A server that does not let scripts call `INFO` is rejected.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// use tenure::Locks;
    ///
    /// let locks = Locks::open("redis://db1?acks=2&restart-grace=10s")?;
    /// assert_eq!(locks.options().ttl.as_secs(), 10); // no lease is longer than the grace
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// ```
    /// # tenure::block_on(async {
    /// let locks = tenure::Locks::connect("memory:").await?; // or file:DIR, or redis://HOST
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `is_invalid` if the URL is malformed; `is_unsupported` if this build does not support it;
    /// `is_unreachable` if no server answers within 1 s (use [`open`](Self::open) and [`with`](Self::with) to
    /// allow more), or if the system cannot start a thread; `is_refused` if the store denies access or a
    /// certificate is not accepted.
    pub async fn connect(url: &str) -> Result<Self> {
        let locks = Self::open(url)?;
        locks.ping().await?;
        Ok(locks)
    }

    /// Checks that the store answers: for a health check, or after [`open`](Self::open) in a program that
    /// must not start without its store. It does not check any lock.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// let locks = tenure::Locks::open("memory:")?;
    /// locks.ping().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Safe to drop: the request changes nothing.
    ///
    /// # Errors
    /// `is_unreachable` if the store does not answer within [`op_timeout`](Options::op_timeout), or
    /// immediately if nothing listens at the address of a single server. `is_refused` if the store denies
    /// access.
    pub async fn ping(&self) -> Result<()> {
        let store = &self.shared.engine.store;
        store.ready(self.options.op_timeout).await.map_err(|failure| Error::unreached(store.url(), failure))
    }

    /// Opens a store without I/O; the first use dials. For statics, and for programs that start before their
    /// store.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// use std::sync::LazyLock;
    /// use tenure::Locks;
    ///
    /// static LOCKS: LazyLock<Locks> = LazyLock::new(|| Locks::open("memory:").expect("a valid URL"));
    ///
    /// let guard = LOCKS.mutex("nightly")?.lock().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `is_invalid` if the URL is malformed; `is_unsupported` if this build does not support it;
    /// `is_unreachable` if the system cannot start a thread.
    pub fn open(url: &str) -> Result<Self> {
        let (driver, runtime) = started(url)?;
        let opening = Opening { url, runtime, login: None };
        Ok(Self::driven(open(opening)?, driver))
    }

    /// Opens a store without I/O, as [`open`](Self::open), and asks `provider` for the login at each dial.
    /// For passwords and tokens that change while the program runs: a reconnect uses the login of that
    /// moment.
    ///
    /// The provider runs on the thread that renews leases, so it must not block: read a variable or a small
    /// file. If it fails, the dial fails and is retried. All servers of a cluster or a quorum get the same
    /// login. The login of Sentinels is in the URL.
    ///
    /// ```
    /// use tenure::{Credentials, Locks};
    ///
    /// let locks = Locks::open_with_credentials("redis://db1", || {
    ///     let token = std::fs::read_to_string("/run/secrets/redis-token")?;
    ///     Ok(Credentials::new("locks", token.trim()))
    /// })?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`open`](Self::open); also `is_invalid` if the URL contains a password, and `is_unsupported` for a
    /// store other than Redis, Valkey, PostgreSQL and MySQL.
    #[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
    pub fn open_with_credentials(
        url: &str,
        provider: impl Fn() -> Result<Credentials, Box<dyn std::error::Error + Send + Sync>>
        + Send
        + Sync
        + 'static,
    ) -> Result<Self> {
        let (driver, runtime) = started(url)?;
        let login = Some(Provider(Arc::new(move || provider().map_err(Arc::from))));
        Ok(Self::driven(open(Opening { url, runtime, login })?, driver))
    }

    /// Creates a store in memory, shared by the clones of this handle.
    ///
    /// Its leases run in real time even under tokio's paused clock, because a thread outside that clock
    /// maintains them. The paused clock also jumps ahead while tokio waits for that thread, so a
    /// `tokio::time::timeout` around a wait expires at once. Use [`try_lock_for`](Mutex::try_lock_for)
    /// instead, or the store of the feature `testing`, whose leases follow tokio's clock.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// let locks = tenure::Locks::memory();
    /// assert!(locks.clone().mutex("x")?.try_lock().await?.is_some());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Panics
    /// If the system cannot start a thread.
    pub fn memory() -> Self {
        Self::open("memory:").expect("the system starts a thread")
    }

    /// A majority of independent stores: Redlock with fencing tokens. Supports mutexes only.
    ///
    /// Requests go to all members at once. Each member has a quarter of [`op_timeout`](Options::op_timeout)
    /// to answer when a lock is acquired, and half of it otherwise. A minority of members that are slow,
    /// dead, empty or rejecting has no other cost. The quorum keeps its members open, and ignores their
    /// options. A member's URL must have neither `acks` nor `restart-grace`, because members are independent
    /// and a recently started one does not vote.
    ///
    /// A server that started less than the longest lease ago does not vote, because it may have forgotten a
    /// lease that is still running. The longest lease is the longest that this `Locks` has requested, so all
    /// clients of a quorum should use the same `ttl`.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// use tenure::Locks;
    ///
    /// let locks = Locks::quorum([Locks::memory(), Locks::memory(), Locks::memory()])?;
    /// let guard = locks.mutex("orders:42")?.lock().await?;
    /// assert!(guard.fence() > 0);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `is_invalid` for fewer than 2 or more than 63 members, for a duplicate, and for a member that is
    /// itself several servers: a quorum, a cluster, a master named by sentinels, or a store with `acks` or
    /// `restart-grace`. If two members turn out to be the same server once connected, each acquisition fails
    /// with `is_refused`. `is_unreachable` if the system cannot start a thread.
    pub fn quorum(members: impl IntoIterator<Item = Self>) -> Result<Self> {
        let members: Vec<Self> = members.into_iter().collect();
        let (driver, runtime) = started("quorum:")?;
        let stores = members.iter().map(|locks| Arc::clone(&locks.shared.engine.store)).collect();
        let store = Quorum::new(stores, Box::new(members), runtime, None)?;
        Ok(Self::driven(Arc::new(store), driver))
    }

    /// Opens a store of your own. `open` gets time, tasks and randomness for it, from a thread of the new `Locks`.
    ///
    /// A store implements [`Store`] of the crate `tenure-core`, in the version of this crate;
    /// `book/contribute/writing-a-store.md` shows how to write one.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tenure::Locks;
    /// use tenure_core::store::memory::Memory;
    ///
    /// let locks = Locks::with_store(|runtime| Ok(Arc::new(Memory::new(runtime, "memory:own"))))?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of `open`. `is_unreachable` if the system cannot start a thread.
    pub fn with_store(open: impl FnOnce(Arc<dyn Runtime>) -> Result<Arc<dyn Store>>) -> Result<Self> {
        let (driver, runtime) = started("custom:")?;
        Ok(Self::driven(open(runtime)?, driver))
    }

    /// A store driven by its own thread.
    fn driven(store: Arc<dyn Store>, driver: Arc<Driver>) -> Self {
        Self::on(store, Arc::clone(&driver) as _, Some(driver))
    }

    pub(crate) fn on(store: Arc<dyn Store>, runtime: Arc<dyn Runtime>, driver: Option<Arc<Driver>>) -> Self {
        let mut options = Options::default();
        if let Some(grace) = store.capabilities().restart_grace {
            options.ttl = options.ttl.min(grace);
        }
        let shared = EngineHandle::new(Engine::new(store, runtime), driver);
        Self { shared, options: Arc::new(options) }
    }

    /// Returns the same store with changed options. `change` gets the options in force and returns the new
    /// ones, so earlier settings are kept.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tenure::Locks;
    ///
    /// let locks = Locks::memory().with(|options| options.prefix("shop:").label("reports"))?;
    /// let patient = locks.with(|options| options.ttl(Duration::from_secs(60)))?;
    /// assert_eq!(patient.options().prefix, "shop:");
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// `is_invalid` if an option or a combination is invalid, or if the [`ttl`](Options::ttl) is longer than
    /// the `restart-grace` of the store's URL.
    pub fn with(&self, change: impl FnOnce(Options) -> Options) -> Result<Self> {
        let options = changed(&self.shared, &self.options, change)?;
        Ok(Self { shared: Arc::clone(&self.shared), options })
    }

    /// The options in force.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// assert_eq!(locks.options().ttl, std::time::Duration::from_secs(15)); // the default
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The URL of the store, without its credentials.
    pub fn url(&self) -> &str {
        self.shared.engine.store.url()
    }

    /// A lock with one holder at a time: see [`Mutex`].
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("orders:42")?.lock().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `is_invalid` if the name is not valid; `is_unsupported` if the store does not support this kind of
    /// lock, or this name, such as a cluster where the name and its token counter cannot share a slot.
    pub fn mutex(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Mutex> {
        self.handle(checked(name)?, LockSpec::Mutex, None).map(Mutex)
    }

    /// Several mutexes, all or none: see [`Multi`].
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let guards = locks.multi(["account:3", "account:7"])?.lock().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex) and [`Multi::new`].
    pub fn multi(
        &self,
        names: impl IntoIterator<Item: TryInto<LockName, Error: Into<Error>>>,
    ) -> Result<Multi> {
        Multi::new(names.into_iter().map(|name| self.mutex(name)).collect::<Result<Vec<_>>>()?)
    }

    /// A lock with one holder at a time, first come, first served: see [`FairMutex`].
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.fair_mutex("leader")?.lock().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex).
    pub fn fair_mutex(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<FairMutex> {
        self.handle(checked(name)?, LockSpec::Queue(QueueSpec::FAIR), None).map(FairMutex)
    }

    /// A lock with one owner at a time, who may hold it several times: see [`ReentrantMutex`].
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let me = tenure::Owner::new("walker")?;
    /// let guard = locks.reentrant_mutex("tree", &me)?.lock().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex).
    pub fn reentrant_mutex(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        owner: &Owner,
    ) -> Result<ReentrantMutex> {
        self.handle(checked(name)?, LockSpec::Reentrant, Some(owner.clone())).map(ReentrantMutex)
    }

    /// A lock with many readers or one writer: see [`RwLock`].
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let reader = locks.rwlock("config")?.read().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex).
    pub fn rwlock(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<RwLock> {
        self.handle(checked(name)?, LockSpec::Queue(QueueSpec::WRITER), None).map(RwLock)
    }

    /// A lock with this number of permits, from 1 to 1,048,576: see [`Semaphore`]. All users of the name must
    /// agree on the number.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let permit = locks.semaphore("render", 5)?.acquire().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex); also `is_invalid` for a number out of range.
    pub fn semaphore(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        permits: u32,
    ) -> Result<Semaphore> {
        semaphore::check(permits)?;
        self.handle(checked(name)?, LockSpec::Queue(QueueSpec::permits(permits, 1)), None)
            .map(|handle| Semaphore::new(handle, permits))
    }

    /// A cached value that one caller computes for a whole fleet, kept in this store: see [`Cache`].
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// # use std::time::Duration;
    /// let query = async || Ok::<_, std::io::Error>("Ada".to_owned());
    /// let name = locks.cache("user:42")?.get_or_compute(Duration::from_secs(60), query).await?.unwrap();
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex); `is_unsupported` on a quorum, etcd and ZooKeeper.
    pub fn cache(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Cache> {
        Cache::new(&self.shared, &self.options, checked(name)?)
    }

    /// Lets one caller in a fleet fill a cache of your own while the others wait for it: see [`Fill`].
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let get = || async { Ok::<_, std::io::Error>(Some("there already")) };
    /// let found = locks.fill("report")?.run(get, async |_| Ok("computed")).await?.unwrap();
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex).
    pub fn fill(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Fill> {
        Fill::new(&self.shared, &self.options, checked(name)?)
    }

    /// A job that runs at most once in each window of a [`Period`], on whichever host asks first: see
    /// [`OncePer`].
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// # use std::time::Duration;
    /// let digest = locks.once_per("digest", Duration::from_secs(86_400))?;
    /// let sent = digest.run(async |_turn| Ok::<_, std::io::Error>("sent")).await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex); `is_unsupported` on a quorum.
    pub fn once_per(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        period: impl Into<Period>,
    ) -> Result<OncePer> {
        OncePer::new(&self.shared, &self.options, checked(name)?, period.into())
    }

    /// An election of one leader among many candidates: see [`Election`]. `payload` tells others how to reach
    /// the leader, in at most 4 KiB.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let term = locks.election("scheduler", "host-1:8080")?.campaign().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`once_per`](Self::once_per); also `is_invalid` if the payload is too long.
    pub fn election(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        payload: impl Into<String>,
    ) -> Result<Election> {
        Election::new(&self.shared, &self.options, checked(name)?, payload.into())
    }

    fn handle(&self, name: LockName, spec: LockSpec, owner: Option<Owner>) -> Result<LockHandle> {
        let (shared, options) = (Arc::clone(&self.shared), Arc::clone(&self.options));
        LockHandle::new(shared, options, name, spec, owner)
    }

    /// The spec to retry with, once. If the store reports a mismatch for that one too, it contradicts itself.
    fn other_rule(&self, full: &LockName, asked: LockSpec, found: LockSpec) -> Result<LockSpec> {
        match asked {
            LockSpec::Mutex if found != LockSpec::Mutex => Ok(found),
            _ => Err(self.shared.engine.mismatch(full, asked, found.kind(), found.capacity())),
        }
    }

    /// Sends this release; returns whether there was anything to end.
    async fn ends(&self, call: &Call<'_>) -> Result<bool> {
        let engine = &self.shared.engine;
        match engine.call(call, engine.now(), self.options.op_timeout).await {
            Ok(Answer::Released { .. } | Answer::Found(_)) => Ok(true),
            Ok(Answer::Free | Answer::Busy { .. } | Answer::Mismatch { .. }) => Ok(false),
            Ok(answer) => Err(engine.unexpected_answer(call.name, &answer)),
            Err(failure) => Err(engine.failed(call.name, failure)),
        }
    }

    /// Returns what this `Locks` and its clones have counted since it was opened: acquisitions by kind and
    /// result, waits and holds, renewals, losses, requests. Does no I/O.
    ///
    /// Counting is always on. [`Options::groups`] selects which locks are counted separately.
    ///
    /// # Guarantees
    /// The loss of a lock is counted before its guard reports it or [`Lost`](crate::Lost) resolves.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("nightly")?.lock().await?;
    /// assert!(locks.mutex("nightly")?.try_lock().await?.is_none());
    /// let total = locks.metrics().total();
    /// assert_eq!((total.acquired, total.busy, total.held), (1, 1, 1));
    /// # drop(guard);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn metrics(&self) -> Snapshot {
        let engine = &self.shared.engine;
        engine.metrics.snapshot(engine.store.signals().interruptions(), engine.runtime.unix_micros())
    }

    /// Waits until the releases in the background are done, for at most [`op_timeout`](Options::op_timeout).
    /// Use it at the end of a program whose `Locks` is a `static`, which is never dropped, or before a
    /// process hands its work to another. It closes nothing: guards stay held, and later acquisitions work.
    /// On a quorum, this also waits for the members that have not yet answered a release that a majority has;
    /// it is no error if some of them remain.
    ///
    /// Then waits, for at most 1 s, until the `tracing` subscriber has processed all events of this `Locks`.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// drop(locks.mutex("nightly")?.lock().await?); // released in the background
    /// locks.flush().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// The releases continue.
    ///
    /// # Errors
    /// `is_unreachable` if some releases are not done; they continue.
    pub async fn flush(&self) -> Result<()> {
        let flushed = self.shared.engine.flushed_within(self.options.op_timeout).await;
        self.shared.events_flushed().await;
        flushed
    }
}

/// Starts the thread of a store.
fn started(url: &str) -> Result<(Arc<Driver>, Arc<dyn Runtime>)> {
    let driver = Driver::start().map_err(|error| Error::no_thread(url, error))?;
    let runtime = Arc::clone(&driver) as Arc<dyn Runtime>;
    Ok((driver, runtime))
}

/// Parses the name.
fn checked(name: impl TryInto<LockName, Error: Into<Error>>) -> Result<LockName> {
    name.try_into().map_err(Into::into)
}
