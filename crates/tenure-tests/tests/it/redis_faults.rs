//! Servers that die, hang or cannot be reached, and networks that lose, delay and cut: the behaviour of the
//! store.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real servers measure real time"
)]

use std::io;
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tenure::internals::Runtime;
use tenure::internals::protocol::{Answer, LockSpec, Notification};
use tenure::internals::store::{Failure, Listener, Purpose, StoreExt, Topic};
use tenure::{LockName, block_on};
use tenure_testkit::asker::{Asker, acquire, held, not_sent};
use tenure_testkit::proxy::{Direction, Fault, Proxy};
use tenure_testkit::servers::{Server, eventually};
use tenure_testkit::timed::in_time;

use crate::common::ms;

const SOON: Duration = Duration::from_secs(5);
fn listen(asker: &Asker, name: &str) -> Listener {
    let name = LockName::new(name).expect("a name");
    block_on(asker.store.subscribe(Topic::new(&name, LockSpec::Mutex, Purpose::Watch), SOON))
        .expect("a subscription")
}

/// The next message, within the limit.
fn next(asker: &Asker, listeners: &mut Listener, limit: Duration) -> Notification {
    next_or_end(asker, listeners, limit).expect("a message")
}

fn next_or_end(asker: &Asker, listeners: &mut Listener, limit: Duration) -> Option<Notification> {
    let late = asker.driver.sleep_until(asker.driver.now() + limit);
    block_on(async {
        match futures_util::future::select(std::pin::pin!(listeners.next()), late).await {
            futures_util::future::Either::Left((wake, _)) => wake,
            futures_util::future::Either::Right(_) => panic!("nothing was heard within {limit:?}"),
        }
    })
}

/// The reply to a release tells how many clients wait. Nothing is known while the subscription is interrupted.
#[test]
fn a_subscriber_knows_whether_it_is_the_only_one() {
    let server = Server::start();
    let (ours, theirs) = (Asker::new(&server.url()), Asker::new(&server.url()));
    let turn = || {
        eventually("the lock is free", SOON, || held(&ours.acquire("x")));
        assert_eq!(ours.release("x").expect("an answer"), Answer::Released { left: 0 });
    };
    let listener = listen(&ours, "x");
    assert!(!listener.station().is_alone(), "nothing was released yet");
    turn();
    assert!(listener.station().is_alone());
    let other = listen(&theirs, "x");
    turn();
    assert!(!listener.station().is_alone());
    drop((other, theirs));
    eventually("the other one has left", SOON + SOON, || {
        turn();
        listener.station().is_alone()
    });
    server.kill();
    eventually("the subscription is interrupted", SOON, || !listener.station().is_alone());
    server.restart();
    let listener = listen(&ours, "x");
    turn();
    assert!(listener.station().is_alone());
}

#[test]
fn while_nobody_listens_a_request_fails_in_time_and_says_why() {
    let server = Server::start();
    server.kill();
    let asker = Asker::new(&server.url()).within(ms(300));
    let started = Instant::now();
    let why = not_sent(asker.acquire("x"));
    assert!(why.contains("refused"), "{why}");
    assert!(started.elapsed() >= ms(290), "{:?}", started.elapsed());
    in_time(started.elapsed(), ms(2_000));
    server.restart();
    eventually("the server is found again", SOON, || held(&asker.acquire("x")));
}

#[test]
fn a_restarted_server_is_connected_to_without_being_asked() {
    let server = Server::start();
    let asker = Asker::new(&server.url());
    assert!(held(&asker.acquire("x")));
    let interrupted = asker.store.signals().interrupted();
    server.restart();
    let started = Instant::now();
    let late = asker.driver.sleep_until(asker.driver.now() + SOON);
    let first = block_on(futures_util::future::select(interrupted, late));
    assert!(matches!(first, futures_util::future::Either::Left(_)), "not within {SOON:?}");
    in_time(started.elapsed(), Duration::from_secs(4));
    assert_eq!(asker.renew("x").expect("an answer"), Answer::Free);
}

#[test]
fn a_stopped_server_is_given_up_in_time_and_used_again_when_it_goes_on() {
    let server = Server::start();
    let asker = Asker::new(&server.url()).within(ms(400));
    assert!(held(&asker.acquire("x")));
    server.stop();
    for _ in 0..3 {
        let started = Instant::now();
        let said = asker.renew("x");
        assert!(matches!(said, Err(Failure::Unknown(_) | Failure::NotSent(_))), "{said:?}");
        in_time(started.elapsed(), ms(2_000));
    }
    server.cont();
    eventually("it goes on", SOON, || held(&asker.renew("x")));
}

#[test]
fn a_request_lost_with_its_connection_is_never_executed_after_a_later_one() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let asker = Asker::new(&proxy.url()).within(ms(300));
    asker.renew("x").expect("an answer");
    proxy.set_on(1, Fault::Hold(Direction::ToServer));
    assert!(matches!(asker.acquire("x"), Err(Failure::Unknown(_))));
    // The undo uses a new connection; the old bytes arrive later.
    let other = Asker { within: SOON, ..asker };
    assert_eq!(other.release("x").expect("an answer"), Answer::Free);
    proxy.set_on(1, Fault::None);
    std::thread::sleep(ms(100));
    assert!(!server.has("x"));
    assert_eq!(proxy.connections(), 2);
}

#[test]
fn a_hasty_request_does_not_cost_the_others_their_connection() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let patient = Asker::new(&proxy.url());
    patient.renew("x").expect("an answer");
    proxy.set(Fault::Delay(ms(40)));
    let hasty = patient.other().within(ms(20));
    let (first, second) = block_on(futures_util::future::join(
        hasty.store.request(hasty.op("x", acquire()), hasty.within),
        patient.store.request(patient.op("y", acquire()), patient.within),
    ));
    assert!(matches!(first, Err(Failure::Unknown(_))), "{first:?}");
    assert!(second.is_ok(), "{second:?}");
    // The contract: once a later request was answered, the earlier one has taken effect or never will.
    assert!(server.has("x"));
    assert_eq!(proxy.connections(), 1);
}

#[test]
fn a_silent_connection_is_left_and_whatever_was_asked_on_it_is_unknown() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let asker = Asker::new(&proxy.url());
    asker.renew("x").expect("an answer");
    proxy.set_on(1, Fault::BlackHole);
    let calls = (0..50).map(|number| {
        let within = ms(if number == 0 { 250 } else { 10_000 });
        asker.store.request(asker.op(&format!("x{number}"), acquire()), within)
    });
    let started = Instant::now();
    let said = block_on(join_all(calls));
    assert!(said.iter().all(|said| matches!(said, Err(Failure::Unknown(_)))));
    // The first client's timeout counts for every client.
    in_time(started.elapsed(), ms(5_000));
    assert!(held(&asker.acquire("x")));
    assert_eq!(proxy.connections(), 2);
}

#[test]
fn a_killed_connection_is_made_anew_at_once() {
    let server = Server::start();
    let asker = Asker::new(&server.url());
    assert!(held(&asker.acquire("x")));
    std::thread::sleep(ms(1_100));
    let interrupted = asker.store.signals().interrupted();
    let started = Instant::now();
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    block_on(interrupted);
    assert!(held(&asker.renew("x")));
    in_time(started.elapsed(), ms(1_000));
}

#[test]
fn a_reset_before_a_renewal_costs_no_lease() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let asker = Asker::new(&proxy.url());
    assert!(held(&asker.acquire("x")));
    for round in 0..8 {
        proxy.reset();
        // After several short connections in a row, the backoff is at most a second.
        let most = Duration::from_secs(if round < 3 { 1 } else { 3 });
        let started = Instant::now();
        // At most one attempt may use the dead connection; the engine makes several.
        let said = asker.renew("x");
        assert!(held(&said) || held(&asker.renew("x")), "{said:?}");
        in_time(started.elapsed(), most);
    }
}

#[test]
fn a_listener_hears_a_release_and_who_it_was() {
    let server = Server::start();
    let asker = Asker::new(&server.url());
    let holder = asker.other();
    let turn = || {
        assert!(held(&holder.acquire("x")));
        holder.release("x").expect("an answer");
    };
    turn(); // A server without the script publishes twice.
    let mut listeners = listen(&asker, "x");
    turn();
    assert_eq!(next(&asker, &mut listeners, SOON), Notification::Free { by: Some(holder.owner.clone()) });
    server.command(&["PUBLISH", "tenure:wake:0:{x}", "anything"]);
    assert_eq!(next(&asker, &mut listeners, SOON), Notification::Free { by: None });
}

#[test]
fn waiters_subscribe_once_and_the_connection_closes_without_subscribers() {
    let server = Server::start();
    let asker = Asker::new(&server.url());
    asker.renew("x").expect("an answer");
    let clients = || server.command(&["CLIENT", "LIST"]).text().matches("name=tenure-").count();
    assert_eq!(clients(), 1);
    for _ in 0..5 {
        drop(listen(&asker, "x"));
        drop((listen(&asker, "x"), listen(&asker, "y")));
    }
    assert_eq!(clients(), 2);
    assert_eq!(server.info_commandstats()["subscribe"], 2);
    eventually("the connection for messages is closed", Duration::from_secs(8), || clients() == 1);
    assert_eq!(listen(&asker, "x").drain(), ());
}

#[test]
fn a_subscription_that_was_cut_is_made_anew_and_says_so() {
    let server = Server::start();
    let asker = Asker::new(&server.url());
    let mut listeners = listen(&asker, "x");
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    assert_eq!(next(&asker, &mut listeners, SOON), Notification::Reconnected);
    server.restart();
    match next_or_end(&asker, &mut listeners, SOON) {
        Some(wake) => assert_eq!(wake, Notification::Reconnected),
        // It was still down when it was dialled, so subscribe again.
        None => listeners = listen(&asker, "x"),
    }
    server.command(&["PUBLISH", "tenure:wake:0:{x}", ""]);
    assert_eq!(next(&asker, &mut listeners, SOON), Notification::Free { by: None });
}

#[test]
fn a_subscription_that_hears_nothing_is_asked_whether_it_lives() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let asker = Asker::new(&proxy.url());
    let mut listeners = listen(&asker, "x");
    proxy.set_on(1, Fault::BlackHole);
    assert_eq!(next(&asker, &mut listeners, Duration::from_secs(55)), Notification::Reconnected);
}

#[test]
fn the_connections_end_with_the_store() {
    let server = Server::start();
    let asker = Asker::new(&server.url());
    asker.renew("x").expect("an answer");
    let listeners = listen(&asker, "x");
    let clients = || server.command(&["CLIENT", "LIST"]).text().matches("name=tenure-").count();
    assert_eq!(clients(), 2);
    drop((listeners, asker.store));
    eventually("the connections are closed", SOON, || clients() == 0);
}

/// A dial of a store that was dropped is not finished.
#[test]
fn a_login_that_is_under_way_ends_with_the_store() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let asker = Asker::new(&format!("redis://{address}")).within(ms(100));
    let dialled = thread::spawn(move || listener.accept().expect("a connection").0);
    asker.renew("x").expect_err("nobody answers");
    let mut stream = dialled.join().expect("no panic");
    let dropped = Instant::now();
    drop(asker);
    stream.set_read_timeout(Some(SOON)).expect("a limit");
    io::copy(&mut stream, &mut io::sink()).expect("the end of the stream");
    in_time(dropped.elapsed(), ms(500));
}

/// Each takes a round trip, and all of them together more than a second.
#[test]
fn many_subscriptions_end_together() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let locks = tenure::Locks::open(&proxy.url()).expect("a store");
    let guards: Vec<_> = (0..100)
        .map(|at| block_on(locks.mutex(format!("x{at}")).expect("a name").lock()).expect("a free lock"))
        .collect();
    let subscribed = || server.command(&["PUBSUB", "CHANNELS", "tenure:wake:*"]).items().len();
    eventually("each hold listens", 2 * SOON, || subscribed() >= 100);
    proxy.set(Fault::Delay(ms(15)));
    let connections = || server.info("stats")["total_connections_received"].clone();
    let before = connections();
    let releases = guards.into_iter().map(|guard| guard.release());
    block_on(join_all(releases)).into_iter().for_each(|released| released.expect("a release"));
    let kept = block_on(locks.mutex("kept").expect("a name").lock()).expect("a free lock");
    eventually("the subscriptions have ended", 4 * SOON, || subscribed() <= 2);
    assert_eq!(connections(), before, "the connection was kept");
    drop(kept);
}
