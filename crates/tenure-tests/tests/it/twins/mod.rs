//! The machines in Rust and in Lua are twins: the same requests at the same times get the same answers and
//! leave the same state.

mod compare;
mod requests;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure::internals::Driver;
use tenure::internals::protocol::{
    self, Answer, Data, ExpiringValue, Fence, Kind, Listening, Liveness, LockSpec, Notification, Now, Op,
    QueueSpec, ReleaseScope, State, Verb, lease, parse_value,
    queue::{Queue, Ticket},
};
use tenure::internals::store::StoreExt;
use tenure::internals::store::redis::Redis;
use tenure::{LockName, Owner, block_on};
use tenure_testkit::servers::{Client, Server, Value};
use tenure_testkit::setting;
use tenure_testkit::sim::chooser::Rng;

/// Enough to see every answer of each machine. `TENURE_OPERATIONS` overrides them.
const OPERATIONS: usize = 20_000;
const OPERATIONS_OF_QUEUES: usize = 60_000;
/// Requests at one point in time, after which all keys are compared.
const BATCH: u64 = 24;
const WITHIN: Duration = Duration::from_secs(10);
/// Keys of each form that side keys distinguish.
const KEYS: [&str; 6] = ["plain", "{tag}ged", "a}b", "sp ace", "ümlaut", "{}"];

#[test]
fn the_mutex_in_lua_answers_as_the_one_in_rust() {
    let mut bench = Bench::new(Subject::Mutex, 4, 7);
    bench.run(OPERATIONS);
    bench.has_seen(&["Ahead", "Behind", "Busy", "Found", "Free", "Held", "Mismatch", "NoLock", "Released"]);
}

#[test]
fn the_reentrant_machine_in_lua_answers_as_the_one_in_rust() {
    let mut bench = Bench::new(Subject::Reentrant, 3, 11);
    bench.run(OPERATIONS);
    bench.has_seen(&["Busy", "Found", "Free", "Held", "Mismatch", "NoLock", "Released", "Released 1"]);
}

#[test]
fn the_queue_in_lua_answers_as_the_one_in_rust() {
    let mut bench = Bench::new(Subject::Queue, 7, 19);
    bench.run(OPERATIONS_OF_QUEUES);
    let all = [
        "Busy", "Found", "Free", "Granted", "Held", "Mismatch", "NoLock", "Places", "Released", "Resized",
        "Waiting",
    ];
    bench.has_seen(&all);
    bench.has_seen(&["Growing", "Grown", "More asked than there is", "Set and free", "Ended", "Passed"]);
    bench.has_seen(&["Solo", "Bare", "Numbered"]);
}

/// So many that one request reaches its limits for sweeping and admitting.
#[test]
fn a_long_queue_in_lua_answers_as_the_one_in_rust() {
    let mut bench = Bench::new(Subject::Queue, 400, 17);
    bench.run(OPERATIONS);
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
    random: Rng,
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
            random: Rng::new(seed),
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

    fn run(&mut self, operations: usize) {
        let mut asked = 0;
        let operations = setting("TENURE_OPERATIONS").map_or(operations, |number| number as usize);
        while asked < operations {
            self.pass_time();
            self.interfere();
            self.acquire_plainly();
            asked += self.batch();
            asked += self.renewals();
            self.compare();
        }
    }

    fn has_seen(&self, all: &[&str]) {
        for what in all {
            assert!(self.seen.contains(*what), "{what} was never seen, only {:?}", self.seen);
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn now(&self) -> Now {
        Now { ms: self.now_us / 1_000, unix_us: self.now_us }
    }

    fn op(&mut self, key: usize, owner: usize, spec: LockSpec, verb: Verb) -> Op {
        self.requests += 1;
        let name = LockName::new(KEYS[key]).expect("a name");
        Op { name, spec, owner: self.owners[owner].clone(), request: self.requests, verb }
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
            let bare = |state: &State| matches!(&state.lock, Some(ExpiringValue { value: Data::Queue(queue), .. }) if queue.ticket(0).is_some());
            if bare(&before) && !bare(&self.states[*key]) && self.states[*key].lock.is_some() {
                self.seen.insert("Numbered".to_owned());
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

    /// Renews several keys in one script, and each in its twin: all mutexes, and queues with one holder and
    /// nobody else, because the script leaves the rest of a queue to others.
    fn renewals(&mut self) -> usize {
        let ttl_ms = 1 + self.below(4_000);
        let verb = Verb::Renew { ttl_ms, hold: 1, bind: None, weight: None };
        let ops: Vec<_> = (0..KEYS.len())
            .filter_map(|key| match (self.subject, self.only_holder(key)) {
                (Subject::Mutex, _) => {
                    let owner = self.below(self.owners.len() as u64) as usize;
                    Some((key, self.op(key, owner, LockSpec::Mutex, verb.clone())))
                }
                (Subject::Queue, Some((owner, spec))) => Some((key, self.op(key, owner, spec, verb.clone()))),
                _ => None,
            })
            .collect();
        let all = ops.iter().map(|(_, op)| op.clone()).collect();
        let replies = block_on(self.store.renew(all, WITHIN));
        let now = self.now();
        for ((key, op), reply) in ops.iter().zip(replies) {
            let key = *key;
            let before = self.states[key].clone();
            let (answer, _) = protocol::apply(&mut self.states[key], &mut self.counter, now, op);
            assert_eq!(reply.expect("an answer"), answer, "{op:?} at {now:?} on {before:?}");
            self.note(key, &answer, None);
        }
        ops.len()
    }
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
