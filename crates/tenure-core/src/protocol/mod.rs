//! What a lock *is*: a pure function `apply(state, now, op) -> reply`.
//!
//! No I/O, no clock, no task, no Redis: `now` is an argument. Memory and file stores run it here;
//! Redis runs its twin in Lua, function by function under the same names, compared by a test on
//! random operations.
//!
//! This module is the whole vocabulary: [`Op`], [`Verb`], [`LockSpec`], [`Answer`]. Verify is
//! `Inspect`; detach and resume are `Renew` with the liveness changed; force_release is `Release`
//! of anyone.

pub mod codec;
pub mod lease;
pub mod mutex;
pub mod queue;
pub mod quorum;
pub mod record;
pub mod reentrant;

use std::fmt::{self, Write};
use std::num::NonZeroU16;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::Error;
use crate::name::{LockName, Quoted};
use crate::owner::Owner;

/// A request to the store: the asker, the verb and the lock.
#[derive(Clone, Debug)]
pub struct Op {
    /// The lock's full name: prefix and name.
    pub name: LockName,
    /// The kind of lock that is meant.
    pub rule: LockSpec,
    /// The asker. Two requests of one owner are the same request, repeated.
    pub owner: Owner,
    /// Names this request. A server echoes it beside the owner, so that no client takes another's
    /// reply for its own.
    pub request: u64,
    /// What is asked.
    pub verb: Verb,
}

/// Which state machine answers, and with what numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockSpec {
    /// One holder; asks again when woken.
    Mutex,
    /// One owner with a count of holds; asks again when woken.
    Reentrant,
    /// A place in a queue; named when it holds.
    Queue(QueueSpec),
}

/// What kind of queue, and how much of it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSpec {
    /// [`Kind::Fair`], [`Kind::RwLock`] or [`Kind::Semaphore`].
    pub kind: Kind,
    /// How much weight may hold at once.
    pub capacity: u32,
    /// How much of it this request takes.
    pub weight: u32,
}

impl QueueSpec {
    /// A fair mutex.
    pub const FAIR: Self = Self { kind: Kind::Fair, capacity: 1, weight: 1 };
    /// One of many readers.
    pub const READER: Self = Self { kind: Kind::RwLock, capacity: 1 << 20, weight: 1 };
    /// The only one of many readers that may become the writer: two do not fit.
    pub const UPGRADEABLE: Self = Self { kind: Kind::RwLock, capacity: 1 << 20, weight: (1 << 19) + 1 };
    /// The only writer.
    pub const WRITER: Self = Self { kind: Kind::RwLock, capacity: 1 << 20, weight: 1 << 20 };

    /// So many permits of a semaphore.
    pub const fn permits(of: u32, weight: u32) -> Self {
        Self { kind: Kind::Semaphore, capacity: of, weight }
    }
}

impl LockSpec {
    /// The rule under which a lock of this kind is looked at, also if another was meant before.
    pub fn of(kind: Kind, capacity: Option<u32>) -> Self {
        match (kind, capacity) {
            (Kind::Mutex, _) => Self::Mutex,
            (Kind::Reentrant, _) => Self::Reentrant,
            (kind, capacity) => Self::Queue(QueueSpec { kind, capacity: capacity.unwrap_or(1), weight: 1 }),
        }
    }

    /// How much weight may hold at once, where that is counted.
    pub const fn capacity(self) -> Option<u32> {
        match self {
            Self::Queue(seat) => Some(seat.capacity),
            _ => None,
        }
    }

    /// The kind a user calls it by.
    pub const fn kind(self) -> Kind {
        match self {
            Self::Mutex => Kind::Mutex,
            Self::Reentrant => Kind::Reentrant,
            Self::Queue(seat) => seat.kind,
        }
    }
}

/// The kinds of locks, as a user names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// One holder at a time, in no promised order.
    Mutex,
    /// One owner at a time, who may hold it several times.
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
    /// Its name: `mutex`, `reentrant mutex`, `fair mutex`, `read-write lock` or `semaphore`.
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

/// Parses what [`as_str`](Kind::as_str) returns.
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

/// What can be asked of a lock: five things, and one of them for many at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Take it if it is free. Repeated by its owner: the same grant again.
    Acquire {
        /// The lease, in milliseconds from the moment the store runs the request.
        ttl_ms: u64,
        /// Names this hold, so that a repeated request counts once where one owner may hold several
        /// times.
        hold: u64,
        /// How the token is chosen.
        fence: Fence,
        /// Where the machine keeps a queue: stay in it for this long, until refreshed. `None` asks
        /// once.
        wait_ms: Option<u64>,
        /// Where the asker hears of its turn while it waits: see [`Listening`].
        listens: Option<Listening>,
        /// What the hold is bound to besides its lease.
        bind: Liveness,
    },
    /// Set the lease of a hold again. Never creates one, never shortens one.
    Renew {
        /// As in `Acquire`.
        ttl_ms: u64,
        /// Which hold, where one owner may have several.
        hold: u64,
        /// `Some` binds the hold to something else: to the lease alone it is detached, back to a
        /// process it is resumed.
        bind: Option<Liveness>,
        /// `Some` makes the hold lighter: a writer becomes a reader. One that takes more than half
        /// of the capacity may become heavier: it is answered `Growing` until that fits beside the
        /// others.
        weight: Option<u32>,
    },
    /// Stay in the queue: `Acquire` repeated for many waiters of one process at once.
    Refresh {
        /// Whose places.
        owners: Arc<[Owner]>,
        /// For how much longer.
        wait_ms: u64,
        /// As in `Acquire`, for all of them.
        listens: Option<Listening>,
    },
    /// Give it back.
    Release {
        /// Which hold. A release of anyone ends a reentrant mutex only if this is its token, or 0.
        hold: u64,
        /// With a ballot, the node's stored ballot is raised to it, so that a late acquire is
        /// refused.
        fence: Fence,
        /// Whose hold may be ended.
        whose: ReleaseScope,
    },
    /// From now on as much may hold at once as the rule says, whatever was in force. Kept for
    /// [`lease::CAPACITY_MS`].
    Resize,
    /// Report the holders.
    Inspect,
}

/// At which server, and by which kind of message, a client hears that it is called: a number from 1
/// to 4095 that is written beside its place.
///
/// A store that calls such a place, and is told by that same server that no client hears it, knows
/// that its client is gone. A place without it is kept until it lapses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Listening(NonZeroU16);

impl Listening {
    /// One of these numbers.
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

/// Whether a client that waits hears that it is called, as far as the store knows. It is asked for
/// places whose clients listen, and says yes where it cannot tell.
pub type Hears<'a> = &'a dyn Fn(Option<Listening>, &Owner) -> bool;

/// How a grant's fencing token is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// The store assigns `max(last + 1, its clock in microseconds)`.
    Assign,
    /// As `Assign`; but a server that forbids scripts, and so cannot count, may grant without a
    /// token.
    Optional,
    /// The client proposes: granted only above everything this node has seen.
    Ballot(u64),
}

/// What a hold is bound to besides its lease, where the store can tell: a store on one machine sees
/// a process end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Liveness {
    /// This process: the hold ends with it.
    #[default]
    Process,
    /// This process and the children it starts from now on: the hold ends with the last of them.
    Work,
    /// Nothing: only the lease ends it. So it can be passed to another process.
    Lease,
}

/// Whose hold a release ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseScope {
    /// The asking owner's, compared and deleted in one step.
    Own,
    /// The same, where another client ends the hold: its holder is told.
    Named,
    /// Any owner's, of a lock of this library. What another program wrote is left alone.
    Any,
    /// As `Any`, and also a string that another program wrote: the plain lock of another client.
    Foreign,
}

impl ReleaseScope {
    /// Whether holds of other owners are ended too.
    pub const fn is_forced(self) -> bool {
        matches!(self, Self::Any | Self::Foreign)
    }
}

/// What a lock says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The asker holds, and its lease was set to at least the asked ttl while this request ran.
    Held {
        /// The token of the hold: the same on repeat and renewal. 0 where the store can give none.
        fence: u64,
    },
    /// Another client holds it.
    Busy {
        /// The holder as it is written at the key: a tenure owner with its token, or the bytes of
        /// a foreign client.
        holder: String,
        /// When the holder's lease ends, unless it has none.
        left_ms: Option<u64>,
    },
    /// No client holds it, so there is nothing of the asker's either.
    Free,
    /// The asker holds, and the weight that it has taken does not fit yet: no client is let in
    /// until it does.
    Growing {
        /// The token of the hold.
        fence: u64,
        /// When to ask again if nothing is heard.
        retry_in_ms: u64,
    },
    /// The asker keeps a place in the queue.
    Waiting {
        /// Its number; its token once it holds.
        ticket: u64,
        /// For the first in line: when to ask again if nothing is heard.
        retry_in_ms: Option<u64>,
    },
    /// The asker's hold has ended.
    Released {
        /// How many holds its owner has left.
        left: u32,
    },
    /// As much may hold at once as the rule of the request said.
    Resized,
    /// What became of each place that was refreshed, in the order asked.
    Places {
        /// One for each owner.
        places: Vec<Place>,
        /// As in `Waiting`, if the first in line is among them.
        retry_in_ms: Option<u64>,
    },
    /// The holders; for a forced release, those that held the lock.
    Found(Found),
    /// Another kind of this library's locks stands at this name.
    Mismatch {
        /// What stands there.
        kind: Kind,
        /// How much it lets in, where that is the difference.
        capacity: Option<u32>,
    },
    /// A key of a type that no lock has stands at this name: an acquisition is not to wait for it.
    NoLock {
        /// The type as the store names it: `list`.
        type_name: String,
    },
    /// The proposed ballot is not above what this node has stored.
    Behind {
        /// What it has stored.
        ballot: u64,
    },
    /// The proposed ballot is absurdly far above this node's clock.
    Ahead,
    /// The answer, and that the request stopped at its bound: lapsed places may be left, or places
    /// that fit and were not let in. To ask anything about the lock goes on.
    More(Box<Self>),
}

impl Answer {
    /// The same from a request that stopped at its bound.
    #[must_use]
    pub fn and_more(self) -> Self {
        Self::More(Box::new(self))
    }
}

/// What a place in a queue has become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It holds.
    Held {
        /// Its token.
        fence: u64,
    },
    /// It waits.
    Waiting {
        /// Its number.
        ticket: u64,
    },
    /// It is not there: it has lapsed, or the queue was lost.
    Gone,
}

/// The holders of a lock and those who wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What stands at the name.
    pub kind: Kind,
    /// How much weight may hold at once, where the machine counts it.
    pub capacity: Option<u32>,
    /// The holders.
    pub holders: Vec<Holding>,
    /// The waiters, in order, where the machine keeps a queue.
    pub waiters: Vec<Holding>,
    /// How many hold or wait beside these: an answer lists a thousand places.
    pub unlisted: u64,
}

impl Found {
    /// What stands at a name that has one holder.
    pub fn one(kind: Kind, holder: Holding) -> Self {
        Self { kind, capacity: None, holders: vec![holder], waiters: Vec::new(), unlisted: 0 }
    }
}

/// One holder or waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// As it is written at the key. A foreign client may write what is no text.
    pub value: Vec<u8>,
    /// Until its lease ends, unless it has none.
    pub left_ms: Option<u64>,
    /// How much of the capacity it takes; for the reentrant kind, how often its owner holds.
    pub weight: u32,
}

/// A parsed value of this library: `owner#token`. A bare owner, from a client that could give no
/// token, has token 0.
pub fn parse_value(value: &(impl AsRef<[u8]> + ?Sized)) -> Option<(Owner, u64)> {
    let value = std::str::from_utf8(value.as_ref()).ok()?;
    let (owner, fence) = match value.rsplit_once('#') {
        Some((owner, digits)) if is_digits(digits) => (owner, digits.parse().ok()?),
        Some(_) => return None,
        None => (value, 0),
    };
    Some((owner.parse().ok()?, fence))
}

/// A value of this library: `owner#token`.
pub(crate) fn value_text(owner: &Owner, fence: u64) -> String {
    const DIGITS: usize = 20;
    let mut value = String::with_capacity(owner.as_str().len() + 1 + DIGITS);
    value.push_str(owner.as_str());
    let _ = write!(value, "#{fence}");
    value
}

/// A value as text for people, with a mark for each byte that is not.
pub fn shown(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A message to those who wait. A hint: it may be lost, late or for nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notification {
    /// The lock may be free now.
    Free {
        /// Whose hold ended, where that is known.
        by: Option<Owner>,
    },
    /// These tickets hold now. No hint: the client that has one of them, and knows that its place
    /// has not lapsed, holds.
    Granted {
        /// Their numbers.
        tickets: Vec<u64>,
    },
    /// Messages may have been missed.
    Reconnected,
}

/// The store's two clocks at the moment it runs a request. On Redis they are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Judges leases.
    pub ms: u64,
    /// Gives tokens; outlives a reboot.
    pub unix_us: u64,
}

/// What a store keeps under one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// What stands at the lock's key.
    pub lock: Option<Entry<Data>>,
    /// The highest ballot seen, where the store is a member of a quorum. It outlives the lock by
    /// [`lease::BALLOT_MS`].
    pub ballot: Option<Entry<u64>>,
}

/// A value with an end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry<T> {
    /// The value.
    pub value: T,
    /// Alive up to and including this millisecond, as on Redis. `None`: a foreign client gave it no
    /// end.
    pub expires_ms: Option<u64>,
}

/// The value at a lock's key, as Redis types it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Data {
    /// A string: one of our mutexes, or what a foreign client wrote.
    Text(String),
    /// A hash: a reentrant mutex, ours or Redisson's.
    Hash(reentrant::Hash),
    /// A queue of tickets.
    Queue(queue::Queue),
}

impl Data {
    /// What it says when another kind is asked for.
    fn mismatch(&self) -> Answer {
        let (kind, capacity) = match self {
            Self::Text(_) => (Kind::Mutex, None),
            Self::Hash(_) => (Kind::Reentrant, None),
            Self::Queue(queue) => (queue.kind, Some(queue.capacity)),
        };
        Answer::Mismatch { kind, capacity }
    }

    /// Whether there is a hold, or a place in a queue, of this number: see [`end`].
    pub fn has(&self, number: u64) -> bool {
        match self {
            Self::Text(value) => mutex::has(value, number),
            Self::Hash(hash) => reentrant::has(hash, number),
            Self::Queue(queue) => queue.has(number),
        }
    }
}

impl<T> Entry<T> {
    /// Whether its end has passed.
    pub fn is_over(&self, now: Now) -> bool {
        self.expires_ms.is_some_and(|end| now.ms > end)
    }

    fn left_ms(&self, now: Now) -> Option<u64> {
        self.expires_ms.map(|end| end.saturating_sub(now.ms))
    }
}

impl State {
    /// Whether nothing is left of it.
    pub fn is_over(&self, now: Now) -> bool {
        self.lock.as_ref().is_none_or(|lock| lock.is_over(now))
            && self.ballot.as_ref().is_none_or(|ballot| ballot.is_over(now))
    }
}

/// The holders and waiters of a lock, as a listing shows them. `None` if there are none.
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

/// Ends one hold or place as if its lease had run out, for a store that can tell that the client
/// that had it is gone.
///
/// Its number is the token of a mutex, the hold of a reentrant mutex, the ticket of a queue. As
/// after a lapse, the next request lets others in and says so.
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

/// The holder, as the lock's machine sees it; another machine says whose it is.
fn inspect(state: &State, now: Now, is_own: impl Fn(&Data) -> bool) -> Answer {
    match &state.lock {
        Some(lock) if !is_own(&lock.value) => lock.value.mismatch(),
        _ => found(state, now).map_or(Answer::Free, Answer::Found),
    }
}

/// Ends the lock at this name and says what it was. What is not to be ended is busy.
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

/// What a machine says that finds another one's value: a mismatch where it is ours, busy where it
/// is foreign.
fn other_kind(lock: &Entry<Data>, now: Now) -> Answer {
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
/// What has lapsed is gone before anything else happens, also in its owner's own request, so a
/// lapsed hold is never revived. `counter` is the last token that the store has given for any lock.
/// Returns the answer and, where the change may let another client in, the message to those who
/// wait.
pub fn apply(state: &mut State, counter: &mut u64, now: Now, op: &Op) -> (Answer, Option<Notification>) {
    apply_calling(state, counter, now, op, &|_, _| true)
}

/// The same in a store that learns by calling a waiter whether its client is there.
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
    match op.rule {
        LockSpec::Mutex => mutex::apply(state, counter, now, op),
        LockSpec::Reentrant => reentrant::apply(state, counter, now, op),
        LockSpec::Queue(seat) => queue::apply(state, counter, now, op, seat, hears),
    }
}

/// What a store says, beside the message of [`apply`], of a request that has ended holds of a queue
/// by force: their holders ask whether they hold still. The other kinds say of each hold that it
/// ended.
pub fn forced(op: &Op, answer: &Answer) -> Option<Notification> {
    let answer = if let Answer::More(answer) = answer { answer } else { answer };
    let Verb::Release { whose, .. } = op.verb else { return None };
    let is_queue = matches!(op.rule, LockSpec::Queue(_));
    let is_forced = match answer {
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
