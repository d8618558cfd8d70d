//! The machines in Rust and in Lua are twins: the same requests at the same times get the same answers and
//! leave the same state.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure::internals::Driver;
use tenure::internals::protocol::{
    self, Answer, Data, ExpiringValue, Fence, Kind, Listening, Liveness, LockSpec, Notification, Now, Op,
    QueueSpec, ReleaseScope, State, Verb, lease, parse_value, queue::Queue,
};
use tenure::internals::store::StoreExt;
use tenure::internals::store::redis::Redis;
use tenure::{LockName, Owner, block_on};
use tenure_testkit::servers::{Client, Server, Value};
use tenure_testkit::setting;

/// `TENURE_OPERATIONS` overrides it.
const OPERATIONS: usize = 40_000;
/// Requests at one point in time, after which all keys are compared.
const BATCH: u64 = 24;
const WITHIN: Duration = Duration::from_secs(10);
/// Keys of each form that side keys distinguish.
const KEYS: [&str; 6] = ["plain", "{tag}ged", "a}b", "sp ace", "ümlaut", "{}"];

#[test]
fn the_mutex_in_lua_answers_as_the_one_in_rust() {
    let mut bench = Bench::new(Subject::Mutex, 4, 7);
    bench.run();
    bench.has_seen(&["Ahead", "Behind", "Busy", "Found", "Free", "Held", "Mismatch", "NoLock", "Released"]);
}

#[test]
fn the_reentrant_machine_in_lua_answers_as_the_one_in_rust() {
    let mut bench = Bench::new(Subject::Reentrant, 3, 11);
    bench.run();
    bench.has_seen(&["Busy", "Found", "Free", "Held", "Mismatch", "NoLock", "Released", "Released 1"]);
}

#[test]
fn the_queue_in_lua_answers_as_the_one_in_rust() {
    let mut bench = Bench::new(Subject::Queue, 7, 19);
    bench.run();
    let all = [
        "Busy", "Found", "Free", "Granted", "Held", "Mismatch", "NoLock", "Places", "Released", "Resized",
        "Waiting",
    ];
    bench.has_seen(&all);
    bench.has_seen(&["Growing", "Grown", "More asked than there is", "Set and free", "Ended", "Passed"]);
}

/// So many that one request reaches its limits for sweeping and admitting.
#[test]
fn a_long_queue_in_lua_answers_as_the_one_in_rust() {
    let mut bench = Bench::new(Subject::Queue, 400, 17);
    bench.run();
    let all =
        ["Busy", "Found", "Free", "Granted", "Granted 64", "Held", "Left by the sweep", "More", "Places"];
    bench.has_seen(&all);
}

/// The machine that gets most requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Mutex,
    Reentrant,
    Queue,
}

/// Both machines, and a clock for both.
struct Bench {
    server: Server,
    store: Redis,
    /// Receives published messages.
    listener: Client,
    /// Reads keys.
    eye: Client,
    random: u64,
    now_us: u64,
    subject: Subject,
    owners: Vec<Owner>,
    states: Vec<State>,
    counter: u64,
    /// The listening state of a place whose client listens at this server.
    here: Option<Listening>,
    requests: u64,
    /// The kinds of answers so far.
    seen: BTreeSet<String>,
}

impl Bench {
    fn new(subject: Subject, owners: usize, seed: u64) -> Self {
        let server = Server::with_clock();
        let now_us = 1_800_000_000_000_000;
        server.clock().freeze_us(now_us);
        let store =
            Redis::open(&server.url(), Driver::start().expect("a thread")).expect("a store").scripts_only();
        let mut listener = server.client().expect("a connection");
        for key in KEYS {
            for spec in [LockSpec::Mutex, LockSpec::Reentrant] {
                listener.command(&["SUBSCRIBE", &channel(spec, key)]).expect("a subscription");
            }
        }
        let eye = server.client().expect("a connection");
        let owners: Vec<Owner> = (0..owners).map(owner).collect();
        for owner in owners.iter().filter(|owner| is_there(owner)) {
            for key in KEYS {
                listener.command(&["SUBSCRIBE", &turns(key, owner)]).expect("a subscription");
            }
        }
        let info = server.client().and_then(|mut client| client.command(&["INFO", "server"]));
        let info = info.expect("a reply").text().to_owned();
        let run_id = info.split_once("run_id:").expect("a run id").1;
        let here = u16::from_str_radix(&run_id[..3], 16).expect("digits") & !3 | 1;
        let states = KEYS.iter().map(|_| State::default()).collect();
        let mut bench = Self {
            server,
            store,
            listener,
            eye,
            random: seed,
            now_us,
            subject,
            owners,
            states,
            counter: 0,
            here: Listening::new(here),
            requests: 0,
            seen: BTreeSet::new(),
        };
        // From here on the server has the scripts, so requests are executed in the order in which they were
        // sent.
        for spec in [LockSpec::Mutex, LockSpec::Reentrant, LockSpec::Queue(QueueSpec::FAIR)] {
            let warm_up = bench.op(0, 0, spec, Verb::Inspect);
            block_on(bench.store.request(warm_up, WITHIN)).expect("an answer");
        }
        bench
    }

    fn run(&mut self) {
        let mut asked = 0;
        let operations = setting("TENURE_OPERATIONS").map_or(OPERATIONS, |number| number as usize);
        while asked < operations {
            self.pass_time();
            self.interfere();
            asked += self.batch();
            if self.subject == Subject::Mutex {
                asked += self.renewals();
            }
            self.compare();
        }
    }

    fn has_seen(&self, all: &[&str]) {
        for what in all {
            assert!(self.seen.contains(*what), "{what} was never seen, only {:?}", self.seen);
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn now(&self) -> Now {
        Now { ms: self.now_us / 1_000, unix_us: self.now_us }
    }

    fn op(&mut self, key: usize, owner: usize, spec: LockSpec, verb: Verb) -> Op {
        self.requests += 1;
        let name = LockName::new(KEYS[key]).expect("a name");
        Op { name, spec, owner: self.owners[owner].clone(), request: self.requests, verb }
    }

    /// Mostly the subject; for the queue, mostly the key's usual kind.
    fn spec(&mut self, key: usize) -> LockSpec {
        let subject = match self.below(40) {
            0 => Subject::Mutex,
            1 => Subject::Reentrant,
            2 => Subject::Queue,
            _ => self.subject,
        };
        match subject {
            Subject::Mutex => LockSpec::Mutex,
            Subject::Reentrant => LockSpec::Reentrant,
            Subject::Queue => {
                let kind = if self.below(50) == 0 { self.below(7) } else { key as u64 };
                LockSpec::Queue(match kind {
                    0 | 1 => QueueSpec::FAIR,
                    2 | 3 if self.below(if self.is_long() { 60 } else { 4 }) == 0 => QueueSpec::WRITER,
                    2 | 3 if self.below(if self.is_long() { 60 } else { 4 }) == 0 => QueueSpec::UPGRADEABLE,
                    2 | 3 => QueueSpec::READER,
                    4 | 5 => QueueSpec::permits(5, 1 + self.below(3) as u32),
                    _ => QueueSpec::permits(3, 1 + self.below(5) as u32),
                })
            }
        }
    }

    fn pass_time(&mut self) {
        let (hour, day) = (3_600_000_000, 86_400_000_000);
        match self.below(100) {
            _ if self.is_long() => {
                self.now_us += match self.below(250) {
                    0 => 20_000_000 + self.below(40_000_000),
                    _ => self.below(60_000),
                }
            }
            0..60 => self.now_us += self.below(700_000),
            60..90 => self.now_us += self.below(5_000_000),
            90..94 => {}
            94 => self.now_us += hour + self.below(hour),
            95 => self.now_us += 20 * day,
            _ => self.now_us -= self.below(20_000_000),
        }
        self.server.clock().freeze_us(self.now_us);
    }

    /// Changes by other programs, operators and evictions.
    fn interfere(&mut self) {
        let key = self.below(KEYS.len() as u64) as usize;
        let (name, mine) = (KEYS[key], self.owners[0].clone());
        let ttl_ms = self.below(3_000) + 1;
        let expires_ms = Some(self.now().ms + ttl_ms);
        let text =
            |text: &str, expires_ms| Some(ExpiringValue { value: Data::Text(text.to_owned()), expires_ms });
        match self.below(self.calm()) {
            0 => self.plant(key, "another client", text("another client", expires_ms), Some(ttl_ms)),
            1 => self.plant(key, "for ever", text("for ever", None), None),
            2 => self.plant(key, mine.as_str(), text(mine.as_str(), expires_ms), Some(ttl_ms)),
            3 => self.plant(key, mine.as_str(), text(mine.as_str(), None), None),
            4 => {
                let longer = format!("{mine}0#5");
                self.plant(key, &longer, text(&longer, expires_ms), Some(ttl_ms));
            }
            5 => {
                let broken = format!("{mine}#5x");
                self.plant(key, &broken, text(&broken, expires_ms), Some(ttl_ms));
            }
            6 | 7 => {
                let fields: &[&str] = match self.below(4) {
                    0 | 1 if ttl_ms.is_multiple_of(3) => &["#fence", "1", mine.as_str(), "1"],
                    0 | 1 if ttl_ms % 3 == 1 => &["#fence", "1", mine.as_str(), "1", "!a", "1"],
                    0 => &["#fence", "1", "a", "1"],
                    1 => &["mode", "read", "550e8400-e29b-41d4-a716-446655440000:1", "1"],
                    2 => &["#odd", "1"],
                    _ => &["550e8400-e29b-41d4-a716-446655440000:1", "2"],
                };
                self.eye.command(&["DEL", name]).expect("a reply");
                self.eye.command(&[&["HSET", name], fields].concat()).expect("a reply");
                self.eye.command(&["PEXPIRE", name, &ttl_ms.to_string()]).expect("a reply");
                let hash = fields.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned()));
                self.states[key].lock = Some(ExpiringValue { value: Data::Hash(hash.collect()), expires_ms });
            }
            11 | 12 => {
                let (value, command): (_, &[&str]) = match self.below(2) {
                    0 => ("(zset)", &["ZADD", name, "-5", "somebody", "1800000000000000", "another client"]),
                    _ => ("(list)", &["RPUSH", name, "somebody"]),
                };
                self.eye.command(&["DEL", name]).expect("a reply");
                self.eye.command(command).expect("a reply");
                self.eye.command(&["PEXPIRE", name, &ttl_ms.to_string()]).expect("a reply");
                self.states[key].lock = text(value, expires_ms);
            }
            8 | 9 => {
                self.eye.command(&["DEL", name]).expect("a reply");
                self.states[key].lock = None;
            }
            10 => {
                self.eye.command(&["DEL", "tenure:fence", &side("tenure:ballot:", name)]).expect("a reply");
                (self.states[key].ballot, self.counter) = (None, 0);
            }
            _ => {}
        }
    }

    fn plant(&mut self, key: usize, value: &str, entry: Option<ExpiringValue<Data>>, ttl_ms: Option<u64>) {
        let mut command = vec!["SET".to_owned(), KEYS[key].to_owned(), value.to_owned()];
        command.extend(ttl_ms.into_iter().flat_map(|ttl_ms| ["PX".to_owned(), ttl_ms.to_string()]));
        self.eye.command(&command).expect("a reply");
        self.states[key].lock = entry;
    }

    fn is_long(&self) -> bool {
        self.owners.len() > 100
    }

    /// Whether a text in the state represents a type that the Rust machines do not have.
    fn is_of_another_type(&self, key: usize) -> bool {
        let lock = self.states[key].lock.as_ref().map(|lock| &lock.value);
        matches!(lock, Some(Data::Text(value)) if value.starts_with('('))
    }

    /// How rarely others interfere: a queue grows only if it is left alone for a while.
    fn calm(&self) -> u64 {
        match self.subject {
            Subject::Queue if self.is_long() => 1_000,
            Subject::Queue => 60,
            _ => 20,
        }
    }

    fn verb(&mut self, spec: LockSpec) -> Verb {
        let is_long = self.is_long();
        let ttl_ms = 1 + self.below(if is_long { 20_000 } else { 4_000 });
        let fence = match (spec, self.below(4)) {
            (LockSpec::Mutex, 0) => Fence::Ballot(match self.below(8) {
                0 => self.below(1_000),
                1 => self.now_us + 40_000_000_000_000,
                2 => self.now_us + self.below(31_000_000_000_000),
                _ => self.now_us - 12_000_000 + self.below(13_000_000),
            }),
            _ => Fence::Assign,
        };
        // Here, or at another server. Rarely, because skipped waiters do not fill a queue.
        let listens = match self.below(if is_long { 300 } else { 12 }) {
            0 => Listening::new(2),
            1 | 2 => self.here,
            _ => None,
        };
        let hold = match spec {
            LockSpec::Reentrant => 1 + self.below(3),
            _ => 1,
        };
        let is_queue = matches!(spec, LockSpec::Queue(_));
        match self.below(if is_queue { 16 } else { 10 }) {
            n @ 0..5 => {
                let wait_ms =
                    (is_queue && n > 0).then(|| 1 + self.below(if is_long { 30_000 } else { 3_000 }));
                Verb::Acquire { ttl_ms, hold, fence, wait_ms, listens, bind: Liveness::Process }
            }
            5 | 6 => {
                let weight = (is_queue && self.below(3) == 0).then(|| {
                    match self.below(if is_long { 60 } else { 3 }) {
                        0 => QueueSpec::WRITER.weight,
                        _ => 1 + self.below(4) as u32,
                    }
                });
                let bind = match self.below(6) {
                    0 => Some(Liveness::Lease),
                    1 => Some(Liveness::Process),
                    _ => None,
                };
                Verb::Renew { ttl_ms, hold, bind, weight }
            }
            7 | 8 => {
                let whose = if ttl_ms.is_multiple_of(4) { ReleaseScope::Named } else { ReleaseScope::Own };
                Verb::Release { hold, fence, whose }
            }
            9 if self.below(if is_long { 60 } else { 4 }) == 0 => {
                let whose = if ttl_ms.is_multiple_of(3) { ReleaseScope::Foreign } else { ReleaseScope::Any };
                Verb::Release { hold: hold / 2, fence, whose }
            }
            9 => Verb::Inspect,
            10..12 if is_long => Verb::Acquire {
                ttl_ms,
                hold,
                fence,
                wait_ms: Some(20_000 + ttl_ms),
                listens: None,
                bind: Liveness::Process,
            },
            _ => {
                let count = 1 + self.below(if is_long { 100 } else { 6 });
                let owners = (0..count).map(|_| self.below(self.owners.len() as u64) as usize);
                let owners: Vec<_> = owners.collect();
                let owners = owners.into_iter().map(|owner| self.owners[owner].clone()).collect();
                // At this length a place is kept longer.
                let wait_ms = if listens.is_some() && !ttl_ms.is_multiple_of(4) { 5_000 } else { ttl_ms };
                Verb::Refresh { owners, wait_ms, listens }
            }
        }
    }

    /// Sends the same requests to both machines; returns their number.
    fn batch(&mut self) -> usize {
        let count = 1 + self.below(BATCH);
        let ops: Vec<_> = (0..count)
            .map(|_| {
                let key = self.below(KEYS.len() as u64) as usize;
                let owner = self.below(self.owners.len() as u64) as usize;
                let mut spec = self.spec(key);
                let mut verb = self.verb(spec);
                if let LockSpec::Queue(queue_spec) = &mut spec
                    && queue_spec.kind == Kind::Semaphore
                    && self.below(40) == 0
                {
                    verb = Verb::Resize;
                    *queue_spec = QueueSpec::permits(1 + self.below(6) as u32, 1);
                }
                if let Verb::Release { whose: whose @ ReleaseScope::Foreign, .. } = &mut verb
                    && self.is_of_another_type(key)
                {
                    *whose = ReleaseScope::Any;
                }
                (key, self.op(key, owner, spec, verb))
            })
            .collect();
        let store = Arc::new(self.store.clone());
        let replies = block_on(join_all(ops.iter().map(|(_, op)| store.request(op.clone(), WITHIN))));
        let now = self.now();
        for ((key, op), reply) in ops.iter().zip(replies) {
            let before = self.states[*key].clone();
            let passed = Cell::new(false);
            let hears = |listens, owner: &Owner| {
                let hears = listens != self.here || is_there(owner);
                passed.set(passed.get() || !hears);
                hears
            };
            let mut state = std::mem::take(&mut self.states[*key]);
            let mut counter = self.counter;
            let (answer, wake) = protocol::apply_calling(&mut state, &mut counter, now, op, &hears);
            (self.states[*key], self.counter) = (state, counter);
            if passed.get() {
                self.seen.insert("Passed".to_owned());
            }
            if let (Answer::Mismatch { capacity: Some(capacity), .. }, LockSpec::Queue(queue_spec)) =
                (&answer, op.spec)
                && queue_spec.weight > *capacity
            {
                self.seen.insert("More asked than there is".to_owned());
            }
            let reply = reply.expect("an answer");
            // The Rust machines do not have such types, and take the text that represents one for a foreign
            // holder.
            let answer = match (answer, &op.verb) {
                (Answer::Busy { holder, .. }, Verb::Acquire { .. })
                    if holder.starts_with('(') && holder != "(hash)" =>
                {
                    Answer::NoLock { type_name: holder[1..holder.len() - 1].to_owned() }
                }
                (answer, _) => answer,
            };
            assert_eq!(reply, answer, "{op:?} at {now:?} on {before:?}");
            self.note(*key, &answer, wake.as_ref());
            if let LockSpec::Queue(_) = op.spec {
                self.hear_turns(*key, op, &before, wake);
                continue;
            }
            let Some(wake) = wake else { continue };
            let (heard, said) = self.hear(&format!("{wake:?} of {op:?} on {before:?}"));
            assert_eq!(heard, channel(op.spec, KEYS[*key]));
            match (wake, op.spec) {
                (Notification::Free { .. }, LockSpec::Reentrant) => assert_eq!(said, "0"),
                (Notification::Free { by }, _) => {
                    assert_eq!(parse_value(&*said).map(|(owner, _)| owner), by, "{op:?}")
                }
                (other, _) => panic!("no machine says {other:?}"),
            }
        }
        ops.len()
    }

    /// Checks the messages to the clients that are there: that some of their holds were ended by force, and
    /// which of their tickets hold now.
    fn hear_turns(&mut self, key: usize, op: &Op, before: &State, wake: Option<Notification>) {
        let tickets = |state: &State| -> BTreeMap<u64, Owner> {
            match &state.lock {
                Some(ExpiringValue { value: Data::Queue(queue), .. }) => {
                    queue.tickets().map(|(number, ticket)| (number, ticket.owner.clone())).collect()
                }
                _ => BTreeMap::new(),
            }
        };
        let (was, is) = (tickets(before), tickets(&self.states[key]));
        let mut expected: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let granted = match wake {
            Some(Notification::Granted { tickets }) => tickets,
            None => Vec::new(),
            Some(other) => panic!("no queue says {other:?}"),
        };
        for number in granted {
            let owner = is.get(&number).or(was.get(&number)).expect("whose it is");
            if is_there(owner) {
                expected.entry(turns(KEYS[key], owner)).or_default().push(number.to_string());
            }
        }
        let mut heard: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for _ in 0..expected.len() {
            let (channel, said) = self.hear(&format!("{expected:?} of {op:?} on {before:?}"));
            heard.insert(channel, said.split(',').map(str::to_owned).collect());
        }
        assert_eq!(heard, expected, "{op:?} on {before:?}");
    }

    /// The next message and its channel, except messages about forced releases.
    fn hear(&mut self, what: &str) -> (String, String) {
        loop {
            let message = self.listener.receive();
            let message = message.unwrap_or_else(|error| panic!("{error:?} for {what}"));
            let [_, channel, Value::Bytes(said)] = message.items() else {
                panic!("not a message: {message:?}")
            };
            let (channel, said) = (channel.text().to_owned(), String::from_utf8_lossy(said).into_owned());
            if !said.is_empty() || channel.ends_with(['}', 'd', 'b']) {
                return (channel, said);
            }
            self.seen.insert("Ended".to_owned());
        }
    }

    /// Renews all keys in one script, and each in its twin.
    fn renewals(&mut self) -> usize {
        let ttl_ms = 1 + self.below(4_000);
        let verb = Verb::Renew { ttl_ms, hold: 1, bind: None, weight: None };
        let ops: Vec<_> = (0..KEYS.len())
            .map(|key| {
                let owner = self.below(self.owners.len() as u64) as usize;
                self.op(key, owner, LockSpec::Mutex, verb.clone())
            })
            .collect();
        let replies = block_on(self.store.renew(ops.clone(), WITHIN));
        let now = self.now();
        for (key, (op, reply)) in ops.iter().zip(replies).enumerate() {
            let before = self.states[key].clone();
            let (answer, _) = protocol::apply(&mut self.states[key], &mut self.counter, now, op);
            assert_eq!(reply.expect("an answer"), answer, "{op:?} at {now:?} on {before:?}");
            self.note(key, &answer, None);
        }
        ops.len()
    }

    /// Records the kind of answer.
    fn note(&mut self, key: usize, answer: &Answer, wake: Option<&Notification>) {
        let answer = match answer {
            Answer::More(answer) => {
                self.seen.insert("More".to_owned());
                answer
            }
            answer => answer,
        };
        let kind = format!("{answer:?}");
        self.seen.insert(kind.split([' ', '(']).next().unwrap_or_default().to_owned());
        if let Answer::Released { left: 1 } = answer {
            self.seen.insert("Released 1".to_owned());
        }
        if let (
            Some(Notification::Granted { tickets }),
            Some(ExpiringValue { value: Data::Queue(queue), .. }),
        ) = (wake, &self.states[key].lock)
            && let [number] = tickets[..]
            && queue.tickets().any(|(at, ticket)| at == number && ticket.weight == QueueSpec::WRITER.weight)
            && queue.holding().count() == 1
        {
            self.seen.insert("Grown".to_owned());
        }
        if let Some(Notification::Granted { tickets }) = wake {
            self.seen.insert("Granted".to_owned());
            self.seen.insert(format!("Granted {}", tickets.len()));
        }
        if let (Answer::Places { .. }, Some(ExpiringValue { value: Data::Queue(queue), .. })) =
            (answer, &self.states[key].lock)
            && queue.tickets().any(|(_, ticket)| ticket.deadline_ms < self.now().ms)
        {
            self.seen.insert("Left by the sweep".to_owned());
        }
    }

    /// Checks that the keys have the state of the Rust machine, to the millisecond.
    fn compare(&mut self) {
        for key in KEYS {
            let side = side("tenure:ballot:", key);
            for command in [&["TYPE", key][..], &["PTTL", key], &["GET", &side], &["PTTL", &side]] {
                self.eye.send(command).expect("a connection");
            }
        }
        let now = self.now();
        let mut types = Vec::new();
        for (key, state) in KEYS.iter().zip(&mut self.states) {
            // The server deletes expired keys when they are read, so a clock that steps back does not revive
            // them.
            state.lock.take_if(|lock| lock.expires_ms.is_some_and(|end| end < now.ms));
            state.ballot.take_if(|ballot| ballot.expires_ms.is_some_and(|end| end < now.ms));
            let [kind, left, known, known_left] = [(); 4].map(|()| self.eye.receive().expect("a reply"));
            types.push(kind.text().to_owned());
            let lock = state.lock.as_ref();
            assert_eq!(left.int(), lock.map_or(-2, |lock| left_ms(lock.expires_ms, now)), "{key}: {lock:?}");
            let ballot = state.ballot.as_ref();
            assert_eq!(
                known_left.int(),
                ballot.map_or(-2, |ballot| left_ms(ballot.expires_ms, now)),
                "{key}"
            );
            if let Some(ballot) = ballot {
                assert_eq!(known.text(), ballot.value.to_string(), "{key}");
                assert!(
                    known_left.int() > 0 && known_left.int() <= lease::BALLOT_MS as i64 + 100_000,
                    "{key}"
                );
            }
        }
        for ((key, state), kind) in KEYS.iter().zip(&self.states).zip(types) {
            let Some(lock) = &state.lock else {
                assert_eq!(kind, "none", "{key}");
                continue;
            };
            match &lock.value {
                Data::Text(text) if kind == "string" => {
                    assert_eq!(self.eye.command(&["GET", key]).expect("a reply").text(), text, "{key}");
                }
                Data::Text(text) => assert_eq!(format!("({kind})"), *text, "{key}"),
                Data::Hash(hash) => {
                    let all = self.eye.command(&["HGETALL", key]).expect("a reply");
                    assert_eq!(pairs(&all).into_iter().collect::<BTreeMap<_, _>>(), *hash, "{key}");
                }
                Data::Queue(queue) => {
                    if queue.owners() == 0 {
                        self.seen.insert("Set and free".to_owned());
                    }
                    let all = self.eye.command(&["ZRANGE", key, "0", "-1", "WITHSCORES"]).expect("a reply");
                    compare_queue(&pairs(&all), queue);
                }
            }
        }
    }
}

/// Checks that the set of book/contribute/protocol.md has these tickets and nothing else.
fn compare_queue(all: &[(String, String)], queue: &Queue) {
    let mut expected = BTreeMap::new();
    let mut used = 0;
    for (number, ticket) in queue.tickets() {
        expected.insert(ticket.owner.to_string(), number.to_string());
        let listens = ticket.listens.map_or(0.0, |listens| f64::from(listens.get()) / 4096.0);
        expected.insert(format!("!{}", ticket.owner), (ticket.deadline_ms as f64 + listens).to_string());
        if ticket.weight != 1 {
            expected.insert(
                format!("+{}", ticket.owner),
                (8_000_000_000_000_000 + u64::from(ticket.weight)).to_string(),
            );
        }
        if number <= queue.mark {
            used += u64::from(ticket.weight);
        }
    }
    let set = if queue.is_set { "=" } else { "" };
    expected.insert(format!("#1:{}:{set}{}", queue.kind, queue.capacity), negative(queue.mark));
    expected.insert("#used".to_owned(), negative(used));
    let shortest = |score: &String| score.parse::<f64>().expect("a score").to_string();
    let found: BTreeMap<_, _> = all.iter().map(|(member, score)| (member.clone(), shortest(score))).collect();
    assert_eq!(found, expected);
}

fn negative(number: u64) -> String {
    if number == 0 { "0".to_owned() } else { format!("-{number}") }
}

fn pairs(list: &Value) -> Vec<(String, String)> {
    list.items().chunks(2).map(|pair| (pair[0].text().to_owned(), pair[1].text().to_owned())).collect()
}

fn channel(spec: LockSpec, key: &str) -> String {
    match spec {
        LockSpec::Reentrant if key.contains('{') => format!("redisson_lock__channel:{key}"),
        LockSpec::Reentrant => format!("redisson_lock__channel:{{{key}}}"),
        _ => side("tenure:wake:0:", key),
    }
}

/// Two of them belong to one client, so that it gets messages about both together.
fn owner(number: usize) -> Owner {
    let id = format!("{:012x}{:010x}{number:010x}", 1_700_000_000_000_u64, number / 2);
    format!("twin@h:1/{id}").parse().expect("an owner")
}

/// Whether its client listens; every second one does.
fn is_there(owner: &Owner) -> bool {
    client(owner).ends_with(['0', '2', '4', '6', '8', 'a', 'c', 'e'])
}

fn client(owner: &Owner) -> &str {
    let text = owner.as_str();
    &text[text.len() - 20..text.len() - 10]
}

/// The channel on which a client learns which of its tickets hold.
fn turns(key: &str, owner: &Owner) -> String {
    format!("{}:{}", side("tenure:wake:0:", key), client(owner))
}

fn left_ms(expires_ms: Option<u64>, now: Now) -> i64 {
    expires_ms.map_or(-1, |end| (end - now.ms) as i64)
}

/// The rule of book/contribute/protocol.md, for the keys above.
fn side(prefix: &str, key: &str) -> String {
    match key {
        "{tag}ged" => format!("{prefix}={key}"),
        "a}b" | "{}" => format!("{prefix}~{key}"),
        _ => format!("{prefix}{{{key}}}"),
    }
}
