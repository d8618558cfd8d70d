//! Parses the URL: servers, credentials and options.
//!
//! `mysql://user[:password]@host[:port][,host[:port]…]/database[?…]`, or `mariadb://`. A host that begins with
//! `/`, percent-encoded, is the path of a socket. The query may have `password-file`, `sslmode`, `ca`, `cert`
//! and `key`.

use std::sync::Arc;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use tenure_core::error::Result;
use tenure_core::net::url::{Login, Syntax, require_tls};
use tenure_core::net::{Address, Tls};

const SYNTAX: Syntax = Syntax {
    server: "MySQL",
    form: "mysql://USER@HOST/DATABASE, or mysql://USER@%2Frun%2Fmysqld%2Fmysqld.sock/DATABASE for this socket",
    tls: "sslmode=verify-full",
    needs_user: true,
    needs_password: false,
    parameters: &["password-file", "sslmode", "ca", "cert", "key"],
};
const PORT: u16 = 3306;

/// The servers, one of which takes writes, and how to log in.
#[derive(Clone)]
pub(super) struct MysqlTarget {
    pub(super) addresses: Vec<Address>,
    pub(super) login: Login,
    pub(super) user: String,
    pub(super) database: String,
    pub(super) tls: Option<Tls>,
    shown: Arc<str>,
}

impl MysqlTarget {
    /// Parses a URL. Errors name the part that is wrong, but never quote what may contain a password.
    pub(super) fn parse(url: &str) -> Result<Self> {
        let mut url = SYNTAX.parse(url)?;
        if !super::takes(url.scheme()) {
            return Err(url.unknown_scheme());
        }
        let login = url.login()?;
        let addresses = url.hosts(PORT)?.into_iter().map(address).collect::<Result<Vec<_>>>()?;
        let database = SYNTAX.decoded(url.path(), "database")?;
        let Some(user) = login.user.clone() else {
            return Err(SYNTAX.wrong(&format!("a user is missing, expected {}", SYNTAX.form)));
        };
        if database.is_empty() || database.contains('/') {
            return Err(SYNTAX.wrong(&format!("a database is missing, expected {}", SYNTAX.form)));
        }
        let tls = url.sslmode(&addresses)?;
        url.end()?;
        let shown = shown(&addresses, &database, tls.as_ref());
        if tls.is_some() {
            require_tls(&shown)?;
        }
        Ok(Self { addresses, login, user, database, tls, shown })
    }

    /// The URL without credentials.
    pub(super) fn shown(&self) -> Arc<str> {
        Arc::clone(&self.shown)
    }
}

/// The database of a store, by its [shown](MysqlTarget::shown) URL.
#[cfg(feature = "sqlx")]
pub(super) fn database_of(shown: &str) -> Option<String> {
    let (scheme, rest) = shown.split_once("://")?;
    let path = rest.split('?').next()?.split_once('/')?.1;
    if super::takes(scheme) { SYNTAX.decoded(path, "database").ok() } else { None }
}

fn shown(addresses: &[Address], database: &str, tls: Option<&Tls>) -> Arc<str> {
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let places = addresses.iter().map(|address| match address {
        Address::Unix(path) => encoded(&path.to_string_lossy()),
        Address::Tcp(..) => address.to_string(),
    });
    let places = places.collect::<Vec<_>>().join(",");
    let query = if tls.is_some() { "?sslmode=verify-full" } else { "" };
    let database = database.replace('%', "%25").replace('/', "%2F").replace('?', "%3F");
    format!("mysql://{places}/{database}{query}").into()
}

/// The socket at a path, if the host is one.
fn address(address: Address) -> Result<Address> {
    match &address {
        Address::Tcp(host, _) if host.get(..3).is_some_and(|begin| begin.eq_ignore_ascii_case("%2f")) => {
            Ok(Address::Unix(SYNTAX.decoded(host, "socket")?.into()))
        }
        _ => Ok(address),
    }
}
