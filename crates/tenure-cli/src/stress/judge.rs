//! What must not be, looked for in what the workers were told: pure, in the order of their times.
//!
//! A hold counts from the moment at which its worker was told, to the last at which its guard, asked, still said that it held: in
//! between the guard promised that nobody else's does.
//!
//! | violated is | if |
//! |---|---|
//! | exclusion | those who held at one moment took more than there is, or somebody held after another who was let in later |
//! | tokens | who asked after another was let in, and held after it, has a token that is not above; of two who share, either may be first |
//! | progress | somebody waited and nobody held for longer than the limit, with no grant meanwhile |

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::history::{End, Line, Lock, Sort, What};
use super::merge::Event;
use crate::output::plural;

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
    /// Their ends and beginnings: when, whether it begins, and which. At one moment ends come first.
    edges: BTreeSet<(u64, bool, u64)>,
    /// Those that hold at the edge that was judged last.
    holding: BTreeSet<u64>,
    used: u64,
    /// The greatest token so far, and the greatest of one who had it alone.
    last: Option<Hold>,
    last_alone: Option<Hold>,
    waiting: u32,
    /// When it was last looked at, and for how long it was waited for, and not held, since the last grant.
    looked: u64,
    stall: u64,
}

#[derive(Debug)]
struct Doing {
    lock: Lock,
    asked: u64,
    hold: Option<u64>,
}

/// The longest time for which a lock that was waited for was held by nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stall {
    pub(super) lock: Lock,
    pub(super) length: u64,
    /// When it was over.
    pub(super) time: u64,
}

#[derive(Debug)]
pub(super) struct Judge {
    begun: u64,
    stall_limit: u64,
    locks: BTreeMap<Lock, Book>,
    tasks: BTreeMap<(u32, u32), Doing>,
    holds: u64,
    /// How many turns were judged, of each kind.
    pub(super) grants: BTreeMap<Sort, u64>,
    pub(super) ends: BTreeMap<End, u64>,
    pub(super) left: u64,
    pub(super) failed: u64,
    /// The last failure, as it was told.
    pub(super) failure: Option<String>,
    pub(super) stall: Option<Stall>,
    /// How many there are of each sort.
    pub(super) violations: BTreeMap<&'static str, u64>,
    /// The first of them, with all that is known.
    pub(super) evidence: Vec<String>,
}

impl Judge {
    pub(super) fn new(begun: u64, stall_limit: u64) -> Self {
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

    pub(super) fn checked(&self) -> u64 {
        self.grants.values().sum()
    }

    /// Something that must not be was.
    pub(super) fn accuse(&mut self, sort: &'static str, what: impl fmt::Display) {
        let count = self.violations.entry(sort).or_default();
        *count += 1;
        if *count <= TOLD {
            self.evidence.push(format!("{sort}: {what}"));
        }
    }

    pub(super) fn violated(&self) -> u64 {
        self.violations.values().sum()
    }

    /// What happened next.
    pub(super) fn hear(&mut self, time: u64, worker: u32, event: Event) {
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

    /// Adds to the time for which a lock was waited for by somebody and held by nobody.
    fn look(&mut self, time: u64, lock: Lock) {
        let limit = self.stall_limit;
        let book = self.locks.entry(lock).or_default();
        // Whoever does not say anything any more holds until its lease is over.
        let held_until = book.open.values().map(|hold| hold.until).max().unwrap_or(0);
        let since = std::mem::replace(&mut book.looked, time).max(held_until);
        if book.waiting == 0 || time <= since {
            return;
        }
        let before = book.stall;
        book.stall += time - since;
        let length = book.stall;
        if self.stall.is_none_or(|longest| longest.length < length) {
            self.stall = Some(Stall { lock, length, time });
        }
        if before <= limit && limit < length {
            let waiting = self.book(lock).waiting;
            let text = format!(
                "{lock} was held by nobody for {}, until {}, while {} waited",
                Length(length),
                self.at(time),
                plural(u64::from(waiting), "task"),
            );
            self.accuse("progress", text);
        }
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

    fn begins(&mut self, lock: Lock, id: u64) {
        let capacity = lock.sort.capacity();
        let book = self.book(lock);
        let Some(hold) = book.closed.get(&id).cloned() else { return };
        let mut wrong = Vec::new();
        book.used += u64::from(hold.weight);
        let others = book.holding.iter().filter_map(|id| book.closed.get(id));
        if book.used > u64::from(capacity)
            && let Some(other) = others.max_by_key(|other| other.until)
        {
            let overlap = Length(hold.until.min(other.until) - hold.from);
            wrong.push(("exclusion", format!("{lock} was held by both for {overlap}"), other.clone()));
        }
        let is_alone = hold.weight == capacity;
        // Those who share may be told in another order than they were let in.
        let before = if is_alone { &book.last } else { &book.last_alone };
        // Of two who met, nobody can say who was first.
        let is_behind = |before: &&Hold| before.until <= hold.from && hold.token <= before.token;
        if let Some(before) = before.as_ref().filter(is_behind) {
            let (token, earlier) = (hold.token, before.token);
            wrong.push(match hold.asked < before.from {
                // It has the older token because it was let in first.
                true => (
                    "exclusion",
                    format!("{lock} was granted, and told late, while it was held"),
                    before.clone(),
                ),
                false => ("tokens", format!("{lock} gave {token} after {earlier}"), before.clone()),
            });
        }
        book.holding.insert(id);
        if is_alone {
            book.last_alone = Some(hold.clone());
        }
        if book.last.as_ref().is_none_or(|last| last.token < hold.token) {
            book.last = Some(hold.clone());
        }
        for (sort, what, other) in wrong {
            let text = format!("{what}\n  {}\n  {}", self.tell(&other), self.tell(&hold));
            self.accuse(sort, text);
        }
    }

    /// All workers are gone.
    pub(super) fn finish(&mut self) {
        let locks: Vec<Lock> = self.locks.keys().copied().collect();
        for lock in locks {
            self.settle(lock, u64::MAX);
        }
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
    pub(super) fn at(&self, time: u64) -> String {
        format!("{:.6}s", time.saturating_sub(self.begun) as f64 / 1e9)
    }
}

/// A length of time, exact enough for evidence.
pub(super) struct Length(pub(super) u64);

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
mod tests {
    use super::super::history::{PERMITS, WRITER};
    use super::*;

    const MUTEX: Lock = Lock { sort: Sort::Mutex, number: 0 };
    const SEMAPHORE: Lock = Lock { sort: Sort::Semaphore, number: 0 };
    const RWLOCK: Lock = Lock { sort: Sort::Rwlock, number: 1 };
    const LIMIT: u64 = 100;

    /// A judge who has heard these lines of these tasks, each of a process of its own, and that all are gone at the end.
    fn judged(lines: &[(u64, u32, What)]) -> Judge {
        let mut judge = Judge::new(0, LIMIT);
        for (time, worker, what) in lines {
            let line = Line { time: *time, task: 0, what: what.clone() };
            judge.hear(*time, *worker, Event::Said(line));
        }
        let end = lines.last().map_or(0, |line| line.0);
        (0..10).for_each(|worker| judge.hear(end, worker, Event::Gone));
        judge.finish();
        judge
    }

    fn asks(lock: Lock) -> What {
        What::Asks(lock)
    }

    fn holds(token: u64, weight: u32) -> What {
        What::Holds { token, weight, deadline: 1_000 }
    }

    fn ends(until: u64) -> What {
        What::Ends { until, how: End::Released }
    }

    #[track_caller]
    fn is_fine(judge: &Judge, checked: u64) {
        assert_eq!((judge.violated(), judge.checked()), (0, checked), "{:?}", judge.evidence);
    }

    #[track_caller]
    fn is_wrong(judge: &Judge, words: &[&str]) {
        let [evidence] = &judge.evidence[..] else { panic!("{:?}", judge.evidence) };
        assert!(words.iter().all(|word| evidence.contains(word)), "{words:?}: {evidence}");
    }

    #[test]
    fn turns_one_after_the_other_are_fine() {
        let judge = judged(&[
            (1, 1, asks(MUTEX)),
            (2, 2, asks(MUTEX)),
            (3, 1, holds(7, 1)),
            (9, 1, ends(8)),
            (9, 2, holds(8, 1)),
            (12, 2, ends(12)),
        ]);
        is_fine(&judge, 2);
        assert_eq!(judge.ends[&End::Released], 2);
    }

    #[test]
    fn two_who_held_a_mutex_at_one_moment_are_found_and_both_are_told() {
        let judge = judged(&[
            (1, 1, asks(MUTEX)),
            (2, 2, asks(MUTEX)),
            (3, 1, holds(7, 1)),
            (5, 2, holds(8, 1)),
            (9, 1, ends(6)),
            (12, 2, ends(12)),
        ]);
        is_wrong(&judge, &["exclusion", "mutex-0", "process 1, task 0", "process 2, task 0", "token 8"]);
    }

    #[test]
    fn who_lost_it_in_time_met_nobody() {
        // Its end is told late, and was early.
        let judge = judged(&[
            (1, 1, asks(MUTEX)),
            (2, 2, asks(MUTEX)),
            (3, 1, holds(7, 1)),
            (50, 2, holds(8, 1)),
            (60, 2, ends(60)),
            (90, 1, What::Ends { until: 40, how: End::Lost }),
        ]);
        is_fine(&judge, 2);
    }

    #[test]
    fn who_lost_it_too_late_is_found_after_the_other_is_gone() {
        let judge = judged(&[
            (1, 1, asks(MUTEX)),
            (2, 2, asks(MUTEX)),
            (3, 1, holds(7, 1)),
            (50, 2, holds(8, 1)),
            (60, 2, ends(60)),
            (90, 1, What::Ends { until: 51, how: End::Lost }),
        ]);
        is_wrong(&judge, &["exclusion", "lost"]);
    }

    #[test]
    fn a_killed_process_held_until_it_was_killed_or_its_lease_was_over() {
        let killed = |deadline, granted| {
            let mut judge = Judge::new(0, LIMIT);
            let said = |time, what| Event::Said(Line { time, task: 0, what });
            judge.hear(1, 1, said(1, asks(MUTEX)));
            judge.hear(2, 1, said(2, What::Holds { token: 1, weight: 1, deadline }));
            judge.hear(3, 2, said(3, asks(MUTEX)));
            judge.hear(granted, 2, said(granted, holds(2, 1)));
            judge.hear(60, 1, Event::Gone);
            judge.hear(70, 2, said(70, ends(70)));
            judge.finish();
            judge
        };
        is_fine(&killed(20, 30), 2);
        is_wrong(&killed(40, 30), &["exclusion", "killed"]);
        is_wrong(&killed(900, 59), &["exclusion", "killed"]);
    }

    #[test]
    fn permits_are_counted() {
        let three = |last| {
            judged(&[
                (1, 1, asks(SEMAPHORE)),
                (1, 2, asks(SEMAPHORE)),
                (2, 1, holds(1, 1)),
                (3, 2, holds(2, last)),
                (9, 1, ends(9)),
                (9, 2, ends(9)),
            ])
        };
        is_fine(&three(PERMITS - 1), 2);
        is_wrong(&three(PERMITS), &["exclusion"]);
    }

    #[test]
    fn readers_are_together_and_writers_are_alone() {
        let with = |weight| {
            judged(&[
                (1, 1, asks(RWLOCK)),
                (1, 2, asks(RWLOCK)),
                (2, 1, holds(2, 1)),
                (3, 2, holds(1, weight)),
                (9, 2, ends(9)),
                (9, 1, ends(9)),
            ])
        };
        is_fine(&with(1), 2); // readers may be told in any order
        is_wrong(&with(WRITER), &["exclusion", "rwlock-1"]);
    }

    #[test]
    fn a_token_that_does_not_grow_is_found() {
        let tokens = |lock, first, second| {
            judged(&[
                (1, 1, asks(lock)),
                (2, 1, first),
                (3, 1, ends(3)),
                (4, 2, asks(lock)),
                (5, 2, second),
                (6, 2, ends(6)),
            ])
        };
        is_fine(&tokens(MUTEX, holds(7, 1), holds(8, 1)), 2);
        is_wrong(&tokens(MUTEX, holds(7, 1), holds(7, 1)), &["tokens", "7 after 7"]);
        is_wrong(&tokens(RWLOCK, holds(7, WRITER), holds(6, 1)), &["tokens", "6 after 7"]);
        is_wrong(&tokens(RWLOCK, holds(7, 1), holds(6, WRITER)), &["tokens", "6 after 7"]);
    }

    #[test]
    fn who_was_let_in_before_another_and_told_after_it_is_found() {
        let judge = judged(&[
            (1, 1, asks(MUTEX)),
            (2, 2, asks(MUTEX)),
            (3, 2, holds(8, 1)),
            (4, 2, ends(4)),
            (5, 1, holds(7, 1)),
            (6, 1, ends(6)),
        ]);
        is_wrong(&judge, &["exclusion", "told late"]);
    }

    #[test]
    fn tokens_of_several_locks_are_not_compared() {
        let other = Lock { number: 1, ..MUTEX };
        let judge = judged(&[
            (1, 1, asks(MUTEX)),
            (2, 1, holds(7, 1)),
            (3, 1, ends(3)),
            (4, 2, asks(other)),
            (5, 2, holds(6, 1)),
            (6, 2, ends(6)),
        ]);
        is_fine(&judge, 2);
    }

    #[test]
    fn a_lock_that_nobody_holds_and_somebody_waits_for_is_a_stall() {
        let judge = judged(&[(1, 1, asks(MUTEX)), (1 + LIMIT, 1, holds(1, 1)), (150, 1, ends(150))]);
        is_fine(&judge, 1);
        assert_eq!(judge.stall, Some(Stall { lock: MUTEX, length: LIMIT, time: 1 + LIMIT }));
        let judge = judged(&[(1, 1, asks(MUTEX)), (2 + LIMIT, 1, holds(1, 1)), (150, 1, ends(150))]);
        is_wrong(&judge, &["progress", "mutex-0"]);
    }

    #[test]
    fn who_gives_up_and_asks_again_ends_no_stall_and_nobody_waiting_is_none() {
        let waits = |pause: u64| {
            judged(&[
                (1, 1, asks(MUTEX)),
                (61, 1, What::Leaves),
                (61 + pause, 1, asks(MUTEX)),
                (121 + pause, 1, holds(1, 1)),
                (122 + pause, 1, ends(122 + pause)),
            ])
        };
        assert_eq!(waits(1_000).stall.map(|stall| stall.length), Some(120));
        is_wrong(&waits(1_000), &["progress"]);
    }

    #[test]
    fn a_lock_that_is_held_is_no_stall_until_the_lease_of_a_silent_holder_is_over() {
        let silent = |deadline| {
            judged(&[
                (1, 1, asks(MUTEX)),
                (2, 1, What::Holds { token: 1, weight: 1, deadline }),
                (3, 2, asks(MUTEX)),
                (500, 1, What::Ends { until: 4, how: End::Lost }),
                (500, 2, holds(2, 1)),
                (501, 2, ends(501)),
            ])
        };
        is_fine(&silent(450), 2);
        is_wrong(&silent(300), &["progress"]);
    }

    #[test]
    fn what_a_worker_found_wrong_is_a_violation() {
        let judge = judged(&[(5, 1, What::Wrong("another token on re-entry".into()))]);
        is_wrong(&judge, &["another token", "process 1"]);
    }

    #[test]
    fn a_history_that_makes_no_sense_is_no_verdict() {
        for what in [holds(1, 1), ends(1), What::Keeps { deadline: 3 }] {
            is_wrong(&judged(&[(1, 1, what)]), &["makes no sense"]);
        }
    }

    #[test]
    fn failures_are_counted_and_wait_no_more() {
        let judge = judged(&[
            (1, 1, asks(MUTEX)),
            (2, 1, What::Fails("cannot ask".into())),
            (900, 2, asks(MUTEX)),
            (901, 2, holds(1, 1)),
            (902, 2, ends(902)),
        ]);
        is_fine(&judge, 1);
        assert_eq!((judge.failed, judge.failure.as_deref()), (1, Some("cannot ask")));
    }
}
