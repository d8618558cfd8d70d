//! The conformance suite over every store.

use tenure::internals::Driver;
use tenure::{Locks, block_on};
use tenure_testkit::conformance::{Case, Place};
use tenure_testkit::servers::Server;

/// Each client is a `Locks` of its own, with a thread, descriptors and a holder file as another process would have them;
/// `file_store.rs` has what takes real processes.
mod file {
    use super::*;

    fn run(case: for<'a> fn(&'a Place) -> Case<'a>) {
        let dir = tempfile::tempdir().expect("a directory");
        let url = format!("file:{}", dir.path().display());
        let place =
            Place::new(Driver::start().expect("a thread"), move || Locks::open(&url).expect("a store"));
        block_on(case(&place));
    }

    tenure_testkit::conformance!(super::run);
}

mod memory {
    use super::*;

    fn run(case: for<'a> fn(&'a Place) -> Case<'a>) {
        let locks = Locks::memory();
        let place = Place::new(Driver::start().expect("a thread"), move || locks.clone());
        block_on(case(&place));
    }

    tenure_testkit::conformance!(super::run);
}

/// A server of its own for each case, and a connection of its own for each client.
mod redis {
    use super::*;

    fn run(case: for<'a> fn(&'a Place) -> Case<'a>) {
        let server = Server::start();
        let url = server.url();
        let place =
            Place::new(Driver::start().expect("a thread"), move || Locks::open(&url).expect("a store"));
        block_on(case(&place));
    }

    tenure_testkit::conformance!(super::run);
}
