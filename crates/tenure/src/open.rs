//! Which store a URL names.

use std::sync::Arc;

use tenure_core::error::{Error, Result};
use tenure_core::name::Quoted;
use tenure_core::store::{Opening, Store, memory};
#[cfg(feature = "redis")]
use tenure_redis::Opened;

#[cfg(feature = "redis")]
use crate::quorum::Quorum;

/// The table of URLs: each store is one line.
const STORES: &[StoreEntry] = &[
    StoreEntry {
        takes: |scheme| scheme == "memory",
        open: memory::open,
        shown: whole,
        exposure: none,
        has_login: false,
    },
    StoreEntry {
        takes: |scheme| scheme == "file",
        open: file,
        shown: whole,
        exposure: none,
        has_login: false,
    },
    #[cfg(feature = "redis")]
    StoreEntry {
        takes: tenure_redis::takes,
        open: redis,
        shown: tenure_redis::shown,
        exposure: tenure_redis::exposure,
        has_login: true,
    },
    #[cfg(feature = "postgres")]
    StoreEntry {
        takes: tenure_postgres::takes,
        open: tenure_postgres::open,
        shown: tenure_postgres::shown,
        exposure: tenure_postgres::exposure,
        has_login: true,
    },
    #[cfg(feature = "mysql")]
    StoreEntry {
        takes: tenure_mysql::takes,
        open: tenure_mysql::open,
        shown: tenure_mysql::shown,
        exposure: tenure_mysql::exposure,
        has_login: true,
    },
    #[cfg(feature = "etcd")]
    StoreEntry {
        takes: tenure_etcd::takes,
        open: tenure_etcd::open,
        shown: tenure_etcd::shown,
        exposure: tenure_etcd::exposure,
        has_login: false,
    },
    #[cfg(feature = "zookeeper")]
    StoreEntry {
        takes: tenure_zookeeper::takes,
        open: tenure_zookeeper::open,
        shown: tenure_zookeeper::shown,
        exposure: tenure_zookeeper::exposure,
        has_login: false,
    },
];

fn whole(url: &str) -> Option<String> {
    Some(url.to_owned())
}

fn none(_: &str) -> Option<&'static str> {
    None
}

/// The URL without its login, if it is valid.
pub fn shown(url: &str) -> Option<String> {
    (entry(url)?.shown)(url)
}

/// What somebody in the network could do to the store of a URL.
pub fn exposure(url: &str) -> Option<&'static str> {
    (entry(url)?.exposure)(url)
}

fn entry(url: &str) -> Option<&'static StoreEntry> {
    let scheme = scheme(url)?;
    STORES.iter().find(|entry| (entry.takes)(scheme))
}

/// The scheme, also of a URL of JDBC.
fn scheme(url: &str) -> Option<&str> {
    let (scheme, _) = url.strip_prefix("jdbc:").unwrap_or(url).split_once(':')?;
    Some(scheme)
}

#[cfg(unix)]
use tenure_file::open as file;

/// A directory needs `flock` and sockets.
#[cfg(not(unix))]
fn file(_: Opening<'_>) -> Result<Arc<dyn Store>> {
    let message = "store file is not supported on this system: use a store on a server, such as redis://HOST";
    Err(Error::unsupported(&"file".into(), message.to_owned()))
}

/// A store on Redis, or a quorum of several.
#[cfg(feature = "redis")]
fn redis(opening: Opening<'_>) -> Result<Arc<dyn Store>> {
    let runtime = Arc::clone(&opening.runtime);
    Ok(match tenure_redis::open(opening)? {
        Opened::Store(store) => store,
        Opened::Members { members, shown } => {
            Arc::new(Quorum::new(members, Box::new(()), runtime, Some(shown))?)
        }
    })
}

/// What schemes of stores begin with that a feature brings, the feature, and whether this build has
/// it.
const FEATURES: [(&str, &str, bool); 7] = [
    ("redis", "redis", cfg!(feature = "redis")),
    ("valkey", "redis", cfg!(feature = "redis")),
    ("postgres", "postgres", cfg!(feature = "postgres")),
    ("mysql", "mysql", cfg!(feature = "mysql")),
    ("mariadb", "mysql", cfg!(feature = "mysql")),
    ("etcd", "etcd", cfg!(feature = "etcd")),
    ("zookeeper", "zookeeper", cfg!(feature = "zookeeper")),
];

struct StoreEntry {
    /// Whether URLs of this scheme name such a store.
    takes: fn(&str) -> bool,
    /// Opens it, without I/O.
    open: fn(Opening<'_>) -> Result<Arc<dyn Store>>,
    /// The URL without its login.
    shown: fn(&str) -> Option<String>,
    /// What the network could do to it.
    exposure: fn(&str) -> Option<&'static str>,
    /// Whether a provider may supply its login.
    has_login: bool,
}

/// The scheme that was probably meant by one that no store takes.
fn meant(scheme: &str) -> Option<&'static str> {
    let scheme = scheme.to_ascii_lowercase();
    let is_tls = ["rediss", "valkeys", "tls", "ssl"].iter().any(|part| scheme.contains(part));
    let has = |part: &str| {
        scheme.contains(part) || scheme.split(['+', '-', '_']).any(|typed| is_one_edit_from(typed, part))
    };
    let is_redis = has("redis") || has("valkey");
    Some(match () {
        () if has("sentinel") => {
            if is_tls {
                "rediss-sentinel:"
            } else {
                "redis-sentinel:"
            }
        }
        () if has("cluster") => {
            if is_tls {
                "rediss-cluster:"
            } else {
                "redis-cluster:"
            }
        }
        () if has("quorum") || has("redlock") => {
            if is_tls {
                "rediss-quorum:"
            } else {
                "redis-quorum:"
            }
        }
        () if has("unix") || is_redis && has("socket") => "redis+unix:",
        () if is_redis => {
            if is_tls {
                "rediss:"
            } else {
                "redis:"
            }
        }
        () if has("postgres") || has("psql") || scheme == "pg" => "postgres:",
        () if has("mysql") || has("mariadb") => "mysql:",
        () if has("etcd") => {
            if is_tls || scheme.contains("https") {
                "etcds:"
            } else {
                "etcd:"
            }
        }
        () if has("zookeeper") || scheme == "zk" => "zookeeper:",
        () if scheme == "file" || scheme == "dir" => "file:",
        () => return None,
    })
}

/// Opens the store that a URL names. Does no I/O.
pub(crate) fn open(opening: Opening<'_>) -> Result<Arc<dyn Store>> {
    let scheme = scheme(opening.url);
    // Otherwise a part of the path, or of the name.
    if let Some("file" | "memory") = scheme
        && opening.url.contains("?namespace=")
    {
        let what = "store URL: `namespace` is for stores on servers, name another directory, or another `memory:NAME`";
        return Err(Error::invalid(what));
    }
    match (entry(opening.url), scheme) {
        (Some(entry), Some(scheme)) if opening.login.is_some() && !entry.has_login => {
            let message = format!("store {scheme} has no login: open it without one");
            Err(Error::unsupported(&scheme.into(), message))
        }
        (Some(entry), _) => (entry.open)(opening),
        (None, scheme) => {
            if let Some(scheme) = scheme
                && let Some((_, feature, false)) =
                    FEATURES.iter().find(|(begin, ..)| scheme.starts_with(begin))
            {
                let message = format!("store {scheme} needs the feature `{feature}`, which this build lacks");
                return Err(Error::unsupported(&scheme.into(), message));
            }
            // The store of this process alone is not offered: the client that asks for it by
            // mistake has no lock at all.
            let reads = "store URL: expected `file:DIR`, `redis://HOST`, `postgres://HOST`, \
                         `mysql://USER@HOST/DATABASE`, `etcd://HOST` or `zookeeper://HOST`";
            let url = opening.url;
            Err(Error::invalid(match scheme {
                Some(scheme) if let Some(meant) = meant(scheme) => {
                    format!(
                        "unknown scheme in the store's URL: got {}, did you mean `{meant}`?",
                        Quoted(scheme)
                    )
                }
                Some(scheme) => format!("{reads}, got one that begins with {}", Quoted(scheme)),
                None if url.starts_with('/') => {
                    format!("{reads}: this directory is {}", Quoted(&format!("file:{url}")))
                }
                None => format!("{reads}, got one that begins with {}", Quoted(url)),
            }))
        }
    }
}

/// Whether a typo of one letter, or of two swapped ones, separates the words.
fn is_one_edit_from(typed: &str, word: &str) -> bool {
    let is_same = |(a, b): &(&u8, &u8)| a == b;
    let (typed, word) = (typed.as_bytes(), word.as_bytes());
    let begin = typed.iter().zip(word).take_while(is_same).count();
    let (typed, word) = (&typed[begin..], &word[begin..]);
    let end = typed.iter().rev().zip(word.iter().rev()).take_while(is_same).count();
    match (&typed[..typed.len() - end], &word[..word.len() - end]) {
        ([a, b], [c, d]) => (a, b) == (d, c),
        (typed, word) => typed.len().max(word.len()) <= 1,
    }
}

#[cfg(test)]
mod tests {
    use super::meant;

    #[test]
    fn unknown_schemes_name_the_one_that_was_meant() {
        for (scheme, expected) in [
            ("REDIS", Some("redis:")),
            ("redis+ssl", Some("rediss:")),
            ("rediss+unix", Some("redis+unix:")),
            ("unix", Some("redis+unix:")),
            ("sentinels", Some("redis-sentinel:")),
            ("cluster", Some("redis-cluster:")),
            ("redis+clutser", Some("redis-cluster:")),
            ("redis-centinel", Some("redis-sentinel:")),
            ("redsi", Some("redis:")),
            ("postgers", Some("postgres:")),
            ("zookeper", Some("zookeeper:")),
            ("valkeys_cluster", Some("rediss-cluster:")),
            ("redlock", Some("redis-quorum:")),
            ("postgresql+psycopg", Some("postgres:")),
            ("etcd+https", Some("etcds:")),
            ("zk", Some("zookeeper:")),
            ("memcached", None),
            ("http", None),
            ("https", None),
            ("mysql+pymysql", Some("mysql:")),
            ("maraidb", Some("mysql:")),
            ("s3", None),
        ] {
            assert_eq!(meant(scheme), expected, "{scheme}");
        }
    }
}
