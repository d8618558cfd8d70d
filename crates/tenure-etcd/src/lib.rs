//! Locks on etcd: a key for each lock, with etcd leases as handles.
//!
//! ```text
//! PREFIX/lock/NAME     the lock; absent while it is free
//! PREFIX/line/NAME/ID  a part of the lock's wait queue
//! PREFIX/record/NAME   the record beside the lock
//! PREFIX/lease/ID      the marker of a lease, removed by etcd together with it
//! ```
//!
//! `url` parses URLs. `cluster` is the connection and the login, `wire` has the messages, and `server` implements
//! the store's operations. `diagnosis` is for `tenure doctor`.

mod cluster;
mod diagnosis;
mod server;
mod url;
mod wire;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use cluster::EtcdCluster;
pub use diagnosis::{EtcdDiagnosis, diagnose_etcd};
use tenure_core::cas::Cas;
use tenure_core::error::{Error, Result};
use tenure_core::name::Quoted;
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
    let tls = target.tls.as_ref().map(tls).transpose()?;
    Ok(Arc::new(Cas::new(Arc::new(EtcdCluster::new(target, tls)), &shown, opening.runtime)))
}

/// The URL without its login, if it is valid.
pub fn shown(url: &str) -> Option<String> {
    EtcdTarget::parse(url).ok().map(|target| target.shown())
}

/// Reads the certificate files.
fn tls(files: &Tls) -> Result<ClientTlsConfig> {
    let read = |file: &Path| {
        fs::read(file).map_err(|error| {
            let file = Quoted(file.to_str().expect("text of a URL"));
            Error::invalid(format!("the file {file} of this etcd URL cannot be read: {error}"))
        })
    };
    let mut config = ClientTlsConfig::new();
    match &files.ca {
        Some(file) => config = config.ca_certificate(Certificate::from_pem(read(file)?)),
        None => config = config.with_native_roots(),
    }
    if let Some((certificate, key)) = &files.identity {
        config = config.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    Ok(config)
}
