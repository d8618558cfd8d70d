//! What many tests need.

use std::sync::Arc;
use std::time::Duration;

use tenure::internals::protocol::LockSpec;
use tenure::internals::store::Failure;
use tenure::internals::store::rows::{
    LockKey, Server, ServerConnection, SoleChange, SoleVerb, StatementSession,
};
use tenure::{Locks, Options};
use tokio::sync::mpsc::UnboundedReceiver;

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A client with these options.
pub(crate) fn with(url: &str, options: Options) -> Locks {
    Locks::open(url).and_then(|locks| locks.with(|_| options)).expect("a store")
}

/// A client with leases of this length.
pub(crate) fn locks(url: &str, ttl: Duration) -> Locks {
    with(url, Options::new().ttl(ttl))
}

/// An error with its causes.
pub(crate) fn said(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |all, cause| format!("{all}: {cause}"))
}

/// A change of a mutex on an SQL database.
pub(crate) fn change_of(verb: SoleVerb, name: &str) -> SoleChange {
    let (key, before, message) = (LockKey { name: name.into(), whole: None }, None, String::new());
    let owner = format!("me@host:1/{:032x}", 1).parse().expect("an owner");
    SoleChange { verb, key, spec: LockSpec::Mutex, owner, hold: 1, ttl_ms: 60_000, before, message }
}

/// A session of a database and its messages, on a connection that this runtime reads and writes.
#[expect(clippy::disallowed_methods, reason = "the connection of a store belongs to its worker")]
pub(crate) async fn session_of(
    server: &dyn Server,
) -> Result<(Arc<dyn StatementSession>, UnboundedReceiver<String>), Failure> {
    let ServerConnection { session, messages, driver } = server.connect(None).await?;
    tokio::spawn(driver);
    Ok((session, messages))
}
