//! The interface to a server that keeps locks by compare-and-swap.

use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::name::LockName;
use crate::store::observe::Notes;
use crate::store::{Cursor, Failure, StoreFuture};

/// A session of a client whose lifetime the server tracks: a lease of etcd, a session of ZooKeeper. Numbers
/// are never reused.
///
/// Each session has a *marker*, a key that the server removes together with the session. Each write to the
/// marker changes its version.
pub type Session = u64;

/// The version of a lock, which compare-and-swap compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// The creation of the key: a number higher than every version of its predecessors.
    pub base: u64,
    /// The last change. Increases by at least one with each change.
    pub version: u64,
    /// Identifies the creation, for a server that cannot compare the two numbers above. Defined by the
    /// backend.
    pub creation: (u64, u64),
}

/// The stored value of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The text that a [`Swap`] wrote.
    pub text: String,
    /// Its version.
    pub stamp: Stamp,
}

/// One compare-and-swap.
#[derive(Clone, Debug)]
pub struct Swap {
    /// The lock.
    pub name: LockName,
    /// The expected version; `None` expects no value.
    pub seen: Option<Stamp>,
    /// Also expects this session to be alive, and its marker to have this version.
    pub guard: (Session, u64),
    /// The change of the lock.
    pub lock: ValueChange,
    /// The change of the record beside it.
    pub record: ValueChange,
    /// Also reads the record.
    pub reads_record: bool,
    /// Parts of the queue to write or remove in the same step.
    pub parts: Vec<PartChange>,
    /// Sessions of other clients whose holds this change ends. Their markers are written in the same step. With
    /// the parts, they stay below etcd's limit of 128 operations per transaction.
    pub victims: Vec<Session>,
    /// Also expects these sessions to be alive: holds or places move from them to another session, and what was
    /// bound to a session that is gone has expired.
    pub moved_from: Vec<Session>,
    /// The requests that it carries out, for the oracle of the simulation.
    pub notes: Notes,
}

/// A change of one value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ValueChange {
    /// It is left as it is.
    #[default]
    Keep,
    /// It gets this text.
    Write(String),
    /// It is removed.
    Remove,
}

impl ValueChange {
    /// The change to this text, where `None` is no value.
    pub fn to(text: Option<String>) -> Self {
        text.map_or(Self::Remove, Self::Write)
    }
}

/// One of the two values of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// The lock.
    Lock,
    /// The record beside it, which outlives the lock.
    Record,
}

/// A change to one part of a queue: waiting places that are not in the lock's own value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartChange {
    /// The number of the part, relative to the creation of the lock. Never reused.
    pub id: u64,
    /// The part did not exist before.
    pub is_new: bool,
    /// The new value; `None` removes the part.
    pub text: Option<String>,
}

/// The outcome of a compare-and-swap.
#[derive(Clone, Debug)]
pub enum Committed {
    /// Carried out.
    Done {
        /// The version of the lock. A removal has none.
        stamp: Stamp,
        /// The record, if it was to be read and could be.
        record: Option<Option<String>>,
    },
    /// Not carried out, and never will be, because the expectation was not met.
    Conflict {
        /// The current value.
        stored: Option<Stored>,
        /// The version of the guard's marker; `None` if the session is gone.
        marker: Option<u64>,
    },
}

/// An event of a watch.
#[derive(Clone, Debug)]
pub enum WatchNotice {
    /// The new value of what is watched. Only that of a lock is meaningful.
    Lock(Option<Stored>),
    /// This session is gone.
    Gone(Session),
}

/// Changes of one value and, for a lock, ends of sessions, since the watch started.
pub trait LockWatch: Send {
    /// The next event. A failure ends the watch.
    fn next(&mut self) -> BoxFuture<'_, Result<WatchNotice, Failure>>;
}

/// A server with compare-and-swap that tracks the lifetime of its clients.
///
/// An operation whose future is dropped, or fails with [`Failure::Unknown`], may still be carried out. Reads
/// are linearizable: they see everything that was committed before they started.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Reads one lock.
    fn read(&self, name: &LockName) -> StoreFuture<Option<Stored>>;

    /// Reads the record beside a lock.
    fn record(&self, name: &LockName) -> StoreFuture<Option<String>>;

    /// Reads parts of a lock's queue; `None` for parts that do not exist.
    fn parts(&self, name: &LockName, ids: Vec<u64>) -> StoreFuture<Vec<Option<String>>>;

    /// Carries out one compare-and-swap.
    fn commit(&self, change: Swap) -> StoreFuture<Committed>;

    /// Opens a session that lives at least for `life` without a keep-alive. Returns it with the version of its
    /// marker. A session with `is_kept` may live as long as this client does; any other one expires by itself.
    fn open(&self, life: Duration, is_kept: bool) -> StoreFuture<(Session, u64)>;

    /// Renews a session for its full lifetime, and then returns the version of its marker, which was `seen` last.
    /// `None`: the session is gone.
    fn keep(&self, session: Session, seen: u64) -> StoreFuture<Option<u64>>;

    /// Renews a session for its full lifetime. False: the session is gone.
    fn touch(&self, session: Session) -> StoreFuture<bool>;

    /// Whether a session lives as long as its client is connected. A [`touch`](Self::touch) then only proves that
    /// it does.
    fn keeps_sessions(&self) -> bool {
        false
    }

    /// Closes a session.
    fn close(&self, session: Session) -> StoreFuture<()>;

    /// Writes the markers of these sessions and returns their new versions; `None` for sessions that are gone.
    fn bump(&self, sessions: Vec<Session>) -> StoreFuture<Vec<Option<u64>>>;

    /// Whether each of these sessions is alive.
    fn living(&self, sessions: Vec<Session>) -> StoreFuture<Vec<bool>>;

    /// Starts a watch. Once the future is ready, the watch misses no later change.
    fn watch(&self, name: &LockName, what: Watched) -> StoreFuture<Box<dyn LockWatch>>;

    /// Returns one page of the locks whose names begin with `prefix`.
    fn list(&self, prefix: &str, from: Cursor) -> StoreFuture<Listed>;

    /// Returns one page of the records beside the locks whose names begin with `prefix`.
    fn records(&self, prefix: &str, from: Cursor) -> StoreFuture<ListedRecords>;

    /// Checks that the server is reachable.
    fn ready(&self) -> StoreFuture<()>;

    /// Reports a request timeout: the backend should use another server next.
    fn silent(&self);

    /// Maximum size of a lock's text in bytes.
    fn limit(&self) -> usize;

    /// Maximum places in one part of a queue; small enough that adding a waiter is a small write.
    fn part(&self) -> usize {
        128
    }
}

/// One page of a listing.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    /// Locks with their names.
    pub locks: Vec<(LockName, Stored)>,
    /// The next page, or `None` for the last.
    pub next: Option<Cursor>,
}

/// One page of a listing of records.
#[derive(Clone, Debug, Default)]
pub struct ListedRecords {
    /// The texts of records, with the names of their locks.
    pub records: Vec<(LockName, String)>,
    /// The next page, or `None` for the last.
    pub next: Option<Cursor>,
}
