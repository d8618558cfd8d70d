//! A second client, written from book/contribute/protocol.md alone: it sends plain commands, and
//! interoperates with this library. `page` parses the documentation, from which this client takes what it
//! sends and expects, so that it fails where the page is wrong. `redisson` follows the commands documented
//! for an `RLock`, and `versions` is a client of another version.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real servers measure real time"
)]

mod page;
mod redisson;
mod versions;

use std::time::{Duration, Instant};

use page::Machine;
use tenure::{Guard, Kind, Locks, Owner, Share, block_on};
use tenure_testkit::servers::{Client, Server, Value};

use crate::common::ms;

const MUTEX: &str = include_str!("../../../../tenure-redis/src/scripts/mutex.lua");
const REENTRANT: &str = include_str!("../../../../tenure-redis/src/scripts/reentrant.lua");
const RELEASE: &str = include_str!("../../../../tenure-redis/src/scripts/release.lua");
const RENEW: &str = include_str!("../../../../tenure-redis/src/scripts/renew.lua");
const QUEUE: &str = include_str!("../../../../tenure-redis/src/scripts/queue.lua");

fn locks(server: &Server) -> Locks {
    Locks::open(&server.url()).expect("a store").with(|options| options.ttl(ms(3_000))).expect("options")
}

/// A kind of lock, with the parameters of a queue.
#[derive(Clone, Copy)]
struct Lock {
    machine: Machine,
    kind: &'static str,
    permits: &'static str,
}

const MUTEXES: Lock = Lock { machine: Machine::Mutex, kind: "", permits: "" };
const REENTRANTS: Lock = Lock { machine: Machine::Reentrant, ..MUTEXES };
const FAIR: Lock = Lock { machine: Machine::Queue, kind: "fair mutex", permits: "" };
const READ_WRITE: Lock = Lock { kind: "read-write lock", ..FAIR };

/// An answer, by the page's names of its parts.
#[derive(Debug)]
struct Said {
    word: String,
    parts: Vec<(&'static str, Value)>,
}

impl Said {
    fn part(&self, name: &str) -> String {
        word(self.value(name))
    }

    fn value(&self, name: &str) -> &Value {
        let found = self.parts.iter().find(|(part, _)| *part == name);
        &found.unwrap_or_else(|| panic!("no {name} in {self:?}")).1
    }

    /// A part that occurs several times.
    fn all(&self, name: &str) -> Vec<String> {
        self.parts.iter().filter(|(part, _)| *part == name).map(|(_, value)| word(value)).collect()
    }

    /// Checks that a reply has the documented form.
    fn read(machine: Machine, is_line: bool, said: &str, values: &[Value]) -> Self {
        assert!(!is_line || page::lines().contains(&said), "{said} as one string");
        let parts = page::parts(machine, said);
        let is_endless = parts.last().is_some_and(|part| part.repeats);
        assert!(
            parts.len() == values.len() || is_endless && values.len() + 1 >= parts.len(),
            "{said}: {parts:?}, {values:?}"
        );
        let part = |(at, value): (usize, &Value)| {
            let part = parts.get(at).or(parts.last()).expect("a part for each value");
            let is_int = matches!(value, Value::Int(_));
            assert!(is_line || is_int == part.is_int, "{said}: {part:?} is {value:?}");
            assert!(!part.is_literal || word(value) == part.name, "{said}: {part:?} is {value:?}");
            (part.name, value.clone())
        };
        Self { word: said.to_owned(), parts: values.iter().enumerate().map(part).collect() }
    }
}

/// A client with its own owner.
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

    /// Sends a request about the lock `x`, with these arguments by name.
    fn ask(&mut self, lock: Lock, verb: &str, given: &[(&str, &str)]) -> Said {
        self.ask_by(lock.machine.script(), lock, verb, given)
    }

    /// The same with another script.
    fn ask_by(&mut self, script: &str, lock: Lock, verb: &str, given: &[(&str, &str)]) -> Said {
        self.request += 1;
        let request = self.request.to_string();
        let keys = page::keys(verb).into_iter().map(|key| match key {
            "lock" => "x".to_owned(),
            "counter" => page::counter().to_owned(),
            other => panic!("no key: {other}"),
        });
        let first = page::first_arguments().into_iter().map(|name| match name {
            "verb" => verb.to_owned(),
            "owner" => self.owner.clone(),
            _ => request.clone(),
        });
        let (keys, first): (Vec<String>, Vec<String>) = (keys.collect(), first.collect());
        let count = keys.len().to_string();
        let rest = arguments(lock, verb, given);
        let command = [vec!["EVAL".into(), script.into(), count], keys, first, rest].concat();
        let reply = self.client.command(&command).expect("a reply");
        assert!(reply.error_code().is_none(), "{reply:?}");
        let (is_line, reply) = match reply {
            Value::Bytes(line) => {
                (true, line.split(|byte| *byte == b' ').map(|word| Value::Bytes(word.to_vec())).collect())
            }
            reply => (false, reply.items().to_vec()),
        };
        let [owner, echoed, said, parts @ ..] = &reply[..] else { panic!("too short: {reply:?}") };
        assert_eq!((owner.text(), echoed.text()), (&*self.owner, &*request));
        let parts = match parts {
            [parts @ .., last] if is_line && word(last) == page::counted() => parts,
            parts => parts,
        };
        Said::read(lock.machine, is_line, said.text(), parts)
    }

    fn command(&mut self, command: &[&str]) -> Value {
        let reply = self.client.command(command).expect("a reply");
        assert!(reply.error_code().is_none(), "{reply:?}");
        reply
    }

    /// Subscribes; [`Plain::hear`] returns the messages.
    fn listen(server: &Server, channel: &str) -> Self {
        let mut listener = Self::new(server, 'e');
        listener.command(&["SUBSCRIBE", channel]);
        listener
    }

    /// Subscribes to the messages for all clients that wait in the queue of this lock.
    fn listen_to_turns(server: &Server, name: &str) -> Self {
        let mut listener = Self::new(server, 'e');
        let channel = format!("{}:??????????", page::channel(Machine::Queue, name));
        listener.command(&["PSUBSCRIBE", &channel]);
        listener
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

/// The arguments in documented order: the given ones, and those that follow from the lock itself.
fn arguments(lock: Lock, verb: &str, given: &[(&str, &str)]) -> Vec<String> {
    let names = page::arguments(lock.machine, verb);
    for (name, _) in given {
        assert!(
            names.iter().any(|named| named.trim_end_matches('…') == *name),
            "{verb} has no {name}: {names:?}"
        );
    }
    let values = names.into_iter().flat_map(|name| {
        let of_lock = match name {
            "header" => Some(page::header(lock.kind, lock.permits).0),
            "capacity" => Some(page::header(lock.kind, lock.permits).1),
            "channel" => Some(page::channel(lock.machine, "x")),
            "publish" => Some("PUBLISH".to_owned()),
            // It is not marked as listening, so it is never skipped.
            "listens" => Some(String::new()),
            _ => None,
        };
        let given = given.iter().filter(|(given, _)| *given == name.trim_end_matches('…'));
        let given: Vec<String> = given.map(|(_, value)| (*value).to_owned()).collect();
        assert!(
            name.ends_with('…') || given.len() + of_lock.iter().count() == 1,
            "{verb}: {name} is {given:?}"
        );
        of_lock.into_iter().chain(given)
    });
    values.collect()
}

const TAKE: &[(&str, &str)] = &[("ttl", "30000"), ("ballot", "")];
const MINE: &[(&str, &str)] = &[("ballot", ""), ("whose", "mine")];

/// An acquisition of a hold.
fn enter(hold: &'static str) -> [(&'static str, &'static str); 2] {
    [("hold", hold), ("ttl", "30000")]
}

fn renew(hold: &'static str, bind: &'static str) -> [(&'static str, &'static str); 3] {
    [("hold", hold), ("ttl", "30000"), ("bind", bind)]
}

#[test]
fn a_mutex_of_another_client_excludes_and_wakes_ours_and_ours_it() {
    let server = Server::start();
    let (locks, mut plain) = (locks(&server), Plain::new(&server, 'a'));
    let mutex = locks.mutex("x").expect("a name");
    let held = plain.ask(MUTEXES, "acquire", TAKE);
    let renewed = plain.ask(MUTEXES, "renew", &[("ttl", "30000"), ("bind", "")]);
    assert_eq!((&*held.word, &*renewed.word), ("held", "held"));
    assert_eq!(renewed.part("token"), held.part("token"));
    let value = page::quoted_after("| a mutex | the prefix and the name, nothing else | string |");
    let value = |owner: &str, token: &str| value.replace("owner", owner).replace("token", token);
    assert_eq!(plain.command(&["GET", "x"]).text(), value(&plain.owner, &held.part("token")));
    assert!(block_on(mutex.try_lock()).expect("an answer").is_none());
    let guard = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| block_on(mutex.lock()).expect("a grant"));
        heard_by_one(&server, &page::channel(Machine::Mutex, "x"));
        assert_eq!(plain.ask(MUTEXES, "release", MINE).word, "released");
        waiter.join().expect("no panic")
    });
    assert!(guard.fence() > held.part("token").parse().expect("a number"));
    let busy = plain.ask(MUTEXES, "acquire", TAKE);
    let theirs = value(guard.owner().as_str(), &guard.fence().to_string());
    assert_eq!((&*busy.word, busy.part("holder")), ("busy", theirs.clone()));
    assert!((1..=3_001).contains(&busy.value("left").int()), "{busy:?}");
    let found = plain.ask(MUTEXES, "inspect", &[]);
    assert_eq!((&*found.word, found.part("holder")), ("found", theirs));
    let mut listener = Plain::listen(&server, &page::channel(Machine::Mutex, "x"));
    let owner = guard.owner().to_string();
    block_on(guard.release()).expect("a release");
    assert_eq!(page::word_after("Of a mutex the message is the"), "owner");
    assert_eq!(listener.hear(), owner);
    assert_eq!(plain.ask(MUTEXES, "inspect", &[]).word, "free");
}

#[test]
fn a_hold_of_another_client_counts_once_however_often_it_is_asked_for() {
    let server = Server::start();
    let (locks, mut plain) = (locks(&server), Plain::new(&server, 'a'));
    let me = Owner::new("me").expect("an owner");
    let token = plain.ask(REENTRANTS, "acquire", &enter("1a")).part("token");
    for (hold, count) in [("1a", "1"), ("2b", "2"), ("2b", "2")] {
        assert_eq!(plain.ask(REENTRANTS, "acquire", &enter(hold)).part("token"), token);
        assert_eq!(plain.command(&["HGET", "x", &plain.owner.clone()]).text(), count);
    }
    assert_eq!(
        plain.command(&["HGET", "x", page::quoted_after("| the owner | how often it holds |")]).text(),
        token
    );
    let found = plain.ask(REENTRANTS, "inspect", &[]);
    assert_eq!((&*found.word, found.part("count")), ("found", "2".to_owned()));
    let ours = locks.reentrant_mutex("x", &me).expect("a name");
    assert!(block_on(ours.try_lock()).expect("an answer").is_none());
    let other = block_on(locks.mutex("x").expect("a name").try_lock()).expect_err("another kind");
    assert!(other.is_mismatch() && other.to_string().contains("reentrant"), "{other}");
    let mut listener = Plain::listen(&server, &page::channel(Machine::Reentrant, "x"));
    for (hold, word, left) in
        [("1a", "released", Some("1")), ("1a", "free", None), ("2b", "released", Some("0"))]
    {
        let said = plain.ask(REENTRANTS, "release", &[("hold", hold), ("whose", "mine")]);
        assert_eq!((&*said.word, said.all("left").first().map(String::as_str)), (word, left));
    }
    assert_eq!(listener.hear(), page::quoted_after("Of a reentrant mutex it is"));
    let _guard = block_on(ours.try_lock()).expect("an answer").expect("it is free");
    assert_eq!(plain.ask(REENTRANTS, "renew", &renew("2b", "")).word, "busy");
}

#[test]
fn a_detached_hold_is_resumed_by_another_client() {
    let server = Server::start();
    let mut plain = Plain::new(&server, 'a');
    let token = plain.ask(REENTRANTS, "acquire", &enter("1a")).part("token");
    let mut token_of = |hold, bind| {
        let said = plain.ask(REENTRANTS, "renew", &renew(hold, bind));
        assert_eq!(said.word == "free", said.parts.is_empty(), "{said:?}");
        said.all("token").pop()
    };
    assert_eq!(token_of("1a", page::quoted_after("With `bind` empty that is all.")).as_ref(), Some(&token));
    assert_eq!(token_of("1a", ""), None);
    assert_eq!(
        token_of("2b", page::quoted_after("another process of the same owner can")).as_ref(),
        Some(&token)
    );
    assert_eq!(token_of("2b", "").as_ref(), Some(&token));
    assert_eq!(plain.command(&["HGET", "x", &plain.owner.clone()]).text(), "1");
}

#[test]
fn another_client_takes_its_turn_in_our_queue() {
    let server = Server::start();
    let (locks, mut plain) = (locks(&server), Plain::new(&server, 'a'));
    let fair = locks.fair_mutex("x").expect("a name");
    let mut listener = Plain::listen_to_turns(&server, "x");
    let guard = block_on(fair.lock()).expect("a grant");
    let busy = plain.ask(FAIR, "acquire", &[("ttl", "30000"), ("weight", "1"), ("wait", "")]);
    assert_eq!((&*busy.word, busy.part("holder")), ("busy", format!("{}#{}", guard.owner(), guard.fence())));
    let waiting = plain.ask(FAIR, "acquire", &[("ttl", "30000"), ("weight", "1"), ("wait", "20000")]);
    assert_eq!(waiting.word, "waiting");
    let ticket = waiting.part("ticket");
    // The head of the queue learns when the holder's lease ends.
    assert!((1..=3_001).contains(&waiting.part("retry").parse::<u64>().expect("a number")), "{waiting:?}");
    std::thread::scope(|scope| {
        let behind = scope.spawn(|| block_on(fair.lock()).expect("a grant"));
        eventually(|| server.command(&["ZCARD", "x"]).int() == 2 + 3 * 2);
        block_on(guard.release()).expect("a release");
        assert_eq!(listener.hear(), ticket);
        let renewed = plain.ask(FAIR, "renew", &[("ttl", "30000"), ("weight", "")]);
        assert_eq!((&*renewed.word, renewed.part("token")), ("held", ticket));
        assert!(block_on(fair.try_lock()).expect("an answer").is_none());
        let mine = &[("whose", "mine")];
        assert_eq!(plain.ask(FAIR, "release", mine).word, "released");
        let next = behind.join().expect("no panic");
        assert_eq!(listener.hear(), next.fence().to_string());
        assert_eq!(plain.ask(FAIR, "release", mine).word, "free");
    });
}

#[test]
fn a_hold_by_plain_commands_becomes_a_ticket_when_ours_waits() {
    let server = Server::start();
    let (locks, mut plain) = (locks(&server), Plain::new(&server, 'a'));
    let fair = locks.fair_mutex("x").expect("a name");
    let value = page::value_of_queue(&plain.owner, FAIR.kind, "1");
    // Raises the counter.
    let take = [("ttl", "30000"), ("weight", "1"), ("wait", "")];
    let (first, mine) = (plain.ask(FAIR, "acquire", &take), [("whose", "mine")]);
    assert_eq!(plain.command(&["GET", "x"]).text(), format!("{value}#{}", first.part("token")));
    assert_eq!(plain.ask(FAIR, "release", &mine).word, "released");
    let acquire = |plain: &mut Plain| {
        let filled = |word: &&'static str| match *word {
            "lock" => "x",
            "value" => &value,
            "counter" => page::counter(),
            "ttl" => "30000",
            word => word,
        };
        let replies = page::plain_acquisition().map(|command| {
            let command: Vec<&str> = command.iter().map(filled).collect();
            plain.command(&command)
        });
        assert!(replies[0] == "OK" && replies[2].text() == value, "{replies:?}");
        replies[1].int() as u64
    };
    let owner = plain.owner.clone();
    let renew = ["EVAL", RENEW, "1", "x", "7", "40000", &value];
    let release = ["EVAL", RELEASE, "1", "x", &value, "7"];
    let token = acquire(&mut plain);
    assert!(token > first.part("token").parse().expect("a number"));
    assert_eq!(plain.command(&renew).text(), format!("{owner} 7 0"));
    assert!(block_on(fair.try_lock()).expect("an answer").is_none());
    let status = block_on(locks.inspect("x")).expect("an answer").expect("a holder");
    let ticket = status.holders[0].fence;
    assert!(ticket > token && status.holders[0].remaining.is_some_and(|left| left > ms(35_000)));
    assert_eq!(plain.command(&renew).text(), format!("{owner} 7 {ticket}"));
    let guard = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| block_on(fair.lock()).expect("a grant"));
        eventually(|| server.command(&["ZCARD", "x"]).int() == 2 + 2 * 2);
        assert_eq!(plain.command(&release), Value::Nil);
        assert_eq!(plain.ask(FAIR, "release", &mine).word, "released");
        waiter.join().expect("no panic")
    });
    assert!(guard.fence() > ticket);
    block_on(guard.release()).expect("a release");
    acquire(&mut plain);
    assert_eq!(plain.command(&release).text(), value);
    assert!(!server.has("x"));
}

#[test]
fn readers_of_another_client_are_let_in_together_when_our_writer_is_done() {
    let server = Server::start();
    let (locks, mut readers) = (locks(&server), ['a', 'b'].map(|digit| Plain::new(&server, digit)));
    // Two owners of one client, which gets one message for both.
    readers[1].owner = format!("plain@elsewhere:7/{}{}{}", "b".repeat(12), "a".repeat(10), "b".repeat(10));
    let lock = locks.rwlock("x").expect("a name");
    let mut listener = Plain::listen_to_turns(&server, "x");
    let writer = block_on(lock.write()).expect("a grant");
    let tickets = readers.each_mut().map(|plain| {
        let read = [("ttl", "30000"), ("weight", "1"), ("wait", "20000")];
        let waiting = plain.ask(READ_WRITE, "acquire", &read);
        assert_eq!(waiting.word, "waiting");
        waiting.part("ticket")
    });
    // One request for both places, and for one that does not exist.
    let [first, second] = [readers[0].owner.clone(), readers[1].owner.clone()];
    let refresh =
        [("wait", "20000"), ("owner", &*first), ("owner", &*second), ("owner", "nobody@nowhere:1/")];
    let places = readers[0].ask(READ_WRITE, "refresh", &refresh);
    assert_eq!((&*places.word, places.part("mark")), ("places", writer.fence().to_string()));
    assert_eq!(places.all("ticket"), [tickets[0].clone(), tickets[1].clone(), String::new()]);
    assert!(block_on(lock.try_read()).expect("an answer").is_none());
    block_on(writer.release()).expect("a release");
    assert_eq!(page::word_after("The message is a list of ticket numbers with"), "commas");
    assert_eq!(listener.hear(), tickets.join(","));
    let said = readers[0].ask(READ_WRITE, "inspect", &[]);
    let (_, capacity) = page::header(READ_WRITE.kind, "");
    assert_eq!(
        (&*said.word, said.part("kind"), said.part("capacity")),
        ("found", READ_WRITE.kind.into(), capacity)
    );
    let values = tickets.iter().zip([first, second]).map(|(ticket, owner)| format!("{owner}#{ticket}"));
    let holders = said.value("holders").items().iter().step_by(3).map(word);
    assert_eq!(holders.collect::<Vec<_>>(), values.collect::<Vec<_>>());
    assert_eq!(said.value("waiters").items().len(), 0);
    let status = block_on(locks.inspect("x")).expect("an answer").expect("holders");
    assert_eq!((status.kind, status.holders.len()), (Kind::RwLock, 2));
}

#[test]
fn the_counter_and_the_channel_of_each_name_are_those_of_the_page() {
    let server = Server::start();
    let locks = locks(&server);
    let rows = page::side_keys();
    assert_eq!(rows.len(), 3);
    for [name, _, channel] in rows {
        let guard = block_on(locks.mutex(name).expect("a name").lock()).expect("a free lock");
        assert!(server.has(name) && server.has(page::counter()), "{name}");
        let (mut listener, owner) = (Plain::listen(&server, channel), guard.owner().to_string());
        block_on(guard.release()).expect("a release");
        assert_eq!(listener.hear(), owner);
    }
}

#[test]
fn the_command_that_ends_an_old_connection_ends_that_one() {
    let server = Server::start();
    let (mut old, mut new) = (Plain::new(&server, 'a'), Plain::new(&server, 'b'));
    let info = old.command(&["CLIENT", "INFO"]);
    let told =
        |field: &str| info.text().split(' ').find_map(|part| part.strip_prefix(field)).expect("a field");
    let command =
        page::end_of_a_connection().replace("<id>", told("id=")).replace("<address>", told("addr="));
    assert_eq!(new.command(&command.split(' ').collect::<Vec<_>>()).int(), 1);
    assert!(old.client.command(&["PING"]).is_err());
    new.command(&["PING"]);
}

#[test]
fn a_mutex_that_is_kept_by_commands_excludes_and_wakes_ours_and_ours_it() {
    let server = Server::start();
    let (locks, mut plain) = (locks(&server), Plain::new(&server, 'a'));
    let mutex = locks.mutex("x").expect("a name");
    let mut act = |what: &str| -> Vec<Value> {
        let filled = |word: &str| match word {
            "lock" => "x".to_owned(),
            "channel" => page::channel(Machine::Mutex, "x"),
            "owner" => plain.owner.clone(),
            "ttl" => "30000".to_owned(),
            word => word.to_owned(),
        };
        let commands = page::without_scripts(what);
        assert!(!commands.is_empty(), "{what}");
        let commands =
            commands.into_iter().map(|command| command.into_iter().map(filled).collect::<Vec<_>>());
        let commands: Vec<_> = commands.collect();
        commands
            .iter()
            .map(|command| plain.command(&command.iter().map(String::as_str).collect::<Vec<_>>()))
            .collect()
    };
    // A null reply is a grant.
    assert_eq!(act("acquire")[0], Value::Nil);
    assert!(block_on(mutex.try_lock()).expect("an answer").is_none());
    server.command(&["PEXPIRE", "x", "20000"]);
    let look = act("look");
    assert_eq!(look[look.len() - 2].text(), "plain@elsewhere:7/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    assert_eq!(act("renew").last().expect("a reply of EXEC").items(), [Value::Int(1)]);
    assert!(server.command(&["PTTL", "x"]).int() > 20_000);
    let guard = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| block_on(mutex.lock()).expect("a grant"));
        heard_by_one(&server, &page::channel(Machine::Mutex, "x"));
        act("look");
        assert_eq!(act("release").last().expect("a reply of EXEC").items()[0], Value::Int(1));
        waiter.join().expect("no panic")
    });
    assert_eq!(act("acquire")[0].text(), format!("{}#{}", guard.owner(), guard.fence()));
}

#[test]
fn every_kind_of_ours_is_listed_and_another_kind_is_named() {
    let server = Server::start();
    let (locks, me) = (locks(&server), Owner::new("me").expect("an owner"));
    let guards = [
        block_on(locks.mutex("app:mutex").expect("a name").lock()),
        block_on(locks.reentrant_mutex("app:reentrant", &me).expect("a name").lock()),
        block_on(locks.fair_mutex("app:fair").expect("a name").lock()),
        block_on(locks.rwlock("app:rw").expect("a name").read()).map(Guard::from),
        block_on(locks.semaphore("app:sem", 5).expect("a name").acquire_many(2)),
    ];
    assert!(guards.iter().all(Result::is_ok));
    server.command(&["ZADD", "app:foreign", "1", "somebody"]);
    for prefix in ["app:", ""] {
        let mut listing = locks.list(prefix).expect("a prefix");
        let mut kinds = Vec::new();
        while let Some(status) = block_on(listing.next()).expect("an answer") {
            kinds.push((status.name.as_str().to_owned(), status.kind, status.holders[0].share));
        }
        kinds.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        let all = [
            ("app:fair", Kind::Fair, Share::Whole),
            ("app:mutex", Kind::Mutex, Share::Whole),
            ("app:reentrant", Kind::Reentrant, Share::Holds(1)),
            ("app:rw", Kind::RwLock, Share::Reader),
            ("app:sem", Kind::Semaphore, Share::Permits(2)),
        ];
        assert_eq!(kinds, all.map(|(name, kind, share)| (name.to_owned(), kind, share)));
    }
    let other = block_on(locks.mutex("app:sem").expect("a name").try_lock()).expect_err("a semaphore");
    assert!(other.is_mismatch() && other.to_string().contains("semaphore"), "{other}");
    let other =
        block_on(locks.semaphore("app:sem", 4).expect("a name").try_acquire()).expect_err("5 permits");
    assert!(other.is_mismatch() && other.to_string().contains('5'), "{other}");
    let other = block_on(locks.fair_mutex("app:foreign").expect("a name").lock()).expect_err("no lock");
    assert!(other.is_mismatch() && other.to_string().ends_with("a sorted set"), "{other}");
}

/// Waits until a client is subscribed.
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
