//! The simulated network alone: the order of messages, and partitions.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::internals::Store;
use tenure::internals::protocol::{Fence, Liveness, LockSpec, Op, ReleaseScope, Verb};
use tenure::internals::store::{Purpose, StoreExt, Topic};
use tenure::{LockName, Owner};
use tenure_testkit::sim::chooser::Chooser;
use tenure_testkit::sim::clock::{Clock, MS, SECOND};
use tenure_testkit::sim::executor::{Process, Sim};
use tenure_testkit::sim::network::{Network, Parting};
use tenure_testkit::sim::regime::Faults;

const WITHIN: Duration = Duration::from_secs(1);

/// One server, two processes, and the order of events.
struct Bench {
    sim: Sim,
    network: Network,
    processes: [Arc<Process>; 2],
    seen: Arc<Mutex<Vec<&'static str>>>,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let sim = Sim::new(Chooser::seeded(seed));
        let faults = Faults { latency: (MS, 9 * MS), ..Faults::NONE };
        let network = Network::member(&sim, "sim:", Clock::default(), faults);
        let processes = [0, 1].map(|_| sim.process(Clock::default(), seed));
        processes.iter().for_each(|process| drop(network.store(process)));
        Self { sim, network, processes, seen: Arc::default() }
    }

    /// A process sends a request; its answer is recorded as `answered`.
    fn asks(&self, at: u64, process: usize, verb: Verb, answered: &'static str) {
        let (sim, process) = (self.sim.clone(), &self.processes[process]);
        let (store, seen) = (self.network.store(process), Arc::clone(&self.seen));
        let owner: Owner = format!("o@sim:1/{:032x}", process.id()).parse().expect("an owner");
        let op = Op { name: name(), spec: LockSpec::Mutex, owner, request: 0, verb };
        let task = async move {
            sim.sleep_until(at).await;
            if store.request(op, WITHIN).await.is_ok() {
                seen.lock().expect("no panic").push(answered);
            }
        };
        self.sim.spawn(process.id(), Box::pin(task));
    }

    /// A process subscribes at the beginning; its first message is recorded as `told`.
    fn listens(&self, process: usize) {
        let process = &self.processes[process];
        let (store, seen) = (self.network.store(process), Arc::clone(&self.seen));
        let task = async move {
            let mut listeners = store
                .subscribe(Topic::new(&name(), LockSpec::Mutex, Purpose::Watch), WITHIN)
                .await
                .expect("it may listen");
            if listeners.next().await.is_some() {
                seen.lock().expect("no panic").push("told");
            }
        };
        self.sim.spawn(process.id(), Box::pin(task));
    }

    fn run(self) -> Vec<&'static str> {
        self.sim.run(20 * SECOND, 10_000);
        let seen = self.seen.lock().expect("no panic").clone();
        self.sim.end();
        seen
    }
}

fn name() -> LockName {
    LockName::new("x").expect("a name")
}

fn acquire() -> Verb {
    Verb::Acquire {
        ttl_ms: 10_000,
        hold: 1,
        fence: Fence::Assign,
        wait_ms: None,
        listens: None,
        bind: Liveness::Process,
    }
}

fn release() -> Verb {
    Verb::Release { hold: 1, fence: Fence::Assign, whose: ReleaseScope::Own }
}

#[test]
fn requests_of_two_processes_arrive_in_either_order() {
    let is_second_first = |seed| {
        let bench = Bench::new(seed);
        bench.asks(MS, 0, acquire(), "");
        bench.asks(2 * MS, 1, acquire(), "");
        let (sim, network, second) = (bench.sim.clone(), bench.network.clone(), bench.processes[1].id());
        bench.run();
        let owner: Owner = format!("o@sim:1/{second:032x}").parse().expect("an owner");
        network.with_server(|server| {
            server.view(sim.now().min(5 * SECOND), &name()).is_some_and(|view| view.share(&owner).is_some())
        })
    };
    let overtaken = (0..200).filter(|seed| is_second_first(*seed)).count();
    assert!((10..190).contains(&overtaken), "{overtaken} of 200");
}

#[test]
fn a_message_and_a_reply_that_left_together_arrive_in_either_order() {
    let seen = |seed| {
        let bench = Bench::new(seed);
        bench.listens(0);
        bench.asks(100 * MS, 0, acquire(), "granted");
        bench.asks(200 * MS, 0, release(), "released");
        bench.run()
    };
    let orders: Vec<_> = (0..200).map(seen).collect();
    let told_first = orders.iter().filter(|order| **order == ["granted", "told", "released"]).count();
    let told_last = orders.iter().filter(|order| **order == ["granted", "released", "told"]).count();
    assert_eq!(told_first + told_last, 200, "{orders:?}");
    assert!((10..190).contains(&told_first), "{told_first} of 200");
}

#[test]
fn nothing_gets_through_while_a_process_is_parted_and_all_of_it_afterwards() {
    let parted = |parting: Parting| {
        let bench = Bench::new(0);
        bench.listens(1);
        bench.asks(100 * MS, 0, acquire(), "granted");
        let (sim, network, id) = (bench.sim.clone(), bench.network.clone(), bench.processes[1].id());
        sim.at(50 * MS, move || network.part(id, parting));
        bench.asks(200 * MS, 0, release(), "released");
        bench.asks(300 * MS, 1, acquire(), "granted to the other");
        bench.run()
    };
    let until = 800 * MS;
    let whole = Parting { requests: until, replies: until, messages: until, loses: false };
    let late = ["granted", "released", "told", "granted to the other"];
    let mut seen = parted(whole);
    seen[2..].sort_unstable_by_key(|what| *what != "told");
    assert_eq!(seen, late);
    assert_eq!(
        parted(Parting { messages: until, ..Parting::default() }),
        ["granted", "released", "granted to the other", "told"]
    );
    assert_eq!(parted(Parting { loses: true, ..whole }), ["granted", "released"]);
}
