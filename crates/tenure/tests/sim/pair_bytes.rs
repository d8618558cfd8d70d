//! Mutexes and fair mutexes by plain commands, byte by byte: two clients on a network that splits, delays and cuts, and a
//! server that loses its token counter.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::internals::Runtime;
use tenure::internals::protocol::{Answer, Fence, Liveness, LockSpec, Op, QueueSpec, ReleaseScope, Verb};
use tenure::internals::store::redis::{Redis, Target};
use tenure::internals::store::{Failure, StoreExt};
use tenure::{LockName, Owner};
use tenure_testkit::sim::chooser::Chooser;
use tenure_testkit::sim::clock::{Clock, MS, SECOND};
use tenure_testkit::sim::executor::{Process, Sim, Stop};
use tenure_testkit::sim_transport::{Cut, Direction, SimTransport, Then};

use crate::grants::{Grant, check};

const WITHIN: Duration = Duration::from_millis(300);
const TURNS: u32 = 40;

struct Client {
    spec: LockSpec,
    store: Redis,
    sim: Sim,
    process: Arc<Process>,
    grants: Arc<Mutex<Vec<Grant>>>,
}

impl Client {
    async fn ask(&self, owner: &Owner, request: u64, verb: Verb) -> Option<Answer> {
        let name = LockName::new("x").expect("a name");
        let op = Op { name, spec: self.spec, owner: owner.clone(), request, verb };
        self.store.request(op, WITHIN).await.ok()
    }

    async fn live(self) {
        for turn in 0..TURNS {
            let owner = Owner::new("pair").expect("an owner");
            let (fence, bind) = (Fence::Assign, Liveness::Process);
            let verb = Verb::Acquire { ttl_ms: 30_000, hold: 1, fence, wait_ms: None, listens: None, bind };
            let asked = self.sim.now();
            let answer = self.ask(&owner, u64::from(2 * turn), verb).await;
            let answered = self.sim.now();
            self.sleep(u64::from(self.sim.choose(3)) * MS).await;
            if let Some(Answer::Held { fence: token }) = answer {
                let given_back = self.sim.now();
                self.grants.lock().expect("one thread").push(Grant { token, asked, answered, given_back });
            }
            // Unanswered requests are undone too.
            loop {
                let verb = Verb::Release { hold: 1, fence: Fence::Assign, whose: ReleaseScope::Own };
                if self.ask(&owner, u64::from(2 * turn + 1), verb).await.is_some() {
                    break;
                }
            }
            // Sometimes for longer than the counter is trusted.
            let pause = if self.sim.choose(8) == 0 { 1_100 } else { u64::from(self.sim.choose(300)) };
            self.sleep(pause * MS).await;
        }
    }

    async fn sleep(&self, time: u64) {
        self.process.sleep_until(self.process.now() + Duration::from_nanos(time)).await;
    }
}

/// Plays a schedule; returns its grants, and whether plain commands replaced scripts.
fn play(seed: u64) -> (Vec<Grant>, bool) {
    let sim = Sim::new(Chooser::seeded(seed));
    let network = SimTransport::new(&sim, true).direct();
    let network = if seed.is_multiple_of(2) { network } else { network.with_delifeq() };
    let grants = Arc::new(Mutex::new(Vec::new()));
    for number in 0..2 {
        let process = sim.process(Clock::default(), seed + number);
        let target = Target::parse("redis://network").expect("a URL");
        let runtime = Arc::clone(&process) as Arc<dyn Runtime>;
        let store = Redis::over(target, Arc::new(network.clone()), runtime);
        let (sim, grants) = (sim.clone(), Arc::clone(&grants));
        // Independent of whether the server has DELIFEQ.
        let spec = if seed % 4 < 2 { LockSpec::Mutex } else { LockSpec::Queue(QueueSpec::FAIR) };
        let client = Client { spec, store, sim, process: Arc::clone(&process), grants };
        process.spawn(Box::pin(client.live()));
    }
    for connection in 0..6 {
        let direction = [Direction::ToServer, Direction::ToClient][sim.choose(2) as usize];
        let then = [Then::Reset, Then::Silence][sim.choose(2) as usize];
        network.cut(connection, Cut { direction, after: 200 + u64::from(sim.choose(8_000)), then });
    }
    let (counted, pairs) = (network.clone(), Arc::new(Mutex::new(0)));
    let (loses, seen) = (1 + sim.choose(8), Arc::clone(&pairs));
    network.before("INCR", move |server| {
        let mut seen = seen.lock().expect("one thread");
        *seen += 1;
        if *seen == loses {
            server.lose_counter();
        }
    });
    assert!(sim.run(600 * SECOND, 4_000_000) != Stop::Steps, "it turns in circles");
    sim.end();
    assert_eq!(counted.holder("x"), None, "seed {seed}: a lock that no client has");
    let (grants, pairs) = (grants.lock().expect("one thread").clone(), *pairs.lock().expect("one thread"));
    (grants, pairs >= loses)
}

#[test]
fn grants_by_plain_commands_exclude_each_other_and_their_tokens_rise() {
    let (mut granted, mut lost) = (0, 0);
    for seed in 0..400 {
        let (grants, has_lost) = play(seed);
        (granted, lost) = (granted + grants.len(), lost + usize::from(has_lost));
        check(seed, &grants);
    }
    assert!(granted > 5_000 && lost > 100, "{granted} grants, {lost} lost counters: this shows little");
}

/// The server is full when the plain commands have taken the lock, and a reply to another request arrives for the
/// release that follows.
#[test]
fn an_unreadable_reply_to_the_release_after_a_refusal_is_unknown() {
    let sim = Sim::new(Chooser::seeded(1));
    let network = SimTransport::new(&sim, false).direct();
    let process = sim.process(Clock::default(), 1);
    let target = Target::parse("redis://network").expect("a URL");
    let runtime = Arc::clone(&process) as Arc<dyn Runtime>;
    let store = Redis::over(target, Arc::new(network.clone()), runtime);
    let connections = Arc::new(Mutex::new(0));
    let (seen, counted) = (Arc::clone(&connections), network.clone());
    let life = async move {
        let ask = async |verb: Verb| {
            let (name, owner) = (LockName::new("x").expect("a name"), Owner::new("pair").expect("an owner"));
            store.request(Op { name, spec: LockSpec::Mutex, owner, request: 7, verb }, WITHIN).await
        };
        let (fence, bind) = (Fence::Assign, Liveness::Process);
        let acquire = Verb::Acquire { ttl_ms: 30_000, hold: 1, fence, wait_ms: None, listens: None, bind };
        // The first grant of a connection is a script's.
        ask(acquire.clone()).await.expect("a grant");
        ask(Verb::Release { hold: 1, fence, whose: ReleaseScope::Any }).await.expect("a release");
        network.answer(|words| match words {
            ["INCR", ..] => Some("-OOM command not allowed when used memory > 'maxmemory'.\r\n".to_owned()),
            words if words.contains(&"acquire") => Some("-OOM no memory\r\n".to_owned()),
            words if words.contains(&"release") => Some("$14\r\nother 7 released\r\n".to_owned()),
            _ => None,
        });
        let told = ask(acquire).await;
        assert!(matches!(told, Err(Failure::Unknown(_))), "{told:?}");
        network.answer(|_| None);
        ask(Verb::Inspect).await.expect("an answer");
        *seen.lock().expect("one thread") = counted.connections();
    };
    process.spawn(Box::pin(life));
    assert!(sim.run(60 * SECOND, 1_000_000) != Stop::Steps, "it turns in circles");
    sim.end();
    assert_eq!(*connections.lock().expect("one thread"), 2, "the connection was kept");
}
