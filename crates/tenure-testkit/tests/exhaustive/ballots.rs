//! The tokens of a quorum in every order in which its messages can arrive: the real mutex machine on each
//! node, and clients that do anything that the protocol allows.
//!
//! There is no clock. A client proposes any ballot, a lease may end at any moment, a reply may be lost, and a
//! request may arrive long after its sender has given up. The invariants: no two grants have the same token,
//! and a client whose request starts after a grant is known gets a higher one. Where leases are kept, there
//! is also at most one holder.

use smallvec::{SmallVec, smallvec};
use stateright::{Checker, HasDiscoveries, Model, Property};
use tenure::internals::protocol::{
    Answer, Data, ExpiringValue, Fence, Liveness, LockSpec, Now, Op, ReleaseScope, State, Verb, apply,
    parse_value,
};
use tenure::{LockName, Owner};

use crate::is_large;

/// A node's clock; ballots are counted from here.
const EPOCH: u64 = 1_700_000_000_000_000;
const NOW: Now = Now { ms: EPOCH / 1_000, unix_us: EPOCH };

/// How a node handles a ballot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    /// The mutex machine.
    Machine,
    /// The same, but it accepts a ballot that it has seen already.
    AcceptsEqual,
    /// Counts its own grants; the client takes the highest number of a majority. The obvious design, which is
    /// wrong.
    Counts,
}

/// When a lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leases {
    /// At any moment, because clocks may be wrong.
    EndAnyhow,
    /// Not before its holder knows that it has ended.
    AreKept,
}

#[derive(Clone, Copy, Debug)]
struct Quorum {
    nodes: usize,
    node: Node,
    leases: Leases,
    /// A node may restart without its ballot.
    forgets: bool,
    /// Acquisitions per client.
    attempts: &'static [u8],
    /// Maximum higher ballots within one attempt.
    rounds: u8,
    /// The highest ballot.
    most: u8,
}

/// One acquisition of one client, with its own owner.
type Who = u8;

/// The state of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Kept {
    stored: u8,
    held: Option<(Who, u8)>,
}

/// A node, and the messages to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Place {
    kept: Kept,
    /// Clients that count its vote.
    votes: u8,
    /// Requests in flight to it; sorted, so that equal worlds are equal.
    letters: SmallVec<[Letter; 6]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Request {
    Acquire,
    Release,
}

/// A request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Letter {
    who: Who,
    ballot: u8,
    request: Request,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Asking {
        ballot: u8,
        /// The highest token known when this ballot was proposed.
        floor: u8,
        /// The highest number in the replies, where nodes count.
        highest: u8,
        rounds: u8,
    },
    Holding {
        ballot: u8,
    },
}

/// Small, because tens of millions of them are kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    /// Sorted, because nodes are interchangeable.
    nodes: SmallVec<[Place; 3]>,
    /// Attempts started, and the state of the last one.
    clients: SmallVec<[(u8, Phase); 2]>,
    /// The tokens of all grants.
    granted: u32,
    /// A token was given twice, or was not above one known at its request.
    is_broken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A client proposes this ballot: its first, or a higher one.
    Propose(u8, u8),
    /// A request reaches a node, and its reply arrives or is lost.
    Deliver(u8, u8, bool),
    /// A client gives up or releases, with or without sending that.
    Leave(u8, bool),
    /// A node's lease ends.
    Lapse(u8),
    /// A node restarts empty.
    Forget(u8),
}

fn who(client: u8, attempt: u8) -> Who {
    client * 8 + attempt
}

impl Quorum {
    /// Leases that end at any moment, and as many ballots as attempts.
    fn of(nodes: usize, attempts: &'static [u8]) -> Self {
        let (node, leases) = (Node::Machine, Leases::EndAnyhow);
        Self { nodes, node, leases, forgets: false, attempts, rounds: 1, most: attempts.iter().sum() }
    }

    /// A node's answer: the token under which the requester holds now, if it does.
    fn answer(&self, kept: &mut Kept, letter: Letter) -> Option<u8> {
        if self.node == Node::Counts {
            return count(kept, letter);
        }
        if self.node == Node::AcceptsEqual
            && letter.request == Request::Acquire
            && kept.stored == letter.ballot
        {
            kept.stored -= 1;
        }
        let owner = |who: Who| -> Owner { format!("c@h:1/{who:032x}").parse().expect("an owner") };
        let far = NOW.ms + 1_000_000;
        let held = kept.held.map(|(who, ballot)| ExpiringValue {
            value: Data::Text(format!("{}#{}", owner(who), EPOCH + u64::from(ballot))),
            expires_ms: Some(far),
        });
        let ballot = ExpiringValue { value: EPOCH + u64::from(kept.stored), expires_ms: Some(far) };
        let mut state = State { lock: held, ballot: Some(ballot) };
        let fence = Fence::Ballot(EPOCH + u64::from(letter.ballot));
        let verb = match letter.request {
            Request::Acquire => Verb::Acquire {
                ttl_ms: 1_000,
                hold: 1,
                fence,
                wait_ms: None,
                listens: None,
                bind: Liveness::Process,
            },
            Request::Release => Verb::Release { hold: 1, fence, whose: ReleaseScope::Own },
        };
        let name = LockName::new("x").expect("a name");
        let op = Op { name, spec: LockSpec::Mutex, owner: owner(letter.who), request: 0, verb };
        let (answer, _) = apply(&mut state, &mut 0, NOW, &op);
        kept.stored = (state.ballot.expect("a ballot is kept").value - EPOCH) as u8;
        kept.held = state.lock.map(|lock| match lock.value {
            Data::Text(value) => {
                let (owner, token) = parse_value(&value).expect("a value of tenure");
                let (_, number) = owner.as_str().rsplit_once('/').expect("an owner");
                (Who::from_str_radix(number, 16).expect("a number"), (token - EPOCH) as u8)
            }
            other => panic!("no mutex: {other:?}"),
        });
        match answer {
            Answer::Held { fence } => Some((fence - EPOCH) as u8),
            _ => None,
        }
    }
}

fn count(kept: &mut Kept, letter: Letter) -> Option<u8> {
    let is_mine = kept.held.is_some_and(|(who, _)| who == letter.who);
    match letter.request {
        Request::Acquire if kept.held.is_none() => {
            kept.stored += 1;
            kept.held = Some((letter.who, kept.stored));
            Some(kept.stored)
        }
        Request::Acquire => None,
        Request::Release => {
            if is_mine {
                kept.held = None;
            }
            None
        }
    }
}

/// Steps.
impl Quorum {
    /// `None` if the step is impossible.
    fn take(&self, world: &mut World, step: Step) -> Option<()> {
        match step {
            Step::Propose(client, ballot) => {
                let floor = (u32::BITS - world.granted.leading_zeros()) as u8;
                let (attempt, phase) = &mut world.clients[usize::from(client)];
                let rounds = match phase {
                    Phase::Asking { rounds, .. } => *rounds + 1,
                    _ => {
                        *attempt += 1;
                        1
                    }
                };
                let who = who(client, *attempt);
                *phase = Phase::Asking { ballot, floor, highest: 0, rounds };
                world.clear(client);
                world.send(who, ballot, Request::Acquire);
            }
            Step::Deliver(node, letter, is_heard) => {
                let node = &mut world.nodes[usize::from(node)];
                let letter = node.letters.remove(usize::from(letter));
                let told = self.answer(&mut node.kept, letter);
                let client = letter.who / 8;
                let (attempt, phase) = &mut world.clients[usize::from(client)];
                if let Some(told) = told
                    && is_heard
                    && *attempt == letter.who % 8
                    && let Phase::Asking { ballot, floor, highest, .. } = phase
                    // A node votes if it holds exactly what is requested now.
                    && (told == *ballot || self.node == Node::Counts)
                {
                    node.votes |= 1 << client;
                    *highest = (*highest).max(told);
                    let (ballot, floor, token) = (*ballot, *floor, *highest);
                    if world.has_majority(client) {
                        world.is_broken |= token <= floor || world.granted & (1 << (token - 1)) != 0;
                        world.granted |= 1 << (token - 1);
                        world.clients[usize::from(client)].1 = Phase::Holding { ballot };
                        world.clear(client);
                    }
                }
            }
            Step::Leave(client, says_so) => {
                let (attempt, phase) = &mut world.clients[usize::from(client)];
                let (Phase::Asking { ballot, .. } | Phase::Holding { ballot }) = *phase else { return None };
                let who = who(client, *attempt);
                *phase = Phase::Idle;
                world.clear(client);
                if says_so {
                    world.send(who, ballot, Request::Release);
                }
            }
            Step::Lapse(node) => {
                let (who, ballot) = world.nodes[usize::from(node)].kept.held?;
                let (attempt, phase) = world.clients[usize::from(who / 8)];
                let counts_on_it = attempt == who % 8
                    && match phase {
                        Phase::Asking { ballot: now, .. } | Phase::Holding { ballot: now } => now == ballot,
                        Phase::Idle => false,
                    };
                if self.leases == Leases::AreKept && counts_on_it {
                    return None;
                }
                world.nodes[usize::from(node)].kept.held = None;
            }
            Step::Forget(node) => world.nodes[usize::from(node)].kept = Kept::default(),
        }
        Some(())
    }
}

impl World {
    fn send(&mut self, who: Who, ballot: u8, request: Request) {
        for node in &mut self.nodes {
            node.letters.push(Letter { who, ballot, request });
            node.letters.sort_unstable();
        }
    }

    /// Discards the votes for a client.
    fn clear(&mut self, client: u8) {
        self.nodes.iter_mut().for_each(|node| node.votes &= !(1 << client));
    }

    fn has_majority(&self, client: u8) -> bool {
        let votes = self.nodes.iter().filter(|node| node.votes & (1 << client) != 0);
        votes.count() * 2 > self.nodes.len()
    }

    fn holders(&self) -> usize {
        self.clients.iter().filter(|(_, phase)| matches!(phase, Phase::Holding { .. })).count()
    }
}

impl Model for Quorum {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            nodes: smallvec![Place::default(); self.nodes],
            clients: smallvec![(0, Phase::Idle); self.attempts.len()],
            granted: 0,
            is_broken: false,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        for (client, (attempt, phase)) in world.clients.iter().enumerate() {
            let id = client as u8;
            let above = match phase {
                Phase::Idle if *attempt < self.attempts[client] => 0,
                Phase::Asking { ballot, rounds, .. } if *rounds < self.rounds => *ballot,
                _ => self.most,
            };
            // Where nodes count, clients propose nothing.
            let most = if self.node == Node::Counts { self.most.min(above + 1) } else { self.most };
            steps.extend((above + 1..=most).map(|ballot| Step::Propose(id, ballot)));
            if *phase != Phase::Idle {
                steps.extend([Step::Leave(id, true), Step::Leave(id, false)]);
            }
        }
        for (index, node) in world.nodes.iter().enumerate() {
            // One of several equal nodes is enough.
            if index > 0 && *node == world.nodes[index - 1] {
                continue;
            }
            let index = index as u8;
            for (number, letter) in node.letters.iter().enumerate() {
                steps.push(Step::Deliver(index, number as u8, true));
                if letter.request == Request::Acquire {
                    steps.push(Step::Deliver(index, number as u8, false));
                }
            }
            if node.kept.held.is_some() {
                steps.push(Step::Lapse(index));
            }
            if self.forgets && node.kept != Kept::default() {
                steps.push(Step::Forget(index));
            }
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        self.take(&mut next, step)?;
        next.nodes.sort_unstable();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ORDER, |_, world: &World| !world.is_broken),
            Property::always(EXCLUSION, |model, world: &World| {
                model.leases == Leases::EndAnyhow || world.holders() <= 1
            }),
            Property::sometimes("a client is granted it", |_, world: &World| world.granted != 0),
            Property::sometimes("it is granted twice", |model, world: &World| {
                model.attempts.iter().sum::<u8>() < 2 || world.granted.count_ones() > 1
            }),
        ]
    }
}

const ORDER: &str = "tokens are unique and grow";
const EXCLUSION: &str = "one holder at a time, where leases are kept";

/// Explores all states, and prints their number.
fn explore(what: &str, model: Quorum) -> impl Checker<Quorum> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checker = model.checker().threads(threads).spawn_bfs().join();
    println!("{what}: {} states, {} steps deep", checker.unique_state_count(), checker.max_depth());
    checker
}

#[test]
fn tokens_are_unique_and_grow_whatever_the_clocks_do() {
    explore("three nodes, leases that end anyhow", Quorum::of(3, &[1, 1])).assert_properties();
    if is_large() {
        let again = Quorum { rounds: 2, most: 3, ..Quorum::of(3, &[1, 1]) };
        explore("the same, and a second ballot", again).assert_properties();
    }
}

#[test]
fn there_is_one_holder_where_leases_are_kept() {
    let once = Quorum { leases: Leases::AreKept, ..Quorum::of(3, &[1, 1]) };
    explore("three nodes, leases that are kept", once).assert_properties();
    if is_large() {
        let twice = Quorum { leases: Leases::AreKept, ..Quorum::of(3, &[2, 1]) };
        explore("the same, and a second acquisition", twice).assert_properties();
    }
}

/// The check can fail: it catches each of these mistakes of clients.
#[test]
fn a_node_that_counts_or_accepts_twice_or_forgets_is_found_out() {
    let three = Quorum::of(3, &[2, 1]);
    for (what, model) in [
        ("nodes that count for themselves", Quorum { node: Node::Counts, ..three }),
        ("nodes that accept a ballot twice", Quorum { node: Node::AcceptsEqual, ..three }),
        ("a node that forgets its ballot", Quorum { forgets: true, ..three }),
    ] {
        let model = model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        println!("{what}: found after {} states", model.unique_state_count());
        model.assert_any_discovery(ORDER);
    }
}
