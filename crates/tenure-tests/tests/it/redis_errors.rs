//! Error replies of real servers: what each means, and that nothing is left behind.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real servers measure real time"
)]

use std::error::Error;
use std::time::{Duration, Instant};

use tenure::internals::protocol::{Answer, LockSpec};
use tenure::internals::store::{Failure, Purpose, Topic};
use tenure::{LockName, Locks, block_on};
use tenure_testkit::asker::{Asker, held, not_sent, refusal};
use tenure_testkit::servers::{Client, Config, Server, Value, eventually};
use tenure_testkit::timed::in_time;

const SOON: Duration = Duration::from_secs(5);
/// Longer than any wait here.
const LONG: Duration = Duration::from_secs(30);

fn url(server: &Server, login: &str) -> String {
    server.url().replace("redis://", &format!("redis://{login}@"))
}

fn keys(server: &Server) -> usize {
    server.command(&["DBSIZE"]).int() as usize
}

#[test]
fn a_wrong_password_is_refused_at_once_and_never_shown() {
    let server = Server::start_with(Config::new().password("right"));
    for (url, code) in [
        (server.url(), "NOAUTH"),
        (url(&server, ":hush"), "WRONGPASS"),
        (url(&server, "ann:hush"), "WRONGPASS"),
    ] {
        let started = Instant::now();
        let why = refusal(Asker::new(&url).acquire("x"));
        assert!(why.contains(code) && !why.contains("hush"), "{why}");
        in_time(started.elapsed(), Duration::from_secs(3));
    }
    assert!(held(&Asker::new(&url(&server, ":right")).acquire("x")));
}

#[test]
fn a_password_that_is_corrected_on_the_server_is_found_right_by_the_next_request() {
    let server = Server::start_with(Config::new().password("old"));
    let asker = Asker::new(&url(&server, ":new"));
    refusal(asker.acquire("x"));
    server.command(&["CONFIG", "SET", "requirepass", "new"]);
    assert!(held(&asker.acquire("x")));
}

#[test]
fn a_user_without_the_right_to_a_command_or_key_is_refused() {
    let server = Server::start_with(
        Config::new()
            .user("noscript on >pw ~* &* +@all -evalsha -eval")
            .user("nokey on >pw ~app:* &* +@all")
            .user("noset on >pw ~* &* +@all -set")
            .user("nolock on >pw ~tenure:* %R~x &* +@all"),
    );
    let why = refusal(Asker::new(&url(&server, "noscript:pw")).acquire("x"));
    assert!(why.contains("NOPERM"), "{why}");
    let why = refusal(Asker::new(&url(&server, "nokey:pw")).acquire("x"));
    assert!(why.contains("NOPERM"), "{why}");
    let why = refusal(Asker::new(&url(&server, "noset:pw")).acquire("x"));
    let words = ["can't run this command", "NOPERM", "has no permissions"]; // of Redis 7.0, Redis 7.2 and Valkey 9
    assert!(words.iter().any(|words| why.contains(words)), "{why}");
    assert_eq!(keys(&server), 0);
    refusal(Asker::new(&url(&server, "nolock:pw")).acquire("x"));
    assert_eq!(keys(&server), 0);
}

#[test]
fn without_the_right_to_a_channel_a_release_works_and_a_subscription_is_refused() {
    let server = Server::start_with(Config::new().user("silent on >pw ~* resetchannels +@all"));
    let asker = Asker::new(&url(&server, "silent:pw"));
    assert!(held(&asker.acquire("x")));
    assert_eq!(asker.release("x").expect("an answer"), Answer::Released { left: 0 });
    assert_eq!(server.command(&["EXISTS", "x"]).int(), 0);
    let name = LockName::new("x").expect("a name");
    match block_on(asker.store.subscribe(Topic::new(&name, LockSpec::Mutex, Purpose::Watch), SOON)) {
        Err(failure @ Failure::Refused(_)) => assert!(failure.to_string().contains("NOPERM"), "{failure}"),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn without_the_right_to_end_connections_locks_work_all_the_same() {
    let server = Server::start_with(Config::new().user("meek on >pw ~* &* +@all -client"));
    let asker = Asker::new(&url(&server, "meek:pw"));
    assert!(held(&asker.acquire("x")));
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    eventually("the connection is made again", SOON, || asker.renew("x").is_ok());
}

#[test]
fn a_full_server_refuses_a_lock_and_takes_one_back() {
    let server = Server::start();
    let asker = Asker::new(&server.url());
    assert!(held(&asker.acquire("x")));
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let why = refusal(asker.other().acquire("y"));
    assert!(why.contains("OOM"), "{why}");
    assert!(held(&asker.renew("x")));
    assert_eq!(asker.release("x").expect("an answer"), Answer::Released { left: 0 });
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(held(&asker.acquire("y")));
}

#[test]
fn a_server_that_cannot_save_refuses() {
    let dir = tempfile::tempdir().expect("a directory");
    let gone = dir.path().join("gone");
    std::fs::create_dir(&gone).expect("a directory");
    let server = Server::start_with(
        Config::new().set("dir", gone.to_str().expect("a path in UTF-8")).set("save", "3600 1"),
    );
    std::fs::remove_dir(&gone).expect("an empty directory");
    server.command(&["BGSAVE"]);
    eventually("the save fails", SOON, || server.info("persistence")["rdb_last_bgsave_status"] == "err");
    let why = refusal(Asker::new(&server.url()).acquire("x"));
    assert!(why.contains("MISCONF"), "{why}");
    assert_eq!(keys(&server), 0);
}

#[test]
fn a_replica_is_asked_again_until_it_is_a_master() {
    let server = Server::start();
    let (asker, other) = (Asker::new(&server.url()), Asker::new(&server.url()));
    assert!(held(&asker.acquire("a")) && held(&other.acquire("b")));
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let why = not_sent(asker.acquire("x"));
    assert!(why.contains("READONLY"), "{why}");
    server.command(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    let why = not_sent(other.acquire("x"));
    assert!(why.contains("MASTERDOWN"), "{why}");
    // A connection with this error is closed, and the next one gets it in its handshake.
    for asker in [&asker, &other] {
        let why = not_sent(asker.acquire("x"));
        assert!(why.contains("this server is a replica"), "{why}");
    }
    server.command(&["REPLICAOF", "NO", "ONE"]);
    eventually("the lock is granted", SOON, || held(&asker.acquire("x")));
}

#[test]
fn a_master_without_the_replicas_that_it_wants_is_asked_again() {
    let server = Server::start_with(Config::new().set("min-replicas-to-write", "1"));
    let why = not_sent(Asker::new(&server.url()).acquire("x"));
    assert!(why.contains("NOREPLICAS"), "{why}");
    assert_eq!(keys(&server), 0);
}

#[test]
fn a_server_that_loads_its_data_is_asked_again() {
    let server = Server::loading(LONG);
    let asker = Asker::new(&server.url());
    let why = not_sent(asker.acquire("x"));
    assert!(why.contains("LOADING"), "{why}");
    server.finish_loading();
    eventually("the data is loaded", Duration::from_secs(10), || held(&asker.acquire("x")));
}

#[test]
fn a_wait_for_a_server_that_loads_its_data_ends_while_it_does_or_with_the_lock() {
    let server = Server::loading(LONG);
    let mutex = Locks::open(&server.url()).expect("a store").mutex("x").expect("a name");
    let limit = Duration::from_millis(500);
    let started = Instant::now();
    // On a busy machine its last request may time out without an answer.
    let loads = |error: tenure::Error| {
        assert!(error.is_unreachable(), "{error:?}");
        error.source().expect("a cause").to_string().contains("LOADING")
    };
    eventually("a wait says why it ended", SOON, || loads(block_on(mutex.try_lock_for(limit)).unwrap_err()));
    assert!(started.elapsed() >= limit, "{:?}", started.elapsed());
    eventually("an attempt says why it ended", SOON, || loads(block_on(mutex.try_lock()).unwrap_err()));
    assert!(server.is_loading(), "it took {:?}", started.elapsed());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| block_on(mutex.lock()).expect("a grant"));
        server.finish_loading();
        drop(waiter.join().expect("no panic"));
    });
}

/// A server that runs a script without end, a client for requests meanwhile, and the script's client.
fn busy_with(script: &str) -> (Server, Asker, Client) {
    let server = Server::start_with(Config::new().set("lua-time-limit", "20"));
    let asker = Asker::new(&server.url());
    asker.acquire("warm").expect("an answer");
    let mut busy = server.client().expect("a connection");
    busy.send(&["EVAL", script, "0"]).expect("a connection");
    eventually("the server is busy", SOON, || is_busy(&asker));
    (server, asker, busy)
}

fn is_busy(asker: &Asker) -> bool {
    matches!(asker.acquire("x"), Err(failure @ Failure::NotSent(_)) if failure.to_string().contains("BUSY"))
}

#[test]
fn a_server_that_is_busy_with_a_script_is_asked_again() {
    let (server, asker, _busy) = busy_with("while true do end");
    server.command(&["SCRIPT", "KILL"]);
    eventually("the lock is granted", SOON, || held(&asker.acquire("x")));
}

#[test]
fn a_script_that_cannot_be_stopped_is_waited_for_until_its_server_is_another() {
    let (server, asker, _busy) = busy_with("redis.call('SET', 'written', '1') while true do end");
    // UNKILLABLE is the reply to SCRIPT KILL only; requests for locks still get BUSY.
    assert_eq!(server.command(&["SCRIPT", "KILL"]).error_code(), Some("UNKILLABLE"));
    assert!(is_busy(&asker));
    server.restart();
    eventually("the lock is granted", SOON, || held(&asker.acquire("x")));
}

#[test]
fn a_server_with_too_many_clients_is_asked_again() {
    let server = Server::start();
    server.command(&["CONFIG", "SET", "maxclients", "1"]);
    let asker = Asker::new(&server.url()).within(Duration::from_millis(500));
    let why = not_sent(asker.acquire("x"));
    assert!(why.contains("max number of clients"), "{why}");
    server.command(&["CONFIG", "SET", "maxclients", "100"]);
    eventually("there is memory", SOON, || held(&asker.acquire("x")));
}

#[test]
fn a_member_of_a_cluster_without_slots_is_asked_again_or_refuses_as_a_member() {
    let server = Server::start_with(Config::new().set("cluster-enabled", "yes"));
    let said = Asker::new(&server.url()).acquire("x");
    // Valkey 9.1 first checks that the keys share a slot.
    match said {
        Err(Failure::Refused(_)) => assert!(refusal(said).contains("this server is part of a cluster")),
        said => {
            let why = not_sent(said);
            assert!(why.contains("CLUSTERDOWN"), "{why}");
        }
    }
}

#[test]
fn what_the_server_does_not_know_is_refused() {
    let server = Server::start_with(Config::new().set("rename-command", "EVALSHA \"\""));
    let why = refusal(Asker::new(&server.url()).acquire("x"));
    assert!(why.contains("unknown command"), "{why}");
    let server = Server::start_with(Config::new().set("rename-command", "HELLO \"\""));
    let why = refusal(Asker::new(&server.url()).acquire("x"));
    assert!(why.contains("Redis 6.2"), "{why}");
    let server = Server::start();
    let why = refusal(Asker::new(&format!("{}/99", server.url())).acquire("x"));
    assert!(why.contains("DB index is out of range"), "{why}");
}

#[test]
fn a_script_that_the_server_forgot_is_sent_in_full() {
    let server = Server::start();
    let asker = Asker::new(&server.url());
    assert!(held(&asker.acquire("x")));
    server.command(&["SCRIPT", "FLUSH"]);
    assert!(held(&asker.renew("x")));
    server.command(&["SCRIPT", "FLUSH"]);
    assert_eq!(asker.release("x").expect("an answer"), Answer::Released { left: 0 });
}

#[test]
fn the_words_of_the_server_are_in_the_message() {
    let server = Server::start();
    let error = block_on(Locks::connect(&format!("{}/99", server.url()))).expect_err("no such database");
    assert!(error.is_refused() && error.to_string().contains("ERR DB index is out of range"), "{error}");
}

#[test]
fn a_hash_is_a_foreign_holder_other_types_are_no_locks_and_at_the_counter_an_error() {
    let server = Server::start();
    let asker = Asker::new(&server.url());
    for (create, shown, is_lock) in [
        (&["RPUSH", "list", "a"][..], "(list)", false),
        (&["ZADD", "zset", "1", "a"], "(zset)", false),
        (&["SADD", "set", "a"], "(set)", false),
        (&["HSET", "hash", "a", "1"], "a", true), // like Redisson's
        (&["HSET", "table", "a", "1", "b", "2"], "(hash)", true),
        (&["XADD", "stream", "*", "a", "1"], "(stream)", false),
    ] {
        server.command(create);
        let busy = Answer::Busy { holder: shown.into(), left_ms: None };
        let no_lock = Answer::NoLock { type_name: create[1].into() };
        let acquired = if is_lock { &busy } else { &no_lock };
        assert_eq!(asker.acquire(create[1]).expect("an answer"), *acquired);
        assert_eq!(asker.release(create[1]).expect("an answer"), busy);
        assert_eq!(server.command(&["EXISTS", create[1]]).int(), 1);
    }
    server.command(&["RPUSH", "tenure:fence", "a"]);
    let why = refusal(asker.acquire("x"));
    assert!(why.contains("WRONGTYPE") && why.contains("counter"), "{why}");
    assert_eq!(server.command(&["EXISTS", "x"]).int(), 0);
}

#[test]
fn a_foreign_value_of_any_length_and_of_no_text_is_a_holder() {
    let server = Server::start();
    let asker = Asker::new(&server.url());
    server.command(&[&b"SET"[..], b"x", &[0xff, 0, 0xfe]]);
    assert!(matches!(asker.acquire("x"), Ok(Answer::Busy { left_ms: None, .. })));
    server.command(&[&b"SET"[..], b"x", &vec![b'x'; 32 << 20]]);
    match asker.acquire("x") {
        Ok(Answer::Busy { holder, .. }) => assert_eq!(holder.len(), 1024),
        other => panic!("not busy: {other:?}"),
    }
}

#[test]
fn a_paused_server_is_waited_for_no_longer_than_meant() {
    let server = Server::start();
    let asker = Asker::new(&server.url());
    assert!(held(&asker.acquire("x")));
    server.command(&["CLIENT", "PAUSE", "3000", "ALL"]);
    let started = Instant::now();
    match asker.other().within(Duration::from_millis(300)).acquire("y") {
        Err(Failure::Unknown(_)) => {}
        other => panic!("not unknown: {other:?}"),
    }
    in_time(started.elapsed(), Duration::from_millis(2_500));
    eventually("it goes on", SOON, || held(&asker.renew("x")));
}

#[test]
fn databases_keep_locks_and_messages_apart() {
    let server = Server::start();
    let (zero, three) = (Asker::new(&server.url()), Asker::new(&format!("{}/3", server.url())));
    assert!(held(&zero.acquire("x")) && held(&three.acquire("x")));
    let mut listener = server.client().expect("a connection");
    listener.command(&["SUBSCRIBE", "tenure:wake:3:{x}"]).expect("a subscription");
    zero.release("x").expect("an answer");
    three.release("x").expect("an answer");
    let message = listener.receive().expect("a message");
    assert_eq!(message.items()[2], Value::Bytes(three.owner.as_str().into()));
}

#[test]
fn a_socket_in_the_file_system_is_as_good_as_a_port() {
    let server = Server::start_with(Config::new().password("\"p ss\""));
    let asker = Asker::new(&format!("{}?db=2&password=p%20ss", server.unix_url()));
    assert!(held(&asker.acquire("x")));
    assert_eq!(asker.release("x").expect("an answer"), Answer::Released { left: 0 });
    let gone = Asker::new("redis+unix:///nowhere/redis.sock").within(Duration::from_millis(200));
    not_sent(gone.acquire("x"));
}
