//! Which store a URL names.

use std::sync::Arc;

#[cfg(feature = "etcd")]
use super::etcd;
#[cfg(feature = "postgres")]
use super::postgres;
#[cfg(feature = "redis")]
use super::redis;
#[cfg(feature = "zookeeper")]
use super::zookeeper;
use super::{Opening, Store, file, memory};
use crate::error::{Error, Result};
use crate::name::Quoted;

/// All stores that a URL can name. A new store enters here, in one line.
const STORES: &[Entry] = &[
    Entry { takes: |scheme| scheme == "memory", open: memory::open, has_login: false },
    Entry { takes: |scheme| scheme == "file", open: file::open, has_login: false },
    #[cfg(feature = "redis")]
    Entry { takes: redis::takes, open: redis::open, has_login: true },
    #[cfg(feature = "postgres")]
    Entry { takes: postgres::takes, open: postgres::open, has_login: false },
    #[cfg(feature = "etcd")]
    Entry { takes: etcd::takes, open: etcd::open, has_login: false },
    #[cfg(feature = "zookeeper")]
    Entry { takes: zookeeper::takes, open: zookeeper::open, has_login: false },
];

/// What schemes of stores begin with that a feature brings, the feature, and whether this build has
/// it.
const FEATURES: [(&str, &str, bool); 5] = [
    ("redis", "redis", cfg!(feature = "redis")),
    ("valkey", "redis", cfg!(feature = "redis")),
    ("postgres", "postgres", cfg!(feature = "postgres")),
    ("etcd", "etcd", cfg!(feature = "etcd")),
    ("zookeeper", "zookeeper", cfg!(feature = "zookeeper")),
];

struct Entry {
    /// Whether URLs of this scheme name such a store.
    takes: fn(&str) -> bool,
    /// Opens it, without I/O.
    open: fn(Opening<'_>) -> Result<Arc<dyn Store>>,
    has_login: bool,
}

/// Opens the store that a URL names. Does no I/O.
pub(crate) fn open(opening: Opening<'_>) -> Result<Arc<dyn Store>> {
    let scheme = opening.url.split_once(':').map(|(scheme, _)| scheme);
    let entry = scheme.and_then(|scheme| STORES.iter().find(|entry| (entry.takes)(scheme)));
    match (entry, scheme) {
        (Some(entry), Some(scheme)) if opening.has_login() && !entry.has_login => {
            let message = format!("store {scheme} has no login: open it without one");
            Err(Error::unsupported(&scheme.into(), message))
        }
        (Some(entry), _) => (entry.open)(opening),
        (None, scheme) => {
            if let Some(scheme) = scheme
                && let Some((_, feature, false)) =
                    FEATURES.iter().find(|(begin, ..)| scheme.starts_with(begin))
            {
                let message =
                    format!("store {scheme} needs the feature `{feature}`, and this build is without it");
                return Err(Error::unsupported(&scheme.into(), message));
            }
            // The store of this process alone is not offered: the client that asks for it by
            // mistake has no lock at all.
            let reads = "a store's URL reads `file:DIR`, `redis://HOST`, `postgres://HOST`, `etcd://HOST` or \
                         `zookeeper://HOST`";
            let url = opening.url;
            Err(Error::invalid(match scheme {
                Some(scheme) => format!("{reads}, and this one begins with {}", Quoted(scheme)),
                None if url.starts_with('/') => {
                    format!("{reads}: this directory is {}", Quoted(&format!("file:{url}")))
                }
                None => format!("{reads}, and this one begins with {}", Quoted(url)),
            }))
        }
    }
}
