//! Sends the worker's statements, each as a future of its result.

use std::sync::Arc;

use super::gather::StatementSort;
use super::inbox::PlainStatement;
use super::names::LockKey;
use super::server::{
    ChangeOutcome, Row, RowChange, SoleChange, StatementError, StatementSession, WriteOutcome,
};

/// The result of a statement.
pub(super) enum Done {
    Changed(StatementSort, Vec<SoleChange>, Result<ChangeOutcome, StatementError>),
    Read(Vec<String>, Result<Vec<Row>, StatementError>),
    Wrote(Vec<(LockKey, RowChange)>, Result<WriteOutcome, StatementError>),
    Plain(u64, Result<Vec<Row>, StatementError>),
    Swept(Result<Option<String>, StatementError>),
}

pub(super) type Session = Arc<dyn StatementSession>;

pub(super) async fn change(session: Session, sort: StatementSort, changes: Vec<SoleChange>) -> Done {
    let changed = session.change(&changes).await;
    Done::Changed(sort, changes, changed)
}

pub(super) async fn read_rows(session: Session, names: Vec<String>, with_records: bool) -> Done {
    let rows = session.read(&names, with_records).await;
    Done::Read(names, rows)
}

pub(super) async fn plain(session: Session, number: u64, plain: PlainStatement) -> Done {
    let rows = match plain {
        PlainStatement::List { prefix, after } => session.list(&prefix, &after).await,
        PlainStatement::Records { prefix, after } => session.records(&prefix, &after).await,
        PlainStatement::Read { names } => session.read(&names, false).await,
        PlainStatement::ForgetSessions { keys } => session.forget_sessions(&keys).await.map(|()| Vec::new()),
        PlainStatement::Ping => session.ping().await.map(|()| Vec::new()),
    };
    Done::Plain(number, rows)
}

pub(super) async fn sweep(session: Session, after: String) -> Done {
    Done::Swept(session.sweep(&after).await)
}

pub(super) async fn write(session: Session, changes: Vec<(LockKey, RowChange)>) -> Done {
    let written = session.write(&changes).await;
    Done::Wrote(changes, written)
}
