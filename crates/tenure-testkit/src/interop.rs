//! Other clients that interoperability tests run against.

use std::path::PathBuf;

/// The Python interpreter with redis-py.
///
/// # Panics
/// If it is not installed, with a hint how to install it.
pub fn python() -> PathBuf {
    let python = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/python/bin/python"));
    assert!(python.exists(), "no redis-py in target/python; the tests need it: scripts/install-test-needs");
    python
}
