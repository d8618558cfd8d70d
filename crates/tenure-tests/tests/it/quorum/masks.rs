//! Every set of nodes that can fail at once, in four ways, and the cost of a failed minority, in five.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real servers measure real time"
)]

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use tenure::{Locks, Options, block_on};
use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::servers::{Server, eventually};

use super::nodes::Nodes;

/// The failure of a node.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// Nothing listens there.
    Down,
    /// It rejects the login, or scripts.
    Refusing,
    /// It was connected, and no longer answers.
    Silent,
    /// It answers just after the timeout of a member.
    Late,
    /// It loses all its data before each call.
    Emptied,
}

/// Longer than the test, so what is gone at its end was released.
const TTL: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(30);
/// Timeout of a member's request where every set is tried.
const SMALL_TIME: Duration = Duration::from_millis(800);
/// Sets tried concurrently.
const AT_ONCE: usize = 16;

/// The members as one client reaches them.
struct Client {
    locks: Locks,
    urls: Vec<String>,
    proxies: Vec<Proxy>,
}

impl Client {
    /// `small` is the timeout of a member's request.
    fn new(nodes: &[Server], dead: &Server, troubled: u32, trouble: Trouble, small: Duration) -> Self {
        let mut proxies = Vec::new();
        let mut member = |(index, node): (usize, &Server)| {
            if troubled & (1 << index) == 0 || matches!(trouble, Trouble::Emptied) {
                return (node.url(), block_on(Locks::connect(&node.url())).expect("a node that answers"));
            }
            let url = match trouble {
                // Distinct, as those of several dead nodes would be.
                Trouble::Down => format!("redis://{}/{index}", dead.address()),
                Trouble::Refusing if index % 2 == 0 => format!("redis://nobody:wrong@{}", node.address()),
                Trouble::Refusing => format!("redis://nobody:right@{}", node.address()),
                Trouble::Silent | Trouble::Late | Trouble::Emptied => {
                    let proxy = Proxy::start(node.address());
                    let url = proxy.url();
                    let locks = block_on(Locks::connect(&url)).expect("a node that answers yet");
                    let fault = match trouble {
                        Trouble::Late => Fault::Delay(small * 9 / 16), // in each direction
                        _ => Fault::BlackHole,
                    };
                    proxy.set(fault);
                    proxies.push(proxy);
                    return (url, locks);
                }
            };
            let locks = Locks::open(&url).expect("a store");
            (url.replace("nobody:wrong@", "").replace("nobody:right@", ""), locks)
        };
        let (urls, members): (Vec<_>, Vec<_>) = nodes.iter().enumerate().map(&mut member).unzip();
        let options = Options::new().ttl(TTL).op_timeout(4 * small);
        let locks = Locks::quorum(members).and_then(|locks| locks.with(|_| options)).expect("a quorum");
        Self { locks, urls, proxies }
    }
}

/// Checks the verdict and its reasons, and that nothing is left.
fn judge(nodes: &[Server], dead: &Server, troubled: u32, trouble: Trouble) {
    let name = format!("{trouble:?}:{troubled:b}");
    let clients = [(); 2].map(|()| Client::new(nodes, dead, troubled, trouble, SMALL_TIME));
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
            Trouble::Down | Trouble::Silent | Trouble::Late | Trouble::Emptied => {
                assert!(error.is_unreachable(), "{name}: {error:?}")
            }
        }
        let why = error.source().expect("a cause").to_string();
        for (index, url) in clients[0].urls.iter().enumerate() {
            let said = why.split("; ").find(|part| part.starts_with(url.as_str()));
            let is_troubled = troubled & (1 << index) != 0;
            // It is decided as early as possible, and on a busy machine any node may not have answered by
            // then.
            let is_slow =
                said.is_some_and(|said| ["answer", "outcome unknown"].iter().any(|late| said.contains(late)));
            assert!(is_slow || said.is_some() == is_troubled, "{name}: {url} in {why}");
        }
    }
    for proxy in clients.iter().flat_map(|client| &client.proxies) {
        proxy.set(Fault::None);
    }
    eventually(&format!("{name} is gone everywhere"), SOON, || nodes.iter().all(|node| !node.has(&name)));
}

/// An address where nothing listens.
fn dead() -> Server {
    let server = Server::start();
    server.kill();
    server
}

/// The user `nobody` may do everything except run scripts.
fn forbid_scripts_to_nobody(nodes: &[Server]) {
    for node in nodes {
        node.command(&["ACL", "SETUSER", "nobody", "on", ">right", "~*", "&*", "+@all", "-@scripting"]);
    }
}

fn every_set_of(count: usize) {
    let (nodes, dead) = (Nodes::new(count), dead());
    forbid_scripts_to_nobody(&nodes);
    let cases: Vec<(u32, Trouble)> = [Trouble::Silent, Trouble::Late, Trouble::Down, Trouble::Refusing]
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

/// The same where calls are timed.
const SMALLER_TIME: Duration = Duration::from_millis(250);

/// The duration of the quickest call of each sort in a few rounds, because other load only adds to it: the
/// holder acquires, verifies and releases, and another client is refused.
fn calls_take(nodes: &[Server], dead: &Server, troubled: u32, trouble: Trouble) -> [Duration; 4] {
    let clients = [(); 2].map(|()| Client::new(nodes, dead, troubled, trouble, SMALLER_TIME));
    let name = format!("costs:{trouble:?}:{troubled:b}");
    let [one, two] = clients.each_ref().map(|client| client.locks.mutex(&name).expect("a name"));
    let mut took = [const { Vec::new() }; 4];
    let are_emptied = matches!(trouble, Trouble::Emptied);
    let empty = || {
        let is_emptied = |index: usize| are_emptied && troubled & (1 << index) != 0;
        for (_, node) in nodes.iter().enumerate().filter(|(index, _)| is_emptied(*index)) {
            node.command(&["FLUSHALL"]);
        }
    };
    for _ in 0..20 {
        empty();
        let mut started = Instant::now();
        let mut lap = |call: usize| {
            took[call].push(started.elapsed());
            if call == 0 && are_emptied {
                // A majority would be enough, but the lock must outlive this failure.
                eventually("all have it", SOON, || nodes.iter().all(|node| node.has(&name)));
            }
            empty();
            started = Instant::now();
        };
        let guard = block_on(one.try_lock()).expect("an answer").expect("a free lock");
        lap(0);
        assert!(block_on(two.try_lock()).expect("an answer").is_none(), "{name} is held");
        lap(1);
        block_on(guard.verify()).expect("it is held");
        lap(2);
        block_on(guard.release()).expect("a release");
        lap(3);
    }
    took.map(|took| took.into_iter().min().expect("20 turns"))
}

#[test]
fn a_troubled_minority_costs_no_call_more_than_its_small_time() {
    // With `Refusing`, the first node rejects the login, and the second scripts.
    for (count, sets) in [(3, &[0b01, 0b10][..]), (5, &[0b11])] {
        let (nodes, dead) = (Nodes::new(count), dead());
        forbid_scripts_to_nobody(&nodes);
        let healthy = calls_take(&nodes, &dead, 0, Trouble::Down);
        for trouble in [Trouble::Down, Trouble::Refusing, Trouble::Silent, Trouble::Late, Trouble::Emptied] {
            for set in sets {
                let took = calls_take(&nodes, &dead, *set, trouble);
                let most = healthy.map(|healthy| healthy + SMALLER_TIME);
                let is_more = took.iter().zip(&most).any(|(took, most)| took > most);
                assert!(!is_more, "{count} nodes, {trouble:?} {set:b}: {took:?} instead of {most:?}");
            }
        }
    }
}
