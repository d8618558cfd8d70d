//! Sends the worker's statements, each as a future of its result.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};

use super::inbox::PlainStatement;
use super::names::LockKey;
use super::server::{Renewals, Row, RowChange, StatementError, StatementSession, WriteOutcome};

/// The result of a statement.
pub(super) enum Done {
    Acquired(String, Result<Option<i64>, StatementError>),
    Released(String, Result<bool, StatementError>),
    Renewed(Vec<String>, Result<Vec<(String, i64)>, StatementError>),
    Read(Vec<String>, Result<Vec<Row>, StatementError>),
    Wrote(Vec<String>, Result<WriteOutcome, StatementError>),
    Plain(u64, Result<Vec<Row>, StatementError>),
    Swept(Result<Option<String>, StatementError>),
}

pub(super) fn acquire(
    session: Arc<dyn StatementSession>,
    key: LockKey,
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
    session: Arc<dyn StatementSession>,
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

pub(super) fn renew(session: Arc<dyn StatementSession>, renewals: Renewals) -> BoxFuture<'static, Done> {
    async move {
        let renewed = session.renew(&renewals).await;
        Done::Renewed(renewals.names, renewed)
    }
    .boxed()
}

pub(super) fn read_rows(
    session: Arc<dyn StatementSession>,
    names: Vec<String>,
    with_records: bool,
) -> BoxFuture<'static, Done> {
    async move {
        let rows = session.read(&names, with_records).await;
        Done::Read(names, rows)
    }
    .boxed()
}

pub(super) fn plain(
    session: Arc<dyn StatementSession>,
    number: u64,
    plain: PlainStatement,
) -> BoxFuture<'static, Done> {
    async move {
        let rows = match plain {
            PlainStatement::List { prefix, after } => session.list(&prefix, &after).await,
            PlainStatement::Read { names } => session.read(&names, false).await,
            PlainStatement::ForgetSessions { keys } => {
                session.forget_sessions(&keys).await.map(|()| Vec::new())
            }
            PlainStatement::Ping => session.ping().await.map(|()| Vec::new()),
        };
        Done::Plain(number, rows)
    }
    .boxed()
}

pub(super) fn sweep(session: Arc<dyn StatementSession>, after: String) -> BoxFuture<'static, Done> {
    async move { Done::Swept(session.sweep(&after).await) }.boxed()
}

pub(super) fn write(
    session: Arc<dyn StatementSession>,
    changes: Vec<(LockKey, RowChange)>,
) -> BoxFuture<'static, Done> {
    async move {
        let written = session.write(&changes).await;
        Done::Wrote(changes.into_iter().map(|(key, _)| key.name).collect(), written)
    }
    .boxed()
}
