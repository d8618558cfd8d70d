//! The common URL syntax of these servers:
//! `SCHEME://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][/PATH][?ca=FILE&cert=FILE&key=FILE]`.

use std::fmt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;

use crate::error::{Error, Result};
use crate::net::Tls;

/// The URL syntax of one kind of server.
#[derive(Debug)]
pub struct Syntax {
    /// The name of the server software.
    pub server: &'static str,
    /// The URL scheme. An `s` is appended for TLS.
    pub scheme: &'static str,
    /// The default port.
    pub port: u16,
    /// The default port with TLS.
    pub tls_port: u16,
}

/// A parsed URL.
#[derive(Debug)]
pub struct Parts<'a> {
    /// The servers.
    pub places: Vec<Endpoint>,
    /// The text after the first slash, not decoded.
    pub path: &'a str,
    /// User and password.
    pub login: Option<(String, String)>,
    /// Present if the connection uses TLS.
    pub tls: Option<Tls>,
}

/// The address of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The host, without the brackets of an IPv6 address.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl Syntax {
    /// Parses a URL.
    ///
    /// # Errors
    /// `is_invalid`, naming the part that is wrong.
    pub fn parse<'a>(&self, url: &'a str) -> Result<Parts<'a>> {
        let own = self.scheme;
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| self.wrong(&format!("after `{own}:` comes `//`")))?;
        let is_tls = scheme.strip_prefix(own) == Some("s");
        if !is_tls && scheme != own {
            return Err(self.wrong(&format!("it begins with neither `{own}://` nor `{own}s://`")));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (servers, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, servers) = match servers.rsplit_once('@') {
            Some((login, servers)) => (Some(self.login(login)?), servers),
            None => (None, servers),
        };
        let port = if is_tls { self.tls_port } else { self.port };
        let mut places = Vec::new();
        for server in servers.split(',') {
            let place = self.place(server, port)?;
            if places.contains(&place) {
                return Err(self.wrong("it has one host twice"));
            }
            places.push(place);
        }
        let files = self.files(query)?;
        if !is_tls && files != Tls::default() {
            return Err(self.wrong(&format!("ca, cert and key are for encrypted connections: {own}s://")));
        }
        Ok(Parts { places, path, login, tls: is_tls.then_some(files) })
    }

    fn login(&self, text: &str) -> Result<(String, String)> {
        let form = format!("{}://USER:PASSWORD@HOST", self.scheme);
        let (user, password) = text
            .split_once(':')
            .ok_or_else(|| self.wrong(&format!("it has a user without a password: {form}")))?;
        if user.is_empty() || password.is_empty() {
            return Err(self.wrong(&format!("its user or its password is empty: {form}")));
        }
        Ok((self.decoded(user)?, self.decoded(password)?))
    }

    fn place(&self, text: &str, default: u16) -> Result<Endpoint> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) =
                    rest.split_once(']').ok_or_else(|| self.wrong("its host has a `[` without a `]`"))?;
                let port = match rest.strip_prefix(':') {
                    Some(port) => Some(port),
                    None if rest.is_empty() => None,
                    None => {
                        return Err(self.wrong("after the `]` of its host comes neither a port nor the end"));
                    }
                };
                (host, port)
            }
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        if host.is_empty() {
            let what = format!("its host is missing: {}://HOST1,HOST2,HOST3", self.scheme);
            return Err(self.wrong(&what));
        }
        // An unescaped password may end up here, so the host is not shown.
        if !host.chars().all(|char| char.is_ascii_alphanumeric() || ".-_:".contains(char)) {
            return Err(self.wrong(
                "its host has a character that no host has; in a user or password, write % and two digits",
            ));
        }
        let port = port.map_or(Some(default), |port| port.parse().ok().filter(|port| *port != 0));
        let port = port.ok_or_else(|| self.wrong("its port is not a number from 1 to 65535"))?;
        Ok(Endpoint { host: host.to_owned(), port })
    }

    fn files(&self, query: &str) -> Result<Tls> {
        let (mut ca, mut cert, mut key) = (None, None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let slot = match name {
                "ca" => &mut ca,
                "cert" => &mut cert,
                "key" => &mut key,
                _ => {
                    return Err(self
                        .wrong("its query has something other than ca, cert, key; in a password, ? is %3F"));
                }
            };
            if value.is_empty() || slot.replace(PathBuf::from(self.decoded(value)?)).is_some() {
                return Err(self.wrong(&format!("its query has `{name}` twice, or without a file")));
            }
        }
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(self.wrong("its query has one of cert and key: a certificate needs its key")),
        };
        Ok(Tls { ca, identity })
    }

    /// Decodes percent-encoded text.
    ///
    /// # Errors
    /// `is_invalid` if the result is not UTF-8.
    pub fn decoded(&self, text: &str) -> Result<String> {
        let decoded = percent_decode_str(text).decode_utf8();
        Ok(decoded
            .map_err(|_| self.wrong("something in it is no UTF-8 after the percent signs"))?
            .into_owned())
    }

    /// The error for an invalid URL.
    pub fn wrong(&self, what: &str) -> Error {
        Error::invalid(format!("this {} URL cannot be read: {what}", self.server))
    }
}
