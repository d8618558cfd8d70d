use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::engine::Client;
use crate::engine::acquisition::of_type;
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::options::Options;
use crate::owner::Owner;
use crate::protocol::{Found, Holding, Kind, QueueSpec, parse_value};
use crate::store::{Cursor, Page};
use std::sync::Arc;

/// The state of a lock when the store answered.
///
/// Use it for people and for monitoring. Do not decide by it whether to work: the lock may have
/// changed hands since. Take the lock.
///
/// ```
/// # tenure::block_on(async {
/// # let locks = tenure::Locks::memory();
/// # let _guard = locks.mutex("nightly")?.lock().await?;
/// let Some(status) = locks.inspect("nightly").await? else { return Ok(()) }; // free
/// println!("a {} with {} holders", status.kind, status.holders.len());
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The lock's name, without the prefix.
    pub name: LockName,
    /// What stands at the name.
    pub kind: Kind,
    /// How many permits a semaphore has.
    pub permits: Option<u32>,
    /// The holders.
    pub holders: Vec<Holder>,
    /// The waiters, in order, where the kind keeps a queue.
    pub waiters: Vec<Holder>,
    /// How many hold or wait beside these. One answer lists at most a thousand, the first in the
    /// queue.
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
///
/// ```
/// # tenure::block_on(async {
/// # let locks = tenure::Locks::memory();
/// # let _guard = locks.mutex("nightly")?.lock().await?;
/// let status = locks.inspect("nightly").await?.expect("it is held");
/// match &status.holders[0].owner {
///     Some(owner) => println!("held by process {} on {}", owner.pid(), owner.host()),
///     None => println!("held by another program"),
/// }
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Who it is; `None` for a foreign client, which [`value`](Self::value) shows.
    pub owner: Option<Owner>,
    /// What is written at the key, as it is: of a foreign client the bytes that it wrote, the first
    /// 1,024 at most.
    pub value: Vec<u8>,
    /// The token; 0 if it has none.
    pub fence: u64,
    /// How long until its lease ends; `None` if it has no end, as a foreign client can leave it.
    pub remaining: Option<Duration>,
    /// How much of the lock it holds or waits for.
    pub share: Share,
}

/// How much of a lock one holder has, or one waiter waits for.
///
/// ```
/// # tenure::block_on(async {
/// # let locks = tenure::Locks::memory();
/// use tenure::Share;
///
/// let permits = locks.semaphore("render", 5)?.acquire_many(3).await?;
/// let status = locks.inspect("render").await?.expect("it is held");
/// assert_eq!(status.holders[0].share, Share::Permits(3));
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Share {
    /// All of a mutex or a fair mutex.
    Whole,
    /// A reentrant mutex, so many times. Holds of another `Locks` than the one that is asked may
    /// count as one: the store need not know of its re-entries.
    Holds(u32),
    /// A read-write lock, to read.
    Reader,
    /// A read-write lock, to read, as the one that may become the writer.
    Upgradeable,
    /// A read-write lock, to write; beside readers, as the one that waits for them to leave.
    Writer,
    /// So many permits of a semaphore.
    Permits(u32),
}

impl Share {
    fn of(kind: Kind, weight: u32) -> Self {
        match kind {
            Kind::Reentrant => Self::Holds(weight),
            Kind::RwLock if weight == QueueSpec::READER.weight => Self::Reader,
            Kind::RwLock if weight == QueueSpec::UPGRADEABLE.weight => Self::Upgradeable,
            Kind::RwLock => Self::Writer,
            Kind::Semaphore => Self::Permits(weight),
            // A mutex or a fair mutex.
            _ => Self::Whole,
        }
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holder")
            .field("owner", &self.owner)
            .field("value", &format_args!("\"{}\"", self.value.escape_ascii()))
            .field("fence", &self.fence)
            .field("remaining", &self.remaining)
            .field("share", &self.share)
            .finish()
    }
}

/// The earliest time that a token can tell, in microseconds: September 2001. The counters of etcd
/// and ZooKeeper stay below.
const EARLIEST_US: u64 = 1_000_000_000_000_000;

impl Holder {
    /// Since when it holds, for people: clocks may differ. A token tells the moment of the grant,
    /// or, where the kind keeps a queue, of the place in it, as of a waiter. It is by the store's
    /// clock, and on a quorum by that of the process that asked. What is kept without a token was
    /// granted at once: there it is when the owner was [made](Owner::made_at). `None` for another
    /// program, and on etcd and ZooKeeper, whose tokens count and tell no time.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// # let _guard = locks.mutex("nightly")?.lock().await?;
    /// let status = locks.inspect("nightly").await?.expect("it is held");
    /// assert!(status.holders[0].since().is_some());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn since(&self) -> Option<SystemTime> {
        match self.fence {
            0 => self.owner.as_ref()?.made_at(),
            // A count of grants.
            1..EARLIEST_US => None,
            fence => Some(UNIX_EPOCH + Duration::from_micros(fence)),
        }
    }
}

impl Status {
    /// What another program keeps at the name: `a string of 36 bytes`, `a list`. Not what it wrote,
    /// which may be a secret. `None` for a lock of this library.
    pub fn foreign(&self) -> Option<String> {
        let holder = self.holders.first()?;
        holder.owner.is_none().then(|| foreign(self.kind, &holder.value))
    }

    /// The holders that are of this library.
    pub(crate) fn owners(&self) -> Vec<Owner> {
        self.holders.iter().filter_map(|holder| holder.owner.clone()).collect()
    }

    pub(crate) fn new(name: LockName, found: Found) -> Self {
        let holders = |all: Vec<Holding>| all.into_iter().map(|one| holder(found.kind, one)).collect();
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

fn holder(kind: Kind, Holding { value, left_ms, weight }: Holding) -> Holder {
    let share = Share::of(kind, weight);
    let (owner, fence) = parse_value(&value).map_or((None, 0), |(owner, fence)| (Some(owner), fence));
    Holder { owner, value, fence, remaining: left_ms.map(Duration::from_millis), share }
}

/// What another program keeps at a lock's name, without what it wrote.
pub(crate) fn foreign(kind: Kind, value: &[u8]) -> String {
    let text = std::str::from_utf8(value).ok();
    let type_of_key = text.and_then(|text| text.strip_prefix('(')?.strip_suffix(')'));
    match (kind, type_of_key) {
        (Kind::Reentrant, _) => of_type("hash"),
        (_, Some(name @ ("hash" | "list" | "set" | "stream" | "zset"))) => of_type(name),
        // A store shows the first 1,024 bytes.
        _ if value.len() >= 1_024 => "a string of 1024 bytes or more".to_owned(),
        _ if value.len() == 1 => "a string of 1 byte".to_owned(),
        _ => format!("a string of {} bytes", value.len()),
    }
}

/// The locks of a store, one after the other: see [`Locks::list`](crate::Locks::list).
///
/// Use it for people and for clean-up. It walks over the whole store, so it is no way to find one
/// lock: use
/// [`inspect`](crate::Locks::inspect).
///
/// ```
/// # tenure::block_on(async {
/// # let locks = tenure::Locks::memory();
/// # let _guard = locks.mutex("nightly")?.lock().await?;
/// let mut listing = locks.list("")?;
/// while let Some(status) = listing.next().await? {
///     println!("{}: {}", status.name, status.kind);
/// }
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct Listing {
    home: Arc<Client>,
    options: Arc<Options>,
    prefix: String,
    page: std::vec::IntoIter<(LockName, Found)>,
    next: Option<Cursor>,
}

/// As [`Locks`](crate::Locks): where it stands is set once a page is there.
impl UnwindSafe for Listing {}
impl RefUnwindSafe for Listing {}

impl Listing {
    pub(crate) fn new(home: &Arc<Client>, options: &Arc<Options>, prefix: &str) -> Self {
        let prefix = format!("{}{prefix}", options.prefix);
        let (home, options, page) = (Arc::clone(home), Arc::clone(options), Vec::new().into_iter());
        Self { home, options, prefix, page, next: Some(Cursor::default()) }
    }

    /// The next lock; `None` after the last.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// # let _guard = locks.mutex("nightly")?.lock().await?;
    /// let mut listing = locks.list("night")?;
    /// let first = listing.next().await?.expect("one is held");
    /// assert_eq!(first.name.as_str(), "nightly");
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_of_grants_tells_no_time() {
        let owner = Owner::new("a").expect("an owner");
        let since = |fence: u64| {
            let value = format!("{owner}#{fence}").into_bytes();
            holder(Kind::Mutex, Holding { value, left_ms: None, weight: 1 }).since()
        };
        // The largest that a ZooKeeper of a hundred thousand elections counts.
        for fence in [1, 7_000, 100_000 << 32] {
            assert_eq!(since(fence), None, "{fence}");
        }
        let micros = 1_800_000_000_000_000;
        assert_eq!(since(micros), Some(UNIX_EPOCH + Duration::from_micros(micros)));
    }
}
