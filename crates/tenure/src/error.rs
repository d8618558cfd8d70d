use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use crate::name::LockName;
use crate::protocol::{Kind, Rule};
use crate::store::{Cause, Failure, Impossible};

/// What a call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something could not be done, or why a lock is no longer held.
///
/// *Busy* is no error: it is the `None` of the `try_*` methods. Everything else is this one type, which answers what
/// a caller can act on: [`is_lost`](Self::is_lost), [`is_unreachable`](Self::is_unreachable), and so on. The message names
/// the lock and the store; [`source`](std::error::Error::source) says what the store or the system said.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    what: What,
    lock: Option<LockName>,
    store: Option<Arc<str>>,
    message: String,
    source: Option<Cause>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Lost,
    Released,
    Unreachable,
    Unknown,
    Refused,
    Mismatch,
    Unsupported,
    Invalid,
}

impl Error {
    /// The lease is over, or about to be: expired, taken by somebody else, gone from the store, or held for `max_hold`.
    /// Whatever the lock protected is no longer protected.
    pub fn is_lost(&self) -> bool {
        self.0.what == What::Lost
    }

    /// What [`Lost`](crate::Lost) resolves to once the guard was released, dropped or detached: no fault at all.
    pub fn is_released(&self) -> bool {
        self.0.what == What::Released
    }

    /// The store did not answer in time, and nothing was changed that was not undone. Of [`Locks::shutdown`](crate::Locks::shutdown):
    /// some releases are not answered yet, and go on.
    pub fn is_unreachable(&self) -> bool {
        self.0.what == What::Unreachable
    }

    /// The request went out and no answer came: it may or may not have been carried out. An acquisition never ends so:
    /// it cleans up instead.
    pub fn is_unknown(&self) -> bool {
        self.0.what == What::Unknown
    }

    /// The store answered, and said no: no permission, out of memory, a damaged record.
    pub fn is_refused(&self) -> bool {
        self.0.what == What::Refused
    }

    /// The name is in use as another kind of lock, or with other numbers.
    pub fn is_mismatch(&self) -> bool {
        self.0.what == What::Mismatch
    }

    /// This store cannot keep the promise that was asked for.
    pub fn is_unsupported(&self) -> bool {
        self.0.what == What::Unsupported
    }

    /// A name, option, owner or URL that cannot be right.
    pub fn is_invalid(&self) -> bool {
        self.0.what == What::Invalid
    }

    /// The lock it is about.
    pub fn lock(&self) -> Option<&LockName> {
        self.0.lock.as_ref()
    }

    /// The store it is about: its URL, without credentials.
    pub fn store(&self) -> Option<&str> {
        self.0.store.as_deref()
    }
}

/// How the rest of the crate makes errors.
impl Error {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(What::Invalid, None, None, message.into(), None)
    }

    pub(crate) fn unsupported(store: &Arc<str>, message: impl Into<String>) -> Self {
        Self::new(What::Unsupported, None, Some(store), message.into(), None)
    }

    pub(crate) fn no_thread(url: &str, error: std::io::Error) -> Self {
        let store: Arc<str> = url.split_once(':').map_or(url, |(scheme, _)| scheme).into();
        let message = format!("no thread could be started for the store {store}");
        Self::new(What::Unreachable, None, Some(&store), message, Some(Arc::new(error)))
    }

    /// Releases are still on their way.
    pub(crate) fn unflushed(store: &Arc<str>) -> Self {
        let message =
            format!("store {store} did not confirm every release in time; they go on in the background");
        Self::new(What::Unreachable, None, Some(store), message, None)
    }

    pub(crate) fn lost(lock: &LockName, store: &Arc<str>, reason: impl fmt::Display) -> Self {
        let message = format!("lock {} is lost: {reason}", lock.quoted());
        Self::new(What::Lost, Some(lock), Some(store), message, None)
    }

    pub(crate) fn released(lock: &LockName, store: &Arc<str>) -> Self {
        // Every release makes one and hardly anybody reads it: the words are put together when they are asked for.
        Self::new(What::Released, Some(lock), Some(store), String::new(), None)
    }

    pub(crate) fn mismatch(
        lock: &LockName,
        store: &Arc<str>,
        asked: Rule,
        kind: Kind,
        capacity: Option<u32>,
    ) -> Self {
        let of = |kind, capacity| match (kind, capacity) {
            (Kind::Semaphore, Some(permits)) => format!("{kind} of {permits}"),
            (kind, _) => format!("{kind}"),
        };
        let (found, asked) = (of(kind, capacity), of(asked.kind(), asked.capacity()));
        let message = format!(
            "lock {} is in use as a {found} and cannot be used as a {asked} until nobody holds it",
            lock.quoted()
        );
        Self::new(What::Mismatch, Some(lock), Some(store), message, None)
    }

    /// No answer, and nothing left behind: what an acquisition and a look say of any failure but a refusal.
    pub(crate) fn silent(lock: Option<&LockName>, store: &Arc<str>, failure: Failure) -> Self {
        match failure {
            Failure::Refused(_) => Self::failed(lock, store, failure),
            Failure::NotSent(cause) | Failure::Unknown(cause) => {
                Self::failed(lock, store, Failure::NotSent(cause))
            }
        }
    }

    pub(crate) fn failed(lock: Option<&LockName>, store: &Arc<str>, failure: Failure) -> Self {
        let about = lock.map_or(String::new(), |lock| format!(" about lock {}", lock.quoted()));
        let (what, message, cause) = match failure {
            Failure::NotSent(cause) => {
                (What::Unreachable, format!("store {store} could not answer{about}"), cause)
            }
            Failure::Unknown(cause) => (
                What::Unknown,
                format!("store {store} may or may not have carried out the request{about}"),
                cause,
            ),
            Failure::Refused(cause) if cause.is::<Impossible>() => {
                (What::Unsupported, format!("store {store} cannot do this{about}: {cause}"), cause)
            }
            Failure::Refused(cause) => {
                (What::Refused, format!("store {store} refused the request{about}"), cause)
            }
        };
        Self::new(what, lock, Some(store), message, Some(cause))
    }

    fn new(
        what: What,
        lock: Option<&LockName>,
        store: Option<&Arc<str>>,
        message: String,
        source: Option<Cause>,
    ) -> Self {
        Self(Arc::new(Inner { what, lock: lock.cloned(), store: store.cloned(), message, source }))
    }
}

/// Nothing in it changes; what its source is made of is not ours, and is only read.
impl UnwindSafe for Error {}
impl RefUnwindSafe for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.what, &self.0.lock) {
            (What::Released, Some(lock)) => write!(f, "lock {} was released", lock.quoted()),
            _ => f.write_str(&self.0.message),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = f.debug_struct("Error");
        all.field("what", &self.0.what).field("message", &self.to_string());
        if let Some(source) = &self.0.source {
            all.field("source", source);
        }
        all.finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|cause| cause as _)
    }
}
