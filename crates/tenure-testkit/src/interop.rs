//! The other clients that ours is tested against.

use std::path::PathBuf;

/// The Python that has redis-py, for the locks of others.
///
/// # Panics
/// If it is not there, saying how to install it.
pub fn python() -> PathBuf {
    let python = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/python/bin/python"));
    assert!(python.exists(), "no redis-py in target/python; the tests need it: scripts/install-test-needs");
    python
}
