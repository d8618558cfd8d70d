//! Parses the URL: servers, credentials and options.
//!
//! `postgres://[user[:password]@]host[:port][,host[:port]…][/database][?…]`, or `postgresql://`. A host that
//! begins with `/`, percent-encoded, is the directory of a socket. The query may have `schema`,
//! `password-file`, `sslmode`, `ca`, `cert`, `key` and `pgbouncer`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use tenure_core::error::{Error, Result};
use tenure_core::name::Quoted;
use tenure_core::net::Tls;

const PORT: u16 = 5432;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerAddress {
    Tcp(String, u16),
    /// The directory of the socket, and the port in its name.
    Socket(PathBuf, u16),
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Socket(directory, port) => write!(f, "{}/.s.PGSQL.{port}", directory.display()),
        }
    }
}

/// The servers, one of which is the primary, and how to log in.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct PostgresTarget {
    pub(super) addresses: Vec<ServerAddress>,
    pub(super) user: String,
    pub(super) password: Option<String>,
    /// File with the password. Read at each dial, so that a changed password needs no restart.
    pub(super) password_file: Option<PathBuf>,
    pub(super) database: String,
    /// The table's schema, if not the first on the server's search path.
    pub(super) schema: Option<String>,
    pub(super) tls: Option<Tls>,
    /// Connections go through a pooler that assigns a server connection per transaction.
    pub(super) is_pooled: bool,
    shown: Arc<str>,
}

/// Whether this scheme belongs to PostgreSQL URLs.
pub(super) fn knows(scheme: &str) -> bool {
    matches!(scheme, "postgres" | "postgresql")
}

impl PostgresTarget {
    /// Parses a URL. Errors name the part that is wrong, but never quote what may contain a password.
    pub(super) fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("it has no `//` after its scheme"))?;
        if !knows(scheme) {
            return Err(wrong(&format!("its scheme {} is not known", Quoted(scheme))));
        }
        let (rest, query) = split(rest, '?');
        let mut query = UrlQuery::read(query.unwrap_or_default())?;
        let (authority, path) = split(rest, '/');
        let (login, places) = match authority.rsplit_once('@') {
            Some((login, places)) => (Some(login), places),
            None => (None, authority),
        };
        let (user, password) = login.map_or((None, None), |login| {
            let (user, password) = split(login, ':');
            (Some(user), password)
        });
        let user = user.map_or(Ok(String::new()), |user| decoded(user, "user"))?;
        let password = password.map(|password| decoded(password, "password")).transpose()?;
        let password_file = query.file("password-file")?;
        if password.is_some() && password_file.is_some() {
            return Err(wrong("it has a password and a `password-file`"));
        }
        let addresses = places.split(',').map(address).collect::<Result<Vec<_>>>()?;
        let database = decoded(path.unwrap_or_default(), "database")?;
        if database.contains('/') {
            return Err(wrong("its database has a `/`; in a name of a database, write %2F"));
        }
        let user = if user.is_empty() { "postgres".to_owned() } else { user };
        let database = if database.is_empty() { user.clone() } else { database };
        let schema = query.take("schema").filter(|schema| !schema.is_empty());
        let tls = query.tls()?;
        let is_pooled = match query.take("pgbouncer").as_deref() {
            None | Some("0") => false,
            Some("1") => true,
            Some(_) => return Err(wrong("its `pgbouncer` is neither 0 nor 1")),
        };
        if tls.is_some() && addresses.iter().any(|address| matches!(address, ServerAddress::Socket(..))) {
            return Err(wrong("it asks for TLS on a socket, which has none"));
        }
        let shown = shown(&addresses, &database, schema.as_deref(), tls.as_ref(), is_pooled);
        if tls.is_some() && !cfg!(feature = "tls") {
            let message = format!(
                "store {shown} cannot be used: this program was built without the feature `tls` of the crate `tenure`"
            );
            return Err(Error::unsupported(&shown, message));
        }
        Ok(Self { addresses, user, password, password_file, database, schema, tls, is_pooled, shown })
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
        f.debug_tuple("Target").field(&self.shown).finish()
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
    addresses: &[ServerAddress],
    database: &str,
    schema: Option<&str>,
    tls: Option<&Tls>,
    is_pooled: bool,
) -> Arc<str> {
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let places = addresses.iter().map(|address| match address {
        ServerAddress::Socket(directory, port) => format!("{}:{port}", encoded(&directory.to_string_lossy())),
        address => address.to_string(),
    });
    let places = places.collect::<Vec<_>>().join(",");
    let mut query = Vec::new();
    query.extend(schema.map(|schema| format!("schema={}", encoded(schema))));
    query.extend(tls.map(|_| "sslmode=verify-full".to_owned()));
    query.extend(is_pooled.then(|| "pgbouncer=1".to_owned()));
    let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
    format!("postgres://{places}/{}{query}", database.replace('/', "%2F")).into()
}

fn address(place: &str) -> Result<ServerAddress> {
    if place.len() > 2 && place[..3].eq_ignore_ascii_case("%2f") {
        let (directory, port) = split(place, ':');
        return Ok(ServerAddress::Socket(decoded(directory, "socket")?.into(), number(port)?));
    }
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) =
                rest.split_once(']').ok_or_else(|| wrong("its host has a `[` without a `]`"))?;
            match rest.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if rest.is_empty() => (host, None),
                None => return Err(wrong("after the `]` of its host comes neither a port nor the end")),
            }
        }
        None => split(place, ':'),
    };
    if host.is_empty() {
        return Err(wrong(
            "its host is missing; a socket is the path of its directory, as in %2Frun%2Fpostgresql",
        ));
    }
    // May be the rest of a password with an unescaped `@` or `/`, so it is not quoted in the error.
    if !host.chars().all(|char| char.is_alphanumeric() || matches!(char, '.' | '-' | '_' | ':' | '%')) {
        return Err(wrong(
            "its host has a character that no host has; in a user or password, write % and two digits",
        ));
    }
    Ok(ServerAddress::Tcp(host.to_owned(), number(port)?))
}

fn number(port: Option<&str>) -> Result<u16> {
    let Some(port) = port else { return Ok(PORT) };
    let number = port.parse().ok().filter(|port| *port != 0);
    number.ok_or_else(|| wrong("its port is not a number from 1 to 65535"))
}

/// The query of the URL.
struct UrlQuery(Vec<(&'static str, String)>);

impl UrlQuery {
    /// All valid keys. Unknown ones are not quoted in errors, because they may be the rest of a password.
    const KEYS: [&str; 7] = ["schema", "password-file", "sslmode", "ca", "cert", "key", "pgbouncer"];

    fn read(text: &str) -> Result<Self> {
        let mut pairs: Vec<(&'static str, String)> = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(key) = Self::KEYS.into_iter().find(|known| *known == key) else {
                let keys = Self::KEYS.join(", ");
                return Err(wrong(&format!(
                    "its query has something other than {keys}; in a password, ? is %3F"
                )));
            };
            if pairs.iter().any(|(known, _)| *known == key) {
                return Err(wrong(&format!("its query has `{key}` twice")));
            }
            pairs.push((key, decoded(value, key)?));
        }
        Ok(Self(pairs))
    }

    fn take(&mut self, key: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| *known == key)?;
        Some(self.0.swap_remove(at).1)
    }

    fn file(&mut self, key: &str) -> Result<Option<PathBuf>> {
        match self.take(key) {
            Some(path) if path.is_empty() => {
                Err(wrong(&format!("its query has `{key}` without the path of a file")))
            }
            path => Ok(path.map(Into::into)),
        }
    }

    fn tls(&mut self) -> Result<Option<Tls>> {
        let (ca, cert, key) = (self.file("ca")?, self.file("cert")?, self.file("key")?);
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) => return Err(wrong("its query has `cert` but no `key`")),
            (None, Some(_)) => return Err(wrong("its query has `key` but no `cert`")),
        };
        match self.take("sslmode").as_deref() {
            Some("verify-full") => Ok(Some(Tls { ca, identity })),
            None | Some("disable") if ca.is_none() && identity.is_none() => Ok(None),
            None | Some("disable") => {
                Err(wrong("its query names a certificate or key, which only sslmode=verify-full uses"))
            }
            Some("require" | "verify-ca" | "prefer" | "allow") => Err(wrong(
                "its `sslmode` does not check which server answers: there are `verify-full` and `disable`",
            )),
            Some(_) => Err(wrong("its `sslmode` is neither `verify-full` nor `disable`")),
        }
    }
}

fn split(text: &str, at: char) -> (&str, Option<&str>) {
    match text.split_once(at) {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    }
}

fn decoded(text: &str, what: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| wrong(&format!("its {what} is not UTF-8 once it is decoded")))?;
    if decoded.contains('\0') {
        return Err(wrong(&format!("its {what} has a zero byte")));
    }
    Ok(decoded.into_owned())
}

fn wrong(what: &str) -> Error {
    Error::invalid(format!("the URL of a PostgreSQL server is not understood: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_and_as_whom() {
        let target =
            PostgresTarget::parse("postgresql://me:p%40ss@a,[::1]:6000/app?schema=My%20locks&pgbouncer=1")
                .expect("a target");
        let at = [ServerAddress::Tcp("a".into(), 5432), ServerAddress::Tcp("::1".into(), 6000)];
        assert_eq!((&target.addresses[..], &*target.user, &*target.database), (&at[..], "me", "app"));
        assert_eq!((target.password.as_deref(), target.is_pooled), (Some("p@ss"), true));
        assert_eq!(target.table(), "\"My locks\".tenure_lock");
        let shown = target.shown();
        assert_eq!(&*shown, "postgres://a:5432,[::1]:6000/app?schema=My%20locks&pgbouncer=1");
        assert_eq!(PostgresTarget::parse(&shown).expect("a target").addresses, target.addresses);
        let socket = PostgresTarget::parse("postgres://me@%2Frun%2Fpg/app").expect("a target");
        assert_eq!(socket.addresses, [ServerAddress::Socket("/run/pg".into(), 5432)]);
        assert_eq!(PostgresTarget::parse("postgres://h").expect("a target").database, "postgres");
    }

    #[test]
    fn what_is_wrong_is_named_and_no_password_is_shown() {
        for (url, what) in [
            ("postgres:h", "//"),
            ("postgres://", "host is missing"),
            ("postgres://h:0/", "port"),
            ("postgres://h:x/", "port"),
            ("postgres://u:secret/x@h/db", "port"),
            ("postgres://u:sec?ret@h/db", "query has something other"),
            ("postgres://h/a/b", "`/`"),
            ("postgres://[::1/a", "`[`"),
            ("postgres://h/?sslmode=require", "which server answers"),
            ("postgres://h/?sslmode=on", "sslmode"),
            ("postgres://h/?ca=/x", "verify-full"),
            ("postgres://h/?sslmode=verify-full&cert=/x", "`key`"),
            ("postgres://%2Frun/?sslmode=verify-full", "socket"),
            ("postgres://h/?schema=a&schema=b", "twice"),
            ("postgres://h/?pgbouncer=yes", "pgbouncer"),
            ("postgres://u:p@h/?password-file=/x", "password-file"),
            ("postgres://h/?password-file=", "path of a file"),
            ("postgres://h/a%00", "zero byte"),
        ] {
            let error = PostgresTarget::parse(url).expect_err(url);
            let text = error.to_string();
            assert!(error.is_invalid() && text.contains(what), "{url}: {text}");
            assert!(!text.contains("secret") && !text.contains('\n'), "{text}");
        }
    }
}
