//! Every set of nodes that can fail at once, in three ways.

use std::error::Error;
use std::thread;
use std::time::Duration;

use tenure::{Locks, Options, block_on};
use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::servers::{Server, eventually};

use crate::nodes::Nodes;

/// What is wrong with a node.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// Nobody listens there.
    Down,
    /// It does not let us in, or lets us do nothing.
    Refusing,
    /// It was connected to, and answers nothing any more.
    Slow,
}

/// Longer than the test, so that whatever is gone at its end was given back.
const TTL: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(30);
/// So many sets are tried at a time.
const AT_ONCE: usize = 8;

/// The members of one client, with what is between them and the nodes.
struct Client {
    locks: Locks,
    urls: Vec<String>,
    proxies: Vec<Proxy>,
}

impl Client {
    fn new(nodes: &[Server], dead: &Server, troubled: u32, trouble: Trouble) -> Self {
        let mut proxies = Vec::new();
        let mut member = |(index, node): (usize, &Server)| {
            if troubled & (1 << index) == 0 {
                return (node.url(), block_on(Locks::connect(&node.url())).expect("a node that answers"));
            }
            let url = match trouble {
                // Distinct, as those of several dead nodes would be.
                Trouble::Down => format!("redis://{}/{index}", dead.address()),
                Trouble::Refusing if index % 2 == 0 => format!("redis://nobody:wrong@{}", node.address()),
                Trouble::Refusing => format!("redis://nobody:right@{}", node.address()),
                Trouble::Slow => {
                    let proxy = Proxy::start(node.address());
                    let url = proxy.url();
                    let locks = block_on(Locks::connect(&url)).expect("a node that answers yet");
                    proxy.set(Fault::BlackHole);
                    proxies.push(proxy);
                    return (url, locks);
                }
            };
            let locks = Locks::open(&url).expect("a store");
            (url.replace("nobody:wrong@", "").replace("nobody:right@", ""), locks)
        };
        let (urls, members): (Vec<_>, Vec<_>) = nodes.iter().enumerate().map(&mut member).unzip();
        let options = Options::new().ttl(TTL).op_timeout(Duration::from_millis(3_200));
        let locks = Locks::quorum(members).and_then(|locks| locks.with(options)).expect("a quorum");
        Self { locks, urls, proxies }
    }
}

/// The verdict is right, says what is wrong with whom, and nothing is left.
fn judge(nodes: &[Server], dead: &Server, troubled: u32, trouble: Trouble) {
    let name = format!("{trouble:?}:{troubled:b}");
    let clients = [(); 2].map(|()| Client::new(nodes, dead, troubled, trouble));
    let [one, two] = clients.each_ref().map(|client| client.locks.mutex(&name).expect("a name"));
    let healthy = nodes.len() - troubled.count_ones() as usize;
    if healthy > nodes.len() / 2 {
        let guard = block_on(one.try_lock()).expect("an answer").expect("a free lock");
        assert!(block_on(two.try_lock()).expect("an answer").is_none(), "{name} is held");
        block_on(guard.verify()).expect("it is held");
        let status = block_on(clients[1].locks.inspect(&name)).expect("an answer").expect("a holder");
        assert_eq!(status.holders[0].owner.as_ref(), Some(guard.owner()), "{name}");
        let first = guard.fence();
        block_on(guard.release()).expect("a release");
        let guard = block_on(two.try_lock()).expect("an answer").expect("a free lock");
        assert!(guard.fence() > first, "{name}: {} after {first}", guard.fence());
        block_on(guard.release()).expect("a release");
    } else {
        let error = block_on(one.try_lock()).expect_err("no majority");
        match trouble {
            Trouble::Refusing => assert!(error.is_refused(), "{name}: {error:?}"),
            Trouble::Down | Trouble::Slow => assert!(error.is_unreachable(), "{name}: {error:?}"),
        }
        let why = error.source().expect("a cause").to_string();
        for (index, url) in clients[0].urls.iter().enumerate() {
            let said = why.split("; ").find(|part| part.starts_with(url.as_str()));
            let is_troubled = troubled & (1 << index) != 0;
            // It is decided as soon as it can be, and on a busy machine anybody may not have answered by then.
            let is_slow = said.is_some_and(|said| said.contains("answer"));
            assert!(is_slow || said.is_some() == is_troubled, "{name}: {url} in {why}");
        }
    }
    for proxy in clients.iter().flat_map(|client| &client.proxies) {
        proxy.set(Fault::None);
    }
    eventually(&format!("{name} is gone everywhere"), SOON, || nodes.iter().all(|node| !node.has(&name)));
}

fn every_set_of(count: usize) {
    let nodes = Nodes::new(count);
    let dead = Server::start();
    dead.kill();
    for node in nodes.iter() {
        // Everything but what locks need.
        node.command(&["ACL", "SETUSER", "nobody", "on", ">right", "~*", "&*", "+@all", "-@scripting"]);
    }
    let cases: Vec<(u32, Trouble)> = [Trouble::Slow, Trouble::Down, Trouble::Refusing]
        .into_iter()
        .flat_map(|trouble| (0..1 << count).map(move |troubled| (troubled, trouble)))
        .collect();
    let (nodes, dead) = (&nodes[..], &dead);
    thread::scope(|scope| {
        for worker in 0..AT_ONCE {
            let cases = cases.iter().skip(worker).step_by(AT_ONCE);
            scope
                .spawn(move || cases.for_each(|(troubled, trouble)| judge(nodes, dead, *troubled, *trouble)));
        }
    });
}

#[test]
fn a_lock_on_three_is_held_exactly_if_two_can_be_asked() {
    every_set_of(3);
}

#[test]
fn a_lock_on_five_is_held_exactly_if_three_can_be_asked() {
    every_set_of(5);
}
