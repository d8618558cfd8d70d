//! Servers that have no room for another connection.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use crate::error::Error;
use crate::events::{event, text};
use crate::store::{Failure, SETUP};

/// The cause of a failure if a server is at its limit of connections. It is transient, because other clients
/// disconnect.
#[derive(Debug)]
struct ServerFull(String);

impl fmt::Display for ServerFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server is full: {}", self.0)
    }
}

impl std::error::Error for ServerFull {}

impl Failure {
    /// The server accepts no more connections; `why` is what it says.
    pub fn full(why: impl Into<String>) -> Self {
        Self::NotSent(Arc::new(ServerFull(why.into())))
    }

    /// Whether the server accepts no more connections for now.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Self::NotSent(cause) if cause.is::<ServerFull>())
    }
}

impl Error {
    /// The store [is unreachable](Self::is_unreachable) because its server accepts no more connections for now.
    /// A wait for a lock outlasts this, whatever its `patience`, because other clients hang up sooner or later.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// match locks.ping().await {
    ///     Err(error) if error.is_full() => println!("raise max_connections: {error}"),
    ///     answer => answer?,
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn is_full(&self) -> bool {
        std::error::Error::source(self).is_some_and(|cause| cause.is::<ServerFull>())
    }
}

/// Whether a full server has denied a client its connection for requests. Until it has one, the client keeps no
/// other: clients with one of two connections each would deadlock.
#[derive(Debug, Default)]
pub struct FirstConnection {
    is_starved: AtomicBool,
    starved: Notify,
}

impl FirstConnection {
    /// Records the result of an attempt to open it.
    pub fn dialled<T>(&self, opened: &Result<T, Failure>) {
        match opened {
            Ok(_) => self.is_starved.store(false, Ordering::Release),
            Err(failure) if failure.is_full() => {
                self.is_starved.store(true, Ordering::Release);
                self.starved.notify_one();
            }
            Err(_) => {}
        }
    }

    /// Whether other connections have to yield.
    pub fn is_starved(&self) -> bool {
        self.is_starved.load(Ordering::Acquire)
    }

    /// Completes when other connections have to yield.
    pub async fn starved(&self) {
        self.starved.notified().await;
    }

    /// The failure of a connection that has to yield.
    #[must_use]
    pub fn yields(&self) -> Option<Failure> {
        self.is_starved().then(|| Failure::full("the connection for requests comes first"))
    }
}

/// Warns of a full server, once for each store.
// Relaxed: it only decides who logs.
#[derive(Debug, Default)]
pub struct FullWarning(AtomicBool);

impl FullWarning {
    /// Notes why a connection could not be opened.
    pub fn note(&self, store: impl fmt::Display, failure: &Failure) {
        if failure.is_full() && !self.0.swap(true, Ordering::Relaxed) {
            event!(
                WARN,
                target: SETUP,
                "server_full",
                "the server accepts no more connections: waiting for one",
                store = text(store),
                failure = text(failure),
            );
        }
    }
}
