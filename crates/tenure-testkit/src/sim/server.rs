//! The one store behind every process: the machines of `protocol`, on its own clock.

use std::cell::RefCell;
use std::collections::BTreeMap;

use tenure::internals::protocol::{
    self, Answer, Data, ExpiringValue, Found, Listening, Notification, Now, Op, State,
};
use tenure::{LockName, Owner};

use super::clock::{Clock, MS, TrueTime};
use super::scripts::{Audience, Scripts};

/// Its wall clock began here, in microseconds since 1970.
const EPOCH_US: u64 = 1_700_000_000_000_000;

/// The server's locks and its clock.
#[derive(Debug, Default)]
pub struct Server {
    clock: Clock,
    locks: BTreeMap<LockName, State>,
    /// The last token given, for any lock.
    counter: u64,
    /// The same, kept by the scripts themselves.
    scripts: Option<Scripts>,
    /// Where the two first differed.
    difference: Option<String>,
    /// What each request has changed, where the server may go back to what it was.
    past: Option<Vec<Past>>,
    /// By how much its clock is off, for having been set.
    off: i64,
}

/// One request, and what it found.
#[derive(Debug)]
struct Past {
    at: TrueTime,
    now: Now,
    op: Op,
    before: State,
    counter: u64,
    audience: Audience,
}

/// What stands at a lock's key.
#[derive(Clone, Copy, Debug)]
pub struct LockView<'a> {
    data: &'a Data,
    clock: Clock,
    /// The first moment of true time at which the key is gone, unless it has no end.
    pub lapses: Option<TrueTime>,
}

/// What one owner has there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The first moment of true time at which it is over, unless it has no end.
    pub lapses: Option<TrueTime>,
    /// How much of the capacity it takes; for the reentrant kind, how many holds are counted.
    pub weight: u32,
}

impl<'a> LockView<'a> {
    /// What such a record is at a moment, where it lives.
    pub fn at(at: TrueTime, record: &'a ExpiringValue<Data>, clock: Clock) -> Option<Self> {
        let lapses = record.expires_ms.map(|end| over(clock, end));
        let lives = lapses.is_none_or(|end| at < end);
        lives.then_some(Self { data: &record.value, clock, lapses })
    }

    /// What this owner has, as it is written there: also what has lapsed since and was not swept.
    pub fn share(&self, owner: &Owner) -> Option<Share> {
        match self.data {
            Data::Text(value) => {
                value.starts_with(owner.as_str()).then_some(Share { lapses: self.lapses, weight: 1 })
            }
            Data::Hash(hash) => {
                let weight = hash.get(owner.as_str())?.parse().ok()?;
                Some(Share { lapses: self.lapses, weight })
            }
            Data::Queue(queue) => {
                let (_, ticket) = queue.tickets().find(|(_, ticket)| ticket.owner == *owner)?;
                Some(Share { lapses: Some(over(self.clock, ticket.deadline_ms)), weight: ticket.weight })
            }
        }
    }

    /// Who has it, where only one can.
    pub fn holder(&self) -> Option<Owner> {
        match self.data {
            Data::Text(value) => protocol::parse_value(value).map(|(owner, _)| owner),
            _ => None,
        }
    }

    /// The moment at which the first of what stands there is over.
    pub fn edge(&self) -> Option<TrueTime> {
        match self.data {
            Data::Queue(queue) => {
                let first = queue.tickets().map(|(_, ticket)| ticket.deadline_ms).min()?;
                Some(over(self.clock, first))
            }
            _ => self.lapses,
        }
    }
}

/// Alive up to and including this millisecond: the first moment after it.
fn over(clock: Clock, deadline_ms: u64) -> TrueTime {
    clock.when(deadline_ms.saturating_add(1).saturating_mul(MS))
}

impl Server {
    /// An empty server.
    pub fn new(clock: Clock) -> Self {
        Self { clock, ..Self::default() }
    }

    /// Asks the scripts as well, from now on.
    pub fn run_scripts(&mut self) {
        self.scripts = Some(Scripts::new());
    }

    /// Where the machines in Rust and the scripts have differed, if they have.
    pub fn difference(&mut self) -> Option<String> {
        self.difference.take()
    }

    fn now(&self, at: TrueTime) -> Now {
        let shown = self.clock.shows(at);
        Now { ms: shown / MS, unix_us: EPOCH_US + shown / 1_000 }
    }

    /// Runs one request at a true time, before this audience. Says which waiters it has removed
    /// because their clients did not hear it.
    pub fn apply(
        &mut self,
        at: TrueTime,
        op: &Op,
        audience: Audience,
    ) -> ((Answer, Option<Notification>), Vec<Owner>) {
        let now = self.now(at);
        let state = match self.locks.get_mut(&op.name) {
            Some(state) => state,
            None => self.locks.entry(op.name.clone()).or_default(),
        };
        if let Some(past) = &mut self.past {
            let (op, before, audience) = (op.clone(), state.clone(), audience.clone());
            past.push(Past { at, now, op, before, counter: self.counter, audience });
        }
        let passed: RefCell<Vec<Owner>> = RefCell::default();
        let hears = |listens: Option<Listening>, owner: &Owner| {
            let is_elsewhere = listens.is_some() && listens != audience.station();
            let hears = is_elsewhere || !audience.unreached.contains(&owner.into());
            if !hears {
                passed.borrow_mut().push(owner.clone());
            }
            hears
        };
        let answer = protocol::apply_calling(state, &mut self.counter, now, op, &hears);
        if let Some(scripts) = &self.scripts {
            self.difference = scripts.compare(now, op, &audience, &answer).err();
        }
        (answer, passed.into_inner())
    }

    /// What stands at a lock's key.
    pub fn view(&self, at: TrueTime, name: &LockName) -> Option<LockView<'_>> {
        LockView::at(at, self.locks.get(name)?.lock.as_ref()?, self.clock)
    }

    /// Every lock that is held.
    pub fn list(&self, at: TrueTime, prefix: &str) -> Vec<(LockName, Found)> {
        let now = self.now(at);
        let ours = self.locks.iter().filter(|(name, _)| name.as_str().starts_with(prefix));
        ours.filter_map(|(name, state)| Some((name.clone(), protocol::found(state, now)?))).collect()
    }

    /// An operator deletes a lock's key; the counter of its tokens stays.
    pub fn delete(&mut self, name: &LockName) {
        if let Some(state) = self.locks.get_mut(name) {
            state.lock = None;
        }
        if let Some(scripts) = &self.scripts {
            scripts.delete(name);
        }
    }

    /// The counter of tokens is evicted, and with it what a lock knows of ballots; the lock stays.
    pub fn evict_counter(&mut self, name: &LockName) {
        self.counter = 0;
        if let Some(state) = self.locks.get_mut(name) {
            state.ballot = None;
        }
        if let Some(scripts) = &self.scripts {
            scripts.evict_counter(name);
        }
    }

    /// Whether there is a counter of tokens, or a ballot of this lock.
    pub fn has_counter(&self, name: &LockName) -> bool {
        self.counter > 0 || self.locks.get(name).is_some_and(|state| state.ballot.is_some())
    }

    /// Remembers from now on what it was.
    pub fn remember(&mut self) {
        self.past.get_or_insert_default();
    }

    /// What was written after a moment is lost: a replica takes over that had no more, or the end
    /// of a log is missing.
    pub fn rewind(&mut self, to: TrueTime) {
        let Some(past) = &mut self.past else { return };
        while let Some(lost) = past.pop_if(|lost| lost.at > to) {
            self.locks.insert(lost.op.name, lost.before);
            self.counter = lost.counter;
        }
        if let Some(scripts) = &self.scripts {
            scripts.forget();
            for kept in past {
                scripts.run(kept.now, &kept.op, &kept.audience);
            }
        }
    }

    /// Sets the clock so that it is off by this much. By how much it has moved.
    pub fn set_off(&mut self, off: i64) -> i64 {
        let by = off - std::mem::replace(&mut self.off, off);
        self.clock = self.clock.stepped(by);
        by
    }

    /// By how much its clock is off.
    pub fn off(&self) -> i64 {
        self.off
    }

    /// Starts again with nothing.
    pub fn forget(&mut self) {
        self.locks.clear();
        self.counter = 0;
        if let Some(scripts) = &self.scripts {
            scripts.forget();
        }
    }
}
