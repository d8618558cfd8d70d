//! Opens connections: dials, logs in, checks the server, creates the table, and terminates the previous
//! connection.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, FutureExt, select};
use tokio::sync::mpsc;

use super::failure::{COLUMN_EXISTS, UNKNOWN_THREAD};
use super::login::{LoginRequest, log_in};
use super::session::{MysqlSession, RowFields, StatementJob};
use super::statements::{self, hex};
use super::url::MysqlTarget;
use super::wire::{MysqlWire, StatementReply, Values, WireError};
use tenure_core::events::{event, text};
use tenure_core::net::{Address, Counted, DialAttempt, DialStage, Tls, TlsMode, dial};
use tenure_core::rows::{Server, ServerConnection, first_usable};
use tenure_core::runtime::Runtime;
use tenure_core::store::{Failure, FullWarning, SETUP};
use tenure_core::sync::Locked;

/// Maximum length of a statement. The texts in it have at most half of that, since they are hexadecimal.
const LONGEST: usize = 64 << 20;
/// Interval at which the end of the previous connection is awaited.
const ENDING: Duration = Duration::from_millis(20);
/// The settings that change results or refuse statements, which the server or its `init_connect` may have set
/// otherwise.
const SETTINGS: &str =
    "SET NAMES utf8mb4, autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
    sql_select_limit = 18446744073709551615, sql_big_selects = 1, sql_safe_updates = 0, completion_type = 0,
    wait_timeout = 28800";
/// Sent around a transaction of several changes, whose rows the server would otherwise keep locked for hours if the
/// client stops in the middle. MariaDB has a setting for that.
const WAITS_BRIEFLY: &str = "SET wait_timeout = 5";
const WAITS: &str = "SET wait_timeout = 28800";
const ISOLATION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE";
const READ_ONLY: &str = "it takes no writes: read_only is on, as on a replica; name the primary in the URL, or all \
                         servers, as in mysql://USER@h1,h2/DATABASE";

/// Opens connections to whichever server takes writes.
pub(super) struct MysqlConnector {
    runtime: Arc<dyn Runtime>,
    target: MysqlTarget,
    /// Whether the warning that the server may lose acknowledged grants was logged.
    warned: AtomicBool,
    full: FullWarning,
    stage: DialStage,
}

/// An open connection, logged in.
type MysqlConnection = (Arc<MysqlSession>, ServerConnection);

impl Server for MysqlConnector {
    fn connect<'a>(&'a self, before: Option<&'a str>) -> BoxFuture<'a, Result<ServerConnection, Failure>> {
        async move {
            let opened = self.dial_all(before).await;
            let opened = opened.inspect_err(|failure| self.full.note(self.target.shown(), failure));
            opened.map(|(_, connection)| connection)
        }
        .boxed()
    }

    fn no_connection(&self) -> Failure {
        self.stage.no_connection()
    }

    fn has_notifications(&self) -> bool {
        false
    }

    fn has_soft_releases(&self) -> bool {
        false
    }

    fn shown(&self) -> Arc<str> {
        self.target.shown()
    }
}

impl fmt::Debug for MysqlConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MysqlConnector").field(&self.target.shown()).finish()
    }
}

impl MysqlConnector {
    pub(super) fn new(runtime: Arc<dyn Runtime>, target: MysqlTarget) -> Self {
        let (full, stage) = (FullWarning::default(), DialStage::default());
        Self { runtime, target, warned: AtomicBool::new(false), full, stage }
    }

    /// Dials the servers in order until one takes writes. The connection `before` is terminated on the server
    /// first, so that none of its pending statements executes after one of the new connection.
    async fn dial_all(&self, before: Option<&str>) -> Result<MysqlConnection, Failure> {
        let open = |address| self.open(address, before);
        let limit = self.target.connect_timeout;
        first_usable(&*self.runtime, &self.stage, &self.target.addresses, limit, open).await
    }

    /// Opens a connection for statements alone.
    pub(super) async fn dial(&self) -> Result<Arc<MysqlSession>, Failure> {
        let (session, ServerConnection { driver, .. }) = self.dial_all(None).await?;
        self.runtime.spawn(driver);
        Ok(session)
    }

    async fn open(&self, address: &Address, before: Option<&str>) -> Result<MysqlConnection, Failure> {
        let heard = Arc::new(AtomicU64::new(0));
        let tls = self.target.tls.as_ref().filter(|_| matches!(address, Address::Tcp(..)));
        let wire = match self.log_in(address, tls, &heard).await {
            // As MySQL's programs do.
            Err(WireError::Tls(_)) if tls.is_some_and(|tls| tls.mode == TlsMode::Prefer) => {
                self.log_in(address, None, &heard).await
            }
            wire => wire,
        };
        let (mut wire, attempt) = wire.map_err(WireError::login)?;
        self.stage.set(format!("{address} has not answered about itself"));
        let label = format!("tenure-{:016x}", self.runtime.random());
        let (longest, rolls_back, is_mariadb) = self.prepare(&mut wire, &label, before).await?;
        attempt.succeeded();
        let (jobs, asked) = mpsc::unbounded_channel();
        let around = (!is_mariadb).then_some([WAITS_BRIEFLY, WAITS]);
        let (rows, batch) = (Locked::default(), AtomicU64::new(self.runtime.random() >> 2));
        let session = Arc::new(MysqlSession { jobs, heard, label, longest, rolls_back, around, rows, batch });
        let (_, messages) = mpsc::unbounded_channel();
        Ok((Arc::clone(&session), ServerConnection { session, messages, driver: serve(wire, asked).boxed() }))
    }

    async fn log_in(
        &self,
        address: &Address,
        tls: Option<&Tls>,
        heard: &Arc<AtomicU64>,
    ) -> Result<(MysqlWire, DialAttempt), WireError> {
        let target = &self.target;
        self.stage.set(format!("{address} has not been reached"));
        let dialled = dial(address, &*self.runtime).await;
        let dialled = dialled.map_err(|error| WireError::Refused(Failure::NotSent(Arc::new(error))))?;
        let stream = Counted::new(dialled.stream, Arc::clone(heard));
        self.stage.set(format!("{address} has not answered the login"));
        let (user, password) = target.login().map_err(WireError::Refused)?;
        let host = matches!(address, Address::Tcp(..)).then(|| address.host());
        let (database, key) = (&*target.database, &target.key);
        let request = LoginRequest { user: &user, database, host, tls, key };
        Ok((log_in(Box::pin(stream), request, &password).await?, dialled.attempt))
    }

    /// Checks the server, terminates the previous connection, and creates the table if it is missing. Returns
    /// the maximum length of a statement, whether a timeout rolls back the whole transaction, and whether it is
    /// MariaDB.
    async fn prepare(
        &self,
        wire: &mut MysqlWire,
        label: &str,
        before: Option<&str>,
    ) -> Result<(usize, bool, bool), Failure> {
        let ask = format!(
            "SELECT VERSION(), @@global.read_only OR @@global.innodb_read_only, @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog,
                @@max_allowed_packet, @@innodb_rollback_on_timeout, (SELECT COUNT(*) FROM information_schema.columns
                    WHERE table_schema = DATABASE() AND table_name = 'tenure_lock' AND column_name IN ('name', 'batch')),
                GET_LOCK({}, 0)",
            hex(label)
        );
        wire.run(SETTINGS).await.map_err(WireError::login)?;
        let row = first(wire.run(&ask).await.map_err(WireError::login)?);
        let row = RowFields(&row);
        let version = row.text(0);
        if let Some(text) = too_old(&version) {
            return Err(Failure::Refused(Failure::cause(text)));
        }
        if !matches!(&*row.text(1), "0" | "OFF") {
            // A replica may lack its primary's latest locks. It may also become the primary, so this is transient.
            return Err(Failure::NotSent(Failure::cause(READ_ONLY)));
        }
        let is_durable = row.number(2) == Some(1) && (row.number(3) == Some(0) || row.number(4) == Some(1));
        if !is_durable && !self.warned.swap(true, Ordering::Relaxed) {
            event!(
                WARN,
                target: SETUP,
                "server_may_forget",
                "the server may lose acknowledged grants when it crashes",
                store = text(self.target.shown()),
                innodb_flush_log_at_trx_commit = row.text(2),
                sync_binlog = row.text(4),
            );
        }
        wire.run(ISOLATION).await.map_err(WireError::login)?;
        // Where the server can, it reports a locked row at once. MySQL waits for at least a second.
        let is_mariadb = is_mariadb(&version);
        let (wait, limits) = match is_mariadb {
            true => (0, "max_statement_time = 0, idle_transaction_timeout = 5"),
            false => (1, "max_execution_time = 0"),
        };
        let sql = format!("SET SESSION innodb_lock_wait_timeout = {wait}, lock_wait_timeout = 2, {limits}");
        wire.run(&sql).await.map_err(WireError::login)?;
        if let Some(before) = before {
            self.end(wire, before).await?;
        }
        match row.number(7) {
            Some(0) => {
                for sql in [statements::table(), statements::LOWEST.to_owned()] {
                    wire.run(&sql).await.map_err(WireError::tables)?;
                }
            }
            Some(1) => match wire.run(statements::BATCH).await {
                // Another client was faster.
                Err(WireError::Server(error)) if error.code == COLUMN_EXISTS => {}
                added => drop(added.map_err(WireError::column)?),
            },
            _ => {}
        }
        let longest = row.number(5).and_then(|bytes| bytes.try_into().ok()).unwrap_or(LONGEST).min(LONGEST);
        Ok((longest, row.number(6) != Some(0), is_mariadb))
    }

    /// Terminates the connection that holds a named lock, and waits until it is gone. A restarted server has
    /// ended all connections, and no other connection holds that lock.
    async fn end(&self, wire: &mut MysqlWire, before: &str) -> Result<(), Failure> {
        self.stage.set("the server has not ended the previous connection".to_owned());
        loop {
            let holder = format!("SELECT IS_USED_LOCK({})", hex(before));
            let holder = first(wire.run(&holder).await.map_err(WireError::login)?);
            let Some(id) = RowFields(&holder).number(0) else { return Ok(()) };
            match wire.run(&format!("KILL CONNECTION {id}")).await {
                Err(WireError::Server(error)) if error.code == UNKNOWN_THREAD => {}
                killed => drop(killed.map_err(WireError::login)?),
            }
            self.runtime.sleep_until(self.runtime.now() + ENDING).await;
        }
    }
}

/// Runs one statement after the other until the connection ends or is no longer needed.
async fn serve(mut wire: MysqlWire, mut asked: mpsc::UnboundedReceiver<StatementJob>) {
    loop {
        let job = match select(pin!(asked.recv()), pin!(wire.over())).await {
            Either::Left((Some(job), _)) => job,
            _ => return,
        };
        let (all, reply) = job;
        let said = wire.run_all(&all).await;
        let is_over = said.as_ref().map_or(true, |said| {
            said.iter().any(|reply| reply.as_ref().is_err_and(WireError::ends_connection))
        });
        let _ = reply.send(said);
        if is_over {
            return;
        }
    }
}

fn first(reply: StatementReply) -> Values {
    reply.rows.into_iter().next().unwrap_or_default()
}

fn is_mariadb(version: &str) -> bool {
    version.contains("MariaDB")
}

/// The error for a server version that is too old: one without `SKIP LOCKED`.
fn too_old(version: &str) -> Option<String> {
    let mut numbers = version.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    let found: [u32; 2] = [numbers.next()?, numbers.next().unwrap_or(0)];
    let (server, oldest) = if is_mariadb(version) { ("MariaDB", [10, 6]) } else { ("MySQL", [8, 0]) };
    (found < oldest).then(|| {
        let ([major, minor], [a, b]) = (found, oldest);
        format!("{server} {a}.{b} or later is needed, got {major}.{minor}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_without_skip_locked_are_refused_in_one_line() {
        assert_eq!(too_old("10.5.9-MariaDB").as_deref(), Some("MariaDB 10.6 or later is needed, got 10.5"));
        assert_eq!(too_old("5.7.44-log").as_deref(), Some("MySQL 8.0 or later is needed, got 5.7"));
        for version in ["10.6.0-MariaDB", "10.11.19-MariaDB-0+deb12u1", "11.4.2-MariaDB", "8.0.36", "9.1.0"] {
            assert_eq!(too_old(version), None, "{version}");
        }
    }
}
