//! Locks on ZooKeeper: servers that are killed, stopped or replaced, connections that are cut at each
//! message, expired sessions, wrong URLs, rights.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real servers measure real time"
)]

mod relay;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tenure::internals::store;
use tenure::{Guard, Locks, Options, block_on};
use tenure_testkit::proxy::Fault;
use tenure_testkit::servers::{Authority, Ensemble, ZooKeeper, eventually};
use tenure_testkit::timed::in_time;

use crate::candidates::outlast_leaders;
use crate::common::{said, with};
use crate::crowd::Crowd;
use crate::etcd::{
    TTL, a_cut_off_client_loses, a_cut_off_leader_costs_nothing, a_listing_of_long_locks_has_pages,
    caches_and_quorums_are_refused, client, killed_leaders_cost_nothing, no_connection_is_explained, take,
    turns_with_renewals,
};
use relay::{Cut, Relay};

/// Shared by the tests that do not disturb it, each with its path.
static SERVER: LazyLock<ZooKeeper> = LazyLock::new(warmed);

/// A server whose JVM is warmed up: a cold one is slower than short leases allow.
pub(crate) fn warmed() -> ZooKeeper {
    let server = ZooKeeper::start().until_exit();
    let patient = Options::new().ttl(Duration::from_secs(60)).patience(Duration::from_secs(30));
    let locks = with(&format!("{}/warm", server.url()), patient);
    for _ in 0..100 {
        let guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a free lock");
        block_on(guard.release()).expect("a release");
    }
    server
}

/// With the options that clients have by default.
#[test]
fn a_server_that_is_silent_from_the_start_is_passed_over() {
    // The kernel accepts connections to it.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = listener.local_addr().expect("an address");
    // The order of the servers is random.
    for _ in 0..6 {
        let locks =
            Locks::open(&format!("zookeeper://{silent},{}/silent", SERVER.address())).expect("a store");
        let guard = block_on(async { locks.mutex("x")?.lock().await }).expect("a free lock");
        block_on(guard.release()).expect("a release");
    }
}

#[test]
fn locks_of_zookeeper_that_exceed_one_page_are_listed() {
    a_listing_of_long_locks_has_pages(&format!("{}/pages", SERVER.url()), store::zookeeper::open);
}

/// Nothing is renewed or retried meanwhile.
fn patient() -> Options {
    Options::new().ttl(Duration::from_secs(60)).op_timeout(Duration::from_secs(20))
}

/// The server limits requests to a megabyte (`jute.maxbuffer`), but not replies.
#[test]
fn lock_names_of_more_than_a_megabyte_are_listed() {
    let locks = with(&format!("{}/names", SERVER.url()), patient());
    let names: Vec<String> = (10..50).map(|number| format!("{}{number}", "n".repeat(30_000))).collect();
    let lock = |name: &String| block_on(locks.mutex(name).expect("a name").lock()).expect("a free lock");
    let guards: Vec<Guard> = names.iter().map(lock).collect();
    assert_eq!(listed(&locks), names);
    drop(guards);
}

/// The names of all locks.
fn listed(locks: &Locks) -> Vec<String> {
    let mut listing = locks.list("").expect("a prefix");
    let next = || block_on(listing.next()).expect("an answer").map(|status| status.name.to_string());
    let mut names: Vec<String> = std::iter::from_fn(next).collect();
    names.sort();
    names
}

#[test]
fn a_killed_leader_costs_no_exclusion_no_token_and_no_waiter() {
    let ensemble = ZooKeeper::ensemble();
    let crowds = killed_leaders_cost_nothing(&ensemble);
    // A stopped leader is deposed too, and does not know it at first.
    let leader = ensemble.leader();
    ensemble.stop(leader);
    crowds.iter().for_each(Crowd::goes_on);
    ensemble.cont(leader);
    crowds.iter().for_each(Crowd::goes_on);
    crowds.into_iter().for_each(Crowd::end);
}

#[test]
fn candidates_and_jobs_outlast_the_leaders_of_zookeeper() {
    outlast_leaders(&ZooKeeper::ensemble());
}

#[test]
fn a_leader_that_is_cut_from_the_others_costs_no_exclusion_no_token_and_no_waiter() {
    a_cut_off_leader_costs_nothing(&ZooKeeper::partitioned());
}

#[test]
fn locks_are_kept_over_tls_and_wrong_certificates_are_named() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (named, us) = (authority.certify("127.0.0.1"), authority.certify("us.example"));
    let server = ZooKeeper::with_tls(&named, &authority.ca());
    let identity = format!("&cert={}&key={}", us.cert.display(), us.key.display());
    let url = |authority: &Authority, identity: &str| {
        format!("zookeepers://{}?ca={}{identity}", server.encrypted(), authority.ca().display())
    };
    let (ours, theirs) = (client(&url(&authority, &identity)), client(&url(&authority, &identity)));
    turns_with_renewals(&ours, &theirs);
    no_connection_is_explained([
        (url(&stranger, &identity), "ca=FILE"),
        (url(&authority, &identity).replace("127.0.0.1", "localhost"), "not valid for name"),
        (url(&authority, ""), "cert=FILE and key=FILE"),
    ]);
}

/// A request that would make a node larger than servers accept is refused, and the others continue.
#[test]
fn a_lock_that_is_too_large_for_a_node_is_refused_in_one_line() {
    let patient = Options::new().ttl(Duration::from_secs(600)).op_timeout(Duration::from_secs(60));
    let locks = with(&format!("{}/large", SERVER.url()), patient.label("x".repeat(250)));
    let some = |count: usize| {
        let permits = (0..count).map(|_| locks.semaphore("s", 100_000).expect("a name"));
        let got = block_on(join_all(permits.map(|permit| async move { permit.try_acquire().await })));
        let (got, errors): (Vec<_>, Vec<_>) = got.into_iter().partition(Result::is_ok);
        let got: Vec<_> = got.into_iter().filter_map(|got| got.ok().flatten()).collect();
        (got, errors.into_iter().filter_map(Result::err).collect::<Vec<_>>())
    };
    let (mut permits, errors) = some(3_500);
    assert!(permits.len() > 2_000, "{} hold", permits.len());
    assert!(!errors.is_empty(), "{} hold", permits.len());
    for error in errors {
        let all = said(&error);
        assert!(error.is_refused() && all.contains("1000000 bytes") && !all.contains('\n'), "{all}");
    }
    assert!(permits.iter().all(|permit| permit.is_held()));
    // Released permits make room.
    for permit in permits.drain(..20) {
        block_on(permit.release()).expect("a release");
    }
    let (more, errors) = some(10);
    assert!(more.len() == 10 && errors.is_empty(), "{errors:?}");
}

#[test]
fn a_client_that_is_cut_off_knows_its_loss_before_the_next_holds() {
    // A sixth of the ttl, three seconds, and the server's checking interval.
    let (ours, proxy) = a_cut_off_client_loses(&*SERVER, "/cut-off", 7);
    // The session has ended, and the next one works as well.
    proxy.set(Fault::None);
    eventually("it locks again", Duration::from_secs(30), || {
        block_on(ours.mutex("x").expect("a name").try_lock()).is_ok_and(|guard| guard.is_some())
    });
}

#[test]
fn a_lock_outlives_a_restart_of_the_server_and_not_its_replacement() {
    let server = ZooKeeper::start();
    // Longer than a start beside other load.
    let long = Options::new().ttl(Duration::from_secs(30));
    let (ours, theirs) = (with(&server.url(), long), client(&server.url()));
    let guard = block_on(ours.mutex("x").expect("a name").lock()).expect("a free lock");
    server.kill(0);
    server.restart(0);
    eventually("it answers again", Duration::from_secs(60), || {
        block_on(theirs.mutex("x").expect("a name").try_lock())
            .is_ok_and(|got| got.is_none() || !guard.is_held())
    });
    assert!(guard.is_held(), "ZooKeeper gives each session its whole life again when it starts");
    server.kill(0);
    server.replace(0);
    eventually("the loss is told", Duration::from_secs(60), || !guard.is_held());
    eventually("it locks again", Duration::from_secs(60), || {
        block_on(ours.mutex("x").expect("a name").try_lock()).is_ok_and(|guard| guard.is_some())
    });
}

/// Acquires, waits for a renewal, releases. Each may fail, but never with a refusal.
fn turn(locks: &Locks, is_fair: bool, while_held: impl Fn(&Guard)) {
    let got = take(locks, "x", is_fair, None);
    let check = |error: &tenure::Error| {
        assert!(error.is_unknown() || error.is_unreachable() || error.is_lost(), "{}", said(error));
    };
    match got {
        Ok(Some(guard)) => {
            while_held(&guard);
            thread::sleep(guard.remaining() / 2);
            while_held(&guard);
            let _ = block_on(guard.release()).inspect_err(check);
        }
        // An earlier request of this client may have got it.
        Ok(None) => {}
        Err(error) => check(&error),
    }
}

#[test]
fn a_connection_that_is_cut_at_any_message_keeps_no_lock_and_costs_no_exclusion() {
    let options = Options::new().ttl(Duration::from_millis(900)).patience(Duration::from_secs(2));
    let relay = Relay::start(SERVER.address());
    let patient = Options::new().op_timeout(Duration::from_secs(10));
    let theirs = with(&format!("{}/messages", SERVER.url()), patient);
    let mut cuts = 0;
    for (is_fair, cut) in [(false, Cut::Before), (false, Cut::After), (true, Cut::After)] {
        for request in 1.. {
            let ours = with(&format!("zookeeper://{}/messages", relay.address()), options.clone());
            relay.cut_at(request, cut);
            let theirs_gets = |limit: u64| {
                take(&theirs, "x", is_fair, Some(Duration::from_millis(limit))).expect("an answer")
            };
            turn(&ours, is_fair, |guard| {
                let both = theirs_gets(0).filter(|theirs| theirs.is_held() && guard.is_held());
                assert!(both.is_none(), "{cut:?} at {request}: two hold");
            });
            let was_cut = relay.was_cut();
            relay.cut_at(0, cut);
            // The session of the cut-off client survives, and what was left is undone.
            let since = Instant::now();
            let next = theirs_gets(20_000);
            assert!(next.is_some(), "{cut:?} at {request}: it stays held");
            in_time(since.elapsed(), Duration::from_secs(5));
            block_on(next.expect("a guard").release()).expect("a release");
            if !was_cut {
                break;
            }
            cuts += 1;
        }
    }
    assert!(cuts >= 12, "only {cuts} cuts");
}

#[test]
fn a_pair_is_two_requests_and_renewals_do_not_grow_with_the_holds() {
    let relay = Relay::start(SERVER.address());
    let url = format!("zookeeper://{}/pairs", relay.address());
    let locks = with(&url, patient());
    let warm = block_on(locks.mutex("x").expect("a name").lock()).expect("a free lock");
    block_on(warm.release()).expect("a release");
    relay.requests();
    for turn in 0..10 {
        let guard = block_on(locks.mutex(format!("{turn}")).expect("a name").lock()).expect("a free lock");
        block_on(guard.release()).expect("a release");
    }
    assert_eq!(relay.requests(), [14; 20], "one step each way");
    drop(locks);
    let locks = client(&url);
    let lock = |at: u32| block_on(locks.mutex(format!("{at}")).expect("a name").lock()).expect("a free lock");
    let guards: Vec<Guard> = (0..300).map(lock).collect();
    relay.requests();
    thread::sleep(TTL);
    let asked = relay.requests();
    assert!((2..=30).contains(&asked.len()) && asked.iter().all(|number| *number == 14), "{asked:?}");
    assert!(guards.iter().all(Guard::is_held));
    for guard in guards {
        block_on(guard.release()).expect("a release");
    }
    assert_eq!(listed(&locks), Vec::<String>::new());
}

#[test]
fn clients_that_wait_ask_next_to_nothing() {
    const CLIENTS: usize = 10;
    let relay = Relay::start(SERVER.address());
    let (direct, url) =
        (format!("{}/waiting", SERVER.url()), format!("zookeeper://{}/waiting", relay.address()));
    let holder = Locks::open(&direct).expect("a store");
    let guard = block_on(holder.fair_mutex("x").expect("a name").lock()).expect("a free lock");
    let wait = |_| {
        let url = url.clone();
        thread::spawn(move || {
            let locks = Locks::open(&url).expect("a store");
            let guard = block_on(locks.fair_mutex("x").expect("a name").lock()).expect("a turn");
            block_on(guard.release()).expect("a release");
        })
    };
    let waiting: Vec<_> = (0..CLIENTS).map(wait).collect();
    eventually("all wait", Duration::from_secs(60), || {
        block_on(holder.inspect("x"))
            .is_ok_and(|found| found.is_some_and(|found| found.waiters.len() == CLIENTS))
    });
    // The session that each has opened for a hold ends.
    let mut closed = 0;
    eventually("idle sessions end", Duration::from_secs(60), || {
        closed += relay.requests().iter().filter(|number| **number == -11).count();
        closed >= CLIENTS
    });
    thread::sleep(Duration::from_secs(1));
    relay.requests();
    thread::sleep(Duration::from_secs(3));
    let asked = relay.requests();
    println!("{CLIENTS} waiting clients, in 3 s: {asked:?}");
    assert!(asked.len() <= CLIENTS * 3 * 3 / 10, "{asked:?}");
    block_on(guard.release()).expect("a release");
    waiting.into_iter().for_each(|waiting| waiting.join().expect("no panic"));
}

#[test]
fn any_name_is_a_nodes_name() {
    let locks = client(&format!("{}/names/with/parts", SERVER.url()));
    let names = [".", "..", "a/b", "/", "%2F", "50%", "ä€😀", "\u{0}\u{1f}\u{7f}\u{9f}\u{f8ff}", " ", "x\ny"];
    let guards: Vec<Guard> = names
        .iter()
        .map(|name| block_on(locks.mutex(*name).expect("a name").lock()).expect("a free lock"))
        .collect();
    let mut names = names.map(str::to_owned);
    names.sort();
    assert_eq!(listed(&locks), names);
    drop(guards);
}

#[test]
fn what_is_wrong_with_a_server_is_said_in_one_line() {
    let options = Options::new().patience(Duration::from_millis(500)).op_timeout(Duration::from_secs(10));
    let ping = |url: &str| {
        let error = block_on(with(url, options.clone()).ping()).expect_err(url);
        (said(&error), error)
    };
    let (all, error) = ping("zookeeper://127.0.0.1:1");
    assert!(error.is_unreachable() && all.contains("127.0.0.1:1") && all.contains("refused"), "{all}");

    // A server without TLS closes the connection at a handshake, at times later than a connection may take.
    eventually("it closes the connection in time", Duration::from_secs(60), || {
        let (all, _) = ping(&SERVER.url().replace("zookeeper:", "zookeepers:"));
        let is_late = all.contains("did not answer in time");
        assert!(is_late || all.contains("TLS"), "{all}");
        !is_late
    });

    let old = old_server();
    let (all, error) = ping(&format!("zookeeper://{old}"));
    assert!(error.is_refused() && all.contains("ZooKeeper 3.4.14") && all.contains("3.6 or newer"), "{all}");

    let lock = |url: String| {
        block_on(client(&url).mutex("x").expect("a name").try_lock())
            .map(|guard| guard.map(|guard| guard.fence()))
    };
    let places = SERVER.url().trim_start_matches("zookeeper://").to_owned();
    assert!(lock(format!("zookeeper://app:word@{places}/app")).expect("rights").is_some());
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), "word\n").expect("written");
    let with_file = format!("zookeeper://app@{places}/app?password-file={}", file.path().display());
    lock(with_file).expect("the same rights");
    for (login, said) in [
        ("app:wrong@", "the login in the URL has no rights on /app"),
        ("", "ZooKeeper gives no rights on /app without a login"),
    ] {
        let error = lock(format!("zookeeper://{login}{places}/app")).expect_err("no rights");
        let all = crate::common::said(&error);
        assert!(error.is_refused() && all.contains(said), "{login}: {all}");
    }
    let error = lock(format!("zookeeper://{places}/app/below")).expect_err("no rights");
    let all = said(&error);
    assert!(all.contains("no node /app/below, and does not let this client create it"), "{all}");
}

/// A fake server of version 3.4.
fn old_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            thread::spawn(move || {
                let mut is_first = true;
                let mut head = [0; 4];
                while stream.read_exact(&mut head).is_ok() {
                    if &head == b"srvr" {
                        let version =
                            "Zookeeper version: 3.4.14-4c25d480e66aadd371de8bd2fd8da255ac140bcf, built on\n";
                        return drop(stream.write_all(version.as_bytes()));
                    }
                    let mut request = vec![0; u32::from_be_bytes(head) as usize];
                    stream.read_exact(&mut request).expect("a request");
                    // A session of ten seconds, and then *no node* in reply to each request.
                    let answer = if std::mem::take(&mut is_first) {
                        let mut answer = [0i32, 10_000, 0, 7, 16].map(i32::to_be_bytes).concat();
                        answer.extend([0; 17]);
                        answer
                    } else {
                        let number = i32::from_be_bytes(request[..4].try_into().expect("a number"));
                        [number, 0, 1, -101].map(i32::to_be_bytes).concat()
                    };
                    let length = u32::try_from(answer.len()).expect("it is short").to_be_bytes();
                    stream.write_all(&[&length, &answer[..]].concat()).expect("an answer");
                }
            });
        }
    });
    address
}

#[test]
fn a_ttl_outside_of_the_sessions_limits_is_unsupported() {
    // Ticks of 200 ms, so sessions last 0.4 to 4 seconds by default.
    let server = ZooKeeper::start_with("");
    let lock = |ttl: u64| {
        let locks = with(&server.url(), Options::new().ttl(Duration::from_millis(ttl)));
        block_on(locks.mutex("x").expect("a name").try_lock())
    };
    // A server that has just started may answer too late at first.
    eventually("it fits", Duration::from_secs(60), || lock(1_000).is_ok_and(|guard| guard.is_some()));
    let error = lock(30_000).expect_err("too long");
    let all = said(&error);
    let expected = "sessions last 4 s at most, and a lease of this ttl needs one of 38 s: a shorter ttl fits, or set maxSessionTimeout";
    assert!(error.is_unsupported() && all.contains(expected), "{all}");
    drop(server);

    let server = ZooKeeper::start_with("minSessionTimeout=9000\nmaxSessionTimeout=90000\n");
    let locks = with(&server.url(), Options::new().ttl(Duration::from_secs(1)));
    let error = block_on(locks.mutex("x").expect("a name").try_lock()).expect_err("too short");
    let all = said(&error);
    assert!(
        error.is_unsupported() && all.contains("last 9 s at least") && all.contains("minSessionTimeout"),
        "{all}"
    );
}

#[test]
fn what_needs_a_servers_clock_or_a_member_is_refused_with_the_reason() {
    caches_and_quorums_are_refused(&SERVER.url());
}

#[test]
fn the_longest_name_fits() {
    let locks = with(&format!("{}/long", SERVER.url()), patient());
    // Each of its bytes becomes three in a node name, which occurs three times in a step.
    let name = "€".repeat(tenure::LockName::MAX_BYTES / 3);
    let guard = block_on(locks.mutex(&name).expect("a name").try_lock()).expect("an answer");
    assert_eq!(listed(&locks), [name]);
    block_on(guard.expect("a free lock").release()).expect("a release");
}
