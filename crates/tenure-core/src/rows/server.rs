//! The interface between the store and a server: connections, statements and notifications. Each
//! store implements it for its server, and `sim/rows` of the test kit for a simulated one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, ready};
use tokio::sync::mpsc;

use super::names::LockKey;
use super::sessions::{EndedSessions, SessionCheck};
use crate::net::{Address, DialStage};
use crate::owner::Owner;
use crate::protocol::codec;
use crate::protocol::record::Record;
use crate::protocol::{ExpiringValue, LockSpec};
use crate::runtime::Runtime;
use crate::store::Failure;
use crate::store::observe::Notes;

/// Timeout until a new connection is usable.
const DIAL: Duration = Duration::from_secs(3);

/// A server, or several of which one is the primary.
pub trait Server: fmt::Debug + Send + Sync + 'static {
    /// Connects to the primary. The connection `before` is terminated on the server first, so that none of
    /// its pending statements executes after one of the new connection.
    fn connect<'a>(&'a self, before: Option<&'a str>) -> BoxFuture<'a, Result<ServerConnection, Failure>>;

    /// The failure of a request for which no connection was opened in time.
    fn no_connection(&self) -> Failure;

    /// Whether the server sends notifications. Without them, waiters poll.
    fn has_notifications(&self) -> bool;

    /// Whether a statement that only releases need not wait for the disk. Otherwise releases share their commit
    /// with the other changes.
    fn has_soft_releases(&self) -> bool;

    /// The URL without credentials.
    fn shown(&self) -> Arc<str>;
}

/// An open connection.
pub struct ServerConnection {
    /// Sends statements.
    pub session: Arc<dyn StatementSession>,
    /// Notifications for listeners.
    pub messages: mpsc::UnboundedReceiver<String>,
    /// Reads and writes the connection, and completes when it is closed. Closes it when dropped.
    pub driver: BoxFuture<'static, ()>,
}

impl fmt::Debug for ServerConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerConnection").field("session", &self.session).finish_non_exhaustive()
    }
}

/// A failed statement.
#[derive(Clone, Debug)]
pub struct StatementError {
    /// What is known of its effect.
    pub failure: Failure,
    /// Whether the connection is unusable from now on.
    pub ends_connection: bool,
}

/// The result of a statement.
pub type StatementResult<'a, T> = BoxFuture<'a, Result<T, StatementError>>;

/// The statements of one connection, each a transaction of its own. A statement is sent when its future is
/// first polled, and statements execute in that order. If its future is dropped later, or fails with
/// [`Failure::Unknown`], the statement may still execute.
pub trait StatementSession: fmt::Debug + Send + Sync + 'static {
    /// The connection's name on the server.
    fn label(&self) -> &str;

    /// Number of completed reads, to detect a silent connection.
    fn heard(&self) -> u64;

    /// Changes locks that have no holder or a single one. All changes have one verb, unless the server's
    /// [releases](Server::has_soft_releases) wait for its disk.
    fn change<'a>(&'a self, changes: &'a [SoleChange]) -> StatementResult<'a, ChangeOutcome>;

    /// Reads the rows of locks and the server's clock. A lock without a row yields one too.
    fn read<'a>(&'a self, names: &'a [String], with_records: bool) -> StatementResult<'a, Vec<Row>>;

    /// Replaces the rows that are unchanged since they were read, if their [checks](RowChange::sessions) pass.
    /// A crash of the server may undo it if none of them must be [durable](RowChange::durable).
    fn write<'a>(&'a self, changes: &'a [(LockKey, RowChange)]) -> StatementResult<'a, WriteOutcome>;

    /// Marks rows as having listeners, for five minutes. The row of a client names its session meanwhile, in
    /// the column `whole`.
    fn note_listeners<'a>(&'a self, _keys: &'a [LockKey]) -> StatementResult<'a, ()> {
        ready(Ok(())).boxed()
    }

    /// Deletes the rows of clients that still name these sessions.
    fn forget_sessions<'a>(&'a self, _keys: &'a [LockKey]) -> StatementResult<'a, ()> {
        ready(Ok(())).boxed()
    }

    /// Subscribes to the notifications about this table's locks, where the server sends any. From then on
    /// the server can tell whether the session of this [label](Self::label) has ended.
    fn listen(&self) -> StatementResult<'_, ()> {
        ready(Ok(())).boxed()
    }

    /// A page of the locks with this name prefix, after this name.
    fn list<'a>(&'a self, prefix: &'a str, after: &'a str) -> StatementResult<'a, Vec<Row>>;

    /// A page of the locks with this name prefix, after this name, that have a record which has not expired; with
    /// the record.
    fn records<'a>(&'a self, prefix: &'a str, after: &'a str) -> StatementResult<'a, Vec<Row>>;

    /// Deletes unused rows among the next page of rows after this name. Returns the last name of the page, or
    /// `None` at the end.
    fn sweep<'a>(&'a self, after: &'a str) -> StatementResult<'a, Option<String>>;

    /// A no-op that shows that the server answers.
    fn ping(&self) -> StatementResult<'_, ()>;
}

/// The result of a change.
#[derive(Debug, Default)]
pub struct ChangeOutcome {
    /// The names and tokens of the locks to which it applied.
    pub tokens: BTreeMap<String, i64>,
    /// Locks that failed alone.
    pub failed: BTreeMap<String, Failure>,
}

/// The result of a write.
#[derive(Debug, Default)]
pub struct WriteOutcome {
    /// The names of the rows that were replaced.
    pub written: BTreeSet<String>,
    /// The names of the rows whose checks failed, and the sessions found ended.
    pub refused: BTreeMap<String, EndedSessions>,
    /// Rows that failed alone.
    pub failed: BTreeMap<String, Failure>,
}

/// What a statement does to locks that have no holder or a single one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoleVerb {
    /// Grants locks that nobody holds, or that [`before`](SoleChange::before) hands over.
    Acquire,
    /// Frees locks, unless a transaction has checked them in. A crash of the server may undo it.
    Release,
    /// Extends leases.
    Renew,
}

/// A lock of such a statement.
#[derive(Clone, Debug)]
pub struct SoleChange {
    /// What is done to it.
    pub verb: SoleVerb,
    /// The lock.
    pub key: LockKey,
    /// Its kind and parameters.
    pub spec: LockSpec,
    /// The new holder, or else the only one.
    pub owner: Owner,
    /// Number of the hold.
    pub hold: u64,
    /// The new lease, from now on.
    pub ttl_ms: i64,
    /// The only holder, which releases the lock to `owner`.
    pub before: Option<Owner>,
    /// The message of a release, if any, sent if clients listen.
    pub message: String,
}

impl SoleChange {
    /// The value while `owner` holds the lock: see [`codec::sole`].
    #[must_use]
    pub fn value(&self) -> String {
        codec::sole(self.spec, &self.owner, self.hold)
    }

    /// The value while `before` holds it.
    #[must_use]
    pub fn value_before(&self) -> Option<String> {
        self.before.as_ref().map(|before| codec::sole(self.spec, before, self.hold))
    }
}

/// A row as read from the server.
#[derive(Clone, Debug)]
pub struct Row {
    /// The column `name`.
    pub name: String,
    /// The column `whole`, in a listing.
    pub whole: Option<String>,
    /// The version that wrote it; `None` without a row.
    pub version: Option<String>,
    /// The kind of lock, if there is one.
    pub kind: Option<String>,
    /// The state of its machine, if there is a lock.
    pub value: Option<String>,
    /// When its last lease ends.
    pub ends_ms: Option<i64>,
    /// The last token; without a row, the lower bound for the first one.
    pub fence: i64,
    /// Compared by a write; `None` without a row.
    pub serial: Option<i64>,
    /// The server's clock.
    pub clock_us: i64,
    /// The record beside the lock, if requested.
    pub record: Option<RecordColumns>,
}

/// A record's columns.
#[derive(Clone, Debug)]
pub struct RecordColumns {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// When it was written.
    pub at_us: i64,
    /// When it expires.
    pub ends_ms: Option<i64>,
}

/// A row to write if it is unchanged since it was read.
#[derive(Clone, Debug)]
pub struct RowChange {
    /// The serial that was read; `None` without a row.
    pub serial: Option<i64>,
    /// Ends a hold that may be checked in.
    pub ends_hold: bool,
    /// Does more than end holds and places, which a crash of the server may undo.
    pub durable: bool,
    /// After this time on the server's clock the write does not apply and the row is read again.
    pub until_ms: u64,
    /// Kind and value, if there is a lock.
    pub lock: Option<(&'static str, String)>,
    /// When its last lease ends.
    pub ends_ms: u64,
    /// The last token.
    pub fence: u64,
    /// The record, if it changes.
    pub record: Option<Option<ExpiringValue<Record>>>,
    /// Messages for listeners, one per line. Those that start with `!` are sent even if the row is not marked
    /// as having listeners.
    pub wake: String,
    /// The sessions that it depends on, where the server knows sessions.
    pub sessions: Vec<SessionCheck>,
    /// The requests that the change carries out.
    pub notes: Notes,
}

/// Dials these servers in order until `open` finds one usable, for at most `limit` each.
///
/// # Errors
/// Why none of them is.
pub async fn first_usable<'a, T, F: Future<Output = Result<T, Failure>>>(
    runtime: &dyn Runtime,
    stage: &DialStage,
    addresses: &'a [Address],
    limit: Option<Duration>,
    open: impl Fn(&'a Address) -> F,
) -> Result<T, Failure> {
    let mut said = Vec::new();
    for address in addresses {
        match stage.by(runtime, runtime.now() + limit.unwrap_or(DIAL), open(address)).await.flatten() {
            Ok(connection) => return Ok(connection),
            Err(failure) => said.push((address, failure)),
        }
    }
    Err(none_usable(&said))
}

/// The failure where none of these servers could be used.
fn none_usable(said: &[(&Address, Failure)]) -> Failure {
    if let [(_, failure)] = said {
        return failure.clone();
    }
    let text: Vec<_> = said.iter().map(|(address, failure)| format!("{address}: {failure}")).collect();
    if said.iter().any(|(_, failure)| failure.is_full()) {
        return Failure::full(text.join("; "));
    }
    let cause = Failure::cause(text.join("; "));
    let is_refused = said.iter().all(|(_, failure)| matches!(failure, Failure::Refused(_)));
    if is_refused { Failure::Refused(cause) } else { Failure::NotSent(cause) }
}
