//! The conformance suite over every store.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use tenure::internals::store::memory::Memory;
use tenure::internals::{locks, testing_client};
use tenure::{Locks, Options, block_on};
use tenure_testkit::conformance::{Case, Fixture, Flavour, in_virtual_time};
use tenure_testkit::servers::{Cluster, Ensemble, Etcd, MariaDb, Postgres, Server, ZooKeeper};
use tokio::runtime::Builder;

/// Each client is a `Locks` with its own thread, descriptors and holder file, like another process;
/// `file_store` has the tests that need real processes.
mod file {
    use super::*;

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        let dir = tempfile::tempdir().expect("a directory");
        let url = format!("file:{}", dir.path().display());
        block_on(case(&real(&url).with(flavour)));
    }

    tenure_testkit::conformance!(crate::conformance::file::run);
}

/// In virtual time, with several task schedules.
mod memory {
    use super::*;

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        in_virtual_time(flavour, case, |runtime| {
            let store = Arc::new(Memory::new(Arc::clone(&runtime), "memory:"));
            move || locks(Arc::clone(&store) as _, Arc::clone(&runtime), Options::new()).expect("options")
        });
    }

    tenure_testkit::conformance!(crate::conformance::memory::run);
}

/// A server for each case, and a connection for each client.
mod redis {
    use super::*;

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        let server = Server::start();
        block_on(case(&real(&server.url()).with(flavour)));
    }

    tenure_testkit::conformance!(crate::conformance::redis::run);
}

/// Three masters and their replicas, reused empty by all cases, because starting them takes seconds.
mod cluster {
    use super::*;

    static IDLE: Mutex<Vec<Cluster>> = Mutex::new(Vec::new());

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        let idle = IDLE.lock().expect("no panic while it is taken").pop();
        let cluster = idle.unwrap_or_else(|| Cluster::start().calm().until_exit());
        for node in cluster.nodes() {
            node.command(&["FLUSHALL"]);
        }
        block_on(case(&real(&cluster.url()).with(flavour).without(&["a}b", "{}a"])));
        IDLE.lock().expect("no panic while it is taken").push(cluster);
    }

    tenure_testkit::conformance!(crate::conformance::cluster::run);
}

/// One server for all cases, with a schema for each, because starting it takes a second.
mod postgres {
    use super::*;

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        static SERVER: LazyLock<Postgres> = LazyLock::new(|| Postgres::start().until_exit());
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let schema = format!("case{}", NEXT.fetch_add(1, Ordering::Relaxed));
        block_on(case(&real(&SERVER.url(&schema)).with(flavour)));
    }

    tenure_testkit::conformance!(crate::conformance::postgres::run);
}

/// One server for all cases, with a database for each.
mod mysql {
    use super::*;

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        static SERVER: LazyLock<MariaDb> = LazyLock::new(|| MariaDb::start().until_exit());
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let database = format!("case{}", NEXT.fetch_add(1, Ordering::Relaxed));
        block_on(case(&real(&SERVER.url(&database)).with(flavour)));
    }

    tenure_testkit::conformance!(crate::conformance::mysql::run);
}

/// The simulated compare-and-swap server, in virtual time.
#[cfg(tenure_planted)]
mod cas {
    use super::*;
    use tenure::internals::store::cas::Cas;
    use tenure_testkit::sim::cas::Server;

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        in_virtual_time(flavour, case, |runtime| {
            let server = Server::new(Arc::clone(&runtime));
            move || {
                let store = Cas::new(Arc::new(server.clone()), "cas:sim", Arc::clone(&runtime));
                locks(Arc::new(store), Arc::clone(&runtime), Options::new()).expect("options")
            }
        });
    }

    tenure_testkit::conformance!(crate::conformance::cas::run);
}

/// One etcd for all cases, with a prefix for each.
mod etcd {
    use super::*;

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        static SERVER: LazyLock<Etcd> = LazyLock::new(|| Etcd::start().until_exit());
        static CASES: AtomicU32 = AtomicU32::new(0);
        let case_number = CASES.fetch_add(1, Ordering::Relaxed);
        // It syncs each change to disk, which can outlast the usual lease on a busy machine.
        let fixture = real(&format!("{}/{case_number}", SERVER.url())).ttl(Duration::from_millis(1_200));
        let fixture = fixture.on(|options| options.op_timeout(Duration::from_secs(10)));
        block_on(case(&fixture.with(flavour)));
    }

    tenure_testkit::conformance!(crate::conformance::etcd::run);
}

/// One ZooKeeper for all cases, with a path for each.
mod zookeeper {
    use super::*;

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        static SERVER: LazyLock<ZooKeeper> = LazyLock::new(crate::zookeeper::warmed);
        static CASES: AtomicU32 = AtomicU32::new(0);
        let case_number = CASES.fetch_add(1, Ordering::Relaxed);
        block_on(case(&real(&format!("{}/cases/{case_number}", SERVER.url())).with(flavour)));
    }

    tenure_testkit::conformance!(crate::conformance::zookeeper::run);
}

/// The store of `tenure::testing`, on tokio's paused clock.
mod testing {
    use super::*;

    fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
        let paused = Builder::new_current_thread().enable_time().start_paused(true).build();
        paused.expect("a runtime").block_on(async {
            let (_, control) = tenure::testing::store();
            let (_, runtime) = testing_client(&control);
            let fixture = Fixture::new(runtime, move || testing_client(&control).0).with(flavour);
            case(&fixture).await;
        });
    }

    tenure_testkit::conformance!(crate::conformance::testing::run);
}

/// Clients of the store at this URL, in real time.
fn real(url: &str) -> Fixture {
    let url = url.to_owned();
    Fixture::in_real_time(move || Locks::open(&url).expect("a store"))
}
