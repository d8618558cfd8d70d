//! What a database needs to refuse the writes of a lock's former holders.
//!
//! A holder that was paused can still send a write after its lease has ended. The database stores
//! the newest [token](crate::Guard::fence) that has passed, and refuses a write with an older one.
//! Each constant is a text to install once, as a migration; `tenure fence` prints the same texts.
//! Then each transaction that writes passes first:
//!
//! | constant | how a transaction passes | a refusal |
//! |---|---|---|
//! | [`POSTGRES`] | `SELECT tenure_pass('draw', 42)` | SQLSTATE `TN001` |
//! | [`MYSQL`] | `CALL tenure_pass('draw', 42)` | SQLSTATE `45000`, `tenure: old token` |
//! | [`SQLITE`] | `INSERT INTO tenure_pass VALUES ('draw', 42)` | `tenure: old token` |
//! | [`REDIS`] | `EVALSHA … 1 HASH 42 FIELD VALUE …`, which also writes | an error `OLDTOKEN …` |
//!
//! The token that passed last and all newer ones pass. Token 0, which only
//! [`Options::unfenced`](crate::Options::unfenced) gives, is refused. Roll back after a refusal.
//! Compare the tokens of one holder at a time: of a mutex or a writer, not of readers or permits.
//! `book/use/fencing.md` in the repository has isolation levels, limits, and a recipe for S3.
//!
//! # Examples
//!
//! ```
//! # tenure::block_on(async {
//! use tenure::{Locks, fence};
//!
//! # struct Database;
//! # impl Database {
//! #     fn execute(&self, sql: &str, _: &[&dyn std::fmt::Debug]) { assert!(!sql.is_empty()); }
//! # }
//! # let (database, transaction) = (Database, Database);
//! database.execute(fence::POSTGRES, &[]); // once, as a migration
//!
//! let locks = Locks::connect("memory:").await?;
//! let guard = locks.mutex("draw")?.lock().await?;
//! let token = i64::try_from(guard.fence()).expect("microseconds since 1970 fit");
//! transaction.execute("SELECT tenure_pass($1, $2)", &[&"draw", &token]);
//! transaction.execute("UPDATE draws SET winner = $1", &[&"alice"]);
//! guard.release().await?;
//! # Ok::<(), tenure::Error>(()) }).unwrap();
//! ```

/// The table `tenure_fence` and the function `tenure_pass(name, token)` for PostgreSQL from 9.5 on.
///
/// A name has at most some 2,700 bytes, the limit of an index, and no NUL.
///
/// # Examples
///
/// ```
/// assert!(tenure::fence::POSTGRES.contains("CREATE FUNCTION tenure_pass"));
/// ```
pub const POSTGRES: &str = include_str!("postgres.sql");

/// The table `tenure_fence` and the procedure `tenure_pass(name, token)` for MariaDB and MySQL.
///
/// The text has the lines `DELIMITER` that the client `mysql` needs. A driver sends the table and
/// the procedure as two statements, without those lines. A name has at most 1,024 bytes.
///
/// # Examples
///
/// ```
/// assert!(tenure::fence::MYSQL.contains("CREATE PROCEDURE tenure_pass"));
/// ```
pub const MYSQL: &str = include_str!("mysql.sql");

/// The table `tenure_fence` and the view `tenure_pass` for SQLite 3.24 or later.
///
/// An insert into the view passes, or fails.
///
/// # Examples
///
/// ```
/// assert!(tenure::fence::SQLITE.contains("CREATE VIEW tenure_pass"));
/// ```
pub const SQLITE: &str = include_str!("sqlite.sql");

/// A script for Redis and Valkey, which writes fields of a hash unless a newer token has.
///
/// Its key is the hash, and its arguments are the token and then fields and values, 3,000 pairs at
/// most. The hash keeps the token in its field `#token`.
///
/// # Examples
///
/// ```
/// assert!(tenure::fence::REDIS.contains("#token"));
/// ```
pub const REDIS: &str = include_str!("redis.lua");
