//! The [`Store`] trait, which every backend implements, and the types in its signatures.

mod decorator;
mod error;
pub mod memory;
pub mod observe;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::credentials::Provider;
use crate::moment::Moment;
use crate::name::LockName;
use crate::owner::Owner;
use crate::protocol::record::{RecordAnswer, RecordOp};
use crate::protocol::{Answer, Found, Kind, Listening, LockSpec, Notification, Op};
use crate::runtime::Runtime;

pub use crate::error::Cause;
pub use crate::owner::Client;
pub use decorator::Decorator;

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

/// A backend that keeps locks. It runs [`apply`](crate::protocol::apply), or an equivalent on the server, for
/// one request at a time.
///
/// [`listen_for_turns`](Self::listen_for_turns), [`listen_to_ask`](Self::listen_to_ask),
/// [`listen_while_held`](Self::listen_while_held), [`shard`](Self::shard) and
/// [`renews_many`](Self::renews_many) have defaults; all other methods are required. To wrap another store,
/// implement [`Decorator`], which forwards every method except `renews_many`. A wrapper that implements
/// `Store` directly must forward the first four itself, because their defaults hide what the inner store
/// does.
///
/// Returned futures are `'static` and may be polled on any thread, inside or outside any async runtime.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Carries out one request.
    ///
    /// # Guarantees
    /// *Order.* Calls about one name are sent in the order in which their futures are first polled. If a
    /// future is dropped after its first poll, the call may still take effect, but only before any later call
    /// about that name; otherwise it never does. The same holds after [`Failure::Unknown`]: once a later call
    /// about the name has been answered, the earlier call has either taken effect or never will. A release
    /// that follows an acquire therefore undoes it for good, even if the reply to the acquire was lost.
    ///
    /// *Timeout.* The future completes within `within`, if need be with a [`Failure`]. A busy lock is an
    /// answer, not a failure.
    ///
    /// *Matching replies.* A store on a server checks that each reply echoes the owner and the number of the
    /// request. Callers do not check again.
    ///
    /// *No retries.* The store never repeats an operation; only the engine does.
    fn call(&self, op: Op, within: Duration) -> BoxFuture<'static, Result<Answer, Failure>>;

    /// Carries out one request about the record beside a lock. Order, timeout and retries are as for
    /// [`call`](Self::call), and both kinds of requests about one name share one order.
    ///
    /// A store whose [`capabilities`](Self::capabilities) exclude values refuses the request.
    fn record(&self, op: RecordOp, within: Duration) -> BoxFuture<'static, Result<RecordAnswer, Failure>>;

    /// Subscribes to notifications about one lock. Once the future is ready, the listener receives every
    /// later change that frees the lock, unless the message is lost. `spec` selects the channel, which
    /// depends on the kind of lock.
    fn listen(
        &self,
        name: &LockName,
        spec: LockSpec,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>>;

    /// Subscribes to the notifications about one lock that are addressed to `client`, whose owners wait in
    /// its queue. The default calls [`listen`](Self::listen), which suits a store that sends every
    /// notification to all subscribers.
    fn listen_for_turns(
        &self,
        name: &LockName,
        spec: LockSpec,
        _client: Client,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        self.listen(name, spec, within)
    }

    /// Subscribes for a process that requests an unqueued lock whenever it is free, and that calls
    /// [`Listener::rest`] when it stops doing so. A store may notify only one such process per release, so
    /// the process must follow each notification with a request or with `rest`. The default calls
    /// [`listen`](Self::listen), which suits a store that sends every notification to all subscribers.
    fn listen_to_ask(
        &self,
        name: &LockName,
        spec: LockSpec,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        self.listen(name, spec, within)
    }

    /// Subscribes a holder to notifications that its hold may have been ended by force. They are hints: only
    /// a request tells whether the hold still exists.
    fn listen_while_held(
        &self,
        name: &LockName,
        spec: LockSpec,
        owner: &Owner,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        match spec {
            LockSpec::Queue(_) => self.listen_for_turns(name, spec, owner.client(), within),
            LockSpec::Mutex | LockSpec::Reentrant => self.listen(name, spec, within),
        }
    }

    /// Returns one page of the locks whose full names begin with `prefix`, and the cursor of the next page.
    fn list(&self, prefix: &str, from: Cursor, within: Duration)
    -> BoxFuture<'static, Result<Page, Failure>>;

    /// Checks that the store is reachable.
    fn ready(&self, within: Duration) -> BoxFuture<'static, Result<(), Failure>>;

    /// The features of this store. They do not change during its lifetime.
    fn capabilities(&self) -> Capabilities;

    /// Checks whether this store can keep a lock of this kind and name, for restrictions that depend on the
    /// name and so are not part of the [`capabilities`](Self::capabilities).
    ///
    /// # Errors
    /// The reason, worded to follow "it cannot, because".
    fn supports(&self, spec: LockSpec, name: &LockName) -> Result<(), &'static str>;

    /// Identifies the server that keeps this name, for a store whose servers fail independently: a timeout of
    /// one server implies nothing about the others.
    fn shard(&self, _name: &LockName) -> Option<String> {
        None
    }

    /// Declares the ttl of the leases that this client will request. A single request may ask for less,
    /// because `max_hold` caps it. A quorum needs the ttl because a member that restarts may have forgotten
    /// the lease of another client.
    fn declare_ttl(&self, ttl: Duration);

    /// Completes when no release continues in the background. A quorum continues one while a member has not
    /// answered.
    fn settled(&self) -> BoxFuture<'static, ()>;

    /// Completes when the store may have lost state or missed a request, for example after a reconnect. The
    /// engine then verifies every held lock at once.
    fn interrupted(&self) -> BoxFuture<'static, ()>;

    /// A number that changes with each such interruption. A grant that was requested before an interruption
    /// and is handed out after it is verified at once.
    fn interruptions(&self) -> u64;

    /// Batched renewal, if the store supports it. Wrappers keep the default unless they also handle batched
    /// renewals, which bypass [`call`](Self::call).
    fn renews_many(&self) -> Option<&dyn RenewsMany> {
        None
    }

    /// This store as a member of a quorum.
    ///
    /// # Errors
    /// Why it cannot be a member, worded to follow "it cannot, because".
    fn member(&self) -> Result<&dyn QuorumMember, &'static str>;

    /// The store's URL without credentials, for messages.
    fn url(&self) -> &Arc<str>;
}

/// Default for [`RenewsMany::most`].
pub const TOGETHER: usize = 64;

/// A store that renews several locks with one request.
pub trait RenewsMany {
    /// Maximum renewals per request.
    fn most(&self) -> usize {
        TOGETHER
    }

    /// The group of a lock. Only locks of the same group can be renewed together; a lock with `None` is
    /// renewed alone.
    fn group(&self, name: &LockName, spec: LockSpec) -> Option<u16>;

    /// Carries out these renewals, which must all belong to one [`group`](Self::group). Returns one answer
    /// for each, in the same order. The guarantees of [`Store::call`] apply to each.
    fn renew(&self, ops: Vec<Op>, within: Duration) -> BoxFuture<'static, Vec<Result<Answer, Failure>>>;
}

/// What a quorum needs to know about each member.
pub trait QuorumMember {
    /// What is known about the uptime of the server. A server that restarted may have forgotten leases that
    /// have not expired yet.
    fn incarnation(&self) -> Incarnation;
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
    /// Whether all holds and places of a process with similar ttls share a lease on the server. Then a place
    /// cannot be kept for longer than its acquisition asked for, and a renewal may succeed without reading the
    /// lock.
    pub shares_leases: bool,
    /// The restart grace: a server that may have forgotten leases answers `Busy` to every acquisition for
    /// this long, even to the holder. It is also the maximum ttl.
    pub restart_grace: Option<Duration>,
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

/// How long a store is known to have kept its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incarnation {
    /// Forever: there is no server that could lose it in a restart.
    Lasting,
    /// Unknown: there was no connection yet, or the server does not report its uptime.
    Unknown,
    /// Since this server started.
    Since {
        /// Identifies the server and its start.
        id: Arc<str>,
        /// Minimum uptime at the moment `at`.
        up: Duration,
        /// When `up` was determined.
        at: Moment,
    },
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

/// The address at which an open subscription receives messages, while a store can use it to tell that the
/// client is alive. Clones share the value.
#[derive(Clone, Debug, Default)]
pub struct Station(Arc<AtomicU16>);

impl Station {
    /// Sets the address, or clears it when the subscription is interrupted.
    pub fn set(&self, listens: Option<Listening>) {
        self.0.store(listens.map_or(0, Listening::get), Ordering::Release);
    }

    /// The address to send with a request that keeps a place in a queue.
    pub fn listens(&self) -> Option<Listening> {
        Listening::new(self.0.load(Ordering::Acquire))
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

    /// The address at which it receives messages.
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
        while self.messages.try_recv().is_ok() {}
        self.missed.store(false, Ordering::Release);
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
            self.missed.store(true, Ordering::Release);
            // If the listener has emptied the channel meanwhile, this wakes it; otherwise the unread messages
            // do.
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
