//! Locks on PostgreSQL: each lock is a row of one table. `tenure_core::rows` decides which statements to send
//! and runs the state machine on the rows; this crate sends them.
//!
//! `connection` dials servers, with `tls`, and `session` sends the statements, whose SQL is in `statements`.
//! `url` parses the URL, `failure` maps server errors, and `diagnosis` reads server settings. `check_in` runs
//! in transactions of the caller.

mod bare;
mod check_in;
mod connection;
mod diagnosis;
mod failure;
mod gaps;
mod parameters;
mod session;
mod statements;
mod tls;
mod url;

use std::sync::Arc;

pub use bare::bare_postgres;
pub use check_in::PostgreSql;
pub use diagnosis::{Diagnosis, diagnose_postgres};
pub use statements::sweep_sql;
pub use statements::{check, tables};
use tenure_core::error::{Error, Result};
use tenure_core::net::Tls;
use tenure_core::net::url::TWO_LOGINS;
use tenure_core::rows::{RowStore, Server};
use tenure_core::runtime::Runtime;
use tenure_core::store::{Opening, Store};
pub use url::table_in;

use connection::PrimaryConnector;
use url::{PostgresTarget, SYNTAX};

/// Whether this URL scheme belongs to this store.
#[must_use]
pub fn takes(scheme: &str) -> bool {
    matches!(SYNTAX.foreign.without_driver(scheme), "postgres" | "postgresql")
}

/// Opens the store of a URL, without I/O.
///
/// # Errors
/// `is_invalid`, with the part of the URL that is wrong, or if it has a password besides `login`.
pub fn open(opening: Opening<'_>) -> Result<Arc<dyn Store>> {
    let mut target = PostgresTarget::parse(opening.url)?;
    if opening.login.is_some_and(|provider| !target.ask_for_login(provider)) {
        return Err(Error::invalid(TWO_LOGINS));
    }
    let server = PrimaryConnector::new(Arc::clone(&opening.runtime), target);
    Ok(Arc::new(RowStore::on(Arc::new(server), opening.runtime)))
}

/// The URL without its login, if it is valid.
pub fn shown(url: &str) -> Option<String> {
    PostgresTarget::parse(url).ok().map(|target| target.shown().to_string())
}

/// What somebody in the network could do to the store of a URL.
pub fn exposure(url: &str) -> Option<&'static str> {
    PostgresTarget::parse(url).ok().and_then(|target| Tls::exposure(target.tls.as_ref(), &target.addresses))
}

/// The server or servers that a URL names.
///
/// # Errors
/// As [`open`].
pub fn server(url: &str, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Server>> {
    Ok(Arc::new(PrimaryConnector::new(runtime, PostgresTarget::parse(url)?)))
}
