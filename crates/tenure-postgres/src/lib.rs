//! Locks on PostgreSQL: each lock is a row of one table, changed by the state machine of `protocol`.
//!
//! The worker (`worker`) executes all requests on one connection. `inbox` queues them, `lock_queue` groups
//! them by lock, `steps` decides which statements come next, and `asking` sends them. `group` runs the
//! machines on the rows that `state` decodes. `listen` receives notifications on a second connection.
//!
//! `server` is the interface to a server. `connection` implements dialling, with `tls`, and `line` the
//! statements, whose SQL is in `statements`. `names` escapes lock names, `url` parses the URL, `failure` maps
//! server errors, and `diagnosis` reads server settings. `check_in` runs in transactions of the caller.

mod asking;
mod check_in;
mod connection;
mod diagnosis;
mod failure;
mod group;
mod inbox;
mod line;
mod listen;
mod lock_queue;
mod names;
mod server;
mod state;
mod statements;
mod steps;
mod tls;
mod url;
mod worker;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt, TryFutureExt};

pub use check_in::{HoldCheck, Transaction};
pub use diagnosis::{Diagnosis, diagnose_postgres};
pub use names::LockKey;
pub use server::{
    RecordColumns, Renewals, Row, RowChange, Server, ServerConnection, StatementError, StatementResult,
    StatementSession,
};
pub use statements::sweep_sql;
pub use statements::{check, tables};
use tenure_core::error::Result;
use tenure_core::name::LockName;
use tenure_core::protocol::LockSpec;
use tenure_core::runtime::Runtime;
use tenure_core::store::{
    Capabilities, Cursor, Failure, Listener, Opening, Page, Placement, Purpose, Signals, Store, StoreExt,
    StoreFuture, StoreReply, StoreRequest,
};
pub use url::table_in;

use connection::PrimaryConnector;
use inbox::{Inbox, PlainStatement, QueuedOp};
use listen::NotificationHub;
use url::PostgresTarget;
use worker::StatementWorker;

/// A store on a PostgreSQL server. Clones share its connections.
#[derive(Clone)]
pub struct Postgres {
    inner: Arc<PostgresInner>,
    url: Arc<str>,
}

struct PostgresInner {
    inbox: Arc<Inbox>,
    notifications: Arc<NotificationHub>,
}

impl Drop for PostgresInner {
    fn drop(&mut self) {
        self.inbox.close();
        self.notifications.close();
    }
}

/// Whether this URL scheme belongs to this store.
#[must_use]
pub fn takes(scheme: &str) -> bool {
    matches!(scheme, "postgres" | "postgresql")
}

/// Opens the store of a URL, without I/O.
///
/// # Errors
/// `is_invalid`, with the part of the URL that is wrong.
pub fn open(opening: Opening<'_>) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(Postgres::open(opening.url, opening.runtime)?))
}

/// The URL without its login, if it is valid.
pub fn shown(url: &str) -> Option<String> {
    PostgresTarget::parse(url).ok().map(|target| target.shown().to_string())
}

impl Postgres {
    /// A store on the server that a URL names; sends nothing before its first use.
    ///
    /// # Errors
    /// `is_invalid`, with the part of the URL that is wrong.
    pub fn open(url: &str, runtime: Arc<dyn Runtime>) -> Result<Self> {
        Ok(Self::on(Self::server(url, Arc::clone(&runtime))?, runtime))
    }

    /// The server or servers that a URL names.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn server(url: &str, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Server>> {
        Ok(Arc::new(PrimaryConnector::new(runtime, PostgresTarget::parse(url)?)))
    }

    /// A store on this server; sends nothing before its first use.
    pub fn on(server: Arc<dyn Server>, runtime: Arc<dyn Runtime>) -> Self {
        let (url, work) = (server.shown(), |inbox| StatementWorker::new(inbox).run().boxed());
        let inbox = Inbox::new(Arc::clone(&server), Arc::clone(&runtime), work);
        let notifications = NotificationHub::new(server, runtime, Arc::clone(&inbox.first));
        Self { inner: Arc::new(PostgresInner { inbox, notifications }), url }
    }

    async fn rows(self, plain: PlainStatement, within: Duration, at_once: bool) -> Result<Vec<Row>, Failure> {
        self.inner.inbox.ask(within, |reply| QueuedOp::Plain { plain, at_once, reply }).await
    }
}

impl Store for Postgres {
    fn call(&self, request: StoreRequest, within: Duration) -> StoreFuture<StoreReply> {
        let inbox = Arc::clone(&self.inner.inbox);
        match request {
            StoreRequest::Lock(op) => {
                let asked = async move { inbox.ask(within, |reply| QueuedOp::Lock(op, reply)).await };
                asked.map_ok(StoreReply::Lock).boxed()
            }
            StoreRequest::Record(op) => {
                let asked = async move { inbox.ask(within, |reply| QueuedOp::Record(op, reply)).await };
                asked.map_ok(StoreReply::Record).boxed()
            }
            // The worker combines requests that arrive together into one statement.
            StoreRequest::Renewals(ops) => self.renew_each(ops, within),
        }
    }

    fn subscribe(
        &self,
        name: &LockName,
        _spec: LockSpec,
        _purpose: Purpose<'_>,
        within: Duration,
    ) -> StoreFuture<Listener> {
        let (store, key) = (self.clone(), LockKey::of(name));
        async move { store.inner.notifications.listen(key, within).await }.boxed()
    }

    fn list(&self, prefix: &str, from: Cursor, within: Duration) -> StoreFuture<Page> {
        let (store, prefix) = (self.clone(), prefix.to_owned());
        async move {
            let plain = PlainStatement::List { prefix: names::prefix(&prefix), after: from.0 };
            let rows = store.rows(plain, within, false).await?;
            let mut page = Page::default();
            for row in &rows {
                if let (Some(name), Some(found)) =
                    (names::name_of(&row.name, row.whole.as_deref()), state::listed(row))
                    && name.as_str().starts_with(&prefix)
                {
                    page.locks.push((name, found));
                }
            }
            page.next = rows.into_iter().next_back().map(|row| Cursor(row.name));
            Ok(page)
        }
        .boxed()
    }

    fn ready(&self, within: Duration) -> StoreFuture<()> {
        let store = self.clone();
        async move { store.rows(PlainStatement::Ping, within, true).await.map(drop) }.boxed()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            member: Err("PostgreSQL keeps no ballots; use a standby instead of a quorum"),
            renewals: steps::LOCKS,
            ..Capabilities::SERVER
        }
    }

    fn placement(&self, _name: &LockName, _spec: LockSpec) -> Placement {
        Placement { renewal_group: Some(0), ..Placement::default() }
    }

    fn signals(&self) -> &Signals {
        &self.inner.inbox.signals
    }

    fn url(&self) -> &Arc<str> {
        &self.url
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Postgres").field(&self.url).finish()
    }
}
