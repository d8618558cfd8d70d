//! Locks on SQL databases: each lock is a row of one table, changed by the state machine of `protocol`.
//!
//! The worker (`worker`) executes all requests on one connection. `inbox` queues them, `lock_queue` sorts
//! them by lock, `sole` recognises those that need no read, `gather` collects them while a statement is in
//! flight, and `steps` decides what comes next and sends it. `execute` runs the machines on the rows that `state`
//! decodes. `listen` receives notifications on a second connection, or polls where there are none.
//!
//! `server` is the interface to a server, which each store implements. `names` escapes lock names, and
//! `sessions` passes waiters that are gone.

mod execute;
mod gather;
mod inbox;
mod listen;
mod lock_queue;
mod names;
mod server;
mod sessions;
mod sole;
mod state;
mod steps;
mod sweep;
mod worker;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt, TryFutureExt};

use crate::name::LockName;
use crate::protocol::{LockSpec, places};
use crate::runtime::Runtime;
use crate::store::{
    Capabilities, Cursor, Failure, Listener, Page, Placement, Purpose, RecordPage, Signals, Store, StoreExt,
    StoreFuture, StoreReply, StoreRequest, Topic,
};
use inbox::{Inbox, PlainStatement, QueuedOp};
use listen::NotificationHub;
pub use names::LockKey;
pub use server::{
    ChangeOutcome, RecordColumns, Row, RowChange, Server, ServerConnection, SoleChange, SoleVerb,
    StatementError, StatementResult, StatementSession, WriteOutcome, first_usable,
};
pub use sessions::{EndedSessions, ExpectedSession, SessionCheck};
pub use state::{signed, unsigned};
use worker::StatementWorker;

/// A store on an SQL server. Clones share its connections.
#[derive(Clone)]
pub struct RowStore {
    inner: Arc<RowStoreInner>,
    url: Arc<str>,
}

struct RowStoreInner {
    inbox: Arc<Inbox>,
    notifications: Arc<NotificationHub>,
}

impl Drop for RowStoreInner {
    fn drop(&mut self) {
        self.inbox.close();
        self.notifications.close();
    }
}

impl RowStore {
    /// A store on this server; sends nothing before its first use.
    pub fn on(server: Arc<dyn Server>, runtime: Arc<dyn Runtime>) -> Self {
        let (url, work) = (server.shown(), |inbox| StatementWorker::new(inbox).run().boxed());
        let inbox = Inbox::new(server, runtime, work);
        let notifications = NotificationHub::new(Arc::clone(&inbox));
        Self { inner: Arc::new(RowStoreInner { inbox, notifications }), url }
    }

    async fn rows(self, plain: PlainStatement, within: Duration, at_once: bool) -> Result<Vec<Row>, Failure> {
        self.inner.inbox.ask(within, |reply| QueuedOp::Plain { plain, at_once, reply }).await
    }
}

impl Store for RowStore {
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

    fn subscribe(&self, topic: Topic<'_>, within: Duration) -> StoreFuture<Listener> {
        let (store, key) = (self.clone(), LockKey::of(topic.name));
        let is_waiter = matches!(topic.purpose, Purpose::Ask | Purpose::Grants(_));
        let client = if let Purpose::Grants(client) = topic.purpose { Some(client) } else { None };
        async move { store.inner.notifications.listen(key, is_waiter, client, within).await }.boxed()
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

    fn records(&self, prefix: &str, from: Cursor, within: Duration) -> StoreFuture<RecordPage> {
        let (store, prefix) = (self.clone(), prefix.to_owned());
        async move {
            let plain = PlainStatement::Records { prefix: names::prefix(&prefix), after: from.0 };
            let rows = store.rows(plain, within, false).await?;
            let mut page = RecordPage {
                now_us: rows.last().map_or(0, |row| unsigned(row.clock_us)),
                ..RecordPage::default()
            };
            for row in &rows {
                if let (Some(name), Some(record)) =
                    (names::name_of(&row.name, row.whole.as_deref()), state::record(row))
                    && name.as_str().starts_with(&prefix)
                {
                    page.records.push((name, record.value));
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
        let has_notifications = self.inner.inbox.server.has_notifications();
        Capabilities {
            member: Err("its table keeps no ballots; use a standby instead of a quorum"),
            renewals: gather::LOCKS,
            reports_records: has_notifications,
            place_kept: has_notifications.then_some(places::PLACE),
            ..Capabilities::SERVER
        }
    }

    fn placement(&self, _name: &LockName, _spec: LockSpec) -> Placement {
        Placement { renews_with: Some(0), ..Placement::default() }
    }

    fn signals(&self) -> &Signals {
        &self.inner.inbox.signals
    }

    fn url(&self) -> &Arc<str> {
        &self.url
    }
}

impl fmt::Debug for RowStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RowStore").field(&self.url).finish()
    }
}
