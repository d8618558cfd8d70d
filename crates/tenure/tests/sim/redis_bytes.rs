//! The Redis store over a network that cuts, splits, merges and delays at every byte, in virtual time.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::internals::Runtime;
use tenure::internals::protocol::{Answer, LockSpec, Op, Verb};
use tenure::internals::store::redis::{Redis, Target};
use tenure::internals::store::{Failure, StoreExt};
use tenure::{Guard, HoldEnd, LockName, Locks, Options, Owner};
use tenure_testkit::asker::{acquire, release};
use tenure_testkit::sim::chooser::Chooser;
use tenure_testkit::sim::clock::{Clock, MS, SECOND, TrueTime};
use tenure_testkit::sim::executor::{Process, Sim, Stop};
use tenure_testkit::sim_transport::{Cut, Direction, SimTransport, Then};

const WITHIN: Duration = Duration::from_millis(300);
/// The requested ttl in ms, and how much longer the counter lives.
const TTL_MS: i64 = 30_000;

/// One life of a client: it acquires a lock, renews and releases it, and then another owner does.
struct Incarnation {
    sim: Sim,
    network: SimTransport,
    process: Arc<Process>,
    calls: Arc<Mutex<Vec<Call>>>,
}

/// The outcome of a request.
struct Call {
    op: Op,
    sent: TrueTime,
    answered: TrueTime,
    said: Result<Answer, Failure>,
}

impl Incarnation {
    fn new(seed: u64, shaken: bool) -> Self {
        let sim = Sim::new(Chooser::seeded(seed));
        let network = SimTransport::new(&sim, shaken).guarded("ann", "secret", 3);
        let process = sim.process(Clock::default(), seed);
        Self { sim, network, process, calls: Arc::default() }
    }

    /// Runs to its end, and lets late bytes arrive.
    fn run(&self) {
        let target = Target::parse("redis://ann:secret@network/3").expect("a URL");
        let runtime = Arc::clone(&self.process) as Arc<dyn Runtime>;
        let store = Redis::over(target, Arc::new(self.network.clone()), Arc::clone(&runtime));
        let asker = Asker { store, sim: self.sim.clone(), runtime, calls: Arc::clone(&self.calls) };
        self.process.spawn(Box::pin(asker.live()));
        let stop = self.sim.run(60 * SECOND, 1_000_000);
        assert!(stop != Stop::Steps, "it turns in circles");
    }

    /// Invariants after each fault of the network.
    fn check(&self) -> Result<(), String> {
        let calls = self.calls.lock().map_err(|_| "it panicked")?;
        let executed = self.network.executed();
        for call in &*calls {
            let (number, within) = (call.op.request, WITHIN.as_nanos() as u64 + 5 * MS);
            if call.answered - call.sent > within {
                return Err(format!(
                    "request {number} was answered after {} ms",
                    (call.answered - call.sent) / MS
                ));
            }
            let done: Vec<_> = executed.iter().filter(|done| done.op.request == number).collect();
            match &call.said {
                Ok(answer) => {
                    let true_one =
                        done.first().filter(|done| done.answer == *answer && done.op.owner == call.op.owner);
                    if true_one.is_none_or(|done| done.at < call.sent || done.at > call.answered) {
                        return Err(format!(
                            "request {number} was told {answer:?}, and the server said {done:?}"
                        ));
                    }
                }
                Err(Failure::NotSent(_)) if !done.is_empty() => {
                    return Err(format!("request {number} was never sent, and carried out: {done:?}"));
                }
                Err(_) => {}
            }
            if done.len() > 1 {
                return Err(format!("request {number} was carried out twice: {done:?}"));
            }
            if let Some(done) = done.first()
                && calls
                    .iter()
                    .any(|later| later.op.request > number && later.said.is_ok() && later.answered < done.at)
            {
                return Err(format!("request {number} was carried out after a later one was answered"));
            }
        }
        self.check_what_was_kept(&calls)?;
        match self.network.holder("x") {
            Some(holder) => Err(format!("{holder} holds a lock that no client has")),
            None => Ok(()),
        }
    }

    /// After each request and each cut: every lock has an expiry, and the holder is the last requester. A
    /// client whose releases were all answered holds nothing.
    fn check_what_was_kept(&self, calls: &[Call]) -> Result<(), String> {
        for look in self.network.looks() {
            let lasts = |(key, left): &&(String, i64)| match &**key {
                "tenure:fence" => *left != -1,
                _ => !(0..=TTL_MS).contains(left),
            };
            if let Some((key, left)) = look.keys.iter().find(lasts) {
                return Err(format!("{key} has {left} ms left at {}", look.at));
            }
            if look.keys.iter().any(|(key, _)| key == "x") != look.holders.contains_key("x") {
                return Err(format!("a key that is not the machine's, or the other way round: {look:?}"));
            }
            let Some(holder) = look.holders.get("x") else { continue };
            let asked = calls.iter().rfind(|call| call.sent <= look.at);
            if !asked.is_some_and(|call| holder.starts_with(call.op.owner.as_str())) {
                return Err(format!("{holder} holds at {}, whose requests are over", look.at));
            }
        }
        Ok(())
    }
}

struct Asker {
    store: Redis,
    sim: Sim,
    runtime: Arc<dyn Runtime>,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Asker {
    async fn live(self) {
        for _ in 0..2 {
            let owner = Owner::new("life").expect("an owner");
            if let Ok(Answer::Held { .. }) = self.ask(&owner, acquire()).await {
                let renewed = self
                    .insist(&owner, Verb::Renew { ttl_ms: 30_000, hold: 1, bind: None, weight: None })
                    .await;
                assert!(matches!(renewed, Answer::Held { .. }), "a lease was lost: {renewed:?}");
            }
            let released = self.insist(&owner, release()).await;
            assert!(matches!(released, Answer::Released { .. } | Answer::Free), "{released:?}");
        }
        // The store stays open, with its background work.
        self.runtime.sleep_until(self.runtime.now() + Duration::from_secs(20)).await;
    }

    async fn ask(&self, owner: &Owner, verb: Verb) -> Result<Answer, Failure> {
        let request = self.calls.lock().map_or(0, |calls| calls.len() as u64);
        let name = LockName::new("x").expect("a name");
        let op = Op { name, spec: LockSpec::Mutex, owner: owner.clone(), request, verb };
        let sent = self.sim.now();
        let said = self.store.request(op.clone(), WITHIN).await;
        let call = Call { op, sent, answered: self.sim.now(), said: said.clone() };
        self.calls.lock().expect("no panic").push(call);
        said
    }

    /// Retries until there is an answer, like the engine.
    async fn insist(&self, owner: &Owner, verb: Verb) -> Answer {
        for _ in 0..20 {
            if let Ok(answer) = self.ask(owner, verb.clone()).await {
                return answer;
            }
            self.runtime.sleep_until(self.runtime.now() + Duration::from_millis(20)).await;
        }
        panic!("there is no answer, however often it is asked");
    }
}

/// Bytes that the first connection carries in each direction without a fault.
fn whole() -> [u64; 2] {
    let life = Incarnation::new(0, false);
    life.run();
    assert_eq!(life.check(), Ok(()));
    assert_eq!(life.network.connections(), 1);
    life.network.passed(0)
}

#[test]
fn a_connection_may_be_cut_after_any_byte() {
    let mut lives = 0;
    for (direction, bytes) in [Direction::ToServer, Direction::ToClient].into_iter().zip(whole()) {
        for after in 0..=bytes {
            for then in [Then::Reset, Then::Silence, Then::Late(250 * MS), Then::Late(2 * SECOND)] {
                let life = Incarnation::new(after, false);
                // For one byte of a request in four, because this takes longer than everything else, and the
                // server does not notice a lost reply.
                if (direction, then) == (Direction::ToServer, Then::Reset) && after % 4 == 0 {
                    life.network.run_scripts();
                }
                life.network.cut(0, Cut { direction, after, then });
                life.run();
                assert_eq!(life.check(), Ok(()), "{direction:?} cut after {after} bytes, then {then:?}");
                lives += 1;
            }
        }
    }
    println!("{lives} lives, each cut at another byte");
}

#[test]
fn bytes_may_be_split_merged_and_delayed_while_several_connections_are_cut() {
    let whole = whole();
    for seed in 0..3_000 {
        let life = Incarnation::new(seed, true);
        for connection in 0..3 {
            if life.sim.chance(800) {
                let direction = [Direction::ToServer, Direction::ToClient][life.sim.choose(2) as usize];
                let after = u64::from(life.sim.choose(whole[direction as usize] as u32 + 1));
                let then = [Then::Reset, Then::Silence, Then::Late(250 * MS)][life.sim.choose(3) as usize];
                life.network.cut(connection, Cut { direction, after, then });
            }
        }
        life.run();
        assert_eq!(life.check(), Ok(()), "seed {seed}");
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for seed in 0..50 {
        let hash = || {
            let life = Incarnation::new(seed, true);
            life.network
                .cut(0, Cut { direction: Direction::ToServer, after: 20 * seed, then: Then::Late(250 * MS) });
            life.run();
            (life.sim.hash(), life.network.passed(0), life.network.executed().len())
        };
        assert_eq!(hash(), hash(), "seed {seed}");
    }
}

/// The check detects it: where old connections cannot be closed, a lost request may be executed late.
#[test]
fn without_the_end_of_the_old_connection_a_late_acquire_leaves_a_lock_for_nobody() {
    let found = (0..whole()[0]).any(|after| {
        let life = Incarnation::new(after, false);
        life.network.let_nobody_kill();
        life.network.cut(0, Cut { direction: Direction::ToServer, after, then: Then::Late(2 * SECOND) });
        life.run();
        life.check().is_err()
    });
    assert!(found);
}

#[cfg(tenure_planted)]
#[test]
fn bugs_of_the_connection_are_found() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use tenure::internals::planted::{Bug, plant};
    for bug in [Bug::EndTakenForUnsent, Bug::SilenceUnnoticed] {
        let then = if bug == Bug::SilenceUnnoticed { Then::Silence } else { Then::Reset };
        let holds = |after| {
            let life = Incarnation::new(after, false);
            life.network.cut(0, Cut { direction: Direction::ToClient, after, then });
            // A client that gets no answer at all gives up.
            catch_unwind(AssertUnwindSafe(|| life.run())).is_ok() && life.check().is_ok()
        };
        let bytes = whole()[Direction::ToClient as usize];
        plant(Some(bug));
        let found = (0..bytes).any(|after| !holds(after));
        plant(None);
        assert!(found, "{bug:?}");
    }
}

/// Sends these bytes instead of the reply to the first acquire; the first life must then end as usual.
fn spoiled(with: impl Fn(Vec<u8>) -> Vec<u8> + Send + 'static) -> Incarnation {
    let life = Incarnation::new(1, false);
    // Reply 0 is NOSCRIPT.
    life.network.spoil(1, with);
    life.run();
    life
}

#[test]
fn a_reply_to_another_request_or_malformed_ends_the_connection_and_is_not_used() {
    type Spoil = fn(Vec<u8>) -> Vec<u8>;
    let cases: [(&str, Spoil); 9] = [
        ("another owner", |reply| with(&reply, "life@", "lift@")),
        ("another request", |reply| with(&reply, " 0 held", " 7 held")),
        ("no answer", |reply| with(&reply, "held", "hold")),
        ("no list", |_| b"+OK\r\n".to_vec()),
        ("no RESP", |_| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        ("too long", |_| b"$99999999999\r\n".to_vec()),
        ("endless", |_| b"*65536\r\n".repeat(200)),
        ("a message", |reply| [&b">3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n"[..], &reply].concat()),
        ("one reply too many", |reply| [b"+OK\r\n".to_vec(), reply].concat()),
    ];
    for (what, spoil) in cases {
        let life = spoiled(spoil);
        assert_eq!(life.check(), Ok(()), "{what}");
        assert_eq!(life.network.connections(), 2, "{what}");
        let calls = life.calls.lock().expect("no panic");
        assert!(matches!(calls[0].said, Err(Failure::Unknown(_))), "{what}: {:?}", calls[0].said);
    }
}

fn with(reply: &[u8], from: &str, to: &str) -> Vec<u8> {
    let reply = String::from_utf8_lossy(reply);
    assert!(reply.contains(from), "{reply}");
    reply.replacen(from, to, 1).into_bytes()
}

#[test]
fn noise_in_place_of_a_reply_makes_nothing_panic_and_grants_nothing() {
    for seed in 0..5_000_u64 {
        let life = Incarnation::new(seed, true);
        let sim = life.sim.clone();
        life.network.spoil(1 + (seed % 3) as usize, move |mut reply| {
            for _ in 0..=sim.choose(4) {
                let at = sim.choose(reply.len() as u32) as usize;
                match sim.choose(4) {
                    0 => reply[at] = sim.choose(256) as u8,
                    1 => reply[at] = b"$*%>-+:_\r\n0919"[sim.choose(14) as usize],
                    2 => drop(reply.drain(at..)),
                    _ => reply.insert(at, b"$*\r\n9"[sim.choose(5) as usize]),
                }
                if reply.is_empty() {
                    break;
                }
            }
            reply
        });
        life.run();
        // A changed digit of a token goes unnoticed; everything else is detected.
        let calls = life.calls.lock().expect("no panic");
        let executed = life.network.executed();
        for call in calls.iter() {
            if let Ok(Answer::Held { .. }) = call.said {
                let granted = executed.iter().any(|done| {
                    done.op.request == call.op.request && matches!(done.answer, Answer::Held { .. })
                });
                assert!(granted, "seed {seed}: {:?}", call.said);
            }
        }
    }
}

/// The limit may leave the last request no time: the answer before it counts.
#[test]
fn a_wait_of_any_length_in_a_queue_blocked_by_another_program_ends_busy() {
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let sim = Sim::new(Chooser::seeded(1));
    let (network, process) = (SimTransport::new(&sim, false), sim.process(Clock::default(), 1));
    network.answer(move |words| match words {
        [_, _, _, _, _, "acquire", owner, request, ..] => {
            Some(format!("*5\r\n{}{}{}{}:-1\r\n", bulk(owner), bulk(request), bulk("busy"), bulk("(zset)")))
        }
        // The last request, which was not answered.
        [_, _, _, _, "release", owner, request, ..] => {
            Some(format!("*3\r\n{}{}{}", bulk(owner), bulk(request), bulk("free")))
        }
        _ => None,
    });
    let target = Target::parse("redis://network").expect("a URL");
    let runtime = Arc::clone(&process) as Arc<dyn Runtime>;
    let store = Arc::new(Redis::over(target, Arc::new(network), Arc::clone(&runtime)));
    let locks = tenure::internals::locks(store, runtime, Options::new()).expect("options");
    let waits = Arc::new(Mutex::new(0));
    let over = Arc::clone(&waits);
    process.spawn(Box::pin(async move {
        let fair = locks.fair_mutex("x").expect("a name");
        for limit_us in (20_000..600_000).step_by(777) {
            let said = fair.try_lock_for(Duration::from_micros(limit_us)).await;
            assert!(said.expect("it was busy").is_none());
            *over.lock().expect("no panic") += 1;
        }
    }));
    sim.run(1_000 * SECOND, 10_000_000);
    assert_eq!(*waits.lock().expect("no panic"), 747);
    sim.end();
}

/// A server behind a network, and locks on it with their own process.
#[derive(Clone)]
struct Scene {
    network: SimTransport,
    runtime: Arc<dyn Runtime>,
    locks: Locks,
}

/// Timeout of one request, with a lease longer than any wait except for its end.
const REQUEST: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);
/// Minimum time for which a release is retried.
const SILENCE: Duration = Duration::from_secs(60);

/// Runs a scene to its end in virtual time.
fn play<F: Future<Output = ()> + Send + 'static>(act: impl FnOnce(Scene) -> F) {
    let sim = Sim::new(Chooser::seeded(1));
    let (network, process) = (SimTransport::new(&sim, false), sim.process(Clock::default(), 1));
    let runtime = Arc::clone(&process) as Arc<dyn Runtime>;
    let target = Target::parse("redis://network").expect("a URL");
    let store = Arc::new(Redis::over(target, Arc::new(network.clone()), Arc::clone(&runtime)));
    let options = Options::new().ttl(LEASE).op_timeout(REQUEST);
    let locks = tenure::internals::locks(store, Arc::clone(&runtime), options).expect("options");
    let over = Arc::new(AtomicBool::new(false));
    let (act, told) = (act(Scene { network, runtime, locks }), Arc::clone(&over));
    process.spawn(Box::pin(async move {
        act.await;
        told.store(true, Ordering::Relaxed);
    }));
    let stop = sim.run(600 * SECOND, 10_000_000);
    assert!(over.load(Ordering::Relaxed), "not over: {stop:?}");
    sim.end();
}

impl Scene {
    async fn held(&self) -> Guard {
        self.locks.mutex("x").expect("a name").lock().await.expect("a free lock")
    }

    async fn sleep(&self, time: Duration) {
        self.runtime.sleep_until(self.runtime.now() + time).await;
    }

    /// Releases, and learns after the timeout of one request that the outcome is unknown.
    async fn release_that_nobody_answers(&self, guard: Guard) {
        let (started, lost) = (self.runtime.now(), guard.lost());
        let error = guard.release().await.expect_err("no server answers");
        let took = self.runtime.now().since(started);
        assert!(error.is_unknown() && !error.is_lost(), "{error}");
        assert!(took < REQUEST * 11 / 10 && took >= REQUEST / 2, "{took:?}");
        assert!(matches!(lost.await, HoldEnd::Released));
    }
}

#[test]
fn a_release_lost_in_the_network_is_unknown_and_repeated_when_it_is_back() {
    for back in [SimTransport::let_pass, SimTransport::lose] {
        play(move |scene| async move {
            let guard = scene.held().await;
            scene.network.swallow();
            scene.release_that_nobody_answers(guard).await;
            scene.sleep(LEASE / 5).await;
            assert!(scene.network.holder("x").is_some(), "nothing has passed yet");
            back(&scene.network);
            scene.sleep(LEASE / 5).await;
            assert_eq!(scene.network.holder("x"), None, "long before its lease is over");
            scene.locks.flush().await.expect("no release is left");
            scene.held().await.release().await.expect("a release");
        });
    }
}

#[test]
fn an_unanswered_release_is_unknown_and_repeating_it_spares_the_next_holder() {
    play(|scene| async move {
        let guard = scene.held().await;
        let [_, after] = scene.network.passed(0);
        scene.network.cut(0, Cut { direction: Direction::ToClient, after, then: Then::Silence });
        scene.release_that_nobody_answers(guard).await;
        assert_eq!(scene.network.holder("x"), None);
        // The next client holds before the last retry of the release.
        let next = scene.held().await;
        scene.sleep(LEASE / 2).await;
        next.verify().await.expect("it is held");
        next.release().await.expect("a release");
        scene.locks.flush().await.expect("no release is left");
    });
}

#[test]
fn a_release_that_is_never_answered_is_given_up_some_time_after_its_lease() {
    play(|scene| async move {
        let guard = scene.held().await;
        scene.network.swallow();
        scene.release_that_nobody_answers(guard).await;
        let left = scene.locks.flush().await.expect_err("one is left");
        assert!(left.is_unreachable(), "{left}");
        scene.sleep(LEASE).await;
        assert_eq!(scene.network.holder("x"), None, "its lease is over");
        scene.sleep(2 * SILENCE).await;
        scene.locks.flush().await.expect("it was given up");
        // A swallowed request arrives late, and has no effect.
        let executed = scene.network.executed().len();
        scene.network.let_pass();
        scene.sleep(LEASE / 5).await;
        for late in &scene.network.executed()[executed..] {
            assert!(matches!(late.answer, Answer::Free), "{late:?}");
        }
        scene.held().await.release().await.expect("a release");
    });
}

#[test]
fn a_late_grant_to_a_wait_that_ended_is_released_before_flush_returns() {
    for after_ms in [0, 100, 400, 800, 1_100, 1_600] {
        play(move |scene| async move {
            scene.held().await.release().await.expect("a release");
            scene.network.swallow();
            let mutex = scene.locks.mutex("x").expect("a name");
            let error = mutex.try_lock_for(REQUEST / 4).await.expect_err("no server answers");
            assert!(error.is_unreachable(), "{error}");
            scene.sleep(Duration::from_millis(after_ms)).await;
            scene.network.let_pass();
            scene.locks.flush().await.expect("no release is left");
            let executed = scene.network.executed().len();
            assert_eq!(scene.network.holder("x"), None, "after {after_ms} ms");
            scene.sleep(LEASE / 5).await;
            assert_eq!(
                scene.network.executed().len(),
                executed,
                "after {after_ms} ms something came after it"
            );
        });
    }
}

/// A server, or a proxy in front of it, that closes every connection after each reply.
#[test]
fn a_server_that_ends_each_connection_is_dialled_at_most_twice_a_second() {
    // A holder has a connection for requests and one for messages.
    let connections = 2;
    for waits in [false, true] {
        play(move |scene| async move {
            let guard = scene.held().await;
            let locks = scene.locks.clone();
            if waits {
                let waiter = async move { drop(locks.mutex("x").expect("a name").lock().await) };
                scene.runtime.spawn(Box::pin(waiter));
            }
            let (dials, until) = (scene.network.connections(), scene.runtime.now() + DIALLED);
            while scene.runtime.now() < until {
                // Answered or not, the server must get a request as soon as possible.
                let _ = scene.locks.inspect("y").await;
                scene.network.lose();
                scene.sleep(Duration::from_millis(1)).await;
            }
            let dials = scene.network.connections() - dials;
            let most = connections * (2 * DIALLED.as_secs() as usize + FIRST);
            assert!((most / 4..=most).contains(&dials), "{dials} dials, waits: {waits}");
            // After a connection that lasted, the reconnect is immediate.
            scene.sleep(Duration::from_secs(5)).await;
            guard.verify().await.expect("still held");
            for _ in 0..3 {
                scene.network.lose();
                let started = scene.runtime.now();
                let mut answer = scene.locks.inspect("y").await;
                while answer.is_err() {
                    answer = scene.locks.inspect("y").await;
                }
                let took = scene.runtime.now().since(started);
                assert!(took < Duration::from_millis(10), "after {took:?}");
            }
        });
    }
}

/// For how long the server does so, and how many dials come before the backoff has grown to half a second.
const DIALLED: Duration = Duration::from_secs(60);
const FIRST: usize = 12;
