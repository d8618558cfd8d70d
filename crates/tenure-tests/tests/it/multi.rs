//! Several locks on two stores, a directory and a server, either of which may be silent.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real stores measure real time"
)]

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::{FutureExt, ready};
use tempfile::TempDir;
use tenure::internals::protocol::{Op, Verb};
use tenure::internals::store::memory::Memory;
use tenure::internals::store::{Decorator, Failure, StoreFuture, StoreReply, StoreRequest};
use tenure::internals::{Driver, Runtime, Store};
use tenure::{Guard, Locks, Multi, MultiGuard, Options, Renewal, Result, block_on};
use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::servers::{Server, eventually};

const LIMIT: Duration = Duration::from_millis(400);
/// Tolerance for a busy machine.
const SMALL: Duration = Duration::from_secs(5);
/// Less than a client needs that waits for one unanswered request.
const REQUEST: Duration = Duration::from_secs(15);
const SOON: Duration = Duration::from_secs(10);
/// Locks that disappear within a test were released.
const TTL: Duration = Duration::from_secs(120);

/// The store of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Server,
    Directory,
}

/// Where the locks are, in the order in which they are acquired.
const ORDERS: [[At; 3]; 2] =
    [[At::Server, At::Server, At::Directory], [At::Directory, At::Directory, At::Server]];
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Two stores, each of which can be made silent for a client of both.
struct Stores {
    server: Server,
    proxy: Proxy,
    dir: TempDir,
}

impl Stores {
    fn new() -> Self {
        let server = Server::start();
        let proxy = Proxy::start(server.address());
        Self { server, proxy, dir: tempfile::tempdir().expect("a directory") }
    }

    /// A client of one store; a `near` one bypasses the faults of the server.
    fn locks(&self, at: At, is_near: bool) -> Locks {
        let url = match at {
            At::Directory => format!("file:{}", self.dir.path().display()),
            At::Server if is_near => self.server.url(),
            At::Server => self.proxy.url(),
        };
        let options = Options::new().ttl(TTL).op_timeout(REQUEST);
        Locks::open(&url).and_then(|locks| locks.with(|_| options)).expect("a store")
    }

    /// Three locks in this order, of a client that has connected to both stores.
    fn client(&self, order: [At; 3]) -> Client {
        let [server, directory] = [At::Server, At::Directory].map(|at| self.locks(at, false));
        let part = |(at, name)| {
            let locks = if at == At::Server { &server } else { &directory };
            locks.mutex(name).expect("a name")
        };
        let multi = Multi::new(order.into_iter().zip(NAMES).map(part)).expect("three names");
        block_on(async { multi.try_lock().await?.expect("free locks").release().await })
            .expect("both answer");
        Client { multi, locks: [server, directory] }
    }

    /// A lock held by another client.
    fn hold(&self, at: At, name: &str) -> Guard {
        block_on(self.locks(at, true).mutex(name).expect("a name").lock()).expect("a free lock")
    }

    /// Makes one store silent while `what` runs.
    fn while_silent<T>(&self, at: At, what: impl FnOnce() -> T) -> T {
        match at {
            At::Server => {
                self.proxy.set(Fault::BlackHole);
                let done = what();
                self.proxy.set(Fault::None);
                done
            }
            At::Directory => {
                let guard = fs::File::open(self.dir.path().join("guard")).expect("a store that was used");
                guard.lock().expect("no client keeps it for long");
                what()
            }
        }
    }

    /// What both stores still have of the locks.
    fn kept(&self) -> Vec<String> {
        let keys = self.server.command(&["KEYS", "*"]);
        let keys = keys.items().iter().map(|key| key.text().to_owned());
        let files = fs::read_dir(self.dir.path()).expect("a directory");
        let files = files.map(|file| file.expect("a file").file_name().to_string_lossy().into_owned());
        let is_counter = |key: &String| key.starts_with("tenure:fence");
        keys.filter(|key| !is_counter(key)).chain(files.filter(|file| file.starts_with("lock-"))).collect()
    }
}

struct Client {
    multi: Multi,
    locks: [Locks; 2],
}

impl Client {
    /// Waits for all locks, and checks that this ends in time even if it fails.
    fn wait(&self, what: &str) -> Result<Option<MultiGuard>> {
        let started = Instant::now();
        let said = block_on(self.multi.try_lock_for(LIMIT));
        let took = started.elapsed();
        assert!(took >= LIMIT && took < LIMIT + SMALL, "{what}: {took:?}");
        said
    }

    /// Checks that nothing is left on either store, or on its way there.
    fn ends(self, stores: &Stores) {
        for locks in self.locks {
            block_on(locks.flush()).expect("all is given back");
        }
        assert_eq!(stores.kept(), [""; 0]);
    }
}

#[test]
fn all_are_held_on_both_stores_or_none_is() {
    let stores = Stores::new();
    for order in ORDERS {
        let client = stores.client(order);
        let guards = block_on(client.multi.try_lock_for(LIMIT)).expect("an answer").expect("free locks");
        assert_eq!(stores.kept().len(), 3);
        for (at, name) in order.into_iter().zip(NAMES) {
            let mutex = stores.locks(at, true).mutex(name).expect("a name");
            assert!(block_on(mutex.try_lock()).expect("an answer").is_none());
        }
        block_on(guards.release()).expect("a release");
        client.ends(&stores);
    }
}

#[test]
fn a_wait_ends_at_its_limit_whichever_is_held_and_leaves_nothing_of_the_others() {
    let stores = Stores::new();
    for order in ORDERS {
        let client = stores.client(order);
        for (at, name) in order.into_iter().zip(NAMES) {
            let guard = stores.hold(at, name);
            assert!(client.wait(name).expect("an answer").is_none());
            eventually("one is left", SOON, || stores.kept().len() == 1);
            block_on(guard.verify()).expect("it is another client's");
            block_on(guard.release()).expect("a release");
        }
        client.ends(&stores);
    }
}

#[test]
fn a_wait_ends_at_its_limit_whichever_store_is_silent_and_leaves_nothing_on_either() {
    let stores = Stores::new();
    for (order, silent) in ORDERS.into_iter().flat_map(|order| [(order, At::Server), (order, At::Directory)])
    {
        let (client, what) = (stores.client(order), format!("{order:?}, {silent:?} is silent"));
        stores.while_silent(silent, || {
            assert!(client.wait(&what).expect_err("silence").is_unreachable(), "{what}");
            // The lock on the other store is released without waiting for the silent one.
            let is_other = |kept: &String| kept.starts_with("lock-") == (silent == At::Server);
            eventually(&what, SOON, || !stores.kept().iter().any(is_other));
        });
        client.ends(&stores);
    }
}

#[test]
fn a_wait_for_a_held_lock_ends_at_its_limit_though_the_other_store_is_silent() {
    let stores = Stores::new();
    for order in ORDERS {
        let (client, [first, _, last]) = (stores.client(order), order);
        let guard = stores.hold(last, NAMES[2]);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| client.wait(&format!("{order:?}")));
            eventually("the others are taken", SOON, || stores.kept().len() == 3);
            stores.while_silent(first, || {
                let said = waiter.join().expect("no panic");
                assert!(said.expect("an answer").is_none());
            });
        });
        eventually("the others are given back", SOON, || stores.kept().len() == 1);
        block_on(guard.release()).expect("a release");
        client.ends(&stores);
    }
}

/// A store whose grants are processed late, and whose releases have unknown outcomes.
#[derive(Debug)]
struct Odd {
    memory: Memory,
    late: Duration,
}

impl Decorator for Odd {
    fn inner(&self) -> &dyn Store {
        &self.memory
    }

    fn call(&self, request: StoreRequest, within: Duration) -> StoreFuture<StoreReply> {
        if let StoreRequest::Lock(Op { verb: Verb::Release { .. }, .. }) = request {
            return ready(Err(Failure::Unknown(Failure::cause("no client knows")))).boxed();
        }
        let (late, granted) = (self.late, self.memory.call(request, within));
        async move {
            let granted = granted.await;
            // In the poll in which it arrives: a client that also waits for something else sees both at once.
            thread::sleep(late);
            granted
        }
        .boxed()
    }
}

#[test]
fn a_lock_lost_while_the_last_is_taken_is_reported_even_if_releases_fail() {
    let runtime = Driver::start().expect("a thread");
    let locks = |late, ttl| {
        let runtime = Arc::clone(&runtime) as Arc<dyn Runtime>;
        let store = Odd { memory: Memory::new(Arc::clone(&runtime), "memory:odd"), late };
        let options = Options::new().ttl(ttl).renewal(Renewal::Off);
        tenure::internals::locks(Arc::new(store), runtime, options).expect("the options are right")
    };
    let short = Duration::from_millis(50);
    let (first, last) = (locks(Duration::ZERO, short), locks(3 * short, TTL));
    let parts = [first.mutex("a"), last.mutex("b")].map(|part| part.expect("a name"));
    let error = block_on(Multi::new(parts).expect("two names").try_lock()).expect_err("one is lost");
    assert!(error.is_lost(), "{error:?}");
}
