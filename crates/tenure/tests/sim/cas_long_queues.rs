//! A queue split into parts beside one stored whole: both must answer the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure::internals::Runtime;
use tenure::internals::planted::Bug;
use tenure::internals::protocol::{
    Answer, Fence, Liveness, LockSpec, Op, Place, QueueSpec, ReleaseScope, Verb, parse_value,
};
use tenure::internals::store::StoreExt;
use tenure::internals::store::cas::Cas;
use tenure::{Kind, LockName, Locks, Owner};
use tenure_testkit::plant;
use tenure_testkit::sim::cas::{Server, Versions};
use tenure_testkit::sim::chooser::Rng;
use tenure_testkit::sim::clock::Clock;
use tenure_testkit::sim::scenarios::{Failed, Outcome};

use super::scenario::{MILLIS, SECONDS, Scenario};

/// For the process that dies, and for the other.
const TTL_MS: [u64; 2] = [60_000, 3_000_000];
const WITHIN: Duration = Duration::from_secs(20);
const OWNERS: usize = 30;

/// Clients in two processes, of one server with long parts and one with short parts.
struct Twins {
    stores: [[Cas; 2]; 2],
    owners: Vec<Owner>,
    spec: [LockSpec; 3],
    random: Rng,
    /// The numbers that each server has assigned.
    told: [BTreeMap<u64, u64>; 2],
    alone: bool,
}

impl Twins {
    fn below(&mut self, count: u64) -> u64 {
        self.random.below(count)
    }

    /// A request, and the process that sends it.
    fn op(&mut self) -> (Op, usize) {
        let process = if self.alone { 1 } else { self.below(2) as usize };
        // Owners with even numbers belong to one process.
        let some: Vec<Owner> = (0..5)
            .map(|_| {
                let at = 2 * self.below(OWNERS as u64 / 2) as usize + process;
                self.owners[at].clone()
            })
            .collect();
        let asks = some[0].clone();
        let (ttl_ms, fence, hold, bind) = (TTL_MS[process], Fence::Assign, 1, Liveness::Process);
        let acquire = |wait_ms| Verb::Acquire { ttl_ms, hold, fence, wait_ms, listens: None, bind };
        let verb = match self.below(40) {
            0..=15 => acquire(Some(ttl_ms)),
            16..=17 => acquire(None),
            18..=27 => Verb::Release { hold, fence, whose: ReleaseScope::Own },
            28..=32 => Verb::Refresh { owners: some.into(), wait_ms: ttl_ms, listens: None },
            33..=34 => Verb::Renew { ttl_ms, hold, bind: None, weight: None },
            35..=36 => Verb::Inspect,
            37 => Verb::Release { hold, fence, whose: ReleaseScope::Any },
            38 if matches!(self.spec[0], LockSpec::Queue(QueueSpec { kind: Kind::Semaphore, .. })) => {
                Verb::Resize
            }
            _ => acquire(Some(ttl_ms)),
        };
        let spec = self.spec[self.below(3) as usize];
        let name = LockName::new("line").expect("a name");
        (Op { name, spec, owner: asks, request: self.below(1 << 30), verb }, process)
    }

    /// An answer with a server's numbers replaced by ranks, and without times.
    fn said(&mut self, of: usize, answer: &Answer) -> String {
        if let Answer::More(answer) = answer {
            return format!("{} and more", self.said(of, answer));
        }
        let ranks = std::cell::RefCell::new(&mut self.told[of]);
        let rank = |number: u64| {
            let mut ranks = ranks.borrow_mut();
            let next = ranks.len() as u64;
            *ranks.entry(number).or_insert(next)
        };
        let holder = |value: &[u8]| {
            let (owner, token) = parse_value(value).expect("a holder");
            format!("{owner}#{}", rank(token))
        };
        match answer {
            Answer::Held { fence } => format!("held {}", rank(*fence)),
            Answer::Waiting { ticket, retry_in_ms } => {
                format!("waits {} {}", rank(*ticket), retry_in_ms.is_some())
            }
            Answer::Busy { holder: by, .. } => format!("busy {}", holder(by.as_bytes())),
            Answer::Places { places, retry_in_ms } => {
                let places = places.iter().map(|place| match place {
                    Place::Held { fence } => format!("held {}", rank(*fence)),
                    Place::Waiting { ticket } => format!("waits {}", rank(*ticket)),
                    Place::Gone => "gone".into(),
                });
                format!("{} {}", places.collect::<Vec<_>>().join(", "), retry_in_ms.is_some())
            }
            Answer::Found(found) => {
                let all = found.holders.iter().chain(&found.waiters);
                let all: Vec<String> =
                    all.map(|holding| format!("{} {}", holder(&holding.value), holding.weight)).collect();
                format!("{} hold: {}; {}", found.holders.len(), all.join(", "), found.unlisted)
            }
            answer => format!("{answer:?}"),
        }
    }

    /// Sends the same request to both servers, and compares.
    async fn step(&mut self) -> Outcome {
        let (op, process) = self.op();
        let mut said = Vec::new();
        for of in 0..2 {
            let answer = self.stores[of][process].request(op.clone(), WITHIN).await;
            let answer = answer.map_err(|failure| format!("{:?}: {failure}", op.verb))?;
            said.push(self.said(of, &answer));
        }
        match said[0] == said[1] {
            true => Ok(()),
            false => Err(format!("{:?} by {}: {} and {}", op.verb, op.owner, said[0], said[1]).into()),
        }
    }
}

fn rules(seed: u64) -> [LockSpec; 3] {
    let permits = |weight| LockSpec::Queue(QueueSpec::permits(3, weight));
    match seed % 3 {
        0 => [LockSpec::Queue(QueueSpec::FAIR); 3],
        1 => [QueueSpec::READER, QueueSpec::READER, QueueSpec::WRITER].map(LockSpec::Queue),
        _ => [permits(1), permits(1), permits(3)],
    }
}

/// Runs one history on both servers. Returns the maximum number of parts.
fn alike(seed: u64) -> Result<usize, Failed> {
    let scenario = Scenario::of_parts(2, Versions::Lasting, 1 + seed as usize % 4);
    let whole = Server::with(scenario.sim.process(Clock::default(), seed), Versions::Lasting, 1_000);
    let runtimes = [0, 1].map(|at| Arc::clone(&scenario.processes[at]) as Arc<dyn Runtime>);
    let clients = |server: &Server| {
        [0, 1].map(|at: usize| Cas::new(Arc::new(server.clone()), "cas:sim", Arc::clone(&runtimes[at])))
    };
    let stores = [clients(&whole), clients(&scenario.server)];
    let owners = (0..OWNERS).map(|at| format!("o@h:1/{at:032x}").parse().expect("an owner")).collect();
    let (spec, told) = (rules(seed), Default::default());
    let mut twins = Twins { stores, owners, spec, random: Rng::new(seed), told, alone: false };
    let (sim, dies) = (scenario.sim.clone(), scenario.id(0));
    let (server, sleep) = (scenario.server.clone(), scenario.sleep(1));
    let (told, most) = std::sync::mpsc::channel();
    scenario.spawn(1, async move {
        let mut most = 0;
        for _ in 0..150 {
            twins.step().await?;
            most = most.max(server.parts());
        }
        // All places of one process expire, wherever they are in the queue.
        sim.kill(dies);
        twins.alone = true;
        sleep(MILLIS(2 * TTL_MS[0])).await;
        for _ in 0..150 {
            twins.step().await?;
        }
        let _ = told.send(most);
        Ok(())
    });
    scenario.run(600)?;
    most.recv().map_err(|_| "the history did not come to its end".into())
}

#[test]
fn what_requests_are_told_does_not_depend_on_the_parts_of_a_line() {
    let told = |seed| alike(seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong:?}"));
    let longest = (0..60).map(told).max();
    assert!(longest > Some(3), "the longest line had {longest:?} parts");
}

#[test]
fn it_would_show_that_what_was_read_of_a_line_was_taken_for_all() {
    plant(Some(Bug::CasFrontIsAll));
    let seen = (0..60).map(alike).find_map(Result::err);
    plant(None);
    assert!(seen.is_some(), "it is not seen");
}

/// Waiters behind a part that was deleted by hand are still served.
#[test]
fn a_part_that_is_lost_costs_those_behind_it_nothing() {
    after_a_part(Server::lose_part);
}

#[test]
fn a_part_that_is_damaged_costs_those_behind_it_nothing() {
    after_a_part(Server::damage_part);
}

/// Damages the last part of a queue; every waiter must still be served.
fn after_a_part(is_broken: fn(&Server)) {
    let scenario = Scenario::of_parts(2, Versions::Lasting, 2);
    let (first, rest) = (scenario.client(0, SECONDS(20)), scenario.client(1, SECONDS(20)));
    let (server, sleep) = (scenario.server.clone(), scenario.sleep(0));
    let lock = |locks: &Locks| locks.fair_mutex("line").expect("a name");
    let mutex = lock(&first);
    scenario.spawn(0, async move {
        let guard = mutex.lock().await?;
        sleep(SECONDS(4)).await;
        if server.parts() < 2 {
            return Err(format!("the line has {} parts", server.parts()).into());
        }
        is_broken(&server);
        guard.release().await?;
        Ok(())
    });
    for at in 0..8 {
        let (mutex, sleep) = (lock(&rest), scenario.sleep(1));
        scenario.spawn(1, async move {
            sleep(MILLIS(500 + 100 * at)).await;
            // Waiters that lost their places retry, and rejoin at the tail.
            let got = mutex.try_lock_for(SECONDS(60)).await?;
            let guard = got.ok_or_else(|| format!("{at} waited for its turn"))?;
            Ok(guard.release().await?)
        });
    }
    assert_eq!(scenario.run_out(), Ok(()));
}

/// A server limits the number of operations in one write.
#[test]
fn a_line_of_many_parts_in_which_all_have_died_goes_in_pieces() {
    const WAIT: u64 = 300;
    let scenario = Scenario::of_parts(2, Versions::Lasting, 1);
    let (dies, next) = (scenario.client(0, SECONDS(20)), scenario.client(1, SECONDS(20)));
    for at in 0..=WAIT {
        let (mutex, sleep) = (dies.fair_mutex("line").expect("a name"), scenario.sleep(0));
        scenario.spawn(0, async move {
            sleep(MILLIS(20 * at)).await;
            let guard = mutex.lock().await?;
            sleep(SECONDS(600)).await;
            drop(guard);
            Ok(())
        });
    }
    let (sim, process, server) = (scenario.sim.clone(), scenario.id(0), scenario.server.clone());
    let (mutex, sleep) = (next.fair_mutex("line").expect("a name"), scenario.sleep(1));
    scenario.spawn(1, async move {
        sleep(SECONDS(8)).await;
        if server.parts() < 128 {
            return Err(format!("the line has {} parts", server.parts()).into());
        }
        sim.kill(process);
        let got = mutex.try_lock_for(SECONDS(60)).await?;
        got.ok_or("those that have died keep it")?.release().await?;
        Ok(())
    });
    assert_eq!(scenario.run_out(), Ok(()));
}

/// More waiters than fit into the write that ends their holds.
#[test]
fn each_of_many_holders_is_told_that_its_hold_was_ended_by_force() {
    const HOLDERS: usize = 130;
    let scenario = Scenario::cas(HOLDERS + 1, Versions::Lasting);
    let lock = |locks: &Locks| locks.semaphore("many", HOLDERS as u32).expect("a name");
    for at in 0..HOLDERS {
        let (semaphore, sleep) = (lock(&scenario.client(at, SECONDS(2))), scenario.sleep(at));
        scenario.spawn(at, async move {
            let got = semaphore.try_acquire_for(SECONDS(30)).await?;
            let guard = got.ok_or("no permit")?;
            sleep(SECONDS(60)).await;
            if guard.is_held() { Err(format!("{at} still believes that it holds").into()) } else { Ok(()) }
        });
    }
    let (locks, sleep) = (scenario.client(HOLDERS, SECONDS(2)), scenario.sleep(HOLDERS));
    scenario.spawn(HOLDERS, async move {
        sleep(SECONDS(40)).await;
        let ended = locks.force_release("many").await?;
        match ended.map(|status| status.holders.len()) {
            Some(HOLDERS) => Ok(()),
            count => Err(format!("{count:?} were ended").into()),
        }
    });
    assert_eq!(scenario.run_out(), Ok(()));
}
