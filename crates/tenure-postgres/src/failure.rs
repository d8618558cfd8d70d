//! Maps server errors to failures: retryable or refused. An error rolls back the whole statement, so it had
//! no effect, unless a pooler reports that it has lost the server.

use std::error::Error as _;
use std::sync::Arc;

use tokio_postgres::Error;
use tokio_postgres::error::DbError;

use super::statements::Which;
use super::url::PostgresTarget;
use tenure_core::net::ConnectError;
use tenure_core::store::Failure;

/// The failure of a statement.
pub(super) fn of(error: Error, which: Which) -> Failure {
    match error.as_db_error() {
        Some(said) if is_of_connection(said.code().code()) && which.writes() => {
            Failure::Unknown(Arc::new(error))
        }
        Some(said) => said_of(said),
        None if which.writes() => Failure::Unknown(Arc::new(error)),
        None => Failure::NotSent(Arc::new(error)),
    }
}

/// Whether the connection has failed: PgBouncer says so in the place of a server whose reply it did not get. Or the
/// server does not know whether it has committed.
fn is_of_connection(code: &str) -> bool {
    code.starts_with("08") || code == "40003"
}

/// Whether the connection is useless after this error: the server closes it, or has changed underneath it.
pub(super) fn ends_connection(error: &Error) -> bool {
    match error.as_db_error().map(|said| said.code().code()) {
        None => true,
        // A shutdown, a standby, a dropped or altered table, or a prepared statement of another client of a
        // pooler.
        Some(code) => {
            code.starts_with("57P")
                || is_of_connection(code)
                || matches!(code, "25006" | "25P04" | "42P01" | "42703" | "0A000" | "26000" | "42P05")
        }
    }
}

/// The failure of a login. No request was sent on the connection yet.
pub(super) fn of_login(error: Error, target: &PostgresTarget) -> Failure {
    if let Some(failure) = ConnectError::behind(&error) {
        return failure.clone();
    }
    if let Some(said) = error.as_db_error() {
        let hint = match said.code().code() {
            "08P01" | "0A000" if said.message().contains("options") && !target.is_pooled => {
                "; behind PgBouncer or another pooler, add ?pgbouncer=1 to the URL"
            }
            "28000" if said.message().contains("no encryption") => {
                "; for TLS, add ?sslmode=require to the URL, or verify-full to check the server, too"
            }
            _ => return said_of(said),
        };
        return Failure::Refused(Failure::cause(format!("{}{hint}", one_line(said.message()))));
    }
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    if text.contains("password missing") {
        let text = "it requires a password, and there is none in the URL, PGPASSWORD, or a .pgpass of this user alone";
        return Failure::Refused(Failure::cause(text));
    }
    if text.contains("does not support TLS") {
        return Failure::Refused(Failure::cause("it does not use TLS; without TLS, use sslmode=disable"));
    }
    if text.contains("channel binding") {
        let text =
            "it does not bind the login to the TLS connection; without that, omit channel_binding=require";
        return Failure::Refused(Failure::cause(text));
    }
    Failure::NotSent(Arc::new(error))
}

/// The failure of creating the table.
pub(super) fn of_tables(error: Error, table: &str, tables: &str) -> Failure {
    match error.as_db_error() {
        Some(said) if matches!(said.code().code(), "42501" | "25006") => {
            Failure::Refused(Failure::cause(format!(
                "table {table} is missing or not visible, and this user may not create it ({}); its owner \
                 can create it with: {tables}",
                said.message()
            )))
        }
        Some(said) => said_of(said),
        None => Failure::NotSent(Arc::new(error)),
    }
}

fn said_of(said: &DbError) -> Failure {
    reported(said.code().code(), said.message())
}

/// The failure for an error that the server reported.
pub(super) fn reported(code: &str, message: &str) -> Failure {
    let hint = match code {
        "42501" => "; the user needs SELECT, INSERT, UPDATE and DELETE on the table",
        "26000" | "42P05" => "; behind PgBouncer, add ?pgbouncer=1 to the URL",
        "25006" => "; it may be a standby now",
        _ => "",
    };
    let text = format!("{} ({code}){hint}", one_line(message));
    // The server, a database or a role is at its limit of connections, or PgBouncer is.
    if code == "53300" || message.contains("max_client_conn") {
        return Failure::full(text);
    }
    let cause = Failure::cause(text);
    // Transient: connection errors, a full disk, a conflicting transaction, a starting or stopping server, a
    // full queue of notifications (54000), a transaction that took too long (25P04), and a table or statement
    // that the next connection creates again.
    let passes = ["08", "40", "53", "55", "57", "58"].iter().any(|class| code.starts_with(class));
    match passes || matches!(code, "25006" | "25P04" | "42P01" | "42703" | "0A000" | "54000") {
        true => Failure::NotSent(cause),
        false => Failure::Refused(cause),
    }
}

fn one_line(message: &str) -> String {
    message.replace('\n', " ")
}
