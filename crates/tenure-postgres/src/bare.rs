//! A row that is inserted and deleted, and an advisory lock, for `tenure bench`.

use std::sync::Arc;

use futures_util::future::{FutureExt, try_join_all};
use tokio_postgres::Statement;
use tokio_postgres::types::Type;

use super::connection::PrimaryConnector;
use super::failure;
use super::session::PostgresSession;
use super::statements::Which;
use super::url::PostgresTarget;
use tenure_core::error::Result;
use tenure_core::store::{BareClient, BareStep, BareThread, StoreFuture};

/// The statements of the steps, in their order. A row without a value is no lock.
const STEPS: [&str; 5] = [
    "INSERT INTO {table} (name) VALUES ($1) ON CONFLICT DO NOTHING",
    "UPDATE {table} SET serial = serial + 1 WHERE name = $1",
    "DELETE FROM {table} WHERE name = $1",
    "SELECT pg_advisory_lock(hashtextextended($1, 1))",
    "SELECT pg_advisory_unlock(hashtextextended($1, 1))",
];

struct PostgresBare {
    session: Arc<PostgresSession>,
    statements: Arc<[Statement]>,
    name: Arc<str>,
    _thread: BareThread,
}

/// Connects as a store does.
///
/// # Errors
/// `is_unreachable` without an answer in time, `is_refused` where the server refuses.
pub async fn bare_postgres(url: &str, name: &str) -> Result<Box<dyn BareClient>> {
    let target = PostgresTarget::parse(url)?;
    let (shown, table) = (target.shown(), target.table());
    let thread = BareThread::start(&shown)?;
    let connector = PrimaryConnector::new(thread.runtime(), target);
    let opened = async move {
        let session = connector.dial().await?;
        let texts = STEPS.map(|text| text.replace("{table}", &table));
        let prepares = texts.iter().map(|text| session.client.prepare_typed(text, &[Type::TEXT]));
        let statements = try_join_all(prepares).await.map_err(|error| failure::of(error, Which::Ping))?;
        Ok((session, statements))
    };
    let (session, statements) = thread.open(&shown, opened).await?;
    let statements = statements.into();
    Ok(Box::new(PostgresBare { session, statements, name: name.into(), _thread: thread }))
}

impl BareClient for PostgresBare {
    fn step(&self, step: BareStep) -> StoreFuture<bool> {
        let (session, statements) = (Arc::clone(&self.session), Arc::clone(&self.statements));
        let name = Arc::clone(&self.name);
        async move {
            let done = session.client.execute(&statements[step as usize], &[&&*name]).await;
            let changed = done.map_err(|error| failure::of(error, Which::Acquire))?;
            Ok(step != BareStep::Take || changed == 1)
        }
        .boxed()
    }
}
