//! The simulated server: the machines of `protocol`, with their own clock.

use std::cell::RefCell;
use std::collections::BTreeMap;

use tenure::internals::protocol::{
    self, Answer, Data, ExpiringValue, Fence, Found, Listening, LockSpec, Notification, Now, Op, QueueSpec,
    State, Verb,
    queue::{Queue, Ticket},
};
use tenure::{LockName, Owner};

use super::clock::{Clock, MS, TrueTime};
use super::scripts::{Audience, Scripts};

/// Start of its wall clock, in microseconds since 1970.
const EPOCH_US: u64 = 1_700_000_000_000_000;

/// The server's locks and clock.
#[derive(Debug, Default)]
pub struct Server {
    clock: Clock,
    locks: BTreeMap<LockName, State>,
    /// The last token issued, for any lock.
    counter: u64,
    /// The real scripts, keeping the same state.
    scripts: Option<Scripts>,
    /// The first difference between the two.
    difference: Option<String>,
    /// Grants free locks by plain commands, once a script has raised the counter.
    has_plain_clients: bool,
    is_raised: bool,
    /// A log of all changes, if the server may return to an earlier state.
    past: Option<Vec<Past>>,
    /// How far its clock is off because of steps, in nanoseconds.
    off: i64,
}

/// A request, and the state before it.
#[derive(Debug)]
struct Past {
    at: TrueTime,
    now: Now,
    op: Op,
    before: State,
    counter: u64,
    audience: Audience,
    is_plain: bool,
}

/// What is at a lock's key.
#[derive(Clone, Copy, Debug)]
pub struct LockView<'a> {
    data: &'a Data,
    clock: Clock,
    /// The first true time at which the key is gone, if it expires.
    pub lapses: Option<TrueTime>,
}

/// One owner's share of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The first true time at which it is over, if it expires.
    pub lapses: Option<TrueTime>,
    /// The capacity it takes; for the reentrant kind, the number of holds.
    pub weight: u32,
}

impl<'a> LockView<'a> {
    /// The view of a record at a moment, if it has not expired.
    pub fn at(at: TrueTime, record: &'a ExpiringValue<Data>, clock: Clock) -> Option<Self> {
        let lapses = record.expires_ms.map(|end| over(clock, end));
        let lives = lapses.is_none_or(|end| at < end);
        lives.then_some(Self { data: &record.value, clock, lapses })
    }

    /// This owner's share as stored, including lapsed entries that were not swept yet.
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

    /// The holder, for kinds with a single one.
    pub fn holder(&self) -> Option<Owner> {
        match self.data {
            Data::Text(value) => protocol::parse_value(value).map(|(owner, _)| owner),
            _ => None,
        }
    }

    /// The next moment at which something here lapses.
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

/// The first true time after this millisecond, which is the last one of the entry.
fn over(clock: Clock, deadline_ms: u64) -> TrueTime {
    clock.when(deadline_ms.saturating_add(1).saturating_mul(MS))
}

/// What the plain commands of an acquisition leave at a free lock, if they can acquire it.
fn bare(now: Now, op: &Op) -> Option<ExpiringValue<Data>> {
    let Verb::Acquire { ttl_ms, fence: Fence::Assign | Fence::Optional, .. } = op.verb else { return None };
    let (owner, deadline_ms) = (op.owner.clone(), now.ms + ttl_ms);
    let value = match op.spec {
        LockSpec::Mutex => Data::Text(owner.to_string()),
        LockSpec::Queue(QueueSpec { kind, capacity, weight }) if weight <= capacity => {
            let mut queue = Queue::new(kind, capacity);
            queue.insert(0, Ticket { owner, weight, deadline_ms, listens: None });
            Data::Queue(queue)
        }
        LockSpec::Queue(_) | LockSpec::Reentrant => return None,
    };
    Some(ExpiringValue { value, expires_ms: Some(deadline_ms) })
}

impl Server {
    /// An empty server.
    pub fn new(clock: Clock) -> Self {
        Self { clock, ..Self::default() }
    }

    /// Also runs the real scripts from now on.
    pub fn run_scripts(&mut self) {
        self.scripts = Some(Scripts::new());
    }

    /// Some clients acquire free locks by plain commands from now on.
    pub fn serve_plain_clients(&mut self) {
        self.has_plain_clients = true;
    }

    /// Whether some clients use plain commands.
    pub fn has_plain_clients(&self) -> bool {
        self.has_plain_clients
    }

    /// The first difference between the Rust machines and the scripts; clears it.
    pub fn difference(&mut self) -> Option<String> {
        self.difference.take()
    }

    fn now(&self, at: TrueTime) -> Now {
        let shown = self.clock.shows(at);
        Now { ms: shown / MS, unix_us: EPOCH_US + shown / 1_000 }
    }

    /// Runs a request at a true time. Also returns the waiters that were removed because their clients could
    /// not be notified.
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
        let bare = bare(now, op).filter(|_| {
            let is_free = state.lock.as_ref().is_none_or(|lock| lock.is_over(now));
            // Three of four, because clients also acquire free locks by scripts.
            self.has_plain_clients && self.is_raised && is_free && !self.counter.is_multiple_of(4)
        });
        if let Some(past) = &mut self.past {
            let (op, before, audience) = (op.clone(), state.clone(), audience.clone());
            let (counter, is_plain) = (self.counter, bare.is_some());
            past.push(Past { at, now, op, before, counter, audience, is_plain });
        }
        if let Some(bare) = bare {
            self.counter += 1;
            state.lock = Some(bare);
            if let Some(scripts) = &self.scripts {
                scripts.acquire_plainly(now, op);
            }
            return ((Answer::Held { fence: self.counter }, None), Vec::new());
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
        self.is_raised |= self.counter >= now.unix_us;
        if let Some(scripts) = &self.scripts {
            self.difference = scripts.compare(now, op, &audience, &answer).err();
        }
        (answer, passed.into_inner())
    }

    /// What is at a lock's key.
    pub fn view(&self, at: TrueTime, name: &LockName) -> Option<LockView<'_>> {
        LockView::at(at, self.locks.get(name)?.lock.as_ref()?, self.clock)
    }

    /// All held locks.
    pub fn list(&self, at: TrueTime, prefix: &str) -> Vec<(LockName, Found)> {
        let now = self.now(at);
        let ours = self.locks.iter().filter(|(name, _)| name.as_str().starts_with(prefix));
        ours.filter_map(|(name, state)| Some((name.clone(), protocol::found(state, now)?))).collect()
    }

    /// Deletes a lock's key, as an operator would; the token counter stays.
    pub fn delete(&mut self, name: &LockName) {
        if let Some(state) = self.locks.get_mut(name) {
            state.lock = None;
        }
        if let Some(scripts) = &self.scripts {
            scripts.delete(name);
        }
    }

    /// Evicts the token counter and a lock's ballot; the lock stays.
    pub fn evict_counter(&mut self, name: &LockName) {
        (self.counter, self.is_raised) = (0, false);
        if let Some(state) = self.locks.get_mut(name) {
            state.ballot = None;
        }
        if let Some(scripts) = &self.scripts {
            scripts.evict_counter(name);
        }
    }

    /// Whether there is a token counter, or a ballot of this lock.
    pub fn has_counter(&self, name: &LockName) -> bool {
        self.counter > 0 || self.locks.get(name).is_some_and(|state| state.ballot.is_some())
    }

    /// Starts recording changes, for `rewind`.
    pub fn remember(&mut self) {
        self.past.get_or_insert_default();
    }

    /// Drops all writes after a moment, like a failover to a lagging replica, or a truncated log.
    pub fn rewind(&mut self, to: TrueTime) {
        let Some(past) = &mut self.past else { return };
        self.is_raised = false;
        while let Some(lost) = past.pop_if(|lost| lost.at > to) {
            self.locks.insert(lost.op.name, lost.before);
            self.counter = lost.counter;
        }
        if let Some(scripts) = &self.scripts {
            scripts.forget();
            for kept in past {
                match kept.is_plain {
                    true => scripts.acquire_plainly(kept.now, &kept.op),
                    false => _ = scripts.run(kept.now, &kept.op, &kept.audience),
                }
            }
        }
    }

    /// Steps the clock so that it is off by this much. Returns the size of the step.
    pub fn set_off(&mut self, off: i64) -> i64 {
        let by = off - std::mem::replace(&mut self.off, off);
        self.clock = self.clock.stepped(by);
        by
    }

    /// How far its clock is off.
    pub fn off(&self) -> i64 {
        self.off
    }

    /// Restarts without data.
    pub fn forget(&mut self) {
        self.locks.clear();
        (self.counter, self.is_raised) = (0, false);
        if let Some(scripts) = &self.scripts {
            scripts.forget();
        }
    }
}
