//! What the store needs of a server: connections, the statements that are sent on them, and
//! messages. `connection` and `line` offer it by a real server, and the tests by a model.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use super::names::Key;
use tenure_core::protocol::Entry;
use tenure_core::protocol::record::Record;
use tenure_core::store::Failure;

/// A server, or several of which one is the primary.
pub trait Server: fmt::Debug + Send + Sync + 'static {
    /// Connects to the primary. The connection `before` is ended on the server before this one can
    /// be used: a statement of it that is still on its way must not arrive after one of this.
    fn connect<'a>(&'a self, before: Option<&'a str>) -> BoxFuture<'a, Result<Connection, Failure>>;

    /// What a connection waits for that is being made.
    fn stage(&self) -> String;

    /// Whether a pooler is in between, behind which nothing can be heard.
    fn is_pooled(&self) -> bool;

    /// The URL without credentials.
    fn shown(&self) -> Arc<str>;
}

/// An open connection.
#[derive(Debug)]
pub struct Connection {
    /// Where statements are sent.
    pub session: Arc<dyn Session>,
    /// Messages to those who listen.
    pub messages: mpsc::UnboundedReceiver<String>,
    /// Completes when it is closed.
    pub over: oneshot::Receiver<()>,
    /// Dropped, it closes the connection.
    pub hangup: oneshot::Sender<()>,
}

/// A statement was not answered as it should be.
#[derive(Clone, Debug)]
pub struct Failed {
    /// What became of it.
    pub failure: Failure,
    /// Whether the connection is of no use any more.
    pub ends_connection: bool,
}

/// What has come of a statement.
pub type Answered<'a, T> = BoxFuture<'a, Result<T, Failed>>;

/// The statements of one connection, each a whole transaction. They are sent when their futures are
/// first polled, and carried out in that order. A future that is dropped after that, or fails with
/// [`Failure::Unknown`], may yet be carried out.
pub trait Session: fmt::Debug + Send + Sync + 'static {
    /// What the server calls the connection.
    fn label(&self) -> &str;

    /// How often something came in.
    fn heard(&self) -> u64;

    /// Takes a mutex that no client holds. Tells the token; `None` where a client may hold it.
    fn acquire<'a>(&'a self, key: &'a Key, owner: &'a str, ttl_ms: i64) -> Answered<'a, Option<i64>>;

    /// Ends the hold of a mutex, and sends the message if a client listens. `false` where the hold
    /// was not there, or is checked in.
    fn release<'a>(&'a self, name: &'a str, owner: &'a str, message: &'a str) -> Answered<'a, bool>;

    /// Extends the leases of mutexes. Tells the names and tokens of those that were held.
    fn renew<'a>(&'a self, renewals: &'a Renewals) -> Answered<'a, Vec<(String, i64)>>;

    /// The rows of locks, also where there are none, and the server's clock.
    fn read<'a>(&'a self, names: &'a [String], with_records: bool) -> Answered<'a, Vec<Row>>;

    /// Replaces rows that are as they were read. Tells which were.
    fn write<'a>(&'a self, changes: &'a [(Key, Change)]) -> Answered<'a, BTreeSet<String>>;

    /// Notes in the rows that clients listen, for five minutes.
    fn note_listeners<'a>(&'a self, keys: &'a [Key]) -> Answered<'a, ()>;

    /// Hears from now on what is said of the locks of this table.
    fn listen(&self) -> Answered<'_, ()>;

    /// A part of the locks whose names begin so, after this name.
    fn list<'a>(&'a self, prefix: &'a str, after: &'a str) -> Answered<'a, Vec<Row>>;

    /// Deletes a part of the rows that are of no use any more, after this name. Tells the last name
    /// of the part, if there was one.
    fn sweep<'a>(&'a self, after: &'a str) -> Answered<'a, Option<String>>;

    /// Nothing.
    fn ping(&self) -> Answered<'_, ()>;
}

/// Leases that are extended by one statement, by column.
#[derive(Debug, Default)]
pub struct Renewals {
    /// The column `name` of each lock.
    pub names: Vec<String>,
    /// The owner of each hold.
    pub owners: Vec<String>,
    /// For how long from now on.
    pub ttls_ms: Vec<i64>,
}

/// What a statement tells of a lock.
#[derive(Clone, Debug)]
pub struct Row {
    /// The column `name`.
    pub name: String,
    /// The column `whole`, in a listing.
    pub whole: Option<String>,
    /// In which version it was written; `None` where there is no row.
    pub version: Option<String>,
    /// What is there, if there is a lock.
    pub kind: Option<String>,
    /// The lock as its machine's state, if there is one.
    pub value: Option<String>,
    /// When the last lease in it ends.
    pub ends_ms: Option<i64>,
    /// The last token; where there is no row, what the first one has to be above.
    pub fence: i64,
    /// What a write compares; `None` where there is no row.
    pub serial: Option<i64>,
    /// The server's clock.
    pub clock_us: i64,
    /// The record beside it, if it was asked for.
    pub record: Option<RecordColumns>,
}

/// A record as its columns have it.
#[derive(Clone, Debug)]
pub struct RecordColumns {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// When it was written.
    pub at_us: i64,
    /// Until when it is kept.
    pub ends_ms: Option<i64>,
}

/// What is written, if the row is still as it was read.
#[derive(Clone, Debug)]
pub struct Change {
    /// `None` where there is no row.
    pub serial: Option<i64>,
    /// A hold ends that may be checked in.
    pub ends_hold: bool,
    /// Later than this, by the server's clock, it is read again.
    pub until_ms: u64,
    /// Kind and value, if there is a lock.
    pub lock: Option<(&'static str, String)>,
    /// When the last lease in it ends.
    pub ends_ms: u64,
    /// The last token.
    pub fence: u64,
    /// The record, if it changes.
    pub record: Option<Option<Entry<Record>>>,
    /// What those who listen are told, a line each. Those that begin with `!` are sent also where
    /// the row does not say that a client listens.
    pub wake: String,
}
