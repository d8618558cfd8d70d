//! Stores and their locks.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use napi::bindgen_prelude::BigInt;
use napi_derive::napi;
use tenure::bindings::{AnyGuard, AnyLock, Candidacy, Report};
use tenure::metrics::Groups;
use tenure::{Elections, Jobs, Listing, Multi, Observer, Owner, Renewal};

use crate::channel::{Channel, Outcome, Thread};
use crate::engine::{Root, lock};
use crate::error::{Failure, Result, Time, checked, closed, duration, invalid, whole};
use crate::hold::Hold;
use crate::kinds::{LockSpec, lock_of, owner};
use crate::value::{self, Value};

type Cell = Mutex<Option<tenure::Locks>>;

/// One `connect`, with all handles that come of it. They end together.
struct Client {
    number: u32,
    thread: Arc<Thread>,
    root: Mutex<Option<Arc<Root>>>,
    cells: Mutex<Vec<Weak<Cell>>>,
}

/// A client with options. The fields are dropped in this order.
#[derive(Clone)]
pub struct Handle {
    locks: Arc<Cell>,
    client: Arc<Client>,
}

impl Handle {
    fn new(thread: &Arc<Thread>, root: Arc<Root>) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let locks = root.locks().clone();
        let client = Arc::new(Client {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            thread: Arc::clone(thread),
            root: Mutex::new(Some(root)),
            cells: Mutex::default(),
        });
        Self::with(client, locks)
    }

    fn with(client: Arc<Client>, locks: tenure::Locks) -> Self {
        let locks = Arc::new(Mutex::new(Some(locks)));
        let mut cells = lock(&client.cells);
        cells.retain(|cell| cell.strong_count() > 0);
        cells.push(Arc::downgrade(&locks));
        drop(cells);
        Self { locks, client }
    }

    /// The locks, unless they are closed.
    pub fn locks(&self) -> Result<tenure::Locks> {
        lock(&self.locks).clone().ok_or_else(closed)
    }

    pub fn call(&self, id: u32, work: impl Future<Output = Outcome> + Send + 'static) {
        self.client.thread.call(self.client.number, id, work);
    }

    pub fn thread(&self) -> &Arc<Thread> {
        &self.client.thread
    }

    pub fn client(&self) -> u32 {
        self.client.number
    }

    /// Starts a call that returns a report.
    pub fn report<T: Into<Report>, E: Into<Failure>>(
        &self,
        id: u32,
        work: impl Future<Output = std::result::Result<T, E>> + Send + 'static,
    ) {
        self.call(id, async move { work.await.map(Value::of).map_err(Into::into) });
    }

    /// Starts a call that returns a hold, or `null` for a busy lock.
    pub fn grant<G: Into<AnyGuard>>(
        &self,
        id: u32,
        work: impl Future<Output = tenure::Result<Option<G>>> + Send + 'static,
    ) {
        let stores = vec![self.clone()];
        self.call(id, async move { Ok(granted(stores, work.await?)) });
    }
}

pub fn granted(stores: Vec<Handle>, held: Option<impl Into<AnyGuard>>) -> Value {
    held.map_or(Value::NULL, |held| Value::Hold(Box::new(Hold::new(stores, held.into()))))
}

/// How locks are held.
#[napi(object)]
pub struct StoreOptions {
    /// The lease: how long the lock outlives a holder that is gone. Default: 15 s.
    pub ttl: Option<Time>,
    /// Whether the lease is renewed while the guard lives. Default: yes, at a third of the lease.
    pub renew: Option<bool>,
    /// Maximum time one guard may hold the lock, however often it is renewed. Default: no limit.
    pub max_hold: Option<Time>,
    /// How long before another client can get the lock its loss is reported. At most a third of the lease.
    pub grace: Option<Time>,
    /// Binds the hold to child processes too, on `file:` stores.
    pub inherit_liveness: Option<bool>,
    /// Timeout of one request. Default: 1 s.
    pub op_timeout: Option<Time>,
    /// How long a wait keeps retrying while the store does not answer at all. Default: 60 s.
    pub patience: Option<Time>,
    /// Text shown to people beside the holder's user, host and process.
    pub label: Option<String>,
    /// Prepended to each name to form the store's key.
    pub prefix: Option<String>,
    /// Allows a mutex without a fencing token on a server that forbids scripts.
    pub unfenced: Option<bool>,
    /// A character: metrics are grouped by the part of a lock's name before it.
    pub group_by: Option<String>,
}

/// A store of locks with options.
#[napi]
pub struct Store {
    handle: Handle,
}

impl Store {
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    pub fn locks(&self) -> Result<tenure::Locks> {
        self.handle.locks()
    }

    /// Starts a call with the locks.
    pub fn start<F, T: Into<Report>>(&self, id: u32, work: impl FnOnce(tenure::Locks) -> F) -> Result<()>
    where
        F: Future<Output = tenure::Result<T>> + Send + 'static,
    {
        self.handle.report(id, work(self.locks()?));
        Ok(())
    }

    pub fn stream(&self, source: Source) -> Stream {
        Stream { source: Arc::new(tokio::sync::Mutex::new(source)), handle: self.handle.clone() }
    }

    fn acquire(&self, id: u32, stores: Vec<Handle>, lock: AnyLock, wait: Option<Time>) -> Result<()> {
        let wait = wait.map(|wait| duration("waitMs", &wait)).transpose()?;
        self.handle.call(id, async move { Ok(granted(stores, lock.acquire(wait).await?)) });
        Ok(())
    }
}

#[napi]
impl Store {
    /// Opens a store without I/O.
    #[napi(factory)]
    pub fn open(channel: &Channel, url: String) -> Result<Self> {
        Ok(Self { handle: Handle::new(channel.thread(), checked(Root::open(&url))?) })
    }

    /// A majority of independent stores.
    #[napi(factory)]
    pub fn quorum(channel: &Channel, members: Vec<&Store>) -> Result<Self> {
        let members = members.iter().map(|member| member.locks()).collect::<Result<Vec<_>>>()?;
        Ok(Self { handle: Handle::new(channel.thread(), checked(Root::quorum(members))?) })
    }

    /// The same store with changed options.
    #[napi]
    pub fn configured(&self, options: StoreOptions) -> Result<Self> {
        let locks = self.locks()?;
        let mut all = locks.options().clone();
        let time = |what: &str, value: Option<Time>| value.map(|value| duration(what, &value)).transpose();
        all.ttl = time("ttl", options.ttl)?.unwrap_or(all.ttl);
        all.max_hold = time("maxHold", options.max_hold)?.or(all.max_hold);
        all.grace = time("grace", options.grace)?.unwrap_or(all.grace);
        all.op_timeout = time("opTimeout", options.op_timeout)?.unwrap_or(all.op_timeout);
        all.patience = time("patience", options.patience)?.unwrap_or(all.patience);
        if let Some(renew) = options.renew {
            all.renewal = if renew { Renewal::Automatic } else { Renewal::Off };
        }
        all.inherit_liveness = options.inherit_liveness.unwrap_or(all.inherit_liveness);
        all.label = options.label.unwrap_or(all.label);
        all.prefix = options.prefix.unwrap_or(all.prefix);
        all.unfenced = options.unfenced.unwrap_or(all.unfenced);
        let mut group_by = options.group_by.as_deref().unwrap_or_default().chars();
        all.groups = group_by.next().map_or(all.groups, Groups::by_prefix);
        if group_by.next().is_some() {
            return Err(invalid("groupBy: expected one character"));
        }
        let locks = checked(locks.with(|_| all))?;
        Ok(Self { handle: Handle::with(Arc::clone(&self.handle.client), locks) })
    }

    #[napi(getter)]
    pub fn url(&self) -> Result<String> {
        Ok(self.locks()?.url().to_owned())
    }

    #[napi(getter)]
    pub fn label(&self) -> Result<String> {
        Ok(self.locks()?.options().label.clone())
    }

    #[napi(getter)]
    pub fn ttl(&self) -> Result<f64> {
        Ok(value::millis(self.locks()?.options().ttl))
    }

    #[napi]
    pub fn ping(&self, id: u32) -> Result<()> {
        self.start(id, async move |locks| locks.ping().await)
    }

    #[napi]
    pub fn flush(&self, id: u32) -> Result<()> {
        self.start(id, async move |locks| locks.flush().await)
    }

    /// Cancels the calls of the client, releases its locks, and waits for the releases. Later calls are refused.
    #[napi]
    pub fn close(&self, id: u32) {
        let client = Arc::clone(&self.handle.client);
        let locks: Vec<_> = lock(&client.cells).iter().filter_map(Weak::upgrade).collect();
        let locks: Vec<_> = locks.iter().filter_map(|cell| lock(cell).take()).collect();
        let thread = Arc::clone(&client.thread);
        thread.cancel_calls(Some(client.number));
        // Of no client, so that it does not cancel itself.
        thread.call(0, id, async move {
            // Waiters first: a release would grant its lock to one of them.
            tokio::task::yield_now().await;
            client.thread.release_holds(Some(client.number));
            let root = lock(&client.root).take();
            let flushed = match &root {
                Some(root) => root.locks().flush().await,
                None => Ok(()),
            };
            drop(locks);
            drop(root);
            Ok(Value::of(flushed?))
        });
    }

    /// Waits for `wait` milliseconds, 0 to try once, or without a limit.
    #[napi]
    pub fn lock(&self, id: u32, spec: LockSpec, wait: Option<Time>) -> Result<()> {
        self.acquire(id, vec![self.handle.clone()], lock_of(&self.locks()?, spec)?, wait)
    }

    /// Several locks, each of its store, all or none.
    #[napi]
    pub fn lock_all(
        &self,
        id: u32,
        stores: Vec<&Store>,
        specs: Vec<LockSpec>,
        wait: Option<Time>,
    ) -> Result<()> {
        let parts =
            stores.iter().zip(specs).map(|(store, spec)| checked(lock_of(&store.locks()?, spec)?.part()));
        let all = Multi::new(parts.collect::<Result<Vec<_>>>()?);
        let stores = stores.iter().map(|store| store.handle.clone()).collect();
        self.acquire(id, stores, AnyLock::Multi(checked(all)?), wait)
    }

    /// Refuses an invalid name or number of permits.
    #[napi]
    pub fn check(&self, spec: LockSpec) -> Result<()> {
        lock_of(&self.locks()?, spec).map(drop)
    }

    /// How often the owner of a reentrant mutex holds it.
    #[napi]
    pub fn hold_count(&self, id: u32, spec: LockSpec) -> Result<()> {
        let lock = lock_of(&self.locks()?, spec)?;
        self.start(id, async move |_| lock.hold_count().await)
    }

    #[napi]
    pub fn set_permits(&self, id: u32, name: String, permits: f64) -> Result<()> {
        let permits = whole("permits", permits)?;
        let semaphore = checked(self.locks()?.semaphore(name, permits))?;
        self.start(id, async move |_| semaphore.set_permits(permits).await)
    }

    #[napi]
    pub fn inspect(&self, id: u32, name: String) -> Result<()> {
        self.start(id, async move |locks| locks.inspect(name).await)
    }

    /// The held `locks`, `jobs` or `elections`.
    #[napi]
    pub fn list(&self, what: String, prefix: String) -> Result<Stream> {
        let locks = self.locks()?;
        Ok(self.stream(match what.as_str() {
            "jobs" => Source::Jobs(checked(locks.jobs(&prefix))?),
            "elections" => Source::Elections(checked(locks.elections(&prefix))?),
            _ => Source::Locks(checked(locks.list(&prefix))?),
        }))
    }

    /// Ends all holds, that of an owner, or that with a token.
    #[napi]
    pub fn force_release(
        &self,
        id: u32,
        name: String,
        by: Option<String>,
        token: Option<BigInt>,
    ) -> Result<()> {
        let by = by.as_deref().map(owner).transpose()?;
        let token = match token.as_ref().map(BigInt::get_u64) {
            Some((false, token, true)) => Some(token),
            Some(_) => return Err(invalid("token: expected a bigint from 0 with at most 64 bits")),
            None => None,
        };
        self.start(id, async move |locks| {
            Ok(match (by, token) {
                (Some(by), _) => Report::from(locks.force_release_owner(name, &by).await?),
                (None, Some(token)) => locks.force_release_token(name, token).await?.into(),
                (None, None) => locks.force_release(name).await?.into(),
            })
        })
    }

    /// Removes a string of another program.
    #[napi]
    pub fn force_release_foreign(&self, id: u32, name: String) -> Result<()> {
        self.start(id, async move |locks| locks.force_release_foreign(name).await)
    }

    /// Asks the holders to stop.
    #[napi]
    pub fn request_stop(&self, id: u32, name: String, reason: String) -> Result<()> {
        self.start(id, async move |locks| locks.request_stop(name, &reason).await)
    }

    #[napi]
    pub fn resume(&self, id: u32, name: String, by: String) -> Result<()> {
        let (by, locks) = (owner(&by)?, self.locks()?);
        self.handle.grant(id, async move { locks.resume(name, &by).await });
        Ok(())
    }

    /// Extends a detached hold: its remaining milliseconds, or `null` if it has ended.
    #[napi]
    pub fn renew_detached(&self, id: u32, name: String, by: String) -> Result<()> {
        let by = owner(&by)?;
        self.start(id, async move |locks| locks.renew_detached(name, &by).await)
    }

    #[napi]
    pub fn prometheus(&self) -> Result<String> {
        Ok(self.locks()?.metrics().to_prometheus())
    }
}

/// Where a stream comes from.
pub enum Source {
    Locks(Listing),
    Jobs(Jobs),
    Elections(Elections),
    Changes(Observer),
    Terms(Candidacy),
}

/// Values that come one by one.
#[napi]
pub struct Stream {
    source: Arc<tokio::sync::Mutex<Source>>,
    handle: Handle,
}

#[napi]
impl Stream {
    /// The next value; `null` after the last, if it does not wait for the next change, and for a candidate once the
    /// call is answered.
    #[napi]
    pub fn next(&self, id: u32, waits: bool) {
        let (source, handle) = (Arc::clone(&self.source), self.handle.clone());
        let answer = handle.thread().answer(id);
        self.handle.call(id, async move {
            Ok(Value::Report(match &mut *source.lock().await {
                Source::Locks(listing) => listing.next().await?.into(),
                Source::Jobs(jobs) => jobs.next().await?.into(),
                Source::Elections(elections) => elections.next().await?.into(),
                Source::Changes(observer) if waits => observer.next().await?.into(),
                Source::Changes(observer) => observer.try_next().await?.into(),
                Source::Terms(candidacy) => {
                    let term = candidacy.campaign_until(async { drop(answer.await) }).await?;
                    return Ok(granted(vec![handle], term));
                }
            }))
        });
    }
}

/// A fresh owner for reentrant mutexes.
#[napi]
pub fn new_owner(label: String) -> Result<String> {
    Ok(checked(Owner::new(&label))?.as_str().to_owned())
}
