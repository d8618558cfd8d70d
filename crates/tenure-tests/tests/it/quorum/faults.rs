//! Nodes that are stopped, start empty, have wrong clocks, or are the same server.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "real servers take real time and threads"
)]

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tenure::{Guard, Locks, Options, Renewal, block_on};
use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::servers::{Config, Server, eventually};
use tenure_testkit::timed::in_time;

use super::nodes::{Nodes, url};
use crate::common::{ms, with};

const SOON: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(60 * 60);

fn held(locks: &Locks, name: &str) -> Option<Guard> {
    block_on(locks.mutex(name).expect("a name").try_lock()).expect("an answer")
}

/// Waits until all nodes have the lock, because it is granted once a majority has it. A client must not lose
/// a node of a bare majority, and late requests also arrive after a restart.
fn all_have(nodes: &[Server], name: &str) {
    eventually("all have it", SOON, || nodes.iter().all(|node| node.has(name)));
}

#[test]
fn nodes_without_memory_give_no_lock_and_take_back_what_they_gave() {
    let nodes = Nodes::new(3);
    let locks = with(&nodes.url(), Options::new());
    let guard = held(&locks, "x").expect("a free lock");
    all_have(&nodes, "x");
    let set = |bytes: &str| {
        for node in &*nodes {
            node.command(&["CONFIG", "SET", "maxmemory", bytes]);
        }
    };
    set("1");
    let refused = block_on(locks.mutex("y").expect("a name").try_lock()).expect_err("no memory");
    assert!(refused.is_refused(), "{refused}");
    block_on(guard.renew()).expect("a renewal");
    block_on(guard.release()).expect("a release");
    assert!(!nodes.iter().any(|node| node.has("x") || node.has("y")));
    set("0");
    drop(held(&locks, "y").expect("a free lock"));
}

#[test]
fn what_is_no_lock_at_most_nodes_is_not_waited_for() {
    let nodes = Nodes::new(3);
    let locks = with(&nodes.url(), Options::new());
    nodes[0].command(&["RPUSH", "x", "a"]);
    drop(held(&locks, "x").expect("a majority"));
    nodes[1].command(&["RPUSH", "y", "a"]);
    nodes[2].command(&["RPUSH", "y", "a"]);
    let error = block_on(locks.mutex("y").expect("a name").lock()).expect_err("no lock");
    assert!(error.is_mismatch() && error.to_string().ends_with("a list"), "{error}");
}

#[test]
fn a_silent_node_costs_one_call_its_time_and_no_more() {
    let nodes = Nodes::new(3);
    let proxy = Proxy::start(nodes[2].address());
    let urls = [nodes[0].url(), nodes[1].url(), proxy.url()];
    let members = urls.iter().map(|url| block_on(Locks::connect(url)).expect("a node that answers"));
    let options = Options::new().op_timeout(ms(8_000));
    let locks = Locks::quorum(members).and_then(|locks| locks.with(|_| options)).expect("a quorum");
    block_on(held(&locks, "warm").expect("a free lock").release()).expect("a release");
    // One grants and one is busy, so the third would decide.
    nodes[0].command(&["SET", "x", "another client", "PX", "60000"]);
    proxy.set(Fault::BlackHole);
    let took = |name: &str| {
        let started = Instant::now();
        let busy = held(&locks, name).is_none();
        (busy, started.elapsed())
    };
    let (busy, first) = took("x");
    assert!(busy && first >= ms(800), "{busy} {first:?}");
    in_time(first, ms(6_000));
    let (busy, second) = took("x");
    assert!(busy);
    in_time(second, ms(800));
    // Once it answers, requests wait for it again.
    proxy.set(Fault::None);
    eventually("the third decides", SOON, || held(&locks, "x").is_some());
}

#[test]
fn a_minority_whose_clock_steps_by_an_hour_costs_nothing() {
    let nodes = Nodes::new(5);
    let ttl = ms(2_000);
    let options = Options::new().ttl(ttl);
    let (ours, theirs) = (with(&nodes.url(), options.clone()), with(&nodes.url(), options));
    let mut last = 0;
    // A node whose clock was set back computes a wrong uptime and abstains; the others are a majority.
    for (ahead, behind) in [(0, 1), (3, 2)] {
        let guard = held(&ours, "x").expect("a free lock");
        assert!(guard.fence() > last);
        last = guard.fence();
        all_have(&nodes, "x");
        nodes[ahead].clock().forward(HOUR);
        nodes[behind].clock().back(HOUR);
        let until = Instant::now() + 2 * ttl + ttl / 4;
        while Instant::now() < until {
            assert!(held(&theirs, "x").is_none(), "both hold");
            assert!(guard.is_held(), "it is lost");
            thread::sleep(ms(20));
        }
        block_on(guard.release()).expect("a release");
        for _ in 0..10 {
            let guard = held(&theirs, "x").expect("a free lock");
            assert!(guard.fence() > last, "{} after {last}", guard.fence());
            last = guard.fence();
            block_on(guard.release()).expect("a release");
        }
        for node in [ahead, behind] {
            nodes[node].clock().reset();
        }
    }
    eventually("nothing is left", SOON, || nodes.iter().all(|node| !node.has("x")));
}

#[test]
fn the_clock_of_one_node_is_no_measure_for_the_others() {
    for ahead in [2 * HOUR, 2 * 366 * 24 * HOUR] {
        let nodes = Nodes::new(3);
        let locks = with(&nodes.url(), Options::new().ttl(ms(1_000)));
        // It accepts a ballot of this client only at the first renewal, which sends a higher one.
        nodes[2].clock().forward(ahead);
        let guard = held(&locks, "x").expect("a free lock");
        eventually("it is taken there too", SOON, || nodes[2].has("x"));
        block_on(guard.release()).expect("a release");
        eventually("nothing is left", SOON, || nodes.iter().all(|node| !node.has("x")));
        let soon = SystemTime::now() + HOUR;
        let soon = soon.duration_since(UNIX_EPOCH).expect("a clock after 1970").as_micros() as u64;
        for node in &nodes[..2] {
            let counter = node.command(&["GET", "tenure:ballot:{x}"]).text().parse::<u64>();
            assert!(counter.expect("a number") < soon, "{ahead:?}");
        }
        drop(held(&locks, "x").expect("a free lock"));
    }
}

/// Scripts executed by all nodes so far.
fn scripts(nodes: &[Server]) -> u64 {
    let of = |node: &Server| {
        let stats = node.info_commandstats();
        ["eval", "evalsha"].iter().filter_map(|script| stats.get(*script)).sum::<u64>()
    };
    nodes.iter().map(of).sum()
}

#[test]
fn who_waits_for_a_bare_majority_does_not_wake_himself_and_all_others_for_ever() {
    let nodes = Nodes::new(3);
    let ours = with(&nodes.url(), Options::new().ttl(Duration::from_secs(60)).renewal(Renewal::Off));
    let guard = held(&ours, "x").expect("a free lock");
    all_have(&nodes, "x");
    // As after a restart or concurrent requests: the third is free, and no renewal reacquires it.
    nodes[2].command(&["DEL", "x"]);
    let waiters: Vec<Locks> = (0..5).map(|_| with(&nodes.url(), Options::new())).collect();
    let before = scripts(&nodes);
    thread::scope(|scope| {
        for waiter in &waiters {
            let wait = || block_on(waiter.mutex("x").expect("a name").try_lock_for(ms(4_000)));
            scope.spawn(move || assert!(wait().expect("an answer").is_none()));
        }
    });
    let asked = scripts(&nodes) - before;
    assert!(asked < 600, "{asked} scripts for five who wait 4 s");
    // After many such messages, a waiter still learns of the release immediately.
    thread::scope(|scope| {
        let before = scripts(&nodes);
        let waiter =
            scope.spawn(|| block_on(waiters[0].mutex("x").expect("a name").lock()).expect("a grant"));
        eventually("it has asked in vain a few times", SOON, || scripts(&nodes) >= before + 30);
        block_on(guard.release()).expect("a release");
        let released = Instant::now();
        drop(waiter.join().expect("a grant"));
        assert!(released.elapsed() < Duration::from_secs(10), "{:?}", released.elapsed());
    });
}

#[test]
fn a_node_does_not_keep_a_token_below_the_one_that_was_granted() {
    let nodes = Nodes::new(3);
    // It does not vote but accepts the first ballot; the others require a higher one.
    nodes[2].command(&["ACL", "SETUSER", "default", "-info"]);
    let ahead = SystemTime::now() + Duration::from_secs(5);
    let ahead = ahead.duration_since(UNIX_EPOCH).expect("a clock after 1970").as_micros().to_string();
    for node in &nodes[..2] {
        node.command(&["SET", "tenure:ballot:{x}", &ahead]);
    }
    let locks = with(&nodes.url(), Options::new().ttl(ms(30_000)));
    block_on(held(&locks, "warm").expect("a free lock").release()).expect("a release");
    let guard = held(&locks, "x").expect("a free lock");
    let token = |node: &Server| {
        let value = node.command(&["GET", "x"]);
        value.text().rsplit('#').next().expect("a token").parse::<u64>().expect("a number")
    };
    let all_have_it = || nodes.iter().all(|node| node.has("x") && token(node) >= guard.fence());
    eventually("it is asked with the second too", SOON / 6, all_have_it);
    // A renewal notices if that message was lost.
    nodes[2].command(&["SET", "x", &format!("{}#{}", guard.owner(), guard.fence() - 1), "PX", "30000"]);
    block_on(guard.renew()).expect("a renewal");
    eventually("it is asked with a higher one", SOON / 6, all_have_it);
    nodes[2].command(&["ACL", "SETUSER", "default", "+info"]);
}

#[test]
fn a_listing_shows_what_a_majority_holds_beside_a_foreign_value_once() {
    let nodes = Nodes::new(3);
    nodes[0].command(&["SET", "x", "another client", "PX", "60000"]);
    let locks = with(&nodes.url(), Options::new());
    let _guard = held(&locks, "x").expect("free on two");
    for prefix in ["", "x"] {
        let mut listing = locks.list(prefix).expect("a prefix");
        let mut names = Vec::new();
        while let Some(status) = block_on(listing.next()).expect("an answer") {
            names.push(status.name.as_str().to_owned());
        }
        assert_eq!(names, ["x"], "{prefix:?}");
    }
}

#[test]
fn a_release_that_one_node_has_yet_to_get_reaches_it_after_the_last_handle_is_gone() {
    for is_shut_down in [true, false] {
        let nodes = Nodes::new(3);
        let proxy = Proxy::start(nodes[2].address());
        let url = format!("{},{}", url(&nodes[..2]), proxy.address());
        let locks = with(&url, Options::new().ttl(Duration::from_secs(120)));
        let guard = held(&locks, "x").expect("a free lock");
        all_have(&nodes, "x");
        proxy.set(Fault::Refuse);
        proxy.reset();
        block_on(guard.release()).expect("a release by the others");
        if is_shut_down {
            block_on(locks.flush()).expect("a majority has answered");
        } else {
            drop(locks);
        }
        assert!(nodes[2].has("x"));
        proxy.set(Fault::None);
        eventually("it is released there too", SOON, || !nodes[2].has("x"));
    }
}

#[test]
fn a_lock_survives_the_restart_of_every_node_one_after_the_other() {
    let nodes = Nodes::new(5);
    let options = Options::new().ttl(ms(3_000));
    let (ours, theirs) = (with(&nodes.url(), options.clone()), with(&nodes.url(), options));
    let guard = held(&ours, "x").expect("a free lock");
    all_have(&nodes, "x");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| block_on(theirs.mutex("x").expect("a name").lock()).expect("a grant"));
        for node in nodes.iter() {
            node.restart_with(Config::new());
            eventually("the lock is back", SOON, || node.has("x"));
            assert!(guard.is_held() && !waiter.is_finished());
        }
        block_on(guard.verify()).expect("it is held");
        let first = guard.fence();
        block_on(guard.release()).expect("a release");
        assert!(waiter.join().expect("a grant").fence() > first);
    });
}

#[test]
fn nodes_that_have_started_empty_let_nobody_in_beside_the_holder() {
    let nodes = Nodes::new(3);
    let options = Options::new().ttl(ms(4_000));
    let (ours, theirs) = (with(&nodes.url(), options.clone()), with(&nodes.url(), options));
    let guard = held(&ours, "x").expect("a free lock");
    all_have(&nodes, "x");
    // Both at once, because otherwise the holder reacquires the first before the second is down.
    nodes[1].kill();
    let started = Instant::now();
    nodes[0].restart();
    nodes[1].restart();
    // Two of three have forgotten the lock, and its holder may not know that yet.
    let mut refused = 0;
    let next = loop {
        let why = match block_on(theirs.mutex("x").expect("a name").try_lock()) {
            Ok(Some(next)) => break next,
            Ok(None) => "it is held".to_owned(),
            Err(error) => {
                let why = error.source().expect("a cause").to_string();
                assert!(error.is_unreachable() && why.contains("does not vote"), "{why}");
                refused += 1;
                why
            }
        };
        assert!(started.elapsed() < SOON, "{refused} refusals, and at last {why}");
        thread::sleep(ms(20));
    };
    assert!(started.elapsed() >= ms(4_000) && refused > 0, "{:?}", started.elapsed());
    assert!(!guard.is_held() && block_on(guard.lost()).is_lost());
    assert!(next.fence() > guard.fence());
}

#[test]
fn a_server_that_is_there_twice_is_found_out() {
    let nodes = Nodes::new(2);
    // Under two names, so that only the server itself can tell.
    let members = [nodes[0].url(), nodes[0].unix_url(), nodes[1].url()];
    let locks = Locks::quorum(members.map(|url| Locks::open(&url).expect("a store"))).expect("a quorum");
    let refused = |locks: &Locks| {
        let error = block_on(locks.mutex("x").expect("a name").try_lock()).expect_err("no quorum");
        let why = error.source().expect("a cause").to_string();
        error.is_refused() && why.contains("the same server") && why.contains(&nodes[0].url())
    };
    // The first request may succeed before both are identified, with the votes of two independent servers.
    eventually("it is refused", SOON, || {
        let said = block_on(locks.mutex("x").expect("a name").try_lock());
        said.is_err_and(|error| error.is_refused())
    });
    assert!(refused(&locks));
    // Also by the answers to the very first request, in which the two would be a majority.
    let dead = Server::start();
    dead.kill();
    let members = [nodes[0].url(), nodes[0].unix_url(), dead.url()];
    let locks = Locks::quorum(members.map(|url| Locks::open(&url).expect("a store"))).expect("a quorum");
    let mutex = locks.mutex("y").expect("a name");
    assert!(block_on(mutex.try_lock()).expect_err("no quorum").is_refused());
    assert!(!nodes[0].has("y"));
    let twice = format!("{},{}", url(&nodes), nodes[0].address());
    assert!(Locks::open(&twice).expect_err("no quorum").is_invalid());
    let one = Locks::memory();
    assert!(Locks::quorum([one.clone(), one.clone(), Locks::memory()]).expect_err("no quorum").is_invalid());
    assert!(Locks::quorum([one]).expect_err("no quorum").is_invalid());
}

#[test]
fn who_connects_where_no_majority_answers_hears_why_when_the_time_is_over() {
    let nodes = Nodes::new(3);
    let proxies = [&nodes[1], &nodes[2]].map(|node| Proxy::start(node.address()));
    let members = [nodes[0].url(), proxies[0].url(), proxies[1].url()];
    // One answers long after a member's timeout, and the other two never do.
    for proxy in &proxies {
        proxy.set(Fault::BlackHole);
    }
    let url = format!("redis-quorum://{}", members.map(|url| url.replace("redis://", "")).join(","));
    let error = block_on(Locks::connect(&url)).expect_err("no majority");
    assert!(error.is_unreachable(), "{error}");
    let why = error.source().expect("a cause").to_string();
    assert!(why.contains("2 of 3 members are needed") && why.contains(&proxies[1].url()), "{why}");
}

#[test]
fn a_member_that_is_several_servers_is_refused() {
    for url in ["redis-sentinel://h/service", "redis-cluster://h", "redis-quorum://h,i,j"] {
        let members = [Locks::open(url).expect("a store"), Locks::memory(), Locks::memory()];
        let error = Locks::quorum(members).expect_err("no quorum");
        assert!(error.is_invalid() && error.to_string().contains("several servers"), "{error}");
    }
}

#[test]
fn kinds_that_no_majority_can_keep_are_refused_with_the_reason() {
    let locks = Locks::quorum([Locks::memory(), Locks::memory(), Locks::memory()]).expect("a quorum");
    let error = locks.fair_mutex("x").expect_err("no order");
    assert!(error.is_unsupported() && error.to_string().contains("two halves"), "{error}");
    assert!(locks.semaphore("x", 2).expect_err("no order").is_unsupported());
    assert!(locks.rwlock("x").expect_err("no order").is_unsupported());
}

#[test]
fn nodes_that_have_just_started_say_from_when_on_they_vote() {
    let servers: [Server; 3] = Server::several();
    let locks = with(&url(&servers), Options::new().ttl(ms(2_000)).op_timeout(ms(400)));
    let error = block_on(locks.mutex("x").expect("a name").try_lock()).expect_err("nobody votes");
    let why = error.source().expect("a cause").to_string();
    assert!(error.is_unreachable() && why.contains("does not vote before 2 s"), "{why}");
    // A waiting client gets it as soon as they vote.
    let guard = block_on(locks.mutex("x").expect("a name").try_lock_for(SOON)).expect("an answer");
    assert!(guard.is_some());
}
