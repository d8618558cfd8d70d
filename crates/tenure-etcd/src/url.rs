//! Parses `etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][/PREFIX]`, and `etcds://` with an optional
//! `?sslmode=MODE&ca=FILE&cert=FILE&key=FILE`. `?password-file=FILE` replaces the password, and `?namespace=TEXT` begins
//! all keys, before the prefix.

use std::fmt;

use tenure_core::error::Result;
use tenure_core::name::Namespace;
use tenure_core::net::url::{ForeignNames, Login, Syntax, require_tls};
use tenure_core::net::{Address, Tls};

const SYNTAX: Syntax = Syntax {
    server: "etcd",
    form: "etcd://HOST",
    tls: "etcds://",
    needs_user: true,
    needs_password: true,
    parameters: &["password-file", "ca", "cert", "key", "namespace"],
    foreign: ForeignNames::NONE,
};
const PORT: u16 = 2379;
/// The default key prefix.
const PREFIX: &str = "tenure/";

/// A parsed URL.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct EtcdTarget {
    pub(super) addresses: Vec<Address>,
    /// The prefix of all keys, which begins with the namespace and ends with a slash.
    pub(super) prefix: String,
    namespace: Namespace,
    pub(super) login: Login,
    pub(super) tls: Option<Tls>,
}

impl EtcdTarget {
    pub(super) fn parse(url: &str) -> Result<Self> {
        let mut url = SYNTAX.parse(url)?;
        let tls = match url.scheme() {
            "etcd" => None,
            // gRPC requires the name of its protocol.
            "etcds" => Some(Tls { protocol: Some("h2"), ..url.tls_of_scheme()? }),
            _ => return Err(url.unknown_scheme()),
        };
        let login = url.login()?;
        let addresses = url.hosts(PORT)?;
        let path = SYNTAX.decoded(url.path().trim_end_matches('/'), "path")?;
        let namespace = url.key_namespace()?;
        url.end()?;
        let path = if path.is_empty() { PREFIX.to_owned() } else { format!("{path}/") };
        let prefix = format!("{}{path}", namespace.as_str());
        let target = Self { addresses, prefix, namespace, login, tls };
        if target.tls.is_some() {
            require_tls(&target.shown().into())?;
        }
        Ok(target)
    }

    /// The URL without the login and the files.
    pub(super) fn shown(&self) -> String {
        let scheme = if self.tls.is_some() { "etcds" } else { "etcd" };
        let namespace = self.namespace.as_str();
        let path = &self.prefix[namespace.len()..];
        let path = if path == PREFIX { "" } else { path.trim_end_matches('/') };
        let slash = if path.is_empty() { "" } else { "/" };
        let query = if namespace.is_empty() { String::new() } else { format!("?namespace={namespace}") };
        let addresses: Vec<String> = self.addresses.iter().map(Address::to_string).collect();
        format!("{scheme}://{}{slash}{path}{query}", addresses.join(","))
    }
}

impl fmt::Debug for EtcdTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EtcdTarget").field(&self.shown()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_reads_as_written() {
        let target = EtcdTarget::parse("etcd://a,b:1,[::1]/app/locks").expect("a URL");
        assert_eq!(target.shown(), "etcd://a:2379,b:1,[::1]:2379/app/locks");
        assert_eq!((target.prefix.as_str(), target.tls.is_none()), ("app/locks/", true));
        let target = EtcdTarget::parse("etcds://u:p%40q@a?ca=/x").expect("a URL");
        let password = target.login.password().expect("a password");
        assert_eq!((target.login.user.as_deref(), password.as_deref()), (Some("u"), Some("p@q")));
        assert_eq!((target.prefix.as_str(), target.shown().as_str()), (PREFIX, "etcds://a:2379"));
        for (url, prefix) in [
            ("etcd://a:1?namespace=app:", "app:tenure/"),
            ("etcd://a:1/x/y?namespace=team/app/", "team/app/x/y/"),
        ] {
            let target = EtcdTarget::parse(url).expect("a URL");
            assert_eq!((target.prefix.as_str(), target.shown().as_str()), (prefix, url));
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (url, said) in [
            ("etcdx://a", "unknown scheme"),
            ("etcd://:p@a", "without a user"),
            ("etcd://u@a", "without a password"),
            ("etcd://a?namespace=app", "end with one of"),
            ("etcd://a?x=1", "password-file, ca, cert, key"),
            ("etcd://a?ca=/x", "etcds"),
        ] {
            let error = EtcdTarget::parse(url).expect_err(url).to_string();
            assert!(error.contains(said), "{url}: {error}");
        }
    }
}
