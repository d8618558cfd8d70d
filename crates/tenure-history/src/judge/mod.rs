//! Looks for violations in what tasks observed: a pure function of their histories, in order of time.
//!
//! A hold counts from the moment when its task was told of the grant to the last moment at which its guard,
//! when queried, reported that it held: for all of that time the guard promised exclusion.
//!
//! | module | violated invariant | when |
//! |---|---|---|
//! | `exclusion` | exclusion | concurrent holds exceeded the capacity |
//! | `tokens` | tokens | a request made after another grant, and granted after that hold, got a token that is not greater; for shared holds either may be first |
//! | | exclusion | the same, if the request was made before the other grant: it was granted first, and told late |
//! | `progress` | progress | a client waited while nobody held for longer than the limit, without a grant in between |

mod exclusion;
mod progress;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::line::{End, Line, Lock, Sort, What};
use crate::merge::Event;

pub use progress::Stall;

/// Maximum violations of each sort that are reported in full.
const TOLD: u64 = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Hold {
    worker: u32,
    task: u32,
    asked: u64,
    from: u64,
    /// While it is open, when it would end by itself.
    until: u64,
    token: u64,
    weight: u32,
    how: Option<End>,
}

/// The relevant part of one lock's history.
#[derive(Debug, Default)]
struct Book {
    /// Open holds, in the order in which they began.
    open: BTreeMap<u64, Hold>,
    /// Closed holds that later ones may overlap.
    closed: BTreeMap<u64, Hold>,
    /// Beginnings and ends of closed holds: time, whether it is a beginning, and the hold. At the same time,
    /// ends come first.
    edges: BTreeSet<(u64, bool, u64)>,
    /// Holds in progress at the last edge that was judged.
    holding: BTreeSet<u64>,
    used: u64,
    /// The hold with the greatest token so far, and the last exclusive hold.
    last: Option<Hold>,
    last_alone: Option<Hold>,
    waiting: u32,
    /// When progress was last checked, and how long somebody has waited while nobody held since the last
    /// grant.
    looked: u64,
    stall: u64,
}

#[derive(Debug)]
struct Doing {
    lock: Lock,
    asked: u64,
    hold: Option<u64>,
}

/// Receives events in order of time and reports violations.
#[derive(Debug)]
pub struct Judge {
    begun: u64,
    stall_limit: u64,
    locks: BTreeMap<Lock, Book>,
    tasks: BTreeMap<(u32, u32), Doing>,
    holds: u64,
    /// Number of holds judged, by kind.
    pub grants: BTreeMap<Sort, u64>,
    /// Number of holds, by how they ended.
    pub ends: BTreeMap<End, u64>,
    /// Number of abandoned waits.
    pub left: u64,
    /// Number of failed requests.
    pub failed: u64,
    /// The last failure.
    pub failure: Option<String>,
    /// The longest stall.
    pub stall: Option<Stall>,
    /// Number of violations, by sort.
    pub violations: BTreeMap<&'static str, u64>,
    /// The first violations of each sort, in full.
    pub evidence: Vec<String>,
}

impl Judge {
    /// A judge whose times count from `begun` and that allows no stall longer than `stall_limit`, both in
    /// nanoseconds.
    pub fn new(begun: u64, stall_limit: u64) -> Self {
        Self {
            begun,
            stall_limit,
            locks: BTreeMap::new(),
            tasks: BTreeMap::new(),
            holds: 0,
            grants: BTreeMap::new(),
            ends: BTreeMap::new(),
            left: 0,
            failed: 0,
            failure: None,
            stall: None,
            violations: BTreeMap::new(),
            evidence: Vec::new(),
        }
    }

    /// Number of holds judged.
    pub fn checked(&self) -> u64 {
        self.grants.values().sum()
    }

    /// Reports a violation.
    pub fn accuse(&mut self, sort: &'static str, what: impl fmt::Display) {
        let count = self.violations.entry(sort).or_default();
        *count += 1;
        if *count <= TOLD {
            self.evidence.push(format!("{sort}: {what}"));
        }
    }

    /// Number of violations.
    pub fn violated(&self) -> u64 {
        self.violations.values().sum()
    }

    /// Processes the next event.
    pub fn hear(&mut self, time: u64, worker: u32, event: Event) {
        match event {
            Event::Said(Line { task, what, .. }) => self.said(time, (worker, task), what),
            Event::Gone => {
                let all = self.tasks.range((worker, 0)..=(worker, u32::MAX));
                let all: Vec<(u32, u32)> = all.map(|(who, _)| *who).collect();
                all.into_iter().for_each(|who| self.gone(time, who));
            }
        }
    }

    fn said(&mut self, time: u64, who: (u32, u32), what: What) {
        match what {
            What::Asks(lock) => {
                self.look(time, lock);
                self.book(lock).waiting += 1;
                if self.tasks.insert(who, Doing { lock, asked: time, hold: None }).is_some() {
                    self.unheard_of(who, "asks while it is busy");
                }
            }
            What::Holds { token, weight, deadline } => {
                let id = self.holds;
                let Some(doing) = self.tasks.get_mut(&who).filter(|doing| doing.hold.is_none()) else {
                    return self.unheard_of(who, "holds what it did not ask for");
                };
                (self.holds, doing.hold) = (id + 1, Some(id));
                let (worker, task) = who;
                let (lock, asked) = (doing.lock, doing.asked);
                self.look(time, lock);
                let book = self.book(lock);
                book.stall = 0;
                book.waiting -= 1;
                let hold =
                    Hold { worker, task, asked, from: time, until: deadline, token, weight, how: None };
                book.open.insert(id, hold);
            }
            What::Keeps { deadline } => match self.hold(who) {
                Some((_, _, hold)) => hold.until = hold.until.max(deadline),
                None => self.unheard_of(who, "keeps what it does not hold"),
            },
            What::Ends { until, how } => match self.hold(who) {
                Some((lock, id, _)) => {
                    self.tasks.remove(&who);
                    self.close(time, lock, id, until, how);
                }
                None => self.unheard_of(who, "ends what it does not hold"),
            },
            What::Leaves => {
                self.left += 1;
                self.asks_no_more(time, who);
            }
            What::Fails(why) => {
                self.failed += 1;
                self.failure = Some(why);
                self.asks_no_more(time, who);
            }
            What::Wrong(what) => {
                let text = format!("{} in process {}, task {}: {what}", self.at(time), who.0, who.1);
                self.accuse("what a worker saw", text);
            }
            What::Lives => {}
        }
    }

    /// An inconsistent history is a bug of the harness, not a verdict.
    fn unheard_of(&mut self, (worker, task): (u32, u32), what: &str) {
        self.accuse(
            "harness",
            format_args!("process {worker}, task {task} {what}: its history makes no sense"),
        );
    }

    /// The task's process has ended.
    fn gone(&mut self, time: u64, who: (u32, u32)) {
        match self.hold(who) {
            // Until then at least, the task believed that it held.
            Some((lock, id, hold)) => {
                let until = hold.until.min(time);
                self.tasks.remove(&who);
                self.close(time, lock, id, until, End::Killed);
            }
            None => self.asks_no_more(time, who),
        }
    }

    fn asks_no_more(&mut self, time: u64, who: (u32, u32)) {
        if let Some(doing) = self.tasks.get(&who)
            && doing.hold.is_none()
        {
            let lock = doing.lock;
            self.look(time, lock);
            self.book(lock).waiting -= 1;
            self.tasks.remove(&who);
        }
    }

    fn book(&mut self, lock: Lock) -> &mut Book {
        self.locks.entry(lock).or_default()
    }

    fn hold(&mut self, who: (u32, u32)) -> Option<(Lock, u64, &mut Hold)> {
        let Doing { lock, hold, .. } = self.tasks.get(&who)?;
        let (lock, id) = (*lock, (*hold)?);
        Some((lock, id, self.locks.get_mut(&lock)?.open.get_mut(&id)?))
    }

    fn close(&mut self, time: u64, lock: Lock, id: u64, until: u64, how: End) {
        self.look(time, lock);
        *self.ends.entry(how).or_default() += 1;
        *self.grants.entry(lock.sort).or_default() += 1;
        let book = self.book(lock);
        let Some(mut hold) = book.open.remove(&id) else { return };
        // It held when it learned of the grant, if only for that moment.
        (hold.until, hold.how) = (until.max(hold.from + 1), Some(how));
        book.edges.extend([(hold.from, true, id), (hold.until, false, id)]);
        book.closed.insert(id, hold);
        self.settle(lock, time);
    }

    /// Judges what is certain by now: everything before the first hold whose end is unknown.
    fn settle(&mut self, lock: Lock, time: u64) {
        let book = self.book(lock);
        let certain = book.open.values().next().map_or(time, |hold| hold.from);
        let mut edges = std::mem::take(&mut book.edges);
        let later = edges.split_off(&(certain, false, 0));
        book.edges = later;
        for (_, begins, id) in edges {
            if begins {
                self.begins(lock, id);
            } else {
                let book = self.book(lock);
                book.holding.remove(&id);
                let weight = book.closed.remove(&id).map_or(0, |hold| hold.weight);
                book.used -= u64::from(weight);
            }
        }
    }

    /// A hold begins, and everything before it is known.
    fn begins(&mut self, lock: Lock, id: u64) {
        let book = self.book(lock);
        let Some(hold) = book.closed.get(&id).cloned() else { return };
        book.used += u64::from(hold.weight);
        self.check_room(lock, &hold);
        self.check_token(lock, &hold);
        self.book(lock).holding.insert(id);
    }

    /// Completes the verdict once all processes have ended.
    pub fn finish(&mut self) {
        let locks: Vec<Lock> = self.locks.keys().copied().collect();
        for lock in locks {
            self.settle(lock, u64::MAX);
        }
    }

    /// Reports two incompatible holds.
    fn accuse_both(&mut self, sort: &'static str, what: &str, earlier: &Hold, later: &Hold) {
        let text = format!("{what}\n  {}\n  {}", self.tell(earlier), self.tell(later));
        self.accuse(sort, text);
    }

    fn tell(&self, hold: &Hold) -> String {
        let Hold { worker, task, asked, from, until, token, weight, how } = hold;
        let how = how.map_or(String::new(), |how| format!(", {how}"));
        format!(
            "process {worker}, task {task}: asked at {}, held {weight} from {} to {}{how}, token {token}",
            self.at(*asked),
            self.at(*from),
            self.at(*until),
        )
    }

    /// A time in seconds since the start.
    pub fn at(&self, time: u64) -> String {
        format!("{:.6}s", time.saturating_sub(self.begun) as f64 / 1e9)
    }
}

/// A duration in nanoseconds, displayed with the precision that evidence needs.
#[derive(Clone, Copy, Debug)]
pub struct Length(pub u64);

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..1_000_000 => write!(f, "{:.3}ms", self.0 as f64 / 1e6),
            1_000_000..1_000_000_000 => write!(f, "{:.1}ms", self.0 as f64 / 1e6),
            _ => write!(f, "{:.1}s", self.0 as f64 / 1e9),
        }
    }
}

#[cfg(test)]
mod tests;
