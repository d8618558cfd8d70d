//! The kit's servers do what their users assume.
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "real servers take real time")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tenure_testkit::interop;
use tenure_testkit::servers::{Client, Config, Sentinels, Server, Value, eventually};

const SHORT: Duration = Duration::from_millis(100);

fn runs(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn a_server_is_gone_with_its_handle() {
    let server = Server::start();
    let (pid, address, socket) = (server.pid(), server.address(), server.socket());
    assert!(runs(pid) && server.answers_within(SHORT));
    drop(server);
    assert!(!runs(pid) && Client::dial(address).is_err() && !socket.exists());
}

#[test]
fn a_server_is_gone_when_its_test_panics_even_if_it_was_stopped() {
    let mut pid = 0;
    let test = AssertUnwindSafe(|| {
        let server = Server::start();
        pid = server.pid();
        server.stop();
        std::panic::resume_unwind(Box::new("the test failed"));
    });
    assert!(catch_unwind(test).is_err());
    assert!(pid != 0 && !runs(pid));
}

/// Runs this program again, as the process that is killed.
#[test]
fn a_server_is_gone_when_its_test_process_is_killed() {
    if std::env::var_os("TENURE_TEST_VICTIM").is_some() {
        let server = Server::start();
        println!("pid {}", server.pid());
        std::thread::sleep(Duration::from_secs(60));
    }
    let dir = tempfile::tempdir().unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap());
    victim.args(["--exact", "servers::a_server_is_gone_when_its_test_process_is_killed", "--nocapture"]);
    victim.env("TENURE_TEST_VICTIM", "1").env("TMPDIR", dir.path()).stdout(Stdio::piped());
    let mut victim = victim.spawn().unwrap();
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines().map(Result::unwrap);
    let pid =
        lines.find_map(|line| line.split_once("pid ").map(|(_, pid)| pid.parse::<u32>().unwrap())).unwrap();
    assert!(runs(pid));
    victim.kill().unwrap();
    victim.wait().unwrap();
    eventually("the server ends with it", Duration::from_secs(5), || !runs(pid));
}

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let server = std::thread::scope(|scope| scope.spawn(Server::start).join().unwrap());
    assert_eq!(server.command(&["PING"]), "PONG");
}

#[test]
fn a_stopped_server_does_not_answer_and_goes_on_after_cont() {
    let server = Server::start();
    server.command(&["SET", "key", "value"]);
    let mut client = server.client().unwrap().with_timeout(SHORT);
    server.stop();
    assert!(!server.answers_within(SHORT));
    assert_eq!(client.command(&["GET", "key"]).unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    server.cont();
    assert!(server.answers_within(Duration::from_secs(5)));
    assert_eq!(server.command(&["GET", "key"]), "value");
}

#[test]
fn a_killed_server_refuses() {
    let server = Server::start();
    server.kill();
    assert!(Client::dial(server.address()).is_err());
    assert!(server.try_command(&["PING"]).is_err());
}

#[test]
fn a_restarted_server_is_empty_another_and_where_it_was() {
    let server = Server::start();
    let (pid, address, run_id) = (server.pid(), server.address(), server.info("server")["run_id"].clone());
    server.command(&["SET", "key", "value"]);
    server.command(&["SAVE"]);
    server.restart();
    assert_eq!(server.command(&["GET", "key"]), Value::Nil);
    assert!(!runs(pid) && server.address() == address && server.info("server")["run_id"] != run_id);
    assert!(server.answers_within(SHORT));
}

#[test]
fn a_server_that_keeps_its_data_can_be_met_while_it_loads() {
    let server = Server::start_with(Config::new().keep_data());
    let fill = "for i = 1, 1000 do redis.call('SET', i, ('%099d'):format(i)) end";
    server.command(&["EVAL", fill, "0"]);
    server.command(&["SAVE"]);
    let slow = Config::new().keep_data().set("key-load-delay", "500"); // µs each
    server.restart_with(slow.set("loading-process-events-interval-bytes", "1024"));
    assert_eq!(server.command(&["GET", "1"]).error_code(), Some("LOADING"));
    eventually("the data is loaded", Duration::from_secs(10), || {
        server.command(&["GET", "1"]).error_code().is_none()
    });
    assert_eq!(server.command(&["DBSIZE"]), 1000);
}

#[test]
fn settings_passwords_and_users_hold_for_everybody_but_the_kit() {
    let server = Server::start_with(Config::new().password("secret").user("app on >other ~app:* &* +get"));
    let mut client = Client::dial(server.address()).unwrap();
    assert_eq!(client.command(&["GET", "app:x"]).unwrap().error_code(), Some("NOAUTH"));
    assert_eq!(client.command(&["AUTH", "app", "other"]).unwrap(), "OK");
    assert_eq!(client.command(&["GET", "app:x"]).unwrap(), Value::Nil);
    assert_eq!(client.command(&["GET", "x"]).unwrap().error_code(), Some("NOPERM"));
    assert_eq!(server.command(&["SET", "x", "1"]), "OK");

    server.restart_with(
        Config::new().set("maxmemory", "1").set("maxmemory-policy", "noeviction").set("maxclients", "2"),
    );
    assert_eq!(server.command(&["SET", "x", "1"]).error_code(), Some("OOM"));
    let _second = Client::dial(server.address()).unwrap();
    eventually("no other client gets in", Duration::from_secs(5), || {
        Client::dial(server.address()).unwrap().receive().is_ok_and(|said| said.error_code() == Some("ERR"))
    });
    assert_eq!(server.command(&["PING"]), "PONG");
}

#[test]
fn a_setting_that_the_server_does_not_take_fails_with_its_log() {
    let panic = catch_unwind(|| Server::start_with(Config::new().set("no-such-thing", "1"))).unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.contains("no-such-thing"), "{message}");
}

#[test]
fn several_servers_share_nothing() {
    let servers: [Server; 5] = Server::several();
    for (i, server) in servers.iter().enumerate() {
        server.command(&["SET", "i", &i.to_string()]);
    }
    for (i, server) in servers.iter().enumerate() {
        assert_eq!(server.command(&["GET", "i"]).int(), i as i64);
    }
    assert_eq!(servers.iter().map(Server::url).collect::<BTreeSet<_>>().len(), servers.len());
}

#[test]
fn commands_are_counted_by_name_also_those_of_scripts() {
    let server = Server::start();
    server.command(&["CONFIG", "RESETSTAT"]);
    server.command(&["EVAL", "return redis.call('SET', KEYS[1], 1)", "1", "key"]);
    server.command(&["GET", "key"]);
    server.command(&["GET", "key"]);
    let stats = server.info_commandstats();
    let calls = |name| stats.get(name).copied();
    assert_eq!([calls("get"), calls("set"), calls("eval"), calls("del")], [Some(2), Some(1), Some(1), None]);
}

#[test]
fn a_client_of_version_3_hears_messages_between_its_replies() {
    let server = Server::start();
    let mut client = Client::dial(server.address()).unwrap();
    client.command(&["HELLO", "3"]).unwrap();
    client.send(&["SUBSCRIBE", "news"]).unwrap();
    assert!(matches!(client.receive().unwrap(), Value::Push(items) if items[0] == "subscribe"));
    assert_eq!(server.command(&["PUBLISH", "news", "hot"]), 1);
    assert!(matches!(client.receive().unwrap(), Value::Push(items) if items[2] == "hot"));
    assert_eq!(client.command(&["PING"]).unwrap(), "PONG");
}

/// The server's TIME, in µs.
fn time_us(server: &Server) -> i64 {
    let time = server.command(&["TIME"]);
    time.items()[0].int() * 1_000_000 + time.items()[1].int()
}

#[test]
fn the_clock_moves_time_and_ttls_together() {
    const HOUR: i64 = 3_600_000;
    let server = Server::with_clock();
    let (start, real) = (time_us(&server), Instant::now());
    server.command(&["SET", "short", "1", "PX", &HOUR.to_string()]);
    server.command(&["SET", "long", "1", "PX", &(3 * HOUR).to_string()]);
    // The remaining time must have shrunk by the step and by the elapsed real time.
    let near = |left: i64, expected: i64| {
        let passed = real.elapsed().as_millis() as i64;
        assert!(
            (expected - passed - 2..=expected + 2).contains(&left),
            "{left} is not {expected} less {passed}"
        );
    };

    server.clock().forward(Duration::from_secs(1800));
    near(server.command(&["PTTL", "short"]).int(), HOUR / 2);
    near(2 * HOUR - (time_us(&server) - start) / 1000, 2 * HOUR - HOUR / 2);
    server.clock().step_ms(HOUR);
    assert_eq!(server.command(&["GET", "short"]), Value::Nil);
    near(server.command(&["PTTL", "long"]).int(), 3 * HOUR / 2);
    server.clock().back(Duration::from_secs(7200));
    near(server.command(&["PTTL", "long"]).int(), 7 * HOUR / 2);
    server.clock().reset();
    near(server.command(&["PTTL", "long"]).int(), 3 * HOUR);
}

#[test]
fn a_frozen_clock_says_what_the_test_says_also_to_scripts_and_over_a_restart() {
    let server = Server::with_clock();
    let at = 1_700_000_000_123_456;
    server.clock().freeze_us(at as u64);
    assert_eq!(time_us(&server), at);
    server.command(&["SET", "key", "1", "PX", "1000"]);
    server.clock().step_ms(999);
    assert_eq!(server.command(&["PTTL", "key"]), 1);
    let script = "local t = redis.call('TIME'); return t[1] .. ' ' .. t[2]";
    assert_eq!(server.command(&["EVAL", script, "0"]), "1700000001 122456");
    server.clock().step_ms(1);
    assert_eq!(server.command(&["PTTL", "key"]), 0); // a key still exists in its last ms
    server.clock().step_ms(1);
    assert_eq!(server.command(&["PTTL", "key"]), -2);
    server.restart();
    assert_eq!(time_us(&server), at + 1_001_000);
}

#[test]
fn a_clock_is_moved_while_the_server_works_and_never_shows_half_a_step() {
    let server = Server::with_clock();
    let (low, high) = (1_000_000_000_000_000, 1_999_999_999_999_999);
    let mut client = server.client().unwrap();
    std::thread::scope(|scope| {
        let strobe = scope.spawn(|| {
            for i in 0..20_000 {
                server.clock().freeze_us(if i % 2 == 0 { low } else { high });
            }
        });
        server.clock().freeze_us(low);
        while !strobe.is_finished() {
            let time = client.command(&["TIME"]).unwrap();
            let time_us = (time.items()[0].int() * 1_000_000 + time.items()[1].int()) as u64;
            assert!(time_us == low || time_us == high, "{time_us}");
        }
    });
}

#[test]
fn redis_py_is_there_and_its_lock_reaches_a_server() {
    let server = Server::start();
    let script =
        "import redis, sys; print(redis.Redis(port=int(sys.argv[1])).lock('key', timeout=9).acquire())";
    let port = server.address().port().to_string();
    let output = Command::new(interop::python()).args(["-c", script, &port]).output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "True\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!((1..=9000).contains(&server.command(&["PTTL", "key"]).int()));
}

#[test]
fn sentinels_find_another_master() {
    let sentinels = Sentinels::start();
    let (old, new) = (sentinels.master(), sentinels.fail_over());
    assert_ne!(old.address(), new.address());
    sentinels.settles(); // the old one becomes a replica
    new.kill();
    assert_ne!(sentinels.fails_over_from(new).address(), new.address());
}
