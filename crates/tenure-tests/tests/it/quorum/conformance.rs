//! The conformance cases that apply to a quorum.

use std::sync::Arc;

use tenure::internals::store::memory::Memory;
use tenure::internals::store::quorum::Quorum;
use tenure::internals::{Store, locks};
use tenure::{Locks, Options, block_on};
use tenure_testkit::conformance::{Case, Fixture, Flavour, in_virtual_time};
use tenure_testkit::servers::Server;

use super::nodes::{Nodes, url};

mod three {
    use super::*;

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        let nodes = Nodes::new(3);
        real(nodes.url(), flavour, case);
    }

    tenure_testkit::conformance_mutex!(crate::quorum::conformance::three::run);
}

mod five {
    use super::*;

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        let nodes = Nodes::new(5);
        real(nodes.url(), flavour, case);
    }

    tenure_testkit::conformance_mutex!(crate::quorum::conformance::five::run);
}

mod three_of_which_one_is_dead {
    use super::*;

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        let (dead, nodes) = (Server::start(), Nodes::new(2));
        dead.kill();
        real(format!("redis-quorum://{},{}", dead.address(), &url(&nodes)[15..]), flavour, case);
    }

    tenure_testkit::conformance_mutex!(crate::quorum::conformance::three_of_which_one_is_dead::run);
}

/// In virtual time, with several task schedules.
mod memory {
    use super::*;

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        in_virtual_time(flavour, case, |runtime| {
            let member = |_| Arc::new(Memory::new(Arc::clone(&runtime), "memory:")) as Arc<dyn Store>;
            let members: Vec<_> = (0..3).map(member).collect();
            move || {
                let store = Quorum::new(members.clone(), Box::new(()), Arc::clone(&runtime), None);
                locks(Arc::new(store.expect("a quorum")), Arc::clone(&runtime), Options::new())
                    .expect("options")
            }
        });
    }

    tenure_testkit::conformance_mutex!(crate::quorum::conformance::memory::run);
}

/// In real time, with connections of its own for each client.
fn real(url: String, flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
    let open = move || Locks::open(&url).expect("a store");
    let fixture = Fixture::in_real_time(open).with(flavour);
    block_on(case(&fixture));
}
