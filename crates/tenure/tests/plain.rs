//! A second client that knows docs/protocol.md and nothing else: it sends plain commands, and locks together with this library. In
//! `redisson` it does what that documentation says of an `RLock`, command by command.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real servers measure real time"
)]

use std::time::{Duration, Instant};

use tenure::{Kind, Locks, Options, Owner, block_on};
use tenure_testkit::servers::{Client, Server, Value};

const MUTEX: &str = include_str!("../src/protocol/mutex.lua");
const REENTRANT: &str = include_str!("../src/protocol/reentrant.lua");
const QUEUE: &str = include_str!("../src/protocol/queue.lua");

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
        let [owner, echoed, answer @ ..] = reply.items() else { panic!("too short: {reply:?}") };
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
        assert_eq!(plain.words(MUTEX, &["x"], "release", &mine), ["released", ""]);
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
    for (hold, answer) in
        [("1a", &["released", "1", ""][..]), ("1a", &["free"]), ("2b", &["released", "0", ""])]
    {
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

/// Another program's `RLock`, by the commands that Redisson documents for it.
mod redisson {
    use super::*;

    const HOLDER: &str = "550e8400-e29b-41d4-a716-446655440000:51";
    const CHANNEL: &str = "redisson_lock__channel:{x}";

    struct Redisson(Plain);

    impl Redisson {
        fn new(server: &Server) -> Self {
            Self(Plain::new(server, 'f'))
        }

        /// What is left of the lease of whoever has it, unless this holder does now.
        fn lock(&mut self) -> Result<(), i64> {
            let exists = self.0.command(&["EXISTS", "x"]).int() == 1;
            if exists && self.0.command(&["HEXISTS", "x", HOLDER]).int() == 0 {
                return Err(self.0.command(&["PTTL", "x"]).int());
            }
            self.0.command(&["HINCRBY", "x", HOLDER, "1"]);
            self.0.command(&["PEXPIRE", "x", "30000"]);
            Ok(())
        }

        /// Whether it is free now; `None` where it is not this holder's.
        fn unlock(&mut self) -> Option<bool> {
            if self.0.command(&["HEXISTS", "x", HOLDER]).int() == 0 {
                return None;
            }
            if self.0.command(&["HINCRBY", "x", HOLDER, "-1"]).int() > 0 {
                self.0.command(&["PEXPIRE", "x", "30000"]);
                return Some(false);
            }
            self.force_unlock();
            Some(true)
        }

        fn force_unlock(&mut self) {
            self.0.command(&["DEL", "x"]);
            self.0.command(&["PUBLISH", CHANNEL, "0"]);
        }
    }

    #[test]
    fn its_lock_excludes_ours_through_all_its_holds_and_its_last_unlock_wakes_us() {
        let server = Server::start();
        let (locks, mut redisson) = (locks(&server), Redisson::new(&server));
        let me = Owner::new("me").expect("an owner");
        let ours = locks.reentrant("x", &me).expect("a name");
        assert_eq!((redisson.lock(), redisson.lock()), (Ok(()), Ok(())));
        assert!(block_on(ours.try_lock()).expect("an answer").is_none());
        let status = block_on(locks.inspect("x")).expect("an answer").expect("a holder");
        assert_eq!(status.kind, Kind::Reentrant);
        assert_eq!((&*status.holders[0].value, status.holders[0].weight), (HOLDER, 2));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let guard = block_on(ours.lock()).expect("a grant");
                (guard, Instant::now())
            });
            heard_by_one(&server, CHANNEL);
            assert_eq!(redisson.unlock(), Some(false));
            assert!(block_on(ours.try_lock()).expect("an answer").is_none());
            // By now it asks once a second, so that it comes sooner is the message's doing.
            std::thread::sleep(ms(4_000));
            assert_eq!(redisson.unlock(), Some(true));
            let released = Instant::now();
            let (guard, granted) = waiter.join().expect("no panic");
            assert!(granted.saturating_duration_since(released) < ms(500));
            drop(guard);
        });
    }

    #[test]
    fn our_lock_excludes_it_through_all_our_holds_and_our_last_release_wakes_it() {
        let server = Server::start();
        let (locks, mut redisson) = (locks(&server), Redisson::new(&server));
        let me = Owner::new("me").expect("an owner");
        let ours = locks.reentrant("x", &me).expect("a name");
        let mut ear = Plain::listen(&server, CHANNEL);
        let (outer, inner) =
            (block_on(ours.lock()).expect("a grant"), block_on(ours.lock()).expect("a re-entry"));
        assert_eq!(outer.fence(), inner.fence());
        assert!((1..=3_000).contains(&redisson.lock().expect_err("it is held")));
        assert_eq!(redisson.0.command(&["HGET", "x", me.as_str()]).text(), "2");
        block_on(inner.release()).expect("a release");
        assert!(redisson.lock().is_err());
        block_on(outer.release()).expect("a release");
        assert_eq!(ear.hear(), "0");
        assert_eq!(redisson.lock(), Ok(()));
    }

    #[test]
    fn neither_can_unlock_what_the_other_holds() {
        let server = Server::start();
        let (locks, mut redisson) = (locks(&server), Redisson::new(&server));
        let me = Owner::new("me").expect("an owner");
        let ours = locks.reentrant("x", &me).expect("a name");
        let guard = block_on(ours.lock()).expect("a grant");
        assert_eq!(redisson.unlock(), None);
        block_on(guard.verify()).expect("it is still ours");
        block_on(guard.release()).expect("a release");
        redisson.lock().expect("it is free");
        let mut plain = Plain::new(&server, 'a');
        let busy = plain.words(REENTRANT, &["x"], "release", &["1a", "mine", CHANNEL, "PUBLISH"]);
        assert_eq!(busy[..2], ["busy", HOLDER]);
        assert_eq!(redisson.unlock(), Some(true));
    }

    #[test]
    fn its_force_unlock_is_a_loss_to_us() {
        let server = Server::start();
        let (locks, mut redisson) = (locks(&server), Redisson::new(&server));
        let me = Owner::new("me").expect("an owner");
        let guard = block_on(locks.reentrant("x", &me).expect("a name").lock()).expect("a grant");
        let started = Instant::now();
        redisson.force_unlock();
        let lost = block_on(guard.lost());
        assert!(lost.is_lost() && !guard.is_held(), "{lost}");
        // Not only when the lease would have ended.
        assert!(started.elapsed() < ms(1_800), "{:?}", started.elapsed());
        assert_eq!(redisson.lock(), Ok(()));
    }

    #[test]
    fn our_forced_release_frees_its_lock() {
        let server = Server::start();
        let (locks, mut redisson) = (locks(&server), Redisson::new(&server));
        redisson.lock().expect("it is free");
        let mut ear = Plain::listen(&server, CHANNEL);
        let status = block_on(locks.force_release("x")).expect("an answer").expect("a holder");
        assert_eq!(status.holders[0].value, HOLDER);
        assert_eq!(ear.hear(), "0");
        assert_eq!(redisson.unlock(), None);
    }
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
