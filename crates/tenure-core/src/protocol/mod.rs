//! Locks as a pure function: `apply(state, now, op) -> answer`.
//!
//! There is no I/O, clock or task here: `now` is an argument. Memory and file stores run this code; Redis
//! runs an equivalent in Lua with the same functions under the same names, and a test compares the two on
//! random operations.
//!
//! The vocabulary is [`Op`], [`Verb`], [`LockSpec`] and [`Answer`]. Some operations of the public API share a
//! verb: verify is `Inspect`, detach and resume are `Renew` with another [`Liveness`], and force-release is
//! `Release` with the scope `Any` or `Foreign`.

pub mod codec;
pub mod lease;
pub mod mutex;
pub mod places;
pub mod queue;
pub mod quorum;
pub mod record;
pub mod reentrant;

use std::fmt::{self, Write};
use std::num::NonZeroU16;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::Error;
use crate::moment::Moment;
use crate::name::{LockName, Quoted};
use crate::owner::Owner;

/// The holder named by a server in its restart grace.
pub const RESTART: &str = "(restart)";

/// A request to a store.
#[derive(Clone, Debug)]
pub struct Op {
    /// The lock's full name, including the prefix.
    pub name: LockName,
    /// The kind of lock and its parameters.
    pub spec: LockSpec,
    /// The requesting owner. A second request of the same owner counts as a repetition of the first.
    pub owner: Owner,
    /// Number of this request. A server echoes it together with the owner, so that no client accepts the
    /// reply to another request.
    pub request: u64,
    /// The operation.
    pub verb: Verb,
}

/// The state machine that handles a request, and its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockSpec {
    /// One holder. Waiters retry when woken.
    Mutex,
    /// One owner with a count of holds. Waiters retry when woken.
    Reentrant,
    /// A queue of tickets. A notification names the tickets that have become holders.
    Queue(QueueSpec),
}

/// The kind of queue and the requested share of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSpec {
    /// [`Kind::Fair`], [`Kind::RwLock`] or [`Kind::Semaphore`].
    pub kind: Kind,
    /// Maximum total weight of the holders.
    pub capacity: u32,
    /// Weight of this request.
    pub weight: u32,
}

impl QueueSpec {
    /// A fair mutex.
    pub const FAIR: Self = Self { kind: Kind::Fair, capacity: 1, weight: 1 };
    /// One of many readers.
    pub const READER: Self = Self { kind: Kind::RwLock, capacity: 1 << 20, weight: 1 };
    /// A reader that may become the writer. Two of them do not fit at once.
    pub const UPGRADEABLE: Self = Self { kind: Kind::RwLock, capacity: 1 << 20, weight: (1 << 19) + 1 };
    /// The writer.
    pub const WRITER: Self = Self { kind: Kind::RwLock, capacity: 1 << 20, weight: 1 << 20 };

    /// `weight` permits of a semaphore with `of` permits.
    pub const fn permits(of: u32, weight: u32) -> Self {
        Self { kind: Kind::Semaphore, capacity: of, weight }
    }
}

impl LockSpec {
    /// The spec for inspecting an existing lock of this kind and capacity.
    pub fn of(kind: Kind, capacity: Option<u32>) -> Self {
        match (kind, capacity) {
            (Kind::Mutex, _) => Self::Mutex,
            (Kind::Reentrant, _) => Self::Reentrant,
            (kind, capacity) => Self::Queue(QueueSpec { kind, capacity: capacity.unwrap_or(1), weight: 1 }),
        }
    }

    /// Maximum total weight of the holders, for kinds that count it.
    pub const fn capacity(self) -> Option<u32> {
        match self {
            Self::Queue(queue_spec) => Some(queue_spec.capacity),
            _ => None,
        }
    }

    /// The kind as users know it.
    pub const fn kind(self) -> Kind {
        match self {
            Self::Mutex => Kind::Mutex,
            Self::Reentrant => Kind::Reentrant,
            Self::Queue(queue_spec) => queue_spec.kind,
        }
    }
}

/// The kinds of locks, as users know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// One holder at a time; waiters acquire in no particular order.
    Mutex,
    /// One owner at a time, which may hold it several times.
    Reentrant,
    /// One holder at a time, first come, first served.
    Fair,
    /// Many readers or one writer.
    RwLock,
    /// A number of permits.
    Semaphore,
}

const KINDS: [(Kind, &str); 5] = [
    (Kind::Mutex, "mutex"),
    (Kind::Reentrant, "reentrant mutex"),
    (Kind::Fair, "fair mutex"),
    (Kind::RwLock, "read-write lock"),
    (Kind::Semaphore, "semaphore"),
];

impl Kind {
    /// The name of the kind: `mutex`, `reentrant mutex`, `fair mutex`, `read-write lock` or `semaphore`.
    ///
    /// ```
    /// assert_eq!(tenure::Kind::Fair.as_str(), "fair mutex");
    /// ```
    pub fn as_str(self) -> &'static str {
        KINDS.iter().find(|(kind, _)| *kind == self).expect("every kind has a name").1
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Parses the output of [`as_str`](Kind::as_str).
impl FromStr for Kind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let known = KINDS.iter().find(|(_, name)| *name == text).map(|(kind, _)| *kind);
        known.ok_or_else(|| {
            let names = KINDS.map(|(_, name)| format!("`{name}`")).join(", ");
            Error::invalid(format!("the kind of a lock must be one of {names}, got {}", Quoted(text)))
        })
    }
}

/// The operations on a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Acquire the lock if it is free. Repeated by its owner, it returns the same grant again.
    Acquire {
        /// The lease, in milliseconds from the moment the store runs the request.
        ttl_ms: u64,
        /// Number of this hold, so that a repeated request counts once where one owner may hold several
        /// times.
        hold: u64,
        /// How the fencing token is chosen.
        fence: Fence,
        /// For kinds with a queue: how long to keep the place unless it is refreshed. `None` does not queue.
        wait_ms: Option<u64>,
        /// Where the owner receives notifications while it waits: see [`Listening`].
        listens: Option<Listening>,
        /// What the hold is bound to besides its lease.
        bind: Liveness,
    },
    /// Extend the lease of a hold. Never creates a hold and never shortens a lease.
    Renew {
        /// As in `Acquire`.
        ttl_ms: u64,
        /// Number of the hold, where one owner may have several.
        hold: u64,
        /// `Some` binds the hold to something else: binding it to the lease alone detaches it, binding it to
        /// a process resumes it.
        bind: Option<Liveness>,
        /// `Some` changes the weight. A hold can always become lighter: a writer becomes a reader. A holder
        /// of a read-write lock with more than half of the capacity can also become heavier, and is answered
        /// `Growing` until the new weight fits beside the other holders.
        weight: Option<u32>,
    },
    /// Keep the places of many waiters of one process with one request.
    Refresh {
        /// The owners of the places.
        owners: Arc<[Owner]>,
        /// How long to keep the places, in milliseconds.
        wait_ms: u64,
        /// As in `Acquire`, for all places.
        listens: Option<Listening>,
    },
    /// Release a hold or leave the queue.
    Release {
        /// Number of the hold. A forced release ends a reentrant mutex only if this is its token, or 0.
        hold: u64,
        /// With a ballot, the node raises its stored ballot to this one, so that a late acquire is rejected.
        fence: Fence,
        /// Which holds may be ended.
        whose: ReleaseScope,
    },
    /// Set the capacity to that of the spec. It stays in force for [`lease::CAPACITY_MS`].
    Resize,
    /// Report holders and waiters.
    Inspect,
}

/// The server and the kind of message by which a client receives the wake-up of a place: a number from 1 to
/// 4095, stored with the place.
///
/// If a store wakes such a place and that server reports no subscriber, the store knows that the client is
/// gone and skips the place. A place without this number is kept until it expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Listening(NonZeroU16);

impl Listening {
    /// Creates it from a number from 1 to 4095.
    pub const fn new(number: u16) -> Option<Self> {
        match NonZeroU16::new(number) {
            Some(number) if number.get() < 4096 => Some(Self(number)),
            _ => None,
        }
    }

    /// The number.
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

/// Whether a waiter's client receives its wake-up, as far as the store knows. Called for places whose clients
/// listen; returns true if unknown.
pub type Hears<'a> = &'a dyn Fn(Option<Listening>, &Owner) -> bool;

/// How a grant's fencing token is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// The store assigns `max(last + 1, its clock in microseconds)`.
    Assign,
    /// As `Assign`, but a server that forbids scripts, and so cannot count, may grant without a token.
    Optional,
    /// The client proposes a ballot, which is granted only if it is above every ballot this node has seen.
    Ballot(u64),
}

/// What a hold is bound to besides its lease, for stores that can tell: a store on one machine notices when a
/// process ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Liveness {
    /// This process: the hold ends with it.
    #[default]
    Process,
    /// This process and the children it starts from now on: the hold ends with the last of them.
    Work,
    /// Nothing: only the lease ends it, so the hold can be passed to another process.
    Lease,
}

/// Which holds a release may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseScope {
    /// The requesting owner's, compared and deleted in one step.
    Own,
    /// The requesting owner's, when another client ends the hold: the holder is notified.
    Named,
    /// Any owner's, if the lock was created by this library. Values of other programs are left alone.
    Any,
    /// As `Any`, and also a string written by another program: the plain lock of another client.
    Foreign,
}

impl ReleaseScope {
    /// Whether the scope includes holds of other owners.
    pub const fn is_forced(self) -> bool {
        matches!(self, Self::Any | Self::Foreign)
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The owner holds the lock, and its lease was set to at least the requested ttl while this request ran.
    Held {
        /// The fencing token, unchanged by repetition and renewal. 0 where the store cannot assign one.
        fence: u64,
    },
    /// Another client holds the lock.
    Busy {
        /// The holder as stored at the key: a tenure owner with its token, or the bytes of a foreign client.
        holder: String,
        /// Time left of the holder's lease; `None` if it does not expire.
        left_ms: Option<u64>,
    },
    /// The lock is free, so this owner has no hold either.
    Free,
    /// The owner holds the lock, but its increased weight does not fit yet. No other client is admitted until
    /// it does.
    Growing {
        /// The fencing token of the hold.
        fence: u64,
        /// When to retry if no notification arrives.
        retry_in_ms: u64,
    },
    /// The owner has a place in the queue.
    Waiting {
        /// Its number, which becomes its token when it holds.
        ticket: u64,
        /// For the head of the queue: when to retry if no notification arrives.
        retry_in_ms: Option<u64>,
    },
    /// The owner's hold has ended.
    Released {
        /// Remaining holds of the owner.
        left: u32,
    },
    /// The capacity has been set.
    Resized,
    /// The state of each refreshed place, in request order.
    Places {
        /// One for each owner.
        places: Vec<Place>,
        /// As in `Waiting`, if the head of the queue is among them.
        retry_in_ms: Option<u64>,
    },
    /// The holders; for a forced release, the former holders.
    Found(Found),
    /// Another kind of lock of this library exists under this name.
    Mismatch {
        /// The existing kind.
        kind: Kind,
        /// Its capacity, if it has one.
        capacity: Option<u32>,
    },
    /// The key has a type that no lock uses. An acquisition must not wait for it.
    NoLock {
        /// The store's name of the type, such as `list`.
        type_name: String,
    },
    /// The proposed ballot is not above the ballot that this node has stored.
    Behind {
        /// The stored ballot.
        ballot: u64,
    },
    /// The proposed ballot is implausibly far above this node's clock.
    Ahead,
    /// The answer of a request that reached its work limit: expired places may be left, or waiters that fit
    /// but were not admitted. Any further request about the lock continues.
    More(Box<Self>),
    /// The answer of a store whose leases count on this machine's clock, if it carried out the request long
    /// after the request was sent. A lease that it granted counts from this time.
    Late(Moment, Box<Self>),
}

impl Answer {
    /// Marks the answer as coming from a request that reached its work limit.
    #[must_use]
    pub fn and_more(self) -> Self {
        Self::More(Box::new(self))
    }

    /// The answer without that mark.
    #[must_use]
    pub fn plain(&self) -> &Self {
        if let Self::More(answer) = self { answer } else { self }
    }

    /// The answer, and the time from which a lease that it granted counts, if the store knows.
    pub fn timed(self) -> (Self, Option<Moment>) {
        match self {
            Self::Late(began, answer) => (*answer, Some(began)),
            answer => (answer, None),
        }
    }
}

/// The state of a place in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It holds the lock.
    Held {
        /// Its fencing token.
        fence: u64,
    },
    /// It waits.
    Waiting {
        /// Its number.
        ticket: u64,
    },
    /// It does not exist: it expired, or the queue was lost.
    Gone,
}

/// The holders and waiters of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The kind of the lock.
    pub kind: Kind,
    /// Maximum total weight of the holders, for kinds that count it.
    pub capacity: Option<u32>,
    /// The holders.
    pub holders: Vec<Holding>,
    /// The waiters in queue order, for kinds with a queue.
    pub waiters: Vec<Holding>,
    /// Number of further holders and waiters: an answer lists at most a thousand places.
    pub unlisted: u64,
}

impl Found {
    /// A lock with one holder.
    pub fn one(kind: Kind, holder: Holding) -> Self {
        Self { kind, capacity: None, holders: vec![holder], waiters: Vec::new(), unlisted: 0 }
    }
}

/// One holder or waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The value as stored at the key. A foreign client's value may not be text.
    pub value: Vec<u8>,
    /// Time left of its lease; `None` if it does not expire.
    pub left_ms: Option<u64>,
    /// Its weight; for the reentrant kind, how often its owner holds the lock.
    pub weight: u32,
}

/// Parses a value of this library: `owner#token`. A bare owner, from a client without a token, has token 0.
pub fn parse_value(value: &(impl AsRef<[u8]> + ?Sized)) -> Option<(Owner, u64)> {
    let value = std::str::from_utf8(value.as_ref()).ok()?;
    let (owner, fence) = match value.rsplit_once('#') {
        Some((owner, digits)) if is_digits(digits) => (owner, digits.parse().ok()?),
        Some(_) => return None,
        None => (value, 0),
    };
    Some((owner.parse().ok()?, fence))
}

/// Formats a value of this library: `owner#token`.
pub(crate) fn value_text(owner: &Owner, fence: u64) -> String {
    const DIGITS: usize = 20;
    let mut value = String::with_capacity(owner.as_str().len() + 1 + DIGITS);
    value.push_str(owner.as_str());
    let _ = write!(value, "#{fence}");
    value
}

/// A value as readable text, with a replacement character for each invalid byte.
pub fn shown(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A message to waiters. It is a hint: it may be lost, late or spurious.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notification {
    /// The lock may be free.
    Free {
        /// The owner whose hold ended, if known.
        by: Option<Owner>,
    },
    /// These tickets now hold the lock. This is not just a hint: a client that owns one of them, and whose
    /// place has not expired, holds the lock.
    Granted {
        /// The numbers of the tickets.
        tickets: Vec<u64>,
    },
    /// This ticket is at the head of the queue now. Its client asks when the place that was granted before may
    /// have expired, because its client may be dead.
    First {
        /// The number of the ticket.
        ticket: u64,
    },
    /// Notifications may have been missed.
    Reconnected,
}

/// The store's two clocks when it runs a request. On Redis they are the same clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Measures leases, in milliseconds.
    pub ms: u64,
    /// Generates tokens. Survives a reboot.
    pub unix_us: u64,
}

/// The state of one lock in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// The value at the lock's key.
    pub lock: Option<ExpiringValue<Data>>,
    /// The highest ballot seen, where the store is a member of a quorum. It outlives the lock by
    /// [`lease::BALLOT_MS`].
    pub ballot: Option<ExpiringValue<u64>>,
}

impl State {
    /// The lock, if it is a queue.
    pub fn queue(&self) -> Option<&queue::Queue> {
        match self.lock.as_ref().map(|lock| &lock.value) {
            Some(Data::Queue(queue)) => Some(queue),
            _ => None,
        }
    }
}

/// A value with an expiry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExpiringValue<T> {
    /// The value.
    pub value: T,
    /// Valid up to and including this millisecond, as on Redis. `None`: a foreign client set no expiry.
    pub expires_ms: Option<u64>,
}

/// The value at a lock's key, as Redis types it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Data {
    /// A string: a mutex of this library, or the value of a foreign client.
    Text(String),
    /// A hash: a reentrant mutex, of this library or of Redisson.
    Hash(reentrant::Hash),
    /// A queue of tickets.
    Queue(queue::Queue),
}

impl Data {
    /// The answer to a request for another kind.
    fn mismatch(&self) -> Answer {
        let (kind, capacity) = match self {
            Self::Text(_) => (Kind::Mutex, None),
            Self::Hash(_) => (Kind::Reentrant, None),
            Self::Queue(queue) => (queue.kind, Some(queue.capacity)),
        };
        Answer::Mismatch { kind, capacity }
    }

    /// Whether a hold or place has this number: see [`end`].
    pub fn has(&self, number: u64) -> bool {
        match self {
            Self::Text(value) => mutex::has(value, number),
            Self::Hash(hash) => reentrant::has(hash, number),
            Self::Queue(queue) => queue.has(number),
        }
    }
}

impl<T> ExpiringValue<T> {
    /// Whether it has expired.
    pub fn is_over(&self, now: Now) -> bool {
        self.expires_ms.is_some_and(|end| now.ms > end)
    }

    fn left_ms(&self, now: Now) -> Option<u64> {
        self.expires_ms.map(|end| end.saturating_sub(now.ms))
    }
}

impl State {
    /// Whether nothing in it is valid any more.
    pub fn is_over(&self, now: Now) -> bool {
        self.lock.as_ref().is_none_or(|lock| lock.is_over(now))
            && self.ballot.as_ref().is_none_or(|ballot| ballot.is_over(now))
    }
}

/// The holders and waiters of a lock for a listing; `None` if there are none.
pub fn found(state: &State, now: Now) -> Option<Found> {
    let lock = state.lock.as_ref().filter(|lock| !lock.is_over(now))?;
    Some(match &lock.value {
        Data::Text(value) => {
            let holder = Holding { value: value.clone().into_bytes(), left_ms: lock.left_ms(now), weight: 1 };
            Found {
                kind: Kind::Mutex,
                capacity: None,
                holders: vec![holder],
                waiters: Vec::new(),
                unlisted: 0,
            }
        }
        Data::Hash(hash) => reentrant::found(hash, lock.left_ms(now)),
        Data::Queue(queue) => return queue.found(now),
    })
}

/// Ends one hold or place as if its lease had expired, for a store that can tell that the client is gone.
///
/// `number` is the token of a mutex, the hold of a reentrant mutex, or the ticket of a queue. As after an
/// expiry, the next request admits waiters and reports them.
pub fn end(state: &mut State, number: u64) {
    let Some(lock) = &mut state.lock else { return };
    let is_over = match &mut lock.value {
        Data::Text(value) => mutex::has(value, number),
        Data::Hash(hash) => reentrant::end(hash, number),
        Data::Queue(queue) => queue.end(number),
    };
    if is_over {
        state.lock = None;
    }
}

/// Reports the holders; a mismatch if `is_own` rejects the value.
fn inspect(state: &State, now: Now, is_own: impl Fn(&Data) -> bool) -> Answer {
    match &state.lock {
        Some(lock) if !is_own(&lock.value) => lock.value.mismatch(),
        _ => found(state, now).map_or(Answer::Free, Answer::Found),
    }
}

/// Ends the lock and reports its former holders; busy if `is_to_end` rejects it.
fn force(
    state: &mut State,
    now: Now,
    is_own: impl Fn(&Data) -> bool,
    is_to_end: impl Fn(&Data) -> bool,
) -> (Answer, Option<Notification>) {
    let answer = inspect(state, now, is_own);
    let Answer::Found(found) = &answer else { return (answer, None) };
    if !state.lock.as_ref().is_some_and(|lock| is_to_end(&lock.value)) {
        let Some(Holding { value, left_ms, .. }) = found.holders.first() else { return (Answer::Free, None) };
        return (Answer::Busy { holder: shown(value), left_ms: *left_ms }, None);
    }
    let by = found.holders.first().and_then(|holder| parse_value(&holder.value)).map(|(owner, _)| owner);
    state.lock = None;
    (answer, Some(Notification::Free { by }))
}

/// The answer of a machine that finds another one's value: a mismatch for a lock of this library, busy for a
/// foreign one.
fn other_kind(lock: &ExpiringValue<Data>, now: Now) -> Answer {
    let left_ms = lock.left_ms(now);
    match &lock.value {
        Data::Text(value) if parse_value(value).is_none() => Answer::Busy { holder: value.clone(), left_ms },
        Data::Hash(hash) if reentrant::fence_of(hash) == 0 => {
            Answer::Busy { holder: reentrant::holder(hash), left_ms }
        }
        ours => ours.mismatch(),
    }
}

/// Runs one request against one lock.
///
/// Expired state is removed first, even for a request of its owner, so an expired hold is never revived.
/// `counter` is the last token that the store assigned for any lock. Returns the answer and, if the change
/// may admit another client, the notification for the waiters.
pub fn apply(state: &mut State, counter: &mut u64, now: Now, op: &Op) -> (Answer, Option<Notification>) {
    apply_calling(state, counter, now, op, &|_, _| true)
}

/// Like [`apply`], for a store that learns by waking a waiter whether its client is alive.
pub fn apply_calling(
    state: &mut State,
    counter: &mut u64,
    now: Now,
    op: &Op,
    hears: Hears<'_>,
) -> (Answer, Option<Notification>) {
    if state.lock.as_ref().is_some_and(|lock| lock.is_over(now)) {
        state.lock = None;
    }
    if state.ballot.as_ref().is_some_and(|ballot| ballot.is_over(now)) {
        state.ballot = None;
    }
    match op.spec {
        LockSpec::Mutex => mutex::apply(state, counter, now, op),
        LockSpec::Reentrant => reentrant::apply(state, counter, now, op),
        LockSpec::Queue(queue_spec) => queue::apply(state, counter, now, op, queue_spec, hears),
    }
}

/// The additional notification after a forced end of holds in a queue, which makes the holders check whether
/// they still hold. For the other kinds the notification of [`apply`] already reports each end.
pub fn forced(op: &Op, answer: &Answer) -> Option<Notification> {
    let Verb::Release { whose, .. } = op.verb else { return None };
    let is_queue = matches!(op.spec, LockSpec::Queue(_));
    let is_forced = match answer.plain() {
        Answer::Found(_) => whose.is_forced(),
        Answer::Released { .. } => whose == ReleaseScope::Named,
        _ => false,
    };
    (is_queue && is_forced).then_some(Notification::Free { by: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_ours_is_told_from_a_foreign_one() {
        let owner = Owner::new("x").expect("an owner");
        assert_eq!(parse_value(&format!("{owner}#17")), Some((owner.clone(), 17)));
        assert_eq!(parse_value(owner.as_str()), Some((owner.clone(), 0)));
        for foreign in [
            "",
            "x",
            "#1",
            "550e8400-e29b-41d4-a716-446655440000",
            &format!("{owner}#"),
            &format!("{owner}#x"),
        ] {
            assert_eq!(parse_value(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_kind_reads_back_from_its_name() {
        for (kind, name) in KINDS {
            assert_eq!((kind.to_string().as_str(), name.parse::<Kind>().ok()), (name, Some(kind)));
        }
    }
}
