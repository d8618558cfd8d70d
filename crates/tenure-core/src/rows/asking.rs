//! Sends the worker's statements, each as a future of its result.

use std::sync::Arc;

use super::inbox::PlainStatement;
use super::names::LockKey;
use super::server::{Renewals, Row, RowChange, StatementError, StatementSession, WriteOutcome};
use super::state::unsigned;
use crate::protocol::Answer;

/// The result of a statement.
pub(super) enum Done {
    /// Of a single statement for each lock: the answers of those to which it applied.
    Single(Vec<String>, Result<Vec<(String, Answer)>, StatementError>),
    Read(Vec<String>, Result<Vec<Row>, StatementError>),
    Wrote(Vec<String>, Result<WriteOutcome, StatementError>),
    Plain(u64, Result<Vec<Row>, StatementError>),
    Swept(Result<Option<String>, StatementError>),
}

pub(super) type Session = Arc<dyn StatementSession>;

pub(super) async fn acquire(session: Session, key: LockKey, owner: String, ttl_ms: i64) -> Done {
    let acquired = session.acquire(&key, &owner, ttl_ms).await;
    let held = |fence| (key.name.clone(), held(fence));
    Done::Single(vec![key.name.clone()], acquired.map(|fence| fence.map(held).into_iter().collect()))
}

pub(super) async fn release(session: Session, name: String, owner: String, message: String) -> Done {
    let released = session.release(&name, &owner, &message).await;
    let answer = || (name.clone(), Answer::Released { left: 0 });
    Done::Single(vec![name.clone()], released.map(|is_own| is_own.then(answer).into_iter().collect()))
}

pub(super) async fn renew(session: Session, renewals: Renewals) -> Done {
    let renewed = session.renew(&renewals).await;
    let answers = |all: Vec<_>| all.into_iter().map(|(name, fence)| (name, held(fence))).collect();
    Done::Single(renewals.names, renewed.map(answers))
}

fn held(fence: i64) -> Answer {
    Answer::Held { fence: unsigned(fence) }
}

pub(super) async fn read_rows(session: Session, names: Vec<String>, with_records: bool) -> Done {
    let rows = session.read(&names, with_records).await;
    Done::Read(names, rows)
}

pub(super) async fn plain(session: Session, number: u64, plain: PlainStatement) -> Done {
    let rows = match plain {
        PlainStatement::List { prefix, after } => session.list(&prefix, &after).await,
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
    Done::Wrote(changes.into_iter().map(|(key, _)| key.name).collect(), written)
}
