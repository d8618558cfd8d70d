//! Holds that a caller's database transaction depends on.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::Failure;
use crate::name::LockName;
use crate::owner::Owner;

/// An open transaction of a database driver, which [`Guard::check_in`] ties to a lock in the same database.
///
/// Implemented for a reference to a transaction of `tokio-postgres` and, with the feature `sqlx`, for a mutable
/// reference to one of `sqlx` or to its connection. Not meant to be implemented elsewhere: other drivers run the
/// SQL of [`postgres::check_sql`] or [`mysql::check_sql`]. `Database` is the database.
///
/// [`Guard::check_in`]: https://docs.rs/tenure/latest/tenure/struct.Guard.html#method.check_in
/// [`postgres::check_sql`]: https://docs.rs/tenure/latest/tenure/postgres/fn.check_sql.html
/// [`mysql::check_sql`]: https://docs.rs/tenure/latest/tenure/mysql/fn.check_sql.html
#[diagnostic::on_unimplemented(
    message = "`check_in` does not take `{Self}`",
    label = "expected `&transaction` of tokio-postgres, or `&mut *transaction` of sqlx with the feature `sqlx`",
    note = "other drivers run the SQL of `tenure::postgres::check_sql` or `tenure::mysql::check_sql`"
)]
pub trait Transaction<Database>: Send {
    /// Runs the check. `false` if the hold is over; the transaction must not commit then.
    #[doc(hidden)]
    fn run<'a>(self, hold: &'a CheckedHold) -> BoxFuture<'a, Result<bool, Failure>>
    where
        Self: 'a;
}

/// A hold to check in.
#[derive(Debug)]
pub struct CheckedHold {
    /// The store's URL without credentials.
    pub url: Arc<str>,
    /// The lock's full name.
    pub name: LockName,
    /// Its owner.
    pub owner: Owner,
    /// Its token.
    pub fence: u64,
}

/// Why a connection of sqlx is refused: each of its statements is a transaction of its own, and the check would
/// protect nothing.
pub const NO_TRANSACTION: &str = "the connection is not in a transaction: begin one with sqlx's `begin`";

impl CheckedHold {
    /// Whether the URL of the lock's store has a scheme that `takes` accepts.
    pub fn is_in(&self, takes: fn(&str) -> bool) -> bool {
        self.url.split_once(':').is_some_and(|(scheme, _)| takes(scheme))
    }
}
