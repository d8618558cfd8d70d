//! Where locks live.

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

/// The target of warnings about what an operator should change, as opposed to what happens.
pub const SETUP: &str = "tenure::setup";

/// Why a request has no answer.
#[derive(Clone, Debug)]
pub enum Failure {
    /// It was certainly not carried out and never will be. Asking again may help.
    NotSent(Cause),
    /// It may have been carried out, or may yet be, but not after a later call was: see
    /// [`Store::call`].
    Unknown(Cause),
    /// The store said no, and would say so again.
    Refused(Cause),
}

/// What a store cannot do as it is set up, and what could be done about it. As the cause of a
/// refusal it makes an
/// [unsupported](crate::error::Error::is_unsupported) request.
#[derive(Debug)]
pub struct Unsupported(pub String);

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unsupported {}

impl Failure {
    /// What cannot be done as things are set up.
    pub fn impossible(text: impl Into<String>) -> Self {
        Self::Refused(Arc::new(Unsupported(text.into())))
    }

    /// The cause as text, for a failure that no lower layer reported.
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

/// A place where locks are kept: it runs [`apply`](crate::protocol::apply), or its twin, one
/// request at a time.
///
/// Every method is required but [`renews_many`](Self::renews_many),
/// [`listen_for_turns`](Self::listen_for_turns), [`listen_to_ask`](Self::listen_to_ask) and
/// [`listen_while_held`](Self::listen_while_held): a store that forgets another does not compile.
/// What wraps a store is a [`Decorator`], which forwards what it does not change.
///
/// Futures are `'static` and may be polled on any thread, outside every runtime.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Carries out one request.
    ///
    /// *Order*: calls about one name are sent in the order in which their futures are first polled.
    /// A call whose future was dropped after that may still be carried out, before any later one or
    /// never. The same holds after `Unknown`: once a later call about the name was answered, the
    /// earlier one has taken effect or never will. So a release that follows an acquire undoes it
    /// for good, also if the acquire's answer was lost.
    ///
    /// *Time*: it answers within `within`, with a `Failure` if nothing else. A busy lock is an
    /// answer, not a failure.
    ///
    /// *For this request*: where replies come from a server, the store has checked that this one
    /// echoes the owner and the number of the request. No caller does so again.
    ///
    /// *Never repeated*: only the engine repeats an operation.
    fn call(&self, op: Op, within: Duration) -> BoxFuture<'static, Result<Answer, Failure>>;

    /// Carries out one request about the record beside a lock. Order, time and repeats are as of
    /// [`call`](Self::call), with whose requests these are in one order too.
    ///
    /// A store whose [`capabilities`](Self::capabilities) say that it keeps no values refuses it.
    fn record(&self, op: RecordOp, within: Duration) -> BoxFuture<'static, Result<RecordAnswer, Failure>>;

    /// Subscribes to what is said about one lock. When it is ready, every later change that frees
    /// the lock is heard, unless the message is lost. The rule says where messages about the kind
    /// are sent.
    fn listen(
        &self,
        name: &LockName,
        rule: LockSpec,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>>;

    /// Subscribes for a client that waits in a queue, which the owners of its waiters name: to what
    /// is said to it about one lock. As [`listen`](Self::listen) where the store says everything
    /// to all who listen.
    ///
    /// What wraps a store has to forward it.
    fn listen_for_turns(
        &self,
        name: &LockName,
        rule: LockSpec,
        _client: Client,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        self.listen(name, rule, within)
    }

    /// Subscribes for a process that asks for a lock without a queue whenever it is free, and says
    /// by [`Listener::rest`] that it does so no more. A store may tell one such process of many, so
    /// each message is followed by a request or by `rest`. As [`listen`](Self::listen) where the
    /// store says everything to all who listen.
    ///
    /// What wraps a store has to forward it.
    fn listen_to_ask(
        &self,
        name: &LockName,
        rule: LockSpec,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        self.listen(name, rule, within)
    }

    /// Subscribes for an owner that holds: to what says that its hold may have been ended by force.
    /// It is a hint: whether it is held only a request tells.
    ///
    /// What wraps a store has to forward it.
    fn listen_while_held(
        &self,
        name: &LockName,
        rule: LockSpec,
        owner: &Owner,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        match rule {
            LockSpec::Queue(_) => self.listen_for_turns(name, rule, owner.client(), within),
            LockSpec::Mutex | LockSpec::Reentrant => self.listen(name, rule, within),
        }
    }

    /// A part of the locks whose full names begin with `prefix`, and where the next part begins.
    fn list(&self, prefix: &str, from: Cursor, within: Duration)
    -> BoxFuture<'static, Result<Page, Failure>>;

    /// Makes sure that the store answers at all.
    fn ready(&self, within: Duration) -> BoxFuture<'static, Result<(), Failure>>;

    /// What this store can do: the same for as long as it lives.
    fn capabilities(&self) -> Capabilities;

    /// Whether this store can keep a lock of this name, or why not: what its
    /// [`capabilities`](Self::capabilities) cannot say, because it depends on the name.
    ///
    /// # Errors
    /// The reason, as the end of the sentence "it cannot, because".
    fn supports(&self, rule: LockSpec, name: &LockName) -> Result<(), &'static str>;

    /// Which of its servers keeps this name, where they fail one by one: one that is silent says
    /// nothing of the others.
    ///
    /// What wraps a store has to forward it.
    fn shard(&self, _name: &LockName) -> Option<String> {
        None
    }

    /// Declares the ttl of the leases that this client will request. A request may ask for less:
    /// `max_hold` clips its own. A quorum must know it, because a member that restarts may have
    /// forgotten the lease of another client.
    fn declare_ttl(&self, ttl: Duration);

    /// Completes when the store goes on with no release by itself, as a quorum does where a member
    /// has not answered.
    fn settled(&self) -> BoxFuture<'static, ()>;

    /// Completes when the store may have forgotten what it was told or missed what it was asked:
    /// then every held lock is verified at once.
    fn interrupted(&self) -> BoxFuture<'static, ()>;

    /// A number that differs from what it was before each such interruption. A grant that was asked
    /// for before one, and is handed out after it, is verified at once.
    fn interruptions(&self) -> u64;

    /// How one request renews several locks, where the store has that. What wraps a store has it
    /// not, unless it says so: it would not see those requests.
    fn renews_many(&self) -> Option<&dyn RenewsMany> {
        None
    }

    /// What a quorum must know of it as a member.
    ///
    /// # Errors
    /// Why it can be no member, as the end of the sentence "it cannot, because".
    fn member(&self) -> Result<&dyn QuorumMember, &'static str>;

    /// The store's URL without credentials, for messages.
    fn url(&self) -> &Arc<str>;
}

/// So many renewals leave together, unless a store can do with more.
pub const TOGETHER: usize = 64;

/// A store that renews several locks by one request.
pub trait RenewsMany {
    /// So many at most by one.
    fn most(&self) -> usize {
        TOGETHER
    }

    /// Which locks can be renewed together: those that have the same number. None where a lock is
    /// renewed alone.
    fn group(&self, name: &LockName, rule: LockSpec) -> Option<u16>;

    /// Carries out these renewals, which are of one [`group`](Self::group). There is an answer for
    /// each, in their order, as [`Store::call`] would give it, with its order and time.
    fn renew(&self, ops: Vec<Op>, within: Duration) -> BoxFuture<'static, Vec<Result<Answer, Failure>>>;
}

/// What only the members of a quorum have to tell.
pub trait QuorumMember {
    /// What is known of the server behind it: a server that restarts may have forgotten leases that
    /// still run.
    fn incarnation(&self) -> Incarnation;
}

/// What a store can do for every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The kinds of locks that it keeps.
    pub kinds: Kinds,
    /// Whose clock judges when a lease is over.
    pub clock: LeaseClock,
    /// Whether bytes can be kept beside a lock that only its holder may write, or why not: the end
    /// of the sentence "it cannot, because".
    pub values: Result<(), &'static str>,
    /// Whether a hold is bound to its lease alone.
    pub liveness: HoldLiveness,
    /// Whether a notification that names a ticket is a grant. Where replicas have to confirm
    /// grants, or a server may be in its grace, the waiter asks first.
    pub messages_grant: bool,
    /// For so long a server that may have forgotten leases answers `Busy` to every acquisition,
    /// also to an owner that holds. No ttl may be longer.
    pub restart_grace: Option<Duration>,
}

/// Which kinds of locks a store keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// All.
    All,
    /// These, and why it keeps no others: the end of the sentence "it cannot, because".
    Only(&'static [Kind], &'static str),
}

impl Kinds {
    /// Whether this kind is kept.
    ///
    /// # Errors
    /// Why not.
    pub fn keep(self, kind: Kind) -> Result<(), &'static str> {
        match self {
            Self::Only(kinds, reason) if !kinds.contains(&kind) => Err(reason),
            _ => Ok(()),
        }
    }
}

/// Whose clock judges leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseClock {
    /// This machine's, which counts from its start.
    Machine,
    /// That of the server which has the lock.
    Server,
    /// Each member's own: the lease is over when a majority says so.
    Members,
}

/// What a hold is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldLiveness {
    /// Its lease alone: the lock of a process that dies is free when that is over.
    Lease,
    /// Its lease, and a handle of the process: the system drops that with the process, and the lock
    /// is free at once.
    Handle,
}

/// What a store is opened with.
#[derive(Debug)]
pub struct Opening<'a> {
    /// The URL, with its credentials.
    pub url: &'a str,
    /// Time, tasks and randomness for the store.
    pub runtime: Arc<dyn Runtime>,
    /// Tells the login at each dial, in place of the URL.
    pub login: Option<Provider>,
}

/// Since when a store has kept all that it was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incarnation {
    /// Always: there is no server that could start without it.
    Lasting,
    /// Not known: it was never connected to, or it does not tell.
    Unknown,
    /// As long as this server has been up.
    Since {
        /// Which start of which server it is.
        id: Arc<str>,
        /// How long it had been up, at least,
        up: Duration,
        /// at this moment.
        at: Moment,
    },
}

/// A subscription; it ends when it is dropped.
pub struct Listener {
    messages: mpsc::Receiver<Notification>,
    missed: Arc<AtomicBool>,
    station: Station,
    /// What its store does when its process asks no more.
    rests: Option<Box<dyn Fn() + Send + Sync>>,
    _subscription: Box<dyn Any + Send>,
}

/// Where a subscription hears its messages: for as long as a store can tell by it that its client
/// is there. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Station(Arc<AtomicU16>);

impl Station {
    /// From now on there, or not any more.
    pub fn set(&self, listens: Option<Listening>) {
        self.0.store(listens.map_or(0, Listening::get), Ordering::Release);
    }

    /// What a request says that keeps a place.
    pub fn listens(&self) -> Option<Listening> {
        Listening::new(self.0.load(Ordering::Acquire))
    }
}

impl Listener {
    /// As many messages may be unread before further ones are dropped.
    const UNREAD: usize = 16;

    /// A listener and the end that a store speaks into. `subscription` is dropped with the
    /// listener.
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

    /// The same at this station, which its store keeps.
    #[must_use]
    pub fn at(self, station: Station) -> Self {
        Self { station, ..self }
    }

    /// The same, whose store does this when its process asks no more.
    #[must_use]
    pub fn resting(self, rests: impl Fn() + Send + Sync + 'static) -> Self {
        Self { rests: Some(Box::new(rests)), ..self }
    }

    /// Says that its process asks no more until it says otherwise by a request: what it was told
    /// last may be another's turn.
    pub fn rest(&self) {
        self.rests.iter().for_each(|rests| rests());
    }

    /// Where it hears its messages.
    pub fn station(&self) -> &Station {
        &self.station
    }

    /// The next message; `None` when there will be none any more. Messages that were dropped are
    /// told as one
    /// [`Notification::Reconnected`].
    pub async fn next(&mut self) -> Option<Notification> {
        if self.missed.swap(false, Ordering::AcqRel) {
            return Some(Notification::Reconnected);
        }
        self.messages.recv().await
    }

    /// Forgets what was said so far.
    pub fn drain(&mut self) {
        while self.messages.try_recv().is_ok() {}
        self.missed.store(false, Ordering::Release);
    }
}

/// The end of a [`Listener`] that a store speaks into.
#[derive(Clone, Debug)]
pub struct Publisher {
    messages: mpsc::Sender<Notification>,
    missed: Arc<AtomicBool>,
}

impl Publisher {
    /// Says it; to one that has too much unread already, that it missed something.
    pub fn say(&self, wake: Notification) {
        if let Err(TrySendError::Full(wake)) = self.messages.try_send(wake) {
            self.missed.store(true, Ordering::Release);
            // If all was read meanwhile, this wakes it; else what is unread does.
            let _ = self.messages.try_send(wake);
        }
    }

    /// Whether no client listens any more.
    pub fn is_over(&self) -> bool {
        self.messages.is_closed()
    }

    /// Completes when no client listens any more.
    pub async fn over(&self) {
        self.messages.closed().await;
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

/// Where a listing goes on; `Cursor::default()` is the beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor(pub String);

/// A part of a listing.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Locks by their full names.
    pub locks: Vec<(LockName, Found)>,
    /// Where the next part begins, unless this is the last.
    pub next: Option<Cursor>,
}
