//! Locks on PostgreSQL: the SQL that goes with them.
//!
//! [`Guard::check_in`](crate::Guard::check_in) makes a transaction of `tokio-postgres` or `sqlx` commit only
//! while a lock is held. [`check_sql`] is its statement, for other drivers. [`tables_sql`] creates the table if
//! the locks' own user may not.

pub use tenure_core::store::Transaction;
pub use tenure_postgres::PostgreSql;
use tenure_postgres::{check, table_in, tables};

/// The statement that checks a lock in: run it in the transaction that is to commit only while the lock is
/// held. `schema` is that of the store's URL, if it has one.
///
/// Its parameters are `$1` the lock's full name, `$2` the [owner](crate::Guard::owner) and `$3` the
/// [token](crate::Guard::fence). If the lock is not held, the statement divides by zero (SQLSTATE `22012`), so the
/// transaction cannot commit. The guarantees are those of [`Guard::check_in`](crate::Guard::check_in).
///
/// Write each backslash in `$1` twice. The statement does not find a lock whose name has more than 1,000 bytes; use
/// [`Guard::check_in`](crate::Guard::check_in) for those.
///
/// ```
/// let sql = tenure::postgres::check_sql(None);
/// assert!(sql.contains("FROM tenure_lock") && sql.contains("FOR KEY SHARE"));
/// ```
#[must_use]
pub fn check_sql(schema: Option<&str>) -> String {
    check(&table_in(schema))
}

/// The statements that create the table of the locks if it does not exist, to run as a user who may create
/// tables. That user then grants `SELECT`, `INSERT`, `UPDATE` and `DELETE` on it to the locks' user.
///
/// ```
/// let sql = tenure::postgres::tables_sql(Some("locks"));
/// assert!(sql.starts_with("CREATE TABLE IF NOT EXISTS \"locks\".tenure_lock"));
/// ```
#[must_use]
pub fn tables_sql(schema: Option<&str>) -> String {
    tables(&table_in(schema))
}
