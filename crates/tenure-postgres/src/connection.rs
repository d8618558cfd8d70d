//! Opens connections: dials, logs in, checks the server, creates the table, and terminates the previous
//! connection.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::future::{BoxFuture, Either, FutureExt, select, try_join_all};
use tokio::sync::mpsc;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, Connection};

use super::failure;
use super::session::{PostgresSession, channel_of};
use super::statements::{ALL, Statements, Which};
use super::tls::{EncryptedStream, Encryption};
use super::url::{PostgresTarget, quoted};
use tenure_core::CLIENT;
use tenure_core::events::{event, text};
use tenure_core::net::{
    Address, ConnectError, Counted, DialAttempt, DialStage, Dialled, Tls, TlsMode, dial_with,
};
use tenure_core::owner::Owner;
use tenure_core::platform::Keepalive;
use tenure_core::rows::{Server, ServerConnection, first_usable};
use tenure_core::runtime::Runtime;
use tenure_core::store::{Failure, FullWarning, SETUP};
use tenure_core::sync::Locked;

/// Timeout for the server to terminate the previous connection.
const END_MS: i64 = 2_000;
/// Key of the advisory lock around the creation of the table; an arbitrary number.
const MAKES: i64 = 8_390_042_714_201_347_429;
/// Oldest supported version, the first in which `pg_terminate_backend` can wait.
const OLDEST: i32 = 140_000;
const STANDBY: &str = "it is a standby and takes no writes: name its primary in the URL, or all servers, as in postgres://h1,h2/DATABASE";
const READ_ONLY: &str =
    "it takes no writes: default_transaction_read_only is on for this server, database or user";
/// Lock timeout of every statement. The unusual value also shows whether settings reach the server or a
/// pooler drops them.
const LOCK_TIMEOUT: &str = "1937ms";
/// A plan is kept for `REPLAN`, because planning takes as long as carrying out.
const PLANS: &str = "-c plan_cache_mode=force_generic_plan -c jit=off";

/// Opens connections to whichever server is the primary.
pub(super) struct PrimaryConnector {
    runtime: Arc<dyn Runtime>,
    target: PostgresTarget,
    statements: Statements,
    /// Whether the warning that old connections cannot be terminated was logged.
    warned: AtomicBool,
    /// Whether the warning that the server may lose acknowledged grants was logged.
    warned_of_loss: AtomicBool,
    full: FullWarning,
    stage: DialStage,
}

/// An open connection, logged in.
type PostgresConnection = (Arc<PostgresSession>, ServerConnection);

impl Server for PrimaryConnector {
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
        !self.target.is_pooled
    }

    fn has_soft_releases(&self) -> bool {
        true
    }

    fn shown(&self) -> Arc<str> {
        self.target.shown()
    }
}

impl fmt::Debug for PrimaryConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connector").field(&self.target).finish()
    }
}

impl PrimaryConnector {
    pub(super) fn new(runtime: Arc<dyn Runtime>, target: PostgresTarget) -> Self {
        let statements = Statements::new(&target);
        let (warned, warned_of_loss) = (AtomicBool::new(false), AtomicBool::new(false));
        let (full, stage) = (FullWarning::default(), DialStage::default());
        Self { runtime, target, statements, warned, warned_of_loss, full, stage }
    }

    /// Dials the servers in order until one is the primary. The connection `before` is terminated on the
    /// server first, so that none of its pending statements executes after one of the new connection.
    async fn dial_all(&self, before: Option<&str>) -> Result<PostgresConnection, Failure> {
        let open = |address| self.open(address, before);
        let limit = self.target.session.connect_timeout;
        first_usable(&*self.runtime, &self.stage, &self.target.addresses, limit, open).await
    }

    /// Opens a connection for statements alone.
    pub(super) async fn dial(&self) -> Result<Arc<PostgresSession>, Failure> {
        let (session, ServerConnection { driver, .. }) = self.dial_all(None).await?;
        self.runtime.spawn(driver);
        Ok(session)
    }

    async fn open(&self, address: &Address, before: Option<&str>) -> Result<PostgresConnection, Failure> {
        let label = label(&self.target.session.application, &*self.runtime);
        let heard = Arc::new(AtomicU64::new(0));
        let tls = self.target.tls.as_ref().filter(|_| matches!(address, Address::Tcp(..)));
        let (client, connection, attempt) = match self.log_in(address, tls, &label, &heard).await {
            Err((_, true)) => self.log_in(address, None, &label, &heard).await,
            logged_in => logged_in,
        }
        .map_err(|(failure, _)| failure)?;
        let (say, messages) = mpsc::unbounded_channel();
        let mut driver = drive(connection, say).boxed();
        self.stage.set(format!("{address} has not reported its version"));
        let statements: Vec<_> = ALL.iter().map(|which| self.statements.text(*which)).collect();
        let prepares = async {
            let table = self.look(&client, before).await?;
            attempt.succeeded();
            let types = ALL.iter().map(|which| which.types());
            let texts = statements.iter().filter(|_| !self.target.is_pooled);
            let prepares = texts.zip(types).map(|(text, types)| client.prepare_typed(text, types));
            let prepared = try_join_all(prepares).await.map_err(|error| failure::of(error, Which::Ping))?;
            Ok((channel_of(table), prepared))
        };
        let (channel, prepared) = match select(pin!(prepares), &mut driver).await {
            Either::Left((prepared, _)) => prepared?,
            Either::Right(((), prepares)) => {
                prepares.await?;
                return Err(Failure::NotSent(Failure::cause("the connection was closed")));
            }
        };
        let (runtime, plan_times) = (Arc::clone(&self.runtime), Locked::default());
        let session =
            PostgresSession { client, statements, prepared, heard, label, channel, runtime, plan_times };
        let session = Arc::new(session);
        Ok((Arc::clone(&session), ServerConnection { session, messages, driver }))
    }

    /// Dials a server and logs in. A failure comes with whether the connection may do without TLS, which is to
    /// blame, as libpq does with `prefer`.
    async fn log_in(
        &self,
        address: &Address,
        tls: Option<&Tls>,
        label: &str,
        heard: &Arc<AtomicU64>,
    ) -> Result<(Client, Connection<Counted, EncryptedStream>, DialAttempt), (Failure, bool)> {
        let PostgresTarget { session, is_pooled, .. } = &self.target;
        self.stage.set(format!("{address} has not been reached"));
        let dialled = dial_with(address, session.keepalive, &*self.runtime).await;
        let Dialled { stream, attempt, .. } =
            dialled.map_err(|error| (Failure::NotSent(Arc::new(error)), false))?;
        let stream = Counted::new(stream, Arc::clone(heard));
        let mut config = Config::new();
        let (user, password) = self.target.login(address).map_err(|failure| (failure, false))?;
        config.user(user).dbname(&self.target.database).application_name(label);
        config.channel_binding(session.channel_binding);
        if let Some(password) = password {
            config.password(password);
        }
        let mut options: Vec<_> = session.options.clone().into_iter().collect();
        if !is_pooled {
            let Keepalive { idle, interval, probes } = session.keepalive;
            // The server ends the session of a host that cannot be reached, so that its places are passed. Rows that a
            // policy hides are an error, and no setting of the role changes what a transaction sees.
            options.push(PLANS.to_owned());
            options.push(format!(
                "-c lock_timeout={LOCK_TIMEOUT} -c row_security=off -c default_transaction_isolation=read\\ committed \
                 -c tcp_keepalives_idle={} -c tcp_keepalives_interval={} -c tcp_keepalives_count={probes} -c tcp_user_timeout={}",
                idle.as_secs(),
                interval.as_secs(),
                session.keepalive.limit().as_millis(),
            ));
        }
        if !options.is_empty() {
            config.options(options.join(" "));
        }
        self.stage.set(format!("{address} has not answered the login"));
        let (encryption, has_agreed) = Encryption::of(tls, session.is_direct, address, &mut config);
        let connected = config.connect_raw(stream, encryption).await;
        connected.map(|(client, driver)| (client, driver, attempt)).map_err(|error| {
            let is_preferred = tls.is_some_and(|tls| tls.mode == TlsMode::Prefer);
            let is_to_blame = ConnectError::behind(&error).is_some()
                || error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
            let may_be_plain = is_preferred && is_to_blame && has_agreed.load(Ordering::Relaxed);
            (failure::of_login(error, &self.target), may_be_plain)
        })
    }

    /// Checks the server, creates the table if it is missing, and terminates the previous connection. Returns
    /// the table's oid.
    async fn look(&self, client: &Client, before: Option<&str>) -> Result<i64, Failure> {
        const LOOK: &str = "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(),
            to_regclass($1)::oid::bigint, current_setting('synchronous_commit'), current_setting('fsync'),
            current_setting('lock_timeout'), current_setting('server_encoding'),
            current_setting('default_transaction_read_only'),
            -- Kept for the session, whatever the server's configuration says later; not for that of a pooler.
            CASE WHEN $2 AND current_setting('lock_timeout') = $3 THEN set_config('synchronous_commit',
                coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), false) END";
        use tokio_postgres::types::Type;
        let table = self.statements.table();
        let keeps = !self.target.is_pooled;
        let rows = client
            .query_typed(LOOK, &[(&table, Type::TEXT), (&keeps, Type::BOOL), (&LOCK_TIMEOUT, Type::TEXT)])
            .await;
        let rows = rows.map_err(|error| match error.code() {
            // The user may lack even USAGE on the schema.
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                failure::of_tables(error, table, &self.statements.tables())
            }
            _ => failure::of_login(error, &self.target),
        })?;
        let row =
            rows.first().ok_or_else(|| Failure::NotSent(Failure::cause("it did not report its settings")))?;
        if let Some(text) = too_old(row.get(0)) {
            return Err(Failure::Refused(Failure::cause(text)));
        }
        if row.get(1) {
            // A standby does not know its primary's latest locks, and may be promoted at any time.
            return Err(Failure::NotSent(Failure::cause(STANDBY)));
        }
        if row.get::<_, &str>(7) == "on" {
            // It is also set during a switch to another server, so this is transient.
            return Err(Failure::NotSent(Failure::cause(READ_ONLY)));
        }
        let (commit, fsync, timeout, encoding): (&str, &str, &str, &str) =
            (row.get(3), row.get(4), row.get(5), row.get(6));
        if encoding != "UTF8" {
            let text = format!("its database is encoded in {encoding}, and UTF8 is needed");
            return Err(Failure::Refused(Failure::cause(text)));
        }
        if !self.target.is_pooled && timeout != LOCK_TIMEOUT {
            let text = "a pooler drops the connection's settings; add ?pgbouncer=1 to the URL";
            return Err(Failure::Refused(Failure::cause(text)));
        }
        let forgets = fsync == "off" || commit == "off" && self.target.is_pooled;
        if forgets && !self.warned_of_loss.swap(true, Ordering::Relaxed) {
            event!(
                WARN,
                target: SETUP,
                "server_may_forget",
                "the server may lose acknowledged grants when it crashes",
                store = text(self.target.shown()),
                fsync = fsync.to_owned(),
                synchronous_commit = commit.to_owned(),
            );
        }
        if let Some(before) = before {
            self.end(client, before).await?;
        }
        match row.get::<_, Option<i64>>(2) {
            Some(table) => Ok(table),
            None => self.make_table(client).await,
        }
    }

    /// Creates the table. Several clients may do so concurrently.
    async fn make_table(&self, client: &Client) -> Result<i64, Failure> {
        let tables = self.statements.tables();
        use tokio_postgres::types::Type;
        let mut schema = String::new();
        if let Some(name) = self.target.schema.as_deref().map(quoted) {
            // The user may be allowed to use a schema but not to create one.
            let asked =
                client.query_typed("SELECT to_regnamespace($1) IS NULL", &[(&name, Type::TEXT)]).await;
            let asked = asked.map_err(|error| failure::of_login(error, &self.target))?;
            if asked.iter().all(|row| row.get(0)) {
                schema = format!("CREATE SCHEMA IF NOT EXISTS {name}; ");
            }
        }
        let all = format!("BEGIN; SELECT pg_advisory_xact_lock({MAKES}); {schema}{tables}; COMMIT");
        if let Err(error) = client.batch_execute(&all).await {
            // End the open transaction.
            let _ = client.batch_execute("ROLLBACK").await;
            return Err(failure::of_tables(error, self.statements.table(), &tables));
        }
        let regclass = "SELECT to_regclass($1)::oid::bigint";
        let table = self.statements.table();
        let rows = client.query_typed(regclass, &[(&table, Type::TEXT)]).await;
        let rows = rows.map_err(|error| failure::of_login(error, &self.target))?;
        let made = rows.first().and_then(|row| row.get::<_, Option<i64>>(0));
        made.ok_or_else(|| Failure::NotSent(Failure::cause("the table was dropped as soon as it was made")))
    }

    /// Terminates a connection on the server and waits until it is gone. Behind a pooler, terminates only a
    /// server connection that is not idle.
    async fn end(&self, client: &Client, before: &str) -> Result<(), Failure> {
        use tokio_postgres::types::Type;
        const END: &str = "SELECT pg_terminate_backend(pid, $2) FROM pg_stat_activity
            WHERE application_name = $1 AND pid <> pg_backend_pid() AND (state <> 'idle' OR NOT $3)";
        let is_pooled = self.target.is_pooled;
        let arguments: [(&(dyn ToSql + Sync), Type); 3] =
            [(&before, Type::TEXT), (&END_MS, Type::INT8), (&is_pooled, Type::BOOL)];
        let ended = client.query_typed(END, &arguments).await;
        let ended = ended.map_err(|error| Failure::NotSent(Arc::new(error)))?;
        if is_pooled && !self.warned.swap(true, Ordering::Relaxed) {
            event!(
                WARN,
                target: SETUP,
                "connection_not_ended",
                "cannot close the connection behind a pooler: a request lost with it may still be carried out",
                store = text(self.target.shown()),
            );
        }
        match ended.iter().all(|row| row.get::<_, bool>(0)) {
            true => Ok(()),
            false => {
                Err(Failure::NotSent(Failure::cause("the server has not ended the previous connection")))
            }
        }
    }
}

/// Longest `application_name` that the server keeps.
const LABEL: usize = 63;
/// Maximum part of it that the URL may choose.
const APPLICATION: usize = 30;

/// A new connection's `application_name`: what the URL says, our version, what makes it unique, and what the
/// owners of this process begin with.
fn label(application: &str, runtime: &dyn Runtime) -> String {
    let owner = Owner::fresh("", runtime);
    let process = owner.as_str().rsplit_once('/').map_or("", |(process, _)| process);
    // It is quoted in SQL, and the server replaces what is not ASCII.
    let is_plain = |char: char| char.is_ascii_alphanumeric() || " -_.:/@[]()".contains(char);
    let plain = application.chars().map(|char| if is_plain(char) { char } else { '?' });
    let application: String = plain.take(APPLICATION).collect();
    let space = if application.is_empty() { "" } else { " " };
    let mut label = format!("{application}{space}{CLIENT}-{:016x} {process}", runtime.random());
    label.truncate(LABEL);
    label
}

/// Reads and writes a connection until it is closed, and passes notifications on.
async fn drive(mut connection: Connection<Counted, EncryptedStream>, say: mpsc::UnboundedSender<String>) {
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if let AsyncMessage::Notification(message) = message {
            let _ = say.send(message.payload().to_owned());
        }
    }
}

/// The error for a server version that is too old.
fn too_old(version: i32) -> Option<String> {
    (version < OLDEST).then(|| {
        let major = version / 10_000;
        format!("PostgreSQL 14 or later is needed, got {major}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_before_version_14_is_refused_in_one_line() {
        let text = too_old(130_021).expect("too old");
        assert!(text.contains("PostgreSQL 14 or later") && text.contains("got 13"), "{text}");
        assert!(too_old(90_624).expect("too old").contains("got 9"));
        assert_eq!((too_old(140_000), too_old(180_001)), (None, None));
    }
}
