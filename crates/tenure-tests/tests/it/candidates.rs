//! Candidates of an election, which also run a job once in each second, while servers die and stand still.
#![expect(clippy::disallowed_methods, reason = "tests against real servers measure real time")]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use tenure::{Change, Term, block_on};
use tenure_testkit::servers::eventually;

use crate::etcd::client;

const SECOND: Duration = Duration::from_secs(1);
/// The payload of the last term.
const LAST: &str = "last";

/// What the candidates found wrong, and what they check it against.
#[derive(Default)]
struct Seen {
    wrong: Mutex<Vec<String>>,
    /// The leader, and the greatest term.
    leads: Mutex<(Option<Arc<Term>>, u64)>,
    /// How often the job ran, by the beginning of its window.
    runs: Mutex<BTreeMap<SystemTime, u32>>,
    over: AtomicU64,
}

impl Seen {
    fn is_wrong(&self, what: String) {
        self.wrong.lock().expect("no panic").push(what);
    }

    fn leads(&self, term: &Arc<Term>) {
        let mut leads = self.leads.lock().expect("no panic");
        if let Some(other) = leads.0.as_ref().filter(|other| other.is_current() && term.is_current()) {
            self.is_wrong(format!("{} and {} lead at once", other.fence(), term.fence()));
        }
        if term.is_current() && term.fence() <= leads.1 {
            self.is_wrong(format!("term {} after {}", term.fence(), leads.1));
        }
        *leads = (Some(Arc::clone(term)), term.fence().max(leads.1));
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed) == 1
    }
}

/// Threads that lead in turn, and one that observes them.
pub(crate) struct Candidates {
    url: String,
    seen: Arc<Seen>,
    terms: Vec<Arc<AtomicU64>>,
    threads: Vec<thread::JoinHandle<()>>,
    observer: thread::JoinHandle<u64>,
}

impl Candidates {
    pub(crate) fn start(url: &str, count: usize) -> Self {
        let seen = Arc::<Seen>::default();
        let terms: Vec<Arc<AtomicU64>> = (0..count).map(|_| Arc::default()).collect();
        let threads = terms.iter().map(|terms| {
            let (url, seen, terms) = (url.to_owned(), Arc::clone(&seen), Arc::clone(terms));
            thread::spawn(move || campaign(&url, &seen, &terms))
        });
        let threads = threads.collect();
        let (of, told) = (url.to_owned(), Arc::clone(&seen));
        let observer = thread::spawn(move || observe(&of, &told));
        Self { url: url.to_owned(), seen, terms, threads, observer }
    }

    /// Waits until each has led a further time and the job has run in a further window.
    pub(crate) fn goes_on(&self) {
        let led = || self.terms.iter().map(|terms| terms.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let ran = || self.seen.runs.lock().expect("no panic").len();
        let before = (led(), ran());
        eventually("each leads once more", 120 * SECOND, || {
            led().iter().zip(&before.0).all(|(now, before)| now > before) && ran() > before.1
        });
    }

    pub(crate) fn end(self) {
        self.seen.over.store(1, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let last = client(&self.url).election("crowd", LAST).expect("a name");
        drop(block_on(last.campaign()).expect("a term"));
        let observed = self.observer.join().expect("no panic");
        let runs = self.seen.runs.lock().expect("no panic");
        println!("{observed} terms observed, {} windows with a run", runs.len());
        let twice: Vec<_> = runs.iter().filter(|(_, count)| **count > 1).collect();
        assert!(twice.is_empty(), "ran again in {twice:?}");
        assert_eq!(*self.seen.wrong.lock().expect("no panic"), Vec::<String>::new());
    }
}

fn campaign(url: &str, seen: &Seen, terms: &AtomicU64) {
    let locks = client(url);
    let election = locks.election("crowd", "").expect("a name");
    let job = locks.once_per("crowd", SECOND).expect("a name");
    // While there is no leader of the servers, requests fail.
    while !seen.is_over() {
        let _ = block_on(job.run(async |turn| {
            *seen.runs.lock().expect("no panic").entry(turn.window().start).or_default() += 1;
            Ok::<_, fmt::Error>(())
        }));
        let Ok(term) = block_on(election.campaign()) else { continue };
        let term = Arc::new(term);
        seen.leads(&term);
        thread::sleep(Duration::from_millis(5));
        seen.leads.lock().expect("no panic").0.take_if(|leads| Arc::ptr_eq(leads, &term));
        let led = terms.fetch_add(1, Ordering::Relaxed);
        match Arc::try_unwrap(term) {
            // The others are dropped.
            Ok(term) if led.is_multiple_of(2) => drop(block_on(term.resign())),
            _ => {}
        }
    }
}

/// Follows the terms to the last one, and returns their number.
fn observe(url: &str, seen: &Seen) -> u64 {
    let mut observer = client(url).election("crowd", "").expect("a name").observe();
    let (mut last, mut count) = (0, 0);
    loop {
        match block_on(observer.next()) {
            Ok(Change::Elected(leader)) => {
                if leader.fence <= last {
                    seen.is_wrong(format!("observed term {} after {last}", leader.fence));
                }
                (last, count) = (leader.fence, count + 1);
                if leader.payload == LAST {
                    return count;
                }
            }
            Ok(Change::Updated(leader) | Change::Resigned(leader)) if leader.fence == last => {}
            Ok(Change::Missed(_)) => {}
            Ok(other) => seen.is_wrong(format!("observed {other:?} in term {last}")),
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// The leader of the servers is killed and then stands still, as often as `kills` says.
pub(crate) fn survive(candidates: Candidates, leader: impl Fn() -> usize, harm: impl Fn(Harm, usize)) {
    candidates.goes_on();
    for _ in 0..crate::etcd::kills() {
        for (breaks, heals) in [(Harm::Kill, Harm::Restart), (Harm::Stop, Harm::Continue)] {
            let leader = leader();
            harm(breaks, leader);
            candidates.goes_on();
            harm(heals, leader);
            candidates.goes_on();
        }
    }
    candidates.end();
}

/// What is done to a server.
#[derive(Clone, Copy)]
pub(crate) enum Harm {
    Kill,
    Restart,
    Stop,
    Continue,
}
