//! Where a server is and how to log in, read from a URL.
//!
//! `redis://[[user]:password@]host[:port][/database]`, the same as `valkey://`, and
//! `redis+unix:///path/to/socket[?db=…&user=…&password=…]`. User, password and path may be percent-encoded.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::name::Quoted;

/// Where a connection goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host, by name or address, and a port.
    Tcp(String, u16),
    /// A socket of this machine.
    Unix(PathBuf),
}

/// A server, a database on it, and how to log in.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    /// Where.
    pub address: Address,
    /// Which of the server's databases.
    pub db: u32,
    /// Who logs in; the server's default user if none.
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    /// The URL without credentials.
    pub(super) shown: Arc<str>,
}

const PORT: u16 = 6379;

impl Target {
    /// Reads a URL. What it complains of, it names; it never shows what may hold a password.
    ///
    /// # Errors
    /// `is_invalid`, with the part that is wrong.
    pub fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| wrong("it has no scheme: redis://HOST, redis+unix:///PATH"))?;
        match scheme {
            "redis" | "valkey" => tcp(rest),
            "redis+unix" | "valkey+unix" => unix(rest),
            _ => Err(wrong(&format!("its scheme {} is not known", Quoted(scheme)))),
        }
    }
}

fn tcp(rest: &str) -> Result<Target> {
    let (rest, query) = split(rest, '?');
    if query.is_some_and(|query| !query.is_empty()) {
        return Err(wrong("it has a query, and redis:// takes none"));
    }
    let (authority, path) = split(rest, '/');
    let (login, place) = match authority.rsplit_once('@') {
        Some((login, place)) => (Some(login), place),
        None => (None, authority),
    };
    let (user, password) = match login.map(|login| split(login, ':')) {
        None => (None, None),
        Some((_, None)) => return Err(wrong("it has a user but no password: USER:PASSWORD@, or :PASSWORD@")),
        Some((user, Some(password))) => (some(decoded(user, "user")?), some(decoded(password, "password")?)),
    };
    if user.is_some() && password.is_none() {
        return Err(wrong("it has a user, and its password is empty"));
    }
    let (host, port) = host_and_port(place)?;
    let db = path.filter(|path| !path.is_empty()).map_or(Ok(0), database)?;
    let shown = format!(
        "redis://{}:{port}/{db}",
        if host.contains(':') { format!("[{host}]") } else { host.clone() }
    );
    Ok(Target { address: Address::Tcp(host, port), db, user, password, shown: shown.into() })
}

fn host_and_port(place: &str) -> Result<(String, u16)> {
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) =
                rest.split_once(']').ok_or_else(|| wrong("its host has a `[` without a `]`"))?;
            let port = match rest.strip_prefix(':') {
                Some(port) => Some(port),
                None if rest.is_empty() => None,
                None => return Err(wrong("after the `]` of its host comes neither a port nor the end")),
            };
            (host, port)
        }
        None => split(place, ':'),
    };
    if host.is_empty() {
        return Err(wrong("its host is missing"));
    }
    // An `@` or `/` in a password that is not percent-encoded lands here, so what stands here is not shown.
    if !host.chars().all(|char| char.is_alphanumeric() || matches!(char, '.' | '-' | '_' | ':' | '%')) {
        return Err(wrong(
            "its host has a character that no host has; in a user or password, write % and two digits",
        ));
    }
    let port = match port {
        None => PORT,
        Some(port) => port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| wrong("its port is not a number from 1 to 65535"))?,
    };
    Ok((host.to_owned(), port))
}

fn unix(rest: &str) -> Result<Target> {
    let (path, query) = split(rest, '?');
    if !path.starts_with('/') {
        return Err(wrong("its path is not absolute: redis+unix:///PATH, with three slashes"));
    }
    let path = decoded(path, "path")?;
    let (mut db, mut user, mut password) = (0, None, None);
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        match key {
            "db" => db = database(value)?,
            "user" => user = some(decoded(value, "user")?),
            "password" | "pass" => password = some(decoded(value, "password")?),
            _ => return Err(wrong("its query has something other than db, user and password")),
        }
    }
    if user.is_some() && password.is_none() {
        return Err(wrong("it has a user but no password"));
    }
    let shown = format!("redis+unix://{path}?db={db}");
    Ok(Target { address: Address::Unix(path.into()), db, user, password, shown: shown.into() })
}

fn database(text: &str) -> Result<u32> {
    text.parse().map_err(|_| wrong("its database is not a number"))
}

/// Splits at the first separator; the second half is none where there is no separator.
fn split(text: &str, at: char) -> (&str, Option<&str>) {
    match text.split_once(at) {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    }
}

fn some(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

fn decoded(text: &str, part: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
                match (digit(), digit()) {
                    (Some(high), Some(low)) => (high * 16 + low) as u8,
                    _ => return Err(wrong(&format!("its {part} has a % without two hexadecimal digits"))),
                }
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| wrong(&format!("its {part} is not UTF-8")))
}

fn wrong(what: &str) -> Error {
    Error::invalid(format!("the store's URL cannot be used: {what}"))
}

/// Without the password.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({})", self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Target {
        Target::parse(url).expect("a URL")
    }

    #[test]
    fn a_url_says_where_which_database_and_who() {
        let target = parsed("redis://ann:p%40ss%2F@example.org:7000/3");
        assert_eq!(target.address, Address::Tcp("example.org".into(), 7000));
        assert_eq!(
            (target.db, target.user.as_deref(), target.password.as_deref()),
            (3, Some("ann"), Some("p@ss/"))
        );
        assert_eq!(&*target.shown, "redis://example.org:7000/3");
        let target = parsed("valkey://:secret@[::1]");
        assert_eq!(target.address, Address::Tcp("::1".into(), PORT));
        assert_eq!((target.user, target.password.as_deref()), (None, Some("secret")));
        assert_eq!(&*target.shown, "redis://[::1]:6379/0");
        let target = parsed("redis+unix:///run/my%20redis.sock?db=2&user=ann&password=a%26b");
        assert_eq!(target.address, Address::Unix("/run/my redis.sock".into()));
        assert_eq!(
            (target.db, target.user.as_deref(), target.password.as_deref()),
            (2, Some("ann"), Some("a&b"))
        );
        assert_eq!(parsed("redis://h").shown, parsed("valkey://h:6379/0").shown);
    }

    #[test]
    fn a_wrong_url_says_which_part_is_wrong() {
        for (url, part) in [
            ("localhost", "scheme"),
            ("http://localhost", "scheme"),
            ("redis://", "host"),
            ("redis://:6379", "host"),
            ("redis://a b", "host"),
            ("redis://[::1", "host"),
            ("redis://[::1]x", "host"),
            ("redis://h:port", "port"),
            ("redis://h:0", "port"),
            ("redis://h:65536", "port"),
            ("redis://h/first", "database"),
            ("redis://h/-1", "database"),
            ("redis://h/1/2", "database"),
            ("redis://h?db=1", "query"),
            ("redis://ann@h", "password"),
            ("redis://ann:@h", "password"),
            ("redis://:%4@h", "password"),
            ("redis://%ff:x@h", "user"),
            ("redis+unix://run/redis.sock", "path"),
            ("redis+unix:///s?database=1", "query"),
            ("redis+unix:///s?user=ann", "password"),
        ] {
            let error = Target::parse(url).expect_err(url);
            assert!(error.is_invalid() && error.to_string().contains(part), "{url}: {error}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let target = parsed("redis://ann:hush@h/1");
        assert!(!format!("{target:?} {}", target.shown).contains("hush"));
        for url in
            ["redis://:hu/sh@h", "redis://:hu?sh@h", "redis://:hu#sh@h:x", "redis://ann:hu@sh@h:x/", "hush"]
        {
            let error = Target::parse(url).expect_err(url).to_string();
            assert!(!error.contains("hu") && !error.contains("sh@"), "{url}: {error}");
        }
    }
}
