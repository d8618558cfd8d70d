//! Locks on MySQL and MariaDB: the SQL that goes with them.
//!
//! [`Guard::check_in`](crate::Guard::check_in) makes a transaction of `sqlx` commit only while a lock is held.
//! [`check_sql`] is its statement, for other drivers. [`tables_sql`] creates the table if the locks' own user
//! may not.

use tenure_core::rows::LockKey;
pub use tenure_core::store::Transaction;
pub use tenure_mysql::MySql;
use tenure_mysql::{check, tables};

use crate::{LockName, Owner};

/// The statement that checks a lock in: run it in the transaction that is to commit only while the lock is
/// held, and commit only if it returns a row.
///
/// `database` is that of the store's URL, and `name` the lock's full name, with the prefix. The
/// [owner](crate::Guard::owner) and the [token](crate::Guard::fence) are those of the guard. The guarantees are
/// those of [`Guard::check_in`](crate::Guard::check_in).
///
/// ```
/// # tenure::block_on(async {
/// # let guard = tenure::Locks::memory().mutex("stock")?.lock().await?;
/// let name = tenure::LockName::new("stock")?;
/// let sql = tenure::mysql::check_sql("app", &name, guard.owner(), guard.fence());
/// assert!(sql.contains("FROM `app`.tenure_lock") && sql.ends_with("LOCK IN SHARE MODE"));
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[must_use]
pub fn check_sql(database: &str, name: &LockName, owner: &Owner, fence: u64) -> String {
    check(database, &LockKey::of(name), owner.as_str(), fence)
}

/// The statements that create the table of the locks if it does not exist, to run in the database of the store's
/// URL as a user who may create tables. The locks' user then needs `SELECT`, `INSERT`, `UPDATE` and `DELETE` on it.
///
/// ```
/// assert!(tenure::mysql::tables_sql().starts_with("CREATE TABLE IF NOT EXISTS tenure_lock"));
/// ```
#[must_use]
pub fn tables_sql() -> String {
    tables()
}
