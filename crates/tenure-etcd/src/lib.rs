//! Locks on etcd: a key for each lock, with etcd leases as sessions.
//!
//! ```text
//! PREFIX/lock/NAME     the lock; absent while it is free
//! PREFIX/line/NAME/ID  a part of the lock's wait queue
//! PREFIX/record/NAME   the record beside the lock
//! PREFIX/lease/ID      the marker of a lease, removed by etcd together with it; says the client's version
//! ```
//!
//! `url` parses URLs. `cluster` is the connection and the login, `wire` has the messages, and `server` implements
//! the store's operations. `diagnosis` is for `tenure doctor`, `bare` for `tenure bench`.

mod bare;
mod cluster;
mod diagnosis;
mod flight;
mod gather;
mod server;
mod url;
mod wire;

use std::sync::Arc;

pub use bare::bare_etcd;
use cluster::EtcdCluster;
pub use diagnosis::{EtcdDiagnosis, diagnose_etcd};
use tenure_core::cas::Cas;
use tenure_core::error::Result;
use tenure_core::net::Tls;
use tenure_core::store::{Opening, Store};
use url::EtcdTarget;

/// Whether this URL scheme belongs to this store.
#[must_use]
pub fn takes(scheme: &str) -> bool {
    matches!(scheme, "etcd" | "etcds")
}

/// Opens the store of a URL, without I/O.
///
/// # Errors
/// `is_invalid`, with the part of the URL that is wrong.
pub fn open(opening: Opening<'_>) -> Result<Arc<dyn Store>> {
    let target = EtcdTarget::parse(opening.url)?;
    let shown = target.shown();
    let cluster = EtcdCluster::new(target, Arc::clone(&opening.runtime));
    Ok(Arc::new(Cas::new(Arc::new(cluster), &shown, opening.runtime)))
}

/// The URL without its login, if it is valid.
pub fn shown(url: &str) -> Option<String> {
    EtcdTarget::parse(url).ok().map(|target| target.shown())
}

/// What somebody in the network could do to the store of a URL.
pub fn exposure(url: &str) -> Option<&'static str> {
    EtcdTarget::parse(url).ok().and_then(|target| Tls::exposure(target.tls.as_ref(), &target.addresses))
}
