//! Reads `etcd://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]...][/PREFIX][?ca=FILE&cert=FILE&key=FILE]`.

use std::fmt;

use percent_encoding::percent_decode_str;

use crate::error::{Error, Result};

const PORT: u16 = 2379;
/// What keys begin with where the URL has no prefix.
const PREFIX: &str = "tenure/";

/// What a URL says.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// `HOST:PORT` of each server.
    pub(super) places: Vec<String>,
    /// What all keys begin with; it ends with a slash.
    pub(super) prefix: String,
    pub(super) login: Option<(String, String)>,
    pub(super) tls: Option<Files>,
}

/// The files of an encrypted connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Files {
    /// Who certifies servers, if not those whom the system trusts.
    pub(super) ca: Option<String>,
    /// A client's certificate and its key.
    pub(super) pair: Option<(String, String)>,
}

impl Target {
    pub(super) fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("after `etcd:` comes `//`"))?;
        let is_tls = match scheme {
            "etcd" => false,
            "etcds" => true,
            _ => return Err(wrong("it begins with neither `etcd://` nor `etcds://`")),
        };
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (servers, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, servers) = match servers.rsplit_once('@') {
            Some((login, servers)) => (Some(self::login(login)?), servers),
            None => (None, servers),
        };
        let mut places = Vec::new();
        for server in servers.split(',') {
            let place = place(server)?;
            if places.contains(&place) {
                return Err(wrong("it has one host twice"));
            }
            places.push(place);
        }
        let path = decoded(path.trim_end_matches('/'))?;
        let prefix = if path.is_empty() { PREFIX.to_owned() } else { format!("{path}/") };
        let files = files(query.unwrap_or_default())?;
        if !is_tls && files != Files::default() {
            return Err(wrong("ca, cert and key are for encrypted connections: etcds://"));
        }
        Ok(Self { places, prefix, login, tls: is_tls.then_some(files) })
    }

    /// Without the login and the files.
    pub(super) fn shown(&self) -> String {
        let scheme = if self.tls.is_some() { "etcds" } else { "etcd" };
        let path = if self.prefix == PREFIX { "" } else { self.prefix.trim_end_matches('/') };
        let slash = if path.is_empty() { "" } else { "/" };
        format!("{scheme}://{}{slash}{path}", self.places.join(","))
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Target").field(&self.shown()).finish()
    }
}

fn login(text: &str) -> Result<(String, String)> {
    let (user, password) = text
        .split_once(':')
        .ok_or_else(|| wrong("it has a user without a password: etcd://USER:PASSWORD@HOST"))?;
    if user.is_empty() || password.is_empty() {
        return Err(wrong("its user or its password is empty: etcd://USER:PASSWORD@HOST"));
    }
    Ok((decoded(user)?, decoded(password)?))
}

fn place(text: &str) -> Result<String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) =
                rest.split_once(']').ok_or_else(|| wrong("its host has a `[` without a `]`"))?;
            let port = match rest.strip_prefix(':') {
                Some(port) => Some(port),
                None if rest.is_empty() => None,
                None => return Err(wrong("after the `]` of its host comes neither a port nor the end")),
            };
            (format!("[{host}]"), port)
        }
        None => {
            let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
            (host.to_owned(), port)
        }
    };
    if host.is_empty() {
        return Err(wrong("its host is missing: etcd://HOST1,HOST2,HOST3"));
    }
    // A part of a password that is not percent-encoded lands here, so it is not shown.
    if !host.chars().all(|char| char.is_ascii_alphanumeric() || "[].-_:".contains(char)) {
        return Err(wrong(
            "its host has a character that no host has; in a user or password, write % and two digits",
        ));
    }
    let port = port.map_or(Some(PORT), |port| port.parse().ok().filter(|port| *port != 0));
    let port = port.ok_or_else(|| wrong("its port is not a number from 1 to 65535"))?;
    Ok(format!("{host}:{port}"))
}

fn files(query: &str) -> Result<Files> {
    let (mut ca, mut cert, mut key) = (None, None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let slot = match name {
            "ca" => &mut ca,
            "cert" => &mut cert,
            "key" => &mut key,
            _ => {
                return Err(wrong(
                    "its query has something other than ca, cert, key; in a password, ? is %3F",
                ));
            }
        };
        if value.is_empty() || slot.replace(decoded(value)?).is_some() {
            return Err(wrong(&format!("its query has `{name}` twice, or without a file")));
        }
    }
    let pair = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        _ => return Err(wrong("its query has one of cert and key: a certificate needs its key")),
    };
    Ok(Files { ca, pair })
}

fn decoded(text: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8();
    Ok(decoded.map_err(|_| wrong("something in it is no UTF-8 after the percent signs"))?.into_owned())
}

fn wrong(what: &str) -> Error {
    Error::invalid(format!("this etcd URL cannot be read: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_reads_as_written() {
        let target = Target::parse("etcd://a,b:1,[::1]/app/locks").expect("a URL");
        assert_eq!(target.places, ["a:2379", "b:1", "[::1]:2379"]);
        assert_eq!((target.prefix.as_str(), target.tls.is_none()), ("app/locks/", true));
        let target = Target::parse("etcds://u:p%40q@a?ca=/x").expect("a URL");
        assert_eq!(target.login, Some(("u".into(), "p@q".into())));
        assert_eq!((target.prefix.as_str(), target.shown().as_str()), (PREFIX, "etcds://a:2379"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (url, said) in [
            ("etcd:a", "`//`"),
            ("etcd://", "host is missing"),
            ("etcd://a,", "host is missing"),
            ("etcd://a,a", "twice"),
            ("etcd://a:0", "port"),
            ("etcd://u@a", "without a password"),
            ("etcd://u:p/q@a", "port"),
            ("etcd://a?x=1", "ca, cert, key"),
            ("etcd://a?ca=/x", "etcds"),
            ("etcds://a?cert=/x", "needs its key"),
        ] {
            let error = Target::parse(url).expect_err(url).to_string();
            assert!(error.contains(said), "{url}: {error}");
        }
    }
}
