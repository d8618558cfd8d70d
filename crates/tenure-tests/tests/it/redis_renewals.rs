//! Renewals of many locks on real servers: the number of requests, and the outcome for each lock if not all
//! can be renewed.

use std::time::Duration;

use futures_util::future::try_join_all;
use tenure::internals::Driver;
use tenure::internals::protocol::{Answer, Fence, Liveness, LockSpec, Op, QueueSpec, Verb};
use tenure::internals::store::redis::Redis;
use tenure::internals::store::{Failure, StoreExt};
use tenure::{Guard, LockName, Locks, Owner, block_on};
use tenure_testkit::servers::{Cluster, Server, eventually};

/// Tolerance for a busy machine.
const LIMIT: Duration = Duration::from_secs(30);
const WITHIN: Duration = Duration::from_secs(10);

/// Renews every two seconds, with timeouts for a busy machine.
fn open(url: &str) -> Locks {
    let locks = Locks::open(url).expect("a store");
    locks.with(|options| options.ttl(Duration::from_secs(6)).op_timeout(WITHIN)).expect("options")
}

fn hold(url: &str, names: impl Iterator<Item = String>) -> (Locks, Vec<Guard>) {
    let locks = open(url);
    let mutexes: Vec<_> = names.map(|name| locks.mutex(name).expect("a name")).collect();
    let guards = block_on(try_join_all(mutexes.iter().map(|mutex| mutex.lock()))).expect("free locks");
    (locks, guards)
}

fn calls(servers: &[Server], command: &str) -> u64 {
    servers.iter().filter_map(|server| server.info_commandstats().get(command).copied()).sum()
}

/// Holds locks of each kind with a queue, alternately.
fn hold_queues(url: &str, names: impl Iterator<Item = String>) -> (Locks, Vec<Guard>) {
    let locks = open(url);
    let taken = names.enumerate().map(|(number, name)| {
        let locks = locks.clone();
        async move {
            match number % 3 {
                0 => locks.fair_mutex(name)?.lock().await,
                1 => locks.rwlock(name)?.read().await.map(Guard::from),
                _ => locks.semaphore(name, 3)?.acquire_many(2).await,
            }
        }
    });
    let guards = block_on(try_join_all(taken)).expect("free locks");
    (locks, guards)
}

/// On a busy machine some are late, each by itself. Their next ones are batched again.
fn renewed_together(servers: &[Server], locks: &Locks, guards: &[Guard], at_least: u64) {
    let rounds: Vec<_> = (0..5)
        .map(|_| renewals_and_scripts(servers, locks, guards))
        .take_while(|(renewals, scripts)| *renewals < at_least * scripts)
        .collect();
    assert!(rounds.len() < 5, "{rounds:?}");
}

fn renewals_and_scripts(servers: &[Server], locks: &Locks, guards: &[Guard]) -> (u64, u64) {
    servers.iter().for_each(|server| assert_eq!(server.command(&["CONFIG", "RESETSTAT"]), "OK"));
    let before = locks.metrics().total().renewals;
    let count = guards.len() as u64;
    eventually("two renewals of each", LIMIT, || locks.metrics().total().renewals - before >= 2 * count);
    let (scripts, renewals) =
        (calls(servers, "evalsha"), calls(servers, "pexpire") + calls(servers, "pexpireat"));
    assert!(guards.iter().all(Guard::is_held));
    (renewals, scripts)
}

#[test]
fn the_renewals_of_a_thousand_locks_leave_in_full_requests() {
    let server = Server::start();
    let (locks, guards) = hold(&server.url(), (0..1_000).map(|number| format!("hold:{number}")));
    renewed_together(std::slice::from_ref(&server), &locks, &guards, 50);
}

#[test]
fn so_do_those_of_locks_with_queues() {
    let server = Server::start();
    let (locks, guards) = hold_queues(&server.url(), (0..900).map(|number| format!("hold:{number}")));
    renewed_together(std::slice::from_ref(&server), &locks, &guards, 10);
    // The deleted one is distinguished from the others.
    server.command(&["DEL", "hold:450"]);
    eventually("it is lost", LIMIT, || !guards[450].is_held());
    assert_eq!(guards.iter().filter(|guard| guard.is_held()).count(), 899);
}

#[test]
fn so_do_those_of_semaphores_whose_permits_were_set() {
    let server = Server::start();
    let locks = open(&server.url());
    let taken = (0..300).map(|number| {
        let locks = locks.clone();
        async move {
            let semaphore = locks.semaphore(format!("hold:{number}"), 3)?;
            let guard = semaphore.acquire().await?;
            semaphore.set_permits(5).await.map(|()| guard)
        }
    });
    let guards = block_on(try_join_all(taken)).expect("free locks");
    renewed_together(std::slice::from_ref(&server), &locks, &guards, 5);
}

#[test]
fn on_a_cluster_the_renewals_of_one_slots_queues_leave_together() {
    let cluster = Cluster::without_replicas();
    let one_slot = (0..150).map(|number| format!("{{shop}}:{number}"));
    let (locks, guards) = hold_queues(&cluster.url(), one_slot);
    renewed_together(cluster.nodes(), &locks, &guards, 4);
}

#[test]
fn on_a_cluster_the_renewals_of_one_slot_leave_together() {
    let cluster = Cluster::without_replicas();
    let one_slot = (0..150).map(|number| format!("{{shop}}:{number}"));
    let (locks, guards) =
        hold(&cluster.url(), one_slot.chain((0..5).map(|number| format!("other:{number}"))));
    renewed_together(cluster.nodes(), &locks, &guards, 4);
    // The slot migrates while they are held.
    let (slot, from) = (cluster.slot("{shop}"), cluster.owner_of("{shop}"));
    cluster.move_slot(slot, from, (from + 1) % 3);
    // One script finds that out, and then each of its locks is renewed once by itself.
    renewed_together(cluster.nodes(), &locks, &guards, 2);
}

/// A store used directly, and its requests.
struct Direct {
    store: Redis,
    owners: Vec<Owner>,
    spec: LockSpec,
}

impl Direct {
    fn new(url: &str, locks: usize) -> Self {
        Self::of(LockSpec::Mutex, url, locks)
    }

    fn of(spec: LockSpec, url: &str, locks: usize) -> Self {
        let store = Redis::open(url, Driver::start().expect("a thread")).expect("a store");
        Self { store, owners: (0..locks).map(|_| Owner::new("x").expect("an owner")).collect(), spec }
    }

    fn op(&self, number: usize, verb: Verb) -> Op {
        let name = LockName::new(&format!("hold:{number}")).expect("a name");
        let owner = self.owners[number].clone();
        Op { name, spec: self.spec, owner, request: 100 + number as u64, verb }
    }

    fn acquire_all(&self) {
        let (fence, bind) = (Fence::Assign, Liveness::Process);
        let verb = Verb::Acquire { ttl_ms: 60_000, hold: 1, fence, wait_ms: None, listens: None, bind };
        for number in 0..self.owners.len() {
            let answer = block_on(self.store.request(self.op(number, verb.clone()), WITHIN));
            assert!(matches!(answer, Ok(Answer::Held { .. })), "{answer:?}");
        }
    }

    fn renew_all(&self, ttl_ms: u64) -> Vec<Result<Answer, Failure>> {
        let verb = Verb::Renew { ttl_ms, hold: 1, bind: None, weight: None };
        let ops = (0..self.owners.len()).map(|number| self.op(number, verb.clone()));
        block_on(self.store.renew(ops.collect(), WITHIN))
    }
}

#[test]
fn there_is_an_answer_for_each_lock_and_no_lease_is_shortened() {
    let server = Server::start();
    let direct = Direct::new(&server.url(), 6);
    direct.acquire_all();
    server.command(&["DEL", "hold:1"]);
    server.command(&["SET", "hold:2", "foreign"]);
    server.command(&["RPUSH", "list", "x"]);
    server.command(&["RENAME", "list", "hold:3"]);
    server.command(&["PERSIST", "hold:4"]);
    let left = |number: usize| server.command(&["PTTL", &format!("hold:{number}")]).int();
    for ttl_ms in [20_000, 120_000] {
        let answers = direct.renew_all(ttl_ms);
        let held = |answer: &Result<Answer, Failure>| matches!(answer, Ok(Answer::Held { .. }));
        let is_held: Vec<_> = answers.iter().map(held).collect();
        assert_eq!(is_held, [true, false, false, false, true, true], "{answers:?}");
        assert!(matches!(answers[1], Ok(Answer::Free)), "{answers:?}");
        for (number, holder) in [(2, "foreign"), (3, "(list)")] {
            let says = |answer: &_| matches!(answer, Ok(Answer::Busy { holder: held, .. }) if held == holder);
            assert!(says(&answers[number]), "{answers:?}");
        }
        let expected = ttl_ms.max(60_000) as i64;
        for number in [0, 5] {
            assert!((expected - 30_000..=expected).contains(&left(number)), "{}", left(number));
        }
    }
    // A key without an expiry gets the first one requested, as by a single renewal.
    assert!((90_000..=120_000).contains(&left(4)), "{}", left(4));
    assert_eq!((left(1), left(2), left(3)), (-2, -1, -1));
}

#[test]
fn there_is_an_answer_for_each_hold_of_a_queue() {
    let server = Server::start();
    let direct = Direct::of(LockSpec::Queue(QueueSpec::FAIR), &server.url(), 8);
    direct.acquire_all();
    server.command(&["DEL", "hold:1"]);
    server.command(&["SET", "hold:2", "foreign"]);
    // Another client makes them sorted sets; the rest stay strings.
    let (fence, bind) = (Fence::Assign, Liveness::Process);
    let verb = Verb::Acquire { ttl_ms: 60_000, hold: 1, fence, wait_ms: None, listens: None, bind };
    for number in [0, 5, 6] {
        let owner = Owner::new("other").expect("an owner");
        let asked = Op { owner, ..direct.op(number, verb.clone()) };
        assert!(matches!(block_on(direct.store.request(asked, WITHIN)), Ok(Answer::Busy { .. })));
    }
    // Its ticket is gone, and another's is there.
    server.command(&["RENAME", "hold:3", "hold:1"]);
    // A semaphore with another number of permits.
    server.command(&["DEL", "hold:4"]);
    let other = LockSpec::Queue(QueueSpec { kind: tenure::Kind::Semaphore, capacity: 5, weight: 1 });
    let op = Op { spec: other, ..direct.op(4, verb) };
    assert!(matches!(block_on(direct.store.request(op, WITHIN)), Ok(Answer::Held { .. })));
    // A waiter: its ticket is above the mark.
    server.command(&["ZADD", "hold:5", "0", "#1:fair mutex:1"]);
    // An expired one.
    let ends = |number: usize| format!("!{}", direct.owners[number]);
    server.command(&["ZADD", "hold:6", "20000000000", &ends(6)]);
    let end = |number: usize| {
        let score = server.command(&["ZSCORE", &format!("hold:{number}"), &ends(number)]);
        score.text().parse::<f64>().expect("a number") / 1_000.0
    };
    for ttl_ms in [20_000, 120_000] {
        let before = end(0);
        let answers = direct.renew_all(ttl_ms);
        for held in [0, 7] {
            assert!(matches!(answers[held], Ok(Answer::Held { .. })), "{held}: {answers:?}");
            let left = server.command(&["PTTL", &format!("hold:{held}")]).int();
            let asked = ttl_ms.max(60_000) as i64;
            assert!((asked - 30_000..=asked).contains(&left), "{held}: {left}");
        }
        for gone in [1, 3, 6] {
            assert!(matches!(answers[gone], Ok(Answer::Free)), "{gone}: {answers:?}");
        }
        assert!(matches!(&answers[2], Ok(Answer::Busy { holder, .. }) if holder == "foreign"), "{answers:?}");
        assert!(matches!(answers[4], Ok(Answer::Mismatch { .. })), "{answers:?}");
        assert!(!matches!(answers[5], Ok(Answer::Held { .. }) | Err(_)), "{answers:?}");
        let longer = end(0) - before;
        match ttl_ms {
            20_000 => assert_eq!(longer, 0.0, "a lease was shortened or prolonged"),
            _ => assert!((50.0..=70.0).contains(&longer), "{longer}"),
        }
    }
}

/// The request that reports it reaches its limit, because many places have expired.
#[test]
fn a_hold_of_many_that_is_gone_is_lost_also_behind_a_dead_crowd() {
    let server = Server::start();
    let locks = Locks::open(&server.url()).expect("a store");
    let locks = locks.with(|options| options.ttl(Duration::from_secs(3))).expect("options");
    let [gone, other] = ["gone", "other"]
        .map(|name| block_on(locks.fair_mutex(name).expect("a name").lock()).expect("a free lock"));
    let renewals = || locks.metrics().total().renewals;
    let before = renewals();
    eventually("they are renewed", LIMIT, || renewals() >= before + 2);
    let before = renewals();
    // Another client makes it a sorted set.
    let theirs = Locks::open(&server.url()).expect("a store");
    assert!(block_on(theirs.fair_mutex("gone").expect("a name").try_lock()).expect("an answer").is_none());
    // As left by a failover to a replica that lacks the holder's grant.
    let (holder, mark) = (gone.owner().to_string(), gone.fence());
    let mut crowd = vec!["ZADD".to_owned(), "gone".to_owned(), "0".to_owned(), "#used".to_owned()];
    for number in 1..=1_000 {
        let place = [(mark + number).to_string(), format!("{number}")];
        crowd.extend(place.into_iter().chain(["10000000000".to_owned(), format!("!{number}")]));
    }
    assert_eq!(server.command(&crowd).int(), 2_000);
    assert_eq!(server.command(&["ZREM", "gone", &holder, &format!("!{holder}")]).int(), 2);
    eventually("it is lost", LIMIT, || !gone.is_held());
    // Each renewal of both counts 2. One may have been sent before.
    assert!(renewals() - before <= 4, "it was renewed {} times since", renewals() - before);
    block_on(other.verify()).expect("still held");
}

/// What a server without free memory still allows.
#[test]
fn a_full_server_renews_holds_of_queues() {
    let server = Server::start();
    let direct = Direct::of(LockSpec::Queue(QueueSpec::FAIR), &server.url(), 3);
    direct.acquire_all();
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let answers = direct.renew_all(120_000);
    assert!(answers.iter().all(|answer| matches!(answer, Ok(Answer::Held { .. }))), "{answers:?}");
    assert!(server.command(&["PTTL", "hold:2"]).int() > 60_000);
}

#[test]
fn where_a_user_may_not_touch_one_of_many_the_others_are_renewed() {
    let server = Server::start();
    let direct = Direct::new(&server.url(), 4);
    direct.acquire_all();
    assert_eq!(
        server.command(&[
            "ACL",
            "SETUSER",
            "default",
            "resetkeys",
            "~hold:0",
            "~hold:1",
            "~hold:3",
            "~tenure:*"
        ]),
        "OK"
    );
    let answers = direct.renew_all(90_000);
    for (number, answer) in answers.iter().enumerate() {
        let is_as_it_should = match number {
            2 => matches!(answer, Err(Failure::Refused(_))),
            _ => matches!(answer, Ok(Answer::Held { .. })),
        };
        assert!(is_as_it_should, "{number}: {answer:?}");
    }
}
