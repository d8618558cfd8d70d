//! What a server has to offer so that locks can be kept on it by compare-and-swap.

use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::name::LockName;
use crate::store::observe::Notes;
use crate::store::{Cursor, Failure};

/// A handle of a client whose life the server counts: a lease of etcd, a session of ZooKeeper. A
/// number is never used twice.
///
/// Beside it stands its *marker*, which the server removes with it. A marker has a version, which
/// each write to it changes.
pub type Handle = u64;

/// When a lock was written: what a compare-and-swap compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// When it was created: a number that is higher than all versions of what stood there before.
    pub base: u64,
    /// When it was last changed. It rises by at least one with each change.
    pub version: u64,
    /// Which creation it is, for a server that cannot compare the two above. The backend's own.
    pub creation: (u64, u64),
}

/// What the server keeps of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// What [`Change::text`] said.
    pub text: String,
    /// When it was written.
    pub stamp: Stamp,
}

/// One compare-and-swap.
#[derive(Clone, Debug)]
pub struct Change {
    /// Whose lock.
    pub name: LockName,
    /// Only if this is what stands there, or nothing.
    pub seen: Option<Stamp>,
    /// Only if this handle lives, and its marker has this version.
    pub guard: (Handle, u64),
    /// What stands there from then on; `None` removes it.
    pub text: Option<String>,
    /// Parts of the line that are written or removed in the same step.
    pub parts: Vec<PartChange>,
    /// Handles of others whose holds it ends: their markers are written in the same step. With the
    /// parts they are not much more than a hundred.
    pub victims: Vec<Handle>,
    /// The requests that it carries out, for the oracle of the simulation.
    pub notes: Notes,
}

/// What becomes of one part of a line: of places that wait, and are not in the lock's own value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartChange {
    /// Which part, counted from the creation of the lock. A number is not used twice.
    pub id: u64,
    /// It was not there before.
    pub is_new: bool,
    /// What it is from then on; `None` removes it.
    pub text: Option<String>,
}

/// What became of it.
#[derive(Clone, Debug)]
pub enum Committed {
    /// It is carried out, at this time; a removal has none.
    Done(Stamp),
    /// It is not and will not be, because something else stands there.
    Conflict {
        /// What does.
        stored: Option<Stored>,
        /// The version of the guard's marker, unless its handle is gone.
        marker: Option<u64>,
    },
}

/// What a watch tells.
#[derive(Clone, Debug)]
pub enum Seen {
    /// This stands there now.
    Lock(Option<Stored>),
    /// This handle is gone.
    Gone(Handle),
}

/// Changes of one lock, and ends of handles, since the watch began.
pub trait Watch: Send {
    /// The next one; a failure ends the watch.
    fn next(&mut self) -> BoxFuture<'_, Result<Seen, Failure>>;
}

/// A server that compares and swaps, and counts the life of its clients.
///
/// A future that is dropped, or fails with [`Failure::Unknown`], may yet be carried out. All reads
/// see what was committed before they began.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What is kept of one lock.
    fn read(&self, name: &LockName) -> BoxFuture<'static, Result<Option<Stored>, Failure>>;

    /// Some parts of a lock's line; `None` for those that are not there.
    fn parts(
        &self,
        name: &LockName,
        ids: Vec<u64>,
    ) -> BoxFuture<'static, Result<Vec<Option<String>>, Failure>>;

    /// Compares and swaps.
    fn commit(&self, change: Change) -> BoxFuture<'static, Result<Committed, Failure>>;

    /// A new handle that lives at least so long if it is not kept, and its marker's version. One
    /// that `is_kept` may live for as long as this client does; the other ends by itself.
    fn open(&self, life: Duration, is_kept: bool) -> BoxFuture<'static, Result<(Handle, u64), Failure>>;

    /// Lets a handle live for its whole life again, and then reads the version of its marker.
    /// `None`: it is gone.
    fn keep(&self, handle: Handle) -> BoxFuture<'static, Result<Option<u64>, Failure>>;

    /// Ends a handle.
    fn close(&self, handle: Handle) -> BoxFuture<'static, Result<(), Failure>>;

    /// Writes the markers of these handles, and tells their new versions.
    fn bump(&self, handles: Vec<Handle>) -> BoxFuture<'static, Result<Vec<Option<u64>>, Failure>>;

    /// Which of these handles live.
    fn living(&self, handles: Vec<Handle>) -> BoxFuture<'static, Result<Vec<bool>, Failure>>;

    /// Begins to watch. When it is there, it misses no later change.
    fn watch(&self, name: &LockName) -> BoxFuture<'static, Result<Box<dyn Watch>, Failure>>;

    /// A part of the locks whose names begin so.
    fn list(&self, prefix: &str, from: Cursor) -> BoxFuture<'static, Result<Listed, Failure>>;

    /// Makes sure that the server answers.
    fn ready(&self) -> BoxFuture<'static, Result<(), Failure>>;

    /// A request was not answered in time: the next ones had better ask another server.
    fn silent(&self);

    /// So many bytes fit into the text of one lock.
    fn limit(&self) -> usize;

    /// So many places are in one part of a line: few enough that a newcomer is written soon.
    fn part(&self) -> usize {
        128
    }
}

/// A part of a listing.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    /// Locks by their names.
    pub locks: Vec<(LockName, Stored)>,
    /// Where the next part begins, unless this is the last.
    pub next: Option<Cursor>,
}
