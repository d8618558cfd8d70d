//! The three machines, explored completely at small sizes: every order of the requests of a few clients, at
//! every moment of a few leases. Judged by the replies alone, except for one question: whether a client waits
//! although it fits.

use std::sync::Arc;

use stateright::{Checker, Model, Property};
use tenure::internals::planted::Bug;
use tenure::internals::protocol::{
    Answer, Data, Fence, Liveness, LockSpec, Notification, Now, Op, Place, QueueSpec, ReleaseScope, State,
    Verb, apply,
};
use tenure::{LockName, Owner};
use tenure_testkit::plant;

use crate::is_large;

const EPOCH: u64 = 1_000;

/// The clients, and their requests.
#[derive(Clone, Debug)]
struct Askers {
    askers: Vec<Asker>,
    capacity: u32,
    /// Capacities that may be set.
    sizes: &'static [u32],
    wait: u64,
    /// The length of the exploration.
    horizon: u64,
    /// A mistake made on purpose.
    bug: Option<Bug>,
}

#[derive(Clone, Debug)]
struct Asker {
    owner: Owner,
    hold: u64,
    spec: LockSpec,
    weight: u32,
    /// The first client's is longer.
    ttl: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    lock: State,
    counter: u64,
    now: u64,
    told: Vec<Told>,
    /// The capacity, and the weight in use before the last step.
    capacity: u32,
    used: u32,
    /// The highest token of all grants.
    last: u64,
    broken: Option<&'static str>,
}

/// What a client knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Told {
    /// The end of its hold, and the token.
    holds: Option<(u64, u64)>,
    /// Its current weight.
    weight: u32,
    /// It waits to become the writer while others may still read.
    grows: bool,
    /// Its place in the queue, and the end of that.
    place: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Ask(usize),
    AskAndWait(usize),
    Renew(usize),
    Lighten(usize),
    Grow(usize),
    Refresh(usize),
    RefreshAll,
    Release(usize),
    Force(usize),
    Resize(u32),
    Pass,
}

impl Askers {
    fn new(capacity: u32, horizon: u64, askers: impl IntoIterator<Item = (u8, u64, LockSpec, u32)>) -> Self {
        let askers = askers.into_iter().map(|(owner, hold, spec, weight)| Asker {
            owner: format!("o{owner}@h:1/{owner:032x}").parse().expect("an owner"),
            hold,
            spec,
            weight,
            ttl: if (owner, hold) == (0, 1) { 3 } else { 2 },
        });
        Self { askers: askers.collect(), capacity, sizes: &[], wait: 1, horizon, bug: None }
    }

    /// Each client with its own owner.
    fn queue(seats: &[QueueSpec], horizon: u64) -> Self {
        let askers = seats
            .iter()
            .zip(0..)
            .map(|(queue_spec, owner)| (owner, 1, LockSpec::Queue(*queue_spec), queue_spec.weight));
        Self::new(seats[0].capacity, horizon, askers)
    }

    fn mutex(askers: u8, horizon: u64) -> Self {
        Self::new(1, horizon, (0..askers).map(|owner| (owner, 1, LockSpec::Mutex, 1)))
    }

    /// Each owner with two holds.
    fn reentrant(owners: u8, horizon: u64) -> Self {
        let holds = (0..owners).flat_map(|owner| [1, 2].map(|hold| (owner, hold, LockSpec::Reentrant, 1)));
        Self::new(1, horizon, holds)
    }

    fn is_queue(&self) -> bool {
        matches!(self.askers[0].spec, LockSpec::Queue(_))
    }

    #[expect(clippy::too_many_lines, reason = "a case for each verb")]
    fn ask(&self, world: &mut World, index: usize, verb: Verb) -> Answer {
        let asker = &self.askers[index];
        let (name, owner) = (LockName::new("x").expect("a name"), asker.owner.clone());
        let spec = match (asker.spec, &verb) {
            (LockSpec::Queue(queue_spec), Verb::Resize) => {
                LockSpec::Queue(QueueSpec { capacity: world.capacity, ..queue_spec })
            }
            (spec, _) => spec,
        };
        let op = Op { name, spec, owner, request: 0, verb };
        let now = Now { ms: EPOCH + world.now, unix_us: EPOCH + world.now };
        let (answer, wake) = apply(&mut world.lock, &mut world.counter, now, &op);
        let mut grants = Vec::new();
        if let Some(Notification::Granted { tickets }) = wake {
            for number in tickets {
                let mut told = world.told.iter_mut().zip(&self.askers);
                match told.find(|(told, _)| told.place.is_some_and(|(place, _)| place == number)) {
                    // It already knows the end of its hold.
                    Some((told, asker)) => {
                        let until = told.place.take().map_or(0, |(_, until)| until);
                        if until < world.now || told.holds.is_some() {
                            world.broken = Some("a message names who has no place");
                        }
                        (told.holds, told.weight) = (Some((until, number)), asker.weight);
                        grants.push(number);
                    }
                    None => {
                        // A reader that waits to become the writer, if no other client holds. The requester
                        // may be leaving.
                        let is_it =
                            |told: &Told| told.grows && told.holds.is_some_and(|(_, token)| token == number);
                        let is_other =
                            |(at, told): (usize, &Told)| at != index && told.holds.is_some() && !is_it(told);
                        if !world.told.iter().any(is_it) || world.told.iter().enumerate().any(is_other) {
                            world.broken = Some("a message names who has no place");
                        }
                    }
                }
            }
        }
        if let Answer::Places { places, .. } = &answer {
            let asked: Vec<usize> = match &op.verb {
                Verb::Refresh { owners, .. } => {
                    owners
                        .iter()
                        .filter_map(|owner| self.askers.iter().position(|asker| asker.owner == *owner))
                }
                .collect(),
                _ => Vec::new(),
            };
            for (index, place) in asked.into_iter().zip(places) {
                let until = world.now + self.wait;
                match place {
                    Place::Held { fence } => self.held(world, index, *fence, until, &mut grants),
                    Place::Waiting { ticket } => waits(world, index, *ticket, Some(until)),
                    Place::Gone => is_out(world, index),
                }
            }
        } else {
            let until = world.now + asker.ttl;
            match (&answer, &op.verb) {
                (Answer::Held { .. }, Verb::Renew { .. })
                    if world.told[index].holds.is_none() && world.told[index].place.is_none() =>
                {
                    world.broken = Some("a renewal made a hold");
                }
                (Answer::Held { fence }, _) => self.held(world, index, *fence, until, &mut grants),
                (Answer::Growing { fence, .. }, _) => {
                    if world.told[index].holds.is_none() {
                        world.broken = Some("a renewal made a hold");
                    }
                    self.held(world, index, *fence, until, &mut grants);
                    world.told[index].grows = true;
                }
                (Answer::Waiting { ticket, .. }, Verb::Acquire { wait_ms, .. }) => {
                    waits(world, index, *ticket, wait_ms.map(|wait_ms| world.now + wait_ms));
                }
                (Answer::Waiting { ticket, .. }, _) => waits(world, index, *ticket, None),
                (Answer::Busy { .. }, Verb::Acquire { .. }) if !is_anybodys(world) => {
                    world.broken = Some("it is busy, and no client has it");
                }
                (_, Verb::Acquire { .. } | Verb::Renew { .. }) => is_out(world, index),
                (Answer::Released { .. }, _) => world.told[index] = Told::default(),
                (_, Verb::Release { whose: ReleaseScope::Own, .. }) => is_out(world, index),
                _ => {}
            }
        }
        grants.sort_unstable();
        if let (Some(first), Some(last)) = (grants.first(), grants.last()) {
            if *first <= world.last || grants.windows(2).any(|pair| pair[0] == pair[1]) {
                world.broken = Some("a token is not above the last");
            }
            world.last = *last;
        }
        answer
    }

    /// It learned that it holds, at least until then.
    fn held(&self, world: &mut World, index: usize, fence: u64, until: u64, grants: &mut Vec<u64>) {
        let Asker { owner, weight, .. } = &self.askers[index];
        let same = |(asker, told): (&Asker, &Told)| (asker.owner == *owner).then_some(told.holds).flatten();
        // Another hold of its owner keeps the token and the lock.
        let known = self.askers.iter().zip(&world.told).find_map(same);
        match known {
            Some((_, token)) if token != fence => world.broken = Some("a token changed under its holder"),
            Some(_) => {}
            None => grants.push(fence),
        }
        let until = known.map_or(until, |(old, _)| old.max(until));
        let told = &mut world.told[index];
        if told.holds.is_none() {
            (told.weight, told.holds) = (*weight, Some((until, fence)));
        }
        told.place = None;
        // All holds of an owner share one lease.
        for (asker, told) in self.askers.iter().zip(&mut world.told) {
            if let Some((old, _)) = told.holds.as_mut().filter(|_| asker.owner == *owner) {
                *old = until.max(*old);
            }
        }
    }

    fn check(&self, world: &mut World) {
        let mut used = 0_u32;
        let mut owners: Vec<&Owner> = Vec::new();
        for (asker, told) in self.askers.iter().zip(&world.told) {
            if told.holds.is_some() && !owners.contains(&&asker.owner) {
                owners.push(&asker.owner);
                used = used.saturating_add(told.weight);
            }
        }
        let holders = owners.len();
        // Holds above a reduced capacity continue, and a place from before it may hold alone.
        if used > world.capacity.max(world.used) && holders > 1 {
            world.broken = Some("more hold than may");
        }
        world.used = used;
        if let Some(lock) = &world.lock.lock {
            if lock.expires_ms.is_none() {
                world.broken = Some("a key without an end");
            }
            if let Data::Queue(queue) = &lock.value
                && queue.is_due()
            {
                world.broken = Some("a client waits who fits");
            }
        }
    }
}

/// It learned that it has a place, and its end if it requested that.
fn waits(world: &mut World, index: usize, ticket: u64, until: Option<u64>) {
    let told = &mut world.told[index];
    match (told.place, until) {
        _ if told.holds.is_some() => world.broken = Some("a holder was told to wait"),
        (Some((old, _)), _) if old != ticket => world.broken = Some("a place was lost that was kept"),
        (None, None) => world.broken = Some("a place came back that had lapsed"),
        (_, Some(until)) => told.place = Some((ticket, until)),
        (Some(_), None) => {}
    }
}

fn is_anybodys(world: &World) -> bool {
    world.told.iter().any(|told| told.holds.is_some() || told.place.is_some())
}

/// It learned that it has nothing.
fn is_out(world: &mut World, index: usize) {
    let told = &world.told[index];
    if told.holds.is_some() || told.place.is_some() {
        world.broken = Some("a hold or a place ended before its time");
    }
}

impl Model for Askers {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let told = vec![Told::default(); self.askers.len()];
        let (capacity, used) = (self.capacity, 0);
        vec![World {
            lock: State::default(),
            counter: 0,
            now: 0,
            told,
            capacity,
            used,
            last: 0,
            broken: None,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        for (index, told) in world.told.iter().enumerate() {
            steps.extend([Step::Ask(index), Step::Release(index)]);
            // Also by clients that hold nothing, or no longer.
            steps.push(Step::Renew(index));
            if self.is_queue() {
                steps.extend([Step::AskAndWait(index), Step::Refresh(index)]);
                if told.holds.is_some() && told.weight > 1 {
                    steps.push(Step::Lighten(index));
                }
                if told.holds.is_some() && told.weight == QueueSpec::UPGRADEABLE.weight {
                    steps.push(Step::Grow(index));
                }
            }
        }
        steps.push(Step::Force(0));
        if self.is_queue() {
            steps.push(Step::RefreshAll);
        }
        steps.extend(
            self.sizes.iter().filter(|size| **size != world.capacity).map(|size| Step::Resize(*size)),
        );
        if world.now < self.horizon {
            steps.push(Step::Pass);
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        plant(self.bug);
        let mut next = world.clone();
        let (fence, bind) = (Fence::Assign, Liveness::Process);
        let acquire = |index: usize, wait_ms| {
            let Asker { hold, ttl: ttl_ms, .. } = self.askers[index];
            Verb::Acquire { ttl_ms, hold, fence, wait_ms, listens: None, bind }
        };
        match step {
            Step::Ask(index) => drop(self.ask(&mut next, index, acquire(index, None))),
            Step::AskAndWait(index) => {
                if let Answer::Waiting { .. } = self.ask(&mut next, index, acquire(index, Some(self.wait)))
                    && let Some((_, until)) = &mut next.told[index].place
                {
                    *until = next.now + self.wait;
                }
            }
            Step::Renew(index) | Step::Lighten(index) | Step::Grow(index) => {
                let weight = match step {
                    Step::Lighten(_) => Some(1),
                    Step::Grow(_) => Some(QueueSpec::WRITER.weight),
                    _ => None,
                };
                let Asker { hold, ttl: ttl_ms, .. } = self.askers[index];
                let verb = Verb::Renew { ttl_ms, hold, bind: None, weight };
                if let Answer::Held { .. } = self.ask(&mut next, index, verb)
                    && let Some(weight) = weight
                {
                    (next.told[index].weight, next.told[index].grows) = (weight, false);
                }
            }
            Step::Refresh(_) | Step::RefreshAll => {
                let (index, owners): (usize, Arc<[Owner]>) = match step {
                    Step::Refresh(index) => (index, [self.askers[index].owner.clone()].into()),
                    _ => (0, self.askers.iter().map(|asker| asker.owner.clone()).collect()),
                };
                self.ask(&mut next, index, Verb::Refresh { owners, wait_ms: self.wait, listens: None });
            }
            Step::Release(index) => {
                let verb = Verb::Release { hold: self.askers[index].hold, fence, whose: ReleaseScope::Own };
                self.ask(&mut next, index, verb);
            }
            Step::Force(index) => {
                // The holder learns of it later; here it is immediate, because it is promised nothing more.
                for told in &mut next.told {
                    (told.holds, told.grows) = (None, false);
                }
                self.ask(&mut next, index, Verb::Release { hold: 0, fence, whose: ReleaseScope::Any });
            }
            Step::Resize(capacity) => {
                next.capacity = capacity;
                self.ask(&mut next, 0, Verb::Resize);
            }
            Step::Pass => {
                next.now += 1;
                for told in &mut next.told {
                    told.holds = told.holds.filter(|(until, _)| next.now <= *until);
                    told.grows &= told.holds.is_some();
                    told.place = told.place.filter(|(_, until)| next.now <= *until);
                }
            }
        }
        self.check(&mut next);
        Some(next)
    }

    /// Time ends, and so must numbers that are assigned within one moment.
    fn within_boundary(&self, world: &World) -> bool {
        world.counter <= EPOCH + self.horizon + 1
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(PROMISES, |_, world: &World| world.broken.is_none())]
    }
}

const PROMISES: &str = "what askers were told is kept";

/// Every machine at a small size, and at larger ones on request.
fn machines() -> Vec<(&'static str, Askers)> {
    let more = u64::from(is_large());
    vec![
        ("mutex, three askers", Askers::mutex(3, 5 + 2 * more)),
        ("reentrant mutex, two owners with two holds each", Askers::reentrant(2, 4 + 2 * more)),
        ("fair mutex, three askers", Askers::queue(&[QueueSpec::FAIR; 3], 3 + 2 * more)),
        (
            "read-write lock, two readers and a writer",
            Askers::queue(&[QueueSpec::READER, QueueSpec::WRITER, QueueSpec::READER], 3 + 2 * more),
        ),
        (
            "read-write lock, two that may become writers and a reader",
            Askers::queue(&[QueueSpec::UPGRADEABLE, QueueSpec::READER, QueueSpec::UPGRADEABLE], 2 + more),
        ),
        (
            "semaphore of three, permits 2, 2 and 1",
            Askers::queue(&[2, 2, 1].map(|weight| QueueSpec::permits(3, weight)), 3 + 2 * more),
        ),
        (
            "semaphore of two that is set to one and three, permits 2, 1 and 1",
            Askers {
                sizes: &[1, 3],
                ..Askers::queue(&[2, 1, 1].map(|weight| QueueSpec::permits(2, weight)), 2 + more)
            },
        ),
    ]
}

#[test]
fn every_machine_keeps_what_it_told_in_every_order() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for (what, model) in machines() {
        let checker = model.checker().threads(threads).spawn_bfs().join();
        println!("{what}: {} states, {} steps deep", checker.unique_state_count(), checker.max_depth());
        if let Some(path) = checker.discovery(PROMISES) {
            panic!("{what}: {:?}\n{:#?}", path.last_state().broken, path.clone().into_actions());
        }
    }
}

/// The check can fail: it finds each planted mistake in one of the machines.
#[test]
#[cfg(tenure_planted)]
fn every_mistake_of_a_machine_is_found() {
    let bugs = [
        Bug::ReleaseWithoutCompare,
        Bug::RenewalRecreates,
        Bug::ReentryBumpsToken,
        Bug::RepeatCountsTwice,
        Bug::ReentryShortens,
        Bug::RankOffByOne,
        Bug::ReleaseOfAnother,
        Bug::LapsedWaiterRevived,
        Bug::LeaverPromotesNobody,
        Bug::WeightIgnored,
        Bug::DowngradeWakesNobody,
        Bug::ResizeWakesNobody,
        Bug::UpgradeBesideReaders,
    ];
    for bug in bugs {
        let found = machines().into_iter().find_map(|(what, model)| {
            let model = Askers { bug: Some(bug), ..model }.checker().threads(1);
            let checker = model.finish_when(stateright::HasDiscoveries::AnyFailures).spawn_bfs().join();
            checker.discovery(PROMISES).map(|path| (what, path))
        });
        let Some((what, path)) = found else { panic!("{bug:?} is not found") };
        let broken = path.last_state().broken;
        println!("{bug:?}: {what}: {broken:?} after {:?}", path.clone().into_actions());
    }
}
