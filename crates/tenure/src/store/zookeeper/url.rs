//! Reads URLs of ZooKeeper: `zookeeper://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][/PATH]`, and
//! `zookeepers://` with `?ca=FILE&cert=FILE&key=FILE` behind it.

use std::fmt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;

use crate::error::{Error, Result};

const PORT: u16 = 2181;
const TLS_PORT: u16 = 2281;
/// What all nodes are below where the URL has no path.
const PREFIX: &str = "/tenure";

/// What a URL says.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// Host and port of each server.
    pub(super) places: Vec<Place>,
    /// The node below which all others are.
    pub(super) prefix: String,
    pub(super) login: Option<(String, String)>,
    pub(super) tls: Option<Files>,
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Without the brackets of an address.
    pub(super) host: String,
    pub(super) port: u16,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// The files of an encrypted connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Files {
    /// Who certifies servers, if not those whom the system trusts.
    pub(super) ca: Option<PathBuf>,
    /// A client's certificate and its key.
    pub(super) identity: Option<(PathBuf, PathBuf)>,
}

impl Target {
    pub(super) fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("after `zookeeper:` comes `//`"))?;
        let is_tls = match scheme {
            "zookeeper" => false,
            "zookeepers" => true,
            _ => return Err(wrong("it begins with neither `zookeeper://` nor `zookeepers://`")),
        };
        if is_tls && cfg!(not(feature = "tls")) {
            let message = "store zookeepers needs the feature `tls`, and this build is without it";
            return Err(Error::unsupported(&"zookeepers".into(), message));
        }
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (servers, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, servers) = match servers.rsplit_once('@') {
            Some((login, servers)) => (Some(self::login(login)?), servers),
            None => (None, servers),
        };
        let port = if is_tls { TLS_PORT } else { PORT };
        let mut places = Vec::new();
        for server in servers.split(',') {
            let place = place(server, port)?;
            if places.contains(&place) {
                return Err(wrong("it has one host twice"));
            }
            places.push(place);
        }
        let prefix = prefix(path)?;
        let files = files(query.unwrap_or_default())?;
        if !is_tls && files != Files::default() {
            return Err(wrong("ca, cert and key are for encrypted connections: zookeepers://"));
        }
        Ok(Self { places, prefix, login, tls: is_tls.then_some(files) })
    }

    /// Without the login and the files.
    pub(super) fn shown(&self) -> String {
        let scheme = if self.tls.is_some() { "zookeepers" } else { "zookeeper" };
        let path = if self.prefix == PREFIX { "" } else { &self.prefix };
        let places: Vec<String> = self.places.iter().map(Place::to_string).collect();
        format!("{scheme}://{}{path}", places.join(","))
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
        .ok_or_else(|| wrong("it has a user without a password: zookeeper://USER:PASSWORD@HOST"))?;
    if user.is_empty() || password.is_empty() {
        return Err(wrong("its user or its password is empty: zookeeper://USER:PASSWORD@HOST"));
    }
    let user = decoded(user)?;
    if user.contains(':') {
        return Err(wrong("its user has a colon, which no user of ZooKeeper has"));
    }
    Ok((user, decoded(password)?))
}

fn place(text: &str, default: u16) -> Result<Place> {
    let (host, port) = match text.strip_prefix('[') {
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
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err(wrong("its host is missing: zookeeper://HOST1,HOST2,HOST3"));
    }
    // A part of a password that is not percent-encoded lands here, so it is not shown.
    if !host.chars().all(|char| char.is_ascii_alphanumeric() || ".-_:".contains(char)) {
        return Err(wrong(
            "its host has a character that no host has; in a user or password, write % and two digits",
        ));
    }
    let port = port.map_or(Some(default), |port| port.parse().ok().filter(|port| *port != 0));
    let port = port.ok_or_else(|| wrong("its port is not a number from 1 to 65535"))?;
    Ok(Place { host: host.to_owned(), port })
}

/// A path of ZooKeeper, made of what a URL has after the hosts.
fn prefix(path: &str) -> Result<String> {
    let path = decoded(path.trim_end_matches('/'))?;
    if path.is_empty() {
        return Ok(PREFIX.to_owned());
    }
    let parts: Vec<&str> = path.split('/').collect();
    if parts.iter().any(|part| part.is_empty() || matches!(*part, "." | "..")) {
        return Err(wrong("a part of its path is empty or a dot"));
    }
    let is_taken = |char: char| {
        let is_private =
            ('\u{e000}'..='\u{f8ff}').contains(&char) || ('\u{fff0}'..='\u{ffff}').contains(&char);
        !char.is_control() && !is_private
    };
    if !path.chars().all(is_taken) {
        return Err(wrong("its path has a character that no node of ZooKeeper has"));
    }
    if parts[0] == "zookeeper" {
        return Err(wrong("its path is below /zookeeper, which ZooKeeper keeps for itself"));
    }
    Ok(format!("/{path}"))
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
        if value.is_empty() || slot.replace(PathBuf::from(decoded(value)?)).is_some() {
            return Err(wrong(&format!("its query has `{name}` twice, or without a file")));
        }
    }
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        _ => return Err(wrong("its query has one of cert and key: a certificate needs its key")),
    };
    Ok(Files { ca, identity })
}

fn decoded(text: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8();
    Ok(decoded.map_err(|_| wrong("something in it is no UTF-8 after the percent signs"))?.into_owned())
}

fn wrong(what: &str) -> Error {
    Error::invalid(format!("this ZooKeeper URL cannot be read: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Target {
        Target::parse(url).expect("a URL")
    }

    #[test]
    fn a_url_reads_as_written() {
        let target = parsed("zookeeper://a,b:1,[::1]/app/locks/");
        let places: Vec<String> = target.places.iter().map(Place::to_string).collect();
        assert_eq!(places, ["a:2181", "b:1", "[::1]:2181"]);
        assert_eq!((target.prefix.as_str(), target.tls.is_none()), ("/app/locks", true));
        assert_eq!(target.shown(), "zookeeper://a:2181,b:1,[::1]:2181/app/locks");
        let target = parsed("zookeeper://u:p%40q@a");
        assert_eq!(target.login, Some(("u".into(), "p@q".into())));
        assert_eq!((target.prefix.as_str(), target.shown().as_str()), (PREFIX, "zookeeper://a:2181"));
    }

    #[test]
    #[cfg(feature = "tls")]
    fn an_encrypted_one_too() {
        let target = parsed("zookeepers://a?ca=/x");
        assert_eq!(target.tls, Some(Files { ca: Some("/x".into()), identity: None }));
        assert_eq!(target.shown(), "zookeepers://a:2281");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (url, said) in [
            ("zookeeper:a", "`//`"),
            ("zookeeper://", "host is missing"),
            ("zookeeper://a,", "host is missing"),
            ("zookeeper://a,a:2181", "twice"),
            ("zookeeper://a:0", "port"),
            ("zookeeper://a:x", "port"),
            ("zookeeper://[::1", "without a `]`"),
            ("zookeeper://u@a", "without a password"),
            ("zookeeper://u:@a", "empty"),
            ("zookeeper://u%3Av:p@a", "colon"),
            ("zookeeper://u:p/q@a", "port"),
            ("zookeeper://a/b//c", "empty"),
            ("zookeeper://a/b/../c", "dot"),
            ("zookeeper://a/b%01", "character"),
            ("zookeeper://a/zookeeper/x", "for itself"),
            ("zookeeper://a?x=1", "ca, cert, key"),
            ("zookeeper://a?ca=/x", "zookeepers"),
            ("zookeeper://a?cert=/x", "needs its key"),
            ("zookeeper+tls://a", "neither"),
        ] {
            let error = Target::parse(url).expect_err(url).to_string();
            assert!(error.contains(said), "{url}: {error}");
        }
    }
}
