//! Parses ZooKeeper URLs: `zookeeper://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][/PATH]`, and
//! `zookeepers://` with an optional `?sslmode=MODE&ca=FILE&cert=FILE&key=FILE`. `?namespace=TEXT` names a node
//! above the path.

use std::fmt;

use tenure_core::error::Result;
use tenure_core::name::Namespace;
use tenure_core::net::url::{ForeignNames, Login, Syntax, require_tls};
use tenure_core::net::{Address, Tls};

const SYNTAX: Syntax = Syntax {
    server: "ZooKeeper",
    form: "zookeeper://HOST",
    tls: "zookeepers://",
    needs_user: true,
    needs_password: true,
    parameters: &["password-file", "ca", "cert", "key", "namespace"],
    foreign: ForeignNames::NONE,
};
const PORT: u16 = 2181;
const TLS_PORT: u16 = 2281;
/// The default path.
const PREFIX: &str = "/tenure";

/// A parsed URL.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ZooKeeperTarget {
    pub(super) addresses: Vec<Address>,
    /// The parent of all nodes.
    pub(super) prefix: String,
    namespace: Namespace,
    pub(super) login: Login,
    pub(super) tls: Option<Tls>,
}

impl ZooKeeperTarget {
    pub(super) fn parse(url: &str) -> Result<Self> {
        let mut url = SYNTAX.parse(url)?;
        let (tls, port) = match url.scheme() {
            "zookeeper" => (None, PORT),
            "zookeepers" => (Some(url.tls_of_scheme()?), TLS_PORT),
            _ => return Err(url.unknown_scheme()),
        };
        let login = url.login()?;
        if login.user.as_ref().is_some_and(|user| user.contains(':')) {
            return Err(SYNTAX.wrong("the user contains a colon, which no user of ZooKeeper does"));
        }
        let (namespace, path) = (url.namespace()?, prefix(url.path())?);
        let above = match namespace.as_str() {
            "" => String::new(),
            namespace => node(namespace.trim_end_matches('/'))?,
        };
        let target =
            Self { addresses: url.hosts(port)?, prefix: format!("{above}{path}"), namespace, login, tls };
        url.end()?;
        if target.tls.is_some() {
            require_tls(&target.shown().into())?;
        }
        Ok(target)
    }

    /// The URL without the login and the files.
    pub(super) fn shown(&self) -> String {
        let scheme = if self.tls.is_some() { "zookeepers" } else { "zookeeper" };
        let namespace = self.namespace.as_str();
        let (above, query) = match namespace.trim_end_matches('/') {
            "" => (0, String::new()),
            node => (1 + node.len(), format!("?namespace={namespace}")),
        };
        let path = &self.prefix[above..];
        let path = if path == PREFIX { "" } else { path };
        let addresses: Vec<String> = self.addresses.iter().map(Address::to_string).collect();
        format!("{scheme}://{}{path}{query}", addresses.join(","))
    }
}

impl fmt::Debug for ZooKeeperTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ZooKeeperTarget").field(&self.shown()).finish()
    }
}

/// The node path from the path of the URL.
fn prefix(path: &str) -> Result<String> {
    let path = SYNTAX.decoded(path.trim_end_matches('/'), "path")?;
    if path.is_empty() { Ok(PREFIX.to_owned()) } else { node(&path) }
}

fn node(path: &str) -> Result<String> {
    let parts: Vec<&str> = path.split('/').collect();
    if parts.iter().any(|part| part.is_empty() || matches!(*part, "." | "..")) {
        return Err(SYNTAX.wrong("the path has an empty, `.` or `..` segment"));
    }
    let is_taken = |char: char| {
        let is_private =
            ('\u{e000}'..='\u{f8ff}').contains(&char) || ('\u{fff0}'..='\u{ffff}').contains(&char);
        !char.is_control() && !is_private
    };
    if !path.chars().all(is_taken) {
        return Err(SYNTAX.wrong("the path has a character that ZooKeeper does not allow"));
    }
    if parts[0] == "zookeeper" {
        return Err(SYNTAX.wrong("the path is below /zookeeper, which ZooKeeper keeps for itself"));
    }
    Ok(format!("/{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> ZooKeeperTarget {
        ZooKeeperTarget::parse(url).expect("a URL")
    }

    #[test]
    fn a_url_reads_as_written() {
        let target = parsed("zookeeper://a,b:1,[::1]/app/locks/");
        let addresses: Vec<String> = target.addresses.iter().map(Address::to_string).collect();
        assert_eq!(addresses, ["a:2181", "b:1", "[::1]:2181"]);
        assert_eq!((target.prefix.as_str(), target.tls.is_none()), ("/app/locks", true));
        assert_eq!(target.shown(), "zookeeper://a:2181,b:1,[::1]:2181/app/locks");
        let target = parsed("zookeeper://u:p%40q@a");
        let password = target.login.password().expect("a password");
        assert_eq!((target.login.user.as_deref(), password.as_deref()), (Some("u"), Some("p@q")));
        assert_eq!((target.prefix.as_str(), target.shown().as_str()), (PREFIX, "zookeeper://a:2181"));
        for (url, prefix) in [
            ("zookeeper://a:1?namespace=app", "/app/tenure"),
            ("zookeeper://a:1/x/y?namespace=team/app/", "/team/app/x/y"),
        ] {
            let target = parsed(url);
            assert_eq!((target.prefix.as_str(), target.shown().as_str()), (prefix, url));
        }
    }

    #[test]
    #[cfg(feature = "tls")]
    fn an_encrypted_one_too() {
        let target = parsed("zookeepers://a?ca=/x");
        assert_eq!(target.tls, Some(Tls { ca: Some("/x".into()), ..Tls::default() }));
        assert_eq!(target.shown(), "zookeepers://a:2281");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (url, said) in [
            ("zookeeper://u@a", "without a password"),
            ("zookeeper://u%3Av:p@a", "colon"),
            ("zookeeper://a/b//c", "empty"),
            ("zookeeper://a/b/../c", "an empty, `.` or `..` segment"),
            ("zookeeper://a/b%01", "character"),
            ("zookeeper://a/zookeeper/x", "for itself"),
            ("zookeeper://a?namespace=", "`namespace` must be 1 to 63"),
            ("zookeeper://a?namespace=/", "empty"),
            ("zookeeper://a?namespace=a/../b", "an empty, `.` or `..` segment"),
            ("zookeeper://a?namespace=zookeeper/x", "for itself"),
            ("zookeeper://a?x=1", "password-file, ca, cert, key"),
            ("zookeeper://a?ca=/x", "zookeepers"),
            ("zookeeper+tls://a", "unknown scheme"),
        ] {
            let error = ZooKeeperTarget::parse(url).expect_err(url).to_string();
            assert!(error.contains(said), "{url}: {error}");
        }
    }
}
