//! The queue machine on random histories, checked by its replies alone against a list simple enough for
//! paper: the machine in Rust, and on fewer histories the script on a server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure::internals::Driver;
use tenure::internals::protocol::{
    Answer, Fence, Liveness, LockSpec, Notification, Now, Op, Place, QueueSpec, ReleaseScope, State, Verb,
    apply,
};
use tenure::internals::store::StoreExt;
use tenure::internals::store::redis::Redis;
use tenure::{LockName, Owner, block_on};
use tenure_testkit::servers::{Client, Server, Value};
use tenure_testkit::sim::chooser::Rng;

/// What the replies said about a ticket.
#[derive(Clone, Debug)]
struct Told {
    owner: usize,
    weight: u32,
    /// Until when the store must keep it.
    deadline_ms: u64,
    holds: bool,
}

trait Machine {
    fn ask(&mut self, now: Now, op: &Op) -> (Answer, Option<Notification>);
}

/// The machine in Rust: a lock and the token counter.
#[derive(Default)]
struct Twin(State, u64);

impl Machine for Twin {
    fn ask(&mut self, now: Now, op: &Op) -> (Answer, Option<Notification>) {
        apply(&mut self.0, &mut self.1, now, op)
    }
}

/// The script, on a server whose clock the history controls.
struct Served {
    server: Server,
    store: Redis,
    listener: Client,
    now: Option<Now>,
}

impl Served {
    fn new() -> Self {
        let server = Server::with_clock();
        let store =
            Redis::open(&server.url(), Driver::start().expect("a thread")).expect("a store").scripts_only();
        let mut listener = server.client().expect("a connection");
        listener.command(&["PSUBSCRIBE", "tenure:wake:0:{x}:*"]).expect("a subscription");
        Self { server, store, listener, now: None }
    }

    fn forget(&self) {
        self.server.command(&["FLUSHALL"]);
    }
}

impl Machine for &mut Served {
    fn ask(&mut self, now: Now, op: &Op) -> (Answer, Option<Notification>) {
        if self.now != Some(now) {
            self.server.clock().freeze_us(now.unix_us);
            self.now = Some(now);
        }
        let reply = block_on(self.store.request(op.clone(), Duration::from_secs(10))).expect("an answer");
        self.listener.send(&["PING"]).expect("a connection");
        let mut tickets = Vec::new();
        loop {
            match self.listener.receive().expect("a message") {
                Value::Array(message) | Value::Push(message) if message.len() == 4 => {
                    // An empty number means that holds were ended by force.
                    let numbers = message[3].text().split(',').filter(|number| !number.is_empty());
                    tickets.extend(numbers.map(|number| number.parse::<u64>().expect("a number")));
                }
                // The reply to the question whether there are more messages.
                _ => {
                    let wake = (!tickets.is_empty()).then_some(Notification::Granted { tickets });
                    return (reply, wake);
                }
            }
        }
    }
}

struct Bench<M> {
    machine: M,
    now: Now,
    owners: Vec<Owner>,
    queue_spec: QueueSpec,
    /// By number.
    tickets: BTreeMap<u64, Told>,
    last_number: u64,
    /// Granted by the last request.
    grants: Vec<u64>,
    last_granted: u64,
}

const TTL_MS: u64 = 300;
const WAIT_MS: u64 = 90;

impl<M: Machine> Bench<M> {
    fn new(machine: M, queue_spec: QueueSpec, owners: usize) -> Self {
        let owners = (0..owners).map(|n| Owner::new(&format!("o{n}")).expect("an owner")).collect();
        let now = Now { ms: 1_700_000_000_000, unix_us: 1_700_000_000_000_000 };
        Self {
            machine,
            now,
            owners,
            queue_spec,
            tickets: BTreeMap::new(),
            last_number: 0,
            grants: Vec::new(),
            last_granted: 0,
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now.ms += ms;
        self.now.unix_us += ms * 1_000;
    }

    fn ask(&mut self, owner: usize, queue_spec: QueueSpec, verb: Verb) -> Answer {
        let name = LockName::new("x").expect("a name");
        let op = Op {
            name,
            spec: LockSpec::Queue(queue_spec),
            owner: self.owners[owner].clone(),
            request: 0,
            verb,
        };
        let (answer, wake) = self.machine.ask(self.now, &op);
        // Expired tickets are dead before anything else happens.
        let now = self.now.ms;
        self.tickets.retain(|_, told| now <= told.deadline_ms);
        if let Some(Notification::Granted { tickets }) = wake {
            for ticket in tickets {
                let told = self.tickets.get_mut(&ticket).expect("a message names tickets that are there");
                assert!(!told.holds, "told twice");
                told.holds = true;
                self.grants.push(ticket);
            }
        }
        answer
    }

    fn ticket_of(&self, owner: usize) -> Option<u64> {
        self.tickets.iter().find(|(_, told)| told.owner == owner).map(|(number, _)| *number)
    }

    fn acquire(&mut self, owner: usize, queue_spec: QueueSpec, wait_ms: Option<u64>) -> Answer {
        let (bind, fence) = (Liveness::Process, Fence::Assign);
        let answer = self.ask(
            owner,
            queue_spec,
            Verb::Acquire { ttl_ms: TTL_MS, hold: 1, fence, wait_ms, listens: None, bind },
        );
        let (number, holds) = match answer {
            Answer::Held { fence } => (fence, true),
            Answer::Waiting { ticket, .. } => (ticket, false),
            Answer::Busy { .. } => {
                assert_eq!(self.ticket_of(owner), None, "who has a place is not told that it has none");
                assert!(wait_ms.is_none());
                return answer;
            }
            other => panic!("{other:?}"),
        };
        let is_new = !self.tickets.contains_key(&number);
        if is_new {
            assert!(number > self.last_number, "numbers grow");
            assert_eq!(self.ticket_of(owner), None, "one place an owner");
            self.last_number = number;
        }
        let weight = queue_spec.weight;
        let told = self.tickets.entry(number).or_insert(Told { owner, weight, deadline_ms: 0, holds: false });
        let lease = if holds { TTL_MS } else { wait_ms.unwrap_or(TTL_MS) };
        told.deadline_ms = told.deadline_ms.max(self.now.ms + lease);
        if holds && !told.holds {
            told.holds = true;
            self.grants.push(number);
        }
        assert_eq!(told.holds, holds, "nothing is taken back");
        answer
    }

    fn refresh(&mut self, owners: Vec<usize>) {
        let all: Arc<[Owner]> = owners.iter().map(|owner| self.owners[*owner].clone()).collect();
        let (queue_spec, before) = (self.queue_spec, self.tickets.clone());
        let now = self.now.ms;
        for told in
            self.tickets.values_mut().filter(|told| owners.contains(&told.owner) && now <= told.deadline_ms)
        {
            told.deadline_ms = told.deadline_ms.max(now + WAIT_MS);
        }
        let answer =
            self.ask(owners[0], queue_spec, Verb::Refresh { owners: all, wait_ms: WAIT_MS, listens: None });
        let Answer::Places { places, .. } = answer else { panic!("{answer:?}") };
        for (owner, place) in owners.iter().zip(places) {
            let known = before.iter().find(|(_, told)| told.owner == *owner && now <= told.deadline_ms);
            match place {
                Place::Gone => assert!(known.is_none(), "a place is lost"),
                Place::Waiting { ticket } => {
                    assert!(known.is_some_and(|(number, told)| *number == ticket && !told.holds))
                }
                Place::Held { fence } => {
                    assert!(known.is_some_and(|(number, _)| *number == fence));
                    let told = self.tickets.get_mut(&fence).expect("it is known");
                    if !told.holds {
                        told.holds = true;
                        self.grants.push(fence);
                    }
                }
            }
        }
    }

    fn renew(&mut self, owner: usize, weight: Option<u32>) {
        let queue_spec = self.queue_spec;
        let number = self.ticket_of(owner).filter(|number| self.now.ms <= self.tickets[number].deadline_ms);
        if let (Some(number), Some(weight)) = (number, weight)
            && self.tickets[&number].holds
        {
            self.tickets.get_mut(&number).expect("it is there").weight = weight;
        }
        let answer = self.ask(owner, queue_spec, Verb::Renew { ttl_ms: TTL_MS, hold: 1, bind: None, weight });
        match answer {
            Answer::Held { fence } => {
                assert_eq!(Some(fence), number);
                let told = self.tickets.get_mut(&fence).expect("it is there");
                told.deadline_ms = told.deadline_ms.max(self.now.ms + TTL_MS);
                if !told.holds {
                    told.holds = true;
                    self.grants.push(fence);
                }
            }
            Answer::Waiting { ticket, .. } => assert!(Some(ticket) == number && !self.tickets[&ticket].holds),
            Answer::Free => assert_eq!(number, None, "a hold is lost"),
            other => panic!("{other:?}"),
        }
    }

    fn release(&mut self, owner: usize) {
        let number = self.ticket_of(owner).filter(|number| self.now.ms <= self.tickets[number].deadline_ms);
        if let Some(number) = number {
            self.tickets.remove(&number);
        }
        let queue_spec = self.queue_spec;
        let answer = self.ask(
            owner,
            queue_spec,
            Verb::Release { hold: 1, fence: Fence::Assign, whose: ReleaseScope::Own },
        );
        match answer {
            Answer::Released { left: 0 } => assert!(number.is_some()),
            Answer::Free => assert_eq!(number, None, "a place is lost"),
            other => panic!("{other:?}"),
        }
    }

    /// The invariants.
    fn check(&mut self) {
        let used: u64 =
            self.tickets.values().filter(|told| told.holds).map(|told| u64::from(told.weight)).sum();
        assert!(used <= u64::from(self.queue_spec.capacity), "{used} of {}", self.queue_spec.capacity);
        let first = self.tickets.iter().find(|(_, told)| !told.holds);
        if let Some((number, told)) = first {
            let fits = used + u64::from(told.weight) <= u64::from(self.queue_spec.capacity);
            assert!(!fits, "the head {number} could hold and waits: {:#?}", self.tickets);
            let late = self.tickets.iter().find(|(other, told)| *other > number && told.holds);
            assert!(late.is_none(), "{late:?} has overtaken {number}");
        }
        let grants = std::mem::take(&mut self.grants);
        assert!(
            grants.iter().all(|granted| *granted > self.last_granted),
            "{grants:?} after {}",
            self.last_granted
        );
        self.last_granted = grants.into_iter().max().unwrap_or(self.last_granted);
    }
}

fn history(machine: impl Machine, seed: u64, queue_spec: QueueSpec, steps: u32) {
    let mut dice = Rng::new(seed);
    let mut bench = Bench::new(machine, queue_spec, 9);
    for _ in 0..steps {
        let owner = dice.below(9) as usize;
        let asked = match queue_spec.kind {
            tenure::Kind::RwLock if dice.below(3) > 0 => QueueSpec::READER,
            tenure::Kind::Semaphore => QueueSpec::permits(queue_spec.capacity, 1 + dice.below(3) as u32),
            _ => queue_spec,
        };
        match dice.below(12) {
            0..=3 => drop(bench.acquire(owner, asked, Some(WAIT_MS))),
            // A waiter does not send an unqueued request.
            4 if bench
                .ticket_of(owner)
                .is_none_or(|number| bench.now.ms > bench.tickets[&number].deadline_ms) =>
            {
                drop(bench.acquire(owner, asked, None));
            }
            5 | 6 => bench.refresh((0..9).filter(|_| dice.below(2) == 0).chain([owner]).collect()),
            7 => bench.renew(owner, None),
            8 if queue_spec.kind == tenure::Kind::RwLock => bench.renew(owner, Some(1)),
            9 | 10 => bench.release(owner),
            _ => bench.pass(dice.below(WAIT_MS)),
        }
        bench.check();
    }
}

#[test]
fn a_fair_mutex_keeps_its_promises_on_random_histories() {
    (1..300).for_each(|seed| history(Twin::default(), seed, QueueSpec::FAIR, 400));
}

#[test]
fn a_read_write_lock_keeps_its_promises_on_random_histories() {
    (1..300).for_each(|seed| history(Twin::default(), seed, QueueSpec::WRITER, 400));
}

#[test]
fn a_semaphore_keeps_its_promises_on_random_histories() {
    (1..300).for_each(|seed| history(Twin::default(), seed, QueueSpec::permits(5, 1), 400));
}

#[test]
fn on_a_server_each_kind_keeps_its_promises_on_random_histories() {
    let mut served = Served::new();
    for seed in 1_000..1_030 {
        for queue_spec in [QueueSpec::FAIR, QueueSpec::WRITER, QueueSpec::permits(5, 1)] {
            served.forget();
            history(&mut served, seed, queue_spec, 400);
        }
    }
}
