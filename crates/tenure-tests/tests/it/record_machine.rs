//! Records beside locks: the machines in Lua and Rust answer the same, and each store keeps what a holder
//! wrote.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure::internals::Driver;
use tenure::internals::protocol::record::{self, Put, Record, RecordAnswer, RecordOp, RecordVerb, Then};
use tenure::internals::protocol::{
    self, ExpiringValue, Fence, Liveness, LockSpec, Now, Op, QueueSpec, ReleaseScope, State, Verb,
};
use tenure::internals::store::StoreExt;
use tenure::internals::store::redis::Redis;
use tenure::{LockName, Owner, block_on};
use tenure_testkit::servers::Server;
use tenure_testkit::sim::chooser::Rng;

const OPERATIONS: u64 = 4_000;
const WITHIN: Duration = Duration::from_secs(10);

/// A name of each form that side keys distinguish, with the spec of its lock.
const KEYS: [(&str, LockSpec); 4] = [
    ("plain", LockSpec::Mutex),
    ("{tag}ged", LockSpec::Mutex),
    ("a}b", LockSpec::Queue(QueueSpec::FAIR)),
    ("{}", LockSpec::Queue(QueueSpec::FAIR)),
];

#[test]
#[expect(clippy::too_many_lines, reason = "a case for each request")]
fn the_record_machine_in_lua_answers_as_the_one_in_rust() {
    let server = Server::with_clock();
    let mut now_us = 1_800_000_000_000_000;
    server.clock().freeze_us(now_us);
    let store =
        Redis::open(&server.url(), Driver::start().expect("a thread")).expect("a store").scripts_only();
    let mut eye = server.client().expect("a connection");
    let mut random = Rng::new(5);
    let owners: Vec<_> = (0..3).map(|_| Owner::new("twin").expect("an owner")).collect();
    let names = KEYS.map(|(name, _)| record::lock_name("kind", &LockName::new(name).expect("a name")));
    let mut kept: [(State, Option<ExpiringValue<Record>>); 4] = Default::default();
    let (mut seen, mut counter) = (BTreeSet::new(), 0);
    for request in 0..OPERATIONS {
        now_us += [0, 900, 40_000, 700_000, 3_000_000][random.below(5) as usize];
        server.clock().freeze_us(now_us);
        let now = Now { ms: now_us / 1_000, unix_us: now_us };
        let key = random.below(4) as usize;
        let (lock, spec) = (names[key].clone(), KEYS[key].1);
        let owner = owners[random.below(3) as usize].clone();
        let (state, record) = &mut kept[key];
        // The server deletes expired keys when they are read.
        state.lock.take_if(|lock| lock.is_over(now));
        let verb = match random.below(10) {
            0..3 => {
                let wait_ms = matches!(spec, LockSpec::Queue(_)).then_some(1_000);
                let ttl_ms = 1 + random.below(5_000);
                let verb = Verb::Acquire {
                    ttl_ms,
                    hold: 1,
                    fence: Fence::Assign,
                    wait_ms,
                    listens: None,
                    bind: Liveness::Process,
                };
                Err(verb)
            }
            3 => Err(Verb::Release { hold: 1, fence: Fence::Assign, whose: ReleaseScope::Own }),
            4 => Ok(RecordVerb::Void),
            5 => Ok(RecordVerb::Read),
            _ => {
                let from = now_us.saturating_add_signed(random.below(3) as i64 - 1);
                let window = (random.below(2) == 0).then(|| from..from + random.below(3));
                let then = match random.below(4) {
                    0 if spec == LockSpec::Mutex => Then::Release,
                    1 => Then::Tell,
                    _ => Then::Nothing,
                };
                let value = format!("1 x\n{request} \0\u{e4}\r\n").into_bytes().into();
                Ok(RecordVerb::Put(Put {
                    owner: owner.clone(),
                    window,
                    keep_ms: 1 + random.below(9_000),
                    then,
                    value,
                }))
            }
        };
        match verb {
            Err(verb) => {
                let op = Op { name: lock.clone(), spec, owner, request, verb };
                let (answer, _) = protocol::apply(state, &mut counter, now, &op);
                assert_eq!(block_on(store.request(op, WITHIN)).expect("an answer"), answer);
            }
            Ok(verb) => {
                let op = RecordOp { lock: lock.clone(), granted: None, verb };
                let (answer, _) = record::apply(state, record, now, &op);
                let said = block_on(store.record(op.clone(), WITHIN)).expect("a reply");
                seen.insert(format!("{answer:?}").split([' ', '(']).next().unwrap_or_default().to_owned());
                match (&said, &answer) {
                    // A reader extrapolates the clock, while this server's clock stands still.
                    (RecordAnswer::Read { record, .. }, RecordAnswer::Read { record: expected, .. }) => {
                        assert_eq!(record, expected, "{op:?}");
                    }
                    _ => assert_eq!(said, answer, "{op:?} at {now:?} on {state:?}"),
                }
            }
        }
        record.take_if(|record| record.is_over(now));
        let left = eye.command(&["PTTL", &record::key("", lock.as_str()).concat()]).expect("a reply").int();
        let expected = record.as_ref().and_then(|record| record.expires_ms);
        assert_eq!(left, expected.map_or(-2, |end| (end - now.ms) as i64));
        let exists = eye.command(&["EXISTS", lock.as_str()]).expect("a reply").int();
        assert_eq!(exists == 1, state.lock.is_some(), "{lock:?} {state:?}");
    }
    for answer in ["NotHeld", "OutsideWindow", "Read", "Stored", "Voided"] {
        assert!(seen.contains(answer), "{answer} was never seen, only {seen:?}");
    }
}
