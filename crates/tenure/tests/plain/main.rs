//! A second client that knows docs/protocol.md and nothing else: it sends plain commands, and locks together with this library. In
//! `redisson` it does what that documentation says of an `RLock`, command by command, and in `versions` it is the client of another version.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real servers measure real time"
)]

mod redisson;
mod versions;

use std::time::{Duration, Instant};

use tenure::{Kind, Locks, Options, Owner, block_on};
use tenure_testkit::servers::{Client, Server, Value};

const MUTEX: &str = include_str!("../../src/protocol/mutex.lua");
const REENTRANT: &str = include_str!("../../src/protocol/reentrant.lua");
const QUEUE: &str = include_str!("../../src/protocol/queue.lua");

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn locks(server: &Server) -> Locks {
    Locks::open(&server.url()).expect("a store").with(Options::new().ttl(ms(3_000))).expect("options")
}

/// A client with an owner of its own.
struct Plain {
    client: Client,
    owner: String,
    request: u32,
}

impl Plain {
    fn new(server: &Server, digit: char) -> Self {
        let owner = format!("plain@elsewhere:7/{}", digit.to_string().repeat(32));
        Self { client: server.client().expect("a connection"), owner, request: 0 }
    }

    /// Runs a script: the answer and what belongs to it, once the echo was checked.
    fn ask(&mut self, script: &str, keys: &[&str], verb: &str, rest: &[&str]) -> Vec<Value> {
        self.request += 1;
        let (count, request) = (keys.len().to_string(), self.request.to_string());
        let head = [&["EVAL", script, &count], keys, &[verb, &self.owner, &request]].concat();
        let reply = self.client.command(&[&head[..], rest].concat()).expect("a reply");
        assert!(reply.error_code().is_none(), "{reply:?}");
        let reply = match reply {
            Value::Bytes(line) => {
                line.split(|byte| *byte == b' ').map(|word| Value::Bytes(word.to_vec())).collect()
            }
            reply => reply.items().to_vec(),
        };
        let [owner, echoed, answer @ ..] = &reply[..] else { panic!("too short: {reply:?}") };
        assert_eq!((owner.text(), echoed.text()), (&*self.owner, &*request));
        answer.to_vec()
    }

    /// The same, as words.
    fn words(&mut self, script: &str, keys: &[&str], verb: &str, rest: &[&str]) -> Vec<String> {
        self.ask(script, keys, verb, rest).iter().map(word).collect()
    }

    fn command(&mut self, command: &[&str]) -> Value {
        let reply = self.client.command(command).expect("a reply");
        assert!(reply.error_code().is_none(), "{reply:?}");
        reply
    }

    /// Listens; what is said comes out of [`Plain::hear`].
    fn listen(server: &Server, channel: &str) -> Self {
        let mut ear = Self::new(server, 'e');
        ear.command(&["SUBSCRIBE", channel]);
        ear
    }

    fn hear(&mut self) -> String {
        let message = self.client.receive().expect("a message");
        word(message.items().last().expect("a message has three parts"))
    }
}

fn word(value: &Value) -> String {
    match value {
        Value::Int(int) => int.to_string(),
        other => other.text().to_owned(),
    }
}

/// What a queue is told before the rest: its header, its capacity, the channel, and how to publish.
fn head<'a>(header: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    let capacity = header.rsplit(':').next().expect("a header ends with its capacity");
    [&[header, capacity, "tenure:wake:0:{x}", "PUBLISH"], rest].concat()
}

const COUNTED: [&str; 2] = ["x", "tenure:fence:{x}"];
const FAIR: &str = "#1:fair mutex:1";
const READ_WRITE: &str = "#1:read-write lock:1048576";

#[test]
fn a_mutex_of_another_client_excludes_and_wakes_ours_and_ours_it() {
    let server = Server::start();
    let (locks, mut plain) = (locks(&server), Plain::new(&server, 'a'));
    let mutex = locks.mutex("x").expect("a name");
    let held = plain.words(MUTEX, &COUNTED, "acquire", &["30000", ""]);
    assert_eq!(plain.words(MUTEX, &["x"], "renew", &["30000"]), held);
    let value = format!("{}#{}", plain.owner, held[1]);
    assert_eq!(plain.command(&["GET", "x"]).text(), value);
    assert!(block_on(mutex.try_lock()).expect("an answer").is_none());
    let guard = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| block_on(mutex.lock()).expect("a grant"));
        heard_by_one(&server, "tenure:wake:0:{x}");
        let mine = ["", "mine", "tenure:wake:0:{x}", "PUBLISH"];
        assert_eq!(plain.words(MUTEX, &["x"], "release", &mine), ["released"]);
        waiter.join().expect("no panic")
    });
    assert!(guard.fence() > held[1].parse().expect("a number"));
    let busy = plain.words(MUTEX, &COUNTED, "acquire", &["30000", ""]);
    assert_eq!(busy[..2], ["busy".to_owned(), format!("{}#{}", guard.owner(), guard.fence())]);
    let mut ear = Plain::listen(&server, "tenure:wake:0:{x}");
    let owner = guard.owner().to_string();
    block_on(guard.release()).expect("a release");
    assert_eq!(ear.hear(), owner);
    assert_eq!(plain.words(MUTEX, &["x"], "inspect", &[]), ["free"]);
}

#[test]
fn a_hold_of_another_client_counts_once_however_often_it_is_asked_for() {
    let server = Server::start();
    let (locks, mut plain) = (locks(&server), Plain::new(&server, 'a'));
    let me = Owner::new("me").expect("an owner");
    let held = plain.words(REENTRANT, &COUNTED, "acquire", &["1a", "30000"]);
    for (hold, count) in [("1a", "1"), ("2b", "2"), ("2b", "2")] {
        assert_eq!(plain.words(REENTRANT, &COUNTED, "acquire", &[hold, "30000"]), held);
        assert_eq!(plain.command(&["HGET", "x", &plain.owner.clone()]).text(), count);
    }
    let ours = locks.reentrant("x", &me).expect("a name");
    assert!(block_on(ours.try_lock()).expect("an answer").is_none());
    let other = block_on(locks.mutex("x").expect("a name").try_lock()).expect_err("another kind");
    assert!(other.is_mismatch() && other.to_string().contains("reentrant"), "{other}");
    let channel = "redisson_lock__channel:{x}";
    let mut ear = Plain::listen(&server, channel);
    for (hold, answer) in [("1a", &["released", "1"][..]), ("1a", &["free"]), ("2b", &["released", "0"])] {
        assert_eq!(plain.words(REENTRANT, &["x"], "release", &[hold, "mine", channel, "PUBLISH"]), answer);
    }
    assert_eq!(ear.hear(), "0");
    let _guard = block_on(ours.try_lock()).expect("an answer").expect("it is free");
    assert_eq!(plain.words(REENTRANT, &["x"], "renew", &["2b", "30000", ""])[0], "busy");
}

#[test]
fn a_detached_hold_is_resumed_by_another_client() {
    let server = Server::start();
    let mut plain = Plain::new(&server, 'a');
    let held = plain.words(REENTRANT, &COUNTED, "acquire", &["1a", "30000"]);
    assert_eq!(plain.words(REENTRANT, &["x"], "renew", &["1a", "30000", "detach"]), held);
    assert_eq!(plain.words(REENTRANT, &["x"], "renew", &["1a", "30000", ""]), ["free"]);
    assert_eq!(plain.words(REENTRANT, &["x"], "renew", &["2b", "30000", "resume"]), held);
    assert_eq!(plain.words(REENTRANT, &["x"], "renew", &["2b", "30000", ""]), held);
    assert_eq!(plain.command(&["HGET", "x", &plain.owner.clone()]).text(), "1");
}

#[test]
fn another_client_takes_its_turn_in_our_queue() {
    let server = Server::start();
    let (locks, mut plain) = (locks(&server), Plain::new(&server, 'a'));
    let fair = locks.fair("x").expect("a name");
    let mut ear = Plain::listen(&server, "tenure:wake:0:{x}");
    let guard = block_on(fair.lock()).expect("a grant");
    let once = head(FAIR, &["30000", "1", ""]);
    let busy = plain.words(QUEUE, &COUNTED, "acquire", &once);
    assert_eq!(busy[..2], ["busy".to_owned(), format!("{}#{}", guard.owner(), guard.fence())]);
    let waiting = plain.words(QUEUE, &COUNTED, "acquire", &head(FAIR, &["30000", "1", "20000"]));
    assert_eq!(waiting[0], "waiting");
    let ticket = waiting[1].clone();
    // The first in line is told when the holder's lease ends.
    assert!((1..=3_001).contains(&waiting[2].parse::<u64>().expect("a number")), "{waiting:?}");
    std::thread::scope(|scope| {
        let behind = scope.spawn(|| block_on(fair.lock()).expect("a grant"));
        eventually(|| server.command(&["ZCARD", "x"]).int() == 2 + 3 * 2);
        block_on(guard.release()).expect("a release");
        assert_eq!(ear.hear(), ticket);
        let renewed = plain.words(QUEUE, &["x"], "renew", &head(FAIR, &["30000", ""]));
        assert_eq!(renewed, ["held", &ticket]);
        assert!(block_on(fair.try_lock()).expect("an answer").is_none());
        let mine = head(FAIR, &["mine"]);
        assert_eq!(plain.words(QUEUE, &["x"], "release", &mine), ["released"]);
        let next = behind.join().expect("no panic");
        assert_eq!(ear.hear(), next.fence().to_string());
        assert_eq!(plain.words(QUEUE, &["x"], "release", &mine), ["free"]);
    });
}

#[test]
fn readers_of_another_client_are_let_in_together_when_our_writer_is_done() {
    let server = Server::start();
    let (locks, mut readers) = (locks(&server), ['a', 'b'].map(|digit| Plain::new(&server, digit)));
    let lock = locks.rwlock("x").expect("a name");
    let mut ear = Plain::listen(&server, "tenure:wake:0:{x}");
    let writer = block_on(lock.write()).expect("a grant");
    let read = head(READ_WRITE, &["30000", "1", "20000"]);
    let tickets = readers.each_mut().map(|plain| {
        let waiting = plain.words(QUEUE, &COUNTED, "acquire", &read);
        assert_eq!(waiting[0], "waiting");
        waiting[1].clone()
    });
    // One request for both places, and for one that nobody has.
    let [first, second] = [readers[0].owner.clone(), readers[1].owner.clone()];
    let refresh = head(READ_WRITE, &["20000", &first, &second, "nobody@nowhere:1/"]);
    let places = readers[0].words(QUEUE, &["x"], "refresh", &refresh);
    let expected = ["places", &writer.fence().to_string(), &places[2], &tickets[0], &tickets[1], ""];
    assert_eq!(places, expected);
    assert!(block_on(lock.try_read()).expect("an answer").is_none());
    block_on(writer.release()).expect("a release");
    assert_eq!(ear.hear(), tickets.join(","));
    let said = readers[0].ask(QUEUE, &["x"], "inspect", &head(READ_WRITE, &[]));
    let [found, kind, capacity, holders, waiters] = &said[..] else { panic!("not found: {said:?}") };
    assert_eq!((found.text(), kind.text(), capacity.text()), ("found", "read-write lock", "1048576"));
    let values = tickets.iter().zip([first, second]).map(|(ticket, owner)| format!("{owner}#{ticket}"));
    assert_eq!(holders.items().iter().step_by(3).map(word).collect::<Vec<_>>(), values.collect::<Vec<_>>());
    assert_eq!(waiters.items().len(), 0);
    let status = block_on(locks.inspect("x")).expect("an answer").expect("holders");
    assert_eq!((status.kind, status.holders.len()), (Kind::RwLock, 2));
}

#[test]
fn every_kind_of_ours_is_listed_and_another_kind_is_named() {
    let server = Server::start();
    let (locks, me) = (locks(&server), Owner::new("me").expect("an owner"));
    let guards = [
        block_on(locks.mutex("app:mutex").expect("a name").lock()),
        block_on(locks.reentrant("app:reentrant", &me).expect("a name").lock()),
        block_on(locks.fair("app:fair").expect("a name").lock()),
        block_on(locks.rwlock("app:rw").expect("a name").read()),
        block_on(locks.semaphore("app:sem", 5).expect("a name").acquire(2)),
    ];
    assert!(guards.iter().all(Result::is_ok));
    server.command(&["ZADD", "app:foreign", "1", "somebody"]);
    for prefix in ["app:", ""] {
        let mut listing = locks.list(prefix).expect("a prefix");
        let mut kinds = Vec::new();
        while let Some(status) = block_on(listing.next()).expect("an answer") {
            kinds.push((status.name.as_str().to_owned(), status.kind, status.holders[0].weight));
        }
        kinds.sort();
        let all = [
            ("app:fair", Kind::Fair, 1),
            ("app:mutex", Kind::Mutex, 1),
            ("app:reentrant", Kind::Reentrant, 1),
            ("app:rw", Kind::RwLock, 1),
            ("app:sem", Kind::Semaphore, 2),
        ];
        assert_eq!(kinds, all.map(|(name, kind, weight)| (name.to_owned(), kind, weight)));
    }
    let other = block_on(locks.mutex("app:sem").expect("a name").try_lock()).expect_err("a semaphore");
    assert!(other.is_mismatch() && other.to_string().contains("semaphore"), "{other}");
    let other =
        block_on(locks.semaphore("app:sem", 4).expect("a name").try_acquire(1)).expect_err("5 permits");
    assert!(other.is_mismatch() && other.to_string().contains('5'), "{other}");
    assert!(block_on(locks.fair("app:foreign").expect("a name").try_lock()).expect("an answer").is_none());
}

/// Waits until somebody listens.
fn heard_by_one(server: &Server, channel: &str) {
    eventually(|| server.command(&["PUBSUB", "NUMSUB", channel]).items()[1].int() == 1);
}

fn eventually(mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + ms(10_000);
    while !is_so() {
        assert!(Instant::now() < until, "it never became so");
        std::thread::sleep(ms(2));
    }
}
