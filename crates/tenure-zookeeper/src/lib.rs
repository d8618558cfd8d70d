//! Locks on ZooKeeper: a node for each lock, and an ephemeral node as the marker of each session.
//!
//! ```text
//! PREFIX/lock/NAME            the lock; absent while it is free. NAME is percent-encoded
//! PREFIX/lock/NAME/CREATION   identifies the creation of the node, because the versions of a node that
//!                             is deleted and created again start over
//! PREFIX/lock/NAME/line-ID    a part of the lock's wait queue
//! PREFIX/lease/ID             the marker of a session, removed by ZooKeeper together with it; says the
//!                             client's version, until the session's hold is ended by another client
//! ```
//!
//! `url` parses URLs. `jute` is ZooKeeper's encoding, and `messages` has the messages that this store sends.
//! `dial` opens connections, and `link` keeps one session alive over them. `path` and `nodes` define the
//! names and contents of the nodes, `commit` has the steps of a commit, `server` implements the store's
//! operations, and `watch` reports changes.

mod bare;
mod commit;
mod dial;
mod jute;
mod link;
mod messages;
mod nodes;
mod path;
mod server;
mod url;
mod watch;

use std::sync::Arc;

pub use bare::bare_zookeeper;
use server::Ensemble;
pub use server::{ZooKeeperDiagnosis, diagnose_zookeeper, zookeeper_clients};
use tenure_core::cas::Cas;
use tenure_core::error::Result;
use tenure_core::net::Tls;
use tenure_core::store::{Opening, Store};
use url::ZooKeeperTarget;

/// Whether this URL scheme belongs to this store.
#[must_use]
pub fn takes(scheme: &str) -> bool {
    matches!(scheme, "zookeeper" | "zookeepers")
}

/// Opens the store of a URL, without I/O.
///
/// # Errors
/// `is_invalid`, with the part of the URL that is wrong.
pub fn open(opening: Opening<'_>) -> Result<Arc<dyn Store>> {
    let target = ZooKeeperTarget::parse(opening.url)?;
    let shown = target.shown();
    let server = Ensemble::new(target, Arc::clone(&opening.runtime));
    Ok(Arc::new(Cas::new(Arc::new(server), &shown, opening.runtime)))
}

/// The URL without its login, if it is valid.
pub fn shown(url: &str) -> Option<String> {
    ZooKeeperTarget::parse(url).ok().map(|target| target.shown())
}

/// What somebody in the network could do to the store of a URL.
pub fn exposure(url: &str) -> Option<&'static str> {
    ZooKeeperTarget::parse(url).ok().and_then(|target| Tls::exposure(target.tls.as_ref(), &target.addresses))
}
