//! Locks on a server that compares and swaps one key at a time, such as NATS KV or Kubernetes with its Leases.
//!
//! One key has a lock with its whole queue, and the record beside it:
//!
//! ```text
//! tenure 1 BASE LENGTH        the creation of the lock, and the length of its text in bytes
//! ...                         the lock, as `lock_snapshot` writes it, and then the record
//! ```
//!
//! The key is never removed, because a server that compares nothing when it creates a key could carry out a
//! late creation at any time.
//!
//! Each session has a marker, a key with the lifetime of the session. What a [`Swap`] compares and writes in one
//! step with the lock is done in others:
//!
//! - *A write of unknown outcome* is ruled out by a write of the same lock, with the text that it has, before its
//!   client reads it again.
//! - *Holds that are ended by force*: each keep-alive changes the version of the marker, so each renewal reads its
//!   lock.
//! - *Sessions that have to be alive* are read before the write. One that ends in between cannot give a lock to two
//!   owners: the lock is unchanged, and the client counts its lease from before the read.
//!
//! A server that expires keys removes the markers of clients that have died. On any other, a client does that
//! which has seen a marker unchanged for its lifetime, by its own clock: the removal compares the version.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, FutureExt, join, ready, select, try_join_all};
use futures_util::stream::{BoxStream, StreamExt};

use super::backend::{
    Backend, Committed, Listed, ListedRecords, LockWatch, Session, Stamp, Stored, Swap, ValueChange,
    WatchNotice, Watched,
};
use super::lock_snapshot::LockSnapshot;
use crate::CLIENT;
use crate::moment::Moment;
use crate::name::LockName;
use crate::net::by;
use crate::planted::{Bug, planted};
use crate::protocol::codec::{self, number, word};
use crate::protocol::lease::millis;
use crate::runtime::Runtime;
use crate::store::observe::Notes;
use crate::store::{Cursor, Failure, StoreFuture};
use crate::sync::Locked;

/// A key of the server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyName {
    /// That of a lock.
    Lock(LockName),
    /// The marker of a session.
    Marker(Session),
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEntry {
    /// Increases with each write of the key, also across a removal by hand.
    pub version: u64,
    /// What was written.
    pub text: String,
}

/// One compare-and-swap of one key.
#[derive(Clone, Debug)]
pub struct KeyWrite {
    /// The expected version; `None` expects no key.
    pub seen: Option<u64>,
    /// The new text; `None` removes the key, which is a marker.
    pub text: Option<String>,
    /// The lifetime of a marker from this write on: a server that can expire keys removes it afterwards.
    pub life: Option<Duration>,
    /// The requests that it carries out, for the oracle of the simulation.
    pub notes: Notes,
}

/// One page of the keys of locks, and the next page, or `None` for the last.
pub type KeyPage = (Vec<(LockName, KeyEntry)>, Option<Cursor>);

/// The outcome of a [`KeyWrite`]: the new version (0 after a removal), or the current value, which was not as
/// expected.
pub type KeyWritten = Result<u64, Option<KeyEntry>>;

/// A server with compare-and-swap of a single key.
///
/// As with [`Backend`], an operation that was dropped or has failed with [`Failure::Unknown`] may still be carried
/// out, and reads are linearizable.
pub trait KeyValueServer: std::fmt::Debug + Send + Sync + 'static {
    /// Reads a key.
    fn read(&self, key: &KeyName) -> StoreFuture<Option<KeyEntry>>;

    /// Writes or removes a key if it is as expected.
    fn write(&self, key: &KeyName, write: KeyWrite) -> StoreFuture<KeyWritten>;

    /// The values of a lock's key from now on; values between two others may be left out. Ends with a failure
    /// once it may miss the last one.
    fn watch(&self, name: &LockName) -> StoreFuture<BoxStream<'static, Result<KeyEntry, Failure>>>;

    /// One page of the keys of locks whose names begin with `prefix`, and the next page.
    fn list(&self, prefix: &str, from: Cursor) -> StoreFuture<KeyPage>;

    /// Checks that the server is reachable.
    fn ready(&self) -> StoreFuture<()>;

    /// Reports a request timeout: another server should be used next.
    fn silent(&self) {}

    /// Maximum size of a text in bytes.
    fn limit(&self) -> usize;
}

/// A [`Backend`] on a server with compare-and-swap of a single key. Clones share its state.
#[derive(Clone, Debug)]
pub struct OneKey(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    server: Arc<dyn KeyValueServer>,
    runtime: Arc<dyn Runtime>,
    /// The next number, and the writes of locks whose outcome is not known.
    writes: Locked<(u64, BTreeMap<u64, OpenWrite>)>,
    /// The version of each marker seen last, and since when.
    markers: Locked<BTreeMap<Session, (u64, Moment)>>,
}

/// The value of a lock's key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OneKeyValue {
    base: u64,
    lock: Option<String>,
    record: Option<String>,
}

impl OneKeyValue {
    fn read(entry: &KeyEntry) -> Option<Self> {
        let (mut head, rest) = entry.text.split_once('\n')?;
        (word(&mut head)? == "tenure" && word(&mut head)? == codec::VERSION).then_some(())?;
        let (base, length) = (number(word(&mut head)?)?, number(head)?);
        let (lock, record) = rest.split_at_checked(length)?;
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Some(Self { base, lock: text(lock), record: text(record) })
    }

    /// The value of a key that may not exist. One that cannot be parsed is a lock that cannot be parsed.
    fn of(entry: Option<&KeyEntry>) -> Self {
        let unknown = |entry: &KeyEntry| Self { lock: Some(entry.text.clone()), ..Self::default() };
        entry.map_or_else(Self::default, |entry| Self::read(entry).unwrap_or_else(|| unknown(entry)))
    }

    fn text(&self) -> String {
        let lock = self.lock.as_deref().unwrap_or_default();
        let record = self.record.as_deref().unwrap_or_default();
        format!("tenure {} {} {}\n{lock}{record}", codec::VERSION, self.base, lock.len())
    }

    fn stored(self, version: u64) -> Option<Stored> {
        Some(Stored { text: self.lock?, stamp: Stamp { base: self.base, version, ..Stamp::default() } })
    }

    /// The value after a change. A new lock begins above every version before.
    fn changed(&self, version: u64, lock: ValueChange, record: ValueChange) -> Self {
        let to = |change, before: &Option<String>| match change {
            ValueChange::Keep => before.clone(),
            ValueChange::Write(text) => Some(text),
            ValueChange::Remove => None,
        };
        let base = if self.lock.is_some() { self.base } else { version + 1 };
        Self { base, lock: to(lock, &self.lock), record: to(record, &self.record) }
    }
}

/// The lock in the value of a key.
fn stored(entry: Option<&KeyEntry>) -> Option<Stored> {
    OneKeyValue::of(entry).stored(entry?.version)
}

/// The lock and the record in the value of a key, for the simulated server.
#[cfg(tenure_planted)]
pub fn key_values(entry: &KeyEntry) -> (Option<Stored>, Option<String>) {
    (stored(Some(entry)), OneKeyValue::of(Some(entry)).record)
}

/// The lifetime in a marker's text.
fn life_in(text: &str) -> Option<Duration> {
    text.split(' ').next().and_then(number).map(Duration::from_millis)
}

/// A write of a lock whose outcome is not known.
#[derive(Debug)]
struct OpenWrite {
    name: LockName,
    /// Its outcome, or that of a caller which it carries out, is not awaited any more. Before the lock is read
    /// again, another write rules it out.
    is_left: bool,
}

/// A write of a lock, until its outcome is known.
struct LockWrite<'a> {
    of: &'a Shared,
    number: u64,
    is_known: bool,
}

impl<'a> LockWrite<'a> {
    fn begin(of: &'a Shared, name: &LockName) -> Self {
        let (next, writes) = &mut *of.writes.lock();
        let number = *next;
        *next += 1;
        writes.insert(number, OpenWrite { name: name.clone(), is_left: false });
        Self { of, number, is_known: false }
    }
}

impl Drop for LockWrite<'_> {
    fn drop(&mut self) {
        let writes = &mut self.of.writes.lock().1;
        if self.is_known {
            writes.remove(&self.number);
        } else if let Some(write) = writes.get_mut(&self.number) {
            write.is_left = !planted(Bug::CasNoBarrier);
        }
    }
}

impl OneKey {
    /// A backend on this server.
    pub fn new(server: Arc<dyn KeyValueServer>, runtime: Arc<dyn Runtime>) -> Self {
        let (writes, markers) = (Locked::default(), Locked::default());
        Self(Arc::new(Shared { server, runtime, writes, markers }))
    }

    async fn read(&self, name: &LockName) -> Result<Option<KeyEntry>, Failure> {
        self.rule_out_late_writes(name).await?;
        self.0.server.read(&KeyName::Lock(name.clone())).await
    }

    async fn commit(self, change: Swap) -> Result<Committed, Failure> {
        let Swap { name, seen, guard: (session, marker), moved_from, .. } = change;
        let sessions: Vec<Session> = [session].into_iter().chain(moved_from).collect();
        let (entry, living) = join(self.read(&name), self.living(sessions)).await;
        // Nothing was written yet.
        let entry = entry.map_err(Failure::not_sent)?;
        let living = living.map_err(Failure::not_sent)?;
        let before = OneKeyValue::of(entry.as_ref());
        let stands = stored(entry.as_ref()).map(|stored| stored.stamp) == seen;
        if !stands || living.contains(&false) {
            let marker = living[0].then_some(marker);
            return Ok(Committed::Conflict { stored: stored(entry.as_ref()), marker });
        }
        let after =
            before.changed(entry.as_ref().map_or(0, |entry| entry.version), change.lock, change.record);
        let write = KeyWrite {
            seen: entry.map(|entry| entry.version),
            text: Some(after.text()),
            life: None,
            notes: change.notes,
        };
        let mut writing = LockWrite::begin(&self.0, &name);
        let written = self.0.server.write(&KeyName::Lock(name.clone()), write).await;
        writing.is_known = !matches!(written, Err(Failure::Unknown(_)));
        Ok(match written? {
            Ok(version) => Committed::Done {
                stamp: Stamp { base: after.base, version, ..Stamp::default() },
                record: change.reads_record.then_some(after.record),
            },
            Err(entry) => Committed::Conflict { stored: stored(entry.as_ref()), marker: Some(marker) },
        })
    }

    /// Makes sure that no write of this lock that was left takes effect any more, by another write of it: that
    /// changes the version which the earlier ones compare, unless one of those or another client has changed it.
    async fn rule_out_late_writes(&self, name: &LockName) -> Result<(), Failure> {
        let is_late = |write: &OpenWrite| write.is_left && write.name == *name;
        let late: Vec<u64> = {
            let writes = &self.0.writes.lock().1;
            writes.iter().filter(|(_, write)| is_late(write)).map(|(number, _)| *number).collect()
        };
        if late.is_empty() {
            return Ok(());
        }
        let key = KeyName::Lock(name.clone());
        let entry = self.0.server.read(&key).await?;
        let write = KeyWrite {
            seen: entry.as_ref().map(|entry| entry.version),
            text: Some(entry.map_or_else(|| OneKeyValue::default().text(), |entry| entry.text)),
            life: None,
            notes: Notes::default(),
        };
        // If another write came first, the version has changed as well.
        let _ = self.0.server.write(&key, write).await?;
        let writes = &mut self.0.writes.lock().1;
        late.iter().for_each(|number| drop(writes.remove(number)));
        Ok(())
    }

    async fn open(self, life: Duration) -> Result<(Session, u64), Failure> {
        loop {
            let session = self.0.runtime.random() >> 1;
            let text = Some(format!("{} {CLIENT}", millis(life)));
            let write = KeyWrite { seen: None, text, life: Some(life), notes: Notes::default() };
            if let Ok(version) = self.0.server.write(&KeyName::Marker(session), write).await? {
                return Ok((session, version));
            }
        }
    }

    /// Writes a marker again, or removes it. `None`: the session is gone.
    async fn write_marker(self, session: Session, removes: bool) -> Result<Option<u64>, Failure> {
        let key = KeyName::Marker(session);
        let mut entry = self.0.server.read(&key).await?;
        while let Some(KeyEntry { version, text }) = entry {
            let (seen, life) = (Some(version), life_in(&text));
            let write = KeyWrite { seen, text: (!removes).then_some(text), life, notes: Notes::default() };
            match self.0.server.write(&key, write).await? {
                Ok(version) => return Ok(Some(version)),
                // A keep-alive of another task, or the removal by another client.
                Err(current) => entry = current,
            }
        }
        Ok(None)
    }

    /// Whether a session is alive. Removes its marker if that was unchanged for its lifetime.
    async fn lives(&self, session: Session) -> Result<bool, Failure> {
        /// Maximum markers remembered.
        const MARKERS: usize = 10_000;
        let key = KeyName::Marker(session);
        let Some(KeyEntry { version, text }) = self.0.server.read(&key).await? else {
            self.0.markers.lock().remove(&session);
            return Ok(false);
        };
        let (now, life) = (self.0.runtime.now(), life_in(&text));
        let since = {
            let mut markers = self.0.markers.lock();
            if markers.len() >= MARKERS {
                markers.clear();
            }
            let known = markers.entry(session).or_insert((version, now));
            if known.0 != version && !planted(Bug::CasOneKeyRenewalUnseen) {
                *known = (version, now);
            }
            known.1
        };
        if life.is_none_or(|life| now.since(since) <= life) {
            return Ok(true);
        }
        let write = KeyWrite { seen: Some(version), text: None, life: None, notes: Notes::default() };
        // Unless its client has written it meanwhile.
        Ok(matches!(self.0.server.write(&key, write).await?, Err(Some(_))))
    }

    async fn living(&self, sessions: Vec<Session>) -> Result<Vec<bool>, Failure> {
        try_join_all(sessions.into_iter().map(|session| self.lives(session))).await
    }

    async fn watch(self, name: LockName, what: Watched) -> Result<Box<dyn LockWatch>, Failure> {
        let values = self.0.server.watch(&name).await?;
        let entry = self.read(&name).await?;
        let (looks_at, record) = (self.0.runtime.now() + LOOK, OneKeyValue::of(entry.as_ref()).record);
        let mut watch = OneKeyWatch { of: self, values, what, record, bound: VecDeque::new(), looks_at };
        watch.binds(stored(entry.as_ref()).as_ref());
        Ok(Box::new(watch))
    }
}

/// How often a watch looks for clients that have died.
const LOOK: Duration = Duration::from_secs(1);
/// How many sessions it looks at each time, round robin.
const LOOKED_AT: usize = 4;

/// A watch of a lock or of its record.
struct OneKeyWatch {
    of: OneKey,
    values: BoxStream<'static, Result<KeyEntry, Failure>>,
    what: Watched,
    /// The last record.
    record: Option<String>,
    /// The sessions of the lock, those first that it looks at next.
    bound: VecDeque<Session>,
    looks_at: Moment,
}

impl OneKeyWatch {
    fn binds(&mut self, stored: Option<&Stored>) {
        let snapshot = LockSnapshot::read(stored).unwrap_or_default();
        let mut bound: BTreeSet<Session> =
            snapshot.bindings.values().map(|binding| binding.session).collect();
        self.bound.retain(|session| bound.remove(session));
        self.bound.extend(bound);
    }

    /// What a new value is to this watch; `None` if nothing that it watches has changed.
    fn notice(&mut self, entry: &KeyEntry) -> Option<WatchNotice> {
        let record = OneKeyValue::of(Some(entry)).record;
        match self.what {
            Watched::Record if record == self.record => None,
            Watched::Record => {
                self.record = record;
                Some(WatchNotice::Lock(None))
            }
            Watched::Lock => {
                let stored = stored(Some(entry));
                self.binds(stored.as_ref());
                Some(WatchNotice::Lock(stored))
            }
        }
    }

    /// One of the sessions that has ended, of the next few.
    async fn gone(&mut self) -> Option<Session> {
        let looked_at: Vec<Session> = self.bound.iter().copied().take(LOOKED_AT).collect();
        self.bound.rotate_left(looked_at.len());
        let runtime = Arc::clone(&self.of.0.runtime);
        // A failure shows nothing about them, and no reply holds up what the watch receives.
        let living = by(&*runtime, runtime.now() + LOOK, self.of.living(looked_at.clone())).await?.ok()?;
        let gone = looked_at.into_iter().zip(living).find(|(_, lives)| !lives)?.0;
        self.bound.retain(|session| *session != gone);
        Some(gone)
    }
}

impl LockWatch for OneKeyWatch {
    fn next(&mut self) -> BoxFuture<'_, Result<WatchNotice, Failure>> {
        async move {
            loop {
                let late = self.of.0.runtime.sleep_until(self.looks_at);
                let entry = match select(self.values.next(), late).await {
                    Either::Left((Some(entry), _)) => Some(entry?),
                    Either::Left((None, _)) => {
                        return Err(Failure::Unknown(Failure::cause("the server ended a watch")));
                    }
                    Either::Right(_) => None,
                };
                let notice = match entry {
                    Some(entry) => self.notice(&entry),
                    None if self.bound.is_empty() || self.what == Watched::Record => {
                        self.looks_at = self.of.0.runtime.now() + LOOK;
                        None
                    }
                    None => {
                        let gone = self.gone().await;
                        self.looks_at = self.of.0.runtime.now() + LOOK;
                        gone.map(WatchNotice::Gone)
                    }
                };
                if let Some(notice) = notice {
                    return Ok(notice);
                }
            }
        }
        .boxed()
    }
}

impl Backend for OneKey {
    fn read(&self, name: &LockName) -> StoreFuture<Option<Stored>> {
        let (this, name) = (self.clone(), name.clone());
        async move { Ok(stored(Self::read(&this, &name).await?.as_ref())) }.boxed()
    }

    fn record(&self, name: &LockName) -> StoreFuture<Option<String>> {
        let (this, name) = (self.clone(), name.clone());
        async move { Ok(OneKeyValue::of(Self::read(&this, &name).await?.as_ref()).record) }.boxed()
    }

    /// A queue is never split.
    fn parts(&self, _name: &LockName, ids: Vec<u64>) -> StoreFuture<Vec<Option<String>>> {
        ready(Ok(vec![None; ids.len()])).boxed()
    }

    fn part(&self) -> usize {
        usize::MAX
    }

    fn commit(&self, change: Swap) -> StoreFuture<Committed> {
        Self::commit(self.clone(), change).boxed()
    }

    fn open(&self, life: Duration, _is_kept: bool) -> StoreFuture<(Session, u64)> {
        Self::open(self.clone(), life).boxed()
    }

    fn keep(&self, session: Session, _seen: u64) -> StoreFuture<Option<u64>> {
        self.clone().write_marker(session, false).boxed()
    }

    fn touch(&self, session: Session) -> StoreFuture<bool> {
        self.clone().write_marker(session, false).map(|kept| Ok(kept?.is_some())).boxed()
    }

    fn close(&self, session: Session) -> StoreFuture<()> {
        self.clone().write_marker(session, true).map(|closed| closed.map(drop)).boxed()
    }

    /// Reads the markers. The writes under way are ruled out where their locks are read next: see above.
    fn bump(&self, sessions: Vec<Session>) -> StoreFuture<Vec<Option<u64>>> {
        let this = self.clone();
        async move {
            this.0.writes.lock().1.values_mut().for_each(|write| write.is_left = true);
            let markers = sessions.into_iter().map(|session| this.0.server.read(&KeyName::Marker(session)));
            let markers = try_join_all(markers).await?;
            Ok(markers.into_iter().map(|marker| marker.map(|marker| marker.version)).collect())
        }
        .boxed()
    }

    fn living(&self, sessions: Vec<Session>) -> StoreFuture<Vec<bool>> {
        let this = self.clone();
        async move { Self::living(&this, sessions).await }.boxed()
    }

    fn watch(&self, name: &LockName, what: Watched) -> StoreFuture<Box<dyn LockWatch>> {
        Self::watch(self.clone(), name.clone(), what).boxed()
    }

    fn list(&self, prefix: &str, from: Cursor) -> StoreFuture<Listed> {
        let listed = self.0.server.list(prefix, from);
        async move {
            let (found, next) = listed.await?;
            let locks = found.into_iter().filter_map(|(name, entry)| Some((name, stored(Some(&entry))?)));
            Ok(Listed { locks: locks.collect(), next })
        }
        .boxed()
    }

    fn records(&self, prefix: &str, from: Cursor) -> StoreFuture<ListedRecords> {
        let listed = self.0.server.list(prefix, from);
        async move {
            let (found, next) = listed.await?;
            let records = found
                .into_iter()
                .filter_map(|(name, entry)| Some((name, OneKeyValue::read(&entry)?.record?)));
            Ok(ListedRecords { records: records.collect(), next })
        }
        .boxed()
    }

    fn ready(&self) -> StoreFuture<()> {
        self.0.server.ready()
    }

    fn silent(&self) {
        self.0.server.silent();
    }

    /// The other half is for the record.
    fn limit(&self) -> usize {
        self.0.server.limit() / 2
    }
}
