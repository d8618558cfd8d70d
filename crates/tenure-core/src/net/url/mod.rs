//! The URLs of stores on servers: `SCHEME://[USER[:PASSWORD]@]HOST[:PORT],…[/PATH][?KEY=VALUE&…]`.
//!
//! A store declares its [`Syntax`] and takes the parts that it accepts; [`StoreUrl::end`] rejects the rest.
//! User, password, path and values may be percent-encoded. An unescaped `@`, `/` or `?` in a password moves
//! the rest of it into another part, so errors name the invalid part without quoting it. `encryption` reads how
//! the connection is encrypted, and `names` what drivers call the parameters.

mod encryption;
mod foreign;

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use percent_encoding::percent_decode_str;

pub use encryption::truth;
pub use foreign::ForeignNames;

use super::Address;
use crate::error::{Error, Result};
use crate::name::{Namespace, Quoted};
use crate::store::Failure;

/// What the URLs of a store look like.
#[derive(Debug)]
pub struct Syntax {
    /// The server software.
    pub server: &'static str,
    /// The shortest URL.
    pub form: &'static str,
    /// What a URL with TLS contains.
    pub tls: &'static str,
    /// Whether a password needs a user.
    pub needs_user: bool,
    /// Whether a user needs a password.
    pub needs_password: bool,
    /// The parameters of all URLs of this store.
    pub parameters: &'static [&'static str],
    /// What other programs call these parameters, and what else they take.
    pub foreign: ForeignNames,
}

/// The parts of a URL, before decoding.
struct Parts<'a> {
    scheme: &'a str,
    login: Option<&'a str>,
    hosts: &'a str,
    path: Option<&'a str>,
    query: &'a str,
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Option<Self> {
        let (scheme, rest) = url.strip_prefix("jdbc:").unwrap_or(url).split_once("://")?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = split(rest, '/');
        let (login, hosts) =
            authority.rsplit_once('@').map_or((None, authority), |(login, hosts)| (Some(login), hosts));
        Some(Self { scheme, login, hosts, path, query })
    }
}

/// The URL without its login, if it contains a password.
#[must_use]
pub fn without_password(url: &str) -> Option<String> {
    let Parts { scheme, login, hosts, path, query } = Parts::of(url)?;
    let has = |pair: &str, ends: &[&str]| {
        pair.split_once('=').is_some_and(|(key, _)| ends.iter().any(|end| key.ends_with(end)))
    };
    let is_password = |pair: &str| has(pair, &["pass", "password"]);
    if !login.is_some_and(|login| login.contains(':')) && !query.split('&').any(is_password) {
        return None;
    }
    let kept = query.split('&').filter(|pair| !is_password(pair) && !has(pair, &["user"]));
    let query = kept.filter(|pair| !pair.is_empty()).collect::<Vec<_>>().join("&");
    let path = path.map_or(String::new(), |path| format!("/{path}"));
    Some(format!("{scheme}://{hosts}{path}{}{query}", if query.is_empty() { "" } else { "?" }))
}

/// A URL whose parts a store takes one by one.
pub struct StoreUrl<'a> {
    syntax: &'static Syntax,
    parts: Parts<'a>,
    query: Vec<Parameter>,
}

struct Parameter {
    key: &'static str,
    /// Its name in the URL, for messages.
    written: &'static str,
    value: String,
}

/// User and password.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// The user, if named.
    pub user: Option<String>,
    /// The password, if any.
    pub password: Option<Password>,
}

/// A password, or where to find it.
#[derive(Clone, PartialEq, Eq)]
pub enum Password {
    /// The password.
    Text(String),
    /// A file that is read for each connection, so that a changed password needs no restart.
    File(PathBuf),
}

/// The error for a URL with a password where a provider tells it.
pub const TWO_LOGINS: &str = "the URL must not have a password where a provider tells it at each dial";

impl Login {
    /// The password, without the final line break of its file.
    ///
    /// # Errors
    /// `NotSent` if the password file cannot be read or is empty.
    pub fn password(&self) -> Result<Option<String>, Failure> {
        let file = match &self.password {
            Some(Password::File(file)) => file,
            Some(Password::Text(text)) => return Ok(Some(text.clone())),
            None => return Ok(None),
        };
        let text = fs::read_to_string(file).map_err(|error| {
            let message = format!("cannot read the password file {}: {error}", file.display());
            Failure::NotSent(Failure::cause(message))
        })?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        match line.strip_suffix('\r').unwrap_or(line) {
            "" => {
                let message = format!("cannot use the password file {}: it is empty", file.display());
                Err(Failure::NotSent(Failure::cause(message)))
            }
            password => Ok(Some(password.to_owned())),
        }
    }
}

impl Syntax {
    /// Splits a URL.
    ///
    /// # Errors
    /// `is_invalid` if the URL has no `//`, or an unknown or repeated parameter.
    pub fn parse<'a>(&'static self, url: &'a str) -> Result<StoreUrl<'a>> {
        let parts = Parts::of(url).ok_or_else(|| {
            // The same with TLS, if the URL has that scheme.
            let tls = self.tls.strip_suffix("//").filter(|tls| url.starts_with(tls));
            let host = self.form.split_once("//").map_or(self.form, |(_, host)| host);
            let form = tls.map_or_else(|| self.form.to_owned(), |tls| format!("{tls}//{host}"));
            self.wrong(&format!("no `//` after the scheme, expected {form}"))
        })?;
        let mut query: Vec<Parameter> = Vec::new();
        for pair in parts.query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some((key, written)) = self.resolve(name) else {
                if self.is_ignored(name) {
                    continue;
                }
                return Err(self.unknown(&parts, name));
            };
            if let Some(other) = query.iter().find(|known| known.key == key) {
                return Err(self.wrong(&match other.written == written {
                    true => format!("parameter `{written}` is given twice"),
                    false => format!("both `{}` and `{written}`, which are the same", other.written),
                }));
            }
            query.push(Parameter { key, written, value: self.decoded(value, written)? });
        }
        Ok(StoreUrl { syntax: self, parts, query })
    }

    /// Decodes percent-encoded text.
    ///
    /// # Errors
    /// `is_invalid` if a `%` lacks its digits, or the result is not UTF-8 or contains a zero byte.
    pub fn decoded(&self, text: &str, part: &str) -> Result<String> {
        let is_digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
        let mut escapes = text.split('%').skip(1).map(str::as_bytes);
        if escapes.any(|digits| !is_digit(digits.first()) || !is_digit(digits.get(1))) {
            return Err(self.wrong(&format!("{part} has a % without two hexadecimal digits")));
        }
        match percent_decode_str(text).decode_utf8() {
            Ok(text) if text.contains('\0') => Err(self.wrong(&format!("{part} contains a zero byte"))),
            Ok(text) => Ok(text.into_owned()),
            Err(_) => Err(self.wrong(&format!("{part} is not UTF-8 after percent-decoding"))),
        }
    }

    /// The error for an invalid URL.
    pub fn wrong(&self, what: &str) -> Error {
        Error::invalid(format!("invalid {} URL: {what}", self.server))
    }

    fn address(&self, place: &str, default: u16) -> Result<Address> {
        let (host, port) = match place.strip_prefix('[').map(|rest| rest.split_once(']')) {
            Some(Some((host, ""))) => (host, None),
            Some(Some((host, rest))) => {
                let port = rest.strip_prefix(':');
                (host, Some(port.ok_or_else(|| self.wrong("the `]` of a host must be followed by a port"))?))
            }
            Some(None) => return Err(self.wrong("a host has a `[` without a `]`")),
            None => split(place, ':'),
        };
        let port = port.map_or(Some(default), |port| port.parse().ok().filter(|port| *port != 0));
        let port = port.ok_or_else(|| self.wrong("a port must be a number from 1 to 65535"))?;
        self.host(host, port)
    }

    /// The address of a host and a port.
    ///
    /// # Errors
    /// `is_invalid` if it is empty, or has a character that no host has.
    pub fn host(&self, host: &str, port: u16) -> Result<Address> {
        if host.is_empty() {
            return Err(self.wrong(&format!("a host is missing, expected {}", self.form)));
        }
        if !host.chars().all(|char| char.is_alphanumeric() || ".-_:%".contains(char)) {
            return Err(self.wrong(
                "a host has an invalid character; in a user or password, write % and two hexadecimal digits",
            ));
        }
        Ok(Address::Tcp(host.to_owned(), port))
    }
}

impl<'a> StoreUrl<'a> {
    /// The scheme, without the name of a driver.
    #[must_use]
    pub fn scheme(&self) -> &'a str {
        self.syntax.foreign.without_driver(self.parts.scheme)
    }

    /// The error for a scheme of another store.
    #[must_use]
    pub fn unknown_scheme(&self) -> Error {
        let (scheme, form) = (Quoted(self.parts.scheme), self.syntax.form);
        self.syntax.wrong(&format!("unknown scheme {scheme}, expected {form}"))
    }

    /// Whether the URL names servers before its path.
    #[must_use]
    pub fn has_hosts(&self) -> bool {
        !self.parts.hosts.is_empty()
    }

    /// The servers.
    ///
    /// # Errors
    /// `is_invalid` if a host or port is invalid, or a server is listed twice.
    pub fn hosts(&self, default_port: u16) -> Result<Vec<Address>> {
        let mut all = Vec::new();
        for place in self.parts.hosts.split(',') {
            let address = self.syntax.address(place, default_port)?;
            if all.contains(&address) {
                return Err(self.syntax.wrong("a host is listed twice"));
            }
            all.push(address);
        }
        Ok(all)
    }

    /// The text after the first slash, not decoded.
    #[must_use]
    pub fn path(&self) -> &'a str {
        self.parts.path.unwrap_or_default()
    }

    /// The path of a URL without hosts and login, such as `redis+unix:///PATH`.
    #[must_use]
    pub fn local_path(&self) -> Option<&'a str> {
        let Parts { login: None, hosts: "", path, .. } = self.parts else { return None };
        path
    }

    /// The login before the hosts, or in the query, or with the password in the file of `password-file`.
    ///
    /// # Errors
    /// `is_invalid` if the login is incomplete or ambiguous.
    pub fn login(&mut self) -> Result<Login> {
        let (user, password) = self.parts.login.map_or(("", None), |login| split(login, ':'));
        // The mistake of giving each host its own login.
        if password.is_some_and(|password| password.contains('@') && password.contains(',')) {
            let what = "an @ after the first host: the login stands once, before all hosts; in a password, write %40 for @";
            return Err(self.syntax.wrong(what));
        }
        let user = self.syntax.decoded(user, "user")?;
        let password = self.syntax.decoded(password.unwrap_or_default(), "password")?;
        let user = self.take("user").unwrap_or(user);
        let password = self.take("password").unwrap_or(password);
        self.complete(Some(user), Some(password), "USER:PASSWORD@HOST", "password-file")
    }

    /// The login in the query.
    ///
    /// # Errors
    /// As [`login`](Self::login).
    pub fn query_login(&mut self, user: &str, password: &str, file: &str) -> Result<Login> {
        let form = format!("`{user}` with `{password}`");
        let (user, password) = (self.take(user), self.take(password));
        self.complete(user, password, &form, file)
    }

    fn complete(
        &mut self,
        user: Option<String>,
        password: Option<String>,
        form: &str,
        file_key: &str,
    ) -> Result<Login> {
        let some = |text: &String| !text.is_empty();
        let (user, text, file) = (user.filter(some), password.filter(some), self.file(file_key)?);
        if text.is_some() && file.is_some() {
            return Err(self.syntax.wrong(&format!("both a password and `{file_key}`")));
        }
        let password = text.map(Password::Text).or(file.map(Password::File));
        let missing = match (&user, &password) {
            (Some(_), None) if self.syntax.needs_password => "a user without a password",
            (None, Some(_)) if self.syntax.needs_user => "a password without a user",
            _ => return Ok(Login { user, password }),
        };
        Err(self.syntax.wrong(&format!("{missing}, expected {form} or a user with `{file_key}`")))
    }

    /// Whether the query has a parameter.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.query.iter().any(|known| known.key == key)
    }

    /// Takes a parameter.
    pub fn take(&mut self, key: &str) -> Option<String> {
        self.take_whole(key).map(|parameter| parameter.value)
    }

    fn take_whole(&mut self, key: &str) -> Option<Parameter> {
        let at = self.query.iter().position(|known| known.key == key)?;
        Some(self.query.swap_remove(at))
    }

    /// Adds a parameter that the URL leaves out.
    pub fn fill(&mut self, key: &'static str, value: Option<String>) {
        if let Some(value) = value.filter(|value| !value.is_empty())
            && !self.has(key)
        {
            self.query.push(Parameter { key, written: key, value });
        }
    }

    /// Takes a parameter that `read` understands.
    ///
    /// # Errors
    /// `is_invalid` with what is `expected` if `read` returns `None`.
    pub fn take_as<T>(
        &mut self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(Parameter { written, value, .. }) = self.take_whole(key) else { return Ok(None) };
        let wrong = || self.syntax.wrong(&format!("parameter `{written}` must be {expected}"));
        read(&value).ok_or_else(wrong).map(Some)
    }

    fn file(&mut self, key: &str) -> Result<Option<PathBuf>> {
        self.take_as(key, "the path of a file", |path| (!path.is_empty()).then(|| path.into()))
    }

    /// Takes the parameter `namespace`.
    ///
    /// # Errors
    /// `is_invalid` if it is empty, too long or has a character that not every store can have in a key.
    pub fn namespace(&mut self) -> Result<Namespace> {
        Ok(self.take_as("namespace", Namespace::FORM, Namespace::checked)?.unwrap_or_default())
    }

    /// As [`namespace`](Self::namespace), for a store whose keys begin with it. A separator at its end keeps
    /// `app` and `apple` apart.
    ///
    /// # Errors
    /// Also `is_invalid` without a separator, and for `tenure:`, which begins the keys of clients without a
    /// namespace.
    pub fn key_namespace(&mut self) -> Result<Namespace> {
        let namespace = self.namespace()?;
        let text = namespace.as_str();
        if !text.is_empty() && !text.ends_with(['-', '_', '.', ':', '/']) {
            let what = format!("parameter `namespace` must end with one of `-_.:/`, as in `{text}:`");
            return Err(self.syntax.wrong(&what));
        }
        if text.starts_with("tenure:") {
            return Err(self.syntax.wrong("parameter `namespace` must not begin with `tenure:`"));
        }
        Ok(namespace)
    }

    /// Rejects parameters that were not taken.
    ///
    /// # Errors
    /// `is_invalid` if there are any.
    pub fn end(self) -> Result<()> {
        let Some(Parameter { key, written, .. }) = self.query.first() else { return Ok(()) };
        Err(self.syntax.wrong(&match encryption::is_about_tls(key) {
            true => format!("parameter `{written}` needs TLS, as with {}", self.syntax.tls),
            false => format!("{}:// does not take the parameter `{written}`", self.parts.scheme),
        }))
    }
}

/// Rejects TLS in a build without the feature `tls`.
///
/// # Errors
/// `is_unsupported` in such a build.
pub fn require_tls(shown: &Arc<str>) -> Result<()> {
    if cfg!(feature = "tls") {
        return Ok(());
    }
    let message = format!(
        "store {shown} cannot be used: this program was built without the feature `tls` of the crate `tenure`"
    );
    Err(Error::unsupported(shown, message))
}

/// Splits at the first separator; the second half is `None` without a separator.
fn split(text: &str, at: char) -> (&str, Option<&str>) {
    text.split_once(at).map_or((text, None), |(before, after)| (before, Some(after)))
}

/// Omits the login and the parameters.
impl fmt::Debug for StoreUrl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreUrl").field("scheme", &self.parts.scheme).finish_non_exhaustive()
    }
}

/// Omits the user and the password.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login")
    }
}

/// Omits the password.
impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

/// A syntax for tests.
#[cfg(test)]
const TEST: Syntax = Syntax {
    server: "test",
    form: "test://HOST",
    tls: "tests://",
    needs_user: false,
    needs_password: false,
    parameters: &["ca", "cert", "key"],
    foreign: ForeignNames::NONE,
};

#[cfg(test)]
mod tests {
    use super::*;

    const SYNTAX: Syntax = Syntax {
        needs_user: true,
        needs_password: true,
        parameters: &["ca", "cert", "key", "namespace", "number", "password-file"],
        foreign: ForeignNames { ignored: &[("pools", &["pool_size"])], ..ForeignNames::NONE },
        ..TEST
    };

    #[test]
    fn an_invalid_url_names_the_wrong_part_and_no_password() {
        for (url, part) in [
            ("test:h", "//"),
            ("test://", "a host is missing, expected test://HOST"),
            ("test://:1", "host is missing"),
            ("test://a,,b", "host is missing"),
            ("test://a b", "host has an invalid character"),
            ("test://[::1", "without a `]`"),
            ("test://[::1]x", "followed by a port"),
            ("test://a,a:9", "listed twice"),
            ("test://a:x", "port"),
            ("test://a:0", "port"),
            ("test://a:65536", "port"),
            ("test://a:", "port"),
            ("test://u@a", "a user without a password"),
            ("test://u:@a", "a user without a password"),
            ("test://:hush@a", "a password without a user"),
            ("test://u:hush@a?password-file=f", "both a password and `password-file`"),
            ("test://a?password-file=", "`password-file` must be the path of a file"),
            ("test://u:hush@a,u:hush@b", "once"),
            ("test://u:hu/sh@a", "port"),
            ("test://u:hush%4@a", "password has a % without"),
            ("test://%ff:hush@a", "user is not UTF-8"),
            ("test://u%00:hush@a", "user contains a zero byte"),
            ("test://u:hu?sh@a", "unknown parameter, expected one of ca, cert, key, namespace, number"),
            ("test://a?number=1&number=1", "`number` is given twice"),
            ("test://a?number=x", "`number` must be small"),
            ("test://a?number=1&ca=f", "`ca` needs TLS, as with tests://"),
            ("tests://a?ca=", "`ca` must be"),
            ("tests://a?cert=f", "`cert` and `key`"),
            ("tests://a?key=f", "`cert` and `key`"),
            ("test://a?namespace=", "`namespace` must be 1 to 63 ASCII letters"),
            ("test://a?namespace=a%7Bb%7D:", "`namespace` must be"),
            ("test://a?namespace=a%0A:", "`namespace` must be"),
            ("test://a?namespace=%C3%A4:", "`namespace` must be"),
            (
                "test://a?namespace=0123456789012345678901234567890123456789012345678901234567890123:",
                "`namespace` must be",
            ),
            ("test://a?namespace=app", "`namespace` must end with one of `-_.:/`, as in `app:`"),
            ("test://a?namespace=tenure:", "`namespace` must not begin with `tenure:`"),
        ] {
            let read = |mut parts: StoreUrl<'_>| {
                parts.login()?;
                parts.hosts(9)?;
                parts.key_namespace()?;
                parts.take_as("number", "small", |text| text.parse::<u8>().ok())?;
                if parts.scheme() == "tests" {
                    parts.tls_of_scheme()?;
                }
                parts.end()
            };
            let error = SYNTAX.parse(url).and_then(read).expect_err(url);
            let text = error.to_string();
            assert!(error.is_invalid() && text.starts_with("invalid test URL: "), "{url}: {text}");
            assert!(text.contains(part) && !text.contains("hu"), "{url}: {text}");
        }
    }

    #[test]
    fn a_url_without_its_password_keeps_all_else() {
        for (url, expected) in [
            ("redis://:hush@h:1/2?acks=1", Some("redis://h:1/2?acks=1")),
            ("rediss://ann:hush@h?ca=f&acks=1", Some("rediss://h?ca=f&acks=1")),
            ("redis-quorum://:hush@a,b,c/1", Some("redis-quorum://a,b,c/1")),
            ("redis+unix:///s?db=1&user=a&password=hush", Some("redis+unix:///s?db=1")),
            ("redis-sentinel://a/s?sentinel-password=hush", Some("redis-sentinel://a/s")),
            ("postgres://ann:hush@h,i/db?schema=s", Some("postgres://h,i/db?schema=s")),
            ("redis://h", None),
            ("redis://ann@h?password-file=f", None),
            ("file:a:b@c", None),
        ] {
            assert_eq!(without_password(url).as_deref(), expected, "{url}");
        }
    }
}
