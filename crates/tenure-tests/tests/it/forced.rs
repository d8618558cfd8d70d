//! Holds ended by force on real servers: the cost for short holds, and what others can do with the messages.
//! The conformance suite shows for each store that the holder is notified immediately.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real servers measure real time"
)]

use std::time::{Duration, Instant};

use tenure::{ForcedRelease, Guard, Locks, block_on};
use tenure_testkit::servers::{Cluster, Server, eventually};

/// Tolerance for a busy machine, below the renewal interval of 20 s.
const LIMIT: Duration = Duration::from_secs(15);

fn locks(url: &str) -> Locks {
    let locks = Locks::open(url).expect("a store");
    locks.with(|options| options.ttl(Duration::from_secs(60))).expect("options")
}

/// Number of commands with this prefix that the servers have executed.
fn calls(servers: &[Server], command: &str) -> u64 {
    let stats = servers.iter().flat_map(Server::info_commandstats);
    stats.filter(|(name, _)| name.starts_with(command)).map(|(_, count)| count).sum()
}

/// Channels with subscribers, of both kinds.
fn channels(server: &Server) -> Vec<String> {
    let asked = [["PUBSUB", "CHANNELS"], ["PUBSUB", "SHARDCHANNELS"]];
    let said = asked.iter().map(|command| server.command(command));
    said.flat_map(|said| said.items().iter().map(|name| name.text().to_owned()).collect::<Vec<_>>()).collect()
}

fn held(locks: &Locks) -> [Guard; 2] {
    let fair = locks.fair_mutex("fair").expect("a name");
    let mutex = locks.mutex("mutex").expect("a name");
    [block_on(mutex.lock()).expect("free"), block_on(fair.lock()).expect("free")]
}

#[test]
fn a_hold_that_is_over_within_a_second_subscribes_to_nothing() {
    let server = Server::start();
    let locks = locks(&server.url());
    let (mutex, fair) = (locks.mutex("mutex").expect("a name"), locks.fair_mutex("fair").expect("a name"));
    block_on(locks.ping()).expect("a server");
    let pairs = || {
        for _ in 0..50 {
            block_on(async {
                mutex.lock().await.expect("free").release().await.expect("a release");
                fair.lock().await.expect("free").release().await.expect("a release");
            });
        }
    };
    pairs();
    server.command(&["CONFIG", "RESETSTAT"]);
    pairs();
    assert_eq!(calls(std::slice::from_ref(&server), "subscribe"), 0);
    assert_eq!(channels(&server), [""; 0]);
    let requests = calls(std::slice::from_ref(&server), "evalsha");
    // Two scripts per fair lock, and at most one for the release of a mutex.
    assert!(requests <= 151, "{requests} scripts for a hundred pairs");
}

fn forged_messages_end_nothing(servers: &[Server], locks: &Locks) {
    let guards = held(locks);
    let listened = || servers.iter().map(|server| channels(server).len()).sum::<usize>();
    eventually("both are listened for", LIMIT, || listened() == 2);
    // A new subscriber sends one request.
    eventually("both were asked about", LIMIT, || locks.metrics().total().renewals >= 2);
    let before = locks.metrics().total().renewals;
    let start = Instant::now();
    for round in 0..300 {
        let message = ["", "0", "x", "123", guards[0].owner().as_str()][round % 5];
        for server in servers {
            for channel in channels(server) {
                let publish = if servers.len() > 1 { "SPUBLISH" } else { "PUBLISH" };
                server.command(&[publish, &channel, message]);
            }
        }
    }
    eventually("a message was heard", LIMIT, || locks.metrics().total().renewals > before);
    let most = 2 * (start.elapsed().as_millis() as u64 / 100 + 2);
    let asked = locks.metrics().total().renewals - before;
    assert!(asked <= most, "the server was asked {asked} times, and at most {most} would do");
    assert!(guards.iter().all(Guard::is_held));
    for guard in &guards {
        let lost = guard.lost();
        block_on(locks.force_release(guard.name().as_str())).expect("an answer").expect("a holder");
        eventually("it is told that it was ended", LIMIT, || !guard.is_held());
        assert!(block_on(lost).is_lost());
    }
}

#[test]
fn a_forged_message_ends_no_hold() {
    let server = Server::start();
    forged_messages_end_nothing(std::slice::from_ref(&server), &locks(&server.url()));
}

#[test]
fn a_forged_message_ends_no_hold_on_a_cluster() {
    let cluster = Cluster::without_replicas();
    forged_messages_end_nothing(cluster.nodes(), &locks(&cluster.url()));
}

/// A user that may lock but not subscribe learns of it by renewals.
#[test]
fn who_may_not_listen_is_told_by_its_renewal() {
    let server = Server::start();
    server.command(&["ACL", "SETUSER", "default", "-subscribe"]);
    let locks = Locks::open(&server.url()).expect("a store");
    let locks = locks.with(|options| options.ttl(Duration::from_secs(9))).expect("options");
    let guards = held(&locks);
    eventually("it has tried to listen", LIMIT, || server.info_commandstats().contains_key("subscribe"));
    for guard in &guards {
        block_on(locks.force_release(guard.name().as_str())).expect("an answer").expect("a holder");
        eventually("its renewal tells it", LIMIT, || !guard.is_held());
    }
}

#[test]
fn a_hold_that_is_ended_in_its_owners_name_leaves_nothing_behind() {
    let server = Server::start();
    let locks = locks(&server.url());
    let holds: [fn(&Locks) -> Guard; 4] = [
        |locks| block_on(locks.mutex("x").expect("a name").lock()).expect("free"),
        |locks| block_on(locks.fair_mutex("x").expect("a name").lock()).expect("free"),
        |locks| block_on(locks.rwlock("x").expect("a name").write()).expect("free").into(),
        |locks| block_on(locks.semaphore("x", 3).expect("a name").acquire_many(2)).expect("free"),
    ];
    for hold in holds {
        let guard = hold(&locks);
        let ended = block_on(locks.force_release_owner("x", guard.owner())).expect("an answer");
        assert!(matches!(ended, ForcedRelease::Ended(_)), "{ended:?}");
        assert_eq!(server.command(&["EXISTS", "x"]).int(), 0, "of a {:?}", ended);
        let mutex = locks.mutex("x").expect("a name");
        drop(block_on(mutex.try_lock()).expect("an answer").expect("a free lock"));
        block_on(locks.flush()).expect("released");
        assert!(block_on(guard.release()).expect_err("it is gone").is_lost());
    }
}
