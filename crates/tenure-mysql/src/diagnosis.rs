//! Server settings for `tenure doctor`.

use super::connection::MysqlConnector;
use super::session::RowFields;
use super::statements::CLOCK;
use super::url::MysqlTarget;
use super::wire::WireError;
use tenure_core::error::Result;
use tenure_core::store::{BareThread, Failure};

/// Version and settings of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MysqlDiagnosis {
    /// Its version, as in `VERSION()`.
    pub version: String,
    /// `innodb_flush_log_at_trx_commit`.
    pub flush: i64,
    /// `sync_binlog`, if it writes a binary log.
    pub sync_binlog: Option<i64>,
    /// `max_connections`.
    pub max_connections: i64,
    /// Open connections.
    pub connections: i64,
    /// `program_name` of the other connections of this account. `None` where the server does not tell them.
    pub clients: Option<Vec<String>>,
    /// Its clock, in microseconds since 1970.
    pub clock_us: i64,
    /// Whether it is a node of a cluster in which several servers take writes.
    pub is_multi_primary: bool,
}

/// Connects as a store does, and reads the settings.
///
/// # Errors
/// `is_unreachable` without an answer in time, `is_refused` where the server refuses.
pub async fn diagnose_mysql(url: &str) -> Result<MysqlDiagnosis> {
    let target = MysqlTarget::parse(url)?;
    let url = target.shown();
    BareThread::run(&url, |runtime| async move { ask(&MysqlConnector::new(runtime, target)).await }).await
}

async fn ask(connector: &MysqlConnector) -> Result<MysqlDiagnosis, Failure> {
    let session = connector.dial().await?;
    let ask = async |sql: String| session.run(sql).await.map(|reply| reply.rows).map_err(WireError::login);
    let settings = format!(
        "SELECT VERSION(), @@innodb_flush_log_at_trx_commit, IF(@@log_bin, @@sync_binlog, NULL), @@max_connections, {CLOCK}"
    );
    let settings = ask(settings).await?;
    let status = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Threads_connected', 'wsrep_cluster_size')";
    let status = ask(status.to_owned()).await?;
    let status = |name: &str| {
        let row = status.iter().find(|row| RowFields(row).text(0).eq_ignore_ascii_case(name))?;
        RowFields(row).number(1)
    };
    // MariaDB keeps them only with performance_schema = ON.
    let clients = "SELECT ATTR_VALUE FROM performance_schema.session_account_connect_attrs
        WHERE @@performance_schema AND ATTR_NAME = 'program_name' AND PROCESSLIST_ID <> CONNECTION_ID()
        UNION ALL SELECT '' FROM DUAL WHERE @@performance_schema";
    let clients = ask(clients.to_owned()).await.ok().filter(|rows| !rows.is_empty());
    let clients = clients.map(|rows| rows.iter().map(|row| RowFields(row).text(0)).collect());
    let row = RowFields(
        settings.first().ok_or_else(|| Failure::NotSent(Failure::cause("it reported no settings")))?,
    );
    Ok(MysqlDiagnosis {
        version: row.text(0),
        flush: row.number(1).unwrap_or(0),
        sync_binlog: row.number(2),
        max_connections: row.number(3).unwrap_or(0),
        connections: status("Threads_connected").unwrap_or(0),
        clients,
        clock_us: row.number(4).unwrap_or(0),
        is_multi_primary: status("wsrep_cluster_size").unwrap_or(0) > 0,
    })
}
