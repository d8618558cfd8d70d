//! The conformance suite over every store.
#![expect(missing_docs, reason = "the macro's tests are their own documentation")]

use tenure::internals::Driver;
use tenure::{Locks, block_on};
use tenure_testkit::conformance::{Case, Place};

mod memory {
    use super::*;

    fn run(case: for<'a> fn(&'a Place) -> Case<'a>) {
        let locks = Locks::memory();
        let place = Place::new(Driver::start().expect("a thread"), move || locks.clone());
        block_on(case(&place));
    }

    tenure_testkit::conformance!(super::run);
}
