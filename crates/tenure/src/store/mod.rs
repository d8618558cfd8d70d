//! Where locks live.

pub mod file;
pub mod memory;
pub mod quorum;
#[cfg(feature = "redis")]
pub mod redis;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, pending, ready};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::name::LockName;
use crate::protocol::record::{RecordAnswer, RecordOp};
use crate::protocol::{Found, LockSpec, Notification, Op, Reply};
use crate::runtime::Moment;

/// The target of warnings about what an operator should change, as opposed to what happens.
pub(crate) const SETUP: &str = "tenure::setup";

/// What the store, or the system beneath it, said.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

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
/// [unsupported](crate::Error::is_unsupported) request.
#[derive(Debug)]
pub struct Impossible(pub String);

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Impossible {}

/// On what terms a request is made, beyond what it asks: see the [options](crate::Options) of these
/// names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// A grant without a token will do.
    pub unfenced: bool,
    /// So many replicas have to confirm a grant and each renewal.
    pub acks: u32,
    /// For so long a server that may have forgotten leases grants nothing.
    pub restart_grace_ms: u64,
}

impl Terms {
    /// Whether a message alone makes no client a holder: there is more to be asked first.
    pub(crate) fn doubt_messages(self) -> bool {
        self.acks > 0 || self.restart_grace_ms > 0
    }
}

impl Failure {
    /// What cannot be done as things are set up.
    pub fn impossible(text: impl Into<String>) -> Self {
        Self::Refused(Arc::new(Impossible(text.into())))
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
/// Futures are `'static` and may be polled on any thread, outside every runtime.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Carries out one request.
    ///
    /// *Order*: calls are sent in the order in which their futures are first polled. A call whose
    /// future was dropped after that may still be carried out, before any later one or never. The
    /// same holds after `Unknown`: once a later call of this store was answered, the earlier one
    /// has taken effect or never will. So a release that follows an acquire undoes it for good,
    /// whatever became of the acquire's answer.
    ///
    /// *Time*: it answers within `within`, with a `Failure` if nothing else. A busy lock is an
    /// answer, not a failure.
    ///
    /// *Never repeated*: only the engine repeats an operation.
    fn call(&self, op: Op, within: Duration) -> BoxFuture<'static, Result<Reply, Failure>>;

    /// Carries out one request about the record beside a lock. Order, time and repeats are as of
    /// [`call`](Self::call), with whose requests these are in one order too.
    fn record(&self, op: RecordOp, within: Duration) -> BoxFuture<'static, Result<RecordAnswer, Failure>>;

    /// Whether records can be kept beside locks, or why not. A server that turns out to forbid
    /// scripts refuses each request instead.
    ///
    /// # Errors
    /// The reason, as the end of the sentence "it cannot, because".
    fn keeps_records(&self) -> Result<(), &'static str>;

    /// The same on special terms, where a store knows any.
    fn call_on(&self, _terms: Terms, op: Op, within: Duration) -> BoxFuture<'static, Result<Reply, Failure>> {
        self.call(op, within)
    }

    /// Whether requests can be made on these terms, or why not.
    ///
    /// # Errors
    /// The reason, as the end of the sentence "it cannot, because".
    fn can(&self, terms: Terms) -> Result<(), &'static str> {
        match (terms.acks, terms.restart_grace_ms) {
            (0, 0) => Ok(()),
            _ => Err("acks and restart_grace are for Redis and Valkey servers with replicas"),
        }
    }

    /// Leases of this length are about to be asked for. A request may ask for less: `max_hold`
    /// clips its own.
    fn lends(&self, _ttl: Duration) {}

    /// Subscribes to what is said about one lock. When it is ready, every later change that frees
    /// the lock is heard, unless the message is lost. The rule says where messages about the kind
    /// are sent.
    fn listen(
        &self,
        name: &LockName,
        rule: LockSpec,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>>;

    /// A part of the locks whose full names begin with `prefix`, and where the next part begins.
    fn list(&self, prefix: &str, from: Cursor, within: Duration)
    -> BoxFuture<'static, Result<Page, Failure>>;

    /// Completes when the store goes on with no release by itself, as a quorum does where a member
    /// has not answered.
    fn settled(&self) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }

    /// Whether this store can keep the promise of this rule for this name, or why not.
    ///
    /// # Errors
    /// The reason, as the end of the sentence "it cannot, because".
    fn supports(&self, rule: LockSpec, name: &LockName) -> Result<(), &'static str>;

    /// Completes when the store may have forgotten what it was told or missed what it was asked:
    /// then every held lock is verified at once.
    fn interrupted(&self) -> BoxFuture<'static, ()> {
        pending().boxed()
    }

    /// A number that differs from what it was before each such interruption. A grant that was asked
    /// for before one, and is handed out after it, is verified at once.
    fn interruptions(&self) -> u64;

    /// Makes sure that the store answers at all.
    fn ready(&self, _within: Duration) -> BoxFuture<'static, Result<(), Failure>> {
        ready(Ok(())).boxed()
    }

    /// What is known of the server behind it: a quorum asks, because a server that restarts may
    /// have forgotten leases that still run.
    fn life(&self) -> Incarnation {
        Incarnation::Lasting
    }

    /// The store's URL without credentials, for messages.
    fn url(&self) -> &Arc<str>;
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
    _subscription: Box<dyn Any + Send>,
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
        Self { messages, missed, _subscription: subscription(publisher) }
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
