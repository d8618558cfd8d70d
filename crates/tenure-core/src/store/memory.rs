//! The store in the memory of this process, for tests and for tasks of one process.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use futures_util::future::{FutureExt, ready};

use super::{
    Capabilities, Client, Cursor, Incarnation, LeaseClock, Listener, Opening, Page, Publisher, Purpose,
    RecordPage, Signals, Station, Store, StoreFuture, StoreReply, StoreRequest, Topic,
};
use crate::error::Result;
use crate::name::LockName;
use crate::owner::Owner;
use crate::protocol::record::{self, Record, RecordAnswer, RecordOp};
use crate::protocol::{self, Answer, ExpiringValue, Found, Listening, Notification, Now, Op, State};
use crate::runtime::Runtime;
use crate::sync::Locked;

/// A store in memory. Clones share its state.
#[derive(Clone)]
pub struct Memory(Arc<OpenedMemory>);

struct OpenedMemory {
    /// Shared by all clients that opened this store by its name.
    inner: Arc<Locked<MemoryInner>>,
    runtime: Arc<dyn Runtime>,
    signals: Signals,
    url: Arc<str>,
}

#[derive(Default)]
struct MemoryInner {
    locks: BTreeMap<LockName, State>,
    /// The last token assigned, across all locks.
    counter: u64,
    /// Keyed by the names of their locks.
    records: BTreeMap<LockName, ExpiringValue<Record>>,
    listeners: BTreeMap<(LockName, u64), MemoryListener>,
    next_listener: u64,
    /// When expired entries were last removed.
    swept_ms: u64,
}

/// Opens the store of a URL: `memory:`, or `memory:NAME`.
///
/// # Errors
/// Never fails: the table of URL schemes requires the same signature of all stores.
pub fn open(opening: Opening<'_>) -> Result<Arc<dyn Store>> {
    let Opening { url, runtime, .. } = opening;
    Ok(Arc::new(if url == "memory:" { Memory::new(runtime, url) } else { Memory::named(runtime, url) }))
}

struct MemoryListener {
    /// The waiters of a queue that it is for.
    client: Option<Client>,
    /// Whether a process waits for a lock without a queue.
    asks: bool,
    publisher: Publisher,
}

impl Memory {
    /// An empty store that reads its clocks through `runtime`.
    pub fn new(runtime: Arc<dyn Runtime>, url: &str) -> Self {
        Self::opened(Arc::default(), runtime, url)
    }

    /// The store of this name, shared within this process. It exists for as long as any client has it open.
    pub fn named(runtime: Arc<dyn Runtime>, url: &str) -> Self {
        static NAMED: Locked<BTreeMap<String, Weak<Locked<MemoryInner>>>> = Locked::new(BTreeMap::new());
        let mut named = NAMED.lock();
        named.retain(|_, inner| inner.strong_count() > 0);
        let known = named.get(url).and_then(Weak::upgrade);
        let inner = known.unwrap_or_default();
        named.insert(url.into(), Arc::downgrade(&inner));
        Self::opened(inner, runtime, url)
    }

    fn opened(inner: Arc<Locked<MemoryInner>>, runtime: Arc<dyn Runtime>, url: &str) -> Self {
        let signals = Signals::new(Incarnation::Lasting);
        Self(Arc::new(OpenedMemory { inner, runtime, signals, url: url.into() }))
    }

    fn now(&self) -> Now {
        Now { ms: self.0.runtime.now().millis(), unix_us: self.0.runtime.unix_micros() }
    }

    fn inner(&self) -> MutexGuard<'_, MemoryInner> {
        self.0.inner.lock()
    }

    fn apply(&self, op: &Op) -> Answer {
        let now = self.now();
        let mut inner = self.inner();
        inner.sweep(now);
        let MemoryInner { locks, counter, listeners, .. } = &mut *inner;
        let state = locks.entry(op.name.clone()).or_default();
        let hears = |_: Option<Listening>, owner: &Owner| {
            of(listeners, &op.name).any(|listener| listener.client == Some(owner.client()))
        };
        let (answer, wake) = protocol::apply_calling(state, counter, now, op, &hears);
        if state.lock.is_none() && state.ballot.is_none() {
            inner.locks.remove(&op.name);
        }
        for wake in wake.into_iter().chain(protocol::forced(op, &answer)) {
            inner.tell(&op.name, &wake);
        }
        answer
    }

    fn listener(&self, name: &LockName, client: Option<Client>, asks: bool) -> Listener {
        Listener::new(|publisher| {
            let mut inner = self.inner();
            let id = inner.next_listener;
            inner.next_listener += 1;
            inner.listeners.insert((name.clone(), id), MemoryListener { client, asks, publisher });
            Box::new(MemorySubscription { store: self.clone(), name: name.clone(), id })
                as Box<dyn Any + Send>
        })
    }

    fn apply_to_record(&self, op: &RecordOp) -> RecordAnswer {
        let now = self.now();
        let mut inner = self.inner();
        inner.sweep(now);
        let mut state = inner.locks.remove(&op.lock).unwrap_or_default();
        let mut record = inner.records.remove(&op.lock);
        let (answer, wake) = record::apply(&mut state, &mut record, now, op);
        if !state.is_over(now) {
            inner.locks.insert(op.lock.clone(), state);
        }
        if let Some(record) = record {
            inner.records.insert(op.lock.clone(), record);
        }
        if let Some(wake) = wake {
            inner.tell(&op.lock, &wake);
        }
        answer
    }
}

impl MemoryInner {
    /// Removes expired locks, ballots and records at most once a minute, so that names used once do not
    /// accumulate.
    fn sweep(&mut self, now: Now) {
        const EVERY_MS: u64 = 60_000;
        if now.ms.saturating_sub(self.swept_ms) >= EVERY_MS {
            self.swept_ms = now.ms;
            self.locks.retain(|_, state| !state.is_over(now));
            self.records.retain(|_, record| !record.is_over(now));
        }
    }

    fn tell(&mut self, name: &LockName, wake: &Notification) {
        if self.listeners.is_empty() {
            return;
        }
        of(&self.listeners, name).for_each(|listener| listener.publisher.say(wake.clone()));
    }
}

/// The listeners of a lock.
fn of<'a>(
    listeners: &'a BTreeMap<(LockName, u64), MemoryListener>,
    name: &LockName,
) -> impl Iterator<Item = &'a MemoryListener> {
    listeners.range((name.clone(), 0)..=(name.clone(), u64::MAX)).map(|(_, listener)| listener)
}

impl Store for Memory {
    fn call(&self, request: StoreRequest, _within: Duration) -> StoreFuture<StoreReply> {
        let store = self.clone();
        async move {
            Ok(match request {
                StoreRequest::Lock(op) => StoreReply::Lock(store.apply(&op)),
                StoreRequest::Record(op) => StoreReply::Record(store.apply_to_record(&op)),
                StoreRequest::Renewals(ops) => {
                    StoreReply::Renewals(ops.iter().map(|op| Ok(store.apply(op))).collect())
                }
            })
        }
        .boxed()
    }

    fn subscribe(&self, topic: Topic<'_>, _within: Duration) -> StoreFuture<Listener> {
        let client = topic.client();
        let station = Station::default();
        station.set(client.and_then(|_| Listening::new(1)));
        let asks = matches!(topic.purpose, Purpose::Ask);
        ready(Ok(self.listener(topic.name, client, asks).at(station))).boxed()
    }

    fn list(&self, prefix: &str, _from: Cursor, _within: Duration) -> StoreFuture<Page> {
        let now = self.now();
        let mut page = Page::default();
        for (name, state) in &self.inner().locks {
            if name.as_str().starts_with(prefix)
                && let Some(found) = protocol::found(state, now)
            {
                page.locks.push((name.clone(), found));
            }
        }
        ready(Ok(page)).boxed()
    }

    fn waiting(&self, locks: &[(LockName, Found)], _within: Duration) -> StoreFuture<Vec<Option<u64>>> {
        let inner = self.inner();
        let count = |name| of(&inner.listeners, name).filter(|listener| listener.asks).count() as u64;
        ready(Ok(locks.iter().map(|(name, _)| Some(count(name))).collect())).boxed()
    }

    fn records(&self, prefix: &str, _from: Cursor, _within: Duration) -> StoreFuture<RecordPage> {
        let now = self.now();
        let inner = self.inner();
        let kept = inner
            .records
            .iter()
            .filter(|(name, kept)| name.as_str().starts_with(prefix) && !kept.is_over(now));
        let records = kept.map(|(name, kept)| (name.clone(), kept.value.clone())).collect();
        ready(Ok(RecordPage { records, now_us: now.unix_us, next: None })).boxed()
    }

    fn ready(&self, _within: Duration) -> StoreFuture<()> {
        ready(Ok(())).boxed()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { clock: LeaseClock::Machine, member: Ok(()), ..Capabilities::SERVER }
    }

    fn signals(&self) -> &Signals {
        &self.0.signals
    }

    fn url(&self) -> &Arc<str> {
        &self.0.url
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Memory").field(&self.0.url).finish()
    }
}

struct MemorySubscription {
    store: Memory,
    name: LockName,
    id: u64,
}

impl Drop for MemorySubscription {
    fn drop(&mut self) {
        self.store.inner().listeners.remove(&(self.name.clone(), self.id));
    }
}
