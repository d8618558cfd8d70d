//! Locks on PostgreSQL: the SQL that goes with them.
//!
//! [`Guard::check_in`](crate::Guard::check_in) makes a transaction of `tokio-postgres` or `sqlx` commit only
//! while a lock is held. [`check_sql`] is its statement, for other drivers.
//! [`tables_sql`] makes the table, where the locks' own user may not.

pub use tenure_core::store::Transaction;
pub use tenure_postgres::PostgreSql;
use tenure_postgres::{check, table_in, tables};

/// The statement that checks a lock in: run it in the transaction that is to commit only while the
/// lock is held. `schema` is that of the store's URL, if it has one.
///
/// Its parameters are `$1` the lock's full name, `$2` the [owner](crate::Guard::owner) and `$3` the
/// [token](crate::Guard::fence). Where the lock is not held, it divides by zero (SQLSTATE `22012`),
/// and the transaction cannot commit. Its guarantees are those of
/// [`Guard::check_in`](crate::Guard::check_in).
///
/// In `$1` a backslash is written twice. Names of more than 1,000 bytes are kept otherwise: for
/// them only [`Guard::check_in`](crate::Guard::check_in) serves.
///
/// ```
/// let sql = tenure::postgres::check_sql(None);
/// assert!(sql.contains("FROM tenure_lock") && sql.contains("FOR KEY SHARE"));
/// ```
#[must_use]
pub fn check_sql(schema: Option<&str>) -> String {
    check(&table_in(schema))
}

/// What makes the table of the locks, where it is missing: statements to run as a user who may make
/// tables. Its owner grants `SELECT`, `INSERT`, `UPDATE` and `DELETE` on it to the locks' user.
///
/// ```
/// let sql = tenure::postgres::tables_sql(Some("locks"));
/// assert!(sql.starts_with("CREATE TABLE IF NOT EXISTS \"locks\".tenure_lock"));
/// ```
#[must_use]
pub fn tables_sql(schema: Option<&str>) -> String {
    tables(&table_in(schema))
}
