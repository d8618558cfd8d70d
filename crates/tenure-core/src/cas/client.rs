//! The state of one client: its sessions, the order of its requests, and the expiry of its holds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{FutureExt, select};
use tokio::sync::{Mutex, MutexGuard, Notify, OwnedMutexGuard};

use super::WriteState;
use super::backend::{Backend, Session, Stamp, Stored};
use super::holders::AllHolders;
use super::known::{Known, QueuedAcquire};
use super::leases::{About, ClientHold, HoldKey, KeptSession, SharedTable, life};
use super::lock_snapshot::LockSnapshot;
use crate::moment::Moment;
use crate::name::LockName;
use crate::net::by;
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::lease::TTL_MIN;
use crate::protocol::{self, Data, Fence, LockSpec, Now, Op, ReleaseScope, Verb};
use crate::runtime::Runtime;
use crate::store::{Cursor, Failure, Page, Signals};
use crate::sync::Locked;

/// How long a renewal of a lease waits for a request of another task, whose answer may be lost, before it goes
/// ahead: the other task may have more time than the renewal has.
pub(super) fn renewal_patience(lease: Duration) -> Duration {
    if planted(Bug::CasKeepAwaited) { Duration::MAX } else { lease / 24 }
}

/// Maximum sessions of other clients checked by each request: those of holders and of the first waiters.
pub(super) const LOOKED_AT: usize = 32;

/// Requests with the same key go one after another.
type KeyedMutexes<K, T> = Locked<BTreeMap<K, Arc<Mutex<T>>>>;

/// One client of a server.
pub(super) struct CasClient {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) table: SharedTable,
    /// Interrupted when a session is lost.
    pub(super) signals: Signals,
    /// The last known value of each lock, behind the mutex that serializes its requests.
    names: KeyedMutexes<LockName, Known>,
    /// Acquisitions for the next batch of each lock that has a batching task.
    pub(super) queued: Locked<BTreeMap<LockName, VecDeque<QueuedAcquire>>>,
    /// Serializes the requests of one owner about one lock.
    owners: KeyedMutexes<(LockName, Owner), ()>,
    /// Per lifetime in seconds: one task keeps the session alive, and the others wait for it.
    keeping: KeyedMutexes<u64, ()>,
    /// Held while a session is opened.
    opening: Mutex<()>,
    /// When the backend was last told to use another server.
    switched_at: Locked<Moment>,
    /// Number of writes of unknown outcome, each of which may still be carried out.
    unknown_writes: AtomicU64,
    /// Number of those that a write barrier has ruled out.
    ruled_out: AtomicU64,
    barrier: Mutex<()>,
    /// Notified when a hold is recorded that expires before the sweeper wakes.
    pub(super) entered: Arc<Notify>,
    /// When the sweeper wakes, on the clock of `now`.
    sweeps_at: AtomicU64,
    has_sweeper: AtomicBool,
    /// Holders that subscribe to the end of their holds.
    pub(super) holders: Arc<AllHolders>,
}

/// A write in flight. Unless its outcome becomes known, the next request needs a write barrier.
pub(super) struct WriteInFlight<'a> {
    client: &'a CasClient,
    sents: Vec<WriteState>,
    is_known: bool,
}

impl<'a> WriteInFlight<'a> {
    /// `None` if the caller of one of the requests no longer waits.
    pub(super) fn new(client: &'a CasClient, sents: Vec<WriteState>) -> Option<Self> {
        let are_open = sents.iter().filter(|sent| !sent.open()).count() == 0;
        let in_flight = Self { client, sents, is_known: false };
        if are_open {
            return Some(in_flight);
        }
        in_flight.known();
        None
    }

    pub(super) fn known(mut self) {
        self.is_known = true;
        self.sents.iter().for_each(WriteState::close);
    }
}

impl Drop for WriteInFlight<'_> {
    fn drop(&mut self) {
        if !self.is_known {
            self.client.unknown();
        }
    }
}

/// Serializes the requests with one key. It is removed with its last request, even if that is dropped, unless
/// the client `keeps` it.
pub(super) struct KeyedMutex<'a, K: Ord, T> {
    client: &'a CasClient,
    mutexes: &'a KeyedMutexes<K, T>,
    key: K,
    mutex: Option<Arc<Mutex<T>>>,
    keeps: fn(&CasClient, &K) -> bool,
}

impl<K: Ord, T> Deref for KeyedMutex<'_, K, T> {
    type Target = Mutex<T>;
    fn deref(&self) -> &Mutex<T> {
        self.mutex.as_ref().expect("it is there until it is dropped")
    }
}

impl<K: Ord, T> Drop for KeyedMutex<'_, K, T> {
    fn drop(&mut self) {
        let mut mutexes = self.mutexes.lock();
        self.mutex = None;
        let is_idle = mutexes.get(&self.key).is_some_and(|mutex| Arc::strong_count(mutex) == 1);
        if is_idle && !(self.keeps)(self.client, &self.key) {
            mutexes.remove(&self.key);
        }
    }
}

impl CasClient {
    pub(super) fn new(backend: Arc<dyn Backend>, runtime: Arc<dyn Runtime>) -> Arc<Self> {
        Arc::new(Self {
            backend,
            runtime,
            table: SharedTable::default(),
            signals: Signals::default(),
            names: Locked::default(),
            queued: Locked::default(),
            owners: Locked::default(),
            keeping: Locked::default(),
            opening: Mutex::default(),
            switched_at: Locked::default(),
            unknown_writes: AtomicU64::new(0),
            ruled_out: AtomicU64::new(0),
            barrier: Mutex::default(),
            entered: Arc::default(),
            sweeps_at: AtomicU64::new(0),
            has_sweeper: AtomicBool::new(false),
            holders: Arc::default(),
        })
    }

    /// Makes the backend use another server after a timeout of a request that was sent at this time. Timeouts of
    /// requests to the server before that one show nothing about it.
    pub(super) fn silent(&self, sent_at: Moment) {
        let mut switched_at = self.switched_at.lock();
        if *switched_at <= sent_at {
            *switched_at = self.runtime.now();
            self.backend.silent();
        }
    }

    /// Records a write of unknown outcome.
    pub(super) fn unknown(&self) {
        self.unknown_writes.fetch_add(1, Ordering::AcqRel);
    }

    /// Both clocks of a request. This machine's clock measures only this client's own holds, and tokens are
    /// revisions.
    pub(super) fn now(&self) -> Now {
        // Never 0, so that 0 always means expired.
        Now { ms: self.runtime.now().millis() + 1, unix_us: 0 }
    }

    fn keyed<'a, K: Ord + Clone, T: Default>(
        &'a self,
        mutexes: &'a KeyedMutexes<K, T>,
        key: K,
        keeps: fn(&Self, &K) -> bool,
    ) -> KeyedMutex<'a, K, T> {
        let mutex = Some(Arc::clone(mutexes.lock().entry(key.clone()).or_default()));
        KeyedMutex { client: self, mutexes, key, mutex, keeps }
    }

    /// Serializes the requests of one owner about one lock in the order in which they were sent.
    pub(super) fn owner_mutex(
        &self,
        name: &LockName,
        owner: &Owner,
    ) -> KeyedMutex<'_, (LockName, Owner), ()> {
        self.keyed(&self.owners, (name.clone(), owner.clone()), |_, _| false)
    }

    /// Serializes acquisitions of one lock, so that those of one client do not conflict. Without a hold of this
    /// client there is nothing to remember: its first request assumes that the lock is free.
    pub(super) fn known(&self, name: &LockName) -> KeyedMutex<'_, LockName, Known> {
        let keeps = |client: &Self, name: &LockName| client.table.lock().holds.contains_key(name);
        self.keyed(&self.names, name.clone(), keeps)
    }

    /// Caches the value of a queue seen by a watch, so that the next compare-and-swap does not fail. A lock
    /// without a cached value is skipped, because this client may have removed it itself.
    pub(super) fn saw(&self, name: &LockName, stored: &Stored) {
        let names = self.names.lock();
        let Some(Ok(mut known)) = names.get(name).map(|mutex| mutex.try_lock()) else { return };
        let at = |stamp: Stamp| (stamp.base, stamp.version);
        if known.stored.as_ref().is_some_and(|known| at(known.stamp) < at(stored.stamp)) {
            known.stored = Some(stored.clone());
        }
    }

    /// Waits for a mutex, for at most `patience`; `None` if it is not free by then.
    pub(super) async fn lock_within<'a, T>(
        &self,
        mutex: &'a Mutex<T>,
        patience: Option<Duration>,
    ) -> Option<MutexGuard<'a, T>> {
        match (mutex.try_lock(), patience) {
            (Ok(mutex), _) => Some(mutex),
            (Err(_), Some(patience)) => by(&*self.runtime, self.runtime.now() + patience, mutex.lock()).await,
            (Err(_), None) => Some(mutex.lock().await),
        }
    }

    /// If the outcome of an earlier write is unknown, makes sure that it can no longer take effect. Waits for at
    /// most `patience` for a request of another task that does so.
    pub(super) async fn write_barrier(&self, patience: Option<Duration>) -> Result<(), Failure> {
        let is_passed =
            || self.ruled_out.load(Ordering::Acquire) == self.unknown_writes.load(Ordering::Acquire);
        if is_passed() || planted(Bug::CasNoBarrier) {
            return Ok(());
        }
        let _serial = self.lock_within(&self.barrier, patience).await;
        let unknown = self.unknown_writes.load(Ordering::Acquire);
        if is_passed() {
            return Ok(());
        }
        let sessions: Vec<Session> = self.table.lock().leases.values().map(|lease| lease.session).collect();
        // Without a session there is no marker that a late write could still match.
        let markers = match sessions.is_empty() {
            true => Vec::new(),
            false => self.backend.bump(sessions.clone()).await.map_err(Failure::not_sent)?,
        };
        let mut lost = false;
        for (session, marker) in sessions.into_iter().zip(markers) {
            let mut table = self.table.lock();
            match marker {
                Some(marker) => {
                    if let Some(lease) = table.lease_of(session) {
                        lease.marker = lease.marker.max(marker);
                    }
                }
                None => lost |= table.lost(session),
            }
        }
        self.ruled_out.fetch_max(unknown, Ordering::AcqRel);
        if lost {
            self.signal_loss();
        }
        Ok(())
    }

    /// A session for holds of this ttl that lives at least for `need` from now on.
    pub(super) async fn lease(&self, ttl: Duration, need: Duration) -> Result<KeptSession, Failure> {
        self.lease_of_life(life(ttl), need, None).await
    }

    /// A session of this lifetime that lives at least for `need` from now on, and whose marker was read within
    /// `age`. Concurrent requests share one keep-alive. Another one follows if it is not answered within a part
    /// of `need`.
    pub(super) async fn lease_of_life(
        &self,
        life: Duration,
        need: Duration,
        age: Option<Duration>,
    ) -> Result<KeptSession, Failure> {
        let class = life.as_secs();
        let known = || {
            let (lease, now) = (self.table.lock().leases.get(&class).copied(), self.runtime.now());
            let is_recent = |lease: &KeptSession| age.is_none_or(|age| now.since(lease.marked) < age);
            lease.map(|lease| (lease, lease.left(now) >= need && is_recent(&lease)))
        };
        if let Some((lease, true)) = known() {
            return Ok(lease);
        }
        let _own = self.may_keep(class, need).await;
        let mut opening = None;
        loop {
            let sent = self.runtime.now();
            match known() {
                Some((lease, true)) => return Ok(lease),
                Some((lease, false)) => {
                    let session = lease.session;
                    let kept = match age {
                        Some(_) => {
                            let kept = self.backend.keep(session, lease.marker).await;
                            kept.map(|marker| Some((marker?, sent)))
                        }
                        None => {
                            let lives = self.backend.touch(session).await;
                            lives.map(|lives| lives.then_some((lease.marker, lease.marked)))
                        }
                    };
                    match kept.map_err(Failure::not_sent)? {
                        Some((marker, marked)) => {
                            let lease = KeptSession { marker, marked, kept: sent, ..lease };
                            return Ok(self.table.lock().kept(lease));
                        }
                        None => self.lost(session),
                    }
                }
                None if opening.is_none() => opening = Some(self.opening.lock().await),
                None => {
                    let (session, marker) = self.backend.open(life, true).await.map_err(Failure::not_sent)?;
                    let lease = KeptSession { session, life, marker, marked: sent, kept: sent };
                    self.table.lock().leases.insert(class, lease);
                    return Ok(lease);
                }
            }
        }
    }

    /// Permission to send a keep-alive. If the one before is not answered in time, one request goes ahead and the
    /// others wait for it: a keep-alive for each hold would keep a slow server slow.
    async fn may_keep(&self, class: u64, need: Duration) -> OwnedMutexGuard<()> {
        let mut mutex = Arc::clone(self.keeping.lock().entry(class).or_default());
        loop {
            let until = self.runtime.now() + renewal_patience(need);
            if let Some(own) = by(&*self.runtime, until, Arc::clone(&mutex).lock_owned()).await {
                return own;
            }
            let mut keeping = self.keeping.lock();
            let current = keeping.entry(class).or_default();
            if Arc::ptr_eq(current, &mutex) {
                *current = Arc::default();
            }
            mutex = Arc::clone(current);
        }
    }

    /// A session for a write that binds nothing to it, when none is open.
    pub(super) async fn any_lease(&self) -> Result<KeptSession, Failure> {
        const UNDECLARED: Duration = Duration::from_secs(10);
        let declared = match self.signals.longest_ttl() {
            Duration::ZERO => UNDECLARED,
            ttl => ttl.max(TTL_MIN),
        };
        self.lease(declared, Duration::ZERO).await
    }

    /// Records the loss of a session and of everything bound to it.
    pub(super) fn lost(&self, session: Session) {
        let was_own = self.table.lock().lost(session);
        if was_own {
            self.signal_loss();
        }
    }

    fn signal_loss(&self) {
        self.signals.interrupt();
    }

    /// Checks which sessions are alive that this client does not keep alive: the first `most`, or all if one of
    /// those is gone, so that one request removes the holds of many machines that crashed together. Recent results
    /// are reused.
    pub(super) async fn look_at(
        &self,
        name: &LockName,
        snapshot: &LockSnapshot,
        most: usize,
    ) -> Result<(), Failure> {
        /// No server tracks lifetimes with a finer resolution.
        const FRESH: Duration = Duration::from_millis(500);
        let sessions = || snapshot.bindings.values().map(|binding| binding.session);
        if self.look_at_first(name, sessions(), most, FRESH).await? && most < usize::MAX {
            self.look_at_first(name, sessions(), usize::MAX, FRESH).await?;
        }
        Ok(())
    }

    /// Whether one of the many holders of a lock has died of which [`look_at`](Self::look_at) has not heard.
    pub(super) async fn has_lost_holder(
        &self,
        name: &LockName,
        snapshot: &LockSnapshot,
        living: &BTreeMap<u64, u64>,
    ) -> Result<bool, Failure> {
        /// Limits what a crowd that finds such a lock busy asks of the server.
        const RECENT: Duration = Duration::from_secs(5);
        let Some(Data::Queue(queue)) = &snapshot.data else { return Ok(false) };
        let holding = queue.holding().filter(|number| living.contains_key(number));
        let sessions = holding.filter_map(|number| Some(snapshot.bindings.get(&number)?.session));
        let sessions: BTreeSet<Session> = sessions.collect();
        if sessions.len() <= LOOKED_AT {
            return Ok(false);
        }
        self.look_at_first(name, sessions.into_iter(), usize::MAX, RECENT).await
    }

    /// Checks up to `most` sessions that were not seen alive within `age`. Returns whether one is gone.
    async fn look_at_first(
        &self,
        name: &LockName,
        all: impl Iterator<Item = Session>,
        most: usize,
        age: Duration,
    ) -> Result<bool, Failure> {
        let now = self.runtime.now();
        let (mut sessions, mut is_any_gone) = (Vec::new(), false);
        {
            let mut table = self.table.lock();
            let opened = table.watched.get(name).map(|watched| watched.opened);
            let opened = opened.filter(|_| !planted(Bug::CasDeathBeforeWatch));
            let mut checked = BTreeSet::new();
            for session in all {
                let own = table.lease_of(session).copied();
                // A session that was not kept alive for its lifetime, as in a paused process, may be gone.
                let keeps = self.backend.keeps_sessions() || planted(Bug::CasOwnSessionTrusted);
                let lives = own.is_some_and(|own| keeps || !own.left(now).is_zero());
                // One client may hold hundreds of permits with one session.
                if lives || !checked.insert(session) {
                    continue;
                }
                let is_known = match table.others.get(&session) {
                    Some(Some(at)) => now.since(*at) < age && opened.is_none_or(|opened| *at > opened),
                    // The server has said so before, and a session never lives again.
                    Some(None) => {
                        is_any_gone = true;
                        true
                    }
                    // Never asked about.
                    None => false,
                };
                if !is_known {
                    sessions.push(session);
                }
                if checked.len() >= most {
                    break;
                }
            }
        }
        if sessions.is_empty() {
            return Ok(is_any_gone);
        }
        let asked = match planted(Bug::CasSessionOfAnother) {
            true => sessions.iter().map(|session| session + 1).collect(),
            false => sessions.clone(),
        };
        let living = self.backend.living(asked).await.map_err(Failure::not_sent)?;
        let mut table = self.table.lock();
        for (session, lives) in sessions.into_iter().zip(living) {
            is_any_gone |= !lives;
            table.saw(session, lives.then_some(now));
        }
        Ok(is_any_gone)
    }

    /// The expiry of each hold and place of a lock that has not expired.
    pub(super) fn ends(&self, name: &LockName, snapshot: &LockSnapshot, now: Now) -> BTreeMap<u64, u64> {
        let mut table = self.table.lock();
        let mut ends = BTreeMap::new();
        for (number, owner, hold) in snapshot.entries() {
            let Some(binding) = snapshot.bindings.get(&number) else { continue };
            let own = table.hold(name, &(owner, hold)).filter(|own| own.is_bound_to(binding.session));
            let own = own.map(|own| own.end_ms);
            let is_gone = table.others.get(&binding.session) == Some(&None);
            let end_ms = match own {
                _ if is_gone && !planted(Bug::CasDeathIgnored) => 0,
                Some(end_ms) => end_ms,
                // A hold of this client that it has no record of has already been removed.
                None if table.lease_of(binding.session).is_some() => 0,
                None if planted(Bug::CasLivingPassed) && snapshot.waits(number) => 0,
                None => now.ms.saturating_add(binding.ttl_ms),
            };
            if end_ms >= now.ms {
                ends.insert(number, end_ms);
            }
        }
        ends
    }

    pub(super) async fn list(&self, prefix: &str, from: Cursor) -> Result<Page, Failure> {
        let listed = self.backend.list(prefix, from).await?;
        let mut page = Page { locks: Vec::new(), next: listed.next };
        for (name, stored) in listed.locks {
            // Values that are not locks are reported by requests for them.
            let Some(snapshot) = LockSnapshot::read(Some(&stored)) else { continue };
            self.look_at(&name, &snapshot, usize::MAX).await?;
            let now = self.now();
            let state = snapshot.state(&self.ends(&name, &snapshot, now));
            let found = protocol::found(&state, now).map(|mut found| {
                found.unlisted += snapshot.unread_places();
                found
            });
            page.locks.extend(found.map(|found| (name, found)));
        }
        Ok(page)
    }

    /// Closes the sessions that nothing has been bound to for a while: that of places once all of them hold, and
    /// that of holds in a process that only waits.
    pub(super) fn close_idle(self: &Arc<Self>) {
        const IDLE: Duration = Duration::from_secs(5);
        let now = self.runtime.now();
        // A late write may be guarded by any session, until the barrier has changed the markers of all.
        if self.ruled_out.load(Ordering::Acquire) != self.unknown_writes.load(Ordering::Acquire) {
            return;
        }
        let idle = {
            let mut table = self.table.lock();
            // A look at all holds, so not by each of their renewals.
            if table.leases.len() < 2 || now.since(table.cleared) < IDLE {
                return;
            }
            table.cleared = now;
            let holds = table.holds.values().flat_map(BTreeMap::values);
            let sessions = |hold: &ClientHold| [Some(hold.session), hold.former];
            let bound: BTreeSet<Session> = holds.flat_map(sessions).flatten().collect();
            let mut idle = Vec::new();
            table.leases.retain(|_, lease| {
                let is_idle = now.since(lease.kept) >= IDLE && !bound.contains(&lease.session);
                idle.extend(is_idle.then_some(lease.session));
                !is_idle
            });
            idle
        };
        idle.into_iter().for_each(|session| self.close(session));
    }

    /// Closes a session in the background. If that fails, it expires by itself.
    pub(super) fn close(self: &Arc<Self>, session: Session) {
        let backend = Arc::clone(&self.backend);
        self.runtime.spawn(async move { drop(backend.close(session).await) }.boxed());
    }

    /// Starts or wakes the sweeper, which removes holds that are not renewed. A hold that expires at `end_ms`
    /// was recorded.
    pub(super) fn sweep(self: &Arc<Self>, end_ms: u64) {
        if self.has_sweeper.swap(true, Ordering::AcqRel) {
            self.sweep_sooner(end_ms);
            return;
        }
        let sweeper = sweep(Arc::downgrade(self), Arc::clone(&self.runtime), Arc::clone(&self.entered));
        self.runtime.spawn(sweeper.boxed());
    }

    /// Wakes the sweeper if this expiry comes before its next wake-up, since each wake-up scans all holds.
    pub(super) fn sweep_sooner(&self, end_ms: u64) {
        if end_ms < self.sweeps_at.load(Ordering::Acquire) {
            self.entered.notify_one();
        }
    }

    /// Removes expired holds; returns the next expiry.
    fn remove_expired(self: &Arc<Self>) -> Option<u64> {
        let now_ms = self.now().ms;
        let mut over: Vec<(LockName, LockSpec, HoldKey)> = Vec::new();
        let mut next = None;
        let mut table = self.table.lock();
        for (name, holds) in &mut table.holds {
            for (key, hold) in holds.iter_mut().filter(|(_, hold)| !hold.is_ending) {
                if hold.end_ms < now_ms {
                    hold.is_ending = true;
                    over.push((name.clone(), hold.spec, key.clone()));
                } else {
                    next = Some(next.map_or(hold.end_ms, |next: u64| next.min(hold.end_ms)));
                }
            }
        }
        // Set while the table is locked, so that no hold is recorded between the scan and this.
        self.sweeps_at.store(next.unwrap_or(u64::MAX), Ordering::Release);
        drop(table);
        for (name, spec, key) in over {
            let client = Arc::clone(self);
            self.runtime.spawn(async move { client.end(&name, spec, &key).await }.boxed());
        }
        next
    }

    /// Removes an expired hold, unless an answer that has just arrived extended it. No request of its owner
    /// may be in flight meanwhile, because its answer could be based on the hold being removed.
    async fn remove_expired_hold(
        self: &Arc<Self>,
        name: &LockName,
        spec: LockSpec,
        key: &HoldKey,
    ) -> Result<protocol::Answer, Failure> {
        let mutex = self.owner_mutex(name, &key.0);
        let _serial = mutex.lock().await;
        let now_ms = self.now().ms;
        let (is_over, about) = match self.table.lock().hold(name, key) {
            Some(ClientHold { end_ms, ticket: Some(ticket), .. }) => {
                (*end_ms < now_ms, About::Place(*ticket))
            }
            Some(ClientHold { end_ms, token: None, .. }) => (*end_ms < now_ms, About::Unknown),
            Some(ClientHold { end_ms, .. }) => (*end_ms < now_ms, About::Request),
            None => (true, About::Request),
        };
        if !is_over {
            return Ok(protocol::Answer::Free);
        }
        // Release on behalf of an owner without a hold: any request removes what has expired.
        let verb = Verb::Release { hold: 0, fence: Fence::Assign, whose: ReleaseScope::Own };
        let owner = Owner::fresh("", &*self.runtime);
        let op = Op { name: name.clone(), spec, owner, request: 0, verb };
        self.call_about(&op, &WriteState::default(), about, None).await
    }

    /// Removes an expired hold, retrying until it succeeds.
    async fn end(self: Arc<Self>, name: &LockName, spec: LockSpec, key: &HoldKey) {
        let limit = Duration::from_secs(5);
        let mut pause = Duration::from_millis(100);
        loop {
            let until = self.runtime.now() + limit;
            let outcome = by(&*self.runtime, until, self.remove_expired_hold(name, spec, key).boxed()).await;
            match outcome {
                Some(Ok(protocol::Answer::More(_))) => {}
                Some(Ok(_)) => break,
                _ => {
                    self.runtime.sleep_until(self.runtime.now() + pause).await;
                    pause = (2 * pause).min(limit);
                }
            }
        }
        let mut table = self.table.lock();
        // It may have been requested again meanwhile.
        let now_ms = self.now().ms;
        if let Some(hold) = table.hold(name, key) {
            hold.is_ending = false;
            let end_ms = hold.end_ms;
            if end_ms < now_ms {
                table.forget(name, key);
            } else {
                self.sweep_sooner(end_ms);
            }
        }
        drop(table);
        // The cached value of the lock is dropped with the last hold.
        drop(self.known(name));
    }
}

async fn sweep(client: Weak<CasClient>, runtime: Arc<dyn Runtime>, entered: Arc<Notify>) {
    loop {
        let Some(living) = client.upgrade() else { return };
        let next = living.remove_expired();
        drop(living);
        let entered = entered.notified();
        match next {
            Some(end_ms) => {
                // `now` is one ahead of the clock's milliseconds, so this is just past the end.
                let at = Moment(end_ms.saturating_mul(1_000_000)) + Duration::from_millis(1);
                select(runtime.sleep_until(at), std::pin::pin!(entered)).await;
            }
            None => entered.await,
        }
    }
}

impl Drop for CasClient {
    fn drop(&mut self) {
        self.entered.notify_one();
    }
}

impl fmt::Debug for CasClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CasClient").field("backend", &self.backend).finish_non_exhaustive()
    }
}

/// The failure of a request whose caller no longer waits for the answer.
pub(super) fn abandoned() -> Failure {
    Failure::NotSent(Failure::cause("no task waits for the answer any more"))
}
