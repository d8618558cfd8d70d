//! Parses the URL: servers, credentials and options.
//!
//! `postgres://[user[:password]@]host[:port][,host[:port]…][/database][?…]`, or `postgresql://`. A host that
//! begins with `/`, percent-encoded, is the directory of a socket. The query may have `schema`, or
//! `namespace` with the same meaning, `password-file`, `sslmode`, `ca`, `cert`, `key` and `pgbouncer`.

use std::ffi::OsStr;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use tenure_core::error::Result;
use tenure_core::net::url::{Login, Syntax, require_tls};
use tenure_core::net::{Address, Tls};

const SYNTAX: Syntax = Syntax {
    server: "PostgreSQL",
    form: "postgres://HOST, or postgres://%2Frun%2Fpostgresql for the socket in this directory",
    tls: "sslmode=verify-full",
    needs_user: false,
    needs_password: false,
    parameters: &["schema", "namespace", "password-file", "sslmode", "ca", "cert", "key", "pgbouncer"],
};
const PORT: u16 = 5432;

/// The servers, one of which is the primary, and how to log in.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct PostgresTarget {
    pub(super) addresses: Vec<Address>,
    pub(super) login: Login,
    pub(super) user: String,
    pub(super) database: String,
    /// The table's schema, if not the first on the server's search path.
    pub(super) schema: Option<String>,
    pub(super) tls: Option<Tls>,
    /// Connections go through a pooler that assigns a server connection per transaction.
    pub(super) is_pooled: bool,
    shown: Arc<str>,
}

impl PostgresTarget {
    /// Parses a URL. Errors name the part that is wrong, but never quote what may contain a password.
    pub(super) fn parse(url: &str) -> Result<Self> {
        let mut url = SYNTAX.parse(url)?;
        if !super::takes(url.scheme()) {
            return Err(url.unknown_scheme());
        }
        let login = url.login()?;
        let addresses = url.hosts(PORT)?.into_iter().map(address).collect::<Result<Vec<_>>>()?;
        let database = SYNTAX.decoded(url.path(), "database")?;
        if database.contains('/') {
            return Err(SYNTAX.wrong("the database must not contain a `/`"));
        }
        let user = login.user.clone().unwrap_or_else(|| "postgres".to_owned());
        let database = if database.is_empty() { user.clone() } else { database };
        let schema = url.take("schema").filter(|schema| !schema.is_empty());
        let namespace = Some(url.namespace()?.as_str().to_owned()).filter(|text| !text.is_empty());
        if schema.is_some() && namespace.is_some() {
            return Err(SYNTAX.wrong("both `schema` and `namespace`, which is the schema"));
        }
        let schema = schema.or(namespace);
        let tls = url.sslmode(&addresses)?;
        let is_pooled = url.take_as("pgbouncer", "0 or 1", |value| match value {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        });
        let is_pooled = is_pooled?.unwrap_or(false);
        url.end()?;
        let shown = shown(&addresses, &database, schema.as_deref(), tls.as_ref(), is_pooled);
        if tls.is_some() {
            require_tls(&shown)?;
        }
        Ok(Self { addresses, login, user, database, schema, tls, is_pooled, shown })
    }

    /// The URL without credentials.
    pub(super) fn shown(&self) -> Arc<str> {
        Arc::clone(&self.shown)
    }

    /// The table's name in SQL.
    pub(super) fn table(&self) -> String {
        table_in(self.schema.as_deref())
    }
}

impl fmt::Debug for PostgresTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresTarget").field(&self.shown).finish()
    }
}

/// The table's name in SQL, qualified if a schema is given.
pub fn table_in(schema: Option<&str>) -> String {
    schema.map_or_else(|| "tenure_lock".to_owned(), |schema| format!("{}.tenure_lock", quoted(schema)))
}

/// A quoted SQL identifier.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn shown(
    addresses: &[Address],
    database: &str,
    schema: Option<&str>,
    tls: Option<&Tls>,
    is_pooled: bool,
) -> Arc<str> {
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let places = addresses.iter().map(|address| match address {
        Address::Unix(path) => {
            let text = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
            format!("{}:{}", encoded(&text(path.parent().map(Path::as_os_str))), text(path.extension()))
        }
        Address::Tcp(..) => address.to_string(),
    });
    let places = places.collect::<Vec<_>>().join(",");
    let mut query = Vec::new();
    query.extend(schema.map(|schema| format!("schema={}", encoded(schema))));
    query.extend(tls.map(|_| "sslmode=verify-full".to_owned()));
    query.extend(is_pooled.then(|| "pgbouncer=1".to_owned()));
    let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
    format!("postgres://{places}/{}{query}", database.replace('/', "%2F")).into()
}

/// The socket in a directory, if the host is one.
fn address(address: Address) -> Result<Address> {
    match &address {
        Address::Tcp(host, port) if host.get(..3).is_some_and(|begin| begin.eq_ignore_ascii_case("%2f")) => {
            let directory = SYNTAX.decoded(host, "socket")?;
            Ok(Address::Unix(Path::new(&directory).join(format!(".s.PGSQL.{port}"))))
        }
        _ => Ok(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_and_as_whom() {
        let target =
            PostgresTarget::parse("postgresql://me:p%40ss@a,[::1]:6000/app?schema=My%20locks&pgbouncer=1")
                .expect("a target");
        let at = [Address::Tcp("a".into(), 5432), Address::Tcp("::1".into(), 6000)];
        assert_eq!((&target.addresses[..], &*target.user, &*target.database), (&at[..], "me", "app"));
        let password = target.login.password().expect("a password");
        assert_eq!((password.as_deref(), target.is_pooled), (Some("p@ss"), true));
        assert_eq!(target.table(), "\"My locks\".tenure_lock");
        let shown = target.shown();
        assert_eq!(&*shown, "postgres://a:5432,[::1]:6000/app?schema=My%20locks&pgbouncer=1");
        assert_eq!(PostgresTarget::parse(&shown).expect("a target").addresses, target.addresses);
        let socket = PostgresTarget::parse("postgres://me@%2Frun%2Fpg/app").expect("a target");
        assert_eq!(socket.addresses, [Address::Unix("/run/pg/.s.PGSQL.5432".into())]);
        assert_eq!(&*socket.shown(), "postgres://%2Frun%2Fpg:5432/app");
        assert_eq!(PostgresTarget::parse("postgres://h").expect("a target").database, "postgres");
        let target = PostgresTarget::parse("postgres://h?namespace=app").expect("a target");
        assert_eq!(target, PostgresTarget::parse("postgres://h?schema=app").expect("a target"));
    }

    #[test]
    fn what_is_wrong_is_named_and_no_password_is_shown() {
        for (url, what) in [
            ("postgres:h", "//"),
            ("postgres://", "host is missing"),
            ("postgres://u:secret/x@h/db", "port"),
            ("postgres://u:sec?ret@h/db", "unknown parameter"),
            ("postgres://h/a/b", "`/`"),
            ("postgres://h/?sslmode=require", "which server answers"),
            ("postgres://h/?sslmode=on", "sslmode"),
            ("postgres://h/?ca=/x", "verify-full"),
            ("postgres://%2Frun/?sslmode=verify-full", "socket"),
            ("postgres://h/?pgbouncer=yes", "pgbouncer"),
            ("postgres://h/?schema=a&namespace=b", "both `schema` and `namespace`"),
            ("postgres://h/?namespace=", "`namespace` must be 1 to 63"),
        ] {
            let error = PostgresTarget::parse(url).expect_err(url);
            let text = error.to_string();
            assert!(error.is_invalid() && text.contains(what), "{url}: {text}");
            assert!(!text.contains("secret") && !text.contains('\n'), "{text}");
        }
    }
}
