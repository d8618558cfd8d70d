use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::engine::acquisition::of_type;
use crate::engine::engine_handle::EngineHandle;
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::options::Options;
use crate::owner::Owner;
use crate::protocol::{Found, Holding, Kind, QueueSpec, parse_value};
use crate::store::{Cursor, Page, Store};
use std::sync::Arc;

/// The state of a lock at the time the store answered.
///
/// Use it for display and monitoring. Do not base the decision to work on it, because the lock may have
/// changed hands since; acquire the lock instead.
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
    /// The kind of lock at the name.
    pub kind: Kind,
    /// Number of permits of a semaphore.
    pub permits: Option<u32>,
    /// The current holders.
    pub holders: Vec<Holder>,
    /// The waiters in queue order, if this kind of lock has a queue.
    pub waiters: Vec<Holder>,
    /// Number of holders and waiters not listed here. One answer lists at most a thousand, in queue order.
    pub unlisted: u64,
    /// Number of waiters, or of processes that wait if this kind of lock has no queue. `None` if unknown: such
    /// processes are known to `memory:`, to `file:`, and to Redis except on a quorum, not to the other stores, and
    /// not after a forced release.
    pub waiting: Option<u64>,
    /// Maximum total weight of the holders, for the next request about this lock.
    pub(crate) capacity: Option<u32>,
}

/// Outcome of [`Locks::force_release_token`](crate::Locks::force_release_token).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForcedRelease {
    /// The lock is free; nothing changed.
    Free,
    /// The hold with this token was ended. Contains the lock's kind and that holder.
    Ended(Status),
    /// No hold has this token; nothing changed. Contains the current state of the lock.
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
    /// The owner; `None` for a foreign client, for which [`value`](Self::value) has the raw bytes.
    pub owner: Option<Owner>,
    /// The raw value of the key. For a foreign client, at most the first 1,024 bytes.
    pub value: Vec<u8>,
    /// The fencing token; 0 if there is none.
    pub fence: u64,
    /// Time until the lease ends; `None` if a foreign client set no expiry.
    pub remaining: Option<Duration>,
    /// The share of the lock that it holds or waits for.
    pub share: Share,
}

/// The share of a lock that a holder has or a waiter waits for.
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
    /// The whole of a mutex or a fair mutex.
    Whole,
    /// A reentrant mutex, with the number of holds. Holds of another `Locks` than the one that answers may
    /// count as one, because re-entries need not reach the store.
    Holds(u32),
    /// A read lock.
    Reader,
    /// An upgradeable read lock.
    Upgradeable,
    /// A write lock. Beside readers: an upgrade that waits for them to leave.
    Writer,
    /// This many permits of a semaphore.
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
            // Mutexes and fair mutexes.
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

/// Smallest token that can be a timestamp, in microseconds: September 2001. The counters of etcd and
/// ZooKeeper stay below it.
const EARLIEST_US: u64 = 1_000_000_000_000_000;

impl Holder {
    /// When the hold began, for display only, because clocks differ.
    ///
    /// The token contains the time of the grant or, for kinds with a queue and for waiters, the time of
    /// joining the queue. That is the store's clock, or on a quorum the clock of the process that asked. A
    /// hold without a token was granted at once, so its time is that at which the owner was
    /// [made](Owner::made_at). On Redis the time may also be that at which another client first asked for a lock
    /// with a queue. `None` for another program, and on etcd and ZooKeeper, whose tokens are
    /// counters.
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
            // A counter, not a timestamp.
            1..EARLIEST_US => None,
            fence => Some(UNIX_EPOCH + Duration::from_micros(fence)),
        }
    }
}

impl Status {
    /// Describes the type of value that another program keeps at the name, such as `a string of 36 bytes` or
    /// `a list`. Omits the content, which may be secret. `None` for a lock of this library.
    pub fn foreign(&self) -> Option<String> {
        let holder = self.holders.first()?;
        holder.owner.is_none().then(|| foreign(self.kind, &holder.value))
    }

    /// The holders that use this library.
    pub(crate) fn owners(&self) -> Vec<Owner> {
        self.holders.iter().filter_map(|holder| holder.owner.clone()).collect()
    }

    pub(crate) fn new(name: LockName, found: Found) -> Self {
        let holders = |all: Vec<Holding>| all.into_iter().map(|one| holder(found.kind, one)).collect();
        let permits = found.capacity.filter(|_| found.kind == Kind::Semaphore);
        let waiting = has_queue(found.kind).then(|| found.waiters.len() as u64 + found.unlisted);
        Self {
            name,
            kind: found.kind,
            permits,
            holders: holders(found.holders),
            waiters: holders(found.waiters),
            unlisted: found.unlisted,
            waiting,
            capacity: found.capacity,
        }
    }
}

fn has_queue(kind: Kind) -> bool {
    !matches!(kind, Kind::Mutex | Kind::Reentrant)
}

/// The status of each of these locks, by their full names. The store counts the processes that wait for locks
/// without a queue; if it does not answer, their number is unknown.
pub(crate) async fn with_waiting(
    store: &dyn Store,
    found: Vec<(LockName, LockName, Found)>,
    within: Duration,
) -> Vec<Status> {
    let is_counted = |found: &Found| !has_queue(found.kind);
    let counted = found.iter().filter(|(.., found)| is_counted(found));
    let locks: Vec<_> = counted.map(|(full, _, found)| (full.clone(), found.clone())).collect();
    let counts = match locks.is_empty() {
        true => Vec::new(),
        false => store.waiting(&locks, within).await.unwrap_or_default(),
    };
    let mut counts = counts.into_iter();
    let status = |(_, name, found): (LockName, LockName, Found)| {
        let count = if is_counted(&found) { counts.next().flatten() } else { None };
        let status = Status::new(name, found);
        Status { waiting: status.waiting.or(count), ..status }
    };
    found.into_iter().map(status).collect()
}

fn holder(kind: Kind, Holding { value, left_ms, weight }: Holding) -> Holder {
    let share = Share::of(kind, weight);
    let (owner, fence) = parse_value(&value).map_or((None, 0), |(owner, fence)| (Some(owner), fence));
    Holder { owner, value, fence, remaining: left_ms.map(Duration::from_millis), share }
}

/// Describes the type of a foreign value without its content.
pub(crate) fn foreign(kind: Kind, value: &[u8]) -> String {
    let text = std::str::from_utf8(value).ok();
    let type_of_key = text.and_then(|text| text.strip_prefix('(')?.strip_suffix(')'));
    match (kind, type_of_key) {
        (Kind::Reentrant, _) => of_type("hash"),
        (_, Some(name @ ("hash" | "list" | "set" | "stream" | "zset"))) => of_type(name),
        // Stores return at most the first 1,024 bytes.
        _ if value.len() >= 1_024 => "a string of 1024 bytes or more".to_owned(),
        _ if value.len() == 1 => "a string of 1 byte".to_owned(),
        _ => format!("a string of {} bytes", value.len()),
    }
}

/// Iterates over the locks of a store: see [`Locks::list`](crate::Locks::list).
///
/// Use it for display and clean-up. It scans the whole store, so to look up one lock use
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
    shared: Arc<EngineHandle>,
    options: Arc<Options>,
    prefix: String,
    page: std::vec::IntoIter<Status>,
    next: Option<Cursor>,
}

/// As [`Locks`](crate::Locks): the position is set only once a page has arrived.
impl UnwindSafe for Listing {}
impl RefUnwindSafe for Listing {}

impl Listing {
    pub(crate) fn new(shared: &Arc<EngineHandle>, options: &Arc<Options>, prefix: &str) -> Self {
        let prefix = format!("{}{prefix}", options.prefix);
        let (shared, options, page) = (Arc::clone(shared), Arc::clone(options), Vec::new().into_iter());
        Self { shared, options, prefix, page, next: Some(Cursor::default()) }
    }

    /// Returns the next lock, or `None` after the last one.
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
    /// Nothing is lost: the next call resumes at the same position.
    ///
    /// # Errors
    /// `is_unreachable` or `is_refused` if the store gave no answer; the next call retries.
    pub async fn next(&mut self) -> Result<Option<Status>> {
        loop {
            if let Some(status) = self.page.next() {
                return Ok(Some(status));
            }
            let Some(from) = &self.next else { return Ok(None) };
            let store = &self.shared.engine.store;
            let page = store.list(&self.prefix, from.clone(), self.options.op_timeout).await;
            let Page { locks, next } = page.map_err(|failure| Error::silent(None, store.url(), failure))?;
            let named = locks.into_iter().filter_map(|(full, found)| {
                // Not the prefix alone: a key of somebody else's.
                let name = LockName::new(full.as_str().strip_prefix(&self.options.prefix)?).ok()?;
                Some((full, name, found))
            });
            let all = with_waiting(&**store, named.collect(), self.options.op_timeout).await;
            (self.page, self.next) = (all.into_iter(), next);
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
        // The largest counter value expected from ZooKeeper after a hundred thousand elections.
        for fence in [1, 7_000, 100_000 << 32] {
            assert_eq!(since(fence), None, "{fence}");
        }
        let micros = 1_800_000_000_000_000;
        assert_eq!(since(micros), Some(UNIX_EPOCH + Duration::from_micros(micros)));
    }
}
