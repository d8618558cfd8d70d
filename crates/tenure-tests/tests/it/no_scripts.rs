//! The mutex on a server that forbids scripts: its guarantees, refusals and commands.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::internals::Runtime;
use tenure::internals::protocol::{Answer, Fence, LockSpec, Op, Verb};
use tenure::internals::store::redis::{Redis, Target};
use tenure::internals::store::{Failure, StoreExt};
use tenure::{LockName, Locks, Owner, block_on};
use tenure_testkit::asker::{Asker, acquire, held, refusal, release};
use tenure_testkit::conformance::{Case, Fixture, Flavour};
use tenure_testkit::servers::{Config, Server, Value, eventually};
use tenure_testkit::sim::chooser::Chooser;
use tenure_testkit::sim::clock::{Clock, SECOND};
use tenure_testkit::sim::executor::Sim;
use tenure_testkit::sim_transport::SimTransport;

/// The commands sent for an acquisition, a renewal and a release to a server that forbids scripts, played by
/// `answer`.
fn sent(answer: impl Fn(&[&str]) -> &'static str + Send + 'static) -> Vec<String> {
    let sim = Sim::new(Chooser::seeded(1));
    let process = sim.process(Clock::default(), 1);
    let runtime = Arc::clone(&process) as Arc<dyn Runtime>;
    let network = SimTransport::new(&sim, false);
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let told = Arc::clone(&heard);
    let owner = Owner::new("asker").expect("an owner");
    let asker = owner.clone();
    network.answer(move |words| {
        if matches!(words[0], "HELLO" | "CLIENT" | "INFO") {
            return None;
        }
        let words: Vec<_> =
            words.iter().map(|word| if *word == asker.as_str() { "OWNER" } else { word }).collect();
        if words[0].starts_with("EVAL") {
            return Some("-NOPERM this user has no permissions to run the 'evalsha' command\r\n".into());
        }
        told.lock().expect("no panic").push(words.join(" "));
        let reply = match &words[..] {
            // One reply per command.
            ["EXEC"] if told.lock().expect("no panic").iter().any(|words| words.starts_with("PUBLISH")) => {
                "*2\r\n:1\r\n:0\r\n"
            }
            ["EXEC"] => "*1\r\n:1\r\n",
            words => answer(words),
        };
        Some(reply.replace("LENGTH", &asker.as_str().len().to_string()).replace("OWNER", asker.as_str()))
    });
    let target = Target::parse("redis://network").expect("a URL");
    let store = Redis::over(target, Arc::new(network), runtime);
    let done: Arc<Mutex<Vec<Answer>>> = Arc::default();
    let answers = Arc::clone(&done);
    let renew = Verb::Renew { ttl_ms: 30_000, hold: 1, bind: None, weight: None };
    process.spawn(Box::pin(async move {
        for verb in [tokenless(), renew, release()] {
            let (name, owner) = (LockName::new("x").expect("a name"), owner.clone());
            let op = Op { name, spec: LockSpec::Mutex, owner, request: 1, verb };
            let answer = store.request(op, Duration::from_secs(1)).await.expect("an answer");
            answers.lock().expect("no panic").push(answer);
        }
    }));
    sim.run(60 * SECOND, 1_000_000);
    let held = Answer::Held { fence: 0 };
    assert_eq!(*done.lock().expect("no panic"), [held.clone(), held, Answer::Released { left: 0 }]);
    sim.end();
    let heard = heard.lock().expect("no panic");
    heard.clone()
}

/// An acquire without a token.
fn tokenless() -> Verb {
    let Verb::Acquire { ttl_ms, hold, wait_ms, bind, .. } = acquire() else { unreachable!("it acquires") };
    Verb::Acquire { ttl_ms, hold, fence: Fence::Optional, wait_ms, listens: None, bind }
}

/// Replies common to all servers of these tests: the lock is granted, and later still held.
fn plain_words(words: &[&str]) -> &'static str {
    match words {
        ["SET", _, _, "NX", ..] => "_\r\n",
        ["GETRANGE", ..] => "$LENGTH\r\nOWNER\r\n",
        ["PTTL", _] => ":20000\r\n",
        ["DELIFEQ" | "DELEX", ..] => ":1\r\n",
        ["MULTI" | "WATCH" | "UNWATCH", ..] | ["SET", _, _, "IFEQ", ..] => "+OK\r\n",
        _ => "+QUEUED\r\n",
    }
}

/// A server whose users may not run scripts.
fn server() -> Server {
    Server::start_with(
        Config::new()
            .user("plain on >pw ~* &* +@all -@scripting")
            .user("mute on >pw ~* &* +@all -@scripting -publish")
            .user("silent on >pw ~* resetchannels +@all -@scripting")
            .user("bound on >pw ~* &* +@all -@scripting -watch")
            .user("unsure on >pw ~* &* +@all -@scripting -multi")
            .user("stuck on >pw ~* &* +@all -@scripting -exec"),
    )
}

pub(crate) fn knows(server: &Server, command: &str) -> bool {
    match server.command(&["COMMAND", "INFO", command]) {
        Value::Array(found) => matches!(&found[..], [Value::Array(_)]),
        other => panic!("{other:?}"),
    }
}

fn url(server: &Server, user: &str) -> String {
    server.url().replace("redis://", &format!("redis://{user}:pw@"))
}

fn unfenced(url: &str) -> Locks {
    Locks::open(url).expect("a store").with(|options| options.unfenced(true)).expect("options")
}

fn run(flavour: Flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>) {
    let server = server();
    let url = url(&server, "plain");
    let open = move || Locks::open(&url).expect("a store");
    let fixture = Fixture::in_real_time(open).with(flavour).on(|options| options.unfenced(true));
    block_on(case(&fixture));
    let calls = server.info_commandstats();
    let scripts = ["eval", "evalsha"].map(|name| calls.get(name).copied().unwrap_or(0));
    assert_eq!(scripts, [0, 0], "{calls:?}");
}

mod conformance {
    tenure_testkit::conformance_mutex!(crate::no_scripts::run);
}

#[test]
fn a_mutex_without_a_token_is_taken_only_by_those_who_said_that_it_will_do() {
    let server = server();
    let url = url(&server, "plain");
    let fenced = Locks::open(&url).expect("a store");
    let error = block_on(fenced.mutex("x").expect("a name").try_lock()).expect_err("no token");
    assert!(error.is_unsupported() && !error.is_refused(), "{error}");
    let said = error.to_string();
    assert!(said.contains("NOPERM") && said.contains("unfenced"), "{said}");
    assert_eq!(server.command(&["EXISTS", "x"]).int(), 0);

    let guard = block_on(unfenced(&url).mutex("x").expect("a name").lock()).expect("a free lock");
    assert_eq!(guard.fence(), 0);
    assert_eq!(server.command(&["GET", "x"]).text(), guard.owner().as_str());
    // A client that needs a token is refused immediately here too.
    assert!(block_on(fenced.mutex("x").expect("a name").lock()).expect_err("no token").is_unsupported());
}

#[test]
fn where_scripts_run_a_token_is_given_to_those_too_who_would_do_without() {
    let server = Server::start();
    let guard = block_on(unfenced(&server.url()).mutex("x").expect("a name").lock()).expect("a free lock");
    assert!(guard.fence() > 0);
}

#[test]
fn kinds_that_need_scripts_are_refused_with_the_reason() {
    let server = server();
    let locks = unfenced(&url(&server, "plain"));
    let owner = Owner::new("a").expect("an owner");
    for error in [
        block_on(locks.fair_mutex("x").expect("a name").lock()).expect_err("a queue"),
        block_on(locks.rwlock("x").expect("a name").read()).expect_err("a queue"),
        block_on(locks.semaphore("x", 3).expect("a name").acquire()).expect_err("a queue"),
        block_on(locks.reentrant_mutex("x", &owner).expect("a name").lock()).expect_err("a hash"),
    ] {
        assert!(error.is_unsupported() && error.to_string().contains("NOPERM"), "{error}");
    }
    assert_eq!(server.command(&["DBSIZE"]).int(), 0);
}

#[test]
fn those_with_scripts_and_those_without_exclude_each_other() {
    let server = server();
    let (with, without) = (Locks::open(&server.url()).expect("a store"), unfenced(&url(&server, "plain")));
    for (one, other) in [(&with, &without), (&without, &with)] {
        let guard = block_on(one.mutex("x").expect("a name").lock()).expect("a free lock");
        let mutex = other.mutex("x").expect("a name");
        assert!(block_on(mutex.try_lock()).expect("an answer").is_none());
        let waits = std::thread::scope(|scope| {
            let waits = scope.spawn(|| block_on(mutex.try_lock_for(Duration::from_secs(5))));
            block_on(guard.release()).expect("a release");
            waits.join().expect("no panic")
        });
        block_on(waits.expect("an answer").expect("a grant").release()).expect("a release");
    }
    // A hold with a token is renewed and released although scripts have been forbidden since.
    let guard = block_on(with.mutex("x").expect("a name").lock()).expect("a free lock");
    let fence = block_on(guard.detach()).expect("a detached hold");
    let guard = block_on(without.resume("x", &fence)).expect("an answer").expect("a hold");
    assert!(guard.fence() > 0);
    block_on(guard.release()).expect("a release");
    assert_eq!(server.command(&["EXISTS", "x"]).int(), 0);
}

#[test]
fn another_kind_of_ours_is_a_mismatch_and_what_is_foreign_is_busy() {
    let server = server();
    let with = Locks::open(&server.url()).expect("a store");
    let owner = Owner::new("a").expect("an owner");
    let _fair = block_on(with.fair_mutex("fair").expect("a name").lock()).expect("a free lock");
    let _again =
        block_on(with.reentrant_mutex("again", &owner).expect("a name").lock()).expect("a free lock");
    let locks = unfenced(&url(&server, "plain"));
    for (name, kind) in [("fair", "fair mutex"), ("again", "reentrant mutex")] {
        let error = block_on(locks.mutex(name).expect("a name").try_lock()).expect_err("another kind");
        assert!(error.is_mismatch() && error.to_string().contains(kind), "{error}");
    }
    server.command(&["RPUSH", "list", "a"]);
    server.command(&["ZADD", "zset", "1", "a"]);
    server.command(&["HSET", "hash", "a", "b"]);
    server.command(&["SET", "text", &"x".repeat(5_000)]);
    for name in ["hash", "text"] {
        assert!(block_on(locks.mutex(name).expect("a name").try_lock()).expect("an answer").is_none());
    }
    for (name, what) in [("list", "a list"), ("zset", "a sorted set")] {
        let error = block_on(locks.mutex(name).expect("a name").lock()).expect_err("no lock");
        assert!(error.is_mismatch() && error.to_string().ends_with(what), "{error}");
    }
    let status = block_on(locks.inspect("list")).expect("an answer").expect("a holder");
    assert_eq!(status.foreign().as_deref(), Some("a list"));
    for name in ["list", "zset"] {
        for forced in [block_on(locks.force_release(name)), block_on(locks.force_release_foreign(name))] {
            let error = forced.expect_err("no lock");
            assert!(error.is_mismatch() || error.is_unsupported(), "{error}");
        }
    }
    assert!(block_on(locks.force_release("text")).expect_err("no lock of ours").is_mismatch());
    assert_eq!(server.command(&["EXISTS", "text", "list", "zset", "hash"]).int(), 4);
    let ended = block_on(locks.force_release_foreign("text")).expect("an answer").expect("a holder");
    assert_eq!(ended.foreign().as_deref(), Some("a string of 1024 bytes or more"));
    assert_eq!(server.command(&["EXISTS", "text", "list", "zset", "hash"]).int(), 3);
}

#[test]
fn a_release_is_one_also_where_nobody_may_be_told_of_it() {
    let server = server();
    for user in ["mute", "silent"] {
        let locks = unfenced(&url(&server, user));
        let guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a free lock");
        block_on(guard.release()).expect("a release");
        assert_eq!(server.command(&["EXISTS", "x"]).int(), 0, "{user}");
    }
}

/// The lock can be taken but not compared: it ends with its lease, and the holder learns why.
#[test]
fn where_nothing_can_be_compared_a_release_is_refused() {
    let server = server();
    for compares in ["-delifeq", "-delex"] {
        // Fails where the server does not have the command.
        let _ = server.try_command(&["ACL", "SETUSER", "bound", compares]);
    }
    let locks = unfenced(&url(&server, "bound"));
    let guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a free lock");
    let error = block_on(guard.release()).expect_err("no WATCH");
    assert!(error.is_refused(), "{error}");
}

/// Commands after a refused MULTI would be executed regardless of the holder.
#[test]
fn where_there_are_no_transactions_nothing_is_taken() {
    let server = server();
    for user in ["unsure", "stuck"] {
        let locks = unfenced(&url(&server, user));
        let taken = block_on(locks.mutex("x").expect("a name").try_lock());
        if knows(&server, "DELIFEQ") || knows(&server, "DELEX") {
            // There each command does its own comparison.
            let guard = taken.expect("an answer").expect("a free lock");
            block_on(guard.release()).expect("a release");
        } else {
            let error = taken.expect_err("nothing could be released");
            assert!(error.is_refused() && error.to_string().contains("MULTI"), "{error}");
        }
        assert_eq!(server.command(&["EXISTS", "x"]).int(), 0, "{user}");
    }
}

#[test]
fn no_request_shortens_a_lease_or_changes_what_somebody_else_has_taken_meanwhile() {
    let server = server();
    let asker = Asker::new(&url(&server, "plain"));
    let ask = |asker: &Asker, verb| asker.ask("x", verb);
    let lease = |ttl_ms| Verb::Renew { ttl_ms, hold: 1, bind: None, weight: None };
    let left = || server.command(&["PTTL", "x"]).int();
    assert_eq!(ask(&asker, tokenless()).expect("an answer"), Answer::Held { fence: 0 });
    for verb in [tokenless(), lease(1_000)] {
        assert_eq!(ask(&asker, verb).expect("an answer"), Answer::Held { fence: 0 });
        assert!(left() > 25_000);
    }
    assert_eq!(ask(&asker, lease(60_000)).expect("an answer"), Answer::Held { fence: 0 });
    assert!(left() > 55_000);
    let other = asker.other();
    assert!(matches!(ask(&other, tokenless()), Ok(Answer::Busy { .. })));
    assert!(matches!(ask(&other, lease(90_000)), Ok(Answer::Busy { .. })));
    assert!(matches!(ask(&other, release()), Ok(Answer::Busy { .. })));
    assert!(left() > 50_000);
    assert_eq!(ask(&asker, release()).expect("an answer"), Answer::Released { left: 0 });
    assert_eq!(ask(&asker, release()).expect("an answer"), Answer::Free);
    assert_eq!(ask(&asker, lease(1_000)).expect("an answer"), Answer::Free);
    assert!(refusal(asker.ask("x", acquire())).contains("unfenced"));
}

/// Independent of the server under test: Redis 8.4 and Valkey 9 have both commands, Valkey 8.1 has one.
#[test]
fn a_servers_own_compare_commands_are_used_where_it_has_them() {
    let server = server();
    let (deletes, sets) = (
        knows(&server, "DELIFEQ") || knows(&server, "DELEX"),
        !matches!(server.command(&["SET", "probe", "a", "IFEQ", "b"]), Value::Error(_)),
    );
    let locks = unfenced(&url(&server, "plain"));
    let guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a free lock");
    // So that a renewal has an effect.
    server.command(&["PEXPIRE", "x", "5000"]);
    server.command(&["CONFIG", "RESETSTAT"]);
    block_on(guard.renew()).expect("a renewal");
    block_on(guard.release()).expect("a release");
    let calls = server.info_commandstats();
    let called = |name: &str| calls.get(name).is_some_and(|calls| *calls > 0);
    assert_eq!(called("delifeq") || called("delex"), deletes, "{calls:?}");
    assert_eq!(called("watch"), !deletes, "{calls:?}");
    assert_eq!(called("pexpire"), !sets, "{calls:?}");
}

#[test]
fn what_is_sent_to_a_server_with_delifeq_is_as_documented() {
    let heard = sent(|words| match words {
        ["COMMAND", ..] => "*2\r\n*1\r\n$7\r\ndelifeq\r\n_\r\n",
        words => plain_words(words),
    });
    assert_eq!(heard, with_own_commands("DELIFEQ x OWNER"));
}

#[test]
fn what_is_sent_to_a_server_with_delex_is_as_documented() {
    let heard = sent(|words| match words {
        ["COMMAND", ..] => "*2\r\n_\r\n*1\r\n$5\r\ndelex\r\n",
        words => plain_words(words),
    });
    assert_eq!(heard, with_own_commands("DELEX x IFEQ OWNER"));
}

fn with_own_commands(delete: &str) -> Vec<String> {
    let expected = [
        "COMMAND INFO DELIFEQ DELEX",
        "SET x OWNER NX GET PX 30000",
        "PTTL x",
        "GETRANGE x 0 1023",
        "PTTL x",
        "SET x OWNER IFEQ OWNER PX 30000",
        "GETRANGE x 0 1023",
        "PTTL x",
        delete,
        "PUBLISH tenure:wake:0:{x} OWNER",
    ];
    expected.map(str::to_owned).to_vec()
}

/// And on servers before Redis 7, where SET does not return the old value.
#[test]
fn what_is_sent_to_a_server_without_compare_commands_is_as_documented() {
    let heard = sent(|words| match words {
        ["COMMAND", ..] => "*2\r\n_\r\n_\r\n",
        ["SET", _, _, "NX", "GET", ..] | ["SET", _, _, "IFEQ", ..] => "-ERR syntax error\r\n",
        ["SET", ..] => "+OK\r\n",
        words => plain_words(words),
    });
    let expected = [
        "COMMAND INFO DELIFEQ DELEX",
        "MULTI",
        "EXEC",
        "SET x OWNER NX GET PX 30000",
        "PTTL x",
        "SET x OWNER NX PX 30000",
        "GETRANGE x 0 1023",
        "PTTL x",
        "UNWATCH",
        "WATCH x",
        "GETRANGE x 0 1023",
        "PTTL x",
        "SET x OWNER IFEQ OWNER PX 30000",
        "MULTI",
        "PEXPIRE x 30000",
        "EXEC",
        "UNWATCH",
        "WATCH x",
        "GETRANGE x 0 1023",
        "PTTL x",
        "MULTI",
        "DEL x",
        "PUBLISH tenure:wake:0:{x} OWNER",
        "EXEC",
    ];
    assert_eq!(heard, expected);
}

/// Changes of rights close no connection.
#[test]
fn scripts_that_are_allowed_again_are_used_again() {
    let server = server();
    let rights = |rights: &[&str]| {
        let command = [&["ACL", "SETUSER", "plain"], rights].concat();
        server.command(&command);
    };
    rights(&["+@scripting"]);
    // One that is held needs a script.
    let held = Locks::open(&server.url()).expect("a store").fair_mutex("x").expect("a name");
    let _held = block_on(held.lock()).expect("a free lock");
    let lock = Locks::open(&url(&server, "plain")).expect("a store").fair_mutex("x").expect("a name");
    let turn = || block_on(lock.try_lock());
    turn().expect("scripts are allowed");
    rights(&["-@scripting"]);
    assert!(turn().expect_err("scripts are forbidden").is_unsupported());
    rights(&["+@scripting"]);
    eventually("scripts are used again", Duration::from_secs(20), || turn().is_ok());
}

/// By plain commands, of which the last was refused.
#[test]
fn who_loses_the_rights_in_the_middle_may_have_the_lock() {
    let server = server();
    server.command(&["ACL", "SETUSER", "plain", "+@all"]);
    let asker = Asker::new(&url(&server, "plain"));
    // With a token of the last second, the next lock needs no script.
    let take = |turn: u32| asker.acquire(&format!("x{turn}"));
    assert!((0..20).map(take).all(|said| held(&said)));
    server.command(&["ACL", "SETUSER", "plain", "-incr", "-eval", "-evalsha"]);
    assert!(matches!(take(20), Err(Failure::Unknown(_))), "its lock may be held");
    assert!(server.has("x20"));
}
