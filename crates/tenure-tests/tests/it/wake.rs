//! A queued waiter that is gone when it is woken costs the next one no time. A waiter that is still there
//! keeps its place, whatever message it gets.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real servers measure real time"
)]

use std::collections::BTreeSet;
use std::env;
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::{Either, FutureExt, join_all, select};
use tenure::{Guard, Locks, Options, Owner, Result, Status, block_on};
use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::servers::{Client, Server, eventually};
use tenure_testkit::timed::in_time;

const SOON: Duration = Duration::from_secs(20);

fn locks(url: &str) -> Locks {
    Locks::open(url).expect("a store")
}

fn waiters(locks: &Locks) -> usize {
    let found = block_on(locks.inspect("x")).expect("an answer");
    found.map_or(0, |found| found.waiters.len() + found.unlisted as usize)
}

/// The owners of a queue's places that are marked as listening.
pub(crate) fn listening(server: &Server, lock: &str) -> BTreeSet<String> {
    let places =
        server.command(&["ZRANGE", lock, "10000000000", "(100000000000000", "BYSCORE", "WITHSCORES"]);
    if places.error_code() == Some("WRONGTYPE") {
        return BTreeSet::new(); // nobody waits yet
    }
    let places = places.items().chunks_exact(2).map(|place| (place[0].text(), place[1].text()));
    // The mark is in the last digits.
    let listens = |end: &str| end.parse::<f64>().expect("a number").fract() != 0.0;
    let owners =
        places.filter(|(_, end)| listens(end)).map(|(owner, _)| owner.trim_start_matches('!').to_owned());
    owners.collect()
}

type Waiter = thread::JoinHandle<Result<Option<Guard>>>;

/// Waits for the fair lock on a separate thread.
fn waits(locks: &Locks) -> Waiter {
    let lock = locks.fair_mutex("x").expect("a name");
    thread::spawn(move || block_on(lock.try_lock_for(SOON)))
}

fn are_served_in_order(held: Guard, first: Waiter, second: Waiter) {
    block_on(held.release()).expect("it is held");
    let first = first.join().expect("no panic").expect("an answer").expect("its turn");
    assert!(!second.is_finished(), "it came later");
    block_on(first.release()).expect("it is held");
    let second = second.join().expect("no panic").expect("an answer").expect("its turn");
    block_on(second.release()).expect("it is held");
}

/// A mutex's only waiter sends its request itself, while the task that asked for it before sleeps.
#[test]
fn an_only_waiter_that_is_dropped_while_it_asks_leaves_no_lock() {
    let server = Server::start();
    let [ours, theirs] = [(); 2].map(|()| locks(&server.url()));
    let mutex = ours.mutex("x").expect("a name");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (mut held, mut asked) = (mutex.lock().await.expect("a free lock"), 0);
        for turn in 0..20 {
            let mut waits = Box::pin(mutex.lock());
            let asks = tokio::time::timeout(Duration::from_millis(50), &mut waits);
            assert!(asks.await.is_err(), "it is held");
            held.release().await.expect("a release");
            if turn % 2 == 0 {
                // After this hand-over no other client waits.
                held = waits.await.expect("its turn");
                continue;
            }
            // On a busy machine its turn may have come.
            if let Some(its_turn) = waits.as_mut().now_or_never() {
                held = its_turn.expect("an answer");
                continue;
            }
            asked += 1;
            drop(waits);
            ours.flush().await.expect("its grant is given back");
            let free = theirs.mutex("x").expect("a name").try_lock().await.expect("an answer");
            free.expect("nobody holds it").release().await.expect("a release");
            held = mutex.lock().await.expect("a free lock");
        }
        assert!(asked > 0);
    });
}

/// Their places are kept for up to 5 s, and none expires before the next gets its turn.
#[test]
fn waiters_that_are_gone_are_passed_at_their_turn() {
    const GONE: usize = 150;
    let server = Server::start();
    let here = locks(&server.url());
    let held = block_on(here.fair_mutex("x").expect("a name").lock()).expect("a free lock");
    let proxy = Proxy::start(server.address());
    let gone = locks(&proxy.url());
    let all = (0..GONE).map(|_| {
        let lock = gone.fair_mutex("x").expect("a name");
        async move { lock.lock().await }
    });
    let all_listen = async {
        let until = Instant::now() + SOON;
        let listens = || listening(&server, "x").len();
        while listens() < GONE {
            assert!(Instant::now() < until, "only {} of {GONE} listen", listens());
            here.inspect("x").await.expect("an answer");
        }
    };
    match block_on(select(Box::pin(join_all(all)), Box::pin(all_listen))) {
        Either::Left(_) => panic!("none of them has its turn"),
        Either::Right(((), waiting)) => {
            let next = waits(&here);
            eventually("the next waits", SOON, || waiters(&here) == GONE + 1);
            let client = client_of(&gone);
            proxy.set(Fault::BlackHole);
            proxy.reset();
            std::mem::forget(waiting);
            let cut_at = Instant::now();
            eventually("the server has noticed", SOON, || !is_heard(&server, &client));
            block_on(held.release()).expect("it is held");
            let next = next.join().expect("no panic").expect("an answer").expect("its turn");
            in_time(cut_at.elapsed(), Duration::from_secs(3));
            assert_eq!(waiters(&here), 0, "their places are gone");
            block_on(next.release()).expect("it is held");
        }
    }
}

/// The part that the owners of these locks share, and with which their channels end.
fn client_of(locks: &Locks) -> String {
    let guard = block_on(locks.mutex("whose").expect("a name").lock()).expect("a free lock");
    let owner = guard.owner().to_string();
    owner[owner.len() - 20..owner.len() - 10].to_owned()
}

/// Whether this client is subscribed to its channel.
fn is_heard(server: &Server, client: &str) -> bool {
    let channel = format!("tenure:wake:0:{{x}}:{client}");
    server.command(&["PUBSUB", "NUMSUB", &channel]).items()[1].int() == 1
}

#[test]
fn a_waiter_that_may_not_listen_keeps_its_place() {
    let server = Server::start();
    let rights = ["ACL", "SETUSER", "unreached", "on", ">secret", "~*", "&*", "+@all", "-subscribe"];
    server.command(&rights);
    let here = locks(&server.url());
    let unreached = locks(&server.url().replace("://", "://unreached:secret@"));
    let held = block_on(here.fair_mutex("x").expect("a name").lock()).expect("a free lock");
    let first = waits(&unreached);
    eventually("it waits", SOON, || waiters(&here) == 1);
    let second = waits(&here);
    eventually("both wait", SOON, || waiters(&here) == 2);
    are_served_in_order(held, first, second);
}

#[test]
fn a_waiter_that_has_listened_anew_is_called_in_its_turn() {
    let server = Server::start();
    let (holder, early, late) = (locks(&server.url()), locks(&server.url()), locks(&server.url()));
    let held = block_on(holder.fair_mutex("x").expect("a name").lock()).expect("a free lock");
    let first = waits(&early);
    eventually("it waits", SOON, || waiters(&holder) == 1);
    let second = waits(&late);
    eventually("both wait", SOON, || waiters(&holder) == 2);
    let clients = [client_of(&early), client_of(&late)];
    let all_listen = || clients.iter().all(|client| is_heard(&server, client));
    eventually("both listen", SOON, all_listen);
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    eventually("both listen again", SOON, all_listen);
    are_served_in_order(held, first, second);
}

const STORE: &str = "TENURE_TEST_STORE";
const HOLD: Duration = Duration::from_millis(20);

/// Eight processes take turns, and every 0.3 s a waiting one is killed and replaced.
#[test]
fn a_crowd_whose_waiters_are_killed_goes_on_at_once() {
    const PROCESSES: usize = 8;
    const KILLS: usize = 20;
    const BETWEEN: Duration = Duration::from_millis(300);
    let server = Server::start();
    let here = locks(&server.url());
    let mut members: Vec<Child> = (0..PROCESSES).map(|_| member(&server)).collect();
    eventually("all wait", Duration::from_secs(120), || waiters(&here) >= PROCESSES - 2);
    server.command(&["DEL", "turns"]);
    let begun = Instant::now();
    let (mut killed, mut late) = (0, Vec::new());
    while killed < KILLS {
        assert!(begun.elapsed() < Duration::from_secs(120), "{killed} were killed");
        thread::sleep(BETWEEN);
        let listening = listening(&server, "x");
        let found = block_on(here.inspect("x")).expect("an answer").expect("they take turns");
        // One near the tail, whose turn is far, and which listens: others keep their place for 5 s.
        let mut owners = found.waiters.iter().rev().filter_map(|waiter| waiter.owner.as_ref());
        let last = owners.find(|owner| listening.contains(owner.as_str())).map(Owner::pid);
        let Some(at) = members.iter().position(|member| Some(member.id()) == last) else { continue };
        members[at].kill().expect("a process");
        members[at].wait().expect("a process");
        // On a busy machine it may have been granted before, and its lease still runs.
        let holds = |found: Status| found.holders.iter().any(|it| it.owner.as_ref().map(Owner::pid) == last);
        if block_on(here.inspect("x")).expect("an answer").is_some_and(holds) {
            late.push(unix_ms());
        } else {
            killed += 1;
        }
        members[at] = member(&server);
    }
    let took = begun.elapsed();
    for member in &mut members {
        member.kill().expect("a process");
        member.wait().expect("a process");
    }
    let turns = server.command(&["LRANGE", "turns", "0", "-1"]);
    let mut turns: Vec<u64> = turns.items().iter().map(|at| at.text().parse().expect("ms")).collect();
    turns.sort_unstable();
    let is_late = |two: &&[u64]| late.iter().any(|at| (two[0]..=two[1]).contains(at));
    let longest = turns.windows(2).filter(|two| !is_late(two)).map(|two| two[1] - two[0]).max();
    let longest = longest.expect("turns");
    println!("{:.1} turns/s, the longest pause {longest} ms", turns.len() as f64 / took.as_secs_f64());
    // A place that is waited for expires 3.3 s after its last refresh at the earliest.
    assert!(longest < 3_000, "no client held for {longest} ms, of {} turns in {took:?}", turns.len());
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64
}

fn member(server: &Server) -> Child {
    Command::new(env::current_exe().expect("this program"))
        .args(["--exact", "wake::member_of_a_crowd", "--ignored"])
        .env(STORE, server.address().to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a process")
}

#[test]
#[ignore = "a process of the crowd above"]
fn member_of_a_crowd() {
    let Ok(address) = env::var(STORE) else { return };
    let options = Options::new().ttl(Duration::from_secs(10));
    let locks = locks(&format!("redis://{address}")).with(|_| options).expect("options");
    let lock = locks.fair_mutex("x").expect("a name");
    let mut client = Client::dial(address.parse().expect("an address")).expect("a connection");
    loop {
        let guard = block_on(lock.lock()).expect("a turn");
        client.command(&["RPUSH", "turns", &unix_ms().to_string()]).expect("a reply");
        thread::sleep(HOLD);
        block_on(guard.release()).expect("it is held");
    }
}

/// The lease of the place of the only waiter, until now.
fn place_left(locks: &Locks) -> Option<Duration> {
    let found = block_on(locks.inspect("x")).expect("an answer")?;
    found.waiters.first()?.remaining
}

/// A place that is kept for long is short again when its client cannot subscribe any more, and is not passed.
#[test]
fn a_waiter_whose_subscription_is_cut_has_a_short_place() {
    let server = Server::start();
    let (here, waiter) = (locks(&server.url()), locks(&server.url()));
    let held = block_on(here.fair_mutex("x").expect("a name").lock()).expect("a free lock");
    let next = waits(&waiter);
    eventually("it is kept for long", SOON, || place_left(&here) > Some(Duration::from_secs(12)));
    // The requests of both, and this connection.
    server.command(&["CONFIG", "SET", "maxclients", "3"]);
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    // Not only because time passes.
    let is_short = || place_left(&here).is_some_and(|left| left <= Duration::from_secs(5));
    eventually("it is short", Duration::from_secs(6), is_short);
    let released = Instant::now();
    block_on(held.release()).expect("it is held");
    let next = next.join().expect("no panic").expect("an answer").expect("its turn");
    in_time(released.elapsed(), Duration::from_secs(4));
    block_on(next.release()).expect("it is held");
}

/// A waiter refreshes its place before the 5 s of a grant are over, so a message that is lost costs no turn.
#[test]
fn a_waiter_whose_message_is_lost_keeps_its_turn() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let (here, early, late) = (locks(&server.url()), locks(&proxy.url()), locks(&server.url()));
    let held = block_on(here.fair_mutex("x").expect("a name").lock()).expect("a free lock");
    let first = waits(&early);
    eventually("it is kept for long", SOON, || place_left(&here) > Some(Duration::from_secs(6)));
    let second = waits(&late);
    eventually("both wait", SOON, || waiters(&here) == 2);
    // Its second connection is that for messages.
    proxy.set_on(2, Fault::BlackHole);
    are_served_in_order(held, first, second);
}

/// As when an address is given to another server while the old one lives on.
#[test]
fn a_waiter_listens_to_the_server_that_its_requests_go_to() {
    let (old, new) = (Server::start(), Server::start());
    let folder = tempfile::tempdir().expect("a folder");
    let address = folder.path().join("redis.sock");
    symlink(old.socket(), &address).expect("a link");
    let ours = locks(&format!("redis+unix://{}", address.display()));
    let held = [&old, &new].map(|server| {
        let guard = block_on(locks(&server.url()).mutex("x").expect("a name").lock()).expect("a free lock");
        (server, guard)
    });
    let lock = ours.mutex("x").expect("a name");
    let waiter = thread::spawn(move || block_on(lock.try_lock_for(SOON)));
    // As does the holder.
    let listens =
        |server: &Server| server.command(&["PUBSUB", "NUMSUB", "tenure:wake:0:{x}"]).items()[1].int() == 2;
    eventually("it listens to the old server", SOON, || listens(&old));
    std::fs::remove_file(&address).expect("a link");
    symlink(new.socket(), &address).expect("a link");
    // Its connection for requests alone.
    old.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    eventually("it listens to the new server", SOON, || listens(&new));
    let [(_, _old), (_, guard)] = held;
    let released = Instant::now();
    block_on(guard.release()).expect("it is held");
    let next = waiter.join().expect("no panic").expect("an answer").expect("the lock");
    in_time(released.elapsed(), Duration::from_secs(1));
    drop(next);
}
