//! Who has a place at which lock: kept by what the server answered, and compared with what stands at its keys.

use std::collections::BTreeMap;

use tenure::internals::protocol::{Answer, Bind, Place as Told, Verb, Wake, Whose};
use tenure::{LockName, Owner};

use super::history::History;
use super::members::Members;
use super::{Executed, Hold, Violation, Wait};
use crate::sim::clock::{MS, TrueTime};
use crate::sim::executor::{ProcessId, Sim};
use crate::sim::regime::{Plan, Sort};

/// All that the oracle knows.
pub(super) struct Book {
    pub(super) locks: BTreeMap<LockName, Lock>,
    pub(super) owners: BTreeMap<Owner, Owned>,
    pub(super) holds: Vec<Hold>,
    pub(super) waits: Vec<Wait>,
    /// What callers know of it.
    pub(super) history: History,
    /// Where a majority of several servers decides.
    pub(super) members: Option<Members>,
    /// Who was let in by the request that is judged, and as what.
    let_in: Vec<(u64, Owner)>,
    /// The places at a lock before each request, where the server may go back.
    past: Vec<(TrueTime, LockName, Vec<Place>)>,
    /// When the server last did what may have ended leases without their owners' doing.
    pub(super) shaken_at: TrueTime,
    /// How much has gone wrong between each process and the server.
    pub(super) failed: BTreeMap<ProcessId, u32>,
    pub(super) next_id: u64,
    pub(super) plan: Plan,
    pub(super) longest_ms: u64,
    pub(super) violation: Option<Violation>,
    pub(super) grants: u64,
}

/// The truth about one lock.
pub(super) struct Lock {
    pub(super) sort: Sort,
    /// Who holds and who waits, in the order in which they came.
    pub(super) places: Vec<Place>,
    /// While nobody has a place: since when, which is also until when somebody did.
    pub(super) free_since: TrueTime,
    /// Since when that may be known.
    known_since: TrueTime,
    /// Since when the first who waits could have been let in.
    pub(super) open_since: Option<TrueTime>,
    pub(super) last_number: u64,
    pub(super) last_token: u64,
    pub(super) last_reported: u64,
    pub(super) last_exclusive: u64,
    pub(super) edge: TrueTime,
}

/// One owner's place at a lock.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) owner: Owner,
    pub(super) process: ProcessId,
    /// Its token, and in a queue its number.
    pub(super) number: u64,
    pub(super) weight: u32,
    pub(super) holds: bool,
    /// The first moment at which it is gone.
    pub(super) lapses: TrueTime,
    /// Whether it is bound to its process.
    is_bound: bool,
    /// Whether it was told when to ask again, as the first in line is.
    pub(super) knows: bool,
    /// The holds that a reentrant owner has, each with its process, and how many are on their way from one to another.
    live: Vec<(u64, ProcessId)>,
    pub(super) detached: u32,
}

/// What became of one owner.
pub(super) struct Owned {
    /// Where its last request came from.
    pub(super) process: ProcessId,
    /// Every process that a request of it came from, as bits.
    pub(super) processes: u64,
    pub(super) token: u64,
    /// The tokens of holds that were ended for it.
    pub(super) taken: Vec<u64>,
    /// When the server set its lease first and last, and until when.
    pub(super) granted_at: TrueTime,
    pub(super) set_at: TrueTime,
    pub(super) lapses: TrueTime,
    /// Until when it may believe in its lease at most, by what it was told.
    pub(super) told_until: TrueTime,
    /// The tokens with which it may have been told of a longer lease than it had: see [`Book::doubt`].
    pub(super) doubted: Vec<u64>,
    /// Its place is there again, because the server went back to what it was.
    pub(super) is_back: bool,
    /// It has only a place.
    pub(super) waits: bool,
    /// It had been let in, and has only a place again, because the server went back: it may hear of its turn until it has been told
    /// that it waits.
    pub(super) was_let_in: bool,
    /// When somebody else's request let it in.
    pub(super) let_in_at: Option<TrueTime>,
    /// When a guard of it was handed out, or it renewed what it was let in to.
    pub(super) told_at: Option<TrueTime>,
    /// It had only a place at first.
    pub(super) was_called: bool,
    /// When the server ended it, and how.
    pub(super) ended: Option<(TrueTime, End)>,
    /// When its last guard went, if it ever had one.
    pub(super) let_go_at: Option<TrueTime>,
    /// How many holds were passed on without a guard.
    pub(super) detached: u32,
    /// How often an acquisition of it was granted.
    pub(super) grants: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Released,
    /// By somebody else, or by a server that forgets: its guard cannot know yet.
    Forced,
}

impl Place {
    /// Whether it is the same place at another time.
    fn is_of(&self, other: &Self) -> bool {
        (&self.owner, self.number) == (&other.owner, other.number)
    }

    /// Whether this hold of its owner counts, where they are counted.
    pub(super) fn is_live(&self, hold: u64) -> bool {
        self.live.iter().any(|(live, _)| *live == hold)
    }

    /// How many holds its owner has, where they are counted.
    pub(super) fn count(&self) -> u32 {
        self.live.len() as u32 + self.detached
    }
}

impl Lock {
    pub(super) fn place(&self, owner: &Owner) -> Option<&Place> {
        self.places.iter().find(|place| place.owner == *owner)
    }

    pub(super) fn used(&self) -> u64 {
        self.places.iter().filter(|place| place.holds).map(|place| u64::from(place.weight)).sum()
    }

    /// The first who waits.
    pub(super) fn head(&self) -> Option<&Place> {
        self.places.iter().find(|place| !place.holds)
    }

    pub(super) fn fits(&self, weight: u32) -> bool {
        self.used() + u64::from(weight) <= u64::from(self.sort.capacity())
    }

    /// The first who waits could be let in.
    pub(super) fn is_open(&self) -> bool {
        self.head().is_some_and(|head| self.fits(head.weight))
    }

    /// Brings what follows from the places up to date.
    pub(super) fn changed(&mut self, at: TrueTime) {
        if self.places.is_empty() {
            (self.free_since, self.known_since) = (at, at);
        }
        self.open_since = if self.is_open() { self.open_since.or(Some(at)) } else { None };
    }
}

impl Book {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            locks: BTreeMap::new(),
            owners: BTreeMap::new(),
            holds: Vec::new(),
            waits: Vec::new(),
            history: History::new(plan),
            members: None,
            let_in: Vec::new(),
            past: Vec::new(),
            shaken_at: 0,
            failed: BTreeMap::new(),
            next_id: 0,
            plan: *plan,
            longest_ms: plan.ttl.as_millis() as u64,
            violation: None,
            grants: 0,
        }
    }

    pub(super) fn open(&mut self, name: &LockName, sort: Sort) {
        let lock = Lock {
            sort,
            places: Vec::new(),
            free_since: 0,
            known_since: 0,
            open_since: None,
            last_number: 0,
            last_token: 0,
            last_reported: 0,
            last_exclusive: 0,
            edge: 0,
        };
        self.history.open(name, sort);
        self.locks.insert(name.clone(), lock);
    }

    pub(super) fn accuse(&mut self, at: TrueTime, invariant: &'static str, what: String) {
        self.violation.get_or_insert(Violation { at, invariant, what });
    }

    /// Brings the truth about a lock up to this moment: what has lapsed is gone, one after the other.
    pub(super) fn settle(&mut self, at: TrueTime, name: &LockName, sim: &Sim) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        while let Some(lapsed) = lock.places.iter().map(|place| place.lapses).min().filter(|end| *end <= at) {
            lock.places.retain(|place| place.lapses > lapsed);
            lock.changed(lapsed);
            lock.known_since = lapsed + self.plan.looks;
        }
        self.check_let_in(at, name, sim);
    }

    /// The same for every lock. Returns their names.
    pub(super) fn settle_all(&mut self, at: TrueTime, sim: &Sim) -> Vec<LockName> {
        let names: Vec<LockName> = self.locks.keys().cloned().collect();
        names.iter().for_each(|name| self.settle(at, name, sim));
        names
    }

    /// Writes down what a request did, and judges it. `news`: owners whose lease was set.
    pub(super) fn note(&mut self, at: TrueTime, executed: &Executed<'_>, sim: &Sim, news: &mut Vec<Owner>) {
        let (name, owner) = (&executed.op.name, &executed.op.owner);
        match (&executed.op.verb, executed.answer) {
            (Verb::Acquire { .. } | Verb::Renew { .. }, Answer::Held { fence }) => {
                self.held(at, executed, owner, *fence, sim, news);
            }
            (Verb::Acquire { .. }, Answer::Waiting { ticket, retry_in_ms }) => {
                self.waiting(at, executed, owner, *ticket, news);
                self.told_when(name, *retry_in_ms);
            }
            (Verb::Refresh { owners, .. }, Answer::Places { places, retry_in_ms }) => {
                for (owner, place) in owners.iter().zip(places) {
                    match place {
                        Told::Held { fence } => self.held(at, executed, owner, *fence, sim, news),
                        Told::Waiting { ticket } => self.waiting(at, executed, owner, *ticket, news),
                        Told::Gone => self.check_gone(at, executed, owner),
                    }
                }
                self.told_when(name, *retry_in_ms);
            }
            (Verb::Release { whose: Whose::Mine, .. }, Answer::Released { left }) => {
                self.released(at, executed, *left);
            }
            (Verb::Release { whose: Whose::Anyone, .. }, Answer::Found(_)) => {
                self.force(at, name, |place| place.holds);
            }
            (Verb::Acquire { .. }, Answer::Busy { .. }) => self.check_refused(at, executed),
            (
                Verb::Renew { .. } | Verb::Release { whose: Whose::Mine, .. },
                Answer::Free | Answer::Busy { .. },
            ) => {
                self.check_gone(at, executed, owner);
            }
            _ => {}
        }
        if let Some(Wake::Granted { tickets }) = executed.wake {
            tickets.iter().for_each(|ticket| self.let_in(at, executed, *ticket, sim, news));
        }
        // One request may let in several, in whatever order it says so.
        let mut let_in = std::mem::take(&mut self.let_in);
        let_in.sort_unstable();
        for (number, owner) in let_in.drain(..) {
            self.check_granted(at, name, &owner, number);
        }
        self.let_in = let_in;
        if let Some(lock) = self.locks.get_mut(name) {
            lock.changed(at);
            // A look sweeps nothing, and neither does another machine.
            if !matches!(
                (&executed.op.verb, executed.answer),
                (Verb::Inspect, _) | (_, Answer::Mismatch { .. })
            ) {
                self.check_head(at, name);
            }
        }
    }

    /// The server said that an owner holds.
    fn held(
        &mut self,
        at: TrueTime,
        executed: &Executed<'_>,
        owner: &Owner,
        token: u64,
        sim: &Sim,
        news: &mut Vec<Owner>,
    ) {
        let Some((lapses, weight)) = self.check_end(at, executed, owner) else { return };
        let name = &executed.op.name;
        let Some(lock) = self.locks.get_mut(name) else { return };
        let known = lock.places.iter().position(|place| place.owner == *owner);
        let (is_new, held) = (known.is_none(), known.is_some_and(|known| lock.places[known].holds));
        let known = known.unwrap_or_else(|| lock.add(owner, token));
        let known_since = lock.known_since;
        let place = &mut lock.places[known];
        (place.process, place.lapses, place.holds) = (executed.process, lapses, true);
        if lock.sort == Sort::Reentrant {
            place.count_in(&executed.op.verb, executed.process);
        } else {
            place.weight = weight;
        }
        place.bind(&executed.op.verb);
        lock.edge = lapses;
        if is_new {
            self.check_made(at, executed, owner);
        }
        if held {
            self.check_kept(at, name, owner, token);
        } else {
            if is_new {
                self.check_prompt(at, name, known_since, sim);
            }
            self.let_in.push((token, owner.clone()));
        }
        self.check_count(at, executed, owner);
        let acquired = matches!(executed.op.verb, Verb::Acquire { .. });
        let renewed = matches!(executed.op.verb, Verb::Renew { .. });
        let owned = self.owned(at, executed, owner, token, lapses);
        if owned.waits || is_new {
            owned.granted_at = at;
        }
        owned.waits = false;
        if renewed {
            owned.told_at = Some(at);
        }
        owned.grants += u32::from(acquired);
        self.trust(at, executed, owner, token, is_new);
        news.push(owner.clone());
    }

    /// The server said that an owner has a place.
    fn waiting(
        &mut self,
        at: TrueTime,
        executed: &Executed<'_>,
        owner: &Owner,
        number: u64,
        news: &mut Vec<Owner>,
    ) {
        let Some((lapses, weight)) = self.check_end(at, executed, owner) else { return };
        let name = &executed.op.name;
        let Some(lock) = self.locks.get_mut(name) else { return };
        let known = lock.places.iter().position(|place| place.owner == *owner);
        let is_new = known.is_none();
        let place = known.unwrap_or_else(|| lock.add(owner, number));
        let place = &mut lock.places[place];
        (place.process, place.lapses, place.weight) = (executed.process, lapses, weight);
        place.bind(&executed.op.verb);
        lock.edge = lapses;
        if is_new {
            self.check_made(at, executed, owner);
            self.check_numbered(at, name, number);
        } else {
            self.check_place_kept(at, name, owner, number);
        }
        let owned = self.owned(at, executed, owner, number, lapses);
        (owned.waits, owned.was_called) = (true, true);
        self.trust(at, executed, owner, number, is_new);
        news.push(owner.clone());
    }

    /// Whoever is first in line was told when to ask again, if anybody was.
    fn told_when(&mut self, name: &LockName, retry_in_ms: Option<u64>) {
        let lock = self.locks.get_mut(name).filter(|_| retry_in_ms.is_some());
        if let Some(head) = lock.and_then(|lock| lock.places.iter_mut().find(|place| !place.holds)) {
            head.knows = true;
        }
    }

    /// Somebody's request let in a ticket that waited.
    fn let_in(
        &mut self,
        at: TrueTime,
        executed: &Executed<'_>,
        number: u64,
        sim: &Sim,
        news: &mut Vec<Owner>,
    ) {
        let name = &executed.op.name;
        let Some(lock) = self.locks.get_mut(name) else { return };
        let place = lock.places.iter_mut().find(|place| place.number == number && !place.holds);
        let Some(place) = place else { return self.check_told_number(at, name, number) };
        place.holds = true;
        let owner = place.owner.clone();
        self.let_in.push((number, owner.clone()));
        if let Some(owned) = self.owners.get_mut(&owner) {
            (owned.waits, owned.granted_at) = (false, at);
            if at >= self.plan.strict_from && sim.runs(owned.process) {
                owned.let_in_at = Some(at);
            }
        }
        news.push(owner);
    }

    fn released(&mut self, at: TrueTime, executed: &Executed<'_>, left: u32) {
        let (name, owner) = (&executed.op.name, &executed.op.owner);
        let Some(lock) = self.locks.get_mut(name) else { return };
        let Some(known) = lock.places.iter().position(|place| place.owner == *owner) else { return };
        if let (Sort::Reentrant, Verb::Release { hold, .. }) = (lock.sort, &executed.op.verb) {
            let place = &mut lock.places[known];
            place.live.retain(|(live, _)| live != hold);
            let count = place.count();
            self.check_left(at, name, owner, count, left);
            if left > 0 {
                return self.check_count(at, executed, owner);
            }
        }
        if let Some(lock) = self.locks.get_mut(name) {
            lock.places.remove(known);
        }
        if let Some(owned) = self.owners.get_mut(owner) {
            owned.ended = Some((at, End::Released));
        }
    }

    /// Places end without the doing of those who have them.
    pub(super) fn force(&mut self, at: TrueTime, name: &LockName, which: impl Fn(&Place) -> bool) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        let (gone, stay) = std::mem::take(&mut lock.places).into_iter().partition(which);
        lock.places = stay;
        lock.changed(at);
        let gone: Vec<Place> = gone;
        if !gone.is_empty() {
            self.history.ends_here(at);
        }
        for place in gone {
            if let Some(owned) = self.owners.get_mut(&place.owner) {
                owned.ended = Some((at, End::Forced));
                owned.taken.push(place.number);
                owned.detached = 0;
            }
            let guards = self.holds.iter_mut().filter(|hold| hold.owner == place.owner);
            guards.for_each(|hold| hold.is_forced = true);
        }
    }

    /// A process is over: what is bound to it is gone.
    pub(super) fn bury(&mut self, at: TrueTime, process: ProcessId) {
        for lock in self.locks.values_mut() {
            let is_counted = lock.sort == Sort::Reentrant;
            lock.places.iter_mut().for_each(|place| place.live.retain(|(_, of)| *of != process));
            let ends = |place: &mut Place| match is_counted {
                true => place.count() == 0,
                false => place.is_bound && place.process == process,
            };
            for place in lock.places.extract_if(.., ends) {
                if let Some(owned) = self.owners.get_mut(&place.owner) {
                    owned.ended = Some((at, End::Forced));
                }
            }
            lock.changed(at);
        }
    }

    /// Remembers what the places are before a request, where the server may go back to that.
    pub(super) fn remember(&mut self, at: TrueTime, name: &LockName) {
        if self.plan.blows.rewind > 0
            && let Some(lock) = self.locks.get(name)
        {
            self.past.push((at, name.clone(), lock.places.clone()));
        }
    }

    /// The server is what it was at a moment: who had a place then has it again, and nobody else. Returns what locks that changed.
    pub(super) fn rewind(&mut self, at: TrueTime, to: TrueTime) -> Vec<LockName> {
        self.history.ends_here(at);
        let mut then: BTreeMap<LockName, Vec<Place>> = BTreeMap::new();
        while let Some((_, name, places)) = self.past.pop_if(|(at, ..)| *at > to) {
            then.insert(name, places);
        }
        for (name, places) in &then {
            self.force(at, name, |now| !places.iter().any(|then| then.is_of(now)));
            let Some(lock) = self.locks.get_mut(name) else { continue };
            let kept = std::mem::take(&mut lock.places);
            for place in places {
                let now = kept.iter().find(|now| place.is_of(now));
                if let Some(owned) = self.owners.get_mut(&place.owner) {
                    (owned.token, owned.lapses, owned.waits) = (place.number, place.lapses, !place.holds);
                    (owned.let_in_at, owned.is_back) = (None, true);
                    owned.was_let_in |= !place.holds && now.is_some_and(|now| now.holds);
                    owned.ended = if now.is_some() { None } else { Some((at, End::Forced)) };
                }
                lock.places.push(place.clone());
            }
            lock.open_since = None;
            lock.changed(at);
        }
        then.into_keys().collect()
    }

    /// What the guards of this lock were told of their leases may be more than they have: nothing is held against them until the
    /// server sets a lease anew.
    pub(super) fn doubt(&mut self, name: &LockName) {
        let places = self.locks.get(name).into_iter().flat_map(|lock| &lock.places);
        let guards = self.holds.iter_mut().filter(|hold| hold.name == *name);
        let guards = guards.map(|hold| {
            hold.is_doubted = true;
            &hold.owner
        });
        for owner in places.map(|place| &place.owner).chain(guards) {
            if let Some(owned) = self.owners.get_mut(owner) {
                owned.doubted.push(owned.token);
            }
        }
    }

    /// A lease may have been set anew. Of a reentrant owner that says nothing of its other holds, nor of any where it was told of a
    /// longer one before.
    fn trust(&mut self, at: TrueTime, executed: &Executed<'_>, owner: &Owner, token: u64, is_new: bool) {
        let Some(owned) = self.owners.get_mut(owner) else { return };
        let told_ms = match executed.op.verb {
            Verb::Refresh { wait_ms: 0, .. } => return,
            Verb::Acquire { wait_ms: Some(wait_ms), .. } if owned.waits => wait_ms,
            Verb::Refresh { wait_ms, .. } => wait_ms,
            Verb::Acquire { ttl_ms, .. } | Verb::Renew { ttl_ms, .. } => ttl_ms,
            Verb::Release { .. } | Verb::Inspect => return,
        };
        // Less what whoever holds takes off for clocks and rounding.
        let until = at + (told_ms * MS * 99 / 100).saturating_sub(2 * MS);
        owned.told_until = if is_new { until } else { owned.told_until.max(until) };
        owned.is_back &= !is_new;
        owned.was_let_in &= !is_new;
        if owned.lapses < owned.told_until {
            return;
        }
        let is_one = self.locks.get(&executed.op.name).is_some_and(|lock| lock.sort != Sort::Reentrant);
        owned.doubted.retain(|doubted| !is_one || *doubted != token);
        let guards =
            self.holds.iter_mut().filter(|hold| is_one && hold.owner == *owner && hold.token == token);
        guards.for_each(|hold| hold.is_doubted = false);
    }

    /// The server's clock was set: leases end when it says so now, some of them at once.
    pub(super) fn retime(&mut self, at: TrueTime, lapses: impl Fn(&LockName, &Owner) -> Option<TrueTime>) {
        self.history.ends_here(at);
        for (name, lock) in &mut self.locks {
            for place in &mut lock.places {
                place.lapses = lapses(name, &place.owner).unwrap_or(at).max(at);
                lock.edge = place.lapses;
                if let Some(owned) = self.owners.get_mut(&place.owner) {
                    owned.lapses = place.lapses;
                }
            }
        }
    }

    fn owned(
        &mut self,
        at: TrueTime,
        executed: &Executed<'_>,
        owner: &Owner,
        token: u64,
        lapses: TrueTime,
    ) -> &mut Owned {
        let owned = self.owners.entry(owner.clone()).or_insert_with(|| Owned::new(at));
        // A grant that lapsed before anybody was told of it may be made anew, with another token.
        (owned.process, owned.token, owned.lapses) = (executed.process, token, lapses);
        owned.processes |= 1 << executed.process;
        (owned.set_at, owned.ended) = (at, None);
        owned
    }

    /// Whether this owner's guard may rightly believe in a hold that the server no longer has.
    pub(super) fn is_forced(&self, owner: &Owner) -> bool {
        self.owners.get(owner).is_some_and(|owned| matches!(owned.ended, Some((_, End::Forced))))
    }
}

impl Lock {
    fn add(&mut self, owner: &Owner, number: u64) -> usize {
        let (owner, live) = (owner.clone(), Vec::new());
        let (process, weight, holds, lapses, is_bound, knows, detached) = (0, 1, false, 0, false, false, 0);
        let place = Place { owner, process, number, weight, holds, lapses, is_bound, knows, live, detached };
        self.places.push(place);
        self.places.len() - 1
    }
}

impl Owned {
    /// What has become of nobody yet.
    pub(super) fn new(at: TrueTime) -> Self {
        Self {
            process: 0,
            processes: 0,
            token: 0,
            taken: Vec::new(),
            granted_at: at,
            set_at: at,
            lapses: at,
            told_until: 0,
            doubted: Vec::new(),
            is_back: false,
            was_let_in: false,
            waits: false,
            let_in_at: None,
            told_at: None,
            was_called: false,
            ended: None,
            let_go_at: None,
            detached: 0,
            grants: 0,
        }
    }
}

impl Place {
    /// That of an owner who holds, where one holds.
    pub(super) fn of(owner: &Owner, lapses: TrueTime) -> Self {
        let (owner, live) = (owner.clone(), Vec::new());
        let (process, number, weight, holds, is_bound, knows, detached) = (0, 0, 1, true, false, false, 0);
        Self { owner, process, number, weight, holds, lapses, is_bound, knows, live, detached }
    }

    /// What a granted request means for the holds of a reentrant owner.
    fn count_in(&mut self, verb: &Verb, process: ProcessId) {
        match verb {
            Verb::Acquire { hold, .. } if !self.is_live(*hold) => self.live.push((*hold, process)),
            Verb::Renew { hold, bind: Some(Bind::Lease), .. } if self.is_live(*hold) => {
                self.live.retain(|(live, _)| live != hold);
                self.detached += 1;
            }
            Verb::Renew { hold, bind: Some(Bind::Process | Bind::Work), .. }
                if !self.is_live(*hold) && self.detached > 0 =>
            {
                self.detached -= 1;
                self.live.push((*hold, process));
            }
            _ => {}
        }
    }

    fn bind(&mut self, verb: &Verb) {
        if let Verb::Acquire { bind, .. } | Verb::Renew { bind: Some(bind), .. } = verb {
            self.is_bound = *bind != Bind::Lease;
        }
    }
}
