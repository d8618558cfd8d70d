//! The public error type.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use crate::name::LockName;

/// The error of the store or of the underlying system.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// The result of a call of this crate.
///
/// ```
/// fn lock_name(tenant: u32) -> tenure::Result<tenure::LockName> {
///     format!("tenant:{tenant}").parse()
/// }
/// # assert!(lock_name(7).is_ok());
/// # Ok::<(), tenure::Error>(())
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed, or why a lock is no longer held.
///
/// Use its methods or [`kind`](Self::kind) to decide what to do next. Do not compare messages, which may
/// change.
///
/// *Busy* is not an error: it is the `None` of the `try_*` methods. Every other failure has this one type,
/// with a predicate for each case that a caller can act on: [`is_lost`](Self::is_lost),
/// [`is_unreachable`](Self::is_unreachable), and so on. The message names the lock and the store and includes
/// the text of a refusal; [`source`](std::error::Error::source) is the error of the store or the system.
///
/// ```
/// let error = tenure::LockName::new("").unwrap_err();
/// assert!(error.is_invalid());
/// assert!(error.to_string().contains("name"));
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone)]
pub struct Error(Arc<ErrorInner>);

struct ErrorInner {
    kind: ErrorKind,
    lock: Option<LockName>,
    store: Option<Arc<str>>,
    message: String,
    source: Option<Cause>,
}

/// The kind of an [`Error`], for a `match` or as a metric label.
///
/// To handle a single kind, the methods of [`Error`] are shorter: `error.is_unreachable()`.
///
/// ```
/// use tenure::{ErrorKind, LockName};
///
/// let error = LockName::new("").unwrap_err();
/// let advice = match error.kind() {
///     ErrorKind::Unreachable | ErrorKind::Unknown => "try again later",
///     ErrorKind::Invalid | ErrorKind::Unsupported => "mend the configuration",
///     _ => "call an operator",
/// };
/// assert_eq!((advice, error.kind().as_str()), ("mend the configuration", "invalid"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// See [`Error::is_lost`].
    Lost,
    /// See [`Error::is_unreachable`].
    Unreachable,
    /// See [`Error::is_overdue`].
    Overdue,
    /// See [`Error::is_unknown`].
    Unknown,
    /// See [`Error::is_refused`].
    Refused,
    /// See [`Error::is_mismatch`].
    Mismatch,
    /// See [`Error::is_unsupported`].
    Unsupported,
    /// See [`Error::is_invalid`].
    Invalid,
}

impl ErrorKind {
    /// The kind as one lower-case word. It is stable between versions.
    ///
    /// ```
    /// assert_eq!(tenure::ErrorKind::Unreachable.as_str(), "unreachable");
    /// ```
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Unreachable => "unreachable",
            Self::Overdue => "overdue",
            Self::Unknown => "unknown",
            Self::Refused => "refused",
            Self::Mismatch => "mismatch",
            Self::Unsupported => "unsupported",
            Self::Invalid => "invalid",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Error {
    /// The kind of failure.
    ///
    /// ```
    /// let error = tenure::LockName::new("").unwrap_err();
    /// assert_eq!(error.kind(), tenure::ErrorKind::Invalid);
    /// ```
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The lease has ended or is about to: it expired, another client took the lock, the store lost it, or
    /// `max_hold` was reached. The resource is no longer protected.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("x")?.lock().await?;
    /// locks.force_release("x").await?;
    /// assert!(guard.verify().await.unwrap_err().is_lost());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn is_lost(&self) -> bool {
        self.0.kind == ErrorKind::Lost
    }

    /// The store did not answer in time, and any change is undone. From `Locks::flush`: some releases are not
    /// confirmed yet and continue in the background.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// let locks = tenure::Locks::open("redis://127.0.0.1:1")?; // nothing listens there
    /// assert!(locks.ping().await.unwrap_err().is_unreachable());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn is_unreachable(&self) -> bool {
        self.0.kind == ErrorKind::Unreachable
    }

    /// Another caller's computation did not finish within the wait set by `Cache::wait` or `Fill::wait`.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// # let fresh = || async { Ok::<_, tenure::Error>("42".to_owned()) };
    /// # let ttl = std::time::Duration::from_secs(60);
    /// match locks.cache("answer")?.get_or_compute(ttl, fresh).await {
    ///     Err(error) if error.is_overdue() => println!("answer without it"),
    ///     answer => println!("{}", answer??),
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn is_overdue(&self) -> bool {
        self.0.kind == ErrorKind::Overdue
    }

    /// The request was sent but no reply arrived: it may or may not have been carried out. An acquisition
    /// never ends like this, because it cleans up instead.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("x")?.lock().await?;
    /// match guard.release().await {
    ///     Err(error) if error.is_unknown() => println!("it is free when its lease ends"),
    ///     released => released?,
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn is_unknown(&self) -> bool {
        self.0.kind == ErrorKind::Unknown
    }

    /// The store rejected the request: no permission, out of memory, or a damaged record.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// match locks.ping().await {
    ///     Err(error) if error.is_refused() => println!("look at the user's rights: {error}"),
    ///     answer => answer?,
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn is_refused(&self) -> bool {
        self.0.kind == ErrorKind::Refused
    }

    /// The name is in use as another kind of lock, or with another capacity.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let _guard = locks.mutex("x")?.lock().await?;
    /// assert!(locks.rwlock("x")?.read().await.unwrap_err().is_mismatch());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn is_mismatch(&self) -> bool {
        self.0.kind == ErrorKind::Mismatch
    }

    /// The store cannot provide the requested guarantee.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let quorum = tenure::Locks::quorum([locks.clone(), tenure::Locks::memory()])?;
    /// assert!(quorum.fair_mutex("x").unwrap_err().is_unsupported()); // no order among its members
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn is_unsupported(&self) -> bool {
        self.0.kind == ErrorKind::Unsupported
    }

    /// A name, option, owner or URL is invalid.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// assert!(locks.mutex("").unwrap_err().is_invalid());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn is_invalid(&self) -> bool {
        self.0.kind == ErrorKind::Invalid
    }

    /// The lock concerned.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let _guard = locks.mutex("x")?.lock().await?;
    /// let error = locks.rwlock("x")?.read().await.unwrap_err();
    /// assert_eq!(error.lock().map(|name| name.as_str()), Some("x"));
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn lock(&self) -> Option<&LockName> {
        self.0.lock.as_ref()
    }

    /// The URL of the store concerned, without credentials.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let _guard = locks.mutex("x")?.lock().await?;
    /// let error = locks.rwlock("x")?.read().await.unwrap_err();
    /// assert_eq!(error.store(), Some("memory:"));
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn store(&self) -> Option<&str> {
        self.0.store.as_deref()
    }
}

/// Constructors for the rest of the crate.
impl Error {
    #[doc(hidden)]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, None, None, message.into(), None)
    }

    #[doc(hidden)]
    pub fn unsupported(store: &Arc<str>, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, None, Some(store), message.into(), None)
    }

    #[doc(hidden)]
    pub fn no_thread(url: &str, error: std::io::Error) -> Self {
        let store: Arc<str> = url.split_once(':').map_or(url, |(scheme, _)| scheme).into();
        let message = format!("cannot start a thread for store {store}");
        Self::new(ErrorKind::Unreachable, None, Some(&store), message, Some(Arc::new(error)))
    }

    /// Some releases are still in flight.
    #[doc(hidden)]
    pub fn unflushed(store: &Arc<str>) -> Self {
        let message = format!(
            "store {store} did not confirm every release in time; releases continue in the background"
        );
        Self::new(ErrorKind::Unreachable, None, Some(store), message, None)
    }

    /// The stored state does not allow the operation.
    #[doc(hidden)]
    pub fn refused(lock: &LockName, store: &Arc<str>, what: &str) -> Self {
        let message = format!("{}: {what}", lock.quoted());
        Self::new(ErrorKind::Refused, Some(lock), Some(store), message, None)
    }

    /// The request was skipped, because the store did not answer another one a moment ago.
    #[doc(hidden)]
    pub fn silent_lately(lock: &LockName, store: &Arc<str>) -> Self {
        let message =
            format!("store {store} did not reply a moment ago: skipped a request about {}", lock.quoted());
        Self::new(ErrorKind::Unreachable, Some(lock), Some(store), message, None)
    }

    /// Another caller's computation takes longer than this caller waits.
    #[doc(hidden)]
    pub fn overdue(lock: &LockName, store: &Arc<str>) -> Self {
        let message =
            format!("timed out waiting for another caller to compute the value of {}", lock.quoted());
        Self::new(ErrorKind::Overdue, Some(lock), Some(store), message, None)
    }

    #[doc(hidden)]
    pub fn lost(lock: &LockName, store: &Arc<str>, reason: impl fmt::Display) -> Self {
        let message = match lock.of_use() {
            Some((what, name)) => format!("{what} {name} is lost: {reason}"),
            None => format!("lock {} is lost: {reason}", lock.quoted()),
        };
        Self::new(ErrorKind::Lost, Some(lock), Some(store), message, None)
    }

    /// The value at this key does not belong to this library, so it is not released by force.
    #[doc(hidden)]
    pub fn no_lock(lock: &LockName, store: &Arc<str>, what: &str) -> Self {
        let message = format!("{} is not a lock of tenure: it is {what}", lock.quoted());
        Self::new(ErrorKind::Mismatch, Some(lock), Some(store), message, None)
    }

    /// The same error with `words` at the end of its message.
    #[doc(hidden)]
    #[must_use]
    pub fn followed_by(&self, words: &str) -> Self {
        let ErrorInner { kind, lock, store, message, source } = &*self.0;
        let message = format!("{message}; {words}");
        Self::new(*kind, lock.as_ref(), store.as_ref(), message, source.clone())
    }

    #[doc(hidden)]
    pub fn new(
        kind: ErrorKind,
        lock: Option<&LockName>,
        store: Option<&Arc<str>>,
        message: String,
        source: Option<Cause>,
    ) -> Self {
        Self(Arc::new(ErrorInner { kind, lock: lock.cloned(), store: store.cloned(), message, source }))
    }
}

/// An error is immutable. Its source may be of any type, but is only read.
impl UnwindSafe for Error {}
impl RefUnwindSafe for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = f.debug_struct("Error");
        all.field("kind", &self.0.kind).field("message", &self.0.message);
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
