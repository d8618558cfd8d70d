//! The machines in Rust and in Lua are twins: the same requests at the same moments get the same answers and leave the same
//! behind.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure::internals::protocol::{
    self, Bind, Data, Entry, Fence, Now, Op, Rule, State, Verb, Wake, Whose, lease, ours,
};
use tenure::internals::store::redis::Redis;
use tenure::internals::{Driver, Store};
use tenure::{LockName, Owner, block_on};
use tenure_testkit::servers::{Client, Server, Value};

const OPERATIONS: usize = 100_000;
/// So many requests are asked at one moment; then all keys are compared.
const BATCH: u64 = 24;
const WITHIN: Duration = Duration::from_secs(10);
/// Keys of each shape that side keys tell apart.
const KEYS: [&str; 6] = ["plain", "{tag}ged", "a}b", "sp ace", "ümlaut", "{}"];

#[test]
fn the_mutex_in_lua_answers_as_the_one_in_rust() {
    let mut bench = Bench::new(7);
    let mut asked = 0;
    while asked < OPERATIONS {
        bench.pass_time();
        bench.interfere();
        asked += bench.batch();
        bench.compare();
    }
    let all = ["Ahead", "Behind", "Busy", "Found", "Free", "Held", "Mismatch", "Released"];
    assert!(bench.seen.iter().map(String::as_str).eq(all), "each answer was given: {:?}", bench.seen);
}

/// Both machines, and a clock that moves both.
struct Bench {
    server: Server,
    store: Redis,
    /// Hears what is published.
    ear: Client,
    /// Looks at keys.
    eye: Client,
    random: u64,
    now_us: u64,
    owners: Vec<Owner>,
    states: Vec<State>,
    requests: u64,
    /// The kinds of answers so far.
    seen: BTreeSet<String>,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let server = Server::with_clock();
        let now_us = 1_800_000_000_000_000;
        server.clock().freeze_us(now_us);
        let store = Redis::open(&server.url(), Driver::start().expect("a thread")).expect("a store");
        let mut ear = server.client().expect("a connection");
        for key in KEYS {
            ear.command(&["SUBSCRIBE", &side("tenure:wake:0:", key)]).expect("a subscription");
        }
        let eye = server.client().expect("a connection");
        let owners = (0..4).map(|_| Owner::new("twin").expect("an owner")).collect();
        let states = KEYS.iter().map(|_| State::default()).collect();
        let mut bench = Self {
            server,
            store,
            ear,
            eye,
            random: seed,
            now_us,
            owners,
            states,
            requests: 0,
            seen: BTreeSet::new(),
        };
        // From here on the server knows the script, so requests are carried out in the order in which they were sent.
        let warm_up = bench.op(0, 0, Verb::Inspect);
        block_on(bench.store.call(warm_up, WITHIN)).expect("an answer");
        bench
    }

    /// A number below `bound`.
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

    fn op(&mut self, key: usize, owner: usize, verb: Verb) -> Op {
        self.requests += 1;
        let name = LockName::new(KEYS[key]).expect("a name");
        Op { name, rule: Rule::Mutex, owner: self.owners[owner].clone(), request: self.requests, verb }
    }

    fn pass_time(&mut self) {
        let (hour, day) = (3_600_000_000, 86_400_000_000);
        match self.below(100) {
            0..60 => self.now_us += self.below(700_000),
            60..90 => self.now_us += self.below(5_000_000),
            90..94 => {}
            94 => self.now_us += hour + self.below(hour),
            95 => self.now_us += 20 * day,
            _ => self.now_us -= self.below(20_000_000),
        }
        self.server.clock().freeze_us(self.now_us);
    }

    /// What other programs, operators and evictions do.
    fn interfere(&mut self) {
        let key = self.below(KEYS.len() as u64) as usize;
        let (name, mine) = (KEYS[key], self.owners[0].clone());
        let ttl_ms = self.below(3_000) + 1;
        let expires_ms = Some(self.now().ms + ttl_ms);
        let text = |text: &str, expires_ms| Some(Entry { value: Data::Text(text.to_owned()), expires_ms });
        match self.below(20) {
            0 => self.plant(key, "somebody else", text("somebody else", expires_ms), Some(ttl_ms)),
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
                let fields: &[&str] =
                    if self.below(2) == 0 { &["a", "1"] } else { &["#fence", "1", "a", "1"] };
                let value = if fields.len() == 2 {
                    Data::Text("(hash)".into())
                } else {
                    let pairs = fields.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned()));
                    Data::Hash(pairs.collect())
                };
                self.eye.command(&["DEL", name]).expect("a reply");
                self.eye.command(&[&["HSET", name], fields].concat()).expect("a reply");
                self.eye.command(&["PEXPIRE", name, &ttl_ms.to_string()]).expect("a reply");
                self.states[key].lock = Some(Entry { value, expires_ms });
            }
            8 | 9 => {
                self.eye.command(&["DEL", name]).expect("a reply");
                self.states[key].lock = None;
            }
            10 => {
                self.eye.command(&["DEL", &side("tenure:fence:", name)]).expect("a reply");
                self.states[key].fence = None;
            }
            _ => {}
        }
    }

    fn plant(&mut self, key: usize, value: &str, entry: Option<Entry<Data>>, ttl_ms: Option<u64>) {
        let mut command = vec!["SET".to_owned(), KEYS[key].to_owned(), value.to_owned()];
        command.extend(ttl_ms.into_iter().flat_map(|ttl_ms| ["PX".to_owned(), ttl_ms.to_string()]));
        self.eye.command(&command).expect("a reply");
        self.states[key].lock = entry;
    }

    fn verb(&mut self) -> Verb {
        let ttl_ms = 1 + self.below(4_000);
        let fence = match self.below(4) {
            0 => Fence::Ballot(match self.below(8) {
                0 => self.below(1_000),
                1 => self.now_us + 40_000_000_000_000,
                2 => self.now_us + self.below(31_000_000_000_000),
                _ => self.now_us - 12_000_000 + self.below(13_000_000),
            }),
            _ => Fence::Assign,
        };
        match self.below(10) {
            0..5 => Verb::Acquire { ttl_ms, hold: 1, fence, wait_ms: None, bind: Bind::Process },
            5 | 6 => Verb::Renew { ttl_ms, hold: 1, bind: None, weight: None },
            7 | 8 => Verb::Release { hold: 1, fence, whose: Whose::Mine },
            _ if self.below(4) == 0 => Verb::Release { hold: 1, fence, whose: Whose::Anyone },
            _ => Verb::Inspect,
        }
    }

    /// Asks both machines the same; how many questions that were.
    fn batch(&mut self) -> usize {
        let count = 1 + self.below(BATCH);
        let ops: Vec<_> = (0..count)
            .map(|_| {
                let (key, owner) = (self.below(KEYS.len() as u64) as usize, self.below(4) as usize);
                let verb = self.verb();
                (key, self.op(key, owner, verb))
            })
            .collect();
        let store = Arc::new(self.store.clone());
        let replies = block_on(join_all(ops.iter().map(|(_, op)| store.call(op.clone(), WITHIN))));
        let now = self.now();
        for ((key, op), reply) in ops.iter().zip(replies) {
            let before = self.states[*key].clone();
            let (answer, wake) = protocol::apply(&mut self.states[*key], now, op);
            let reply = reply.expect("an answer");
            assert_eq!((&reply.owner, reply.request), (&op.owner, op.request));
            assert_eq!(reply.answer, answer, "{op:?} at {now:?} on {before:?}");
            let kind = format!("{answer:?}");
            self.seen.insert(kind.split([' ', '(']).next().unwrap_or_default().to_owned());
            if let Some(Wake::Free { by }) = wake {
                let message = self.ear.receive().expect("a message");
                let [_, channel, said] = message.items() else { panic!("not a message: {message:?}") };
                assert_eq!(channel.text(), side("tenure:wake:0:", KEYS[*key]));
                let Value::Bytes(said) = said else { panic!("not a message: {message:?}") };
                assert_eq!(ours(&String::from_utf8_lossy(said)).map(|(owner, _)| owner), by, "{op:?}");
            }
        }
        ops.len()
    }

    /// What is left at the keys is what the machine in Rust has, to the millisecond.
    fn compare(&mut self) {
        for key in KEYS {
            let side = side("tenure:fence:", key);
            for command in [["TYPE", key], ["GET", key], ["PTTL", key], ["GET", &side], ["PTTL", &side]] {
                self.eye.send(&command).expect("a connection");
            }
        }
        let now = self.now();
        for (key, state) in KEYS.iter().zip(&mut self.states) {
            // The server deletes what has lapsed when it is looked at, so a clock that steps back does not revive it.
            state.lock.take_if(|lock| lock.expires_ms.is_some_and(|end| end < now.ms));
            state.fence.take_if(|fence| fence.expires_ms.is_some_and(|end| end < now.ms));
            let [kind, value, left, fence, fence_left] =
                [(); 5].map(|()| self.eye.receive().expect("a reply"));
            let lock = state.lock.as_ref();
            match lock.map(|lock| &lock.value) {
                None => assert_eq!(kind.text(), "none", "{key}: {value:?}"),
                Some(Data::Text(text)) if kind.text() == "string" => assert_eq!(value.text(), text, "{key}"),
                Some(_) => assert_eq!(kind.text(), "hash", "{key}"),
            }
            assert_eq!(left.int(), lock.map_or(-2, |lock| left_ms(lock.expires_ms, now)), "{key}");
            let counter =
                state.fence.as_ref().filter(|fence| fence.expires_ms.is_none_or(|end| end >= now.ms));
            assert_eq!(fence_left.int(), counter.map_or(-2, |fence| left_ms(fence.expires_ms, now)), "{key}");
            if let Some(counter) = counter {
                assert_eq!(fence.text(), counter.value.to_string(), "{key}");
                assert!(
                    fence_left.int() > 0 && fence_left.int() <= lease::BALLOT_MS as i64 + 100_000,
                    "{key}"
                );
            }
        }
    }
}

fn left_ms(expires_ms: Option<u64>, now: Now) -> i64 {
    expires_ms.map_or(-1, |end| (end - now.ms) as i64)
}

/// The rule of docs/protocol.md, for the keys above.
fn side(prefix: &str, key: &str) -> String {
    match key {
        "{tag}ged" => format!("{prefix}={key}"),
        "a}b" | "{}" => format!("{prefix}~{key}"),
        _ => format!("{prefix}{{{key}}}"),
    }
}
