//! Sessions of the fake server: login, kills, messages, and the mutex script as its Rust twin.

use std::collections::{BTreeMap, BTreeSet};

use tenure::internals::protocol::{
    self, Answer, Data, ExpiringValue, Fence, Holding, Liveness, LockSpec, Notification, Now, Op, QueueSpec,
    ReleaseScope, State, Verb,
    queue::{Queue, Ticket},
};
use tenure::{LockName, Owner};

use crate::sim::clock::TrueTime;
use crate::sim::scripts::{Audience, Scripts};

/// Replaces one script reply.
pub(crate) type Spoiler = Box<dyn Fn(Vec<u8>) -> Vec<u8> + Send>;

/// A request that was carried out.
#[derive(Clone, Debug)]
pub struct Executed {
    /// When it was carried out.
    pub at: TrueTime,
    /// The request.
    pub op: Op,
    /// The answer.
    pub answer: Answer,
}

/// A snapshot of what a server keeps.
#[derive(Clone, Debug)]
pub struct Look {
    /// When it was taken.
    pub at: TrueTime,
    /// Each lock's key with its remaining TTL in ms, or −1 without one. Where the scripts run, all their
    /// keys.
    pub keys: Vec<(String, i64)>,
    /// The holder's value at each lock's key, byte for byte.
    pub holders: BTreeMap<String, String>,
}

/// The only accepted login, and the only database that requests may use.
#[derive(Clone, Debug)]
pub(crate) struct Guarded {
    pub(crate) user: String,
    pub(crate) password: String,
    pub(crate) database: u32,
}

/// A server's sessions and data.
#[derive(Default)]
#[expect(missing_debug_implementations, reason = "it holds closures")]
pub struct Server {
    locks: BTreeMap<String, State>,
    counter: u64,
    sessions: u64,
    knows_script: bool,
    replies: usize,
    pub(crate) no_kill: bool,
    pub(crate) has_delifeq: bool,
    pub(crate) guarded: Option<Guarded>,
    /// The real scripts, which must agree with the Rust twin. If present, they determine what is kept and for
    /// how long.
    pub(crate) scripts: Option<Scripts>,
    pub(crate) looks: Vec<Look>,
    pub(crate) player: Option<Player>,
    pub(crate) before: Option<(&'static str, Before)>,
    pub(crate) executed: Vec<Executed>,
}

/// A hook that runs before a command.
pub(crate) type Before = Box<dyn FnMut(&mut Server) + Send>;

/// Answers in place of the server, unless it returns `None`.
pub(crate) type Player = Box<dyn FnMut(&[&str]) -> Option<String> + Send>;

/// A connection as the server sees it.
pub(crate) struct Session {
    pub(crate) id: u64,
    heard: Vec<u8>,
    /// Whether the client has logged in.
    is_known: bool,
    database: u32,
    pub(crate) channels: BTreeSet<String>,
}

/// The server's reaction to received bytes.
#[derive(Default)]
pub(crate) struct Said {
    pub(crate) reply: Vec<u8>,
    pub(crate) published: Vec<(String, Vec<u8>)>,
    pub(crate) killed: Vec<u64>,
}

impl Said {
    fn publish(&mut self, channel: &str, text: &str) {
        let (length, of_text) = (channel.len(), text.len());
        let message = format!(">3\r\n$7\r\nmessage\r\n${length}\r\n{channel}\r\n${of_text}\r\n{text}\r\n");
        self.published.push((channel.to_owned(), message.into_bytes()));
    }
}

const NULL: &[u8] = b"_\r\n";
const HELLO: &[u8] = b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n";

/// Start of the server's clock, in ms since 1970.
const EPOCH_MS: u64 = 1_800_000_000_000;

fn clock(now: TrueTime) -> Now {
    Now { ms: EPOCH_MS + now / 1_000_000, unix_us: EPOCH_MS * 1_000 + now / 1_000 }
}

impl Server {
    pub(crate) fn session(&mut self) -> Session {
        self.sessions += 1;
        let (id, is_known) = (self.sessions, self.guarded.is_none());
        Session { id, heard: Vec::new(), is_known, database: 0, channels: BTreeSet::new() }
    }

    pub(crate) fn holder(&self, key: &str, now: TrueTime) -> Option<String> {
        let found = protocol::found(self.locks.get(key)?, clock(now))?;
        found.holders.first().map(|holder| protocol::shown(&holder.value))
    }

    /// The string at a key. The holder of a queue has one until another client asks for the lock.
    fn text(&self, key: &str, now: TrueTime) -> Option<String> {
        let lock = self.locks.get(key)?.lock.as_ref().filter(|lock| !lock.is_over(clock(now)))?;
        match &lock.value {
            Data::Text(value) => Some(value.clone()),
            Data::Queue(queue) => queue.ticket(0).map(|ticket| {
                format!("{}#1:{}:{}+{}", ticket.owner, queue.kind, queue.capacity, ticket.weight)
            }),
            Data::Hash(_) => None,
        }
    }

    /// Resets the token counter, as if it were lost.
    pub fn lose_counter(&mut self) {
        self.counter = 0;
    }

    /// Replaces the hold at a key by one of another owner for a day.
    pub fn take_over(&mut self, key: &str, by: &Owner) {
        let value = Data::Text(format!("{by}#{}", u64::MAX >> 12));
        let lock = Some(ExpiringValue { value, expires_ms: Some(EPOCH_MS + 86_400_000) });
        self.locks.insert(key.to_owned(), State { lock, ballot: None });
    }

    /// Deletes a lock's key, as an operator would.
    pub fn delete(&mut self, key: &str) {
        self.locks.remove(key);
    }

    /// Records a snapshot.
    pub(crate) fn look(&mut self, at: TrueTime) {
        let locks = self.locks.iter().filter_map(|(key, state)| {
            let found = protocol::found(state, clock(at))?;
            Some((key.clone(), found.holders.into_iter().next()?))
        });
        let locks: BTreeMap<_, _> = locks.collect();
        let left_ms = |holder: &Holding| holder.left_ms.map_or(-1, |left_ms| left_ms as i64);
        let keys = match &self.scripts {
            Some(scripts) => scripts.keys(clock(at)),
            None => locks.iter().map(|(key, holder)| (key.clone(), left_ms(holder))).collect(),
        };
        let holders = locks.into_iter().map(|(key, holder)| (key, protocol::shown(&holder.value))).collect();
        self.looks.push(Look { at, keys, holders });
    }

    /// Carries out every complete request.
    pub(crate) fn hear(
        &mut self,
        session: &mut Session,
        bytes: &[u8],
        now: TrueTime,
        spoiler: &Option<(usize, Spoiler)>,
    ) -> Said {
        session.heard.extend_from_slice(bytes);
        let mut said = Said::default();
        while let Some((words, length)) = command(&session.heard) {
            session.heard.drain(..length);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let mut reply = self.carry_out(session, &words, now, &mut said);
            if words[0].starts_with("EVAL") || matches!(words[0], "SET" | "INCR") {
                if let Some((nth, spoil)) = spoiler
                    && *nth == self.replies
                {
                    reply = spoil(reply);
                }
                self.replies += 1;
                self.look(now);
            }
            said.reply.extend(reply);
        }
        said
    }

    fn carry_out(
        &mut self,
        session: &mut Session,
        words: &[&str],
        now: TrueTime,
        said: &mut Said,
    ) -> Vec<u8> {
        if let Some(reply) = self.player.as_mut().and_then(|answer| answer(words)) {
            return reply.into_bytes();
        }
        if let Some((verb, mut before)) = self.before.take() {
            if words[0] == verb {
                before(self);
            }
            self.before = Some((verb, before));
        }
        match words {
            ["HELLO", "3", "AUTH", user, password] => {
                let is = |guarded: &Guarded| (*user, *password) == (&*guarded.user, &*guarded.password);
                session.is_known = self.guarded.as_ref().is_some_and(is);
                match session.is_known {
                    true => HELLO.to_vec(),
                    false => b"-WRONGPASS invalid username-password pair or user is disabled.\r\n".to_vec(),
                }
            }
            _ if !session.is_known => b"-NOAUTH Authentication required.\r\n".to_vec(),
            ["SET", key, owner, "NX", "PX", ttl_ms] => {
                self.mirror(words, now);
                let now = clock(now);
                let lock = &mut self.locks.entry((*key).to_owned()).or_default().lock;
                lock.take_if(|lock| lock.is_over(now));
                if lock.is_some() {
                    return NULL.to_vec();
                }
                let expires_ms = now.ms + ttl_ms.parse::<u64>().expect("a number");
                let value = match solo(owner) {
                    (owner, LockSpec::Queue(queue_spec)) => Data::Queue(bare(owner, queue_spec, expires_ms)),
                    (value, _) => Data::Text(value.to_owned()),
                };
                *lock = Some(ExpiringValue { value, expires_ms: Some(expires_ms) });
                b"+OK\r\n".to_vec()
            }
            ["INCR", "tenure:fence"] => {
                self.mirror(words, now);
                self.counter += 1;
                format!(":{}\r\n", self.counter).into_bytes()
            }
            ["GET", key] => match self.text(key, now) {
                Some(value) => format!("${}\r\n{value}\r\n", value.len()).into_bytes(),
                None if self.holder(key, now).is_some() => b"-WRONGTYPE Operation against a key\r\n".to_vec(),
                None => NULL.to_vec(),
            },
            ["DELIFEQ", key, value] if self.has_delifeq => {
                let is_it = self.text(key, now).is_some_and(|text| text == *value);
                if is_it {
                    self.locks.entry((*key).to_owned()).or_default().lock = None;
                }
                format!(":{}\r\n", u8::from(is_it)).into_bytes()
            }
            // All scripts of the store have keys.
            ["EVALSHA", _, "0", ..] => b"-NOSCRIPT No matching script.\r\n".to_vec(),
            ["EVALSHA", ..] if !self.knows_script => b"-NOSCRIPT No matching script.\r\n".to_vec(),
            ["EVALSHA" | "EVAL", _, keys, rest @ ..] => {
                self.knows_script = true;
                let database = self.guarded.as_ref().map_or(0, |guarded| guarded.database);
                assert_eq!(session.database, database, "a request to another database");
                let (keys, args) = rest.split_at(keys.parse().unwrap_or(0));
                self.script(keys, args, now, said)
            }
            _ => self.connection_command(session, words, said),
        }
    }

    /// Carries out a command about the connection, its messages or the server.
    fn connection_command(&self, session: &mut Session, words: &[&str], said: &mut Said) -> Vec<u8> {
        match words {
            ["HELLO", ..] => HELLO.to_vec(),
            ["SELECT", database] => {
                session.database = database.parse().expect("a number");
                b"+OK\r\n".to_vec()
            }
            ["CLIENT", "SETNAME", _] => b"+OK\r\n".to_vec(),
            ["CLIENT", "INFO"] => {
                let info = format!("id={0} addr=127.0.0.1:{0} laddr=127.0.0.1:6379\n", session.id);
                format!("={}\r\ntxt:{info}\r\n", info.len() + 4).into_bytes()
            }
            ["CLIENT", "KILL", ..] if self.no_kill => b"-NOPERM no permissions\r\n".to_vec(),
            ["CLIENT", "KILL", "ID", id, "ADDR", addr] if *addr == format!("127.0.0.1:{id}") => {
                said.killed.extend(id.parse::<u64>());
                b":1\r\n".to_vec()
            }
            ["PING"] => b"+PONG\r\n".to_vec(),
            ["COMMAND", "INFO", names @ ..] => {
                let has = |name: &str| self.has_delifeq && name == "DELIFEQ";
                let each =
                    names.iter().map(|name| if has(name) { "*1\r\n$7\r\ndelifeq\r\n" } else { "_\r\n" });
                format!("*{}\r\n{}", names.len(), each.collect::<String>()).into_bytes()
            }
            ["SUBSCRIBE", channel] => {
                session.channels.insert((*channel).to_owned());
                let count = session.channels.len();
                format!(">3\r\n$9\r\nsubscribe\r\n${}\r\n{channel}\r\n:{count}\r\n", channel.len())
                    .into_bytes()
            }
            ["PUBLISH", channel, text] => {
                said.publish(channel, text);
                b":0\r\n".to_vec()
            }
            other => format!("-ERR unknown command '{}'\r\n", other[0]).into_bytes(),
        }
    }

    /// Runs the same command on the scripts' keys.
    fn mirror(&self, words: &[&str], now: TrueTime) {
        if let Some(scripts) = &self.scripts {
            scripts.command(clock(now), words);
        }
    }

    fn script(&mut self, keys: &[&str], args: &[&str], now: TrueTime, said: &mut Said) -> Vec<u8> {
        // The first argument of the batched renewal is the request number.
        if args[0].bytes().all(|byte| byte.is_ascii_digit()) {
            return self.renewals(keys, args, now);
        }
        // The first argument of the short release is the value.
        let is_short = args[0].contains('@');
        let (op, channel, held) = match is_short {
            true => (release(keys[0], args[0], args[1]), None, self.text(keys[0], now)),
            false => (op(keys, args), args.get(5), None),
        };
        if is_short && held.is_none() {
            return NULL.to_vec();
        }
        let state = self.locks.entry(keys[0].to_owned()).or_default();
        let counter = self.counter;
        let (answer, wake) = protocol::apply(state, &mut self.counter, clock(now), &op);
        let is_new = self.counter != counter;
        if let Some(scripts) = &self.scripts {
            let same =
                scripts.compare(clock(now), &op, &Audience::default(), &(answer.clone(), wake.clone()));
            assert_eq!(same, Ok(()), "the script and its twin");
        }
        if let Some(lock) = &state.lock {
            assert!(lock.expires_ms.is_some() && !matches!(lock.value, Data::Hash(_)), "a key without a TTL");
        }
        if let (Some(Notification::Free { by }), Some(channel)) = (wake, channel) {
            said.publish(channel, &by.map_or(String::new(), |owner| owner.to_string()));
        }
        let reply = match (&answer, held) {
            (Answer::Released { .. }, Some(value)) => format!("${}\r\n{value}\r\n", value.len()).into_bytes(),
            // Nothing was done: the long script decides.
            _ if is_short => NULL.to_vec(),
            _ => reply(&op, &answer, is_new),
        };
        if reply != NULL {
            self.executed.push(Executed { at: now, op, answer });
        }
        reply
    }
}

impl Server {
    fn renewals(&mut self, keys: &[&str], args: &[&str], now: TrueTime) -> Vec<u8> {
        let [request, ttl_ms, values @ ..] = args else { panic!("no renewals: {args:?}") };
        assert_eq!(keys.len(), values.len(), "a value for each lock");
        let mut line = format!("{} {request}", solo(values[0]).0);
        for (key, (owner, spec)) in keys.iter().zip(values.iter().map(|value| solo(value))) {
            let op = Op { spec, ..op(&[key], &["renew", owner, request, ttl_ms]) };
            let state = self.locks.entry((*key).to_owned()).or_default();
            let (answer, _) = protocol::apply(state, &mut self.counter, clock(now), &op);
            if let Some(scripts) = &self.scripts {
                let same = scripts.compare(clock(now), &op, &Audience::default(), &(answer.clone(), None));
                assert_eq!(same, Ok(()), "the script and its twin");
            }
            line += &match &answer {
                Answer::Held { fence } => format!(" {fence}"),
                Answer::Free => " free".to_owned(),
                _ => " -".to_owned(),
            };
            if matches!(answer, Answer::Held { .. } | Answer::Free) {
                self.executed.push(Executed { at: now, op, answer });
            }
        }
        format!("${}\r\n{line}\r\n", line.len()).into_bytes()
    }
}

/// The first request and its length, if it is complete.
fn command(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let line = |from: usize| {
        let end = from + bytes.get(from..)?.windows(2).position(|end| end == b"\r\n")?;
        let number = std::str::from_utf8(&bytes[from + 1..end]).ok()?.parse::<usize>().ok()?;
        Some((number, end + 2))
    };
    let (count, mut at) = line(0)?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let (length, from) = line(at)?;
        words.push(String::from_utf8_lossy(bytes.get(from..from + length)?).into_owned());
        bytes.get(from + length..from + length + 2)?;
        at = from + length + 2;
    }
    Some((words, at))
}

/// The owner in the value of a hold by plain commands, and its lock.
fn solo(value: &str) -> (&str, LockSpec) {
    let (owner, rest) = value.split_at(value.find('#').unwrap_or(value.len()));
    (owner, spec(rest))
}

/// The kind of lock from what follows an owner in its value: of a queue `#1:KIND:CAPACITY+WEIGHT`.
fn spec(rest: &str) -> LockSpec {
    let Some((kind, rest)) = rest.strip_prefix("#1:").and_then(|rest| rest.split_once(':')) else {
        return LockSpec::Mutex;
    };
    let (capacity, weight) = rest.split_once('+').unwrap_or((rest, "1"));
    let [capacity, weight] = [capacity, weight].map(|number| number.parse().expect("a number"));
    LockSpec::Queue(QueueSpec { kind: kind.parse().expect("a kind"), capacity, weight })
}

fn bare(owner: &str, queue_spec: QueueSpec, deadline_ms: u64) -> Queue {
    let QueueSpec { kind, capacity, weight } = queue_spec;
    let (mut queue, owner) = (Queue::new(kind, capacity), owner.parse().expect("an owner"));
    queue.insert(0, Ticket { owner, weight, deadline_ms, listens: None });
    queue
}

/// The request behind the short release.
fn release(name: &str, value: &str, request: &str) -> Op {
    let (owner, spec) = solo(value);
    Op {
        name: LockName::new(name).expect("a name"),
        spec,
        owner: owner.parse().expect("an owner"),
        request: request.parse().expect("a number"),
        verb: Verb::Release { hold: 0, fence: Fence::Assign, whose: ReleaseScope::Own },
    }
}

/// The request behind a script's arguments, as documented in book/contribute/protocol.md.
fn op(keys: &[&str], args: &[&str]) -> Op {
    let number = |at: usize| args[at].parse::<u64>().expect("a number");
    let fence = |at: usize| match args[at] {
        "" => Fence::Assign,
        _ => Fence::Ballot(number(at)),
    };
    if args.get(3).is_some_and(|header| header.starts_with("#1:")) {
        return of_queue(keys, args);
    }
    let verb = match args[0] {
        "acquire" => Verb::Acquire {
            ttl_ms: number(3),
            hold: 0,
            fence: fence(4),
            wait_ms: None,
            listens: None,
            bind: Liveness::Process,
        },
        "renew" => Verb::Renew { ttl_ms: number(3), hold: 0, bind: None, weight: None },
        "release" => {
            let whose = match args[4] {
                "mine" => ReleaseScope::Own,
                "anyone" => ReleaseScope::Any,
                "foreign" => ReleaseScope::Foreign,
                other => panic!("not an owner to release: {other}"),
            };
            Verb::Release { hold: 0, fence: fence(3), whose }
        }
        "inspect" => Verb::Inspect,
        other => panic!("no verb: {other}"),
    };
    let owner: Owner = args[1].parse().expect("an owner");
    Op {
        name: LockName::new(keys[0]).expect("a name"),
        spec: LockSpec::Mutex,
        owner,
        request: number(2),
        verb,
    }
}

fn of_queue(keys: &[&str], args: &[&str]) -> Op {
    let number = |at: usize| args[at].parse::<u64>().expect("a number");
    let (hold, fence, bind) = (0, Fence::Assign, Liveness::Process);
    let (weight, verb) = match args[0] {
        "acquire" => {
            let wait_ms = (!args[9].is_empty()).then(|| number(9));
            (args[8], Verb::Acquire { ttl_ms: number(7), hold, fence, wait_ms, listens: None, bind })
        }
        "renew" => ("1", Verb::Renew { ttl_ms: number(7), hold, bind: None, weight: None }),
        "release" => ("1", Verb::Release { hold, fence, whose: ReleaseScope::Own }),
        other => panic!("no verb: {other}"),
    };
    Op {
        name: LockName::new(keys[0]).expect("a name"),
        spec: spec(&format!("{}+{weight}", args[3])),
        owner: args[1].parse().expect("an owner"),
        request: number(2),
        verb,
    }
}

fn reply(op: &Op, answer: &Answer, is_new: bool) -> Vec<u8> {
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let left = |left_ms: Option<u64>| format!(":{}\r\n", left_ms.map_or(-1, |left_ms| left_ms as i64));
    let line = |rest: &str| bulk(&format!("{} {} {rest}", op.owner, op.request)).into_bytes();
    let rest = match answer {
        Answer::Held { fence } if is_new => return line(&format!("held {fence} new")),
        Answer::Held { fence } => return line(&format!("held {fence}")),
        Answer::Released { .. } => return line("released"),
        Answer::Waiting { ticket, retry_in_ms } => {
            let retry_in_ms = retry_in_ms.map_or("-1".to_owned(), |retry_in_ms| retry_in_ms.to_string());
            return line(&format!("waiting {ticket} {retry_in_ms}"));
        }
        Answer::Busy { holder, left_ms } => vec![bulk("busy"), bulk(holder), left(*left_ms)],
        Answer::Free => vec![bulk("free")],
        Answer::Mismatch { kind, capacity } => {
            let capacity = capacity.map(|capacity| bulk(&capacity.to_string()));
            [bulk("mismatch"), bulk(kind.as_str())].into_iter().chain(capacity).collect()
        }
        Answer::Found(found) => {
            let holder = &found.holders[0];
            vec![bulk("found"), bulk("mutex"), bulk(&protocol::shown(&holder.value)), left(holder.left_ms)]
        }
        Answer::Behind { ballot } => vec![bulk("behind"), bulk(&ballot.to_string())],
        other => panic!("not an answer of this server: {other:?}"),
    };
    let head = format!("*{}\r\n", rest.len() + 2);
    [head, bulk(op.owner.as_str()), bulk(&op.request.to_string()), rest.concat()].concat().into_bytes()
}
