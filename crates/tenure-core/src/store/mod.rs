//! The [`Store`] trait, which every backend implements, and the types in its signatures.

mod bare;
mod check_in;
mod decorator;
mod error;
mod full;
pub mod memory;
pub mod observe;
mod request;
mod signals;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, ready};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::credentials::Provider;
use crate::name::LockName;
use crate::owner::Owner;
use crate::protocol::lease;
use crate::protocol::record::Record;
use crate::protocol::{Found, Kind, Listening, LockSpec, Notification};
use crate::runtime::Runtime;

pub use crate::error::Cause;
pub use crate::owner::Client;
pub use bare::{BareClient, BareStep, BareThread};
pub use check_in::{CheckedHold, NO_TRANSACTION, Transaction};
pub use decorator::Decorator;
pub use full::{FirstConnection, FullWarning};
pub use request::{StoreExt, StoreReply, StoreRequest, Typed};
pub use signals::{BackgroundRelease, Incarnation, Signals};

/// `tracing` target of warnings about the setup, which an operator should act on.
pub const SETUP: &str = "tenure::setup";

/// Why a request has no answer.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The request was not carried out and never will be. A retry may succeed.
    NotSent(Cause),
    /// The outcome is unknown: the request may have been carried out, or may still be, but not after a later
    /// call about the same name has been answered. See [`Store::call`].
    Unknown(Cause),
    /// The store rejected the request. A retry would be rejected too.
    Refused(Cause),
}

/// A feature that the store lacks as it is set up, with a hint for the operator. As the cause of a refusal it
/// makes the caller's error [unsupported](crate::error::Error::is_unsupported).
#[derive(Debug)]
pub struct Unsupported(pub String);

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unsupported {}

impl Failure {
    /// A refusal because the setup does not support the request.
    pub fn impossible(text: impl Into<String>) -> Self {
        Self::Refused(Arc::new(Unsupported(text.into())))
    }

    /// For a request that wrote nothing yet when a step of it failed: an unknown outcome of the step is none of
    /// the request.
    #[must_use]
    pub fn not_sent(self) -> Self {
        match self {
            Self::Unknown(cause) => Self::NotSent(cause),
            failure => failure,
        }
    }

    /// Why.
    #[must_use]
    pub fn why(&self) -> &Cause {
        let (Self::NotSent(cause) | Self::Unknown(cause) | Self::Refused(cause)) = self;
        cause
    }

    /// A textual cause, for failures that no lower layer reported.
    pub fn cause(text: impl Into<String>) -> Cause {
        Arc::from(Box::<dyn std::error::Error + Send + Sync>::from(text.into()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent(cause) => write!(f, "not sent: {cause}"),
            Self::Unknown(cause) => write!(f, "outcome unknown: {cause}"),
            Self::Refused(cause) => write!(f, "refused: {cause}"),
        }
    }
}

/// The future of a request to a store. It may be polled on any thread, inside or outside any async runtime.
pub type StoreFuture<T> = BoxFuture<'static, Result<T, Failure>>;

/// A backend that keeps locks. It runs [`apply`](crate::protocol::apply), or an equivalent on the server, for
/// one request at a time.
///
/// `book/contribute/writing-a-store.md` shows how to write one, and the conformance suite of `tenure-testkit`
/// tests it. To wrap another store, implement [`Decorator`], which forwards every
/// method that it does not override.
///
/// *Retries.* A store never repeats a request that may have been carried out: only the engine knows whether
/// that is safe. It may repeat what certainly did nothing, such as a compare-and-swap that lost, until
/// `within` has passed.
///
/// *Timeouts.* Each future completes within its `within`, if need be with a [`Failure`]. It does nothing
/// before its first poll.
///
/// *Runtime.* A store takes time, randomness and tasks from the [`Runtime`] that it was opened with, so that
/// its leases do not depend on the caller's runtime. A pending future does not keep the store open.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Carries out one request.
    ///
    /// *Order.* Requests about one name are sent in the order in which their futures are first polled, those
    /// about the record beside a lock included. After [`Failure::Unknown`], once a later call about the name
    /// has been answered, the earlier one has either taken effect or never will. A release that follows an
    /// acquire therefore undoes it for good, even if the reply to the acquire was lost. Names are independent,
    /// and renewals need no order. An acquire may take a second request, which is sent behind later calls: a read
    /// of the record that is to see what the last holder wrote begins after the grant.
    ///
    /// *Matching replies.* A store on a server makes sure that each reply belongs to its request, for example
    /// by the owner and the number of the request. Callers do not check again.
    ///
    /// *Answers.* A busy lock is an answer, not a failure. A store that has no records refuses requests about
    /// them, and its [`capabilities`](Self::capabilities) say so.
    ///
    /// # Cancel safety
    /// A call whose future is dropped before its first poll never takes effect. After it, the call may still
    /// take effect, but only before any later call about that name.
    fn call(&self, request: StoreRequest, within: Duration) -> StoreFuture<StoreReply>;

    /// Subscribes to notifications about one lock. Once the future is ready, the listener receives every
    /// later change that concerns the topic's purpose, unless the message is lost. A store may send more
    /// messages than the purpose needs, up to every change to every subscriber.
    ///
    /// Messages are hints that may be lost, except for [`Notification::Granted`] where
    /// [`messages_grant`](Capabilities::messages_grant). The store renews a lost subscription by itself and
    /// then sends [`Notification::Reconnected`].
    ///
    /// # Cancel safety
    /// Dropping the future or the listener unsubscribes.
    fn subscribe(&self, topic: Topic<'_>, within: Duration) -> StoreFuture<Listener>;

    /// Returns one page of the locks whose full names begin with `prefix`, and the cursor of the next page. A
    /// page is bounded by the work that one request may cost, and may be empty although others follow. A lock
    /// that exists throughout the listing is listed at least once.
    fn list(&self, prefix: &str, from: Cursor, within: Duration) -> StoreFuture<Page>;

    /// The number of processes that wait for each of these locks, whose kinds have no queue; `None` where the store
    /// cannot tell, as by default. For display.
    fn waiting(&self, locks: &[(LockName, Found)], _within: Duration) -> StoreFuture<Vec<Option<u64>>> {
        ready(Ok(vec![None; locks.len()])).boxed()
    }

    /// Returns one page of the records beside the locks whose [names in the
    /// store](crate::protocol::record::lock_name) begin with `prefix`, in the same way. Expired records are
    /// left out. The default suits a store that has no records, or no way to enumerate them.
    fn records(&self, _prefix: &str, _from: Cursor, _within: Duration) -> StoreFuture<RecordPage> {
        ready(Err(Failure::impossible(format!("store {} does not list its records", self.url())))).boxed()
    }

    /// Checks that the store is reachable, and fails as soon as it is known not to be.
    fn ready(&self, within: Duration) -> StoreFuture<()>;

    /// The features of this store. They do not change during its lifetime.
    fn capabilities(&self) -> Capabilities;

    /// What the store can do for one lock, as far as it depends on the name. The default suits a store that
    /// keeps all locks on one server and renews each with its own request.
    fn placement(&self, _name: &LockName, _spec: LockSpec) -> Placement {
        Placement::default()
    }

    /// What the store reports by itself: interruptions, incarnation, background releases.
    fn signals(&self) -> &Signals;

    /// The store's URL without credentials, for messages.
    fn url(&self) -> &Arc<str>;
}

/// What a process subscribes to.
#[derive(Clone, Copy, Debug)]
pub struct Topic<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// Its kind, on which the channel may depend.
    pub spec: LockSpec,
    /// The changes that matter.
    pub purpose: Purpose<'a>,
}

impl<'a> Topic<'a> {
    /// A subscription to this lock for this purpose.
    pub fn new(name: &'a LockName, spec: LockSpec, purpose: Purpose<'a>) -> Self {
        Self { name, spec, purpose }
    }

    /// The client whose notifications suffice; `None` if those of the whole lock are needed.
    pub fn client(self) -> Option<Client> {
        match self.purpose {
            Purpose::Grants(client) => Some(client),
            Purpose::Hold(owner) if matches!(self.spec, LockSpec::Queue(_)) => Some(owner.client()),
            Purpose::Hold(_) | Purpose::Watch | Purpose::Ask => None,
        }
    }
}

/// Why a process subscribes to a lock.
#[derive(Clone, Copy, Debug)]
pub enum Purpose<'a> {
    /// To see every change that frees the lock.
    Watch,
    /// To request an unqueued lock whenever it is free, until [`Listener::rest`]. A store may notify only one
    /// such process per release, so the process must follow each notification with a request or with `rest`.
    Ask,
    /// To wait in a queue with owners of this client: the notifications addressed to it.
    Grants(Client),
    /// To learn that the hold of this owner may have been ended by force. The notifications are hints: only a
    /// request tells whether the hold still exists.
    Hold(&'a Owner),
}

/// The features of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The supported kinds of locks.
    pub kinds: Kinds,
    /// The clock that decides when a lease has expired.
    pub clock: LeaseClock,
    /// Whether the store keeps a value beside a lock that only the holder may write; otherwise the reason,
    /// worded to follow "it cannot, because".
    pub values: Result<(), &'static str>,
    /// Whether the client runs the machine, and the server only stores the outcome. Records are then dated by
    /// the client's clock and do not expire, and a write may release a lock of any kind.
    pub client_decides: bool,
    /// What ends the hold of a process that dies.
    pub liveness: HoldLiveness,
    /// Whether a notification that names a ticket is itself the grant. Where replicas must confirm grants, or
    /// a server may be in its restart grace, it is not, and the waiter sends a request first.
    pub messages_grant: bool,
    /// Whether a subscription to a lock reports each write of the record beside it that is followed by a
    /// release, at no cost beyond the connection that a holder has anyway.
    pub reports_records: bool,
    /// Whether a subscription reports that a holder's lease has expired. Otherwise a waiter retries when it would.
    pub reports_expiry: bool,
    /// Whether all holds and places of a process with similar ttls share a lease on the server. Then a place
    /// cannot be kept for longer than its acquisition asked for, and a renewal may succeed without reading the
    /// lock.
    pub shares_leases: bool,
    /// Maximum time that a place in a queue is kept without a refresh.
    pub place_max: Duration,
    /// The same for a client whose subscription has a [`Station`], unless its ttl is shorter than the other
    /// places last. A refresh leaves at least half. Once granted, the place ends as if it had no station.
    pub place_kept: Option<Duration>,
    /// The restart grace: a server that may have forgotten leases answers `Busy` to every acquisition for
    /// this long, even to the holder. It is also the maximum ttl.
    pub restart_grace: Option<Duration>,
    /// Whether replicas confirm each grant and renewal, with all writes before it. They do not confirm records.
    pub confirms: bool,
    /// Whether the store can be a member of a quorum; otherwise the reason, worded to follow "it cannot,
    /// because". A member keeps ballots, and its [`Signals`] report its incarnation.
    pub member: Result<(), &'static str>,
    /// Maximum renewals in one call.
    pub renewals: usize,
}

impl Capabilities {
    /// Those of a store on a server that keeps everything, but is no member of a quorum.
    pub const SERVER: Self = Self {
        kinds: Kinds::All,
        clock: LeaseClock::Server,
        values: Ok(()),
        client_decides: false,
        liveness: HoldLiveness::Lease,
        messages_grant: true,
        reports_records: false,
        reports_expiry: false,
        shares_leases: false,
        place_max: lease::WAIT_MAX,
        place_kept: None,
        restart_grace: None,
        confirms: false,
        member: Err("it keeps no ballots"),
        renewals: 64,
    };

    /// How long a place in the queue of a lock with this ttl is kept without a refresh.
    pub fn wait(&self, ttl: Duration) -> Duration {
        lease::wait(ttl).min(self.place_max)
    }

    /// How long a place of this length is kept if its client has a station.
    pub fn kept(&self, wait: Duration) -> Duration {
        self.place_kept.filter(|_| wait >= lease::WAIT_MAX).unwrap_or(wait)
    }
}

/// What a store can do for one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Whether the store can keep a lock of this kind and name; otherwise the reason, worded to follow "it
    /// cannot, because".
    pub supported: Result<(), &'static str>,
    /// Identifies the server that keeps this name now, for a store whose servers fail independently: a timeout
    /// of one server implies nothing about the others.
    pub shard: Option<Arc<str>>,
    /// Only locks with the same number can be renewed in one call; a lock with `None` is renewed alone.
    pub renews_with: Option<u16>,
}

impl Default for Placement {
    fn default() -> Self {
        Self { supported: Ok(()), shard: None, renews_with: None }
    }
}

/// The kinds of locks that a store supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// All kinds.
    All,
    /// Only these kinds, and the reason why the others are missing, worded to follow "it cannot, because".
    Only(&'static [Kind], &'static str),
}

impl Kinds {
    /// Checks whether this kind is supported.
    ///
    /// # Errors
    /// The reason why it is not.
    pub fn keep(self, kind: Kind) -> Result<(), &'static str> {
        match self {
            Self::Only(kinds, reason) if !kinds.contains(&kind) => Err(reason),
            _ => Ok(()),
        }
    }
}

/// The clock that decides when leases expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseClock {
    /// The clock of this machine, counted from its boot.
    Machine,
    /// The clock of the server that keeps the lock.
    Server,
    /// Each member's own clock: the lease has expired when a majority says so.
    Members,
}

/// What ends the hold of a process that dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldLiveness {
    /// Its lease alone: the lock becomes free when the lease expires.
    Lease,
    /// Its lease or an operating-system handle, which the system closes when the process dies: the lock
    /// becomes free at once.
    Handle,
}

/// The arguments for opening a store.
#[derive(Debug)]
pub struct Opening<'a> {
    /// The URL, with its credentials.
    pub url: &'a str,
    /// Time, tasks and randomness for the store.
    pub runtime: Arc<dyn Runtime>,
    /// Provides the credentials for each new connection, instead of the URL.
    pub login: Option<Provider>,
}

/// A subscription to notifications. Dropping it unsubscribes.
pub struct Listener {
    messages: mpsc::Receiver<Notification>,
    missed: Arc<AtomicBool>,
    station: Station,
    /// Called by [`Listener::rest`].
    rests: Option<Box<dyn Fn() + Send + Sync>>,
    _subscription: Box<dyn Any + Send>,
}

/// What a store knows of a subscription. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Station(Arc<StationState>);

#[derive(Debug, Default)]
struct StationState {
    listens: AtomicU16,
    is_alone: AtomicBool,
}

impl Station {
    /// Sets the [`Listening`], to send with requests for a place in a queue; `None` when the subscription is
    /// interrupted.
    pub fn set(&self, listens: Option<Listening>) {
        self.0.listens.store(listens.map_or(0, Listening::get), Ordering::Release);
        self.set_alone(false);
    }

    /// The value to send.
    pub fn listens(&self) -> Option<Listening> {
        Listening::new(self.0.listens.load(Ordering::Acquire))
    }

    /// Sets whether the last message about the lock reached this subscriber alone.
    pub fn set_alone(&self, is_alone: bool) {
        self.0.is_alone.store(is_alone, Ordering::Release);
    }

    /// Whether no other client waits for the lock, as far as known.
    pub fn is_alone(&self) -> bool {
        self.0.is_alone.load(Ordering::Acquire)
    }
}

impl Listener {
    /// Capacity of the channel. Further messages are dropped.
    const UNREAD: usize = 16;

    /// Creates a listener. `subscription` receives the sending end, and its result is dropped together with
    /// the listener.
    pub fn new(subscription: impl FnOnce(Publisher) -> Box<dyn Any + Send>) -> Self {
        let (sender, messages) = mpsc::channel(Self::UNREAD);
        let missed = Arc::new(AtomicBool::new(false));
        let publisher = Publisher { messages: sender, missed: Arc::clone(&missed) };
        Self {
            messages,
            missed,
            station: Station::default(),
            rests: None,
            _subscription: subscription(publisher),
        }
    }

    /// Attaches a station, which the store keeps up to date.
    #[must_use]
    pub fn at(self, station: Station) -> Self {
        Self { station, ..self }
    }

    /// Attaches a callback for [`rest`](Self::rest).
    #[must_use]
    pub fn resting(self, rests: impl Fn() + Send + Sync + 'static) -> Self {
        Self { rests: Some(Box::new(rests)), ..self }
    }

    /// Tells the store that this process stops requesting the lock until it sends another request, so that
    /// the store can notify another process instead.
    pub fn rest(&self) {
        self.rests.iter().for_each(|rests| rests());
    }

    /// Where it receives messages, if the store can tell.
    pub fn station(&self) -> &Station {
        &self.station
    }

    /// The next message, or `None` when the store has closed the subscription. Dropped messages are reported
    /// as one [`Notification::Reconnected`].
    pub async fn next(&mut self) -> Option<Notification> {
        if self.missed.swap(false, Ordering::AcqRel) {
            return Some(Notification::Reconnected);
        }
        self.messages.recv().await
    }

    /// Discards all messages received so far.
    pub fn drain(&mut self) {
        // Not after the messages: one that is dropped in between would be lost unreported.
        self.missed.store(false, Ordering::Release);
        while self.messages.try_recv().is_ok() {}
    }
}

/// The sending end of a [`Listener`].
#[derive(Clone, Debug)]
pub struct Publisher {
    messages: mpsc::Sender<Notification>,
    missed: Arc<AtomicBool>,
}

impl Publisher {
    /// Sends a notification. If the channel is full, drops it and makes the listener report
    /// [`Notification::Reconnected`].
    pub fn say(&self, wake: Notification) {
        if let Err(TrySendError::Full(wake)) = self.messages.try_send(wake) {
            // If the listener has emptied the channel meanwhile, the second try wakes it; otherwise the unread
            // messages do. A swap, and not a store, which could become visible only after that try.
            self.missed.swap(true, Ordering::AcqRel);
            let _ = self.messages.try_send(wake);
        }
    }

    /// Whether the listener is gone.
    pub fn is_over(&self) -> bool {
        self.messages.is_closed()
    }

    /// Completes when the listener is dropped.
    pub async fn over(&self) {
        self.messages.closed().await;
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

/// A position in a listing; `Cursor::default()` is the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor(pub String);

/// One page of a listing.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Locks with their full names.
    pub locks: Vec<(LockName, Found)>,
    /// The next page, or `None` for the last.
    pub next: Option<Cursor>,
}

/// One page of a listing of records.
#[derive(Clone, Debug, Default)]
pub struct RecordPage {
    /// Records with the full names of their locks.
    pub records: Vec<(LockName, Record)>,
    /// The store's clock, in microseconds since 1970: that of the client where it decides.
    pub now_us: u64,
    /// The next page, or `None` for the last.
    pub next: Option<Cursor>,
}
