//! Queues of which some clients ask by plain commands, as on Redis: every order of the SET, INCR and GET of two
//! of them, of the scripts of a third, of renewals, releases and the ends of leases between any two.

use stateright::{Checker, Model, Property};
use tenure::internals::planted::Bug;
use tenure::internals::protocol::{
    Answer, Data, ExpiringValue, Fence, Liveness, LockSpec, Notification, Now, Op, QueueSpec, ReleaseScope,
    State, Verb, apply,
    queue::{Queue, Ticket},
};
use tenure::{LockName, Owner};
use tenure_testkit::plant;

use crate::is_large;

const EPOCH: u64 = 1_000;
/// The counter at first: ahead of the clock, as after many grants at once.
const COUNTED: u64 = EPOCH + 10;
const TTL: u64 = 2;
const WAIT: u64 = 1;
const PROMISE: &str = "holds exclude each other, and their tokens grow";

/// Mistakes of a client or of its short scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// A token counts although GET did not show the value.
    GetIgnored,
    /// The short release deletes whatever is there.
    ReleaseOfQueue,
    /// The renewal of a value that is gone writes it again.
    RenewalRecreates,
}

#[derive(Clone, Debug)]
struct Clients {
    specs: Vec<QueueSpec>,
    horizon: u64,
    mistake: Option<Mistake>,
    /// A mistake of the machine.
    bug: Option<Bug>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    lock: State,
    counter: u64,
    now: u64,
    clients: Vec<Client>,
    /// The tokens of all grants so far, in order.
    last: u64,
    broken: Option<&'static str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    pair: Pair,
    /// The end of its hold, and the token.
    holds: Option<(u64, u64)>,
    /// Its place, and the end of that.
    place: Option<(u64, u64)>,
}

/// How far an acquisition by plain commands has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Pair {
    #[default]
    Out,
    Set {
        at: u64,
        is_set: bool,
    },
    Counted {
        at: u64,
        is_set: bool,
        token: u64,
    },
    /// The script has to decide.
    Undecided,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Set(usize),
    Incr(usize),
    Get(usize),
    Ask(usize, bool),
    Renew(usize),
    ShortRelease(usize),
    Release(usize),
    Force,
    Pass,
}

impl Clients {
    fn new(specs: &[QueueSpec], horizon: u64) -> Self {
        Self { specs: specs.to_vec(), horizon, mistake: None, bug: None }
    }

    fn owner(index: usize) -> Owner {
        format!("o{index}@h:1/{index:032x}").parse().expect("an owner")
    }

    fn is_exclusive(&self) -> bool {
        self.specs.iter().all(|spec| spec.weight == spec.capacity)
    }

    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// The ticket of a client, if the lock is a string that only plain commands have written.
    fn bare(&self, world: &World, index: usize) -> bool {
        let lock = world.lock.lock.as_ref().filter(|lock| !lock.is_over(now(world)));
        matches!(lock.map(|lock| &lock.value), Some(Data::Queue(queue))
            if queue.ticket(0).is_some_and(|ticket| ticket.owner == Self::owner(index)))
    }

    fn ask(&self, world: &mut World, index: usize, verb: Verb) -> Answer {
        let spec = LockSpec::Queue(self.specs[index]);
        let name = LockName::new("x").expect("a name");
        let op = Op { name, spec, owner: Self::owner(index), request: 0, verb };
        let at = now(world);
        let (answer, wake) = apply(&mut world.lock, &mut world.counter, at, &op);
        if let Some(Notification::Granted { tickets }) = wake {
            for number in tickets {
                let waits = |client: &Client| client.place.is_some_and(|(ticket, _)| ticket == number);
                if let Some(told) = world.clients.iter().position(waits)
                    && let Some((_, until)) = world.clients[told].place.take()
                {
                    self.holds(world, told, number, until);
                }
            }
        }
        answer
    }

    fn holds(&self, world: &mut World, index: usize, token: u64, until: u64) {
        let client = &mut world.clients[index];
        (client.pair, client.place) = (Pair::Out, None);
        if let Some((end, _)) = &mut client.holds {
            *end = until.max(*end);
            return;
        }
        client.holds = Some((until, token));
        if token <= world.last && self.is_exclusive() || token == 0 {
            world.broken = Some("a token is not above the last");
        }
        world.last = world.last.max(token);
    }

    fn set(&self, world: &mut World, index: usize) {
        let at = now(world);
        world.lock.lock.take_if(|lock| lock.is_over(at));
        let is_set = world.lock.lock.is_none();
        if is_set {
            self.write(world, index);
        }
        world.clients[index].pair = Pair::Set { at: world.now, is_set };
    }

    fn write(&self, world: &mut World, index: usize) {
        let QueueSpec { kind, capacity, weight } = self.specs[index];
        let (owner, deadline_ms) = (Self::owner(index), now(world).ms + TTL);
        let mut queue = Queue::new(kind, capacity);
        queue.insert(0, Ticket { owner, weight, deadline_ms, listens: None });
        let value = Data::Queue(queue);
        world.lock.lock = Some(ExpiringValue { value, expires_ms: Some(deadline_ms) });
    }

    fn get(&self, world: &mut World, index: usize) {
        let is_own = self.bare(world, index) || self.makes(Mistake::GetIgnored);
        match world.clients[index].pair {
            Pair::Counted { at, is_set: true, token } if is_own => self.holds(world, index, token, at + TTL),
            _ => world.clients[index].pair = Pair::Undecided,
        }
    }

    fn acquire(&self, world: &mut World, index: usize, waits: bool) {
        let (fence, bind, wait_ms) = (Fence::Assign, Liveness::Process, waits.then_some(WAIT));
        let verb = Verb::Acquire { ttl_ms: TTL, hold: 1, fence, wait_ms, listens: None, bind };
        let until = world.now + TTL;
        match self.ask(world, index, verb) {
            Answer::Held { fence } => self.holds(world, index, fence, until),
            Answer::Waiting { ticket, .. } => {
                let wait = waits.then_some(world.now + WAIT);
                let client = &mut world.clients[index];
                let until = client.place.map(|(_, until)| until).max(wait);
                (client.pair, client.place) = (Pair::Out, until.map(|until| (ticket, until)));
            }
            _ => world.clients[index] = Client::default(),
        }
    }

    fn renew(&self, world: &mut World, index: usize) {
        let (was_held, until) = (world.clients[index].holds.is_some(), world.now + TTL);
        if world.lock.lock.is_none() && self.makes(Mistake::RenewalRecreates) {
            self.write(world, index);
        }
        let verb = Verb::Renew { ttl_ms: TTL, hold: 1, bind: None, weight: None };
        match self.ask(world, index, verb) {
            Answer::Held { fence } if was_held || world.clients[index].place.is_some() => {
                self.holds(world, index, fence, until);
            }
            Answer::Held { .. } if world.clients[index] == Client::default() => {
                world.broken = Some("a renewal made a hold");
            }
            Answer::Held { .. } | Answer::Waiting { .. } => {}
            _ if was_held => world.broken = Some("a hold ended before its time"),
            _ => {}
        }
    }

    fn short_release(&self, world: &mut World, index: usize) {
        if self.bare(world, index) || self.makes(Mistake::ReleaseOfQueue) {
            world.lock.lock = None;
            world.clients[index] = Client::default();
        } else {
            self.release(world, index, ReleaseScope::Own);
        }
    }

    fn release(&self, world: &mut World, index: usize, whose: ReleaseScope) {
        self.ask(world, index, Verb::Release { hold: 1, fence: Fence::Assign, whose });
        world.clients[index] = Client::default();
    }

    fn check(&self, world: &mut World) {
        let held = world.clients.iter().zip(&self.specs).filter(|(client, _)| client.holds.is_some());
        let used: u32 = held.map(|(_, spec)| spec.weight).sum();
        if used > self.specs[0].capacity {
            world.broken = Some("more hold than may");
        }
        if world.lock.lock.as_ref().is_some_and(|lock| lock.expires_ms.is_none()) {
            world.broken = Some("a key without an end");
        }
    }
}

fn now(world: &World) -> Now {
    Now { ms: EPOCH + world.now, unix_us: EPOCH + world.now }
}

impl Model for Clients {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let clients = vec![Client::default(); self.specs.len()];
        let (lock, last) = (State::default(), COUNTED);
        vec![World { lock, counter: COUNTED, now: 0, clients, last, broken: None }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        for (index, client) in world.clients.iter().enumerate() {
            let plain = index < 2;
            match client.pair {
                Pair::Out if plain && *client == Client::default() => steps.push(Step::Set(index)),
                Pair::Out => {}
                Pair::Set { .. } => steps.push(Step::Incr(index)),
                Pair::Counted { .. } => steps.push(Step::Get(index)),
                Pair::Undecided => {}
            }
            if matches!(client.pair, Pair::Out | Pair::Undecided) {
                steps.extend([Step::Ask(index, false), Step::Ask(index, true), Step::Renew(index)]);
                steps.push(if plain { Step::ShortRelease(index) } else { Step::Release(index) });
            }
        }
        steps.push(Step::Force);
        if world.now < self.horizon {
            steps.push(Step::Pass);
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        plant(self.bug);
        let mut next = world.clone();
        match step {
            Step::Set(index) => self.set(&mut next, index),
            Step::Incr(index) => {
                next.counter += 1;
                if let Pair::Set { at, is_set } = next.clients[index].pair {
                    next.clients[index].pair = Pair::Counted { at, is_set, token: next.counter };
                }
            }
            Step::Get(index) => self.get(&mut next, index),
            Step::Ask(index, waits) => self.acquire(&mut next, index, waits),
            Step::Renew(index) => self.renew(&mut next, index),
            Step::ShortRelease(index) => self.short_release(&mut next, index),
            Step::Release(index) => self.release(&mut next, index, ReleaseScope::Own),
            Step::Force => {
                // Holders learn of it at once, because they are promised nothing more.
                next.clients.iter_mut().for_each(|client| client.holds = None);
                self.ask(
                    &mut next,
                    0,
                    Verb::Release { hold: 0, fence: Fence::Assign, whose: ReleaseScope::Any },
                );
            }
            Step::Pass => {
                next.now += 1;
                let time = next.now;
                for client in &mut next.clients {
                    client.holds = client.holds.filter(|(until, _)| time <= *until);
                    client.place = client.place.filter(|(_, until)| time <= *until);
                }
            }
        }
        self.check(&mut next);
        Some(next)
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.counter <= COUNTED + 5 + u64::from(is_large())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(PROMISE, |_, world: &World| world.broken.is_none())]
    }
}

fn crowds() -> Vec<(&'static str, Clients)> {
    let more = u64::from(is_large());
    vec![
        ("fair mutex", Clients::new(&[QueueSpec::FAIR; 3], 3 + more)),
        (
            "a reader, a writer and a reader",
            Clients::new(&[QueueSpec::READER, QueueSpec::WRITER, QueueSpec::READER], 3 + more),
        ),
        (
            "semaphore of three, permits 2, 1 and 2",
            Clients::new(&[2, 1, 2].map(|weight| QueueSpec::permits(3, weight)), 3 + more),
        ),
    ]
}

#[test]
fn plain_commands_beside_scripts_keep_what_they_told_in_every_order() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for (what, model) in crowds() {
        let checker = model.checker().threads(threads).spawn_bfs().join();
        println!("{what}: {} states, {} steps deep", checker.unique_state_count(), checker.max_depth());
        if let Some(path) = checker.discovery(PROMISE) {
            panic!("{what}: {:?}\n{:#?}", path.last_state().broken, path.clone().into_actions());
        }
    }
}

#[track_caller]
fn is_found(what: &str, with: impl Fn(Clients) -> Clients) {
    let found = crowds().into_iter().find_map(|(crowd, model)| {
        let checker = with(model).checker().threads(1);
        let checker = checker.finish_when(stateright::HasDiscoveries::AnyFailures).spawn_bfs().join();
        checker.discovery(PROMISE).map(|path| (crowd, path))
    });
    let Some((crowd, path)) = found else { panic!("{what} is not found") };
    println!("{what}: {crowd}: {:?} after {:?}", path.last_state().broken, path.clone().into_actions());
}

#[test]
fn every_mistake_of_a_plain_client_is_found() {
    for mistake in [Mistake::GetIgnored, Mistake::ReleaseOfQueue, Mistake::RenewalRecreates] {
        is_found(&format!("{mistake:?}"), |model| Clients { mistake: Some(mistake), ..model });
    }
}

#[test]
#[cfg(tenure_planted)]
fn every_mistake_in_numbering_a_bare_hold_is_found() {
    for bug in [Bug::NumberBelowToken, Bug::LeaseOfBareForgotten] {
        is_found(&format!("{bug:?}"), |model| Clients { bug: Some(bug), ..model });
    }
}
