//! Maps server errors to failures: retryable or refused. An error rolls back the whole statement, so it had
//! no effect, but for those of a commit and of a proxy that has lost the server.

use std::io;
use std::sync::Arc;

use tenure_core::net::failure_of;
use tenure_core::store::Failure;

use super::statements::{BATCH, tables};
use super::wire::{ReportedError, WireError};

// Codes of the errors that mean something to a store. Only MariaDB reports 1927, and only MySQL 3169, 3572 and
// 4031; the others are common to both.

const CONNECTIONS: [u16; 3] = [1040, 1203, 1226];
/// Another transaction has locked the row, or inserted it.
const CONTENDED: [u16; 5] = [CHANGED, 1062, TIMEOUT, DEADLOCK, 3572];
/// MariaDB's innodb_snapshot_isolation: the row has changed since the statement's snapshot.
const CHANGED: u16 = 1020;
const TIMEOUT: u16 = 1205;
/// The server has no memory for further row locks.
const LOCKS_FULL: u16 = 1206;
const DEADLOCK: u16 = 1213;
/// The server takes no writes.
const READ_ONLY: [u16; 3] = [1290, 1792, 1836];
/// A shutdown, a killed connection, a node without its cluster, a dropped table.
const ENDS: [u16; 6] = [1047, 1053, 1146, KILLED, 3169, 4031];
/// The connection was killed, or MaxScale has lost its server, which may have carried out the statement.
const KILLED: u16 = 1927;
/// A full disk or table, an error of the storage engine, no memory, too many transactions, an interrupted or too
/// slow statement, network errors, and a change that the other members of a group have refused.
const PASSES: [u16; 16] = [
    1021, 1030, 1041, NOT_OWNER, 1114, 1158, 1159, 1160, 1161, LOCKS_FULL, 1317, 1637, 1969, 3024, 3100, 3101,
];
/// An error during COMMIT: InnoDB has not committed, but if a Galera node has lost its cluster, other nodes may
/// have applied the change.
const AT_COMMIT: u16 = 1180;
/// Errors of clients, which a proxy reports as its own: it has lost the server, perhaps after the statement.
const OF_PROXY: std::ops::Range<u16> = 2000..3000;
/// The connection to terminate is another user's.
const NOT_OWNER: u16 = 1095;
pub(super) const COLUMN_EXISTS: u16 = 1060;
/// A connection to terminate does not exist any more.
pub(super) const UNKNOWN_THREAD: u16 = 1094;
const LOGIN: [u16; 2] = [1045, 1698];
const NO_DATABASE: u16 = 1049;
const NO_RIGHTS: [u16; 4] = [1044, 1142, 1143, 1227];
const TOO_LONG: u16 = 1153;
const BINLOG: u16 = 1665;

impl ReportedError {
    /// Whether the statement did nothing because another transaction has the row.
    pub(super) fn is_contended(&self) -> bool {
        CONTENDED.contains(&self.code)
    }

    /// Whether the server has rolled back the whole transaction. After a timeout, it does if `on_timeout`.
    pub(super) fn ends_transaction(&self, on_timeout: bool) -> bool {
        matches!(self.code, CHANGED | LOCKS_FULL | DEADLOCK) || self.code == TIMEOUT && on_timeout
    }

    fn is_read_only(&self) -> bool {
        READ_ONLY.contains(&self.code)
    }

    fn failure(&self, writes: bool) -> Failure {
        let hint = match self.code {
            code if LOGIN.contains(&code) => "; check the user and password in the store's URL",
            NO_DATABASE => "; create it, or correct the store's URL",
            code if NO_RIGHTS.contains(&code) => {
                "; the user needs SELECT, INSERT, UPDATE and DELETE on the table tenure_lock"
            }
            TOO_LONG => "; raise max_allowed_packet",
            NOT_OWNER => "; this process connected as that user before, and the server keeps the connection",
            BINLOG => "; set binlog_format = ROW or MIXED",
            _ if self.is_read_only() => "; it may be a replica now",
            _ => "",
        };
        let text = format!("{} ({}){hint}", self.message.replace('\n', " "), self.code);
        if CONNECTIONS.contains(&self.code) {
            return Failure::full(text);
        }
        let passes = [&CONTENDED[..], &READ_ONLY, &ENDS, &PASSES].concat().contains(&self.code);
        let is_lost = matches!(self.code, AT_COMMIT | KILLED) || OF_PROXY.contains(&self.code);
        match (passes, is_lost) {
            (_, true) if writes => Failure::Unknown(Failure::cause(text)),
            (false, false) => Failure::Refused(Failure::cause(text)),
            _ => Failure::NotSent(Failure::cause(text)),
        }
    }
}

impl WireError {
    /// The failure of a statement, which may have changed something if no reply came.
    pub(super) fn failure(self, writes: bool) -> Failure {
        match self {
            Self::Server(error) => error.failure(writes),
            Self::Refused(failure) | Self::Tls(failure) => failure,
            Self::TooLong(text) => Failure::Refused(Failure::cause(text)),
            Self::Io(error) if writes => Failure::Unknown(Arc::new(error)),
            Self::Io(error) => Failure::NotSent(Arc::new(error)),
        }
    }

    /// The failure of a login. No statement was sent on the connection yet.
    pub(super) fn login(self) -> Failure {
        match self {
            Self::Io(error) => failure_of(&error, "sslmode=disable").unwrap_or_else(|| {
                let is_silent = error.kind() == io::ErrorKind::UnexpectedEof;
                let text = "it closed the connection during the login";
                Failure::NotSent(if is_silent { Failure::cause(text) } else { Arc::new(error) })
            }),
            error => error.failure(false),
        }
    }

    /// The failure of creating the table.
    pub(super) fn tables(self) -> Failure {
        match self {
            Self::Server(error) if NO_RIGHTS.contains(&error.code) || error.is_read_only() => {
                Failure::Refused(Failure::cause(format!(
                    "table tenure_lock is missing or not visible, and this user may not create it ({}); its owner \
                     can create it with: {}",
                    error.message,
                    tables()
                )))
            }
            error => error.failure(false),
        }
    }

    /// The failure of adding a column to a table of an earlier version.
    pub(super) fn column(self) -> Failure {
        match self {
            Self::Server(error) if NO_RIGHTS.contains(&error.code) => {
                Failure::Refused(Failure::cause(format!(
                    "table tenure_lock lacks a column, and this user may not add it ({}); its owner can: {BATCH}",
                    error.message
                )))
            }
            error => error.failure(false),
        }
    }

    /// Whether the connection is useless after this error: the server closes it, or has changed underneath it.
    pub(super) fn ends_connection(&self) -> bool {
        match self {
            Self::Server(error) => {
                error.is_read_only() || ENDS.contains(&error.code) || OF_PROXY.contains(&error.code)
            }
            Self::Io(_) => true,
            Self::Refused(_) | Self::Tls(_) | Self::TooLong(_) => false,
        }
    }
}

/// The failure for an error that the server reported to another driver.
#[cfg(feature = "sqlx")]
pub(super) fn reported(code: u16, message: &str) -> Failure {
    ReportedError { code, message: message.to_owned() }.failure(true)
}
