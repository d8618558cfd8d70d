//! What must not be, looked for in what tasks were told: pure, in the order of their times.
//!
//! A hold counts from the moment at which its task was told, to the last at which its guard, asked,
//! still said that it held: in between the guard promised that no other client's does.
//!
//! | file | violated is | if |
//! |---|---|---|
//! | `exclusion` | exclusion | those who held at one moment took more than there is |
//! | `tokens` | tokens | who asked after another was let in, and held after it, has a token that is not above; of two who share, either may be first |
//! | | exclusion | the same, where it had asked before: it was let in before the other, and told after |
//! | `progress` | progress | a client waited and no client held for longer than the limit, with no grant meanwhile |

mod exclusion;
mod progress;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::line::{End, Line, Lock, Sort, What};
use crate::merge::Event;

pub use progress::Stall;

/// So many violations of each sort are told in full.
const TOLD: u64 = 5;

/// One turn of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hold {
    worker: u32,
    task: u32,
    asked: u64,
    from: u64,
    /// While it goes on, when it would end by itself.
    until: u64,
    token: u64,
    weight: u32,
    how: Option<End>,
}

/// The history of one lock, as far as it still matters.
#[derive(Debug, Default)]
struct Book {
    /// Holds that have not ended yet, in the order in which they began.
    open: BTreeMap<u64, Hold>,
    /// Holds that have, and that others may have met.
    closed: BTreeMap<u64, Hold>,
    /// Their ends and beginnings: when, whether it begins, and which. At one moment ends come
    /// first.
    edges: BTreeSet<(u64, bool, u64)>,
    /// Those that hold at the edge that was judged last.
    holding: BTreeSet<u64>,
    used: u64,
    /// The greatest token so far, and the greatest of one who had it alone.
    last: Option<Hold>,
    last_alone: Option<Hold>,
    waiting: u32,
    /// When it was last looked at, and for how long it was waited for, and not held, since the last
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

/// Hears what happened, in the order in which it did, and says what must not have.
#[derive(Debug)]
pub struct Judge {
    begun: u64,
    stall_limit: u64,
    locks: BTreeMap<Lock, Book>,
    tasks: BTreeMap<(u32, u32), Doing>,
    holds: u64,
    /// How many turns were judged, of each kind.
    pub grants: BTreeMap<Sort, u64>,
    /// How they ended.
    pub ends: BTreeMap<End, u64>,
    /// How many waits were given up.
    pub left: u64,
    /// How many requests failed.
    pub failed: u64,
    /// The last failure, as it was told.
    pub failure: Option<String>,
    /// The longest one.
    pub stall: Option<Stall>,
    /// How many there are of each sort.
    pub violations: BTreeMap<&'static str, u64>,
    /// The first of them, with all that is known.
    pub evidence: Vec<String>,
}

impl Judge {
    /// A judge to whom times count from `begun`, and who allows no stall longer than `stall_limit`;
    /// both in nanoseconds.
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

    /// How many turns were judged.
    pub fn checked(&self) -> u64 {
        self.grants.values().sum()
    }

    /// Something that must not be was.
    pub fn accuse(&mut self, sort: &'static str, what: impl fmt::Display) {
        let count = self.violations.entry(sort).or_default();
        *count += 1;
        if *count <= TOLD {
            self.evidence.push(format!("{sort}: {what}"));
        }
    }

    /// How many violations there are.
    pub fn violated(&self) -> u64 {
        self.violations.values().sum()
    }

    /// What happened next.
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

    /// A line that makes no sense is a mistake of the harness, and must not pass for a verdict.
    fn unheard_of(&mut self, (worker, task): (u32, u32), what: &str) {
        self.accuse(
            "harness",
            format_args!("process {worker}, task {task} {what}: its history makes no sense"),
        );
    }

    /// A task whose process is no more.
    fn gone(&mut self, time: u64, who: (u32, u32)) {
        match self.hold(who) {
            // Until then at least it believed what it was told.
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
        // It held when it was told, if only for that moment.
        (hold.until, hold.how) = (until.max(hold.from + 1), Some(how));
        book.edges.extend([(hold.from, true, id), (hold.until, false, id)]);
        book.closed.insert(id, hold);
        self.settle(lock, time);
    }

    /// Judges what is certain by now: before the first hold whose end is not known yet.
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

    /// A turn of this lock begins, and all that came before it is known.
    fn begins(&mut self, lock: Lock, id: u64) {
        let book = self.book(lock);
        let Some(hold) = book.closed.get(&id).cloned() else { return };
        book.used += u64::from(hold.weight);
        self.check_room(lock, &hold);
        self.check_token(lock, &hold);
        self.book(lock).holding.insert(id);
    }

    /// All processes are gone.
    pub fn finish(&mut self) {
        let locks: Vec<Lock> = self.locks.keys().copied().collect();
        for lock in locks {
            self.settle(lock, u64::MAX);
        }
    }

    /// Two turns that cannot both have been.
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

    /// A time, for people.
    pub fn at(&self, time: u64) -> String {
        format!("{:.6}s", time.saturating_sub(self.begun) as f64 / 1e9)
    }
}

/// A length of time in nanoseconds, exact enough for evidence.
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
