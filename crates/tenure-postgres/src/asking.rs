//! Sends the worker's statements, each as a future of its result.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};

use super::inbox::Plain;
use super::names::Key;
use super::server::{Change, Failed, Renewals, Row, Session};

/// The result of a statement.
pub(super) enum Done {
    Acquired(String, Result<Option<i64>, Failed>),
    Released(String, Result<bool, Failed>),
    Renewed(Vec<String>, Result<Vec<(String, i64)>, Failed>),
    Read(Vec<String>, Result<Vec<Row>, Failed>),
    Wrote(Vec<String>, Result<BTreeSet<String>, Failed>),
    Plain(u64, Result<Vec<Row>, Failed>),
    Swept(Result<Option<String>, Failed>),
}

pub(super) fn acquire(
    session: Arc<dyn Session>,
    key: Key,
    owner: String,
    ttl_ms: i64,
) -> BoxFuture<'static, Done> {
    async move {
        let acquired = session.acquire(&key, &owner, ttl_ms).await;
        Done::Acquired(key.name, acquired)
    }
    .boxed()
}

pub(super) fn release(
    session: Arc<dyn Session>,
    name: String,
    owner: String,
    message: String,
) -> BoxFuture<'static, Done> {
    async move {
        let released = session.release(&name, &owner, &message).await;
        Done::Released(name, released)
    }
    .boxed()
}

pub(super) fn renew(session: Arc<dyn Session>, renewals: Renewals) -> BoxFuture<'static, Done> {
    async move {
        let renewed = session.renew(&renewals).await;
        Done::Renewed(renewals.names, renewed)
    }
    .boxed()
}

pub(super) fn read_rows(
    session: Arc<dyn Session>,
    names: Vec<String>,
    with_records: bool,
) -> BoxFuture<'static, Done> {
    async move {
        let rows = session.read(&names, with_records).await;
        Done::Read(names, rows)
    }
    .boxed()
}

pub(super) fn plain(session: Arc<dyn Session>, number: u64, plain: Plain) -> BoxFuture<'static, Done> {
    async move {
        let rows = match plain {
            Plain::List { prefix, after } => session.list(&prefix, &after).await,
            Plain::Ping => session.ping().await.map(|()| Vec::new()),
        };
        Done::Plain(number, rows)
    }
    .boxed()
}

pub(super) fn sweep(session: Arc<dyn Session>, after: String) -> BoxFuture<'static, Done> {
    async move { Done::Swept(session.sweep(&after).await) }.boxed()
}

pub(super) fn write(session: Arc<dyn Session>, changes: Vec<(Key, Change)>) -> BoxFuture<'static, Done> {
    async move {
        let written = session.write(&changes).await;
        Done::Wrote(changes.into_iter().map(|(key, _)| key.name).collect(), written)
    }
    .boxed()
}
