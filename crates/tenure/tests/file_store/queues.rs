//! Queues: what a request writes, and that it answers as the machine does.

use tenure::internals::protocol::{self, Data, Now, State};

use super::*;

fn refresh(owners: &[Owner]) -> Verb {
    Verb::Refresh { owners: owners.into(), wait_ms: 5_000, listens: Listening::new(1) }
}

#[test]
fn a_refresh_with_half_of_its_time_left_writes_nothing() {
    let dir = dir();
    let (holder, waiter) = (Client::of(FAIR, dir.path()), Client::of(FAIR, dir.path()));
    holder.join("x", &owner());
    let owners = [(); 300].map(|()| owner());
    owners.iter().for_each(|owner| drop(waiter.join("x", owner)));
    let files = || [record(dir.path()), dir.path().join("guard")].map(|file| fs::read(file).expect("a file"));
    let before = files();
    let some = &owners[100..103];
    let answer = waiter.ask("x", &some[0], refresh(some), 5 * SECOND).expect("an answer");
    let waits = |place: &Place| matches!(place, Place::Waiting { .. });
    assert!(matches!(&answer, Answer::Places { places, .. } if places.iter().all(waits)), "{answer:?}");
    assert!(files() == before);
}

#[test]
fn a_queue_that_many_have_left_is_as_short_as_before() {
    let dir = dir();
    let client = Client::of(FAIR, dir.path());
    let owners = [(); 20].map(|()| owner());
    owners.iter().for_each(|owner| drop(client.join("x", owner)));
    let length = || fs::metadata(record(dir.path())).expect("a record").len();
    let before = length();
    for _ in 0..200 {
        let comes = owner();
        client.join("x", &comes);
        assert_eq!(client.release("x", &comes), Answer::Released { left: 0 });
    }
    assert!(length() < before + 100, "{before} bytes before, and {} after", length());
    for owner in &owners {
        assert!(is_held(&client.join("x", owner)), "first come, first served");
        assert_eq!(client.release("x", owner), Answer::Released { left: 0 });
    }
    assert_eq!((files(dir.path(), "spare-").len(), files(dir.path(), "lock-").len()), (0, 0));
}

#[test]
fn hundreds_of_readers_are_let_in_together_and_no_newcomer_passes_them() {
    let dir = dir();
    let (writer, reader) = (Client::of(WRITER, dir.path()), Client::of(READER, dir.path()));
    let (writes, late) = (owner(), owner());
    writer.join("x", &writes);
    let readers: Vec<Owner> = (0..400).map(|_| owner()).collect();
    let places: Vec<u64> = readers.iter().map(|owner| ticket(&reader.join("x", owner))).collect();
    let last = places[places.len() - 1];
    let released = writer.release("x", &writes);
    assert_eq!(released, Answer::More(Box::new(Answer::Released { left: 0 })), "in pieces");
    // A newcomer goes on until all waiters before it are admitted.
    let comes = loop {
        match more(reader.join("x", &late)) {
            (Answer::Waiting { .. }, true) => {}
            (answer, is_more) => break (answer, is_more),
        }
    };
    assert!(matches!(&comes, (answer, false) if is_held(answer) && ticket(answer) > last), "{comes:?}");
    let found = found(reader.inspect("x"));
    assert_eq!((found.holders.len(), found.waiters.len()), (401, 0));
}

/// Sends the same requests to the machine in memory and to the store, and compares.
struct Twins {
    _dir: TempDir,
    clients: [Client; 2],
    spec: LockSpec,
    state: State,
    counter: u64,
    /// The store's number for each number of the machine.
    numbers: std::collections::BTreeMap<u64, u64>,
}

impl Twins {
    const NOW: Now = Now { ms: 1_000, unix_us: 1_000 };

    fn new(spec: LockSpec) -> Self {
        let dir = dir();
        let clients = [(); 2].map(|()| Client::of(spec, dir.path()));
        Self { _dir: dir, clients, spec, state: State::default(), counter: 0, numbers: Default::default() }
    }

    fn machine(&mut self, owner: &Owner, verb: Verb) -> (Answer, bool) {
        let name = LockName::new("x").expect("a name");
        let op = Op { name, spec: self.spec, owner: owner.clone(), request: 0, verb };
        let answer = protocol::apply(&mut self.state, &mut self.counter, Self::NOW, &op).0;
        more(answer)
    }

    fn ask(&mut self, client: usize, owner: &Owner, verb: Verb) {
        self.clients[client].spec = self.spec;
        let asked = self.clients[client].ask("x", owner, verb.clone(), 5 * SECOND).expect("an answer");
        let (mut theirs, mut is_more) = more(asked);
        let (mut ours, mut goes_on) = self.machine(owner, verb.clone());
        let repeats = matches!(verb, Verb::Acquire { .. } | Verb::Refresh { .. });
        while is_more || goes_on {
            let rest = if repeats { verb.clone() } else { refresh(&[]) };
            let (asked, machine) = (
                self.clients[client].ask("x", owner, rest.clone(), 5 * SECOND).expect("an answer"),
                self.machine(owner, rest),
            );
            let (again, more) = more(asked);
            if repeats {
                (theirs, ours) = (again, machine.0);
            }
            (is_more, goes_on) = (more, machine.1);
        }
        let said = format!("{verb:?} of {owner}: {theirs:?}, and the machine says {ours:?}");
        self.compare(&ours, &theirs, &said);
        let stands = match &self.state.lock {
            Some(lock) => match &lock.value {
                Data::Queue(queue) => queue
                    .tickets()
                    .map(|(number, ticket)| (ticket.owner.as_str().to_owned(), number <= queue.mark))
                    .collect::<Vec<_>>(),
                other => panic!("{other:?}"),
            },
            None => Vec::new(),
        };
        let found = match self.clients[1 - client].inspect("x").expect("an answer") {
            Answer::Found(found) => [(found.holders, true), (found.waiters, false)]
                .into_iter()
                .flat_map(|(all, holds)| all.into_iter().map(move |one| (one, holds)))
                .map(|(one, holds)| {
                    let value = String::from_utf8(one.value).expect("text");
                    (value.rsplit_once('#').expect("a token").0.to_owned(), holds)
                })
                .collect(),
            _ => Vec::new(),
        };
        assert_eq!(found, stands, "after {said}");
    }

    fn compare(&mut self, ours: &Answer, theirs: &Answer, said: &str) {
        match (ours, theirs) {
            (Answer::Held { fence: ours }, Answer::Held { fence: theirs })
            | (Answer::Waiting { ticket: ours, .. }, Answer::Waiting { ticket: theirs, .. }) => {
                self.same(*ours, *theirs, said);
            }
            (Answer::Places { places: ours, .. }, Answer::Places { places: theirs, .. }) => {
                assert_eq!(ours.len(), theirs.len(), "{said}");
                for place in ours.iter().zip(theirs) {
                    match place {
                        (Place::Held { fence: ours }, Place::Held { fence: theirs })
                        | (Place::Waiting { ticket: ours }, Place::Waiting { ticket: theirs }) => {
                            self.same(*ours, *theirs, said);
                        }
                        (ours, theirs) => assert_eq!(ours, theirs, "{said}"),
                    }
                }
            }
            (Answer::Found(ours), Answer::Found(theirs)) => {
                assert_eq!(ours.holders.len(), theirs.holders.len(), "{said}");
            }
            (Answer::Busy { .. }, Answer::Busy { .. }) => {}
            (ours, theirs) => assert_eq!(ours, theirs, "{said}"),
        }
    }

    fn same(&mut self, ours: u64, theirs: u64, said: &str) {
        assert_eq!(*self.numbers.entry(ours).or_insert(theirs), theirs, "{said}");
        let last = self.numbers.range(..ours).next_back().map(|(_, last)| *last);
        assert!(last < Some(theirs), "{said}: after {last:?}");
    }
}

fn more(answer: Answer) -> (Answer, bool) {
    match answer {
        Answer::More(answer) => (*answer, true),
        answer => (answer, false),
    }
}

#[test]
fn a_directory_answers_as_the_machine_does() {
    let seats = |kind| match kind {
        0 => vec![FAIR],
        1 => vec![READER, READER, READER, WRITER],
        _ => vec![LockSpec::Queue(QueueSpec::permits(9, 1)), LockSpec::Queue(QueueSpec::permits(9, 4))],
    };
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 11) % below
    };
    for kind in 0..3 {
        let rules = seats(kind);
        let mut twins = Twins::new(rules[0]);
        let owners: Vec<Owner> = (0..150).map(|_| owner()).collect();
        for step in 0..900_u64 {
            twins.spec = rules[next(rules.len() as u64) as usize];
            // At first more join, then more leave.
            let goes = if step < 400 { 15 } else { 45 };
            let who = owners[next(150) as usize].clone();
            // Mostly through the client with which it joined.
            let client = usize::from((who.as_str().as_bytes().last() == Some(&b'7')) != (next(12) == 0));
            let acquire = |wait_ms| Verb::Acquire {
                ttl_ms: LONG_MS,
                hold: 1,
                fence: Fence::Assign,
                wait_ms,
                listens: Listening::new(1),
                bind: if wait_ms == Some(LONG_MS) { Liveness::Process } else { Liveness::Lease },
            };
            let verb = match next(100) {
                chance if chance < goes => release(),
                chance if chance < goes + 15 => {
                    let some: Vec<Owner> =
                        (0..1 + next(6)).map(|_| owners[next(150) as usize].clone()).collect();
                    refresh(&some)
                }
                chance if chance < goes + 20 => {
                    Verb::Renew { ttl_ms: LONG_MS, hold: 1, bind: None, weight: None }
                }
                chance if chance < goes + 25 => acquire(None),
                chance if chance == goes + 25 && next(4) == 0 => {
                    Verb::Release { hold: 0, fence: Fence::Assign, whose: ReleaseScope::Any }
                }
                chance if chance < goes + 30 => acquire(Some(LONG_MS - 1)),
                _ => acquire(Some(LONG_MS)),
            };
            twins.ask(client, &who, verb);
        }
        println!("{} numbers were given", twins.numbers.len());
    }
}
