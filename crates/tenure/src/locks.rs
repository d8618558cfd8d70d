use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "redis")]
use crate::credentials::{Credentials, Provider};
use crate::engine::acquire::Wait;
use crate::engine::acquisition::{Acquisition, Resumed, Wanted};
use crate::engine::call::Call;
use crate::engine::{Engine, EngineHandle};
use crate::error::{Error, Result};
use crate::fair::FairMutex;
use crate::guard::Guard;
use crate::handle::{LockHandle, changed};
use crate::hold_id::HoldId;
use crate::metrics::Snapshot;
use crate::multi::Multi;
use crate::mutex::Mutex;
use crate::name::LockName;
use crate::open::open;
use crate::options::Options;
use crate::owner::{Owner, check_text};
use crate::protocol::{
    Answer, Fence, Found, Holding, Kind, LockSpec, QueueSpec, ReleaseScope, Verb, parse_value,
};
use crate::quorum::Quorum;
use crate::reentrant::ReentrantMutex;
use crate::runtime::{Driver, Runtime};
use crate::rwlock::RwLock;
use crate::semaphore::{self, Semaphore};
use crate::status::{ForcedRelease, Holder, Listing, Status, foreign};
use crate::store::{Opening, Store};
use crate::uses::cache::Cache;
use crate::uses::election::Election;
use crate::uses::fill::Fill;
use crate::uses::once::OncePer;
use crate::uses::period::Period;
use crate::uses::stop::{self, StopRequest};

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
    /// [below](#terms-of-a-store).
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
    /// # Terms of a store
    ///
    /// All clients of a lock have to agree on these terms, so they are part of the URL.
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
    /// As [`open`](Self::open); also `is_invalid` if the URL contains a login, and `is_unsupported` for a
    /// store without logins.
    #[cfg(feature = "redis")]
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

    /// Takes over a hold that [`Guard::detach`] gave up, perhaps in another process. Returns `None` if the
    /// hold is over. The lease is extended to the ttl of this `Locks` and renewed from then on. If two
    /// processes resume the same owner, both hold the lock.
    ///
    /// A lease is never shortened. If more than this ttl is left and this process ends without a release, the
    /// store keeps the hold until the original lease is over.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let owner = locks.mutex("deploy")?.lock().await?.detach().await?;
    /// let Some(guard) = locks.resume("deploy", &owner).await? else {
    ///     return Ok(()); // over by now
    /// };
    /// assert_eq!(guard.owner(), &owner);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// The lease may have been renewed; call again. On the `file:` store, the hold may already belong to this
    /// process and end with it. A hold of a reentrant owner that was taken over although the answer was lost
    /// is given up in the background; until then no other client can resume it.
    ///
    /// # Errors
    /// `is_mismatch`, `is_unreachable` and `is_refused`; `is_invalid` for the name; `is_unknown` if no answer
    /// came: call again.
    pub async fn resume(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        owner: &Owner,
    ) -> Result<Option<Guard>> {
        let name = checked(name)?;
        let full = self.options.full_name(&name)?;
        let mut spec = LockSpec::Mutex;
        loop {
            let engine = &self.shared.engine;
            if spec == LockSpec::Reentrant {
                // An earlier call may still be giving up a hold that it took over without getting the answer.
                engine.flushed_within(self.options.op_timeout).await?;
            }
            let meter = engine.metrics.meter(&self.options.groups, &name, &full, spec);
            let (owner, options, wait) = (Some(owner), &self.options, Wait::Once);
            let ask = Acquisition::new(Wanted { engine, name: &full, spec, owner, options, meter, wait });
            match ask.resume().await? {
                Resumed::Held(held) => return Ok(Some(Guard::new(&self.shared, &name, held))),
                Resumed::Over => return Ok(None),
                Resumed::Other(other) => spec = self.other_rule(&full, spec, other)?,
            }
        }
    }

    /// Renews a hold that [`Guard::detach`] gave up, and leaves it detached. Returns how long it is certainly
    /// held from now on, or `None` if it is over. For scripts whose steps are separate processes. The lease
    /// is extended to the ttl of this `Locks`, and never shortened.
    ///
    /// This also detaches a hold that another process still renews: on the `file:` store, it then becomes
    /// free when its lease ends, and no longer when that process does.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let owner = locks.mutex("deploy")?.lock().await?.detach().await?;
    /// let left = locks.renew_detached("deploy", &owner).await?.expect("it is not over yet");
    /// assert!(left > std::time::Duration::from_secs(10)); // of 15 s
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// The lease may have been renewed. Nothing else changes.
    ///
    /// # Errors
    /// `is_mismatch`, `is_unreachable` and `is_refused`; `is_invalid` for the name; `is_unknown` if no answer
    /// came: call again.
    pub async fn renew_detached(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        owner: &Owner,
    ) -> Result<Option<Duration>> {
        let name = checked(name)?;
        let full = self.options.full_name(&name)?;
        let mut spec = LockSpec::Mutex;
        loop {
            let engine = &self.shared.engine;
            let meter = engine.metrics.meter(&self.options.groups, &name, &full, spec);
            let (owner, options, wait) = (Some(owner), &self.options, Wait::Once);
            let ask = Acquisition::new(Wanted { engine, name: &full, spec, owner, options, meter, wait });
            match ask.renew_detached().await? {
                Resumed::Held(left) => return Ok(Some(left)),
                Resumed::Over => return Ok(None),
                Resumed::Other(other) => spec = self.other_rule(&full, spec, other)?,
            }
        }
    }

    /// The spec to retry with, once. If the store reports a mismatch for that one too, it contradicts itself.
    fn other_rule(&self, full: &LockName, asked: LockSpec, found: LockSpec) -> Result<LockSpec> {
        match asked {
            LockSpec::Mutex if found != LockSpec::Mutex => Ok(found),
            _ => Err(self.shared.engine.mismatch(full, asked, found.kind(), found.capacity())),
        }
    }

    /// Returns the state of a lock with its holders, or `None` if it is free.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("nightly")?.lock().await?;
    /// let status = locks.inspect("nightly").await?.expect("it is held");
    /// assert_eq!(status.holders[0].owner.as_ref(), Some(guard.owner()));
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Safe to drop: the request changes nothing.
    ///
    /// # Errors
    /// `is_invalid` if the name is not valid; `is_unreachable` and `is_refused`; `is_mismatch` if the kind of
    /// lock at the name changed during the call; `is_unsupported` if a lock there requires scripts and the
    /// server forbids them.
    pub async fn inspect(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Option<Status>> {
        self.ask_as_anyone(checked(name)?, Verb::Inspect).await
    }

    /// Lists the held locks whose names begin with `prefix`. Locks that are acquired or released meanwhile
    /// may or may not be included.
    ///
    /// On a server this scans all keys of the database three times, a few hundred at a time, regardless of
    /// the prefix, because there is no index of names. A cluster scans every master, a quorum every member. A
    /// lock may be listed twice. With neither a `prefix` nor the [prefix option](Options::prefix), only locks
    /// of this library are listed; otherwise the listing includes what other programs keep at matching names.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("orders:42")?.lock().await?;
    /// let mut listing = locks.list("orders:")?;
    /// while let Some(status) = listing.next().await? {
    ///     println!("{} is held by {:?}", status.name, status.holders);
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `is_invalid` if no valid name begins with the prefix.
    pub fn list(&self, prefix: &str) -> Result<Listing> {
        if !prefix.is_empty() {
            self.options.full_name(&LockName::new(prefix)?)?;
        }
        Ok(Listing::new(&self.shared, &self.options, prefix))
    }

    /// Asks all holders of a lock to stop, and returns the holders, or `None` if the lock is free. This does
    /// not end any hold: a holder that waits for [`stop_requested`](Self::stop_requested) learns of it within
    /// 2 s, and the command of `tenure run` gets a SIGTERM. Use [`inspect`](Self::inspect) to see whether
    /// they have stopped.
    ///
    /// The request names the holders, so it does not stop later ones. It is kept beside the lock for an hour,
    /// and replaces the previous request. `reason` is for people: at most 256 bytes without control
    /// characters.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("deploy")?.lock().await?;
    /// let asked = locks.request_stop("deploy", "a hotfix waits").await?.expect("it is held");
    /// assert_eq!(asked.holders[0].owner.as_ref(), Some(guard.owner()));
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// The request may still be made.
    ///
    /// # Errors
    /// As [`cache`](Self::cache), [`inspect`](Self::inspect) and [`Mutex::lock`]; also `is_invalid` if the
    /// reason is not valid, and `is_mismatch` if the name is in use by something other than a lock of this
    /// library.
    pub async fn request_stop(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        reason: &str,
    ) -> Result<Option<Status>> {
        check_text("a reason", reason)?;
        let name = checked(name)?;
        let record = stop::record(&self.shared, &self.options, name.clone())?;
        let Some(status) = self.inspect(name).await? else { return Ok(None) };
        if let Some(what) = status.foreign() {
            return Err(self.no_lock(&status.name, &what));
        }
        stop::request(&record, &status.owners(), reason).await?;
        Ok(Some(status))
    }

    /// Waits until the holder of this guard is [asked to stop](Self::request_stop): by a message from
    /// Redis, PostgreSQL, etcd and ZooKeeper, and by polling other stores every 2 s. `guard` must belong to a
    /// lock of this `Locks`.
    ///
    /// ```no_run
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("deploy")?.lock().await?;
    /// let request = locks.stop_requested(&guard).await?; // beside the work, in a `select!`
    /// println!("{} asks to stop: {}", request.by, request.reason);
    /// guard.release().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Nothing is lost: the request remains in the store.
    ///
    /// # Errors
    /// As [`cache`](Self::cache); also `is_refused` if the user may not read the record. Retries while the
    /// store does not answer.
    pub async fn stop_requested(&self, guard: &Guard) -> Result<StopRequest> {
        let record = stop::record(&self.shared, &self.options, guard.name().clone())?;
        stop::requested(&record, guard.owner()).await
    }

    /// Ends all holds of a lock, and returns its holders, or `None` if the lock was free. For operators: it
    /// breaks exclusion until the holders notice. A holder that has held the lock for a second notices at
    /// once if it can receive messages. Any other holder notices at the end of its first second or at its
    /// next renewal.
    ///
    /// A lock of another program is left alone: see [`force_release_foreign`](Self::force_release_foreign).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let stuck = locks.mutex("nightly")?.lock().await?;
    /// let status = locks.force_release("nightly").await?.expect("it was held");
    /// assert_eq!(status.holders[0].fence, stuck.fence());
    /// assert!(stuck.verify().await.unwrap_err().is_lost());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// The request may still be carried out.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect); also `is_mismatch` if the name is in use by something other than a lock
    /// of this library, and `is_unknown` if no answer came.
    pub async fn force_release(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
    ) -> Result<Option<Status>> {
        self.force(checked(name)?, ReleaseScope::Any).await
    }

    /// Does what [`force_release`](Self::force_release) does, and also ends a plain lock of another client: a
    /// string at the name, whatever its bytes. A key of another type is left alone.
    ///
    /// # Cancel safety
    /// The request may still be carried out.
    ///
    /// # Errors
    /// As [`force_release`](Self::force_release).
    pub async fn force_release_foreign(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
    ) -> Result<Option<Status>> {
        self.force(checked(name)?, ReleaseScope::Foreign).await
    }

    /// Ends the hold with this token and no other, in case another client has acquired the lock meanwhile.
    /// Returns the holder, or the current state of the lock if no hold has this token.
    ///
    /// A Redis server does not store the token of a mutex that a busy client acquired within a second of
    /// another.
    ///
    /// # Cancel safety
    /// The request may still be carried out.
    ///
    /// # Errors
    /// As [`force_release`](Self::force_release); also `is_unsupported` if the store does not keep the token
    /// of the hold.
    pub async fn force_release_token(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        token: u64,
    ) -> Result<ForcedRelease> {
        let is_meant = |holder: &Holder| token > 0 && holder.fence == token;
        self.force_hold(checked(name)?, is_meant, true).await
    }

    /// Ends the hold of this owner and no other. Returns the holder, or the current state of the lock if the
    /// owner does not hold it.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::ForcedRelease;
    /// # let locks = tenure::Locks::memory();
    /// let stuck = locks.mutex("nightly")?.lock().await?;
    /// let ended = locks.force_release_owner("nightly", stuck.owner()).await?;
    /// assert!(matches!(ended, ForcedRelease::Ended(_)));
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// The request may still be carried out.
    ///
    /// # Errors
    /// As [`force_release`](Self::force_release).
    pub async fn force_release_owner(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        owner: &Owner,
    ) -> Result<ForcedRelease> {
        self.force_hold(checked(name)?, |holder| holder.owner.as_ref() == Some(owner), false).await
    }

    /// Releases a hold on behalf of its dead holder, and returns once the hold is over. Waiters are woken as
    /// if the holder had released it.
    ///
    /// For a supervisor that got the [`HoldId`] from [`Guard::hold_id`] while the holder was alive, and that
    /// has made sure that the holder's work has ended too. A holder that is still alive learns that its lock
    /// is lost.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let hold = locks.mutex("nightly")?.lock().await?;
    /// locks.release_hold(&hold.hold_id()).await?;
    /// assert!(locks.mutex("nightly")?.try_lock().await?.is_some());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Guarantees
    /// Ends this hold and no other. If the hold is over already, nothing happens, no matter who holds the
    /// lock by then.
    ///
    /// # Cancel safety
    /// The request may still be carried out.
    ///
    /// # Errors
    /// `is_unreachable` and `is_refused`; `is_unknown` if no answer came: call again.
    pub async fn release_hold(&self, id: &HoldId) -> Result<()> {
        let (engine, HoldId { name, spec, owner, hold }) = (&self.shared.engine, id);
        let verb = Verb::Release { hold: *hold, fence: Fence::Assign, whose: ReleaseScope::Named };
        let call = Call::new(name, *spec, owner, verb).idempotent();
        match engine.call(&call, engine.now(), self.options.op_timeout).await {
            Ok(Answer::Released { .. } | Answer::Free | Answer::Busy { .. } | Answer::Mismatch { .. }) => {
                Ok(())
            }
            Ok(answer) => Err(engine.unexpected_answer(name, &answer)),
            Err(failure) => Err(engine.failed(name, failure)),
        }
    }

    /// Ends the hold selected by `is_meant`; `by_token` if it is selected by its token.
    async fn force_hold(
        &self,
        name: LockName,
        is_meant: impl Fn(&Holder) -> bool,
        by_token: bool,
    ) -> Result<ForcedRelease> {
        let Some(mut status) = self.inspect(&name).await? else { return Ok(ForcedRelease::Free) };
        if let Some(what) = status.foreign() {
            return Err(self.no_lock(&status.name, &what));
        }
        let Some(at) = status.holders.iter().position(is_meant) else {
            let untold = status.holders.iter().find(|holder| by_token && holder.fence == 0);
            return match untold.and_then(|holder| holder.owner.as_ref()) {
                Some(owner) => Err(Error::unsupported(
                    self.shared.engine.store.url(),
                    format!("the token of lock {name} is not at the store; use its owner, {owner}"),
                )),
                None => Ok(ForcedRelease::Other(status)),
            };
        };
        let holder = status.holders.swap_remove(at);
        let ended = match &holder.owner {
            // For other kinds an owner has one grant, so releasing as that owner ends no other hold.
            Some(owner) if status.kind != Kind::Reentrant => self.release_as(&status, owner).await?,
            _ => self.force_reentrant(&name, holder.fence).await?,
        };
        if ended {
            (status.holders, status.waiters, status.unlisted) = (vec![holder], Vec::new(), 0);
            return Ok(ForcedRelease::Ended(status));
        }
        Ok(self.inspect(name).await?.map_or(ForcedRelease::Free, ForcedRelease::Other))
    }

    /// Releases the hold of this owner; returns whether it held the lock.
    async fn release_as(&self, status: &Status, owner: &Owner) -> Result<bool> {
        let (engine, full) = (&self.shared.engine, self.options.full_name(&status.name)?);
        let spec = LockSpec::of(status.kind, status.capacity);
        let verb = Verb::Release { hold: 0, fence: Fence::Assign, whose: ReleaseScope::Named };
        let call = Call::new(&full, spec, owner, verb);
        match engine.call(&call, engine.now(), self.options.op_timeout).await {
            Ok(Answer::Released { .. }) => Ok(true),
            Ok(Answer::Free | Answer::Busy { .. } | Answer::Mismatch { .. }) => Ok(false),
            Ok(answer) => Err(engine.unexpected_answer(&full, &answer)),
            Err(failure) => Err(engine.failed(&full, failure)),
        }
    }

    /// Ends all holds of the reentrant mutex with this token; returns whether there were any.
    async fn force_reentrant(&self, name: &LockName, token: u64) -> Result<bool> {
        let full = self.options.full_name(name)?;
        let engine = &self.shared.engine;
        let owner = Owner::fresh(&self.options.label, &*engine.runtime);
        let verb = Verb::Release { hold: token, fence: Fence::Assign, whose: ReleaseScope::Any };
        let call = Call::new(&full, LockSpec::Reentrant, &owner, verb);
        match engine.call(&call, engine.now(), self.options.op_timeout).await {
            Ok(Answer::Found(_)) => Ok(true),
            Ok(Answer::Free | Answer::Busy { .. } | Answer::Mismatch { .. }) => Ok(false),
            Ok(answer) => Err(engine.unexpected_answer(&full, &answer)),
            Err(failure) => Err(engine.failed(&full, failure)),
        }
    }

    async fn force(&self, name: LockName, whose: ReleaseScope) -> Result<Option<Status>> {
        let verb = Verb::Release { hold: 0, fence: Fence::Assign, whose };
        let ended = self.ask_as_anyone(name, verb).await?;
        // Most members of a quorum may report something that they have not ended.
        match ended.as_ref().and_then(|status| Some((status, status.foreign()?))) {
            Some((status, what)) if whose != ReleaseScope::Foreign => Err(self.no_lock(&status.name, &what)),
            _ => Ok(ended),
        }
    }

    fn no_lock(&self, name: &LockName, what: &str) -> Error {
        Error::no_lock(name, self.shared.engine.store.url(), what)
    }

    async fn ask_as_anyone(&self, name: LockName, verb: Verb) -> Result<Option<Status>> {
        let full = self.options.full_name(&name)?;
        let engine = &self.shared.engine;
        let owner = Owner::fresh(&self.options.label, &*engine.runtime);
        let mut spec = LockSpec::Mutex;
        loop {
            let call = Call::new(&full, spec, &owner, verb.clone());
            let call = if verb == Verb::Inspect { call.idempotent() } else { call };
            match engine.call(&call, engine.now(), self.options.op_timeout).await {
                Ok(Answer::Found(mut found)) => {
                    let is_reentrant = found.kind == Kind::Reentrant;
                    for holder in found.holders.iter_mut().filter(|_| is_reentrant) {
                        // The store does not know about re-entries through this `Locks`.
                        let owner = parse_value(&holder.value).map(|(owner, _)| owner);
                        holder.weight += owner.map_or(0, |owner| engine.more_holds(&full, &owner));
                    }
                    return Ok(Some(Status::new(name, found)));
                }
                Ok(Answer::Free) => return Ok(None),
                // A key of another type, on a server that forbids scripts.
                Ok(Answer::Busy { holder, left_ms }) if verb == Verb::Inspect => {
                    let holder = Holding { value: holder.into_bytes(), left_ms, weight: 1 };
                    return Ok(Some(Status::new(name, Found::one(Kind::Mutex, holder))));
                }
                Ok(Answer::Busy { holder, .. }) => {
                    return Err(self.no_lock(&name, &foreign(spec.kind(), holder.as_bytes())));
                }
                Ok(Answer::Mismatch { kind, capacity }) => {
                    spec = self.other_rule(&full, spec, LockSpec::of(kind, capacity))?;
                }
                Ok(answer) => return Err(engine.unexpected_answer(&full, &answer)),
                Err(failure) if verb == Verb::Inspect => return Err(engine.silent(&full, failure)),
                Err(failure) => return Err(engine.failed(&full, failure)),
            }
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
        engine.metrics.snapshot(engine.store.signals().interruptions())
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
