//! Locks on ZooKeeper: a node for each lock, an ephemeral node for each session as its marker.
//!
//! ```text
//! PREFIX/lock/NAME            the lock; absent while it is free. NAME is percent-encoded
//! PREFIX/lock/NAME/CREATION   which creation of the node it is: a node that is deleted and created
//!                             again has the versions of the one before
//! PREFIX/lease/ID             the marker of a session, which ZooKeeper removes with it
//! ```
//!
//! The map: `url` reads URLs. `jute` is ZooKeeper's way to write messages, and `messages` has those
//! that this store sends. `dial` opens connections, and `link` keeps one session over them. `path`
//! and `nodes` have what the nodes are called and hold, `server` carries out what the locks ask,
//! and `watch` hears of changes.

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

use server::Server;
use tenure_core::cas::Cas;
use tenure_core::error::Result;
use tenure_core::store::{Opening, Store};
use url::Target;

/// Whether URLs that begin so name ZooKeeper.
#[must_use]
pub fn takes(scheme: &str) -> bool {
    matches!(scheme, "zookeeper" | "zookeepers")
}

/// Opens the store that a URL names, without I/O.
///
/// # Errors
/// `is_invalid`, with the part of the URL that is wrong.
pub fn open(opening: Opening<'_>) -> Result<Arc<dyn Store>> {
    let target = Target::parse(opening.url)?;
    let shown = target.shown();
    let server = Server::new(target, Arc::clone(&opening.runtime));
    Ok(Arc::new(Cas::new(Arc::new(server), &shown, opening.runtime)))
}

/// A URL of ZooKeeper without its login, if it is one.
pub fn shown(url: &str) -> Option<String> {
    Target::parse(url).ok().map(|target| target.shown())
}
