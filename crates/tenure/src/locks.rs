use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "redis")]
use crate::credentials::{Credentials, Provider};
use crate::engine::acquire::Wait;
use crate::engine::acquisition::{Acquisition, Resumed, Wanted};
use crate::engine::call::Call;
use crate::engine::{Client, Engine};
use crate::error::{Error, Result};
use crate::fair::FairMutex;
use crate::guard::Guard;
use crate::handle::{LockHandle, changed};
use crate::hold_id::HoldId;
use crate::metrics::Snapshot;
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

/// A store of locks, and the only handle that a program needs. Cheap to clone.
///
/// Make one for each store at the start of the program, and clone it. A `Locks` for each task or
/// request would dial each time, and its tasks could not wait together.
///
/// It owns one thread, which dials, renews and releases. So no future of this crate needs a runtime
/// of the caller's, and nothing the caller does to its own can cost a lease. The thread ends with
/// the last handle: `Locks`, lock or guard. After a `fork` the child has no such thread: connect
/// again there.
///
/// The drop of the very last handle gives releases that are on their way a moment, because `main`
/// may be about to return. It blocks its thread for up to 100 ms while there are any, and for up to
/// 1 s while a `tracing` subscriber is busy with earlier events. Where that matters, as in an
/// asynchronous task, await [`flush`](Self::flush) first.
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
#[derive(Clone, Debug)]
#[must_use = "options are for the returned `Locks` only"]
pub struct Locks {
    home: Arc<Client>,
    options: Arc<Options>,
}

/// What is shared behind it is whole at each moment: a lock that a thread panicked under is taken
/// as it stands.
impl UnwindSafe for Locks {}
impl RefUnwindSafe for Locks {}

impl Locks {
    /// Opens a store and makes sure that it answers.
    ///
    /// | URL | locks live |
    /// |---|---|
    /// | `memory:` | in this process; two connects are two stores |
    /// | `memory:NAME` | in this process; the same name is the same store |
    /// | `file:DIR` | in this directory, for all processes of this machine |
    /// | `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]`, also `valkey://` | on this server |
    /// | `rediss://…[?ca=FILE][&cert=FILE&key=FILE]`, also `valkeys://` | on this server, spoken to over TLS |
    /// | `redis+unix:///SOCKET[?db=…&user=…&password=…]`, also `valkey+unix://` | on this server, by its socket |
    /// | `redis-sentinel://[[USER]:PASSWORD@]HOST[:PORT],…/SERVICE[/DATABASE]` | on the server that these sentinels call the master |
    /// | `redis-cluster://[[USER]:PASSWORD@]HOST[:PORT],…`, also `valkey-cluster://` | on the cluster of which these are some nodes |
    /// | `redis-quorum://[[USER]:PASSWORD@]HOST[:PORT],…[/DATABASE]`, also `valkey-quorum://` | on a [majority](Self::quorum) of these |
    /// | `postgres://…`, with the feature `postgres` | in a table of this database |
    /// | `etcd://…`, `etcds://…`, with the feature `etcd` | on this etcd |
    /// | `zookeeper://…`, `zookeepers://…`, with the feature `zookeeper` | on this ZooKeeper |
    ///
    /// In these schemes `+` and `-` mean the same (`redis+cluster://`), `sentinel://` is
    /// `redis-sentinel://`, and `postgresql://` is `postgres://`.
    ///
    /// `?acks=N` requires N replicas to confirm a grant and each renewal; `?restart-grace=30s` lets
    /// a server that restarted or was promoted grant nothing for that long. Both are explained
    /// [below](#terms-of-a-store).
    ///
    /// `?password-file=FILE` has the password in the one line of a file, and `USER@` then stands
    /// without it. The file is read at each dial, so a changed password needs no restart.
    ///
    /// Sentinels have a login of their own, `?sentinel-user=…&sentinel-password=…`, and port 26379
    /// unless another is given. They are asked at each dial, and the server that they name must say
    /// itself that it is a master.
    ///
    /// The files of a `rediss://` URL are in PEM form: `ca` has the authorities to trust in place
    /// of the system's (which `SSL_CERT_FILE` and `SSL_CERT_DIR` move), `cert` and `key` are who we
    /// are. They are read at each dial.
    ///
    /// # Terms of a store
    ///
    /// All clients of a lock have to agree on these, so they are parts of the URL.
    ///
    /// **`acks=N`**, N from 1 on: for one server with replicas, with Sentinel, or a cluster. A
    /// grant, and each renewal, counts only when N replicas have confirmed it. A grant that fewer
    /// confirm is asked for again for as long as the call waits, then given back, and an error
    /// ([`is_unreachable`](Error::is_unreachable)) whose source says how many did. A renewal that
    /// fewer confirm has failed, and is tried again until the lease is lost. Releases wait for no
    /// replica. A server without replicas, or that refuses `WAIT`, is an error too. For exclusion
    /// across a failover N has to be the number of *all* replicas that may be promoted, and
    /// `restart-grace` has to be set; anything less makes an overlap rarer.
    ///
    /// **`restart-grace=DURATION`**, 50 ms to 1 year, as in `1500ms`, `30s`, `5m` or `2h`: for one
    /// server, with Sentinel or without. A server that was promoted, or has restarted, or lost its
    /// data, grants nothing for that long. It is the longest lease that any client uses, so no
    /// [`ttl`](Options::ttl) may be longer. A server's replication id changes then, which each
    /// acquisition compares with the one that is kept in the key `tenure:epoch`. Where that key is
    /// missing, as at the very first use, the time begins as well. Until it is over every lock is
    /// busy: it may be held by a client whom the server has forgotten. What is held is renewed. A
    /// server that does not let scripts call `INFO` refuses.
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
    /// `is_invalid` when the URL cannot be right; `is_unsupported` when this build cannot do what
    /// it asks for; `is_unreachable` when no client answers within 1 s (to allow more, use
    /// [`open`](Self::open) and [`with`](Self::with)), or the system starts no thread; `is_refused`
    /// when the store may not be used, or a certificate is not accepted.
    pub async fn connect(url: &str) -> Result<Self> {
        let locks = Self::open(url)?;
        locks.ping().await?;
        Ok(locks)
    }

    /// Asks the store for a sign of life: for a health check, and after [`open`](Self::open) where
    /// a program must not start without its store. It says nothing of any lock.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// let locks = tenure::Locks::open("memory:")?;
    /// locks.ping().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Nothing is lost; it asks and changes nothing.
    ///
    /// # Errors
    /// `is_unreachable` when the store does not answer within [`op_timeout`](Options::op_timeout),
    /// and at once when nothing listens at the address of a single server. `is_refused` when the
    /// store may not be used.
    pub async fn ping(&self) -> Result<()> {
        let store = &self.home.engine.store;
        store.ready(self.options.op_timeout).await.map_err(|failure| Error::unreached(store.url(), failure))
    }

    /// Opens a store without I/O: the first use dials. For statics, and for programs that start
    /// before their store.
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
    /// `is_invalid` when the URL cannot be right; `is_unsupported` when this build cannot do what
    /// it asks for; `is_unreachable` when the system starts no thread.
    pub fn open(url: &str) -> Result<Self> {
        let (driver, runtime) = started(url)?;
        let opening = Opening { url, runtime, login: None };
        Ok(Self::driven(open(opening)?, driver))
    }

    /// Opens a store without I/O, as [`open`](Self::open), and asks `provider` for the login at
    /// each dial. For passwords and tokens that change while the program runs: a connection that
    /// ends is made again with the login of that moment.
    ///
    /// The provider runs on the thread that renews leases, so it must not block: read a variable or
    /// a small file. When it fails, the dial fails and is repeated. All servers of a cluster or a
    /// quorum get the same login. Sentinels have their own, in the URL.
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
    /// As [`open`](Self::open); `is_invalid` when the URL has a login too; `is_unsupported` for a
    /// store without a login.
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

    /// A store in memory, shared by clones.
    ///
    /// Under tokio's paused clock its leases still run in real time: they are kept by a thread that
    /// the pause does not reach. And that clock leaps ahead while tokio waits for us, so a
    /// `tokio::time::timeout` around a wait ends at once there: use
    /// [`try_lock_for`](Mutex::try_lock_for), or the store of the feature `testing`, whose leases
    /// follow that clock.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// let locks = tenure::Locks::memory();
    /// assert!(locks.clone().mutex("x")?.try_lock().await?.is_some());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Panics
    /// When the system starts no thread.
    pub fn memory() -> Self {
        Self::open("memory:").expect("the system starts a thread")
    }

    /// A majority of independent stores: Redlock, with fencing tokens. For mutexes; other kinds are
    /// unsupported on it.
    ///
    /// All members are asked at once, and each has a quarter of [`op_timeout`](Options::op_timeout)
    /// to answer when a lock is acquired, half of it otherwise. A minority that is slow, dead,
    /// empty or refuses costs nothing else. The members are kept open; their own options do not
    /// matter here. A member's URL has neither `acks` nor `restart-grace`: members are independent,
    /// and one that has started too recently does not vote.
    ///
    /// A server that has started less than the longest lease ago does not vote, because it may have
    /// forgotten one that still runs. That is the longest that this `Locks` has asked for: let all
    /// clients of a quorum use the same `ttl`.
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
    /// `is_invalid` for fewer than two members or more than 63, one that is there twice, and one
    /// that is several servers itself: a quorum, a cluster, the master that sentinels name, one
    /// with `acks` or `restart-grace`. Two that turn out to be one server once they are connected
    /// to: `is_refused`, from each acquisition. `is_unreachable` when the system starts no thread.
    pub fn quorum(members: impl IntoIterator<Item = Self>) -> Result<Self> {
        let members: Vec<Self> = members.into_iter().collect();
        let (driver, runtime) = started("quorum:")?;
        let stores = members.iter().map(|locks| Arc::clone(&locks.home.engine.store)).collect();
        let store = Quorum::new(stores, Box::new(members), runtime, None)?;
        Ok(Self::driven(Arc::new(store), driver))
    }

    /// A store with its own thread.
    fn driven(store: Arc<dyn Store>, driver: Arc<Driver>) -> Self {
        Self::on(store, Arc::clone(&driver) as _, Some(driver))
    }

    pub(crate) fn on(store: Arc<dyn Store>, runtime: Arc<dyn Runtime>, driver: Option<Arc<Driver>>) -> Self {
        let mut options = Options::default();
        if let Some(grace) = store.capabilities().restart_grace {
            options.ttl = options.ttl.min(grace);
        }
        let home = Client::new(Engine::new(store, runtime), driver);
        Self { home, options: Arc::new(options) }
    }

    /// The same store with changed options. `change` gets the options in force and returns those to
    /// use, so what was set before stays set.
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
    /// `is_invalid` when an option, or two together, cannot be right, and for a
    /// [`ttl`](Options::ttl) above the `restart-grace` of the store's URL.
    pub fn with(&self, change: impl FnOnce(Options) -> Options) -> Result<Self> {
        let options = changed(&self.home, &self.options, change)?;
        Ok(Self { home: Arc::clone(&self.home), options })
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
        self.home.engine.store.url()
    }

    /// A lock with one holder at a time.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("orders:42")?.lock().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `is_invalid` when the name cannot be one; `is_unsupported` when the store keeps no such
    /// locks, or none of this name, as a cluster does not where its counter could not be in its
    /// slot.
    pub fn mutex(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Mutex> {
        self.face(checked(name)?, LockSpec::Mutex, None).map(Mutex)
    }

    /// A lock with one holder at a time, first come, first served.
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
        self.face(checked(name)?, LockSpec::Queue(QueueSpec::FAIR), None).map(FairMutex)
    }

    /// A lock with one owner at a time, who may hold it several times.
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
        self.face(checked(name)?, LockSpec::Reentrant, Some(owner.clone())).map(ReentrantMutex)
    }

    /// A lock with many readers or one writer.
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
        self.face(checked(name)?, LockSpec::Queue(QueueSpec::WRITER), None).map(RwLock)
    }

    /// A lock with so many permits, 1 to 1,048,576. All who use the name must agree on the number.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let permit = locks.semaphore("render", 5)?.acquire().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex); `is_invalid` too for a number that cannot be.
    pub fn semaphore(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        permits: u32,
    ) -> Result<Semaphore> {
        semaphore::check(permits)?;
        self.face(checked(name)?, LockSpec::Queue(QueueSpec::permits(permits, 1)), None)
            .map(|face| Semaphore::new(face, permits))
    }

    /// A value that one caller computes for a whole fleet, kept in this store.
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
        Cache::new(&self.home, &self.options, checked(name)?)
    }

    /// Lets one caller of a fleet fill a cache of your own, while the others wait for it.
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
        Fill::new(&self.home, &self.options, checked(name)?)
    }

    /// A job that runs at most once in each window of a [`Period`], on whichever host asks first.
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
    /// As [`cache`](Self::cache).
    pub fn once_per(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        period: impl Into<Period>,
    ) -> Result<OncePer> {
        OncePer::new(&self.home, &self.options, checked(name)?, period.into())
    }

    /// One of many candidates leads. The payload, of at most 4 KiB, says how the leader can be
    /// reached.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let term = locks.election("scheduler", "host-1:8080")?.campaign().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`cache`](Self::cache); `is_invalid` when the payload is too long.
    pub fn election(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        payload: impl Into<String>,
    ) -> Result<Election> {
        Election::new(&self.home, &self.options, checked(name)?, payload.into())
    }

    fn face(&self, name: LockName, rule: LockSpec, owner: Option<Owner>) -> Result<LockHandle> {
        let (home, options) = (Arc::clone(&self.home), Arc::clone(&self.options));
        LockHandle::new(home, options, name, rule, owner)
    }

    /// Takes over a hold that [`Guard::detach`] let go, perhaps in another process: `None` when it
    /// is over. The lease is extended to this `Locks`' ttl, and renewed from here on. Two processes
    /// that resume one owner both hold.
    ///
    /// A lease is never shortened. If more than this ttl is left of it, the store keeps the hold
    /// until that is over, should this process end without a release.
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
    /// The lease may have been renewed, and ask again. In a directory the hold may be this
    /// process's by then, and end with it. One of several holds of a reentrant owner that was taken
    /// over unheard is let go again in the background, and until then no client else can resume it.
    ///
    /// # Errors
    /// `is_mismatch`, `is_unreachable`, `is_refused`, and `is_invalid` for a name; `is_unknown`
    /// when no answer came: ask again.
    pub async fn resume(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        owner: &Owner,
    ) -> Result<Option<Guard>> {
        let name = checked(name)?;
        let full = self.options.full_name(&name)?;
        let mut rule = LockSpec::Mutex;
        loop {
            let engine = &self.home.engine;
            if rule == LockSpec::Reentrant {
                // An earlier call may still have to let go what it had taken over unheard.
                engine.flushed_within(self.options.op_timeout).await?;
            }
            let meter = engine.metrics.meter(&self.options.groups, &name, &full, rule);
            let (owner, options, wait) = (Some(owner), &self.options, Wait::Once);
            let ask = Acquisition::new(Wanted { engine, name: &full, rule, owner, options, meter, wait });
            match ask.resume().await? {
                Resumed::Held(held) => return Ok(Some(Guard::new(&self.home, &name, held))),
                Resumed::Over => return Ok(None),
                Resumed::Other(other) => rule = self.other_rule(&full, rule, other)?,
            }
        }
    }

    /// Renews a hold that [`Guard::detach`] let go, and leaves it detached: how long it is held for
    /// certain from now on, or `None` when it is over. For a script whose steps are processes of
    /// their own. The lease is extended to this `Locks`' ttl, and never shortened.
    ///
    /// A hold that another process renews too is detached as well: in a directory it is then free
    /// when its lease ends, and no longer when that process does.
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
    /// `is_mismatch`, `is_unreachable`, `is_refused`, and `is_invalid` for a name; `is_unknown`
    /// when no answer came: ask again.
    pub async fn renew_detached(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        owner: &Owner,
    ) -> Result<Option<Duration>> {
        let name = checked(name)?;
        let full = self.options.full_name(&name)?;
        let mut rule = LockSpec::Mutex;
        loop {
            let engine = &self.home.engine;
            let meter = engine.metrics.meter(&self.options.groups, &name, &full, rule);
            let (owner, options, wait) = (Some(owner), &self.options, Wait::Once);
            let ask = Acquisition::new(Wanted { engine, name: &full, rule, owner, options, meter, wait });
            match ask.renew_detached().await? {
                Resumed::Held(left) => return Ok(Some(left)),
                Resumed::Over => return Ok(None),
                Resumed::Other(other) => rule = self.other_rule(&full, rule, other)?,
            }
        }
    }

    /// What to ask under instead, once: a store that says the same of that too contradicts itself.
    fn other_rule(&self, full: &LockName, asked: LockSpec, found: LockSpec) -> Result<LockSpec> {
        match asked {
            LockSpec::Mutex if found != LockSpec::Mutex => Ok(found),
            _ => Err(self.home.engine.mismatch(full, asked, found.kind(), found.capacity())),
        }
    }

    /// The holders of a lock: `None` if it is free.
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
    /// Nothing is lost; it asks and changes nothing.
    ///
    /// # Errors
    /// `is_invalid` when the name cannot be one; `is_unreachable`, `is_refused`; `is_mismatch` when
    /// another kind of lock came to stand there while it was asked about; `is_unsupported` when one
    /// stands there that is kept by scripts, and the server forbids them.
    pub async fn inspect(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Option<Status>> {
        self.ask_as_anyone(checked(name)?, Verb::Inspect).await
    }

    /// The locks whose names begin with `prefix`, those that are held. What comes and goes
    /// meanwhile may or may not show.
    ///
    /// On a server this walks over all keys of the database, three times and a few hundred at once,
    /// regardless of the prefix, because there is no index of names; on a cluster over those of
    /// every master, on a quorum of every member. A lock may be told twice. Where neither a prefix
    /// is given nor one is [set](Options::prefix), only locks of this library are told; otherwise
    /// also what other programs have written at such names.
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
    /// `is_invalid` when the prefix cannot begin a name.
    pub fn list(&self, prefix: &str) -> Result<Listing> {
        if !prefix.is_empty() {
            self.options.full_name(&LockName::new(prefix)?)?;
        }
        Ok(Listing::new(&self.home, &self.options, prefix))
    }

    /// Asks all who hold a lock to stop, and says who that is: `None` when the lock is free.
    /// Nothing ends by that: a holder that waits for [`stop_requested`](Self::stop_requested) hears
    /// of it within 2 s, and the command of `tenure run` gets TERM. Look with
    /// [`inspect`](Self::inspect) whether they have stopped.
    ///
    /// The request names its holders, so it stops none that comes later. It is kept for an hour,
    /// beside the lock, and replaces the one before. `reason` is for people: at most 256 bytes
    /// without control characters.
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
    /// As [`cache`](Self::cache), [`inspect`](Self::inspect) and [`Mutex::lock`]; `is_invalid` when
    /// the reason cannot be used; `is_mismatch` when what stands there is no lock of this library.
    pub async fn request_stop(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        reason: &str,
    ) -> Result<Option<Status>> {
        check_text("a reason", reason)?;
        let name = checked(name)?;
        let record = stop::record(&self.home, &self.options, name.clone())?;
        let Some(status) = self.inspect(name).await? else { return Ok(None) };
        if let Some(what) = status.foreign() {
            return Err(self.no_lock(&status.name, &what));
        }
        stop::request(&record, &status.owners(), reason).await?;
        Ok(Some(status))
    }

    /// Waits until the holder of this guard is [asked to stop](Self::request_stop). It looks at the
    /// store every 2 s. `guard` is one of a lock of this `Locks`.
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
    /// Nothing is lost: a request stays where it is.
    ///
    /// # Errors
    /// As [`cache`](Self::cache); `is_refused` when the user may not read the record. A store that
    /// does not answer is asked again.
    pub async fn stop_requested(&self, guard: &Guard) -> Result<StopRequest> {
        let record = stop::record(&self.home, &self.options, guard.name().clone())?;
        stop::requested(&record, guard.owner()).await
    }

    /// Ends all holds of a lock, and says whose they were: `None` when the lock was free. A
    /// holder that has held for a second hears of it at once, where it can hear messages. Every
    /// other one hears of it when its first second is over, or at its next renewal. For operators;
    /// it breaks exclusion for the holder's last moments.
    ///
    /// What is no lock of this library stays as it is: see
    /// [`force_release_foreign`](Self::force_release_foreign).
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
    /// As [`inspect`](Self::inspect); `is_mismatch` when something stands at the name that is no
    /// lock of this library; `is_unknown` when no answer came.
    pub async fn force_release(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
    ) -> Result<Option<Status>> {
        self.force(checked(name)?, ReleaseScope::Any).await
    }

    /// Does what [`force_release`](Self::force_release) does, and also ends the plain lock of
    /// another client: a string at the name, with any bytes in it. A key of another type stays
    /// as it is.
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

    /// Ends the hold that has this token, and no other: for when someone else may have got the lock
    /// meanwhile. Says whose hold it was, or which owner has the lock instead.
    ///
    /// A Redis server keeps no token of a mutex that a busy client has acquired within a second of
    /// another.
    ///
    /// # Cancel safety
    /// The request may still be carried out.
    ///
    /// # Errors
    /// As [`force_release`](Self::force_release); `is_unsupported` when the store keeps no token of
    /// the hold.
    pub async fn force_release_token(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        token: u64,
    ) -> Result<ForcedRelease> {
        let is_meant = |holder: &Holder| token > 0 && holder.fence == token;
        self.force_hold(checked(name)?, is_meant, true).await
    }

    /// Ends the hold of this owner, and no other. Says whose hold it was, or which owner has the
    /// lock instead.
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

    /// Releases a hold in place of its holder, which has died, and returns once the hold is over.
    /// Waiters are woken as if the holder had released it.
    ///
    /// It is for a supervisor that got the [`HoldId`] from [`Guard::hold_id`] while the holder
    /// lived, and that has seen to it that the holder's work has ended too. A holder that is alive
    /// after all is told that its lock is lost.
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
    /// Ends this hold and no other: nothing happens if the hold is over already, no matter who holds
    /// the lock by then.
    ///
    /// # Cancel safety
    /// The request may still be carried out.
    ///
    /// # Errors
    /// `is_unreachable`, `is_refused`; `is_unknown` when no answer came: ask again.
    pub async fn release_hold(&self, id: &HoldId) -> Result<()> {
        let (engine, HoldId { name, rule, owner, hold }) = (&self.home.engine, id);
        let verb = Verb::Release { hold: *hold, fence: Fence::Assign, whose: ReleaseScope::Named };
        let call = Call::new(name, *rule, owner, verb).idempotent();
        match engine.call(&call, engine.now(), self.options.op_timeout).await {
            Ok(Answer::Released { .. } | Answer::Free | Answer::Busy { .. } | Answer::Mismatch { .. }) => {
                Ok(())
            }
            Ok(answer) => Err(engine.nonsense(name, &answer)),
            Err(failure) => Err(engine.failed(name, failure)),
        }
    }

    /// Ends the hold that is meant, which may be named `by_token`.
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
                    self.home.engine.store.url(),
                    format!("the token of lock {name} is not kept at the store; aim at its owner, {owner}"),
                )),
                None => Ok(ForcedRelease::Other(status)),
            };
        };
        let holder = status.holders.swap_remove(at);
        let ended = match &holder.owner {
            // An owner has one grant of the other kinds, so to release it as its owner ends no
            // other.
            Some(owner) if status.kind != Kind::Reentrant => self.release_as(&status, owner).await?,
            _ => self.force_reentrant(&name, holder.fence).await?,
        };
        if ended {
            (status.holders, status.waiters, status.unlisted) = (vec![holder], Vec::new(), 0);
            return Ok(ForcedRelease::Ended(status));
        }
        Ok(self.inspect(name).await?.map_or(ForcedRelease::Free, ForcedRelease::Other))
    }

    /// Releases what this owner holds; returns whether it held.
    async fn release_as(&self, status: &Status, owner: &Owner) -> Result<bool> {
        let (engine, full) = (&self.home.engine, self.options.full_name(&status.name)?);
        let rule = LockSpec::of(status.kind, status.capacity);
        let verb = Verb::Release { hold: 0, fence: Fence::Assign, whose: ReleaseScope::Named };
        let call = Call::new(&full, rule, owner, verb);
        match engine.call(&call, engine.now(), self.options.op_timeout).await {
            Ok(Answer::Released { .. }) => Ok(true),
            Ok(Answer::Free | Answer::Busy { .. } | Answer::Mismatch { .. }) => Ok(false),
            Ok(answer) => Err(engine.nonsense(&full, &answer)),
            Err(failure) => Err(engine.failed(&full, failure)),
        }
    }

    /// Ends all holds of a reentrant mutex that has this token; returns whether it had.
    async fn force_reentrant(&self, name: &LockName, token: u64) -> Result<bool> {
        let full = self.options.full_name(name)?;
        let engine = &self.home.engine;
        let owner = Owner::fresh(&self.options.label, &*engine.runtime);
        let verb = Verb::Release { hold: token, fence: Fence::Assign, whose: ReleaseScope::Any };
        let call = Call::new(&full, LockSpec::Reentrant, &owner, verb);
        match engine.call(&call, engine.now(), self.options.op_timeout).await {
            Ok(Answer::Found(_)) => Ok(true),
            Ok(Answer::Free | Answer::Busy { .. } | Answer::Mismatch { .. }) => Ok(false),
            Ok(answer) => Err(engine.nonsense(&full, &answer)),
            Err(failure) => Err(engine.failed(&full, failure)),
        }
    }

    async fn force(&self, name: LockName, whose: ReleaseScope) -> Result<Option<Status>> {
        let verb = Verb::Release { hold: 0, fence: Fence::Assign, whose };
        let ended = self.ask_as_anyone(name, verb).await?;
        // Most members of a quorum may show what they have not ended.
        match ended.as_ref().and_then(|status| Some((status, status.foreign()?))) {
            Some((status, what)) if whose != ReleaseScope::Foreign => Err(self.no_lock(&status.name, &what)),
            _ => Ok(ended),
        }
    }

    fn no_lock(&self, name: &LockName, what: &str) -> Error {
        Error::no_lock(name, self.home.engine.store.url(), what)
    }

    async fn ask_as_anyone(&self, name: LockName, verb: Verb) -> Result<Option<Status>> {
        let full = self.options.full_name(&name)?;
        let engine = &self.home.engine;
        let owner = Owner::fresh(&self.options.label, &*engine.runtime);
        let mut rule = LockSpec::Mutex;
        loop {
            let call = Call::new(&full, rule, &owner, verb.clone());
            let call = if verb == Verb::Inspect { call.idempotent() } else { call };
            match engine.call(&call, engine.now(), self.options.op_timeout).await {
                Ok(Answer::Found(mut found)) => {
                    let is_reentrant = found.kind == Kind::Reentrant;
                    for holder in found.holders.iter_mut().filter(|_| is_reentrant) {
                        // Of re-entries through this `Locks` the store knows nothing.
                        let owner = parse_value(&holder.value).map(|(owner, _)| owner);
                        holder.weight += owner.map_or(0, |owner| engine.more_holds(&full, &owner));
                    }
                    return Ok(Some(Status::new(name, found)));
                }
                Ok(Answer::Free) => return Ok(None),
                // Another type, on a server that forbids scripts.
                Ok(Answer::Busy { holder, left_ms }) if verb == Verb::Inspect => {
                    let holder = Holding { value: holder.into_bytes(), left_ms, weight: 1 };
                    return Ok(Some(Status::new(name, Found::one(Kind::Mutex, holder))));
                }
                Ok(Answer::Busy { holder, .. }) => {
                    return Err(self.no_lock(&name, &foreign(rule.kind(), holder.as_bytes())));
                }
                Ok(Answer::Mismatch { kind, capacity }) => {
                    rule = self.other_rule(&full, rule, LockSpec::of(kind, capacity))?;
                }
                Ok(answer) => return Err(engine.nonsense(&full, &answer)),
                Err(failure) if verb == Verb::Inspect => return Err(engine.silent(&full, failure)),
                Err(failure) => return Err(engine.failed(&full, failure)),
            }
        }
    }

    /// What this `Locks` has counted since it was opened, with all its clones: acquisitions by kind
    /// and result, waits and holds, renewals, losses, requests. Does no I/O.
    ///
    /// The numbers are always there, whether or not anything reads them. [`Options::groups`] says
    /// which locks have numbers of their own.
    ///
    /// # Guarantees
    /// The loss of a lock is counted before its guard says so, or [`Lost`](crate::Lost) resolves.
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
        let engine = &self.home.engine;
        engine.metrics.snapshot(engine.store.interruptions())
    }

    /// Waits until the releases in the background are done, at most
    /// [`op_timeout`](Options::op_timeout): at the end of a program whose `Locks` is a `static`,
    /// which is never dropped, or before a process hands its work to another. It closes nothing:
    /// guards stay held, and later acquisitions work. On a quorum this includes the members that have not answered a release that a
    /// majority has; that some of those are left is no error.
    ///
    /// Then waits until the `tracing` subscriber has had all events of this `Locks`, at most 1 s.
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
    /// The releases go on.
    ///
    /// # Errors
    /// `is_unreachable` when some are left; they go on.
    pub async fn flush(&self) -> Result<()> {
        let flushed = self.home.engine.flushed_within(self.options.op_timeout).await;
        self.home.events_flushed().await;
        flushed
    }
}

/// A thread for a store.
fn started(url: &str) -> Result<(Arc<Driver>, Arc<dyn Runtime>)> {
    let driver = Driver::start().map_err(|error| Error::no_thread(url, error))?;
    let runtime = Arc::clone(&driver) as Arc<dyn Runtime>;
    Ok((driver, runtime))
}

/// The name, or why it is invalid.
fn checked(name: impl TryInto<LockName, Error: Into<Error>>) -> Result<LockName> {
    name.try_into().map_err(Into::into)
}
