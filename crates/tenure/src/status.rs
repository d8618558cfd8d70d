use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::engine::Home;
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::options::Options;
use crate::owner::Owner;
use crate::protocol::{Found, Holding, Kind, ours};
use crate::store::{Cursor, Page};
use std::sync::Arc;

/// Who holds a lock, as the store saw it when it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The lock's name, without the prefix.
    pub name: LockName,
    /// What stands at the name.
    pub kind: Kind,
    /// How many permits a semaphore has.
    pub permits: Option<u32>,
    /// Who holds it.
    pub holders: Vec<Holder>,
    /// Who waits for it, in order, where the kind keeps a queue.
    pub waiters: Vec<Holder>,
    /// How many hold or wait beside these. One answer lists at most a thousand, the first in the queue.
    pub unlisted: u64,
    /// How much weight may hold at once, for the next request about it.
    pub(crate) capacity: Option<u32>,
}

/// What [`Locks::force_release_token`](crate::Locks::force_release_token) found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForcedRelease {
    /// The lock is free; nothing was changed.
    Free,
    /// The hold with that token is ended: the lock's kind and that one holder.
    Ended(Status),
    /// No hold has that token: the lock as it is. Nothing was changed.
    Other(Status),
}

/// One holder or waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Who it is; `None` for a foreign client, which [`value`](Self::value) shows.
    pub owner: Option<Owner>,
    /// What is written at the key, as it is.
    pub value: String,
    /// The token; 0 if it has none.
    pub fence: u64,
    /// How long until its lease ends; `None` if it has no end, as a foreign client can leave it.
    pub remaining: Option<Duration>,
    /// How many permits of a semaphore it has, or how often a reentrant mutex is held; of a read-write lock, 1 is a reader and
    /// anything else a writer.
    pub weight: u32,
}

impl Holder {
    /// When it was granted, or, where the kind keeps a queue, when it took its place there, as a waiter has too. By the clock that
    /// tokens are made from: the store's, and on a quorum that of the process that asked. `None` without a token.
    pub fn since(&self) -> Option<SystemTime> {
        (self.fence > 0).then(|| UNIX_EPOCH + Duration::from_micros(self.fence))
    }
}

impl Status {
    /// What another program keeps at the name: `a string of 36 bytes`, `a list`. Not what it wrote,
    /// which may be a secret. `None` for a lock of this library.
    pub fn foreign(&self) -> Option<String> {
        let holder = self.holders.first()?;
        holder.owner.is_none().then(|| foreign(self.kind, &holder.value))
    }

    pub(crate) fn new(name: LockName, found: Found) -> Self {
        let holders = |all: Vec<Holding>| all.into_iter().map(holder).collect();
        let permits = found.capacity.filter(|_| found.kind == Kind::Semaphore);
        Self {
            name,
            kind: found.kind,
            permits,
            holders: holders(found.holders),
            waiters: holders(found.waiters),
            unlisted: found.unlisted,
            capacity: found.capacity,
        }
    }
}

fn holder(Holding { value, left_ms, weight }: Holding) -> Holder {
    let (owner, fence) = ours(&value).map_or((None, 0), |(owner, fence)| (Some(owner), fence));
    Holder { owner, value, fence, remaining: left_ms.map(Duration::from_millis), weight }
}

/// What another program keeps at a lock's name, without what it wrote.
pub(crate) fn foreign(kind: Kind, value: &str) -> String {
    let type_of_key = value.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    match (kind, type_of_key) {
        (Kind::Reentrant, _) => "a hash".to_owned(),
        (_, Some("zset")) => "a sorted set".to_owned(),
        (_, Some(name @ ("hash" | "list" | "set" | "stream"))) => format!("a {name}"),
        // A store shows the first 1,024 bytes.
        _ if value.len() >= 1_024 => "a string of 1024 bytes or more".to_owned(),
        _ if value.len() == 1 => "a string of 1 byte".to_owned(),
        _ => format!("a string of {} bytes", value.len()),
    }
}

/// The locks of a store, one after the other: see [`Locks::list`](crate::Locks::list).
#[derive(Debug)]
pub struct Listing {
    home: Arc<Home>,
    options: Arc<Options>,
    prefix: String,
    page: std::vec::IntoIter<(LockName, Found)>,
    next: Option<Cursor>,
}

/// As [`Locks`](crate::Locks): where it stands is set once a page is there.
impl UnwindSafe for Listing {}
impl RefUnwindSafe for Listing {}

impl Listing {
    pub(crate) fn new(home: &Arc<Home>, options: &Arc<Options>, prefix: &str) -> Self {
        let prefix = format!("{}{prefix}", options.prefix);
        let (home, options, page) = (Arc::clone(home), Arc::clone(options), Vec::new().into_iter());
        Self { home, options, prefix, page, next: Some(Cursor::default()) }
    }

    /// The next lock; `None` after the last.
    ///
    /// # Cancel safety
    /// Nothing is lost: the next call goes on where this one was.
    ///
    /// # Errors
    /// `is_unreachable` or `is_refused` when the store did not say; the next call asks again.
    pub async fn next(&mut self) -> Result<Option<Status>> {
        loop {
            if let Some((full, found)) = self.page.next() {
                let name = full
                    .as_str()
                    .strip_prefix(&self.options.prefix)
                    .and_then(|name| LockName::new(name).ok());
                match name {
                    Some(name) => return Ok(Some(Status::new(name, found))),
                    None => continue, // the prefix alone: a key of somebody else's
                }
            }
            let Some(from) = &self.next else { return Ok(None) };
            let store = &self.home.engine.store;
            let page = store.list(&self.prefix, from.clone(), self.options.op_timeout).await;
            let Page { locks, next } = page.map_err(|failure| Error::silent(None, store.url(), failure))?;
            self.page = locks.into_iter();
            self.next = next;
        }
    }
}
