//! A row that is inserted and deleted, and a named lock of the server, for `tenure bench`.

use std::sync::Arc;

use futures_util::future::FutureExt;

use super::connection::MysqlConnector;
use super::session::{MysqlSession, RowFields};
use super::statements::hex;
use super::url::MysqlTarget;
use super::wire::WireError;
use tenure_core::error::Result;
use tenure_core::store::{BareClient, BareStep, BareThread, StoreFuture};

/// The statements of the steps, in their order. A row without a value is no lock.
const STEPS: [&str; 5] = [
    "INSERT IGNORE INTO tenure_lock (name) VALUES ({name})",
    "UPDATE tenure_lock SET serial = serial + 1 WHERE name = {name}",
    "DELETE FROM tenure_lock WHERE name = {name}",
    "SELECT GET_LOCK(MD5({name}), 2)",
    "SELECT RELEASE_LOCK(MD5({name}))",
];

struct MysqlBare {
    session: Arc<MysqlSession>,
    statements: [String; 5],
    _thread: BareThread,
}

/// Connects as a store does.
///
/// # Errors
/// `is_unreachable` without an answer in time, `is_refused` where the server refuses.
pub async fn bare_mysql(url: &str, name: &str) -> Result<Box<dyn BareClient>> {
    let target = MysqlTarget::parse(url)?;
    let shown = target.shown();
    let thread = BareThread::start(&shown)?;
    let connector = MysqlConnector::new(thread.runtime(), target);
    let opened = thread.open(&shown, async move { connector.dial().await });
    let session = opened.await?;
    let statements = STEPS.map(|text| text.replace("{name}", &hex(name)));
    Ok(Box::new(MysqlBare { session, statements, _thread: thread }))
}

impl BareClient for MysqlBare {
    fn step(&self, step: BareStep) -> StoreFuture<bool> {
        let (session, sql) = (Arc::clone(&self.session), self.statements[step as usize].clone());
        async move {
            let reply = loop {
                match session.run(sql.clone()).await {
                    // Another client has the row, for which this connection does not wait.
                    Err(WireError::Server(error)) if error.is_contended() => match step {
                        BareStep::Take => return Ok(false),
                        _ => continue,
                    },
                    reply => break reply.map_err(WireError::login)?,
                }
            };
            Ok(match step {
                BareStep::Take => reply.changed == 1,
                BareStep::Wait => reply.rows.first().is_some_and(|row| RowFields(row).number(0) == Some(1)),
                _ => true,
            })
        }
        .boxed()
    }
}
